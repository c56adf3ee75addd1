//! The life of a pod as the API server and the kernel tell it. Seconds of the field cases are 50 ms here.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::agent::{Agent, wait_for};
use crate::common::cgroup::{Driver, cpu_ns, ids};
use crate::common::kubernetes::case;
use crate::common::kubernetes::node::{CONTAINER_JOULES, Node, POD_JOULES, POD_SECONDS, Pod, container, running};
use crate::common::one_of_three;
use crate::common::page::Page;
use crate::common::patience::Patience;

/// Work in place of one CPU second of a case.
const SECOND_MS: f64 = 50.0;

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "of a known case")]
pub fn milliseconds(seconds: &Value) -> u64 {
    (seconds.as_f64().unwrap() * SECOND_MS) as u64
}

/// CPU time on the page against what cpu.stat has, or what was asked for; a few milliseconds are the runtime's own.
#[track_caller]
pub fn assert_near(charged_ns: u64, truth_ns: u64) {
    let allowed = truth_ns / 20 + 10_000_000;
    assert!(charged_ns.abs_diff(truth_ns) <= allowed, "{charged_ns} ns charged, {truth_ns} ns is true");
}

/// FC-026: the cgroup of a static pod has a hash where others have the uid, and the kubelet starts it before the API
/// server knows of it.
#[test]
fn a_static_pod_is_named_by_the_hash_that_its_cgroup_has() {
    one_of_three(|| {
        let case = case("FC-026");
        let node = Node::new();
        let agent = node.agent(&[]);
        let (mirror, process) = (&node.mirror(&case["pod_list"][0]), &case["processes"][0]);
        let hash = mirror["metadata"]["annotations"]["kubernetes.io/config.hash"].as_str().unwrap();
        let mut pod = Pod::with_cgroups(mirror.clone(), hash, Driver::Systemd);
        let name = case["expect"]["container"].as_str().unwrap();
        let folder = pod.cgroup.another(&pod.id(name));
        let in_case = process["cgroup"].as_str().unwrap().strip_prefix("0::").unwrap();
        assert!(folder.to_str().unwrap().ends_with(in_case), "{} is not {in_case}", folder.display());

        pod.burn(name, milliseconds(&process["cpu_seconds"]));
        let unnamed = agent.after_ticks(2);
        let early = unnamed.nanoseconds(POD_SECONDS, &[("pod_id", hash)]);
        assert_near(early, pod.cgroup.cgroup.cpu_ns());

        pod.object = node.create(mirror);
        let page = pod.wait_for_name(&agent);
        pod.burn(name, 20);
        let page_later = agent.after_ticks(2);
        for page in [&page, &page_later] {
            page.assert_conserved();
            assert!(!page.has(POD_JOULES, &[("pod_id", hash)]), "the hash is a pod of its own beside the name");
        }
        assert_eq!(
            (pod.namespace(), pod.name()),
            (case["expect"]["namespace"].as_str().unwrap(), "kube-apiserver-node-a")
        );
        assert!(
            pod.used(&page).0 >= unnamed.microjoules(POD_JOULES, &[("pod_id", hash)]),
            "energy was lost with the name"
        );
        assert_near(pod.used(&page_later).1, pod.cgroup.cgroup.cpu_ns());
        assert_near(pod.container_used(&page_later, name).1, cpu_ns(&folder));
        assert_eq!(agent.logged(" WARN ").iter().filter(|line| line.contains("pod")).count(), 0, "{:#?}", agent.log());
        node.cluster.delete(&pod.object);
    });
}

