//! Store URLs: `sqlite:locks.db?tenure.table=my_locks`.
//!
//! Settings of Tenure's own begin with `tenure.`; they are taken out before a driver sees the rest.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::Store;
#[cfg(feature = "etcd")]
use super::etcd::EtcdStore;
use super::memory::MemoryStore;
#[cfg(feature = "mongodb")]
use super::mongodb::MongoStore;
#[cfg(feature = "mysql")]
use super::mysql::MySqlStore;
#[cfg(feature = "postgres")]
use super::postgres::PostgresStore;
#[cfg(feature = "redis")]
use super::quorum::QuorumStore;
#[cfg(feature = "redis")]
use super::redis::RedisStore;
#[cfg(feature = "sqlite")]
use super::sqlite::SqliteStore;
use crate::error::{Error, Result};

const PREFIX: &str = "tenure.";

/// The store's constructor, if its feature is enabled.
macro_rules! with_feature {
    ($feature:literal, $make:expr) => {{
        #[cfg(feature = $feature)]
        let make: Option<Make> = Some($make);
        #[cfg(not(feature = $feature))]
        let make = None;
        make
    }};
}

/// Every kind of store that a URL can name.
const KINDS: &[Kind] = &[
    Kind { scheme: "memory", also: &[], settings: &[], make: Some(MemoryStore::from_url) },
    Kind { scheme: "sqlite", also: &[], settings: &["table"], make: with_feature!("sqlite", SqliteStore::from_url) },
    Kind {
        scheme: "postgres",
        also: &["postgresql"],
        settings: &["schema", "table"],
        make: with_feature!("postgres", PostgresStore::from_url),
    },
    Kind {
        scheme: "mysql",
        also: &["mariadb"],
        settings: &["schema", "table"],
        make: with_feature!("mysql", MySqlStore::from_url),
    },
    Kind {
        scheme: "mongodb",
        also: &["mongodb+srv"],
        settings: &["schema", "table"],
        make: with_feature!("mongodb", MongoStore::from_url),
    },
    Kind { scheme: "etcd", also: &[], settings: &["prefix"], make: with_feature!("etcd", EtcdStore::from_url) },
    Kind {
        scheme: "redis",
        also: &["rediss", "redis+cluster", "rediss+cluster", "valkey", "valkeys"],
        settings: &["prefix", "wait_replicas", "ca_file", "cert_file", "key_file"],
        make: with_feature!("redis", RedisStore::from_url),
    },
    Kind {
        scheme: "redis+quorum",
        also: &["rediss+quorum", "valkey+quorum", "valkeys+quorum"],
        settings: &["prefix", "ca_file", "cert_file", "key_file"],
        make: with_feature!("redis", QuorumStore::from_url),
    },
];

type Make = fn(&StoreUrl) -> Result<Arc<dyn Store>>;

struct Kind {
    scheme: &'static str,
    /// Other ways to write it.
    also: &'static [&'static str],
    /// The `tenure.` settings that it knows.
    settings: &'static [&'static str],
    /// `None` if it is compiled out; its cargo feature has the name of the scheme, up to a `+`.
    make: Option<Make>,
}

impl Kind {
    fn is_called(&self, scheme: &str) -> bool {
        self.scheme == scheme || self.also.contains(&scheme)
    }
}

