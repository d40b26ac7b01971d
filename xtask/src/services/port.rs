//! A port that stays ours while its server is down.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;

use anyhow::Result;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket, sockopt::set_socket_reuseaddr};

/// A free port of the loopback address, kept by a socket that is bound to it and never listens: the system gives it to
/// nobody else, a connection is refused, and a server, which also says `SO_REUSEADDR`, can listen there.
pub(super) struct Port {
    number: u16,
    _kept: OwnedFd,
}

impl Port {
    pub(super) fn reserve() -> Result<Self> {
        let kept = socket(AddressFamily::INET, SocketType::STREAM, None)?;
        fcntl_setfd(&kept, FdFlags::CLOEXEC)?;
        set_socket_reuseaddr(&kept, true)?;
        bind(&kept, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))?;
        let number = SocketAddrV4::try_from(getsockname(&kept)?)?.port();
        Ok(Self { number, _kept: kept })
    }

    pub(super) fn number(&self) -> u16 {
        self.number
    }
}
