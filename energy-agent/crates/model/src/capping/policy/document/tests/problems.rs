//! What is said of a policy that is wrong.

use super::*;

/// Messages of a document with one policy, whose name is `p` unless `policy` has one.
pub fn problems(policy: &str) -> Vec<String> {
    let name = if policy.contains("name:") { "" } else { "name: p, " };
    let document = parse(&format!("version: 1\npolicies:\n- {{{name}{policy}}}\n"), "energy");
    assert_eq!(document.policies.len() + usize::from(!document.problems.is_empty()), 1, "{policy}: {document:?}");
    document.problems.into_iter().map(|(_, problem)| problem).collect()
}

/// The rest of a policy, so that a case needs to name only what is wrong.
pub const SELECTOR: &str = "selector: {namespaces: [a]}, ";
const BUDGET: &str = "budget: {watts: 400, components: [gpu]}, ";

#[test]
fn an_unknown_key_is_answered_with_what_was_meant() {
    for (policy, problem) in [
        (
            format!("{SELECTOR}budget: {{wats: 4, components: [gpu]}}"),
            "policies[0].budget.wats: unknown key; did you mean `watts`? (line 3)",
        ),
        (
            format!("{SELECTOR}budget: {{gpuPowerWats: 4, components: [gpu]}}"),
            "policies[0].budget.gpuPowerWats: unknown key; did you mean `watts`?",
        ),
        (
            format!("{SELECTOR}{BUDGET}watts: 4"),
            "policies[0].watts: unknown key here; it belongs in `policies[].budget`",
        ),
        (
            format!("{SELECTOR}{BUDGET}control: {{hold_seconds: 4}}"),
            "policies[0].control.hold_seconds: unknown key; did you mean `holdSeconds`?",
        ),
        (
            format!("{SELECTOR}{BUDGET}control: {{engage: 4}}"),
            "policies[0].control.engage: unknown key; did you mean `engagePercent`?",
        ),
        (format!("{SELECTOR}{BUDGET}enforcment: strict"), "policies[0].enforcment: unknown key; did you mean `mode`?"),
        (
            format!("{SELECTOR}{BUDGET}actuators: {{gpu: {{minclockmhz: 600}}}}"),
            "policies[0].actuators.gpu.minclockmhz: unknown key; did you mean `minClockMHz`?",
        ),
        (
            format!("{SELECTOR}{BUDGET}actuators: {{allowShared: true}}"),
            "policies[0].actuators.allowShared: unknown key here; it belongs in `policies[].actuators.gpu`",
        ),
        (
            format!("{BUDGET}selector: {{namespace: a}}"),
            "policies[0].selector.namespace: unknown key; did you mean `namespaces`?",
        ),
        (
            format!("{BUDGET}selector: {{matchExpressions: [{{key: a, oprator: Exists}}]}}"),
            "policies[0].selector.matchExpressions[0].oprator: unknown key; did you mean `operator`?",
        ),
        (
            format!("{SELECTOR}{BUDGET}control: {{table: [{{clockMHz: 600, watt: 4}}, {{clockMHz: 700, watts: 5}}]}}"),
            "policies[0].control.table[0].watt: unknown key; did you mean `watts`?",
        ),
        (format!("{SELECTOR}{BUDGET}xyzzy: 4"), "policies[0].xyzzy: unknown key; valid are name, namespace, mode, "),
        (format!("{SELECTOR}{BUDGET}<<: {{mode: Off}}"), "policies[0].<<: merge keys are not supported"),
    ] {
        let problems = problems(&policy);
        assert!(problems[0].starts_with(problem), "{policy}: {problems:?}");
        assert_eq!(problems.len(), 1, "{policy}: {problems:?}");
    }
}

