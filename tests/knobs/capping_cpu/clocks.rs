//! Clocks of cores and limits of packages, over trees of plain files.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;

use crate::common::agent::{Agent, wait_for};
use crate::common::busy_node::{World, text, wait_for_state, writes};
use crate::common::cgroup::{Cgroup, Load, ids, remove_all, v2_root};
use crate::common::crash::CPUFREQ;
use crate::common::kept::Kept;
use crate::common::plant::Machine;
use crate::common::tree::Tree;
use crate::common::{alone, skip};

/// For all CPUs of the node.
fn node_policy(watts: f64, cpu: &str) -> String {
    format!(
        "- name: node\n  mode: Enforce\n  selector: {{selectAll: true}}\n  budget: {{watts: {watts}, scope: PerNode, components: [cpu]}}\n  control: {{targetPercent: 100}}\n  actuators: {{cpu: {{{cpu}}}}}\n"
    )
}

fn agent(world: &World, machine: &Machine) -> Agent {
    let [sysfs, trust] = machine.flags();
    world.bare_agent(&[&sysfs, &trust, "--meter.cpu=rapl", "--gpu=off"])
}

fn wait_for_text(file: &Path, wanted: &str) {
    wait_for(&format!("{} to be {wanted}", file.display()), || Some(()).filter(|()| text(file) == wanted));
}

#[test]
fn each_clock_goes_down_within_its_own_range_and_comes_back_fc_088_fc_081() {
    let machine = Machine::of(Tree::case("FC-088-two-policies"), 1, 200_000_000, 200_000_000);
    let files = [0, 4].map(|policy| machine.clock_file(policy));
    let kept = Kept::noting(&files);
    let _plant = machine.draw(|| 100.0);
    let world = World::new();
    let Some(pod) = world.pod("batch-0") else { return };
    let _load = pod.quota.pod.load(&["spin", "0"]);
    let before = files.each_ref().map(|file| text(file));
    let mut agent = agent(&world, &machine);
    // Nothing is low enough for a budget of 1 W: the clocks stand at the policy's minimum, or their own.
    // Of the two the processor has a higher one only once.
    for (mhz, clocks, clamped) in [
        (500, ["500000", "800000"], ["0", "1"]),
        (1000, ["1000000", "1000000"], ["0", "0"]),
        (1200, ["1200000", "1200000"], ["0", "0"]),
    ] {
        world.policies(&node_policy(1.0, &format!("use: [Frequency], minFrequencyMHz: {mhz}")));
        for (file, clock) in files.iter().zip(clocks) {
            wait_for_text(file, clock);
        }
        wait_for_state(&agent, "node", "unreachable");
        let page = agent.after_ticks(2);
        let shown = ["policy0", "policy4"]
            .map(|policy| page.number_of("energy_agent_cap_clamped", &[("device", policy)]).to_string());
        assert_eq!(shown, clamped, "{mhz} MHz");
        for (device, khz) in ["policy0", "policy4"].into_iter().zip(clocks) {
            for metric in ["energy_agent_cap_limit_hertz", "energy_agent_cap_found_hertz"] {
                assert_eq!(page.one(metric, &[("device", device)]).value, format!("{khz}000"), "{metric} {device}");
            }
        }
        // A policy that is changed with its pods keeps its caps until the next is worked out; begin anew.
        world.no_policies();
        for (file, before) in files.iter().zip(&before) {
            wait_for_text(file, before);
        }
    }
    let page = agent.after_ticks(2);
    for (file, (least, most)) in files.iter().zip([(300_000, 1_766_400), (800_000, 2_956_800)]) {
        let written = kept.written(file);
        let outside: Vec<&String> = written
            .iter()
            .filter(|text| !text.is_empty())
            .filter(|text| !(least..=most).contains(&text.parse::<u64>().unwrap()))
            .collect();
        assert_eq!(outside, Vec::<&String>::new(), "{written:?}");
    }
    for policy in ["policy0", "policy4"] {
        assert_eq!(writes(&page, policy, "restored"), 3);
        assert_eq!(writes(&page, policy, "failed"), 0);
    }
    agent.assert_well();
}

