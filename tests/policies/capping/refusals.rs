//! Documents that are refused while others are active: they change no hardware, and their author gets an Event.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::NamedTempFile;

use super::map::Map;
use super::world::{GpuPod, World, assert_shows, document, limit};
use crate::common::agent::{Agent, PROGRAM, wait_for};
use crate::common::page::Page;

/// The document of a case, with its policies in mode Enforce.
fn case(text: &str) -> String {
    let (_, text) = text.split_once("  policies.yaml: |\n").unwrap();
    let lines = text.lines().map_while(|line| line.strip_prefix("    "));
    let text: String = lines.map(|line| format!("{line}\n")).collect();
    text.replace("- {name:", "- {mode: Enforce, name:")
        .replace("\n  budget:", "\n  mode: Enforce\n  actuators: {gpu: {use: [PowerLimit]}}\n  budget:")
}

/// Refusals of a source, by the policy's name.
fn refusals(agent: &Agent, source: &str) -> Vec<Value> {
    let told = agent.policies();
    told["problems"].as_array().unwrap().iter().filter(|problem| problem["source"] == source).cloned().collect()
}

fn wait_for_refusals(agent: &Agent, source: &str, count: usize) -> Vec<Value> {
    wait_for(&format!("{count} refusals of {source}"), || {
        Some(refusals(agent, source)).filter(|refused| refused.len() == count)
    })
}

/// What the GPUs of [`Maps`] are limited to; milliwatts.
const HELD: [Option<u32>; 3] = [Some(400_000), Some(250_000), Some(300_000)];

/// An agent that follows ConfigMaps, by which the GPUs of three pods are limited.
struct Maps {
    world: World,
    agent: Agent,
    steady: Map,
    /// With the two policies of FC-078, as they were meant.
    typo: Map,
    /// How much was written once all three limits held.
    writes: usize,
    _pods: [GpuPod; 4],
}

/// The document of FC-078, with its mistakes.
fn with_unknown_keys() -> String {
    case(include_str!("../../cases/FC-078-unknown-field.yaml"))
}

impl Maps {
    fn new() -> Self {
        let mut world = World::new();
        let node = world.node.name.clone();
        let pods = [
            world.pod("steady"),
            world.pod_of("batch", &format!("batch-{node}"), &[]),
            world.pod_of("web", &format!("web-{node}"), &[]),
            world.pod_of("a", &format!("a-{node}"), &[]),
        ];
        for (uuid, pod) in ["GPU-steady", "GPU-batch", "GPU-web", "GPU-a"].into_iter().zip(&pods) {
            world.gpu(uuid, 2.0, &[(pod, 1.0)]);
        }
        let [steady, typo] = ["steady", "fc-078"].map(|name| Map::new(&world, name));
        let right = with_unknown_keys().replace("wats:", "watts:").replace("  enforcment: strict", "");
        assert!(!right.contains("wats") && !right.contains("enforcment"), "{right}");
        steady.set(&document(&limit("steady", 400.0)));
        typo.set(&right);
        let agent = world.spawn(&["--capping=on", &Map::flag_of_all(&world)]);
        let mut maps = Self { world, agent, steady, typo, writes: 0, _pods: pods };
        maps.world.wait("three limits", || maps.held() == HELD);
        maps.agent.after_ticks(2);
        maps.writes = maps.world.nvml.writes().len();
        maps
    }

    fn held(&self) -> [Option<u32>; 3] {
        ["GPU-steady", "GPU-batch", "GPU-web"].map(|uuid| self.world.limit_mw(uuid))
    }

    /// Nothing was written since, to any GPU.
    fn assert_untouched(&self) {
        assert_eq!((self.held(), self.world.nvml.writes().len()), (HELD, self.writes));
        assert_eq!(self.world.writes("GPU-a"), []);
    }
}

