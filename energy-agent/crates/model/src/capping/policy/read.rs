//! A policy's tree into a [`Policy`], by the keys that its fields are declared with. The tree was checked: what is required
//! is there, and every value is in its range. `None`: it was not checked.

use super::schema::fields::{AlgorithmName, CpuMeans, GpuMeans};
use super::schema::fields::{actuators, budget, control, cpu, gpu, point, policy, requirement, selector};
use super::yaml::YamlNode;
use super::{
    Actuators, Algorithm, Amount, BudgetSpec, Component, Components, Control, CpuActuators, GpuActuators, Point,
    Policy, PolicyName, Requirement, Selector,
};

/// `name` as it was read before, for messages.
#[must_use]
pub fn policy(node: &YamlNode<'_>, name: PolicyName) -> Option<Policy> {
    Some(Policy {
        name,
        mode: policy::MODE.of(node)?,
        priority: policy::PRIORITY.of(node)?,
        selector: selector(policy::SELECTOR.of(node))?,
        budget: budget(policy::BUDGET.of(node))?,
        control: control(policy::CONTROL.of(node))?,
        actuators: actuators(policy::ACTUATORS.of(node))?,
    })
}

fn selector(node: &YamlNode<'_>) -> Option<Selector> {
    Some(Selector {
        match_labels: selector::MATCH_LABELS.of(node).unwrap_or_default(),
        match_expressions: selector::MATCH_EXPRESSIONS.of(node).iter().map(requirement).collect::<Option<_>>()?,
        namespaces: selector::NAMESPACES.of(node).unwrap_or_default(),
        select_all: selector::SELECT_ALL.of(node)?,
    })
}

fn requirement(node: &YamlNode<'_>) -> Option<Requirement> {
    Some(Requirement {
        key: requirement::KEY.of(node)?,
        operator: requirement::OPERATOR.of(node)?,
        values: requirement::VALUES.of(node).unwrap_or_default(),
    })
}

fn budget(node: &YamlNode<'_>) -> Option<BudgetSpec> {
    let amount = match budget::PERCENT_OF_PEAK.of(node) {
        Some(percent) => Amount::PercentOfPeak { percent, lookback: budget::LOOKBACK.of(node)? },
        None => Amount::Watts(budget::WATTS.of(node)?),
    };
    let counted = budget::COMPONENTS.of(node)?;
    Some(BudgetSpec {
        amount,
        scope: budget::SCOPE.of(node)?,
        components: Components { gpu: counted.contains(&Component::Gpu), cpu: counted.contains(&Component::Cpu) },
        window: budget::WINDOW.of(node)?,
    })
}

/// Of no map: the defaults.
pub(super) fn control(node: &YamlNode<'_>) -> Option<Control> {
    // The rules see to it that there is a table where the algorithm is one, and only there.
    let points: Vec<Point> = control::TABLE.of(node).iter().map(point).collect::<Option<_>>()?;
    Some(Control {
        algorithm: match control::ALGORITHM.of(node)? {
            AlgorithmName::External => Algorithm::External,
            AlgorithmName::Ratio | AlgorithmName::Table if points.is_empty() => Algorithm::Ratio,
            AlgorithmName::Ratio | AlgorithmName::Table => Algorithm::Table(points),
        },
        engage: control::ENGAGE.of(node)? / 100.0,
        target: control::TARGET.of(node)? / 100.0,
        release: control::RELEASE.of(node)? / 100.0,
        hold: control::HOLD.of(node)?,
        standing: control::STANDING.of(node)?,
        on_telemetry_loss: control::ON_TELEMETRY_LOSS.of(node)?,
        telemetry_timeout: control::TELEMETRY_TIMEOUT.of(node)?,
    })
}

fn point(node: &YamlNode<'_>) -> Option<Point> {
    Some(Point { clock_mhz: point::CLOCK.of(node)?, watts: point::WATTS.of(node)? })
}

fn actuators(node: &YamlNode<'_>) -> Option<Actuators> {
    Some(Actuators { gpu: gpu(actuators::GPU.of(node))?, cpu: cpu(actuators::CPU.of(node))? })
}

pub(super) fn gpu(node: &YamlNode<'_>) -> Option<GpuActuators> {
    let means = gpu::USE.of(node)?;
    Some(GpuActuators {
        locked_clocks: means.contains(&GpuMeans::LockedClocks),
        power_limit: means.contains(&GpuMeans::PowerLimit),
        min_clock_mhz: gpu::MIN_CLOCK.of(node),
        allow_shared: gpu::ALLOW_SHARED.of(node)?,
    })
}

pub(super) fn cpu(node: &YamlNode<'_>) -> Option<CpuActuators> {
    let means = cpu::USE.of(node)?;
    Some(CpuActuators {
        frequency: means.contains(&CpuMeans::Frequency),
        quota: means.contains(&CpuMeans::Quota),
        rapl_limit: means.contains(&CpuMeans::RaplLimit),
        min_frequency_mhz: cpu::MIN_FREQUENCY.of(node),
        min_cpus: cpu::MIN_CPUS.of(node),
    })
}
