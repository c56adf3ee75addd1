//! The client by which the commands ask an agent or a Prometheus server: plain or with TLS, as anybody or as a user.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use energy_files::config_file::{self, MAX_BYTES};
use tokio_rustls::rustls::crypto::ring;
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};

use crate::config::Login;

/// Longest time for the page of an agent.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);

/// A client that waits `timeout` at most for an answer.
///
/// # Errors
/// When a file is not there or does not hold what it should.
pub(crate) fn client(login: &Login, timeout: Duration) -> Result<ureq::Agent> {
    let roots = match &login.ca_file {
        Some(file) => RootCerts::new_with_certs(&certificates(file)?),
        None => RootCerts::PlatformVerifier,
    };
    let own = match (&login.cert_file, &login.key_file) {
        (Some(certificate), Some(key)) => {
            // What the library says of it repeats a line.
            let private = PrivateKey::from_pem(&read(key)?).ok();
            let private = private.with_context(|| format!("no private key in PEM in {}", key.display()))?;
            Some(ClientCert::new_with_certs(&certificates(certificate)?, private))
        }
        _ => None,
    };
    let tls = TlsConfig::builder()
        .unversioned_rustls_crypto_provider(Arc::new(ring::default_provider()))
        .root_certs(roots)
        .client_cert(own)
        .build();
    Ok(ureq::Agent::config_builder().timeout_global(Some(timeout)).proxy(None).tls_config(tls).build().new_agent())
}

/// The value of the header Authorization, where there is a user.
///
/// # Errors
/// When the file with the password cannot be read.
pub(crate) fn authorization(login: &Login) -> Result<Option<String>> {
    let (Some(user), Some(file)) = (&login.username, &login.password_file) else { return Ok(None) };
    ensure!(!user.contains(':'), "--basic-auth.username {user:?}: a name cannot have a colon");
    let password = read(file)?;
    let password = password.strip_suffix(b"\n").unwrap_or(&password);
    let password = password.strip_suffix(b"\r").unwrap_or(password);
    Ok(Some(format!("Basic {}", STANDARD.encode([user.as_bytes(), b":", password].concat()))))
}

/// The connection failed for a reason of TLS.
pub(crate) fn is_of_tls(error: &ureq::Error) -> bool {
    match error {
        ureq::Error::Io(error) => error.get_ref().is_some_and(|inner| inner.is::<tokio_rustls::rustls::Error>()),
        other => matches!(other, ureq::Error::Rustls(_) | ureq::Error::Tls(_)),
    }
}

fn certificates(file: &Path) -> Result<Vec<Certificate<'static>>> {
    let mut found = Vec::new();
    for item in parse_pem(&read(file)?) {
        let item = item.ok().with_context(|| format!("a broken PEM in {}", file.display()))?;
        if let PemItem::Certificate(certificate) = item {
            found.push(certificate);
        }
    }
    ensure!(!found.is_empty(), "no certificate in PEM in {}", file.display());
    Ok(found)
}

fn read(file: &Path) -> Result<Vec<u8>> {
    config_file::bytes(file, MAX_BYTES).with_context(|| format!("reading {}", file.display()))
}
