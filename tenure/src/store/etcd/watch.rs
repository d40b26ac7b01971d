//! Releases and expiries that etcd tells of: a watch for deleted keys, on a connection of its own.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::sleep;
use tonic::Streaming;

use super::cluster::Cluster;
use super::messages::{WatchCreate, WatchRequest, WatchResponse};
use crate::record::Name;
use crate::store::{Change, Changes};

/// Between attempts to connect anew.
const RETRY: Duration = Duration::from_millis(250);

/// The filter that leaves out what is put.
const NO_PUT: i32 = 0;

pub(super) struct Hints {
    cluster: Arc<Cluster>,
    stream: Option<Streaming<WatchResponse>>,
    /// Which endpoint is next.
    endpoint: usize,
    freed: std::vec::IntoIter<Name>,
}

impl Hints {
    pub fn new(cluster: Arc<Cluster>) -> Self {
        Self { cluster, stream: None, endpoint: 0, freed: Vec::new().into_iter() }
    }

    async fn connect(&mut self) {
        let keys = &self.cluster.keys;
        let create = WatchCreate { key: keys.name(""), range_end: keys.end_of_names(), filters: vec![NO_PUT] };
        let watching = self.cluster.link.watch(self.endpoint, WatchRequest { create: Some(create) });
        self.endpoint += 1;
        match watching.await {
            Ok(stream) => self.stream = Some(stream),
            Err(error) => {
                tracing::debug!(target: "tenure::hints", %error, "no watch");
                sleep(RETRY).await;
            }
        }
    }

    /// What was heard. From the moment when the watch is there, nothing is missed while it lasts.
    fn take(&mut self, heard: WatchResponse) -> Option<Change> {
        let names = heard.events.into_iter().filter_map(|event| self.cluster.keys.read(&event.kv?.key));
        self.freed = names.collect::<Vec<_>>().into_iter();
        heard.created.then_some(Change::LostTrack)
    }
}

#[async_trait]
impl Changes for Hints {
    async fn next(&mut self) -> Change {
        loop {
            if let Some(name) = self.freed.next() {
                return Change::Freed(name);
            }
            let Some(stream) = &mut self.stream else {
                self.connect().await;
                continue;
            };
            match stream.message().await {
                Ok(Some(heard)) if !heard.canceled => {
                    if let Some(change) = self.take(heard) {
                        return change;
                    }
                }
                _ => self.stream = None,
            }
        }
    }
}
