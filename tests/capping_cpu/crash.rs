//! A node that was left capped: by a kill at any moment, by an agent that is started without capping, and by every ending
//! of FC-089.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use fake_nvml::state::Limits;

use crate::common::agent::{Agent, wait_for};
use crate::common::alone;
use crate::common::cgroup::Load;
use crate::common::nvml::{self, FakeNvml, Gpu};
use crate::common::tree::Tree;
use crate::kubernetes::case;
use crate::plant::{CPUFREQ, Machine, Plant};
use crate::world::{CpuPod, World, text};

const GPU: &str = "GPU-fd585786-3c80-50f9-8a72-731ad8419df6";

/// The node of FC-089 with a busy pod on CPU and GPU.
struct Node089 {
    world: World,
    machine: Machine,
    nvml: FakeNvml,
    _plant: Plant,
    _load: Load,
    _pod: CpuPod,
    before: Vec<String>,
}

impl Node089 {
    fn new() -> Option<Self> {
        let case = case("FC-089");
        let before = |key: &str| case["before"][key].as_u64().unwrap();
        let mut tree = Tree::new();
        for policy in [0, 4] {
            let khz = before(&format!("policy{policy}.scaling_max_freq"));
            for (file, value) in [
                ("scaling_max_freq", khz),
                ("scaling_min_freq", 300_000),
                ("cpuinfo_min_freq", 300_000),
                ("cpuinfo_max_freq", 2_956_800),
            ] {
                tree.apply(&format!("f {CPUFREQ}/policy{policy}/{file} = {value}"));
            }
        }
        let limit = before("rapl.long_term_uw");
        let machine = Machine::of(tree, 1, limit, limit);
        let world = World::new();
        let pod = world.pod("train-0")?;
        let load = pod.spin();
        let mut nvml = FakeNvml::new();
        let process = nvml::Process { load: 1.0, ..nvml::process(load.0.id()) };
        let gpu_limit = u32::try_from(before(&format!("{GPU}.power_limit_mw"))).unwrap();
        nvml.state.gpus.push(Gpu {
            plant: Some(fake_nvml::plant::Plant { exponent: 2.0, ..Default::default() }),
            processes: Some(vec![process]),
            limits: Some(Limits { min_mw: 200_000, max_mw: 700_000, default_mw: gpu_limit, ..Limits::default() }),
            ..nvml::gpu(GPU)
        });
        nvml.play();
        let plant = machine.draw(|| 140.0);
        let mut node = Self { world, machine, nvml, _plant: plant, _load: load, _pod: pod, before: Vec::new() };
        node.before = node.now();
        assert_eq!(node.before, ["1766400", "2956800", "145000000", "500000"]);
        Some(node)
    }

    fn files(&self) -> [PathBuf; 3] {
        [self.machine.clock_file(0), self.machine.clock_file(4), self.machine.limit_file(0)]
    }

    /// The four knobs.
    fn now(&self) -> Vec<String> {
        let held = self.nvml.held().gpus.get(GPU).and_then(|held| held.power_limit_mw).unwrap_or(500_000);
        self.files().iter().map(|file| text(file)).chain([held.to_string()]).collect()
    }

    /// 250 W for the GPU, and for the CPUs by this means as low as the case has it.
    fn policies(&self, means: &str) {
        let namespace = &self.world.node.name;
        let cpu = match means {
            "Frequency" => {
                "watts: 1, scope: PerNode, components: [cpu]}\n  actuators: {cpu: {use: [Frequency], minFrequencyMHz: 1000}}"
            }
            _ => {
                "watts: 90, scope: PerNode, components: [cpu]}\n  control: {targetPercent: 100}\n  actuators: {cpu: {use: [RaplLimit]}}"
            }
        };
        self.world.policies(&format!(
            "- name: gpu\n  mode: Enforce\n  selector: {{namespaces: [{namespace}]}}\n  budget: {{watts: 250, components: [gpu]}}\n  actuators: {{gpu: {{use: [PowerLimit]}}}}\n- name: cpu\n  mode: Enforce\n  selector: {{selectAll: true}}\n  budget: {{{cpu}\n"
        ));
    }

