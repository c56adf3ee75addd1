//! What the fields of one policy have to do with each other.

use super::problems::Problems;
use super::schema::TypedField;
use super::schema::fields::{AlgorithmName, actuators, budget, control, cpu, policy, requirement, selector};
use super::unit::plain;
use super::yaml::YamlNode;
use super::{
    Actuators, Algorithm, Amount, Authority, BudgetScope, Components, Control, Operator, Point, Policy, Selector,
};

/// `node` is what `policy` was read from. `namespace` stands in an example.
pub fn check(policy: &Policy, node: &YamlNode<'_>, namespace: &str, problems: &mut Problems) {
    if let Some(node) = policy::SELECTOR.given(node) {
        problems.key(policy::SELECTOR.name(), |problems| selector(policy, node, namespace, problems));
    }
    if let Some(node) = policy::BUDGET.given(node) {
        problems.key(policy::BUDGET.name(), |problems| budget(policy, node, problems));
    }
    if let Some(node) = policy::CONTROL.given(node) {
        problems.key(policy::CONTROL.name(), |problems| {
            control(&policy.control, node, problems);
            with_others(policy, node, problems);
        });
    }
    problems.key(policy::ACTUATORS.name(), |problems| actuators(policy, node, problems));
}

fn selector(policy: &Policy, node: &YamlNode<'_>, namespace: &str, problems: &mut Problems) {
    let Selector { match_labels, match_expressions, namespaces, select_all } = &policy.selector;
    let parts = [
        (selector::MATCH_LABELS.name(), match_labels.is_empty()),
        (selector::MATCH_EXPRESSIONS.name(), match_expressions.is_empty()),
        (selector::NAMESPACES.name(), namespaces.is_empty()),
    ];
    let given: Vec<_> = parts.iter().filter(|(_, empty)| !empty).map(|(name, _)| *name).collect();
    if given.is_empty() && !select_all {
        let example = if namespace.is_empty() { "default" } else { namespace };
        problems.add(
            node.line,
            format_args!(
                "selects nothing; give labels or namespaces, as `namespaces: [{example}]`, or write `selectAll: true` for every pod"
            ),
        );
    }
    if *select_all && !given.is_empty() {
        let given = given.join(" and ");
        let line = line(node, &selector::SELECT_ALL);
        problems.key(selector::SELECT_ALL.name(), |problems| {
            problems.add(line, format_args!("selects every pod, and {given} only some; remove one of them"));
        });
    }
    let own = &policy.name.namespace;
    if !own.is_empty() && !namespaces.is_empty() && *namespaces != [own.to_string()] {
        let line = line(node, &selector::NAMESPACES);
        problems.key(selector::NAMESPACES.name(), |problems| {
            problems
                .add(line, format_args!("the policy has `namespace: {own}` and selects only pods of that namespace"));
        });
    }
    problems.key(selector::MATCH_EXPRESSIONS.name(), |problems| requirements(&policy.selector, node, problems));
}

fn requirements(selector: &Selector, node: &YamlNode<'_>, problems: &mut Problems) {
    let nodes = selector::MATCH_EXPRESSIONS.of(node);
    for (index, (requirement, node)) in selector.match_expressions.iter().zip(nodes).enumerate() {
        let takes = matches!(requirement.operator, Operator::In | Operator::NotIn);
        let complaint = match (takes, requirement::VALUES.given(node).is_some()) {
            (true, false) => "missing; In and NotIn need values",
            (false, true) => "Exists and DoesNotExist take no values; remove them, or write In or NotIn",
            _ => continue,
        };
        problems.item(index, |problems| {
            problems
                .key(requirement::VALUES.name(), |problems| problems.add(line(node, &requirement::VALUES), complaint))
        });
    }
}

fn budget(policy: &Policy, node: &YamlNode<'_>, problems: &mut Problems) {
    let is_total = policy.budget.scope == BudgetScope::Total;
    if is_total && policy.name.authority == Authority::Admin {
        let line = line(node, &budget::SCOPE);
        problems.key(budget::SCOPE.name(), |problems| {
            problems.add(
                line,
                "Total needs a PowerCappingPolicy and the controller (docs/cluster.md); in a document write PerPod or PerNode",
            );
        });
    }
    if is_total && !matches!(policy.budget.amount, Amount::Watts(_)) {
        let line = line(node, &budget::PERCENT_OF_PEAK);
        let why = "a budget of the whole cluster has no peak; write watts";
        problems.key(budget::PERCENT_OF_PEAK.name(), |problems| problems.add(line, why));
    }
}

/// What fields of `control` have to do with the budget.
fn with_others(policy: &Policy, node: &YamlNode<'_>, problems: &mut Problems) {
    if let (Some(given), true) = (control::CONTROLLER_NAME.given(node), policy.budget.scope != BudgetScope::Total) {
        problems.key(control::CONTROLLER_NAME.name(), |problems| {
            problems.add(given.line, "is only valid with `scope: Total`");
        });
    }
    if policy.control.standing
        && (policy.budget.scope == BudgetScope::Total || !matches!(policy.budget.amount, Amount::Watts(_)))
    {
        problems.key(control::STANDING.name(), |problems| {
            problems.add(line(node, &control::STANDING), "is only valid with watts, and with scope PerPod or PerNode");
        });
    }
}

