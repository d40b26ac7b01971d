//! What `tenure run` and its watchdog tell each other: frames of one size over a pair of Unix sockets.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::cmsg_space;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, send, sendmsg};
use rustix::time::{ClockId, clock_gettime};
use tokio::net::UnixStream;

/// How long either side sleeps at most before it looks at the clock again: timers don't count suspend.
pub const TICK: Duration = Duration::from_millis(250);

/// How long those that were told to end have for it.
pub const GRACE: Duration = Duration::from_secs(5);

/// A kind and a value. Both sides write whole frames and read with a buffer of exactly this size, so
/// that a frame is never torn and reading one is cancel safe.
pub type Frame = [u8; 9];

/// What `tenure run` tells the watchdog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The term now ends at this boot time.
    Deadline(Duration),
    /// Pass this signal on to CMD's process group.
    Signal(i32),
    /// End CMD and everything below it.
    Stop(Stop),
}

/// How CMD is to be stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// SIGTERM, then SIGKILL after five seconds or shortly before the deadline, whichever is first.
    Gently,
    /// SIGKILL.
    Now,
}

/// How it ended. In every case CMD and all its descendants are dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// CMD ended by itself, by a signal, or because it was stopped.
    Exited(Exit),
    /// The deadline came near without an extension, and CMD was killed for it.
    Overdue,
    /// The watchdog died or didn't react, and CMD was killed for it.
    Unguarded,
}

/// How CMD itself ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It exited with this code.
    Code(i32),
    /// This signal killed it.
    Signal(i32),
}

impl Exit {
    /// The exit code that a shell would show.
    pub fn code(self) -> u8 {
        let code = match self {
            Exit::Code(code) => code,
            Exit::Signal(signal) => 128 + signal,
        };
        u8::try_from(code).unwrap_or(u8::MAX)
    }
}

impl Order {
    /// As it is sent.
    pub fn encode(self) -> Frame {
        match self {
            Order::Deadline(at) => frame(b'd', u64::try_from(at.as_nanos()).unwrap_or(u64::MAX)),
            Order::Signal(signal) => frame(b's', u64::from(signal.unsigned_abs())),
            Order::Stop(Stop::Gently) => frame(b'g', 0),
            Order::Stop(Stop::Now) => frame(b'n', 0),
        }
    }

    /// From what was received.
    pub fn decode(frame: Frame) -> Option<Self> {
        match split(frame) {
            (b'd', nanos) => Some(Order::Deadline(Duration::from_nanos(nanos))),
            (b's', signal) => Some(Order::Signal(i32::try_from(signal).ok()?)),
            (b'g', _) => Some(Order::Stop(Stop::Gently)),
            (b'n', _) => Some(Order::Stop(Stop::Now)),
            _ => None,
        }
    }
}

impl Ended {
    /// As it is sent.
    pub fn encode(self) -> Frame {
        match self {
            Ended::Exited(Exit::Code(code)) => frame(b'c', u64::from(code.unsigned_abs())),
            Ended::Exited(Exit::Signal(signal)) => frame(b'k', u64::from(signal.unsigned_abs())),
            Ended::Overdue => frame(b'o', 0),
            Ended::Unguarded => frame(b'u', 0),
        }
    }

    /// From what was received; whatever isn't a report means that the watchdog is no more.
    pub fn decode(frame: Option<Frame>) -> Self {
        let number = |value| i32::try_from(value).unwrap_or(i32::MAX);
        match frame.map(split) {
            Some((b'c', code)) => Ended::Exited(Exit::Code(number(code))),
            Some((b'k', signal)) => Ended::Exited(Exit::Signal(number(signal))),
            Some((b'o', _)) => Ended::Overdue,
            _ => Ended::Unguarded,
        }
    }
}

fn frame(kind: u8, value: u64) -> Frame {
    let mut frame = [kind; 9];
    frame[1..].copy_from_slice(&value.to_le_bytes());
    frame
}

fn split([kind, value @ ..]: Frame) -> (u8, u64) {
    (kind, u64::from_le_bytes(value))
}

/// Sends a frame without ever waiting: a peer that has not read for so long that there is no room is
/// as good as dead.
pub fn send_frame(socket: impl AsFd, frame: Frame) -> io::Result<()> {
    match send(socket, &frame, SendFlags::DONTWAIT)? {
        sent if sent == frame.len() => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// The next frame, or `None` when the other side is gone. Cancel safe.
pub async fn next_frame(socket: &UnixStream) -> Option<Frame> {
    loop {
        socket.readable().await.ok()?;
        let mut frame = Frame::default();
        match socket.try_read(&mut frame) {
            Ok(read) => return (read == frame.len()).then_some(frame),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // A peer that went without reading all of its mail resets the connection.
            Err(_) => return None,
        }
    }
}

/// Sends a frame that carries a file descriptor.
pub fn send_with_fd(socket: impl AsFd, frame: Frame, fd: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    let fits = ancillary.push(SendAncillaryMessage::ScmRights(&fds));
    debug_assert!(fits, "the space is made for one descriptor");
    sendmsg(socket, &[IoSlice::new(&frame)], &mut ancillary, SendFlags::empty())?;
    Ok(())
}

/// Waits for a frame that carries a file descriptor.
pub fn receive_with_fd(socket: impl AsFd) -> io::Result<(Frame, OwnedFd)> {
    let mut frame = Frame::default();
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(socket, &mut [IoSliceMut::new(&mut frame)], &mut ancillary, RecvFlags::empty())?;
    let fd = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    match fd {
        Some(fd) if received.bytes == frame.len() => {
            fcntl_setfd(&fd, FdFlags::CLOEXEC)?;
            Ok((frame, fd))
        }
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// How long before the deadline CMD is killed: death takes time, and the store's clock may be a little fast.
pub fn kill_margin(ttl: Duration) -> Duration {
    (ttl / 20).clamp(Duration::from_millis(10), Duration::from_secs(2))
}

/// The time since boot, on the clock that also counts suspend.
pub fn boot_time() -> Duration {
    #[cfg(target_os = "linux")]
    let clock = ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    let clock = ClockId::Monotonic;
    Duration::try_from(clock_gettime(clock)).expect("time since boot isn't negative")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_and_reports_survive_the_wire() {
        for order in [
            Order::Deadline(Duration::new(123_456, 789)),
            Order::Signal(15),
            Order::Stop(Stop::Gently),
            Order::Stop(Stop::Now),
        ] {
            assert_eq!(Order::decode(order.encode()), Some(order));
        }
        for ended in [Ended::Exited(Exit::Code(3)), Ended::Exited(Exit::Signal(9)), Ended::Overdue, Ended::Unguarded] {
            assert_eq!(Ended::decode(Some(ended.encode())), ended);
        }
        assert_eq!(Ended::decode(None), Ended::Unguarded);
    }
}
