//! A node with everything that can be lowered: two GPUs of the fake driver, clocks and a package as files, and the CPU
//! quota of a busy pod in real cgroups.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use fake_nvml::folder::Folder;
use fake_nvml::plant::Plant;
use fake_nvml::state::{Gpu, Limits, Process, State};
use fastrand::Rng;

use super::Place;
use super::agent::{Agent, Restored, restore};
use super::machine::{Draw, Machine, replace};
use super::patience::until;
use crate::bench::kubelet::Kubelet;
use crate::bench::world::{Pod, World};

const GPUS: [&str; 2] = ["GPU-a", "GPU-b"];
const DEFAULT_MW: u32 = 700_000;

pub struct Node {
    pub machine: Machine,
    pub state: State,
    pub driver: Folder,
    /// What everything was before the agent came.
    pub before: Knobs,
    place: PathBuf,
    programs: PathBuf,
    kubelet: Kubelet,
    quota: PathBuf,
    view: PathBuf,
    /// `None`: the package's counter stands still, or is moved by somebody else.
    draw: Option<Draw>,
    _pod: Pod,
    world: World,
}

/// Every knob's value, by its name.
pub type Knobs = BTreeMap<String, String>;

impl Node {
    /// # Errors
    /// When it cannot be made.
    pub fn new(place: &Place, rng: &mut Rng) -> Result<Self> {
        let machine = Machine::new(place.folder.join("sys"), rng)?;
        let draw = machine.draw(140);
        let driver = place.folder.join("fake-nvml");
        fs::create_dir_all(&driver)?;
        fs::copy(place.programs.join("libfake_nvml.so"), place.folder.join("libfake_nvml.so"))
            .context("copying libfake_nvml.so")?;
        let world = World::of(place.programs.clone())?;
        let kubelet = Kubelet::start()?;
        let mut pod = world.pod(1)?;
        pod.run(0, &["spin", "0"])?;
        kubelet.tell("train-0", &pod);
        let procs = pod.containers[0].dir.join("cgroup.procs");
        let pid = until("the pod's process", || Ok(fs::read_to_string(&procs)?.lines().next().map(str::to_owned)))?;
        let quota = world.with_quota(&pod)?;
        if rng.bool() {
            set_quota(&quota, rng.u32(8..=15) * 10_000)?;
        }
        let view = world.view(&place.folder.join("cgroup"))?;
        let mut state = State { count_calls: false, ..State::default() };
        for uuid in GPUS {
            let process = Process { pid: pid.parse()?, memory_bytes: Some(1 << 30), load: 1.0, ..Process::default() };
            state.gpus.push(Gpu {
                uuid: uuid.to_owned(),
                plant: Some(Plant { exponent: 2.0, ..Plant::default() }),
                processes: Some(vec![process]),
                limits: Some(Limits { default_mw: DEFAULT_MW, ..Limits::default() }),
                ..Gpu::default()
            });
        }
        let driver = Folder::new(driver);
        driver.play(&state);
        let administrators_mw = rng.u32(50..=70) * 10_000;
        driver.held(state.generation, |held| {
            held.gpus.entry(GPUS[0].to_owned()).or_default().power_limit_mw = Some(administrators_mw);
        });
        let (place, programs) = (place.folder.clone(), place.programs.clone());
        let mut node = Self {
            machine,
            state,
            driver,
            before: Knobs::new(),
            place,
            programs,
            kubelet,
            quota,
            view,
            draw: Some(draw),
            _pod: pod,
            world,
        };
        node.before = node.knobs()?;
        Ok(node)
    }

    /// Leaves the package's counter alone from now on.
    pub fn rest(&mut self) {
        self.draw = None;
    }

