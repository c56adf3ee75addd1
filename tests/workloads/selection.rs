//! Which levels and metrics are exported, chosen at the start or while the agent runs: by environment, file, mounted
//! folder or ConfigMap, in a program that is never started again.
#![expect(clippy::unwrap_used, reason = "helpers of tests panic as tests do")]

mod cluster;

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::agent::{Agent, PROGRAM, wait_for};
use crate::common::cgroup::Pod;
use crate::common::page::Page;
use tempfile::TempDir;

const POD: &str = "kepler_pod_cpu_joules_total";
const CONTAINER: &str = "kepler_container_cpu_joules_total";
const NODE: &str = "kepler_node_cpu_joules_total";
const PROCESS: &str = "kepler_process_cpu_joules_total";
const SECONDS: &str = "kepler_container_cpu_seconds_total";
const VALID: &str = "energy_agent_export_config_valid";
const CHANGED: &str = "energy_agent_export_config_last_change_timestamp_seconds";

/// Families of workloads and the node, without the agent's own.
fn leveled(page: &Page) -> Vec<&str> {
    let table = energy_export::metrics::ALL.iter().filter(|metric| metric.level.is_some());
    let names = page.names();
    table.map(|metric| metric.name).filter(|name| names.contains(name)).collect()
}

/// The first page on which the families with a level are as `wanted` says.
fn wait_until(agent: &Agent, what: &str, wanted: impl Fn(&[&str]) -> bool) -> Page {
    wait_for(what, || Some(agent.scrape()).filter(|page| wanted(&leveled(page))))
}

fn start(path: &Path) -> Agent {
    Agent::start(&["--interval=200ms", &format!("--export.config={}", path.display())])
}

/// Replaces a file in one step, as editors and programs do.
fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(new, path).unwrap();
}

#[test]
fn the_environment_chooses_under_keplers_names() {
    let _pod = Pod::new();
    for (variables, wanted) in [
        (&["EXPORT_METRICS=pod,kepler_node_cpu_joules_total"] as &[_], [true, true, false, false]),
        (&["ENERGY_AGENT_EXPORT_METRICS=container"], [false, false, true, true]),
        // The name of the old ConfigMap goes before the flag's variable, and a dot is as good as an underscore.
        (&["ENERGY_AGENT_EXPORT_METRICS=pod", "EXPORT_METRICS=", "SOURCE.CGROUP=Disabled"], [true, true, true, false]),
        (&["SOURCE_CGROUP=enabled", "EXPOSE_CONTAINER_METRICS=false"], [true, true, false, false]),
    ] {
        let command: Vec<&str> = ["env"].iter().chain(variables).chain(&[PROGRAM]).copied().collect();
        let agent = Agent::spawn(&command, &["--interval=200ms"]);
        agent.wait_until_ready();
        let page = agent.after_ticks(2);
        assert_eq!([NODE, POD, CONTAINER, SECONDS].map(|name| page.has(name, &[])), wanted, "{variables:?}");
        assert_eq!(page.count(VALID), 1);
        assert!(page.has("energy_agent_tick_duration_seconds_count", &[]) && page.has("kepler_build_info", &[]));
    }
}

#[test]
fn a_bad_value_at_the_start_is_exit_code_2_with_the_valid_ones() {
    for (setting, parts) in [
        ("EXPORT_METRICS=pods", &["EXPORT_METRICS in the environment", "pods", "node, pod, container", POD] as &[_]),
        ("EXPORT_METRICS=kepler_pod_cpu_joule_total", &["did you mean kepler_pod_cpu_joules_total?"]),
        ("SOURCE.COUNTER=maybe", &["SOURCE.COUNTER in the environment", "\"maybe\"", "enabled, disabled"]),
        ("SOURCE_GPU=0", &["SOURCE_GPU in the environment", "\"0\""]),
        ("--export.metrics=nonsense_*", &["--export.metrics", "nonsense_*", NODE]),
        ("--export.metrics=-energy_agent_ticks_total", &["always exported"]),
        ("--export.configmap=map", &["expected NAMESPACE/NAME"]),
        ("--export.metrics=kepler_node_cpu_watts --export.levels=pod", &["level node", "add node to --export.levels"]),
        ("--export.levels=process --ebpf=off", &["process", "eBPF"]),
    ] {
        let (variables, flags): (Vec<&str>, Vec<&str>) = setting.split(' ').partition(|word| !word.starts_with("--"));
        let mut command = Command::new("env");
        command.args(variables).arg(PROGRAM).args(flags).arg("--web.listen-address=127.0.0.1:0");
        let output = command.stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{setting}: {said}");
        for part in parts {
            assert!(said.contains(part), "{setting}: {part} is not in {said}");
        }
    }
}

