//! The hand-made snapshot that the tests serve, and its pages.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use energy_export::metrics;
use energy_export::negotiate::Coding;
use energy_export::page::Published;
use energy_export::parse::{ParsedSample, samples};
use energy_export::selection::{ActiveSelection, Selection};
use energy_export::self_metrics::SelfMetrics;
use energy_export::settings::Settings;
use energy_export::text::Format;
use energy_model::cpu::CpuInfo;
use energy_model::gpu::{Gpu, GpuHealth, GpuState, GpuUp, HeldBy, Ignored};
use energy_model::meter_state::{MeterName, MeterState, Program, Reason, UsageMeter, WeightUnit};
use energy_model::snapshot::{
    AttributionInfo, EnergyKey, GpuHolder, GpuNow, Health, IdleShares, PodIdle, ProcessKind, ProcessRow, Snapshot,
    WorkloadEnergy, WorkloadRow, WorkloadState, ZoneParts, ZoneTotals,
};
use energy_model::units::{Microjoules, Watts};
use energy_model::workload::holder::Holder;
use energy_model::workload::labels::exported;
use energy_model::workload::names::{Names, Pod, PodContainer, Pods};
use energy_model::workload::sandbox::Sandboxes;
use energy_model::workload::{Runtime, Workload};
use energy_model::zone::{Source, Zone, ZoneKind};

pub const UID: &str = "1f7c0bb6-3b1e-4f0e-9f5c-0c6d1f1d5a11";
pub const PACKAGE: EnergyKey = EnergyKey { zone: ZoneKind::Package, source: Source::Rapl };
pub const GPU: EnergyKey = EnergyKey { zone: ZoneKind::Gpu, source: Source::Nvml };
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

pub fn row(workload: Workload, state: WorkloadState, package: u64, dram: u64) -> WorkloadRow {
    let energy = [(PACKAGE, package), (DRAM, dram)].map(|(key, total)| WorkloadEnergy {
        key,
        total: Microjoules(total),
        power: Some(Watts(1.25)),
    });
    WorkloadRow {
        workload: Arc::new(workload),
        created: Duration::from_millis(1_500),
        state,
        energy: energy.into(),
        runtime_ns: 1_500_000_000,
        cycles: 3_000_000,
        switches: 7,
    }
}

/// A row's part of the GPU.
fn on_gpu(mut row: WorkloadRow, energy: u64) -> WorkloadRow {
    row.energy.push(WorkloadEnergy { key: GPU, total: Microjoules(energy), power: Some(Watts(50.5)) });
    row
}

fn process_on_gpu(mut row: ProcessRow, energy: u64) -> ProcessRow {
    row.energy.push(WorkloadEnergy { key: GPU, total: Microjoules(energy), power: row.pid.map(|_| Watts(50.5)) });
    row
}

