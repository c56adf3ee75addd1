//! One replica of the controller, in a cgroup of its own.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::server::NAMESPACE;
use crate::bench::page::Page;
use crate::bench::world::cpu_ns;
use crate::root;

pub struct Replica {
    process: Child,
    address: String,
    cgroup: PathBuf,
}

impl Replica {
    /// Starts the release build, and waits until it answers.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(name: &str, kubeconfig: &Path, folder: &Path, cgroups: &Path) -> Result<Self> {
        let cgroup = cgroups.join(name);
        fs::create_dir_all(&cgroup)?;
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let log = folder.join(format!("{name}.log"));
        let process = Command::new("sh")
            .args(["-c", r#"echo $$ > "$1/cgroup.procs" && shift && exec "$@""#, "controller"])
            .arg(&cgroup)
            .arg(root().join("target/release/energy-agent"))
            .args(["controller", &format!("--web.listen-address={address}")])
            .args([format!("--controller.namespace={NAMESPACE}"), format!("--controller.identity={name}")])
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log)?)
            .spawn()
            .context("starting the controller")?;
        let mut replica = Self { process, address, cgroup };
        let deadline = Instant::now() + Duration::from_secs(60);
        while replica.page().is_err() {
            let is_well = replica.process.try_wait()?.is_none() && Instant::now() < deadline;
            ensure!(is_well, "the controller does not start:\n{}", fs::read_to_string(&log)?);
            thread::sleep(Duration::from_millis(50));
        }
        Ok(replica)
    }

    /// # Errors
    /// When it does not answer.
    pub fn page(&self) -> Result<Page> {
        let mut answer = ureq::get(format!("http://{}/metrics", self.address)).call()?;
        Page::new(answer.body_mut().with_config().limit(64 << 20).read_to_vec()?)
    }

    pub fn leads(&self) -> bool {
        self.page()
            .and_then(|page| page.value("energy_agent_controller_leader", "", "", 0))
            .is_ok_and(|leads| leads == 1)
    }

    /// # Errors
    /// When its cgroup can't be read.
    pub fn cpu_ns(&self) -> Result<u64> {
        cpu_ns(&self.cgroup)
    }

    /// Memory in use; bytes.
    ///
    /// # Errors
    /// When it has ended.
    pub fn resident_bytes(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
        Ok(kib * 1024)
    }

    /// Ends it without a word.
    ///
    /// # Errors
    /// When it can't be ended.
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
