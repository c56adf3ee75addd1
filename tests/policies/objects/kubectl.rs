//! `kubectl energy`, run by kubectl as its plugin.

use std::env;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use serde_json::json;
use tempfile::TempDir;

use super::budgets::Hall;
use super::{ROOT, has_api_server, install};
use crate::capping::world::World;
use crate::common::agent::PROGRAM;

/// kubectl with the plugin on PATH, as a person at `kubeconfig`.
pub(super) struct Person {
    folder: TempDir,
    kubeconfig: PathBuf,
}

impl Person {
    pub(super) fn new(kubeconfig: PathBuf) -> Self {
        let folder = TempDir::new().unwrap();
        symlink(PROGRAM, folder.path().join("kubectl-energy")).unwrap();
        Self { folder, kubeconfig }
    }

    /// A program with the plugin and the kubeconfig, in the repository.
    pub(super) fn command(&self, program: &str) -> Command {
        let old = env::var_os("PATH").unwrap_or_default();
        let path = env::join_paths([self.folder.path().to_owned()].into_iter().chain(env::split_paths(&old))).unwrap();
        let mut command = Command::new(program);
        command.env("PATH", path).env("KUBECONFIG", &self.kubeconfig).current_dir(ROOT).stdin(Stdio::null());
        command
    }

    /// A line of a guide.
    pub(super) fn shell(&self, line: &str) -> Output {
        self.command("bash").args(["-c", line]).output().unwrap()
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command("kubectl").args(arguments).output().unwrap()
    }

    /// What it prints when all goes well.
    fn says(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// What it says when not.
    fn refuses(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }
}

#[test]
fn budgets_are_released_and_resumed_without_a_controller_and_nodes_are_listed_by_their_power() {
    if !has_api_server() {
        return;
    }
    let mut world = World::new();
    // As an agent has it by itself.
    world.interval = "1s";
    install(&world.node.cluster);
    let [_pod] = world.busy(["train"]);
    let hall = Hall::new(&world, "Hold");
    let name = world.node.name.clone();
    let mut agent = hall.agent();
    hall.level(1, 300);
    // From here on nobody writes levels.
    world.wait_for_lock("GPU-train");

    let person = Person::new(world.node.kubeconfig.clone());
    let line_of = |text: &str, of: &str| {
        let line = text.lines().find(|line| line.split_whitespace().any(|word| word == of));
        line.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).unwrap_or_else(|| panic!("{of}: {text}"))
    };
    let budgets = || line_of(&person.says(&["energy", "budgets"]), &name);
    assert_eq!(budgets(), format!("{name} Enforce 100000 W - - - 0 0 0 no status yet: does the controller run?"));

    let asked = Instant::now();
    assert_eq!(person.says(&["energy", "release", &name]), format!("{name}: Off, was Enforce\n"));
    world.wait_until_open("GPU-train");
    // For docs/cluster.md.
    println!("kubectl energy release, to the clock of the GPU as it was: {:.2?}", asked.elapsed());
    assert_eq!(budgets(), format!("{name} Off 100000 W - - - 0 0 0 released, was Enforce"));
    assert_eq!(person.says(&["energy", "release", &name]), format!("{name}: is Off already\n"));
    assert_eq!(person.says(&["energy", "resume", &name]), format!("{name}: Enforce\n"));
    world.wait_for_lock("GPU-train");
    assert!(budgets().starts_with(&format!("{name} Enforce")), "{}", budgets());

    // What is wrong is said with what to do, and the others are done.
    let told = person.refuses(&["energy", "resume", &name]);
    assert!(told.contains(&format!("budget {name}: was not released by kubectl energy; set the mode")), "{told}");
    let told = person.refuses(&["energy", "release", "none-of-this-name", &name]);
    assert!(
        told.contains("budget none-of-this-name: there is none of this name; kubectl energy budgets lists"),
        "{told}"
    );
    world.wait_until_open("GPU-train");
    assert!(person.refuses(&["energy", "release", "../nodes"]).contains("is no name of a ClusterPowerBudget"));

    // The pod of the node's agent, to which the API server's proxy leads.
    let namespace = format!("{name}-agents");
    let of_agents = format!("--agents.namespace={namespace}");
    let top = |what: &str| person.run(&["energy", "top", what, &of_agents]);
    let told = person.refuses(&["energy", "top", &of_agents]);
    assert!(
        told.contains(&format!("no pod with the label app.kubernetes.io/name=energy-agent in namespace {namespace}"))
    );
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "agent", "namespace": namespace, "labels": {"app.kubernetes.io/name": "energy-agent"}},
        "spec": {"containers": [{"name": "agent", "image": "a", "ports": [{"name": "metrics", "containerPort": 9102}]}]},
    });
    world.node.create(&pod);
    world.node.proxy.faults().pods_lead_to = Some(agent.address.clone());
    let listed = |what: &str, of: &str| {
        let output = top(what);
        assert!(output.status.success(), "{output:?}");
        line_of(&String::from_utf8(output.stdout).unwrap(), of).split(' ').map(str::to_owned).collect::<Vec<_>>()
    };
    world.wait("the pod's power", || {
        // NAMESPACE NAME WATTS CPU GPU NODE: the GPU draws up to 700 W, and no CPU is measured.
        let row = listed("pods", "train");
        assert_eq!((&row[0], &row[3], &row[5]), (&name, &"-".to_owned(), &name), "{row:?}");
        row[2] == row[4] && row[2].parse::<f64>().is_ok_and(|watts| watts > 600.0 && watts < 710.0)
    });
    let row = listed("nodes", &name);
    assert!(row[1].parse::<f64>().is_ok_and(|watts| watts > 500.0), "{row:?}");
    // An agent that does not answer is named, and is no reason to show nothing.
    world.node.proxy.faults().pods_lead_to = Some("127.0.0.1:1".to_owned());
    let output = top("nodes");
    assert_eq!(output.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&output.stderr)
            .contains(&format!("node {name}: get pods/proxy in namespace {namespace}"))
    );
    agent.assert_well();
}
