//! Agents of other nodes, asked for their reports over connections that stay open.

use std::sync::Arc;
use std::time::Duration;

use energy_model::power_report::{MOST_BYTES, PowerReport};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper::http::{HeaderValue, Request, StatusCode, header};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::{Instant, timeout_at};

use crate::https::{self, ClientTls};

/// Asked at the same time. Each is a socket; the next ones follow as these answer.
const AT_ONCE: usize = 256;
/// The agents close connections that are silent for longer than this and some.
const IDLE: Duration = Duration::from_secs(60);

/// Asks agents.
#[derive(Clone)]
pub struct Agents {
    client: Client<HttpsConnector<HttpConnector>, Empty<Bytes>>,
    scheme: &'static str,
    authorization: Option<HeaderValue>,
}

/// Whom to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    pub node: Arc<str>,
    /// `HOST:PORT`.
    pub address: Arc<str>,
    /// The round waits for its answer; of the others, it takes what comes meanwhile.
    pub awaited: bool,
}

/// What came of it.
pub struct Answered {
    pub node: Arc<str>,
    /// For people, why there is no report.
    pub report: Result<PowerReport, String>,
}

impl Agents {
    /// By TLS, if there is an authority.
    ///
    /// # Errors
    /// For people: a file that cannot be used.
    pub fn new(tls: &ClientTls) -> Result<Self, String> {
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE)
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(1)
            .build(https::connector(tls)?);
        let scheme = if tls.authority.is_some() { "https" } else { "http" };
        Ok(Self { client, scheme, authorization: None })
    }

    /// From now on, it asks with this header.
    pub fn log_in(&mut self, authorization: Option<HeaderValue>) {
        self.authorization = authorization;
    }

    /// One round: asks all, and tells what has come until all that are awaited have answered, or `patience` is over.
    pub async fn ask(&self, asked: Vec<Asked>, patience: Duration, mut tell: impl FnMut(Answered)) {
        let deadline = Instant::now() + patience;
        // Those that the round waits for come first.
        let (awaited, others): (Vec<_>, Vec<_>) = asked.into_iter().partition(|asked| asked.awaited);
        let mut awaited_left = awaited.len();
        let mut waiting = awaited.into_iter().chain(others);
        let mut running = FuturesUnordered::new();
        running.extend(waiting.by_ref().take(AT_ONCE).map(|asked| self.one(asked, deadline)));
        while awaited_left > 0 {
            let Some((awaited, answered)) = running.next().await else { return };
            awaited_left -= usize::from(awaited);
            tell(answered);
            running.extend(waiting.next().map(|asked| self.one(asked, deadline)));
        }
        // What else has come by now, and a last moment for those that are not awaited.
        let last = deadline.min(Instant::now() + patience / 4);
        while let Ok(Some((_, answered))) = timeout_at(last, running.next()).await {
            tell(answered);
            running.extend(waiting.next().map(|asked| self.one(asked, deadline)));
        }
    }

    async fn one(&self, asked: Asked, deadline: Instant) -> (bool, Answered) {
        let Asked { node, address, awaited } = asked;
        let report = timeout_at(deadline, self.report(&address)).await;
        let report = report.unwrap_or_else(|_| Err(format!("{address} did not answer in time")));
        let report = report.and_then(|report| {
            if report.node == *node { Ok(report) } else { Err(format!("{address} is the agent of another node")) }
        });
        (awaited, Answered { node, report })
    }

    async fn report(&self, address: &str) -> Result<PowerReport, String> {
        let mut request = Request::get(format!("{}://{address}/power", self.scheme));
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        let request = request.body(Empty::new()).map_err(|error| format!("{address}: {error}"))?;
        let answer = self.client.request(request).await.map_err(|error| self.trouble(address, &error))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MOST_BYTES).collect().await;
        let body = body.map_err(|error| format!("{address}: {error}"))?.to_bytes();
        match status {
            StatusCode::OK => serde_json::from_slice(&body).map_err(|error| {
                format!("{address}/power is no report: {}", energy_model::json_fault::json_fault(&error))
            }),
            StatusCode::UNAUTHORIZED => {
                Err(format!("{address}/power wants a login: set --agents.username and --agents.password-file"))
            }
            StatusCode::NOT_FOUND => {
                Err(format!("{address} has no /power: run the agent with --capping.resources=recommend or enforce"))
            }
            other => Err(format!("{address}/power answered {other}")),
        }
    }

    fn trouble(&self, address: &str, error: &Error) -> String {
        let remedy = if self.scheme == "https" && https::is_of_tls(error) {
            "; --agents.ca-file names the authority of the agents, --agents.server-name the name in their certificates"
        } else {
            ""
        };
        format!("{address}: {}{remedy}", https::chain(error))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests panic")]

    use std::fs;
    use std::path::Path;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;
    use tokio_rustls::rustls::ServerConfig;
    use tokio_rustls::rustls::crypto::ring;
    use tokio_rustls::rustls::pki_types::PrivateKeyDer;

    use super::*;
    use crate::https::HttpLogin;

    /// An agent of node `n1` with TLS, for the user `prom` with the password `s3cret`; its address, and its certificate as a file.
    async fn agent(folder: &Path) -> (String, std::path::PathBuf) {
        let own = rcgen::generate_simple_self_signed(vec!["agents.example".to_owned()]).unwrap();
        let file = folder.join("ca.pem");
        fs::write(&file, own.cert.pem()).unwrap();
        let key = PrivateKeyDer::try_from(own.signing_key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![own.cert.der().clone()], key)
            .unwrap();
        let (acceptor, listener) =
            (TlsAcceptor::from(Arc::new(config)), TcpListener::bind("127.0.0.1:0").await.unwrap());
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                let (mut request, mut piece) = (String::new(), [0; 1024]);
                while !request.contains("\r\n\r\n") {
                    let count = stream.read(&mut piece).await.unwrap();
                    request.push_str(&String::from_utf8_lossy(&piece[..count]));
                }
                // printf prom:s3cret | base64
                let is_known = request.contains("authorization: Basic cHJvbTpzM2NyZXQ=");
                let (status, body) =
                    if is_known { ("200 OK", "{\"node\":\"n1\",\"watts\":7}") } else { ("401 Unauthorized", "") };
                let answer =
                    format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                stream.write_all(answer.as_bytes()).await.unwrap();
                let _ = stream.shutdown().await;
            }
        });
        (address, file)
    }

    async fn asked(agents: &Agents, address: &str) -> Result<PowerReport, String> {
        let asked = Asked { node: "n1".into(), address: address.into(), awaited: true };
        let mut answers = Vec::new();
        agents.ask(vec![asked], Duration::from_secs(60), |answered| answers.push(answered.report)).await;
        answers.remove(0)
    }

    #[tokio::test]
    async fn an_agent_with_tls_and_users_is_asked_by_the_name_in_its_certificate() {
        let folder = tempfile::tempdir().unwrap();
        let (address, file) = agent(folder.path()).await;
        let tls = |name: Option<&str>| ClientTls {
            authority: Some(file.clone()),
            server_name: name.map(str::to_owned),
            own: None,
        };
        let mut agents = Agents::new(&tls(Some("agents.example"))).unwrap();
        let refusal = asked(&agents, &address).await.unwrap_err();
        assert_eq!(refusal, format!("{address}/power wants a login: set --agents.username and --agents.password-file"));
        let secret = folder.path().join("secret");
        fs::write(&secret, "s3cret\n").unwrap();
        let login = HttpLogin::Basic { user: "prom".to_owned(), password_file: secret };
        agents.log_in(Some(login.header().unwrap()));
        assert_eq!(asked(&agents, &address).await.unwrap().watts, Some(7.0));
        // The address is not in the certificate.
        let refusal = asked(&Agents::new(&tls(None)).unwrap(), &address).await.unwrap_err();
        assert!(refusal.contains("--agents.server-name"), "{refusal}");
        // An agent with TLS is not asked without.
        assert!(asked(&Agents::new(&ClientTls::default()).unwrap(), &address).await.is_err());
    }
}
