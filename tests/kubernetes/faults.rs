//! An API server that is away, refuses, forgets or says odd things: energy goes on under the pods' uids, names stay and
//! come by themselves, and nothing is asked for more often than it has to be.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::agent::{Agent, wait_for};
use crate::common::cgroup::{self, Load, ids};
use crate::common::tree::Tree;
use crate::kubernetes::case;
use crate::kubernetes::cluster::{TOKEN, kubeconfig};
use crate::kubernetes::node::{CONTAINER_JOULES, Node, Pod, container, running, wait_for_source};
use crate::kubernetes::proxy::{Answer, Asked};

/// Its warnings and errors, but for those that every run in a virtual machine has.
fn warnings(agent: &Agent) -> Vec<String> {
    let of_level = |line: &String| line.contains(" WARN ") || line.contains("ERROR ");
    let of_meters = |line: &String| line.contains("CPU energy is") || line.contains("--path.sysfs");
    agent.log().into_iter().filter(|line| of_level(line) && !of_meters(line)).collect()
}

/// Waits until the pods' names are told again; the agent may ask as seldom as every half minute.
fn wait_for_names(agent: &Agent) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !agent.scrape().has("energy_agent_meter_up", &[("meter", "pods"), ("reason", "ok")]) {
        assert!(Instant::now() < deadline, "the names do not come back: {:#?}", agent.log());
        thread::sleep(Duration::from_millis(100));
    }
}

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
    let (mut short, start, first) = (0, Instant::now(), agent.scrape().ticks());
    while start.elapsed() < Duration::from_secs(12) || agent.scrape().ticks() < first + 120 {
        let pod = node.pod(&format!("short-{short}"), &["step"]);
        // The sandbox, which no status names, and one that the API never tells of.
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
    assert!(short > 20, "only {short} pods");
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

/// The API is away for a while; nothing that was known is lost, and what is new is named when it is back.
#[test]
fn names_stay_while_the_api_is_away_and_new_ones_come_after_it() {
    let node = Node::new();
    let agent = node.agent(&[]);
    let (stays, ends) = (node.pod("stays", &["main"]), node.pod("ends", &["main"]));
    for pod in [&stays, &ends] {
        pod.burn("main", 50);
        pod.wait_for_name(&agent);
    }
    let mut last = agent.scrape();
    node.proxy.go_away();
    assert_eq!(wait_for_source(&agent, "0"), "unreachable");

    let born = node.pod("born", &["main"]);
    ends.cgroup.remove();
    node.cluster.delete(&ends.object);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(5) {
        stays.burn("main", 20);
        born.burn("main", 20);
        let page = agent.after_ticks(1);
        page.assert_conserved();
        page.assert_not_below(&last);
        assert!(stays.is_named(&page) && ends.is_named(&page), "a name was forgotten: {}", page.text);
        last = page;
    }
    let before = agent.after_ticks(2);
    let unnamed = born.used(&before);
    assert!(unnamed.0 > 0 && !born.is_named(&before), "its energy is under its uid");

    node.proxy.come_back();
    wait_for_names(&agent);
    let page = born.wait_for_name(&agent);
    page.assert_conserved();
    assert!(born.used(&page) >= unnamed && stays.used(&page) >= stays.used(&before), "energy was lost with the name");
    assert!(born.container_used(&page, "main").0 > 0);
    let told = warnings(&agent);
    assert_eq!(told.len(), 1, "one line for one change: {told:#?}");
    assert_eq!(agent.logged("pods have names").len(), 2);
    for pod in [&stays, &born] {
        node.cluster.delete(&pod.object);
    }
}

/// FC-104: not there at the start, then away for long, and back with another token.
#[test]
fn an_agent_starts_without_the_api_and_takes_a_new_token_from_its_file() {
    let case = case("FC-104");
    let node = Node::new();
    let file = node.folder().join("token");
    fs::write(&file, "old\n").unwrap();
    let server = format!("http://{}", node.proxy.address());
    kubeconfig(node.folder(), &server, None, &json!({"tokenFile": file}));
    node.proxy.faults().tokens = BTreeSet::from(["old".to_owned()]);
    let first = node.pod("first", &["main"]);
    let mut agent: Option<Agent> = None;
    let mut second: Option<Pod> = None;
    for step in case["steps"].as_array().unwrap() {
        let text = [&step["api"], &step["new pod starts on the node"]].map(|text| text.as_str().unwrap_or_default());
        let words = text.concat();
        println!("{words}");
        match (words.split(' ').next().unwrap(), &agent) {
            ("connect", None) => {
                node.proxy.go_away();
                let started = node.agent_without_names(&[]);
                first.burn("main", 50);
                let page = started.after_ticks(2);
                assert!(first.used(&page).0 > 0 && !first.is_named(&page), "it meters from the first second");
                agent = Some(started);
            }
            ("ok", Some(agent)) => {
                node.proxy.come_back();
                wait_for_names(agent);
                first.wait_for_name(agent);
            }
            ("down", Some(agent)) => {
                node.proxy.go_away();
                wait_for_source(agent, "0");
            }
            ("not", Some(agent)) => {
                let pod = node.pod("second", &["main"]);
                pod.burn("main", 50);
                let page = agent.after_ticks(2);
                assert!(pod.used(&page).0 > 0 && !pod.is_named(&page) && first.is_named(&page));
                second = Some(pod);
            }
            ("up,", Some(agent)) => {
                node.proxy.faults().tokens = BTreeSet::from(["new".to_owned()]);
                fs::write(&file, "new\n").unwrap();
                node.proxy.come_back();
                let back = Instant::now();
                wait_for_names(agent);
                assert!(back.elapsed() < Duration::from_secs(14), "it took {:?}", back.elapsed());
                let second = second.as_ref().unwrap();
                let page = second.wait_for_name(agent);
                page.assert_conserved();
                assert!(first.is_named(&page));
            }
            _ => panic!("an unknown step: {step}"),
        }
    }
    agent.unwrap().assert_well();
    assert_eq!(node.proxy.asked().last().unwrap().token, "new");
    for pod in [Some(first), second].iter().flatten() {
        node.cluster.delete(&pod.object);
    }
}

/// A refused token is left for the one that its file holds by then, long before the next try would be due.
#[test]
fn after_a_refusal_a_new_token_in_the_file_is_tried_at_once() {
    let node = Node::new();
    let file = node.folder().join("token");
    fs::write(&file, "old\n").unwrap();
    let server = format!("http://{}", node.proxy.address());
    kubeconfig(node.folder(), &server, None, &json!({"tokenFile": file}));
    node.proxy.faults().tokens = BTreeSet::from(["new".to_owned()]);
    let agent = node.agent_without_names(&[]);
    assert_eq!(wait_for_source(&agent, "0"), "unauthorized");
    // By the fourth refusal the pauses are of 5 s at least.
    let deadline = Instant::now() + Duration::from_secs(20);
    while node.proxy.asked().len() < 4 {
        assert!(Instant::now() < deadline, "{:#?}", node.proxy.asked());
        thread::sleep(Duration::from_millis(20));
    }
    fs::write(&file, "new\n").unwrap();
    let renewed = Instant::now();
    wait_for_names(&agent);
    assert!(renewed.elapsed() < Duration::from_secs(4), "it took {:?}", renewed.elapsed());
    assert_eq!(warnings(&agent).len(), 1, "{:#?}", warnings(&agent));
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
    node.proxy.send(&crate::kubernetes::bookmark(version.parse().unwrap()));
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
    assert!(more <= 6, "{more} lists in {:?}", start.elapsed());
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
    let error = crate::kubernetes::status_object(410, "Expired", "too old resource version: 1500 (2000)");
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
    let expired = crate::kubernetes::status_object(410, "Expired", "too old resource version: 1 (2)");
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
                node.proxy.send(&crate::kubernetes::bookmark(version.parse().unwrap()));
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

/// FC-103: without the right to list pods the agent meters on, says which right is missing, and needs no restart.
#[test]
fn a_missing_right_is_named_and_its_coming_is_noticed() {
    let case = case("FC-103");
    let node = Node::new();
    let refusal = &case["api_answers"][0];
    let code = u16::try_from(refusal["http"].as_u64().unwrap()).unwrap();
    node.proxy.faults().lists = Answer::Refuse(code, refusal["body"].clone());
    let mut agent = node.agent_without_names(&[]);
    let pod = node.pod("cart", &["main"]);
    pod.burn("main", 50);
    assert_eq!(wait_for_source(&agent, "0"), "forbidden");
    let page = agent.after_ticks(2);
    page.assert_conserved();
    assert!(pod.used(&page).0 > 0 && !pod.is_named(&page), "its energy is under its uid");
    thread::sleep(Duration::from_secs(4));
    assert!(node.proxy.asked().len() <= 2, "{:#?}", node.proxy.asked());
    let told = warnings(&agent);
    assert_eq!(told.len(), 1, "{told:#?}");
    for word in ["list", "pods", "role"] {
        assert!(told[0].contains(word), "no word of {word}: {}", told[0]);
    }
    assert!(!told[0].contains("expected value"), "{}", told[0]);
    node.proxy.faults().lists = Answer::Pass;
    wait_for_names(&agent);
    let page = pod.wait_for_name(&agent);
    page.assert_conserved();
    agent.assert_well();
    node.cluster.delete(&pod.object);
}

#[test]
fn a_missing_right_to_watch_is_called_so() {
    let node = Node::new();
    let message = "pods is forbidden: User \"system:serviceaccount:a:b\" cannot watch resource \"pods\" in API group \"\" at the cluster scope";
    node.proxy.faults().watches = Answer::Refuse(403, crate::kubernetes::status_object(403, "Forbidden", message));
    let agent = node.agent_without_names(&[]);
    let told = wait_for("a warning", || warnings(&agent).pop());
    assert!(told.contains("watch") && told.contains("role"), "{told}");
    assert_eq!(wait_for_source(&agent, "0"), "forbidden");
    // What the list told is known all the same.
    let pod = node.pod("later", &["main"]);
    pod.burn("main", 20);
    assert!(pod.used(&agent.after_ticks(2)).0 > 0);
    node.cluster.delete(&pod.object);
}

#[test]
fn errors_of_the_server_and_refused_tokens_have_reasons_and_pass() {
    for (code, reason) in [(500, "error"), (401, "unauthorized")] {
        let node = Node::new();
        let mut agent = node.agent(&[]);
        let pod = node.pod("cart", &["main"]);
        pod.burn("main", 20);
        pod.wait_for_name(&agent);
        node.proxy.wait_for_watch();
        {
            let mut faults = node.proxy.faults();
            (faults.lists, faults.watches) = (Answer::status(code), Answer::status(code));
        }
        node.proxy.end_watches();
        assert_eq!(wait_for_source(&agent, "0"), reason);
        pod.burn("main", 20);
        let page = agent.after_ticks(2);
        page.assert_conserved();
        assert!(pod.is_named(&page), "a name was forgotten");
        {
            let mut faults = node.proxy.faults();
            (faults.lists, faults.watches) = (Answer::Pass, Answer::Pass);
        }
        wait_for_names(&agent);
        assert_eq!(warnings(&agent).len(), 1, "{:#?}", warnings(&agent));
        agent.assert_well();
        node.cluster.delete(&pod.object);
    }
}

/// A server that answers late, or takes requests and never answers, delays no tick and no scrape.
#[test]
fn a_server_that_does_not_answer_holds_nothing_up() {
    let node = Node::new();
    node.proxy.faults().lists = Answer::Hold;
    let mut agent = node.agent_without_names(&[]);
    let pod = node.pod("cart", &["main"]);
    pod.burn("main", 20);
    let (first, start) = (agent.scrape().ticks(), Instant::now());
    let page = agent.after_ticks(8);
    page.assert_conserved();
    let each = start.elapsed() / u32::try_from(page.ticks() - first).unwrap();
    assert!(each < Duration::from_millis(500), "a tick took {each:?}");
    assert!(pod.used(&page).0 > 0);
    let start = Instant::now();
    assert!(agent.end("TERM").0.success());
    assert!(start.elapsed() < Duration::from_secs(3), "it took {:?} to end", start.elapsed());

    node.proxy.faults().lists = Answer::Pass;
    node.proxy.faults().delay = Duration::from_secs(1);
    let agent = node.agent(&[]);
    pod.burn("main", 20);
    pod.wait_for_name(&agent);
    node.cluster.delete(&pod.object);
}

/// Fault 17: a container's name is what the API says, and no process's environment is read.
#[test]
fn environments_of_processes_are_never_read() {
    let node = Node::new();
    let pod = node.pod("cart", &["main"]);
    let load = pod.load("main", &["spin", "0"]);
    // A procfs in which the process's environment can't be opened without somebody noticing.
    let tree = Tree::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        if !name.starts_with(|first: char| first.is_ascii_digit()) {
            tree.link(&format!("proc/{name}"), &entry.path());
        }
    }
    let pid = load.0.id();
    for entry in fs::read_dir(format!("/proc/{pid}")).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        if name != "environ" {
            tree.link(&format!("proc/{pid}/{name}"), &entry.path());
        }
    }
    let trap = tree.procfs().join(format!("{pid}/environ"));
    assert!(Command::new("mkfifo").arg(&trap).status().unwrap().success());
    let agent = node.agent(&[&format!("--path.procfs={}", tree.procfs().display())]);
    for _ in 0..6 {
        agent.after_ticks(1);
        // Opening a pipe to write works at once if, and only if, somebody reads it.
        let writer = fs::OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(&trap);
        assert!(writer.is_err(), "somebody opened {}", trap.display());
    }
    let page = pod.wait_for_name(&agent);
    assert!(pod.container_used(&page, "main").0 > 0);
    node.cluster.delete(&pod.object);
}

/// Fault "the exporter exits": nothing that names are made from is there, and nothing that energy is measured with.
#[test]
fn without_meters_and_without_an_api_the_agent_stays_up_and_says_so() {
    let node = Node::new();
    node.proxy.go_away();
    let tree = Tree::new();
    let mut agent =
        node.agent_without_names(&["--meter.cpu=none", &format!("--path.sysfs={}", tree.sysfs().display())]);
    assert_eq!(wait_for_source(&agent, "0"), "unreachable");
    let page = agent.after_ticks(4);
    assert!(!page.has("kepler_node_cpu_joules_total", &[]));
    agent.assert_well();
    // A file that is no kubeconfig is told, and can be repaired.
    fs::write(&node.kubeconfig, "clusters: 7").unwrap();
    let agent = node.agent_without_names(&[]);
    assert_eq!(wait_for_source(&agent, "0"), "config");
    let told = warnings(&agent).join("\n");
    assert!(told.contains(node.kubeconfig.to_str().unwrap()), "{told}");
    node.proxy.come_back();
    kubeconfig(node.folder(), &format!("http://{}", node.proxy.address()), None, &json!({"token": TOKEN}));
    wait_for_names(&agent);
}
