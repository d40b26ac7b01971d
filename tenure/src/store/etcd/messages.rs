//! The messages of etcd's API that are needed here, with the fields that are needed: the numbers are those of its `rpc.proto`.
//! Written by hand, since making them from that file takes a compiler that a fresh machine lacks.

use prost::{Enumeration, Message, Oneof};

/// A message, and the method that it is sent to.
pub(super) trait Request: Message + Clone + 'static {
    const METHOD: &'static str;
    type Answer: Message + Default + 'static;
}

macro_rules! methods {
    ($($request:ident => $answer:ident at $method:literal)+) => {
        $(impl Request for $request {
            const METHOD: &'static str = concat!("/etcdserverpb.", $method);
            type Answer = $answer;
        })+
    };
}

methods! {
    RangeRequest => RangeResponse at "KV/Range"
    TxnRequest => TxnResponse at "KV/Txn"
    LeaseGrantRequest => LeaseGrantResponse at "Lease/LeaseGrant"
    LeaseRevokeRequest => LeaseRevokeResponse at "Lease/LeaseRevoke"
    LeaseKeepAliveRequest => LeaseKeepAliveResponse at "Lease/LeaseKeepAlive"
    LeaseTimeToLiveRequest => LeaseTimeToLiveResponse at "Lease/LeaseTimeToLive"
    WatchRequest => WatchResponse at "Watch/Watch"
    AuthenticateRequest => AuthenticateResponse at "Auth/Authenticate"
    StatusRequest => StatusResponse at "Maintenance/Status"
    MemberListRequest => MemberListResponse at "Cluster/MemberList"
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Header {
    #[prost(int64, tag = "3")]
    pub revision: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(int64, tag = "2")]
    pub create_revision: i64,
    #[prost(int64, tag = "3")]
    pub mod_revision: i64,
    #[prost(bytes = "vec", tag = "5")]
    pub value: Vec<u8>,
    #[prost(int64, tag = "6")]
    pub lease: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub limit: i64,
    #[prost(bool, tag = "9")]
    pub count_only: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RangeResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    #[prost(message, repeated, tag = "2")]
    pub kvs: Vec<KeyValue>,
    #[prost(int64, tag = "4")]
    pub count: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub lease: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PutResponse {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DeleteRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DeleteResponse {}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(super) enum Target {
    /// What is meant if nothing is said.
    Version = 0,
    Create = 1,
    Modified = 2,
    Value = 3,
    Lease = 4,
}

/// A condition: that a key's property is equal to something.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Compare {
    #[prost(enumeration = "Target", tag = "2")]
    pub target: i32,
    #[prost(bytes = "vec", tag = "3")]
    pub key: Vec<u8>,
    #[prost(oneof = "Against", tags = "5, 6, 7, 8")]
    pub against: Option<Against>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Against {
    #[prost(int64, tag = "5")]
    Created(i64),
    #[prost(int64, tag = "6")]
    Modified(i64),
    #[prost(bytes, tag = "7")]
    Value(Vec<u8>),
    #[prost(int64, tag = "8")]
    Lease(i64),
}

impl Compare {
    /// A key that does not exist was created at revision 0.
    pub fn new(key: &[u8], against: Against) -> Self {
        let target = match against {
            Against::Created(_) => Target::Create,
            Against::Modified(_) => Target::Modified,
            Against::Value(_) => Target::Value,
            Against::Lease(_) => Target::Lease,
        };
        Self { target: target.into(), key: key.into(), against: Some(against) }
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Op {
    #[prost(oneof = "Todo", tags = "1, 2, 3, 4")]
    pub todo: Option<Todo>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Todo {
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    #[prost(message, tag = "2")]
    Put(PutRequest),
    #[prost(message, tag = "3")]
    Delete(DeleteRequest),
    #[prost(message, tag = "4")]
    Txn(TxnRequest),
}

impl Op {
    pub fn get(key: &[u8]) -> Self {
        Self::new(Todo::Range(RangeRequest { key: key.into(), ..RangeRequest::default() }))
    }

    pub fn put(key: &[u8], value: Vec<u8>, lease: i64) -> Self {
        Self::new(Todo::Put(PutRequest { key: key.into(), value, lease }))
    }

    pub fn delete(key: &[u8]) -> Self {
        Self::new(Todo::Delete(DeleteRequest { key: key.into() }))
    }

    pub fn when(compare: Vec<Compare>, success: Vec<Op>, failure: Vec<Op>) -> Self {
        Self::new(Todo::Txn(TxnRequest { compare, success, failure }))
    }

    fn new(todo: Todo) -> Self {
        Self { todo: Some(todo) }
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    pub compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub success: Vec<Op>,
    #[prost(message, repeated, tag = "3")]
    pub failure: Vec<Op>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct OpAnswer {
    #[prost(oneof = "Done", tags = "1, 2, 3, 4")]
    pub done: Option<Done>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Done {
    #[prost(message, tag = "1")]
    Range(RangeResponse),
    #[prost(message, tag = "2")]
    Put(PutResponse),
    #[prost(message, tag = "3")]
    Delete(DeleteResponse),
    #[prost(message, tag = "4")]
    Txn(TxnResponse),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TxnResponse {
    /// That of a nested transaction has no revision.
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    #[prost(bool, tag = "2")]
    pub succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    pub responses: Vec<OpAnswer>,
}

impl TxnResponse {
    /// What each of the nested transactions did.
    pub fn parts(self) -> impl Iterator<Item = TxnResponse> {
        self.responses.into_iter().filter_map(|answer| match answer.done {
            Some(Done::Txn(part)) => Some(part),
            _ => None,
        })
    }

    /// The keys that were looked for.
    pub fn found(self) -> impl Iterator<Item = Option<KeyValue>> {
        self.responses.into_iter().filter_map(|answer| match answer.done {
            Some(Done::Range(range)) => Some(range.kvs.into_iter().next()),
            _ => None,
        })
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseGrantRequest {
    #[prost(int64, tag = "1")]
    pub ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseGrantResponse {
    #[prost(int64, tag = "2")]
    pub id: i64,
    #[prost(int64, tag = "3")]
    pub ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseRevokeRequest {
    #[prost(int64, tag = "1")]
    pub id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseRevokeResponse {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseKeepAliveRequest {
    #[prost(int64, tag = "1")]
    pub id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseKeepAliveResponse {
    /// Zero if there is no such lease.
    #[prost(int64, tag = "3")]
    pub ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseTimeToLiveRequest {
    #[prost(int64, tag = "1")]
    pub id: i64,
    #[prost(bool, tag = "2")]
    pub keys: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseTimeToLiveResponse {
    /// In whole seconds, rounded down; -1 if there is no such lease.
    #[prost(int64, tag = "3")]
    pub ttl: i64,
    #[prost(int64, tag = "4")]
    pub granted: i64,
    #[prost(bytes = "vec", repeated, tag = "5")]
    pub keys: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchRequest {
    #[prost(message, optional, tag = "1")]
    pub create: Option<WatchCreate>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchCreate {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
    /// Zero leaves puts out.
    #[prost(int32, repeated, tag = "5")]
    pub filters: Vec<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchResponse {
    #[prost(bool, tag = "3")]
    pub created: bool,
    #[prost(bool, tag = "4")]
    pub canceled: bool,
    #[prost(message, repeated, tag = "11")]
    pub events: Vec<Event>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Event {
    #[prost(message, optional, tag = "2")]
    pub kv: Option<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AuthenticateRequest {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub password: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AuthenticateResponse {
    #[prost(string, tag = "2")]
    pub token: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct StatusRequest {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct StatusResponse {
    #[prost(string, tag = "2")]
    pub version: String,
    #[prost(int64, tag = "3")]
    pub db_size: i64,
    #[prost(uint64, tag = "4")]
    pub leader: u64,
    #[prost(string, repeated, tag = "8")]
    pub errors: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct MemberListRequest {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct MemberListResponse {
    #[prost(message, repeated, tag = "2")]
    pub members: Vec<Member>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Member {
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(bool, tag = "5")]
    pub is_learner: bool,
}
