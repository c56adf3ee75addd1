//! What the agent may read: a missing right is named and its coming noticed, and what it needs no right for is left alone.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use super::faults::{wait_for_names, warnings};
use crate::common::agent::wait_for;
use crate::common::kubernetes::case;
use crate::common::kubernetes::cluster::kubeconfig;
use crate::common::kubernetes::node::{Node, wait_for_source};
use crate::common::kubernetes::proxy::Answer;
use crate::common::tree::Tree;

/// After a refusal the agent uses the new token in the file at once, long before the next try is due.
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
    // Pauses double from a second on. The one before takes 16 s at most, this one would take two thirds of 32 s at least.
    wait_for("five refusals", || (node.proxy.asked().len() >= 5).then_some(()));
    let paused = Instant::now();
    wait_for("six refusals", || (node.proxy.asked().len() >= 6).then_some(()));
    let (pause, refused) = (paused.elapsed(), Instant::now());
    fs::write(&file, "new\n").unwrap();
    wait_for("a request with it", || node.proxy.asked().into_iter().find(|asked| asked.token == "new"));
    assert!(refused.elapsed() < pause, "it took {:?}, and the pause before {pause:?}", refused.elapsed());
    wait_for_names(&agent);
    assert_eq!(warnings(&agent).len(), 1, "{:#?}", warnings(&agent));
}

/// FC-103: without the right to list pods the agent meters on, says which right is missing, and needs no restart.
#[test]
fn a_missing_right_is_named_and_its_coming_is_noticed() {
    let case = case("FC-103");
    let node = Node::new();
    let refusal = &case["api_answers"][0];
    let code = u16::try_from(refusal["http"].as_u64().unwrap()).unwrap();
    node.proxy.faults().lists = Answer::Refuse(code, refusal["body"].clone());
    let began = Instant::now();
    let mut agent = node.agent_without_names(&[]);
    let pod = node.pod("cart", &["main"]);
    pod.burn("main", 50);
    assert_eq!(wait_for_source(&agent, "0"), "forbidden");
    let page = agent.after_ticks(2);
    page.assert_conserved();
    assert!(pod.used(&page).0 > 0 && !pod.is_named(&page), "its energy is under its uid");
    // Seconds in which an agent that tries again at once would ask many times.
    thread::sleep(Duration::from_secs(4));
    agent.after_ticks(2);
    let half_minutes = usize::try_from(began.elapsed().as_secs() / 30).unwrap();
    assert!(node.proxy.asked().len() <= 2 + half_minutes, "{:#?}", node.proxy.asked());
    let told = warnings(&agent);
    assert_eq!(told.len(), 1, "{told:#?}");
    for word in ["no permission to list pods", "needs list and watch on pods", "role"] {
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
    node.proxy.faults().watches =
        Answer::Refuse(403, crate::common::kubernetes::status_object(403, "Forbidden", message));
    let agent = node.agent_without_names(&[]);
    let told = wait_for("a warning", || warnings(&agent).pop());
    assert!(told.contains("no permission to watch pods") && told.contains("role"), "{told}");
    assert_eq!(wait_for_source(&agent, "0"), "forbidden");
    // What the list said is known all the same.
    let pod = node.pod("later", &["main"]);
    pod.burn("main", 20);
    assert!(pod.used(&agent.after_ticks(2)).0 > 0);
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