/// The store that `url` names. It does no I/O yet: that begins with [`Store::open`].
///
/// | URL | store |
/// | --- | --- |
/// | `memory:`, `memory:NAME` | this process; the same URL is the same data |
/// | `sqlite:PATH` | a file on this machine (feature `sqlite`); setting: `tenure.table` |
/// | `postgres://USER:PASSWORD@HOST:PORT/DATABASE` | a PostgreSQL server (feature `postgres`); settings: `tenure.schema`, `tenure.table` |
/// | `mysql://USER:PASSWORD@HOST:PORT/DATABASE`, `mariadb://…` | a MySQL or MariaDB server (feature `mysql`); settings: `tenure.schema` (a database), `tenure.table` |
/// | `mongodb://USER:PASSWORD@HOST:PORT,…/DATABASE`, `mongodb+srv://…` | a MongoDB server or cluster (feature `mongodb`); settings: `tenure.schema` (a database), `tenure.table` (a collection) |
/// | `etcd://USER:PASSWORD@HOST:PORT,HOST:PORT,…` | an etcd cluster (feature `etcd`); setting: `tenure.prefix`; options: `tls`, `ca`, `cert`, `key` |
/// | `redis://USER:PASSWORD@HOST:PORT/DATABASE`, `rediss://…` with TLS | a Redis or Valkey server (feature `redis`); settings: `tenure.prefix`, `tenure.wait_replicas`, `tenure.ca_file`, `tenure.cert_file`, `tenure.key_file` |
/// | `redis+cluster://HOST:PORT,HOST:PORT`, `rediss+cluster://…` | a cluster, by some of its servers; the same settings |
/// | `redis+quorum://HOST:PORT,HOST:PORT,HOST:PORT`, `rediss+quorum://…` | independent servers, of which a majority decides; the same settings but for `tenure.wait_replicas` |
///
/// # Errors
/// [`Error::Invalid`] if the URL names no store, or has a setting that the store doesn't know.
pub fn store_at(url: &str) -> Result<Arc<dyn Store>> {
    let url = StoreUrl::parse(url)?;
    let Some(kind) = KINDS.iter().find(|kind| kind.is_called(&url.scheme)) else {
        return Err(url.refuse(format!("has the unknown scheme {:?}: use {}", url.scheme, known_schemes())));
    };
    let Some(make) = kind.make else {
        let feature = kind.scheme.split('+').next().unwrap_or_default();
        return Err(
            url.refuse(format!("needs a store that is not built in: enable tenure's cargo feature {feature:?}"))
        );
    };
    url.check_settings(kind)?;
    make(&url)
}

fn known_schemes() -> String {
    KINDS.iter().map(|kind| format!("{}:", kind.scheme)).collect::<Vec<_>>().join(" or ")
}

/// A store's URL, taken apart. It prints without its password.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl {
    scheme: String,
    /// What stands between the scheme's colon and the query, as it was written.
    body: String,
    /// The driver's part of the query, as it was written.
    options: Vec<String>,
    settings: BTreeMap<String, String>,
}

