//! A pod as the API server and the kubelet write it, read into as little as is used: a few kilobytes of JSON become a
//! few hundred bytes.

use std::collections::BTreeMap;
use std::sync::Arc;

use energy_model::workload::cgroup::is_pod_uid;
use energy_model::workload::names::{Pod, PodContainer};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// Field names are those of <https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/>.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PodObject {
    pub metadata: PodMeta,
    spec: PodSpec,
    status: PodStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodMeta {
    pub uid: String,
    pub resource_version: String,
    name: String,
    namespace: String,
    #[serde(deserialize_with = "or_null")]
    labels: BTreeMap<String, String>,
    #[serde(deserialize_with = "or_null")]
    annotations: Annotations,
    #[serde(deserialize_with = "or_null")]
    owner_references: Vec<OwnerReference>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Annotations {
    #[serde(rename = "kubernetes.io/config.hash")]
    config_hash: Option<String>,
    #[serde(rename = "kubernetes.io/config.mirror")]
    config_mirror: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct OwnerReference {
    api_version: String,
    kind: String,
    name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodSpec {
    #[serde(deserialize_with = "or_null")]
    node_name: String,
    #[serde(deserialize_with = "or_null")]
    priority: i32,
    #[serde(deserialize_with = "or_null")]
    containers: Vec<ContainerSpec>,
    #[serde(deserialize_with = "or_null")]
    init_containers: Vec<ContainerSpec>,
    #[serde(deserialize_with = "or_null")]
    ephemeral_containers: Vec<ContainerSpec>,
    #[serde(deserialize_with = "or_null")]
    overhead: Amounts,
    #[serde(deserialize_with = "or_null")]
    resources: ContainerResources,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ContainerSpec {
    name: String,
    restart_policy: Option<String>,
    #[serde(deserialize_with = "or_null")]
    resources: ContainerResources,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ContainerResources {
    #[serde(deserialize_with = "or_null")]
    requests: Amounts,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Amounts {
    cpu: Value,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodStatus {
    #[serde(deserialize_with = "or_null")]
    container_statuses: Vec<ContainerStatus>,
    #[serde(deserialize_with = "or_null")]
    init_container_statuses: Vec<ContainerStatus>,
    #[serde(deserialize_with = "or_null")]
    ephemeral_container_statuses: Vec<ContainerStatus>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ContainerStatus {
    name: String,
    #[serde(rename = "containerID")]
    container_id: Option<String>,
    #[serde(deserialize_with = "or_null")]
    state: ContainerState,
    #[serde(deserialize_with = "or_null")]
    last_state: ContainerState,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ContainerState {
    #[serde(deserialize_with = "or_null")]
    terminated: Terminated,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Terminated {
    #[serde(rename = "containerID")]
    container_id: Option<String>,
}

/// A missing field, and one that is null.
fn or_null<'de, T: Default + Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

impl From<PodObject> for Pod {
    fn from(object: PodObject) -> Self {
        let PodObject { metadata, spec, status } = object;
        let cpu_request_milli = spec.cpu_request_milli();
        let config_hash = metadata.mirrored_hash(&spec.node_name).map(Arc::from);
        let statuses =
            [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
        let mut containers: Vec<PodContainer> = statuses.into_iter().flatten().map(PodContainer::from).collect();
        for container in [&spec.containers, &spec.init_containers, &spec.ephemeral_containers].into_iter().flatten() {
            if !containers.iter().any(|known| *known.name == *container.name) {
                containers.push(PodContainer { name: container.name.as_str().into(), ..PodContainer::default() });
            }
        }
        Self {
            uid: metadata.uid.into(),
            config_hash,
            namespace: metadata.namespace.into(),
            name: metadata.name.into(),
            labels: metadata.labels,
            containers,
            cpu_request_milli,
            priority: spec.priority,
        }
    }
}

impl PodMeta {
    /// The hash that a static pod's cgroup is named by, if this looks like its mirror pod: as the kubelet makes one since
    /// Kubernetes 1.17, with the hash in both annotations and the Node as its owner.
    /// <https://github.com/kubernetes/kubernetes/blob/v1.33.0/pkg/kubelet/pod/mirror_client.go>
    ///
    /// The hash is the static pod's uid: 32 hexadecimal digits, or a UUID where its manifest has one (OpenShift). The
    /// kubelet's own list has no mirror pods; there the static pod has that uid itself.
    fn mirrored_hash(&self, node: &str) -> Option<&str> {
        let Annotations { config_hash, config_mirror } = &self.annotations;
        let hash = config_hash.as_deref().filter(|hash| config_mirror.as_deref() == Some(*hash))?;
        let formed = is_pod_uid(hash) && !hash.bytes().any(|byte| byte.is_ascii_uppercase());
        let is_node = |owner: &OwnerReference| owner.api_version == "v1" && owner.kind == "Node" && owner.name == node;
        (formed && self.owner_references.iter().any(is_node)).then_some(hash)
    }
}

impl From<&ContainerStatus> for PodContainer {
    fn from(status: &ContainerStatus) -> Self {
        let id = |text: &Option<String>| {
            // `containerd://ID`; empty until the runtime has made the container (FC-027).
            let id = text.as_deref().map(|text| text.rsplit_once("://").map_or(text, |(_, id)| id));
            id.filter(|id| !id.is_empty()).map(Arc::<str>::from)
        };
        let ended = id(&status.state.terminated.container_id);
        let current = id(&status.container_id).or(ended);
        let previous = id(&status.last_state.terminated.container_id);
        Self {
            name: status.name.as_str().into(),
            past_ids: previous.filter(|previous| current.as_ref() != Some(previous)).into_iter().collect(),
            id: current,
        }
    }
}

impl PodSpec {
    /// What the scheduler reserves: containers and sidecars run side by side, other init containers one after another
    /// before them, beside the sidecars that were started by then; a request of the pod as a whole replaces that sum.
    /// <https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/#resource-sharing-within-containers>
    fn cpu_request_milli(&self) -> u64 {
        let request = |container: &ContainerSpec| cpu_milli(&container.resources.requests.cpu);
        let (mut sidecars, mut starting) = (0_u64, 0_u64);
        for container in &self.init_containers {
            if container.restart_policy.as_deref() == Some("Always") {
                sidecars = sidecars.saturating_add(request(container));
                starting = starting.max(sidecars);
            } else {
                starting = starting.max(sidecars.saturating_add(request(container)));
            }
        }
        let running = self.containers.iter().map(request).fold(sidecars, u64::saturating_add);
        let of_pod = Some(cpu_milli(&self.resources.requests.cpu)).filter(|milli| *milli > 0);
        of_pod.unwrap_or(running.max(starting)).saturating_add(cpu_milli(&self.overhead.cpu))
    }
}

/// A quantity of CPUs (`100m`, `0.5`, `2`, also as a number) in thousandths, rounded up as the scheduler does; 0 for
/// what is none. <https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/>
fn cpu_milli(quantity: &Value) -> u64 {
    let text = match quantity {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return 0,
    };
    let (digits, scale) = match text.find(|letter: char| !letter.is_ascii_digit() && letter != '.') {
        None => (text.as_str(), 0),
        Some(at) => match &text[at..] {
            "n" => (&text[..at], -9),
            "u" => (&text[..at], -6),
            "m" => (&text[..at], -3),
            "k" => (&text[..at], 3),
            _ => return 0,
        },
    };
    // Nanocores, so that every digit that Kubernetes keeps is there.
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let places = usize::try_from(9 + scale).unwrap_or(0);
    let fraction: String = fraction.chars().chain(std::iter::repeat('0')).take(places).collect();
    let nano: u128 = format!("{whole}{fraction}").parse().unwrap_or(0);
    u64::try_from(nano.div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(text: &str) -> Pod {
        serde_json::from_str::<PodObject>(text).unwrap().into()
    }

    #[test]
    fn containers_of_every_kind_have_their_ids() {
        let text = include_str!("../../../../../tests/cases/FC-032-all-container-kinds.json");
        let case: Value = serde_json::from_str(text).unwrap();
        let pod = pod(&case["pod"].to_string());
        let ids: Vec<_> = pod.containers.iter().map(|it| (&*it.name, &it.id.as_ref().unwrap()[..12])).collect();
        let expected = [
            ("main", "2a7d229ad9ce"),
            ("migrate", "185354a2b4d6"),
            ("proxy", "0ec999d9d7b1"),
            ("debugger-1", "764a195069c5"),
        ];
        assert_eq!(ids, expected);
        assert_eq!((&*pod.namespace, &*pod.name), ("apps", "mixed"));
    }

    #[test]
    fn a_static_pod_has_the_hash_that_its_cgroup_is_named_by() {
        let text = include_str!("../../../../../tests/cases/FC-026-static-pod.json");
        let case: Value = serde_json::from_str(text).unwrap();
        let mut mirror = case["pod_list"][0].clone();
        mirror["metadata"]["ownerReferences"] =
            serde_json::json!([{"apiVersion": "v1", "kind": "Node", "name": "node-a", "controller": true}]);
        let pod = |mirror: &Value| pod(&mirror.to_string());
        let hash = "905322c7772380d4801f7a74d88494d7";
        assert_eq!(pod(&mirror).config_hash.as_deref(), Some(hash));
        assert_eq!(&*pod(&mirror).uid, "1432f1f6-b7eb-5ece-abf5-0cca523bded2");
        // OpenShift gives static pods a uid of their own.
        let uuid = "d1578427-1919-52ea-898e-2489f38c2504";
        let mut with_uuid = mirror.clone();
        for annotation in ["kubernetes.io/config.hash", "kubernetes.io/config.mirror"] {
            with_uuid["metadata"]["annotations"][annotation] = uuid.into();
        }
        assert_eq!(pod(&with_uuid).config_hash.as_deref(), Some(uuid));
        // Whatever else has the annotation is no mirror pod.
        for (place, wrong) in [
            ("/metadata/annotations/kubernetes.io~1config.mirror", Value::Null),
            ("/metadata/annotations/kubernetes.io~1config.mirror", uuid.into()),
            ("/metadata/ownerReferences", Value::Null),
            ("/metadata/ownerReferences/0/kind", "ReplicaSet".into()),
            ("/metadata/ownerReferences/0/apiVersion", "example.com/v1".into()),
            ("/metadata/ownerReferences/0/name", "node-b".into()),
            ("/spec/nodeName", "node-b".into()),
            ("/spec/nodeName", Value::Null),
        ] {
            let mut other = mirror.clone();
            *other.pointer_mut(place).unwrap() = wrong.clone();
            assert_eq!(pod(&other).config_hash, None, "{place} {wrong}");
        }
        for formed in [&hash[1..], "905322C7772380D4801F7A74D88494D7", "../../905322c7772380d4801f7a74d8", ""] {
            let mut other = mirror.clone();
            for annotation in ["kubernetes.io/config.hash", "kubernetes.io/config.mirror"] {
                other["metadata"]["annotations"][annotation] = formed.into();
            }
            assert_eq!(pod(&other).config_hash, None, "{formed}");
        }
    }

    #[test]
    fn an_id_that_is_empty_null_or_missing_is_none_yet() {
        for status in [r#"{"name":"a","containerID":""}"#, r#"{"name":"a","containerID":null}"#, r#"{"name":"a"}"#] {
            let pod = pod(&format!(r#"{{"status":{{"containerStatuses":[{status}]}}}}"#));
            assert_eq!(pod.containers, [PodContainer { name: "a".into(), ..PodContainer::default() }]);
        }
        let planned = pod(r#"{"metadata":{"labels":null},"spec":{"containers":[{"name":"a"}],"initContainers":null}}"#);
        assert_eq!(planned.containers, [PodContainer { name: "a".into(), ..PodContainer::default() }]);
    }

    #[test]
    fn a_restarted_container_tells_its_previous_instance() {
        let pod = pod(r#"{"status":{"containerStatuses":[{"name":"a","containerID":"cri-o://two",
                "lastState":{"terminated":{"containerID":"cri-o://one"}}}]}}"#);
        let expected = PodContainer { name: "a".into(), id: Some("two".into()), past_ids: vec!["one".into()] };
        assert_eq!(pod.containers, [expected]);
    }

    #[test]
    fn quantities_of_cpu_are_thousandths_rounded_up() {
        let cases = [
            (Value::from("100m"), 100),
            (Value::from("0.5"), 500),
            (Value::from(2), 2000),
            (Value::from("1.5k"), 1_500_000),
            (Value::from("1500u"), 2),
            (Value::from("1n"), 1),
            (Value::from("0"), 0),
            (Value::from("lots"), 0),
            (Value::Null, 0),
        ];
        for (quantity, milli) in cases {
            assert_eq!(cpu_milli(&quantity), milli, "{quantity}");
        }
    }

    #[test]
    fn the_request_of_a_pod_is_the_schedulers() {
        let request = |cpu: &str| format!(r#""resources":{{"requests":{{"cpu":"{cpu}"}}}}"#);
        let (main, proxy, migrate) = (request("200m"), request("50m"), request("1"));
        let spec = |more: &str| {
            pod(&format!(
                r#"{{"spec":{{"containers":[{{"name":"a",{main}}},{{"name":"b",{main}}}],"initContainers":[
                {{"name":"proxy","restartPolicy":"Always",{proxy}}},{{"name":"migrate",{migrate}}}]{more}}}}}"#
            ))
            .cpu_request_milli
        };
        // While migrating: proxy and migrate; afterwards proxy, a and b (450m).
        assert_eq!(spec(""), 1050);
        assert_eq!(spec(r#","overhead":{"cpu":"10m"}"#), 1060);
        assert_eq!(spec(&format!(r#",{}"#, request("3"))), 3000);
    }
}
