//! The tree of processes, as /proc shows it.

use std::fs;
use std::path::Path;

use rustix::process::{Pid, PidfdFlags, Signal, getpid, kill_process, pidfd_open, pidfd_send_signal};

/// The children of a process, the dead ones that are not yet reaped among them.
pub fn children(process: Pid) -> Vec<Pid> {
    if Path::new("/proc/thread-self/children").exists() { listed_children(process) } else { searched_children(process) }
}

fn listed_children(process: Pid) -> Vec<Pid> {
    let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else {
        return Vec::new();
    };
    let lists = threads.flatten().filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(parse).collect::<Vec<_>>()).collect()
}

/// For kernels that were built without the lists (`CONFIG_PROC_CHILDREN`): slower, as it reads all of /proc.
fn searched_children(process: Pid) -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| parse(entry.file_name().to_str()?))
        .filter(|&other| parent(other) == Some(process))
        .collect()
}

/// Every process below this one, but those to skip and what is below them.
pub fn descendants(skip: impl Fn(Pid) -> bool) -> Vec<Pid> {
    let kept = |process| children(process).into_iter().filter(|&child| !skip(child));
    let mut found: Vec<_> = kept(getpid()).collect();
    let mut next = 0;
    while let Some(&process) = found.get(next) {
        found.extend(kept(process));
        next += 1;
    }
    found
}

/// Signals a descendant, unless its number has passed to another process since it was found. It may have died,
/// or be another user's: both show when it is waited for.
pub fn signal(process: Pid, signals: &[Signal]) {
    if parent(process) == Some(getpid()) {
        // Nobody but us can reap our child, so the number stays its own.
        for &signal in signals {
            let _ = kill_process(process, signal);
        }
    } else if let Ok(pinned) = pidfd_open(process, PidfdFlags::empty())
        && is_below_us(process)
    {
        for &signal in signals {
            let _ = pidfd_send_signal(&pinned, signal);
        }
    }
}

fn is_below_us(process: Pid) -> bool {
    let us = getpid();
    std::iter::successors(parent(process), |&ancestor| parent(ancestor)).any(|ancestor| ancestor == us)
}

fn parent(process: Pid) -> Option<Pid> {
    parse(&stat(process, 4)?)
}

/// When a process was born, in ticks since boot. Together with its number that is nobody else's.
pub fn birth(process: Pid) -> Option<u64> {
    stat(process, 22)?.parse().ok()
}

/// A field of /proc/PID/stat, counted as in its manual: "pid (name) state parent …", and the name may hold anything.
fn stat(process: Pid, field: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_whitespace().nth(field - 3).map(str::to_owned)
}

fn parse(number: &str) -> Option<Pid> {
    Pid::from_raw(number.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn both_ways_of_looking_find_a_child() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let found = [children(getpid()), listed_children(getpid()), searched_children(getpid())];
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found.iter().all(|found| found.contains(&pid)), "{pid} in {found:?}");
    }
}
