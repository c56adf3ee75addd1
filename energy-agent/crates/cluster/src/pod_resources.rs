//! Which pod the kubelet gave which NVIDIA device: its PodResources service, asked over a unix socket when somebody wants
//! to know. It serves where processes cannot be seen, and says whether a GPU belongs to one pod alone.

mod messages;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use energy_model::meter_state::{MeterName, MeterState, Reason};
use energy_model::workload::device_id::DeviceId;
use energy_model::workload::holder::{Holder, KubeletResources};
use hyper::http::uri::PathAndQuery;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;
use tonic::transport::Endpoint;
use tonic_prost::ProstCodec;
use tracing::{info, warn};

use self::messages::{ListRequest, ListResponse};

/// The kubelet answers from memory.
const DEADLINE: Duration = Duration::from_secs(5);
/// The answer names every pod of the node, its CPUs and its memory; tonic by itself takes 4 MiB.
const MAX_ANSWER_BYTES: usize = 16 << 20;

/// What the kubelet said last.
#[derive(Clone, Debug, Default)]
pub struct KnownDevices {
    pub resources: Arc<KubeletResources>,
    /// `None` until it was asked.
    pub state: Option<MeterState>,
}

/// The asker's end.
#[derive(Clone, Debug)]
pub struct PodResources {
    told: watch::Receiver<KnownDevices>,
    wanted: Arc<Notify>,
}

impl PodResources {
    /// Starts the task that asks at `socket`; it must be called within a runtime.
    #[must_use]
    pub fn start(socket: &Path) -> Self {
        let (publish, told) = watch::channel(KnownDevices::default());
        let wanted = Arc::new(Notify::new());
        tokio::spawn(answer(socket.to_owned(), Arc::clone(&wanted), publish));
        Self { told, wanted }
    }

    /// Has the kubelet asked, without waiting.
    pub fn ask(&self) {
        self.wanted.notify_one();
    }

    #[must_use]
    pub fn told(&self) -> KnownDevices {
        self.told.borrow().clone()
    }
}

async fn answer(socket: PathBuf, wanted: Arc<Notify>, publish: watch::Sender<KnownDevices>) {
    loop {
        wanted.notified().await;
        if publish.is_closed() {
            return;
        }
        let before = publish.borrow().clone();
        let was = before.state.as_ref().map(|state| state.reason);
        let told = match ask(&socket).await {
            // Not a kubelet's node, or the socket is not mounted: no fault, so nothing is said.
            Ok(None) => {
                let detail = format!(
                    "no {}; on a Kubernetes node mount it, or name it with --pods.resources-socket",
                    socket.display()
                );
                let state = MeterState::down(MeterName::PodResources, Reason::Absent, detail);
                KnownDevices { resources: Arc::default(), state: Some(state) }
            }
            Ok(Some(resources)) => {
                if was.is_some_and(|reason| reason != Reason::Ok) {
                    info!(socket = %socket.display(), "the kubelet reports device allocations");
                }
                // What did not change stays the same value, so that nobody looks again.
                let same = *before.resources == resources;
                let resources = if same { before.resources } else { Arc::new(resources) };
                let detail = format!("{} devices are allocated", resources.devices.len());
                KnownDevices { resources, state: Some(MeterState::up(MeterName::PodResources, detail)) }
            }
            Err(error) => {
                let detail = format!("{}: {error:#}", socket.display());
                if was != Some(Reason::Error) {
                    warn!(error = detail, "device allocations cannot be read");
                }
                // What was given is hardly taken back at once.
                let state = MeterState::down(MeterName::PodResources, Reason::Error, detail);
                KnownDevices { resources: before.resources, state: Some(state) }
            }
        };
        publish.send_replace(told);
    }
}

/// What the kubelet says at this moment. `None`: there is no socket, and so no kubelet that could have given anything.
///
/// # Errors
/// When it does not answer.
pub async fn ask(socket: &Path) -> Result<Option<KubeletResources>> {
    if !socket.exists() {
        return Ok(None);
    }
    timeout(DEADLINE, list(socket)).await.context("no answer in 5 s").flatten().map(Some)
}

/// Asks once, over a connection of its own.
async fn list(socket: &Path) -> Result<KubeletResources> {
    let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display())).context("address of the socket")?;
    let channel = endpoint.connect().await.context("connecting")?;
    let mut client = tonic::client::Grpc::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES);
    client.ready().await.context("connecting")?;
    let path = PathAndQuery::from_static("/v1.PodResourcesLister/List");
    let codec = ProstCodec::<ListRequest, ListResponse>::default();
    let answer = client.unary(tonic::Request::new(ListRequest {}), path, codec).await.context("listing")?;
    Ok(KubeletResources::from(answer.into_inner()))
}

impl From<ListResponse> for KubeletResources {
    fn from(response: ListResponse) -> Self {
        let mut devices = BTreeMap::<DeviceId, Vec<Holder>>::new();
        let (mut names, mut doubles) = (BTreeSet::new(), BTreeSet::new());
        for pod in response.pods {
            for container in &pod.containers {
                let of_plugins = container
                    .devices
                    .iter()
                    .flat_map(|devices| devices.ids.iter().filter_map(|id| DeviceId::of_plugin(&devices.resource, id)));
                let claims = container.dynamic_resources.iter().flat_map(|resource| &resource.claims);
                let ids = of_plugins.chain(claims.flat_map(messages::ClaimMessage::devices));
                for id in ids {
                    let [namespace, name] = [&pod.namespace, &pod.name].map(Clone::clone);
                    let holder = Holder { namespace, pod: name, container: container.name.clone() };
                    devices.entry(id).or_default().push(holder);
                }
            }
            let name = (pod.namespace, pod.name);
            if !names.insert(name.clone()) {
                doubles.insert(name);
            }
        }
        for holders in devices.values_mut() {
            holders.sort();
            holders.dedup();
        }
        Self { devices, doubles }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod_resources::messages::{ContainerMessage, DevicesMessage, PodMessage};

    #[test]
    fn an_answer_with_two_pods_of_one_name_says_so() {
        let pod = |namespace: &str, id: &str| {
            let devices = vec![DevicesMessage { resource: "nvidia.com/gpu".to_owned(), ids: vec![id.to_owned()] }];
            let container = ContainerMessage { name: "main".to_owned(), devices, dynamic_resources: Vec::new() };
            PodMessage { name: "train".to_owned(), namespace: namespace.to_owned(), containers: vec![container] }
        };
        let resources = |pods: Vec<PodMessage>| KubeletResources::from(ListResponse { pods });
        let told = resources(vec![pod("ml", "GPU-1"), pod("web", "GPU-2"), pod("ml", "GPU-3")]);
        assert_eq!(told.doubles, BTreeSet::from([("ml".to_owned(), "train".to_owned())]));
        assert_eq!(told.devices.len(), 3);
        assert_eq!(resources(vec![pod("ml", "GPU-1"), pod("web", "GPU-2")]).doubles, BTreeSet::new());
    }
}
