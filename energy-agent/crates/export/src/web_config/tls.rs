//! `tls_server_config` into what rustls needs. What it cannot do is refused, not left out.

use std::sync::Arc;
use std::time::Duration;

use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::{self, PemObject as _};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{RootCertStore, ServerConfig, SupportedCipherSuite, SupportedProtocolVersion};
use webpki::{EndEntityCert, Error, KeyUsage};

use super::WebConfigError;
use super::clients::ClientCertificates;
use super::document::{ClientAuth, Pem, TlsServer, Version, unknown};

/// Go's names of the curves that ring has no code for.
const CURVES_MISSING: [&str; 2] = ["CurveP521", "X25519MLKEM768"];
const CURVES: [(&str, &str); 3] = [("CurveP256", "secp256r1"), ("CurveP384", "secp384r1"), ("X25519", "X25519")];

/// Later than any certificate can say.
const YEAR_10000: Duration = Duration::from_secs(253_402_300_800);

/// From when to when a certificate counts; seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    pub begins: u64,
    pub ends: u64,
}

impl Validity {
    /// That of the first certificate in a PEM, which is the server's own; `None` where it cannot be read.
    #[must_use]
    pub fn of(pem: &[u8]) -> Option<Self> {
        let certificate = CertificateDer::pem_slice_iter(pem).next()?.ok()?;
        let certificate = EndEntityCert::try_from(&certificate).ok()?;
        // The dates are what webpki looks at first. What else it has against a certificate without an authority is not asked.
        let refused = |time| {
            let time = UnixTime::since_unix_epoch(time);
            certificate.verify_for_usage(&[], &[], &[], time, KeyUsage::server_auth(), None, None).err()
        };
        let begins = match refused(Duration::ZERO) {
            Some(Error::CertNotValidYet { not_before, .. }) => not_before.as_secs(),
            _ => 0,
        };
        match refused(YEAR_10000) {
            Some(Error::CertExpired { not_after, .. }) => Some(Self { begins, ends: not_after.as_secs() }),
            _ => None,
        }
    }
}

/// The server's side of TLS; `bytes` gives the content of a file, or says why there is none.
///
/// # Errors
/// One line that names the key or file, and the remedy where it is not plain.
pub fn server<'a>(
    asked: &'a TlsServer,
    bytes: impl Fn(Pem<'a>) -> Result<&'a [u8], WebConfigError>,
) -> Result<ServerConfig, WebConfigError> {
    let mut provider = ring::default_provider();
    choose_suites(&mut provider, asked.cipher_suites.as_deref())?;
    choose_curves(&mut provider, asked.curve_preferences.as_deref())?;
    let provider = Arc::new(provider);

    let (certificate, key) = (asked.certificate()?, asked.key()?);
    let authority = asked.client_authority()?;
    let authority = authority.map(|pem| Ok::<_, WebConfigError>(roots(pem, bytes(pem)?)?)).transpose()?;
    let clients =
        ClientCertificates::new(asked.client_auth_type, authority, asked.client_allowed_sans.as_deref(), &provider)?;
    let chain = certificates(certificate, bytes(certificate)?)?;
    let private = PrivateKeyDer::from_pem_slice(bytes(key)?)
        .map_err(|error| format!("{}: no private key in PEM: {}", name(key), fault(&error)))?;

    let builder = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&versions(asked.min_version, asked.max_version)?)
        .map_err(|error| {
            format!("tls_server_config: {error}; no entry of cipher_suites fits min_version to max_version")
        })?;
    let builder = match asked.client_auth_type {
        ClientAuth::NoClientCert => builder.with_no_client_auth(),
        _ => builder.with_client_cert_verifier(Arc::new(clients)),
    };
    let mut server = builder
        .with_single_cert(chain, private)
        .map_err(|error| format!("{} and {}: {error}", name(certificate), name(key)))?;
    server.ignore_client_order = asked.prefer_server_cipher_suites.unwrap_or(true);
    server.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(server)
}

fn versions(min: Option<Version>, max: Option<Version>) -> Result<Vec<&'static SupportedProtocolVersion>, String> {
    let (min, max) = (min.unwrap_or(Version::Tls12), max.unwrap_or(Version::Tls13));
    for (key, version) in [("min_version", min), ("max_version", max)] {
        if version < Version::Tls12 {
            return Err(format!("tls_server_config.{key}: TLS 1.0 and 1.1 are not supported, only TLS12 and TLS13"));
        }
    }
    if min > max {
        return Err("tls_server_config: min_version is above max_version".to_owned());
    }
    let both = [(Version::Tls12, &TLS12), (Version::Tls13, &TLS13)];
    Ok(both.into_iter().filter(|(version, _)| (min..=max).contains(version)).map(|(_, version)| version).collect())
}

/// Keeps the suites that are listed, in this order. As in Go the list is about TLS 1.2: without one of TLS 1.3 in it, that
/// keeps its own.
fn choose_suites(provider: &mut CryptoProvider, asked: Option<&[String]>) -> Result<(), String> {
    let Some(asked) = asked.filter(|asked| !asked.is_empty()) else { return Ok(()) };
    let go = |name: &str| name.replacen("TLS13_", "TLS_", 1);
    let all: Vec<_> = provider
        .cipher_suites
        .iter()
        .map(|suite| (suite.suite().as_str().map(go).unwrap_or_default(), *suite))
        .collect();
    let mut chosen = Vec::new();
    for name in asked {
        let Some((_, suite)) = all.iter().find(|(known, _)| known == name) else {
            let known: Vec<_> = all.iter().map(|(known, _)| known.as_str()).collect();
            // Nearly the same name can be a much weaker suite: all are listed.
            return Err(format!("tls_server_config.cipher_suites: {name:?} is not one of {}", known.join(", ")));
        };
        chosen.push(*suite);
    }
    let newer = |suite: &SupportedCipherSuite| matches!(suite, SupportedCipherSuite::Tls13(_));
    if !chosen.iter().any(newer) {
        chosen.extend(provider.cipher_suites.iter().copied().filter(newer));
    }
    provider.cipher_suites = chosen;
    Ok(())
}

