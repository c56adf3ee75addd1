//! Nodes that run in a container or a pod themselves: their pods are pods, though a container's cgroup is around theirs.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::assert_its_own;
use crate::common::agent::{Agent, wait_for};
use crate::common::cgroup::{Cgroup, Load, Pod, cpu_ns, ids, remove_ended};
use crate::common::kubernetes::node::{CONTAINER_SECONDS, Node, POD_SECONDS, container, running};
use crate::common::page::Page;
use crate::common::{alone, one_of_three};

/// A pod of the API with one container `main`.
fn told(node: &Node, name: &str, id: &str) -> (Value, String) {
    let object = node.create(&json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": node.name, "name": name},
        "spec": {"nodeName": node.name, "containers": [container("main")]},
        "status": {"phase": "Running", "containerStatuses": [running("main", &format!("containerd://{id}"))]},
    }));
    let uid = object["metadata"]["uid"].as_str().unwrap().to_owned();
    (object, uid)
}

/// Where a node in a container has this pod's container (FC-019).
fn in_node(uid: &str, id: &str) -> String {
    let slice = format!("kubelet-kubepods-besteffort-pod{}.slice", uid.replace('-', "_"));
    format!("kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/{slice}/cri-containerd-{id}.scope")
}

fn make(below: &Cgroup, path: &str) -> PathBuf {
    let folder = below.dir.join(path);
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn pod_ns(page: &Page, labels: &[(&str, &str)]) -> u64 {
    page.nanoseconds(POD_SECONDS, labels)
}

/// FC-019, with and without an API server that tells of the pods, and beside a container that imitates one of them.
#[test]
fn pods_of_a_node_in_a_container_are_pods_with_their_names() {
    one_of_three(|| {
        let _alone = alone();
        let node = Node::new();
        let [node_id, evil_id, id] = [(); 3].map(|()| ids().1);
        let (object, uid) = told(&node, "nested", &id);
        let docker = |id: &str| Cgroup::new(&format!("system.slice/docker-{id}.scope"));
        let (outer, evil) = (docker(&node_id), docker(&evil_id));
        let folder = make(&outer, &in_node(&uid, &id));
        let look_alike = make(&evil, &in_node(&uid, &id));
        for flags in [&[][..], &["--pods.source=none"]] {
            let agent = match flags {
                [] => node.agent(&[]),
                _ => Agent::start(&[&["--interval=250ms"], flags].concat()),
            };
            let name = if flags.is_empty() { "nested" } else { "" };
            let labels = [("pod_id", uid.as_str()), ("pod_name", name)];
            // What runs before the first tick that knows of the pod is its holder's.
            let known = wait_for("the pod's row", || {
                Load::start(&folder, &["burn", "5000"]).wait();
                Some(agent.after_ticks(2)).filter(|page| pod_ns(page, &labels) > 0)
            });
            let before = cpu_ns(&folder);
            Load::start(&folder, &["burn", "100000"]).wait();
            Load::start(&look_alike, &["burn", "100000"]).wait();
            let page = agent.after_ticks(2);
            page.assert_conserved();
            assert_its_own(pod_ns(&page, &labels) - pod_ns(&known, &labels), cpu_ns(&folder) - before);
            let container = [("container_id", id.as_str()), ("pod_id", &uid)];
            assert!(page.nanoseconds(CONTAINER_SECONDS, &container) > 0);
            assert!(page.nanoseconds(CONTAINER_SECONDS, &[("container_id", &evil_id), ("pod_id", "")]) > 0);
        }
        node.cluster.delete(&object);
    });
}

/// FC-131: an event of the kernel holds 511 bytes of a path.
#[test]
fn a_cgroup_that_lies_deeper_than_an_event_holds_is_the_nearest_pods() {
    one_of_three(|| {
        let _alone = alone();
        let outer = Pod::systemd();
        let agent = Agent::start(&["--interval=3s", "--meter.cpu=estimate", "--pods.source=none"]);
        let [docker_id, id] = [(); 2].map(|()| ids().1);
        let path = format!("docker/{docker_id}/{}/system.slice/system-postgresql.slice", in_node(&ids().0, &id));
        let above = outer.container.join(path);
        fs::create_dir_all(&above).unwrap();
        let folder = above.join("postgresql@16-main.service");
        assert!(folder.as_os_str().len() > 511 + "/sys/fs/cgroup/unified".len(), "{}", folder.display());
        // It comes and goes between two ticks.
        let before = agent.after_ticks(1);
        fs::create_dir(&folder).unwrap();
        Load::start(&folder, &["burn", "600000"]).wait();
        remove_ended(&folder);
        let page = agent.after_ticks(2);
        page.assert_conserved();
        page.assert_not_below(&before);
        let truth = outer.cgroup.cpu_ns();
        assert!(truth > 60_000_000, "{truth}");
        assert_its_own(pod_ns(&page, &[("pod_id", &outer.uid)]), truth);
        assert_eq!(page.count("energy_agent_unknown_cgroups_total"), 0);
    });
}

/// The outer pod belongs to another cluster. This cluster's pods are reported after they have started.
#[test]
fn pods_of_a_node_in_a_pod_are_the_outer_pods_until_they_are_told() {
    one_of_three(|| {
        let _alone = alone();
        let node = Node::new();
        let outer = Pod::systemd();
        let agent = node.agent(&[]);
        let id = ids().1;
        let (object, uid) = told(&node, "nested", &id);
        // The agent hears of the pod before it has a cgroup, and then not again.
        let folder = outer.container.join(in_node(&uid, &id));
        fs::create_dir_all(&folder).unwrap();
        Load::start(&folder, &["burn", "100000"]).wait();
        let labels = [("pod_id", uid.as_str()), ("pod_name", "nested")];
        let page = wait_for("the pod's row", || Some(agent.after_ticks(2)).filter(|page| pod_ns(page, &labels) > 0));
        page.assert_conserved();
        node.cluster.delete(&object);

        // And a pod that works before it is reported. The API server chooses its uid, so the pod exists first, on another node.
        let elsewhere = Node::new();
        let outer = Pod::systemd();
        let (object, uid) = told(&elsewhere, "early", &id);
        let folder = outer.container.join(in_node(&uid, &id));
        fs::create_dir_all(&folder).unwrap();
        let agent = Agent::start(&["--interval=250ms", "--pods.source=none"]);
        Load::start(&folder, &["burn", "100000"]).wait();
        let page = agent.after_ticks(2);
        page.assert_conserved();
        assert_eq!(pod_ns(&page, &[("pod_id", &uid)]), 0, "nobody tells of it, so it is part of the outer pod");
        assert_its_own(pod_ns(&page, &[("pod_id", &outer.uid)]), outer.cgroup.cpu_ns());
        drop(agent);
        elsewhere.proxy.faults().lists = crate::common::kubernetes::proxy::Answer::status(500);
        let agent = elsewhere.agent_without_names(&[]);
        Load::start(&folder, &["burn", "100000"]).wait();
        let early = agent.after_ticks(2);
        assert!(pod_ns(&early, &[("pod_id", &outer.uid)]) > 0 && pod_ns(&early, &[("pod_id", &uid)]) == 0);
        elsewhere.proxy.faults().lists = crate::common::kubernetes::proxy::Answer::Pass;
        let labels = [("pod_id", uid.as_str()), ("pod_name", "early")];
        let page = wait_for("the pod's row", || {
            Load::start(&folder, &["burn", "20000"]).wait();
            Some(agent.scrape()).filter(|page| pod_ns(page, &labels) > 0)
        });
        page.assert_conserved();
        page.assert_not_below(&early);
        elsewhere.cluster.delete(&object);
    });
}
