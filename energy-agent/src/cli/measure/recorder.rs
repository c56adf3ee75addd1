//! From the snapshots of one run to its figures: what the command's cgroup used, what the node used meanwhile, peaks and
//! curves. Pure.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use energy_model::gpu::GpuState;
use energy_model::snapshot::{EnergyKey, GpuNow, Snapshot, WorkloadRow, ZoneTotals};
use energy_model::units::{Microjoules, Watts, ratio};
use energy_model::workload::Workload;
use energy_model::zone::{Source, ZoneKind};
use energy_report::run::{Energy, Gpu, GpuUse, MeanMax, Panel, Part, Series, SeriesKind};

use super::curve::RunCurve;

/// What the cgroup of a command used, since it was made.
#[derive(Debug, Default)]
struct UnitUse {
    energy: BTreeMap<EnergyKey, Microjoules>,
    runtime_ns: u64,
}

/// The figures of one run.
#[derive(Debug)]
pub struct RunFigures {
    pub energy: Vec<Energy>,
    pub node_energy: Vec<Energy>,
    /// Idle energy of the node, which is part of `node_energy`.
    pub idle: Microjoules,
    pub cpu_seconds: f64,
    /// The GPUs that the command held.
    pub gpus: Vec<Gpu>,
    pub gpu_use: Vec<GpuUse>,
    pub series: Vec<Series>,
    /// The longest time between two readings.
    pub interval: Duration,
    pub attribution: BTreeMap<String, String>,
}

/// Follows one run from its start.
#[derive(Debug)]
pub struct RunRecorder {
    unit: String,
    interval: Duration,
    /// Totals of the node at the start; they never fall.
    began: Vec<ZoneTotals>,
    last: UnitUse,
    peaks: BTreeMap<EnergyKey, f64>,
    curves: BTreeMap<(Panel, String), RunCurve>,
    longest: Duration,
    /// Intervals that are long enough for a power.
    whole: u32,
}

impl RunRecorder {
    /// `start` is taken before the command starts in the cgroup of this unit.
    pub fn new(unit: &str, interval: Duration, start: &Snapshot) -> Self {
        Self {
            unit: unit.to_owned(),
            interval,
            began: start.zones.clone(),
            last: UnitUse::default(),
            peaks: BTreeMap::new(),
            curves: BTreeMap::new(),
            longest: Duration::ZERO,
            whole: 0,
        }
    }

    /// Takes in the next snapshot.
    pub fn add(&mut self, snapshot: &Snapshot) {
        self.longest = self.longest.max(snapshot.elapsed);
        let Ok(at) = snapshot.taken.duration_since(UNIX_EPOCH) else { return };
        let at = at.as_secs_f64();
        let used = used(snapshot, &self.unit);
        // A last interval of a millisecond is no measure of power.
        let is_whole = snapshot.elapsed * 2 >= self.interval;
        self.whole += u32::from(is_whole);
        for (key, total) in used.energy.iter().filter(|_| is_whole) {
            let before = self.last.energy.get(key).copied().unwrap_or_default();
            let Watts(watts) = total.saturating_sub(before).over(snapshot.elapsed);
            let peak = self.peaks.entry(*key).or_insert(watts);
            *peak = peak.max(watts);
            if key.zone != ZoneKind::Gpu {
                self.curve(Panel::CpuPower, key.zone.as_str()).add(at, watts);
            }
        }
        self.last = used;
        for gpu in snapshot.gpus.iter().filter(|gpu| gpu.current) {
            for (panel, value) in values(&gpu.state) {
                if let Some(value) = value {
                    self.curve(panel, &gpu.gpu.uuid).add(at, value);
                }
            }
        }
    }

    fn curve(&mut self, panel: Panel, label: &str) -> &mut RunCurve {
        self.curves.entry((panel, label.to_owned())).or_default()
    }

    /// The figures after the last snapshot, which has been added.
    pub fn finish(self, last: &Snapshot) -> RunFigures {
        let used = used(last, &self.unit);
        let held: Vec<&GpuNow> = last.gpus.iter().filter(|gpu| on_gpu(gpu, &self.unit).is_some()).collect();
        // Over one interval, which may be longer than the run, it would be no more than a mean.
        let peak = |key: EnergyKey| self.peaks.get(&key).copied().filter(|_| self.whole > 1);
        let cpu = used.energy.iter().filter(|(key, _)| key.zone != ZoneKind::Gpu);
        let mut energy: Vec<Energy> =
            cpu.map(|(key, total)| part(*key, key.zone.as_str(), *total, peak(*key))).collect();
        for gpu in &held {
            let key = EnergyKey { zone: ZoneKind::Gpu, source: source_of(last, gpu) };
            let total = on_gpu(gpu, &self.unit).unwrap_or_default();
            // The peak is known of all GPUs together.
            energy.push(part(key, &gpu.gpu.uuid, total, peak(key).filter(|_| held.len() == 1)));
        }
        let (node_energy, idle) = self.node(last);
        let is_held = |label: &str| held.iter().any(|gpu| *gpu.gpu.uuid == *label);
        let gpu_use = held.iter().map(|gpu| self.gpu_use(gpu)).collect();
        let interval = self.longest;
        let curves = self.curves.into_iter().filter(|((panel, label), _)| *panel == Panel::CpuPower || is_held(label));
        let series = curves.map(|((panel, label), curve)| Series {
            panel,
            label: held
                .iter()
                .find(|gpu| *gpu.gpu.uuid == *label)
                .map_or(label, |gpu| format!("GPU {}", gpu.gpu.index)),
            // There is only one.
            node: String::new(),
            kind: if panel == Panel::CpuPower { SeriesKind::Mean } else { SeriesKind::Reading },
            points: curve.into_points(),
        });
        RunFigures {
            energy,
            node_energy,
            idle,
            cpu_seconds: ratio(used.runtime_ns, 1_000_000_000),
            gpu_use,
            series: series.collect(),
            gpus: held.iter().map(|gpu| described(gpu)).collect(),
            interval,
            attribution: attribution(last),
        }
    }

