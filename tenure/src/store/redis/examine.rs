//! What weakens the promises on this very server.

use std::collections::BTreeMap;

use redis::Value;

use super::link::{Link, Refused};
use crate::error::Result;
use crate::store::Finding;

/// The first version with all that the scripts use.
const OLDEST: (u32, u32) = (6, 2);

/// What the server says of itself: `NAME:VALUE`, a line each.
pub(in crate::store) struct Info(BTreeMap<String, String>);

impl Info {
    /// `None` if this user may not ask.
    pub async fn of(link: &Link) -> Result<Option<Self>> {
        match link.ask(&redis::cmd("INFO")).await {
            Ok(said) => Ok(Some(Self::read(&said))),
            Err(Refused::NoRight) => Ok(None),
            Err(Refused::Error(error)) => Err(error),
        }
    }

    /// The same of one of a quorum's servers, also if it is none that could have a vote.
    pub async fn of_any(link: &Link) -> Result<Option<Self>> {
        match link.ask_ungreeted(redis::cmd("INFO").arg("all")).await {
            Ok(said) => Ok(Some(Self::read(&said))),
            Err(Refused::NoRight) => Ok(None),
            Err(Refused::Error(error)) => Err(error),
        }
    }

    pub fn read(said: &Value) -> Self {
        let text = match said {
            Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Value::VerbatimString { text, .. } => text.clone(),
            _ => String::new(),
        };
        Self(text.lines().filter_map(|line| line.split_once(':')).map(|(k, v)| (k.into(), v.trim().into())).collect())
    }

    pub fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    /// What is wrong with the version, if anything is. Valkey says that it is Redis 7.2, and means it.
    pub fn too_old(&self) -> Option<String> {
        let version = self.get("redis_version");
        let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
        let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        let (major, minor) = OLDEST;
        (!version.is_empty() && found < OLDEST)
            .then(|| format!("is Redis {version}: {major}.{minor} or later is needed"))
    }
}

/// What is known of a server, and what is not for want of a right.
pub(in crate::store) async fn findings(link: &Link, replicas: usize) -> Result<Vec<Finding>> {
    let Some(info) = Info::of(link).await? else {
        return Ok(vec![Finding::fine(
            "settings",
            "this user may not ask for them: let it INFO and CONFIG GET to have them checked".into(),
        )]);
    };
    let setting = |name: &'static str| async move {
        match link.ask(redis::cmd("CONFIG").arg("GET").arg(name)).await {
            Ok(Value::Map(found)) => {
                Ok(found.into_iter().next().and_then(|(_, value)| redis::from_redis_value(value).ok()))
            }
            Ok(_) | Err(Refused::NoRight) => Ok(None),
            Err(Refused::Error(error)) => Err(error),
        }
    };
    Ok(vec![
        version(&info),
        eviction(&info),
        persistence(&info, setting("save").await?, setting("appendfsync").await?),
        replication(&info, replicas),
    ])
}

pub(in crate::store) fn version(info: &Info) -> Finding {
    let said = match info.get("valkey_version") {
        "" => format!("Redis {}", info.get("redis_version")),
        valkey => format!("Valkey {valkey}"),
    };
    Finding::fine("version", format!("{said}, {}", info.get("redis_mode")))
}

/// Without a limit nothing is evicted, whatever the policy.
pub(in crate::store) fn eviction(info: &Info) -> Finding {
    let (limit, policy) = (info.get("maxmemory"), info.get("maxmemory_policy"));
    let what = "maxmemory-policy";
    match (limit, policy) {
        (_, "noeviction") => Finding::fine(what, "is noeviction: a full server refuses, and forgets nothing".into()),
        // None of our keys has an expiry of the server's.
        (_, policy) if policy.starts_with("volatile") => {
            Finding::fine(what, format!("is {policy}: it takes only keys that expire, and ours don't"))
        }
        ("0", policy) => Finding::fine(what, format!("is {policy}, but there is no maxmemory: nothing is evicted")),
        (_, policy) => Finding::weak(
            what,
            format!(
                "is {policy}: a full server drops all locks at once, and two hold a name; set it to noeviction, or use a \
                 server of its own for locks"
            ),
        ),
    }
}

