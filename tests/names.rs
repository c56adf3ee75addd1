//! Pods and containers by name: the built program against a small API server, with pods on real cgroups.

mod common;

use std::process::Command;

use serde_json::{Value, json};

use common::agent::{Agent, PROGRAM, wait_for};
use common::alone;
use common::cgroup::Pod;
use common::cluster::Cluster;
use common::page::Page;

const POD_JOULES: &str = "kepler_pod_cpu_joules_total";
const CONTAINER_JOULES: &str = "kepler_container_cpu_joules_total";
const CONTAINER_SECONDS: &str = "kepler_container_cpu_seconds_total";
const METER_UP: &str = "energy_agent_meter_up";

fn start(cluster: &Cluster, more: &[&str]) -> Agent {
    let flags = cluster.flags();
    let flags: Vec<&str> =
        flags.iter().map(String::as_str).chain(["--interval=200ms"]).chain(more.iter().copied()).collect();
    Agent::start(&flags)
}

/// A pod as the API server has it, whose container `main` is that instance.
fn object(pod: &Pod, name: &str, container_id: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "shop", "uid": pod.uid, "labels": {"app": "web", "tier": "front"}},
        "spec": {"nodeName": "node-a", "containers": [{"name": "main"}]},
        "status": {"containerStatuses": [{"name": "main", "containerID": format!("containerd://{container_id}")}]},
    })
}

fn wait_until(agent: &Agent, what: &str, holds: impl Fn(&Page) -> bool) -> Page {
    let page = wait_for(what, || Some(agent.scrape()).filter(|page| holds(page)));
    page.assert_conserved();
    page
}

fn is_up(page: &Page, reason: &str) -> bool {
    page.select(METER_UP, &[("meter", "pods")]).iter().any(|it| it.label("reason") == reason)
}

#[test]
fn a_pod_has_its_name_from_one_list_and_one_watch() {
    let _alone = alone();
    let (cluster, pod, late) = (Cluster::start(), Pod::systemd(), Pod::new());
    cluster.apply(object(&pod, "web-0", &pod.container_id));
    let mut agent = start(&cluster, &["--pods.labels=app"]);
    let _loads = [pod.load(&["spin", "0"]), late.load(&["spin", "0"])];
    wait_until(&agent, "the listed pod's name", |page| {
        page.has(POD_JOULES, &[("pod_id", &pod.uid), ("pod_name", "web-0"), ("pod_namespace", "shop")])
            && page.has(CONTAINER_JOULES, &[("container_id", &pod.container_id), ("container_name", "main")])
            && page.has(POD_JOULES, &[("pod_id", &late.uid), ("pod_name", "")])
    });
    cluster.apply(object(&late, "web-1", &late.container_id));
    let page = wait_until(&agent, "the watched pod's name", |page| {
        page.has(CONTAINER_JOULES, &[("pod_id", &late.uid), ("container_name", "main")])
    });
    assert!(page.has("energy_agent_pod_labels", &[("pod_id", &pod.uid), ("label_app", "web"), ("label_tier", "")]));
    assert_eq!(page.one(METER_UP, &[("meter", "pods")]).label("reason"), "ok");

    let requests = cluster.requests();
    assert_eq!(requests.len(), 2, "{requests:#?}");
    assert!(requests.iter().all(|it| it.starts_with("/api/v1/pods?") && it.contains("spec.nodeName%3Dnode-a")));
    assert!(requests[0].contains("resourceVersion=0"), "{requests:#?}");
    assert!(requests[1].contains("watch=true") && requests[1].contains("allowWatchBookmarks=true"), "{requests:#?}");
    agent.assert_well();
}

