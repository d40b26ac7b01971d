//! What `tenure run` costs over running the command itself: `cargo bench --package tenure-cli`.
//!
//! The commands take turns, so that a busy moment of the machine hits all of them.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const ROUNDS: usize = 200;

fn main() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let store = format!("sqlite:{}", folder.path().join("locks.db").display());
    let file = folder.path().join("lock");
    let commands = [
        ("true", vec!["true".to_owned()]),
        ("flock FILE true", vec!["flock".into(), file.display().to_string(), "true".into()]),
        ("tenure run x -- true", tenure(&store)),
    ];
    let mut times = vec![Vec::with_capacity(ROUNDS); commands.len()];
    for _ in 0..ROUNDS {
        for ((_, command), times) in commands.iter().zip(&mut times) {
            times.push(time(command));
        }
    }
    println!("one fdatasync of 4 KiB here: {:?}", fdatasync(folder.path()));
    for ((what, _), times) in commands.iter().zip(&mut times) {
        times.sort();
        println!("{what}: median {:?} ({:?} to {:?})", times[ROUNDS / 2], times[ROUNDS / 10], times[ROUNDS * 9 / 10]);
    }
    println!("tenure run over true: {:?}", times[2][ROUNDS / 2].saturating_sub(times[0][ROUNDS / 2]));
    fsyncs(&tenure(&store));
}

fn tenure(store: &str) -> Vec<String> {
    [env!("CARGO_BIN_EXE_tenure"), "--store", store, "run", "x", "--", "true"].map(Into::into).into()
}

fn time(command: &[String]) -> Duration {
    let start = Instant::now();
    let status = Command::new(&command[0]).args(&command[1..]).stdin(Stdio::null()).status().expect("it starts");
    assert!(status.success(), "{command:?}");
    start.elapsed()
}

/// What the disk takes: the goal is for one that takes under half a millisecond.
fn fdatasync(folder: &Path) -> Duration {
    use std::io::Write;
    let mut file = std::fs::File::create(folder.join("probe")).expect("a file");
    let mut times: Vec<Duration> = Vec::new();
    for _ in 0..50 {
        file.write_all(&[0; 4096]).expect("room");
        let start = Instant::now();
        file.sync_data().expect("it syncs");
        times.push(start.elapsed());
    }
    times.sort();
    times[times.len() / 2]
}

/// Counts what reaches the disk, where `strace` is installed.
fn fsyncs(command: &[String]) {
    let mut strace = Command::new("strace");
    strace.args(["--follow-forks", "--trace=fsync,fdatasync"]).args(command).stdin(Stdio::null());
    let Ok(output) = strace.output() else { return println!("fsyncs: not counted, strace is not installed") };
    let text = String::from_utf8_lossy(&output.stderr);
    println!("fsyncs of one run: {}", text.lines().filter(|line| line.contains("sync(")).count());
}
