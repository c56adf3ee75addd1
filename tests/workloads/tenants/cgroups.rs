//! Cgroups that a tenant makes below its own, called like somebody else's.

use std::fs;
use std::path::{Path, PathBuf};
use std::process;

use fake_nvml::plant::Plant;

use super::annotations::{enforced, pod};
use super::assert_its_own;
use crate::common::agent::{Agent, wait_for};
use crate::common::busy_node::World;
use crate::common::cgroup::{Cgroup, Load, Pod, cpu_ns, ids, remove_all, v2_root};
use crate::common::kubernetes::node::{CONTAINER_SECONDS, POD_JOULES, POD_SECONDS};
use crate::common::nvml::{FakeNvml, Gpu, gpu, process};
use crate::common::page::Page;
use crate::common::{alone, one_of_three};

const SYSTEM_SECONDS: &str = "energy_agent_system_cpu_seconds_total";
/// Enough that a share of it in the wrong row shows; on a busy machine it takes a while.
const MUCH_NS: u64 = 600_000_000;

/// Folders below a container's, each named as a node names the cgroup of this pod's container.
fn look_alikes(uid: &str, id: &str) -> [String; 3] {
    let slice = format!("kubepods-burstable-pod{}.slice", uid.replace('-', "_"));
    [
        format!("kubepods/burstable/pod{uid}/{id}"),
        format!("kubepods.slice/kubepods-burstable.slice/{slice}/cri-containerd-{id}.scope"),
        format!("{slice}:cri-containerd:{id}"),
    ]
}

