//! The clients, and what errors mean.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use mongodb::Client;
use mongodb::bson::Document;
use mongodb::error::{Error as DriverError, ErrorKind};
use mongodb::event::EventHandler;
use mongodb::event::sdam::SdamEvent;
use mongodb::options::{ClientOptions, ConnectionString, HostInfo, ServerAddress};

use super::{CALLS, STORE};
use crate::error::{Error, Result};

/// To connect to a server.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);

/// To find one that can be written to. Long enough to hear why there is none; less than a call may take.
const FIND_LIMIT: Duration = Duration::from_secs(4);

/// One is enough; a new one is opened while an old one, whose call was given up, is still being opened or closed.
const RENEWAL_CONNECTIONS: u32 = 3;

/// What leads to the server.
pub(super) enum Source {
    Options(Box<ClientOptions>),
    /// The names of its servers may have to be looked up.
    Url(Box<ConnectionString>),
}

/// Clients of one server or cluster.
pub(super) struct Link {
    source: Source,
    options: OnceLock<ClientOptions>,
    database: String,
    /// Where the server is, for people.
    pub place: String,
    pub main: Lane,
    pub renewals: Lane,
    /// Why the server was not there when the driver last looked.
    last_failure: Arc<Mutex<Option<DriverError>>>,
}

/// A client for one kind of call.
pub(super) struct Lane {
    client: Mutex<Option<Client>>,
    connections: u32,
}

impl Lane {
    fn new(connections: u32) -> Self {
        Self { client: Mutex::default(), connections }
    }

    fn slot(&self) -> MutexGuard<'_, Option<Client>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call on its way. If it is given up, its client is used no more: a connection that the driver is opening has no time
/// limit once the server has accepted it, and the next call would wait for that one's turn.
struct Call<'a> {
    lane: &'a Lane,
    answered: bool,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if !self.answered {
            // Dropped after the lock was given back.
            let _client = self.lane.slot().take();
        }
    }
}

impl Link {
    pub fn new(source: Source, database: String) -> Self {
        Self {
            place: format!("{}/{database}", hosts(&source)),
            source,
            options: OnceLock::new(),
            database,
            main: Lane::new(2 * CALLS as u32),
            renewals: Lane::new(RENEWAL_CONNECTIONS),
            last_failure: Arc::default(),
        }
    }

    pub fn into_source(self) -> Source {
        self.source
    }

    /// Looks up the servers' names, if that is to be done.
    pub async fn open(&self) -> Result<()> {
        let options = match &self.source {
            Source::Options(options) => ClientOptions::clone(options),
            Source::Url(url) => {
                let parsed = tokio::time::timeout(FIND_LIMIT, ClientOptions::parse(ConnectionString::clone(url))).await;
                let parsed = parsed.map_err(|_| self.unreachable("its name is not resolved"))?;
                parsed.map_err(|error| self.explain(&error))?
            }
        };
        // At the second opening it is there already.
        let _ = self.options.set(self.our_own(options));
        Ok(())
    }

    /// The settings, as far as they are not Tenure's own to choose.
    fn our_own(&self, mut options: ClientOptions) -> ClientOptions {
        // A call that failed is made again by the engine, which knows its outcome to be unknown.
        (options.retry_reads, options.retry_writes) = (Some(false), Some(false));
        // Each command says for itself what it needs.
        (options.selection_criteria, options.read_concern, options.write_concern) = (None, None, None);
        options.connect_timeout = Some(options.connect_timeout.unwrap_or(CONNECT_LIMIT).min(CONNECT_LIMIT));
        options.server_selection_timeout = Some(options.server_selection_timeout.unwrap_or(FIND_LIMIT).min(FIND_LIMIT));
        (options.min_pool_size, options.max_idle_time) = (None, None);
        options.app_name.get_or_insert_with(|| "tenure".into());
        // Nobody else's code runs on the engine's thread.
        (options.cmap_event_handler, options.command_event_handler) = (None, None);
        let last = self.last_failure.clone();
        let note = move |failure| *last.lock().unwrap_or_else(PoisonError::into_inner) = failure;
        options.sdam_event_handler = Some(EventHandler::callback(move |event| match event {
            SdamEvent::ServerHeartbeatFailed(event) => note(Some(event.failure)),
            SdamEvent::ServerHeartbeatSucceeded(_) => note(None),
            _ => {}
        }));
        options
    }

    fn client(&self, lane: &Lane) -> Result<Client> {
        let mut slot = lane.slot();
        if let Some(client) = &*slot {
            return Ok(client.clone());
        }
        let options = self.options.get().ok_or_else(|| self.refuse("is not open yet"))?;
        let mut options = options.clone();
        (options.max_pool_size, options.max_connecting) = (Some(lane.connections), Some(lane.connections));
        let client = Client::with_options(options).map_err(|error| self.explain(&error))?;
        Ok(slot.insert(client).clone())
    }

    /// Has a command carried out.
    pub async fn run(&self, lane: &Lane, command: Document) -> Result<Document> {
        self.try_run(lane, command).await?.map_err(|error| self.explain(&error))
    }

    /// The same; what the driver or the server said is not explained yet.
    pub async fn try_run(&self, lane: &Lane, command: Document) -> Result<Result<Document, DriverError>> {
        let client = self.client(lane)?;
        let mut call = Call { lane, answered: false };
        let answer = client.database(&self.database).run_command(command).await;
        call.answered = true;
        Ok(answer)
    }

