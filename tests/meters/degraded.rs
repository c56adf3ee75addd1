//! What the agent shows and says where something is missing, forbidden or nonsense: it runs, exports what it has, and
//! names the rest once.

use std::fs;
use std::process::Command;

use crate::common::agent::{Agent, PROGRAM, program_for_all, run, wait_for};
use crate::common::cgroup::Pod;
use crate::common::page::Page;
use crate::common::powercap::{Powercap, Zone};
use crate::common::tree::Tree;

const POD_SECONDS: &str = "energy_agent_pod_cpu_seconds_total";

fn sysfs(tree: &Tree) -> String {
    format!("--path.sysfs={}", tree.sysfs().display())
}

/// A page two ticks after a pod began to run; its CPU time is on it.
fn page_with_a_busy_pod(agent: &Agent) -> Page {
    let pod = Pod::new();
    let _load = pod.load(&["spin", "0"]);
    agent.after_ticks(2);
    let page = agent.after_ticks(2);
    assert!(page.nanoseconds(POD_SECONDS, &[("pod_id", &pod.uid)]) > 0, "CPU time is attributed");
    page
}

/// The word that tells why a meter is down.
fn reason<'a>(page: &'a Page, meter: &str) -> &'a str {
    let state = page.one("energy_agent_meter_up", &[("meter", meter)]);
    assert_eq!(state.value, "0", "{state:?}");
    state.label("reason")
}

/// Lines of the log above the level of information.
/// But for lost cgroup events: on a busy machine, the cgroups of other tests may fill the ring buffer.
fn complaints(agent: &Agent) -> Vec<String> {
    let is_complaint = |line: &String| line.contains(" WARN ") || line.contains(" ERROR ");
    agent.log().into_iter().filter(|line| is_complaint(line) && !line.contains("cgroup event lost")).collect()
}

/// FC-011: energy counters are readable by root only, and the agent is not root.
#[test]
fn counters_that_only_root_may_read_are_told_with_both_remedies() {
    let tree = Tree::case("FC-011");
    let program = program_for_all(tree.root());
    let command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", program.to_str().unwrap()];
    let flags = ["--interval=200ms", "--meter.cpu=rapl", "--meter.trust-guest", &sysfs(&tree)];
    let mut agent = Agent::spawn(&command, &flags);
    agent.wait_until_ready();
    let page = page_with_a_busy_pod(&agent);
    assert_eq!(reason(&page, "rapl"), "permission");
    assert_eq!(page.energy_names(), Vec::<&str>::new());
    // Loading a program is not for every user either.
    assert_eq!(reason(&page, "ebpf"), "permission");
    assert_eq!(page.one("energy_agent_attribution_info", &[]).label("meter"), "cgroupfs");
    let told = agent.assert_logged("energy_uj", 1);
    for part in [" WARN ", "intel-rapl:0/energy_uj", "run as root", "CAP_DAC_READ_SEARCH"] {
        assert!(told[0].contains(part), "{part} is not in {}", told[0]);
    }
    agent.assert_well();
}

/// Root in a user namespace has every capability there, and none that counts; the same answer comes from a security module.
#[test]
fn root_that_is_denied_is_told_who_denies_and_not_to_become_root() {
    let command = ["unshare", "--user", "--map-root-user", PROGRAM];
    let mut agent = Agent::spawn(&command, &["--interval=200ms", "--meter.cpu=none"]);
    let page = agent.after_ticks(2);
    assert_eq!(reason(&page, "ebpf"), "permission");
    let told = agent.assert_logged("eBPF is not available", 1);
    for part in [" WARN ", "CAP_BPF and CAP_PERFMON (CapEff ", "user namespace", "Operation not permitted (os error 1)"]
    {
        assert!(told[0].contains(part), "{part} is not in {}", told[0]);
    }
    assert!(!told[0].contains("run as root"), "{}", told[0]);
    agent.assert_well();
}

