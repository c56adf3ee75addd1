//! One agent of a node caps, whatever their state folders and namespaces are, and no user but root has a say in it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use super::package::{Package, policy};
use crate::common::agent::{Agent, PROGRAM, program_for_all, wait_for};
use crate::common::busy_node::{World, wait_for_state};
use crate::common::network;
use crate::common::page::Page;

const OPEN: &str = "145000000";
const OPEN_UW: u64 = 145_000_000;
const WATTS: u32 = 95;

/// A container's view: the node's lock is mounted under another path, and so is a state folder of its own.
struct Container {
    agent: Agent,
    folder: TempDir,
}

impl Container {
    /// `namespaces` are flags of unshare beside those for mounts and processes.
    fn start(run: &Path, namespaces: &[&str], flags: &[String]) -> Self {
        Self::start_with(run, namespaces, &[], flags)
    }

    /// With the variable that every pod has.
    fn start_in_pod(run: &Path, flags: &[String]) -> Self {
        Self::start_with(run, &[], &["KUBERNETES_SERVICE_HOST=127.0.0.1"], flags)
    }

    fn start_with(run: &Path, namespaces: &[&str], variables: &[&str], flags: &[String]) -> Self {
        let folder = TempDir::new().unwrap();
        let [mounted, state] = ["run", "state"].map(|name| folder.path().join(name));
        for folder in [&mounted, &state] {
            fs::create_dir(folder).unwrap();
        }
        let script = "mount --bind \"$0\" \"$1\" && shift && exec \"$@\"";
        let unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child"];
        let [run, mounted_name] = [run, &mounted].map(|path| path.display().to_string());
        let command =
            [&unshare, namespaces, &["sh", "-c", script, &run, &mounted_name, "env"], variables, &[PROGRAM]].concat();
        let own = [format!("--run.directory={mounted_name}"), format!("--state.directory={}", state.display())];
        let flags: Vec<&str> = flags.iter().chain(&own).map(String::as_str).collect();
        Self { agent: Agent::spawn(&command, &flags), folder }
    }

    fn journal(&self) -> String {
        fs::read_to_string(self.folder.path().join("state/capping-journal.jsonl")).unwrap_or_default()
    }

    /// Ends the agent itself, not what has started it.
    fn end(&mut self) {
        let unshare = self.agent.pid();
        let children = fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children")).unwrap();
        let sent = Command::new("kill").args(["-s", "TERM", children.trim()]).status().unwrap();
        assert!(sent.success(), "{children}");
        wait_for("the end of the container", || {
            fs::read_to_string(format!("/proc/{}/stat", children.trim())).is_err().then_some(())
        });
    }
}

#[test]
fn of_two_agents_in_different_namespaces_one_caps_and_the_other_takes_over() {
    let node = Package::new(OPEN_UW, WATTS);
    let (world, limit) = (&node.world, || node.limit());
    let mut first = node.agent();
    let capped = node.wait_until_capped();

    let policies = format!("--capping.policy={}", world.node.folder().join("policies.yaml").display());
    let mut own = node.flags();
    own.extend(["--capping=on".to_owned(), policies, "--interval=500ms".to_owned()]);
    let api = [
        "--pods.source=api".to_owned(),
        format!("--kubeconfig={}", world.node.kubeconfig.display()),
        format!("--node.name={}", world.node.name),
    ];
    // An agent in the network of a pod, which cannot reach this API server; and an agent that knows pods.
    let isolated =
        Container::start(world.run.path(), &["--net"], &[&own[..], &["--pods.source=none".to_owned()]].concat());
    let mut second = Container::start(world.run.path(), &[], &[&own[..], &api].concat());
    for container in [&isolated, &second] {
        let told = wait_for("the second to say so", || {
            Some(container.agent.logged("another agent caps on this node")).filter(|told| !told.is_empty())
        });
        assert!(told.len() == 1 && told[0].contains("caps by"), "{told:?}");
        let state = format!("--state.directory is {}", world.state.path().display());
        assert!(told[0].contains(&state), "it names the first: {told:?}");
    }
    let page = second.agent.after_ticks(6);
    assert_eq!(page.one("energy_agent_meter_up", &[("meter", "capping")]).label("reason"), "other_agent");
    assert!(page.has("kepler_node_cpu_joules_total", &[]), "it goes on metering");
    network::loopback_up(isolated.agent.pid());
    let pods_network = format!("http://{}/metrics", isolated.agent.address);
    let page = Page::parse(wait_for("its page", || network::get(isolated.agent.pid(), &pods_network)));
    assert_eq!(page.one("energy_agent_meter_up", &[("meter", "capping")]).label("reason"), "other_agent");
    wait_for_state(&second.agent, "package", "no_actuator");
    // The first goes on with its law, and only with it: 95 W of 145 W.
    let page = first.after_ticks(2);
    let budget = page.number_of("energy_agent_policy_budget_watts", &[("policy", "package")]);
    assert_eq!(format!("{budget}"), "95", "capped to {capped}");
    let shown: u64 = limit().parse().unwrap();
    let wanted = page.number_of("energy_agent_cap_limit_watts", &[("actuator", "rapl_limit")]);
    assert_eq!(format!("{wanted:.6}"), format!("{}.{:06}", shown / 1_000_000, shown % 1_000_000));
    assert_eq!((second.journal().as_str(), isolated.journal().as_str()), ("", ""));
    drop(isolated);

    assert!(first.end("TERM").0.success());
    assert_eq!(limit(), OPEN);
    assert_eq!(world.journal(), "");
    node.wait_until_capped();
    assert!(second.journal().contains(&format!("\"original_raw\":\"{OPEN}\"")), "{}", second.journal());
    second.end();
    assert_eq!((limit().as_str(), second.journal().as_str()), (OPEN, ""));
}

