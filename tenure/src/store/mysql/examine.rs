//! What weakens the promises on this very server.

use std::collections::BTreeMap;

use sqlx::mysql::MySqlRow;

use super::get;
use crate::error::Result;
use crate::store::Finding;

/// What the server says of itself.
pub(super) fn findings(rows: &[MySqlRow]) -> Result<Vec<Finding>> {
    let facts = Facts::read(rows)?;
    let records = format!(
        "{} held, {} expired, {} free: prune forgets those that stay unused",
        facts.number("held"),
        facts.number("expired"),
        facts.number("free")
    );
    let some = [binlog(&facts), writes(&facts), galera(&facts)];
    let mut findings = vec![
        version(facts.text("version")),
        Finding::fine("rights", "select, insert, update and delete are granted".into()),
        commits(&facts),
    ];
    findings.extend(some.into_iter().flatten());
    findings.extend([clock(&facts), replicas(&facts), connections(&facts), Finding::fine("records", records)]);
    Ok(findings)
}

/// Facts by their names, in small letters.
struct Facts(BTreeMap<String, String>);

impl Facts {
    fn read(rows: &[MySqlRow]) -> Result<Self> {
        let fact = |row| Ok((get::<String>(row, 0)?.to_lowercase(), get(row, 1)?));
        rows.iter().map(fact).collect::<Result<_>>().map(Self)
    }

    /// Nothing if the server doesn't know it.
    fn text(&self, fact: &str) -> &str {
        self.0.get(fact).map_or("", String::as_str)
    }

    fn number(&self, fact: &str) -> u64 {
        self.text(fact).parse().unwrap_or(0)
    }

    fn is_on(&self, fact: &str) -> bool {
        matches!(self.text(fact), "ON" | "1")
    }
}

fn version(version: &str) -> Finding {
    let kind = if version.contains("MariaDB") { "MariaDB" } else { "MySQL" };
    Finding::fine("version", format!("{kind} {}", version.replace("-MariaDB", "")))
}

fn commits(facts: &Facts) -> Finding {
    let what = "innodb_flush_log_at_trx_commit";
    match facts.text(what) {
        "1" => Finding::fine(what, "is 1: a grant is on disk before its holder hears of it".into()),
        setting => Finding::weak(
            what,
            format!(
                "is {setting}: a crash may undo the last second's grants, though their holders go by them, and two hold a \
                 name; set it to 1"
            ),
        ),
    }
}

fn binlog(facts: &Facts) -> Option<Finding> {
    if !facts.is_on("log_bin") {
        return None;
    }
    if facts.text("binlog_format") == "STATEMENT" {
        let says = "is STATEMENT, which can't carry what Tenure writes: set it to ROW or MIXED";
        return Some(Finding::weak("binlog_format", says.into()));
    }
    Some(match facts.text("sync_binlog") {
        "1" => Finding::fine("sync_binlog", "is 1: the binary log is on disk with each grant".into()),
        setting => Finding::weak(
            "sync_binlog",
            format!(
                "is {setting}: after a crash of the machine, replicas and the server may disagree about the last grants, and \
                 two hold a name after a fail-over; set it to 1"
            ),
        ),
    })
}

fn writes(facts: &Facts) -> Option<Finding> {
    let says =
        "is on: this server can't grant anything, unless the user may write nevertheless; connect to the primary";
    (facts.is_on("read_only") || facts.is_on("super_read_only")).then(|| Finding::weak("read_only", says.into()))
}

fn galera(facts: &Facts) -> Option<Finding> {
    let says = "this server is part of a cluster: conflicts between its nodes come out at commit, and those calls are made \
                again; the nodes' clocks must agree";
    facts.is_on("wsrep_on").then(|| Finding::fine("galera", says.into()))
}

fn clock(facts: &Facts) -> Finding {
    match facts.is_on("sysdate_moves") {
        true => Finding::fine("clock", "sysdate() is the time of its reading".into()),
        false => Finding::weak(
            "clock",
            "sysdate-is-now is set: time stands still within a statement, and one that takes long goes by an old time; \
             start the server without it"
                .into(),
        ),
    }
}

fn replicas(facts: &Facts) -> Finding {
    let synchronous = facts.number("rpl_semi_sync_source_clients") + facts.number("rpl_semi_sync_master_clients");
    let all = facts.number("replicas").max(facts.number("slaves_connected")).max(synchronous);
    if all > synchronous {
        Finding::weak(
            "replication",
            format!(
                "{} of {all} replicas are asynchronous: a fail-over to one of them may lose the last grants, and two hold a \
                 name; make them semi-synchronous, or check tokens with a fence",
                all - synchronous
            ),
        )
    } else if all > 0 {
        Finding::fine("replication", format!("{all} replicas, all semi-synchronous"))
    } else if facts.number("sees_all") == 0 {
        Finding::fine("replication", "can't be seen by this user, who has no right to PROCESS".into())
    } else {
        Finding::fine("replication", "no replica is connected".into())
    }
}

fn connections(facts: &Facts) -> Finding {
    let (used, allowed) = (facts.number("threads_connected"), facts.number("max_connections"));
    let says = format!("{used} of {allowed} in use; each process takes up to five");
    Finding { what: "connections".into(), says, weakens: used + 5 > allowed }
}
