//! The client by which the commands ask an agent or a Prometheus server: plain or with TLS, as anybody or as a user.

use std::path::{Path, PathBuf};
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

/// How a command says who asks.
pub(crate) enum Authorization {
    Nobody,
    /// The value of the header.
    Basic(String),
    /// The file with the token.
    Bearer(PathBuf),
}

impl Authorization {
    /// # Errors
    /// When the file with the password or the token cannot be used.
    pub(crate) fn of(login: &Login) -> Result<Self> {
        if let Some(file) = &login.token_file {
            let bearer = Self::Bearer(file.clone());
            return bearer.header().map(|_| bearer);
        }
        let (Some(user), Some(file)) = (&login.username, &login.password_file) else { return Ok(Self::Nobody) };
        ensure!(!user.contains(':'), "--basic-auth.username {user:?}: a name cannot have a colon");
        let password = read(file)?;
        let secret = [user.as_bytes(), b":", line(&password)].concat();
        Ok(Self::Basic(format!("Basic {}", STANDARD.encode(secret))))
    }

    /// The value of the header Authorization now.
    ///
    /// # Errors
    /// When the file with the token cannot be read, or holds none.
    pub(crate) fn header(&self) -> Result<Option<String>> {
        let file = match self {
            Self::Nobody => return Ok(None),
            Self::Basic(header) => return Ok(Some(header.clone())),
            Self::Bearer(file) => file,
        };
        let bytes = read(file)?;
        let token = line(&bytes);
        // RFC 6750 allows fewer characters still; none of these ends the header.
        let fits = !token.is_empty() && token.iter().all(u8::is_ascii_graphic);
        ensure!(fits, "no bearer token in {}: expected one line without blanks", file.display());
        Ok(Some(format!("Bearer {}", String::from_utf8_lossy(token))))
    }
}

/// The content of a file without the line break at its end.
fn line(bytes: &[u8]) -> &[u8] {
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    bytes.strip_suffix(b"\r").unwrap_or(bytes)
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
