//! The connections to one server, the scripts that run there, and what errors mean.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection as Connection;
use redis::{AsyncConnectionConfig, Cmd, ConnectionInfo, ErrorKind, PushInfo, RedisError, ServerErrorKind, Value};
use tokio::sync::mpsc;

use super::address::{TlsFiles, moved};
use super::examine::Info;
use super::scripts::{Keys, Script};
use super::term::unexpected;
use super::{CALLS, STATEMENT_LIMIT, STORE};
use crate::clock::Moment;
use crate::error::{Error, Result};
use crate::store::lanes::Lane;

/// Within the engine's limit for a call, also if there are several servers to try.
const CONNECT_LIMIT: Duration = Duration::from_secs(4);

/// A cluster that is being changed may send us on more than once.
const REDIRECTIONS: usize = 3;

/// Later than any time: for as long as the server's clock is not known.
const NEVER: u64 = 1 << 53;

/// Connections to one server, or to that one of a cluster which has the keys.
pub(in crate::store) struct Link {
    /// Where to begin.
    servers: Vec<ConnectionInfo>,
    /// Where a cluster has sent us.
    moved: Mutex<Option<ConnectionInfo>>,
    tls: TlsFiles,
    keys: Keys,
    /// Where the server is, for people.
    pub place: String,
    main: Lane<Connection>,
    renewals: Lane<Connection>,
    clock: Mutex<Option<Heard>>,
    /// A call that is carried out later than this changes nothing.
    limit: Duration,
    /// What a connection begins with: told which run of the server it has reached.
    greeting: Option<Script>,
}

/// What was heard of the server's clock.
#[derive(Clone, Copy)]
struct Heard {
    /// When we heard it.
    at: Moment,
    /// What it said.
    time: u64,
}

/// A script's answer.
pub(in crate::store) struct Answer {
    /// The server's clock.
    pub now: u64,
    /// One for each entry.
    pub entries: Vec<Value>,
    /// How many replicas have it, if that was asked.
    pub copies: usize,
}

/// How long to wait for replicas.
#[derive(Clone, Copy)]
pub(in crate::store) struct Copies {
    pub wanted: usize,
    pub within: Duration,
}

/// Which connections to use.
#[derive(Clone, Copy)]
pub(in crate::store) enum On {
    Main,
    /// The same, for what only reads: if it fails because a connection was broken, it is made again.
    Reads,
    Renewals,
}

impl Link {
    pub fn new(servers: Vec<ConnectionInfo>, tls: TlsFiles, prefix: &str) -> Self {
        Self {
            place: place(&servers),
            servers,
            moved: Mutex::default(),
            tls,
            keys: Keys::new(prefix),
            main: Lane::new(2 * CALLS),
            renewals: Lane::new(1),
            clock: Mutex::default(),
            limit: STATEMENT_LIMIT,
            greeting: None,
        }
    }

    /// One of a quorum's servers: what is asked of it, renewals apart, is carried out in the order of asking.
    pub fn in_quorum(server: ConnectionInfo, tls: TlsFiles, prefix: &str, greeting: Script, limit: Duration) -> Self {
        let link = Self::new(vec![server], tls, prefix);
        Self { main: Lane::new(1), limit, greeting: Some(greeting), ..link }
    }

    pub fn channel(&self) -> &str {
        &self.keys.channel
    }

    /// Opens the connection for renewals ahead of time.
    pub async fn open_renewals(&self) -> Result<()> {
        self.renewals.take(self.connect()).await?.put_back();
        Ok(())
    }

    /// Leaves connections, which may hang, and opens a new one.
    pub async fn open_anew(&self, on: On) -> Result<()> {
        let lane = self.lane(on);
        lane.clear();
        lane.take(self.connect()).await?.put_back();
        Ok(())
    }

    fn lane(&self, on: On) -> &Lane<Connection> {
        match on {
            On::Main | On::Reads => &self.main,
            On::Renewals => &self.renewals,
        }
    }

    /// Carries out a script; `fill` adds its entries.
    pub async fn call(&self, on: On, script: &Script, fill: impl Fn(&mut Cmd) + Sync) -> Result<Answer> {
        self.call_and_copy(on, script, None, fill).await
    }

