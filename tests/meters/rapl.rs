//! RAPL zones of fake powercap trees: which are found, what they gain, and what trouble costs.

#![expect(clippy::unwrap_used, reason = "a test panics, its helpers too")]

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::common::tree::Tree;
use energy_host::meter::counter::ZoneCounts;
use energy_host::meter::rapl::Rapl;
use energy_model::meter_state::{MeterName, Reason};
use energy_model::zone::{ZoneEnergy, ZoneKind};

const SECOND: Duration = Duration::from_secs(1);
const DEVICES: &str = "sys/devices/virtual/powercap";

/// A tree that is built zone by zone: (`intel-rapl:0`, `package-0`, counter).
fn zones(zones: &[(&str, &str, u64)]) -> Tree {
    let mut tree = Tree::new();
    for &(folder, name, energy_uj) in zones {
        add(&mut tree, folder, name, energy_uj);
    }
    tree
}

/// The folder of a zone: sub-zones lie inside the zone they are named after.
fn dir(folder: &str) -> String {
    let (control, indices) = folder.split_once(':').unwrap();
    let mut path = format!("{DEVICES}/{control}");
    let mut name = control.to_owned();
    for index in indices.split(':') {
        name = format!("{name}:{index}");
        path = format!("{path}/{name}");
    }
    path
}

fn add(tree: &mut Tree, folder: &str, name: &str, energy_uj: u64) {
    let dir = dir(folder);
    tree.apply(&format!("f {dir}/name = {name}"));
    tree.apply(&format!("f {dir}/max_energy_range_uj = 262143328850"));
    tree.apply(&format!("f {dir}/energy_uj mode=0400 = {energy_uj}"));
    tree.apply(&format!("l sys/class/powercap/{folder} -> ../../{}", dir.strip_prefix("sys/").unwrap()));
}

fn energy_uj(folder: &str) -> String {
    format!("{}/energy_uj", dir(folder))
}

fn set(tree: &Tree, folder: &str, raw: u64) {
    tree.write(&energy_uj(folder), format!("{raw}\n"));
}

/// Zones as `kind/socket/die/source` with what each gained; the gap is marked.
fn gains(energies: &[ZoneEnergy]) -> Vec<(String, u64)> {
    let mut gains: Vec<_> = energies
        .iter()
        .map(|ZoneEnergy { zone, energy, gap }| (label(zone) + if *gap { " gap" } else { "" }, energy.0))
        .collect();
    gains.sort();
    gains
}

fn label(zone: &energy_model::zone::Zone) -> String {
    let number = |number: Option<u32>| number.map_or("-".to_owned(), |number| number.to_string());
    format!("{}/{}/{}/{}", zone.kind.as_str(), number(zone.socket), number(zone.die), zone.source.as_str())
}

fn labels(rapl: &Rapl) -> Vec<String> {
    let mut labels: Vec<_> = rapl.zones().map(label).collect();
    labels.sort();
    labels
}

/// Opens the case, reads at its start and at its next moment; what was gained between.
fn replay(mut tree: Tree) -> (Rapl, Vec<(String, u64)>) {
    let mut rapl = Rapl::open(&tree.sysfs(), false).unwrap();
    assert_eq!(rapl.read(SECOND), [], "the first reading is no delta");
    let elapsed = tree.advance().unwrap_or(SECOND);
    let gained = gains(&rapl.read(elapsed));
    (rapl, gained)
}

fn gained(expected: &[(&str, u64)]) -> Vec<(String, u64)> {
    expected.iter().map(|&(zone, energy)| (zone.to_owned(), energy)).collect()
}

#[test]
fn psys_and_the_parts_of_a_package_are_zones_of_their_own_fc_001() {
    let (rapl, gains) = replay(Tree::case("FC-001"));
    let expected = [
        ("core/0/-/rapl", 840_000),
        ("dram/0/-/rapl", 1_100_000),
        ("package/0/-/rapl", 3_780_000),
        ("psys/-/-/rapl", 9_610_000),
        ("uncore/0/-/rapl", 210_000),
    ];
    assert_eq!(gains, gained(&expected));
    let attributed: Vec<_> = rapl.zones().filter(|zone| zone.kind.attributed()).map(|zone| zone.kind).collect();
    assert_eq!(attributed, [ZoneKind::Package, ZoneKind::Dram]);
    let paths: Vec<_> = rapl.zones().map(|zone| zone.path.as_str()).collect();
    assert!(paths.contains(&"/sys/class/powercap/intel-rapl:0"), "{paths:?}");
    assert!(paths.contains(&"/sys/class/powercap/intel-rapl:0:2"), "{paths:?}");
    assert_eq!(rapl.state().reason, Reason::Ok);
}

