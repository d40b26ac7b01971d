//! Servers that are not what a quorum needs.

use xtask::services::Redis;
use xtask::tools;

use super::five::url;
use super::support::{connect, run};

async fn weak(url: &str) -> Vec<String> {
    let findings = connect(url).await.examine().await.unwrap();
    findings.into_iter().filter(|finding| finding.weakens).map(|finding| finding.says).collect()
}

#[test]
fn doctor_tells_what_weakens_a_quorum() {
    if tools::skip("redis", Redis::TOOLS) {
        return;
    }
    let servers: Vec<Redis> = (0..3).map(|_| Redis::start().unwrap()).collect();
    let replica = Redis::start_replica(&servers[0]).unwrap();
    let careless = Redis::start_with(&[("maxmemory", "100mb"), ("maxmemory-policy", "allkeys-lru")]).unwrap();
    run("doctor", async {
        assert_eq!(weak(&url(servers.iter())).await, [""; 0]);

        let even = weak(&format!("{},127.0.0.1:{}", url(servers.iter()), careless.port())).await;
        assert!(even.iter().any(|says| says.contains("4 is even")), "{even:?}");
        assert!(even.iter().any(|says| says.contains("allkeys-lru")), "{even:?}");

        let same =
            format!("redis+quorum://127.0.0.1:{0},localhost:{0},127.0.0.1:{1}", servers[0].port(), servers[1].port());
        let same = weak(&same).await;
        assert!(same.iter().any(|says| says.contains("are one server")), "{same:?}");

        let copied = weak(&url([&servers[0], &replica, &servers[1]].into_iter())).await;
        let told = format!("is a replica of 127.0.0.1:{}", servers[0].port());
        assert!(copied.iter().any(|says| says.contains(&told)), "{copied:?}");

        connect(&url(servers.iter())).await.lock("name").await.unwrap().release().await.unwrap();
        servers[2].restart_empty().unwrap();
        let emptied = weak(&url(servers.iter())).await;
        assert!(emptied.iter().any(|says| says.contains("has restarted, or lost its data")), "{emptied:?}");
    });
}
