//! The program under attack: started in a cgroup of its own, asked over HTTP, sent signals.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result, bail, ensure};

use super::patience::until;
use crate::bench::agent::{Scraper, ticks};
use crate::bench::page::Page;

/// Each world has a node of its own: many agents may cap at the same time.
const RUN_DIRECTORY: &str = "ENERGY_AGENT_RUN_DIRECTORY";

pub struct Agent {
    process: Child,
    log: PathBuf,
}

impl Agent {
    /// Starts the program in the cgroup; its log is a file of its own in `folder`. It listens on a port of the kernel's
    /// choice.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn spawn(programs: &Path, folder: &Path, cgroup: &Path, flags: &[String]) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(1);
        let log = folder.join(format!("agent-{}.log", COUNT.fetch_add(1, Ordering::Relaxed)));
        let process = Command::new("sh")
            // Without the terminal of this command: if it closed, the agent would end.
            .args(["-c", r#"echo $$ > "$1/cgroup.procs" && shift && exec setsid "$@""#, "agent"])
            .arg(cgroup)
            .arg(programs.join("energy-agent"))
            .arg("--web.listen-address=127.0.0.1:0")
            .args(flags)
            .env(RUN_DIRECTORY, folder.join("run"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log)?)
            .spawn()
            .context("starting energy-agent")?;
        Ok(Self { process, log })
    }

    /// Where it listens, from its log; waits for it.
    ///
    /// # Errors
    /// When it ends before.
    pub fn address(&mut self) -> Result<String> {
        until("the agent to listen", || {
            let log = self.log()?;
            let address = log.lines().find_map(|line| line.split_once(" listening address="));
            if address.is_none() {
                self.runs()?;
            }
            Ok(address.and_then(|(_, rest)| rest.split_once(' ')).map(|(address, _)| address.to_owned()))
        })
        .with_context(|| format!("see {}", self.log.display()))
    }

    /// A connection to it, once it has ticked.
    ///
    /// # Errors
    /// When it ends before.
    pub fn ready(&mut self) -> Result<Scraper> {
        let address = self.address()?;
        until("the first tick", || {
            self.runs()?;
            let mut scraper = Scraper::connect(&address)?;
            let page = scraper.page();
            Ok(page.is_ok_and(|page| ticks(&page).is_ok_and(|ticks| ticks > 0)).then_some(scraper))
        })
    }

    /// A page of a tick that began after the call.
    ///
    /// # Errors
    /// When it does not tick, or ends.
    pub fn fresh_page(&self, scraper: &mut Scraper) -> Result<Page> {
        // The tick under way may have begun before.
        let wanted = ticks(&scraper.page()?)? + 2;
        until("the next ticks", || Ok(Some(scraper.page()?).filter(|page| ticks(page).is_ok_and(|now| now >= wanted))))
            .with_context(|| format!("see {}", self.log.display()))
    }

    pub fn log(&self) -> Result<String> {
        fs::read_to_string(&self.log).with_context(|| format!("reading {}", self.log.display()))
    }

    /// # Errors
    /// When it has ended.
    pub fn runs(&mut self) -> Result<()> {
        if let Some(status) = self.process.try_wait()? {
            bail!("the agent ended with {status}; see {}", self.log.display());
        }
        Ok(())
    }

    /// The most memory that it has ever used.
    ///
    /// # Errors
    /// When it has ended.
    pub fn peak_kib(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM in status")?;
        Ok(peak.trim().trim_end_matches(" kB").parse()?)
    }

    /// # Errors
    /// When it has ended, or a thread of it has panicked.
    pub fn is_well(&mut self) -> Result<()> {
        self.runs()?;
        ensure!(!self.log()?.contains("panicked"), "the agent has panicked; see {}", self.log.display());
        Ok(())
    }

    /// # Errors
    /// When there is no such process or signal.
    pub fn signal(&self, signal: &str) -> Result<()> {
        let sent = Command::new("kill").args([&format!("-{signal}"), &self.process.id().to_string()]).status()?;
        ensure!(sent.success(), "kill -{signal} ended with {sent}");
        Ok(())
    }

    /// Sends the signal and waits for the end.
    ///
    /// # Errors
    /// When it does not end.
    pub fn end(mut self, signal: &str) -> Result<ExitStatus> {
        self.signal(signal)?;
        until(&format!("the agent to end after SIG{signal}"), || Ok(self.process.try_wait()?))
            .with_context(|| format!("see {}", self.log.display()))
    }

    /// Sends the signal until it ends. The Rust runtime takes the first SEGV or BUS for an overflow of a stack, and only one that
    /// comes after that, as of a real fault, for what it is.
    ///
    /// # Errors
    /// When it does not end.
    pub fn crash(mut self, signal: &str) -> Result<ExitStatus> {
        until(&format!("the agent to end after SIG{signal}"), || {
            self.signal(signal)?;
            Ok(self.process.try_wait()?)
        })
        .with_context(|| format!("see {}", self.log.display()))
    }

    /// Ends it in order.
    ///
    /// # Errors
    /// When it has panicked, does not end or ends with another code than 0.
    pub fn end_well(mut self) -> Result<()> {
        self.is_well()?;
        let log = self.log.clone();
        let status = self.end("TERM")?;
        ensure!(status.success(), "after SIGTERM the agent ended with {status}; see {}", log.display());
        Ok(())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// How `energy-agent restore` ended, and what it said.
pub struct Restored {
    pub said: String,
    pub code: Option<i32>,
}

/// `energy-agent restore` to its end.
///
/// # Errors
/// When it cannot be started.
pub fn restore(programs: &Path, folder: &Path, flags: &[String]) -> Result<Restored> {
    let mut command = Command::new(programs.join("energy-agent"));
    command.arg("restore").args(flags).env(RUN_DIRECTORY, folder.join("run"));
    let output = command.stdin(Stdio::null()).output();
    let output = output.context("starting energy-agent restore")?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    Ok(Restored { said, code: output.status.code() })
}
