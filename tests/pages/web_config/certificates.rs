//! Authorities and certificates, made on the spot.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType, SerialNumber, date_time_ymd,
};

pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, as PEM.
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub fn pem(&self) -> String {
        self.0.pem()
    }

    fn sign(&self, params: CertificateParams) -> Pair {
        let key = KeyPair::generate().unwrap();
        Pair { certificate: params.signed_by(&key, &self.0).unwrap().pem(), key: key.serialize_pem() }
    }

    /// A server's, for `localhost` and 127.0.0.1.
    pub fn server(&self, serial: u64) -> Pair {
        let mut params = CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        params.serial_number = Some(SerialNumber::from(serial));
        self.sign(params)
    }

    /// A server's that counts from one time to another.
    pub fn server_between(&self, from: SystemTime, to: SystemTime) -> Pair {
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        (params.not_before, params.not_after) = (from.into(), to.into());
        self.sign(params)
    }

    /// A client's, with a DNS name, an address and a URI.
    pub fn client(&self) -> Pair {
        let mut params = CertificateParams::new(["scraper.example".to_owned(), "10.1.2.3".to_owned()]).unwrap();
        params.subject_alt_names.push(SanType::URI("spiffe://example/scraper".try_into().unwrap()));
        self.sign(params)
    }

    /// A client's that was good until 2001.
    pub fn expired_client(&self) -> Pair {
        let mut params = CertificateParams::new(["scraper.example".to_owned()]).unwrap();
        (params.not_before, params.not_after) = (date_time_ymd(2000, 1, 1), date_time_ymd(2001, 1, 1));
        self.sign(params)
    }
}

impl Pair {
    /// As a kubelet names them.
    pub fn write(&self, folder: &Path) {
        fs::write(folder.join("tls.crt"), &self.certificate).unwrap();
        fs::write(folder.join("tls.key"), &self.key).unwrap();
    }
}