/// A large node: [`rich`], and this many pods of three containers.
pub fn crowded(pods: u64) -> Snapshot {
    let mut snapshot = rich();
    for pod in 0..pods {
        let uid = format!("{pod:08x}-3b1e-4f0e-9f5c-0c6d1f1d5a11");
        for index in 0..3 {
            let id = format!(
                "{:064x}",
                u128::from(pod * 3 + index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
            );
            snapshot.rows.push(row(
                container(&uid, &id),
                WorkloadState::Running,
                pod * 1_234_567 + index,
                pod * 7 + index,
            ));
        }
    }
    snapshot
}

/// A GPU of 100 J: 60 idle, 40 active = pod 25 + unit 10 + retired 3 + unattributed 2.
fn gpu() -> (ZoneTotals, GpuNow) {
    let name = Gpu { uuid: Arc::from("GPU-1"), index: 3, minor: Some(3), name: Arc::from("NVIDIA H100 80GB HBM3") };
    let mut totals = zone(ZoneKind::Gpu, 0, "GPU-1", 100_000_000, Some([40_000_000, 60_000_000, 2_000_000]));
    totals.zone = Arc::new(Zone { socket: None, source: Source::Nvml, ..(*totals.zone).clone() });
    let state = GpuState {
        utilization_ppm: Some(370_000),
        memory_utilization_ppm: Some(120_000),
        memory_used_bytes: Some(10 << 30),
        memory_total_bytes: Some(80 << 30),
        temperature_celsius: Some(41),
        sm_clock_hertz: Some(1_755_000_000),
        memory_clock_hertz: Some(2_619_000_000),
        power: Some(Watts(123.456)),
        power_limit: Some(Watts(700.0)),
        throttle_reasons: Some(0b100),
    };
    let holder = Holder { namespace: "ml".to_owned(), pod: "train".to_owned(), container: "main".to_owned() };
    let mut now = GpuNow { state, holder: Some(holder), ..GpuNow::new(Arc::new(name)) };
    (now.method, now.idle) = (Some("samples"), "learned");
    let holder = |workload, evidence, used, holds| GpuHolder {
        workload: Arc::new(workload),
        evidence,
        holds,
        used: Microjoules(used),
    };
    now.holders = vec![
        holder(Workload::Unit { unit: Arc::from("docker.service") }, HeldBy::Samples, 10_000_000, true),
        holder(container(UID, "c1"), HeldBy::Samples, 25_000_000, true),
        holder(container(UID, "c2"), HeldBy::Allocation, 0, false),
    ];
    (totals, now)
}

fn process(pid: Option<u32>, kind: ProcessKind, comm: &str, package: u64) -> ProcessRow {
    ProcessRow {
        pid,
        kind,
        comm: Arc::from(comm),
        exe: Arc::from(if pid.is_some() { "/bin/odd" } else { "" }),
        created: Duration::from_millis(1500),
        state: WorkloadState::Running,
        energy: [WorkloadEnergy { key: PACKAGE, total: Microjoules(package), power: Some(Watts(1.25)) }]
            .into_iter()
            .collect(),
        runtime_ns: 1_500_000_000,
    }
}

pub fn container(uid: &str, id: &str) -> Workload {
    Workload::PodContainer { uid: Arc::from(uid), id: Arc::from(id), runtime: Runtime::Containerd }
}

/// Two sockets. Active, package: 40.000003 + 20.000002 J = rows 30.000001 + 10.000003 + 5 + 7 + 1, retired 6, unattributed
/// 1.000001; dram: 3.000001 J = rows 1 + 0.5 + 0.25 + 0.125 + 0.0625, retired 0, unattributed 1.062501.
/// Idle, package: 10 + 8 J = pod 17 + unassigned 1; dram: 2 + 1 J = pod 2.999999 + retired 0.000001.
pub fn rich() -> Snapshot {
    let unit = |unit: &str| Arc::from(unit);
    let (gpu_totals, gpu) = gpu();
    Snapshot {
        gpus: vec![gpu],
        dcgm_names: true,
        ticks: 3,
        elapsed: Duration::from_millis(1002),
        cpu_usage_ratio: Some(0.25),
        zones: vec![
            zone(ZoneKind::Package, 0, "intel-rapl:0", 50_000_003, Some([40_000_003, 10_000_000, 1_000_000])),
            zone(ZoneKind::Package, 1, "intel-rapl:1", 28_000_002, Some([20_000_002, 8_000_000, 1])),
            zone(ZoneKind::Dram, 0, "intel-rapl:0:0", 4_000_001, Some([2_000_001, 2_000_000, 62_501])),
            zone(ZoneKind::Dram, 1, "intel-rapl:1:0", 2_000_000, Some([1_000_000, 1_000_000, 1_000_000])),
            zone(ZoneKind::Core, 0, "intel-rapl:0:1", 9, None),
            gpu_totals,
        ],
        rows: vec![
            row(Workload::Kernel, WorkloadState::Running, 5_000_000, 250_000),
            on_gpu(
                row(Workload::Unit { unit: unit("docker.service") }, WorkloadState::Running, 7_000_000, 125_000),
                10_000_000,
            ),
            row(
                Workload::Container { unit: unit("docker.service"), id: Arc::from("d0c"), runtime: Runtime::Docker },
                WorkloadState::Terminated,
                1_000_000,
                62_500,
            ),
            row(Workload::PodOverhead { uid: Arc::from(UID) }, WorkloadState::Running, 10_000_003, 500_000),
            on_gpu(row(container(UID, "c1"), WorkloadState::Terminated, 30_000_001, 1_000_000), 25_000_000),
        ],
        retired: vec![(PACKAGE, Microjoules(6_000_000)), (GPU, Microjoules(3_000_000))],
        idle: Some(IdleShares {
            policy: "usage",
            pods: vec![PodIdle {
                created: Duration::from_millis(1500),
                uid: Arc::from(UID),
                state: WorkloadState::Running,
                energy: [(PACKAGE, Microjoules(17_000_000)), (DRAM, Microjoules(2_999_999))].into(),
            }],
            unassigned: vec![(PACKAGE, Microjoules(1_000_000)), (DRAM, Microjoules(0))],
            retired: vec![(PACKAGE, Microjoules(0)), (DRAM, Microjoules(1))],
        }),
        processes: vec![
            process(None, ProcessKind::Kernel, "kernel", 7_000_000),
            process_on_gpu(process(None, ProcessKind::Other, "other", 1), 13_000_000),
            process_on_gpu(
                process(Some(4242), ProcessKind::Container(Arc::from("c1")), "od\"d\nna\\me", 30_000_001),
                25_000_000,
            ),
        ],
        cpu_info: Arc::from([CpuInfo {
            processor: "0".to_owned(),
            vendor_id: "GenuineIntel".to_owned(),
            model_name: "Some \"CPU\" @ 2.0\\GHz".to_owned(),
            physical_id: String::new(),
            core_id: "0".to_owned(),
        }]),
        meters: vec![
            MeterState::up(MeterName::Rapl, "5 zones below <sysfs>"),
            MeterState::down(MeterName::Perf, Reason::Unused, ""),
        ],
        attribution: AttributionInfo {
            usage: Some(UsageMeter::Ebpf(Program::TpBtf)),
            weight: WeightUnit::Cycles,
            idle: "learned",
        },
        health: Health { zone_wraps: 2, ebpf_run_ns: Some(5), ..Health::default() },
        gpu_meter: GpuHealth {
            gpus: vec![GpuUp {
                index: 0,
                uuid: Arc::from("GPU-1"),
                up: true,
                reason: Reason::Ok,
                xids: 1,
                took: Some(Duration::from_millis(3)),
            }],
            ignored: Ignored { past: 3, ..Ignored::default() },
        },
        capping: Some(Arc::new(super::capping::status())),
        taken: SystemTime::now(),
        ..Snapshot::empty("node-a")
    }
}

/// [`rich`], whose pod has a name, a container `main` that has had two instances, and a label that is exported.
pub fn named() -> Snapshot {
    let main = PodContainer { name: "main".into(), id: Some("c2".into()), past_ids: vec!["c1".into()] };
    let pod = Pod {
        uid: UID.into(),
        name: "web-0".into(),
        namespace: "shop".into(),
        labels: [("app".to_owned(), "web".to_owned())].into(),
        containers: vec![main],
        ..Pod::default()
    };
    let told = Pods { by_uid: [(Arc::from(UID), Arc::new(pod))].into(), ..Pods::default() };
    let names = Names::default().after(&Arc::new(told), &Sandboxes::default(), [].into_iter()).unwrap();
    let mut snapshot = Snapshot { names: Arc::new(names), pod_labels: exported(&["app".to_owned()]).into(), ..rich() };
    snapshot.rows.push(row(container(UID, "c2"), WorkloadState::Running, 2_000_000, 0));
    let ended = Workload::PodEnded { uid: UID.into(), name: Some("main".into()) };
    snapshot.rows.push(row(ended, WorkloadState::Terminated, 500_000, 0));
    snapshot
}

/// What these settings choose.
pub fn export(entries: &[(&str, &str)]) -> Arc<ActiveSelection> {
    let entries: Vec<_> = entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let settings = Settings::read(&entries, "in a test").unwrap();
    Arc::new(ActiveSelection { selection: Selection::new(&settings, metrics::ALL, true).unwrap(), problem: None })
}

pub fn published(snapshot: Snapshot) -> Published {
    Published::new(snapshot, export(&[("EXPORT_LEVELS", "node,pod,container,process")]))
}

pub fn page(snapshot: Snapshot) -> Vec<ParsedSample> {
    samples(std::str::from_utf8(&text(snapshot, Format::Text)).unwrap()).unwrap()
}

pub fn text(snapshot: Snapshot, format: Format) -> Vec<u8> {
    let own = SelfMetrics::new();
    own.web_config_valid(true);
    own.count_events();
    own.count_lost_readings("web_config");
    published(snapshot).body(format, Coding::Identity, &own).to_vec()
}

pub fn case(name: &str) -> serde_json::Value {
    let path = format!("{}/../tests/cases/{name}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}
