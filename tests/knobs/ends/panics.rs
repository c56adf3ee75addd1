//! A panic, brought about from outside: the runtime panics when it needs a thread and the machine has none left.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{ObjectMeta, PostParams};

use super::capped::{Capped, POLICY};
use crate::common::agent::{Agent, PROGRAM, wait_for};
use crate::common::cgroup::v2_root;
use crate::common::kubernetes::server::runtime;

const NAMESPACE: &str = "default";

/// A cgroup that bounds the threads of those in it; removed on drop, when they have ended.
struct Bounded(PathBuf);

impl Bounded {
    fn new() -> Self {
        let v1 = Path::new("/sys/fs/cgroup/pids");
        let root = if v1.join("cgroup.procs").exists() { v1.to_owned() } else { v2_root() };
        let dir = root.join(format!("energy-agent-test-pids-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        Self(dir)
    }

    fn take(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }

    /// From now on none comes to those that are there.
    fn close(&self) {
        let now = fs::read_to_string(self.0.join("pids.current")).unwrap();
        fs::write(self.0.join("pids.max"), now.trim()).unwrap();
    }
}

impl Drop for Bounded {
    fn drop(&mut self) {
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Names of its threads.
fn threads(pid: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok()).collect()
}

#[test]
fn a_panic_of_a_part_ends_the_agent_with_everything_restored() {
    let capped = Capped::new();
    // Policies from a ConfigMap: a file would be looked at twice a second, by a thread that is there then.
    let node = &capped.world.node;
    let object = ConfigMap {
        metadata: ObjectMeta { name: Some(format!("policies-{}", node.name)), ..ObjectMeta::default() },
        data: Some(BTreeMap::from([("policies.yaml".to_owned(), format!("version: 1\npolicies:\n{POLICY}"))])),
        ..ConfigMap::default()
    };
    let api: Api<ConfigMap> = Api::namespaced(node.cluster.client.clone(), NAMESPACE);
    runtime().block_on(api.create(&PostParams::default(), &object)).unwrap();
    let mut flags = capped.flags();
    flags.retain(|flag| !flag.starts_with("--capping.policy"));
    flags.push(format!("--capping.configmap={NAMESPACE}/policies-{}", node.name));
    let bounded = Bounded::new();
    let mut agent = Agent::spawn(&["setsid", PROGRAM], &flags.iter().map(String::as_str).collect::<Vec<_>>());
    capped.wait_until_limited();
    bounded.take(agent.pid());
    wait_for("its runtime to have no thread left", || {
        Some(()).filter(|()| !threads(agent.pid()).iter().any(|name| name.starts_with("tokio")))
    });
    bounded.close();
    // A page is encoded by a thread.
    let _ = ureq::get(format!("http://{}/metrics", agent.address)).call();
    let status = agent.wait();
    assert_eq!(status.code(), Some(1), "{:#?}", agent.log());
    capped.assert_restored("a panic");
    let said = agent.assert_logged("panicked; this is a bug", 1);
    assert!(said[0].contains("spawn"), "{said:?}");
}
