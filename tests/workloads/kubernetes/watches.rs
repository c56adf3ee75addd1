//! The watch: in steady state nothing else is asked, and what it forgets or says oddly costs one list and no name.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::faults::warnings;
use crate::common::agent::wait_for;
use crate::common::cgroup::{self, Load, ids};
use crate::common::kubernetes::case;
use crate::common::kubernetes::node::{CONTAINER_JOULES, Node, Pod, container, running};
use crate::common::kubernetes::proxy::{Answer, Asked};

/// Pause containers, pods that live a moment and cgroups that the API does not know cause no request, for as many ticks as
/// there are in two minutes.
#[test]
fn in_steady_state_nothing_is_asked_beside_the_watch() {
    let node = Node::new();
    let agent = node.agent(&["--interval=100ms"]);
    let known = node.pod("cart", &["main"]);
    known.burn("main", 10);
    known.wait_for_name(&agent);
    node.proxy.wait_for_watch();
    let before = node.proxy.asked();
    let (mut short, first) = (0, agent.scrape().ticks());
    while short < 40 || agent.scrape().ticks() < first + 120 {
        let pod = node.pod(&format!("short-{short}"), &["step"]);
        // The sandbox, which no status names, and a container that the API never reports.
        Load::start(&pod.cgroup.container, &["burn", "2000"]).wait();
        pod.burn("step", 5);
        let stranger = cgroup::Pod::new();
        stranger.load(&["burn", "2000"]).wait();
        stranger.remove();
        pod.cgroup.remove();
        node.cluster.delete(&pod.object);
        known.burn("main", 2);
        short += 1;
        thread::sleep(Duration::from_millis(100));
    }
    let page = agent.after_ticks(2);
    page.assert_conserved();
    let sandbox = [("pod_name", "short-3"), ("pod_namespace", node.name.as_str())];
    assert!(page.has("kepler_pod_cpu_joules_total", &sandbox));
    let asked = node.proxy.asked();
    assert_eq!(asked.len(), before.len(), "asked: {:#?}", &asked[before.len()..]);
    // One list and one watch, of this node's pods alone.
    assert!(asked.iter().all(|asked| asked.method == "GET" && asked.path.contains("spec.nodeName")), "{asked:#?}");
    assert_eq!((node.proxy.lists(), node.proxy.watches()), (1, 1), "{asked:#?}");
    node.cluster.delete(&known.object);
}

/// FC-105, by an event in the stream or by the HTTP status.
fn an_expired_watch_lists_again(answer: Answer) {
    let case = case("FC-105");
    let node = Node::new();
    let agent = node.agent(&["--export.terminated-retention=2s"]);
    let a = node.pod("a", &["main"]);
    a.burn("main", 20);
    a.wait_for_name(&agent);
    node.proxy.wait_for_watch();
    let version = case["watch"][1]["rv"].as_str().unwrap();
    assert_eq!(case["watch"][3]["reconnect_with"], version);
    node.proxy.send(&crate::common::kubernetes::bookmark(version.parse().unwrap()));
    agent.after_ticks(1);
    node.proxy.faults().watches = answer;
    node.proxy.end_watches();
    a.cgroup.remove();
    node.cluster.delete(&a.object);
    let b = node.pod("b", &["main"]);
    b.burn("main", 20);
    wait_for("a watch from the bookmark", || node.proxy.asked().into_iter().find(|asked| asked.version == version));
    // The list comes through, the watch after it is refused again: no storm of lists.
    b.wait_for_name(&agent);
    let (lists, start) = (node.proxy.lists(), Instant::now());
    thread::sleep(Duration::from_secs(3));
    let more = node.proxy.lists() - lists;
    let spans = usize::try_from(start.elapsed().as_secs() / 3).unwrap();
    assert!(more <= 6 * spans, "{more} lists in {:?}", start.elapsed());
    node.proxy.faults().watches = Answer::Pass;
    let c = node.pod("c", &["main"]);
    c.burn("main", 20);
    let page = c.wait_for_name(&agent);
    page.assert_conserved();
    let from_expired = |asked: &&Asked| asked.is_watch && asked.version == version;
    assert_eq!(node.proxy.asked().iter().filter(from_expired).count(), 1, "an expired version was tried again");
    wait_for("the end of the pod whose deletion nobody told", || {
        let page = agent.scrape();
        page.samples.iter().all(|sample| sample.label("pod_id") != a.uid()).then_some(())
    });
    for pod in [&b, &c] {
        node.cluster.delete(&pod.object);
    }
}

