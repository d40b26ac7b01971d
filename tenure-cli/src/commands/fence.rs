//! `tenure fence`: the resource's check, for scripts.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use anyhow::Result;
use rustix::process::{Pid, Signal, getpgrp, kill_process};
use rustix::termios::tcgetpgrp;
use serde_json::json;
use tokio::process::{Child, Command};

use crate::args::{Fence, Globals};
use crate::exit::{self, Failure};
use crate::fence_file::FenceFile;
use crate::output::json_line;
use crate::shim::cannot_run;
use crate::signals::Signals;
use crate::state;

/// What a CMD's own exit code 1 becomes, so that 1 always says that the token is stale. `xargs` has it so too.
const CMD_SAID_ONE: u8 = 123;

/// Checks a token and, if it passes, runs the command while no other can pass.
pub async fn fence(args: &Fence, globals: &Globals) -> Result<u8> {
    let folder = match &args.dir {
        Some(folder) => folder.clone(),
        None => state::folder()?.join("fences"),
    };
    let fence = FenceFile::lock(&folder, &args.resource)?;
    if let Err(stale) = fence.check(args.token, args.strict)? {
        return Err(Failure::new(exit::NO, format!("{}: {stale}", args.resource)).into());
    }
    if !args.command.is_empty() {
        return act(&args.command, &fence).await;
    }
    if globals.json {
        json_line(&json!({ "resource": args.resource.as_str(), "token": args.token.0, "passed": true }))?;
    }
    Ok(exit::DONE)
}

async fn act(command: &[OsString], fence: &FenceFile) -> Result<u8> {
    let mut signals = Signals::catch()?;
    fence.bequeath()?;
    let mut child = match Command::new(&command[0]).args(&command[1..]).spawn() {
        Ok(child) => child,
        Err(error) => return Ok(cannot_run(&command[0], &error)),
    };
    loop {
        tokio::select! {
            status = child.wait() => return Ok(code(status?)),
            signal = signals.next() => pass_on(&child, signal),
        }
    }
}

/// The command is in this process's group, so what a terminal sends has reached it already.
fn pass_on(child: &Child, signal: Signal) {
    let by_terminal = [Signal::INT, Signal::QUIT, Signal::WINCH].contains(&signal);
    if by_terminal && is_in_the_foreground() {
        return;
    }
    let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    // One that has just ended needs no signal.
    let _ = pid.map(|pid| kill_process(pid, signal));
}

/// Whether this process's group is the one that a terminal sends signals to.
fn is_in_the_foreground() -> bool {
    File::open("/dev/tty").is_ok_and(|terminal| tcgetpgrp(terminal).is_ok_and(|group| group == getpgrp()))
}

fn code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(1), _) => CMD_SAID_ONE,
        (Some(code), _) => u8::try_from(code).unwrap_or(u8::MAX),
        (None, signal) => exit::by_signal(signal.unwrap_or_default()),
    }
}
