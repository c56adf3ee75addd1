use std::fs;

use energy_model::units::Microjoules;
use energy_model::zone::Source;
use tempfile::TempDir;

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const NODE: [Domain; 1] = [Domain { socket: Some(0), die: None }];
const IDLE: [DomainLoad; 1] = [DomainLoad { cpus: 4, busy_ns: 0, dropped_ns: 0, cycles: false }];

/// A fake root with `sys` and `proc`.
struct Node(TempDir);

impl Node {
    /// FC-013: no powercap class, an empty hwmon class.
    fn bare() -> Self {
        let node = Self(TempDir::new().unwrap());
        fs::create_dir_all(node.0.path().join("sys/class/hwmon")).unwrap();
        node.file("proc/stat", "cpu0 0 0 0 0\n")
    }

    fn file(self, path: &str, text: &str) -> Self {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    fn guest(self) -> Self {
        self.file("proc/cpuinfo", "processor : 0\nvendor_id : GenuineIntel\nflags : fpu hypervisor\n")
    }

    fn rapl(self) -> Self {
        let zone = "sys/class/powercap/intel-rapl:0";
        self.file("sys/class/powercap/intel-rapl/enabled", "1\n")
            .file(&format!("{zone}/name"), "package-0\n")
            .file(&format!("{zone}/energy_uj"), "1000\n")
            .file(&format!("{zone}/max_energy_range_uj"), "262143328850\n")
    }

    fn sensor(self, name: &str, label: &str) -> Self {
        let chip = format!("sys/class/hwmon/{name}");
        self.file(&format!("{chip}/name"), "x\n")
            .file(&format!("{chip}/power1_label"), label)
            .file(&format!("{chip}/power1_input"), "1000000\n")
    }

    fn open(&self, meter: CpuMeter) -> EnergyMeter {
        self.open_trusting(meter, false)
    }

    fn open_trusting(&self, meter: CpuMeter, trust_guest: bool) -> EnergyMeter {
        let (sysfs, procfs) = (self.0.path().join("sys"), self.0.path().join("proc"));
        let options = EnergyOptions {
            sysfs: &sysfs,
            procfs: &procfs,
            meter,
            trust_guest,
            coefficients: None,
            patience: 60 * SECOND,
        };
        EnergyMeter::open(&options).unwrap()
    }
}

fn states(meter: &EnergyMeter) -> Vec<(&'static str, bool, &'static str)> {
    meter.states().iter().map(|state| (state.meter.as_str(), state.is_up(), state.reason.as_str())).collect()
}

fn sources(meter: &mut EnergyMeter) -> Vec<(ZoneKind, Source)> {
    meter.read(SECOND, &IDLE, &NODE);
    meter.read(SECOND, &IDLE, &NODE).iter().map(|energy| (energy.zone.kind, energy.zone.source)).collect()
}

/// FC-013, FC-060: what there is instead of RAPL is an estimate and says so; without CPU time it is the idle power.
#[test]
fn without_any_meter_there_is_an_estimate() {
    let node = Node::bare().guest();
    let mut meter = node.open(CpuMeter::Auto);
    assert_eq!(
        states(&meter),
        [("estimate", true, "ok"), ("rapl", false, "absent"), ("perf", false, "absent"), ("hwmon", false, "absent")]
    );
    let zones = meter.read(SECOND, &IDLE, &NODE);
    assert_eq!(zones.len(), 1);
    assert_eq!(zones[0].zone.source, Source::Estimate);
    // 4 threads of the average 0.74 W.
    assert_eq!(zones[0].energy, Microjoules(2_960_000));
    assert_eq!(meter.estimated_idle_power_uw(), Some(740_000));
}

/// FC-060 with the estimate off, FC-013, FC-062: no energy is invented, and opening completes.
#[test]
fn with_the_estimate_off_there_is_no_energy() {
    for node in [Node::bare().guest(), Node::bare().file("sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "1\n")]
    {
        let mut meter = node.open(CpuMeter::None);
        assert_eq!(sources(&mut meter), []);
        assert!(states(&meter).iter().all(|state| !state.1 && state.2 == "off"), "{:?}", states(&meter));
    }
}

#[test]
fn rapl_comes_first_and_board_sensors_beside_it() {
    let node = Node::bare().rapl().sensor("hwmon0", "CPU power").sensor("hwmon1", "Total power");
    let mut meter = node.open(CpuMeter::Auto);
    assert_eq!(sources(&mut meter), [(ZoneKind::Package, Source::Rapl), (ZoneKind::Platform, Source::Hwmon)]);
    assert_eq!(
        states(&meter),
        [
            ("rapl", true, "ok"),
            ("perf", false, "unused"),
            ("hwmon", false, "unused"),
            ("estimate", false, "unused"),
            ("board", true, "ok"),
        ]
    );
}

#[test]
fn what_was_used_in_a_suspension_is_nobodys() {
    let node = Node::bare().rapl().sensor("hwmon1", "Total power");
    let mut meter = node.open(CpuMeter::Auto);
    let mut read = || {
        let zones = meter.read(SECOND, &IDLE, &NODE);
        zones.iter().map(|energy| (energy.zone.kind, energy.energy.0, energy.gap)).collect::<Vec<_>>()
    };
    read();
    let node = node.file("sys/class/powercap/intel-rapl:0/energy_uj", "3000\n");
    let platform = (ZoneKind::Platform, 1_000_000, false);
    assert_eq!(read(), [(ZoneKind::Package, 2_000, false), platform]);
    // Eight hours at half a watt, then awake for a second.
    let node = node.file("sys/class/powercap/intel-rapl:0/energy_uj", "14400003000\n");
    meter.resume();
    assert_eq!(meter.read(SECOND, &IDLE, &NODE), []);
    let _node = node.file("sys/class/powercap/intel-rapl:0/energy_uj", "14400007000\n");
    let zones = meter.read(SECOND, &IDLE, &NODE);
    assert_eq!((zones.len(), zones[0].energy, zones[0].gap), (2, Microjoules(4_000), false));
    assert_eq!(meter.counts(), ZoneCounts::default());
}

#[test]
fn a_package_sensor_comes_before_the_estimate() {
    let node = Node::bare().sensor("hwmon0", "CPU power").sensor("hwmon1", "Total power");
    let mut meter = node.open(CpuMeter::Auto);
    assert_eq!(sources(&mut meter), [(ZoneKind::Package, Source::Hwmon), (ZoneKind::Platform, Source::Hwmon)]);
}

#[test]
fn a_board_sensor_alone_leaves_the_estimate() {
    let node = Node::bare().sensor("hwmon1", "Total power");
    let mut meter = node.open(CpuMeter::Auto);
    assert_eq!(sources(&mut meter), [(ZoneKind::Package, Source::Estimate), (ZoneKind::Platform, Source::Hwmon)]);
}

#[test]
fn a_guests_rapl_is_not_believed_unless_told_to() {
    let node = Node::bare().guest().rapl();
    let mut meter = node.open(CpuMeter::Auto);
    assert_eq!(sources(&mut meter), [(ZoneKind::Package, Source::Estimate)]);
    let rapl = meter.states().into_iter().find(|state| state.meter == MeterName::Rapl).unwrap();
    assert_eq!((rapl.is_up(), rapl.reason), (false, Reason::Guest));
    assert!(rapl.detail.to_string().contains("--meter.trust-guest"));

    let mut named = node.open(CpuMeter::Rapl);
    assert_eq!(sources(&mut named), []);
    assert!(states(&named).contains(&("rapl", false, "guest")));

    let mut trusted = node.open_trusting(CpuMeter::Auto, true);
    assert_eq!(sources(&mut trusted), [(ZoneKind::Package, Source::Rapl)]);
}

#[test]
fn a_named_meter_is_the_only_one_tried() {
    let node = Node::bare().rapl();
    let mut meter = node.open(CpuMeter::Perf);
    assert_eq!(sources(&mut meter), []);
    assert_eq!(
        states(&meter),
        [
            ("rapl", false, "unused"),
            ("perf", false, "absent"),
            ("hwmon", false, "unused"),
            ("estimate", false, "unused")
        ]
    );
    assert_eq!(sources(&mut node.open(CpuMeter::Estimate)), [(ZoneKind::Package, Source::Estimate)]);
}

#[test]
fn bad_coefficients_are_an_error() {
    let node = Node::bare().file("own.json", "{}");
    let file = node.0.path().join("own.json");
    let options = EnergyOptions {
        sysfs: node.0.path(),
        procfs: node.0.path(),
        meter: CpuMeter::Auto,
        trust_guest: false,
        coefficients: Some(&file),
        patience: SECOND,
    };
    let error = format!("{:#}", EnergyMeter::open(&options).err().unwrap());
    assert!(error.contains("own.json") && error.contains("a key is missing"), "{error}");
}