#[test]
fn a_package_seen_through_two_interfaces_counts_once_fc_002() {
    let (rapl, gains) = replay(Tree::case("FC-002"));
    let expected =
        [("core/0/-/rapl", 0), ("dram/0/-/rapl_mmio", 0), ("package/0/-/rapl", 3_930_000), ("uncore/0/-/rapl", 0)];
    assert_eq!(gains, gained(&expected));
    assert_eq!(rapl.counts(), ZoneCounts::default());
}

#[test]
fn the_interface_that_was_chosen_stays() {
    let copies = [("intel-rapl:0", "package-0", 1_000), ("intel-rapl-mmio:0", "package-0", 1_000)];

    let tree = zones(&copies);
    let mut rapl = Rapl::open(&tree.sysfs(), false).unwrap();
    rapl.read(SECOND);
    tree.fail(&energy_uj("intel-rapl:0"), "EIO");
    for _ in 0..130 {
        assert_eq!(rapl.read(SECOND), [], "the other copy must not take over");
    }
    tree.remove(&dir("intel-rapl:0"));
    for _ in 0..130 {
        assert_eq!(rapl.read(SECOND), [], "nor when the zone is gone");
    }

    let tree = zones(&copies);
    tree.fail(&energy_uj("intel-rapl:0"), "EIO");
    let mut rapl = Rapl::open(&tree.sysfs(), false).unwrap();
    assert_eq!(labels(&rapl), ["package/0/-/rapl_mmio"]);
    set(&tree, "intel-rapl:0", 5_000);
    rapl.read(SECOND);
    set(&tree, "intel-rapl-mmio:0", 1_700);
    assert_eq!(gains(&rapl.read(SECOND)), gained(&[("package/0/-/rapl_mmio", 700)]));
}

#[test]
fn a_socket_is_named_by_the_zone_not_by_its_index_fc_004() {
    let rapl = Rapl::open(&Tree::case("FC-004").sysfs(), false).unwrap();
    let expected = ["dram/0/-/rapl", "dram/1/-/rapl", "package/0/-/rapl", "package/1/-/rapl", "psys/-/-/rapl"];
    assert_eq!(labels(&rapl), expected);
}

#[test]
fn indices_are_hexadecimal() {
    let tree = zones(&[
        ("intel-rapl:9", "package-9", 0),
        ("intel-rapl:a", "package-10", 0),
        ("intel-rapl:a:b", "dram", 0),
        ("intel-rapl:10", "psys", 0),
    ]);
    let rapl = Rapl::open(&tree.sysfs(), false).unwrap();
    assert_eq!(labels(&rapl), ["dram/10/-/rapl", "package/10/-/rapl", "package/9/-/rapl", "psys/-/-/rapl"]);
}

#[test]
fn each_die_is_a_zone_fc_005() {
    let (_, gains) = replay(Tree::case("FC-005"));
    let expected = [
        ("package/0/0/rapl", 10_000_000),
        ("package/0/1/rapl", 10_000_000),
        ("package/0/2/rapl", 10_000_000),
        ("package/0/3/rapl", 10_000_000),
    ];
    assert_eq!(gains, gained(&expected));
}

#[test]
fn dies_that_mirror_one_counter_are_one_zone() {
    let mut tree = zones(&[
        ("intel-rapl:1", "package-0-die-0", 1_000),
        ("intel-rapl:0", "package-0-die-1", 2_000),
        ("intel-rapl:2", "package-1-die-0", 3_000),
        ("intel-rapl:2:0", "core", 10),
    ]);
    let mut rapl = Rapl::open(&tree.sysfs(), true).unwrap();
    assert_eq!(labels(&rapl), ["package/0/-/rapl", "package/1/-/rapl"]);
    rapl.read(SECOND);
    set(&tree, "intel-rapl:1", 1_500);
    set(&tree, "intel-rapl:0", 9_999);
    assert_eq!(gains(&rapl.read(SECOND)), gained(&[("package/0/-/rapl", 500), ("package/1/-/rapl", 0)]));

    add(&mut tree, "intel-rapl:3", "package-0-die-2", 0);
    for _ in 0..70 {
        rapl.read(SECOND);
    }
    assert_eq!(rapl.zones().count(), 2);
}