fn persistence(info: &Info, save: Option<String>, fsync: Option<String>) -> Finding {
    let what = "persistence";
    let weak = |says: &str| {
        Finding::weak(
            what,
            format!(
                "{says} forgets grants that their holders go by, and two hold a name; check tokens with a fence, or {}",
                "set appendonly to yes and appendfsync to always"
            ),
        )
    };
    match (info.get("aof_enabled"), fsync.as_deref(), save.as_deref()) {
        ("1", Some("always"), _) => Finding::fine(what, "a grant is on disk before its holder hears of it".into()),
        ("1", Some("no"), _) => weak("appendfsync is no: a crash of the machine"),
        ("1", _, _) => weak("appendfsync is everysec: a crash of the machine, not of the server alone,"),
        (_, _, Some("")) => weak("there is none: a restart"),
        _ => weak("only snapshots are kept: a crash"),
    }
}

fn replication(info: &Info, waits_for: usize) -> Finding {
    let (what, connected) = ("replication", info.get("connected_slaves").parse::<usize>().unwrap_or(0));
    if info.get("role") == "slave" {
        return Finding::weak(what, "this server is a replica: it can't grant anything; connect to the primary".into());
    }
    match (connected, waits_for) {
        (0, 0) => Finding::fine(what, "no replica is connected".into()),
        (_, wanted) if connected < wanted => Finding::weak(
            what,
            format!("{connected} replicas are connected, and tenure.wait_replicas is {wanted}: nothing is granted"),
        ),
        (_, 0) => Finding::weak(
            what,
            format!(
                "{connected} replicas get a grant after its holder has heard of it: a fail-over may lose the last ones, and \
                 two hold a name; set tenure.wait_replicas, and check tokens with a fence"
            ),
        ),
        (_, wanted) => Finding::fine(
            what,
            format!(
                "{connected} replicas, and {wanted} must have a grant before it counts; a fail-over to another may still \
                 lose it"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(lines: &str) -> Info {
        Info::read(&Value::BulkString(lines.replace('\n', "\r\n").into_bytes()))
    }

    #[test]
    fn versions_that_lack_something_are_refused() {
        for good in ["6.2.0", "6.2.14", "7.0.15", "10.0", ""] {
            assert_eq!(info(&format!("# Server\nredis_version:{good}\n")).too_old(), None, "{good}");
        }
        for bad in ["6.0.16", "5.0.14", "2.8"] {
            assert!(
                info(&format!("redis_version:{bad}\n")).too_old().is_some_and(|why| why.contains("6.2 or later")),
                "{bad}"
            );
        }
    }

    #[test]
    fn only_a_policy_that_takes_our_keys_weakens() {
        let weakens = |limit: &str, policy: &str| {
            eviction(&info(&format!("maxmemory:{limit}\nmaxmemory_policy:{policy}\n"))).weakens
        };
        assert!(weakens("1000000", "allkeys-lru"));
        assert!(!weakens("0", "allkeys-lru"));
        assert!(!weakens("1000000", "noeviction"));
        assert!(!weakens("1000000", "volatile-lru"));
    }

    #[test]
    fn replicas_weaken_unless_they_are_waited_for() {
        let primary = |replicas: usize| info(&format!("role:master\nconnected_slaves:{replicas}\n"));
        assert!(!replication(&primary(0), 0).weakens);
        assert!(replication(&primary(1), 0).weakens);
        assert!(!replication(&primary(1), 1).weakens);
        assert!(replication(&primary(1), 2).weakens);
        assert!(replication(&info("role:slave\nconnected_slaves:0\n"), 0).weakens);
    }
}
