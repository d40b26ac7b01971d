//! Names, owners and data are kept as they are, and listed in order.

use std::collections::BTreeMap;

use super::Subject;
use super::support::{Bare, LONG, claim_of, end_of, insist, soon};
use super::time::expire;
use crate::locks::Locks;
use crate::record::{Name, Record};
use crate::store::{Claim, Outcome, Page};

/// Names that something between here and the disk might fold, trim, cut, escape or interpret.
#[rustfmt::skip]
const ODD: &[&str] = &[
    // Case and blanks.
    "report", "Report", "REPORT", "report ", "report  ", " report", "report\u{a0}", "report\u{3000}", "report\u{200b}",
    // One letter written in two ways, and letters that collations take for the same.
    "\u{e9}", "e\u{301}", "e", "ß", "ss", "SS", "ﬁ", "fi", "ı", "i", "I", "İ", "\u{c5}", "\u{212b}", "K", "\u{212a}", "²", "2",
    // Patterns, quotes, escapes, variables, comments.
    "%", "_", "a%", "a_", "ab", "a*", "a?", "[a]", "[^a]", "{a}", "(a|b)", "a\\", "a\\\\", "a\\%", "a'", "a''", "a\"",
    "a`", "$", "$a", "$1", "$$NOW", "${a}", "a.b", "a.$", "a;b", "a--b", "a/*b*/", "a#b", "a:b", "a@b", "a&b", "a=b",
    "a+b", "a,b", "a~b", "a!b", "a<b>", "%s%n", "%00", "\\x00", "\\u0000",
    // Slashes, and what might be taken for something else than text.
    "/", "//", "a/", "a//b", "..", "../a", "0", "00", "-1", "1e3", "NaN", "null", "NULL", "true", "undefined",
    // Scripts, directions, joiners, the last of code points.
    "日本語", "한국어", "العربية", "עברית", "हिन्दी", "ไทย", "Ελληνικά", "кириллица", "አማርኛ", "ქართული", "Հայերեն", "தமிழ்",
    "မြန်မာ", "𓀀", "𝒳", "😀", "👩‍👩‍👧", "🇩🇪", "\u{202e}a", "\u{feff}a", "\u{fffd}", "\u{ffff}", "\u{10ffff}",
];

/// Odd names: one letter, 255 bytes, every script, quotes, patterns, case and blanks. All are different names.
fn odd_names(prefix: &str) -> Vec<Name> {
    let long = |fill: &str, end: &str| {
        let room = Name::MAX_BYTES - prefix.len() - end.len();
        format!("{}{}{end}", fill.repeat(room / fill.len()), "x".repeat(room % fill.len()))
    };
    let tails = [long("x", "a"), long("x", "b"), long("x", "A"), long("é", "a"), long("😀", "a"), long("日", " ")];
    let tails = ODD.iter().map(|tail| (*tail).to_owned()).chain(tails);
    let mut names: Vec<Name> =
        tails.map(|tail| Name::new(format!("{prefix}{tail}")).expect("within the rule")).collect();
    names.sort_unstable();
    names
}

/// Odd names are kept apart, byte by byte, and listed as they were given; prefixes are taken literally.
pub async fn odd_names_are_kept_apart_and_intact(subject: &Subject) {
    let subject = subject.by_hand();
    let store = Bare::open(&subject).await;
    let prefix = subject.prefix();
    let names = odd_names(&prefix);
    let claims: Vec<Claim> = names.iter().map(|name| claim_of(name, LONG)).collect();
    let mut tokens = BTreeMap::new();
    for claim in &claims {
        tokens.insert(claim.name.clone(), store.grant(claim, "though names like it are held").await);
    }
    let listed: Vec<Name> = all(&store, &prefix, 1000).await.into_iter().map(|record| record.name).collect();
    assert_eq!(listed, names, "the list is not the names that are held, in byte order");
    for start in ["a", "a%", "a_", "a\\", "%", "_", "re", "RE", "é", "e", "$", "[", "日", "\u{10ffff}", "report "] {
        check_prefix(&store, &names, &format!("{prefix}{start}")).await;
    }
    for claim in &claims {
        let record = store.find(&claim.name).await.unwrap_or_else(|| panic!("{:?} is not found", claim.name));
        assert_eq!((record.lease, record.token), (claim.lease, tokens[&claim.name]), "{:?} is another's", claim.name);
        assert!(store.release(&end_of(claim, record.token)).await, "{:?} can't be released", claim.name);
        assert!(store.find(&claim.name).await.is_none(), "{:?} is listed after its release", claim.name);
    }
    assert!(all(&store, &prefix, 1000).await.is_empty(), "something is left");
}

async fn check_prefix(store: &Bare, names: &[Name], prefix: &str) {
    let wanted: Vec<&Name> = names.iter().filter(|name| name.as_str().starts_with(prefix)).collect();
    let listed = all(store, prefix, 1000).await;
    let listed: Vec<&Name> = listed.iter().map(|record| &record.name).collect();
    assert_eq!(listed, wanted, "the list of names that begin with {prefix:?}");
}