#[test]
fn zones_that_no_amd_processor_has_are_taken_as_they_are() {
    let told_that_this_is_amd = true;
    let dies = Rapl::open(&Tree::case("FC-005").sysfs(), told_that_this_is_amd).unwrap();
    assert_eq!(labels(&dies), ["package/0/0/rapl", "package/0/1/rapl", "package/0/2/rapl", "package/0/3/rapl"]);
    let client = Rapl::open(&Tree::case("FC-001").sysfs(), told_that_this_is_amd).unwrap();
    assert!(labels(&client).contains(&"core/0/-/rapl".to_owned()), "{:?}", labels(&client));
    let server = Rapl::open(&Tree::case("FC-014").sysfs(), told_that_this_is_amd).unwrap();
    assert_eq!(labels(&server), ["package/0/-/rapl", "package/1/-/rapl"]);
}

#[test]
fn one_wrap_charges_the_true_difference_fc_007() {
    let (rapl, gains) = replay(Tree::case("FC-007"));
    assert_eq!(gains, gained(&[("package/0/-/rapl", 44_031_428_850)]));
    assert_eq!(rapl.counts(), ZoneCounts { wraps: 1, ..ZoneCounts::default() });
}

#[test]
fn a_stall_that_hides_wraps_is_a_gap_fc_010() {
    let (rapl, gains) = replay(Tree::case("FC-010"));
    assert_eq!(gains, gained(&[("package/0/-/rapl gap", 131_213_342_300)]));
    assert_eq!(rapl.counts(), ZoneCounts { gaps: 1, ..ZoneCounts::default() });
}

/// Set for the copy of this program that runs without privileges.
const UNPRIVILEGED: &str = "TEST_ENERGY_AGENT_UNPRIVILEGED_SYSFS";

