//! Private servers for tests: each on a port, with a folder and processes of its own.
//!
//! Nothing outlives its test: a server stops when its value is dropped, and [keeper.sh](services/keeper.sh) stops it if the
//! process that started it dies instead.

mod certificate;
mod etcd;
mod home;
mod mariadb;
pub(crate) mod mongodb;
mod pgbouncer;
mod port;
mod postgres;
mod processes;
mod redis;
mod server;

pub use etcd::{Etcd, EtcdCluster};
pub use mariadb::MariaDb;
pub use mongodb::MongoDb;
pub use pgbouncer::PgBouncer;
pub use postgres::Postgres;
pub use redis::Redis;
pub use server::Server;