#[test]
fn a_value_of_another_kind_is_answered_with_what_is_needed() {
    for (policy, problem) in [
        (
            format!("{SELECTOR}{BUDGET}mode: enforce"),
            "policies[0].mode: \"enforce\" is not one of Off, Recommend, Enforce; did you mean Enforce?",
        ),
        (
            format!("{SELECTOR}{BUDGET}mode: false"),
            "policies[0].mode: false is not one of Off, Recommend, Enforce; if Off was meant, write \"Off\"",
        ),
        (format!("{SELECTOR}{BUDGET}mode:"), "policies[0].mode: empty; give it a value, or remove the key"),
        (format!("{SELECTOR}{BUDGET}control:"), "policies[0].control: empty;"),
        (
            format!("{SELECTOR}{BUDGET}control: {{algorithm: pid}}"),
            "policies[0].control.algorithm: \"pid\" is not one of ratio, table",
        ),
        (format!("{SELECTOR}{BUDGET}priority: high"), "policies[0].priority: \"high\" where a plain number is needed"),
        (format!("{SELECTOR}{BUDGET}priority: 1.5"), "policies[0].priority: 1.5 is not a whole number"),
        (
            format!("{SELECTOR}{BUDGET}priority: 3000000000"),
            "policies[0].priority: 3000000000 is more than the maximum, 1000000000",
        ),
        (
            format!("{BUDGET}selector: {{selectAll: yes}}"),
            "policies[0].selector.selectAll: \"yes\" is neither true nor false",
        ),
        (
            format!("{BUDGET}selector: {{namespaces: ml}}"),
            "policies[0].selector.namespaces: \"ml\" where a list is needed; write [ml]",
        ),
        (format!("{BUDGET}selector: {{namespaces: []}}"), "policies[0].selector.namespaces: 0 are too few; at least 1"),
        (
            format!("{BUDGET}selector: {{namespaces: [a, a]}}"),
            "policies[0].selector.namespaces[1]: \"a\" is in the list already",
        ),
        (
            format!("{BUDGET}selector: {{namespaces: [A]}}"),
            "policies[0].selector.namespaces[0]: \"A\" is not lower case letters",
        ),
        (format!("{BUDGET}selector: {{matchLabels: {{}}}}"), "policies[0].selector.matchLabels: empty; name a label"),
        (
            format!("{BUDGET}selector: {{matchLabels: {{version: 2}}}}"),
            "policies[0].selector.matchLabels.version: 2 is a number here; write \"2\"",
        ),
        (
            format!("{BUDGET}selector: {{matchLabels: {{spot: true}}}}"),
            "policies[0].selector.matchLabels.spot: true is not text here; write \"true\"",
        ),
        (
            format!("{BUDGET}selector: {{matchLabels: {{spot: }}}}"),
            "policies[0].selector.matchLabels.spot: empty; write \"\"",
        ),
        (
            format!("{BUDGET}selector: {{matchLabels: {{-a: b}}}}"),
            "policies[0].selector.matchLabels.-a: the key is not a label's key",
        ),
        (
            format!("{BUDGET}selector: {{matchLabels: {{a: b c}}}}"),
            "policies[0].selector.matchLabels.a: \"b c\" is not a label's value",
        ),
        (format!("{SELECTOR}{BUDGET}name: Night_Cap"), "policies[0].name: \"Night_Cap\" is not lower case letters"),
        (format!("{SELECTOR}{BUDGET}name: 7"), "policies[0].name: 7 is a number here; write \"7\""),
        (format!("{SELECTOR}budget: 400"), "policies[0].budget: 400 where a map is needed, with keys of watts, "),
        (
            format!("{SELECTOR}budget: {{components: [gpu]}}"),
            "policies[0].budget: exactly one of watts, percentOfPeak is needed, and none of them is given",
        ),
        (
            format!("{SELECTOR}budget: {{watts: 4, percentOfPeak: 4, components: [gpu]}}"),
            "policies[0].budget: exactly one of watts, percentOfPeak is needed, and there are several given",
        ),
        (
            format!("{SELECTOR}budget: {{watts: 4, lookbackHours: 4, components: [gpu]}}"),
            "policies[0].budget.lookbackHours: is only valid with percentOfPeak",
        ),
        (
            format!("{SELECTOR}budget: {{watts: 4}}"),
            "policies[0].budget.components: missing; it is: What is counted and capped",
        ),
        (
            format!("{SELECTOR}budget: {{watts: 4, components: [disk]}}"),
            "policies[0].budget.components[0]: \"disk\" is not one of gpu, cpu",
        ),
        (
            format!("{SELECTOR}budget: {{watts: 4, watts: 5, components: [gpu]}}"),
            "policies[0].budget.watts: given twice, first on line 3",
        ),
        (BUDGET.to_owned(), "policies[0].selector: missing; it is: Which pods"),
    ] {
        let problems = problems(&policy);
        assert!(problems[0].starts_with(problem), "{policy}: {problems:?}");
        assert!(problems[0].ends_with(" (line 3)"), "{problems:?}");
        assert_eq!(problems.len(), 1, "{policy}: {problems:?}");
    }
}

