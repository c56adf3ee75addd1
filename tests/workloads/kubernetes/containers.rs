//! A pod's containers: their ids, which come late and change with every restart, and their names. Seconds of the field cases
//! are 50 ms here.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::lifecycle::{assert_near, milliseconds};
use crate::common::agent::wait_for;
use crate::common::cgroup::{Driver, Load, cpu_ns, ids, remove_ended};
use crate::common::kubernetes::case;
use crate::common::kubernetes::node::{CONTAINER_JOULES, Node, Pod, container_ids, running};
use crate::common::one_of_three;
use crate::common::page::Page;

/// FC-027: the container's id comes late, and the pod never becomes ready.
#[test]
fn work_before_the_container_id_is_known_is_the_pods_and_then_the_containers() {
    one_of_three(|| {
        let case = case("FC-027");
        let node = Node::new();
        let agent = node.agent(&[]);
        let mut steps: Vec<(f64, Result<&Value, &Value>)> = Vec::new();
        for event in case["events"].as_array().unwrap() {
            steps.push((event["t"].as_f64().unwrap(), Ok(&event["object"])));
        }
        for (t, seconds) in case["cpu_seconds_by_t"].as_object().unwrap() {
            steps.push((t.parse().unwrap(), Err(seconds)));
        }
        steps.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let id = case["cgroup"].as_str().unwrap().rsplit('/').next().unwrap();

        let mut pod: Option<Pod> = None;
        for (_, step) in steps {
            match (step, &mut pod) {
                (Ok(object), None) => {
                    let object = node.create(object);
                    let uid = object["metadata"]["uid"].as_str().unwrap().to_owned();
                    pod = Some(Pod::with_cgroups(object, &uid, Driver::Cgroupfs));
                }
                (Ok(object), Some(pod)) => {
                    let mut next = pod.object.clone();
                    next["spec"]["containers"] = object["spec"]["containers"].clone();
                    node.cluster.update(&next);
                    next["status"] = object["status"].clone();
                    pod.object = node.cluster.update_status(&next);
                }
                (Err(seconds), Some(pod)) => {
                    let work = ["burn", &(milliseconds(seconds) * 1000).to_string()];
                    Load::start(&pod.cgroup.another(id), &work).wait();
                    // The uid is enough for the pod's name; the API server may take longer than two ticks.
                    pod.wait_for_name(&agent);
                    let page = agent.after_ticks(2);
                    page.assert_conserved();
                    assert!(pod.is_named(&page));
                    assert_near(pod.used(&page).1, pod.cgroup.cgroup.cpu_ns());
                    let system = page.select("energy_agent_system_cpu_seconds_total", &[]);
                    assert!(!system.iter().any(|sample| sample.label("unit").contains(pod.uid())), "{system:#?}");
                }
                (Err(_), None) => panic!("work before the pod"),
            }
        }
        let pod = pod.unwrap();
        assert_eq!(pod.id("main"), id);
        let page = wait_for("the container's name", || {
            Some(agent.scrape()).filter(|page| pod.container_used(page, "main").1 > 0)
        });
        assert_near(pod.container_used(&page, "main").1, cpu_ns(&pod.cgroup.another(id)));
        let wanted = milliseconds(&case["expect"]["cpu_seconds_total"]);
        assert!(cpu_ns(&pod.cgroup.another(id)) >= wanted * 1_000_000, "all of it has run");
        let parts = page.microjoules(CONTAINER_JOULES, &[("pod_id", pod.uid())]);
        assert_eq!(parts, pod.used(&page).0, "a pod is the sum of its containers");
        node.cluster.delete(&pod.object);
    });
}