#[test]
fn an_edit_with_unknown_keys_leaves_the_accepted_version_in_force_fc_078() {
    let mut maps = Maps::new();
    let wrong = with_unknown_keys();
    maps.typo.set(&wrong);
    let refused = wait_for_refusals(&maps.agent, &maps.typo.source(), 2);
    let line = |text: &str| 1 + wrong.lines().position(|line| line.contains(text)).unwrap();
    for (refused, name, message) in [
        (
            &refused[0],
            "night-cap",
            format!("policies[0].budget.wats: unknown key; did you mean `watts`? (line {})", line("wats")),
        ),
        (
            &refused[1],
            "good",
            format!("policies[1].enforcment: unknown key; did you mean `mode`? (line {})", line("enforcment")),
        ),
    ] {
        assert_eq!([&refused["policy"]["name"], &refused["message"]], [name, &message]);
        assert_eq!(refused["kept"], true);
        let event = maps.world.one_event("Invalid", &message);
        let name = &maps.typo.name;
        let regarding = json!({"apiVersion": "v1", "kind": "ConfigMap", "namespace": "default", "name": name});
        assert_eq!((&event["regarding"], &event["type"]), (&regarding, &json!("Warning")));
        assert!(event["note"].as_str().unwrap().contains("the previous version stays active"), "{event}");
    }
    let page = maps.agent.after_ticks(3);
    for (name, watts) in [("night-cap", 250.0), ("good", 300.0)] {
        assert_shows(&page, "energy_agent_policy_budget_watts", &[("policy", name)], watts);
    }
    assert_shows(&page, "energy_agent_policy_problems", &[("source", &maps.typo.source())], 2.0);
    maps.assert_untouched();
    maps.agent.assert_logged("the previous version stays active", 2);
    maps.agent.assert_well();
}

#[test]
fn numbers_and_units_that_are_wrong_are_refused_with_the_reason_of_each_fc_079_fc_081() {
    let mut maps = Maps::new();
    let [numbers, broken, units] = ["fc-079", "fc-079-broken", "fc-081"].map(|name| Map::new(&maps.world, name));
    numbers.set(&case(include_str!("../../cases/FC-079-bad-numbers.yaml")));
    broken.set(&case(include_str!("../../cases/FC-079-bad-numbers-broken.yaml")));
    units.set(&case(include_str!("../../cases/FC-081-units.yaml")));
    let reasons = [
        (&numbers, "not-a-number", ".nan is not a finite number"),
        (&numbers, "infinite", ".inf is not a finite number"),
        (&numbers, "minus-infinite", "-.inf is not a finite number"),
        (&numbers, "negative", "-5 W is not above 0"),
        (&numbers, "zero", "0 W is not above 0"),
        (&numbers, "null-limit", "empty; give it a value"),
        (&units, "milliwatts", "in milliwatts? 250000 mW is 250 W"),
        (&units, "microwatts", "in microwatts? 150000000 uW is 150 W"),
        (&units, "kilowatts", "in kilowatts? 0.25 kW is 250 W"),
        (&units, "gigahertz", "in GHz? 1.2 GHz is 1200 MHz"),
    ];
    for (map, count) in [(&numbers, 6), (&units, 4)] {
        let refused = wait_for_refusals(&maps.agent, &map.source(), count);
        let expected: Vec<_> = reasons.iter().filter(|(of, ..)| of.name == map.name).collect();
        for (refused, (_, name, reason)) in refused.iter().zip(expected) {
            assert_eq!((&refused["policy"]["name"], &refused["kept"]), (&json!(name), &json!(false)));
            assert!(refused["message"].as_str().unwrap().contains(reason), "{refused}");
        }
    }
    let whole = wait_for_refusals(&maps.agent, &broken.source(), 1);
    assert!(whole[0]["policy"].is_null() && whole[0]["message"].as_str().unwrap().starts_with("not valid YAML"));
    let page = maps.agent.after_ticks(3);
    for (map, count) in [(&maps.steady, 0.0), (&maps.typo, 0.0), (&numbers, 6.0), (&broken, 1.0), (&units, 4.0)] {
        assert_shows(&page, "energy_agent_policy_problems", &[("source", &map.source())], count);
    }
    for (_, name, _) in reasons {
        assert!(!page.has("energy_agent_policy_info", &[("policy", name)]), "{name}");
    }
    maps.assert_untouched();
    maps.agent.assert_well();
}

#[test]
fn beside_a_refused_configmap_the_others_go_on_and_its_deletion_ends_what_it_had_in_force() {
    let mut maps = Maps::new();
    maps.typo.set(&with_unknown_keys());
    wait_for_refusals(&maps.agent, &maps.typo.source(), 2);
    maps.steady.set(&document(&limit("steady", 350.0)));
    maps.world.wait_for_limit("GPU-steady", 350_000);
    // It lives by its last good version.
    maps.typo.delete();
    for uuid in ["GPU-batch", "GPU-web"] {
        maps.world.wait_until_open(uuid);
    }
    assert_eq!(maps.world.limit_mw("GPU-steady"), Some(350_000));
    // No other ConfigMap of the cluster is ever asked for.
    let asked = maps.world.node.proxy.asked();
    let of_maps: Vec<_> = asked.iter().filter(|asked| asked.path.contains("/configmaps")).collect();
    assert!(!of_maps.is_empty() && of_maps.iter().all(|asked| asked.path.contains("labelSelector=")), "{of_maps:#?}");
    maps.agent.assert_well();
}

