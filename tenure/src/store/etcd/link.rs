//! The connections, and what errors mean.
//!
//! One connection carries many calls at once, so there is one for claims, releases and lists, and another for renewals. A
//! connection that fails, or on which a call was given up, is never used again: the next call goes to the next of the
//! cluster's endpoints.

use std::error::Error as StdError;
use std::fmt;
use std::str::FromStr as _;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};
use tonic_prost::ProstCodec;

use super::STORE;
use super::address::Tls;
use super::messages::{AuthenticateRequest, Request, WatchRequest, WatchResponse};
use crate::error::{Error, Result};

/// How long connecting to one endpoint may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);

/// How long one call may take: long enough for an election of a leader, short enough to try other endpoints within the
/// engine's own limit.
const CALL_LIMIT: Duration = Duration::from_secs(2);

/// A silent connection is asked whether it is still there. A server takes offence at more than one ping in five seconds.
const PING_EVERY: Duration = Duration::from_secs(6);
const PING_LIMIT: Duration = Duration::from_secs(2);

/// Connections to a cluster.
pub(super) struct Link {
    plain: Vec<Endpoint>,
    tls: Option<Arc<Tls>>,
    /// With TLS, if it is wanted: made when the store is opened, as that reads files.
    secured: OnceLock<Vec<Endpoint>>,
    /// Where the cluster is, for people.
    pub place: String,
    login: Option<Login>,
    token: Mutex<Option<MetadataValue<Ascii>>>,
    pub main: Lane,
    pub renewals: Lane,
}

/// Who asks.
pub(super) struct Login {
    pub user: String,
    pub password: String,
}

/// Why a call has no answer.
#[derive(Debug)]
pub(super) enum Failed {
    /// A lease that was to be used is gone; nothing was done.
    NoLease,
    Because(Error),
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::NoLease => Self::transient(STORE, "the lease is gone"),
            Failed::Because(error) => error,
        }
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Because(error)
    }
}

impl Link {
    pub fn new(endpoints: Vec<Endpoint>, tls: Option<Tls>) -> Self {
        let places: Vec<_> = endpoints.iter().map(place).collect();
        Self {
            place: places.join(","),
            plain: endpoints,
            tls: tls.map(Arc::new),
            secured: OnceLock::new(),
            login: None,
            token: Mutex::default(),
            main: Lane::default(),
            renewals: Lane::default(),
        }
    }

    pub fn with_login(self, login: Login) -> Self {
        Self { login: Some(login), ..self }
    }

    /// Reads the files for TLS, if it is wanted.
    pub async fn prepare(&self) -> Result<()> {
        let Some(tls) = self.tls.clone() else { return Ok(()) };
        let plain = self.plain.clone();
        let secured = tokio::task::spawn_blocking(move || tls.secure(&plain)).await;
        let _ = self.secured.set(secured.map_err(|error| Error::permanent(STORE, error))??);
        Ok(())
    }

    pub fn endpoints(&self) -> &[Endpoint] {
        self.secured.get().unwrap_or(&self.plain)
    }

    /// Makes a call.
    pub async fn call<R: Request>(&self, lane: &Lane, request: R) -> Result<R::Answer, Failed> {
        if self.login.is_none() {
            return self.attempt(lane, request).await.map_err(|status| self.failed(status));
        }
        match self.attempt(lane, request.clone()).await {
            // Tokens don't last for ever, nor beyond a change of users or rights.
            Err(Broken::Status(status)) if is_token_stale(&status) => {
                *self.token() = None;
                self.attempt(lane, request).await
            }
            answer => answer,
        }
        .map_err(|status| self.failed(status))
    }

    /// A call that only reads: while it fails for the moment, it is made again at the other endpoints.
    pub async fn look<R: Request>(&self, lane: &Lane, request: R) -> Result<R::Answer> {
        let mut tries = 1;
        loop {
            match self.call(lane, request.clone()).await.map_err(Error::from) {
                Err(error) if error.is_transient() && tries < self.plain.len() => tries += 1,
                answer => return answer,
            }
        }
    }

    async fn attempt<R: Request>(&self, lane: &Lane, request: R) -> Result<R::Answer, Broken> {
        let mut wire = self.wire(lane).await?;
        let token = self.token_at(&wire.channel).await.inspect_err(|broken| wire.judge(broken))?;
        let answer = self.ask(&wire.channel, request, token).await;
        match &answer {
            Ok(_) => wire.works = true,
            Err(broken) => wire.judge(broken),
        }
        answer
    }

    async fn ask<R: Request>(&self, channel: &Channel, request: R, token: Stamp) -> Result<R::Answer, Broken> {
        let asking = async {
            let mut grpc = grpc(channel).await?;
            let codec = ProstCodec::default();
            Ok(grpc.unary(stamped(request, token), PathAndQuery::from_static(R::METHOD), codec).await?.into_inner())
        };
        timeout(CALL_LIMIT, asking).await.unwrap_or(Err(Broken::Late))
    }

