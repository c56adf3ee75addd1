//! Which pod the kubelet gave a GPU: its PodResources service and its list of pods, played over real sockets, and what
//! follows from them where no processes are to be seen.

#![allow(clippy::unwrap_used, reason = "tests panic")]

mod claims;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;

use crate::common::agent::{Agent, PROGRAM, wait_for};
use crate::common::cgroup::Pod;
use crate::common::nvml::{FakeNvml, Gpu, gpu, process};
use crate::common::page::Page;
use crate::common::pod_resources::{Kubelet, device, field, listed, listed_pod};
use serde_json::json;
use tempfile::TempDir;

/// The kubelet's list of pods over http; its address.
fn pods(list: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = [0; 4096];
            let _ = stream.read(&mut request);
            let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close";
            let _ = write!(stream, "{head}\r\nContent-Length: {}\r\n\r\n{list}", list.len());
        }
    });
    format!("http://{address}")
}

/// With one container `main` in each, in the namespace `ml`.
fn pod_list(pods: &[(&str, &Pod)]) -> String {
    let item = |(name, pod): &(&str, &Pod)| {
        let container = json!({
            "name": "main", "image": "i", "imageID": "i", "ready": true, "restartCount": 0,
            "containerID": format!("containerd://{}", pod.container_id),
        });
        json!({
            "metadata": {"name": name, "namespace": "ml", "uid": pod.uid},
            "spec": {"containers": [{"name": "main"}]},
            "status": {"phase": "Running", "containerStatuses": [container]},
        })
    };
    let items: Vec<_> = pods.iter().map(item).collect();
    json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}).to_string()
}

/// Flags of an agent that asks this kubelet for pods and for their devices, and reads these GPUs.
fn flags(kubelet: &Kubelet, listed: &[(&str, &Pod)], nvml: &FakeNvml, more: &[&str]) -> Vec<String> {
    let url = format!("--pods.kubelet-url={}", pods(pod_list(listed)));
    let socket = format!("--pods.resources-socket={}", kubelet.socket().display());
    let usual = ["--interval=200ms", "--meter.cpu=none", "--pods.source=kubelet", &url, &socket, &nvml.flag()];
    usual.iter().chain(more).map(|flag| (*flag).to_owned()).collect()
}

fn agent(kubelet: &Kubelet, listed: &[(&str, &Pod)], nvml: &FakeNvml, more: &[&str]) -> Agent {
    let flags = flags(kubelet, listed, nvml, more);
    Agent::start(&flags.iter().map(String::as_str).collect::<Vec<_>>())
}

/// A busy GPU that does not show the process which uses it.
fn veiled(uuid: &str) -> Gpu {
    Gpu { power_mw: Some(70_000), utilization: Some((50, 10)), processes: None, samples: None, ..gpu(uuid) }
}

