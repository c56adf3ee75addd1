//! The same GPU figures once more, under the names, units and labels of NVIDIA's DCGM exporter, for dashboards made for it.

use energy_model::snapshot::{GpuNow, Snapshot};
use energy_model::units::{Microjoules, ratio};
use energy_model::workload::holder::Holder;

use super::family;
use super::gpus::zones_of;
use crate::metrics::{self as m, Metric};
use crate::text::{Labels, SeriesValue, Writer};

const MEGAHERTZ: u64 = 1_000_000;
const MEBIBYTE: u64 = 1 << 20;

/// Writes the GPUs that are read now.
pub fn write(writer: &mut Writer, snapshot: &Snapshot) {
    let gpus: Vec<_> =
        snapshot.gpus.iter().filter(|gpu| gpu.current).map(|gpu| (labels(gpu, &snapshot.node), gpu)).collect();
    let mut all = |metric: &Metric, value: &dyn Fn(&GpuNow) -> Option<SeriesValue>| {
        family(writer, metric);
        for (labels, gpu) in &gpus {
            if let Some(value) = value(gpu) {
                writer.sample(labels, &[], value);
            }
        }
    };
    let whole = |value: u64, unit: u64| SeriesValue::Integer(value / unit);
    all(&m::DCGM_SM_CLOCK, &|gpu| gpu.state.sm_clock_hertz.map(|hertz| whole(hertz, MEGAHERTZ)));
    all(&m::DCGM_MEM_CLOCK, &|gpu| gpu.state.memory_clock_hertz.map(|hertz| whole(hertz, MEGAHERTZ)));
    all(&m::DCGM_GPU_TEMP, &|gpu| gpu.state.temperature_celsius.map(|celsius| SeriesValue::Integer(celsius.into())));
    all(&m::DCGM_POWER_USAGE, &|gpu| gpu.state.power.map(SeriesValue::Power));
    all(&m::DCGM_POWER_LIMIT, &|gpu| gpu.state.power_limit.map(SeriesValue::Power));
    all(&m::DCGM_ENERGY, &|gpu| {
        let mut zones = zones_of(snapshot, gpu).map(|totals| totals.measured).peekable();
        zones.peek().is_some().then(|| {
            let total: Microjoules = zones.sum();
            SeriesValue::Float(ratio(total.0, 1_000))
        })
    });
    all(&m::DCGM_GPU_UTIL, &|gpu| gpu.state.utilization_ppm.map(|ppm| whole(ppm.into(), 10_000)));
    all(&m::DCGM_MEM_COPY_UTIL, &|gpu| gpu.state.memory_utilization_ppm.map(|ppm| whole(ppm.into(), 10_000)));
    all(&m::DCGM_FB_USED, &|gpu| gpu.state.memory_used_bytes.map(|bytes| whole(bytes, MEBIBYTE)));
    all(&m::DCGM_FB_FREE, &|gpu| {
        let free = gpu.state.memory_total_bytes?.saturating_sub(gpu.state.memory_used_bytes?);
        Some(whole(free, MEBIBYTE))
    });
}

/// The pod is named where the kubelet gave the whole GPU to one container.
fn labels(gpu: &GpuNow, node: &str) -> Labels {
    let index = gpu.gpu.index.to_string();
    let holder = |name: fn(&Holder) -> &str| gpu.holder.as_ref().map_or("", name);
    Labels::new(&[
        ("gpu", &index),
        ("UUID", &gpu.gpu.uuid),
        ("device", &format!("nvidia{index}")),
        ("modelName", &gpu.gpu.name),
        ("Hostname", node),
        ("namespace", holder(|holder| &holder.namespace)),
        ("pod", holder(|holder| &holder.pod)),
        ("container", holder(|holder| &holder.container)),
    ])
}
