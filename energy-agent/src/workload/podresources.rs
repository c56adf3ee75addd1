//! Which pod the kubelet gave which NVIDIA device: its PodResources service, asked over a unix socket when somebody wants
//! to know. It serves where processes cannot be seen, and tells whether a GPU is one pod's alone.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use hyper::http::uri::PathAndQuery;
use prost::Message;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Endpoint;
use tracing::{info, warn};

use crate::meter::MeterState;

/// The kubelet answers from memory.
const DEADLINE: Duration = Duration::from_secs(5);
/// The answer names every pod of the node, its CPUs and its memory; tonic by itself takes 4 MiB.
const MAX_ANSWER_BYTES: usize = 16 << 20;
/// Only devices of this vendor are looked at.
const VENDOR: &str = "nvidia.com/";

/// The containers that have each device, by its UUID (`GPU-...` or `MIG-...`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    pub devices: BTreeMap<String, Vec<Holder>>,
}

/// A container that was given a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    pub namespace: String,
    pub pod: String,
    pub container: String,
}

/// What the kubelet said last.
#[derive(Clone, Debug, Default)]
pub struct Told {
    pub resources: Arc<Resources>,
    /// `None` until it was asked.
    pub state: Option<MeterState>,
}

/// The asker's end.
#[derive(Clone, Debug)]
pub struct PodResources {
    told: watch::Receiver<Told>,
    wanted: Arc<Notify>,
}

impl PodResources {
    /// Starts the task that asks at `socket`; it must be called within a runtime.
    #[must_use]
    pub fn start(socket: &Path) -> Self {
        let (publish, told) = watch::channel(Told::default());
        let wanted = Arc::new(Notify::new());
        tokio::spawn(answer(socket.to_owned(), Arc::clone(&wanted), publish));
        Self { told, wanted }
    }

    /// Has the kubelet asked, without waiting.
    pub fn ask(&self) {
        self.wanted.notify_one();
    }

    #[must_use]
    pub fn told(&self) -> Told {
        self.told.borrow().clone()
    }
}

async fn answer(socket: PathBuf, wanted: Arc<Notify>, publish: watch::Sender<Told>) {
    loop {
        wanted.notified().await;
        if publish.is_closed() {
            return;
        }
        let before = publish.borrow().clone();
        let was = before.state.as_ref().map(|state| state.reason);
        // Not a kubelet's node, or the socket is not mounted: no fault, so nothing is said.
        if !socket.exists() {
            let detail = format!(
                "no {}; on a Kubernetes node mount it, or name it by --pods.resources-socket",
                socket.display()
            );
            publish.send_replace(Told { resources: Arc::default(), state: Some(state(false, "absent", detail)) });
            continue;
        }
        let listed = timeout(DEADLINE, list(&socket)).await.context("no answer in 5 s").flatten();
        let told = match listed {
            Ok(resources) => {
                if was.is_some_and(|reason| reason != "ok") {
                    info!(socket = %socket.display(), "kubelet tells device allocations");
                }
                // What did not change stays the same value, so that nobody looks again.
                let same = *before.resources == resources;
                let resources = if same { before.resources } else { Arc::new(resources) };
                let detail = format!("{} devices are allocated", resources.devices.len());
                Told { resources, state: Some(state(true, "ok", detail)) }
            }
            Err(error) => {
                let detail = format!("{}: {error:#}", socket.display());
                if was != Some("error") {
                    warn!(error = detail, "device allocations cannot be asked for");
                }
                // What was given is hardly taken back at once.
                Told { resources: before.resources, state: Some(state(false, "error", detail)) }
            }
        };
        publish.send_replace(told);
    }
}

fn state(up: bool, reason: &'static str, detail: String) -> MeterState {
    MeterState { meter: "pod_resources", up, reason, detail }
}

/// Asks once, over a connection of its own.
async fn list(socket: &Path) -> Result<Resources> {
    let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display())).context("address of the socket")?;
    let channel = endpoint.connect().await.context("connecting")?;
    let mut client = tonic::client::Grpc::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES);
    client.ready().await.context("connecting")?;
    let path = PathAndQuery::from_static("/v1.PodResourcesLister/List");
    let codec = Messages::<ListRequest, ListResponse>(PhantomData);
    let answer = client.unary(tonic::Request::new(ListRequest {}), path, codec).await.context("listing")?;
    Ok(Resources::from(answer.into_inner()))
}

impl From<ListResponse> for Resources {
    fn from(response: ListResponse) -> Self {
        let mut devices = BTreeMap::<String, Vec<Holder>>::new();
        for pod in response.pods {
            for container in pod.containers {
                let of_vendor = container.devices.iter().filter(|device| device.resource.starts_with(VENDOR));
                for id in of_vendor.flat_map(|device| &device.ids) {
                    // Shared devices are handed out in numbered copies, `GPU-...::3`.
                    let id = id.split_once("::").map_or(id.as_str(), |(id, _)| id);
                    let [namespace, name] = [&pod.namespace, &pod.name].map(Clone::clone);
                    let holder = Holder { namespace, pod: name, container: container.name.clone() };
                    devices.entry(id.to_owned()).or_default().push(holder);
                }
            }
        }
        for holders in devices.values_mut() {
            holders.sort();
            holders.dedup();
        }
        Self { devices }
    }
}

// The parts that are used of
// <https://github.com/kubernetes/kubelet/blob/v0.33.0/pkg/apis/podresources/v1/api.proto>.

#[derive(Clone, PartialEq, Eq, Message)]
struct ListRequest {}

#[derive(Clone, PartialEq, Eq, Message)]
struct ListResponse {
    #[prost(message, repeated, tag = "1")]
    pods: Vec<PodMessage>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct PodMessage {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    namespace: String,
    #[prost(message, repeated, tag = "3")]
    containers: Vec<ContainerMessage>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct ContainerMessage {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "2")]
    devices: Vec<DevicesMessage>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct DevicesMessage {
    #[prost(string, tag = "1")]
    resource: String,
    #[prost(string, repeated, tag = "2")]
    ids: Vec<String>,
}

/// Encodes one message and decodes another.
struct Messages<Sent, Received>(PhantomData<(Sent, Received)>);

impl<Sent, Received> Codec for Messages<Sent, Received>
where
    Sent: Message + Send + 'static,
    Received: Message + Default + Send + 'static,
{
    type Encode = Sent;
    type Decode = Received;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self(PhantomData)
    }

    fn decoder(&mut self) -> Self {
        Self(PhantomData)
    }
}

impl<Sent: Message, Received> Encoder for Messages<Sent, Received> {
    type Item = Sent;
    type Error = Status;

    fn encode(&mut self, item: Sent, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        item.encode(buffer).map_err(|error| Status::internal(error.to_string()))
    }
}

impl<Sent, Received: Message + Default> Decoder for Messages<Sent, Received> {
    type Item = Received;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Received>, Status> {
        Received::decode(buffer).map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}
