//! Who used a GPU, on a live page: real processes in real cgroups, on GPUs of the fake NVML library.

#![allow(clippy::unwrap_used, reason = "tests panic")]

use std::process::Command;

use crate::common::agent::{Agent, PROGRAM, wait_for};
use crate::common::cgroup::{Cgroup, Load, Pod};
use crate::common::nvml::{FakeNvml, Gpu, gpu, process};
use crate::common::page::Page;
use fake_nvml::plant::Plant;

/// A GPU whose energy and samples follow the load of its processes.
fn plant(uuid: &str, processes: &[(u32, f64)]) -> Gpu {
    let processes = processes.iter().map(|&(pid, load)| {
        let mut process = process(pid);
        process.load = load;
        process
    });
    Gpu { plant: Some(Plant::default()), processes: Some(processes.collect()), ..gpu(uuid) }
}

fn start(nvml: &FakeNvml, more: &[&str]) -> Agent {
    let flag = nvml.flag();
    let mut flags = vec!["--interval=200ms", "--meter.cpu=none", "--node.name=worker-1", "--pods.source=none", &flag];
    flags.extend(more);
    Agent::start(&flags)
}

fn pod_joules(page: &Page, pod: &Pod) -> u64 {
    page.microjoules("kepler_pod_gpu_joules_total", &[("pod_id", &pod.uid)])
}

#[test]
fn pods_and_services_share_a_gpu_by_sm_time_and_every_microjoule_is_somebodys() {
    let _alone = crate::common::alone();
    let pods = [Pod::systemd(), Pod::new()];
    let service = Cgroup::new("gpu-test.service");
    let loads = [
        pods[0].load(&["sleep", "0"]),
        pods[1].load(&["sleep", "0"]),
        Load::start(&service.dir, &["sleep", "0"]),
        // On another GPU.
        pods[1].load(&["sleep", "0"]),
    ];
    let pid = |index: usize| loads[index].0.id();
    let mut nvml = FakeNvml::new()
        .gpu(plant("GPU-a", &[(pid(0), 0.6), (pid(1), 0.2), (pid(2), 0.1)]))
        .gpu(plant("GPU-b", &[(pid(3), 0.5)]))
        .gpu(plant("GPU-c", &[]));
    nvml.play();
    let agent = start(&nvml, &["--export.terminated-retention=1s"]);
    let page = wait_for("200 J of the first pod", || {
        let page = agent.scrape();
        page.assert_conserved();
        // On a busy machine, a tick may come before a reading of the GPU: then it has no power.
        let has_power = page.has("kepler_pod_gpu_watts", &[("pod_id", &pods[0].uid)]);
        Some(page).filter(|page| has_power && pod_joules(page, &pods[0]) > 200_000_000)
    });

    let first = pod_joules(&page, &pods[0]);
    // Below a folder that systemd did not make, the unit's name has both parts.
    let service_joules =
        page.microjoules("energy_agent_system_gpu_joules_total", &[("unit", &service.path), ("source", "nvml")]);
    // 6 : 1 but for rounding to whole percents and microjoules.
    assert!(first.abs_diff(6 * service_joules) <= first / 100, "{first} {service_joules}");
    // The second pod is on two GPUs: its container is the only one on GPU-b, and has a third of the first one's on GPU-a.
    let active = |uuid: &str| page.microjoules("kepler_node_gpu_active_joules_total", &[("gpu_uuid", uuid)]);
    let (second, on_b) = (pod_joules(&page, &pods[1]), active("GPU-b"));
    assert!(second >= on_b && (second - on_b).abs_diff(first / 3) <= first / 100, "{second} {on_b} {first}");
    assert_eq!(active("GPU-c"), 0);
    assert!(page.microjoules("kepler_node_gpu_idle_joules_total", &[("gpu_uuid", "GPU-c")]) > 0);

    let container = [("container_id", pods[0].container_id.as_str()), ("pod_id", &pods[0].uid), ("state", "running")];
    assert_eq!(page.microjoules("kepler_container_gpu_joules_total", &container), first);
    assert!(page.one("kepler_pod_gpu_watts", &[("pod_id", &pods[0].uid)]).number() > 50.0);
    let info = page.one("energy_agent_node_gpu_attribution_info", &[("gpu", "0")]);
    assert_eq!((info.label("method"), info.label("idle")), ("samples", "ratio"));
    assert_eq!(page.select("kepler_node_gpu_info", &[("vendor", "nvidia"), ("node_name", "worker-1")]).len(), 3);
    let cpu = page.samples.iter().find(|sample| sample.name.contains("_cpu_") && sample.label("zone") == "gpu");
    assert_eq!(cpu, None);

    // The same on the table of `top`.
    // A pod without a name is in the group of these.
    let of_the_pod = format!("  pod          {}", pods[0].uid);
    let table = wait_for("the pod in the table", || {
        let top =
            Command::new(PROGRAM).args(["top", &agent.address, "--iterations=1", "--rows=1000"]).output().unwrap();
        Some(String::from_utf8(top.stdout).unwrap())
            .filter(|table| table.lines().any(|line| line.ends_with(&of_the_pod)))
    });
    assert!(table.contains("\n3 GPUs  ") && table.contains(" W (nvml)  active "), "{table}");
    let heading = table.lines().find(|line| line.ends_with("NAME")).unwrap();
    assert!(heading.starts_with(" TOTAL W    CPU W    GPU W "), "{heading}");
    let row = table.lines().find(|line| line.ends_with(&of_the_pod)).unwrap();
    let shown: f64 = row.split_whitespace().nth(2).unwrap().parse().unwrap();
    assert!(shown > 50.0, "{row}");

    // When a pod goes, its energy stays in the sum.
    nvml.set(|state| state.gpus.iter_mut().for_each(|gpu| gpu.processes = Some(Vec::new())));
    drop(loads);
    pods[0].remove();
    let after = wait_for("the pod's series to end", || {
        let page = agent.scrape();
        page.assert_conserved();
        Some(page).filter(|page| !page.has("kepler_pod_gpu_joules_total", &[("pod_id", &pods[0].uid)]))
    });
    after.assert_not_below(&page);
    assert!(after.microjoules("energy_agent_retired_gpu_joules_total", &[("source", "nvml")]) >= first);
}