    /// What proves to the server who asks, fetched if need be.
    async fn token_at(&self, channel: &Channel) -> Result<Stamp, Broken> {
        let Some(login) = &self.login else { return Ok(None) };
        if let Some(token) = self.token().clone() {
            return Ok(Some(token));
        }
        let request = AuthenticateRequest { name: login.user.clone(), password: login.password.clone() };
        let answer = self.ask(channel, request, None).await?;
        let token = MetadataValue::from_str(&answer.token)
            .map_err(|_| Broken::Error(self.refuse("answered a login with a token that can't be sent back")))?;
        *self.token() = Some(token.clone());
        Ok(Some(token))
    }

    fn token(&self) -> MutexGuard<'_, Stamp> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches, on a connection of its own that notices when the server is gone.
    pub async fn watch(&self, number: usize, request: WatchRequest) -> Result<Streaming<WatchResponse>> {
        let endpoint = self.endpoints()[number % self.plain.len()].clone();
        let endpoint = endpoint.http2_keep_alive_interval(PING_EVERY).keep_alive_timeout(PING_LIMIT);
        let opening = async {
            let channel = self.connect(&endpoint).await?;
            let token = self.token_at(&channel).await?;
            let method = PathAndQuery::from_static(WatchRequest::METHOD);
            let mut grpc = grpc(&channel).await?;
            let stream = grpc.server_streaming(stamped(request, token), method, ProstCodec::default()).await?;
            Ok(stream.into_inner())
        };
        let opened = timeout(CONNECT_LIMIT + CALL_LIMIT, opening).await.unwrap_or(Err(Broken::Late));
        opened.map_err(|broken: Broken| {
            if matches!(&broken, Broken::Status(status) if is_token_stale(status)) {
                *self.token() = None;
            }
            self.failed(broken).into()
        })
    }

    /// What one endpoint alone says.
    pub async fn ask_endpoint<R: Request>(&self, number: usize, request: R) -> (String, Result<R::Answer>) {
        let endpoint = &self.endpoints()[number];
        let asking = async {
            let channel = self.connect(endpoint).await?;
            let token = self.token_at(&channel).await?;
            self.ask(&channel, request, token).await
        };
        (place(endpoint), asking.await.map_err(|broken| self.failed(broken).into()))
    }

    /// The lane's connection, or a new one to the first endpoint that can be reached, beginning with the next.
    async fn wire<'a>(&self, lane: &'a Lane) -> Result<Wire<'a>, Broken> {
        let _turn = lane.connecting.lock().await;
        if let Some(wire) = lane.wire() {
            return Ok(wire);
        }
        let mut errors = Vec::new();
        for _ in &self.plain {
            match self.connect(&self.endpoints()[lane.next_endpoint(self.plain.len())]).await {
                Ok(channel) => return Ok(lane.set(channel)),
                Err(error) => errors.push(error),
            }
        }
        let reasons: Vec<_> = errors.iter().map(reason).collect();
        let reasons = reasons.join("; ");
        let transient = errors.iter().any(Error::is_transient);
        let error = if transient { Error::transient(STORE, reasons) } else { Error::permanent(STORE, reasons) };
        Err(Broken::Error(error))
    }

    async fn connect(&self, endpoint: &Endpoint) -> Result<Channel> {
        let place = place(endpoint);
        match timeout(CONNECT_LIMIT, endpoint.connect()).await {
            Ok(Ok(channel)) => Ok(channel),
            Ok(Err(error)) if is_tls(&error) => {
                Err(Error::permanent(STORE, format!("{place}: no TLS connection: {}", told(&error))))
            }
            Ok(Err(error)) => Err(Error::transient(STORE, format!("{place}: {}", told(&error)))),
            Err(_) => Err(Error::transient(STORE, format!("{place}: no answer within {CONNECT_LIMIT:?}"))),
        }
    }

    pub fn refuse(&self, why: &str) -> Error {
        Error::permanent(STORE, format!("{} {why}", self.place))
    }

    fn failed(&self, broken: Broken) -> Failed {
        let place = &self.place;
        match broken {
            Broken::Status(status) if is_no_lease(&status) => Failed::NoLease,
            Broken::Status(status) => {
                let (transient, meaning) = meaning(&status);
                let reason = format!("{place} {meaning} (etcd: {})", said(&status));
                match transient {
                    true => Error::transient(STORE, reason),
                    false => Error::permanent(STORE, reason),
                }
                .into()
            }
            Broken::Late => Error::transient(STORE, format!("{place}: no answer within {CALL_LIMIT:?}")).into(),
            Broken::Error(error) => Failed::Because(error),
        }
    }
}

/// What proves who asks.
type Stamp = Option<MetadataValue<Ascii>>;

async fn grpc(channel: &Channel) -> Result<Grpc<Channel>, Broken> {
    // A list of keys may be long.
    let mut grpc = Grpc::new(channel.clone()).max_decoding_message_size(usize::MAX);
    grpc.ready().await.map_err(|error| Broken::Status(Status::from_error(error.into())))?;
    Ok(grpc)
}

/// A member that has lost its leader is to say so at once, instead of waiting for another.
fn stamped<R>(request: R, token: Stamp) -> tonic::Request<R> {
    let mut request = tonic::Request::new(request);
    request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
    if let Some(token) = token {
        request.metadata_mut().insert("token", token);
    }
    request
}