#[test]
fn power_over_the_nodes_budget_lowers_the_clocks_until_it_is_kept() {
    let _alone = alone();
    let machine = Machine::of(Tree::case("FC-088-two-policies"), 1, 300_000_000, 300_000_000);
    let clock = machine.clock_file(4);
    // 400 W at the full clock, by its square: on a machine that is busy otherwise a part of it is the pod's.
    let _plant = machine.draw(move || {
        let khz: f64 = fs::read_to_string(&clock).unwrap().trim().parse().unwrap_or(2_956_800.0);
        400.0 * (khz / 2_956_800.0).powi(2)
    });
    let world = World::new();
    let Some(pod) = world.pod("batch-0") else { return };
    let _load = pod.spin();
    world.policies(&node_policy(100.0, "use: [Frequency]"));
    let agent = agent(&world, &machine);
    wait_for_state(&agent, "node", "capping");
    // The plant takes its time from the machine: where its thread comes late, power is off for a tick.
    let khz = wait_for("the budget to be kept, by the clock that is shown", || {
        let (khz, page) = (text(&machine.clock_file(4)), agent.scrape());
        let power = page.select("energy_agent_policy_power_watts", &[("policy", "node")]);
        let shown = page.select("energy_agent_cap_found_hertz", &[("device", "policy4")]);
        let is_kept = power.iter().any(|power| power.number() <= 100.0);
        Some(khz.clone()).filter(|_| is_kept && shown.iter().any(|shown| shown.value == format!("{khz}000")))
    });
    assert!((739_200..2_956_800).contains(&khz.parse::<u32>().unwrap()), "{khz} kHz");
}

#[test]
fn a_pod_with_cores_of_its_own_is_held_by_their_clock_and_nobody_elses() {
    let cpusets = Path::new("/sys/fs/cgroup/cpuset");
    let online = energy_host::meter::cpu::parse_list(&text(Path::new("/sys/devices/system/cpu/online"))).unwrap();
    if !cpusets.join("cpuset.cpus").exists() {
        return skip::skip(&skip::CPUSET_V1);
    }
    if online.len() < 2 {
        return skip::skip(&skip::TWO_CPUS);
    }
    // A view of the cgroups in which there are only two pods: those of other tests may run anywhere.
    let world = World::new();
    let view = TempDir::new().unwrap();
    let burstable = Cgroup::new("kubepods/burstable");
    let top = burstable.path[1..].split('/').next().unwrap();
    symlink(v2_root().join(top), view.path().join("unified")).unwrap();
    symlink(cpusets.join(top), view.path().join("cpuset")).unwrap();
    let mut containers = Vec::new();
    for (name, cpus) in [("own-cores", "1"), ("other", "0")] {
        let object = world.node.create(&json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": world.node.name, "name": name},
            "spec": {"nodeName": world.node.name, "containers": [{"name": "main", "image": "registry.example/image:1"}]},
        }));
        let place = format!("pod{}/{}", object["metadata"]["uid"].as_str().unwrap(), ids().1);
        containers.push(burstable.child(&place));
        let mut folder = cpusets.to_owned();
        for part in burstable.path[1..].split('/').chain(place.split('/')) {
            folder.push(part);
            fs::create_dir_all(&folder).unwrap();
            for file in ["cpuset.mems", "cpuset.cpus"] {
                fs::write(folder.join(file), text(&cpusets.join(file))).unwrap();
            }
        }
        fs::write(folder.join("cpuset.cpus"), cpus).unwrap();
    }
    let _made = Made(cpusets.join(top));
    let mut tree = Tree::case("FC-088-two-policies");
    tree.apply(&format!("f {CPUFREQ}/policy0/related_cpus = 0"));
    tree.apply(&format!("f {CPUFREQ}/policy4/related_cpus = 1"));
    let machine = Machine::of(tree, 1, 200_000_000, 200_000_000);
    let _plant = machine.draw(|| 100.0);
    let loads = containers.iter().map(|container| Load::start(container, &["spin", "0"]));
    let _loads: Vec<Load> = loads.collect();
    let namespace = &world.node.name;
    world.policies(&format!(
        "- name: quiet\n  mode: Enforce\n  selector: {{namespaces: [{namespace}]}}\n  budget: {{watts: 1, components: [cpu]}}\n"
    ));
    let [sysfs, trust] = machine.flags();
    let cgroups = format!("--path.cgroupfs={}", view.path().display());
    // Without eBPF the agent knows the cgroups of the view alone. Events of the kernel would also report other pods, and a pod
    // without a known set of CPUs may run on all of them.
    let mut agent = world.bare_agent(&[&sysfs, &trust, &cgroups, "--ebpf=off", "--meter.cpu=rapl", "--gpu=off"]);
    // Each is held by its own clock, down to the agent's floor: a quarter of the highest, or the processor's lowest.
    wait_for_text(&machine.clock_file(4), "800000");
    wait_for_text(&machine.clock_file(0), "441600");
    world.policies(&format!(
        "- name: quiet\n  mode: Enforce\n  selector: {{namespaces: [{namespace}], matchLabels: {{none: here}}}}\n  budget: {{watts: 1, components: [cpu]}}\n"
    ));
    wait_for_text(&machine.clock_file(4), "2956800");
    wait_for_text(&machine.clock_file(0), "1766400");
    agent.assert_well();
}