    /// Replaces the policies as an editor does.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn policies(&self, text: &str) -> Result<()> {
        let policies = if text.is_empty() { "policies: []\n".to_owned() } else { format!("policies:\n{text}") };
        replace(&self.policy_file(), format!("version: 1\n{policies}").as_bytes())
    }

    pub fn policy_file(&self) -> PathBuf {
        self.place.join("policies.yaml")
    }

    pub fn state_directory(&self) -> PathBuf {
        self.place.join("state")
    }

    /// Starts an agent that caps by the file.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn agent(&self, more: &[String]) -> Result<Agent> {
        let own = [
            "--capping=on".to_owned(),
            format!("--capping.policy={}", self.policy_file().display()),
            format!("--path.cgroupfs={}", self.view.display()),
            "--meter.cpu=rapl".to_owned(),
            "--meter.trust-guest".to_owned(),
            "--interval=100ms".to_owned(),
            "--pods.source=kubelet".to_owned(),
            format!("--pods.kubelet-url={}", self.kubelet.url),
            "--node.name=bench".to_owned(),
        ];
        Agent::spawn(&self.programs, &self.place, &self.world.agent, &[&own, &*self.flags(), more].concat())
    }

    /// What the agent and `restore` have in common.
    fn flags(&self) -> Vec<String> {
        vec![
            format!("--path.sysfs={}", self.machine.sysfs.display()),
            format!("--nvml.library={}", self.place.join("libfake_nvml.so").display()),
            format!("--state.directory={}", self.state_directory().display()),
        ]
    }

    /// Runs `energy-agent restore`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn try_restore(&self) -> Result<Restored> {
        let cgroups = format!("--path.cgroupfs={}", self.view.display());
        restore(&self.programs, &self.place, &[self.flags(), vec![cgroups]].concat())
    }

    /// Runs `energy-agent restore`, which has to say that all is well.
    ///
    /// # Errors
    /// When it does not.
    pub fn restore(&self) -> Result<()> {
        let Restored { code, said } = self.try_restore()?;
        ensure!(code == Some(0), "restore ended with {code:?}: {said}");
        Ok(())
    }

    /// Everything as it is now, read from the trees, the cgroup and the driver.
    ///
    /// # Errors
    /// When something cannot be read.
    pub fn knobs(&self) -> Result<Knobs> {
        let mut knobs = Knobs::new();
        for file in self.machine.knobs().into_iter().chain(self.quota_files()) {
            let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
            let name = file.strip_prefix(&self.place).unwrap_or(&file).display().to_string();
            knobs.insert(name, text.trim_end().to_owned());
        }
        let held = self.driver.held(self.state.generation, |held| held.gpus.clone());
        for uuid in GPUS {
            let held = held.get(uuid).cloned().unwrap_or_default();
            knobs.insert(format!("{uuid} clocks"), format!("{:?}", held.locked_mhz));
            knobs.insert(format!("{uuid} limit"), held.power_limit_mw.unwrap_or(DEFAULT_MW).to_string());
        }
        Ok(knobs)
    }

    /// A plain file that was just truncated when its writer was killed is empty; the kernel's attributes never are.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn heal(&self) -> Result<()> {
        for file in self.machine.knobs() {
            let name = file.strip_prefix(&self.place).unwrap_or(&file).display().to_string();
            if fs::read_to_string(&file)?.is_empty() {
                fs::write(&file, format!("{}\n", self.before[&name]))?;
            }
        }
        Ok(())
    }

    /// Waits until something is lowered.
    ///
    /// # Errors
    /// When nothing is, or the agent ends.
    pub fn wait_until_lowered(&self, agent: &mut Agent) -> Result<()> {
        until("something to be lowered", || {
            agent.runs()?;
            Ok((self.knobs()? != self.before).then_some(()))
        })
    }

    /// # Errors
    /// When a knob is not as it was.
    pub fn knobs_are_as_before(&self) -> Result<()> {
        let now = self.knobs()?;
        for (name, before) in &self.before {
            ensure!(now[name] == *before, "{name} is {}, it was {before}", now[name]);
        }
        Ok(())
    }

    pub fn journal(&self) -> PathBuf {
        self.state_directory().join("capping-journal.jsonl")
    }

    /// # Errors
    /// When something is not as it was, or the journal still names something.
    pub fn is_as_before(&self) -> Result<()> {
        self.knobs_are_as_before()?;
        let journal = fs::read_to_string(self.journal()).unwrap_or_default();
        ensure!(journal.is_empty(), "everything is as it was, and the journal is not empty: {journal}");
        Ok(())
    }

    fn quota_files(&self) -> Vec<PathBuf> {
        let files = ["cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.max"];
        files.iter().map(|file| self.quota.join(file)).filter(|file| file.exists()).collect()
    }
}

fn set_quota(dir: &std::path::Path, quota_us: u32) -> Result<()> {
    let v1 = dir.join("cpu.cfs_quota_us");
    if v1.exists() {
        return fs::write(v1, quota_us.to_string()).context("setting a quota");
    }
    fs::write(dir.join("cpu.max"), format!("{quota_us} 100000")).context("setting a quota")
}

/// Policies that each limit something of this node: GPUs by these means, and CPUs by a means chosen at random.
pub fn policies(rng: &mut Rng) -> String {
    let gpu = ["LockedClocks", "PowerLimit", "LockedClocks, PowerLimit"][rng.usize(..3)];
    let cpu = ["Quota", "Frequency", "RaplLimit"][rng.usize(..3)];
    format!(
        "- name: gpu
  mode: Enforce
  selector: {{selectAll: true}}
  budget: {{watts: {}, components: [gpu]}}
  actuators: {{gpu: {{use: [{gpu}]}}}}
- name: cpu
  mode: Enforce
  selector: {{selectAll: true}}
  budget: {{watts: {}, scope: PerNode, components: [cpu]}}
  control: {{targetPercent: 100}}
  actuators: {{cpu: {{use: [{cpu}]}}}}
",
        rng.u32(400..=800),
        rng.u32(60..=110),
    )
}
