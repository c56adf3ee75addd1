//! `energy-agent doctor` as a command: what it finds on this machine and in trees made for it, in words and as JSON.

#![allow(clippy::unwrap_used, reason = "tests panic")]

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;

use crate::common::agent::{Agent, program_for_all, wait_for};
use crate::common::tree::Tree;
use serde_json::Value;
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_energy-agent");
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

/// What one run printed.
struct Doctor {
    code: i32,
    attribution: bool,
    summary: String,
    /// Status, detail, remedy by name.
    checks: BTreeMap<String, [String; 3]>,
}

impl Doctor {
    fn of(output: &Output) -> Self {
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(errors, "", "nothing beside the report");
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let checks = json["checks"].as_array().unwrap().iter().map(|check| {
            assert_eq!(check.as_object().unwrap().len(), 5, "{check}");
            (text(&check["name"]), [text(&check["status"]), text(&check["detail"]), text(&check["remedy"])])
        });
        Self {
            code: output.status.code().unwrap(),
            attribution: json["attribution"].as_bool().unwrap(),
            summary: text(&json["summary"]),
            checks: checks.collect(),
        }
    }

    fn status(&self, name: &str) -> &str {
        &self.checks[name][0]
    }

    #[track_caller]
    fn assert(&self, name: &str, status: &str, detail: &str, remedy: &str) {
        let [found, found_detail, found_remedy] = &self.checks[name];
        assert_eq!(found, status, "{name}: {found_detail}; {found_remedy}");
        assert!(found_detail.contains(detail), "{name}: {found_detail:?} without {detail:?}");
        assert!(found_remedy.contains(remedy), "{name}: {found_remedy:?} without {remedy:?}");
    }
}

/// The command with a port and a state directory of its own, outside any cluster.
fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    for variable in ["KUBERNETES_SERVICE_HOST", "KUBECONFIG", "NO_COLOR", "COLUMNS"] {
        command.env_remove(variable);
    }
    command.env("HOME", "/nonexistent");
    command.env("ENERGY_AGENT_WEB_LISTEN_ADDRESS", "127.0.0.1:0");
    command.env("ENERGY_AGENT_STATE_DIRECTORY", std::env::temp_dir());
    command
}

fn doctor(arguments: &[&str]) -> Doctor {
    let arguments = [&["doctor", "--format=json"], arguments].concat();
    Doctor::of(&command(PROGRAM, &arguments).output().unwrap())
}

/// In `tree`, with its sysfs and procfs, and its cgroups where it has any.
fn doctor_in(tree: &Tree, arguments: &[&str]) -> Doctor {
    let mut roots = vec![flag("--path.sysfs", &tree.sysfs()), flag("--path.procfs", &tree.procfs())];
    if tree.root().join("cgroup").exists() {
        roots.push(flag("--path.cgroupfs", &tree.root().join("cgroup")));
    }
    let arguments: Vec<&str> = roots.iter().map(String::as_str).chain(arguments.iter().copied()).collect();
    doctor(&arguments)
}

fn flag(name: &str, path: &Path) -> String {
    format!("{name}={}", path.display())
}

/// Cgroup v2 as plain files: one service, and one pod with one container.
fn cgroups(tree: &Tree) {
    let pod = "kubepods.slice/kubepods-pod2c48913c_b29f_11e7_9350_020968147796.slice";
    let container = format!("{pod}/cri-containerd-{}.scope", "ab".repeat(32));
    tree.write("cgroup/cgroup.controllers", "cpu\n");
    for cgroup in ["", "system.slice/a.service", &container] {
        tree.write(&format!("cgroup/{cgroup}/cpu.stat"), "usage_usec 5\nuser_usec 5\nsystem_usec 0\n");
    }
}

