//! GPUs that are given by dynamic resource allocation: the kubelet names driver, pool and device, and the node's
//! ResourceSlices which GPU that is.

use serde_json::{Value, json};

use super::veiled;
use crate::common::agent::{Agent, wait_for};
use crate::common::kubernetes::node::{Node, Pod};
use crate::common::kubernetes::proxy::Answer;
use crate::common::kubernetes::status_object;
use crate::common::nvml::FakeNvml;
use crate::common::page::Page;
use crate::common::pod_resources::{Kubelet, claim, listed_pod};

const DRIVER: &str = "gpu.nvidia.com";
/// What this program's cluster has of them; the first is what an agent takes.
const VERSIONS: [&str; 2] = ["v1", "v1beta1"];

fn joules(page: &Page, pod: &Pod) -> u64 {
    page.microjoules("kepler_pod_gpu_joules_total", &[("pod_id", pod.uid())])
}

fn of_gpu(page: &Page, name: &str, uuid: &str) -> u64 {
    page.microjoules(name, &[("gpu_uuid", uuid)])
}

/// Two GPUs that work without processes to be seen, and each page until one has what is asked for.
struct World {
    node: Node,
    nvml: FakeNvml,
}

impl World {
    fn new() -> Self {
        let node = Node::new();
        node.cluster.serve_resource_slices(&VERSIONS);
        let nvml = FakeNvml::new().gpu(veiled("GPU-a")).gpu(veiled("GPU-b"));
        nvml.play();
        Self { node, nvml }
    }

    /// Of this driver, with this UUID as the attribute of its device `gpu-0`.
    fn slice(&self, version: &str, driver: &str, node: &str, device: &Value) {
        let pool = json!({"name": self.node.name, "generation": 1, "resourceSliceCount": 1});
        let spec = json!({"driver": driver, "nodeName": node, "pool": pool, "devices": [device]});
        self.node.cluster.create_slice(version, &format!("{node}-{driver}"), &spec);
    }

    fn agent(&self, kubelet: &Kubelet) -> Agent {
        let socket = format!("--pods.resources-socket={}", kubelet.socket().display());
        let flags = ["--meter.cpu=none", "--attribution.idle=none", "--gpu.dcgm-names", &socket, &self.nvml.flag()];
        self.node.agent(&flags)
    }

    fn when(&mut self, what: &str, agent: &Agent, holds: impl Fn(&Page) -> bool) -> Page {
        wait_for(what, || {
            self.nvml.at(0).energy_mj = self.nvml.at(0).energy_mj.map(|energy| energy + 10_000);
            self.nvml.add_energy(1, 10_000);
            let page = agent.scrape();
            page.assert_conserved();
            holds(&page).then_some(page)
        })
    }
}

fn state(page: &Page) -> Option<(String, String)> {
    let rows = page.select("energy_agent_meter_up", &[("meter", "resource_slices")]);
    rows.first().map(|row| (row.value.clone(), row.label("reason").to_owned()))
}

fn is_state(page: &Page, value: &str, reason: &str) -> bool {
    state(page) == Some((value.to_owned(), reason.to_owned()))
}