    /// What the node used, and the idle part of it.
    fn node(&self, last: &Snapshot) -> (Vec<Energy>, Microjoules) {
        let mut energy: BTreeMap<(Part, String, &'static str), Energy> = BTreeMap::new();
        let mut idle = Microjoules::ZERO;
        for totals in last.zones.iter().filter(|totals| totals.zone.kind.attributed()) {
            let zone = &totals.zone;
            let before = self.began.iter().find(|before| before.zone == *zone);
            let of = |total: fn(&ZoneTotals) -> Microjoules| {
                total(totals).saturating_sub(before.map(total).unwrap_or_default())
            };
            idle += of(|totals| totals.parts.map(|parts| parts.idle).unwrap_or_default());
            let name = if zone.kind == ZoneKind::Gpu { &*zone.path } else { zone.kind.as_str() };
            let new =
                part(EnergyKey { zone: zone.kind, source: zone.source }, name, of(|totals| totals.measured), None);
            energy
                .entry((new.part, new.zone.clone(), zone.source.as_str()))
                .and_modify(|sum| sum.microjoules += new.microjoules)
                .or_insert(new);
        }
        (energy.into_values().collect(), idle)
    }

    fn gpu_use(&self, gpu: &GpuNow) -> GpuUse {
        let of = |panel: Panel| -> Option<MeanMax> {
            self.curves.get(&(panel, gpu.gpu.uuid.to_string())).and_then(RunCurve::mean_max)
        };
        GpuUse {
            uuid: gpu.gpu.uuid.to_string(),
            node: String::new(),
            utilization: of(Panel::GpuUtilization),
            memory_utilization: of(Panel::GpuMemoryUtilization),
            celsius: of(Panel::GpuTemperature),
            clock_hertz: of(Panel::Clock),
        }
    }
}

/// What the unit used so far; containers that it holds are part of it.
fn used(snapshot: &Snapshot, unit: &str) -> UnitUse {
    let mut used = UnitUse::default();
    for row in snapshot.rows.iter().filter(|row| is_of(row, unit)) {
        for energy in &row.energy {
            *used.energy.entry(energy.key).or_default() += energy.total;
        }
        used.runtime_ns += row.runtime_ns;
    }
    used
}

fn is_of(row: &WorkloadRow, unit: &str) -> bool {
    row.workload.unit() == Some(unit)
}

/// What the unit used of this GPU; `None` where it never held it.
fn on_gpu(gpu: &GpuNow, unit: &str) -> Option<Microjoules> {
    let mut holders = gpu.holders.iter().filter(|holder| holds(&holder.workload, unit)).peekable();
    holders.peek()?;
    Some(holders.map(|holder| holder.used).sum())
}

fn holds(workload: &Workload, unit: &str) -> bool {
    workload.unit() == Some(unit)
}

fn source_of(snapshot: &Snapshot, gpu: &GpuNow) -> Source {
    let zones = snapshot.zones.iter().filter(|totals| totals.zone.kind == ZoneKind::Gpu);
    let zone = { zones }.find(|totals| *totals.zone.path == *gpu.gpu.uuid);
    zone.map_or(Source::Nvml, |totals| totals.zone.source)
}

fn part(key: EnergyKey, zone: &str, total: Microjoules, peak_watts: Option<f64>) -> Energy {
    let part = match key.zone {
        ZoneKind::Package => Part::Package,
        ZoneKind::Dram => Part::Dram,
        ZoneKind::Gpu => Part::Gpu,
        ZoneKind::Core | ZoneKind::Uncore | ZoneKind::Psys | ZoneKind::Platform => Part::Other,
    };
    Energy {
        part,
        zone: zone.to_owned(),
        node: String::new(),
        source: key.source.as_str().to_owned(),
        estimated: key.source == Source::Estimate,
        microjoules: total.0,
        peak_watts,
    }
}

fn described(gpu: &GpuNow) -> Gpu {
    Gpu { uuid: gpu.gpu.uuid.to_string(), index: gpu.gpu.index, model: Some(gpu.gpu.name.to_string()) }
}

/// What the panels show of a GPU.
fn values(state: &GpuState) -> [(Panel, Option<f64>); 5] {
    let part = |ppm: Option<u32>| ppm.map(|ppm| ratio(ppm.into(), 1_000_000));
    [
        (Panel::GpuUtilization, part(state.utilization_ppm)),
        (Panel::GpuMemoryUtilization, part(state.memory_utilization_ppm)),
        (Panel::GpuTemperature, state.temperature_celsius.map(f64::from)),
        (Panel::GpuPower, state.power.map(|Watts(watts)| watts)),
        (Panel::Clock, state.sm_clock_hertz.map(|hertz| ratio(hertz, 1))),
    ]
}

/// The labels of `energy_agent_attribution_info`.
fn attribution(snapshot: &Snapshot) -> BTreeMap<String, String> {
    let how = &snapshot.attribution;
    let Some(usage) = how.usage else { return BTreeMap::new() };
    let labels =
        [("meter", usage.as_str()), ("program", usage.program()), ("weight", how.weight.as_str()), ("idle", how.idle)];
    labels.into_iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| (name.into(), value.into())).collect()
}