    /// Has a command carried out that finds documents.
    pub async fn find(&self, lane: &Lane, command: Document) -> Result<Vec<Document>> {
        let client = self.client(lane)?;
        let mut call = Call { lane, answered: false };
        let found = all(&client, &self.database, command).await;
        call.answered = true;
        found.map_err(|error| self.explain(&error))
    }

    pub fn refuse(&self, why: &str) -> Error {
        Error::permanent(STORE, format!("{} {why}", self.place))
    }

    fn unreachable(&self, why: &str) -> Error {
        Error::transient(STORE, format!("{}: {why}", self.place))
    }

    /// What the driver said, and what it means here.
    pub fn explain(&self, error: &DriverError) -> Error {
        match &*error.kind {
            ErrorKind::Command(said) => self.refused(said.code, &said.message),
            // It says at length how each server was looked for; why the last look failed is enough.
            ErrorKind::ServerSelection { .. } => match self.last_failure() {
                Some(why) if !matches!(*why.kind, ErrorKind::ServerSelection { .. }) => self.explain(&why),
                _ => self.unreachable("no server that can be written to was found"),
            },
            // It is about a user, and never has a password in it.
            ErrorKind::Authentication { message, .. } => {
                self.refuse(&format!("refuses the user or the password ({message})"))
            }
            ErrorKind::Io(why) if is_about_tls(why) => self.refuse(&format!("has no TLS connection for us: {why}")),
            ErrorKind::Io(why) if why.kind() == io::ErrorKind::TimedOut => self.unreachable("no answer"),
            ErrorKind::Io(why) => self.unreachable(&why.to_string()),
            ErrorKind::ConnectionPoolCleared { .. } => self.unreachable("the connection was lost"),
            ErrorKind::DnsResolve { message, .. } => self.unreachable(message),
            ErrorKind::InvalidTlsConfig { .. }
            | ErrorKind::InvalidArgument { .. }
            | ErrorKind::IncompatibleServer { .. }
            | ErrorKind::Bson(_) => self.refuse(&format!("can't be used: {}", error.kind)),
            other => self.unreachable(&other.to_string()),
        }
    }

    /// What an error's code means, and what the server said.
    pub fn refused(&self, code: i32, said: &str) -> Error {
        let (transient, meaning) = meaning(if is_race(code, said) { DUPLICATE_KEY } else { code });
        let reason = format!("{} {meaning} (it says: {said})", self.place);
        if transient { Error::transient(STORE, reason) } else { Error::permanent(STORE, reason) }
    }

    fn last_failure(&self) -> Option<DriverError> {
        self.last_failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// They may come in several parts.
async fn all(client: &Client, database: &str, command: Document) -> Result<Vec<Document>, DriverError> {
    let mut found = client.database(database).run_cursor_command(command).await?;
    let mut documents = Vec::new();
    while found.advance().await? {
        documents.push(found.deserialize_current()?);
    }
    Ok(documents)
}

/// The driver says of a certificate that was refused that it is invalid data.
fn is_about_tls(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidData
}

fn hosts(source: &Source) -> String {
    let joined = |hosts: &[ServerAddress]| hosts.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    match source {
        Source::Options(options) => joined(&options.hosts),
        Source::Url(url) => match &url.host_info {
            HostInfo::HostIdentifiers(hosts) => joined(hosts),
            HostInfo::DnsRecord(name) => name.clone(),
            _ => String::new(),
        },
    }
}

const DUPLICATE_KEY: i32 = 11000;
const FAILED_TO_PARSE: i32 = 9;

/// Whether another has inserted the name at the same moment. DocumentDB 1.0 then looks again by itself, but no longer knows
/// what `$$NOW` is, and says so.
pub(super) fn is_race(code: i32, said: &str) -> bool {
    code == DUPLICATE_KEY || (code == FAILED_TO_PARSE && said.contains("$$NOW"))
}

/// Whether a retry can help, and what an error's code means to somebody who only wanted a lock.
fn meaning(code: i32) -> (bool, &'static str) {
    match code {
        18 => (false, "refuses the user or the password"),
        13 => (false, "does not give this user the right: see `tenure schema` for what is needed"),
        26 => (false, "has no collection for the locks any more"),
        50 | 64 | 262 => (true, "could not do it in time"),
        DUPLICATE_KEY => (true, "has another insert the name at this moment"),
        10107 | 13435 | 10058 => (true, "is not the primary any more"),
        // InternalError, hosts, networks, cursors, write conflicts, shut-downs, elections, too few members.
        1 | 6 | 7 | 43 | 79 | 89 | 91 | 100 | 112 | 133 | 134 | 189 | 202 | 234 | 237 | 246 | 251 | 279 | 290 | 317
        | 358 | 384 | 462 | 9001 | 11600 | 11601 | 11602 | 13388 | 13436 => (true, "could not do it now"),
        _ => (false, "refused"),
    }
}

/// Whether the server doesn't know what it was asked for, rather than being unable or unwilling.
pub(super) fn is_unknown(code: i32) -> bool {
    !meaning(code).0 && !matches!(code, 13 | 18)
}