#[test]
fn a_process_that_is_not_there_is_nobodys() {
    let _alone = crate::common::alone();
    // Above every PID of this machine.
    let nvml = FakeNvml::new().gpu(plant("GPU-a", &[(4_194_399, 0.5)]));
    nvml.play();
    let agent = start(&nvml, &["--attribution.idle=none"]);
    let page = wait_for("unattributed energy", || {
        let unattributed = |page: &Page| page.microjoules("energy_agent_node_gpu_unattributed_joules_total", &[]);
        Some(agent.scrape()).filter(|page| unattributed(page) > 50_000_000)
    });
    page.assert_conserved();
    assert!(!page.has("energy_agent_system_gpu_joules_total", &[]));
}

#[test]
fn a_lost_gpu_keeps_its_totals_and_loses_power_and_state() {
    let _alone = crate::common::alone();
    let mut nvml = FakeNvml::new().gpu(plant("GPU-a", &[])).gpu(plant("GPU-b", &[]));
    nvml.play();
    let agent = start(&nvml, &[]);
    let named = |page: &Page, uuid: &str, name: &str| page.has(name, &[("gpu_uuid", uuid)]);
    wait_for("power", || Some(()).filter(|()| named(&agent.scrape(), "GPU-b", "kepler_node_gpu_watts")));
    nvml.fail_at(1, "*", fake_nvml::returns::Return::GpuIsLost);
    // On a busy machine, a tick may come before the reading that gives the other one's power.
    let page = wait_for("the end of its power alone", || {
        let page = Some(agent.scrape()).filter(|page| named(page, "GPU-a", "kepler_node_gpu_watts"))?;
        let kept = ["kepler_node_gpu_watts", "kepler_node_gpu_info"].iter().any(|name| named(&page, "GPU-b", name));
        (!kept).then_some(page)
    });
    assert!(named(&page, "GPU-b", "kepler_node_gpu_joules_total"));
    page.assert_conserved();
}

#[test]
fn a_process_that_ran_has_its_gpu_energy_and_the_rest_is_other() {
    let _alone = crate::common::alone();
    let pod = Pod::new();
    // The second was asleep before the agent came: it never gets a row.
    let loads = [pod.load(&["spin", "0"]), pod.load(&["sleep", "0"])];
    let [spinner, sleeper] = [0, 1].map(|index: usize| loads[index].0.id());
    let nvml = FakeNvml::new().gpu(plant("GPU-a", &[(spinner, 0.4), (sleeper, 0.4)]));
    nvml.play();
    let flag = nvml.flag();
    let levels = "--export.levels=node,pod,container,process";
    let agent = Agent::start(&["--interval=200ms", "--pods.source=none", levels, &flag]);
    let name = "kepler_process_gpu_joules_total";
    let pid = spinner.to_string();
    let own = [("pid", pid.as_str()), ("container_id", &pod.container_id), ("source", "nvml")];
    let page = wait_for("GPU energy of the process", || {
        let page = agent.scrape();
        page.assert_conserved();
        Some(page).filter(|page| page.microjoules(name, &own) > 50_000_000)
    });
    assert!(page.microjoules(name, &[("type", "other")]) > 0);
    assert!(page.number_of("kepler_process_gpu_watts", &own) > 10.0);
    assert!(!page.has("kepler_process_cpu_joules_total", &[("zone", "gpu")]));
    // Others that ran on a CPU used no GPU.
    assert_eq!(page.select(name, &[]).len(), 2);
    let later = wait_for("more of it", || {
        let more = |now: &Page| now.microjoules(name, &own) > page.microjoules(name, &own);
        Some(agent.scrape()).filter(more)
    });
    later.assert_not_below(&page);
    later.assert_conserved();
}
