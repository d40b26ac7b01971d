//! The proxy loses what it is told to lose, and tells nobody.

#![allow(missing_docs, clippy::unwrap_used)]

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use xtask::proxy::{Flow, Proxy};

/// Longer than any answer takes on this machine.
const SILENCE: Duration = Duration::from_millis(200);

/// A server that says back what it hears, and reports it, and the end of each connection as an empty message.
struct Echo {
    port: u16,
    heard: Receiver<Vec<u8>>,
}

impl Echo {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (hears, heard) = channel();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let hears = hears.clone();
                std::thread::spawn(move || echo(client.unwrap(), |bytes| drop(hears.send(bytes.to_vec()))));
            }
        });
        Self { port, heard }
    }

    fn heard(&self) -> Option<String> {
        self.heard.recv_timeout(SILENCE).ok().map(|bytes| String::from_utf8(bytes).unwrap())
    }
}

fn echo(mut client: TcpStream, hear: impl Fn(&[u8])) {
    let mut buffer = [0; 1024];
    loop {
        let length = client.read(&mut buffer).unwrap_or(0);
        hear(&buffer[..length]);
        if length == 0 || client.write_all(&buffer[..length]).is_err() {
            return;
        }
    }
}

/// What a client gets.
#[derive(Debug, PartialEq)]
enum Got {
    Reply(String),
    Nothing,
    End,
}

struct Client(TcpStream);

impl Client {
    fn of(proxy: &Proxy) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap();
        stream.set_read_timeout(Some(SILENCE)).unwrap();
        Self(stream)
    }

    fn ask(&mut self, request: &str) -> Got {
        self.0.write_all(request.as_bytes()).unwrap();
        self.listen()
    }

    fn listen(&mut self) -> Got {
        let mut buffer = [0; 1024];
        match self.0.read(&mut buffer) {
            Ok(0) => Got::End,
            Ok(length) => Got::Reply(String::from_utf8(buffer[..length].to_vec()).unwrap()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Got::Nothing,
            Err(_) => Got::End,
        }
    }
}

fn reply(text: &str) -> Got {
    Got::Reply(text.into())
}

fn set_up() -> (Echo, Proxy, Client) {
    let echo = Echo::start();
    let proxy = Proxy::to(echo.port).unwrap();
    let mut client = Client::of(&proxy);
    assert_eq!(client.ask("hello"), reply("hello"));
    assert_eq!(echo.heard().unwrap(), "hello");
    (echo, proxy, client)
}

#[test]
fn lost_requests_never_arrive() {
    let (echo, proxy, mut client) = set_up();
    proxy.lose_requests();
    assert_eq!(client.ask("lost"), Got::Nothing);
    assert_eq!(Client::of(&proxy).ask("lost, too"), Got::Nothing);
    proxy.pass();
    assert_eq!(client.ask("half a message"), Got::Nothing, "a connection that lost bytes stays lost");
    assert_eq!(echo.heard(), None);
    assert_eq!(Client::of(&proxy).ask("new"), reply("new"));
}

#[test]
fn requests_arrive_whose_replies_are_lost() {
    let (echo, proxy, mut client) = set_up();
    proxy.lose_replies();
    assert_eq!(client.ask("heard"), Got::Nothing);
    assert_eq!(echo.heard().unwrap(), "heard");
    proxy.pass();
    assert_eq!(client.ask("heard, too"), Got::Nothing);
    assert_eq!(echo.heard().unwrap(), "heard, too");
}

#[test]
fn a_black_hole_accepts_and_tells_neither_end() {
    let (echo, proxy, mut client) = set_up();
    proxy.black_hole();
    assert_eq!(client.ask("lost"), Got::Nothing);
    let mut new = Client::of(&proxy);
    assert_eq!(new.ask("lost, too"), Got::Nothing);
    drop(client);
    assert_eq!(echo.heard(), None, "the server is not told that its client left");
    assert_eq!(proxy.accepted(), 2);
    proxy.cut();
    assert_eq!(echo.heard().unwrap(), "", "now it is");
    assert_eq!(new.listen(), Got::End);
}

