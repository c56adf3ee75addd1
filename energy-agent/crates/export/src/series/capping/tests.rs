use std::collections::BTreeSet;
use std::time::Duration;

use energy_model::capping::knob::Knob;
use energy_model::capping::knob::KnobState;
use energy_model::capping::level::Standing;
use energy_model::capping::policy::{BudgetScope, Component, Mode};
use energy_model::capping::status::{Conflict, DocumentPlace, LevelRange, Problem, SubjectState, Writes};
use energy_model::meter_state::Reason;

use super::*;
use crate::text::Format;

fn name(namespace: &str, name: &str) -> PolicyName {
    PolicyName { namespace: namespace.into(), name: name.into(), ..PolicyName::default() }
}

fn pod(uid: &str, name: &str) -> PodId {
    PodId { uid: uid.into(), namespace: "ml".into(), name: name.into() }
}

fn text(status: &CappingStatus) -> String {
    let mut writer = Writer::new(Format::Text);
    write(&mut writer, status, "n1");
    let (page, duplicates) = writer.finish();
    assert_eq!(duplicates, Vec::<String>::new());
    String::from_utf8(page).unwrap()
}

/// The samples of a family.
fn samples<'a>(page: &'a str, name: &str) -> Vec<&'a str> {
    page.lines().filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']))).collect()
}

fn over_budget() -> CappingStatus {
    let subject = SubjectStatus {
        pod: Some(pod("u1", "train-0")),
        state: SubjectState::Capping,
        reason: None,
        budget: Some(Watts(250.0)),
        power: Some(Watts(262.5)),
        ceiling: 0.75,
        over_budget: Duration::from_millis(1500),
        over_budget_uj: 18_750_000,
        knobs: vec![Knob::GpuClock("GPU-1".into())],
    };
    let lost = |component| Conflict { pod: pod("u2", "train-1"), component, winner: name("", "first") };
    let cap = |knob, wanted, found, policy| CapStatus {
        knob,
        state: KnobState::Ok,
        wanted,
        found,
        original: None,
        policy,
        clamped: false,
        detail: None,
        writes: Writes::default(),
    };
    CappingStatus {
        policies: vec![PolicyStatus {
            name: name("ml", "train"),
            mode: Mode::Enforce,
            scope: BudgetScope::PerPod,
            source: "file /p.yaml".into(),
            pods: 1,
            range: None,
            subjects: vec![subject],
            lost: vec![lost(Component::Gpu), lost(Component::Cpu)],
        }],
        caps: vec![
            CapStatus {
                clamped: true,
                writes: Writes { ok: 3, failed: 1, restored: 2, deferred: 4 },
                ..cap(Knob::GpuClock("GPU-1".into()), Some(1_215), Some(1_305), Some(name("ml", "train")))
            },
            cap(Knob::GpuPower("GPU-1".into()), Some(300_000), Some(300_000), Some(name("ml", "train"))),
            CapStatus { state: KnobState::Yielded, ..cap(Knob::CpuQuota("/pod1".into()), None, Some(1_500), None) },
        ],
        problems: vec![Problem {
            policy: None,
            place: DocumentPlace::File("/q.yaml".to_owned()),
            message: "line 3: no colon".to_owned(),
            kept: false,
        }],
        namespaces: BTreeSet::new(),
        node: NodePower::default(),
        levels: Vec::new(),
        sources: vec![SourceState {
            source: "file /p.yaml".into(),
            up: true,
            reason: Reason::Ok,
            detail: String::new(),
        }],
        restore_pending: 1,
        restore_failures: 2,
        journal_repairs: 0,
    }
}