/// Seconds of work in ticks, and their number.
fn ticking(page: &Page) -> (f64, f64) {
    let of = |part: &str| page.number(&format!("energy_agent_tick_duration_seconds_{part}"));
    (of("sum"), of("count"))
}

/// How long `policy check` takes for a document, on this machine and beside what else runs on it now.
fn checked(text: &str) -> Duration {
    let file = NamedTempFile::new().unwrap();
    fs::write(file.path(), text).unwrap();
    let began = Instant::now();
    let output = Command::new(PROGRAM).args(["policy", "check"]).arg(file.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    began.elapsed()
}

#[test]
fn nine_thousand_policies_come_into_force_and_what_is_too_large_is_refused_fc_095() {
    let mut world = World::new();
    let _pods = world.busy(["train"]);
    world.policies(&limit("train", 400.0));
    let mut agent = world.agent(&[]);
    world.wait_for_limit("GPU-train", 400_000);
    let resident = |page: &Page| page.number("process_resident_memory_bytes");
    let before = agent.after_ticks(2);
    // What any edit takes until it acts.
    let began = Instant::now();
    world.policies(&limit("train", 390.0));
    world.wait_for_limit("GPU-train", 390_000);
    let any = began.elapsed();
    let mut many = limit("train", 350.0);
    for number in 0..9000 {
        let watts = 200 + number % 300;
        writeln!(many, "- {{name: p-{number:05}, selector: {{namespaces: [ns-{number:05}]}}, budget: {{watts: {watts}, components: [gpu]}}}}").unwrap();
    }
    // Just below what a ConfigMap can hold.
    let rest = (1 << 20) - document(&many).len();
    writeln!(many, "#{}", "x".repeat(rest - 100)).unwrap();
    let reference = checked(&document(&many));
    let began = Instant::now();
    world.policies(&many);
    world.wait_for_limit("GPU-train", 350_000);
    let took = began.elapsed();
    let first = agent.after_ticks(2);
    assert_eq!(first.select("energy_agent_policy_info", &[]).len(), 9001);
    let page = agent.after_ticks(6);
    let grown = resident(&page) - resident(&before);
    let ((spent, ticks), (spent_before, ticks_before)) = (ticking(&page), ticking(&first));
    let tick = (spent - spent_before) / (ticks - ticks_before);
    println!(
        "in force after {took:?}, a small edit after {any:?}, {:.1} MiB more, {:.1} ms a tick",
        grown / f64::from(1 << 20),
        tick * 1e3
    );
    let enough = 10 * (any + reference);
    assert!(took < enough, "{took:?}, {any:?} for a small edit and {reference:?} to check it");
    assert!(grown < f64::from(64 << 20), "{grown} bytes");

    let mut bomb = "version: 1\na0: &a0 [x,x,x,x,x,x,x,x,x]\n".to_owned();
    for level in 1..=9 {
        writeln!(bomb, "a{level}: &a{level} [{}]", vec![format!("*a{}", level - 1); 9].join(",")).unwrap();
    }
    let nested = format!("version: 1\npolicies:\n- selector: {}{}\n", "{a: ".repeat(5000), "}".repeat(5000));
    for (text, message) in [(bomb, "more than 250000 values"), (nested, "nested deeper than 32 levels")] {
        let began = Instant::now();
        world.text(&text);
        world.wait(message, || !agent.logged(message).is_empty());
        assert!(began.elapsed() < enough, "{:?} of {enough:?}", began.elapsed());
        let page = agent.after_ticks(2);
        // What was in force stays so.
        assert_eq!(page.select("energy_agent_policy_info", &[]).len(), 9001);
        assert_eq!(world.limit_mw("GPU-train"), Some(350_000));
        assert!(resident(&page) - resident(&before) < f64::from(64 << 20));
    }
    world.policies(&limit("train", 300.0));
    world.wait_for_limit("GPU-train", 300_000);
    agent.assert_well();
}
