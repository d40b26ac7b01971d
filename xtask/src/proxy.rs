//! A proxy that loses, holds and delays what passes through it: the network's faults, without its tools.
//!
//! It runs on threads of its own, so that a test's blocked runtime doesn't block it.

mod connection;

use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use connection::Connection;

/// What happens to the bytes of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// They pass.
    Pass,
    /// They pass after this time. The next ones wait for them: for questions and answers, not for throughput.
    Delay(Duration),
    /// They wait until the flow changes and pass then, however late: a network that was split and heals.
    Hold,
    /// They are lost, and so is all that follows in this direction of this connection, whatever the flow becomes: half a
    /// message is never seen. Both ends stay open: nobody is told.
    Lose,
}

/// A TCP proxy in front of a port of this machine. Dropping it closes all its connections.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

/// What the proxy and the threads of its connections share.
struct Shared {
    server: u16,
    faults: Mutex<Faults>,
    /// Rings when the faults change.
    changed: Condvar,
    connections: Mutex<Vec<Arc<Connection>>>,
    accepted: AtomicUsize,
    lost_replies: AtomicUsize,
    closing: AtomicBool,
}

/// The switches, for all connections.
struct Faults {
    requests: Flow,
    replies: Flow,
    /// The reply to the next request that holds these bytes is to be lost.
    doomed: Option<Vec<u8>>,
}

impl Proxy {
    /// A proxy to a port of this machine; everything passes.
    ///
    /// # Errors
    /// If no port is free.
    pub fn to(server: u16) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared::new(server));
        let accepting = shared.clone();
        std::thread::spawn(move || accepting.accept(&listener));
        Ok(Self { port, shared })
    }

    /// The port to connect to instead of the server's.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sets what happens to requests and to replies, on the connections that there are and on new ones.
    pub fn set(&self, requests: Flow, replies: Flow) {
        let mut faults = self.shared.faults();
        faults.requests = requests;
        faults.replies = replies;
        self.shared.changed.notify_all();
    }

    /// Everything passes.
    pub fn pass(&self) {
        self.set(Flow::Pass, Flow::Pass);
    }

    /// Requests never arrive.
    pub fn lose_requests(&self) {
        self.set(Flow::Lose, Flow::Pass);
    }

    /// Requests arrive, and their replies don't.
    pub fn lose_replies(&self) {
        self.set(Flow::Pass, Flow::Lose);
    }

    /// Nothing arrives. A new connection is accepted, and the server never hears of it.
    pub fn black_hole(&self) {
        self.set(Flow::Lose, Flow::Lose);
    }

    /// Nothing arrives before [`pass`](Self::pass), and then all of it does.
    pub fn hold(&self) {
        self.set(Flow::Hold, Flow::Hold);
    }

    /// Requests and replies take this much longer, each.
    pub fn delay(&self, by: Duration) {
        self.set(Flow::Delay(by), Flow::Delay(by));
    }

    /// The next request arrives, its reply is lost, and with it the connection, of which nobody is told.
    pub fn lose_next_reply(&self) {
        self.lose_reply_to(b"");
    }

    /// The same for the next request that holds these bytes in one piece, such as `COMMIT`.
    pub fn lose_reply_to(&self, request: &[u8]) {
        self.shared.faults().doomed = Some(request.to_vec());
    }

    /// Closes all connections; new ones are accepted.
    pub fn cut(&self) {
        self.shared.connections().drain(..).for_each(|connection| connection.close());
    }

    /// How many connections were accepted so far.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// How many replies were lost so far by [`lose_next_reply`](Self::lose_next_reply) and
    /// [`lose_reply_to`](Self::lose_reply_to).
    pub fn lost_replies(&self) -> usize {
        self.shared.lost_replies.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        // What is on hold ends now; and a last connection ends the waiting for connections.
        self.pass();
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        self.cut();
    }
}

impl Shared {
    fn new(server: u16) -> Self {
        Self {
            server,
            faults: Mutex::new(Faults { requests: Flow::Pass, replies: Flow::Pass, doomed: None }),
            changed: Condvar::new(),
            connections: Mutex::default(),
            accepted: AtomicUsize::new(0),
            lost_replies: AtomicUsize::new(0),
            closing: AtomicBool::new(false),
        }
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        while let Ok((client, _)) = listener.accept() {
            if self.closing.load(Ordering::SeqCst) {
                return;
            }
            self.accepted.fetch_add(1, Ordering::SeqCst);
            // A server that refuses: the client's end is closed.
            let _ = Connection::open(self, client);
        }
    }

    /// Waits while the flow is on hold.
    fn flow(&self, of: fn(&Faults) -> Flow) -> Flow {
        let held = |faults: &mut Faults| of(faults) == Flow::Hold;
        of(&self.changed.wait_while(self.faults(), held).unwrap_or_else(PoisonError::into_inner))
    }

    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connections(&self) -> MutexGuard<'_, Vec<Arc<Connection>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Faults {
    /// Whether the reply to this request is the one to be lost; true once.
    fn doom(&mut self, request: &[u8]) -> bool {
        self.doomed.take_if(|doomed| contains(request, doomed)).is_some()
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    part.is_empty() || bytes.windows(part.len()).any(|window| window == part)
}
