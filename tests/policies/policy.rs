//! `energy-agent policy` as a command: what it says of right and wrong policies, and that the schema says the same.

#![allow(clippy::unwrap_used, reason = "tests panic")]

mod json_schema;

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_energy-agent");
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Exit code and what was printed.
fn policy(arguments: &[&str]) -> (i32, String) {
    let output = Command::new(PROGRAM).arg("policy").args(arguments).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "nothing beside the report");
    (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
}

/// The same with `text` as standard input, under a shell that sets limits first; and the CPU time that it took, as the
/// shell counts it. Seconds.
fn check_text(limits: &str, text: &str) -> (Output, f64) {
    let mut child = Command::new("sh")
        .args(["-c", &format!("{limits}\n{PROGRAM} policy check -\ncode=$?\ntimes >&2\nexit $code")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    // The last line is the children's: user and system time, as in `0m1.230s 0m0.040s`.
    let times = stderr.lines().last().expect("the shell says the times").split_whitespace();
    let seconds = |time: &str| {
        let (minutes, seconds) = time.trim_end_matches('s').split_once('m').expect(&stderr);
        minutes.parse::<f64>().unwrap() * 60.0 + seconds.parse::<f64>().unwrap()
    };
    (output, times.map(seconds).sum())
}

/// Lines of the report on a case, without what stands before `policy `.
fn case(name: &str) -> (i32, Vec<String>) {
    let path = format!("{ROOT}/tests/cases/{name}");
    let (code, report) = policy(&["check", &path]);
    let place = format!("{path}: ConfigMap energy-agent/energy-policies key policies.yaml: ");
    (code, report.lines().map(|line| line.strip_prefix(&place).expect(line).to_owned()).collect())
}

#[test]
fn fc_078_an_unknown_field_is_named_with_its_line_and_what_was_meant() {
    assert_eq!(
        case("FC-078-unknown-field.yaml"),
        (
            1,
            vec![
                "policy night-cap: policies[0].budget.wats: unknown key; did you mean `watts`? (line 15)".to_owned(),
                "policy good: policies[1].enforcment: unknown key; did you mean `mode`? (line 20)".to_owned(),
            ]
        )
    );
}

#[test]
fn fc_078_a_document_of_another_schema_is_refused_with_what_is_meant_here() {
    let (output, _) = check_text(
        "",
        "policies:
- name: night-cap
  selector: {namespaces: [batch]}
  limits:
    gpuPowerWats: 250        # typo
- name: good
  selector: {namespaces: [web]}
  limits: {gpuPowerWatts: 300}
  enforcment: strict         # unknown field
",
    );
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "standard input: version: missing; write `version: 1` (line 1)
standard input: policy night-cap: policies[0].limits: unknown key; did you mean `budget`? (line 4)
standard input: policy good: policies[1].limits: unknown key; did you mean `budget`? (line 8)
standard input: policy good: policies[1].enforcment: unknown key; did you mean `mode`? (line 9)
"
    );
}

#[test]
fn fc_079_a_bad_number_is_refused_with_its_reason() {
    let expected = [
        "policy not-a-number: policies[0].budget.watts: .nan is not a finite number (line 12)",
        "policy infinite: policies[1].budget.watts: .inf is not a finite number (line 13)",
        "policy minus-infinite: policies[2].budget.watts: -.inf is not a finite number (line 14)",
        "policy negative: policies[3].budget.watts: -5 W is not above 0 (line 15)",
        "policy zero: policies[4].budget.watts: 0 W is not above 0 (line 16)",
        "policy null-limit: policies[5].budget.watts: empty; give it a value, or remove the key (line 17)",
    ];
    assert_eq!(case("FC-079-bad-numbers.yaml"), (1, expected.map(str::to_owned).to_vec()));
}

#[test]
fn fc_079_broken_yaml_is_refused_as_a_whole() {
    let (code, lines) = case("FC-079-bad-numbers-broken.yaml");
    assert_eq!((code, &*lines), (1, &["not valid YAML: unclosed bracket '{' (line 17)".to_owned()] as &[_]));
}

#[test]
fn fc_081_a_number_in_another_unit_gets_a_hint() {
    let expected = [
        "policy milliwatts: policies[0].budget.watts: 250000 W is more than the maximum, 20000 W; in milliwatts? 250000 mW is 250 W (line 12)",
        "policy microwatts: policies[1].budget.watts: 150000000 W is more than the maximum, 20000 W; in microwatts? 150000000 uW is 150 W (line 13)",
        "policy kilowatts: policies[2].budget.watts: 0.25 W is less than the minimum, 1 W; in kilowatts? 0.25 kW is 250 W (line 14)",
        "policy gigahertz: policies[3].actuators.cpu.minFrequencyMHz: 1.2 MHz is less than the minimum, 100 MHz; in GHz? 1.2 GHz is 1200 MHz (line 15)",
    ];
    assert_eq!(case("FC-081-units.yaml"), (1, expected.map(str::to_owned).to_vec()));
}

#[test]
fn fc_091_policies_that_overlap_are_right() {
    let expected = [
        "policy by-namespace: ok (Recommend, 400 W PerPod gpu)",
        "policy by-label: ok (Recommend, 250 W PerPod gpu)",
        "policy other-control: ok (Recommend, 60 W PerPod cpu)",
    ];
    assert_eq!(case("FC-091-overlap.yaml"), (0, expected.map(str::to_owned).to_vec()));
}

/// FC-095: no more than 64 MiB of memory may be written to, program included; the kernel keeps to it. The CPU time is there
/// for what never ends: how much is right depends on the processor, so it is compared within a run.
const LIMITS: &str = "ulimit -d 65536; ulimit -t 120";

/// Right policies, one a line.
fn many_policies(count: usize) -> String {
    let mut text = "version: 1\npolicies:\n".to_owned();
    for index in 0..count {
        let watts = 200 + index % 300;
        writeln!(
            text,
            "- {{name: p-{index:05}, selector: {{namespaces: [ns-{index:05}]}}, budget: {{watts: {watts}, components: [gpu]}}}}"
        )
        .unwrap();
    }
    text
}

#[test]
fn fc_095_a_huge_document_is_read_in_64_mib_and_in_time_that_grows_with_it() {
    let mut text = many_policies(9000);
    // Just what a ConfigMap can hold.
    let rest = (1 << 20) - text.len();
    writeln!(text, "#{}", "x".repeat(rest - 2)).unwrap();
    assert_eq!(text.len(), 1 << 20);
    let (output, took) = check_text(LIMITS, &text);
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{:?} {}", output.status, String::from_utf8_lossy(&output.stderr));
    assert_eq!(report.lines().count(), 9000);
    assert!(report.ends_with("policy p-08999: ok (Recommend, 499 W PerPod gpu)\n"));
    // Eight times the policies: work by the square of their number would take 64 times as long.
    let (output, part) = check_text(LIMITS, &many_policies(1125));
    assert!(output.status.success());
    assert!(took < 24.0 * part, "9000 policies took {took} s of CPU, 1125 {part} s");
}

#[test]
fn fc_095_bombs_and_deep_nesting_are_refused_by_a_limit() {
    let mut bomb = format!("version: 1\na0: &a0 [{}]\n", ["x"; 9].join(","));
    for level in 1..=9 {
        writeln!(bomb, "a{level}: &a{level} [{}]", vec![format!("*a{}", level - 1); 9].join(",")).unwrap();
    }
    let nested = format!("version: 1\npolicies:\n- selector: {}{}\n", "{a: ".repeat(5000), "}".repeat(5000));
    // Not one key that is known, each with a message of its own.
    let unknown: String =
        ["policies: []\n".to_owned()].into_iter().chain((0..80_000).map(|index| format!("k{index}: 1\n"))).collect();
    let (_, reference) = check_text(LIMITS, &many_policies(9000));
    for (text, problem) in [
        (bomb, "standard input: more than 250000 values"),
        (nested, "standard input: nested deeper than 32 levels (line 3)"),
        (unknown, "standard input: k0: unknown key; valid are version, policies (line 2)"),
    ] {
        let (output, took) = check_text(LIMITS, &text);
        let report = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(report.starts_with(problem) && report.len() < 1000, "{report}");
        // Two to three times as long for 80,000 messages; a bomb that goes off never ends.
        assert!(took < 10.0 * reference, "{took} s of CPU, a right document as large {reference} s: {problem}");
    }
}

#[test]
fn the_documented_example_is_right() {
    let path = format!("{ROOT}/docs/policies-example.yaml");
    let expected = [
        "batch/batch-trial: ok (Recommend, 300 W PerPod gpu)",
        "ml/llm-training: ok (Enforce, 400 W PerPod gpu)",
        "low-priority: ok (Enforce, 150 W PerNode cpu)",
        "whole-node: ok (Off, 80 % of the peak of 168 h PerNode cpu)",
        "inference/measured: ok (Off, 250 W PerPod gpu)",
    ];
    let expected: String = expected.iter().map(|line| format!("{path}: policy {line}\n")).collect();
    assert_eq!(policy(&["check", &path]), (0, expected));
}

#[test]
fn a_folder_is_checked_file_by_file_and_a_list_of_manifests_map_by_map() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let right =
        "version: 1\npolicies:\n- {name: p, selector: {selectAll: true}, budget: {watts: 9, components: [cpu]}}\n";
    fs::write(at("b.yml"), "version: 1\npolicies: []\n").unwrap();
    fs::write(at("a.yaml"), right).unwrap();
    fs::write(at("notes.txt"), "x").unwrap();
    fs::write(at(".hidden.yaml"), "x").unwrap();
    let map = |name: &str, data: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data});
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [
        map("one", json!({"x": right, "y": right.replace('9', "0")})), map("two", json!({})),
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "three"}, "binaryData": {
            "a.yaml": STANDARD.encode(right), "b.yaml": STANDARD.encode([0xff, 0xfe]), "logo.png": "iVBORw0KGgo=",
        }},
    ]});
    fs::write(at("c.json"), format!("{list:#}")).unwrap();
    fs::write(at("d.yaml"), "apiVersion: apps/v1\nkind: Deployment\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: m, namespace: n}\ndata: {k: 1}\n").unwrap();
    fs::write(at("e.yaml"), "apiVersion: climatik.io/v1alpha1\nkind: PowerCappingPolicy\n").unwrap();
    let (code, report) = policy(&["check", &folder.path().display().to_string(), &at("none.yaml")]);
    let report = report.replace(&format!("{}/", folder.path().display()), "");
    assert_eq!(
        report,
        "a.yaml: policy p: ok (Recommend, 9 W PerPod cpu)
b.yml: ok (no policies)
c.json: ConfigMap one key x: policy p: ok (Recommend, 9 W PerPod cpu)
c.json: ConfigMap one key y: policy p: policies[0].budget.watts: 0 W is not above 0 (line 3)
c.json: ConfigMap two: no key in `data` (line 15)
c.json: ConfigMap three key a.yaml: policy p: ok (Recommend, 9 W PerPod cpu)
c.json: ConfigMap three key b.yaml: it is in `binaryData` and not UTF-8; save the file as UTF-8 and apply it again, so that \
         it is in `data` (line 27)
d.yaml: a Deployment cannot hold policies, only a ConfigMap can (line 1)
d.yaml: ConfigMap n/m key k: not text; write `k: |` and the policies below it (line 7)
e.yaml: PowerCappingPolicy is a kind of Climatik; docs/migrate-from-climatik.md shows how to convert it (line 1)
none.yaml: No such file or directory (os error 2)
"
    );
    assert_eq!(code, 1);
    let empty = TempDir::new().unwrap();
    let (code, report) = policy(&["check", &empty.path().display().to_string()]);
    assert_eq!(code, 1);
    assert!(report.ends_with("no *.yaml, *.yml or *.json file in this folder\n"), "{report}");
}