#[test]
fn the_command_refuses_while_any_agent_of_the_node_caps() {
    let world = World::new();
    world.policies(&policy(WATTS));
    let agent = world.bare_agent(&["--gpu=off"]);
    // Another state folder is no way round.
    let state = TempDir::new().unwrap();
    let state = format!("--state.directory={}", state.path().display());
    let [own, run] = world.folder_flags();
    for state in [&own, &state] {
        let restore = |more: &[&str]| Command::new(PROGRAM).args(["restore", state, &run]).args(more).output().unwrap();
        let refused = restore(&[]);
        let said = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(said.contains(&format!("process {} caps by", agent.pid())), "{said}");
        assert_eq!(restore(&["--dry-run"]).status.code(), Some(0), "a look needs no lock");
    }
}

#[test]
fn no_other_user_can_lock_out_an_agent_or_the_command() {
    let node = Package::new(OPEN_UW, WATTS);
    let world = &node.world;
    // A folder open to all, with the lock file of an older version beside the journal.
    for folder in [world.state.path(), world.run.path()] {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o777)).unwrap();
    }
    fs::write(world.state.path().join("capping-journal.lock"), "1\n").unwrap();
    let held = format!(
        "exec 9<{0}/capping-journal.lock; flock 9; : >{1}/held; exec sleep 60",
        world.state.path().display(),
        world.node.folder().display()
    );
    fs::set_permissions(world.node.folder(), fs::Permissions::from_mode(0o777)).unwrap();
    let user = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let mut neighbour = Command::new("setpriv").args(user).args(["sh", "-c", &held]).spawn().unwrap();
    wait_for("the neighbour's lock", || world.node.folder().join("held").exists().then_some(()));

    let mut agent = node.agent();
    node.wait_until_capped();
    for folder in [world.state.path(), world.run.path()] {
        assert_eq!(fs::metadata(folder).unwrap().permissions().mode() & 0o777, 0o700);
        for entry in fs::read_dir(folder)
            .unwrap()
            .map(Result::unwrap)
            .filter(|entry| entry.file_name() != "capping-journal.lock")
        {
            assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{}", entry.path().display());
        }
    }
    for name in ["capping.lock", "capping-record.jsonl"] {
        let path = world.run.path().join(name).display().to_string();
        let took = Command::new("setpriv").args(user).args(["flock", "--nonblock", &path, "true"]).output().unwrap();
        assert!(String::from_utf8_lossy(&took.stderr).contains("Permission denied"), "{name}: {took:?}");
    }
    agent.after_ticks(4);
    agent.end("KILL");
    assert_ne!(node.limit(), OPEN);
    let (code, said) = node.restore();
    assert_eq!((code, node.limit().as_str()), (Some(0), OPEN), "{said}");
    neighbour.kill().unwrap();
    neighbour.wait().unwrap();
}

#[test]
fn in_a_pod_a_folder_that_is_not_the_nodes_is_refused_with_the_remedy() {
    let world = World::new();
    world.policies(&policy(WATTS));
    let [state, run] = world.folder_flags();
    let policies = format!("--capping.policy={}", world.node.folder().join("policies.yaml").display());
    let flags = ["--capping=on", "--gpu=off", "--pods.source=none", "--interval=500ms", &state, &run, &policies];
    let agent = Agent::spawn(&["env", "KUBERNETES_SERVICE_HOST=127.0.0.1", PROGRAM], &flags);
    let page = agent.after_ticks(2);
    assert_eq!(page.one("energy_agent_meter_up", &[("meter", "capping")]).label("reason"), "run_directory");
    let told = agent.assert_logged("is not a volume of the node", 1);
    assert!(told[0].contains("deploy/components/capping"), "{:#?}", agent.log());
    drop(agent);
    let own: Vec<String> =
        flags.iter().filter(|flag| **flag != run && **flag != state).map(|flag| (*flag).to_owned()).collect();
    let container = Container::start_in_pod(world.run.path(), &own);
    let page = container.agent.after_ticks(2);
    assert_eq!(page.one("energy_agent_meter_up", &[("meter", "capping")]).value, "1", "{:#?}", container.agent.log());
}

/// It can limit nothing, and says so, as before there was a lock.
#[test]
fn an_agent_that_is_not_root_goes_on_without_capping() {
    let folder = TempDir::new().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = program_for_all(folder.path());
    let file = folder.path().join("policies.yaml");
    fs::write(&file, "version: 1\npolicies: []\n").unwrap();
    let command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", program.to_str().unwrap()];
    let policies = format!("--capping.policy={}", file.display());
    let run = "--run.directory=/run/energy-agent-of-a-user";
    let agent = Agent::spawn(&command, &["--capping=on", &policies, run, "--gpu=off", "--interval=500ms"]);
    let page = agent.after_ticks(2);
    let state = page.one("energy_agent_meter_up", &[("meter", "capping")]);
    assert_eq!((state.value.as_str(), state.label("reason")), ("0", "journal"));
    agent.assert_logged("--run.directory", 1);
}
