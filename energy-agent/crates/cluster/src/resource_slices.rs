//! Which GPU a device of dynamic resource allocation is: the ResourceSlices of this node, in which its driver says the UUID
//! of each device. Asked for when the kubelet first names a claimed GPU, by one watch of the API server.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use energy_model::advice::Advice;
use energy_model::meter_state::{MeterName, MeterState, Reason};
use energy_model::workload::device_id::{Claimed, is_nvidias, is_uuid};
use energy_model::workload::holder::Uuids;
use kube::Error;
use kube::api::ListParams;
use kube::core::Request;
use serde::Deserialize;
use tokio::sync::{Notify, watch as channel};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::config::{ClusterConfig, PodsSource};
use crate::kubernetes::watch::{self, Heard, Query};
use crate::kubernetes::{ClusterError, Credentials};

/// Versions of the API, the newest first.
const VERSIONS: [&str; 3] = ["v1", "v1beta2", "v1beta1"];
const OBJECT: &str = "resourceslices at cluster scope";
/// A slice has 128 devices at most.
const PAGE: u32 = 50;
/// Slices that are kept; a node's GPUs and their MIG devices fill a few.
const MAX_SLICES: usize = 64;
/// Time between two looks for a version, while the API server has none or refuses.
const AGAIN: Duration = Duration::from_secs(30);
/// As for each other request.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// What is known of the slices.
#[derive(Clone, Debug, Default)]
pub struct KnownSlices {
    pub uuids: Arc<Uuids>,
    /// `None` until they were asked for.
    pub state: Option<MeterState>,
}

/// The asker's end.
#[derive(Clone, Debug)]
pub struct ResourceSlices {
    told: channel::Receiver<KnownSlices>,
    wanted: Arc<Notify>,
}

impl ResourceSlices {
    /// Starts the task that asks once they are wanted; it must be called within a runtime.
    #[must_use]
    pub fn start(config: &ClusterConfig, node: &str) -> Self {
        let credentials = match config.pods_source {
            PodsSource::None => Err(ClusterError::new(Reason::Off, "switched off by --pods.source=none")),
            PodsSource::Auto | PodsSource::Api | PodsSource::Kubelet => {
                Credentials::find(config.kubeconfig.as_deref()).ok_or_else(ClusterError::no_credentials)
            }
        };
        let (publish, told) = channel::channel(KnownSlices::default());
        let wanted = Arc::new(Notify::new());
        let teller = SlicePublisher { publish, slices: HashMap::new(), node: node.to_owned() };
        tokio::spawn(run(credentials, Arc::clone(&wanted), teller));
        Self { told, wanted }
    }

    /// Has them followed from now on, without waiting.
    pub fn want(&self) {
        self.wanted.notify_one();
    }

    #[must_use]
    pub fn told(&self) -> KnownSlices {
        self.told.borrow().clone()
    }
}

async fn run(credentials: Result<Credentials, ClusterError>, wanted: Arc<Notify>, mut teller: SlicePublisher) {
    wanted.notified().await;
    let credentials = match credentials {
        Ok(credentials) => credentials,
        Err(trouble) => {
            teller.failed(&trouble);
            return;
        }
    };
    loop {
        match version(&credentials, &teller.node).await {
            Ok(version) => {
                let query = query(version, &teller.node);
                let fails = Notify::new();
                let tell = |heard| {
                    // The version may have gone with an upgrade of the API server.
                    if matches!(&heard, Heard::Failed(trouble) if matches!(trouble.reason, Reason::Error | Reason::Absent))
                    {
                        fails.notify_one();
                    }
                    teller.hear(heard);
                };
                tokio::select! {
                    () = watch::run(credentials.clone(), query, tell) => {}
                    () = fails.notified() => {}
                }
            }
            Err(trouble) => teller.failed(&trouble),
        }
        sleep(AGAIN).await;
    }
}

fn query(version: &str, node: &str) -> Query {
    Query {
        path: format!("/apis/resource.k8s.io/{version}/resourceslices"),
        object: OBJECT.to_owned(),
        fields: Some(format!("spec.nodeName={node}")),
        labels: None,
        page: PAGE,
    }
}

