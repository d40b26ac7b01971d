//! What is logged has stable targets, levels and fields. One test: the logs of a process go to one place.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::Locks;
use tenure::conformance::{Call, Fault, Faulty};
use tenure::store::memory::MemoryStore;

/// Everything that was logged.
#[derive(Clone, Default)]
struct Logs(Arc<Mutex<Vec<u8>>>);

impl Write for Logs {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Logs {
    /// The lines of one kind, without the time in front.
    fn lines(&self, level: &str, target: &str, message: &str) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        let start = format!("{level} {target}: {message} ");
        text.lines().map(|line| line.trim_start().to_owned()).filter(|line| line.starts_with(&start)).collect()
    }
}

#[tokio::test]
async fn every_step_is_logged_with_its_target_level_and_fields() {
    let logs = Logs::default();
    let writer = logs.clone();
    let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).without_time().with_ansi(false);
    subscriber.with_writer(move || writer.clone()).init();

    let store = Faulty::new(Arc::new(MemoryStore::new()));
    let locks = Locks::on(Arc::new(store.clone())).owner("me").await.unwrap();
    let ttl = Duration::from_secs(2);
    let guard = locks.lock("a").ttl(ttl).rotate_every(Duration::from_millis(200)).await.unwrap();
    assert!(locks.try_lock("a").await.unwrap().is_none());
    let token = guard.token();
    store.answered(Call::Renew, 3).await;
    guard.release().await.unwrap();

    store.always(Call::Renew, Fault::Fail);
    let guard = locks.lock("b").ttl(ttl).await.unwrap();
    guard.lost().await;
    store.always(Call::Release, Fault::Fail);
    drop(guard);
    let guard = locks.lock("c").ttl(ttl).await.unwrap();
    guard.release().await.unwrap_err();

    let fields = |name: &str| format!("name=\"{name}\" owner=\"me\" token={token} store=\"memory\"");
    assert!(logs.lines("DEBUG", "tenure::lock", "acquired")[0].ends_with(&fields("a")));
    assert!(logs.lines("DEBUG", "tenure::lock", "contended")[0].contains("name=\"a\" owner=\"me\" store=\"memory\""));
    assert!(logs.lines("DEBUG", "tenure::lock", "released")[0].contains("name=\"a\" owner=\"me\" token="));
    for (level, target, message) in [
        ("TRACE", "tenure::renew", "renewed"),
        ("DEBUG", "tenure::renew", "token rotated"),
        ("WARN", "tenure::renew", "renewal failed"),
        ("WARN", "tenure::renew", "at risk"),
        ("ERROR", "tenure::loss", "lost"),
        ("ERROR", "tenure::loss", "not released"),
    ] {
        let lines = logs.lines(level, target, message);
        assert!(!lines.is_empty(), "{level} {target}: {message}");
        assert!(lines[0].contains(" owner=\"me\" token=") && lines[0].contains(" store=\"memory\""), "{lines:?}");
    }
}