fn make(below: &Path, path: &str) -> PathBuf {
    let folder = below.join(path);
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn pod_ns(page: &Page, uid: &str) -> u64 {
    page.nanoseconds(POD_SECONDS, &[("pod_id", uid)])
}

/// The first page on which `used` is much, and which is right otherwise.
fn wait_for_much(agent: &Agent, what: &str, used: impl Fn(&Page) -> u64) -> Page {
    wait_for(&format!("CPU time of {what}"), || {
        let page = agent.scrape();
        page.assert_conserved();
        Some(page).filter(|page| used(page) > MUCH_NS)
    })
}

#[test]
fn a_cgroup_called_like_another_pods_is_the_pods_that_made_it_and_so_is_the_limit() {
    one_of_three(|| {
        let _alone = alone();
        let world = World::new();
        let (Some(victim), Some(attacker)) = (pod(&world, "victim", "web"), pod(&world, "attacker", "evil")) else {
            return;
        };
        let uid = |pod: &crate::common::busy_node::CpuPod| pod.object["metadata"]["uid"].as_str().unwrap().to_owned();
        let own = victim.quota.quota();
        let [first, second, third] = look_alikes(&uid(&victim), &victim.quota.pod.container_id);
        let below = &attacker.quota.pod.container;
        world.policies(&enforced("web", 15.0));
        // One is there before the agent, and one comes later.
        let mut loads = vec![Load::start(&make(below, &first), &["spin", "0"])];
        let agent = world.agent(&[]);
        let last = agent.after_ticks(2);
        victim.quota.pod.load(&["burn", "20000"]).wait();
        for path in [&second, &third] {
            loads.push(Load::start(&make(below, path), &["spin", "0"]));
        }
        // What the victim ran is on every page from now on.
        agent.after_ticks(2);
        let page = wait_for_much(&agent, "the attacker", |page| pod_ns(page, &uid(&attacker)));
        page.assert_not_below(&last);
        assert_its_own(pod_ns(&page, &uid(&victim)), victim.quota.pod.cgroup.cpu_ns());
        assert_eq!(victim.quota.quota(), own, "its policy was kept by it");
        let limits: Vec<_> = page.samples.iter().filter(|it| it.name.starts_with("energy_agent_cap_limit_")).collect();
        assert!(limits.is_empty(), "{limits:#?}");
        // Nor does the attacker escape a policy of its own.
        world.policies(&format!("{}{}", enforced("web", 15.0), enforced("evil", 15.0)));
        attacker.wait_until_capped();
        assert_eq!(victim.quota.quota(), own);
    });
}

/// Without any reported pod a uid has one place too: the outermost.
#[test]
fn without_names_a_cgroup_called_like_a_pods_is_its_makers() {
    one_of_three(|| {
        let _alone = alone();
        for is_first in [true, false] {
            let (victim, attacker) = (Pod::systemd(), Pod::new());
            let docker_id = ids().1;
            let docker = Cgroup::new(&format!("system.slice/docker-{docker_id}.scope"));
            let user = Cgroup::new("user.slice/user-1000.slice/user@1000.service");
            let [cgroupfs, systemd, _] = look_alikes(&victim.uid, &victim.container_id);
            let start = || Agent::start(&["--interval=250ms", "--meter.cpu=estimate", "--pods.source=none"]);
            let early = is_first.then(start);
            let folders =
                [make(&attacker.container, &cgroupfs), make(&docker.dir, &systemd), make(&user.dir, &cgroupfs)];
            let agent = early.unwrap_or_else(start);
            victim.load(&["burn", "20000"]).wait();
            let _loads = folders.each_ref().map(|folder| Load::start(folder, &["spin", "0"]));
            let in_container = [("container_id", docker_id.as_str()), ("pod_id", "")];
            let page = wait_for_much(&agent, "all three", |page| {
                let unit =
                    [("unit", format!("{}/user@1000.service", &user.path[..user.path.find("/user.slice").unwrap()]))];
                let unit = unit.each_ref().map(|(label, unit)| (*label, unit.as_str()));
                let of_user = page.nanoseconds(SYSTEM_SECONDS, &unit);
                pod_ns(page, &attacker.uid).min(page.nanoseconds(CONTAINER_SECONDS, &in_container)).min(of_user)
            });
            assert_its_own(pod_ns(&page, &victim.uid), victim.cgroup.cpu_ns());
            assert_eq!(page.select(POD_JOULES, &[("pod_id", &victim.uid)]).len(), page.divided().len());
        }
    });
}

/// What the processes of such a cgroup use of a GPU goes the same way.
#[test]
fn a_process_in_a_cgroup_called_like_another_pods_uses_the_gpu_for_its_maker() {
    let _alone = alone();
    let (victim, attacker, docker_id) = (Pod::systemd(), Pod::new(), ids().1);
    let docker = Cgroup::new(&format!("system.slice/docker-{docker_id}.scope"));
    let [cgroupfs, systemd, _] = look_alikes(&victim.uid, &victim.container_id);
    let folders = [make(&attacker.container, &cgroupfs), make(&docker.dir, &systemd)];
    let loads = folders.each_ref().map(|folder| Load::start(folder, &["sleep", "0"]));
    let nvml = ["GPU-a", "GPU-b"].iter().zip(&loads).fold(FakeNvml::new(), |nvml, (uuid, load)| {
        let mut user = process(load.0.id());
        user.load = 0.5;
        nvml.gpu(Gpu { plant: Some(Plant::default()), processes: Some(vec![user]), ..gpu(uuid) })
    });
    nvml.play();
    let agent = Agent::start(&["--interval=200ms", "--meter.cpu=none", "--pods.source=none", &nvml.flag()]);
    let joules = |page: &Page, name: &str, labels: &[(&str, &str)]| page.microjoules(name, labels);
    let page = wait_for("20 J of both makers", || {
        let page = agent.scrape();
        page.assert_conserved();
        let of_pod = joules(&page, "kepler_pod_gpu_joules_total", &[("pod_id", &attacker.uid)]);
        let of_docker = joules(&page, "kepler_container_gpu_joules_total", &[("container_id", &docker_id)]);
        Some(page).filter(|_| of_pod.min(of_docker) > 20_000_000)
    });
    assert_eq!(joules(&page, "kepler_pod_gpu_joules_total", &[("pod_id", &victim.uid)]), 0);
}

#[test]
fn a_cgroup_called_like_another_container_is_its_makers() {
    one_of_three(|| {
        let _alone = alone();
        let (victim_id, evil_id) = (ids().1, ids().1);
        let scope = |id: &str| format!("system.slice/docker-{id}.scope");
        let (victim, evil) = (Cgroup::new(&scope(&victim_id)), Cgroup::new(&scope(&evil_id)));
        let user = Cgroup::new("user.slice/user-1000.slice/user@1000.service");
        let look_alike = format!("docker-{victim_id}.scope");
        let agent = Agent::start(&["--interval=250ms", "--meter.cpu=estimate", "--pods.source=none"]);
        Load::start(&victim.dir, &["burn", "20000"]).wait();
        let _loads = [&evil, &user].map(|maker| Load::start(&make(&maker.dir, &look_alike), &["spin", "0"]));
        let top = &user.path[..user.path.find("/user.slice").unwrap()];
        let used = |page: &Page, id: &str| page.nanoseconds(CONTAINER_SECONDS, &[("container_id", id)]);
        let page = wait_for_much(&agent, "both makers", |page| {
            // A scope that is no container is part of what holds it.
            let unit = format!("{top}/user@1000.service");
            page.nanoseconds(SYSTEM_SECONDS, &[("unit", &unit)]).min(used(page, &evil_id))
        });
        assert_its_own(used(&page, &victim_id), victim.cpu_ns());
    });
}

/// A cgroup at the root of the hierarchy, removed on drop.
struct Top(PathBuf);

impl Drop for Top {
    fn drop(&mut self) {
        remove_all(&self.0);
    }
}

#[test]
fn a_users_service_called_like_the_systems_has_a_row_of_its_own() {
    one_of_three(|| {
        let _alone = alone();
        let name = format!("energy-agent-test-{}-unit.service", process::id());
        let system = Top(make(&v2_root(), &name));
        let slice = Top(make(&v2_root(), &format!("energy-agent-test-{}.slice", process::id())));
        let users = make(&slice.0, &format!("user@1000.service/app.slice/{name}"));
        let agent = Agent::start(&["--interval=250ms", "--meter.cpu=estimate", "--pods.source=none"]);
        Load::start(&system.0, &["burn", "20000"]).wait();
        let _load = Load::start(&users, &["spin", "0"]);
        let used = |page: &Page, unit: &str| page.nanoseconds(SYSTEM_SECONDS, &[("unit", unit)]);
        let page = wait_for_much(&agent, "the user's service", |page| used(page, &format!("user@1000.service/{name}")));
        assert_its_own(used(&page, &name), cpu_ns(&system.0));
    });
}