/// FC-029: a pod of a stateful set comes back under its name, and is another one.
#[test]
fn a_new_pod_of_the_same_name_begins_at_nothing_and_the_old_one_stays_what_it_was() {
    one_of_three(|| {
        let case = case("FC-029");
        let node = Node::new();
        let agent = node.agent(&["--pods.labels=tier"]);
        let objects: Vec<&Value> = case["events"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|event| event["type"] == "ADDED")
            .map(|event| &event["object"])
            .collect();
        let create = |object: &Value, tier: &str| {
            let mut object = object.clone();
            object["metadata"]["labels"] = json!({"tier": tier});
            node.adopt(&object)
        };
        // A joule of the case is a millisecond of work.
        let old = create(objects[0], "first");
        old.burn("db", 900);
        old.wait_for_name(&agent);
        let old_truth = old.burn("db", 5);
        let before = agent.after_ticks(2);
        old.cgroup.remove();
        node.cluster.delete(&old.object);

        let new = create(objects[1], "second");
        assert_eq!((old.name(), old.namespace()), (new.name(), new.namespace()));
        assert_ne!(old.uid(), new.uid());
        new.burn("db", 12);
        new.wait_for_name(&agent);
        let page = agent.after_ticks(2);
        page.assert_conserved();
        page.assert_not_below(&before);
        assert!(old.is_named(&page) && page.has(POD_JOULES, &[("pod_id", old.uid()), ("state", "terminated")]));
        let (old_used, new_used) = (old.used(&page), new.used(&page));
        assert_eq!(old_used.1, old.used(&before).1, "the old pod goes on under the new one's work");
        assert!(new_used.0 * 10 < old_used.0, "the new pod begins at {} of {} uJ", new_used.0, old_used.0);
        assert_near(new_used.1, new.cgroup.cgroup.cpu_ns());
        assert_near(old_used.1, old_truth);
        let tiers = page.select("energy_agent_pod_labels", &[("pod_id", new.uid())]);
        assert_eq!(tiers.iter().map(|sample| sample.label("label_tier")).collect::<Vec<_>>(), ["second"]);
        node.cluster.delete(&new.object);
    });
}

/// FC-122: both values are to be found, under names that no other label has.
#[test]
fn two_labels_that_would_have_one_name_are_both_exported() {
    let case = case("FC-122");
    let node = Node::new();
    let agent = node.agent(&[case["flag"].as_str().unwrap()]);
    let pod = node.adopt(&json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "both", "namespace": node.name, "labels": case["pod_labels"]},
        "spec": {"containers": [container("main")]},
        "status": {"phase": "Running", "containerStatuses": [running("main", &format!("containerd://{}", ids().1))]},
    }));
    pod.burn("main", 20);
    pod.wait_for_name(&agent);
    let page = agent.scrape();
    let [labels] = &page.select("energy_agent_pod_labels", &[("pod_id", pod.uid())])[..] else {
        panic!("{}", page.text)
    };
    assert_eq!(
        (labels.label("label_ops_managed_conflict1"), labels.label("label_ops_managed_conflict2")),
        ("dash", "under")
    );
    wait_for("a line about it", || agent.logged("_conflict2").pop());
    node.cluster.delete(&pod.object);
}

/// FC-030, and its variant in which no event reports the end.
fn a_deleted_pod_ends(is_missed: bool) {
    let case = case("FC-030");
    let node = Node::new();
    // A second of the case is 50 ms: 60 s are 3 s.
    let retention = Duration::from_millis(milliseconds(&case["retention_after_delete_s"]));
    let agent = node.agent(&[&format!("--export.terminated-retention={}ms", retention.as_millis())]);
    let pod = node.adopt(&case["events"][0]["object"]);
    pod.burn("step", 200);
    pod.wait_for_name(&agent);
    node.proxy.wait_for_watch();
    let before = agent.after_ticks(2);
    if is_missed {
        node.proxy.faults().swallowed = Some("DELETED");
    }
    let deleted = Instant::now();
    node.cluster.delete(&pod.object);
    pod.cgroup.remove();
    let labels = [("pod_id", pod.uid()), ("state", "terminated"), ("pod_name", pod.name())];
    let mut last = wait_for("its last total", || Some(agent.scrape()).filter(|page| page.has(POD_JOULES, &labels)));
    let total = pod.used(&last);
    assert!(total >= pod.used(&before), "the last part is missing");
    let mut patience = Patience::new();
    let gone = loop {
        let page = agent.after_ticks(1);
        page.assert_conserved();
        page.assert_not_below(&last);
        if !page.has(POD_JOULES, &[("pod_id", pod.uid())]) {
            break page;
        }
        assert_eq!(pod.used(&page), total, "it grows after its end");
        assert!(pod.is_named(&page), "it lost its name before its end");
        // This catches a series that never ends.
        patience.check("the end of its series");
        last = page;
    };
    assert!(deleted.elapsed() >= retention, "its series ended after {:?}", deleted.elapsed());
    let retired = |page: &Page| page.microjoules("energy_agent_retired_cpu_joules_total", &[]);
    assert!(retired(&gone) - retired(&last) >= total.0);
    if is_missed {
        // The list without the pod, after an expired watch.
        node.proxy.faults().swallowed = None;
        let lists = node.proxy.lists();
        node.proxy
            .send(&json!({"type": "ERROR", "object": crate::common::kubernetes::status_object(410, "Expired", "")}));
        wait_for("another list", || (node.proxy.lists() > lists).then_some(()));
    }
    let page = agent.after_ticks(4);
    page.assert_conserved();
    assert!(!page.has(POD_JOULES, &[("pod_id", pod.uid())]), "it came back");
    assert!(page.samples.iter().all(|sample| sample.label("pod_name") != pod.name()), "something has its name still");
}

