//! What `top` says about the GPUs: all together, and one line for each.

use std::collections::BTreeMap;

use energy_export::parse::ParsedSample;
use energy_model::printable::printable;

use super::figures::sum;

/// The node's GPUs together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuFigures {
    /// Watts by source.
    pub watts: BTreeMap<String, f64>,
    pub active: Option<f64>,
    pub idle: Option<f64>,
    pub unattributed: Option<f64>,
    /// Those that are read, by UUID.
    each: BTreeMap<String, OneGpu>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct OneGpu {
    index: String,
    name: String,
    watts: Option<f64>,
    limit: Option<f64>,
    /// 0 to 1.
    busy: Option<f64>,
    memory_used: Option<f64>,
    memory_total: Option<f64>,
    celsius: Option<f64>,
    hertz: Option<f64>,
}

const GIB: f64 = 1_073_741_824.0;

impl GpuFigures {
    /// Takes what a sample says about a GPU.
    pub fn take(gpus: &mut Option<Self>, sample: &ParsedSample) {
        let (name, value) = (sample.name.as_str(), sample.number());
        if name == "energy_agent_node_gpu_unattributed_joules_total" {
            return;
        }
        let all = gpus.get_or_insert_default();
        match name {
            "kepler_node_gpu_active_watts" => return all.active = sum(all.active, Some(value)),
            "kepler_node_gpu_idle_watts" => return all.idle = sum(all.idle, Some(value)),
            "kepler_node_gpu_watts" => {
                let source = printable(sample.label("source")).into_owned();
                *all.watts.entry(source).or_default() += value;
            }
            _ => {}
        }
        let uuid = sample.label("gpu_uuid");
        if name == "kepler_node_gpu_info" {
            let gpu = all.each.entry(uuid.to_owned()).or_default();
            [gpu.index, gpu.name] = ["gpu", "gpu_name"].map(|label| printable(sample.label(label)).into_owned());
            return;
        }
        let value = Some(value);
        let gpu = all.each.entry(uuid.to_owned()).or_default();
        match name {
            "kepler_node_gpu_watts" => gpu.watts = value,
            "energy_agent_node_gpu_power_limit_watts" => gpu.limit = value,
            "energy_agent_node_gpu_utilization_ratio" => gpu.busy = value,
            "energy_agent_node_gpu_memory_used_bytes" => gpu.memory_used = value,
            "energy_agent_node_gpu_memory_total_bytes" => gpu.memory_total = value,
            "energy_agent_node_gpu_temperature_celsius" => gpu.celsius = value,
            "energy_agent_node_gpu_sm_clock_hertz" => gpu.hertz = value,
            _ => {}
        }
    }

    /// Those of `kepler_node_gpu_info`: a GPU that is not read any more has only totals.
    fn read(&self) -> impl Iterator<Item = &OneGpu> {
        self.each.values().filter(|gpu| !gpu.index.is_empty())
    }

    /// One line, of up to 80 characters for eight of them: what they draw, and how that was divided.
    pub fn summary(&self) -> String {
        let count = self.read().count();
        let mut line = format!("{count} GPU{}", if count == 1 { "" } else { "s" });
        for (source, watts) in &self.watts {
            line.push_str(&format!("  {watts:.1} W ({source})"));
        }
        let watts = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |watts| format!("{watts:.1} W"));
        let [active, idle, unattributed] = [self.active, self.idle, self.unattributed].map(watts);
        line + &format!("  active {active}  idle {idle}  unattributed {unattributed}")
    }

    /// One line for each, in the order of their numbers; at most `most`, of which the last one says how many are left out.
    pub fn lines(&self, most: usize) -> Vec<String> {
        let mut gpus: Vec<&OneGpu> = self.read().collect();
        gpus.sort_by_key(|gpu| (gpu.index.parse::<u32>().unwrap_or(u32::MAX), &gpu.index));
        let shown = if gpus.len() <= most { gpus.len() } else { most.saturating_sub(1) };
        let mut lines: Vec<String> = gpus[..shown].iter().map(|gpu| gpu.line()).collect();
        if shown < gpus.len() && most > 0 {
            lines.push(format!("  and {} more GPUs", gpus.len() - shown));
        }
        lines
    }
}

