//! The series about the reading of GPUs: which are read, and what was noticed on them.

use energy_model::gpu::{GpuHealth, GpuUp};
use energy_model::units::nanos;

use super::family;
use crate::metrics as m;
use crate::text::{Labels, SeriesValue, Writer};

/// Writes nothing where there is no GPU.
pub fn write(writer: &mut Writer, health: &GpuHealth, node: &str) {
    let GpuHealth { gpus, ignored } = health;
    if gpus.is_empty() {
        return;
    }
    family(writer, &m::GPU_UP);
    for GpuUp { index, uuid, up, reason, xids: _, took: _ } in gpus {
        let index = index.to_string();
        let labels =
            Labels::new(&[("gpu", &index), ("gpu_uuid", uuid), ("reason", reason.as_str()), ("node_name", node)]);
        writer.sample(&labels, &[], SeriesValue::Integer((*up).into()));
    }
    family(writer, &m::GPU_XIDS);
    for gpu in gpus.iter().filter(|gpu| !gpu.uuid.is_empty()) {
        let index = gpu.index.to_string();
        let labels = Labels::new(&[("gpu", &index), ("gpu_uuid", &gpu.uuid), ("node_name", node)]);
        writer.sample(&labels, &[], SeriesValue::Integer(gpu.xids));
    }
    family(writer, &m::GPU_READING);
    for gpu in gpus {
        if let Some(took) = gpu.took {
            let index = gpu.index.to_string();
            let labels = Labels::new(&[("gpu", &index), ("gpu_uuid", &gpu.uuid), ("node_name", node)]);
            writer.sample(&labels, &[], SeriesValue::Time(nanos(took)));
        }
    }
    family(writer, &m::GPU_IGNORED);
    for (reason, count) in ignored.by_reason() {
        writer.sample(&Labels::new(&[("reason", reason)]), &[], SeriesValue::Integer(count));
    }
}