#[test]
fn a_field_is_explained_with_type_unit_range_and_default() {
    let (code, whole) = policy(&["explain"]);
    assert_eq!(code, 0);
    for field in [
        "watts <number, 1 to 20000 W>",
        "mode <Off | Recommend | Enforce>  default Recommend",
        "minCPUs <number, 0.01 to 1024 CPUs>",
    ] {
        assert!(whole.contains(field), "{field} is not in {whole}");
    }
    assert!(whole.lines().all(|line| line.trim_end() == line));
    let (_, hold) = policy(&["explain", "control.holdSeconds"]);
    assert!(
        hold.starts_with("policies[].control.holdSeconds <number, 0 to 3600 s>  default 5\nAfter a cut, "),
        "{hold}"
    );
    // As a message has it.
    assert_eq!(policy(&["explain", "policies[0].control.holdSeconds"]).1, hold);
    for (field, answer) in [
        ("budget.wats", "error: policies[].budget has no field \"wats\"; did you mean watts?\n"),
        ("budget.watts.more", "error: policies[].budget.watts has no fields\n"),
    ] {
        let output = Command::new(PROGRAM).args(["policy", "explain", field]).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert_eq!(String::from_utf8_lossy(&output.stderr), answer);
    }
    for usage in [&["policy"] as &[_], &["policy", "check"], &["policy", "chek", "x"]] {
        assert_eq!(Command::new(PROGRAM).args(usage).output().unwrap().status.code(), Some(2), "{usage:?}");
    }
}