/// Keeps the curves that are listed, in this order.
fn choose_curves(provider: &mut CryptoProvider, asked: Option<&[String]>) -> Result<(), String> {
    let Some(asked) = asked.filter(|asked| !asked.is_empty()) else { return Ok(()) };
    let names = CURVES.map(|(go, _)| go);
    let mut chosen = Vec::new();
    for name in asked {
        if CURVES_MISSING.contains(&name.as_str()) {
            return Err(format!(
                "tls_server_config.curve_preferences: {name} is not supported, only {}",
                names.join(", ")
            ));
        }
        let Some((_, group)) = CURVES.iter().find(|(go, _)| go == name) else {
            return Err(format!("tls_server_config.curve_preferences: {}", unknown("curve", name, &names)));
        };
        chosen.extend(provider.kx_groups.iter().copied().filter(|known| known.name().as_str() == Some(group)));
    }
    provider.kx_groups = chosen;
    Ok(())
}

fn certificates(pem: Pem<'_>, bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(bytes).collect();
    let found = found.map_err(|error| format!("{}: no certificate in PEM: {}", name(pem), fault(&error)))?;
    if found.is_empty() { Err(format!("{}: no certificate in PEM", name(pem))) } else { Ok(found) }
}

fn roots(pem: Pem<'_>, bytes: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem, bytes)? {
        roots.add(certificate).map_err(|error| format!("{}: {error}", name(pem)))?;
    }
    Ok(roots)
}

/// What is wrong with a PEM; rustls' own words repeat lines of it.
const fn fault(error: &pem::Error) -> &'static str {
    match error {
        pem::Error::MissingSectionEnd { .. } => "a section does not end",
        pem::Error::IllegalSectionStart { .. } => "the first line of a section is broken",
        pem::Error::Base64Decode(_) => "a section is not base64",
        pem::Error::NoItemsFound => "there is none",
        _ => "it cannot be read",
    }
}

fn name(pem: Pem<'_>) -> String {
    match pem {
        Pem::File(path) => path.display().to_string(),
        Pem::Text(_) => "the PEM in tls_server_config".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use tokio_rustls::rustls::ProtocolVersion::{TLSv1_2, TLSv1_3};

    use super::*;

    fn listed(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn versions_are_the_span_that_rustls_speaks() {
        let spoken = |min, max| versions(min, max).map(|found| found.iter().map(|one| one.version).collect::<Vec<_>>());
        assert_eq!(spoken(None, None), Ok(vec![TLSv1_2, TLSv1_3]));
        assert_eq!(spoken(Some(Version::Tls13), None), Ok(vec![TLSv1_3]));
        assert_eq!(spoken(None, Some(Version::Tls12)), Ok(vec![TLSv1_2]));
        assert!(spoken(Some(Version::Tls11), None).unwrap_err().contains("min_version: TLS 1.0 and 1.1"));
        assert!(spoken(Some(Version::Tls13), Some(Version::Tls12)).unwrap_err().contains("above"));
    }

    #[test]
    fn listed_suites_stay_in_order_and_tls_1_3_keeps_its_own() {
        let suites = |names: &[&str]| {
            let mut provider = ring::default_provider();
            choose_suites(&mut provider, Some(&listed(names)))?;
            let name = |suite: &SupportedCipherSuite| suite.suite().as_str().unwrap_or_default();
            Ok::<_, String>(provider.cipher_suites.iter().map(name).collect::<Vec<_>>())
        };
        let [rsa, ecdsa] = ["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"];
        let found = suites(&[rsa, ecdsa]).unwrap();
        assert_eq!((found.len(), found[0], found[1]), (5, rsa, ecdsa));
        assert!(found[2..].iter().all(|name| name.starts_with("TLS13_")));
        assert_eq!(suites(&[rsa, "TLS_AES_256_GCM_SHA384"]).unwrap(), [rsa, "TLS13_AES_256_GCM_SHA384"]);
        let problem = suites(&["TLS_RSA_WITH_AES_128_CBC_SHA"]).unwrap_err();
        assert!(
            problem.contains("\"TLS_RSA_WITH_AES_128_CBC_SHA\" is not one of TLS_AES_256_GCM_SHA384, "),
            "{problem}"
        );
    }

    #[test]
    fn listed_curves_stay_and_what_ring_lacks_is_refused() {
        let mut provider = ring::default_provider();
        choose_curves(&mut provider, Some(&listed(&["CurveP384", "X25519"]))).unwrap();
        let names: Vec<_> = provider.kx_groups.iter().filter_map(|group| group.name().as_str()).collect();
        assert_eq!(names, ["secp384r1", "X25519"]);
        let refused = |name| choose_curves(&mut ring::default_provider(), Some(&listed(&[name]))).unwrap_err();
        assert!(refused("CurveP521").contains("CurveP521 is not supported, only CurveP256, CurveP384, X25519"));
        assert!(refused("CurveP265").contains("did you mean CurveP256?"));
    }
}
