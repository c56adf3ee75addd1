//! Pods come and go several times a second, in the API and on the node, with restarts, jobs, namesakes, processes on a GPU
//! and an API server that leaves now and then: every page is conserved to the microjoule, of CPUs and GPUs, by pods and by
//! processes, nothing falls, and every name is right.

use std::collections::HashMap;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use fake_nvml::plant::Plant;
use serde_json::json;

use crate::common::agent::Agent;
use crate::common::cgroup::{Load, ids, remove_ended};
use crate::common::kubernetes::node::{CONTAINER_JOULES, Node, POD_JOULES, running, wait_for_source};
use crate::common::nvml::{FakeNvml, Gpu, Process, gpu, process};
use crate::common::page::{Page, decimal};

const LENGTH: Duration = Duration::from_secs(60);
/// Pods of a worker at least, on a machine that is slow.
const LEAST: u32 = 50;
/// Pods at a time.
const WORKERS: usize = 3;
/// Between two pods of a worker; about eight pods a second in all.
const PAUSE: Duration = Duration::from_millis(250);

/// Namespace and name of every pod that there was, by uid.
type Names = Mutex<HashMap<String, (String, String)>>;

/// The process on the GPU that each worker has at the moment.
type GpuUsers = Mutex<HashMap<usize, u32>>;

/// One worker's pods, one after another. Names come back again and again, as in a stateful set.
fn churn(node: &Node, worker: usize, end: Instant, names: &Names, users: &GpuUsers) -> u32 {
    let mut count = 0;
    while Instant::now() < end || count < LEAST {
        let mut pod = node.pod(&format!("pod-{worker}-{}", count % 4), &["main", "side"]);
        let told = (pod.namespace().to_owned(), pod.name().to_owned());
        names.lock().unwrap().insert(pod.uid().to_owned(), told);
        let job = pod.load("side", &["sleep", "0"]);
        users.lock().unwrap().insert(worker, job.0.id());
        Load::start(&pod.cgroup.container, &["burn", "1000"]).wait();
        pod.burn("main", 20 + u64::from(count * 7 % 60));
        pod.burn("side", 5);
        if count % 5 == 4 {
            let (old, new) = (pod.id("main"), ids().1);
            remove_ended(&pod.cgroup.another(&old));
            let mut next = pod.object.clone();
            next["status"]["containerStatuses"][0] = running("main", &format!("containerd://{new}"));
            next["status"]["containerStatuses"][0]["lastState"] =
                json!({"terminated": {"exitCode": 1, "containerID": format!("containerd://{old}")}});
            pod.object = node.cluster.update_status(&next);
            pod.cgroup.another(&new);
            pod.burn("main", 20);
        }
        users.lock().unwrap().remove(&worker);
        drop(job);
        // The API may be earlier or later than the kernel.
        if count % 2 == 0 {
            node.cluster.delete(&pod.object);
            pod.cgroup.remove();
        } else {
            pod.cgroup.remove();
            node.cluster.delete(&pod.object);
        }
        count += 1;
        thread::sleep(PAUSE);
    }
    count
}

/// What was seen of each pod.
#[derive(Default)]
struct Seen {
    /// Microjoules by uid, zone and source.
    energies: HashMap<(String, String, String), u64>,
    named: HashMap<String, bool>,
    pages: u32,
}

impl Seen {
    fn look(&mut self, page: &Page, last: &Page, names: &Names) {
        page.assert_conserved();
        page.assert_not_below(last);
        let names = names.lock().unwrap();
        let mut here: HashMap<(String, String, String), u64> = HashMap::new();
        for sample in page.select(POD_JOULES, &[]) {
            let uid = sample.label("pod_id").to_owned();
            let (namespace, name) = (sample.label("pod_namespace"), sample.label("pod_name"));
            // Pods of other tests run beside these.
            if let Some(truth) = names.get(&uid) {
                if !name.is_empty() {
                    assert_eq!((namespace, name), (truth.0.as_str(), truth.1.as_str()), "a wrong name for {uid}");
                }
                let named = self.named.entry(uid.clone()).or_default();
                assert!(!*named || !name.is_empty(), "{uid} lost its name");
                *named = !name.is_empty();
                let key = (uid, sample.label("zone").to_owned(), sample.label("source").to_owned());
                let first = here.insert(key, decimal(&sample.value, 6));
                assert_eq!(first, None, "two series of one pod: {sample:?}");
            }
        }
        for (key, energy) in here {
            let before = self.energies.insert(key.clone(), energy).unwrap_or_default();
            assert!(energy >= before, "{key:?} fell from {before} to {energy}");
            let containers = page.microjoules(
                CONTAINER_JOULES,
                &[("pod_id", key.0.as_str()), ("zone", key.1.as_str()), ("source", key.2.as_str())],
            );
            assert!(containers <= energy, "containers of {key:?} have more than their pod");
        }
        self.pages += 1;
    }
}

#[test]
fn every_page_is_conserved_and_every_name_right_while_pods_come_and_go() {
    let node = Node::new();
    let mut nvml = FakeNvml::new().gpu(Gpu { plant: Some(Plant::default()), ..gpu("GPU-a") });
    nvml.play();
    let levels = "--export.levels=node,pod,container,process";
    let agent = node.agent(&["--export.terminated-retention=12s", levels, &nvml.flag()]);
    let (names, users) = (Names::default(), GpuUsers::default());
    let (start, mut seen) = (Instant::now(), Seen::default());
    let pods: u32 = thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|worker| {
                let (node, names, users) = (&node, &names, &users);
                scope.spawn(move || churn(node, worker, start + LENGTH, names, users))
            })
            .collect();
        let mut last = agent.scrape();
        let mut is_away = false;
        while workers.iter().any(|worker| !worker.is_finished()) {
            let page = agent.scrape();
            seen.look(&page, &last, &names);
            last = page;
            let pids: Vec<u32> = users.lock().unwrap().values().copied().collect();
            let processes = pids.into_iter().map(|pid| Process { load: 0.3, ..process(pid) }).collect();
            nvml.set(|state| state.gpus[0].processes = Some(processes));
            // Away for four seconds of every twenty.
            let second = start.elapsed().as_secs() % 20;
            if (14..18).contains(&second) != is_away {
                is_away = !is_away;
                if is_away { node.proxy.go_away() } else { node.proxy.come_back() }
            }
            thread::sleep(Duration::from_millis(150));
        }
        if is_away {
            node.proxy.come_back();
        }
        let pods = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
        wait_for_source(&agent, "1");
        let page = agent.after_ticks(2);
        seen.look(&page, &last, &names);
        pods
    });
    finish(agent, &seen, pods);
}

fn finish(mut agent: Agent, seen: &Seen, pods: u32) {
    let named = seen.named.values().filter(|named| **named).count();
    println!("{pods} pods, {} of {} seen with their names, on {} pages", named, seen.named.len(), seen.pages);
    assert!(seen.pages > 60, "only {} pages", seen.pages);
    // Even a pod that came and went while the API was away is reported later: the watch goes on where it was cut.
    assert!(seen.named.len() - named <= seen.named.len() / 50, "{named} of {} have a name", seen.named.len());
    let page = agent.scrape();
    for energy in ["retired_cpu", "retired_gpu"] {
        assert!(page.microjoules(&format!("energy_agent_{energy}_joules_total"), &[]) > 0, "no {energy} energy");
    }
    assert!(page.select("kepler_process_cpu_joules_total", &[("type", "container")]).len() > 10, "{}", page.text);
    assert_eq!(page.count("energy_agent_unknown_cgroups_total"), 0);
    agent.assert_well();
}