/// What a file says counts without a restart, and a counter that was off goes on from its total.
#[test]
fn a_file_is_followed_and_counters_go_on_from_their_totals() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("export");
    fs::write(&path, "# all but containers\nEXPORT_METRICS: node, pod\n").unwrap();
    let pod = Pod::new();
    let mut agent = start(&path);
    let first = agent.after_ticks(2);
    assert!(first.has(NODE, &[]) && !first.has(CONTAINER, &[]), "the file counts from the start");
    replace(&path, "EXPORT_METRICS=node,pod,container");
    pod.load(&["burn", "100000"]).wait();
    let labels = [("pod_id", pod.uid.as_str())];
    let on = wait_until(&agent, "containers", |names| names.contains(&CONTAINER));
    let on = wait_for("the container's energy", || {
        Some(agent.scrape()).filter(|page| page.microjoules(CONTAINER, &labels) > 0 && page.ticks() > on.ticks())
    });
    on.assert_conserved();
    replace(&path, "EXPORT_METRICS=pod\nSOURCE.CGROUP=disabled");
    let off = wait_until(&agent, "pods alone", |names| !names.contains(&CONTAINER) && names.contains(&POD));
    assert!(leveled(&off).iter().all(|name| name.contains("_pod_") && !name.contains("seconds")), "{:?}", off.names());
    pod.load(&["burn", "100000"]).wait();
    agent.after_ticks(2);
    replace(&path, "");
    let again = wait_until(&agent, "everything", |names| names.contains(&CONTAINER) && names.contains(&NODE));
    again.assert_conserved();
    again.assert_not_below(&on);
    assert!(again.microjoules(CONTAINER, &labels) > on.microjoules(CONTAINER, &labels), "what was not shown was lost");
    assert!(again.nanoseconds(SECONDS, &labels) > on.nanoseconds(SECONDS, &labels));
    agent.assert_logged(" INFO export selection=", 4);
    assert_eq!(agent.logged("previous selection stays active"), Vec::<String>::new());
    agent.assert_well();
}

#[test]
fn an_edit_counts_within_two_ticks() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("export");
    fs::write(&path, "EXPORT_LEVELS=node").unwrap();
    // Ticks at the default pace, of a second.
    let agent = Agent::start(&[&format!("--export.config={}", path.display())]);
    let before = agent.scrape().ticks();
    replace(&path, "EXPORT_LEVELS=pod");
    let ticks = wait_until(&agent, "the edit", |names| !names.contains(&NODE)).ticks() - before;
    assert!(ticks <= 2, "{ticks}");
}

#[test]
fn a_bad_edit_or_no_file_keeps_what_was_and_is_said_once() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("export");
    fs::write(&path, "EXPORT_METRICS: kepler_node_cpu_info, kepler_node_cpu_joules_total").unwrap();
    let mut agent = start(&path);
    let before = agent.after_ticks(2);
    assert_eq!(leveled(&before), [NODE, "kepler_node_cpu_info"]);
    let changed = &before.one(CHANGED, &[]).value;
    let place = format!("in {}", path.display());
    for (text, parts) in [
        (
            Some("EXPORT_METRICS: kepler_pods_*"),
            &["EXPORT_METRICS", "kepler_pods_*", "node, pod, container, process"] as &[_],
        ),
        (Some("EXPORT_LEVELS: pod, contaner"), &["EXPORT_LEVELS", "contaner", "did you mean container?"]),
        (Some("SOURCE.CGROUP: off"), &["SOURCE.CGROUP", "off", "enabled, disabled"]),
        (Some("EXPORT_METRIC: pod"), &["no known key", "did you mean EXPORT_METRICS?"]),
        (Some("EXPORT_METRICS: pod\nnonsense"), &["line 2: neither KEY: value nor KEY=value"]),
        (
            Some("EXPORT_METRICS: kepler_container_cpu_seconds_total\nSOURCE_CGROUP: disabled"),
            &["kepler_container_cpu_seconds_total: its source is turned off by SOURCE_CGROUP"],
        ),
        (None, &["No such file"]),
    ] {
        let told = agent.logged("previous selection stays active").len();
        match text {
            Some(text) => replace(&path, text),
            None => fs::remove_file(&path).unwrap(),
        }
        let line = wait_for("a line in the log", || agent.logged("previous selection stays active").get(told).cloned());
        let place = if text.is_some_and(|text| !text.contains("nonsense")) { &place } else { &place[3..] };
        assert!(line.contains(" WARN ") && line.contains(place), "{line}");
        for part in parts {
            assert!(line.contains(part), "{part} is not in {line}");
        }
        let page = agent.after_ticks(2);
        assert_eq!(leveled(&page), leveled(&before), "{text:?}");
        assert_eq!(page.count(VALID), 0);
        assert_eq!(&page.one(CHANGED, &[]).value, changed);
    }
    let landing = ureq::get(format!("http://{}/", agent.address)).call().unwrap().body_mut().read_to_string().unwrap();
    assert!(landing.contains("of them kepler_node_cpu_info") && landing.contains("Not active: "), "{landing}");
    // Several looks at the file that is still gone.
    let told = agent.logged("previous selection stays active").len();
    std::thread::sleep(Duration::from_millis(1200));
    agent.after_ticks(2);
    replace(&path, "EXPORT_METRICS: kepler_node_*");
    let page = wait_until(&agent, "the good file", |names| names.contains(&"kepler_node_cpu_watts"));
    assert_eq!(page.count(VALID), 1);
    assert_eq!(agent.logged("previous selection stays active").len(), told);
    agent.assert_well();
}

