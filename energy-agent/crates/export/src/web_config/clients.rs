//! Which certificates of clients are taken: the five kinds of Go's `ClientAuthType`, and a list of allowed names.

use std::net::IpAddr;
use std::sync::Arc;

use tokio_rustls::rustls::client::danger::HandshakeSignatureValid;
use tokio_rustls::rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme,
};
use webpki::EndEntityCert;

use super::document::ClientAuth;

/// Turns clients away, or not.
#[derive(Debug)]
pub struct ClientCertificates {
    /// Checks against the authority; `None` takes any certificate whose key the client has.
    authority: Option<Arc<dyn ClientCertVerifier>>,
    required: bool,
    /// Empty allows all.
    allowed: Vec<AllowedName>,
    provider: Arc<CryptoProvider>,
}

/// A name of which a client's certificate must have one.
#[derive(Clone, Debug, PartialEq, Eq)]
enum AllowedName {
    Address(IpAddr),
    /// A DNS name or URI.
    Text(String),
}

impl ClientCertificates {
    /// # Errors
    /// When the kind and the authority do not go together, or a name cannot be matched.
    pub fn new(
        kind: ClientAuth,
        authority: Option<RootCertStore>,
        allowed: Option<&[String]>,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, String> {
        let authority = match authority {
            Some(roots) if kind.verifies() => Some(
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider))
                    .build()
                    .map_err(|error| format!("tls_server_config.client_ca_file: {error}"))?,
            ),
            Some(_) if kind == ClientAuth::NoClientCert => {
                let remedy = "set it to RequireAndVerifyClientCert, or leave client_ca_file out";
                return Err(format!("tls_server_config: client_ca_file without client_auth_type; {remedy}"));
            }
            None if kind.verifies() => {
                return Err(format!("tls_server_config: client_auth_type {kind:?} needs client_ca_file"));
            }
            _ => None,
        };
        if allowed.is_some() && !kind.requires() {
            let remedy = "set it to RequireAndVerifyClientCert";
            return Err(format!(
                "tls_server_config: client_allowed_sans, but client_auth_type {kind:?} lets clients without a certificate in; {remedy}"
            ));
        }
        let allowed: Result<Vec<_>, _> =
            allowed.unwrap_or_default().iter().map(|name| AllowedName::read(name)).collect();
        Ok(Self { authority, required: kind.requires(), allowed: allowed?, provider: Arc::clone(provider) })
    }
}

impl AllowedName {
    fn read(name: &str) -> Result<Self, String> {
        if let Ok(address) = name.parse() {
            return Ok(Self::Address(address));
        }
        if name.is_empty() || (name.contains('@') && !name.contains("://")) {
            let kinds = "a DNS name, an IP address or a URI; e-mail addresses cannot be matched";
            return Err(format!("tls_server_config.client_allowed_sans: {name:?}: expected {kinds}"));
        }
        Ok(Self::Text(name.to_owned()))
    }

    /// Whether the certificate has exactly this name; its own wildcards mean nothing.
    fn is_in(&self, certificate: &EndEntityCert<'_>) -> bool {
        match self {
            Self::Address(address) => {
                certificate.verify_is_valid_for_subject_name(&ServerName::IpAddress((*address).into())).is_ok()
            }
            Self::Text(name) => {
                certificate.valid_dns_names().any(|dns| dns == name)
                    || certificate.valid_uri_names().any(|uri| uri == name)
            }
        }
    }
}

impl ClientCertVerifier for ClientCertificates {
    fn client_auth_mandatory(&self) -> bool {
        self.required
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.authority.as_ref().map_or(&[], |authority| authority.root_hint_subjects())
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if let Some(authority) = &self.authority {
            authority.verify_client_cert(end_entity, intermediates, now)?;
        }
        if !self.allowed.is_empty() {
            let certificate = EndEntityCert::try_from(end_entity)
                .map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
            if !self.allowed.iter().any(|name| name.is_in(&certificate)) {
                return Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure));
            }
        }
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
