//! The file of `--web.config.file`, as Prometheus' exporter-toolkit has it: text into what is asked for, strictly.
//!
//! Source: <https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md>. Written by hand because
//! the toolkit is a Go library, and no crate reads its file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use energy_model::nearest::nearest;
use energy_model::printable::cut;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_saphyr::Error;

/// The whole file; an empty one protects nothing.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WebConfigFile {
    pub tls_server_config: Option<TlsServer>,
    pub http_server_config: Option<HttpServer>,
    /// User names with bcrypt hashes of their passwords.
    pub basic_auth_users: Option<BTreeMap<String, String>>,
    rate_limit: Option<IgnoredAny>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TlsServer {
    cert: Option<String>,
    key: Option<String>,
    client_ca: Option<String>,
    cert_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
    client_ca_file: Option<PathBuf>,
    pub client_auth_type: ClientAuth,
    pub client_allowed_sans: Option<Vec<String>>,
    pub min_version: Option<Version>,
    pub max_version: Option<Version>,
    /// Go's names.
    pub cipher_suites: Option<Vec<String>>,
    pub prefer_server_cipher_suites: Option<bool>,
    /// Go's names.
    pub curve_preferences: Option<Vec<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpServer {
    /// Accepted, and of no effect: the pages are served by HTTP/1.1, which every client takes.
    http2: Option<bool>,
    headers: Option<BTreeMap<String, String>>,
}

/// <https://pkg.go.dev/crypto/tls#ClientAuthType>
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum ClientAuth {
    #[default]
    NoClientCert,
    RequestClientCert,
    #[serde(alias = "RequireClientCert")]
    RequireAnyClientCert,
    VerifyClientCertIfGiven,
    RequireAndVerifyClientCert,
}

impl ClientAuth {
    /// Whether a certificate is checked against the authority.
    #[must_use]
    pub(crate) const fn verifies(self) -> bool {
        matches!(self, Self::VerifyClientCertIfGiven | Self::RequireAndVerifyClientCert)
    }

    /// Whether a client without a certificate is turned away.
    #[must_use]
    pub const fn requires(self) -> bool {
        matches!(self, Self::RequireAnyClientCert | Self::RequireAndVerifyClientCert)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum Version {
    #[serde(rename = "TLS10")]
    Tls10,
    #[serde(rename = "TLS11")]
    Tls11,
    #[serde(rename = "TLS12")]
    Tls12,
    #[serde(rename = "TLS13")]
    Tls13,
}

/// Where a certificate or key comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pem<'a> {
    File(&'a Path),
    Text(&'a str),
}

/// Those of [`WebConfigFile`].
const KEYS: [&str; 4] = ["tls_server_config", "http_server_config", "basic_auth_users", "rate_limit"];

/// Headers that may be set, with the values that they may have; any, if none is listed.
const HEADERS: [(&str, &[&str]); 5] = [
    ("Content-Security-Policy", &[]),
    ("Strict-Transport-Security", &[]),
    ("X-Content-Type-Options", &["nosniff"]),
    ("X-Frame-Options", &["deny", "sameorigin"]),
    ("X-XSS-Protection", &[]),
];

impl WebConfigFile {
    /// Reads the text of the file; paths in it are relative to `folder`.
    ///
    /// # Errors
    /// One line with what is wrong and where: no YAML, an unknown key, a value that is none.
    pub fn read(text: &str, folder: &Path) -> Result<Self, String> {
        // No part of the text is repeated in a message: it can hold a key.
        let options = serde_saphyr::options! { with_snippet: false };
        let document: Option<Self> =
            serde_saphyr::from_str_with_options(text, options).map_err(|error| said(&error, text))?;
        let mut document = document.unwrap_or_default();
        if document.rate_limit.is_some() {
            return Err(
                "rate_limit is not supported; connections and password checks are bounded without it".to_owned()
            );
        }
        if let Some(tls) = &mut document.tls_server_config {
            for file in [&mut tls.cert_file, &mut tls.key_file, &mut tls.client_ca_file].into_iter().flatten() {
                *file = folder.join(&*file);
            }
        }
        Ok(document)
    }

    /// The headers that every answer gets.
    ///
    /// # Errors
    /// When one may not be set, or not to this value.
    pub fn headers(&self) -> Result<HeaderMap, String> {
        let mut headers = HeaderMap::new();
        let asked = self.http_server_config.iter().filter_map(|http| http.headers.as_ref()).flatten();
        for (name, value) in asked.filter(|(_, value)| !value.is_empty()) {
            let Some((_, allowed)) = HEADERS.iter().find(|(header, _)| header == name) else {
                let names = HEADERS.map(|(header, _)| header);
                return Err(format!("http_server_config.headers: {}", unknown("header", name, &names)));
            };
            if !allowed.is_empty() && !allowed.contains(&value.as_str()) {
                return Err(format!("header {name}: its value is not one of {}", allowed.join(", ")));
            }
            let name: HeaderName = name.parse().map_err(|_| format!("header {name:?}: not a valid header name"))?;
            let value = HeaderValue::from_str(value)
                .map_err(|_| format!("header {name}: its value has characters that are invalid in a header"))?;
            headers.insert(name, value);
        }
        Ok(headers)
    }

    /// Whether HTTP/2 was asked for in so many words.
    #[must_use]
    pub(crate) fn asks_for_http2(&self) -> bool {
        self.http_server_config.as_ref().is_some_and(|http| http.http2 == Some(true))
    }
}

impl TlsServer {
    /// # Errors
    /// When there is none, or two.
    pub fn certificate(&self) -> Result<Pem<'_>, String> {
        required(pem("cert", self.cert.as_deref(), self.cert_file.as_deref())?, "cert_file")
    }

    /// # Errors
    /// As [`TlsServer::certificate`].
    pub fn key(&self) -> Result<Pem<'_>, String> {
        required(pem("key", self.key.as_deref(), self.key_file.as_deref())?, "key_file")
    }

    /// The authority of the clients' certificates, where there is one.
    ///
    /// # Errors
    /// When there are two.
    pub(crate) fn client_authority(&self) -> Result<Option<Pem<'_>>, String> {
        pem("client_ca", self.client_ca.as_deref(), self.client_ca_file.as_deref())
    }

    /// The files that are named.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        [&self.cert_file, &self.key_file, &self.client_ca_file].into_iter().flatten().map(PathBuf::as_path)
    }
}

