//! Where servers are: URLs that name one or several, TLS, and where a cluster sends us instead.

use std::path::PathBuf;
use std::sync::Once;

use redis::{Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, ProtocolVersion, TlsCertificates};

use super::STORE;
use crate::error::{Error, Result};
use crate::store::url::StoreUrl;

/// The driver's options that a URL may have. We always speak RESP3, whichever is asked for.
const OPTIONS: &[&str] = &["protocol"];

/// The servers that a URL names, before and without any I/O: `redis://USER:PASSWORD@HOST:PORT,HOST:PORT/DATABASE`. What
/// stands before the first host and behind the last is the same for all.
pub(in crate::store) fn servers(url: &StoreUrl) -> Result<Vec<ConnectionInfo>> {
    url.check_options(OPTIONS)?;
    let whole = url.for_driver();
    let bad = |why: &str| url.refuse(format!("can't be read: {why}"));
    let (scheme, rest) = whole.split_once("://").ok_or_else(|| bad("write redis://HOST:PORT"))?;
    if rest.contains('#') {
        return Err(url.refuse("has a fragment, from # on: remove it, or write a # in a password as %23"));
    }
    let (user, rest) = rest.rsplit_once('@').map_or((None, rest), |(user, rest)| (Some(user), rest));
    let (hosts, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let secure = scheme.split('+').next().is_some_and(|scheme| scheme.ends_with('s') && scheme != "redis");
    let scheme = if secure { "rediss" } else { "redis" };
    let user = user.map_or_else(String::new, |user| format!("{user}@"));
    let server = |host: &str| {
        let info: ConnectionInfo = format!("{scheme}://{user}{host}{path}")
            .parse()
            .map_err(|error: redis::RedisError| bad(&error.to_string()))?;
        Ok(ours(info))
    };
    hosts.split(',').map(server).collect()
}

/// The same server, as we talk to it.
pub(in crate::store) fn ours(info: ConnectionInfo) -> ConnectionInfo {
    let redis = info
        .redis_settings()
        .clone()
        .set_protocol(ProtocolVersion::RESP3)
        .set_lib_name("tenure", env!("CARGO_PKG_VERSION"));
    let tcp = info.tcp_settings().clone().set_nodelay(true);
    info.set_redis_settings(redis).set_tcp_settings(tcp)
}

/// The server that a cluster names instead of this one: `HOST:PORT`, where the host may be missing if it is the same.
pub(super) fn moved(from: &ConnectionInfo, to: &str) -> Option<ConnectionInfo> {
    let (host, port) = to.rsplit_once(':')?;
    let port = port.parse().ok()?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let named = |old: &String| if host.is_empty() || host == "?" { old.clone() } else { host.to_owned() };
    let addr = match from.addr() {
        ConnectionAddr::Tcp(old, _) => ConnectionAddr::Tcp(named(old), port),
        ConnectionAddr::TcpTls { host: old, insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host: named(old), port, insecure: *insecure, tls_params: tls_params.clone() }
        }
        _ => return None,
    };
    Some(from.clone().set_addr(addr))
}

/// The files that TLS needs, if the machine's own authorities and no client's certificate won't do.
#[derive(Clone, Debug, Default)]
pub(in crate::store) struct TlsFiles {
    authority: Option<PathBuf>,
    client: Option<(PathBuf, PathBuf)>,
}

impl TlsFiles {
    pub fn of(url: &StoreUrl) -> Result<Self> {
        let file = |setting| url.setting(setting).map(PathBuf::from);
        let client = match (file("cert_file"), file("key_file")) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some((certificate, key)),
            _ => return Err(url.refuse("has one of tenure.cert_file and tenure.key_file: give both")),
        };
        let files = Self { authority: file("ca_file"), client };
        let used = files.authority.is_some() || files.client.is_some();
        if used && servers(url)?.iter().any(|server| !matches!(server.addr(), ConnectionAddr::TcpTls { .. })) {
            return Err(url.refuse("has files for TLS, and no TLS: begin with rediss"));
        }
        Ok(files)
    }

    /// A client of a server. The files are read each time: they may have been renewed.
    pub(super) fn client(&self, server: &ConnectionInfo) -> Result<Client> {
        let read = |path: &PathBuf| {
            std::fs::read(path).map_err(|error| Error::permanent(STORE, format!("{}: {error}", path.display())))
        };
        if matches!(server.addr(), ConnectionAddr::TcpTls { .. }) {
            provide_cryptography();
        }
        let made = if matches!(server.addr(), ConnectionAddr::TcpTls { tls_params: None, .. }) {
            let root_cert = self.authority.as_ref().map(read).transpose()?;
            let client_tls = match &self.client {
                Some((certificate, key)) => {
                    Some(ClientTlsConfig { client_cert: read(certificate)?, client_key: read(key)? })
                }
                None => None,
            };
            Client::build_with_tls(server.clone(), TlsCertificates { client_tls, root_cert })
        } else {
            Client::open(server.clone())
        };
        made.map_err(|error| Error::permanent(STORE, error.to_string()))
    }
}

/// rustls panics without a default, or with two to choose from.
fn provide_cryptography() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // An error is a provider that is there already.
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
}