/// One connection at a time, for one kind of call.
#[derive(Default)]
pub(super) struct Lane {
    state: Mutex<LaneState>,
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct LaneState {
    channel: Option<Channel>,
    /// How many connections there were.
    number: u64,
    next: usize,
}

impl Lane {
    fn state(&self) -> MutexGuard<'_, LaneState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wire(&self) -> Option<Wire<'_>> {
        let state = self.state();
        let channel = state.channel.clone()?;
        Some(Wire { lane: self, channel, number: state.number, works: false })
    }

    fn set(&self, channel: Channel) -> Wire<'_> {
        let mut state = self.state();
        state.channel = Some(channel.clone());
        state.number += 1;
        Wire { lane: self, channel, number: state.number, works: false }
    }

    /// Counted before it is tried: if the attempt is given up, the next one goes to another.
    fn next_endpoint(&self, count: usize) -> usize {
        let mut state = self.state();
        let next = state.next;
        state.next = (next + 1) % count;
        next
    }
}

/// A lane's connection during a call. If it is dropped without a word that it works, nobody uses it again.
struct Wire<'a> {
    lane: &'a Lane,
    channel: Channel,
    number: u64,
    works: bool,
}

impl Wire<'_> {
    fn judge(&mut self, broken: &Broken) {
        self.works = matches!(broken, Broken::Status(status) if is_answer(status));
    }
}

impl Drop for Wire<'_> {
    fn drop(&mut self) {
        let mut state = self.lane.state();
        if !self.works && state.number == self.number {
            state.channel = None;
        }
    }
}

enum Broken {
    Status(Status),
    Late,
    Error(Error),
}

impl From<Status> for Broken {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

impl From<Error> for Broken {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:***", self.user)
    }
}

/// What an error says, without whose it is.
fn reason(error: &Error) -> String {
    match error {
        Error::Store { reason, .. } => reason.to_string(),
        error => error.to_string(),
    }
}

fn place(endpoint: &Endpoint) -> String {
    let uri = endpoint.uri();
    uri.authority().map_or_else(|| uri.to_string(), ToString::to_string)
}

/// Whether the server itself has spoken, and would say the same again.
fn is_answer(status: &Status) -> bool {
    use Code::{
        AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, OutOfRange, PermissionDenied, ResourceExhausted,
        Unauthenticated, Unimplemented,
    };
    let answers = [
        AlreadyExists,
        FailedPrecondition,
        InvalidArgument,
        NotFound,
        OutOfRange,
        PermissionDenied,
        ResourceExhausted,
        Unauthenticated,
        Unimplemented,
    ];
    answers.contains(&status.code())
}

fn is_no_lease(status: &Status) -> bool {
    status.code() == Code::NotFound && status.message().contains("lease not found")
}

fn is_token_stale(status: &Status) -> bool {
    status.message().contains("invalid auth token") || status.message().contains("revision of auth store is old")
}

/// Whether a retry can help, and what a server's word means to somebody who only wanted a lock.
fn meaning(status: &Status) -> (bool, &'static str) {
    let message = status.message();
    let says = |part: &str| message.contains(part);
    match status.code() {
        Code::InvalidArgument if says("authentication failed") => (false, "refuses the user or the password"),
        Code::InvalidArgument if says("user name is empty") => {
            (false, "wants a user and a password: write etcd://USER:PASSWORD@…")
        }
        Code::FailedPrecondition if says("authentication is not enabled") => {
            (false, "has no users: turn authentication on, or leave user and password out")
        }
        Code::PermissionDenied => (false, "does not give this user the right: grant it readwrite on the prefix"),
        Code::ResourceExhausted if says("space exceeded") => {
            (false, "is full: compact and defragment it, and disarm its alarm; until then it grants nothing")
        }
        Code::InvalidArgument if says("request is too large") => {
            (false, "takes no request of this size: raise its --max-request-bytes, or attach less data")
        }
        Code::InvalidArgument if says("too many operations") => {
            (false, "takes fewer than 128 operations at a time: raise its --max-txn-ops")
        }
        Code::ResourceExhausted => (true, "is busy"),
        _ if is_answer(status) => (false, "refused"),
        _ => (true, "could not be asked"),
    }
}

fn said(status: &Status) -> String {
    match status.source() {
        Some(source) => told(source),
        None => status.message().to_owned(),
    }
}

/// An error with its causes, each said once.
pub(super) fn told(error: &(dyn StdError + 'static)) -> String {
    let mut parts = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let said = error.to_string();
        // What wraps an error often repeats it.
        if !parts.iter().any(|part: &String| part.contains(&said)) {
            parts.push(said);
        }
        next = error.source();
    }
    parts.join(": ")
}

/// A certificate that was refused is invalid data to the driver; it is not a matter of trying again.
fn is_tls(error: &(dyn StdError + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let io = error.downcast_ref::<std::io::Error>();
        if io.is_some_and(|io| io.kind() == std::io::ErrorKind::InvalidData) {
            return true;
        }
        next = error.source();
    }
    false
}