#[test]
fn this_machine_attributes_by_ebpf_and_says_so() {
    let doctor = doctor(&[]);
    assert_eq!((doctor.code, doctor.attribution), (0, true), "{}", doctor.summary);
    doctor.assert("btf", "ok", "/sys/kernel/btf/vmlinux", "");
    doctor.assert("sched_switch", "ok", "tp_btf: loaded, attached and read once", "");
    doctor.assert("cgroup_events", "ok", "cgroup_mkdir", "");
    doctor.assert("cgroupfs", "ok", "not used: eBPF works", "");
    doctor.assert("listen_address", "ok", "is free", "");
    doctor.assert("nvml", "off", "no NVIDIA driver is loaded: no GPU is read", "");
    doctor.assert("state_directory", "ok", "is writable", "");
    assert!(doctor.summary.starts_with("Energy can be attributed. CPU energy: "), "{}", doctor.summary);
    assert!(doctor.summary.contains("usage: eBPF, weighed by "), "{}", doctor.summary);
}

#[test]
fn the_table_shows_what_the_json_says_in_every_width() {
    let tree = Tree::case("FC-062-no-btf");
    cgroups(&tree);
    let roots = [("sysfs", "sys"), ("procfs", "proc"), ("cgroupfs", "cgroup")];
    let roots = roots.map(|(root, folder)| flag(&format!("--path.{root}"), &tree.root().join(folder)));
    let arguments = ["doctor", &roots[0], &roots[1], &roots[2]];
    let json = command(PROGRAM, &[&arguments[..], &["--format=json"]].concat()).output().unwrap();
    let json = Doctor::of(&json);
    for width in [60, 80, 160] {
        let text = command(PROGRAM, &arguments).env("COLUMNS", width.to_string()).output().unwrap();
        assert_eq!(text.status.code(), Some(json.code));
        assert_eq!(String::from_utf8_lossy(&text.stderr), "");
        let text = String::from_utf8(text.stdout).unwrap();
        assert!(!text.contains('\x1b'), "colour is for terminals");
        // A path longer than the column stays whole.
        let long = |line: &str| line.chars().count() > width && line.split_whitespace().count() > 4;
        assert!(!text.lines().any(long), "{text}");
        let mut rows: BTreeMap<String, [String; 2]> = BTreeMap::new();
        let (table, verdict) = text.split_once("\n\n").unwrap();
        let mut name = String::new();
        let titles = ["Metering", "GPUs", "Capping", "Kubernetes", "The agent itself"];
        assert_eq!(table.lines().filter(|line| titles.contains(line)).collect::<Vec<_>>(), titles);
        for line in table.lines().skip(1).filter(|line| !titles.contains(line)) {
            let (left, right) = line.split_at(28);
            let mut words = left.split_whitespace();
            if let (Some(first), status) = (words.next(), words.next()) {
                name = first.to_owned();
                rows.insert(name.clone(), [status.unwrap().to_owned(), right.to_owned()]);
            } else {
                let [_, text] = rows.get_mut(&name).unwrap();
                text.push_str(&format!(" {}", right.trim()));
            }
        }
        let expected = json.checks.iter().map(|(name, [status, detail, remedy])| {
            let remedy = if remedy.is_empty() { String::new() } else { format!(" -> {remedy}") };
            (name.clone(), [status.clone(), format!("{detail}{remedy}")])
        });
        assert_eq!(rows, expected.collect());
        assert_eq!(verdict.split_whitespace().collect::<Vec<_>>().join(" "), json.summary);
    }
}

#[test]
fn a_kernel_without_btf_is_read_from_cgroup_files() {
    let tree = Tree::case("FC-062-no-btf");
    cgroups(&tree);
    let doctor = doctor_in(&tree, &[]);
    assert_eq!((doctor.code, doctor.attribution), (0, true), "{}", doctor.summary);
    let missing = flag("", &tree.sysfs().join("kernel/btf/vmlinux"));
    doctor.assert("btf", "missing", &missing[1..], "CONFIG_DEBUG_INFO_BTF=y");
    doctor.assert(
        "sched_switch",
        "missing",
        "the kernel shows no BTF: No such file",
        "it needs CONFIG_DEBUG_INFO_BTF=y",
    );
    doctor.assert("cgroup_events", "fallback", "walked at every tick", "see sched_switch");
    doctor.assert("cycles", "fallback", "weighed by CPU time", "see sched_switch");
    doctor.assert("cgroupfs", "fallback", "instead of eBPF", "see sched_switch");
    // Folders: the root, system.slice and its service, kubepods.slice, the pod's and its container's.
    doctor.assert("cgroup", "ok", "6 cgroups walked", "");
    doctor.assert("kubernetes", "fallback", "1 pod by cgroup", "DaemonSet");
    assert!(doctor.summary.contains("usage: cgroup files (cpu.stat); "), "{}", doctor.summary);
    assert!(doctor.summary.ends_with(" 1 pod, 1 container found"), "{}", doctor.summary);
}