fn control(control: &Control, node: &YamlNode<'_>, problems: &mut Problems) {
    let Control { algorithm, engage, target, release, .. } = control;
    let percent = |share: &f64| plain(share * 100.0);
    if target > engage {
        let (target, engage) = (percent(target), percent(engage));
        problems.key(control::TARGET.name(), |problems| {
            let line = line(node, &control::TARGET);
            problems.add(line, format_args!("{target} is above engagePercent, which is {engage}"));
        });
    }
    if release >= target {
        let (release, target) = (percent(release), percent(target));
        problems.key(control::RELEASE.name(), |problems| {
            let line = line(node, &control::RELEASE);
            problems.add(line, format_args!("{release} is not below targetPercent, which is {target}"));
        });
    }
    let by_table = control::ALGORITHM.of(node) == Some(AlgorithmName::Table);
    match (algorithm, by_table) {
        (Algorithm::Ratio, true) => problems.key(control::TABLE.name(), |problems| {
            problems.add(
                line(node, &control::ALGORITHM),
                "missing; algorithm table needs it, as `table: [{clockMHz: 600, watts: 180}, {clockMHz: 1980, watts: 700}]`",
            );
        }),
        (Algorithm::Table(_), false) => problems.key(control::TABLE.name(), |problems| {
            problems.add(line(node, &control::TABLE), "is only valid with `algorithm: table`");
        }),
        (Algorithm::Table(points), true) => problems.key(control::TABLE.name(), |problems| ascending(points, node, problems)),
        (Algorithm::External, _) if control::TABLE.given(node).is_some() => {
            problems.key(control::TABLE.name(), |problems| {
                problems.add(line(node, &control::TABLE), "is only valid with `algorithm: table`");
            });
        }
        (Algorithm::Ratio, false) | (Algorithm::External, _) => {}
    }
}

fn ascending(points: &[Point], node: &YamlNode<'_>, problems: &mut Problems) {
    let nodes = control::TABLE.of(node);
    for (index, (pair, node)) in points.windows(2).zip(nodes.iter().skip(1)).enumerate() {
        let [earlier, later] = pair else { continue };
        problems.item(index + 1, |problems| {
            if later.clock_mhz <= earlier.clock_mhz {
                let (clock, before) = (later.clock_mhz, earlier.clock_mhz);
                problems.add(node.line, format_args!("clocks must ascend, but {clock} MHz comes after {before} MHz"));
            }
            if later.watts <= earlier.watts {
                let (watts, before) = (plain(later.watts), plain(earlier.watts));
                problems.add(
                    node.line,
                    format_args!("power must rise with the clock, but {watts} W comes after {before} W"),
                );
            }
        });
    }
}

fn actuators(policy: &Policy, policy_node: &YamlNode<'_>, problems: &mut Problems) {
    let Actuators { gpu, cpu } = &policy.actuators;
    let Components { gpu: counts_gpu, cpu: counts_cpu } = policy.budget.components;
    let node = policy::ACTUATORS.given(policy_node);
    for (key, counted) in [(&actuators::GPU, counts_gpu), (&actuators::CPU, counts_cpu)] {
        if let (false, Some(given)) = (counted, node.and_then(|node| key.given(node))) {
            let name = key.name();
            problems.key(name, |problems| {
                let why = format_args!("budget.components does not name {name}, so it is never capped; add it there");
                problems.add(given.line, why);
            });
        }
    }
    let lowers_gpu = counts_gpu && (gpu.locked_clocks || gpu.power_limit);
    let lowers_cpu = counts_cpu && (cpu.frequency || cpu.quota || cpu.rapl_limit);
    if !lowers_gpu && !lowers_cpu {
        let line = node.map_or(policy_node.line, |node| node.line);
        problems
            .add(line, "nothing could ever be capped; name an actuator in `use`, or write `mode: Recommend` without");
    }
    let whole_node =
        policy.budget.scope == BudgetScope::PerNode && policy.selector.select_all && policy.name.namespace.is_empty();
    if let (true, false, Some(cpu)) = (cpu.rapl_limit, whole_node, node.and_then(|node| actuators::CPU.given(node))) {
        problems.key(actuators::CPU.name(), |problems| {
            problems.key(cpu::USE.name(), |problems| {
                let line = line(cpu, &cpu::USE);
                problems.add(
                    line,
                    "RaplLimit caps the whole node; it needs `scope: PerNode` and `selectAll: true`, without a namespace",
                );
            });
        });
    }
}

/// Of a key, or of the map that lacks it.
fn line<T>(node: &YamlNode<'_>, key: &TypedField<T>) -> usize {
    key.given(node).map_or(node.line, |node| node.line)
}