#[test]
fn a_zone_without_a_range_is_named_once_however_often_it_comes_back() {
    let powercap = Powercap::two_sockets();
    let range = |zone: &str| format!("sys/devices/virtual/powercap/intel-rapl/{zone}/max_energy_range_uj");
    powercap.tree.remove(&range("intel-rapl:0"));
    powercap.tree.write(&range("intel-rapl:1"), "0\n");
    let agent = Agent::start(&["--interval=200ms", "--meter.trust-guest", &powercap.sysfs_flag()]);
    for zone in [&powercap.zones[0], &powercap.zones[2]] {
        zone.remove();
        agent.after_ticks(2);
        zone.add(1_000_000);
        agent.after_ticks(2);
    }
    let told = agent.assert_logged("range of the zone unknown", 2);
    for (line, zone, why) in [
        (&told[0], "/sys/class/powercap/intel-rapl:0", "max_energy_range_uj: No such file"),
        (&told[1], "/sys/class/powercap/intel-rapl:1", "max_energy_range_uj is 0"),
    ] {
        assert!(line.contains(" WARN ") && line.contains(zone) && line.contains(why), "{line}");
    }
}

#[test]
fn a_zone_that_flaps_has_a_line_for_each_state_and_not_for_each_tick() {
    let powercap = Powercap::two_sockets();
    let mut agent = Agent::start(&["--interval=100ms", "--meter.trust-guest", &powercap.sysfs_flag()]);
    let (flaps, healthy) = (&powercap.zones[2], &powercap.zones[0]);
    let mut errors = 0;
    for _ in 0..8 {
        flaps.fail();
        let failed = agent.after_ticks(2).count("energy_agent_zone_read_errors_total");
        assert!(failed > errors, "each time it could not be read");
        errors = failed;
        flaps.add(1_000);
        agent.after_ticks(2);
    }
    for (text, level) in [("zone unreadable", " WARN "), ("zone readable again", " INFO ")] {
        let told = agent.assert_logged(text, 1);
        assert!(told[0].contains(level) && told[0].contains(&flaps.path), "{told:?}");
    }
    healthy.add(5_000);
    let page = agent.after_ticks(2);
    let joules = |zone: &Zone| page.microjoules("kepler_node_cpu_joules_total", &zone.labels());
    assert_eq!((joules(flaps), joules(healthy)), (8_000, 5_000), "no energy is lost by it");
    agent.assert_well();
}

/// FC-013.
#[test]
fn without_powercap_cpu_time_is_attributed_and_the_module_named() {
    let tree = Tree::case("FC-013");
    let mut agent = Agent::start(&["--interval=200ms", "--meter.cpu=rapl", &sysfs(&tree)]);
    let page = page_with_a_busy_pod(&agent);
    assert_eq!(reason(&page, "rapl"), "absent");
    assert_eq!(page.energy_names(), Vec::<&str>::new());
    agent.assert_logged("intel_rapl_msr", 1);
    assert_eq!(complaints(&agent).len(), 1, "{:#?}", agent.log());
    agent.assert_well();
}

/// FC-060.
#[test]
fn an_estimate_is_never_called_a_measurement_and_can_be_turned_off() {
    let tree = Tree::case("FC-013");
    let agent = Agent::start(&["--interval=200ms", &sysfs(&tree)]);
    let page = page_with_a_busy_pod(&agent);
    page.assert_conserved();
    assert_eq!(page.divided().into_iter().collect::<Vec<_>>(), [("package", "estimate")]);
    let energies = page.samples.iter().filter(|it| it.name.contains("joules") || it.name.contains("watts"));
    assert!(energies.clone().all(|it| it.label("source") == "estimate"), "{:#?}", energies.collect::<Vec<_>>());
    let told = agent.assert_logged("an estimate from CPU load, not a measurement", 1);
    assert!(told[0].contains(" WARN ") && told[0].contains("--meter.cpu=none"), "{told:?}");

    let agent = Agent::start(&["--interval=200ms", "--meter.cpu=none", &sysfs(&tree)]);
    let page = page_with_a_busy_pod(&agent);
    assert_eq!(page.energy_names(), Vec::<&str>::new());
    for meter in ["rapl", "perf", "hwmon", "estimate"] {
        assert_eq!(reason(&page, meter), "off");
    }
    assert_eq!(complaints(&agent), Vec::<String>::new(), "it was asked for");
}