#[test]
fn ebpf_on_is_no_attribution_where_the_agent_would_end() {
    let tree = Tree::case("FC-062-no-btf");
    cgroups(&tree);
    let doctor = doctor_in(&tree, &["--ebpf=on"]);
    assert_eq!((doctor.code, doctor.attribution), (1, false));
    doctor.assert("sched_switch", "missing", "with --ebpf=on the agent ends", "CONFIG_DEBUG_INFO_BTF=y");
    assert!(doctor.summary.contains("usage: none (--ebpf=on, refused)"), "{}", doctor.summary);
}

#[test]
fn cgroup_v1_alone_is_no_attribution() {
    let mut tree = Tree::new();
    for controller in ["cpu", "memory"] {
        tree.apply(&format!("d cgroup/{controller}"));
    }
    let doctor = doctor_in(&tree, &["--ebpf=off"]);
    assert_eq!((doctor.code, doctor.attribution), (1, false));
    doctor.assert("sched_switch", "off", "--ebpf=off", "");
    doctor.assert("cgroupfs", "missing", "", "see cgroup");
    doctor.assert("cgroup", "missing", "found cpu, memory (cgroup v1)", "systemd.unified_cgroup_hierarchy=1");
    doctor.assert("kubernetes", "off", "not in a cluster: the workloads are containers and units", "");
    assert!(doctor.summary.starts_with("Energy CANNOT be attributed. "), "{}", doctor.summary);
    assert!(doctor.summary.ends_with("usage: none; no cgroup found"), "{}", doctor.summary);
}

#[test]
fn a_hybrid_hierarchy_is_used_where_it_is() {
    let tree = Tree::new();
    cgroups(&tree);
    fs::rename(tree.root().join("cgroup"), tree.root().join("unified")).unwrap();
    fs::create_dir(tree.root().join("cgroup")).unwrap();
    fs::rename(tree.root().join("unified"), tree.root().join("cgroup/unified")).unwrap();
    let doctor = doctor_in(&tree, &["--ebpf=off"]);
    assert_eq!(doctor.code, 0);
    doctor.assert("cgroup", "fallback", "hybrid: v2 at ", "systemd.unified_cgroup_hierarchy=1");
    doctor.assert("cgroupfs", "ok", "because of --ebpf=off", "");
}

/// A tree with the marks of a guest, whatever machine this is.
fn guest(case: &str) -> Tree {
    let tree = Tree::case(case);
    tree.write("proc/cpuinfo", "processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: fpu hypervisor\n");
    tree
}

#[test]
fn the_rapl_of_a_guest_is_used_only_when_trusted() {
    let tree = guest("FC-001");
    let wary = doctor_in(&tree, &[]);
    wary.assert("rapl", "missing", "virtual machine", "--meter.trust-guest");
    wary.assert("estimate", "fallback", "not a measurement", "--meter.cpu=none");
    assert!(wary.summary.contains("CPU energy: estimate (not measured)"), "{}", wary.summary);

    let trusting = doctor_in(&tree, &["--meter.trust-guest"]);
    assert_eq!(trusting.code, 0);
    trusting.assert("rapl", "ok", "used: 5 readable zones in ", "");
    trusting.assert("rapl", "ok", "package 0 (intel-rapl:0)", "");
    trusting.assert("rapl", "ok", "dram of package 0 (intel-rapl:0:2)", "");
    trusting.assert("rapl", "ok", "psys (intel-rapl:1)", "");
    trusting.assert("estimate", "ok", "not used: energy is measured", "");
    assert!(trusting.summary.contains("CPU energy: rapl (measured)"), "{}", trusting.summary);
}