    /// The four knobs while these policies hold them.
    fn capped(&self, means: &str) -> Vec<String> {
        let case = case("FC-089");
        let to = |key: &str| case["capped_to"][key].to_string();
        let mut capped = self.before.clone();
        if means == "Frequency" {
            capped[0] = to("policy0.scaling_max_freq");
            capped[1] = to("policy4.scaling_max_freq");
        } else {
            capped[2] = to("rapl.long_term_uw");
        }
        capped[3] = to(&format!("{GPU}.power_limit_mw"));
        capped
    }

    fn agent(&self) -> Agent {
        let [sysfs, trust] = self.machine.flags();
        self.world.bare_agent(&[&sysfs, &trust, "--meter.cpu=rapl", &self.nvml.flag()])
    }

    fn wait_for(&self, what: &str, wanted: &[String]) {
        let mut last = Vec::new();
        for _ in 0..1500 {
            last = self.now();
            if last == wanted {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
        panic!("{what}: {last:?} instead of {wanted:?}");
    }
}

fn every_ending(means: &str) {
    let _alone = alone();
    let Some(node) = Node089::new() else { return };
    let capped = node.capped(means);

    node.policies(means);
    let mut agent = node.agent();
    node.wait_for("capped", &capped);
    let (status, took) = agent.end("TERM");
    assert!(status.success());
    assert_eq!(node.now(), node.before, "SIGTERM: restored before the exit");
    assert!(took < Duration::from_secs(10), "{took:?}");

    let mut agent = node.agent();
    node.wait_for("capped", &capped);
    agent.end("KILL");
    assert_eq!(node.now(), capped, "SIGKILL leaves it");
    let mut agent = node.agent();
    agent.after_ticks(6);
    assert_eq!(node.now(), capped, "the cap stays");
    let journal = node.world.journal();
    for original in [
        "\"original_raw\":\"500000\"",
        if means == "Frequency" { "\"original_raw\":\"2956800\"" } else { "\"original_raw\":\"145000000\"" },
    ] {
        assert!(journal.contains(original), "{journal}");
    }

    agent.end("KILL");
    node.world.no_policies();
    let agent = node.agent();
    agent.after_ticks(1);
    node.wait_for("SIGKILL, and a start without the policies", &node.before);
    drop(agent);

    // In the middle of applying: the journal names all of them, the last ones are not written yet.
    node.policies(means);
    let mut agent = node.agent();
    node.wait_for("capped", &capped);
    agent.end("KILL");
    let half = if means == "Frequency" { 1 } else { 2 };
    fs::write(&node.files()[half], format!("{}\n", node.before[half])).unwrap();
    let mut agent = node.agent();
    node.wait_for("SIGKILL in the middle: the rest follows", &capped);
    agent.end("TERM");
    assert_eq!(node.now(), node.before, "SIGKILL in the middle, then the end");
    assert_eq!(node.world.journal(), "");
}

#[test]
fn clocks_and_the_gpus_limit_come_back_in_every_ending_fc_089() {
    every_ending("Frequency");
}

#[test]
fn the_packages_and_the_gpus_limit_come_back_in_every_ending_fc_089() {
    every_ending("RaplLimit");
}

#[test]
fn an_agent_that_is_started_without_capping_gives_back_what_was_left() {
    let _alone = alone();
    let Some(node) = Node089::new() else { return };
    node.policies("Frequency");
    let mut agent = node.agent();
    node.wait_for("capped", &node.capped("Frequency"));
    agent.end("KILL");
    let [sysfs, trust] = node.machine.flags();
    let flags = [&node.world.state_flag(), &sysfs, &trust, &node.nvml.flag(), "--meter.cpu=rapl", "--capping=off"];
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
    let mut capped = 0;
    for kill in 1..=KILLS {
        world.policies(&policy(if kill % 2 == 0 { "Frequency" } else { "Quota" }));
        let mut agent = world.bare_agent(&flags);
        thread::sleep(Duration::from_millis(random(700)));
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
