//! Which energy counters and sensors are used and for what, and what becomes of those that move, come late, or stand still.

#![allow(clippy::unwrap_used, reason = "tests panic")]

use std::fs;

use crate::common::agent::{Agent, wait_for};
use crate::common::cgroup::Pod;
use crate::common::page::Page;
use crate::common::powercap::Powercap;
use crate::common::tree::Tree;

const JOULES: &str = "kepler_node_cpu_joules_total";
const WATTS: &str = "kepler_node_cpu_watts";
const UP: &str = "energy_agent_meter_up";

fn start(tree: &Tree) -> Agent {
    let sysfs = format!("--path.sysfs={}", tree.sysfs().display());
    Agent::start(&["--interval=200ms", "--meter.trust-guest", &sysfs])
}

/// Zone, socket and watts of every series of power.
fn watts(page: &Page) -> Vec<(String, String, String)> {
    let mut rows: Vec<_> = page
        .select(WATTS, &[])
        .iter()
        .map(|it| (it.label("zone").to_owned(), it.label("socket").to_owned(), format!("{:.1}", it.number())))
        .collect();
    rows.sort();
    rows
}

#[test]
fn a_superchips_meters_are_told_apart_by_what_firmware_calls_them_fc_113() {
    let text = fs::read_to_string("../tests/cases/FC-113-grace.tree").unwrap();
    // As firmware has it, and with the same texts as labels.
    let labels = text.replace("/device/power1_oem_info", "/power1_label").replace("/device/", "/");
    for tree in [Tree::parse(&text), Tree::parse(&labels)] {
        let agent = start(&tree);
        let expected = [
            ("core", "0", "53.4"),
            ("core", "1", "51.2"),
            ("package", "0", "105.3"),
            ("package", "1", "98.7"),
            ("platform", "0", "431.0"),
            ("platform", "1", "418.0"),
            ("uncore", "0", "6.3"),
            ("uncore", "1", "6.5"),
        ];
        let expected = expected.map(|(zone, socket, watts)| (zone.to_owned(), socket.to_owned(), watts.to_owned()));
        let page = wait_for("power of every meter", || Some(agent.scrape()).filter(|page| watts(page).len() >= 8));
        assert_eq!(watts(&page), expected);
        assert!(page.select(JOULES, &[]).iter().all(|it| it.label("source") == "hwmon"));
        assert_eq!(page.divided().into_iter().collect::<Vec<_>>(), [("package", "hwmon")], "the parts join no sum");
        page.assert_conserved();
    }
}

#[test]
fn sockets_that_sensors_count_otherwise_are_matched_in_order_fc_115() {
    let tree = Tree::case("FC-115");
    let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    for file in ["online", "possible"] {
        tree.write(&format!("sys/devices/system/cpu/{file}"), &online);
    }
    for cpu in energy_host::meter::cpu::parse_list(&online).unwrap() {
        let socket = if cpu % 2 == 0 { "36\n" } else { "3180\n" };
        tree.write(&format!("sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"), socket);
    }
    let pod = Pod::new();
    // A process that is always on the lower socket, so that its energy comes from that sensor.
    let _load = pod.load(&["spin", "0"]);
    let mut agent = start(&tree);
    let uid = [("pod_id", pod.uid.as_str()), ("zone", "package")];
    let has = |page: &Page| page.microjoules("kepler_pod_cpu_joules_total", &uid) > 0;
    let page = wait_for("energy of the pod", || Some(agent.scrape()).filter(has));
    page.assert_conserved();
    let expected = [("0", "22.0"), ("1", "23.0")];
    let expected = expected.map(|(socket, watts)| ("package".to_owned(), socket.to_owned(), watts.to_owned()));
    assert_eq!(watts(&page), expected);
    let told = agent.assert_logged("matched in order", 1);
    assert!(told[0].contains("0 is 36, 1 is 3180"), "{:#?}", agent.log());
    agent.assert_well();
}

#[test]
fn each_socket_has_its_psys_and_no_sum_changes_fc_116() {
    let mut tree = Tree::case("FC-116");
    tree.apply("f sys/devices/virtual/powercap/intel-rapl/intel-rapl:4/name = mystery");
    tree.apply("l sys/class/powercap/intel-rapl:4 -> ../../devices/virtual/powercap/intel-rapl/intel-rapl:4");
    let agent = start(&tree);
    let counter = |index: &str| format!("sys/devices/virtual/powercap/intel-rapl/intel-rapl:{index}/energy_uj");
    for (index, value) in [("0", "1000000070"), ("1", "5000000500"), ("2", "1000000030"), ("3", "4000000400")] {
        tree.write(&counter(index), format!("{value}\n"));
    }
    let page = agent.after_ticks(2);
    let joules = |zone, socket| page.microjoules(JOULES, &[("zone", zone), ("socket", socket)]);
    assert_eq!((joules("psys", "0"), joules("psys", "1")), (500, 400));
    assert_eq!((joules("package", "0"), joules("package", "1")), (70, 30));
    assert_eq!(page.select(JOULES, &[("zone", "psys")]).len(), 2);
    page.assert_conserved();
    let told = agent.assert_logged("unknown kind", 1);
    assert!(told[0].contains(" INFO ") && told[0].contains("mystery"), "{told:#?}");
}

