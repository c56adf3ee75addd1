//! Tells the tick thread about the pods of this node: one task asks the API server or the kubelet and publishes what it
//! learns; readers never wait.
//!
//! From the API server that is one list and then one watch of the pods with `spec.nodeName` of this node, resumed from its last
//! version or bookmark; nothing else is sent. After 410 the list is made anew. It needs `list` and `watch` on `pods` in a ClusterRole.
//! The kubelet is asked for `/pods` every `--pods.kubelet-interval`, and once earlier when an unknown pod comes up; that needs `get`
//! on `nodes/proxy`. Certificates are always verified. The last answer stays through every outage, a deleted pod stays known while
//! it has a row, and `energy_agent_meter_up{meter="pods"}` says why names are missing.

mod kubelet;
mod object;
mod store;
mod watch;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use energy_model::advice::Advice;
use energy_model::meter_state::{MeterName, MeterState, Reason};
use energy_model::workload::names::{Pod, Pods};
use tokio::sync::{Notify, watch as channel};
use tokio::time::timeout;
use tracing::{info, warn};

pub use self::kubelet::Kubelet;
use self::store::PodStore;
use crate::config::{ClusterConfig, PodsSource};
use crate::kubernetes::{ClusterError, Credentials};

/// What is known of the pods by now, and how well.
#[derive(Clone, Debug)]
pub struct KnownPods {
    pub pods: Arc<Pods>,
    /// The row `pods` of `energy_agent_meter_up`.
    pub state: MeterState,
}

/// Where the names of pods come from.
#[derive(Clone, Debug)]
pub enum PodSource {
    /// A watch of the API server for the pods of this node.
    Api(Credentials),
    /// The pod list of the node's kubelet, asked for now and then.
    Kubelet(Kubelet),
    /// Pods are known by uid: it was wanted so, or there is no cluster.
    None { reason: Reason, detail: Advice },
}

impl PodSource {
    /// What `--pods.source` and the credentials on this machine come to.
    #[must_use]
    pub fn choose(config: &ClusterConfig) -> Self {
        let credentials = Credentials::find(config.kubeconfig.as_deref());
        match (config.pods_source, credentials) {
            (PodsSource::None, _) => {
                Self::None { reason: Reason::Off, detail: "switched off by --pods.source=none".into() }
            }
            (PodsSource::Auto | PodsSource::Api, Some(credentials)) => Self::Api(credentials),
            (PodsSource::Auto, None) => {
                Self::None { reason: Reason::Absent, detail: "not in a cluster, and no kubeconfig".into() }
            }
            (PodsSource::Api, None) => Self::None {
                reason: Reason::Config,
                detail: Advice::new(
                    "--pods.source=api finds neither a service account nor a kubeconfig",
                    "run the agent as a DaemonSet, or name a file with --kubeconfig",
                ),
            },
            (PodsSource::Kubelet, credentials) => Self::Kubelet(Kubelet::new(config, credentials)),
        }
    }

    /// Asks once and waits no longer than `patience`; the number of pods.
    ///
    /// # Errors
    /// When the source cannot be reached or refuses.
    pub async fn probe(&self, node: &str, patience: Duration) -> Result<usize, ClusterError> {
        match self {
            Self::Api(credentials) => {
                let server = credentials.client().await?;
                let answer = timeout(patience, watch::count(&server, node)).await;
                answer.map_err(|_| server.silence("list", watch::OBJECT, patience))?
            }
            Self::Kubelet(kubelet) => {
                let server = kubelet.client().await?;
                let answer = timeout(patience, kubelet.list(&server)).await;
                Ok(answer.map_err(|_| server.silence("get", kubelet::OBJECT, patience))??.len())
            }
            Self::None { reason, detail } => Err(ClusterError::new(*reason, detail.clone())),
        }
    }
}

impl fmt::Display for PodSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Api(credentials) => write!(f, "API server, {credentials}"),
            Self::Kubelet(kubelet) => write!(f, "kubelet at {}", kubelet.url),
            Self::None { .. } => f.write_str("none"),
        }
    }
}

/// Starts the task that asks `source` about the pods of `node`, in the current runtime. What it learns is read from the
/// receiver; the notification asks a kubelet before its time, because a pod came up that no source has reported.
#[must_use]
pub fn start(source: PodSource, node: &str) -> (channel::Receiver<KnownPods>, Option<Arc<Notify>>) {
    let node = node.to_owned();
    let state = match &source {
        PodSource::None { reason, detail } => {
            match reason {
                Reason::Config => warn!(problem = %detail, "pods stay without names"),
                _ => info!(why = %detail, "pods are shown by uid and containers by id, without names"),
            }
            MeterState::down(MeterName::Pods, *reason, detail.clone())
        }
        source => {
            info!(%source, node, "asking for the pods of this node");
            MeterState::down(MeterName::Pods, Reason::Connecting, format!("{source}: no answer yet"))
        }
    };
    let (told, receiver) = channel::channel(KnownPods { pods: Arc::default(), state });
    let teller = PodPublisher { told, book: PodStore::default() };
    let unknown = match source {
        PodSource::None { .. } => None,
        PodSource::Api(credentials) => {
            tokio::spawn(watch::run(credentials, node, teller));
            None
        }
        PodSource::Kubelet(kubelet) => {
            let unknown = Arc::new(Notify::new());
            tokio::spawn(kubelet.run(teller, Arc::clone(&unknown)));
            Some(unknown)
        }
    };
    (receiver, unknown)
}

/// The task's end of the channel. What was published stays through every error.
#[derive(Debug)]
struct PodPublisher {
    told: channel::Sender<KnownPods>,
    book: PodStore,
}

impl PodPublisher {
    /// All pods of the node.
    fn replace(&mut self, pods: Vec<Pod>) {
        self.book.replace(pods, Instant::now());
    }

    /// The source answers: publishes what it said.
    fn answered(&self, source: &str) {
        let pods = self.book.pods();
        let detail = format!("{source}: {} pods", pods.by_uid.len());
        let before = self.told.send_replace(KnownPods { pods, state: MeterState::up(MeterName::Pods, &*detail) });
        if !before.state.is_up() {
            info!(from = detail, "pods have names");
        }
    }

    /// It does not; said once for each reason in a row.
    fn failed(&self, trouble: &ClusterError) {
        let ClusterError { reason, advice } = trouble;
        let state = MeterState::down(MeterName::Pods, *reason, advice.clone());
        let before = self.told.send_replace(KnownPods { pods: self.book.pods(), state });
        if before.state.reason != *reason {
            warn!(
                reason = reason.as_str(),
                problem = %advice,
                "pods cannot be read, the previous names stay; metering goes on"
            );
        }
    }
}
