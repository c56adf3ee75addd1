//! A policy's tree into a [`Policy`]. The tree is known to be what the table of fields says; what is not in it takes its
//! default from the types.

use std::collections::BTreeMap;
use std::time::Duration;

use super::yaml::Node;
use super::{
    Actuators, Algorithm, Amount, Budget, Components, Control, CpuActuators, GpuActuators, Mode, Operator, Point,
    Policy, PolicyName, Requirement, Scope, Selector, TelemetryLoss,
};

/// Peaks are looked for this far back where a policy does not say.
const LOOKBACK_HOURS: f64 = 24.0;
/// Power is the mean over this time where a policy does not say.
const WINDOW_SECONDS: f64 = 1.0;

/// `name` as it was read before, for messages.
#[must_use]
pub fn policy(node: &Node<'_>, name: PolicyName) -> Policy {
    Policy {
        name,
        mode: word(node, "mode", &[("Off", Mode::Off), ("Recommend", Mode::Recommend), ("Enforce", Mode::Enforce)]),
        priority: node.get("priority").and_then(Node::whole).and_then(|whole| i32::try_from(whole).ok()).unwrap_or(0),
        selector: node.get("selector").map(selector).unwrap_or_default(),
        budget: budget(node.get("budget").unwrap_or(node)),
        control: node.get("control").map(control).unwrap_or_default(),
        actuators: node.get("actuators").map(actuators).unwrap_or_default(),
    }
}

fn selector(node: &Node<'_>) -> Selector {
    let label = |entry: &super::yaml::Entry<'_>| Some((entry.key.to_string(), entry.node.text()?.to_owned()));
    Selector {
        match_labels: node
            .get("matchLabels")
            .map_or(BTreeMap::new(), |labels| labels.entries().iter().filter_map(label).collect()),
        match_expressions: items(node, "matchExpressions").map(requirement).collect(),
        namespaces: texts(node, "namespaces"),
        select_all: node.get("selectAll").and_then(Node::truth).unwrap_or(false),
    }
}

fn requirement(node: &Node<'_>) -> Requirement {
    let operator = match node.get("operator").and_then(Node::text) {
        Some("NotIn") => Operator::NotIn,
        Some("Exists") => Operator::Exists,
        Some("DoesNotExist") => Operator::DoesNotExist,
        _ => Operator::In,
    };
    Requirement {
        key: node.get("key").and_then(Node::text).unwrap_or_default().to_owned(),
        operator,
        values: texts(node, "values"),
    }
}

fn budget(node: &Node<'_>) -> Budget {
    let amount = match number(node, "percentOfPeak") {
        Some(percent) => {
            let hours = number(node, "lookbackHours").unwrap_or(LOOKBACK_HOURS);
            Amount::PercentOfPeak { percent, lookback: seconds(hours * 3600.0) }
        }
        None => Amount::Watts(number(node, "watts").unwrap_or_default()),
    };
    let counted = texts(node, "components");
    Budget {
        amount,
        scope: word(node, "scope", &[("PerPod", Scope::PerPod), ("PerNode", Scope::PerNode)]),
        components: Components {
            gpu: counted.iter().any(|component| component == "gpu"),
            cpu: counted.iter().any(|component| component == "cpu"),
        },
        window: seconds(number(node, "windowSeconds").unwrap_or(WINDOW_SECONDS)),
    }
}

fn control(node: &Node<'_>) -> Control {
    let default = Control::default();
    let share = |key, default| number(node, key).map_or(default, |percent| percent / 100.0);
    let time = |key, default| number(node, key).map_or(default, seconds);
    let points: Vec<_> = items(node, "table").map(point).collect();
    let losses = [("Hold", TelemetryLoss::Hold), ("Release", TelemetryLoss::Release), ("Floor", TelemetryLoss::Floor)];
    Control {
        algorithm: if points.is_empty() { Algorithm::Ratio } else { Algorithm::Table(points) },
        engage: share("engagePercent", default.engage),
        target: share("targetPercent", default.target),
        release: share("releasePercent", default.release),
        hold: time("holdSeconds", default.hold),
        on_telemetry_loss: word(node, "onTelemetryLoss", &losses),
        telemetry_timeout: time("telemetryTimeoutSeconds", default.telemetry_timeout),
    }
}

fn point(node: &Node<'_>) -> Point {
    Point {
        clock_mhz: megahertz(node, "clockMHz").unwrap_or_default(),
        watts: number(node, "watts").unwrap_or_default(),
    }
}

fn actuators(node: &Node<'_>) -> Actuators {
    Actuators { gpu: node.get("gpu").map(gpu).unwrap_or_default(), cpu: node.get("cpu").map(cpu).unwrap_or_default() }
}

fn gpu(node: &Node<'_>) -> GpuActuators {
    let default = GpuActuators::default();
    let used = used(node);
    let is_used = |name, default| used.as_ref().map_or(default, |used| used.contains(&name));
    GpuActuators {
        locked_clocks: is_used("LockedClocks", default.locked_clocks),
        power_limit: is_used("PowerLimit", default.power_limit),
        min_clock_mhz: megahertz(node, "minClockMHz"),
        allow_shared: node.get("allowShared").and_then(Node::truth).unwrap_or(default.allow_shared),
    }
}

fn cpu(node: &Node<'_>) -> CpuActuators {
    let default = CpuActuators::default();
    let used = used(node);
    let is_used = |name, default| used.as_ref().map_or(default, |used| used.contains(&name));
    CpuActuators {
        frequency: is_used("Frequency", default.frequency),
        quota: is_used("Quota", default.quota),
        rapl_limit: is_used("RaplLimit", default.rapl_limit),
        min_frequency_mhz: megahertz(node, "minFrequencyMHz"),
        min_cpus: number(node, "minCPUs"),
    }
}

fn used<'a>(node: &'a Node<'_>) -> Option<Vec<&'a str>> {
    node.get("use").map(|used| used.items().iter().filter_map(Node::text).collect())
}

fn number(node: &Node<'_>, key: &str) -> Option<f64> {
    node.get(key).and_then(Node::number)
}

fn megahertz(node: &Node<'_>, key: &str) -> Option<u32> {
    node.get(key).and_then(Node::whole).and_then(|whole| u32::try_from(whole).ok())
}

fn seconds(number: f64) -> Duration {
    Duration::try_from_secs_f64(number).unwrap_or_default()
}

fn items<'a, 'b>(node: &'a Node<'b>, key: &str) -> impl Iterator<Item = &'a Node<'b>> + use<'a, 'b> {
    node.get(key).map(Node::items).unwrap_or_default().iter()
}

fn texts(node: &Node<'_>, key: &str) -> Vec<String> {
    items(node, key).filter_map(Node::text).map(str::to_owned).collect()
}

/// What a word stands for; the default where there is none.
fn word<T: Copy + Default>(node: &Node<'_>, key: &str, words: &[(&str, T)]) -> T {
    let text = node.get(key).and_then(Node::text);
    words.iter().find(|(word, _)| text == Some(word)).map(|(_, meant)| *meant).unwrap_or_default()
}