impl OneGpu {
    fn line(&self) -> String {
        let Self { index, name, watts, limit, busy, memory_used, memory_total, celsius, hertz } = self;
        let text = |value: Option<f64>, decimals: usize| {
            value.map_or_else(|| "-".to_owned(), |value| format!("{value:.decimals$}"))
        };
        let gib = |bytes: Option<f64>| bytes.map(|bytes| bytes / GIB);
        let power = format!("{} of {} W", text(*watts, 1), text(*limit, 0));
        let memory = format!("{} of {} GiB", text(gib(*memory_used), 1), text(gib(*memory_total), 0));
        let busy = format!("{} %", text(busy.map(|busy| busy * 100.0), 0));
        let [celsius, megahertz] = [text(*celsius, 0), text(hertz.map(|hertz| hertz / 1e6), 0)];
        format!("GPU {index:<2} {power:>15} {busy:>6} {memory:>17} {celsius:>4} C {megahertz:>5} MHz  {name}")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests panic")]

    use energy_export::parse::samples;

    use super::*;

    fn gpus(page: &str) -> GpuFigures {
        let mut gpus = None;
        samples(page).unwrap().iter().for_each(|sample| GpuFigures::take(&mut gpus, sample));
        gpus.unwrap()
    }

    #[test]
    fn each_gpu_has_a_line_and_one_that_is_not_read_has_none() {
        let of = |name: &str, value: &str| format!("{name}{{gpu_uuid=\"b\"}} {value}\n");
        let page = [
            "kepler_node_gpu_info{gpu_uuid=\"b\",gpu=\"0\",gpu_name=\"NVIDIA H100\"} 1\nkepler_node_gpu_info{gpu_uuid=\"a\",gpu=\"10\"} 1\n"
                .to_owned(),
            "kepler_node_gpu_watts{gpu_uuid=\"a\",source=\"nvml\"} 64\nkepler_node_gpu_watts{gpu_uuid=\"b\",source=\"nvml\"} 200\n".to_owned(),
            "kepler_node_gpu_active_watts{gpu_uuid=\"b\"} 186\nkepler_node_gpu_idle_watts{gpu_uuid=\"b\"} 14\n".to_owned(),
            "kepler_node_gpu_joules_total{gpu_uuid=\"gone\"} 5\n".to_owned(),
            of("energy_agent_node_gpu_power_limit_watts", "700"),
            of("energy_agent_node_gpu_utilization_ratio", "0.37"),
            of("energy_agent_node_gpu_memory_used_bytes", "10737418240"),
            of("energy_agent_node_gpu_memory_total_bytes", "85899345920"),
            of("energy_agent_node_gpu_temperature_celsius", "41"),
            of("energy_agent_node_gpu_sm_clock_hertz", "1755000000"),
        ];
        let mut gpus = gpus(&page.concat());
        gpus.unattributed = Some(1.0);
        assert_eq!(gpus.summary(), "2 GPUs  264.0 W (nvml)  active 186.0 W  idle 14.0 W  unattributed 1.0 W");
        let expected = [
            "GPU 0   200.0 of 700 W   37 %    10.0 of 80 GiB   41 C  1755 MHz  NVIDIA H100",
            "GPU 10     64.0 of - W    - %        - of - GiB    - C     - MHz  ",
        ];
        assert_eq!(gpus.lines(2), expected);
        assert!(expected[0].len() <= 80);
        assert_eq!(gpus.lines(1), ["  and 2 more GPUs"]);
        assert!(gpus.lines(0).is_empty());
    }
}
