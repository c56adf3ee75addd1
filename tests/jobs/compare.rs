//! `energy-agent compare`: saved runs, commands in turns, and a sweep over the clocks of a played GPU whose optimum is known.

#![expect(clippy::unwrap_used, reason = "a test panics, its helpers too")]

mod ends;
mod refine;

use std::env;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use energy_report::sweep::{KnobSteps, SweepRange};
use fake_nvml::clock::monotonic_us;
use fake_nvml::folder::Folder;
use fake_nvml::plant::{Bounds, Plant};
use fake_nvml::state::{Clocks, State};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::agent::{PROGRAM, wait_for};
use crate::common::nvml::{FakeNvml, Gpu, gpu, process};
use crate::common::pod_resources::{Kubelet, claim, listed, listed_pod};
use crate::schema::assert_valid;

const UUID: &str = "GPU-fd585786-3c80-50f9-8a72-731ad8419df6";
/// Where the child plays: it is the work of a sweep.
const WORK: &str = "TEST_ENERGY_AGENT_SWEEP";
/// Seconds that the work takes at the highest clock.
const AT_HIGHEST: f64 = 0.5;
/// Power that does not depend on the clock, while the card works; watts.
const BASE: f64 = 210.0;

/// 210 W and 490 W * (f / 1980 MHz)^3 more: the energy of work that takes 1 / f is least at 1980 * (210 / (490 * 2))^(1/3) =
/// 1185 MHz.
/// It draws nothing between two runs, so that a slow start or end of a process costs nothing.
fn plant() -> Plant {
    Plant { idle_w: 0.0, working_w: BASE, max_w: 490.0, exponent: 3.0, average_s: 0.2, delay_s: 0.0, spacing_s: 0.1 }
}

fn card() -> FakeNvml {
    FakeNvml::new().gpu(Gpu { plant: Some(plant()), power_mw: Some(0), ..gpu(UUID) })
}

/// A card with ten clocks, 165 MHz apart. 100 W and 500 W * (f / 1980 MHz)^6: a clock two steps beside the best one costs a fifth
/// more energy, which no noise of a busy machine comes to.
const STEP: u32 = 165;
fn steep() -> Plant {
    Plant { working_w: 100.0, max_w: 500.0, exponent: 6.0, ..plant() }
}

fn steep_card() -> FakeNvml {
    let clocks = Clocks { min_mhz: 330, step_mhz: STEP, ..Clocks::default() };
    FakeNvml::new().gpu(Gpu { plant: Some(steep()), power_mw: Some(0), clocks, ..gpu(UUID) })
}

/// The work of a sweep: at the clock that the driver holds, for as long as it takes there. The first run leaves the card hot where a
/// file asks for that.
fn work(folder: &Path) {
    let folder = Folder::new(folder.to_owned());
    let read = || serde_json::from_slice::<State>(&fs::read(folder.path().join("state.json")).unwrap()).unwrap();
    // Brings the plant up to a time before it changes.
    let play = |at_us: u64, change: &dyn Fn(&mut State)| {
        let mut state = read();
        let card = state.gpus[0].clone();
        let locked = folder.held(state.generation, |held| {
            let held = held.gpus.entry(UUID.to_owned()).or_default();
            let bounds = Bounds { locked_mhz: held.locked_mhz, limit_w: Some(700.0) };
            if let Some(running) = &mut held.running {
                running.advance(at_us, card.plant.as_ref().unwrap(), &card.clocks, bounds, |at| card.load(at));
            }
            held.locked_mhz
        });
        change(&mut state);
        folder.play(&state);
        locked.map_or(card.clocks.max_mhz, |(_, high)| card.clocks.at_most(high))
    };
    let mhz = play(monotonic_us(), &|_| {});
    // So far ahead that nobody, kept from the CPU as it may be, reads the card at a later time before its load is set.
    let begin = monotonic_us() + 300_000;
    let seconds = AT_HIGHEST * 1980.0 / f64::from(mhz);
    let end = begin + u64::try_from(Duration::from_secs_f64(seconds).as_micros()).unwrap();
    play(monotonic_us(), &|state| {
        let work = fake_nvml::state::Process { steps: vec![(begin, 1.0), (end, 0.0)], ..process(std::process::id()) };
        state.gpus[0].processes = Some(vec![work]);
    });
    thread::sleep(Duration::from_micros(end.saturating_sub(monotonic_us())));
    let heats = fs::remove_file(folder.path().join("heat")).is_ok();
    let mut runs = fs::File::options().create(true).append(true).open(folder.path().join("runs")).unwrap();
    writeln!(runs, "{mhz}").unwrap();
    play(end, &|state| {
        state.gpus[0].processes = Some(Vec::new());
        if heats {
            state.gpus[0].temperature_celsius = Some(50);
        }
    });
}

