//! What weakens the promises on this very server.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mongodb::bson::{Document, doc};
use mongodb::options::{Acknowledgment, WriteConcern};

use super::{MongoStore, Server};
use crate::error::Result;
use crate::store::Finding;

/// Clocks further apart than this are not both right.
const APART: Duration = Duration::from_secs(5);

/// What the server says of itself.
pub(super) async fn findings(store: &MongoStore) -> Result<Vec<Finding>> {
    let (link, main) = (&store.link, &store.link.main);
    let build = link.run(main, doc! { "buildInfo": 1 }).await?;
    let asked = SystemTime::now();
    let hello = link.run(main, doc! { "hello": 1 }).await?;
    let answered = SystemTime::now();
    let counts = link.find(main, store.commands.count()).await?;
    let server = store.look_at_server().await?;
    Ok(vec![
        version(&build),
        Finding::fine("rights", "find, insert, update and remove are granted".into()),
        replicas(&server, &hello),
        acknowledgment(&store.concern),
        clock(&hello, asked, answered),
        records(counts.first()),
    ])
}

fn version(build: &Document) -> Finding {
    let version = build.get_str("version").unwrap_or("of an unknown version");
    // It gives the version of MongoDB that it stands in for, and its own apart.
    match build.get_document("ferretdb").and_then(|ferret| ferret.get_str("version")) {
        Ok(own) => Finding::fine("version", format!("FerretDB {own}, in the place of MongoDB {version}")),
        Err(_) => Finding::fine("version", format!("MongoDB {version}")),
    }
}

fn replicas(server: &Server, hello: &Document) -> Finding {
    let what = "replica set";
    match hello.get_str("setName") {
        Ok(name) => {
            let members = hello.get_array("hosts").map_or(0, Vec::len);
            Finding::fine(what, format!("{name:?} with {members} members: their clocks must agree"))
        }
        Err(_) if server.replicated => Finding::weak(
            what,
            "is behind a router of a sharded cluster, and each router decides by its own clock: keep their clocks together, or \
             name one router alone in the URL"
                .into(),
        ),
        Err(_) => Finding::weak(
            what,
            "is none: what this one server loses, with its disk or in a fail-over of its own, was acknowledged by no other, \
             and two may hold a name; use a replica set"
                .into(),
        ),
    }
}

fn acknowledgment(concern: &WriteConcern) -> Finding {
    let what = "write concern";
    match &concern.w {
        None | Some(Acknowledgment::Majority) if concern.journal == Some(false) => Finding::weak(
            what,
            "is majority without the journal: members that crash together may forget a grant, and two hold a name; leave \
             journal out of the URL"
                .into(),
        ),
        None | Some(Acknowledgment::Majority) => Finding::fine(what, "is majority: a fail-over keeps every grant".into()),
        Some(Acknowledgment::Nodes(nodes)) => Finding::weak(
            what,
            format!(
                "is w={nodes}, as the URL says: a fail-over may undo a grant that its holder goes by, and two hold a name; \
                 leave w out of the URL"
            ),
        ),
        Some(other) => Finding::fine(what, format!("is {other:?}, of which only you can say whether it is at least a majority")),
    }
}

/// Clients need no clock that is right; but members that fail over to each other do, and one that is far from ours is
/// probably far from theirs.
fn clock(hello: &Document, asked: SystemTime, answered: SystemTime) -> Finding {
    let Ok(time) = hello.get_datetime("localTime") else {
        return Finding::weak("clock", "is not told by the server: compare it with those of the other members".into());
    };
    let time = UNIX_EPOCH + Duration::from_millis(time.timestamp_millis().try_into().unwrap_or(0));
    let behind = asked.duration_since(time).unwrap_or_default();
    let ahead = time.duration_since(answered).unwrap_or_default();
    if behind.max(ahead) <= APART {
        return Finding::fine("clock", format!("agrees with this machine's within {APART:?}"));
    }
    let (by, which) = if ahead > behind { (ahead, "ahead of") } else { (behind, "behind") };
    Finding::weak(
        "clock",
        format!(
            "is {by:.1?} {which} this machine's: one of them is wrong; if it is the server's, terms end early, or late, when it \
             is set right or another member takes over"
        ),
    )
}

fn records(counts: Option<&Document>) -> Finding {
    let count = |what: &str| counts.map_or(0, |counts| number(counts, what));
    let (held, free) = (count("held"), count("free"));
    let expired = count("all") - held - free;
    Finding::fine(
        "records",
        format!("{held} held, {expired} expired, {free} free: prune forgets those that stay unused"),
    )
}

/// Servers differ in the types of their sums.
fn number(document: &Document, what: &str) -> i64 {
    let number = document.get(what);
    number.and_then(|n| n.as_i64().or(n.as_i32().map(i64::from)).or(n.as_f64().map(|n| n as i64))).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use mongodb::bson::DateTime;

    use super::*;

    fn weakens(concern: WriteConcern) -> bool {
        acknowledgment(&concern).weakens
    }

    #[test]
    fn a_write_concern_below_majority_is_told() {
        let nodes = |nodes| WriteConcern::builder().w(Acknowledgment::Nodes(nodes)).build();
        assert!(weakens(nodes(1)) && weakens(nodes(2)));
        assert!(!weakens(WriteConcern::default()));
        assert!(!weakens(WriteConcern::builder().w(Acknowledgment::Majority).journal(true).build()));
        assert!(weakens(WriteConcern::builder().journal(false).build()));
    }

    #[test]
    fn a_server_alone_is_told() {
        let set = doc! { "setName": "rs0", "hosts": ["a:1", "b:1", "c:1"] };
        let found = replicas(&Server { replicated: true }, &set);
        assert!(!found.weakens && found.says.contains("3 members"), "{found:?}");
        let routed = replicas(&Server { replicated: true }, &doc! { "msg": "isdbgrid" });
        assert!(routed.weakens && routed.says.contains("router"), "{routed:?}");
        assert!(replicas(&Server { replicated: false }, &doc! {}).weakens);
    }

    #[test]
    fn a_clock_that_is_off_is_told() {
        let now = SystemTime::now();
        let at = |time: SystemTime| doc! { "localTime": DateTime::from_system_time(time) };
        let found = |time| clock(&at(time), now, now + Duration::from_millis(10));
        assert!(!found(now).weakens && !found(now + Duration::from_secs(1)).weakens);
        let (ahead, behind) = (found(now + Duration::from_secs(60)), found(now - Duration::from_secs(60)));
        assert!(ahead.weakens && ahead.says.contains("ahead of"), "{ahead:?}");
        assert!(behind.weakens && behind.says.contains("behind"), "{behind:?}");
        assert!(clock(&doc! {}, now, now).weakens);
    }
}