    /// The same, and waits until replicas have what it wrote.
    pub async fn call_and_copy(
        &self,
        on: On,
        script: &Script,
        copies: Option<Copies>,
        fill: impl Fn(&mut Cmd) + Sync,
    ) -> Result<Answer> {
        let (lane, until) = (self.lane(on), self.gives_up_at());
        let (mut redirections, mut may_retry) = (0, matches!(on, On::Reads));
        loop {
            let mut taken = lane.take(self.connect()).await?;
            let answer = self.run(&mut taken.connection, script, until, copies, &fill).await;
            match answer {
                Ok((answer, copies)) => {
                    taken.put_back();
                    return self.read(answer, copies);
                }
                Err(error) if redirections < REDIRECTIONS && self.follow(&error) => redirections += 1,
                Err(error) if is_answer(&error) => {
                    taken.put_back();
                    return Err(self.explain(&error));
                }
                Err(error) => {
                    lane.clear();
                    if !std::mem::take(&mut may_retry) {
                        return Err(self.explain(&error));
                    }
                }
            }
        }
    }

    async fn run(
        &self,
        connection: &mut Connection,
        script: &Script,
        until: u64,
        copies: Option<Copies>,
        fill: &(impl Fn(&mut Cmd) + Sync),
    ) -> redis::RedisResult<(Value, usize)> {
        let mut answer = self.command("EVALSHA", &script.hash, until, fill).query_async(connection).await;
        if answer.as_ref().is_err_and(|error| is(error, ServerErrorKind::NoScript)) {
            answer = self.command("EVAL", &script.text, until, fill).query_async(connection).await;
        }
        let answer = answer?;
        let copies = match copies {
            Some(Copies { wanted, within }) => {
                let limit = within.as_millis().max(1) as u64;
                redis::cmd("WAIT").arg(wanted).arg(limit).query_async(connection).await?
            }
            None => 0,
        };
        Ok((answer, copies))
    }

    fn command(&self, how: &str, script: &str, until: u64, fill: &(impl Fn(&mut Cmd) + Sync)) -> Cmd {
        let mut command = redis::cmd(how);
        command.arg(script).arg(self.keys.all.len()).arg(&self.keys.all[..]).arg(until).arg(&self.keys.channel);
        fill(&mut command);
        command
    }

    fn read(&self, answer: Value, copies: usize) -> Result<Answer> {
        let Value::Array(mut entries) = answer else { return Err(unexpected(&answer)) };
        let time = match entries.first() {
            Some(Value::Int(time)) => time.cast_unsigned(),
            _ => return Err(unexpected(&Value::Array(entries))),
        };
        *self.clock() = Some(Heard { at: Moment::now(), time });
        if let Some(Value::BulkString(why)) = entries.get(1) {
            let place = self.place.clone();
            return Err(match &why[..] {
                b"late" => Error::transient(STORE, Late(place)),
                _ => Error::transient(STORE, NoVote(place)),
            });
        }
        entries.remove(0);
        Ok(Answer { now: time, entries, copies })
    }

    /// When a call that is made now must not be carried out any more, by the server's clock. That clock showed what we
    /// heard before we heard it, so now it shows more: what counts as late is never too late.
    fn gives_up_at(&self) -> u64 {
        let limit = |heard: Heard| {
            let since = Moment::now() - heard.at + self.limit;
            heard.time.saturating_add(u64::try_from(since.as_micros()).unwrap_or(NEVER))
        };
        self.clock().map_or(NEVER, limit).min(NEVER)
    }

    /// Another command that only reads, such as one that asks for settings.
    pub async fn ask(&self, command: &Cmd) -> Result<Value, Refused> {
        let mut taken = self.main.take(self.connect()).await.map_err(Refused::Error)?;
        match command.query_async(&mut taken.connection).await {
            Ok(answer) => {
                taken.put_back();
                Ok(answer)
            }
            Err(error) if is(&error, ServerErrorKind::NoPerm) => {
                taken.put_back();
                Err(Refused::NoRight)
            }
            Err(error) => Err(Refused::Error(self.explain(&error))),
        }
    }

    /// The same on a connection of its own, which begins with nothing.
    pub async fn ask_ungreeted(&self, command: &Cmd) -> Result<Value, Refused> {
        let mut connection = self.connect_with(AsyncConnectionConfig::new).await.map_err(Refused::Error)?;
        command.query_async(&mut connection).await.map_err(|error| match is(&error, ServerErrorKind::NoPerm) {
            true => Refused::NoRight,
            false => Refused::Error(self.explain(&error)),
        })
    }