fn pem<'a>(key: &str, text: Option<&'a str>, file: Option<&'a Path>) -> Result<Option<Pem<'a>>, String> {
    match (text, file) {
        (Some(_), Some(_)) => Err(format!("tls_server_config: both {key} and {key}_file; leave one out")),
        (text, file) => Ok(text.map(Pem::Text).or(file.map(Pem::File))),
    }
}

fn required<'a>(pem: Option<Pem<'a>>, key: &str) -> Result<Pem<'a>, String> {
    pem.ok_or_else(|| format!("tls_server_config: {key} is missing; TLS needs cert_file and key_file"))
}

/// That a word is unknown, and what was probably meant.
#[must_use]
pub fn unknown(what: &str, word: &str, known: &[&str]) -> String {
    format!("unknown {what} \"{}\", {}", cut(word), meant(word, known))
}

fn meant(word: &str, known: &[&str]) -> String {
    match nearest(word, known.iter().copied()) {
        Some(near) => format!("did you mean {near}?"),
        None => format!("expected one of {}", known.join(", ")),
    }
}

/// What is wrong, by kind and line. The file holds keys and hashes: no value is repeated, and the name of a key only where
/// another key says that this is a web configuration at all.
fn said(error: &Error, text: &str) -> String {
    let line = error.location().map(|at| format!(" (line {})", at.line())).unwrap_or_default();
    let kind = match error.without_snippet() {
        Error::SerdeUnknownField { field, expected, .. } if is_ours(text) => unknown("key", field, expected),
        Error::SerdeUnknownField { field, expected, .. } => format!("unknown key, {}", meant(field, expected)),
        Error::SerdeUnknownVariant { variant, expected, .. } => format!("unknown value, {}", meant(variant, expected)),
        Error::DuplicateMappingKey { .. } => "a duplicate key".to_owned(),
        Error::SerdeInvalidType { .. }
        | Error::SerdeInvalidValue { .. }
        | Error::SerdeInvalidLength { .. }
        | Error::InvalidScalar { .. }
        | Error::InvalidBooleanStrict { .. }
        | Error::Unexpected { .. }
        | Error::NullIntoString { .. }
        | Error::NonFiniteFloat { .. } => "a value of the wrong type".to_owned(),
        _ => "not valid YAML".to_owned(),
    };
    kind + &line
}