#[test]
fn a_black_hole_hides_that_the_server_died() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Proxy::to(listener.local_addr().unwrap().port()).unwrap();
    let mut client = Client::of(&proxy);
    let (server, _) = listener.accept().unwrap();
    client.0.write_all(b"unread").unwrap();
    std::thread::sleep(SILENCE);
    proxy.black_hole();
    drop((server, listener)); // with a reset, as something was not read
    assert_eq!(client.listen(), Got::Nothing);
    assert_eq!(client.ask("anybody?"), Got::Nothing);
}

#[test]
fn a_server_that_dies_is_told_to_the_client() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Proxy::to(listener.local_addr().unwrap().port()).unwrap();
    let mut client = Client::of(&proxy);
    let (server, _) = listener.accept().unwrap();
    client.0.write_all(b"unread").unwrap();
    std::thread::sleep(SILENCE);
    drop(server);
    assert_eq!(client.listen(), Got::End);
}

#[test]
fn what_is_held_arrives_late() {
    let (echo, proxy, mut client) = set_up();
    proxy.hold();
    assert_eq!(client.ask("late"), Got::Nothing);
    assert_eq!(echo.heard(), None);
    proxy.pass();
    assert_eq!(client.listen(), reply("late"));
    assert_eq!(echo.heard().unwrap(), "late");
}

#[test]
fn a_request_that_was_held_can_get_a_reply_that_is_lost() {
    let (echo, proxy, mut client) = set_up();
    proxy.set(Flow::Hold, Flow::Pass);
    assert_eq!(client.ask("late"), Got::Nothing);
    proxy.lose_replies();
    assert_eq!(echo.heard().unwrap(), "late");
    assert_eq!(client.listen(), Got::Nothing);
}

#[test]
fn a_delay_counts_both_ways() {
    let (_echo, proxy, mut client) = set_up();
    proxy.delay(Duration::from_millis(40));
    let start = Instant::now();
    assert_eq!(client.ask("slow"), reply("slow"));
    assert!(start.elapsed() >= Duration::from_millis(80), "{:?}", start.elapsed());
}

#[test]
fn a_cut_is_seen_by_both_ends_and_new_connections_work() {
    let (echo, proxy, mut client) = set_up();
    proxy.cut();
    assert_eq!(client.listen(), Got::End);
    assert_eq!(echo.heard().unwrap(), "");
    assert_eq!(Client::of(&proxy).ask("again"), reply("again"));
}

#[test]
fn the_next_reply_is_lost_and_its_connection_with_it() {
    let (echo, proxy, mut client) = set_up();
    proxy.lose_next_reply();
    assert_eq!(client.ask("granted"), Got::Nothing);
    assert_eq!(echo.heard().unwrap(), "granted");
    assert_eq!(proxy.lost_replies(), 1);
    assert_eq!(client.ask("hello?"), Got::Nothing);
    assert_eq!(echo.heard(), None, "neither a request nor an end");
    assert_eq!(Client::of(&proxy).ask("next"), reply("next"));
    assert_eq!(proxy.lost_replies(), 1);
}

#[test]
fn the_reply_to_a_certain_request_is_lost() {
    let (_echo, proxy, mut client) = set_up();
    proxy.lose_reply_to(b"COMMIT");
    assert_eq!(client.ask("UPDATE"), reply("UPDATE"));
    assert_eq!(client.ask("now COMMIT it"), Got::Nothing);
    assert_eq!(proxy.lost_replies(), 1);
}

#[test]
fn ends_are_told_when_nothing_is_wrong() {
    let (echo, proxy, client) = set_up();
    drop(client);
    assert_eq!(echo.heard().unwrap(), "");
    let mut last = Client::of(&proxy);
    assert_eq!(last.ask("last"), reply("last"));
    drop(proxy);
    assert_eq!(last.listen(), Got::End);
}

#[test]
fn a_server_that_refuses_is_told_to_the_client() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let proxy = Proxy::to(port).unwrap();
    assert_eq!(Client::of(&proxy).listen(), Got::End);
}
