//! A certificate for `localhost`, and the authority that vouches for it: TLS libraries refuse a server whose certificate is
//! that of an authority.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::home::Home;

/// Nothing of the machine's own settings for `openssl` is used.
const SETTINGS: &str = "\
[req]
distinguished_name = name
[name]
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectAltName = DNS:localhost, IP:127.0.0.1
";

/// The files of a server with TLS.
pub(super) struct Certificate {
    pub(super) authority: PathBuf,
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
}

impl Certificate {
    /// Makes one in the server's folder.
    pub(super) fn make(home: &Home) -> Result<Self> {
        home.write("openssl.cnf", SETTINGS)?;
        let (authority, authority_key) = (home.join("ca.pem"), home.join("ca.key"));
        let (certificate, key) = (home.join("server.pem"), home.join("server.key"));
        sign(home, "authority", &authority, &authority_key, &[])?;
        let by = ["-CA".as_ref(), authority.as_path(), "-CAkey".as_ref(), &authority_key];
        sign(home, "server", &certificate, &key, &by)?;
        // Whatever the umask is: clients of any user are to read it.
        fs::set_permissions(&authority, Permissions::from_mode(0o644))?;
        Ok(Self { authority, certificate, key })
    }
}

/// `openssl` lets only the server's user read the key.
fn sign(home: &Home, role: &str, certificate: &Path, key: &Path, by: &[&Path]) -> Result<()> {
    let mut openssl = home.command("openssl")?;
    openssl.args(["req", "-x509", "-config", "openssl.cnf", "-extensions", role, "-days", "3650"]);
    openssl.args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]);
    openssl.arg("-subj").arg(format!("/CN=tenure test {role}"));
    openssl.arg("-out").arg(certificate).arg("-keyout").arg(key).args(by);
    home.run(&mut openssl)
}
