//! An API server that is away, refuses or does not answer: energy goes on under the pods' uids, names stay and come by
//! themselves.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use serde_json::json;

use crate::common::agent::{Agent, wait_for};
use crate::common::kubernetes::case;
use crate::common::kubernetes::cluster::{TOKEN, kubeconfig};
use crate::common::kubernetes::node::{Node, Pod, wait_for_source};
use crate::common::kubernetes::proxy::Answer;
use crate::common::tree::Tree;

/// Its warnings and errors, but for those that every run in a virtual machine has.
pub fn warnings(agent: &Agent) -> Vec<String> {
    let of_level = |line: &String| line.contains(" WARN ") || line.contains("ERROR ");
    let of_meters = |line: &String| line.contains("CPU energy is") || line.contains("--path.sysfs");
    agent.log().into_iter().filter(|line| of_level(line) && !of_meters(line)).collect()
}

/// Waits until the pods have names again; the agent may ask only once in half a minute.
pub fn wait_for_names(agent: &Agent) {
    wait_for("the names to come back", || {
        agent.scrape().has("energy_agent_meter_up", &[("meter", "pods"), ("reason", "ok")]).then_some(())
    });
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
    for _ in 0..12 {
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
    agent.assert_logged("pods have names", 2);
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
                let before = node.proxy.asked().len();
                node.proxy.come_back();
                wait_for_names(agent);
                let since = &node.proxy.asked()[before..];
                assert!(!since.is_empty() && since.iter().all(|asked| asked.token == "new"), "{since:#?}");
                let second = second.as_ref().unwrap();
                let page = second.wait_for_name(agent);
                page.assert_conserved();
                assert!(first.is_named(&page));
            }
            _ => panic!("an unknown step: {step}"),
        }
    }
    agent.unwrap().assert_well();
    for pod in [Some(first), second].iter().flatten() {
        node.cluster.delete(&pod.object);
    }
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
    let page = agent.after_ticks(8);
    page.assert_conserved();
    assert!(pod.used(&page).0 > 0);
    assert!(agent.end("TERM").0.success());
    // All of it while the first request was held, which the agent gives up after 30 s.
    assert_eq!(node.proxy.asked().len(), 1, "{:#?}", node.proxy.asked());

    node.proxy.faults().lists = Answer::Pass;
    node.proxy.faults().delay = Duration::from_secs(1);
    let agent = node.agent(&[]);
    pod.burn("main", 20);
    pod.wait_for_name(&agent);
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
    // A file that is not a kubeconfig gives an error, and can be repaired.
    fs::write(&node.kubeconfig, "clusters: 7").unwrap();
    let agent = node.agent_without_names(&[]);
    assert_eq!(wait_for_source(&agent, "0"), "config");
    let told = warnings(&agent).join("\n");
    assert!(told.contains(node.kubeconfig.to_str().unwrap()), "{told}");
    node.proxy.come_back();
    kubeconfig(node.folder(), &format!("http://{}", node.proxy.address()), None, &json!({"token": TOKEN}));
    wait_for_names(&agent);
}
