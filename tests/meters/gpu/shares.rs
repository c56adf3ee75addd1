//! Who gets a GPU's energy.

use super::world::{
    NODE_ACTIVE, NODE_IDLE, NODE_JOULES, POD_JOULES, Sleeper, UNATTRIBUTED, World, case, joules, list, near, of_gpu,
    whole, word,
};
use crate::common::cgroup::Pod;
use crate::common::nvml::{FakeNvml, Gpu, Instance, Mig, Process, ProcessKind, Sample, gpu, now_us, process, sample};
use crate::common::page::Page;

const HOLDER: &str = "energy_agent_gpu_holder_info";
const METHOD: &str = "energy_agent_node_gpu_attribution_info";

/// A pod's GPU energy, microjoules.
fn of_pod(page: &Page, pod: &Pod) -> u64 {
    page.microjoules(POD_JOULES, &[("pod_id", &pod.uid)])
}

fn percent(value: &serde_json::Value) -> u32 {
    u32::try_from(whole(value)).unwrap()
}

#[test]
fn pods_on_several_gpus_and_gpus_with_several_pods_fc_057() {
    let case = case("FC-057-multi-gpu");
    let intervals = list(&case["interval"]);
    // Three pods a, b and c, and a process for each PID of the case.
    let pods = ["a", "b", "c"].map(|name| (name, Pod::new()));
    let processes: Vec<(u64, Sleeper)> = case["pids"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(pid, name)| {
            let (_, pod) = pods.iter().find(|(pod, _)| name == pod).unwrap();
            (pid.parse().unwrap(), Sleeper::start(&pod.container, "cuda-job"))
        })
        .collect();
    let pid_of = |value| processes.iter().find(|(pid, _)| *pid == whole(value)).unwrap().1.pid();
    let mut nvml = FakeNvml::new();
    for interval in intervals {
        let pids = list(&interval["samples"]).iter().map(|sample| process(pid_of(&sample["pid"])));
        nvml = nvml.gpu(Gpu { processes: Some(pids.collect()), ..gpu(word(&interval["gpu"])) });
    }
    nvml.play();
    let mut world = World::start(nvml);
    for (index, interval) in intervals.iter().enumerate() {
        let gpu = world.nvml.at(index);
        gpu.energy_mj = Some(joules(&interval["joules"]) / 1000);
        let samples = list(&interval["samples"]).iter();
        gpu.samples = Some(samples.map(|it| sample(pid_of(&it["pid"]), percent(&it["sm"]))).collect());
    }
    world.nvml.play();
    let page = world.page();

    let [a, b, c] = pods.each_ref().map(|(_, pod)| of_pod(&page, pod));
    // Until idle power is known, the idle part is what was not busy: G0 is 80 % busy, G1 50 %.
    // G0: 160 J active, 3:1. G1: 50 J, all a's.
    assert!(near(a, 170_000_000) && near(b, 40_000_000), "a {a} b {b}");
    assert_eq!(c, 0, "0 % is no share");
    let [_, _, unused, zero] = intervals else { panic!("four GPUs") };
    assert_eq!(of_gpu(&page, NODE_IDLE, word(&unused["gpu"])), joules(&unused["joules"]));
    let of_zero = |name| of_gpu(&page, name, word(&zero["gpu"]));
    assert_eq!(of_zero(NODE_IDLE) + of_zero(UNATTRIBUTED), joules(&zero["joules"]));
    let sum: u64 = [POD_JOULES, NODE_IDLE, UNATTRIBUTED].iter().map(|name| page.microjoules(name, &[])).sum();
    assert_eq!(sum, joules(&case["expect"]["sum over pods+idle"]));
    assert!(!page.text.contains("NaN"));

    let uid = |name: &str| pods.iter().find(|(pod, _)| *pod == name).unwrap().1.uid.as_str();
    let mut held: Vec<_> = page
        .select(HOLDER, &[])
        .iter()
        .map(|row| ["gpu", "pod_id", "evidence"].map(|label| row.label(label).to_owned()))
        .collect();
    held.sort();
    let mut expected = [("0", "a", "samples"), ("0", "b", "samples"), ("1", "a", "samples"), ("3", "c", "context")]
        .map(|(gpu, pod, evidence)| [gpu, uid(pod), evidence].map(str::to_owned));
    expected.sort();
    assert_eq!(held, expected);
}

