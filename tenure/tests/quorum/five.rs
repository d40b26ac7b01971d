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

    /// Whether it has a term of the name that is not over.
    pub fn has_term(&self, server: usize, name: &str) -> bool {
        let (mut raw, now) = (self.raw(server), micros_since_1970());
        let term: Option<String> = raw.hget("{tenure}:terms", name).unwrap();
        let expires = |term: String| term.split(' ').nth(3).unwrap().parse::<u64>().unwrap();
        term.is_some_and(|term| expires(term) > now)
    }

    /// Waits until all have a vote.
    pub async fn all_vote(&self) {
        until("all servers vote", async || (0..5).all(|server| self.votes(server))).await;
    }

    /// Waits until these have got a held name's record back.
    pub async fn have_term(&self, servers: [usize; 2], name: &str) {
        until("the record is put back", async || servers.iter().all(|server| self.has_term(*server, name))).await;
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
