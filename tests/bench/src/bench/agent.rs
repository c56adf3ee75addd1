//! A running energy-agent in a cgroup of its own, and a scraper on one connection that measures what it waits.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::page::Page;
use super::world::{World, cpu_ns};
use crate::root;

pub struct Agent {
    process: Child,
    address: String,
    cgroup: PathBuf,
    log: PathBuf,
}

impl Agent {
    /// Starts the release build in the world's cgroup and waits for its first tick.
    ///
    /// # Errors
    /// When it does not start; with its own message.
    pub fn start(world: &World, interval: Duration, flags: &[&str]) -> Result<Self> {
        Self::start_in(&root().join("target/bench"), world, interval, flags)
    }

    /// As [`Self::start`], with its state and log in a folder of its own, so that several can run.
    ///
    /// # Errors
    /// When it does not start; with its own message.
    pub fn start_in(folder: &Path, world: &World, interval: Duration, flags: &[&str]) -> Result<Self> {
        let state = folder.join("state");
        let _ = fs::remove_dir_all(&state);
        fs::create_dir_all(&state)?;
        let log = folder.join("agent.log");
        // Free now, and not given out again soon.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let process = Command::new("sh")
            .args(["-c", r#"echo $$ > "$1/cgroup.procs" && shift && exec "$@""#, "agent"])
            .arg(&world.agent)
            .arg(root().join("target/release/energy-agent"))
            .arg(format!("--web.listen-address={address}"))
            .arg(format!("--state.directory={}", state.display()))
            .arg(format!("--run.directory={}", state.join("run").display()))
            .arg(format!("--interval={}ms", interval.as_millis()))
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log)?)
            .spawn()
            .context("starting energy-agent")?;
        let mut agent = Self { process, address, cgroup: world.agent.clone(), log: log.clone() };
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(status) = agent.process.try_wait()? {
                bail!("energy-agent ended with {status}:\n{}", fs::read_to_string(&log)?);
            }
            if agent.scraper().and_then(|mut scraper| scraper.page()).and_then(|page| ticks(&page)).is_ok_and(|n| n > 0)
            {
                return Ok(agent);
            }
            ensure!(Instant::now() < deadline, "energy-agent does not tick:\n{}", fs::read_to_string(&log)?);
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// # Errors
    /// When the agent is gone.
    pub fn scraper(&self) -> Result<Scraper> {
        Scraper::connect(&self.address)
    }

    /// A page of a tick that began after this was called.
    ///
    /// # Errors
    /// When the agent is gone or has stopped ticking.
    pub fn fresh_page(&self) -> Result<Page> {
        let mut scraper = self.scraper()?;
        // The tick under way may have begun before.
        let wanted = ticks(&scraper.page()?)? + 2;
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let page = scraper.page()?;
            if ticks(&page)? >= wanted {
                return Ok(page);
            }
            ensure!(Instant::now() < deadline, "energy-agent stopped ticking");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// What it has logged so far.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn log(&self) -> Result<Vec<String>> {
        let text = fs::read_to_string(&self.log)?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// CPU time of the agent, all threads, nanoseconds.
    ///
    /// # Errors
    /// When its cgroup cannot be read.
    pub fn cpu_ns(&self) -> Result<u64> {
        cpu_ns(&self.cgroup)
    }

    /// CPU time of the threads of these names, nanoseconds. A thread that ends meanwhile is no longer in it.
    ///
    /// # Errors
    /// When it does not exist.
    pub fn thread_cpu_ns(&self, named: impl Fn(&str) -> bool) -> Result<u64> {
        let mut sum_ns = None;
        for task in fs::read_dir(format!("/proc/{}/task", self.process.id()))? {
            let task = task?.path();
            if fs::read_to_string(task.join("comm")).is_ok_and(|name| named(name.trim())) {
                let text = fs::read_to_string(task.join("schedstat"))?;
                let ns: u64 = text.split(' ').next().unwrap_or_default().parse()?;
                sum_ns = Some(sum_ns.unwrap_or(0) + ns);
            }
        }
        sum_ns.context("no such thread")
    }

    /// CPU time of the threads that answer requests, nanoseconds.
    ///
    /// # Errors
    /// When the agent is gone.
    pub fn serving_cpu_ns(&self) -> Result<u64> {
        // The main thread, and the one that encodes pages.
        self.thread_cpu_ns(|name| name == "energy-agent" || name.starts_with("tokio"))
    }

    /// Resident memory and the part of it that is not file-backed, in KiB (`VmRSS`, `RssAnon`).
    ///
    /// # Errors
    /// When the agent is gone.
    pub fn memory_kib(&self) -> Result<(u32, u32)> {
        Ok((self.status_kib("VmRSS:")?, self.status_kib("RssAnon:")?))
    }

    /// The most that was ever resident; KiB.
    ///
    /// # Errors
    /// When it does not run.
    pub fn peak_kib(&self) -> Result<u32> {
        self.status_kib("VmHWM:")
    }

    fn status_kib(&self, name: &str) -> Result<u32> {
        let text = fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)).context("no memory in status")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.process.id().to_string()).status();
        let _ = self.process.wait();
    }
}

/// # Errors
/// When the page has no count of ticks.
pub fn ticks(page: &Page) -> Result<u64> {
    page.value("energy_agent_ticks_total", "", "", 0)
}

/// One kept connection.
pub struct Scraper {
    stream: BufReader<TcpStream>,
    /// Lines that go with each request.
    headers: String,
}

pub struct Answer {
    pub body: Vec<u8>,
    /// From the first byte sent to the last byte read.
    pub took: Duration,
}

impl Scraper {
    /// # Errors
    /// When nobody listens there.
    pub fn connect(address: &str) -> Result<Self> {
        Self::connect_with(address, String::new())
    }

    /// With these header lines in each request.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn connect_with(address: &str, headers: String) -> Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| format!("connecting to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        Ok(Self { stream: BufReader::new(stream), headers })
    }

    /// # Errors
    /// When the connection breaks or the answer is not a 200 with a length.
    pub fn get(&mut self, gzip: bool) -> Result<Answer> {
        let coding = if gzip { "Accept-Encoding: gzip\r\n" } else { "" };
        let request = format!("GET /metrics HTTP/1.1\r\nHost: bench\r\n{coding}{}\r\n", self.headers);
        let began = Instant::now();
        self.stream.get_mut().write_all(request.as_bytes())?;
        let mut length = None;
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        ensure!(line.contains(" 200 "), "scrape answered {line:?}");
        loop {
            line.clear();
            self.stream.read_line(&mut line)?;
            match line.trim_end().split_once(':') {
                None => break,
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                    length = Some(value.trim().parse()?);
                }
                Some(_) => {}
            }
        }
        let mut body = vec![0; length.context("scrape without content-length")?];
        self.stream.read_exact(&mut body)?;
        Ok(Answer { body, took: began.elapsed() })
    }

    /// # Errors
    /// As [`Self::get`].
    pub fn page(&mut self) -> Result<Page> {
        Page::new(self.get(false)?.body)
    }
}