#[test]
fn a_restarted_container_goes_on_in_one_series_that_does_not_fall() {
    let _alone = alone();
    let (cluster, pod) = (Cluster::start(), Pod::systemd());
    cluster.apply(object(&pod, "web-0", &pod.container_id));
    let agent = start(&cluster, &["--export.terminated-retention=1s"]);
    let main = [("pod_id", pod.uid.as_str()), ("container_name", "main")];
    let first = pod.load(&["spin", "0"]);
    wait_until(&agent, "energy of the first instance", |page| {
        page.has(CONTAINER_JOULES, &main) && page.nanoseconds(CONTAINER_SECONDS, &main) > 300_000_000
    });
    drop(first);
    let last = agent.after_ticks(2);

    // The second instance starts, the first one's cgroup goes.
    let second_id = format!("{:064x}", 0xbeef);
    let second = pod.cgroup.child(&format!("cri-containerd-{second_id}.scope"));
    let _load = common::cgroup::Load::start(&second, &["spin", "0"]);
    cluster.apply(object(&pod, "web-0", &second_id));
    wait_for("the first instance to be gone", || std::fs::remove_dir(&pod.container).ok());
    let mut before = last.nanoseconds(CONTAINER_SECONDS, &main);
    let mut seen = 0;
    // Past the retention: the first instance's row is folded by then.
    for _ in 0..15 {
        let page = agent.after_ticks(1);
        page.assert_conserved();
        let series = page.select(CONTAINER_SECONDS, &main);
        let now = page.nanoseconds(CONTAINER_SECONDS, &main);
        assert!(now >= before, "fell from {before} to {now}: {series:#?}");
        before = now;
        if series.len() == 1 && series[0].label("container_id") == second_id {
            assert_eq!((series[0].label("state"), series[0].label("runtime")), ("running", "containerd"));
            let pod_total = page.microjoules(POD_JOULES, &main[..1]);
            assert_eq!(page.microjoules(CONTAINER_JOULES, &main[..1]), pod_total);
            assert!(!page.text.contains(&pod.container_id));
            seen += 1;
        }
    }
    assert!(seen > 5, "the second instance stands for the container on {seen} pages");
}

#[test]
fn fc_105_after_an_expired_watch_the_pods_are_listed_anew_and_names_of_rows_stay() {
    let _alone = alone();
    let (cluster, pod, other) = (Cluster::start(), Pod::new(), Pod::new());
    cluster.apply(object(&pod, "a", &pod.container_id));
    let agent = start(&cluster, &[]);
    let _loads = [pod.load(&["spin", "0"]), other.load(&["spin", "0"])];
    wait_until(&agent, "the first name", |page| page.has(POD_JOULES, &[("pod_name", "a")]));
    cluster.delete_and_expire(&pod.uid);
    cluster.cut();
    cluster.apply(object(&other, "b", &other.container_id));
    // The deleted pod's cgroup is still there, and so is its name.
    wait_until(&agent, "both names", |page| {
        page.has(POD_JOULES, &[("pod_name", "a")]) && page.has(POD_JOULES, &[("pod_name", "b")]) && is_up(page, "ok")
    });
    let lists = cluster.requests().iter().filter(|it| !it.contains("watch=true")).count();
    assert!(lists <= 3, "{:#?}", cluster.requests());
}

#[test]
fn fc_103_without_permission_the_agent_says_what_is_missing_and_goes_on() {
    let _alone = alone();
    let (cluster, pod) = (Cluster::start(), Pod::new());
    cluster.apply(object(&pod, "web-0", &pod.container_id));
    cluster.refuse(Some((403, "pods is forbidden: User \"x\" cannot list resource \"pods\" at the cluster scope")));
    let mut agent = start(&cluster, &[]);
    let _load = pod.load(&["spin", "0"]);
    wait_until(&agent, "the refusal", |page| {
        is_up(page, "forbidden") && page.microjoules(POD_JOULES, &[("pod_id", &pod.uid), ("pod_name", "")]) > 0
    });
    agent.after_ticks(10);
    let said = agent.logged("forbidden");
    assert_eq!(said.len(), 1, "{said:#?}");
    assert!(said[0].contains("get, list and watch on pods at cluster scope"), "{said:#?}");
    assert_eq!(cluster.requests().len(), 1);
    agent.assert_well();
}

