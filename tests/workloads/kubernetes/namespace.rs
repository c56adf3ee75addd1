//! An agent in a cgroup namespace of its own, as container runtimes make one: where processes are is told in paths that
//! begin at the agent's own container.

use std::path::Path;
use std::process::Command;

use fake_nvml::plant::Plant;

use crate::common::agent::{Agent, PROGRAM, wait_for};
use crate::common::cgroup::ids;
use crate::common::kubernetes::node::Node;
use crate::common::nvml::{FakeNvml, Gpu, gpu, process};
use crate::common::page::Page;

const CASE: &str = include_str!("../../cases/FC-022-private-cgroupns.tsv");

/// Runs the rest of the command in the cgroup, and in a namespace that begins there.
fn inside(cgroup: &Path) -> [String; 3] {
    let script = format!("echo $$ > {}/cgroup.procs; exec unshare --cgroup \"$0\" \"$@\"", cgroup.display());
    ["sh".to_owned(), "-c".to_owned(), script]
}

/// FC-022, lines 4 and 5: of a container beside the agent's own the path shows the id alone, and of the agent's own nothing.
#[test]
fn a_process_of_a_container_beside_the_agents_own_is_found_in_the_pod_list_and_no_other_is_assumed() {
    let node = Node::new();
    let pod = node.pod("energy", &["agent", "sidecar"]);
    let (own, stranger) = (pod.cgroup.another(&pod.id("agent")), pod.cgroup.another(&ids().1));
    let sleep = |dir: &Path| crate::common::cgroup::Load::start(dir, &["sleep", "0"]);
    let jobs = [pod.load("sidecar", &["sleep", "0"]), sleep(&stranger), sleep(&own)];

    // The world is as in the case.
    let [sh, c, script] = inside(&own);
    let seen = |pid: u32| {
        let command = Command::new(&sh).args([&c, &script, "cat", &format!("/proc/{pid}/cgroup")]).output().unwrap();
        let text = String::from_utf8(command.stdout).unwrap();
        text.lines().find(|line| line.starts_with("0::")).unwrap_or_default().to_owned()
    };
    let expected = CASE.lines().filter(|line| line.contains("\tunresolved\t")).map(|line| line.split('\t').collect());
    let [sibling, root] = &expected.collect::<Vec<Vec<&str>>>()[..] else { panic!("two rows: {CASE}") };
    assert_eq!(seen(jobs[0].0.id()), sibling[0].replace(sibling[3], &pod.id("sidecar")));
    assert_eq!(seen(jobs[2].0.id()), root[0]);

    let card = |uuid: &str, pid: u32| {
        let mut user = process(pid);
        user.load = 0.5;
        Gpu { plant: Some(Plant::default()), processes: Some(vec![user]), ..gpu(uuid) }
    };
    let nvml = ["GPU-told", "GPU-untold", "GPU-own"].iter().zip(&jobs);
    let nvml = nvml.fold(FakeNvml::new(), |nvml, (uuid, job)| nvml.gpu(card(uuid, job.0.id())));
    nvml.play();
    let flags = [
        "--interval=200ms".to_owned(),
        "--meter.cpu=none".to_owned(),
        "--ebpf=off".to_owned(),
        "--pods.source=api".to_owned(),
        format!("--kubeconfig={}", node.kubeconfig.display()),
        format!("--node.name={}", node.name),
        nvml.flag(),
    ];
    let agent = Agent::spawn(&[&sh, &c, &script, PROGRAM], &flags.each_ref().map(String::as_str));
    agent.wait_until_ready();
    let of_sidecar = [("pod_id", pod.uid()), ("pod_name", "energy")];
    let active = |page: &Page, uuid| page.microjoules("kepler_node_gpu_active_joules_total", &[("gpu_uuid", uuid)]);
    let page = wait_for("energy of the sidecar and of nobody", || {
        let page = agent.scrape();
        page.assert_conserved();
        let used = page.microjoules("kepler_pod_gpu_joules_total", &of_sidecar);
        let nobodys = ["GPU-untold", "GPU-own"].map(|uuid| active(&page, uuid));
        (used > 20_000_000 && nobodys.iter().all(|active| *active > 20_000_000)).then_some(page)
    });
    let sidecar = [("container_name", "sidecar"), ("pod_id", pod.uid())];
    let used = page.microjoules("kepler_container_gpu_joules_total", &sidecar);
    assert_eq!(used, page.microjoules("kepler_pod_gpu_joules_total", &[]), "nobody else has any");
    assert!(!page.has("energy_agent_system_gpu_joules_total", &[]), "{}", page.text);
    for uuid in ["GPU-untold", "GPU-own"] {
        let nobodys = page.microjoules("energy_agent_node_gpu_unattributed_joules_total", &[("gpu_uuid", uuid)]);
        assert_eq!(nobodys, active(&page, uuid), "{uuid}");
    }
    node.cluster.delete(&pod.object);
}
