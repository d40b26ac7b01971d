//! The stores that the tests run on: what each needs on the machine, and how its servers are started.

use std::any::Any;
use std::ops::Deref;

use anyhow::{Context, Result};
use xtask::services::{Etcd, EtcdCluster, MariaDb, MongoDb, PgBouncer, Postgres, Redis, Server};
use xtask::tools::Tool;

/// A store that the tests run on.
pub struct Store {
    /// As `TENURE_TEST_REQUIRE` lists it.
    pub name: &'static str,
    /// What it needs on the machine.
    tools: &'static [&'static [Tool]],
    /// The variables by which tests find its servers.
    variables: &'static [&'static str],
    /// Starts its servers, one for each variable.
    start: fn() -> Result<Vec<Running>>,
}

/// A server, or several that are one store, until it is dropped.
struct Running {
    url: String,
    _servers: Box<dyn Any>,
}

impl Running {
    fn one(server: impl Deref<Target = Server> + 'static) -> Self {
        Self { url: server.url(), _servers: Box::new(server) }
    }
}

/// A server that tests find by a variable.
pub struct Service {
    pub variable: &'static str,
    /// Whether the variable is to be set; else the server is here for another's sake.
    pub wanted: bool,
    server: Running,
}

/// The bundled SQLite is compiled from C.
const C_COMPILER: Tool = Tool { command: "cc", package: "gcc" };

pub const STORES: &[Store] = &[
    Store { name: "memory", tools: &[], variables: &[], start: no_server },
    Store { name: "sqlite", tools: &[&[C_COMPILER]], variables: &[], start: no_server },
    Store {
        name: "postgres",
        tools: &[Postgres::TOOLS, PgBouncer::TOOLS],
        variables: &["TENURE_TEST_PGBOUNCER", "TENURE_TEST_POSTGRES"],
        start: || {
            let postgres = Postgres::start()?;
            Ok(vec![Running::one(PgBouncer::start(&postgres)?), Running::one(postgres)])
        },
    },
    Store {
        name: "mysql",
        tools: &[MariaDb::TOOLS],
        variables: &["TENURE_TEST_MYSQL"],
        start: || Ok(vec![Running::one(MariaDb::start()?)]),
    },
    Store {
        name: "etcd",
        tools: &[Etcd::TOOLS],
        variables: &["TENURE_TEST_ETCD"],
        start: || {
            let cluster = EtcdCluster::start()?;
            Ok(vec![Running { url: cluster.url(), _servers: Box::new(cluster) }])
        },
    },
    Store {
        name: "mongodb",
        tools: &[MongoDb::PACKAGES, Postgres::TOOLS],
        variables: &["TENURE_TEST_MONGODB"],
        start: || Ok(vec![Running::one(MongoDb::start()?)]),
    },
    Store {
        name: "redis",
        tools: &[Redis::TOOLS],
        variables: &["TENURE_TEST_REDIS_REPLICATED", "TENURE_TEST_REDIS_QUORUM", "TENURE_TEST_REDIS"],
        start: redis,
    },
];

/// A primary with a replica, five that form a quorum, and the first of the five again.
fn redis() -> Result<Vec<Running>> {
    let primary = Redis::start()?;
    let replica = Redis::start_replica(&primary)?;
    let replicated = format!("{}?tenure.wait_replicas=1", primary.url());
    let five = (0..5).map(|_| Redis::start()).collect::<Result<Vec<_>>>()?;
    let hosts: Vec<_> = five.iter().map(|redis| format!("127.0.0.1:{}", redis.port())).collect();
    let first = five[0].url();
    // A prefix of its own, as the first of them also serves alone.
    let quorum = format!("redis+quorum://{}?tenure.prefix=quorum", hosts.join(","));
    Ok(vec![
        Running { url: replicated, _servers: Box::new((primary, replica)) },
        Running { url: quorum, _servers: Box::new(five) },
        Running { url: first, _servers: Box::new(()) },
    ])
}

fn no_server() -> Result<Vec<Running>> {
    Ok(Vec::new())
}

/// All that the stores need on the machine.
pub fn tools() -> impl Iterator<Item = &'static Tool> {
    STORES.iter().flat_map(|store| store.tools).copied().flatten()
}

/// Starts the servers of each store of which a variable is wanted.
pub fn start(wanted: impl Fn(&str) -> bool) -> Result<Vec<Service>> {
    let mut services = Vec::new();
    for store in STORES.iter().filter(|store| store.variables.iter().any(|variable| wanted(variable))) {
        eprintln!("xtask: starting {}", store.name);
        let servers = (store.start)().with_context(|| format!("the servers of {}", store.name))?;
        let named = store.variables.iter().zip(servers);
        services.extend(named.map(|(variable, server)| Service { variable, wanted: wanted(variable), server }));
    }
    Ok(services)
}

impl Service {
    pub fn url(&self) -> String {
        self.server.url.clone()
    }
}
