//! `energy-agent measure -- COMMAND`: the figures against what the kernel and the meters counted, and what becomes of the
//! command, its streams, its exit code, its children and its cgroup.

#![allow(clippy::unwrap_used, reason = "tests panic")]

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use energy_report::run::{Part, Run};
use tempfile::TempDir;

use crate::common::agent::{PROGRAM, wait_for};
use crate::common::cgroup::v2_root;
use crate::common::nvml::{FakeNvml, gpu, process, sample};
use crate::schema::assert_valid;

/// Prints the CPU time of its own cgroup, in microseconds.
pub const OWN_USAGE: &str = "sed -n 's/^usage_usec //p' \"$(sed -n 's|^0::|ROOT|p' /proc/self/cgroup)/cpu.stat\"";

pub struct Measure {
    folder: TempDir,
    pub command: Command,
}

impl Measure {
    pub fn new(flags: &[&str], command: &[&str]) -> Self {
        let folder = TempDir::new().unwrap();
        // What starts the tests in the background may have SIGINT ignored, and every child inherits that.
        let mut measure = Command::new("env");
        measure
            .args(["--default-signal=INT", PROGRAM, "measure"])
            .args((!flags.iter().any(|flag| flag.starts_with("--meter.cpu"))).then_some("--meter.cpu=estimate"))
            .arg(format!("--state.directory={}", folder.path().display()))
            .arg(format!("-o={}", folder.path().join("run.json").display()))
            .args(flags)
            .arg("--")
            .args(command);
        // Unless the test plays some.
        measure.env("ENERGY_AGENT_GPU", "off");
        Self { folder, command: measure }
    }

    /// Of a shell's script; `ROOT` stands for the root of cgroup v2.
    pub fn script(flags: &[&str], script: &str) -> Self {
        Self::new(flags, &["sh", "-c", &script.replace("ROOT", &v2_root().display().to_string())])
    }

    pub fn output(&mut self) -> Output {
        self.command.output().unwrap()
    }