#[test]
fn a_deleted_pod_is_shown_for_a_while_and_then_gone() {
    a_deleted_pod_ends(false);
}

#[test]
fn a_pod_whose_deletion_was_missed_ends_all_the_same() {
    a_deleted_pod_ends(true);
}

/// The object of a finished Job's pod stays in the API for as long as the Job does.
#[test]
fn a_completed_job_ends_like_a_deleted_pod_although_its_object_stays() {
    one_of_three(|| {
        let node = Node::new();
        let finished = |pod: &Pod| {
            let mut object = pod.object.clone();
            let id = format!("containerd://{}", pod.id("job"));
            object["status"]["phase"] = json!("Succeeded");
            object["status"]["containerStatuses"][0]["state"] =
                json!({"terminated": {"exitCode": 0, "reason": "Completed", "containerID": id}});
            node.cluster.update_status(&object)
        };
        // Done before the agent came.
        let past = node.pod("report-1", &["job"]);
        past.cgroup.remove();
        finished(&past);
        let agent = node.agent(&["--export.terminated-retention=2s"]);
        let pod = node.pod("report-2", &["job"]);
        pod.burn("job", 200);
        let truth = pod.cgroup.cgroup.cpu_ns();
        pod.cgroup.remove();
        finished(&pod);
        let labels = [&pod.labels()[..], &[("state", "terminated")]].concat();
        let page = wait_for("its last total", || Some(agent.scrape()).filter(|page| page.has(POD_JOULES, &labels)));
        assert_near(pod.used(&page).1, truth);
        let container = [("pod_id", pod.uid()), ("container_name", "job"), ("state", "terminated")];
        assert!(page.has(CONTAINER_JOULES, &container));
        let page = wait_for("its end", || Some(agent.scrape()).filter(|page| !page.has(POD_JOULES, &labels)));
        page.assert_conserved();
        let page = agent.after_ticks(4);
        for pod in [&past, &pod] {
            assert!(page.samples.iter().all(|sample| sample.label("pod_id") != pod.uid()), "{}", page.text);
            node.cluster.delete(&pod.object);
        }
    });
}

/// Fault 11: a scrape shows the last energy of a pod that came and went between two scrapes.
#[test]
fn a_pod_that_lived_a_second_has_its_name_and_its_energy() {
    one_of_three(|| {
        let node = Node::new();
        let agent = node.agent(&["--interval=1s"]);
        let pod = node.pod("short", &["step"]);
        pod.load("step", &["sleepers", "1", "3000", "3000"]).wait();
        let truth = pod.cgroup.cgroup.cpu_ns();
        pod.cgroup.remove();
        node.cluster.delete(&pod.object);
        // Nobody has scraped while it lived.
        let first = agent.after_ticks(2);
        let second = agent.after_ticks(1);
        for page in [&first, &second] {
            page.assert_conserved();
            assert!(pod.is_named(page), "{}", page.text);
            page.one(CONTAINER_JOULES, &[("container_name", "step"), ("state", "terminated"), ("pod_id", pod.uid())]);
        }
        assert_eq!(pod.used(&first), pod.used(&second), "two scrapes see the same");
        assert_near(pod.used(&first).1, truth);
        assert!(pod.used(&first).0 > 0);
    });
}