#[test]
fn objects_are_checked_as_documents_are_with_their_lines() {
    let (output, _) = check_text(
        "",
        "\
apiVersion: power.energy-agent.io/v1alpha1
kind: PowerCappingPolicy
metadata: {name: train, namespace: ml}
spec:
  selector: {matchLabels: {app: train}}
  budget: {watts: 2400, scope: Total, components: [gpu]}
---
apiVersion: power.energy-agent.io/v1alpha1
kind: PowerCappingPolicy
metadata: {name: bad, namespace: ml}
spec:
  selector: {matchLabels: {app: train}}
  budget: {wats: 400, components: [gpu]}
---
apiVersion: climatik.io/v1alpha1
kind: PowerCappingPolicy
metadata: {name: theirs}
",
    );
    let report = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = report.lines().collect();
    assert_eq!(lines.len(), 3, "{report}");
    assert_eq!(lines[0], "standard input: policy PowerCappingPolicy ml/train: ok (Recommend, 2400 W Total gpu)");
    assert_eq!(
        lines[1],
        "standard input: policy PowerCappingPolicy ml/bad: spec.budget.wats: unknown key; did you mean `watts`? (line 13)"
    );
    assert!(lines[2].contains("PowerCappingPolicy is a kind of Climatik"), "{report}");
}

