//! What a URL says of a cluster: `etcd://USER:PASSWORD@HOST:PORT,HOST:PORT?ca=FILE`.

use std::path::PathBuf;

use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use super::STORE;
use super::link::Login;
use crate::error::{Error, Result};
use crate::store::url::{Authority, StoreUrl};

const PORT: u16 = 2379;

/// TLS that a URL may ask for: the authority that vouches for the servers, and what proves who we are.
const OPTIONS: &[&str] = &["tls", "ca", "cert", "key"];

pub(super) struct Address {
    pub endpoints: Vec<Endpoint>,
    pub login: Option<Login>,
    pub tls: Option<Tls>,
}

impl Address {
    pub fn read(url: &StoreUrl) -> Result<Self> {
        url.check_options(OPTIONS)?;
        let Authority { user, password, hosts } = url.authority()?;
        let tls = Tls::read(url)?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let endpoint = |host: &str| {
            let host = if has_port(host) { host.to_owned() } else { format!("{host}:{PORT}") };
            Endpoint::from_shared(format!("{scheme}://{host}"))
                .map_err(|error| url.refuse(format!("has the host {host:?}, which can't be read: {error}")))
        };
        let endpoints = hosts.split(',').filter(|host| !host.is_empty()).map(endpoint).collect::<Result<Vec<_>>>()?;
        if endpoints.is_empty() {
            return Err(url.refuse("names no host: write etcd://HOST:PORT,HOST:PORT"));
        }
        let login = match (user, password) {
            (Some(user), Some(password)) => Some(Login { user, password }),
            (Some(_), None) => return Err(url.refuse("has a user and no password: write etcd://USER:PASSWORD@HOST")),
            _ => None,
        };
        Ok(Self { endpoints, login, tls })
    }
}

/// An IPv6 address has colons of its own, within brackets.
fn has_port(host: &str) -> bool {
    host.rsplit(']').next().is_some_and(|end| end.contains(':'))
}

/// Files, which are read when the store is opened.
pub(super) struct Tls {
    ca: Option<PathBuf>,
    identity: Option<(PathBuf, PathBuf)>,
}

impl Tls {
    fn read(url: &StoreUrl) -> Result<Option<Self>> {
        let file = |name: &str| Ok::<_, Error>(url.option(name)?.map(PathBuf::from));
        let (ca, cert, key) = (file("ca")?, file("cert")?, file("key")?);
        let identity = match (cert, key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => return Err(url.refuse("has only one of cert and key: give both, or none")),
        };
        let wanted = match url.option("tls")?.as_deref() {
            None => ca.is_some() || identity.is_some(),
            Some("true") => true,
            Some("false") if ca.is_none() && identity.is_none() => false,
            Some("false") => return Err(url.refuse("has tls=false and files for TLS: leave one of them out")),
            Some(other) => return Err(url.refuse(format!("has tls={other:?}: write true or false"))),
        };
        Ok(wanted.then_some(Self { ca, identity }))
    }

    /// The endpoints with TLS. Reads files, the machine's own list of authorities among them.
    pub fn secure(&self, endpoints: &[Endpoint]) -> Result<Vec<Endpoint>> {
        let read = |file: &PathBuf| {
            std::fs::read(file).map_err(|error| Error::permanent(STORE, format!("{}: {error}", file.display())))
        };
        let mut config = match &self.ca {
            Some(ca) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(ca)?)),
            None => ClientTlsConfig::new().with_enabled_roots(),
        };
        if let Some((cert, key)) = &self.identity {
            config = config.identity(Identity::from_pem(read(cert)?, read(key)?));
        }
        let secure = |endpoint: &Endpoint| endpoint.clone().tls_config(config.clone());
        let secured: Result<Vec<_>, _> = endpoints.iter().map(secure).collect();
        secured.map_err(|error| Error::permanent(STORE, format!("no TLS: {}", super::link::told(&error))))
    }
}
