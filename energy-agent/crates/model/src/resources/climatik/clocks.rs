//! The clocks that NodeFrequencies of Climatik ask for.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{WRITTEN, is_as_written};
use crate::resources::api_version;
use crate::resources::definitions::frequencies::{CORES, GPUS};
use crate::resources::node_frequencies::{self, CpuFrequency, GpuFrequency, NodeFrequenciesSpec};
use crate::resources::object::KubeObject;

/// Clocks that our kind takes, in MHz.
const CLOCKS: (i64, i64) = (100, 10_000);
const LONGEST_UUID: usize = 64;
const MOST_CORES: i64 = 65_535;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct FrequenciesSpec {
    node_name: String,
    #[serde(default)]
    gpu_frequencies: Vec<AskedGpu>,
    #[serde(default)]
    cpu_frequencies: Vec<AskedCore>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AskedGpu {
    uuid: String,
    /// MHz; 0 asks for nothing.
    #[serde(default)]
    graphics_frequency: i64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AskedCore {
    core_id: i64,
    #[serde(default)]
    frequency: i64,
}

/// What NodeFrequencies of Climatik ask for, by node, and what is wrong with those that are left out.
#[derive(Debug, Default)]
pub struct AskedClocks<'a> {
    pub nodes: BTreeMap<String, NodeClocks<'a>>,
    pub refused: Vec<(&'a KubeObject, String)>,
}

/// Clocks of one node in MHz, by UUID of the GPU and by core.
#[derive(Debug, Default)]
pub struct NodeClocks<'a> {
    /// The first object that asks for them.
    pub by: Option<&'a KubeObject>,
    gpus: BTreeMap<String, u32>,
    cores: BTreeMap<u32, u32>,
}

/// Reads all of them; of two clocks of a device the lower one counts.
pub fn asked_clocks<'a>(theirs: impl IntoIterator<Item = &'a KubeObject>) -> AskedClocks<'a> {
    let mut asked = AskedClocks::default();
    for object in theirs {
        match read_clocks(object) {
            Ok((node, clocks)) => {
                let there = asked.nodes.entry(node).or_default();
                if !there.has_room(&clocks) {
                    let message = format!("its node would have clocks of more than {GPUS} GPUs or {CORES} cores");
                    asked.refused.push((object, message));
                    continue;
                }
                there.by.get_or_insert(object);
                for (uuid, clock) in clocks.gpus {
                    there.gpus.entry(uuid).and_modify(|lowest| *lowest = clock.min(*lowest)).or_insert(clock);
                }
                for (core, clock) in clocks.cores {
                    there.cores.entry(core).and_modify(|lowest| *lowest = clock.min(*lowest)).or_insert(clock);
                }
            }
            Err(refusal) => asked.refused.push((object, refusal)),
        }
    }
    asked
}

impl NodeClocks<'_> {
    /// An object of ours has lists of limited length.
    fn has_room(&self, more: &NodeClocks<'_>) -> bool {
        let gpus = more.gpus.keys().filter(|uuid| !self.gpus.contains_key(*uuid)).count();
        let cores = more.cores.keys().filter(|core| !self.cores.contains_key(core)).count();
        self.gpus.len() + gpus <= GPUS && self.cores.len() + cores <= CORES
    }
}

fn read_clocks(theirs: &KubeObject) -> Result<(String, NodeClocks<'_>), String> {
    let FrequenciesSpec { node_name, gpu_frequencies, cpu_frequencies } = theirs.spec()?;
    // It becomes the name of an object, and a part of its path.
    let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.';
    if node_name.is_empty() || node_name.len() > 253 || node_name.starts_with('.') || !node_name.bytes().all(is_name) {
        return Err("spec.nodeName: not the name of a node; write it as `kubectl get nodes` shows it".to_owned());
    }
    let mut clocks = NodeClocks::default();
    for AskedGpu { uuid, graphics_frequency } in gpu_frequencies {
        if uuid.is_empty() || uuid.len() > LONGEST_UUID {
            return Err(
                "spec.gpuFrequencies: a uuid is not that of a GPU; write it as `nvidia-smi -L` shows it".to_owned()
            );
        }
        clocks.gpus.extend(bound(graphics_frequency).map(|clock| (uuid, clock)));
    }
    for AskedCore { core_id, frequency } in cpu_frequencies {
        let core = u32::try_from(core_id).ok().filter(|_| core_id <= MOST_CORES);
        let core = core.ok_or_else(|| format!("spec.cpuFrequencies: coreId {core_id}; write 0 to {MOST_CORES}"))?;
        clocks.cores.extend(bound(frequency).map(|clock| (core, clock)));
    }
    Ok((node_name, clocks))
}

/// A clock within what our kind takes, in MHz; every device's own range is narrower.
fn bound(megahertz: i64) -> Option<u32> {
    u32::try_from(megahertz.clamp(CLOCKS.0, CLOCKS.1)).ok().filter(|_| megahertz > 0)
}

/// What has to be applied to the NodeFrequencies of a node, by a manager that owns nothing else there; `None`: nothing.
#[must_use]
pub fn clocks_write(node: &str, asked: &NodeClocks<'_>, there: Option<&KubeObject>) -> Option<Value> {
    let spec = NodeFrequenciesSpec {
        node_name: None,
        gpu_frequencies: asked
            .gpus
            .iter()
            .map(|(uuid, clock)| GpuFrequency { uuid: uuid.clone(), graphics_frequency: *clock, expiration_time: None })
            .collect(),
        cpu_frequencies: asked
            .cores
            .iter()
            .map(|(core, clock)| CpuFrequency { core_id: *core, frequency: *clock, expiration_time: None })
            .collect(),
    };
    let mut object = json!({
        "apiVersion": api_version(), "kind": node_frequencies::KIND, "metadata": {"name": node},
    });
    if asked.gpus.is_empty() && asked.cores.is_empty() {
        // Without the clocks of before, which are removed by that.
        return there.is_some_and(has_clocks).then_some(object);
    }
    object["spec"] = json!(spec);
    let written = object["spec"].to_string();
    if there.is_some_and(|there| is_as_written(there, &written, &object["spec"])) {
        return None;
    }
    object["metadata"]["annotations"] = json!({WRITTEN: written});
    Some(object)
}