/// The newest version that the API server has.
async fn version(credentials: &Credentials, node: &str) -> Result<&'static str, ClusterError> {
    let server = credentials.client().await?;
    for version in VERSIONS {
        let Query { path, fields, .. } = query(version, node);
        let parameters = ListParams { field_selector: fields, limit: Some(1), ..ListParams::default() };
        let trouble = |error: &Error| server.trouble(error, "list", OBJECT);
        let request = Request::new(path).list(&parameters);
        let request = request.map_err(|error| trouble(&Error::BuildRequest(error)))?;
        let answer = timeout(ANSWER_TIMEOUT, server.client.request_text(request)).await;
        match answer.map_err(|_| server.silence("list", OBJECT, ANSWER_TIMEOUT))? {
            Ok(_) => return Ok(version),
            Err(Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(trouble(&error)),
        }
    }
    let what = format!("the API server at {} has no resource.k8s.io in {}", server.url, VERSIONS.join(", "));
    Err(ClusterError::new(Reason::Absent, Advice::new(what, "serve one of them")))
}

/// As far as it is used. Source: <https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/resource-slice-v1/>.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Slice {
    metadata: SliceMeta,
    spec: SliceSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SliceMeta {
    name: String,
    resource_version: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SliceSpec {
    driver: String,
    node_name: Option<String>,
    pool: Pool,
    devices: Option<Vec<SliceDevice>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Pool {
    name: String,
    /// Slices of an older one are void.
    generation: i64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct SliceDevice {
    name: String,
    attributes: Option<BTreeMap<String, Attribute>>,
    /// Where v1beta1 has the attributes.
    basic: Option<Basic>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Basic {
    attributes: Option<BTreeMap<String, Attribute>>,
}

/// A number, a version or a truth value has none.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Attribute {
    string: Option<String>,
}

impl watch::Watched for Slice {
    fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}

impl SliceSpec {
    /// The API server's selection by node is not taken on trust.
    fn is_of(&self, node: &str) -> bool {
        is_nvidias(&self.driver) && self.node_name.as_deref() == Some(node)
    }
}

impl SliceDevice {
    /// The attribute `uuid` of the driver's own domain, which need not be said.
    fn uuid(&self, driver: &str) -> Option<&str> {
        let basic = self.basic.as_ref().and_then(|basic| basic.attributes.as_ref());
        let attributes = self.attributes.as_ref().or(basic)?;
        let attribute = attributes.get("uuid").or_else(|| attributes.get(&format!("{driver}/uuid")))?;
        attribute.string.as_deref().filter(|uuid| is_uuid(uuid))
    }
}

/// What the newest slices of each pool of `node` say. A device that is there twice, as two GPUs, is neither.
fn uuids<'a>(slices: impl Iterator<Item = &'a SliceSpec> + Clone, node: &str) -> Uuids {
    let own = slices.filter(|spec| spec.is_of(node));
    let mut newest: BTreeMap<(&str, &str), i64> = BTreeMap::new();
    for SliceSpec { driver, pool, .. } in own.clone() {
        let newest = newest.entry((driver, &pool.name)).or_insert(pool.generation);
        *newest = pool.generation.max(*newest);
    }
    let mut found: BTreeMap<Claimed, Option<Arc<str>>> = BTreeMap::new();
    for SliceSpec { driver, pool, devices, .. } in own {
        if newest.get(&(driver.as_str(), pool.name.as_str())) != Some(&pool.generation) {
            continue;
        }
        for device in devices.iter().flatten() {
            let Some(uuid) = device.uuid(driver) else { continue };
            let [driver, pool, device] = [driver, &pool.name, &device.name].map(|name| Arc::from(name.as_str()));
            let known = found.entry(Claimed { driver, pool, device }).or_insert_with(|| Some(Arc::from(uuid)));
            if known.as_deref() != Some(uuid) {
                *known = None;
            }
        }
    }
    found.into_iter().filter_map(|(device, uuid)| Some((device, uuid?))).collect()
}

/// The task's end of the channel. What was published stays through every error.
struct SlicePublisher {
    publish: channel::Sender<KnownSlices>,
    /// By the object's name.
    slices: HashMap<String, SliceSpec>,
    node: String,
}

impl SlicePublisher {
    fn hear(&mut self, heard: Heard<Slice>) {
        match heard {
            Heard::All(all) => {
                self.slices.clear();
                all.into_iter().for_each(|slice| self.keep(slice));
            }
            Heard::Applied(slice) => self.keep(slice),
            Heard::Deleted(Slice { metadata, .. }) => drop(self.slices.remove(&metadata.name)),
            Heard::Answered => self.answered(),
            Heard::Failed(trouble) => self.failed(&trouble),
        }
    }

    fn keep(&mut self, Slice { metadata, spec }: Slice) {
        let has_room = self.slices.len() < MAX_SLICES || self.slices.contains_key(&metadata.name);
        if has_room && spec.is_of(&self.node) {
            self.slices.insert(metadata.name, spec);
        }
    }

    fn answered(&self) {
        let uuids = uuids(self.slices.values(), &self.node);
        let detail = format!("{} GPUs and MIG devices in the resource slices of this node", uuids.len());
        let before = self.publish.borrow().clone();
        // What did not change stays the same value, so that nobody looks again.
        let uuids = if *before.uuids == uuids { before.uuids } else { Arc::new(uuids) };
        if before.state.is_none_or(|state| !state.is_up()) {
            info!(found = detail, "claimed GPUs are identified by the cluster's resource slices");
        }
        self.publish
            .send_replace(KnownSlices { uuids, state: Some(MeterState::up(MeterName::ResourceSlices, detail)) });
    }

    /// Said once for each reason in a row.
    fn failed(&self, ClusterError { reason, advice }: &ClusterError) {
        let before = self.publish.borrow().clone();
        if before.state.is_none_or(|state| state.reason != *reason) {
            warn!(
                reason = reason.as_str(),
                problem = %advice,
                "claimed GPUs cannot be identified by the cluster's resource slices; their processes still show who uses them"
            );
        }
        let now = MeterState::down(MeterName::ResourceSlices, *reason, advice.clone());
        self.publish.send_replace(KnownSlices { uuids: before.uuids, state: Some(now) });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const NODE: &str = "worker-1";

    fn slice(driver: &str, node: &str, generation: i64, devices: &Value) -> SliceSpec {
        let pool = json!({"name": "worker-1", "generation": generation, "resourceSliceCount": 1});
        let spec = json!({"driver": driver, "nodeName": node, "pool": pool, "devices": devices});
        let slice: Slice = serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": spec})).unwrap();
        slice.spec
    }

    fn found(slices: &[SliceSpec]) -> Vec<(String, String)> {
        let found = uuids(slices.iter(), NODE).into_iter();
        found.map(|(claimed, uuid)| (claimed.device.to_string(), uuid.to_string())).collect()
    }

    fn pair(device: &str, uuid: &str) -> (String, String) {
        (device.to_owned(), uuid.to_owned())
    }

    #[test]
    fn the_uuid_is_read_in_every_version_of_the_api() {
        let uuid = |uuid: &str| json!({"string": uuid});
        let devices = json!([
            {"name": "gpu-0", "attributes": {"uuid": uuid("GPU-a"), "index": {"int": 0}, "driverVersion": {"version": "570.0.0"}}},
            {"name": "gpu-1", "attributes": {"gpu.nvidia.com/uuid": uuid("GPU-b")}},
            {"name": "gpu-2", "basic": {"attributes": {"uuid": uuid("GPU-c")}, "capacity": {"memory": {"value": "80Gi"}}}},
            {"name": "gpu-0-mig-9-4-4", "attributes": {"uuid": uuid("MIG-d"), "parentUUID": uuid("GPU-a")}},
            {"name": "gpu-3", "attributes": {"uuid": {"int": 3}}},
            {"name": "gpu-4", "attributes": {"other.example.com/uuid": uuid("GPU-e")}},
            {"name": "gpu-5", "attributes": {"uuid": uuid("something")}},
            {"name": "gpu-6"},
        ]);
        let expected =
            [pair("gpu-0", "GPU-a"), pair("gpu-0-mig-9-4-4", "MIG-d"), pair("gpu-1", "GPU-b"), pair("gpu-2", "GPU-c")];
        assert_eq!(found(&[slice("gpu.nvidia.com", NODE, 1, &devices)]), expected);
        assert_eq!(found(&[slice("gpu.nvidia.com", NODE, 1, &Value::Null)]), []);
    }

    #[test]
    fn only_the_newest_slices_of_this_nodes_own_drivers_count() {
        let gpu = |uuid: &str| json!([{"name": "gpu-0", "attributes": {"uuid": {"string": uuid}}}]);
        let own = slice("gpu.nvidia.com", NODE, 2, &gpu("GPU-a"));
        let others = [
            slice("gpu.example.com", NODE, 9, &gpu("GPU-b")),
            slice("gpu.nvidia.com", "worker-2", 9, &gpu("GPU-b")),
            slice("gpu.nvidia.com", NODE, 1, &gpu("GPU-b")),
        ];
        assert_eq!(found(&[&others[..], std::slice::from_ref(&own)].concat()), [pair("gpu-0", "GPU-a")]);
        // Two slices of one generation that say otherwise.
        assert_eq!(found(&[own.clone(), slice("gpu.nvidia.com", NODE, 2, &gpu("GPU-b"))]), []);
        assert_eq!(found(&[own.clone(), own]), [pair("gpu-0", "GPU-a")]);
    }
}
