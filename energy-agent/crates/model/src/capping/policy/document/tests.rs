mod problems;
mod random;

use std::fmt::Write as _;
use std::time::Duration;

use super::*;
use crate::capping::policy::schema::fields::policy::OBJECT as POLICY;
use crate::capping::policy::schema::{Object, Presence};
use crate::capping::policy::{
    Actuators, Algorithm, Amount, BudgetScope, BudgetSpec, Components, Control, CpuActuators, GpuActuators, Mode,
    Operator, Point, Requirement, Selector, TelemetryLoss,
};

/// Every field there is.
const WHOLE: &str = "\
version: 1
policies:
- name: llm-training
  namespace: ml
  mode: Enforce
  priority: 10
  selector: {matchLabels: {app: train, tier: ''}, matchExpressions: [{key: example.com/tier, operator: In, values: [low, \"1\"]}, {key: spot, operator: Exists}], namespaces: [ml], selectAll: false}
  budget: {percentOfPeak: 80, lookbackHours: 48, scope: PerNode, components: [gpu, cpu], windowSeconds: 2.5}
  control:
    algorithm: table
    engagePercent: 102
    targetPercent: 97.5
    releasePercent: 85
    holdSeconds: 10
    onTelemetryLoss: Floor
    telemetryTimeoutSeconds: 60
    table: [{clockMHz: 600, watts: 180}, {clockMHz: 1980, watts: 700.5}]
  actuators:
    gpu: {use: [PowerLimit], minClockMHz: 600, allowShared: true}
    cpu: {use: [Quota], minFrequencyMHz: 1200, minCPUs: 0.5}
";

fn name(namespace: &str, name: &str) -> PolicyName {
    PolicyName { namespace: namespace.into(), name: name.into(), ..PolicyName::default() }
}

#[test]
fn every_field_is_read() {
    let policy = Policy {
        name: name("ml", "llm-training"),
        mode: Mode::Enforce,
        priority: 10,
        selector: Selector {
            match_labels: [("app".to_owned(), "train".to_owned()), ("tier".to_owned(), String::new())].into(),
            match_expressions: vec![
                Requirement {
                    key: "example.com/tier".to_owned(),
                    operator: Operator::In,
                    values: vec!["low".to_owned(), "1".to_owned()],
                },
                Requirement { key: "spot".to_owned(), operator: Operator::Exists, values: vec![] },
            ],
            namespaces: vec!["ml".to_owned()],
            select_all: false,
        },
        budget: BudgetSpec {
            amount: Amount::PercentOfPeak { percent: 80.0, lookback: Duration::from_secs(172_800) },
            scope: BudgetScope::PerNode,
            components: Components { gpu: true, cpu: true },
            window: Duration::from_millis(2500),
        },
        control: Control {
            algorithm: Algorithm::Table(vec![
                Point { clock_mhz: 600, watts: 180.0 },
                Point { clock_mhz: 1980, watts: 700.5 },
            ]),
            engage: 1.02,
            target: 0.975,
            release: 0.85,
            hold: Duration::from_secs(10),
            standing: false,
            on_telemetry_loss: TelemetryLoss::Floor,
            telemetry_timeout: Duration::from_secs(60),
        },
        actuators: Actuators {
            gpu: GpuActuators { locked_clocks: false, power_limit: true, min_clock_mhz: Some(600), allow_shared: true },
            cpu: CpuActuators {
                frequency: false,
                quota: true,
                rapl_limit: false,
                min_frequency_mhz: Some(1200),
                min_cpus: Some(0.5),
            },
        },
    };
    assert_eq!(parse(WHOLE, ""), PolicyDocument { policies: vec![policy], problems: vec![] });
}

#[test]
fn json_is_read_as_well() {
    let text = r#"{"version": 1, "policies": [
        {"name": "p", "selector": {"selectAll": true}, "budget": {"watts": 4e2, "components": ["cpu"]}}]}"#;
    let document = parse(text, "");
    assert_eq!(document.problems, []);
    assert_eq!(document.policies[0].budget.amount, Amount::Watts(400.0));
    assert!(document.policies[0].selector.select_all);
    assert_eq!(document.policies[0].mode, Mode::Recommend);
}

/// Writes out what the table says stands for fields that are not given.
fn write_defaults(text: &mut String, object: &'static Object, depth: usize) {
    let indent = "  ".repeat(depth);
    for field in object.fields {
        match (field.kind.object(), field.presence) {
            (Some(object), Presence::Default(_)) => {
                writeln!(text, "{indent}{}:", field.name).unwrap();
                write_defaults(text, object, depth + 1);
            }
            (None, Presence::Default(default)) => writeln!(text, "{indent}{}: {default}", field.name).unwrap(),
            _ => {}
        }
    }
}

#[test]
fn the_defaults_that_are_explained_are_those_that_are_taken() {
    let given = "  name: p\n  selector: {namespaces: [a]@}\n  budget: {percentOfPeak: 80, components: [gpu, cpu]@}\n";
    let short = format!("version: 1\npolicies:\n-\n{}", given.replace('@', ""));
    let mut long = "version: 1\npolicies:\n-\n".to_owned();
    long += &given.replacen('@', ", selectAll: false", 1).replacen(
        '@',
        ", lookbackHours: 24, scope: PerPod, windowSeconds: 1",
        1,
    );
    write_defaults(&mut long, &POLICY, 1);
    for field in [
        "mode: Recommend",
        "priority: 0",
        "holdSeconds: 5",
        "use: [LockedClocks, PowerLimit]",
        "use: [Frequency, Quota]",
    ] {
        assert!(long.contains(field), "{long}");
    }
    let (short, long_document) = (parse(&short, ""), parse(&long, ""));
    assert_eq!(short.problems, []);
    assert_eq!(long_document.problems, [], "{long}");
    assert_eq!(short.policies, long_document.policies);
}

#[test]
fn a_wrong_policy_does_not_stop_the_others() {
    let document = parse(
        "version: 1
policies:
- {name: a, selector: {selectAll: true}, budget: {watts: 400, components: [gpu]}}
- {name: b, namespace: ml, selector: {selectAll: true}, budget: {watts: 40OO, components: [gpu]}}
- just text
- {name: c, selector: {selectAll: true}, budget: {watts: 300, components: [gpu]}}
- {selector: {selectAll: true}, budget: {watts: 300, components: [gpu]}}
",
        "",
    );
    let names: Vec<_> = document.policies.iter().map(|policy| policy.name.to_string()).collect();
    assert_eq!(names, ["a", "c"]);
    let problems: Vec<_> =
        document.problems.iter().map(|(name, problem)| (name.as_ref().unwrap().to_string(), &**problem)).collect();
    assert_eq!(problems.len(), 3);
    assert_eq!(
        problems[0],
        ("ml/b".to_owned(), "policies[1].budget.watts: \"40OO\" where a plain number (in W) is needed (line 4)")
    );
    assert!(problems[1].1.starts_with("policies[2]: \"just text\" where a map is needed, with keys of name, "));
    assert!(problems[1].1.ends_with("(line 5)") && problems[1].0 == "policies[2]");
    assert!(problems[2].1.starts_with("policies[4].name: missing") && problems[2].0 == "policies[4]");
}

#[test]
fn a_document_that_is_none_holds_no_policy() {
    let good = "policies:\n- {name: a, selector: {selectAll: true}, budget: {watts: 400, components: [gpu]}}\n";
    for (text, problem) in [
        ("", "empty; a document without policies is `version: 1` and `policies: []`"),
        ("# nothing\n", "empty;"),
        ("version: 1", "not a policy document: it has no key `policies` (line 1)"),
        (good, "version: missing; write `version: 1` (line 1)"),
        (&format!("version: 2\n{good}"), "version: 2 is not known here; write 1 (line 1)"),
        (&format!("version: one\n{good}"), "version: \"one\" where a plain number is needed (line 1)"),
        (&format!("version: 1\n{good}metadata: {{}}\n"), "metadata: unknown key; valid are version, policies (line 4)"),
        (
            "version: 1\npolices: []",
            "not a policy document: it has no key `policies`; is it the key in line 2? (line 1)",
        ),
        ("version: 1\npolicies: {}", "policies: a map where a list is needed (line 2)"),
        ("version: 1\npolicies:\n", "policies: empty; give it a value"),
        ("- a", "not a policy document, which begins with `version: 1` and `policies:` (line 1)"),
        ("kind: ConfigMap\napiVersion: v1\ndata: {}", "a Kubernetes manifest, not a policy document"),
        (&format!("version: 1\n{good}---\nversion: 1\n{good}"), "a second YAML document begins (line 5)"),
        (&format!("version: 1\n{good} - {{"), "not valid YAML: "),
    ] {
        let document = parse(text, "");
        assert_eq!(document.policies, [], "{text}");
        assert!(document.problems[0].1.starts_with(problem), "{text}: {:?}", document.problems);
        assert_eq!(document.problems[0].0, None);
        assert_eq!(document.problems.len(), 1, "{text}: {:?}", document.problems);
    }
    assert_eq!(parse("version: 1\npolicies: []", ""), PolicyDocument::default());
}

#[test]
fn a_name_that_comes_twice_is_nobodys() {
    let document = parse(
        "version: 1
policies:
- {name: a, namespace: x, selector: {selectAll: true}, budget: {watts: 400, components: [gpu]}}
- {name: a, namespace: y, selector: {selectAll: true}, budget: {watts: 300, components: [gpu]}}
- {name: a, namespace: x, selector: {selectAll: true}, budget: {watts: 200, components: [gpu]}}
",
        "",
    );
    assert_eq!(document.policies.len(), 1);
    assert_eq!(document.policies[0].name, name("y", "a"));
    assert_eq!(
        document.problems,
        [
            (
                Some(name("x", "a")),
                "policies[0].name: x/a is the name of policies[2] too, on line 5 (line 3)".to_owned()
            ),
            (
                Some(name("x", "a")),
                "policies[2].name: x/a is the name of policies[0] too, on line 3 (line 5)".to_owned()
            ),
        ]
    );
}
