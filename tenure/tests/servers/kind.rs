//! The kinds of servers, and the SQL in which they differ.

use std::ops::Deref;
use std::path::Path;
use std::sync::OnceLock;

use xtask::services::{Etcd, MariaDb, MongoDb, PgBouncer, Postgres, Redis, Server};
use xtask::tools::Tool;

use super::{ON_ETCD, ON_EVERY_SERVER, ON_MARIADB, ON_MONGODB, ON_POSTGRES, ON_REDIS, ON_SQL, Test};

/// A kind of server, with one that all tests share which don't disturb each other.
pub struct Kind {
    /// As `TENURE_TEST_REQUIRE` lists it.
    pub name: &'static str,
    /// What it needs on the machine.
    pub tools: &'static [Tool],
    /// What it is tested for.
    pub tests: &'static [&'static [Test]],
    /// Whether there is a pooler for it.
    pub has_pooler: bool,
    /// The URL's option for a connection whose bytes can be read on the way.
    pub in_clear: &'static str,
    /// The option to demand that the server proves who it is, and the one for the file of the authority that vouches.
    pub verified: &'static str,
    pub authority: &'static str,
    /// What the request has in it whose reply says what became of a claim.
    pub claim_request: fn(name: &str) -> String,
    start: fn(&[(&str, &str)]) -> Running,
    /// Before the server that it is in front of.
    pooler: OnceLock<PgBouncer>,
    shared: OnceLock<Running>,
    sql: Option<Sql>,
}

/// What is the same in every SQL, said in one of them.
pub struct Sql {
    /// The setting that allows few connections.
    pub few_connections: (&'static str, &'static str),
    /// The server's clock, in microseconds since 1970.
    pub clock: &'static str,
    /// Inserts the row of a free name into a table.
    pub insert: fn(table: &str, name: &str) -> String,
    /// Makes a user with a password, who may connect and nothing else.
    pub make_user: fn(user: &str, password: &str) -> String,
    /// Gives a user a right on a table.
    pub grant: fn(right: &str, table: &str, user: &str) -> String,
}

/// A server that runs until it is dropped.
pub enum Running {
    Postgres(Postgres),
    MariaDb(MariaDb),
    MongoDb(MongoDb),
    Etcd(Etcd),
    Redis(Redis),
}

impl Kind {
    pub fn postgres() -> Self {
        Self {
            name: "postgres",
            tools: Postgres::TOOLS,
            tests: &[ON_EVERY_SERVER, ON_SQL, ON_POSTGRES],
            has_pooler: true,
            in_clear: "sslmode=disable",
            verified: "sslmode=verify-full",
            authority: "sslrootcert",
            claim_request: str::to_owned,
            start: |settings| Running::Postgres(Postgres::start_with(settings).unwrap()),
            pooler: OnceLock::new(),
            shared: OnceLock::new(),
            sql: Some(Sql {
                few_connections: ("max_connections", "14"),
                clock: "select (extract(epoch from clock_timestamp()) * 1000000)::bigint",
                insert: |table, name| {
                    format!(
                        "insert into {table} (name, token, acquired, renewed, expires, first, grace) \
                         values ('{name}', 1, now(), now(), now(), 1, interval '0')"
                    )
                },
                make_user: |user, password| {
                    format!("create role {user} login password '{password}' in role needs_password")
                },
                grant: |right, table, user| format!("grant {right} on {table} to {user}"),
            }),
        }
    }

    pub fn mysql() -> Self {
        Self {
            name: "mysql",
            tools: MariaDb::TOOLS,
            tests: &[ON_EVERY_SERVER, ON_SQL, ON_MARIADB],
            has_pooler: false,
            in_clear: "ssl-mode=DISABLED",
            verified: "ssl-mode=VERIFY_IDENTITY",
            authority: "ssl-ca",
            // The names are sent ahead; new ones are inserted by the second text.
            claim_request: |_| "@tenure_left".into(),
            start: |settings| Running::MariaDb(MariaDb::start_with(settings).unwrap()),
            pooler: OnceLock::new(),
            shared: OnceLock::new(),
            sql: Some(Sql {
                few_connections: ("max_connections", "14"),
                clock: "select timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))",
                insert: |table, name| {
                    format!(
                        "insert into {table} (name, token, acquired, renewed, expires, first, grace) \
                         values ('{name}', 1, utc_timestamp(6), utc_timestamp(6), utc_timestamp(6), 1, 0)"
                    )
                },
                make_user: |user, password| format!("create user {user} identified by '{password}'"),
                grant: |right, table, user| format!("grant {right} on {table} to {user}"),
            }),
        }
    }

