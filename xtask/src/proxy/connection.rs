//! One connection through the proxy: two sockets, and a thread for each direction.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Faults, Flow, Shared};

/// The client's socket, and the server's unless the connection was made into a black hole.
pub(super) struct Connection {
    client: TcpStream,
    server: Option<TcpStream>,
    /// Something was lost in this direction: nothing passes any more.
    requests_lost: AtomicBool,
    replies_lost: AtomicBool,
    /// The next reply is to be lost.
    doomed: AtomicBool,
    /// The first direction that ended in order leaves the sockets to the other.
    half_closed: AtomicBool,
}

/// Whether a direction ended with the other end's knowledge.
enum End {
    Told,
    Silent,
}

impl Connection {
    pub(super) fn open(shared: &Arc<Shared>, client: TcpStream) -> io::Result<()> {
        let server = if into_black_hole(&shared.faults()) { None } else { Some(connect(shared.server)?) };
        client.set_nodelay(true)?;
        let connection = Arc::new(Self::new(client, server));
        shared.connections().push(connection.clone());
        if connection.server.is_some() {
            let (replies, sharing) = (connection.clone(), shared.clone());
            std::thread::spawn(move || replies.run(&sharing, Self::pass_replies));
            let sharing = shared.clone();
            std::thread::spawn(move || connection.run(&sharing, Self::pass_requests));
        }
        Ok(())
    }

    fn new(client: TcpStream, server: Option<TcpStream>) -> Self {
        let no = || AtomicBool::new(false);
        Self { client, server, requests_lost: no(), replies_lost: no(), doomed: no(), half_closed: no() }
    }

    /// Ends its threads, too.
    pub(super) fn close(&self) {
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.as_ref().map(|server| server.shutdown(Shutdown::Both));
    }

    /// The sockets stay open while the proxy remembers them: for as long as an end doesn't know that the other is gone.
    fn run(&self, shared: &Shared, pass: fn(&Self, &Shared, &TcpStream) -> End) {
        let Some(server) = &self.server else { return };
        let told = matches!(pass(self, shared, server), End::Told);
        if told && self.half_closed.swap(true, Ordering::SeqCst) {
            shared.connections().retain(|other| !std::ptr::eq(&**other, self));
        }
    }

    fn pass_requests(&self, shared: &Shared, server: &TcpStream) -> End {
        pump(&self.client, server, |bytes| {
            if shared.faults().doom(bytes) {
                self.doomed.store(true, Ordering::SeqCst);
            }
            passes(shared, |faults| faults.requests, &self.requests_lost)
        })
    }

    fn pass_replies(&self, shared: &Shared, server: &TcpStream) -> End {
        pump(server, &self.client, |bytes| {
            if !bytes.is_empty() && self.doomed.swap(false, Ordering::SeqCst) {
                self.replies_lost.store(true, Ordering::SeqCst);
                self.requests_lost.store(true, Ordering::SeqCst);
                shared.lost_replies.fetch_add(1, Ordering::SeqCst);
            }
            passes(shared, |faults| faults.replies, &self.replies_lost)
        })
    }
}

fn into_black_hole(faults: &Faults) -> bool {
    faults.requests == Flow::Lose && faults.replies == Flow::Lose
}

fn connect(server: u16) -> io::Result<TcpStream> {
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, server))?;
    server.set_nodelay(true)?;
    Ok(server)
}

/// Moves bytes that pass, and then the end of them. A failure to read is such an end; one to write is seen by the other
/// direction, which reads from there.
fn pump(mut from: &TcpStream, mut to: &TcpStream, passes: impl Fn(&[u8]) -> bool) -> End {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let length = from.read(&mut buffer).unwrap_or(0);
        let bytes = &buffer[..length];
        let pass = passes(bytes);
        if bytes.is_empty() {
            return if pass { end(to) } else { End::Silent };
        }
        if pass && to.write_all(bytes).is_err() {
            return End::Told;
        }
    }
}

fn end(to: &TcpStream) -> End {
    // It fails if the other end is gone already.
    let _ = to.shutdown(Shutdown::Write);
    End::Told
}

/// Whether what was read passes, once it is its time.
fn passes(shared: &Shared, flow: fn(&Faults) -> Flow, lost: &AtomicBool) -> bool {
    match shared.flow(flow) {
        Flow::Lose => lost.store(true, Ordering::SeqCst),
        Flow::Delay(by) => std::thread::sleep(by),
        Flow::Pass | Flow::Hold => {}
    }
    !lost.load(Ordering::SeqCst)
}
