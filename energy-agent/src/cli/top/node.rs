//! What `top` says about the node as a whole: its power, and how that was divided.

use std::collections::BTreeMap;

use energy_model::zone::Source;

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
    /// `None` where no GPU is read.
    pub gpus: Option<GpuFigures>,
}

/// The node's GPUs together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuFigures {
    pub count: usize,
    /// Watts by source.
    pub watts: BTreeMap<String, f64>,
    pub active: Option<f64>,
    pub idle: Option<f64>,
    pub unattributed: Option<f64>,
}

impl GpuFigures {
    /// One line, of up to 80 characters for eight of them: what they draw, and how that was divided.
    #[must_use]
    pub fn line(&self) -> String {
        let mut line = format!("{} GPU{}", self.count, if self.count == 1 { "" } else { "s" });
        for (source, watts) in &self.watts {
            line.push_str(&format!("  {watts:.1} W ({source})"));
        }
        let watts = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |watts| format!("{watts:.1} W"));
        let [active, idle, unattributed] = [self.active, self.idle, self.unattributed].map(watts);
        line + &format!("  active {active}  idle {idle}  unattributed {unattributed}")
    }
}

impl NodeFigures {
    /// One line: the node and the power of its zones, with how it is known.
    #[must_use]
    pub fn meters(&self) -> String {
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

    /// One line: how that power was divided.
    #[must_use]
    pub fn shares(&self) -> String {
        let busy = self.busy.map_or_else(|| "-".to_owned(), |busy| format!("{:.0} %", busy * 100.0));
        let watts = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |watts| format!("{watts:.2} W"));
        let [active, idle, unattributed] = [self.active, self.idle, self.unattributed].map(watts);
        format!("active {active}   idle {idle}   unattributed {unattributed}   CPU busy {busy}")
    }
}