impl StoreUrl {
    /// Takes `url` apart.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it has no scheme, a broken `%` sequence in a setting, or a setting twice.
    pub fn parse(url: &str) -> Result<Self> {
        let (scheme, rest) = url.split_once(':').ok_or_else(|| {
            Error::invalid(
                format!("store URL {}", redacted(url)),
                format!("has no scheme: begin with {}", known_schemes()),
            )
        })?;
        let (body, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut parsed = Self {
            scheme: scheme.to_ascii_lowercase(),
            body: body.into(),
            options: Vec::new(),
            settings: BTreeMap::new(),
        };
        query.split('&').filter(|pair| !pair.is_empty()).try_for_each(|pair| parsed.add(pair))?;
        Ok(parsed)
    }

    fn add(&mut self, pair: &str) -> Result<()> {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let Some(setting) = key.strip_prefix(PREFIX) else {
            self.options.push(pair.into());
            return Ok(());
        };
        let value = percent_decoded(value).map_err(|why| self.refuse(format!("has {key}, which {why}")))?;
        match self.settings.insert(setting.into(), value) {
            None => Ok(()),
            Some(_) => Err(self.refuse(format!("has {key} twice: give it once"))),
        }
    }

    fn check_settings(&self, kind: &Kind) -> Result<()> {
        let Some(unknown) = self.settings.keys().find(|setting| !kind.settings.contains(&setting.as_str())) else {
            return Ok(());
        };
        let known: Vec<_> = kind.settings.iter().map(|setting| format!("{PREFIX}{setting}")).collect();
        let known = if known.is_empty() { "none".into() } else { known.join(", ") };
        Err(self.refuse(format!("has the unknown setting {PREFIX}{unknown}: {} knows {known}", self.scheme)))
    }

    /// An [`Error::Invalid`] that names this URL.
    pub fn refuse(&self, why: impl Into<String>) -> Error {
        Error::invalid(format!("store URL {self}"), why)
    }

    /// What the URL says after its scheme, `//` apart, decoded: a path, or a plain name.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a `%` is not followed by two hexadecimal digits, or the text is not UTF-8.
    pub fn path(&self) -> Result<String> {
        let path = self.body.strip_prefix("//").unwrap_or(&self.body);
        percent_decoded(path).map_err(|why| self.refuse(format!("has a path that {why}")))
    }

    /// The value of `tenure.NAME`, if it is set.
    pub fn setting(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(String::as_str)
    }

    /// The value of `tenure.NAME`, checked.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is set and no [`Identifier`].
    pub fn identifier(&self, name: &str) -> Result<Option<Identifier>> {
        self.setting(name).map(|text| Identifier::parse(&format!("{PREFIX}{name}"), text)).transpose()
    }

    /// Who asks, and where.
    #[cfg(feature = "etcd")]
    pub(super) fn authority(&self) -> Result<Authority> {
        let whole = self.body.strip_prefix("//").unwrap_or(&self.body);
        let (user, hosts) = whole.rsplit_once('@').map_or((None, whole), |(user, hosts)| (Some(user), hosts));
        let (hosts, path) = hosts.split_once('/').unwrap_or((hosts, ""));
        if !path.is_empty() {
            return Err(self.refuse(format!("has the path {path:?}, which means nothing here: remove it")));
        }
        let decoded = |text: &str| percent_decoded(text).map_err(|why| self.refuse(format!("has a user that {why}")));
        let (user, password) = match user.map(|user| user.split_once(':').ok_or(user)) {
            Some(Ok((user, password))) => (Some(decoded(user)?), Some(decoded(password)?)),
            Some(Err(user)) => (Some(decoded(user)?), None),
            None => (None, None),
        };
        Ok(Authority { user, password, hosts: hosts.into() })
    }

    /// The value of an option of the driver, decoded.
    #[cfg(feature = "etcd")]
    pub(super) fn option(&self, name: &str) -> Result<Option<String>> {
        let value = |option: &String| option.strip_prefix(name)?.strip_prefix('=').map(ToOwned::to_owned);
        let value = self.options.iter().find_map(value);
        let decoded =
            |value: String| percent_decoded(&value).map_err(|why| self.refuse(format!("has {name}, which {why}")));
        value.map(decoded).transpose()
    }

    /// Refuses an option of the driver that is not in `known`: drivers ignore what they don't know, and a mistyped
    /// `sslmode` would be no TLS.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is one.
    pub fn check_options(&self, known: &[&str]) -> Result<()> {
        self.check_each_option(known, |name| known.contains(&name))
    }

    /// The same for a driver that takes its options in letters of either case.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is one.
    pub fn check_options_of_any_case(&self, known: &[&str]) -> Result<()> {
        self.check_each_option(known, |name| known.iter().any(|known| known.eq_ignore_ascii_case(name)))
    }

    fn check_each_option(&self, known: &[&str], is_known: impl Fn(&str) -> bool) -> Result<()> {
        let name = |option: &String| option.split(['=', '[', '%']).next().unwrap_or_default().to_owned();
        match self.options.iter().map(name).find(|name| !is_known(name)) {
            None => Ok(()),
            Some(unknown) => Err(self.refuse(format!(
                "has the unknown option {unknown:?}: {} knows {}",
                self.scheme,
                known.join(", ")
            ))),
        }
    }

    /// Refuses whatever is left in the query, for a store that takes no options of a driver.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is anything.
    pub fn refuse_options(&self) -> Result<()> {
        match self.options.first() {
            None => Ok(()),
            Some(option) => {
                let key = option.split('=').next().unwrap_or(option);
                Err(self.refuse(format!("has the unknown option {key:?}: remove it, or write a ? in a path as %3F")))
            }
        }
    }

    /// The URL as its driver shall see it, without Tenure's settings.
    pub fn for_driver(&self) -> String {
        let query = if self.options.is_empty() { String::new() } else { format!("?{}", self.options.join("&")) };
        format!("{}:{}{query}", self.scheme, self.body)
    }
}

/// Who asks, and where: the hosts are as they were written.
#[cfg(feature = "etcd")]
pub(super) struct Authority {
    pub user: Option<String>,
    pub password: Option<String>,
    pub hosts: String,
}

impl StoreUrl {
    /// The same without user and password.
    #[cfg(feature = "mongodb")]
    pub(super) fn without_user(&self) -> String {
        let host = self.body.rsplit_once('@').map_or(self.body.clone(), |(_, host)| format!("//{host}"));
        Self { body: host, ..self.clone() }.for_driver()
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&redacted(&self.for_driver()))
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}

/// The URL without what may be a password: from the first colon behind the scheme to the last `@` (an unescaped
/// `/` or `@` in a password must not show the rest of it), and all values of the query.
pub fn redacted(url: &str) -> String {
    let (head, query) = url.split_once('?').unwrap_or((url, ""));
    let start = head.find("://").map_or(0, |at| at + 3);
    let (front, rest) = head.split_at(start);
    let shown = match rest.rsplit_once('@').map(|(user, host)| (user.split_once(':'), host)) {
        Some((Some((user, _)), host)) => format!("{front}{user}:***@{host}"),
        _ => head.to_owned(),
    };
    let hide = |pair: &str| pair.split_once('=').map_or_else(|| pair.to_owned(), |(key, _)| format!("{key}=***"));
    let query: Vec<_> = query.split('&').filter(|pair| !pair.is_empty()).map(hide).collect();
    if query.is_empty() { shown } else { format!("{shown}?{}", query.join("&")) }
}

fn percent_decoded(text: &str) -> Result<String, &'static str> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(if byte == b'%' { hex_digit(rest.next())? << 4 | hex_digit(rest.next())? } else { byte });
    }
    String::from_utf8(bytes).map_err(|_| "is not UTF-8 when decoded")
}