#[test]
fn a_gpu_whose_processes_are_not_seen_is_the_pods_that_it_was_given_to() {
    let pod = Pod::systemd();
    let _load = pod.load(&["sleep", "0"]);
    let message = [listed("ml", "train", "main", &["GPU-a"]), listed("ml", "other", "main", &["GPU-b::1"])].concat();
    let kubelet = Kubelet::start(message);
    let mut nvml = FakeNvml::new().gpu(veiled("GPU-a")).gpu(veiled("GPU-b"));
    nvml.play();
    let agent = agent(&kubelet, &[("train", &pod)], &nvml, &["--node.name=worker-1", "--gpu.dcgm-names"]);
    let page = wait_for("the pod's energy", || {
        nvml.add_energy(0, 20_000);
        nvml.add_energy(1, 10_000);
        let page = agent.scrape();
        page.assert_conserved();
        Some(page).filter(|page| page.microjoules("kepler_pod_gpu_joules_total", &[("pod_name", "train")]) > 20_000_000)
    });
    assert!(page.has("energy_agent_meter_up", &[("meter", "pod_resources"), ("reason", "ok")]));
    let info = |uuid: &str| page.one("energy_agent_node_gpu_attribution_info", &[("gpu_uuid", uuid)]).label("method");
    // The pod `other` is not known by its uid.
    assert_eq!((info("GPU-a"), info("GPU-b")), ("allocation", "none"));
    let container = page.one("kepler_container_gpu_joules_total", &[("pod_id", &pod.uid)]);
    assert_eq!((container.label("container_name"), container.label("source")), ("main", "nvml"));

    let labels = [
        ("UUID", "GPU-a"),
        ("gpu", "0"),
        ("device", "nvidia0"),
        ("modelName", "NVIDIA H100 80GB HBM3"),
        ("Hostname", "worker-1"),
        ("namespace", "ml"),
        ("pod", "train"),
        ("container", "main"),
    ];
    assert_eq!(page.one("DCGM_FI_DEV_GPU_UTIL", &labels).value, "50");
    assert_eq!(page.one("DCGM_FI_DEV_MEM_COPY_UTIL", &labels).value, "10");
    assert_eq!(page.one("energy_agent_node_gpu_memory_utilization_ratio", &[("gpu_uuid", "GPU-a")]).value, "0.1");
    // GPU-b is a pod's that does not run here.
    let holder = page.one("energy_agent_gpu_holder_info", &[]);
    let words = ["gpu", "gpu_uuid", "pod_id", "pod_name", "pod_namespace", "container_name", "node_name", "evidence"];
    let expected = ["0", "GPU-a", &pod.uid, "train", "ml", "main", "worker-1", "allocation"];
    assert_eq!(words.map(|label| holder.label(label)), expected);
    assert_eq!(page.one("DCGM_FI_DEV_FB_FREE", &labels).value, "81920");
    assert_eq!(page.one("DCGM_FI_DEV_MEM_CLOCK", &labels).value, "2619");
    assert_eq!(page.one("DCGM_FI_DEV_POWER_USAGE", &labels).value, "70.000000");
    let joules = page.microjoules("kepler_node_gpu_joules_total", &[("gpu_uuid", "GPU-a")]);
    let millijoules = page.one("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", &labels).number();
    assert!((millijoules * 1000.0 - std::time::Duration::from_micros(joules).as_secs_f64() * 1e6).abs() < 1.0);
}

/// FC-107: NVML names processes by the ids of the host. Process 2 of the agent's own namespace is a pod's here, and that of the
/// host, which used the GPUs, is another.
#[test]
fn without_the_hosts_processes_a_gpu_is_whose_the_kubelet_says_and_else_nobodys() {
    let (given, unrelated) = (Pod::systemd(), Pod::systemd());
    let _load = given.load(&["sleep", "0"]);
    let kubelet = Kubelet::start(listed("ml", "train", "main", &["GPU-a"]));
    let used = |uuid| Gpu { processes: Some(vec![process(2)]), ..veiled(uuid) };
    let mut nvml = FakeNvml::new().gpu(used("GPU-a")).gpu(used("GPU-b"));
    nvml.play();
    let second = format!(
        "sleep 600 & echo $! > {}/cgroup.procs; [ $! = 2 ] && exec \"$0\" \"$@\"",
        unrelated.container.display()
    );
    let launcher = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", &second, PROGRAM];
    let flags = flags(&kubelet, &[("train", &given)], &nvml, &["--attribution.idle=none"]);
    let agent = Agent::spawn(&launcher, &flags.iter().map(String::as_str).collect::<Vec<_>>());
    agent.wait_until_ready();
    let joules = |page: &Page, pod: &Pod| page.microjoules("kepler_pod_gpu_joules_total", &[("pod_id", &pod.uid)]);
    let unattributed =
        |page: &Page, uuid| page.microjoules("energy_agent_node_gpu_unattributed_joules_total", &[("gpu_uuid", uuid)]);
    let all = |page: &Page, uuid| page.microjoules("kepler_node_gpu_joules_total", &[("gpu_uuid", uuid)]);
    let mut page_when = |holds: &dyn Fn(&Page) -> bool| {
        wait_for("energy of both GPUs", || {
            nvml.add_energy(0, 20_000);
            nvml.add_energy(1, 10_000);
            let page = agent.scrape();
            page.assert_conserved();
            holds(&page).then_some(page)
        })
    };
    let page = page_when(&|page| ["GPU-a", "GPU-b"].iter().all(|uuid| all(page, uuid) > 100_000_000));
    assert_eq!(joules(&page, &unrelated), 0, "of a process that has the same number by chance");
    assert_eq!(unattributed(&page, "GPU-b"), all(&page, "GPU-b"));
    let page = page_when(&|page| joules(page, &given) > 100_000_000);
    assert_eq!((joules(&page, &unrelated), unattributed(&page, "GPU-b")), (0, all(&page, "GPU-b")));
    let row = page.one("energy_agent_meter_up", &[("meter", "host_pid")]);
    assert_eq!((row.label("reason"), row.value.as_str()), ("restricted", "0"));
    agent.assert_logged("hostPID: true", 1);
}