#[test]
fn a_claimed_gpu_is_the_pods_that_the_kubelet_names_and_nobody_takes_it_by_names() {
    let mut world = World::new();
    let name = world.node.name.clone();
    let device =
        |uuid: &str| json!({"name": "gpu-0", "attributes": {"uuid": {"string": uuid}, "type": {"string": "gpu"}}});
    world.slice("v1", DRIVER, &name, &device("GPU-a"));
    // Another vendor's device of the same pool and name, which says it is the GPU; and the other GPU as another node's.
    world.slice("v1", "fpga.example.com", &name, &device("GPU-b"));
    world.slice("v1", DRIVER, &format!("{name}-other"), &device("GPU-b"));
    let [train, thief] = ["train", "thief"].map(|pod| world.node.pod(pod, &["main"]));
    let _loads = [&train, &thief].map(|pod| pod.load("main", &["sleep", "0"]));
    // What a tenant names and may get: devices of other drivers, pools that are not this node's, claims called like GPUs.
    let taken = [
        claim("fpga.example.com", &name, "gpu-0"),
        claim(DRIVER, &format!("{name}-other"), "gpu-0"),
        claim(DRIVER, &name, "GPU-a"),
        claim("GPU-a", "GPU-a", "GPU-a"),
    ];
    let kubelet = Kubelet::start(
        [
            listed_pod(&name, "train", "main", &claim(DRIVER, &name, "gpu-0")),
            listed_pod(&name, "thief", "main", &taken.concat()),
            // Of another namespace.
            listed_pod("elsewhere", "thief", "main", &claim(DRIVER, &name, "gpu-1")),
        ]
        .concat(),
    );
    let agent = world.agent(&kubelet);
    let page = world.when("energy of the claimed GPU", &agent, |page| joules(page, &train) > 200_000_000);
    assert_eq!(joules(&page, &thief), 0);
    assert!(joules(&page, &train) <= of_gpu(&page, "kepler_node_gpu_joules_total", "GPU-a"));
    let nobodys = of_gpu(&page, "energy_agent_node_gpu_unattributed_joules_total", "GPU-b");
    assert_eq!(nobodys, of_gpu(&page, "kepler_node_gpu_joules_total", "GPU-b"));
    assert_eq!(state(&page), Some(("1".to_owned(), "ok".to_owned())));
    assert!(page.has("DCGM_FI_DEV_GPU_UTIL", &[("UUID", "GPU-a"), ("pod", "train"), ("namespace", &name)]));
    assert!(page.has("DCGM_FI_DEV_GPU_UTIL", &[("UUID", "GPU-b"), ("pod", "")]));
    // Of the cluster's slices only the node's own.
    let asked = world.node.proxy.asked();
    let asked: Vec<_> = asked.iter().filter(|asked| asked.path.contains("resourceslices")).collect();
    let own = format!("fieldSelector=spec.nodeName%3D{name}");
    assert!(asked.iter().any(|asked| asked.is_watch), "{asked:#?}");
    assert!(asked.iter().all(|asked| asked.path.split(['?', '&']).any(|pair| pair == own)), "{asked:#?}");
}

#[test]
fn without_the_right_or_the_api_all_else_goes_on_and_an_older_version_serves_too() {
    let mut world = World::new();
    let name = world.node.name.clone();
    let device = json!({"name": "gpu-0", "basic": {"attributes": {"uuid": {"string": "GPU-a"}}}});
    world.slice("v1beta1", DRIVER, &name, &device);
    let train = world.node.pod("train", &["main"]);
    let _load = train.load("main", &["sleep", "0"]);
    let kubelet = Kubelet::start(listed_pod(&name, "train", "main", &claim(DRIVER, &name, "gpu-0")));
    let forbidden = Answer::Refuse(403, status_object(403, "Forbidden", "resourceslices is forbidden"));
    let absent = || Answer::Refuse(404, status_object(404, "NotFound", "the server could not find the resource"));
    world.node.proxy.faults().of_path = vec![("resourceslices", forbidden)];
    let agent = world.agent(&kubelet);
    let page = world.when("the refusal", &agent, |page| is_state(page, "0", "forbidden"));
    assert_eq!(joules(&page, &train), 0, "no name is taken for a GPU's");
    let said = agent.assert_logged("claimed GPUs cannot be identified", 1);
    assert!(said[0].contains("list and watch on resourceslices"), "{said:#?}");
    agent.after_ticks(8);
    agent.assert_logged("claimed GPUs cannot be identified", 1);

    world.node.proxy.faults().of_path = vec![("resourceslices", absent())];
    let page = world.when("the API to be gone", &agent, |page| is_state(page, "0", "absent"));
    assert!(page.has("energy_agent_meter_up", &[("meter", "pods"), ("reason", "ok")]));
    agent.assert_logged("claimed GPUs cannot be identified", 2);

    world.node.proxy.faults().of_path = vec![("/v1/resourceslices", absent()), ("/v1beta2/", absent())];
    world.when("energy of the claimed GPU", &agent, |page| joules(page, &train) > 50_000_000);
    let page = world.when("the state", &agent, |page| is_state(page, "1", "ok"));
    assert!(joules(&page, &train) <= of_gpu(&page, "kepler_node_gpu_joules_total", "GPU-a"));
}

/// Clusters without dynamic resource allocation, or without its GPUs on this node.
#[test]
fn where_no_gpu_is_claimed_no_slice_is_asked_for() {
    let mut world = World::new();
    let name = world.node.name.clone();
    let kubelet = Kubelet::start(listed_pod(&name, "train", "main", &claim("fpga.example.com", &name, "gpu-0")));
    let agent = world.agent(&kubelet);
    let page = world.when("the kubelet's answer", &agent, |page| {
        page.has("energy_agent_meter_up", &[("meter", "pod_resources"), ("reason", "ok")])
    });
    assert_eq!(state(&page), None);
    let asked = world.node.proxy.asked();
    assert!(asked.iter().all(|asked| !asked.path.contains("resourceslices")), "{asked:#?}");
}