fn hex_digit(byte: Option<u8>) -> Result<u8, &'static str> {
    let digit = byte.and_then(|byte| char::from(byte).to_digit(16));
    digit.map(|digit| digit as u8).ok_or("has a % without two hexadecimal digits: write %25 for a plain %")
}

/// A table's or schema's name that is safe in SQL: letters, digits and underscores, not starting with a digit, 1 to
/// 63 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identifier(String);

impl Identifier {
    /// The longest identifier, in bytes: PostgreSQL's limit.
    pub const MAX_BYTES: usize = 63;

    /// Checks `text` against the rule.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it breaks it.
    pub fn new(text: &str) -> Result<Self> {
        Self::parse("identifier", text)
    }

    /// As [`new`](Self::new), for something that has a name of its own in the error.
    pub(crate) fn parse(what: &str, text: &str) -> Result<Self> {
        let plain = text.bytes().all(|byte| byte == b'_' || byte.is_ascii_alphanumeric());
        let starts_well = text.bytes().next().is_some_and(|byte| !byte.is_ascii_digit());
        if plain && starts_well && text.len() <= Self::MAX_BYTES {
            Ok(Self(text.into()))
        } else {
            let rule = "must be 1 to 63 letters (a-z, A-Z), digits or underscores, and not begin with a digit";
            Err(Error::invalid(what, format!("{text:?} {rule}")))
        }
    }