    pub fn start(&mut self) -> Child {
        self.command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn runs(&self) -> Vec<Run> {
        let text = fs::read_to_string(self.file("run.json")).unwrap();
        serde_json::from_str(&text).unwrap_or_else(|_| vec![serde_json::from_str(&text).unwrap()])
    }

    pub fn run(&self) -> Run {
        let [run] = <[Run; 1]>::try_from(self.runs()).unwrap();
        run
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

pub fn codes(run: &Run) -> Vec<&str> {
    run.warnings.iter().map(|warning| warning.code.as_str()).collect()
}

/// Cgroups of runs of the process `pid`.
fn cgroups_of(pid: u32) -> Vec<PathBuf> {
    let slice = v2_root().join("energy-agent.slice");
    let entries = fs::read_dir(slice).into_iter().flatten().flatten().map(|entry| entry.path());
    let prefix = format!("measure-{pid}-");
    entries.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(&prefix)).collect()
}

#[test]
fn streams_and_exit_code_are_the_commands_and_the_figures_are_the_kernels() {
    let script = format!("cat; echo said >&2; i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; {OWN_USAGE}; exit 7");
    let mut measure = Measure::script(&["--work=10", "--work-unit=images", "--label=branch=main"], &script);
    let mut child =
        measure.command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    child.stdin.take().unwrap().write_all(b"in\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    let stdout = text(&output.stdout);
    let [echoed, usage] = stdout.lines().collect::<Vec<_>>()[..] else { panic!("{stdout:?}") };
    assert_eq!(echoed, "in");
    let stderr = text(&output.stderr);
    for part in ["said\n", "Energy of 'sh -c", " J  package ", "estimated", "s  elapsed", "per image", "[estimated]"] {
        assert!(stderr.contains(part), "{part:?} is not in {stderr}");
    }

    let run = measure.run();
    // The kernel's figure was printed before the end of the shell and of sed: a little is missing.
    let seconds: f64 = usage.parse::<f64>().unwrap() / 1e6;
    let cpu = run.cpu_seconds.unwrap();
    assert!((seconds * 0.98..seconds * 1.02 + 0.05).contains(&cpu), "{cpu} s, the kernel counted {seconds} s");
    assert!(run.end - run.start >= seconds * 0.9, "one thread cannot take less time");
    let package: Vec<_> = run.energy.iter().filter(|energy| energy.part == Part::Package).collect();
    assert!(package.len() == 1 && package[0].microjoules > 0 && package[0].estimated, "{package:?}");
    let node = run.node_energy.iter().find(|energy| energy.part == Part::Package).unwrap();
    assert!(node.microjoules >= package[0].microjoules);
    assert_eq!((run.outcome.clone().unwrap().succeeded, run.outcome.clone().unwrap().exit_code), (false, Some(7)));
    assert_eq!((run.labels["branch"].as_str(), run.subject.name.as_str()), ("main", "sh"));
    assert!(
        run.subject.command_line.is_empty() && !text(&fs::read(measure.file("run.json")).unwrap()).contains("300000")
    );
    assert!(run.gpus.is_empty() && run.nodes[0].gpus.is_empty());
    assert_eq!(cgroups_of(pid), Vec::<PathBuf>::new());
}

#[test]
fn what_does_not_start_has_the_exit_codes_of_env() {
    let folder = TempDir::new().unwrap();
    let plain = folder.path().join("plain");
    fs::write(&plain, "").unwrap();
    fs::set_permissions(&plain, fs::Permissions::from_mode(0o644)).unwrap();
    let plain = plain.display().to_string();
    let said = |flags: &[&str], command: &[&str]| {
        let output = Measure::new(flags, command).output();
        (output.status.code(), text(&output.stderr))
    };
    let (code, stderr) = said(&[], &["/no/such/program"]);
    assert!(code == Some(127) && stderr.contains("/no/such/program: command not found"), "{code:?} {stderr}");
    let (code, stderr) = said(&[], &[&plain]);
    assert!(code == Some(126) && stderr.contains("cannot be executed"), "{code:?} {stderr}");
    for flag in ["--runs=none", "--warmups=4294967295"] {
        let (code, stderr) = said(&[flag], &["true"]);
        assert!(code == Some(125) && stderr.contains(flag.split('=').next().unwrap()), "{code:?} {stderr}");
    }
    let (code, stderr) = said(&["--prepare=exit 3"], &["true"]);
    assert!(code == Some(125) && stderr.contains("--prepare ended with exit status: 3"), "{code:?} {stderr}");
    let (code, stderr) = said(&["--path.cgroupfs=/proc"], &["true"]);
    assert!(code == Some(125) && stderr.contains("cgroup"), "{code:?} {stderr}");
}

#[test]
fn a_command_that_is_killed_or_short_is_measured() {
    let mut killed = Measure::script(&[], "kill -9 $$");
    assert_eq!(killed.output().status.code(), Some(137));
    assert_eq!(killed.run().outcome.unwrap().exit_code, Some(137));
    let mut short = Measure::new(&[], &["sleep", "0.01"]);
    let output = short.output();
    assert_eq!(output.status.code(), Some(0));
    let run = short.run();
    // On a busy machine it may take longer.
    assert_eq!(run.end - run.start < 0.02, codes(&run).contains(&"short_run"), "{run:?}");
    assert!(run.cpu_seconds.unwrap() > 0.0 && run.energy.iter().any(|energy| energy.microjoules > 0), "{run:?}");
}

#[test]
fn what_forks_away_is_killed_or_waited_for() {
    let daemon = "setsid sh -c 'sleep 0.4; i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done' >/dev/null 2>&1 & exit 0";
    let mut measure = Measure::script(&[], daemon);
    let output = measure.output();
    assert_eq!(output.status.code(), Some(0));
    let run = measure.run();
    assert!(codes(&run).contains(&"left_over_killed"), "{run:?}");
    assert!(text(&output.stderr).contains("--wait=children waits for them"));
    let killed = run.cpu_seconds.unwrap();
    let mut measure = Measure::script(&["--wait=children"], daemon);
    assert_eq!(measure.output().status.code(), Some(0));
    let run = measure.run();
    assert!(!codes(&run).contains(&"left_over_killed"), "{run:?}");
    assert!(run.end - run.start >= 0.4 && run.cpu_seconds.unwrap() > killed, "{killed} and {run:?}");
}

#[test]
fn several_runs_have_a_warm_up_a_preparation_and_intervals() {
    let folder = TempDir::new().unwrap();
    let count = folder.path().join("count");
    let prepare = format!("--prepare=echo prepared; echo x >> {}", count.display());
    let flags = ["-r3", "-w1", &prepare, "--cooldown=10ms", "--record-command"];
    let mut measure = Measure::script(&flags, "i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done");
    let output = measure.output();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert_eq!(text(&output.stdout), "", "what the preparation says is not the command's");
    assert!(stderr.contains("(3 runs, 1 warm-up; estimate)") && stderr.contains("( +- "), "{stderr}");
    assert_eq!(fs::read_to_string(&count).unwrap().lines().count(), 4);
    let runs = measure.runs();
    assert_eq!(runs.len(), 3);
    assert_eq!(runs[0].subject.command_line[..2], ["sh", "-c"]);
    assert!(runs.iter().all(|run| run.subject.digest == runs[0].subject.digest && run.id != String::new()));
    assert_ne!(runs[0].id, runs[1].id);

    let mut failing =
        Measure::script(&["-r5"], &format!("[ $(wc -l < {0}) -lt 6 ] || exit 9; echo x >> {0}", count.display()));
    let output = failing.output();
    assert_eq!(output.status.code(), Some(9));
    let stderr = text(&output.stderr);
    assert!(stderr.contains("run 3 of 5 ended with exit code 9") && stderr.contains("(2 runs"), "{stderr}");
    assert_eq!(failing.runs().len(), 2);
}

#[test]
fn a_signal_goes_to_the_command_and_the_figures_are_printed() {
    let mut measure = Measure::script(&["-r3"], "echo began; exec sleep 600");
    measure.command.process_group(0);
    let mut child = measure.start();
    let pid = child.id();
    // It is a program of its own by now, and no copy of `measure` any more.
    let mut began = [0; 6];
    child.stdout.as_mut().unwrap().read_exact(&mut began).unwrap();
    assert_eq!(&began, b"began\n");
    Command::new("kill").args(["-INT", "--", &format!("-{pid}")]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("s  elapsed") && stderr.contains("run 1 of 3 ended with exit code 130"), "{stderr}");
    assert_eq!(measure.runs().len(), 1);
}

fn processes(cgroup: &Path) -> Vec<String> {
    let text = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn what_a_killed_measure_leaves_behind_is_removed_by_the_next() {
    let mut measure = Measure::new(&[], &["sleep", "600"]);
    let mut child = measure.start();
    let pid = child.id();
    let left = wait_for("the command to run", || {
        let [cgroup] = &cgroups_of(pid)[..] else { return None };
        (!processes(cgroup).is_empty()).then(|| cgroup.clone())
    });
    child.kill().unwrap();
    child.wait().unwrap();
    // The command goes on; nobody else may end it.
    assert_eq!(Measure::new(&[], &["true"]).output().status.code(), Some(0));
    let [command] = &processes(&left)[..] else { panic!("the command is gone") };
    Command::new("kill").args(["-9", command]).status().unwrap();
    wait_for("the command to be gone", || processes(&left).is_empty().then_some(()));
    assert_eq!(Measure::new(&[], &["true"]).output().status.code(), Some(0));
    assert!(!left.exists(), "{} is left", left.display());
}

#[test]
fn what_the_command_used_of_a_gpu_is_its_own_part() {
    let mut nvml = FakeNvml::new().gpu(gpu("GPU-a")).gpu(gpu("GPU-b"));
    nvml.play();
    let folder = TempDir::new().unwrap();
    let (pid_file, go_file) = (folder.path().join("pid"), folder.path().join("go"));
    let script = format!("echo $$ > {}; while [ ! -e {} ]; do sleep 0.05; done", pid_file.display(), go_file.display());
    let mut measure = Measure::script(&["--gpu=auto", &nvml.flag()], &script);
    let child = measure.start();
    let pid: u32 = wait_for("the command's number", || fs::read_to_string(&pid_file).ok()?.trim().parse().ok());
    nvml.at(0).processes = Some(vec![process(pid)]);
    nvml.play();
    let calls = nvml.calls("nvmlDeviceGetTotalEnergyConsumption");
    wait_for("the process to be read", || {
        (nvml.calls("nvmlDeviceGetTotalEnergyConsumption") > calls + 6).then_some(())
    });
    nvml.at(0).samples = Some(vec![sample(pid, 100)]);
    nvml.add_energy(0, 100_000);
    nvml.add_energy(1, 40_000);
    let calls = nvml.calls("nvmlDeviceGetTotalEnergyConsumption");
    wait_for("the energy to be read", || (nvml.calls("nvmlDeviceGetTotalEnergyConsumption") > calls + 6).then_some(()));
    fs::write(&go_file, "").unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let run = measure.run();
    let gpus: Vec<_> = run.energy.iter().filter(|energy| energy.part == Part::Gpu).collect();
    // 100 % busy: all of it is active, and nothing is the other GPU's.
    assert!(gpus.len() == 1 && gpus[0].zone == "GPU-a" && gpus[0].source == "nvml", "{gpus:?}");
    assert!(gpus[0].microjoules.abs_diff(100_000_000) <= 100_000, "{gpus:?}");
    let whole: u64 = run.node_energy.iter().filter(|energy| energy.part == Part::Gpu).map(|it| it.microjoules).sum();
    assert_eq!(whole, 140_000_000);
    assert!(stderr.contains("J  gpu 0 H100 80GB HBM3"), "{stderr}");
    assert_eq!(run.gpus.len(), 1);
    assert_valid(&measure.file("run.json"));
}

#[test]
fn the_figures_are_also_csv_markdown_a_page_and_a_picture() {
    let folder = TempDir::new().unwrap();
    let file = |name: &str| folder.path().join(name);
    let flag = |flag: &str, name: &str| format!("--{flag}={}", file(name).display());
    let (csv, markdown, html) = (flag("csv", "a.csv"), flag("markdown", "a.md"), flag("html", "a.html"));
    let flags = ["-r2", "--format=markdown", &csv, &markdown, &html];
    let mut measure = Measure::script(&flags, "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done");
    let output = measure.output();
    let stderr = text(&output.stderr);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), String::new()), "{stderr}");
    let said = fs::read_to_string(file("a.md")).unwrap();
    assert!(stderr.contains(&said) && said.contains("| package | ") && said.contains("(2 runs; estimate)"), "{said}");
    let table = fs::read_to_string(file("a.csv")).unwrap();
    let rows: Vec<&str> = table.lines().filter(|line| line.contains(",package,")).collect();
    let runs = measure.runs();
    assert_eq!(rows.len(), 2, "{table}");
    assert_valid(&measure.file("run.json"));
    for ((row, run), number) in rows.iter().zip(&runs).zip(1..) {
        let energy = run.energy.iter().find(|energy| energy.part == Part::Package).unwrap().microjoules;
        let joules = format!(",{}.{:06},", energy / 1_000_000, energy % 1_000_000);
        assert!(row.contains(&joules) && row.ends_with(&format!(",{number}")), "{row} {joules}");
    }
    for page in ["a-1.html", "a-2.html"] {
        assert!(fs::read_to_string(file(page)).unwrap().contains("<h1>command sh"), "{page}");
    }
}

/// Files are tried before the command starts, and afterwards nothing changes its exit code.
#[test]
fn a_file_that_cannot_be_written_ends_it_before_the_command_or_not_at_all() {
    let folder = TempDir::new().unwrap();
    let began = folder.path().join("began");
    let flag = |flag: &str, name: &str| format!("--{flag}={}", folder.path().join(name).display());
    let script = format!("echo began > {}; exit 6", began.display());
    for flag in [flag("csv", "none/a.csv"), flag("html", "."), flag("svg", "none/a.svg")] {
        let output = Measure::script(&[&flag], &script).output();
        let stderr = text(&output.stderr);
        assert!(output.status.code() == Some(125) && stderr.contains("writing "), "{stderr}");
        assert!(!began.exists(), "{flag}");
    }
    // The folder goes while the command runs, and a run of no time has no plot.
    let gone = folder.path().join("gone");
    fs::create_dir(&gone).unwrap();
    let files = [flag("csv", "gone/a.csv"), flag("svg", "a.svg"), flag("markdown", "a.md")];
    let flags: Vec<&str> = files.iter().map(String::as_str).chain(["--meter.cpu=none", "--format=json"]).collect();
    let mut measure = Measure::script(&flags, &format!("rmdir {}; exit 6", gone.display()));
    let output = measure.output();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(6), "{stderr}");
    assert!(stderr.contains("warning: writing ") && stderr.contains("too few readings for a plot"), "{stderr}");
    assert!(stderr.contains("\"energy-agent.io/run/v1\"") && folder.path().join("a.md").exists(), "{stderr}");
    assert_eq!(measure.runs().len(), 1);
}

#[test]
fn a_preparation_that_fails_later_loses_no_run() {
    let folder = TempDir::new().unwrap();
    let count = folder.path().join("count");
    let prepare = format!("--prepare=echo x >> {0}; [ $(wc -l < {0}) -lt 3 ]", count.display());
    let mut measure = Measure::new(&["-r5", &prepare], &["true"]);
    let output = measure.output();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{stderr}");
    assert!(stderr.contains("(2 runs") && stderr.contains("--prepare ended with"), "{stderr}");
    assert_eq!(measure.runs().len(), 2);
}

/// The shell of the preparation ignores the signal, so it comes between two programs: nobody but `measure` has it.
#[test]
fn ctrl_c_before_the_command_begins_reaches_it() {
    let folder = TempDir::new().unwrap();
    // `script` gives it a terminal, in whose foreground it is.
    let line = format!(
        "exec {PROGRAM} measure --meter.cpu=estimate --gpu=off --state.directory={} --prepare \"$PREPARE\" -- sleep 600",
        folder.path().display()
    );
    let output = Command::new("env")
        .args(["--default-signal=INT", "script", "-qec", &line, "/dev/null"])
        .env("PREPARE", "trap '' INT; kill -INT $PPID")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stdout));
}