#[test]
fn fc_079_a_number_is_finite_and_above_zero_and_fc_081_in_the_unit_of_its_key() {
    let budget = |watts: &str| format!("{SELECTOR}budget: {{components: [gpu], watts: {watts}}}");
    let percent = |percent: &str| format!("{SELECTOR}budget: {{components: [gpu], percentOfPeak: {percent}}}");
    let control = |control: &str| format!("{SELECTOR}{BUDGET}control: {{{control}}}");
    let cpu = |cpu: &str| format!("{SELECTOR}budget: {{components: [cpu], watts: 9}}, actuators: {{cpu: {{{cpu}}}}}");
    for (policy, problem) in [
        (budget(".nan"), "budget.watts: .nan is not a finite number"),
        (budget("-.Inf"), "budget.watts: -.Inf is not a finite number"),
        (budget("1e999"), "budget.watts: 1e999 is not a finite number"),
        (budget("-5"), "budget.watts: -5 W is not above 0"),
        (budget("0.0"), "budget.watts: 0 W is not above 0"),
        (
            budget("250000"),
            "budget.watts: 250000 W is more than the maximum, 20000 W; in milliwatts? 250000 mW is 250 W",
        ),
        (
            budget("150000000"),
            "budget.watts: 150000000 W is more than the maximum, 20000 W; in microwatts? 150000000 uW is 150 W",
        ),
        (budget("0.25"), "budget.watts: 0.25 W is less than the minimum, 1 W; in kilowatts? 0.25 kW is 250 W"),
        (budget("250W"), "budget.watts: \"250W\" where a plain number (in W) is needed; write 250"),
        (budget("'250'"), "budget.watts: \"250\" where a plain number (in W) is needed; write 250"),
        (budget("0.25 kW"), "budget.watts: \"0.25 kW\" where a plain number (in W) is needed; write 250"),
        (percent("0.8"), "budget.percentOfPeak: 0.8 % is less than the minimum, 1 %; in a share of 1? 0.8 is 80 %"),
        (percent("80%"), "budget.percentOfPeak: \"80%\" where a plain number (in %) is needed; write 80"),
        (percent("120"), "budget.percentOfPeak: 120 % is more than the maximum, 100 %"),
        (
            control("holdSeconds: 5000"),
            "control.holdSeconds: 5000 s is more than the maximum, 3600 s; in milliseconds? 5000 ms is 5 s",
        ),
        (control("holdSeconds: 5s"), "control.holdSeconds: \"5s\" where a plain number (in s) is needed; write 5"),
        (control("holdSeconds: 2m"), "control.holdSeconds: \"2m\" where a plain number (in s) is needed; write 120"),
        (
            cpu("minFrequencyMHz: 1.2"),
            "actuators.cpu.minFrequencyMHz: 1.2 MHz is less than the minimum, 100 MHz; in GHz? 1.2 GHz is 1200 MHz",
        ),
        (
            cpu("minFrequencyMHz: 1200000"),
            "actuators.cpu.minFrequencyMHz: 1200000 MHz is more than the maximum, 10000 MHz; in kHz? 1200000 kHz is 1200 MHz",
        ),
        (cpu("minCPUs: 500m"), "actuators.cpu.minCPUs: \"500m\" where a plain number (in CPUs) is needed; write 0.5"),
        (
            cpu("minCPUs: 1500"),
            "actuators.cpu.minCPUs: 1500 CPUs is more than the maximum, 1024 CPUs; in thousandths of a CPU? 1500 m is 1.5 CPUs",
        ),
    ] {
        assert_eq!(problems(&policy), [format!("policies[0].{problem} (line 3)")]);
    }
}

