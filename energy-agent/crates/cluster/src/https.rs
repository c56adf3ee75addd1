//! Clients of servers that may want TLS and a login: what agents and Prometheus are asked by.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use energy_files::config_file::{self, MAX_BYTES};
use hyper::http::HeaderValue;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

/// What is trusted, and what the client shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientTls {
    /// Certificates (PEM) of the authority; without it there is no TLS.
    pub authority: Option<PathBuf>,
    /// Certificate and private key (PEM) of the client.
    pub own: Option<(PathBuf, PathBuf)>,
    /// The name that the server's certificate has to have, in place of its address.
    pub server_name: Option<String>,
}

/// Who asks; the file is read anew from time to time, so that it can be replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HttpLogin {
    Basic { user: String, password_file: PathBuf },
    Bearer { token_file: PathBuf },
}

/// A connector for `http://` and, with an authority, for `https://`.
///
/// # Errors
/// For people: a file that is not there or does not hold what it should.
pub(crate) fn connector(tls: &ClientTls) -> Result<HttpsConnector<HttpConnector>, String> {
    let mut roots = RootCertStore::empty();
    if let Some(file) = &tls.authority {
        for certificate in certificates(file)? {
            roots.add(certificate).map_err(|_| format!("{}: a certificate that cannot be used", file.display()))?;
        }
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS: {error}"))?
        .with_root_certificates(roots);
    let config = match &tls.own {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            // What the library says of it repeats a line.
            let private = PrivateKeyDer::from_pem_slice(&read(key)?);
            let private = private.map_err(|_| format!("{}: no private key in PEM", key.display()))?;
            let chain = certificates(certificate)?;
            let unfit = |_| format!("{} and {} do not belong together", certificate.display(), key.display());
            builder.with_client_auth_cert(chain, private).map_err(unfit)?
        }
    };
    let builder = HttpsConnectorBuilder::new().with_tls_config(config).https_or_http();
    let builder = match &tls.server_name {
        None => builder,
        Some(name) => {
            let name = ServerName::try_from(name.clone()).map_err(|_| format!("{name:?} is no name of a server"))?;
            builder.with_server_name_resolver(FixedServerNameResolver::new(name))
        }
    };
    let mut http = HttpConnector::new();
    http.set_nodelay(true);
    http.enforce_http(false);
    http.set_connect_timeout(Some(Duration::from_secs(2)));
    Ok(builder.enable_http1().wrap_connector(http))
}

/// Whether the handshake failed: rustls' error lies within that of an I/O.
pub(crate) fn is_of_tls(error: &(dyn Error + 'static)) -> bool {
    let within = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    let is_ours = |error: &(dyn Error + 'static)| error.is::<rustls::Error>();
    is_ours(error) || within.is_some_and(|inner| is_of_tls(inner)) || error.source().is_some_and(is_of_tls)
}

/// An error with those below it.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut below = error.source();
    while let Some(cause) = below {
        let more = cause.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        below = cause.source();
    }
    text
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(file)?).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(format!("{}: no certificate in PEM", file.display())),
    }
}

impl HttpLogin {
    /// The value of the header Authorization.
    ///
    /// # Errors
    /// For people: why the file cannot be used.
    pub fn header(&self) -> Result<HeaderValue, String> {
        let (file, text) = match self {
            Self::Basic { user, password_file } => {
                let secret = read(password_file)?;
                let login = [user.as_bytes(), b":", line(&secret)].concat();
                (password_file, format!("Basic {}", STANDARD.encode(login)))
            }
            Self::Bearer { token_file } => {
                let secret = read(token_file)?;
                (token_file, format!("Bearer {}", String::from_utf8_lossy(line(&secret))))
            }
        };
        let mut value =
            HeaderValue::try_from(text).map_err(|_| format!("{}: what is in it is no token", file.display()))?;
        value.set_sensitive(true);
        Ok(value)
    }
}

/// Without the line break at its end.
fn line(text: &[u8]) -> &[u8] {
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    text.strip_suffix(b"\r").unwrap_or(text)
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    config_file::bytes(file, MAX_BYTES).map_err(|fault| format!("{}: {fault}", file.display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests panic")]

    use std::fs;

    use super::*;

    #[test]
    fn a_login_is_read_from_its_file_without_the_line_break() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secret");
        fs::write(&file, "s3cret\r\n").unwrap();
        let basic = HttpLogin::Basic { user: "prom".to_owned(), password_file: file.clone() };
        // printf prom:s3cret | base64
        assert_eq!(basic.header().unwrap(), "Basic cHJvbTpzM2NyZXQ=");
        assert_eq!(HttpLogin::Bearer { token_file: file.clone() }.header().unwrap(), "Bearer s3cret");
        fs::write(&file, "a\nb").unwrap();
        let error = HttpLogin::Bearer { token_file: file.clone() }.header().unwrap_err();
        assert_eq!(error, format!("{}: what is in it is no token", file.display()));
    }

    #[test]
    fn files_that_cannot_be_used_are_named_and_not_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.pem");
        let tls = ClientTls { authority: Some(file.clone()), ..ClientTls::default() };
        assert!(connector(&tls).is_err_and(|error| error.starts_with(&file.display().to_string())));
        fs::write(&file, "secret").unwrap();
        assert_eq!(connector(&tls).unwrap_err(), format!("{}: no certificate in PEM", file.display()));
        let named = ClientTls { server_name: Some("a b".to_owned()), ..ClientTls::default() };
        assert_eq!(connector(&named).unwrap_err(), "\"a b\" is no name of a server");
    }
}
