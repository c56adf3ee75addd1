use std::fs;

use proptest::prelude::*;
use tempfile::TempDir;

use super::find::place;
use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn tree(files: &[(&str, &str)]) -> TempDir {
    let root = TempDir::new().unwrap();
    for (path, text) in files {
        write(&root, path, text.as_bytes());
    }
    root
}

fn write(root: &TempDir, path: &str, content: &[u8]) {
    let path = root.path().join("class/hwmon").join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// On a machine under load too.
const PATIENCE: Duration = Duration::from_secs(60);

fn open(root: &TempDir) -> Result<Hwmon, MeterState> {
    Hwmon::open(root.path(), PATIENCE)
}

fn energies(zones: &[ZoneEnergy]) -> Vec<(ZoneKind, Option<u32>, u64)> {
    zones.iter().map(|zone| (zone.zone.kind, zone.zone.socket, zone.energy.0)).collect()
}

#[test]
fn energy_counters_of_sockets_are_packages() {
    let root = tree(&[
        ("hwmon2/name", "amd_energy\n"),
        ("hwmon2/energy1_input", "500\n"),
        ("hwmon2/energy1_label", "Ecore000\n"),
        ("hwmon2/energy65_input", "1000\n"),
        ("hwmon2/energy65_label", "Esocket0\n"),
        ("hwmon2/energy66_input", "2000\n"),
        ("hwmon2/energy66_label", "Esocket1\n"),
    ]);
    let mut hwmon = open(&root).unwrap();
    assert!(hwmon.has_package() && hwmon.state().is_up());
    assert_eq!(hwmon.read(SECOND), []);
    write(&root, "hwmon2/energy65_input", b"5000\n");
    write(&root, "hwmon2/energy66_input", b"2007\n");
    let zones = hwmon.read(SECOND);
    assert_eq!(energies(&zones), [(ZoneKind::Package, Some(0), 4000), (ZoneKind::Package, Some(1), 7)]);
    assert_eq!(zones[0].zone.path, "class/hwmon/hwmon2/energy65_input");
}

#[test]
fn power_is_integrated_between_readings() {
    let root =
        tree(&[("hwmon0/name", "xgene"), ("hwmon0/power1_label", "CPU power"), ("hwmon0/power1_input", "10000000")]);
    let mut hwmon = open(&root).unwrap();
    hwmon.read(SECOND);
    write(&root, "hwmon0/power1_input", b"20000000");
    // 10 W, then 20 W: 15 W for half a second.
    let package = |energy| [(ZoneKind::Package, None, energy)];
    assert_eq!(energies(&hwmon.read(Duration::from_millis(500))), package(7_500_000));

    // Unplugged: no figure, and the next reading has nothing to be joined to.
    fs::remove_file(root.path().join("class/hwmon/hwmon0/power1_input")).unwrap();
    assert_eq!(hwmon.read(SECOND), []);
    assert!(!hwmon.state().is_up() && hwmon.state().detail.to_string().contains("power1_input"));
    write(&root, "hwmon0/power1_input", b"20000000");
    assert_eq!(hwmon.read(SECOND), []);
    assert_eq!(energies(&hwmon.read(SECOND)), package(20_000_000));
    assert_eq!(hwmon.counts().read_errors, 1);
}

#[test]
fn an_integral_loses_no_part_of_a_microjoule() {
    let mut integral = HwmonIntegral::new();
    integral.advance(1, SECOND);
    // 1 uW for 0.4 s, five times, is 2 uJ.
    let parts: Vec<u64> = (0..5).map(|_| integral.advance(1, Duration::from_millis(400)).unwrap().0.0).collect();
    assert_eq!(parts, [0, 0, 1, 0, 1]);
}

#[test]
fn time_without_an_answer_is_spanned_and_gives_no_power() {
    let mut integral = HwmonIntegral::new();
    assert_eq!(integral.advance(10_000_000, SECOND), None);
    integral.missed += 2 * SECOND;
    // 10 W, three seconds later 20 W: 45 J, and not those of the last second alone.
    assert_eq!(integral.advance(20_000_000, SECOND), Some((Microjoules(45_000_000), true)));
    assert_eq!(integral.advance(20_000_000, SECOND), Some((Microjoules(20_000_000), false)));
}

#[test]
fn a_sensor_that_never_answers_is_hanging_and_the_others_are_read() {
    let root =
        tree(&[("hwmon0/name", "power_meter"), ("hwmon1/energy1_label", "Esocket0"), ("hwmon1/energy1_input", "5")]);
    let pipe = root.path().join("class/hwmon/hwmon0/power1_average");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut hwmon = open(&root).unwrap();
    let board = hwmon.board_state().unwrap();
    assert_eq!((board.meter, board.reason), (MeterName::Board, Reason::Hanging));
    assert!(board.detail.to_string().contains("hwmon0/power1_average: no answer for 2.9 s; "), "{}", board.detail);
    assert!(hwmon.state().is_up());
    hwmon.read(SECOND);
    write(&root, "hwmon1/energy1_input", b"12");
    assert_eq!(energies(&hwmon.read(SECOND)), [(ZoneKind::Package, Some(0), 7)]);
    // So that the thread ends.
    fs::write(pipe, "1").unwrap();
}

#[test]
fn one_bad_sensor_does_not_stop_the_others() {
    let root = tree(&[
        ("hwmon0/energy1_input", "garbage"),
        ("hwmon0/energy1_label", "Esocket0"),
        ("hwmon0/energy2_input", "10"),
        ("hwmon0/energy2_label", "Esocket1"),
    ]);
    let mut hwmon = open(&root).unwrap();
    hwmon.read(SECOND);
    write(&root, "hwmon0/energy2_input", b"30");
    assert_eq!(energies(&hwmon.read(SECOND)), [(ZoneKind::Package, Some(1), 20)]);
    assert!(hwmon.state().is_up() && hwmon.state().detail.to_string().contains("garbage"));
}

#[test]
fn a_board_sensor_is_the_platform_and_no_package() {
    let root = tree(&[("hwmon0/device/name", "power_meter"), ("hwmon0/device/power1_average", "100000000")]);
    let mut hwmon = open(&root).unwrap();
    assert!(!hwmon.has_package() && hwmon.has_platform());
    assert_eq!(hwmon.state().reason, Reason::Absent);
    hwmon.read(SECOND);
    assert_eq!(energies(&hwmon.read(SECOND)), [(ZoneKind::Platform, None, 100_000_000)]);
}

#[test]
fn a_package_with_a_counter_is_not_measured_twice() {
    let root = tree(&[
        ("hwmon0/power1_input", "5"),
        ("hwmon0/power1_label", "CPU power"),
        ("hwmon1/energy1_input", "5"),
        ("hwmon1/energy1_label", "Esocket0"),
    ]);
    assert_eq!(open(&root).unwrap().sensors.len(), 1);
}

#[test]
fn labels_place_sensors() {
    let package = |socket| Some((ZoneKind::Package, socket));
    for (chip, label, expected) in [
        ("fam15h_power", "", package(None)),
        ("x", "Package id 1", package(Some(1))),
        ("x", "CPU0 Power", package(Some(0))),
        ("x", "CPU 12V", package(None)),
        ("x", "Socket 1", package(Some(1))),
        ("power_meter", "", Some((ZoneKind::Platform, None))),
        ("x", "Total system power", Some((ZoneKind::Platform, None))),
        ("amdgpu", "PPT", None),
        ("x", "GPU0", None),
        ("x", "CPU0 DIMM", None),
        ("nvme", "", None),
    ] {
        assert_eq!(place(chip, label), expected, "{chip} {label}");
    }
}

/// FC-013: hwmon without any sensor.
#[test]
fn no_sensor_is_absent() {
    let root = TempDir::new().unwrap();
    assert_eq!(open(&root).unwrap_err().reason, Reason::Absent);
    fs::create_dir_all(root.path().join("class/hwmon")).unwrap();
    assert_eq!(open(&root).unwrap_err().reason, Reason::Absent);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_file_content_is_survived(
        name in prop::collection::vec(any::<u8>(), 0..12),
        label in "[ -~]{0,12}",
        suffix in "(cpu|socket|package id|)[ 0-9]{0,24}",
        values in prop::collection::vec(prop_oneof![prop::collection::vec(any::<u8>(), 0..24), "[0-9]{1,21}".prop_map(String::into_bytes)], 4),
    ) {
        let root = TempDir::new().unwrap();
        write(&root, "hwmon0/name", &name);
        write(&root, "hwmon0/energy1_label", (label.clone() + &suffix).as_bytes());
        write(&root, "hwmon0/power1_label", (label + &suffix).as_bytes());
        write(&root, "hwmon0/energy1_input", &values[0]);
        write(&root, "hwmon0/power1_input", &values[1]);
        if let Ok(mut hwmon) = open(&root) {
            hwmon.read(SECOND);
            write(&root, "hwmon0/energy1_input", &values[2]);
            write(&root, "hwmon0/power1_input", &values[3]);
            hwmon.read(SECOND);
            prop_assert_eq!(hwmon.state().is_up(), hwmon.has_package());
        }
    }
}