/// All pages of a list, checked to be pages.
async fn all(store: &Bare, prefix: &str, limit: usize) -> Vec<Record> {
    let mut records: Vec<Record> = Vec::new();
    loop {
        let after = records.last().map(|record| record.name.clone());
        let page = Page { prefix: prefix.into(), after, limit };
        let next = insist(async || store.0.list(&page).await).await;
        assert!(next.len() <= limit, "a page of {} instead of {limit}", next.len());
        let goes_on = next.iter().all(|record| page.after.as_ref().is_none_or(|after| record.name > *after));
        assert!(goes_on, "the page after {:?} has names from before", page.after);
        let more = next.len() == limit;
        records.extend(next);
        if !more {
            return records;
        }
    }
}

/// A list comes in pages, in byte order of names, without gaps or repetitions, and only of the names asked for.
pub async fn list_pages_in_order(subject: &Subject) {
    let subject = subject.by_hand();
    let store = Bare::open(&subject).await;
    let prefix = subject.prefix();
    let tails = ["b", "a", "a/1", "a/2", "a/10", "B", "ä", "z", "a ", "a!", "aa", "日", "0"];
    let mut names: Vec<Name> = tails.iter().map(|tail| Name::new(format!("{prefix}{tail}")).expect("a name")).collect();
    for name in &names {
        store.grant(&claim_of(name, LONG), "when nobody has it").await;
    }
    let released = claim_of(&Name::new(format!("{prefix}m")).expect("a name"), LONG);
    let token = store.grant(&released, "when nobody has it").await;
    assert!(store.release(&end_of(&released, token)).await);
    store.grant(&claim_of(&subject.name(), LONG), "when nobody has it").await;

    names.sort_unstable();
    for limit in [1, 2, 5, tails.len(), 100] {
        let listed: Vec<Name> = all(&store, &prefix, limit).await.into_iter().map(|record| record.name).collect();
        assert_eq!(listed, names, "in pages of {limit}");
    }
    let page = Page { prefix: format!("{prefix}a/"), after: Name::new(format!("{prefix}a/1")).ok(), limit: 10 };
    let listed = insist(async || store.0.list(&page).await).await;
    let listed: Vec<&str> = listed.iter().map(|record| record.name.as_str()).collect();
    assert_eq!(listed, [format!("{prefix}a/10"), format!("{prefix}a/2")], "after a/1, of those that begin with a/");
}

/// Owner and data come back as they were given, whatever is in them.
pub async fn owner_and_data_are_kept_intact(subject: &Subject) {
    #[rustfmt::skip]
    let odd = ["$x", "$$NOW", "a'b\"c`d", "back\\slash", "100%", "_", " blanks ", "日本語 😀 é e\u{301}", "{}", "null", "-- x"];
    let reader = subject.connect().await;
    for text in odd {
        let data = serde_json::json!({
            text: text, "$set": { "$x": [text, null, true, -1, 9007199254740993_u64, 0.5] }, "": "", "a.b": "\u{1}\t\n",
        });
        let locks = Locks::on(subject.instance()).owner(text).await.expect("the store can be opened");
        let name = subject.name();
        let lock = locks.lock(&name).ttl(LONG).data(&data);
        let guard = soon("a free name is granted", lock.into_future()).await.expect("a free name is granted");
        let record = soon("a look", reader.get(&name)).await.expect("the store answers").expect("the name is held");
        assert_eq!((&*record.owner, record.token), (text, guard.token()));
        assert_eq!(record.data::<serde_json::Value>().expect("data is JSON"), Some(data), "the data of owner {text:?}");
    }
}

/// Data of the largest size, and none at all, come back as they were given.
pub async fn data_of_any_size_is_kept(subject: &Subject) {
    let subject = subject.by_hand();
    let store = Bare::open(&subject).await;
    let name = subject.name();
    let largest = serde_json::to_string(&"x".repeat(64 * 1024 - 2)).expect("text is JSON");
    for data in [Some(&*largest), None, Some("\"\""), Some("null")] {
        let claim = Claim { data: data.map(Into::into), ..claim_of(&name, LONG) };
        let token = store.grant(&claim, "when nobody has it").await;
        let record = store.find(&name).await.expect("a held name is listed");
        let value = |json: &str| serde_json::from_str::<serde_json::Value>(json).expect("data is JSON");
        assert_eq!(record.data.as_deref().map(value), data.map(value), "the data has changed");
        let Outcome::Busy(Some(record)) = store.claim(&claim_of(&name, LONG)).await else {
            panic!("held, and not busy")
        };
        assert_eq!(record.data.as_deref().map(value), data.map(value), "the data has changed");
        assert!(store.release(&end_of(&claim, token)).await);
    }
}

/// What a holder attached ends with its term: whoever takes over an expired name has its own owner and data, or none.
pub async fn owner_and_data_end_with_their_term(subject: &Subject) {
    let subject = subject.by_hand();
    let store = Bare::open(&subject).await;
    let claim =
        Claim { data: Some("\"theirs\"".into()), owner: "they".into(), ..claim_of(&subject.name(), subject.ttl()) };
    store.grant(&claim, "when nobody has it").await;
    expire(&subject, &store, &claim.name).await;
    let next = Claim { owner: "we".into(), ..claim_of(&claim.name, LONG) };
    let token = store.grant(&next, "after an expiry").await;
    let record = store.find(&claim.name).await.expect("a held name is listed");
    assert_eq!((&*record.owner, record.data), ("we", None), "what the last holder attached is still there");
    assert_eq!((record.first, record.token), (token, token), "the record has another token than the grant");
    assert!(record.held_for < subject.ttl(), "the new term began with the old one: {:?}", record.held_for);
}