/// A node of its own with one card.
struct Node {
    nvml: FakeNvml,
    state: TempDir,
    run: TempDir,
}

impl Node {
    fn new(nvml: FakeNvml) -> Self {
        nvml.play();
        Self { nvml, state: TempDir::new().unwrap(), run: TempDir::new().unwrap() }
    }

    fn places(&self) -> [String; 3] {
        [
            format!("--state.directory={}", self.state.path().display()),
            format!("--run.directory={}", self.run.path().display()),
            self.nvml.flag(),
        ]
    }

    /// `compare` with these flags over the work that this test is when it is called as a child.
    fn sweep(&self, flags: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.arg("compare").args(self.places()).args(["--ebpf=off", "--meter.cpu=none"]).args(flags).arg("--");
        command.arg(env::current_exe().unwrap()).args(["compare::work_of_a_sweep", "--exact", "--nocapture"]);
        command.env(WORK, self.folder()).stdin(Stdio::null());
        command
    }

    /// Where the card is played.
    fn folder(&self) -> PathBuf {
        self.nvml.library().with_file_name("fake-nvml")
    }

    /// How often the work was done.
    fn runs(&self) -> usize {
        fs::read_to_string(self.folder().join("runs")).map_or(0, |text| text.lines().count())
    }

    fn locked(&self) -> Option<(u32, u32)> {
        self.nvml.held().gpus.get(UUID).and_then(|held| held.locked_mhz)
    }

    fn limit(&self) -> Option<u32> {
        self.nvml.held().gpus.get(UUID).and_then(|held| held.power_limit_mw)
    }
}