#[test]
fn the_schema_in_the_documentation_is_up_to_date() {
    let path = Path::new(ROOT).join("docs/policy.schema.json");
    let (code, expected) = policy(&["schema"]);
    assert_eq!(code, 0);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &expected).unwrap();
    }
    let found = fs::read_to_string(path).unwrap_or_default();
    assert!(
        found == expected,
        "docs/policy.schema.json is old; run UPDATE_DOCS=1 cargo test -p energy-agent --test policy"
    );
}

/// Whether `check` takes a document.
fn taken(document: &Value) -> (bool, String) {
    let (output, _) = check_text("", &document.to_string());
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn what_the_schema_refuses_check_refuses_and_what_check_takes_the_schema_takes() {
    let schema: Value = serde_json::from_str(&policy(&["schema"]).1).unwrap();
    let refusal = |document: &Value| json_schema::problem(&schema, document);
    let right = json!({"version": 1, "policies": [{
        "name": "llm-training", "namespace": "ml", "mode": "Enforce", "priority": 10,
        "selector": {"matchLabels": {"app": "train", "example.com/x": ""}, "namespaces": ["ml"], "selectAll": false,
            "matchExpressions": [{"key": "tier", "operator": "In", "values": ["low"]}, {"key": "spot", "operator": "Exists"}]},
        "budget": {"percentOfPeak": 80, "lookbackHours": 24, "scope": "PerPod", "components": ["gpu", "cpu"], "windowSeconds": 1},
        "control": {"algorithm": "table", "engagePercent": 100, "targetPercent": 95, "releasePercent": 90, "holdSeconds": 5,
            "onTelemetryLoss": "Hold", "telemetryTimeoutSeconds": 300,
            "table": [{"clockMHz": 600, "watts": 180}, {"clockMHz": 900, "watts": 280.5}]},
        "actuators": {"gpu": {"use": ["LockedClocks", "PowerLimit"], "minClockMHz": 600, "allowShared": false},
            "cpu": {"use": ["Frequency", "Quota"], "minFrequencyMHz": 1200, "minCPUs": 0.5}}}]});
    assert_eq!(refusal(&right), None);
    assert_eq!(
        taken(&right),
        (
            true,
            "standard input: policy ml/llm-training: ok (Enforce, 80 % of the peak of 24 h PerPod gpu+cpu)\n"
                .to_owned()
        )
    );

    // Every value in turn becomes others that may or may not be right there, is taken away, or gets a neighbour.
    let others = [
        json!(null),
        json!(true),
        json!(-1),
        json!(0),
        json!(0.5),
        json!(50),
        json!(1e9),
        json!("x"),
        json!("In"),
        json!(""),
        json!([]),
        json!({}),
    ];
    let (mut both, mut refused, mut by_check_alone) = (0, 0, 0);
    for place in places(&right, String::new()) {
        let mut documents: Vec<_> = others.iter().map(|other| replaced(&right, &place, other.clone())).collect();
        documents.extend(without(&right, &place));
        if right.pointer(&place).unwrap().is_object() {
            documents.push(replaced(&right, &format!("{place}/unknown key"), json!(1)));
        }
        for document in documents {
            let by_schema = refusal(&document);
            let (by_check, report) = taken(&document);
            match (by_schema.is_none(), by_check) {
                (true, true) => both += 1,
                (false, false) => refused += 1,
                // What fields have to do with each other.
                (true, false) => by_check_alone += 1,
                (false, true) => {
                    panic!("only the schema refuses {place} of {document}: {:?}, {report}", by_schema)
                }
            }
            if !by_check && by_schema.is_none() {
                let across = [
                    "selects ",
                    "is above",
                    "is not below",
                    "take no values",
                    "need values",
                    "comes after",
                    "only valid with `algorithm",
                    "algorithm table needs",
                    "could ever be capped",
                    "does not name",
                    "the policy has",
                ];
                assert!(across.iter().any(|words| report.contains(words)), "only check refuses {place}: {report}");
            }
        }
    }
    assert!(both > 20 && refused > 300 && by_check_alone > 5, "{both} {refused} {by_check_alone}");
}

/// JSON pointers of a value and all within.
fn places(value: &Value, at: String) -> Vec<String> {
    let within: Vec<_> = match value {
        Value::Object(map) => map.iter().map(|(key, value)| (key.replace('/', "~1"), value)).collect(),
        Value::Array(list) => list.iter().enumerate().map(|(index, value)| (index.to_string(), value)).collect(),
        _ => Vec::new(),
    };
    let mut places: Vec<_> = within.into_iter().flat_map(|(key, value)| places(value, format!("{at}/{key}"))).collect();
    places.push(at);
    places
}

fn replaced(document: &Value, place: &str, with: Value) -> Value {
    let mut document = document.clone();
    if let Some(value) = document.pointer_mut(place) {
        *value = with;
    } else {
        let (parent, key) = place.rsplit_once('/').unwrap();
        document.pointer_mut(parent).unwrap()[key] = with;
    }
    document
}

fn without(document: &Value, place: &str) -> Option<Value> {
    let mut document = document.clone();
    let (parent, key) = place.rsplit_once('/')?;
    document.pointer_mut(parent)?.as_object_mut()?.remove(&key.replace("~1", "/"))?;
    Some(document)
}