/// FC-060: what a hypervisor shows its guest is not taken for a measurement.
#[test]
fn a_guest_exports_no_rapl_unless_told_to_trust_it() {
    let powercap = Powercap::two_sockets();
    let tree = &powercap.tree;
    tree.write(
        "proc/cpuinfo",
        "processor : 0\nvendor_id : GenuineIntel\ncpu family : 6\nmodel : 85\nflags : fpu hypervisor\n",
    );
    for file in ["stat", "sys", "self"] {
        std::os::unix::fs::symlink(format!("/proc/{file}"), tree.procfs().join(file)).unwrap();
    }
    let procfs = format!("--path.procfs={}", tree.procfs().display());
    let flags = ["--interval=200ms", &powercap.sysfs_flag(), &procfs];
    let page = Agent::start(&flags).after_ticks(3);
    assert_eq!(reason(&page, "rapl"), "guest");
    assert_eq!(page.divided().into_iter().collect::<Vec<_>>(), [("package", "estimate")]);
    assert!(!page.has("kepler_node_cpu_joules_total", &[("source", "rapl")]));

    let trusting = Agent::start(&[&flags[..], &["--meter.trust-guest"]].concat()).after_ticks(3);
    assert!(trusting.has("kepler_node_cpu_joules_total", &[("source", "rapl")]));
    assert!(!trusting.has("kepler_node_cpu_joules_total", &[("source", "estimate")]));
}

/// FC-062: an ARM board without BTF, powercap and a CPU list; its procfs has no stat either, so nothing is estimated.
#[test]
fn a_board_with_nothing_still_attributes_cpu_time() {
    let mut tree = Tree::case("FC-062-arm-board");
    tree.apply("d sys/kernel/btf");
    let procfs = format!("--path.procfs={}", tree.procfs().display());
    let mut agent = Agent::start(&["--interval=200ms", &sysfs(&tree), &procfs]);
    let page = page_with_a_busy_pod(&agent);
    assert_eq!(page.energy_names(), Vec::<&str>::new());
    assert_eq!(page.one("energy_agent_attribution_info", &[]).label("meter"), "cgroupfs");
    let told = agent.assert_logged("CPU busy time cannot be read", 1);
    assert!(told[0].contains(tree.procfs().join("stat").to_str().unwrap()), "{told:?}");
    agent.assert_well();
}

#[test]
fn without_cgroups_all_energy_is_one_running_unit_or_unattributed() {
    let mut agent = Agent::start(&["--interval=200ms", "--meter.cpu=estimate", "--path.cgroupfs=/nonexistent"]);
    let page = agent.after_ticks(3);
    page.assert_conserved();
    let unknown = [("unit", "unknown"), ("state", "running")];
    assert!(page.microjoules("energy_agent_system_cpu_joules_total", &unknown) > 0);
    page.one("energy_agent_system_cpu_watts", &unknown);
    agent.assert_logged("/nonexistent", 1);
    agent.assert_well();

    // Without eBPF nothing is known of who ran.
    let mut agent =
        Agent::start(&["--interval=200ms", "--meter.cpu=estimate", "--path.cgroupfs=/nonexistent", "--ebpf=off"]);
    let page = agent.after_ticks(3);
    page.assert_conserved();
    assert_eq!(page.one("energy_agent_attribution_info", &[]).label("meter"), "none");
    assert_eq!(reason(&page, "cgroupfs"), "absent");
    let active = page.microjoules("kepler_node_cpu_active_joules_total", &[]);
    assert_eq!(page.microjoules("energy_agent_node_cpu_unattributed_joules_total", &[]), active);
    agent.assert_well();
}