/// FC-132, its kind: a hypervisor that shows zones and never counts.
#[test]
fn zones_that_stand_still_are_no_measurement_of_nothing() {
    let powercap = Powercap::two_sockets();
    let mut agent = start(&powercap.tree);
    let state = |page: &Page| {
        let row = page.one(UP, &[("meter", "rapl")]);
        (row.value.clone(), row.label("reason").to_owned())
    };
    assert_eq!(state(&agent.scrape()), ("1".to_owned(), "ok".to_owned()));
    let page = wait_for("the standstill", || Some(agent.scrape()).filter(|page| state(page).0 == "0"));
    assert_eq!(state(&page).1, "frozen");
    let page = agent.after_ticks(3);
    assert_eq!(watts(&page), [], "nothing was measured");
    let told = agent.assert_logged("gained nothing for", 4);
    for zone in &powercap.zones {
        let line = told.iter().find(|line| line.contains(&format!("zone={} ", zone.path))).unwrap();
        for part in [" WARN ", "frozen", "--meter.trust-guest"] {
            assert!(line.contains(part), "{part} is not in {line}");
        }
    }
    // One socket counts again; its memory draws nothing, which is then a figure.
    powercap.zones[0].add(7_000_000);
    let page = agent.after_ticks(2);
    assert_eq!(state(&page), ("1".to_owned(), "ok".to_owned()));
    assert_eq!(page.microjoules(JOULES, &powercap.zones[0].labels()), 7_000_000);
    powercap.zones[0].add(1_000_000);
    let socket = |page: &Page, zone: &str| page.has(WATTS, &[("zone", zone), ("socket", "0")]);
    let page = wait_for("its power", || Some(agent.scrape()).filter(|page| socket(page, "package")));
    assert!(socket(&page, "dram") && !page.has(WATTS, &[("socket", "1")]), "{:?}", watts(&page));
    page.assert_conserved();
    agent.assert_well();
}

/// FC-118, its kind: the kernel numbers chips in the order in which drivers come.
#[test]
fn a_sensor_that_comes_back_under_another_number_goes_on_with_its_series() {
    let chip = |number: u32, socket: u32, energy: u64| {
        format!(
            "f sys/class/hwmon/hwmon{number}/name = amd_energy\n\
             f sys/class/hwmon/hwmon{number}/energy1_label = Esocket{socket}\n\
             f sys/class/hwmon/hwmon{number}/energy1_input = {energy}\n"
        )
    };
    let mut tree = Tree::parse(&(chip(0, 0, 1_000) + &chip(1, 1, 1_000)));
    let play = |tree: &mut Tree, text: &str| text.lines().for_each(|line| tree.apply(line));
    let agent = start(&tree);
    let joules = |page: &Page, socket: &str| page.microjoules(JOULES, &[("zone", "package"), ("socket", socket)]);
    play(&mut tree, &(chip(0, 0, 1_500) + &chip(1, 1, 1_700)));
    let page = agent.after_ticks(2);
    assert_eq!((joules(&page, "0"), joules(&page, "1")), (500, 700));

    tree.remove("sys/class/hwmon/hwmon0");
    play(&mut tree, &(chip(7, 0, 9_000) + &chip(9, 2, 100)));
    wait_for("the sensor under its new number", || agent.logged("has another number").first().cloned());
    wait_for("the new sensor", || agent.logged("hwmon sensor found").first().cloned());
    agent.after_ticks(2);
    play(&mut tree, &(chip(7, 0, 9_020) + &chip(1, 1, 1_705) + &chip(9, 2, 103)));
    let page = agent.after_ticks(2);
    assert_eq!((joules(&page, "0"), joules(&page, "1"), joules(&page, "2")), (520, 705, 3));
    assert_eq!(page.select(JOULES, &[]).len(), 3, "one series each");
    page.assert_conserved();
}

/// FC-118, its kind: a module that is loaded after the agent has started.
#[test]
fn a_meter_that_comes_late_takes_the_place_of_the_estimate() {
    let mut tree = Tree::new();
    tree.apply("d sys/class");
    let mut agent = start(&tree);
    let estimated = agent.after_ticks(3);
    assert_eq!(estimated.divided().into_iter().collect::<Vec<_>>(), [("package", "estimate")]);
    let folder = "sys/devices/virtual/powercap/intel-rapl/intel-rapl:0";
    tree.apply(&format!("f {folder}/name = package-0"));
    tree.apply(&format!("f {folder}/max_energy_range_uj = 262143328850"));
    tree.apply(&format!("f {folder}/energy_uj = 1000"));
    tree.apply("l sys/class/powercap/intel-rapl:0 -> ../../devices/virtual/powercap/intel-rapl/intel-rapl:0");
    let up = |page: &Page| page.one(UP, &[("meter", "rapl")]).value == "1";
    wait_for("RAPL", || Some(agent.scrape()).filter(up));
    agent.after_ticks(2);
    tree.write(&format!("{folder}/energy_uj"), "5000\n");
    let page = agent.after_ticks(2);
    assert_eq!(page.microjoules(JOULES, &[("source", "rapl")]), 4_000);
    let before = |page: &Page| page.microjoules(JOULES, &[("source", "estimate")]);
    assert!(before(&page) >= before(&estimated), "what was estimated stands");
    assert!(!page.has(WATTS, &[("source", "estimate")]), "{:?}", watts(&page));
    assert_eq!(page.one(UP, &[("meter", "estimate")]).label("reason"), "unused");
    page.assert_conserved();
    agent.assert_logged("a CPU energy meter became available", 1);
    agent.assert_well();
}