#[test]
fn fc_104_while_the_api_server_is_away_names_stay_and_come_anew_when_it_is_back() {
    let _alone = alone();
    let (cluster, pod, late) = (Cluster::start(), Pod::new(), Pod::new());
    cluster.apply(object(&pod, "web-0", &pod.container_id));
    let agent = start(&cluster, &[]);
    let _loads = [pod.load(&["spin", "0"]), late.load(&["spin", "0"])];
    wait_until(&agent, "the first name", |page| page.has(POD_JOULES, &[("pod_name", "web-0")]));
    cluster.refuse(Some((503, "starting")));
    cluster.apply(object(&late, "web-1", &late.container_id));
    let away = wait_until(&agent, "the outage to show", |page| is_up(page, "error"));
    assert!(away.has(POD_JOULES, &[("pod_name", "web-0")]));
    assert!(away.has(POD_JOULES, &[("pod_id", &late.uid), ("pod_name", "")]));
    cluster.refuse(None);
    let back = wait_until(&agent, "the names", |page| page.has(POD_JOULES, &[("pod_name", "web-1")]));
    back.assert_not_below(&away);
    assert!(is_up(&back, "ok") && back.has(POD_JOULES, &[("pod_name", "web-0")]));
}

#[test]
fn the_kubelet_tells_names_at_an_interval_and_of_a_new_pod_before_its_time() {
    let _alone = alone();
    let (cluster, pod, late) = (Cluster::start(), Pod::new(), Pod::new());
    cluster.apply(object(&pod, "web-0", &pod.container_id));
    let url = format!("--pods.kubelet-url={}", cluster.url());
    let agent = Agent::start(&["--pods.source=kubelet", "--pods.kubelet-interval=1h", "--interval=200ms", &url]);
    let _loads = [pod.load(&["spin", "0"])];
    wait_until(&agent, "the name", |page| page.has(POD_JOULES, &[("pod_name", "web-0")]));
    cluster.apply(object(&late, "web-1", &late.container_id));
    let _late = late.load(&["spin", "0"]);
    wait_until(&agent, "the new pod's name", |page| page.has(POD_JOULES, &[("pod_name", "web-1")]));
    let requests = cluster.requests();
    assert!(requests.len() <= 4 && requests.iter().all(|it| it == "/pods"), "{requests:#?}");
}

#[test]
fn outside_a_cluster_the_agent_works_as_ever() {
    let _alone = alone();
    let agent = Agent::start(&["--interval=200ms", "--pods.source=none"]);
    let page = agent.after_ticks(1);
    assert_eq!(page.one(METER_UP, &[("meter", "pods")]).label("reason"), "off");
    assert_eq!(agent.logged("WARN").iter().filter(|line| line.contains("pods")).count(), 0);
}

#[test]
fn doctor_says_which_source_answers_and_what_is_missing() {
    let _alone = alone();
    let (cluster, pod) = (Cluster::start(), Pod::new());
    let [kubeconfig, node] = cluster.flags();
    let doctor = || {
        let output =
            Command::new(PROGRAM).args(["doctor", "--ebpf=off", &kubeconfig, &node]).env("COLUMNS", "400").output();
        let text = String::from_utf8(output.unwrap().stdout).unwrap();
        let lines: Vec<_> = text.lines().skip_while(|line| !line.starts_with("kubernetes")).take(2).collect();
        lines.join("\n")
    };
    let row = doctor();
    assert!(
        row.contains("fallback") && row.contains("knows no pod on node node-a") && row.contains("NODE_NAME"),
        "{row}"
    );
    cluster.apply(object(&pod, "web-0", &pod.container_id));
    let row = doctor();
    assert!(row.contains("ok") && row.contains("1 pod on node node-a"), "{row}");
    cluster.refuse(Some((403, "pods is forbidden")));
    let row = doctor();
    assert!(row.contains("missing") && row.contains("get, list and watch on pods at cluster scope"), "{row}");
    cluster.refuse(Some((401, "Unauthorized")));
    let row = doctor();
    assert!(row.contains("missing") && row.contains("unauthorized") && row.contains("-> renew"), "{row}");
}

#[test]
fn fc_107_in_a_pod_without_the_hosts_processes_the_agent_says_so_once() {
    let _alone = alone();
    let unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", PROGRAM];
    let command = [["env", "KUBERNETES_SERVICE_HOST=127.0.0.1"].as_slice(), &unshare].concat();
    let agent = Agent::spawn(&command, &["--interval=200ms", "--pods.source=none"]);
    agent.wait_until_ready();
    let page = agent.after_ticks(5);
    let row = page.one(METER_UP, &[("meter", "host_pid")]);
    assert_eq!((row.label("reason"), row.value.as_str()), ("restricted", "0"));
    let said = agent.logged("hostPID: true");
    assert_eq!(said.len(), 1, "{said:#?}");
}