fn said(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// What a child does; in a run of the tests it has nothing to do.
#[test]
fn work_of_a_sweep() {
    if let Some(folder) = env::var_os(WORK) {
        work(Path::new(&folder));
    }
}

/// Energy of the work at a clock, by the plant's own formula.
fn joules(plant: &Plant, mhz: u32) -> f64 {
    plant.power(1.0, mhz, &Clocks::default()) * AT_HIGHEST * 1980.0 / f64::from(mhz)
}

#[test]
fn a_sweep_finds_the_clock_of_least_energy_within_one_step() {
    let node = Node::new(card());
    let file = node.state.path().join("sweep.json");
    let json = format!("--json={}", file.display());
    // The kubelet has given another GPU to a pod.
    let kubelet = Kubelet::start(listed("ml", "train-0", "main", &["GPU-other"]));
    let socket = format!("--pods.resources-socket={}", kubelet.socket().display());
    let output = node.sweep(&["-r", "1", "--gpu-clocks=600..1980/6", "--seed=7", &json, &socket]).output().unwrap();
    let (code, text, errors) = said(&output);
    assert_eq!(code, Some(0), "{text}{errors}");
    let best = text.lines().find_map(|line| line.strip_prefix("Best (least energy): ")).unwrap();
    let best: u32 = best.split(' ').next().unwrap().parse().unwrap();
    let truth = (600..=1980).step_by(15).min_by(|a, b| joules(&plant(), *a).total_cmp(&joules(&plant(), *b)));
    assert_eq!(truth, Some(1185));
    // Values lie (1980 - 600) / 5 apart.
    assert!(best.abs_diff(1185) <= 276, "{text}");
    assert_eq!(node.locked(), None, "what was is back");
    assert_eq!(fs::read_to_string(node.state.path().join("capping-journal.jsonl")).unwrap(), "");
    assert!(text.contains(&format!("--lock-gpu-clocks=0,{best}")), "{text}");

    // The policy that holds the clock is valid.
    let policy = text.split_once("version: 1").map(|(_, policy)| format!("version: 1{policy}")).unwrap();
    let path = node.state.path().join("clock.yaml");
    fs::write(&path, &policy).unwrap();
    let checked = Command::new(PROGRAM).args(["policy", "check"]).arg(&path).output().unwrap();
    assert_eq!(checked.status.code(), Some(0), "{policy}{:?}", said(&checked));
    assert!(policy.contains(&format!("minClockMHz: {best}")), "{policy}");

    // The runs say what was set, and can be compared again.
    let runs: Vec<Value> = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(
        (runs.len(), &runs[0]["labels"]["gpu-setting"], &runs[3]["labels"]["seed"]),
        (7, &json!("open"), &json!("7"))
    );
    assert_valid(&file);
    let again = Command::new(PROGRAM).args(["compare", "--by=gpu-clock-mhz"]).arg(&file).output().unwrap();
    assert_eq!(again.status.code(), Some(3), "the open run has no such label: {:?}", said(&again));
    let again = Command::new(PROGRAM).args(["compare", "--by=gpu-setting"]).arg(&file).output().unwrap();
    assert_eq!(again.status.code(), Some(0), "{:?}", said(&again));
}

#[test]
fn a_sweep_that_is_killed_leaves_a_journal_by_which_all_comes_back() {
    let node = Node::new(card());
    // An administrator's limit, which is not the default.
    node.nvml.limit_power(UUID, 500_000);
    let flags = ["-r", "50", "--gpu-clocks=600..1980/4", "--gpu-power=300..400/2"];
    let mut sweep = node.sweep(&flags).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_for("a clock and a limit to be set", || {
        assert_eq!(sweep.try_wait().unwrap(), None, "it has ended");
        (node.locked().is_some() && node.limit() != Some(500_000)).then_some(())
    });
    sweep.kill().unwrap();
    sweep.wait().unwrap();
    assert!(node.locked().is_some() && node.limit() != Some(500_000), "a kill restores nothing by itself");
    // The work goes on for a moment.
    wait_for("the work to end", || node_is_idle(&node).then_some(()));

    let refused = node.sweep(&["-r", "1", "--gpu-clocks=600..1980/4"]).output().unwrap();
    let (code, _, errors) = said(&refused);
    assert_eq!(code, Some(3), "{errors}");
    assert!(errors.contains("an earlier run has left") && errors.contains("energy-agent restore"), "{errors}");

    let restored = Command::new(PROGRAM).arg("restore").args(node.places()).output().unwrap();
    assert_eq!(restored.status.code(), Some(0), "{:?}", said(&restored));
    assert_eq!((node.locked(), node.limit()), (None, Some(500_000)));
}

fn node_is_idle(node: &Node) -> bool {
    let state: Value = serde_json::from_slice(&fs::read(node.folder().join("state.json")).unwrap()).unwrap();
    state["gpus"][0]["processes"].as_array().is_none_or(Vec::is_empty)
}

#[test]
fn a_sweep_is_refused_where_the_gpu_is_not_its_own() {
    let mut node = Node::new(card());
    let refused = |node: &Node, flags: &[&str]| {
        let flags = [&["-r", "1"], flags].concat();
        let (code, _, errors) = said(&node.sweep(&flags).output().unwrap());
        assert_eq!(node.locked(), None);
        (code, errors)
    };
    let clocks = "--gpu-clocks=600..1980/4";
    node.nvml.set(|state| state.gpus[0].processes = Some(vec![process(4711)]));
    let (code, errors) = refused(&node, &[clocks]);
    assert!(code == Some(3) && errors.contains("GPU 0 is used by process 4711"), "{errors}");
    node.nvml.set(|state| state.gpus[0].processes = Some(Vec::new()));

    let (code, errors) = refused(&node, &["--gpu-clocks=300..1980/4"]);
    let range = "300..1980 MHz leaves what this GPU may be set to: 495 to 1980 MHz";
    assert!(code == Some(3) && errors.contains(range), "{errors}");

    let lock = energy_host::capping::lock::NodeLock::take(node.run.path(), node.state.path()).unwrap();
    let (code, errors) = refused(&node, &[clocks]);
    assert!(code == Some(3) && errors.contains("a policy may be active on the GPU"), "{errors}");
    assert!(errors.contains(&format!("process {} caps", std::process::id())), "{errors}");
    drop(lock);

    // A pod has it, and no process on it yet.
    let of_claim = listed_pod("ml", "train-1", "main", &claim("gpu.nvidia.com", "worker-1", "gpu-0"));
    for (told, expected) in [
        (listed("ml", "train-0", "main", &[UUID]), "GPU 0 was given to pod ml/train-0: a sweep would slow it down"),
        (listed("ml", "train-0", "main", &["0"]), "GPU 0 was given to pod ml/train-0"),
        (of_claim, "GPU 0 may have been given by a claim to pod ml/train-1"),
    ] {
        let kubelet = Kubelet::start(told);
        let socket = format!("--pods.resources-socket={}", kubelet.socket().display());
        let (code, errors) = refused(&node, &[clocks, &socket]);
        assert!(code == Some(3) && errors.contains(expected), "{errors}");
    }
    let mute = node.state.path().join("mute.sock");
    fs::write(&mute, "").unwrap();
    let (code, errors) = refused(&node, &[clocks, &format!("--pods.resources-socket={}", mute.display())]);
    assert!(code == Some(3) && errors.contains("whether a pod has GPU 0 is not known"), "{errors}");

    let (code, errors) = refused(&node, &["--on-gpu=3", clocks]);
    assert!(code == Some(3) && errors.contains("there is no GPU \"3\" here"), "{errors}");
}

fn best(text: &str) -> &str {
    text.lines()
        .find_map(|line| line.strip_prefix("Best ("))
        .unwrap_or_else(|| panic!("{text}"))
        .split_once("): ")
        .unwrap()
        .1
}

#[test]
fn the_best_setting_is_that_of_the_objective_and_saved_runs_are_asked_again() {
    let node = Node::new(steep_card());
    let file = node.state.path().join("sweep.json");
    let json = format!("--json={}", file.display());
    let output = node.sweep(&["-r", "1", "--gpu-clocks=495..1980/4", "--best=edp", &json]).output().unwrap();
    let (code, text, errors) = said(&output);
    assert_eq!(code, Some(0), "{text}{errors}");
    // The objectives by hand, over what was measured of each setting: its name, seconds and joules.
    let runs: Vec<Value> = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let measured = |run: &Value| {
        let seconds = run["end"].as_f64().unwrap() - run["start"].as_f64().unwrap();
        let gpu = run["energy"].as_array().unwrap().iter().find(|energy| energy["part"] == "gpu").unwrap();
        (run["labels"]["gpu-setting"].as_str().unwrap().to_owned(), seconds, gpu["microjoules"].as_f64().unwrap() / 1e6)
    };
    let measured: Vec<(String, f64, f64)> = runs.iter().map(measured).collect();
    assert_eq!(measured.len(), 5);
    let least = |cost: &dyn Fn(f64, f64) -> Option<f64>| {
        let costs = measured.iter().filter_map(|(name, seconds, joules)| Some((name, cost(*seconds, *joules)?)));
        costs.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap().0.clone()
    };
    assert_eq!(best(&text), least(&|seconds, joules| Some(seconds * joules)), "{text}");

    let again = |objective: &str| {
        let flags = ["compare", "--by=gpu-setting", &format!("--best={objective}")];
        let output = Command::new(PROGRAM).args(flags).arg(&file).output().unwrap();
        let (code, text, errors) = said(&output);
        assert_eq!(code, Some(0), "{text}{errors}");
        best(&text).to_owned()
    };
    assert_eq!(again("energy"), least(&|_, joules| Some(joules)));
    assert_eq!(again("time"), least(&|seconds, _| Some(seconds)));
    let open = measured.iter().find(|(name, ..)| name == "open").unwrap().1;
    assert_eq!(again("slowdown:1.6"), least(&|seconds, joules| (seconds <= 1.6 * open).then_some(joules)));
}

#[test]
fn a_run_of_a_sweep_waits_until_the_gpu_is_as_cool_as_at_the_first_start() {
    let mut node = Node::new(card());
    fs::write(node.folder().join("heat"), "").unwrap();
    let mut sweep = node
        .sweep(&["-r", "1", "--gpu-clocks=990..1980/2"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(sweep.stderr.take().unwrap()).lines().map_while(Result::ok);
    let mut before = Vec::new();
    let hot = lines.find(|line| {
        before.push(line.clone());
        line.contains("°C")
    });
    let hot = hot.unwrap_or_else(|| panic!("no run waited: {before:#?}"));
    assert_eq!(hot, "GPU 0 is at 50 °C; the next run begins at 37 °C, or after 30 s");
    // Longer than it takes to begin a run that waits for nothing.
    thread::sleep(Duration::from_secs(2));
    assert_eq!(node.runs(), 1);
    node.nvml.set(|state| state.gpus[0].temperature_celsius = Some(37));
    let said: Vec<String> = lines.collect();
    assert_eq!(sweep.wait().unwrap().code(), Some(0), "{said:?}");
    assert_eq!(node.runs(), 3);
}

/// The golden section over the plant's own energies, which have no noise: the device's best step, whatever the plant is.
#[test]
fn a_refined_sweep_ends_at_the_best_step_of_the_device() {
    for (base, exponent) in [(70.0, 1.5), (210.0, 3.0), (100.0, 2.2), (350.0, 6.0), (20.0, 2.0)] {
        let plant = Plant { idle_w: base, max_w: 700.0, exponent, ..Plant::default() };
        let cost = |mhz: u64| joules(&plant, u32::try_from(mhz).unwrap());
        let steps = KnobSteps { floor: 495, max: 1980, step: 15 };
        let range = SweepRange { low: 600, high: 1980, count: 8 };
        let mut tried: Vec<(u64, f64)> =
            steps.values(range, "MHz").unwrap().into_iter().map(|mhz| (mhz, cost(mhz))).collect();
        while let Some(next) = steps.next(&tried) {
            tried.push((next, cost(next)));
        }
        let best = tried.iter().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap().0;
        let truth = (600..=1980).step_by(15).min_by(|a, b| cost(*a).total_cmp(&cost(*b))).unwrap();
        assert_eq!(best, truth, "{plant:?}");
        assert!(tried.len() <= 8 + 9, "{} runs", tried.len());
    }
}
