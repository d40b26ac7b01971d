//! What weakens the promises on these very servers.

use std::sync::Arc;

use tokio::time::timeout;

use super::member::{Member, Standing};
use super::votes::{majority, too_few};
use super::{NODE_LIMIT, STORE};
use crate::error::{Error, Result};
use crate::store::Finding;
use crate::store::redis::examine::{Info, eviction, version};

/// What a server says of itself.
struct Said {
    place: String,
    info: Info,
    /// A server that can only be read does not say.
    standing: Option<Standing>,
}

/// What is known of the servers, and of them together.
pub(super) async fn findings(members: &[Arc<Member>]) -> Result<Vec<Finding>> {
    let mut findings = vec![number(members.len())];
    let mut said = Vec::new();
    let mut errors: Vec<Error> = Vec::new();
    for member in members {
        match ask(member).await {
            Ok(answer) => said.push(answer),
            Err(error) => {
                findings.push(Finding::weak("server", format!("{} can't be asked: {error}", member.place())));
                errors.push(error);
            }
        }
    }
    if said.len() < majority(members.len()) {
        return Err(too_few(members.len(), &errors));
    }
    said.iter().for_each(|said| findings.extend(one(said)));
    findings.push(independence(&said));
    Ok(findings)
}

/// Also of a server that is left alone: why, is what is wanted.
async fn ask(member: &Member) -> Result<Said> {
    let refuse = |why: &str| Error::permanent(STORE, format!("{} {why}", member.place()));
    let asked = async {
        let info = Info::of_any(&member.node.link).await?.ok_or_else(|| refuse("does not let this user INFO"))?;
        let standing = timeout(NODE_LIMIT / 2, member.standing()).await.ok().and_then(Result::ok);
        Ok(Said { place: member.place().into(), info, standing })
    };
    timeout(NODE_LIMIT, asked).await.unwrap_or_else(|_| Err(refuse("does not answer")))
}

fn number(servers: usize) -> Finding {
    let (needed, spare) = (majority(servers), servers - majority(servers));
    match servers % 2 {
        1 => Finding::fine("servers", format!("{servers}: {needed} must agree, and {spare} may fail")),
        _ => Finding::weak(
            "servers",
            format!(
                "{servers} is even: {needed} must agree, and {spare} may fail, as with {}; add one, or leave one out",
                servers - 1
            ),
        ),
    }
}

/// What concerns one server alone. That it may lose its data is what the others are for.
fn one(said: &Said) -> Vec<Finding> {
    let at = |finding: Finding| Finding { says: format!("{}: {}", said.place, finding.says), ..finding };
    let mut findings = vec![at(version(&said.info)), at(eviction(&said.info))];
    if let Some(standing) = said.standing.filter(|standing| !standing.votes) {
        let says = format!(
            "{}: has restarted, or lost its data, {} s ago, and has none until all that it may have forgotten is over",
            said.place,
            standing.age.as_secs()
        );
        findings.push(Finding::weak("vote", says));
    }
    findings
}

/// Whether they fail apart from each other.
fn independence(said: &[Said]) -> Finding {
    let what = "independence";
    let runs: Vec<&str> = said.iter().map(|said| said.info.get("run_id")).collect();
    for (at, one) in said.iter().enumerate() {
        let same = |other: usize| !runs[at].is_empty() && runs[at] == runs[other];
        if let Some(other) = (0..at).find(|other| same(*other)) {
            let says = format!(
                "{} and {} are one server: it has two votes, and takes both with it",
                said[other].place, one.place
            );
            return Finding::weak(what, says);
        }
        if one.info.get("role") == "slave" {
            let of = format!("{}:{}", one.info.get("master_host"), one.info.get("master_port"));
            let says = format!(
                "{} is a replica of {of}: it can't be written to, and has no vote of its own; name a primary",
                one.place
            );
            return Finding::weak(what, says);
        }
    }
    Finding::fine(what, "no two of them are the same server, and none is a replica".into())
}