/// Cgroups that are removed on drop.
struct Made(PathBuf);

impl Drop for Made {
    fn drop(&mut self) {
        remove_all(&self.0);
    }
}

#[test]
fn a_node_without_clocks_has_no_actuator_and_says_so_once_fc_088() {
    let machine = Machine::of(Tree::case("FC-088-no-cpufreq"), 1, 200_000_000, 200_000_000);
    let _plant = machine.draw(|| 100.0);
    let world = World::new();
    let Some(pod) = world.pod("batch-0") else { return };
    let _load = pod.quota.pod.load(&["spin", "0"]);
    world.policies(&node_policy(1.0, "use: [Frequency]"));
    let agent = agent(&world, &machine);
    wait_for_state(&agent, "node", "no_actuator");
    let lines = agent.log().len();
    let page = agent.after_ticks(6);
    let said = agent.log()[lines..].to_vec();
    assert!(said.len() <= 1, "{said:#?}");
    assert!(!page.has("energy_agent_cap_up", &[("actuator", "cpu_frequency")]));
}

#[test]
fn a_limit_of_the_package_is_written_in_microwatts_and_holds_fc_081_fc_086() {
    let mut machine = Machine::of(Tree::new(), 1, 205_000_000, 205_000_000);
    // FC-086: the constraint is found by its name, and a greatest limit of 0 says nothing.
    let short = machine.limit_file(0);
    let long = short.with_file_name("constraint_1_power_limit_uw");
    let zone = short.strip_prefix(machine.tree.root()).unwrap().parent().unwrap().display().to_string();
    for line in [
        "constraint_0_name = short_term",
        "constraint_0_power_limit_uw = 250000000",
        "constraint_0_max_power_uw = 0",
        "constraint_1_name = long_term",
        "constraint_1_power_limit_uw = 205000000",
        "constraint_1_max_power_uw = 205000000",
    ] {
        machine.tree.apply(&format!("f {zone}/{line}"));
    }
    let limit = long.clone();
    let _plant = machine.draw(move || {
        let limit_uw: f64 = fs::read_to_string(&limit).unwrap().trim().parse().unwrap_or(205e6);
        (limit_uw / 1e6).min(190.0)
    });
    let world = World::new();
    let Some(_pod) = world.pod("batch-0") else { return };
    let policy = node_policy(150.0, "use: [RaplLimit]");
    world.policies(&policy.replace("Enforce", "Recommend"));
    let mut agent = agent(&world, &machine);
    wait_for_state(&agent, "node", "recommending");
    // Of 205 W: what would be written, and is not.
    let recommended = agent.scrape().number_of("energy_agent_policy_ceiling_ratio", &[("policy", "node")]);
    assert!((recommended - 150.0 / 205.0).abs() < 0.001, "{recommended}");
    assert_eq!(text(&long), "205000000");
    world.policies(&policy);
    wait_for_text(&long, "150000000");
    let page = wait_for("the limit to hold", || {
        let page = agent.scrape();
        let power = page.select("energy_agent_policy_power_watts", &[("policy", "node")]);
        let holds = power.iter().any(|power| (140.0..=151.0).contains(&power.number()));
        Some(page).filter(|_| holds)
    });
    let shown = page.number_of("energy_agent_cap_found_watts", &[("device", "intel-rapl:0")]);
    assert!((shown - 150.0).abs() < 0.001, "{shown} W");
    let wanted = page.number_of("energy_agent_cap_limit_watts", &[("device", "intel-rapl:0"), ("policy", "node")]);
    assert!((wanted - 150.0).abs() < 0.001, "{wanted} W");
    assert_eq!(writes(&page, "intel-rapl:0", "ok"), 1);
    assert_eq!(text(&short), "250000000");
    let (status, _) = agent.end("TERM");
    assert!(status.success());
    assert_eq!([text(&long), text(&short)], ["205000000", "250000000"]);
}

