//! A node to cap: pods in real cgroups that a kubelet tells, GPUs of the fake driver's plant, policies in a file, and the
//! shipped program.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use fake_nvml::clock::monotonic_us;
use fake_nvml::folder::Folder;
use fake_nvml::plant::{Plant, Running};
use fake_nvml::state::{Gpu, Process, State};
use serde_json::Value;

use super::kubelet::Kubelet;
use super::truth::{Write, bounds};
use crate::bench::agent::Agent;
use crate::bench::world::{Pod, World};
use crate::root;

pub struct Node {
    pub agent: Option<Agent>,
    pub kubelet: Kubelet,
    pub world: World,
    pub state: State,
    folder: PathBuf,
    driver: Folder,
    pub pods: Vec<Pod>,
}

impl Node {
    /// An empty node in `target/bench/capping/NAME`.
    ///
    /// # Errors
    /// When the folder or a cgroup cannot be made.
    pub fn new(name: &str) -> Result<Self> {
        let folder = root().join("target/bench/capping").join(name);
        let _ = fs::remove_dir_all(&folder);
        let driver = folder.join("fake-nvml");
        fs::create_dir_all(&driver).with_context(|| format!("making {}", driver.display()))?;
        fs::copy(root().join("target/release/libfake_nvml.so"), folder.join("libfake_nvml.so"))
            .context("copying libfake_nvml.so")?;
        let state = State { count_calls: false, ..State::default() };
        let (kubelet, world) = (Kubelet::start()?, World::new()?);
        Ok(Self { agent: None, kubelet, world, state, folder, driver: Folder::new(driver), pods: Vec::new() })
    }

    /// A pod with a sleeping process for GPUs to name; its pid.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn pod(&mut self, name: &str) -> Result<u32> {
        self.pod_of(name, &["sleep", "0"])
    }

    /// A pod with this load in it; its first pid.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn pod_of(&mut self, name: &str, load: &[&str]) -> Result<u32> {
        let mut pod = self.world.pod(1)?;
        pod.run(0, load)?;
        self.kubelet.tell(name, &pod);
        let procs = pod.containers[0].dir.join("cgroup.procs");
        self.pods.push(pod);
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            if let Some(pid) = fs::read_to_string(&procs)?.lines().next() {
                return Ok(pid.parse()?);
            }
            ensure!(Instant::now() < deadline, "no process in {}", procs.display());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Adds an idle GPU that this process uses.
    pub fn gpu(&mut self, uuid: &str, exponent: f64, pid: u32) {
        let process = Process { pid, memory_bytes: Some(1 << 30), ..Process::default() };
        let plant = Some(Plant { exponent, ..Plant::default() });
        self.state.gpus.push(Gpu { uuid: uuid.to_owned(), plant, processes: Some(vec![process]), ..Gpu::default() });
    }

    /// Gives a GPU its loads: from a time of the monotonic clock on, in microseconds.
    pub fn load(&mut self, uuid: &str, steps: Vec<(u64, f64)>) {
        for process in self.state.gpus.iter_mut().filter(|gpu| gpu.uuid == uuid).flat_map(|gpu| &mut gpu.processes) {
            process.iter_mut().for_each(|process| process.steps.clone_from(&steps));
        }
    }

    /// Lets the driver follow [`Self::state`].
    pub fn play(&self) {
        self.driver.play(&self.state);
    }

    /// Replaces the policies as an editor does: in one step.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn policies(&self, text: &str) -> Result<()> {
        let next = self.folder.join("policies.next");
        fs::write(&next, format!("version: 1\npolicies:\n{text}"))?;
        fs::rename(next, self.folder.join("policies.yaml")).context("replacing the policies")
    }

    /// Puts a file beside the policies; its path.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn file(&self, name: &str, text: &str) -> Result<String> {
        let path = self.folder.join(name);
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        Ok(path.display().to_string())
    }

    /// # Errors
    /// When there are none.
    pub fn no_policies(&self) -> Result<()> {
        fs::remove_file(self.folder.join("policies.yaml")).context("removing the policies")
    }

    /// Starts the agent over it, with capping.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(&mut self, flags: &[&str]) -> Result<()> {
        self.play();
        let library = format!("--nvml.library={}", self.folder.join("libfake_nvml.so").display());
        let policy = format!("--capping.policy={}", self.folder.join("policies.yaml").display());
        let kubelet = format!("--pods.kubelet-url={}", self.kubelet.url);
        let own = ["--capping=on", &library, &policy, "--pods.source=kubelet", &kubelet, "--node.name=bench"];
        let interval = Duration::from_secs(1);
        self.agent = Some(Agent::start_in(&self.folder, &self.world, interval, &[&own, flags].concat())?);
        Ok(())
    }

    /// Waits until the policies have this many budgets, each compared with a power.
    ///
    /// # Errors
    /// When that takes over half a minute.
    pub fn wait_for_budgets(&self, count: usize) -> Result<()> {
        let agent = self.agent.as_ref().context("no agent was started")?;
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let page = agent.scraper()?.page()?;
            let found = page.all("energy_agent_policy_headroom_watts").count();
            if found >= count {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "{found} of {count} budgets are kept:\n{}", agent.log()?.join("\n"));
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// What was written to the devices, oldest first.
    ///
    /// # Errors
    /// When the driver's file is not what it should be.
    pub fn writes(&self) -> Result<Vec<Write>> {
        let text = fs::read_to_string(self.driver.path().join("writes.log")).unwrap_or_default();
        text.lines().map(|line| Write::parse(&serde_json::from_str::<Value>(line)?)).collect()
    }

    /// Energy that the driver says a GPU has used up to now (microjoules, and the time), which lets its plant go on.
    ///
    /// # Errors
    /// When there is no such GPU.
    pub fn energy(&self, uuid: &str) -> Result<(f64, u64)> {
        let gpu = self.state.gpus.iter().find(|gpu| gpu.uuid == uuid).context("no such GPU")?;
        let plant = gpu.plant.as_ref().context("no plant")?;
        Ok(self.driver.held(self.state.generation, |held| {
            let held = held.gpus.entry(uuid.to_owned()).or_default();
            let now_us = monotonic_us();
            let bounds = bounds(held.locked_mhz, held.power_limit_mw);
            let running = held.running.get_or_insert_with(|| Running::start(now_us, plant, &gpu.clocks));
            running.advance(now_us, plant, &gpu.clocks, bounds, |at_us| gpu.load(at_us));
            (running.energy_uj, now_us)
        }))
    }
}