#[test]
fn each_sample_is_used_once_fc_053() {
    let case = case("FC-053-sample-times");
    let answers = list(&case["interval_answers"]);
    let pods = [Pod::new(), Pod::new(), Pod::new()];
    let mut jobs: Vec<(u64, Sleeper)> = [7044, 7180, 18429]
        .into_iter()
        .zip(&pods)
        .map(|(pid, pod)| (pid, Sleeper::start(&pod.container, "cuda-job")))
        .collect();
    let pids: Vec<(u64, u32)> = jobs.iter().map(|(pid, job)| (*pid, job.pid())).collect();
    // The case's times, with its newest at this moment.
    let shift_us = now_us() - 1_623_157_639_191_912;
    let samples = |answer: &serde_json::Value| -> Vec<Sample> {
        let sample = |sample: &serde_json::Value| Sample {
            pid: pids.iter().find(|(pid, _)| *pid == whole(&sample["pid"])).unwrap().1,
            at_us: whole(&sample["ts_us"]) + shift_us,
            sm: percent(&sample["sm"]),
            memory: 0,
        };
        list(&answer["samples"]).iter().map(sample).collect()
    };
    let gpu = Gpu {
        processes: Some(pids.iter().map(|&(_, pid)| process(pid)).collect()),
        samples: Some(samples(&answers[0])),
        ..gpu("GPU-a")
    };
    let nvml = FakeNvml::new().gpu(gpu);
    nvml.play();
    let mut world = World::start(nvml);
    let shares = |page: &Page| [0, 1, 2].map(|pod| of_pod(page, &pods[pod]));
    let before = shares(&world.page());

    // 18429 ends, and the driver goes on to report it, whatever it is asked.
    jobs.retain(|(pid, _)| *pid != 18429);
    let gpu = world.nvml.at(0);
    gpu.processes = Some(pids[..2].iter().map(|&(_, pid)| process(pid)).collect());
    gpu.ignore_last_seen = true;
    let mut second = samples(&answers[2]);
    second.extend(samples(&answers[0]).into_iter().filter(|sample| sample.pid == pids[2].1));
    gpu.samples = Some(second);
    gpu.energy_mj = Some(100_000);
    world.nvml.play();
    let used = shares(&world.page());
    let [seven, eight, gone] = [0, 1, 2].map(|pod| used[pod] - before[pod]);
    // 4 % and 16 % of the interval: one to four.
    assert!(seven > 0 && near(4 * seven, eight), "{seven} {eight}");
    assert_eq!(gone, 0, "an exited process gets no share");

    // The same samples again, with more energy: it is charged to nobody.
    world.nvml.add_energy(0, 50_000);
    assert_eq!(shares(&world.page()), used, "a share from a replayed sample");

    // The clock stepped back: older than what was used, so it counts for nothing but is counted.
    let past = [("reason", "past")];
    let ignored = |page: &Page| page.one("energy_agent_gpu_samples_ignored_total", &past).number();
    let replayed = ignored(&world.agent.scrape());
    world.nvml.at(0).samples = Some(samples(&answers[3]));
    world.nvml.add_energy(0, 50_000);
    let page = world.page();
    assert_eq!(shares(&page), used);
    assert!(ignored(&page) > replayed);

    // A new sample is used: the cursor has not run ahead.
    world.nvml.at(0).samples = Some(vec![sample(pids[0].1, 50)]);
    world.nvml.add_energy(0, 100_000);
    let [seven, eight, _] = shares(&world.page());
    assert!(seven > used[0] && eight == used[1]);
}