#[test]
fn a_zone_that_cannot_be_read_is_named_beside_those_that_can() {
    let tree = Tree::case("FC-001");
    tree.fail("sys/class/powercap/intel-rapl:1/energy_uj", "EIO");
    let doctor = doctor_in(&tree, &["--meter.trust-guest"]);
    doctor.assert("rapl", "ok", "used: 4 readable zones in ", "");
    doctor.assert("rapl", "ok", "; left out: intel-rapl:1: Input/output error", "");
}

#[test]
fn no_energy_is_no_attribution_and_says_by_which_flag() {
    let doctor = doctor(&["--meter.cpu=none"]);
    assert_eq!((doctor.code, doctor.attribution), (1, false));
    for meter in ["rapl", "perf", "hwmon", "estimate"] {
        doctor.assert(meter, "off", "--meter.cpu=none", "");
    }
    assert!(
        doctor.summary.starts_with("Energy CANNOT be attributed. CPU energy: off (--meter.cpu=none); "),
        "{}",
        doctor.summary
    );
}

#[test]
fn unusable_coefficients_are_named_with_their_file() {
    let tree = Tree::new();
    tree.write("table.json", "{\"average\": 3}");
    let file = tree.root().join("table.json");
    let doctor = doctor(&[&flag("--meter.estimate-coefficients", &file)]);
    assert_eq!(doctor.code, 1);
    doctor.assert("estimate", "missing", &file.display().to_string(), "correct the file");
}

#[test]
fn a_user_without_rights_is_told_which() {
    // The build folder may be closed to other users.
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let program = program_for_all(folder.path());
    let tree = Tree::case("FC-086");
    let file = tree.sysfs().join("devices/virtual/powercap/intel-rapl/intel-rapl:0/constraint_0_power_limit_uw");
    fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let mut arguments: Vec<&str> = nobody.to_vec();
    let (sysfs, program) = (flag("--path.sysfs", &tree.sysfs()), program.display().to_string());
    arguments.extend([&program, "doctor", "--format=json", "--meter.trust-guest", "--capping=on", &sysfs]);
    let mut setpriv = command("setpriv", &arguments);
    let closed = folder.path().join("state");
    fs::create_dir(&closed).unwrap();
    setpriv.env("ENERGY_AGENT_STATE_DIRECTORY", closed);
    let doctor = Doctor::of(&setpriv.output().unwrap());
    doctor.assert("sched_switch", "missing", "not permitted", "CAP_BPF and CAP_PERFMON");
    doctor.assert("rapl", "missing", "energy_uj: Permission denied", "CAP_DAC_READ_SEARCH");
    doctor.assert("powercap", "missing", "2 power limits on 1 package not writable", "run as root");
    doctor.assert("state_directory", "missing", "Permission denied", "--state.directory");
    assert_eq!(doctor.code, 0, "cgroup files and the estimate need no rights: {}", doctor.summary);
}

#[test]
fn clocks_and_limits_that_can_be_set_are_counted() {
    let policies = doctor_in(&Tree::case("FC-088-two-policies"), &[]);
    policies.assert("cpufreq", "ok", "2 policies, scaling_max_freq writable", "");
    let none = |capping: &str| doctor_in(&Tree::case("FC-088-no-cpufreq"), &[capping]);
    none("--capping=on").assert("cpufreq", "missing", "no capping by CPU clock", "load a cpufreq driver");
    // What nobody asks for is not missing.
    let unwanted = none("--capping=off");
    unwanted.assert("cpufreq", "off", "no capping by CPU clock", "");
    assert_eq!(unwanted.checks["cpufreq"][2], "");
    let limits = doctor_in(&Tree::case("FC-086"), &[]);
    limits.assert("powercap", "ok", "2 power limits on 1 package writable", "");
    let amd = doctor_in(&Tree::case("FC-014"), &["--capping=on"]);
    amd.assert("powercap", "missing", "without limit files", "AMD");
}