/// FC-015.
#[test]
fn an_attribute_that_fails_costs_no_zone_and_a_disabled_zone_is_read() {
    let tree = Tree::case("FC-015");
    let agent = Agent::start(&["--interval=200ms", "--meter.trust-guest", &sysfs(&tree)]);
    let dir = "sys/devices/virtual/powercap/intel-rapl";
    for (file, raw) in [
        ("intel-rapl:0/energy_uj", "60293987"),
        ("intel-rapl:0/intel-rapl:0:0/energy_uj", "5000000"),
        ("intel-rapl:1/energy_uj", "999"),
    ] {
        let shown = fs::read_to_string(tree.root().join(dir).join(file)).unwrap();
        assert_eq!(shown.trim(), raw, "the case, as it is described");
        tree.write(&format!("{dir}/{file}"), format!("{}\n", raw.parse::<u64>().unwrap() + 3_000_000));
    }
    let page = agent.after_ticks(2);
    let zones: Vec<_> = page
        .select("kepler_node_cpu_joules_total", &[])
        .iter()
        .map(|it| (it.label("zone"), it.label("socket"), it.value.as_str()))
        .collect();
    assert_eq!(zones, [("package", "0", "3.000000"), ("package", "1", "3.000000"), ("dram", "0", "3.000000")]);
    assert_eq!(page.count("energy_agent_zone_resets_total"), 0);
    page.assert_conserved();
}

#[test]
fn demanded_ebpf_that_cannot_be_had_ends_with_the_reason() {
    let tree = Tree::case("FC-062-no-btf");
    let (code, text) = run(&["--ebpf=on", "--web.listen-address=127.0.0.1:0", &sysfs(&tree)]);
    assert_eq!(code, Some(1), "{text}");
    let error = text.lines().find(|line| line.starts_with("error: ")).unwrap_or_else(|| panic!("{text}"));
    for part in ["--ebpf=on", "kernel/btf/vmlinux", "CONFIG_DEBUG_INFO_BTF"] {
        assert!(error.contains(part), "{part} is not in {error}");
    }
}

#[test]
fn nonsense_in_a_counter_is_counted_and_told_once() {
    let powercap = Powercap::two_sockets();
    let [spoilt, _, good, _] = &powercap.zones;
    let mut agent = Agent::start(&["--interval=200ms", "--meter.trust-guest", &powercap.sysfs_flag()]);
    spoilt.add(1_000_000);
    agent.after_ticks(2);
    spoilt.show("12 apples\n");
    good.add(2_000_000);
    let errors = |page: &Page| page.count("energy_agent_zone_read_errors_total");
    let page = agent.after_ticks(2);
    assert!(errors(&page) > 0);
    let later = agent.after_ticks(3);
    assert!(errors(&later) >= errors(&page) + 3, "each reading counts");
    assert_eq!(
        later.microjoules("kepler_node_cpu_joules_total", &spoilt.labels()),
        1_000_000,
        "what was measured stays"
    );
    assert_eq!(later.microjoules("kepler_node_cpu_joules_total", &good.labels()), 2_000_000, "the others go on");
    let told = agent.assert_logged("12 apples", 1);
    assert!(told[0].contains("intel-rapl:0/energy_uj"), "{told:?}");
    spoilt.add(3_000_000);
    let page = agent.after_ticks(2);
    assert_eq!(page.microjoules("kepler_node_cpu_joules_total", &spoilt.labels()), 4_000_000);
    page.assert_conserved();
    agent.assert_well();
}