#[test]
fn a_limit_that_the_firmware_keeps_is_shown_as_it_is_and_not_written_for_ever_fc_086() {
    let machine = Machine::made(Tree::case("FC-086"));
    let kept = Kept::lines_of(&machine.tree);
    let _plant = machine.draw(|| 140.0);
    let world = World::new();
    let Some(_pod) = world.pod("batch-0") else { return };
    world.policies(&node_policy(90.0, "use: [RaplLimit]"));
    let agent = agent(&world, &machine);
    let device = ("device", "intel-rapl:0");
    wait_for("the limit to be not effective", || {
        Some(()).filter(|()| agent.scrape().has("energy_agent_cap_up", &[device, ("reason", "not_effective")]))
    });
    let page = agent.after_ticks(10);
    let shown = page.number_of("energy_agent_cap_found_watts", &[device]);
    assert!((shown - 145.0).abs() < 0.001, "{shown} W");
    let written = kept.written(&machine.limit_file(0));
    assert!((1..=2).contains(&written.len()), "{written:?}");
    // Once of the limit, and once of the policy that has no other.
    for said in ["cannot be limited", "rapl_limit of intel-rapl:0 is not_effective"] {
        agent.assert_logged(said, 1);
    }
    agent.assert_all_logged(&["WARN", "intel-rapl:0"], 2);
}

#[test]
fn a_package_whose_limit_somebody_else_raises_is_shown_and_held_again_after_a_minute() {
    let machine = Machine::of(Tree::new(), 1, 100_000_000, 100_000_000);
    let limit = machine.limit_file(0);
    let file = limit.clone();
    let _plant = machine.draw(move || {
        let limit_uw: f64 = fs::read_to_string(&file).unwrap().trim().parse().unwrap_or(100e6);
        (limit_uw / 1e6).min(90.0)
    });
    // No pod: what the node draws is there all the same.
    let world = World::new();
    world.policies(&node_policy(40.0, "use: [RaplLimit]"));
    let mut agent = agent(&world, &machine);
    wait_for_text(&limit, "40000000");
    wait_for_state(&agent, "node", "capping");
    // Before the write: the minute begins later, however long this thread is kept from the next line.
    let taken = Instant::now();
    fs::write(&limit, "60000000").unwrap();
    wait_for_state(&agent, "node", "no_actuator");
    let shows = |agent: &Agent, watts: f64| {
        // A tick in which it was not measured shows none.
        let page = agent.scrape();
        let power = page.select("energy_agent_policy_power_watts", &[("policy", "node")]);
        Some(()).filter(|()| power.iter().any(|power| (power.number() - watts).abs() < 2.0))
    };
    wait_for("the power that it draws now", || shows(&agent, 60.0));
    let told = agent.policies();
    let subject = &told["policies"][0]["subjects"][0];
    assert_eq!(
        subject["reason"], "rapl_limit of intel-rapl:0 is yielded: another program has set it to 60.0 W",
        "{told}"
    );
    let limits = told["limits"].as_array().unwrap();
    let detail = limits[0]["detail"].as_str().unwrap();
    assert!(detail.starts_with("another program has set 60.0 W, which is higher than the 40.0 W"), "{detail}");
    assert_eq!(text(&limit), "60000000");
    // A minute of theirs, and then the budget's again.
    wait_for("the budget's limit", || (text(&limit) == "40000000").then_some(()));
    assert!(taken.elapsed() >= Duration::from_secs(59), "{:?}", taken.elapsed());
    wait_for_state(&agent, "node", "capping");
    wait_for("the budget to be kept", || shows(&agent, 40.0));
    agent.assert_logged("another program writes it", 1);
    assert_eq!(writes(&agent.scrape(), "intel-rapl:0", "ok"), 2);
    // What they set is what comes back.
    let (status, _) = agent.end("TERM");
    assert!(status.success());
    assert_eq!(text(&limit), "60000000");
}