#[test]
fn fields_agree_with_each_other() {
    let control = |control: &str| format!("{SELECTOR}{BUDGET}control: {{{control}}}");
    let selector = |selector: &str| format!("{BUDGET}selector: {{{selector}}}");
    let node = "selector: {selectAll: true}, budget: {watts: 400, components: [cpu], scope: PerNode}";
    let rapl = "actuators: {cpu: {use: [RaplLimit]}}";
    for (policy, problem) in [
        (
            selector(""),
            "selector: selects nothing; give labels or namespaces, as `namespaces: [energy]`, or write `selectAll: true`",
        ),
        (selector("selectAll: false"), "selector: selects nothing"),
        (
            selector("selectAll: true, namespaces: [a]"),
            "selector.selectAll: selects every pod, and namespaces only some",
        ),
        (format!("namespace: b, {SELECTOR}{BUDGET}"), "selector.namespaces: the policy has `namespace: b`"),
        (
            selector("matchExpressions: [{key: a, operator: In}]"),
            "selector.matchExpressions[0].values: missing; In and NotIn need values",
        ),
        (
            selector("matchExpressions: [{key: b, operator: Exists}, {key: a, operator: DoesNotExist, values: [b]}]"),
            "selector.matchExpressions[1].values: Exists and DoesNotExist take no values",
        ),
        (control("targetPercent: 101"), "control.targetPercent: 101 is above engagePercent, which is 100"),
        (control("engagePercent: 94"), "control.targetPercent: 95 is above engagePercent, which is 94"),
        (control("releasePercent: 95"), "control.releasePercent: 95 is not below targetPercent, which is 95"),
        (control("targetPercent: 90"), "control.releasePercent: 90 is not below targetPercent, which is 90"),
        (control("algorithm: table"), "control.table: missing; algorithm table needs it"),
        (
            control("table: [{clockMHz: 600, watts: 1}, {clockMHz: 700, watts: 2}]"),
            "control.table: is only valid with `algorithm: table`",
        ),
        (control("algorithm: table, table: [{clockMHz: 600, watts: 1}]"), "control.table: 1 are too few; at least 2"),
        (
            control("algorithm: table, table: [{clockMHz: 600, watts: 1}, {clockMHz: 600, watts: 2}]"),
            "control.table[1]: clocks must ascend, but 600 MHz comes after 600 MHz",
        ),
        (
            control("algorithm: table, table: [{clockMHz: 600, watts: 2}, {clockMHz: 700, watts: 1.5}]"),
            "control.table[1]: power must rise with the clock, but 1.5 W comes after 2 W",
        ),
        (
            format!("{SELECTOR}{BUDGET}actuators: {{cpu: {{use: [Quota]}}}}"),
            "actuators.cpu: budget.components does not name cpu",
        ),
        (format!("{SELECTOR}{BUDGET}actuators: {{gpu: {{use: []}}}}"), "actuators: nothing could ever be capped"),
        (
            format!("{SELECTOR}budget: {{watts: 400, components: [cpu]}}, {rapl}"),
            "actuators.cpu.use: RaplLimit caps the whole node",
        ),
        (format!("{}, {rapl}", node.replace("PerNode", "PerPod")), "actuators.cpu.use: RaplLimit caps the whole node"),
        (format!("namespace: a, {node}, {rapl}"), "actuators.cpu.use: RaplLimit caps the whole node"),
    ] {
        let problems = problems(&policy);
        assert!(problems[0].starts_with(&format!("policies[0].{problem}")), "{policy}: {problems:?}");
        assert_eq!(problems.len(), 1, "{policy}: {problems:?}");
    }
    for policy in [
        format!("{node}, {rapl}"),
        format!("namespace: a, {SELECTOR}{BUDGET}"),
        format!("namespace: a, {BUDGET}selector: {{selectAll: true}}"),
        control("engagePercent: 95"),
        format!("{SELECTOR}budget: {{watts: 400, components: [gpu, cpu]}}, actuators: {{gpu: {{use: []}}}}"),
    ] {
        assert_eq!(problems(&policy), [""; 0], "{policy}");
    }
}

#[test]
fn a_policy_has_a_bounded_number_of_messages_of_a_bounded_length() {
    let keys: String = (0..1000).map(|index| format!("{}{index}: 1, ", "x".repeat(500))).collect();
    let problems = problems(&keys);
    assert_eq!(problems.len(), 9);
    // 1000 keys, and selector and budget are missing.
    assert_eq!(problems[8], "policies[0]: and 994 more");
    assert!(problems.iter().all(|problem| problem.len() < 300), "{problems:?}");
}

#[test]
fn lines_are_those_of_the_file_that_the_document_is_a_part_of() {
    let text = "version: 1\npolicies:\n- name: a\n  selector: {selectAll: true}\n  budget:\n    watts: 0\n    components: [gpu]";
    assert_eq!(parse_at(text, "", 1).problems[0].1, "policies[0].budget.watts: 0 W is not above 0 (line 6)");
    assert_eq!(parse_at(text, "", 11).problems[0].1, "policies[0].budget.watts: 0 W is not above 0 (line 16)");
}
