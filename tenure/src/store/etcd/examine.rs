//! What weakens the promises on this very cluster.

use super::cluster::Cluster;
use super::link::Link;
use super::messages::{MemberListRequest, MemberListResponse, RangeRequest, StatusRequest, StatusResponse};
use super::records;
use crate::error::Result;
use crate::store::Finding;

const OLDEST: [u64; 2] = [3, 4];

/// Before these, a leader that hung and was replaced went on to revoke leases.
const SOUND: [[u64; 3]; 2] = [[3, 4, 29], [3, 5, 12]];

/// Refuses a cluster that is too old.
pub(super) fn check_version(link: &Link, version: &str) -> Result<()> {
    match numbers(version).as_slice() {
        [major, minor, ..] if [*major, *minor] < OLDEST => {
            Err(link.refuse(&format!("is etcd {version}: 3.4 or later is needed")))
        }
        _ => Ok(()),
    }
}

/// What the cluster says of itself.
pub(super) async fn findings(cluster: &Cluster) -> Result<Vec<Finding>> {
    let mut statuses = Vec::new();
    for number in 0..cluster.link.endpoints().len() {
        statuses.push(cluster.link.ask_endpoint(number, StatusRequest {}).await);
    }
    let members = cluster.link.look(&cluster.link.main, MemberListRequest {}).await;
    let (key, range_end) = (cluster.keys.name(""), cluster.keys.end_of_names());
    let held = cluster
        .link
        .look(&cluster.link.main, RangeRequest { key, range_end, count_only: true, ..RangeRequest::default() })
        .await?;
    let newest = cluster.base().await? + held.header.as_ref().map_or(0, |header| header.revision).unsigned_abs();
    Ok([
        vec![version(&statuses), endpoints(&statuses)],
        members.iter().map(voters).collect(),
        vec![alarms(&statuses), clock(newest, records::now())],
        vec![Finding::fine("records", format!("{} held; a name that nobody holds leaves none", held.count))],
    ]
    .concat())
}

type Statuses = [(String, Result<StatusResponse>)];

fn version(statuses: &Statuses) -> Finding {
    let mut versions: Vec<&str> =
        statuses.iter().filter_map(|(_, status)| Some(&*status.as_ref().ok()?.version)).collect();
    versions.sort_unstable();
    versions.dedup();
    let named = format!("etcd {}", versions.join(", "));
    match versions.iter().any(|version| has_lease_bugs(&numbers(version))) {
        true => Finding::weak(
            "version",
            format!(
                "{named}: before 3.4.29 and 3.5.12, a leader that hangs and is replaced may then revoke leases that its \
                 successor keeps alive, and two hold a name until the first one's next renewal; upgrade, or check tokens \
                 with a fence"
            ),
        ),
        false => Finding::fine("version", named),
    }
}

fn has_lease_bugs(version: &[u64]) -> bool {
    SOUND.iter().any(|sound| version.get(..2) == Some(&sound[..2]) && version < &sound[..])
}

fn endpoints(statuses: &Statuses) -> Finding {
    let broken = |(place, status): &(String, Result<StatusResponse>)| match status {
        Err(error) => Some(format!("{place} can't be asked ({error})")),
        Ok(status) if status.leader == 0 => Some(format!("{place} knows of no leader")),
        Ok(_) => None,
    };
    let broken: Vec<String> = statuses.iter().filter_map(broken).collect();
    match (broken.is_empty(), statuses.len()) {
        (true, 1) => Finding::fine("endpoints", "one, and it answers; name the others too, for when it fails".into()),
        (true, count) => Finding::fine("endpoints", format!("all {count} answer")),
        (false, count) => Finding::weak(
            "endpoints",
            format!(
                "{} of {count} would not do: {}; bring them back, or take them out",
                broken.len(),
                broken.join("; ")
            ),
        ),
    }
}

fn voters(list: &MemberListResponse) -> Finding {
    let count = list.members.iter().filter(|member| !member.is_learner).count();
    match count {
        1 => Finding::weak(
            "members",
            "one only: when it is down nobody can lock or renew, and with its disk all locks are lost; run three"
                .into(),
        ),
        _ if count % 2 == 0 => Finding::fine(
            "members",
            format!("{count}: no more of them may fail than of {}; run an odd number", count - 1),
        ),
        _ => Finding::fine("members", format!("{count}: {} may fail", count / 2)),
    }
}

fn alarms(statuses: &Statuses) -> Finding {
    let errors: Vec<&str> = statuses
        .iter()
        .filter_map(|(_, status)| status.as_ref().ok())
        .flat_map(|status| status.errors.iter().map(String::as_str))
        .collect();
    match errors.is_empty() {
        true => Finding::fine("alarms", "none".into()),
        false => Finding::weak(
            "alarms",
            format!(
                "{}: with NOSPACE nothing is granted any more; compact and defragment, then disarm it with etcdctl alarm \
                 disarm",
                errors.join("; ")
            ),
        ),
    }
}

/// The newest token against this machine's clock: whoever finds a cluster without a base makes one of its clock.
fn clock(newest: u64, now: u64) -> Finding {
    match newest <= now {
        true => Finding::fine("clock", "the newest token is behind this machine's clock, as it should be".into()),
        false => Finding::weak(
            "clock",
            format!(
                "the newest token is {} s ahead of this machine's clock: were the cluster's data lost now, tokens would \
                 begin below it, and a fence would refuse the new holders; set the clock right",
                (newest - now).div_ceil(1_000_000)
            ),
        ),
    }
}

fn numbers(version: &str) -> Vec<u64> {
    version.split(['.', '-', '+']).map_while(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_with_lease_bugs_are_known() {
        for (version, bugs) in [
            ("3.4.23", true),
            ("3.4.28", true),
            ("3.4.29", false),
            ("3.4.40", false),
            ("3.5.0", true),
            ("3.5.11", true),
            ("3.5.12", false),
            ("3.6.0-rc.1", false),
            ("3.6.0", false),
        ] {
            assert_eq!(has_lease_bugs(&numbers(version)), bugs, "{version}");
        }
    }

    #[test]
    fn members_that_are_too_few_are_told() {
        let member = |is_learner| super::super::messages::Member { name: String::new(), is_learner };
        let of = |members: Vec<_>| voters(&MemberListResponse { members });
        assert!(of(vec![member(false)]).weakens);
        assert!(of(vec![member(false), member(true), member(true)]).weakens, "learners don't vote");
        assert!(!of(vec![member(false), member(false), member(false)]).weakens);
        assert!(of(vec![member(false); 4]).says.contains("odd"));
    }

    #[test]
    fn a_clock_that_is_behind_the_tokens_is_told() {
        assert!(clock(2_000_000, 1_000_000).says.contains("1 s ahead"));
        assert!(!clock(1, 1).weakens);
    }
}