/// As a container that has the host's /proc mounted: its own ids are others, and those that it reads are the host's.
#[test]
fn by_the_hosts_proc_a_process_is_found_from_a_namespace_of_ones_own() {
    let pod = Pod::systemd();
    let load = pod.load(&["sleep", "0"]);
    let mut nvml = FakeNvml::new().gpu(Gpu { processes: Some(vec![process(load.0.id())]), ..veiled("GPU-a") });
    nvml.play();
    let flags = ["--interval=200ms", "--meter.cpu=none", "--pods.source=none", &nvml.flag()];
    let agent = Agent::spawn(&["unshare", "--pid", "--fork", "--kill-child", PROGRAM], &flags);
    agent.wait_until_ready();
    let page = wait_for("the pod's energy", || {
        nvml.add_energy(0, 20_000);
        let page = agent.scrape();
        (page.microjoules("kepler_pod_gpu_joules_total", &[("pod_id", &pod.uid)]) > 20_000_000).then_some(page)
    });
    assert!(!page.has("energy_agent_meter_up", &[("meter", "host_pid")]));
    assert_eq!(agent.logged("hostPID: true"), Vec::<String>::new());
}

/// GKE's plugin names the device file, others NVML's index; the two are counted otherwise.
#[test]
fn a_gpu_that_is_given_by_index_or_device_file_is_the_right_one() {
    let (train, infer) = (Pod::systemd(), Pod::systemd());
    let _loads = [&train, &infer].map(|pod| pod.load(&["sleep", "0"]));
    // The first of the vendor's network cards is no GPU.
    let devices = [device("nvidia.com/gpu", "1"), device("nvidia.com/hostdev", "0")].map(|it| field(2, &it)).concat();
    let kubelet = Kubelet::start(
        [listed_pod("ml", "train", "main", &devices), listed("ml", "infer", "main", &["nvidia1/vgpu0"])].concat(),
    );
    let with_minor = |uuid, minor| Gpu { minor: Some(minor), ..veiled(uuid) };
    let mut nvml = FakeNvml::new().gpu(with_minor("GPU-a", 1)).gpu(with_minor("GPU-b", 0));
    nvml.play();
    let agent = agent(
        &kubelet,
        &[("train", &train), ("infer", &infer)],
        &nvml,
        &["--attribution.idle=none", "--gpu.dcgm-names"],
    );
    let joules = |page: &Page, pod: &Pod| page.microjoules("kepler_pod_gpu_joules_total", &[("pod_id", &pod.uid)]);
    let page = wait_for("the energy of both pods", || {
        // Four to one.
        nvml.at(0).energy_mj = nvml.at(0).energy_mj.map(|energy| energy + 40_000);
        nvml.add_energy(1, 10_000);
        let page = agent.scrape();
        page.assert_conserved();
        (joules(&page, &train) > 100_000_000 && joules(&page, &infer) > 400_000_000).then_some(page)
    });
    // GPU-b, by index 1, is train's; GPU-a, /dev/nvidia1, is infer's.
    let all = |uuid| page.microjoules("kepler_node_gpu_joules_total", &[("gpu_uuid", uuid)]);
    assert!(joules(&page, &train) <= all("GPU-b"), "{} of {}", joules(&page, &train), all("GPU-b"));
    for (uuid, pod) in [("GPU-a", "infer"), ("GPU-b", "train")] {
        assert!(page.has("DCGM_FI_DEV_GPU_UTIL", &[("UUID", uuid), ("pod", pod), ("container", "main")]), "{uuid}");
    }
}