#[test]
fn a_node_tells_what_it_draws_may_draw_and_can_be_held_at() {
    let budget = |budget: &str, permille| NodeBudget {
        name: PolicyName { authority: Authority::Budget, namespace: "".into(), name: budget.into() },
        mode: Mode::Enforce,
        level: NodeLevel::Permille(permille),
        epoch: 7,
        standing: Standing::Followed,
        protect: None,
    };
    let levels = vec![budget("hall", 900), budget("rack", 500)];
    let policy = |budget: &NodeBudget, floor, limit, state| {
        let [first] = &over_budget().policies[..] else { panic!() };
        let mut policy = first.clone();
        policy.name = budget.name.clone();
        policy.subjects[0].state = state;
        let range = LevelRange { floor: Watts(floor), most: Watts(1000.0), limit: Some(Watts(limit)) };
        policy.range = Some(range);
        policy
    };
    let mut status = CappingStatus {
        node: NodePower { power: Some(Watts(612.5)), floor: Watts(200.0), most: Watts(1000.0) },
        // Protected pods raise the floor for the hall.
        policies: vec![
            policy(&levels[0], 400.0, 940.0, SubjectState::Open),
            policy(&levels[1], 200.0, 600.0, SubjectState::Capping),
        ],
        levels,
        ..CappingStatus::default()
    };
    let page = text(&status);
    for line in [
        "energy_agent_node_power_watts{node_name=\"n1\"} 612.500000",
        "energy_agent_node_limit_watts{budget=\"rack\",node_name=\"n1\"} 600.000000",
        "energy_agent_node_budget_floor_watts{budget=\"hall\",node_name=\"n1\"} 400.000000",
    ] {
        assert_eq!(samples(&page, line.split('{').next().unwrap()), [line]);
    }
    assert_eq!(samples(&page, "energy_agent_node_power_range_watts").len(), 2);
    // The node draws less by itself, then is not measured, then is open.
    status.policies[1].subjects[0].state = SubjectState::Open;
    status.node.power = None;
    let page = text(&status);
    assert_eq!(
        samples(&page, "energy_agent_node_limit_watts"),
        ["energy_agent_node_limit_watts{node_name=\"n1\"} 600.000000"]
    );
    assert_eq!(samples(&page, "energy_agent_node_power_watts"), Vec::<&str>::new());
    status.levels.clear();
    assert_eq!(samples(&text(&status), "energy_agent_node_limit_watts"), Vec::<&str>::new());
}

#[test]
fn a_budget_is_told_with_power_headroom_and_what_was_drawn_beyond() {
    let page = text(&over_budget());
    let of = "policy=\"train\",policy_namespace=\"ml\"";
    let subject = format!("{of},pod_id=\"u1\",pod_name=\"train-0\",pod_namespace=\"ml\",node_name=\"n1\"");
    for (metric, value) in [
        ("energy_agent_policy_budget_watts", "250.000000"),
        ("energy_agent_policy_power_watts", "262.500000"),
        ("energy_agent_policy_headroom_watts", "-12.500000"),
        ("energy_agent_policy_ceiling_ratio", "0.75"),
        ("energy_agent_policy_over_budget_seconds_total", "1.500000000"),
        ("energy_agent_policy_over_budget_joules_total", "18.750000"),
    ] {
        assert_eq!(samples(&page, metric), [format!("{metric}{{{subject}}} {value}")]);
    }
    assert_eq!(
        samples(&page, "energy_agent_policy_state"),
        [format!("energy_agent_policy_state{{{subject},state=\"capping\"}} 1")]
    );
    assert_eq!(
        samples(&page, "energy_agent_policy_info"),
        [format!(
            "energy_agent_policy_info{{{of},node_name=\"n1\",mode=\"enforce\",scope=\"per_pod\",source=\"file /p.yaml\"}} 1"
        )]
    );
}

#[test]
fn a_pod_lost_in_two_components_is_one_pod_and_a_source_without_problems_has_0() {
    let page = text(&over_budget());
    assert_eq!(
        samples(&page, "energy_agent_policy_conflicts"),
        ["energy_agent_policy_conflicts{policy=\"train\",policy_namespace=\"ml\",node_name=\"n1\"} 1"]
    );
    assert_eq!(
        samples(&page, "energy_agent_policy_problems"),
        [
            "energy_agent_policy_problems{source=\"file /p.yaml\",node_name=\"n1\"} 0",
            "energy_agent_policy_problems{source=\"file /q.yaml\",node_name=\"n1\"} 1",
        ]
    );
}