#[test]
fn mig_instances_share_what_the_parent_counts_once_fc_055() {
    let case = case("FC-055-mig");
    let parent = word(&case["parent"]);
    let pods = [Pod::new(), Pod::new()];
    let jobs = pods.each_ref().map(|pod| Sleeper::start(&pod.container, "cuda-job"));
    let instances = list(&case["instances"]);
    assert_eq!(case["process_utilization"], "NOT_SUPPORTED");
    let mig = |reading: usize| Mig {
        enabled: true,
        instances: instances
            .iter()
            .map(|instance| Instance {
                uuid: format!("MIG-{}", instance["gi"]),
                gpu_instance: u32::try_from(whole(&instance["gi"])).unwrap(),
                slices: u32::from(instance["profile"].as_str().unwrap().starts_with("1g")),
                multiprocessors: 14,
                memory_mb: 6144,
                energy_mj: Some(whole(&instance["energy_mj"][reading])),
                ..Instance::default()
            })
            .collect(),
    };
    let processes = list(&case["compute_processes"]).iter().zip(&jobs).map(|(played, job)| Process {
        gpu_instance: Some(u32::try_from(whole(&played["gi"])).unwrap()),
        ..process(job.pid())
    });
    // Instances show the counter of the whole GPU.
    let counter = |reading: usize| Some(whole(&instances[0]["energy_mj"][reading]));
    let nvml = FakeNvml::new().gpu(Gpu {
        energy_mj: counter(0),
        mig: Some(mig(0)),
        samples: None,
        utilization: None,
        processes: Some(processes.collect()),
        ..gpu(parent)
    });
    nvml.play();
    let mut world = World::start(nvml);
    world.nvml.at(0).energy_mj = counter(1);
    world.nvml.at(0).mig = Some(mig(1));
    world.nvml.play();
    let page = world.page();
    let expect = &case["expect"];
    assert_eq!(page.microjoules(NODE_JOULES, &[]), joules(&expect["device_joules"]));
    assert_ne!(page.microjoules(NODE_JOULES, &[]), joules(&expect["forbidden_device_joules"]));
    let [a, b] = pods.each_ref().map(|pod| of_pod(&page, pod));
    assert!(a > 0 && a.abs_diff(b) <= 1, "the same slices, the same share: {a} {b}");
    let idle = of_gpu(&page, NODE_IDLE, parent);
    assert!(idle > 0, "two of four instances are not used");
    assert_eq!(a + b + idle + of_gpu(&page, UNATTRIBUTED, parent), joules(&expect["device_joules"]));
    assert_eq!(page.one(METHOD, &[]).label("method"), "mig-slices");
}

#[test]
fn the_mps_servers_work_is_its_clients_fc_056() {
    let case = case("FC-056-mps");
    let uuid = word(&case["gpu"]);
    let [server, clients @ ..] = list(&case["compute_processes"]) else { panic!("a server and clients") };
    let worked = &case["process_utilization"][0];
    assert_eq!(server["pid"], worked["pid"]);
    let pods = [Pod::new(), Pod::new(), Pod::new()];
    let daemon = Sleeper::start(&pods[0].container, word(&worked["comm"]));
    let jobs = [1, 2].map(|pod| Sleeper::start(&pods[pod].container, "cuda-job"));
    let mut processes = vec![process(daemon.pid())];
    processes.extend(clients.iter().zip(&jobs).map(|(played, job)| Process {
        kind: ProcessKind::Mps,
        memory_bytes: Some(whole(&played["mem"]) << 20),
        ..process(job.pid())
    }));
    let nvml = FakeNvml::new().gpu(Gpu { processes: Some(processes), ..gpu(uuid) });
    nvml.play();
    let mut world = World::start(nvml);
    let gpu = world.nvml.at(0);
    gpu.energy_mj = Some(joules(&case["device_joules"]) / 1000);
    gpu.samples = Some(vec![sample(daemon.pid(), percent(&worked["sm"]))]);
    world.nvml.play();
    let page = world.page();
    let [of_daemon, a, b] = pods.each_ref().map(|pod| of_pod(&page, pod));
    assert_eq!(of_daemon, 0, "nothing is the daemon's without a mark");
    assert!(a > 0 && b > 0, "{a} {b}");
    // 80 % busy: 160 J.
    assert!(near(a + b, 160_000_000), "{a} {b}");
    assert_eq!(of_gpu(&page, NODE_ACTIVE, uuid), a + b + of_gpu(&page, UNATTRIBUTED, uuid));
}

#[test]
fn a_pods_joules_stay_when_its_process_ends() {
    let pod = Pod::new();
    let job = Sleeper::start(&pod.container, "cuda-job");
    let nvml = FakeNvml::new().gpu(Gpu { processes: Some(vec![process(job.pid())]), ..gpu("GPU-a") });
    nvml.play();
    let mut world = World::start(nvml);
    world.nvml.at(0).samples = Some(vec![sample(job.pid(), 100)]);
    world.nvml.add_energy(0, 100_000);
    let before = world.page();
    assert!(near(of_pod(&before, &pod), 100_000_000), "{}", of_pod(&before, &pod));
    drop(job);
    world.nvml.at(0).processes = Some(Vec::new());
    world.nvml.at(0).samples = Some(Vec::new());
    world.nvml.add_energy(0, 10_000);
    let after = world.page();
    assert_eq!(of_pod(&after, &pod), of_pod(&before, &pod));
    after.assert_not_below(&before);
    // The pod goes on, without the GPU.
    assert!(before.has(HOLDER, &[("pod_id", &pod.uid), ("gpu_uuid", "GPU-a"), ("evidence", "samples")]));
    world.when("a GPU that nobody holds", |page| !page.has(HOLDER, &[]));
}
