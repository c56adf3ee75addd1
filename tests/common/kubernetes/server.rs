//! A web server inside the test on a port of its own, with or without TLS, that can close its port and open it again.

use std::convert::Infallible;
use std::future::{Future, pending};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::Duration;
use std::{fs, thread};

use axum::body::Body;
use axum::http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Handle};
use tokio::task::{AbortHandle, JoinSet};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// The runtime of all servers and clients of the test, on a thread of its own.
pub fn runtime() -> &'static Handle {
    static RUNTIME: OnceLock<Handle> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            sender.send(runtime.handle().clone()).unwrap();
            runtime.block_on(pending::<()>());
        });
        receiver.recv().unwrap()
    })
}

pub type Answering = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;
pub type Handler = Arc<dyn Fn(Request<Incoming>) -> Answering + Send + Sync>;

pub struct Server {
    pub address: SocketAddr,
    tls: Option<TlsAcceptor>,
    handler: Handler,
    /// Accepts connections and owns them; `None` while the port is closed.
    accepting: Mutex<Option<AbortHandle>>,
}

impl Server {
    pub fn start(tls: Option<&Authority>, handler: Handler) -> Self {
        let listener = runtime().block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let tls = tls.map(Authority::acceptor);
        let server = Self { address, tls, handler, accepting: Mutex::new(None) };
        server.accept(listener);
        server
    }

    /// Closes the port and every connection.
    pub fn close(&self) {
        if let Some(accepting) = self.accepting.lock().unwrap().take() {
            accepting.abort();
        }
    }

    /// Opens the port again.
    pub fn open(&self) {
        let listener = crate::common::agent::wait_for("the port to be free again", || {
            runtime().block_on(TcpListener::bind(self.address)).ok()
        });
        self.accept(listener);
    }

    fn accept(&self, listener: TcpListener) {
        let (tls, handler) = (self.tls.clone(), Arc::clone(&self.handler));
        let accepting = runtime().spawn(async move {
            // Connections end with the task.
            let mut connections = JoinSet::new();
            loop {
                while connections.try_join_next().is_some() {}
                match listener.accept().await {
                    Ok((stream, _)) => drop(connections.spawn(serve(stream, tls.clone(), Arc::clone(&handler)))),
                    Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                }
            }
        });
        *self.accepting.lock().unwrap() = Some(accepting.abort_handle());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.close();
    }
}

async fn serve(stream: TcpStream, tls: Option<TlsAcceptor>, handler: Handler) {
    let service = service_fn(move |request| {
        let answer = handler(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let _ = stream.set_nodelay(true);
    let http = hyper::server::conn::http1::Builder::new();
    match tls {
        None => drop(http.serve_connection(TokioIo::new(stream), service).await),
        Some(tls) => {
            if let Ok(stream) = tls.accept(stream).await {
                drop(http.serve_connection(TokioIo::new(stream), service).await);
            }
        }
    }
}

/// A certificate authority that nobody knows but who gets its file.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: TempDir,
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("ca.crt"), issuer.pem()).unwrap();
        Self { issuer, folder }
    }

    /// Its own certificate, as PEM.
    pub fn file(&self) -> PathBuf {
        self.folder.path().join("ca.crt")
    }

    /// Serves as `localhost` and 127.0.0.1.
    fn acceptor(&self) -> TlsAcceptor {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let chain = vec![CertificateDer::from(certificate.der().to_vec())];
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        TlsAcceptor::from(Arc::new(config))
    }
}
