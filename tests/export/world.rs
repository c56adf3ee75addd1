//! The hand-made snapshot that the tests serve, and its pages.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use energy_agent::export::metrics;
use energy_agent::export::negotiate::Coding;
use energy_agent::export::own::SelfMetrics;
use energy_agent::export::page::Published;
use energy_agent::export::parse::{Sample, samples};
use energy_agent::export::selection::Selection;
use energy_agent::export::selection_source::InForce;
use energy_agent::export::settings::Settings;
use energy_agent::export::text::Format;
use energy_agent::meter::cpu::CpuInfo;
use energy_agent::meter::{MeterState, Source, Zone, ZoneKind};
use energy_agent::snapshot::{
    AttributionInfo, EnergyKey, Health, Row, Snapshot, State, WorkloadEnergy, ZoneParts, ZoneTotals,
};
use energy_agent::units::{Microjoules, Watts};
use energy_agent::workload::{Runtime, Workload};

pub const UID: &str = "1f7c0bb6-3b1e-4f0e-9f5c-0c6d1f1d5a11";
pub const PACKAGE: EnergyKey = EnergyKey { zone: ZoneKind::Package, source: Source::Rapl };
pub const DRAM: EnergyKey = EnergyKey { zone: ZoneKind::Dram, source: Source::Rapl };

pub fn zone(kind: ZoneKind, socket: u32, path: &str, measured: u64, parts: Option<[u64; 3]>) -> ZoneTotals {
    let zone = Zone { kind, socket: Some(socket), die: None, source: Source::Rapl, path: path.to_owned() };
    let parts = parts.map(|[active, idle, unattributed]| ZoneParts {
        active: Microjoules(active),
        idle: Microjoules(idle),
        unattributed: Microjoules(unattributed),
        active_power: Some(Watts(20.0)),
        idle_power: Some(Watts(10.0)),
    });
    ZoneTotals { zone: Arc::new(zone), measured: Microjoules(measured), power: Some(Watts(30.0)), parts }
}

pub fn row(workload: Workload, state: State, package: u64, dram: u64) -> Row {
    let energy = [(PACKAGE, package), (DRAM, dram)].map(|(key, total)| WorkloadEnergy {
        key,
        total: Microjoules(total),
        power: Some(Watts(1.25)),
    });
    Row {
        workload: Arc::new(workload),
        state,
        energy: energy.to_vec(),
        runtime_ns: 1_500_000_000,
        cycles: 3_000_000,
        switches: 7,
    }
}

pub fn container(uid: &str, id: &str) -> Workload {
    Workload::PodContainer { uid: Arc::from(uid), id: Arc::from(id), runtime: Runtime::Containerd }
}

/// Two sockets. Active, package: 40.000003 + 20.000002 J = rows 30.000001 + 10.000003 + 5 + 7 + 1, retired 6, unattributed
/// 1.000001; dram: 3.000001 J = rows 1 + 0.5 + 0.25 + 0.125 + 0.0625, retired 0, unattributed 1.062501.
pub fn rich() -> Snapshot {
    let unit = |unit: &str| Arc::from(unit);
    Snapshot {
        ticks: 3,
        elapsed: Duration::from_millis(1002),
        cpu_usage_ratio: Some(0.25),
        zones: vec![
            zone(ZoneKind::Package, 0, "intel-rapl:0", 50_000_003, Some([40_000_003, 10_000_000, 1_000_000])),
            zone(ZoneKind::Package, 1, "intel-rapl:1", 28_000_002, Some([20_000_002, 8_000_000, 1])),
            zone(ZoneKind::Dram, 0, "intel-rapl:0:0", 4_000_001, Some([2_000_001, 2_000_000, 62_501])),
            zone(ZoneKind::Dram, 1, "intel-rapl:1:0", 2_000_000, Some([1_000_000, 1_000_000, 1_000_000])),
            zone(ZoneKind::Core, 0, "intel-rapl:0:1", 9, None),
        ],
        rows: vec![
            row(Workload::Kernel, State::Running, 5_000_000, 250_000),
            row(Workload::Unit { unit: unit("docker.service") }, State::Running, 7_000_000, 125_000),
            row(
                Workload::Container { unit: unit("docker.service"), id: Arc::from("d0c"), runtime: Runtime::Docker },
                State::Terminated,
                1_000_000,
                62_500,
            ),
            row(Workload::PodOverhead { uid: Arc::from(UID) }, State::Running, 10_000_003, 500_000),
            row(container(UID, "c1"), State::Terminated, 30_000_001, 1_000_000),
        ],
        retired: vec![(PACKAGE, Microjoules(6_000_000))],
        cpu_info: Arc::from([CpuInfo {
            processor: "0".to_owned(),
            vendor_id: "GenuineIntel".to_owned(),
            model_name: "Some \"CPU\" @ 2.0\\GHz".to_owned(),
            physical_id: String::new(),
            core_id: "0".to_owned(),
        }]),
        meters: vec![
            MeterState { meter: "rapl", up: true, reason: "ok", detail: "5 zones below <sysfs>".to_owned() },
            MeterState { meter: "perf", up: false, reason: "unused", detail: String::new() },
        ],
        attribution: AttributionInfo { meter: "ebpf", program: "tp_btf", weight: "cycles", idle: "learned" },
        health: Health { zone_wraps: 2, ebpf_run_ns: Some(5), ..Health::default() },
        taken: SystemTime::now(),
        ..Snapshot::empty("node-a")
    }
}

/// What these settings choose.
pub fn export(entries: &[(&str, &str)]) -> Arc<InForce> {
    let entries: Vec<_> = entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let settings = Settings::read(&entries, "in a test").unwrap();
    Arc::new(InForce { selection: Selection::new(&settings, metrics::ALL, true).unwrap(), problem: None })
}

pub fn published(snapshot: Snapshot) -> Published {
    Published::new(snapshot, export(&[("EXPORT_LEVELS", "node,pod,container,process")]))
}

pub fn page(snapshot: Snapshot) -> Vec<Sample> {
    samples(std::str::from_utf8(&text(snapshot, Format::Text)).unwrap()).unwrap()
}

pub fn text(snapshot: Snapshot, format: Format) -> Vec<u8> {
    published(snapshot).body(format, Coding::Identity, &SelfMetrics::new()).to_vec()
}

pub fn case(name: &str) -> serde_json::Value {
    let path = format!("{}/../tests/cases/{name}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}