    pub fn mongodb() -> Self {
        Self {
            name: "mongodb",
            tools: MongoDb::tools(),
            tests: &[ON_EVERY_SERVER, ON_MONGODB],
            has_pooler: false,
            in_clear: "",
            verified: "tls=true",
            authority: "tlsCAFile",
            claim_request: str::to_owned,
            start: |_| Running::MongoDb(MongoDb::start().unwrap()),
            pooler: OnceLock::new(),
            shared: OnceLock::new(),
            sql: None,
        }
    }

    pub fn redis() -> Self {
        Self {
            name: "redis",
            tools: Redis::TOOLS,
            tests: &[ON_EVERY_SERVER, ON_REDIS],
            has_pooler: false,
            in_clear: "",
            verified: "",
            authority: "tenure.ca_file",
            claim_request: str::to_owned,
            start: |settings| Running::Redis(Redis::start_with(settings).unwrap()),
            pooler: OnceLock::new(),
            shared: OnceLock::new(),
            sql: None,
        }
    }

    /// One member: what takes several is tested on clusters of their own.
    pub fn etcd() -> Self {
        Self {
            name: "etcd",
            tools: Etcd::TOOLS,
            tests: &[ON_EVERY_SERVER, ON_ETCD],
            has_pooler: false,
            in_clear: "tls=false",
            verified: "tls=true",
            authority: "ca",
            claim_request: str::to_owned,
            start: |settings| Running::Etcd(Etcd::start_with(settings).unwrap()),
            pooler: OnceLock::new(),
            shared: OnceLock::new(),
            sql: None,
        }
    }

    /// Of a kind that speaks SQL.
    pub fn sql(&self) -> &Sql {
        self.sql.as_ref().unwrap()
    }

    /// A server for tests that don't disturb each other.
    pub fn shared(&self) -> &Running {
        self.shared.get_or_init(|| self.start())
    }

    /// A server of the test's own.
    pub fn start(&self) -> Running {
        self.start_with(&[])
    }

    pub fn start_with(&self, settings: &[(&str, &str)]) -> Running {
        (self.start)(settings)
    }

    /// A pooler in front of the shared server, with fewer connections than tests.
    pub fn pooler(&self) -> &PgBouncer {
        let start = || PgBouncer::start_with(self.shared().postgres(), &[("default_pool_size", "8")]);
        self.pooler.get_or_init(|| start().unwrap())
    }
}

impl Running {
    pub fn postgres(&self) -> &Postgres {
        match self {
            Self::Postgres(postgres) => postgres,
            _ => panic!("this is another server"),
        }
    }

    pub fn etcd(&self) -> &Etcd {
        match self {
            Self::Etcd(etcd) => etcd,
            _ => panic!("this is another server"),
        }
    }

    pub fn redis(&self) -> &Redis {
        match self {
            Self::Redis(redis) => redis,
            _ => panic!("this is another server"),
        }
    }

    /// Its URL, where it speaks TLS.
    pub fn tls_url(&self) -> String {
        match self {
            Self::MongoDb(mongodb) => mongodb.url_at(mongodb.tls_port()),
            Self::Redis(redis) => redis.tls_url(),
            Self::Etcd(etcd) => etcd.tls_url(),
            server => server.url(),
        }
    }

    /// The authority that vouches for its certificate.
    pub fn ca_file(&self) -> &Path {
        match self {
            Self::Postgres(postgres) => postgres.ca_file(),
            Self::MariaDb(mariadb) => mariadb.ca_file(),
            Self::MongoDb(mongodb) => mongodb.ca_file(),
            Self::Etcd(etcd) => etcd.ca_file(),
            Self::Redis(redis) => redis.ca_file(),
        }
    }
}

impl Deref for Running {
    type Target = Server;

    fn deref(&self) -> &Server {
        match self {
            Self::Postgres(postgres) => postgres,
            Self::MariaDb(mariadb) => mariadb,
            Self::MongoDb(mongodb) => mongodb,
            Self::Etcd(etcd) => etcd,
            Self::Redis(redis) => redis,
        }
    }
}