#[test]
fn who_caps_on_the_node_is_said() {
    let (run, state, other) = (TempDir::new().unwrap(), TempDir::new().unwrap(), TempDir::new().unwrap());
    fs::set_permissions(run.path(), Permissions::from_mode(0o700)).unwrap();
    let flags = |state: &TempDir| [flag("--run.directory", run.path()), flag("--state.directory", state.path())];
    let doctor = |state: &TempDir, capping: &str| {
        let [run, state] = flags(state);
        doctor(&[&run, &state, capping, "--ebpf=off", "--gpu=off"])
    };
    let lock = run.path().join("capping.lock");
    let path = lock.display().to_string();
    for capping in ["--capping=off", "--capping=on"] {
        let status = if capping == "--capping=on" { "ok" } else { "off" };
        doctor(&state, capping).assert("capping_lock", status, &format!("no agent holds {path}"), "");
    }
    assert!(!lock.exists(), "doctor makes nothing");

    let policies = other.path().join("policies.yaml");
    fs::write(&policies, "version: 1\npolicies: []\n").unwrap();
    let [run_flag, state_flag] = flags(&state);
    let more =
        ["--capping=on", "--ebpf=off", "--gpu=off", &run_flag, &state_flag, &flag("--capping.policy", &policies)];
    let agent = Agent::start(&more);
    agent.after_ticks(1);
    let holder =
        format!("process {} caps and holds {path}, with --state.directory {}", agent.pid(), state.path().display());
    for (state, capping, status, remedy) in [
        (&state, "--capping=on", "ok", ""),
        (&other, "--capping=off", "ok", ""),
        (&other, "--capping=on", "fallback", "stop one of them, or start it with --capping=off"),
    ] {
        let doctor = doctor(state, capping);
        doctor.assert("capping_lock", status, &holder, remedy);
        assert_eq!(doctor.checks["capping_lock"][2].is_empty(), remedy.is_empty());
    }
    // Looking has not taken it.
    let page = agent.after_ticks(2);
    assert_eq!(page.one("energy_agent_meter_up", &[("meter", "capping")]).value, "1");
    drop(agent);
    doctor(&state, "--capping=on").assert("capping_lock", "ok", "no agent holds", "");

    // In a pod without the node's folder.
    let [run, state] = flags(&state);
    for (capping, status, remedy) in [("--capping=on", "missing", "mount the host's"), ("--capping=off", "off", "")] {
        let mut command =
            command(PROGRAM, &["doctor", "--format=json", &run, &state, capping, "--ebpf=off", "--gpu=off"]);
        let output = command.env("KUBERNETES_SERVICE_HOST", "127.0.0.1").output().unwrap();
        Doctor::of(&output).assert("capping_lock", status, "is not a volume of the node", remedy);
    }
    // Of another user.
    std::os::unix::fs::chown(&lock, Some(65534), None).unwrap();
    let [run, state] = [run.as_str(), state.as_str()];
    self::doctor(&[run, state, "--capping=on"]).assert("capping_lock", "missing", &path, "--run.directory");
}