#[test]
fn an_expired_watch_told_by_an_event_lists_again_without_haste() {
    let error = crate::common::kubernetes::status_object(410, "Expired", "too old resource version: 1500 (2000)");
    an_expired_watch_lists_again(Answer::Refuse(200, json!({"type": "ERROR", "object": error})));
}

#[test]
fn an_expired_watch_told_by_the_status_lists_again_without_haste() {
    an_expired_watch_lists_again(Answer::status(410));
}

/// A watch that expires now and then is daily business: no warning.
#[test]
fn one_expired_watch_is_no_reason_to_warn() {
    let node = Node::new();
    let agent = node.agent(&[]);
    node.proxy.wait_for_watch();
    let expired = crate::common::kubernetes::status_object(410, "Expired", "too old resource version: 1 (2)");
    let lists = node.proxy.lists();
    node.proxy.send(&json!({"type": "ERROR", "object": expired}));
    wait_for("another list", || (node.proxy.lists() > lists).then_some(()));
    let pod = node.pod("after", &["main"]);
    pod.burn("main", 20);
    pod.wait_for_name(&agent);
    assert_eq!(node.proxy.lists(), lists + 1);
    assert_eq!(warnings(&agent), Vec::<String>::new());
    node.cluster.delete(&pod.object);
}

/// FC-106, event by event.
#[test]
fn odd_events_do_no_harm_and_versions_are_only_handed_back() {
    let case = case("FC-106");
    let node = Node::new();
    node.proxy.faults().watches = Answer::Quiet;
    let agent = node.agent(&[]);
    node.proxy.wait_for_watch();
    let pod = |name: &str, version: &Value| {
        let (uid, id) = ids();
        let object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": "odd", "name": name, "uid": uid, "resourceVersion": version},
            "spec": {"nodeName": node.name, "containers": [container("main")]},
            "status": {"phase": "Running", "containerStatuses": [running("main", &format!("containerd://{id}"))]},
        });
        Pod::with_cgroups(object, &uid, cgroup::Driver::Systemd)
    };
    let (x, y) = (pod("x", &json!("68368670")), pod("y", &json!("68368680")));
    let mut version = String::new();
    for event in case["watch"].as_array().unwrap() {
        let object = match event["pod"].as_str() {
            Some("x") => &x.object,
            Some("y") => &y.object,
            _ => &event["object"],
        };
        match (event["type"].as_str(), event["stream"].as_str()) {
            (Some("BOOKMARK"), _) => {
                version = event["rv"].as_str().unwrap().to_owned();
                node.proxy.send(&crate::common::kubernetes::bookmark(version.parse().unwrap()));
            }
            (Some(kind), _) => node.proxy.send(&json!({"type": kind, "object": object})),
            (None, Some("cut in the middle of a JSON line")) => {
                let watches = node.proxy.watches();
                node.proxy.end_in_a_line(&json!({"type": "ADDED", "object": y.object}));
                wait_for("the next watch", || (node.proxy.watches() > watches).then_some(()));
                node.proxy.wait_for_watch();
                y.burn("main", 20);
                assert!(!y.is_named(&agent.after_ticks(2)), "half a line was read");
                assert_eq!(
                    node.proxy.asked().last().unwrap().version,
                    version,
                    "the last one given, though it is less"
                );
            }
            _ => panic!("an unknown event: {event}"),
        }
    }
    let watches = node.proxy.watches();
    for pod in [&x, &y] {
        pod.burn("main", 20);
        let page = pod.wait_for_name(&agent);
        page.assert_conserved();
        assert_eq!(page.select(CONTAINER_JOULES, &[("pod_id", pod.uid()), ("container_name", "main")]).len(), 1);
    }
    // The unknown type was no reason to leave the watch.
    agent.after_ticks(4);
    assert_eq!((node.proxy.watches(), node.proxy.lists()), (watches, 1), "{:#?}", node.proxy.asked());
    assert_eq!(warnings(&agent), Vec::<String>::new());
}