/// Whether an object of ours has clocks of the bridge.
#[must_use]
pub fn has_clocks(ours: &KubeObject) -> bool {
    ours.metadata.annotations.contains_key(WRITTEN)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests panic")]

    use super::*;

    fn object(value: Value) -> KubeObject {
        serde_json::from_value(value).unwrap()
    }

    fn frequencies(name: &str, spec: Value) -> KubeObject {
        object(json!({"metadata": {"name": name, "namespace": "climatik-project"}, "spec": spec}))
    }

    #[test]
    fn the_lower_one_of_two_clocks_of_a_device_counts() {
        let one = frequencies(
            "one",
            json!({
                "nodeName": "gpu-1.example",
                "gpuFrequencies": [
                    {"uuid": "GPU-a", "graphicsFrequency": 1400, "memoryFrequency": 2000}, {"uuid": "GPU-b"},
                    {"uuid": "GPU-c", "graphicsFrequency": 15},
                ],
                "cpuFrequencies": [{"coreId": 3, "frequency": 2400}],
            }),
        );
        let two = frequencies(
            "two",
            json!({"nodeName": "gpu-1.example", "gpuFrequencies": [{"uuid": "GPU-a", "graphicsFrequency": 1300}]}),
        );
        let asked = asked_clocks([&one, &two]);
        let write = clocks_write("gpu-1.example", &asked.nodes["gpu-1.example"], None).unwrap();
        assert_eq!(write["metadata"]["name"], "gpu-1.example");
        assert_eq!(
            write["spec"],
            json!({
                "gpuFrequencies": [
                    {"uuid": "GPU-a", "graphicsFrequency": 1300}, {"uuid": "GPU-c", "graphicsFrequency": 100},
                ],
                "cpuFrequencies": [{"coreId": 3, "frequency": 2400}],
            })
        );
    }

    #[test]
    fn clocks_are_written_once_and_taken_away_with_what_asked_for_them() {
        let one = frequencies(
            "one",
            json!({"nodeName": "n", "gpuFrequencies": [{"uuid": "GPU-a", "graphicsFrequency": 900}]}),
        );
        let asked = asked_clocks([&one]);
        let mut there = clocks_write("n", &asked.nodes["n"], None).unwrap();
        // Another manager has a GPU of its own.
        there["spec"]["gpuFrequencies"]
            .as_array_mut()
            .unwrap()
            .push(json!({"uuid": "GPU-b", "graphicsFrequency": 500}));
        let there = object(there);
        assert_eq!(clocks_write("n", &asked.nodes["n"], Some(&there)), None);
        let gone = clocks_write("n", &NodeClocks::default(), Some(&there)).unwrap();
        assert_eq!((&gone["spec"], &gone["metadata"]), (&Value::Null, &json!({"name": "n"})));
        // Where the bridge has written nothing it takes nothing away, and makes no empty object.
        assert_eq!(clocks_write("n", &NodeClocks::default(), Some(&object(json!({"metadata": {"name": "n"}})))), None);
        assert_eq!(clocks_write("n", &NodeClocks::default(), None), None);
    }

    #[test]
    fn an_object_that_leaves_no_room_for_the_others_is_refused_and_theirs_count() {
        let many = |name: &str, from: usize| {
            let gpus: Vec<Value> =
                (from..from + 40).map(|gpu| json!({"uuid": format!("GPU-{gpu}"), "graphicsFrequency": 900})).collect();
            frequencies(name, json!({"nodeName": "n", "gpuFrequencies": gpus}))
        };
        let (one, two) = (many("one", 0), many("two", 30));
        let asked = asked_clocks([&one, &two]);
        assert_eq!((asked.nodes["n"].gpus.len(), asked.refused[0].0.metadata.name.as_str()), (40, "two"));
        assert_eq!(asked.nodes["n"].by.unwrap().metadata.name, "one");
        // 40 and 10 more are no more than 64.
        let overlap = many("overlap", 10);
        assert_eq!(asked_clocks([&one, &overlap]).nodes["n"].gpus.len(), 50);
    }

    #[test]
    fn names_that_would_lead_elsewhere_are_refused() {
        for name in ["", ".", "../../pods", "a/b", "a?b", "A"] {
            let bad = frequencies("bad", json!({"nodeName": name}));
            let asked = asked_clocks([&bad]);
            assert!(asked.nodes.is_empty() && asked.refused[0].1.starts_with("spec.nodeName"), "{name}");
        }
        let uuid = frequencies("bad", json!({"nodeName": "n", "gpuFrequencies": [{"uuid": "x".repeat(65)}]}));
        assert!(asked_clocks([&uuid]).refused[0].1.starts_with("spec.gpuFrequencies"));
        let core = frequencies("bad", json!({"nodeName": "n", "cpuFrequencies": [{"coreId": -1, "frequency": 1}]}));
        assert_eq!(asked_clocks([&core]).refused[0].1, "spec.cpuFrequencies: coreId -1; write 0 to 65535");
    }
}
