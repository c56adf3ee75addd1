//! A node whose agent two scrapers of one real Prometheus read once a second, from addresses in a file that the test edits.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::common::agent::{Agent, PROGRAM, wait_for};
use crate::common::kubernetes::node::{Node, Pod};
use crate::common::powercap::{Powercap, RunningCounters};
use crate::common::prometheus::Prometheus;

pub struct World {
    pub node: Node,
    pub agent: Agent,
    pub prometheus: Prometheus,
    targets: PathBuf,
    sysfs: String,
    _counters: RunningCounters,
}

impl World {
    pub fn start() -> Self {
        let node = Node::new();
        let powercap = Powercap::two_sockets();
        let sysfs = powercap.sysfs_flag();
        let counters = RunningCounters::of(powercap);
        let agent = agent(&node, &sysfs);
        let targets = node.folder().join("targets.json");
        name_targets(&targets, &[&agent.address]);
        let job = |name: &str| {
            format!(
                "{{job_name: {name}, file_sd_configs: [{{files: ['{}'], refresh_interval: 1s}}]}}",
                targets.display()
            )
        };
        let prometheus = Prometheus::scraping(&format!("[{}, {}]", job("replica-a"), job("replica-b")));
        let world = Self { node, agent, prometheus, targets, sysfs, _counters: counters };
        world.wait_until_scraped();
        world
    }

    /// Until each scraper has a page that was read from now on.
    pub fn wait_until_scraped(&self) {
        let ticks = self.agent.after_ticks(2).ticks();
        let address = &self.agent.address;
        let query = format!("count(energy_agent_ticks_total{{instance=\"{address}\"}} >= {ticks}) == 2");
        wait_for("both scrapers", || self.prometheus.query(&query).pop());
    }

    /// No scraper has an address.
    pub fn stop_scraping(&self) {
        name_targets(&self.targets, &[]);
        let up = "count(up == 1)";
        wait_for("the scrapers to stop", || self.prometheus.query(up).is_empty().then_some(()));
    }

    pub fn scrape_again(&self) {
        name_targets(&self.targets, &[&self.agent.address]);
        self.wait_until_scraped();
    }

    /// Another agent takes the place of this one, at another address.
    pub fn restart_agent(&mut self) {
        self.agent.end("TERM");
        self.agent = agent(&self.node, &self.sysfs);
        self.scrape_again();
    }

    /// A pod in the API and as cgroups that works for so long; the CPU time of its container in nanoseconds.
    pub fn job(&self, name: &str, milliseconds: u64) -> (Pod, u64) {
        let pod = self.node.pod(name, &["main"]);
        let used = pod.burn("main", milliseconds);
        (pod, used)
    }

    /// The pod's cgroups end. Its last totals in microjoules and nanoseconds on the agent's page, once it is there as ended.
    pub fn end(&self, pod: &Pod) -> (u64, u64) {
        pod.cgroup.remove();
        let ended = [("pod_id", pod.uid()), ("pod_name", pod.name()), ("state", "terminated")];
        let has_ended = |page: &crate::common::page::Page| page.has("kepler_pod_cpu_joules_total", &ended);
        let page = wait_for("the end of the pod", || Some(self.agent.scrape()).filter(has_ended));
        pod.used(&page)
    }

    /// `energy-agent report ... --prometheus URL`.
    pub fn report(&self, arguments: &[&str]) -> Output {
        report(&[arguments, &["--prometheus", &self.prometheus.url()]].concat())
    }

    /// The same as a run file.
    pub fn run(&self, arguments: &[&str]) -> Value {
        let output = self.report(&[arguments, &["--format=json"]].concat());
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    pub fn name_of(&self, pod: &Pod) -> String {
        format!("{}/{}", self.node.name, pod.name())
    }
}

pub fn report(arguments: &[&str]) -> Output {
    Command::new(PROGRAM).arg("report").args(arguments).output().unwrap()
}

/// The program's exit code and standard error.
pub fn refusal(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8(output.stderr.clone()).unwrap())
}

/// Energy of the parts of a run that add up.
pub fn microjoules(run: &Value) -> u64 {
    let parts = run["energy"].as_array().unwrap().iter();
    parts.filter(|part| part["part"] != "other").map(|part| part["microjoules"].as_u64().unwrap()).sum()
}

pub fn warnings(run: &Value) -> Vec<&str> {
    let warnings = run["warnings"].as_array().map_or(&[][..], Vec::as_slice);
    warnings.iter().map(|warning| warning["code"].as_str().unwrap()).collect()
}

fn agent(node: &Node, sysfs: &str) -> Agent {
    node.agent(&["--interval=250ms", "--meter.trust-guest", sysfs])
}

/// In one step: Prometheus reads the file whenever it changes.
fn name_targets(file: &PathBuf, addresses: &[&str]) {
    let next = file.with_extension("next");
    fs::write(&next, json!([{"targets": addresses}]).to_string()).unwrap();
    fs::rename(next, file).unwrap();
}
