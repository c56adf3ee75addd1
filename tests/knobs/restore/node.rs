//! A node whose knobs are files: the clocks and the power limit of FC-089 as plain files, and a pod's quota of the running
//! kernel.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Parser as _;
use energy_agent::config::{Cli, Config};
use energy_host::capping::actuator::{Actuator, SeenKnobs};
use energy_host::capping::files::FileKnobs;
use energy_host::config::GpuMode;
use energy_host::meter::gpu::{GpuMeter, GpuOptions};
use energy_model::capping::knob::{Knob, Limit, Limits};
use energy_model::capping::policy::PolicyName;
use tempfile::TempDir;

use crate::common::agent::{PROGRAM, wait_for};
use crate::common::crash::{CPUFREQ, Crash, ZONE};
use crate::common::nvml::FakeNvml;
use crate::common::quota::QuotaPod;
use crate::common::tree::Tree;

pub struct Node {
    pub tree: Tree,
    pub state: TempDir,
    /// The folder of the node's lock.
    pub run: TempDir,
    pub pod: Option<QuotaPod>,
    /// Content of every knob's file before anything was written.
    pub before: BTreeMap<Knob, String>,
    /// What FC-089 caps them to.
    pub capped_to: Limits,
    pub config: Config,
    gpu_flags: Vec<String>,
}

impl Node {
    pub fn new() -> Self {
        let case = Crash::new();
        let mut tree = case.tree();
        tree.apply("f proc/sys/kernel/random/boot_id = 0f1e2d3c-0000-4000-8000-000000000001");
        let pod = QuotaPod::new();
        let mut capped_to = BTreeMap::from([
            (Knob::CpuFrequency(0), case.capped_to("policy0.scaling_max_freq")),
            (Knob::CpuFrequency(4), case.capped_to("policy4.scaling_max_freq")),
            (Knob::RaplLimit("intel-rapl:0".into()), case.capped_to("rapl.long_term_uw")),
        ]);
        if let Some(pod) = &pod {
            capped_to.insert(Knob::CpuQuota(pod.pod.cgroup.path.trim_start_matches('/').into()), 500);
        }
        let (state, run) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let config = config(&[tree.root(), state.path(), run.path()].map(|path| path.display().to_string()));
        let (before, capped_to) = (BTreeMap::new(), limits(capped_to));
        let gpu_flags = vec!["--gpu=off".to_owned()];
        let mut node = Self { tree, state, run, pod, before, capped_to, config, gpu_flags };
        node.before = node.contents();
        node
    }

    /// Lets the agent and the command use these GPUs too.
    pub fn with_gpus(mut self, nvml: &FakeNvml) -> Self {
        self.gpu_flags = vec![nvml.flag()];
        self.config.host.gpu = GpuMode::Auto;
        self.config.host.nvml_library = nvml.library().display().to_string();
        self
    }

    /// The file of every knob, as it is now.
    pub fn contents(&self) -> BTreeMap<Knob, String> {
        self.capped_to.keys().map(|knob| (knob.clone(), self.content(knob))).collect()
    }

    pub fn content(&self, knob: &Knob) -> String {
        match knob {
            Knob::CpuQuota(_) => self.pod.as_ref().unwrap().quota(),
            _ => fs::read_to_string(self.file(knob)).unwrap(),
        }
    }

    pub fn file(&self, knob: &Knob) -> PathBuf {
        self.tree.root().join(match knob {
            Knob::CpuFrequency(policy) => format!("{CPUFREQ}/policy{policy}/scaling_max_freq"),
            Knob::RaplLimit(_) => format!("{ZONE}/constraint_0_power_limit_uw"),
            other => panic!("{other} is no plain file"),
        })
    }

    /// The command with this node's roots, once no agent that was dropped here has its lock.
    pub fn restore(&self, flags: &[&str]) -> Outcome {
        wait_for("the lock of the journal", || {
            Some(self.command(flags)).filter(|outcome| !is_own_lock(&outcome.errors))
        })
    }

