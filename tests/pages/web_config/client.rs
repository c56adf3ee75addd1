//! A client with a certificate or without one, that shows which certificate the server had.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, ProtocolVersion, RootCertStore, StreamOwned};
use webpki::EndEntityCert;

use super::certificates::{Authority, Pair};

pub struct Client(Arc<ClientConfig>);

/// A connection that stays.
pub struct Connection(pub StreamOwned<ClientConnection, TcpStream>);

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// In lower case.
    pub head: String,
    pub body: String,
}

impl Client {
    pub fn trusting(authority: &Authority, own: Option<&Pair>) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = match own {
            None => builder.with_no_client_auth(),
            Some(own) => {
                let chain = vec![CertificateDer::from_pem_slice(own.certificate.as_bytes()).unwrap()];
                builder
                    .with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(own.key.as_bytes()).unwrap())
                    .unwrap()
            }
        };
        Self(Arc::new(config))
    }

    /// Makes the handshake.
    pub fn connect(&self, address: &str) -> std::io::Result<Connection> {
        let mut socket = TcpStream::connect(address)?;
        socket.set_read_timeout(Some(Duration::from_secs(30)))?;
        let name = "localhost".try_into().unwrap();
        let mut tls = ClientConnection::new(Arc::clone(&self.0), name).map_err(std::io::Error::other)?;
        while tls.is_handshaking() {
            tls.complete_io(&mut socket)?;
        }
        Ok(Connection(StreamOwned::new(tls, socket)))
    }

    /// One request on a connection of its own; an error where TLS is refused.
    pub fn get(&self, address: &str, path: &str, headers: &str) -> std::io::Result<Answer> {
        self.connect(address)?.get(path, headers)
    }

    /// Serial number of the server's certificate.
    pub fn serial(&self, address: &str) -> std::io::Result<u64> {
        Ok(self.connect(address)?.serial())
    }
}

impl Connection {
    pub fn serial(&self) -> u64 {
        let certificate = self.0.conn.peer_certificates().unwrap()[0].clone();
        let certificate = EndEntityCert::try_from(&certificate).unwrap();
        certificate.serial().iter().fold(0, |sum, byte| sum * 256 + u64::from(*byte))
    }

    pub fn version(&self) -> ProtocolVersion {
        self.0.conn.protocol_version().unwrap()
    }

    pub fn get(&mut self, path: &str, headers: &str) -> std::io::Result<Answer> {
        write!(self.0, "GET {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n")?;
        Answer::read(&mut self.0)
    }
}

impl Answer {
    /// One answer with a Content-Length, or all up to the end of the connection.
    pub fn read(stream: &mut impl Read) -> std::io::Result<Self> {
        let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
        loop {
            if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                if length.is_some_and(|length| bytes.len() >= end + 4 + length.parse::<usize>().unwrap()) {
                    let body = String::from_utf8_lossy(&bytes[end + 4..]).into_owned();
                    return Ok(Self { status: head[9..12].parse().unwrap(), head, body });
                }
            }
            match stream.read(&mut buffer)? {
                0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                read => bytes.extend_from_slice(&buffer[..read]),
            }
        }
    }
}

/// The header line of a user.
pub fn basic(user: &str, password: &str) -> String {
    format!("Authorization: Basic {}\r\n", STANDARD.encode(format!("{user}:{password}")))
}