#[test]
fn where_quotas_are_written_is_said() {
    let tree = Tree::new();
    cgroups(&tree);
    let doctor = || doctor_in(&tree, &["--capping=on"]);
    doctor().assert("cpu_quota", "missing", "has cpu.max: no capping by CPU quota", "+cpu");
    tree.write("cgroup/kubepods.slice/cpu.max", "max 100000\n");
    doctor().assert("cpu_quota", "ok", "cpu.max below", "");
    tree.write("cgroup/cgroup.controllers", "memory\n");
    doctor().assert("cpu_quota", "missing", "no cpu controller below", "--path.cgroupfs");
    tree.write("cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    tree.write("cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    doctor().assert("cpu_quota", "fallback", "cpu.cfs_quota_us below", "unified_cgroup_hierarchy");
    assert_eq!(fs::read_to_string(tree.root().join("cgroup/kubepods.slice/cpu.max")).unwrap(), "max 100000\n");
}

#[test]
fn a_pod_without_host_pid_is_told_to_set_it() {
    // As a tree with the numbers of FC-107, then in a namespace of the running kernel.
    let case = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/cases/FC-107-no-hostpid.json");
    let case: Value = serde_json::from_slice(&fs::read(case).unwrap()).unwrap();
    let mut tree = Tree::new();
    tree.write("proc/1/comm", case["proc"]["1"]["comm"].as_str().unwrap());
    tree.apply(&format!("l proc/self/ns/pid -> pid:[{}]", case["proc"]["self_pid_ns"].as_str().unwrap()));
    let doctor = doctor_in(&tree, &[]);
    doctor.assert("pid_namespace", "fallback", "(pid:[4026532900], with energy-agent as process 1)", "hostPID: true");
    doctor.assert(
        "pid_namespace",
        "fallback",
        "to which the kubelet gave the GPU, else it is unattributed",
        "--pid=host",
    );
    assert_eq!(doctor.code, 0, "{}", doctor.summary);

    let arguments = ["--pid", "--fork", "--mount-proc", PROGRAM, "doctor", "--format=json"];
    let doctor = Doctor::of(&command("unshare", &arguments).output().unwrap());
    doctor.assert("pid_namespace", "fallback", "with energy-agent as process 1", "hostPID: true");
    doctor.assert("sched_switch", "ok", "read once", "");

    tree.apply("l proc/self/ns/pid -> pid:[4026531836]");
    assert_eq!(doctor_in(&tree, &[]).status("pid_namespace"), "ok");
}

#[test]
fn an_address_in_use_is_told_from_one_an_agent_answers_at() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("--web.listen-address={}", listener.local_addr().unwrap());
    let taken = doctor(&[&address]);
    taken.assert("listen_address", "missing", "in use", "--web.listen-address");
    drop(listener);

    let mut agent = command(PROGRAM, &["run", &address, "--ebpf=off", "--log.level=error"]).spawn().unwrap();
    let found = wait_for("the agent to answer", || {
        Some(doctor(&[&address])).filter(|found| found.checks["listen_address"][1].contains("answers"))
    });
    agent.kill().unwrap();
    agent.wait().unwrap();
    found.assert("listen_address", "ok", "an energy-agent answers there", "");
}

#[test]
fn a_cluster_is_found_by_its_environment() {
    let run = |variables: &[(&str, &Path)]| {
        let mut command = command(PROGRAM, &["doctor", "--format=json", "--ebpf=off"]);
        Doctor::of(&command.envs(variables.iter().copied()).output().unwrap())
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(".kube/config");
    fs::create_dir(folder.path().join(".kube")).unwrap();
    fs::write(&file, "").unwrap();
    let named = file.display().to_string();
    // Found, and tried: an empty file names no server.
    run(&[("HOME", folder.path())]).assert("kubernetes", "missing", &named, "--kubeconfig");
    let two = PathBuf::from(format!("/nonexistent/config:{named}"));
    run(&[("KUBECONFIG", &two)]).assert("kubernetes", "missing", &named, "--kubeconfig");
    let wrong = run(&[("KUBECONFIG", Path::new("/nonexistent/config")), ("HOME", folder.path())]);
    wrong.assert("kubernetes", "missing", "/nonexistent/config", "KUBECONFIG");
    assert!(!Path::new(TOKEN).exists(), "this test must not run in a pod");
    let cluster = run(&[("KUBERNETES_SERVICE_HOST", Path::new("10.0.0.1"))]);
    cluster.assert("kubernetes", "missing", "service account at /var/run", "automountServiceAccountToken");
}

#[test]
fn a_semicolon_in_a_servers_message_begins_no_remedy() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = BufReader::new(stream.try_clone().unwrap()).lines();
        while !request.next().unwrap().unwrap().is_empty() {}
        let body = r#"{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403, "reason": "Forbidden",
            "message": "denied by policy; run everything as root"}"#;
        let head = format!("HTTP/1.1 403 Forbidden\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
        stream.write_all((head + body).as_bytes()).unwrap();
    });
    let doctor = doctor(&["--ebpf=off", "--pods.source=kubelet", &format!("--pods.kubelet-url={url}")]);
    server.join().unwrap();
    doctor.assert("kubernetes", "missing", "denied by policy; run everything as root", "");
    let [_, detail, remedy] = &doctor.checks["kubernetes"];
    assert!(detail.starts_with(&format!("kubelet at {url}: forbidden: no permission")), "{detail}");
    assert!(remedy.starts_with("the agent needs get on nodes/proxy"), "{remedy}");
}
