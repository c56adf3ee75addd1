//! What follows from a run: totals, kilowatt-hours, mean power, costs.

use crate::number::float;
use crate::run::{Charge, Energy, Part, Prices, Run};

/// Below this share of its time a run's energy is a lower bound.
const WHOLE: f64 = 0.98;
const MICROJOULES_PER_KWH: f64 = 3.6e12;

/// Prices as they are asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Tariff {
    /// The energy of the building by that of the machine, at least 1.
    pub pue: f64,
    pub per_kwh: Option<f64>,
    pub currency: Option<String>,
    pub gco2_per_kwh: Option<f64>,
}

impl Energy {
    pub(crate) fn joules(&self) -> f64 {
        float(self.microjoules) / 1e6
    }

    /// It is a part of the sum: not a zone within another.
    pub(crate) fn adds_up(&self) -> bool {
        self.part != Part::Other
    }
}

impl Run {
    /// Seconds that the workload ran.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        (self.end - self.start).max(0.0)
    }

    /// Energy of all parts that add up, either measured or estimated; never both in one sum.
    #[must_use]
    pub fn microjoules(&self, estimated: bool) -> u64 {
        let parts = self.energy.iter().filter(|energy| energy.adds_up() && energy.estimated == estimated);
        parts.map(|energy| energy.microjoules).sum()
    }

    /// Energy was used that nobody saw: what is known is the least that it was.
    pub(crate) fn is_at_least(&self) -> bool {
        self.measured.coverage < WHOLE || self.warnings.iter().any(|warning| warning.code == "end_not_seen")
    }

    /// Adds what the energy costs; a tariff without price and intensity adds nothing.
    pub fn price(&mut self, tariff: &Tariff) {
        let Tariff { pue, per_kwh, currency, gco2_per_kwh } = tariff.clone();
        if per_kwh.is_none() && gco2_per_kwh.is_none() {
            return;
        }
        let charge = |estimated: bool| {
            let kwh = float(self.microjoules(estimated)) / MICROJOULES_PER_KWH * pue;
            Charge { cost: per_kwh.map(|price| price * kwh), gco2: gco2_per_kwh.map(|grams| grams * kwh) }
        };
        let (measured, estimated) = (charge(false), charge(true));
        self.prices = Some(Prices { pue, per_kwh, currency, gco2_per_kwh, measured, estimated });
    }
}

/// One line of a table of energies.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    pub name: String,
    /// Joules, measured or estimated.
    pub joules: f64,
    pub estimated: bool,
    pub kwh: f64,
    /// `None`: the run has no length.
    pub mean_watts: Option<f64>,
    pub peak_watts: Option<f64>,
    pub is_total: bool,
}

/// The run's energies by part and, below them, their total: one for what is measured and one for what is estimated.
pub(crate) fn rows(run: &Run) -> Vec<Row> {
    let seconds = run.seconds();
    let row = |name: String, microjoules: u64, estimated: bool, peak_watts: Option<f64>, is_total: bool| {
        let joules = float(microjoules) / 1e6;
        let mean_watts = (seconds > 0.0).then(|| joules / seconds);
        Row { name, joules, estimated, kwh: joules / 3.6e6, mean_watts, peak_watts, is_total }
    };
    let several = run.nodes.len() > 1;
    let mut rows = Vec::new();
    for energy in run.energy.iter().filter(|energy| energy.adds_up()) {
        let mut name = match energy.part {
            Part::Idle => format!("idle {}", energy.zone),
            Part::Gpu if energy.zone != "gpu" => gpu_name(run, &energy.zone),
            _ => energy.zone.clone(),
        };
        if several && !energy.node.is_empty() {
            name = format!("{} {name}", energy.node);
        }
        rows.push(row(name, energy.microjoules, energy.estimated, energy.peak_watts, false));
    }
    for estimated in [false, true] {
        let parts = rows.iter().filter(|row| row.estimated == estimated).count();
        let one_of_both = rows.iter().any(|row| row.estimated != estimated);
        if parts > 1 || (parts == 1 && one_of_both) {
            let name = if estimated { "total estimated" } else { "total" };
            rows.push(row(name.to_owned(), run.microjoules(estimated), estimated, None, true));
        }
    }
    rows
}