/// The name may come when the pod has ended already.
#[test]
fn a_pod_that_ended_before_the_api_told_of_it_gets_its_name_afterwards() {
    let node = Node::new();
    let agent = node.agent(&[]);
    node.proxy.wait_for_watch();
    node.proxy.faults().watches = crate::common::kubernetes::proxy::Answer::status(500);
    node.proxy.end_watches();
    let pod = node.pod("early", &["step"]);
    pod.burn("step", 100);
    pod.cgroup.remove();
    let page = agent.after_ticks(2);
    let unnamed = pod.used(&page);
    assert!(unnamed.0 > 0 && !pod.is_named(&page));
    node.proxy.faults().watches = crate::common::kubernetes::proxy::Answer::Pass;
    let page = pod.wait_for_name(&agent);
    assert_eq!(pod.used(&page), unnamed, "its energy changed with the name");
    assert!(pod.container_used(&page, "step").0 > 0);
    node.cluster.delete(&pod.object);
}

/// An object that is deleted by force is gone before its containers are.
#[test]
fn work_after_the_deletion_in_the_api_is_still_the_pods_by_name() {
    one_of_three(|| {
        let node = Node::new();
        let agent = node.agent(&[]);
        let pod = node.pod("forced", &["main"]);
        pod.burn("main", 50);
        pod.wait_for_name(&agent);
        node.proxy.wait_for_watch();
        node.cluster.delete(&pod.object);
        agent.after_ticks(4);
        pod.burn("main", 100);
        let page = agent.after_ticks(2);
        page.assert_conserved();
        assert!(pod.is_named(&page), "{}", page.text);
        assert_near(pod.used(&page).1, pod.cgroup.cgroup.cpu_ns());
    });
}

/// Fault 3: a process id is used again at once, in another pod.
#[test]
fn a_process_id_that_is_used_again_carries_nothing_from_pod_to_pod() {
    one_of_three(|| {
        let node = Node::new();
        let agent = node.agent(&[]);
        let (old, new) = (node.pod("first", &["main"]), node.pod("second", &["main"]));
        old.burn("main", 300);
        let mut tries = 0;
        // The kernel counts process ids up; another process may take the one we want, and keep it.
        let reused = (0..20).any(|_| {
            let load = old.load("main", &["burn", "1000"]);
            let pid = load.0.id();
            load.wait();
            (0..10).any(|_| {
                std::fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).unwrap();
                let load = new.load("main", &["burn", "1000"]);
                let is_same = load.0.id() == pid;
                load.wait();
                tries += 1;
                is_same
            })
        });
        assert!(reused, "no process id was to be had again");
        let page = agent.after_ticks(2);
        page.assert_conserved();
        assert_near(old.used(&page).1, old.cgroup.cgroup.cpu_ns());
        assert_near(new.used(&page).1, new.cgroup.cgroup.cpu_ns());
        assert!(new.used(&page).1 < old.used(&page).1 || tries > 50, "inherited");
        for pod in [&old, &new] {
            node.cluster.delete(&pod.object);
        }
    });
}

/// Fault 13: what a new agent shows is its own, and says since when.
#[test]
fn a_new_agent_counts_from_nothing_and_knows_the_names_at_once() {
    let node = Node::new();
    let pod = node.pod("cart", &["main"]);
    let start = |agent: &Agent| agent.scrape().number("process_start_time_seconds");
    let mut first = node.agent(&[]);
    pod.burn("main", 500);
    let before = pod.used(&first.after_ticks(2));
    let first_start = start(&first);
    assert!(first.end("TERM").0.success());
    // The start has hundredths of a second.
    std::thread::sleep(Duration::from_millis(20));
    let second = node.agent(&[]);
    pod.burn("main", 20);
    let page = second.after_ticks(2);
    page.assert_conserved();
    assert!(pod.is_named(&page));
    assert!(start(&second) > first_start);
    let after = pod.used(&page);
    assert!(after.0 < before.0 && after.1 < before.1, "{after:?} of {before:?} from the agent before");
    node.cluster.delete(&pod.object);
}