/// FC-032.
#[test]
fn containers_of_every_kind_have_their_names() {
    one_of_three(|| {
        let case = case("FC-032");
        let node = Node::new();
        let agent = node.agent(&["--export.terminated-retention=1s"]);
        let pod = node.adopt(&case["pod"]);
        let ids = container_ids(&pod.object);
        let mut truths = HashMap::new();
        for (prefix, seconds) in case["cpu_seconds"].as_object().unwrap() {
            let (name, id) = ids.iter().find(|(_, id)| id.starts_with(prefix)).unwrap();
            truths.insert(name, pod.burn(name, milliseconds(seconds)));
            if name == "migrate" {
                remove_ended(&pod.cgroup.another(id));
            }
        }
        // The sandbox, which is made before the others and whose id is in no status.
        Load::start(&pod.cgroup.container, &["burn", "50000"]).wait();
        pod.wait_for_name(&agent);
        let page = agent.after_ticks(6);
        page.assert_conserved();
        assert_near(pod.container_used(&page, "POD").1, cpu_ns(&pod.cgroup.container));
        let sandbox = page.select(CONTAINER_JOULES, &[("pod_id", pod.uid()), ("container_name", "POD")]);
        assert_eq!(sandbox.len(), page.divided().len(), "{sandbox:#?}");
        assert!(sandbox.iter().all(|sample| sample.label("container_id") == pod.cgroup.container_id), "{sandbox:#?}");
        for (name, _) in &ids {
            assert_near(pod.container_used(&page, name).1, truths[name]);
            let states = page.select(CONTAINER_JOULES, &[("pod_id", pod.uid()), ("container_name", name)]);
            let state = if name == "migrate" { "terminated" } else { "running" };
            assert!(states.iter().all(|sample| sample.label("state") == state), "{states:#?}");
        }
        let mut names: Vec<&str> = page
            .select(CONTAINER_JOULES, &[("pod_id", pod.uid())])
            .iter()
            .map(|sample| sample.label("container_name"))
            .collect();
        names.sort_unstable();
        names.dedup();
        let mut expected: Vec<&str> =
            case["expect"]["containers"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
        expected.push("POD");
        expected.sort_unstable();
        assert_eq!(names, expected);
        assert_near(pod.used(&page).1, pod.cgroup.cgroup.cpu_ns());
        node.cluster.delete(&pod.object);
    });
}

/// Restarts: old instances end, and even their own retention, while the series of their name goes on.
#[test]
fn a_container_that_restarts_is_one_series_that_never_falls() {
    one_of_three(|| {
        let node = Node::new();
        let agent = node.agent(&["--export.terminated-retention=1s"]);
        let mut pod = node.pod("crashing", &["main", "steady"]);
        pod.burn("steady", 20);
        let mut truth = pod.burn("main", 150);
        pod.wait_for_name(&agent);
        let mut last = agent.after_ticks(2);
        let check = |pod: &Pod, last: &mut Page, page: Page| {
            page.assert_conserved();
            let zones = page.divided().len();
            for name in ["main", "steady"] {
                let labels = [("pod_id", pod.uid()), ("container_name", name)];
                assert_eq!(page.select(CONTAINER_JOULES, &labels).len(), zones, "one series of {name}: {}", page.text);
                assert!(pod.container_used(&page, name) >= pod.container_used(last, name), "{name} fell");
            }
            assert!(pod.used(&page) >= pod.used(last), "the pod fell");
            *last = page;
        };
        for restart in 1..=3 {
            let (old, new) = (pod.id("main"), ids().1);
            remove_ended(&pod.cgroup.another(&old));
            // The runtime is earlier than the API: the new instance works before its id is known.
            let folder = pod.cgroup.another(&new);
            Load::start(&folder, &["burn", "100000"]).wait();
            check(&pod, &mut last, agent.after_ticks(2));
            let mut next = pod.object.clone();
            let status = &mut next["status"]["containerStatuses"][0];
            *status = running("main", &format!("containerd://{new}"));
            status["restartCount"] = json!(restart);
            status["lastState"] =
                json!({"terminated": {"exitCode": 1, "reason": "Error", "containerID": format!("containerd://{old}")}});
            pod.object = node.cluster.update_status(&next);
            let labels = [("pod_id", pod.uid()), ("container_name", "main"), ("container_id", new.as_str())];
            let page = wait_for("the new instance's id", || {
                Some(agent.scrape()).filter(|page| page.has(CONTAINER_JOULES, &labels))
            });
            check(&pod, &mut last, page);
            truth += pod.burn("main", 50);
            // Longer than the retention of an ended series.
            for _ in 0..6 {
                check(&pod, &mut last, agent.after_ticks(1));
            }
        }
        assert_near(pod.container_used(&last, "main").1, truth);
        assert_near(pod.used(&last).1, pod.cgroup.cgroup.cpu_ns());
        node.cluster.delete(&pod.object);
    });
}
