//! A node that was left capped: by a kill at any moment, by an agent that is started without capping, and by every ending
//! of FC-089.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use fake_nvml::state::Limits;

use crate::common::agent::{Agent, wait_for};
use crate::common::alone;
use crate::common::busy_node::{CpuPod, World, text};
use crate::common::cgroup::Load;
use crate::common::crash::{CPUFREQ, Crash, GPU};
use crate::common::nvml::{self, FakeNvml, Gpu};
use crate::common::patience::Patience;
use crate::common::plant::{Machine, Plant};
use crate::common::tree::Tree;

/// The node of FC-089 with a busy pod on CPU and GPU.
struct Node089 {
    case: Crash,
    world: World,
    machine: Machine,
    nvml: FakeNvml,
    _plant: Plant,
    _load: Load,
    _pod: CpuPod,
    before: Vec<String>,
}

/// 250 W for the GPU.
const GPU_POLICY: &str = "- name: gpu
  mode: Enforce
  selector: {selectAll: true}
  budget: {watts: 250, components: [gpu]}
  actuators: {gpu: {use: [PowerLimit]}}
";
/// As low for the clocks as the case has them.
const CLOCKS_POLICY: &str = "- name: clocks
  mode: Enforce
  selector: {selectAll: true}
  budget: {watts: 1, scope: PerNode, components: [cpu]}
  actuators: {cpu: {use: [Frequency], minFrequencyMHz: 1000}}
";
/// 90 W for the package, and in place of the policy for clocks.
const PACKAGE_POLICY: &str = "- name: package
  mode: Enforce
  priority: 1
  selector: {selectAll: true}
  budget: {watts: 90, scope: PerNode, components: [cpu]}
  control: {targetPercent: 100}
  actuators: {cpu: {use: [RaplLimit]}}
";

impl Node089 {
    fn new() -> Option<Self> {
        let case = Crash::new();
        let machine = Machine::made(case.tree());
        let world = World::new();
        let pod = world.pod("train-0")?;
        let load = pod.quota.pod.load(&["spin", "0"]);
        let mut nvml = FakeNvml::new();
        let process = nvml::Process { load: 1.0, ..nvml::process(load.0.id()) };
        let default_mw = u32::try_from(case.before(&format!("{GPU}.power_limit_mw"))).unwrap();
        nvml.state.gpus.push(Gpu {
            plant: Some(fake_nvml::plant::Plant { exponent: 2.0, ..Default::default() }),
            processes: Some(vec![process]),
            limits: Some(Limits { default_mw, ..Limits::default() }),
            ..nvml::gpu(GPU)
        });
        nvml.play();
        let plant = machine.draw(|| 140.0);
        let mut node = Self { case, world, machine, nvml, _plant: plant, _load: load, _pod: pod, before: Vec::new() };
        node.before = node.now();
        assert_eq!(node.before, ["1766400", "2956800", "145000000", "500000"]);
        Some(node)
    }

    fn files(&self) -> [PathBuf; 3] {
        [self.machine.clock_file(0), self.machine.clock_file(4), self.machine.limit_file(0)]
    }

    /// The four limits.
    fn now(&self) -> Vec<String> {
        let held = self.nvml.held().gpus.get(GPU).and_then(|held| held.power_limit_mw).unwrap_or(500_000);
        self.files().iter().map(|file| text(file)).chain([held.to_string()]).collect()
    }

    /// The four limits as the case has them capped.
    fn capped(&self) -> Vec<String> {
        let gpu = format!("{GPU}.power_limit_mw");
        let limits = ["policy0.scaling_max_freq", "policy4.scaling_max_freq", "rapl.long_term_uw", &gpu];
        limits.map(|limit| self.case.capped_to(limit).to_string()).into()
    }

    /// An agent that has capped all four. One policy decides about the CPUs: the clocks are left by an agent that was
    /// killed under another, whose pods may still turn up for half a minute.
    fn capping(&self) -> Agent {
        self.world.policies(&[GPU_POLICY, CLOCKS_POLICY].concat());
        let mut agent = self.agent();
        let mut wanted = self.capped();
        wanted[2].clone_from(&self.before[2]);
        self.wait_for("clocks and GPU capped", &wanted);
        agent.end("KILL");
        self.world.policies(&[GPU_POLICY, CLOCKS_POLICY, PACKAGE_POLICY].concat());
        let agent = self.agent();
        self.wait_for("all four capped", &self.capped());
        agent
    }

    fn agent(&self) -> Agent {
        let [sysfs, trust] = self.machine.flags();
        self.world.bare_agent(&[&sysfs, &trust, "--meter.cpu=rapl", &self.nvml.flag()])
    }