#[test]
fn processes_are_accounted_whichever_key_asks_for_them_and_whenever() {
    let shown = |agent: &Agent| wait_for("processes", || Some(agent.scrape()).filter(|page| page.has(PROCESS, &[])));
    for variable in ["EXPORT_METRICS=node,process", "ENABLE_PROCESS_METRICS=true"] {
        let agent = Agent::spawn(&["env", variable, PROGRAM], &["--interval=200ms"]);
        agent.wait_until_ready();
        shown(&agent);
    }
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("export");
    fs::write(&path, "EXPORT_LEVELS: node, process").unwrap();
    shown(&start(&path));
    fs::write(&path, "EXPORT_LEVELS: node").unwrap();
    let agent = start(&path);
    assert!(!agent.after_ticks(2).has(PROCESS, &[]));
    replace(&path, "EXPORT_LEVELS: node, process");
    let page = shown(&agent);
    assert_eq!(page.count(VALID), 1);
}

#[test]
fn a_file_that_hangs_does_not_keep_the_agent_from_ending() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("export");
    fs::write(&path, "EXPORT_METRICS: node").unwrap();
    let mut agent = start(&path);
    agent.after_ticks(1);
    // A pipe that nobody writes to stands for a file system that is away; the agent looks twice a second.
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    fs::rename(&pipe, &path).unwrap();
    agent.assert_logged("a pipe, not a regular file", 1);
    agent.after_ticks(1);
    assert!(agent.end("TERM").0.success());
}

/// A ConfigMap as the kubelet mounts it: a new version in a folder of its own, and one link that is changed.
#[test]
fn a_mounted_configmap_is_followed_through_its_link() {
    let mount = TempDir::new().unwrap();
    let at = |name: &str| mount.path().join(name);
    let publish = |version: &str, keys: &[(&str, &str)]| {
        fs::create_dir(at(version)).unwrap();
        for (key, value) in keys {
            fs::write(at(version).join(key), value).unwrap();
        }
        symlink(version, at("..data_tmp")).unwrap();
        fs::rename(at("..data_tmp"), at("..data")).unwrap();
    };
    publish("..2026_01", &[("EXPORT_METRICS", "pod\n"), ("KEPLER_NAMESPACE", "kepler"), ("METRIC_PATH", "/metrics")]);
    for key in ["EXPORT_METRICS", "KEPLER_NAMESPACE", "METRIC_PATH"] {
        symlink(format!("..data/{key}"), at(key)).unwrap();
    }
    let pod = Pod::new();
    let mut agent = start(mount.path());
    pod.load(&["burn", "20000"]).wait();
    wait_until(&agent, "pods alone", |names| names.contains(&POD) && !names.contains(&NODE));
    agent.assert_logged("KEPLER_NAMESPACE, METRIC_PATH", 1);
    // EXPORT_METRICS is gone from the new version; its link still hangs, and then goes.
    publish("..2026_02", &[("EXPOSE_CONTAINER_METRICS", "false"), ("SOURCE.CGROUP", "disabled")]);
    fs::remove_dir_all(at("..2026_01")).unwrap();
    let page = wait_until(&agent, "the second version", |names| names.contains(&NODE));
    assert!(
        leveled(&page).iter().all(|name| !name.contains("container") && !name.contains("seconds")),
        "{:?}",
        page.names()
    );
    assert_eq!(page.count(VALID), 1);
    assert_eq!(agent.logged("previous selection stays active"), Vec::<String>::new());
    agent.assert_well();
}

#[test]
fn promtool_finds_nothing_on_odd_selections() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("export");
    fs::write(&path, "EXPORT_METRICS=-*").unwrap();
    let agent = start(&path);
    assert_eq!(leveled(&agent.scrape()), Vec::<&str>::new());
    for (text, present) in [
        ("EXPORT_METRICS=-*", None),
        ("EXPORT_METRICS=*_watts", Some("kepler_node_cpu_watts")),
        ("EXPORT_METRICS=*seconds*", Some("energy_agent_system_cpu_seconds_total")),
        ("EXPORT_METRICS=kepler_node_cpu_info", Some("kepler_node_cpu_info")),
    ] {
        replace(&path, text);
        let page = wait_until(&agent, text, |names| present.map_or(names.is_empty(), |name| names.contains(&name)));
        let open_metrics = agent.fetch("application/openmetrics-text");
        assert!(open_metrics.ends_with("# EOF\n"));
        let promtool = Command::new("promtool")
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut promtool =
            promtool.expect("this test needs promtool: apt-get install --no-install-recommends prometheus");
        promtool.stdin.take().unwrap().write_all(page.text.as_bytes()).unwrap();
        let output = promtool.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success() && said.is_empty(), "{text}: {said}");
    }
}