#[test]
fn a_sysfs_full_of_nonsense_starts_and_keeps_what_makes_sense() {
    let powercap = Powercap::two_sockets();
    let tree = &powercap.tree;
    let device = "sys/devices/virtual/powercap/intel-rapl/intel-rapl:1";
    tree.write(&format!("{device}/name"), [0xff, 0xfe, 0x00, b'\n']);
    tree.write(&format!("{device}/intel-rapl:1:0/max_energy_range_uj"), "-1\n");
    tree.write("sys/devices/system/cpu/online", "0-18446744073709551615,x\n");
    tree.write("sys/devices/system/cpu/possible", "\n");
    tree.write("sys/devices/system/cpu/cpu0/topology/physical_package_id", "0x\n");
    tree.write("sys/class/hwmon/hwmon0/name", "\n");
    tree.write("sys/class/hwmon/hwmon0/energy1_input", "NaN\n");
    tree.write("sys/class/hwmon/hwmon1", "a file\n");
    tree.write("sys/bus/event_source/devices/power/type", "many\n");
    let mut agent = Agent::start(&["--interval=200ms", "--meter.trust-guest", &powercap.sysfs_flag()]);
    powercap.zones[0].add(1_000_000);
    let page = page_with_a_busy_pod(&agent);
    assert_eq!(page.microjoules("kepler_node_cpu_joules_total", &powercap.zones[0].labels()), 1_000_000);
    page.assert_conserved();
    let lines = agent.log().len();
    agent.after_ticks(5);
    assert_eq!(agent.log().len(), lines, "nothing is repeated: {:#?}", agent.log());
    agent.assert_well();
}

/// A board's controller (ACPI, IPMI) that does not answer blocks the reader of its file, as a pipe without a writer does.
#[test]
fn a_board_sensor_that_does_not_answer_holds_up_no_tick() {
    const JOULES: &str = "kepler_node_cpu_joules_total";
    let board = [("zone", "platform"), ("source", "hwmon")];
    let powercap = Powercap::two_sockets();
    let tree = &powercap.tree;
    let chip = tree.sysfs().join("class/hwmon/hwmon0");
    let sensor = chip.join("power1_average");
    tree.write("sys/class/hwmon/hwmon0/name", "power_meter\n");
    tree.write("sys/class/hwmon/hwmon0/power1_average", "50000000\n");
    let mut agent = Agent::start(&["--interval=200ms", "--meter.trust-guest", &powercap.sysfs_flag()]);
    let page = wait_for("energy of the board", || Some(agent.scrape()).filter(|page| page.has(JOULES, &board)));
    assert_eq!(page.one("energy_agent_meter_up", &[("meter", "board"), ("reason", "ok")]).value, "1");

    let (pipe, held) = (chip.join("pipe"), tree.root().join("held"));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    fs::hard_link(&pipe, &held).unwrap();
    fs::rename(&pipe, &sensor).unwrap();
    let hangs = [("meter", "board"), ("reason", "hanging")];
    let page =
        wait_for("the board to hang", || Some(agent.scrape()).filter(|page| page.has("energy_agent_meter_up", &hangs)));
    assert_eq!(page.one("energy_agent_meter_up", &hangs).value, "0");
    let stands = page.microjoules(JOULES, &board);
    powercap.zones[0].add(1_000_000);
    let page = agent.after_ticks(5);
    assert_eq!(page.microjoules(JOULES, &powercap.zones[0].labels()), 1_000_000, "the others go on");
    assert_eq!(page.microjoules(JOULES, &board), stands);
    assert!(!page.has("kepler_node_cpu_watts", &board), "power that is not measured is not exported");
    page.assert_conserved();
    let told = agent.assert_logged("power1_average", 1);
    assert!(told[0].contains(" WARN ") && told[0].contains("no answer for 2.9 s"), "{told:?}");

    fs::write(chip.join("answers"), "50000000\n").unwrap();
    fs::rename(chip.join("answers"), &sensor).unwrap();
    // Lets the reading return that is out.
    fs::write(&held, "50000000\n").unwrap();
    let grows = |page: &Page| page.microjoules(JOULES, &board) > stands;
    let page = wait_for("energy of the board again", || Some(agent.scrape()).filter(grows));
    assert_eq!(page.one("energy_agent_meter_up", &[("meter", "board")]).label("reason"), "ok");
    agent.assert_logged("readable again", 1);
    agent.assert_well();
}
