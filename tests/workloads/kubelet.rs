//! Names from the kubelet. In a program of its own: an agent sees all pods of the machine, and a new one that this kubelet
//! does not know is a reason to ask.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::agent::{Agent, wait_for};
use crate::common::alone;
use crate::common::cgroup::{self, Load};
use crate::common::kubernetes::cluster::TOKEN;
use crate::common::kubernetes::kubelet::Kubelet;
use crate::common::kubernetes::node::{Node, wait_for_source};
use crate::common::kubernetes::server::Authority;

fn start(flags: &[String]) -> Agent {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    Agent::start(&[&["--interval=250ms"], flags.as_slice()].concat())
}

/// Flags for the kubelet, with credentials of the kubeconfig file.
fn kubelet_flags(node: &Node, kubelet: &Kubelet, authority: &Path) -> [String; 5] {
    [
        "--pods.source=kubelet".to_owned(),
        format!("--kubeconfig={}", node.kubeconfig.display()),
        format!("--node.name={}", node.name),
        format!("--pods.kubelet-url={}", kubelet.url()),
        format!("--pods.kubelet-ca={}", authority.display()),
    ]
}

/// Whole half minutes since then: the kubelet is asked once in each.
fn half_minutes(began: Instant) -> usize {
    usize::try_from(began.elapsed().as_secs() / 30).expect("a test takes less than that")
}

/// Pods of the kubelet; the test's cluster invents their uids and the rest.
#[test]
fn the_kubelet_tells_names_and_is_asked_early_for_a_new_pod_alone() {
    let _alone = alone();
    let node = Node::new();
    let kubelet = Kubelet::start(TOKEN);
    let known = node.pod("cart", &["main", "helper"]);
    kubelet.tell(std::slice::from_ref(&known.object));
    let agent = start(&kubelet_flags(&node, &kubelet, &kubelet.authority.file()));
    known.burn("main", 20);
    known.burn("helper", 20);
    known.wait_for_name(&agent);
    assert!(known.container_used(&agent.after_ticks(2), "helper").0 > 0);
    wait_for_source(&agent, "1");

    // A new pod is asked for once, though the next regular request is half a minute away.
    let new = node.pod("new", &["main"]);
    kubelet.tell(&[known.object.clone(), new.object.clone()]);
    let (asked, began) = (kubelet.asked(), Instant::now());
    new.burn("main", 20);
    let page = new.wait_for_name(&agent);
    page.assert_conserved();
    let requests = kubelet.asked() - asked;
    assert!(requests <= 1 + half_minutes(began), "{requests} requests for one pod");

    // Work of pause containers asks for nothing, and a pod that the kubelet does not know is no reason to ask for ever.
    let stranger = cgroup::Pod::new();
    stranger.load(&["burn", "5000"]).wait();
    agent.after_ticks(8);
    let (asked, began) = (kubelet.asked(), Instant::now());
    for _ in 0..20 {
        Load::start(&known.cgroup.container, &["burn", "1000"]).wait();
        Load::start(&new.cgroup.container, &["burn", "1000"]).wait();
        stranger.load(&["burn", "1000"]).wait();
        agent.after_ticks(1);
        thread::sleep(Duration::from_millis(200));
    }
    // The regular one of each half minute, and an early one for the stranger if it was put off until now.
    let requests = kubelet.asked() - asked;
    assert!(requests <= 2 + half_minutes(began), "{requests} requests in {:?}", began.elapsed());
    assert_eq!(node.proxy.asked().len(), 0, "the API server was asked");
    for pod in [&known, &new] {
        node.cluster.delete(&pod.object);
    }
}

/// Fault "kubelet certificates not verified".
#[test]
fn a_kubelet_with_another_certificate_is_refused_before_it_sees_the_token() {
    let _alone = alone();
    let node = Node::new();
    let kubelet = Kubelet::start(TOKEN);
    let pod = node.pod("cart", &["main"]);
    kubelet.tell(std::slice::from_ref(&pod.object));
    let stranger = Authority::new();
    let mut agent = start(&kubelet_flags(&node, &kubelet, &stranger.file()));
    pod.burn("main", 20);
    assert_eq!(wait_for_source(&agent, "0"), "tls");
    let page = agent.after_ticks(2);
    page.assert_conserved();
    assert!(pod.used(&page).0 > 0 && !pod.is_named(&page));
    assert_eq!(kubelet.asked(), 0, "a request was sent");
    let told =
        wait_for("a warning", || agent.logged("pods cannot be read").into_iter().find(|line| line.contains(" WARN ")));
    let remedy = format!("correct --pods.kubelet-ca={}", stranger.file().display());
    assert!(told.contains(&kubelet.url()) && told.contains(&remedy), "{told}");
    agent.assert_well();
    node.cluster.delete(&pod.object);
}

/// As kubelets do by default; seen with 1.20.
#[test]
fn a_kubelet_that_signs_its_own_certificate_is_told_how_to_get_one() {
    let _alone = alone();
    let node = Node::new();
    let kubelet = Kubelet::start(TOKEN);
    let agent = start(&kubelet_flags(&node, &kubelet, &kubelet.authority.file())[..4]);
    assert_eq!(wait_for_source(&agent, "0"), "tls");
    let told = wait_for("a warning", || agent.logged("pods cannot be read").pop());
    assert!(told.contains("--pods.kubelet-ca") && told.contains("serverTLSBootstrap: true"), "{told}");
    assert_eq!(kubelet.asked(), 0, "a request was sent");
}
