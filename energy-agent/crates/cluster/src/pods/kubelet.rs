//! The pods of this node from its kubelet, asked at an interval, and once before its time when a pod comes up that nobody
//! told of. For clusters that give the agent no access to pods through the API server.

use std::env;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::config::ClusterConfig;
use energy_model::json_fault::json_fault;
use energy_model::meter_state::Reason;
use energy_model::printable::cut;
use energy_model::workload::names::Pod;
use hyper::http;
use kube::Error;
use serde::Deserialize;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use super::PodPublisher;
use super::object::PodObject;
use crate::kubernetes::backoff::Backoff;
use crate::kubernetes::{ClusterError, Credentials, Server, authority};

/// What is asked for, in the words of RBAC: the kubelet asks the API server whether the agent may.
/// <https://kubernetes.io/docs/reference/access-authn-authz/kubelet-authn-authz/>
pub const OBJECT: &str = "nodes/proxy at cluster scope (the kubelet's pods)";
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// A pod that has just come up has its first container ids a moment later.
const SETTLE: Duration = Duration::from_secs(2);
/// Between two questions, whatever comes up.
const PAUSE: Duration = Duration::from_secs(5);
/// Permissions change seldom, and by hand.
const FORBIDDEN_PAUSE: Duration = Duration::from_secs(30);

/// How to ask the kubelet.
#[derive(Clone, Debug)]
pub struct Kubelet {
    pub url: String,
    ca: Option<PathBuf>,
    interval: Duration,
    credentials: Option<Credentials>,
}

impl Kubelet {
    #[must_use]
    pub fn new(config: &ClusterConfig, credentials: Option<Credentials>) -> Self {
        let local = || {
            let address =
                env::var("NODE_IP").ok().filter(|ip| !ip.is_empty()).unwrap_or_else(|| "127.0.0.1".to_owned());
            if address.contains(':') {
                format!("https://[{address}]:10250")
            } else {
                format!("https://{address}:10250")
            }
        };
        Self {
            url: config.kubelet_url.clone().unwrap_or_else(local),
            ca: config.kubelet_ca.clone(),
            interval: config.kubelet_interval,
            credentials,
        }
    }

    /// A client that sends the agent's token to a kubelet whose certificate it has verified; without encryption it sends
    /// none.
    ///
    /// # Errors
    /// When the address, the token or the authority's certificate cannot be used.
    pub async fn client(&self) -> Result<Server, ClusterError> {
        let unusable = |problem: String| ClusterError::new(Reason::Config, problem);
        let url: http::Uri =
            self.url.parse().map_err(|error| unusable(format!("--pods.kubelet-url={}: {error}", self.url)))?;
        let plain = url.scheme_str() == Some("http");
        let mut config = match &self.credentials {
            Some(credentials) if !plain => credentials.config().await?,
            _ => kube::Config::new(url.clone()),
        };
        config.cluster_url = url;
        config.tls_server_name = None;
        config.proxy_url = None;
        config.default_retry = false;
        if let Some(ca) = &self.ca {
            let named = |trouble: ClusterError| unusable(format!("--pods.kubelet-ca={trouble}"));
            config.root_cert = Some(authority(ca).await.map_err(named)?);
        }
        let signer = match &self.ca {
            Some(file) => format!("--pods.kubelet-ca={}", file.display()),
            None => "it with --pods.kubelet-ca, without which it is the API server's; a kubelet uses a self-signed certificate unless \
                     its configuration has serverTLSBootstrap: true"
                .to_owned(),
        };
        let address = format!("--pods.kubelet-url={}", self.url);
        let origin = self.credentials.as_ref().map_or_else(|| address.clone(), Credentials::to_string);
        Server::new(config, &origin, address, signer).await
    }

    /// All pods that the kubelet runs.
    ///
    /// # Errors
    /// When it does not answer, refuses, or answers with something else.
    pub async fn list(&self, server: &Server) -> Result<Vec<Pod>, ClusterError> {
        #[derive(Deserialize)]
        struct PodList {
            #[serde(default)]
            items: Option<Vec<PodObject>>,
            kind: String,
        }
        let request = http::Request::get("/pods").body(Vec::new()).map_err(Error::HttpError);
        let request = request.map_err(|error| server.trouble(&error, "get", OBJECT))?;
        let answer = timeout(ANSWER_TIMEOUT, server.client.request_text(request)).await;
        let text = answer
            .map_err(|_| server.silence("get", OBJECT, ANSWER_TIMEOUT))?
            .map_err(|error| server.trouble(&error, "get", OBJECT))?;
        match serde_json::from_str(&text) {
            Ok(PodList { items, kind }) if kind == "PodList" => {
                Ok(items.unwrap_or_default().into_iter().map(Pod::from).collect())
            }
            Ok(PodList { kind, .. }) => {
                let what = format!("{}/pods: a {} instead of a PodList", self.url, cut(&kind));
                Err(ClusterError::new(Reason::Error, what))
            }
            Err(error) => {
                let what = format!("{}/pods: no list of pods: {}", self.url, json_fault(&error));
                Err(ClusterError::new(Reason::Error, what))
            }
        }
    }

    /// Asks for ever.
    pub(super) async fn run(self, mut teller: PodPublisher, unknown: Arc<Notify>) {
        let source = format!("kubelet at {}", self.url);
        let mut backoff = Backoff::new();
        let mut server = None;
        loop {
            let asked = Instant::now();
            match self.ask(&mut server).await {
                Ok(pods) => {
                    teller.replace(pods);
                    teller.answered(&source);
                    backoff.reset();
                    tokio::select! {
                        () = sleep(self.interval) => {}
                        () = async { unknown.notified().await; sleep(SETTLE).await } => {
                            tokio::time::sleep_until(asked + PAUSE).await;
                        }
                    }
                }
                Err(trouble) => {
                    teller.failed(&trouble);
                    let pause = backoff.pause().max(PAUSE.min(self.interval));
                    match (trouble.reason, &server) {
                        (Reason::Unauthorized, Some(server)) => Server::wait(server, pause).await,
                        (Reason::Forbidden, _) => sleep(pause.max(FORBIDDEN_PAUSE)).await,
                        _ => sleep(pause).await,
                    }
                    if trouble.needs_new_client() {
                        server = None;
                    }
                }
            }
        }
    }

    async fn ask(&self, server: &mut Option<Server>) -> Result<Vec<Pod>, ClusterError> {
        if server.as_ref().is_none_or(Server::is_expiring) {
            *server = Some(self.client().await?);
        }
        let server = server.as_ref().expect("made just now");
        self.list(server).await
    }
}