    /// The identifier as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(url: &str) -> String {
        match store_at(url) {
            Ok(store) => panic!("{url} opened {store:?}"),
            Err(error @ Error::Invalid { .. }) => error.to_string(),
            Err(error) => panic!("{url} failed with {error:?}"),
        }
    }

    #[test]
    fn an_unknown_scheme_is_named_and_the_known_ones_are_listed() {
        let why = refusal("zookeeper://host/path");
        assert!(why.contains("\"zookeeper\"") && why.contains("memory:") && why.contains("sqlite:"), "{why}");
        assert!(refusal("locks.db").contains("no scheme"));
    }

    #[test]
    #[cfg(not(feature = "sqlite"))]
    fn a_store_that_is_compiled_out_names_its_feature() {
        assert!(refusal("sqlite:locks.db").contains("cargo feature \"sqlite\""));
    }

    #[test]
    fn settings_are_taken_out_before_the_driver_sees_the_rest() {
        let url = StoreUrl::parse("postgres://u:p@h/db?sslmode=require&tenure.table=my%5Flocks&x=1").unwrap();
        assert_eq!(url.for_driver(), "postgres://u:p@h/db?sslmode=require&x=1");
        assert_eq!(url.setting("table"), Some("my_locks"));
        assert_eq!(url.identifier("table").unwrap(), Some(Identifier::new("my_locks").unwrap()));
        assert_eq!(url.setting("schema"), None);
    }

    #[test]
    fn a_setting_that_the_store_does_not_know_is_named_beside_those_it_knows() {
        let why = refusal("memory:x?tenure.tabel=y");
        assert!(why.contains("tenure.tabel") && why.contains("knows none"), "{why}");
        #[cfg(feature = "sqlite")]
        {
            let why = refusal("sqlite:x.db?tenure.schema=y");
            assert!(why.contains("tenure.schema") && why.contains("knows tenure.table"), "{why}");
        }
    }

    #[test]
    fn a_setting_given_twice_is_refused() {
        assert!(refusal("sqlite:x.db?tenure.table=a&tenure.table=a").contains("tenure.table twice"));
    }

    #[test]
    fn options_of_no_driver_are_refused() {
        assert!(refusal("memory:?mode=ro").contains("\"mode\""));
    }

    #[test]
    #[cfg(feature = "postgres")]
    fn an_option_that_the_driver_would_ignore_is_refused() {
        let why = refusal("postgres://me:hunter2@host/db?sslmod=require");
        assert!(why.contains("\"sslmod\"") && why.contains("sslmode, ") && !why.contains("hunter2"), "{why}");
        assert!(store_at("postgresql://host/db?options[search_path]=x&sslmode=require").is_ok());
        assert!(refusal("postgres://host/db?sslmode=often").contains("can't be read"));
        assert!(refusal("postgres://host/db?tenure.schema=a-b").starts_with("tenure.schema \"a-b\" must be"));
    }

    #[test]
    #[cfg(feature = "mysql")]
    fn mysql_is_also_called_mariadb_and_its_sessions_are_not_the_users_to_set() {
        assert!(store_at("mariadb://me@host/db?ssl-mode=required&tenure.schema=locks").is_ok());
        for option in ["charset", "collation", "timezone", "time-zone", "sslmod"] {
            let why = refusal(&format!("mysql://host/db?{option}=x"));
            assert!(why.contains(&format!("unknown option {option:?}")), "{why}");
        }
        assert!(refusal("mysql://host/db?tenure.schema=a-b").starts_with("tenure.schema \"a-b\" must be"));
    }

    #[test]
    #[cfg(feature = "etcd")]
    fn an_etcd_cluster_has_several_hosts_and_files_for_tls() {
        for url in [
            "etcd://a,b:2380,[::1],[::1]:2379",
            "etcd://me:p%40ss@a/?tls=true&tenure.prefix=app/locks",
            "etcd://a?ca=%2Fetc%2Fca.pem&cert=c.pem&key=k.pem",
        ] {
            assert!(store_at(url).is_ok(), "{url}");
        }
        let shown = format!("{:?}", store_at("etcd://me:hunter2@a,b:7?tenure.prefix=locks").unwrap());
        assert_eq!(shown, "EtcdStore(a:2379,b:7, locks/)");
        for (url, says) in [
            ("etcd://", "names no host"),
            ("etcd://me:hunter2@", "names no host"),
            ("etcd://me@a", "no password"),
            ("etcd://a b", "can't be read"),
            ("etcd://a/b", "path \"b\""),
            ("etcd://a?tls=yes", "true or false"),
            ("etcd://a?tls=false&ca=x", "leave one of them out"),
            ("etcd://a?cert=x", "only one of cert and key"),
            ("etcd://a?timeout=5", "unknown option \"timeout\": etcd knows tls, ca, cert, key"),
            ("etcd://a?tenure.table=x", "etcd knows tenure.prefix"),
            ("etcd://a?tenure.prefix=", "prefix"),
            ("etcd://me%zz:hunter2@a", "hexadecimal"),
        ] {
            let why = refusal(url);
            assert!(why.contains(says) && !why.contains("hunter2"), "{url}: {why}");
        }
    }

    #[test]
    #[cfg(feature = "mongodb")]
    fn urls_of_mongodb_are_checked_before_anything_is_sent() {
        for good in [
            "mongodb://host",
            "mongodb://me:p%40ss@a:1,b:2,[::1]:3/db?replicaSet=rs0&authSource=admin&tls=true&tlsCAFile=%2Fca.pem",
            "mongodb+srv://me:pass@cluster.example.com/db?retryWrites=true&W=majority&appname=x&tenure.table=locks",
            "mongodb://host/db?tenure.schema=other",
        ] {
            assert!(store_at(good).is_ok(), "{good}: {}", refusal(good));
        }
        let why = refusal("mongodb://me:hunter2@host/db?replicaSett=rs0");
        assert!(why.contains("\"replicaSett\"") && why.contains("replicaSet, "), "{why}");
        assert!(refusal("mongodb://host/db?compressors=zlib").contains("compressors"));
        assert!(refusal("mongodb://host/db?tls=perhaps").contains("can't be read"));
        assert!(refusal("mongodb://host/db?tenure.table=a$b").starts_with("tenure.table \"a$b\" must be"));
        assert!(refusal("mongodb://host/db?w=0").starts_with("w is 0"));
        refusal("mongodb://host/a%20b");
        assert!(refusal(&format!("mongodb://host/{}", "x".repeat(64))).starts_with("database \"xxx"));
        for url in ["mongodb://me:odd/hunter2@hunter2@host/", "mongodb://me:hunter2@hunter2@host/?tls=perhaps"] {
            assert!(!refusal(url).contains("hunter2"), "{}", refusal(url));
        }
    }

    #[test]
    #[cfg(feature = "redis")]
    fn redis_urls_name_one_server_or_those_of_a_cluster() {
        for good in [
            "redis://host",
            "rediss://:hunter2@host:7000/3?protocol=resp3&tenure.ca_file=/ca.pem",
            "valkeys://me:hunter2@[::1]:6379",
            "redis+cluster://me:hunter2@a:1,b:2,c?tenure.prefix=app:locks&tenure.wait_replicas=2",
        ] {
            let store = store_at(good).unwrap();
            assert!(!format!("{store:?}").contains("hunter2"), "{store:?}");
        }
        for (bad, why) in [
            ("redis://host?timeout=3", "unknown option \"timeout\": redis knows protocol"),
            ("redis://host?tenure.table=x", "redis knows tenure.prefix, tenure.wait_replicas"),
            ("redis://a,b", "begin with redis+cluster"),
            ("redis://me:hunter2@host/locks", "Invalid database number"),
            ("redis://", "can't be read"),
            ("rediss://host#insecure", "fragment"),
            ("redis://host?tenure.ca_file=/ca.pem", "begin with rediss"),
            ("rediss://host?tenure.cert_file=/c.pem", "give both"),
            ("redis://host?tenure.prefix={x}", "tenure.prefix \"{x}\" must be"),
            ("redis://host?tenure.wait_replicas=0", "tenure.wait_replicas \"0\" must be"),
        ] {
            let said = refusal(bad);
            assert!(said.contains(why) && !said.contains("hunter2"), "{bad}: {said}");
        }
    }

    #[test]
    fn no_error_and_no_debug_output_shows_a_password() {
        for url in [
            "postgres://me:hunter2@host/db",
            "postgres://me:hunter2@host:5432/db?tenure.table=hunter2&tenure.table=x",
            "redis://:hunter2@host",
            "pg://me:odd/hunter2@hunter2@host/",
            "pg://host/db?user=me&password=hunter2",
            "me:hunter2@host",
            "://me:hunter2@host",
        ] {
            let shown = format!("{:?}", store_at(url).map_err(|error| error.to_string()));
            assert!(!shown.contains("hunter2"), "{shown}");
            assert!(!format!("{:?}", StoreUrl::parse(url)).contains("hunter2"));
        }
        assert_eq!(redacted("mysql://me:secret@host:3306/db"), "mysql://me:***@host:3306/db");
        assert_eq!(redacted("mysql://me@host"), "mysql://me@host");
        assert_eq!(redacted("sqlite:/var/lib/locks.db"), "sqlite:/var/lib/locks.db");
    }

    #[test]
    fn paths_are_decoded() {
        let path = |url: &str| StoreUrl::parse(url).unwrap().path();
        assert_eq!(path("sqlite:a%20b%3F.db").unwrap(), "a b?.db");
        assert_eq!(path("sqlite:///tmp/x.db").unwrap(), "/tmp/x.db");
        assert_eq!(path("sqlite:/tmp/x.db").unwrap(), "/tmp/x.db");
        assert_eq!(path("sqlite://x.db").unwrap(), "x.db");
        assert!(path("sqlite:100%.db").unwrap_err().to_string().contains("%25"));
        assert!(path("sqlite:%ff").unwrap_err().to_string().contains("UTF-8"));
    }

    #[test]
    fn identifiers_outside_the_rule_are_refused() {
        let longest = "x".repeat(63);
        for good in ["a", "_", "Tenure_locks2", &longest] {
            assert_eq!(Identifier::new(good).unwrap().as_str(), good);
        }
        let too_long = "x".repeat(64);
        for bad in ["", "2a", "a-b", "a b", "a\"b", "ä", "a;drop", &too_long] {
            assert!(Identifier::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    #[cfg(feature = "sqlite")]
    fn a_setting_outside_the_rule_is_refused_by_its_name() {
        assert!(refusal("sqlite:x.db?tenure.table=a%22b").starts_with("tenure.table \"a\\\"b\" must be"));
    }
}