#[test]
fn objects_of_tenants_without_a_pod_here_are_no_series_of_this_node() {
    let tenants =
        |namespace: &str, policy: &str| PolicyName { authority: Authority::Tenant, ..name(namespace, policy) };
    let mut status = over_budget();
    let [admins] = &status.policies[..] else { panic!() };
    let (mut with_pod, mut lost, mut without) = (admins.clone(), admins.clone(), admins.clone());
    (with_pod.name, with_pod.lost) = (tenants("ml", "with-pod"), Vec::new());
    (lost.name, lost.pods) = (tenants("ml", "lost"), 0);
    (without.name, without.pods, without.lost) = (tenants("ml", "without"), 0, Vec::new());
    status.policies.extend([with_pod, lost, without]);
    status.namespaces = BTreeSet::from(["ml".into()]);
    let refused = |namespace: &str| Problem {
        policy: Some(tenants(namespace, "bad")),
        place: DocumentPlace::Object {
            kind: "PowerCappingPolicy",
            namespace: namespace.to_owned(),
            name: "bad".to_owned(),
        },
        message: "no".to_owned(),
        kept: false,
    };
    status.problems.extend([refused("ml"), refused("elsewhere")]);
    let page = text(&status);
    for metric in ["energy_agent_policy_info", "energy_agent_policy_conflicts", "energy_agent_policy_state"] {
        let policies: Vec<&str> = samples(&page, metric).iter().map(|line| line.split('"').nth(1).unwrap()).collect();
        assert_eq!(policies, ["train", "with-pod", "lost"], "{metric}");
    }
    let problems = samples(&page, "energy_agent_policy_problems");
    let of_objects: Vec<&&str> = problems.iter().filter(|line| line.contains("PowerCappingPolicy ")).collect();
    assert_eq!(of_objects, [&"energy_agent_policy_problems{source=\"PowerCappingPolicy ml/bad\",node_name=\"n1\"} 1"]);
}

/// FC-085, FC-086: what is asked for and what the device shows are two series, and neither stands for the other.
#[test]
fn the_wanted_limit_and_the_found_one_are_told_apart_in_base_units() {
    let page = text(&over_budget());
    let by = "policy=\"train\",policy_namespace=\"ml\"";
    let clock = "actuator=\"gpu_locked_clocks\",device=\"GPU-1\",node_name=\"n1\"";
    let power = "actuator=\"gpu_power_limit\",device=\"GPU-1\",node_name=\"n1\"";
    let quota = "actuator=\"cpu_quota\",device=\"/pod1\",node_name=\"n1\"";
    for (metric, expected) in [
        ("energy_agent_cap_limit_hertz", format!("{{{clock},{by}}} 1215000000")),
        ("energy_agent_cap_found_hertz", format!("{{{clock}}} 1305000000")),
        ("energy_agent_cap_limit_watts", format!("{{{power},{by}}} 300.000000")),
        ("energy_agent_cap_found_watts", format!("{{{power}}} 300.000000")),
        ("energy_agent_cap_found_cpus", format!("{{{quota}}} 1.5")),
    ] {
        assert_eq!(samples(&page, metric), [format!("{metric}{expected}")]);
    }
    // Nothing is wanted of the quota.
    assert_eq!(samples(&page, "energy_agent_cap_limit_cpus"), Vec::<&str>::new());
    assert_eq!(
        samples(&page, "energy_agent_cap_up")[2],
        format!("energy_agent_cap_up{{{quota},reason=\"yielded\"}} 0")
    );
    assert_eq!(
        samples(&page, "energy_agent_cap_writes_total")[..4],
        [("ok", 3), ("failed", 1), ("restored", 2), ("deferred", 4)]
            .map(|(result, count)| format!("energy_agent_cap_writes_total{{{clock},result=\"{result}\"}} {count}"))
    );
    assert_eq!(samples(&page, "energy_agent_cap_clamped")[0], format!("energy_agent_cap_clamped{{{clock}}} 1"));
    assert_eq!(
        samples(&page, "energy_agent_policy_source_up"),
        ["energy_agent_policy_source_up{source=\"file /p.yaml\",reason=\"ok\",node_name=\"n1\"} 1"]
    );
    assert_eq!(samples(&page, "energy_agent_cap_restore_pending"), ["energy_agent_cap_restore_pending 1"]);
    assert_eq!(
        samples(&page, "energy_agent_cap_restore_failures_total"),
        ["energy_agent_cap_restore_failures_total 2"]
    );
}

#[test]
fn what_was_not_measured_has_no_series_and_the_node_has_no_pod_labels() {
    let mut status = over_budget();
    let subject = &mut status.policies[0].subjects[0];
    (subject.pod, subject.power, subject.state) = (None, None, SubjectState::TelemetryLost);
    let page = text(&status);
    assert_eq!(samples(&page, "energy_agent_policy_power_watts"), Vec::<&str>::new());
    assert_eq!(samples(&page, "energy_agent_policy_headroom_watts"), Vec::<&str>::new());
    assert_eq!(
        samples(&page, "energy_agent_policy_state"),
        [
            "energy_agent_policy_state{policy=\"train\",policy_namespace=\"ml\",node_name=\"n1\",state=\"telemetry_lost\"} 1"
        ]
    );
}