#[test]
fn counters_for_root_only_give_the_reason_and_the_remedies_fc_011() {
    let tree = Tree::case("FC-011");
    // Mode bits do not stop root, so the check runs as nobody. Through /proc, since nobody may not reach the build folder.
    let mut command = Command::new("/proc/self/exe");
    command.args(["--exact", "rapl::without_privileges", "--ignored", "--nocapture"]).env(UNPRIVILEGED, tree.sysfs());
    if std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0) {
        command.uid(65534).gid(65534);
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
#[ignore = "the half of fc_011 that runs as another user; started by it"]
fn without_privileges() {
    let Some(sysfs) = std::env::var_os(UNPRIVILEGED) else { return };
    let state = Rapl::open(Path::new(&sysfs), false).unwrap_err();
    assert_eq!((state.meter, state.reason), (MeterName::Rapl, Reason::Permission));
    for part in ["intel-rapl:0/energy_uj", "run as root", "CAP_DAC_READ_SEARCH"] {
        assert!(state.detail.to_string().contains(part), "{}", state.detail);
    }
}

#[test]
fn a_node_without_powercap_says_absent_and_names_the_module_fc_013_fc_062() {
    let mut masked = Tree::new();
    masked.apply("l sys/class/powercap/intel-rapl:0 -> ../../devices/virtual/powercap/intel-rapl/intel-rapl:0");
    for (tree, remedy) in [
        (Tree::case("FC-013"), "intel_rapl_msr"),
        (Tree::case("FC-062-arm-board"), "intel_rapl_msr"),
        (Tree::parse("d sys/class/powercap"), "intel_rapl_msr"),
        (Tree::parse("f sys/class/powercap/intel-rapl:0/name = mystery"), "intel_rapl_msr"),
        (Tree::new(), "intel_rapl_msr"),
        (masked, "--path.sysfs"),
    ] {
        let state = Rapl::open(&tree.sysfs(), false).unwrap_err();
        assert_eq!((state.meter, state.reason), (MeterName::Rapl, Reason::Absent));
        assert!(
            state.detail.to_string().contains("class/powercap") && state.detail.to_string().contains(remedy),
            "{}",
            state.detail
        );
    }
}

#[test]
fn an_amd_server_has_packages_and_no_dram_fc_014() {
    let rapl = Rapl::open(&Tree::case("FC-014").sysfs(), true).unwrap();
    assert_eq!(labels(&rapl), ["package/0/-/rapl", "package/1/-/rapl"]);
    assert_eq!(rapl.counts(), ZoneCounts::default());
}

#[test]
fn a_bad_attribute_costs_no_energy_and_a_disabled_zone_is_metered_fc_015() {
    let tree = Tree::case("FC-015");
    let mut rapl = Rapl::open(&tree.sysfs(), false).unwrap();
    rapl.read(SECOND);
    set(&tree, "intel-rapl:0", 60_293_988);
    set(&tree, "intel-rapl:0:0", 5_000_002);
    set(&tree, "intel-rapl:1", 1_002);
    let expected = [("dram/0/-/rapl", 2), ("package/0/-/rapl", 1), ("package/1/-/rapl", 3)];
    assert_eq!(gains(&rapl.read(SECOND)), gained(&expected));
    assert_eq!(rapl.counts(), ZoneCounts::default());
}

#[test]
fn a_zone_that_turns_unreadable_takes_nothing_from_the_others_and_loses_nothing() {
    let tree = zones(&[("intel-rapl:0", "package-0", 1_000), ("intel-rapl:1", "package-1", 1_000)]);
    let mut rapl = Rapl::open(&tree.sysfs(), false).unwrap();
    rapl.read(SECOND);
    tree.fail(&energy_uj("intel-rapl:1"), "EIO");
    set(&tree, "intel-rapl:0", 1_010);
    assert_eq!(gains(&rapl.read(SECOND)), gained(&[("package/0/-/rapl", 10)]));
    let state = rapl.state();
    assert!(state.is_up() && state.detail.to_string().contains("intel-rapl:1/energy_uj"), "{state:?}");
    assert_eq!(rapl.zones().count(), 2);

    set(&tree, "intel-rapl:1", 1_500);
    assert_eq!(gains(&rapl.read(SECOND)), gained(&[("package/0/-/rapl", 0), ("package/1/-/rapl gap", 500)]));
    set(&tree, "intel-rapl:1", 1_507);
    assert_eq!(gains(&rapl.read(SECOND)), gained(&[("package/0/-/rapl", 0), ("package/1/-/rapl", 7)]));
    assert_eq!(rapl.counts(), ZoneCounts { read_errors: 1, ..ZoneCounts::default() });
}

#[test]
fn the_meter_is_down_while_no_zone_can_be_read() {
    let tree = zones(&[("intel-rapl:0", "package-0", 1_000)]);
    let mut rapl = Rapl::open(&tree.sysfs(), false).unwrap();
    rapl.read(SECOND);
    tree.fail(&energy_uj("intel-rapl:0"), "EIO");
    rapl.read(SECOND);
    assert_eq!(rapl.state().reason, Reason::Error);
    tree.remove(&dir("intel-rapl:0"));
    rapl.read(SECOND);
    assert_eq!(rapl.state().reason, Reason::Absent);
    assert_eq!(rapl.zones().count(), 0);
}

#[test]
fn what_is_no_number_is_an_error_that_shows_it() {
    let tree = zones(&[("intel-rapl:0", "package-0", 1_000), ("intel-rapl:1", "package-1", 1_000)]);
    let mut rapl = Rapl::open(&tree.sysfs(), false).unwrap();
    rapl.read(SECOND);
    let garbage: [(&[u8], &str); 6] = [
        (b"", "found nothing"),
        (b"12abc\n", "\"12abc\""),
        (b"-4\n", "\"-4\""),
        (b"99999999999999999999\n", "99999999999999999999"),
        (b"\x00\xfe\x7f\n", "\"\\x00\\xfe\\x7f\""),
        (&[b'7'; 500], "777"),
    ];
    for (content, shown) in garbage {
        tree.write(&energy_uj("intel-rapl:1"), content);
        assert_eq!(gains(&rapl.read(SECOND)), gained(&[("package/0/-/rapl", 0)]), "{shown}");
        let detail = rapl.state().detail.to_string();
        assert!(detail.contains("intel-rapl:1/energy_uj") && detail.contains(shown), "{detail}");
    }
    assert_eq!(rapl.counts(), ZoneCounts { read_errors: 6, ..ZoneCounts::default() });
    set(&tree, "intel-rapl:1", 1_001);
    assert_eq!(gains(&rapl.read(SECOND)), gained(&[("package/0/-/rapl", 0), ("package/1/-/rapl gap", 1)]));
}

#[test]
fn nonsense_from_the_start_leaves_the_zone_out_and_says_why() {
    let tree = zones(&[("intel-rapl:0", "package-0", 1_000)]);
    tree.write(&energy_uj("intel-rapl:0"), "12abc\n");
    let state = Rapl::open(&tree.sysfs(), false).unwrap_err();
    assert_eq!(state.reason, Reason::Error);
    assert!(
        state.detail.to_string().contains("intel-rapl:0/energy_uj") && state.detail.to_string().contains("\"12abc\""),
        "{}",
        state.detail
    );
}

#[test]
fn a_socket_that_comes_back_charges_nothing_for_the_time_between() {
    for returned_with in [20, 9_000_000] {
        let mut tree = zones(&[("intel-rapl:0", "package-0", 1_000), ("intel-rapl:1", "package-1", 5_000_000)]);
        let mut rapl = Rapl::open(&tree.sysfs(), false).unwrap();
        rapl.read(SECOND);
        tree.remove(&dir("intel-rapl:1"));
        tree.remove("sys/class/powercap/intel-rapl:1");
        assert_eq!(gains(&rapl.read(SECOND)), gained(&[("package/0/-/rapl", 0)]));
        assert_eq!(labels(&rapl), ["package/0/-/rapl"]);

        add(&mut tree, "intel-rapl:1", "package-1", returned_with);
        for _ in 0..2 {
            assert_eq!(gains(&rapl.read(SECOND)), gained(&[("package/0/-/rapl", 0)]));
        }
        set(&tree, "intel-rapl:1", returned_with + 3);
        assert_eq!(gains(&rapl.read(SECOND)), gained(&[("package/0/-/rapl", 0), ("package/1/-/rapl", 3)]));
        assert_eq!((rapl.counts().resets, rapl.counts().wraps), (0, 0));
    }
}

#[test]
fn a_folder_that_comes_back_as_another_zone_is_not_taken_for_the_old_one() {
    let mut tree = zones(&[("intel-rapl:0", "package-0", 1_000), ("intel-rapl:1", "package-1", 1_000)]);
    let mut rapl = Rapl::open(&tree.sysfs(), false).unwrap();
    rapl.read(SECOND);
    tree.remove(&dir("intel-rapl:1"));
    rapl.read(SECOND);
    add(&mut tree, "intel-rapl:1", "psys", 7_000);
    rapl.read(SECOND);
    assert_eq!(labels(&rapl), ["package/0/-/rapl", "psys/-/-/rapl"]);
}

#[test]
fn a_zone_that_appears_later_is_picked_up() {
    let mut tree = zones(&[("intel-rapl:0", "package-0", 1_000)]);
    let mut rapl = Rapl::open(&tree.sysfs(), false).unwrap();
    add(&mut tree, "intel-rapl:0:0", "dram", 1_000);
    for second in 1..=30 {
        set(&tree, "intel-rapl:0", 1_000 + second);
        rapl.read(SECOND);
    }
    set(&tree, "intel-rapl:0:0", 1_004);
    // That the memory had used nothing for so long is no fault while its package counts.
    assert_eq!(gains(&rapl.read(SECOND)), gained(&[("dram/0/-/rapl", 4), ("package/0/-/rapl", 0)]));
}

#[test]
fn a_file_replaced_by_another_is_read_anew() {
    let tree = zones(&[("intel-rapl:0", "package-0", 1_000)]);
    let mut rapl = Rapl::open(&tree.sysfs(), false).unwrap();
    rapl.read(SECOND);
    tree.write("next", "1250\n");
    std::fs::rename(tree.root().join("next"), tree.root().join(energy_uj("intel-rapl:0"))).unwrap();
    assert_eq!(gains(&rapl.read(SECOND)), gained(&[("package/0/-/rapl", 250)]));
}

#[test]
fn device_folders_and_flat_trees_without_links_are_found() {
    let tree = zones(&[("intel-rapl:0", "package-3", 0), ("intel-rapl:0:0", "dram", 0)]);
    tree.remove("sys/class");
    assert_eq!(labels(&Rapl::open(&tree.sysfs(), false).unwrap()), ["dram/3/-/rapl", "package/3/-/rapl"]);

    let flat = Tree::parse(
        "f sys/class/powercap/intel-rapl:0/name = package-3
         f sys/class/powercap/intel-rapl:0/energy_uj = 0
         f sys/class/powercap/intel-rapl:0:0/name = dram
         f sys/class/powercap/intel-rapl:0:0/energy_uj = 0",
    );
    assert_eq!(labels(&Rapl::open(&flat.sysfs(), false).unwrap()), ["dram/3/-/rapl", "package/3/-/rapl"]);
}