    /// Connects to where the keys are, as far as is known, or else to any of the servers.
    async fn connect(&self) -> Result<Connection> {
        let mut connection = self.connect_with(AsyncConnectionConfig::new).await?;
        if let Some(greeting) = &self.greeting {
            self.greet(&mut connection, greeting).await?;
        }
        Ok(connection)
    }

    async fn greet(&self, connection: &mut Connection, greeting: &Script) -> Result<()> {
        let said: redis::RedisResult<Value> = redis::cmd("INFO").arg("server").query_async(connection).await;
        let info = Info::read(&said.map_err(|error| self.explain(&error))?);
        let tell = |command: &mut Cmd| {
            command.arg(info.get("run_id"));
        };
        let greeted = self.run(connection, greeting, NEVER, None, &tell).await;
        let (answer, _) = greeted.map_err(|error| self.explain(&error))?;
        self.read(answer, 0).map(drop)
    }

    /// A connection that passes on what the server sends unasked.
    pub async fn connect_to_listen(&self, heard: &mpsc::UnboundedSender<PushInfo>) -> Result<Connection> {
        self.connect_with(|| AsyncConnectionConfig::new().set_push_sender(heard.clone())).await
    }

    async fn connect_with(&self, config: impl Fn() -> AsyncConnectionConfig) -> Result<Connection> {
        let moved = self.moved().clone();
        let servers: Vec<_> = moved.iter().chain(&self.servers).collect();
        let limit = CONNECT_LIMIT / u32::try_from(servers.len()).unwrap_or(u32::MAX);
        let mut failed = None;
        for server in servers {
            // The limit of an answer is the caller's.
            let config = config().set_connection_timeout(Some(limit)).set_response_timeout(None);
            match self.tls.client(server)?.get_multiplexed_async_connection_with_config(&config).await {
                Ok(connection) => return Ok(connection),
                Err(error) => failed = Some(self.explain_connecting(server, &error)),
            }
        }
        Err(failed.unwrap_or_else(|| Error::permanent(STORE, "there is no server to connect to")))
    }

    /// Goes where a cluster has the keys, if that is what it says.
    fn follow(&self, error: &RedisError) -> bool {
        let Some((to, _)) = error.redirect_node().filter(|_| is(error, ServerErrorKind::Moved)) else { return false };
        let Some(server) = self.servers.first().and_then(|from| moved(from, to)) else { return false };
        *self.moved() = Some(server);
        self.main.clear();
        self.renewals.clear();
        true
    }

    fn clock(&self) -> std::sync::MutexGuard<'_, Option<Heard>> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn moved(&self) -> std::sync::MutexGuard<'_, Option<ConnectionInfo>> {
        self.moved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn refuse(&self, why: &str) -> Error {
        Error::permanent(STORE, format!("{} {why}", self.place))
    }

    fn explain_connecting(&self, server: &ConnectionInfo, error: &RedisError) -> Error {
        match error.kind() {
            // The drivers say of a certificate that was refused that it is invalid data.
            ErrorKind::Io if error.to_string().contains("certificate") => {
                Error::permanent(STORE, format!("{}: no TLS connection: {error}", server.addr()))
            }
            ErrorKind::Io if error.is_timeout() => {
                Error::transient(STORE, format!("{}: no answer within {CONNECT_LIMIT:?}", server.addr()))
            }
            ErrorKind::Io => Error::transient(STORE, format!("{}: {error}", server.addr())),
            _ => self.explain(error),
        }
    }

    /// What the server or the driver said, and what it means here.
    pub fn explain(&self, error: &RedisError) -> Error {
        let place = &self.place;
        let (transient, meaning) = match error.kind() {
            ErrorKind::AuthenticationFailed => (false, "refuses the user or the password"),
            ErrorKind::RESP3NotSupported => (false, "is too old: Redis 6.2 or later, or Valkey, is needed"),
            ErrorKind::InvalidClientConfig | ErrorKind::Client => (false, "can't be talked to"),
            ErrorKind::Server(_) | ErrorKind::Extension => {
                meaning(error.code().unwrap_or_default(), error.detail().unwrap_or_default())
            }
            // The connection, not the server: the next call gets another.
            _ => return Error::transient(STORE, format!("{place}: {error}")),
        };
        let reason = format!("{place} {meaning} (Redis: {error})");
        if transient { Error::transient(STORE, reason) } else { Error::permanent(STORE, reason) }
    }
}

/// Why a call changed nothing.
#[derive(Debug, thiserror::Error)]
#[error("{0} got it too late and did nothing: its clock was set, or it stood still")]
struct Late(String);

/// Why a call to one of a quorum's servers changed nothing.
#[derive(Debug, thiserror::Error)]
#[error("{0} has restarted, or lost its data, and has no vote until all that it may have forgotten is over")]
struct NoVote(String);

/// Whether a server says that a call came too late.
pub(in crate::store) fn is_late(error: &Error) -> bool {
    matches!(error, Error::Store { reason, .. } if reason.is::<Late>())
}

/// Whether this is one of a quorum's servers that says that it has no vote.
pub(in crate::store) fn is_without_vote(error: &Error) -> bool {
    matches!(error, Error::Store { reason, .. } if reason.is::<NoVote>())
}

/// Why a question got no answer.
pub(in crate::store) enum Refused {
    /// This user may not ask it.
    NoRight,
    Error(Error),
}

fn place(servers: &[ConnectionInfo]) -> String {
    let hosts: Vec<_> = servers.iter().map(|server| server.addr().to_string()).collect();
    let database = servers.first().map_or(0, |server| server.redis_settings().db());
    format!("{}/{database}", hosts.join(","))
}

fn is(error: &RedisError, kind: ServerErrorKind) -> bool {
    error.kind() == ErrorKind::Server(kind)
}

/// The server has answered, if only to refuse, and the next call may go the same way. One that can only be read has
/// perhaps a successor, and one that does not know us any more must hear the password again.
fn is_answer(error: &RedisError) -> bool {
    let server = matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension);
    server && !is(error, ServerErrorKind::ReadOnly) && error.code() != Some("NOAUTH")
}

