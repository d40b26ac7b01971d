//! Five servers, and what an operator sees of them.

use redis::Commands as _;
use xtask::services::Redis;
use xtask::tools;

use super::support::until;

/// Five servers that run until they are dropped.
pub struct Five(pub Vec<Redis>);

impl Five {
    /// `None` if they are not installed, and nobody requires them.
    pub fn start() -> Option<Self> {
        if tools::skip("redis", Redis::TOOLS) {
            return None;
        }
        Some(Self((0..5).map(|_| Redis::start().unwrap()).collect()))
    }

    pub fn url(&self) -> String {
        url(self.0.iter())
    }

    /// A connection that Tenure knows nothing of.
    pub fn raw(&self, server: usize) -> redis::Connection {
        redis::Client::open(self.0[server].url()).unwrap().get_connection().unwrap()
    }

    pub fn votes(&self, server: usize) -> bool {
        let votes: Option<u8> = self.raw(server).hget("{tenure}:node", "votes").unwrap();
        votes.is_some()
    }

    /// When a held name was last renewed there, in microseconds since 1970.
    fn renewed(&self, server: usize, name: &str) -> u64 {
        let term: Option<String> = self.raw(server).hget("{tenure}:terms", name).unwrap();
        term.map_or(0, |term| term.split(' ').nth(5).unwrap().parse().unwrap())
    }

    /// Waits until all have a vote.
    pub async fn all_vote(&self) {
        until("all servers vote", async || (0..5).all(|server| self.votes(server))).await;
    }

    /// Waits until a held name is renewed on these, from now on.
    pub async fn renew(&self, servers: [usize; 2], name: &str) {
        let now = micros_since_1970();
        until("a renewal everywhere", async || servers.iter().all(|server| self.renewed(*server, name) > now)).await;
    }

    /// As if its clock had been so far ahead once.
    pub fn raise_floor(&self, server: usize, floor: u64) {
        let () = self.raw(server).set("{tenure}:floor", format!("{floor:016}")).unwrap();
    }
}

pub fn url<'a>(servers: impl Iterator<Item = &'a Redis>) -> String {
    let hosts: Vec<String> = servers.map(|server| format!("127.0.0.1:{}", server.port())).collect();
    format!("redis+quorum://{}", hosts.join(","))
}

fn micros_since_1970() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    u64::try_from(now.as_micros()).unwrap()
}

/// An hour ahead of the clock, in microseconds since 1970.
pub fn an_hour_ahead() -> u64 {
    micros_since_1970() + 3_600_000_000
}