/// A pod that is ending and the next of its name; the kubelet does not say which has which GPU.
#[test]
fn of_two_pods_of_one_name_in_the_kubelets_answer_neither_has_a_gpu_by_its_name() {
    let (old, new) = (Pod::systemd(), Pod::systemd());
    let _loads = [&old, &new].map(|pod| pod.load(&["sleep", "0"]));
    let listed = ["GPU-a", "GPU-b"].map(|uuid| listed("ml", "train", "main", &[uuid]));
    let kubelet = Kubelet::start(listed.concat());
    let mut nvml = FakeNvml::new().gpu(veiled("GPU-a")).gpu(veiled("GPU-b"));
    nvml.play();
    // The API has forgotten the old one.
    let agent = agent(&kubelet, &[("train", &new)], &nvml, &["--attribution.idle=none", "--gpu.dcgm-names"]);
    wait_for("the kubelet's answer", || {
        let page = agent.scrape();
        page.has("DCGM_FI_DEV_GPU_UTIL", &[("UUID", "GPU-b"), ("pod", "train")]).then_some(())
    });
    let used =
        |page: &Page, uuid| page.microjoules("energy_agent_node_gpu_unattributed_joules_total", &[("gpu_uuid", uuid)]);
    let page = wait_for("energy of both GPUs", || {
        nvml.at(0).energy_mj = nvml.at(0).energy_mj.map(|energy| energy + 10_000);
        nvml.add_energy(1, 10_000);
        let page = agent.scrape();
        page.assert_conserved();
        let all = |uuid| page.microjoules("kepler_node_gpu_joules_total", &[("gpu_uuid", uuid)]);
        (all("GPU-a") > 100_000_000 && all("GPU-b") > 100_000_000).then_some(page)
    });
    for uuid in ["GPU-a", "GPU-b"] {
        let all = page.microjoules("kepler_node_gpu_joules_total", &[("gpu_uuid", uuid)]);
        assert_eq!(used(&page, uuid), all, "{uuid} is charged by a name that two have");
    }
}

#[test]
fn no_socket_is_no_fault_and_a_broken_one_is_said_once() {
    let mut nvml = FakeNvml::new().gpu(veiled("GPU-a"));
    nvml.play();
    let nobody = TempDir::new().unwrap();
    let socket = nobody.path().join("kubelet.sock");
    let flag = format!("--pods.resources-socket={}", socket.display());
    let agent = Agent::start(&["--interval=100ms", "--meter.cpu=none", "--pods.source=none", &flag, &nvml.flag()]);
    let reason = |reason: &'static str| {
        wait_for(reason, || {
            nvml.add_energy(0, 1_000);
            let page = agent.scrape();
            page.has("energy_agent_meter_up", &[("meter", "pod_resources"), ("reason", reason)]).then_some(page)
        })
    };
    let mut reason = reason;
    let page = reason("absent");
    assert_eq!(agent.logged("device allocations"), Vec::<String>::new());
    assert!(!page.has("DCGM_FI_DEV_GPU_UTIL", &[]));
    // Unattributed energy brings the next question forward.
    std::fs::write(&socket, "").unwrap();
    reason("error");
    agent.assert_logged("device allocations", 1);
}