/// `GPU 0 (Tesla T4)` where the node tells it, else the UUID.
pub(crate) fn gpu_name(run: &Run, uuid: &str) -> String {
    let gpu = run.nodes.iter().flat_map(|node| &node.gpus).find(|gpu| gpu.uuid == uuid);
    gpu.map_or_else(
        || uuid.to_owned(),
        |gpu| match &gpu.model {
            Some(model) => format!("GPU {} ({model})", gpu.index),
            None => format!("GPU {}", gpu.index),
        },
    )
}

/// The energy by which work is divided: what is measured, or what is estimated where nothing is.
pub(crate) fn of_work(run: &Run) -> (f64, bool) {
    let measured = run.microjoules(false);
    let estimated = measured == 0;
    (float(run.microjoules(estimated)) / 1e6, estimated)
}

/// Figures below the rows: a name and its text. No figure that was not measured or asked for.
pub(crate) fn facts(run: &Run) -> Vec<(String, String)> {
    use crate::number::{grouped, significant};
    let mut facts = Vec::new();
    let mut add = |name: &str, text: String| facts.push((name.to_owned(), text));
    if let Some(outcome) = run.outcome.as_ref().filter(|outcome| !outcome.succeeded) {
        let code = outcome.exit_code.map(|code| format!("exit code {code}"));
        let reason = Some(outcome.reason.clone()).filter(|reason| !reason.is_empty());
        add("failed", reason.into_iter().chain(code).collect::<Vec<_>>().join(", "));
    }
    if let Some(waited) = run.waited {
        let parts = [(waited.queue_seconds, "in the queue"), (waited.image_seconds, "for images and the start")];
        let said = parts.into_iter().filter_map(|(time, what)| Some(format!("{} s {what}", grouped(time?, 0))));
        let said: Vec<String> = said.collect();
        if !said.is_empty() {
            add("waited", said.join(", "));
        }
    }
    if let Some(seconds) = run.cpu_seconds {
        add("CPU time", format!("{} s", grouped(seconds, 2)));
    }
    for gpu in &run.gpus {
        let mut parts = Vec::new();
        let percent = |value: f64| format!("{:.0} %", value * 100.0);
        let mut say = |name: &str, value: &Option<crate::run::MeanMax>, text: &dyn Fn(f64) -> String| {
            if let Some(value) = value {
                parts.push(format!("{name} {} (max {})", text(value.mean), text(value.max)));
            }
        };
        say("utilisation", &gpu.utilization, &percent);
        say("memory copy", &gpu.memory_utilization, &percent);
        say("temperature", &gpu.celsius, &|value| format!("{value:.0} °C"));
        say("clock", &gpu.clock_hertz, &|value| format!("{} MHz", grouped(value / 1e6, 0)));
        let parts = if parts.is_empty() { "no readings".to_owned() } else { parts.join(", ") };
        add(&gpu_name(run, &gpu.uuid), parts);
    }
    for limit in &run.limits {
        let (value, unit) = match limit.unit.as_str() {
            "Hz" => (limit.value / 1e6, "MHz"),
            unit => (limit.value, unit),
        };
        let policy = if limit.policy.is_empty() { String::new() } else { format!(", policy {}", limit.policy) };
        add("limit", format!("{} {unit}, {}{policy}", significant(value), limit.what));
    }
    if !run.node_energy.is_empty() {
        for estimated in [false, true] {
            let parts = run.node_energy.iter().filter(|energy| energy.adds_up() && energy.estimated == estimated);
            let joules: f64 = parts.map(Energy::joules).sum();
            if joules > 0.0 {
                let estimate = if estimated { " (estimated)" } else { "" };
                add("whole node", format!("{} J meanwhile{estimate}, idle included", grouped(joules, 0)));
            }
        }
    }
    if let Some(work) = &run.work {
        let (joules, estimated) = of_work(run);
        let each = if work.amount > 0.0 { significant(joules / work.amount) } else { "-".to_owned() };
        let estimate = if estimated { " (estimated)" } else { "" };
        add("work", format!("{} {}, {each} J for each{estimate}", significant(work.amount), work.unit));
    }
    if let Some(prices) = &run.prices {
        for (charge, estimate) in [(prices.measured, ""), (prices.estimated, " (estimated)")] {
            if !estimate.is_empty() && run.microjoules(true) == 0 || estimate.is_empty() && run.microjoules(false) == 0
            {
                continue;
            }
            let pue = if prices.pue > 1.0 { format!(", PUE {}", prices.pue) } else { String::new() };
            if let (Some(cost), Some(price)) = (charge.cost, prices.per_kwh) {
                let currency = prices.currency.clone().unwrap_or_default();
                let text = format!("{} {currency}{estimate} at {price} {currency}/kWh{pue}", significant(cost));
                add("cost", text.replace("  ", " ").replace(" /kWh", " per kWh"));
            }
            if let (Some(grams), Some(each)) = (charge.gco2, prices.gco2_per_kwh) {
                add("CO2", format!("{} g{estimate} at {each} g/kWh{pue}", significant(grams)));
            }
        }
    }
    facts
}