/// Whether a line begins with a key of the whole file, as far as a text that is not valid shows it.
fn is_ours(text: &str) -> bool {
    let begins = |line: &str| KEYS.iter().any(|key| line.strip_prefix(key).is_some_and(|rest| rest.starts_with(':')));
    text.lines().any(begins)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<WebConfigFile, String> {
        WebConfigFile::read(text, Path::new("/etc/agent"))
    }

    #[test]
    fn paths_are_relative_to_the_file() {
        let text = "tls_server_config:\n  cert_file: tls.crt\n  key_file: /run/tls.key\n  client_ca: PEM\n";
        let tls = read(text).unwrap().tls_server_config.unwrap();
        assert_eq!(tls.certificate(), Ok(Pem::File(Path::new("/etc/agent/tls.crt"))));
        assert_eq!(tls.key(), Ok(Pem::File(Path::new("/run/tls.key"))));
        assert_eq!(tls.client_authority(), Ok(Some(Pem::Text("PEM"))));
        assert_eq!(tls.client_auth_type, ClientAuth::NoClientCert);
    }

    #[test]
    fn an_empty_file_and_empty_sections_protect_nothing() {
        for text in ["", "---\n", "# nothing\n", "{}", "tls_server_config:\nbasic_auth_users:\nhttp_server_config:\n"] {
            let document = read(text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
            assert!(document.tls_server_config.is_none() && document.basic_auth_users.is_none(), "{text:?}");
            assert_eq!(document.headers(), Ok(HeaderMap::new()));
        }
    }

    #[test]
    fn what_is_unknown_is_refused_with_its_line_and_the_nearest() {
        for (text, expected) in [
            ("tls_server: {}", "unknown key, expected one of tls_server_config, http_server_config, "),
            ("basic_auth_users:\nS3CRET: x", "unknown key \"S3CRET\", expected one of "),
            ("\ntls_server_config:\n  certfile: x", "unknown key \"certfile\", did you mean cert_file? (line 3)"),
            (
                "tls_server_config: {client_auth_type: RequireAndVerifyClient}",
                "unknown value, did you mean RequireAndVerifyClientCert? (line 1)",
            ),
            ("tls_server_config: {min_version: TLS1.2}", "unknown value, did you mean TLS12? (line 1)"),
            ("rate_limit: {interval: 1s}", "rate_limit is not supported; connections"),
        ] {
            let problem = read(text).unwrap_err();
            assert!(problem.starts_with(expected), "{text:?}: {problem}");
        }
        assert!(read("basic_auth_users: {a: b, a: c}").unwrap_err().contains("duplicate"));
        assert!(read("tls_server_config: [").unwrap_err().contains("line"));
    }

    #[test]
    fn the_example_of_the_documentation_is_one() {
        let text = include_str!("../../../../../docs/web-config.yaml");
        let folder = Path::new("/etc/agent");
        let is_option = |line: &&str| line.trim_start().starts_with('#') && !line.trim_start().starts_with("# ");
        let whole = text.lines().map(|line| if is_option(&line) { line.replacen('#', "", 1) } else { line.to_owned() });
        for text in [text.to_owned(), whole.collect::<Vec<_>>().join("\n")] {
            let document = WebConfigFile::read(&text, folder).unwrap_or_else(|error| panic!("{error}: {text}"));
            assert_eq!(document.tls_server_config.as_ref().map(|tls| tls.files().count()), Some(3));
            assert!(!document.headers().unwrap().is_empty());
            let users = crate::web_config::users::Users::new(document.basic_auth_users.unwrap()).unwrap();
            assert_eq!(users.count(), 1);
        }
    }

    #[test]
    fn no_message_repeats_a_key() {
        for text in [
            "tls_server_config:\n  key: |\n    SECRET\n  min_version: 7\n  nonsense: [\n",
            "tls_server_config:\n  min_version: SECRET\n",
            "tls_server_config:\n  prefer_server_cipher_suites: SECRET\n",
            "tls_server_config: SECRET\n",
            "basic_auth_users: [SECRET]\n",
            "SECRET",
            "SECRET: 1",
            "- SECRET",
            "!SECRET x: 1",
            "a: *SECRET",
            "SECRET: 1\nSECRET: 2\n",
            "{SECRET",
            "\"SECRET",
            "%SECRET",
        ] {
            let problem = read(text).unwrap_err();
            assert!(!problem.contains("SECRET") && !problem.contains('\n'), "{problem}");
        }
    }

    #[test]
    fn only_the_toolkits_headers_can_be_set() {
        let headers = |text: &str| read(&format!("http_server_config: {{headers: {{{text}}}}}")).unwrap().headers();
        let set =
            headers("X-Frame-Options: deny, X-XSS-Protection: '1; mode=block', Content-Security-Policy: ''").unwrap();
        assert_eq!(
            (set.len(), &set["x-frame-options"], &set["x-xss-protection"]),
            (2, &HeaderValue::from_static("deny"), &HeaderValue::from_static("1; mode=block"))
        );
        assert_eq!(
            headers("X-Frame-Options: allow").unwrap_err(),
            "header X-Frame-Options: its value is not one of deny, sameorigin"
        );
        assert!(headers("X-Frame-Option: deny").unwrap_err().ends_with("did you mean X-Frame-Options?"));
        assert!(headers("Server: x").unwrap_err().contains("expected one of Content-Security-Policy, "));
    }

    #[test]
    fn a_certificate_comes_from_one_place() {
        let tls = |text: &str| read(&format!("tls_server_config: {{{text}}}")).unwrap().tls_server_config.unwrap();
        assert_eq!(
            tls("cert: a, cert_file: b").certificate().unwrap_err(),
            "tls_server_config: both cert and cert_file; leave one out"
        );
        assert!(tls("cert_file: b").key().unwrap_err().contains("key_file is missing"));
    }
}