const NO_RIGHT: &str = "does not give this user the right: see `tenure schema` for what is needed";

/// Whether a retry can help, and what an error means to somebody who only wanted a lock. Before Redis 7, an error within
/// a script is quoted in another: `ERR Error running script …: -READONLY You can't write …`.
fn meaning(code: &str, detail: &str) -> (bool, &'static str) {
    let quoted = detail.split_once(": -").filter(|_| code == "ERR").and_then(|(_, said)| said.split(' ').next());
    match quoted.unwrap_or(code) {
        "WRONGPASS" | "NOAUTH" => (false, "refuses the user or the password"),
        "NOPERM" => (false, NO_RIGHT),
        "READONLY" => (true, "can only be read: is it a replica?"),
        "LOADING" => (true, "is still loading its data"),
        "OOM" => (true, "is out of memory: raise its maxmemory"),
        "MISCONF" => (true, "takes no writes while it can't save its data"),
        "NOREPLICAS" => (true, "takes no writes while it has too few replicas"),
        "MASTERDOWN" => (true, "is a replica that has lost its primary"),
        "BUSY" | "UNKILLABLE" => (true, "is busy with somebody's script"),
        "CLUSTERDOWN" | "TRYAGAIN" | "MOVED" | "ASK" => (true, "is a cluster that is being changed, or is down"),
        "CROSSSLOT" => (false, "is a cluster whose slots differ"),
        "WRONGTYPE" => (false, "has something else under the keys of the locks: choose another tenure.prefix"),
        _ if detail.contains("user executing the script") => (false, NO_RIGHT),
        _ if detail.contains("max number of clients") => (true, "has no connection left"),
        _ if detail.contains("called without any password") => (false, "refuses the user or the password"),
        _ => (false, "refused"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_within_a_script_mean_the_same_on_every_version() {
        let old = |said: &str| format!("Error running script (call to f_0f): @user_script:3: @user_script: 3: {said}");
        for (code, detail, transient, means) in [
            ("READONLY", "You can't write against a read only replica.".to_owned(), true, "replica"),
            ("ERR", old("-READONLY You can't write against a read only replica."), true, "replica"),
            ("ERR", old("-OOM command not allowed when used memory > 'maxmemory'."), true, "memory"),
            ("ERR", old("-WRONGTYPE Operation against a key holding the wrong kind of value"), false, "prefix"),
            ("ERR", old("The user executing the script can't run this command or subcommand"), false, "right"),
            ("ERR", "The user executing the script can't access at least one of the keys".into(), false, "right"),
            ("ERR", "max number of clients reached".into(), true, "connection"),
            ("ERR", "unknown command `HELLO`".into(), false, "refused"),
        ] {
            let found = meaning(code, &detail);
            assert!(found.0 == transient && found.1.contains(means), "{code} {detail}: {found:?}");
        }
    }
}