/// Two sentences above the figures: what ran where and when, and how that is known.
pub(crate) fn heading(run: &Run) -> [String; 2] {
    use crate::run::{MeasuredBy, SubjectKind};
    let kind = run.subject.kind.as_str();
    let name = match &run.subject.namespace {
        Some(namespace) => format!("{namespace}/{}", run.subject.name),
        None => run.subject.name.clone(),
    };
    let nodes: Vec<&str> = run.nodes.iter().map(|node| node.name.as_str()).filter(|name| !name.is_empty()).collect();
    let on = if run.subject.kind == SubjectKind::Node || nodes.is_empty() {
        String::new()
    } else if nodes.len() > 3 {
        format!(" on {} nodes", nodes.len())
    } else {
        format!(" on {}", nodes.join(", "))
    };
    let by = match run.measured.by {
        MeasuredBy::Own => "own meters",
        MeasuredBy::Agent => "a running agent",
        MeasuredBy::Prometheus => "Prometheus",
    };
    let mut sources: Vec<&str> = run.energy.iter().map(|energy| energy.source.as_str()).collect();
    sources.sort_unstable();
    sources.dedup();
    let length = crate::number::duration(run.seconds());
    let when = format!("{} to {}, {length}", crate::time::text(run.start), crate::time::text(run.end));
    [
        format!("{kind} {name}{on}"),
        format!(
            "{when}; {} from {by}, readings at most {} apart, {:.0} % of the time seen",
            if sources.is_empty() { "no energy".to_owned() } else { sources.join(", ") },
            crate::number::duration(run.measured.interval_seconds),
            (run.measured.coverage * 100.0).floor()
        ),
    ]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests panic")]

    use super::*;

    #[test]
    fn a_job_says_how_long_it_waited_and_why_it_failed() {
        let run: Run = serde_json::from_str(
            r#"{
                "apiVersion": "energy-agent.io/run/v1", "id": "1", "subject": {"kind": "job", "name": "train"},
                "measured": {"by": "prometheus", "intervalSeconds": 1, "coverage": 1}, "start": 0, "end": 5, "energy": [],
                "waited": {"queueSeconds": 2, "imageSeconds": 14},
                "outcome": {"succeeded": false, "exitCode": 3, "reason": "BackoffLimitExceeded"}
            }"#,
        )
        .unwrap();
        let own = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        let expected = [
            own("failed", "BackoffLimitExceeded, exit code 3"),
            own("waited", "2 s in the queue, 14 s for images and the start"),
        ];
        assert_eq!(facts(&run), expected);
    }
}
