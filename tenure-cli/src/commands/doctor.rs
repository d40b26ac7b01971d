//! `tenure doctor`: what this store is, what it promises here and now, and whether it works.

use std::io::{self, Write};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tenure::store::{About, Finding};
use tenure::{Event, EventKind, Events, Locks, Next};
use tokio::time::timeout;

use crate::args::Globals;
use crate::exit;
use crate::output::{age, json_line, millis, printable};
use crate::state;

/// Names for trying things out begin so.
const PROBES: &str = "tenure/doctor";
const TTL: Duration = Duration::from_secs(30);
/// Much sooner than anybody would renew, so that the doctor needn't wait.
const RENEW_EVERY: Duration = Duration::from_millis(20);
/// How long a renewal may take before it counts as failed.
const RENEW_LIMIT: Duration = Duration::from_secs(10);

/// What trying it out has shown.
struct Probe {
    connect: Duration,
    claim: Duration,
    list: Duration,
    renewed: bool,
    release: Duration,
    clock: Clock,
}

/// How far the store's clock is ahead of this machine's, in milliseconds, give or take.
struct Clock {
    ahead: f64,
    within: f64,
}

/// Looks at the store and tries it out.
pub async fn doctor(globals: &Globals) -> Result<u8> {
    let begun = Instant::now();
    let locks = state::connect(globals).await?;
    let connect = begun.elapsed();
    let findings = locks.examine().await.context("the examination failed")?;
    let probe = probe(&locks, connect).await.context("the probe failed")?;
    if globals.json {
        json_line(&as_json(locks.about(), &findings, &probe))?;
    } else {
        print(locks.about(), &findings, &probe)?;
    }
    let weakened = !probe.renewed || findings.iter().any(|finding| finding.weakens);
    Ok(if weakened { exit::NO } else { exit::DONE })
}

/// Holds a name of its own for a moment.
async fn probe(locks: &Locks, connect: Duration) -> Result<Probe> {
    // One for each machine, or every look would leave a record behind.
    let name = format!("{PROBES}/{}", rustix::system::uname().nodename().to_string_lossy());
    let events = locks.events();
    let (before, begun) = (SystemTime::now(), Instant::now());
    let guard = locks.lock(&name).ttl(TTL).renew_every(RENEW_EVERY).wait(RENEW_LIMIT).await?;
    let claim = begun.elapsed();
    let begun = Instant::now();
    let record = locks.get(&name).await?.context("the probe's name was granted, but is not listed")?;
    let list = begun.elapsed();
    let renewed = timeout(RENEW_LIMIT, renewal(events)).await.is_ok();
    let begun = Instant::now();
    guard.release().await?;
    let clock = Clock::compare(record.acquired_at, before, claim);
    Ok(Probe { connect, claim, list, renewed, release: begun.elapsed(), clock })
}

async fn renewal(mut events: Events) {
    while let Some(next) = events.next().await {
        if matches!(next, Next::Event(Event { kind: EventKind::Renewed, .. })) {
            return;
        }
    }
    std::future::pending().await
}

impl Clock {
    /// The store took its time somewhere between the sending of the claim and its answer.
    fn compare(stores: SystemTime, sent: SystemTime, took: Duration) -> Self {
        let middle = sent + took / 2;
        let millis = |time: Duration| time.as_secs_f64() * 1000.0;
        let ahead = match stores.duration_since(middle) {
            Ok(ahead) => millis(ahead),
            Err(error) => -millis(error.duration()),
        };
        Self { ahead, within: millis(took / 2) }
    }
}

fn as_json(about: &About, findings: &[Finding], probe: &Probe) -> Value {
    let finding = |finding: &Finding| json!({ "what": finding.what, "says": finding.says, "weakens": finding.weakens });
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    json!({
        "store": about.store,
        "push": about.push,
        "poll_ms": millis(about.poll),
        "min_ttl_ms": millis(about.min_ttl),
        "durability": about.durability,
        "caveats": about.caveats,
        "findings": findings.iter().map(finding).collect::<Vec<_>>(),
        "connect_us": micros(probe.connect),
        "claim_us": micros(probe.claim),
        "list_us": micros(probe.list),
        "renewed": probe.renewed,
        "release_us": micros(probe.release),
        "clock_ahead_ms": probe.clock.ahead,
        "clock_within_ms": probe.clock.within,
    })
}

fn print(about: &About, findings: &[Finding], probe: &Probe) -> io::Result<()> {
    let mut out = io::stdout();
    let poll = age(about.poll);
    let wake_up =
        if about.push { format!("pushed, and a look every {poll}") } else { format!("by a look every {poll}") };
    writeln!(out, "store       {}", about.store)?;
    writeln!(out, "durability  {}", about.durability)?;
    writeln!(out, "wake-up     {wake_up}")?;
    writeln!(out, "ttl         at least {}", age(about.min_ttl.max(tenure::Ttl::MIN)))?;
    about.caveats.iter().try_for_each(|caveat| writeln!(out, "caveat      {caveat}"))?;
    for finding in findings {
        let kind = if finding.weakens { "WEAK" } else { "fine" };
        writeln!(out, "{kind}        {}: {}", printable(&finding.what), printable(&finding.says))?;
    }
    print_probe(probe)
}

fn print_probe(probe: &Probe) -> io::Result<()> {
    let mut out = io::stdout();
    let Probe { connect, claim, list, release, clock, .. } = probe;
    writeln!(out, "latency     connect {connect:.1?}, claim {claim:.1?}, list {list:.1?}, release {release:.1?}")?;
    let renewal = if probe.renewed { "works".into() } else { format!("WEAK: none within {}", age(RENEW_LIMIT)) };
    writeln!(out, "renewal     {renewal}")?;
    let (way, by) = if clock.ahead < 0.0 { ("behind", -clock.ahead) } else { ("ahead of", clock.ahead) };
    writeln!(out, "clock       {by:.1}ms {way} this machine's, ±{:.1}ms (terms go by the store's alone)", clock.within)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_compared_with_the_middle_of_the_call() {
        let sent = SystemTime::UNIX_EPOCH + Duration::from_secs(100);
        let clock = Clock::compare(sent + Duration::from_millis(250), sent, Duration::from_millis(100));
        assert!((clock.ahead - 200.0).abs() < 0.001 && (clock.within - 50.0).abs() < 0.001);
        assert!(Clock::compare(sent, sent, Duration::from_millis(100)).ahead < 0.0);
    }
}
