//! What a server, or the lack of one, says to those who may not or can't connect.

use std::collections::BTreeSet;
use std::net::TcpListener;

use tenure::Error;
use xtask::proxy::Proxy;

use super::kind::Kind;
use super::support::{Raw, SECOND, as_user, assert_is_transient, connect, soon, unique, with, within};

/// Each in other words, and only those that may pass as such.
pub async fn each_refusal_says_what_is_wrong_and_no_password(kind: &Kind) {
    let server = kind.shared();
    let (user, password, wrong) = (unique("user"), unique("password"), unique("wrong"));
    Raw::to(&server.url()).await.run((kind.sql().make_user)(&user, &password)).await;
    let no_database = server.url().replace("/tenure", "/nowhere");
    let (closed, nobody) = (server.url_at(closed_port()), server.url().replace("127.0.0.1", "nobody.invalid"));
    let mut said = BTreeSet::new();
    for (url, transient, says) in [
        (as_user(&server.url(), &user, &wrong), false, "password"),
        (as_user(&no_database, &user, &password), false, "nowhere"),
        (as_user(&closed, &user, &password), true, "refused"),
        (as_user(&nobody, &user, &password), true, "nobody.invalid"),
    ] {
        let error = refusal(&url).await;
        let whole = format!("{error} {error:?}");
        assert!(![&password, &wrong].into_iter().any(|secret| whole.contains(secret)), "a password is in {whole}");
        assert_eq!(error.is_transient(), transient, "{error:?}");
        assert!(error.to_string().contains(says), "{error} doesn't say {says:?}");
        said.insert(error.to_string());
    }
    assert_eq!(said.len(), 4, "{said:#?}");
}

pub async fn refusal(url: &str) -> Error {
    let error = soon("a refusal", tenure::connect(url)).await.unwrap_err();
    assert!(matches!(error, Error::Store { .. }), "{error:?}");
    error
}

/// A port that nobody listens at.
pub fn closed_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Connecting has a limit of its own.
pub async fn a_server_that_never_answers_is_told(kind: &Kind) {
    let proxy = Proxy::to(kind.shared().port()).unwrap();
    proxy.black_hole();
    let connecting = tenure::connect(kind.shared().url_at(proxy.port()));
    let error = within(20 * SECOND, "connecting into a black hole ends", connecting).await.unwrap_err();
    assert_is_transient(&error);
    assert!(error.to_string().contains("no answer"), "{error}");
}

/// A server that can't prove who it is, is not talked to; with its authority's word, it is.
pub async fn a_refused_certificate_is_told(kind: &Kind) {
    let verified = with(&kind.shared().tls_url(), kind.verified);
    let error = refusal(&verified).await;
    assert!(!error.is_transient(), "{error:?}");
    assert!(error.to_string().contains("TLS"), "{error}");
    let vouched = with(&verified, &format!("{}={}", kind.authority, kind.shared().ca_file().display()));
    let locks = connect(&vouched).await;
    drop(soon("a name over TLS", locks.lock(unique("name"))).await.unwrap());
}
