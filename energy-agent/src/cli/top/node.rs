//! What `top` says about the node as a whole: its power, how that was divided, and its GPUs.

use std::collections::BTreeMap;
use std::time::Duration;

use energy_export::parse::ParsedSample;
use energy_model::printable::printable;
use energy_model::units::floor_u64;
use energy_model::zone::{Source, ZoneKind};

use super::figures::{Figures, sum};
use super::gpus::GpuFigures;

/// The node's totals.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeFigures {
    pub name: String,
    /// Watts by (zone, source), summed over sockets.
    pub zones: BTreeMap<(String, String), f64>,
    pub active: Option<f64>,
    pub idle: Option<f64>,
    pub unattributed: Option<f64>,
    /// Busy share of all CPUs, 0 to 1.
    pub busy: Option<f64>,
    /// Of packages, memory and GPUs, since the agent started.
    pub joules: Option<f64>,
    /// Unix time at which the agent started, and how long ago that was at the last tick.
    started: Option<f64>,
    uptime: Option<f64>,
    /// Seconds between the agent's ticks.
    interval: Option<f64>,
    /// `None` where no GPU is read.
    pub gpus: Option<GpuFigures>,
}

impl NodeFigures {
    /// Takes what a sample says about the node.
    pub fn take(&mut self, sample: &ParsedSample) {
        let value = sample.number();
        let add = |sum_of: &mut Option<f64>| *sum_of = sum(*sum_of, Some(value));
        match sample.name.as_str() {
            "kepler_node_cpu_watts" => {
                self.name = printable(sample.label("node_name")).into_owned();
                let zone = ["zone", "source"].map(|label| printable(sample.label(label)).into_owned()).into();
                *self.zones.entry(zone).or_default() += value;
            }
            // The other zones are parts of these, or hold them.
            "kepler_node_cpu_joules_total" if is_counted(sample.label("zone")) => add(&mut self.joules),
            "kepler_node_gpu_joules_total" => add(&mut self.joules),
            "kepler_node_cpu_active_watts" => add(&mut self.active),
            "kepler_node_cpu_idle_watts" => add(&mut self.idle),
            "kepler_node_cpu_usage_ratio" => self.busy = Some(value),
            "energy_agent_interval_seconds" => self.interval = Some(value),
            "process_start_time_seconds" => self.started = Some(value),
            name if name.starts_with("kepler_node_gpu_") || name.starts_with("energy_agent_node_gpu_") => {
                GpuFigures::take(&mut self.gpus, sample);
            }
            _ => {}
        }
    }

    pub fn ticked_at(&mut self, tick: Option<f64>) {
        self.uptime = self.started.zip(tick).map(|(started, tick)| tick - started).filter(|uptime| *uptime >= 0.0);
    }

    /// Until there is another tick; a moment where the agent does not say.
    pub fn interval(&self) -> Duration {
        let interval = self.interval.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        interval.unwrap_or_default() + Duration::from_millis(100)
    }

    /// All of it, for `most` lines of a screen; only the lines of single GPUs are left out where they do not fit.
    pub fn lines(&self, most: usize) -> Vec<String> {
        let mut lines = vec![self.meters(), self.shares()];
        lines.extend(self.since_start());
        if let Some(gpus) = &self.gpus {
            lines.push(gpus.summary());
            lines.extend(gpus.lines(most.saturating_sub(lines.len())));
        }
        lines
    }

    /// The node and the power of its zones, with how it is known.
    fn meters(&self) -> String {
        let mut line = if self.name.is_empty() { "node".to_owned() } else { self.name.clone() };
        if self.zones.is_empty() {
            line.push_str("   no power reading yet (the agent's landing page shows its meters)");
        }
        for ((zone, source), watts) in &self.zones {
            let source = if source == Source::Estimate.as_str() { "estimated" } else { source };
            line.push_str(&format!("   {zone} {watts:.2} W ({source})"));
        }
        line
    }

    /// How that power was divided.
    fn shares(&self) -> String {
        let busy = self.busy.map_or_else(|| "-".to_owned(), |busy| format!("{:.0} %", busy * 100.0));
        let watts = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |watts| format!("{watts:.2} W"));
        let [active, idle, unattributed] = [self.active, self.idle, self.unattributed].map(watts);
        format!("active {active}   idle {idle}   unattributed {unattributed}   CPU busy {busy}")
    }

    fn since_start(&self) -> Option<String> {
        let hours = Figures { joules: self.joules, ..Figures::default() }.watt_hours()?;
        let uptime = self.uptime.map(|seconds| humantime::format_duration(Duration::from_secs(whole(seconds))));
        let uptime = uptime.map_or_else(String::new, |uptime| format!(" in {uptime}"));
        Some(format!("{hours:.3} Wh{uptime}, since the agent started"))
    }
}

/// Seconds, minutes or hours, as people say it.
fn whole(seconds: f64) -> u64 {
    let seconds = floor_u64(seconds);
    let unit = match seconds {
        0..3600 => 1,
        3600..86_400 => 60,
        _ => 3600,
    };
    seconds / unit * unit
}

fn is_counted(zone: &str) -> bool {
    [ZoneKind::Package, ZoneKind::Dram].iter().any(|kind| kind.as_str() == zone)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests panic")]

    use energy_export::parse::samples;

    use super::*;

    #[test]
    fn sockets_and_zones_are_summed_and_overlapping_zones_are_not() {
        let page = "kepler_node_cpu_watts{zone=\"package\",source=\"rapl\",node_name=\"n\",socket=\"0\"} 20\n\
             kepler_node_cpu_watts{zone=\"package\",source=\"rapl\",node_name=\"n\",socket=\"1\"} 22.5\n\
             kepler_node_cpu_active_watts{zone=\"package\"} 30\nkepler_node_cpu_idle_watts{zone=\"package\"} 12.5\n\
             kepler_node_cpu_usage_ratio 0.5\n\
             kepler_node_cpu_joules_total{zone=\"package\"} 7200\nkepler_node_cpu_joules_total{zone=\"dram\"} 1800\n\
             kepler_node_cpu_joules_total{zone=\"core\"} 999\nkepler_node_cpu_joules_total{zone=\"psys\"} 999\n\
             kepler_node_gpu_joules_total{gpu=\"0\"} 9000\nprocess_start_time_seconds 1000\n";
        let mut node = NodeFigures::default();
        samples(page).unwrap().iter().for_each(|sample| node.take(sample));
        node.ticked_at(Some(8385.2));
        let expected = [
            "n   package 42.50 W (rapl)",
            "active 30.00 W   idle 12.50 W   unattributed -   CPU busy 50 %",
            // 18,000 J are 5 Wh.
            "5.000 Wh in 2h 3m, since the agent started",
        ];
        assert_eq!(node.lines(24)[..3], expected);
    }
}