    /// The command, even while an agent runs.
    pub fn command(&self, flags: &[&str]) -> Outcome {
        let output = Command::new(PROGRAM)
            .arg("restore")
            .args(arguments(&self.places()))
            .args(&self.gpu_flags)
            .args(flags)
            .output()
            .unwrap();
        Outcome {
            code: output.status.code(),
            text: String::from_utf8(output.stdout).unwrap(),
            errors: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Root of the tree, state folder, run folder.
    pub fn places(&self) -> [String; 3] {
        [self.tree.root(), self.state.path(), self.run.path()].map(|path| path.display().to_string())
    }

    /// An agent's actuator.
    pub fn open(&self) -> Driver {
        Driver::open(&self.config)
    }
}

/// What the command said.
#[derive(Debug)]
pub struct Outcome {
    pub code: Option<i32>,
    pub text: String,
    pub errors: String,
}

impl Outcome {
    /// The line about a knob.
    pub fn line(&self, knob: &Knob) -> &str {
        let name = knob.to_string();
        self.text.lines().find(|line| line.starts_with(&name)).unwrap_or_else(|| panic!("{knob}: {self:#?}"))
    }
}

/// Whether the journal is told to be locked by this process itself: a process that another test has just started has the
/// lock too, until it is a program of its own.
fn is_own_lock(error: &str) -> bool {
    error.contains(&format!("process {} caps", std::process::id()))
}

/// Opens the journal of a run before.
fn open(config: &Config) -> Actuator {
    let is_free = |actuator: &Actuator| !actuator.trouble().is_some_and(|trouble| is_own_lock(&trouble.detail));
    wait_for("the lock of the journal", || Some(Actuator::open(&config.host)).filter(is_free))
}

/// An actuator and what it acts on, driven as the tick drives it.
pub struct Driver {
    pub actuator: Actuator,
    pub files: FileKnobs,
    pub gpus: GpuMeter,
    pub now: Duration,
}

impl Driver {
    pub fn open(config: &Config) -> Self {
        let gpus = (config.host.gpu == GpuMode::Auto).then(|| GpuOptions {
            library: config.host.nvml_library.clone(),
            procfs: config.host.procfs.clone(),
            interval: config.host.interval,
            stated: config.host.gpu_clock_before.clone().unwrap_or_default(),
        });
        Self {
            actuator: open(config),
            files: FileKnobs::open(&config.host.sysfs, &config.host.cgroupfs),
            gpus: GpuMeter::open(gpus),
            now: Duration::from_secs(5),
        }
    }

    /// A tick, a second after the last one.
    pub fn tick(&mut self, limits: &Limits) {
        self.tick_with(limits, || {});
    }

    /// The same, with something that happens between looking and writing.
    pub fn tick_with(&mut self, limits: &Limits, between: impl FnOnce()) {
        self.now += Duration::from_secs(1);
        let asked = Instant::now();
        let late = self.gpus.ask(asked);
        drop(self.gpus.take(asked, late));
        let quotas = limits.keys().filter_map(|knob| match knob {
            Knob::CpuQuota(cgroup) => self.files.pod_quota(cgroup),
            _ => None,
        });
        let seen = SeenKnobs { quotas: quotas.collect(), ..SeenKnobs::default() };
        self.actuator.look(self.now, seen, &mut self.files, &mut self.gpus);
        between();
        self.actuator.apply(self.now, limits, &mut self.files, &mut self.gpus);
    }
}

pub fn limits(values: impl IntoIterator<Item = (Knob, u64)>) -> Limits {
    let policy = PolicyName { namespace: "team-a".into(), name: "night".into(), ..PolicyName::default() };
    values.into_iter().map(|(knob, value)| (knob, Limit { value, policy: policy.clone() })).collect()
}

pub fn config(places: &[String; 3]) -> Config {
    let program = ["energy-agent".to_owned()];
    let mut config = Cli::parse_from(program.into_iter().chain(arguments(places))).run;
    config.host.gpu = GpuMode::Off;
    config
}

fn arguments([root, state, run]: &[String; 3]) -> [String; 4] {
    [
        format!("--path.sysfs={root}/sys"),
        format!("--path.procfs={root}/proc"),
        format!("--state.directory={state}"),
        format!("--run.directory={run}"),
    ]
}