    fn wait_for(&self, what: &str, wanted: &[String]) {
        let mut patience = Patience::new();
        while self.now() != wanted {
            patience.check(&format!("{what}: {:?} to be {wanted:?}", self.now()));
            thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn all_four_limits_come_back_when_the_agent_is_told_to_end_fc_089() {
    let Some(node) = Node089::new() else { return };
    let mut agent = node.capping();
    assert!(agent.end("TERM").0.success());
    assert_eq!(node.now(), node.before, "restored before the exit");
    assert_eq!(node.world.journal(), "");
}

#[test]
fn all_four_limits_are_remembered_from_before_the_first_cap_when_the_agent_is_killed_fc_089() {
    let Some(node) = Node089::new() else { return };
    node.capping().end("KILL");
    assert_eq!(node.now(), node.capped(), "nobody is there to give it back");
    let mut agent = node.agent();
    agent.after_ticks(6);
    assert_eq!(node.now(), node.capped(), "the caps stay");
    let journal = node.world.journal();
    for original in &node.before {
        assert!(journal.contains(&format!("\"original_raw\":\"{original}\"")), "{original}: {journal}");
    }
    agent.end("KILL");
    node.world.no_policies();
    let agent = node.agent();
    agent.after_ticks(1);
    node.wait_for("a start without the policies", &node.before);
}

#[test]
fn a_kill_after_two_of_four_writes_ends_as_one_after_all_of_them_fc_089() {
    let Some(node) = Node089::new() else { return };
    node.capping().end("KILL");
    // The journal names all four before the first write.
    for place in [1, 2] {
        fs::write(&node.files()[place], format!("{}\n", node.before[place])).unwrap();
    }
    let mut agent = node.agent();
    node.wait_for("the rest follows", &node.capped());
    agent.end("TERM");
    assert_eq!(node.now(), node.before);
    assert_eq!(node.world.journal(), "");
}

#[test]
fn an_agent_that_is_started_without_capping_gives_back_what_was_left() {
    let Some(node) = Node089::new() else { return };
    node.capping().end("KILL");
    let [sysfs, trust] = node.machine.flags();
    let [state, run] = node.world.folder_flags();
    let flags = [&state, &run, &sysfs, &trust, &node.nvml.flag(), "--meter.cpu=rapl", "--capping=off"];
    let agent = node.world.node.agent(&flags);
    node.wait_for("given back", &node.before);
    wait_for("capping to be off", || {
        Some(()).filter(|()| !agent.scrape().has("energy_agent_meter_up", &[("meter", "capping")]))
    });
    assert_eq!(node.world.journal(), "");
    let page = agent.after_ticks(2);
    assert!(page.names().iter().all(|name| !name.starts_with("energy_agent_cap_")), "{:?}", page.names());
    assert_eq!(node.now(), node.before);
}

#[test]
fn originals_come_back_whenever_the_agent_is_killed() {
    let _alone = alone();
    const KILLS: u32 = 20;
    let mut tree = Tree::case("FC-088-two-policies");
    tree.apply(&format!("f {CPUFREQ}/policy0/related_cpus = 0"));
    let machine = Machine::of(tree, 1, 200_000_000, 200_000_000);
    let _plant = machine.draw(|| 140.0);
    let world = World::new();
    let Some(pod) = world.pod("batch-0") else { return };
    pod.quota.set(150_000, 100_000);
    let _load = pod.spin();
    let files = [machine.clock_file(0), machine.clock_file(4)];
    let now = || files.iter().map(|file| text(file)).chain([pod.quota.quota()]).collect::<Vec<_>>();
    let before = now();
    let [sysfs, trust] = machine.flags();
    let flags = [&*sysfs, &trust, "--meter.cpu=rapl", "--gpu=off", "--interval=100ms"];
    let policy = |means: &str| {
        format!(
            "- name: node\n  mode: Enforce\n  selector: {{selectAll: true}}\n  budget: {{watts: 1, scope: PerNode, components: [cpu]}}\n  actuators: {{cpu: {{use: [{means}]}}}}\n"
        )
    };
    // Numbers that look random and are the same in each run: xorshift64.
    let mut seed = 0x2545_F491_4F6C_DD1D_u64;
    let mut random = move |end: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % end
    };
    let (mut capped, mut most_ms) = (0, 700);
    for kill in 1..=KILLS {
        world.policies(&policy(if kill % 2 == 0 { "Frequency" } else { "Quota" }));
        let (mut agent, started) = (world.bare_agent(&flags), Instant::now());
        if kill == 1 {
            // A slow machine takes longer to lower something; as many kills come before it as after it.
            wait_for("the first cap", || (now() != before).then_some(()));
            most_ms = most_ms.max(2 * u64::try_from(started.elapsed().as_millis()).unwrap());
        } else {
            thread::sleep(Duration::from_millis(random(most_ms)));
        }
        agent.end("KILL");
        // A plain file that was just truncated is empty; the kernel's attributes never are.
        for (file, before) in files.iter().zip(&before) {
            if text(file).is_empty() {
                fs::write(file, format!("{before}\n")).unwrap();
            }
        }
        capped += u32::from(now() != before);
        match random(3) {
            0 => drop(world.restore(&[&sysfs, "--gpu=off"])),
            1 => {
                world.no_policies();
                world.bare_agent(&flags).end("KILL");
            }
            // The next one takes over.
            _ if kill < KILLS => continue,
            _ => drop(world.restore(&[&sysfs, "--gpu=off"])),
        }
        assert_eq!(now(), before, "kill {kill}; journal: {}", world.journal());
    }
    println!("{KILLS} kills, {capped} while something was lowered");
    assert!(capped >= KILLS / 3, "{capped}");
}
