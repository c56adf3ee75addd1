//! An agent over played GPUs, and what its pages have to say whatever happens.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::common::agent::{Agent, wait_for};
use crate::common::nvml::FakeNvml;
use crate::common::page::Page;

pub const NODE_JOULES: &str = "kepler_node_gpu_joules_total";
pub const NODE_IDLE: &str = "kepler_node_gpu_idle_joules_total";
pub const NODE_ACTIVE: &str = "kepler_node_gpu_active_joules_total";
pub const NODE_WATTS: &str = "kepler_node_gpu_watts";
pub const UNATTRIBUTED: &str = "energy_agent_node_gpu_unattributed_joules_total";
pub const POD_JOULES: &str = "kepler_pod_gpu_joules_total";
pub const INFO: &str = "kepler_node_gpu_info";
pub const UP: &str = "energy_agent_gpu_up";

/// Times between looks for what is missing, in ticks.
pub const RETRY_TICKS: u64 = 10;

pub struct World {
    pub nvml: FakeNvml,
    pub agent: Agent,
}

impl World {
    /// Starts the agent over what is played now, and waits until it has read what is there twice.
    pub fn start(nvml: FakeNvml) -> Self {
        let flag = nvml.flag();
        let agent = Agent::start(&["--interval=200ms", "--meter.cpu=none", "--ebpf=off", "--log.level=info", &flag]);
        let world = Self { nvml, agent };
        let gpus = world.nvml.state.gpus.len();
        wait_for("every GPU to be read", || {
            let page = world.agent.scrape();
            (page.select(UP, &[]).len() == gpus).then_some(())
        });
        world.agent.after_ticks(3);
        world
    }

    /// What is shown when all that was played until now has been read, with its identities asserted.
    pub fn page(&self) -> Page {
        // A reading that comes late twice is on the fourth.
        let page = self.agent.after_ticks(4);
        page.assert_conserved();
        page
    }

    /// Lets that many ticks pass, however long they take on this machine.
    pub fn pass(&self, ticks: u64) -> Page {
        for _ in 0..ticks / 4 {
            self.agent.after_ticks(4);
        }
        self.page()
    }

    /// The first page on which `holds`.
    pub fn when(&self, what: &str, holds: impl Fn(&Page) -> bool) -> Page {
        let page = wait_for(what, || Some(self.agent.scrape()).filter(&holds));
        page.assert_conserved();
        page
    }

    /// Whether NVML as a whole is read, and why not.
    pub fn meter(page: &Page) -> (f64, String) {
        let row = page.one("energy_agent_meter_up", &[("meter", "nvml")]);
        (row.number(), row.label("reason").to_owned())
    }
}

/// Whether a GPU is read, and why not.
pub fn up(page: &Page, uuid: &str) -> (f64, String) {
    let row = page.one(UP, &[("gpu_uuid", uuid)]);
    (row.number(), row.label("reason").to_owned())
}

/// A counter of one GPU in microjoules; 0 where it has none.
pub fn of_gpu(page: &Page, name: &str, uuid: &str) -> u64 {
    page.microjoules(name, &[("gpu_uuid", uuid)])
}

/// A field case by the name of its file.
pub fn case(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/cases").join(format!("{name}.json"));
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// A number of a case, as what a `u64` shows.
pub fn whole(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

pub fn word(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value}"))
}

/// Joules of a case in microjoules.
pub fn joules(value: &Value) -> u64 {
    let text = format!("{:.6}", value.as_f64().unwrap());
    text.replace('.', "").parse().unwrap()
}

pub fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("{value}"))
}

/// Whether two energies are within a tenth of a joule: what a microsecond in the length of an interval makes.
pub fn near(one: u64, other: u64) -> bool {
    one.abs_diff(other) <= 100_000
}

/// A process that sleeps in a cgroup under a name of its own, until it goes out of scope.
pub struct Sleeper {
    child: Child,
    _dir: TempDir,
}

impl Sleeper {
    pub fn start(cgroup: &Path, name: &str) -> Self {
        let dir = TempDir::new().unwrap();
        let program = dir.path().join(name);
        fs::copy("/bin/sleep", &program).unwrap();
        let mut child = Command::new("sh")
            .args(["-c", "read go; exec \"$0\" 600"])
            .arg(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        fs::write(cgroup.join("cgroup.procs"), child.id().to_string()).unwrap();
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        let mut sleeper = Self { child, _dir: dir };
        let comm = format!("/proc/{}/comm", sleeper.pid());
        wait_for("the process to have its name", || {
            assert_eq!(sleeper.child.try_wait().unwrap(), None);
            fs::read_to_string(&comm).unwrap().starts_with(&name[..name.len().min(15)]).then_some(())
        });
        sleeper
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
