use super::*;
use crate::capping::knob::Knob;
use crate::capping::policy::{BudgetScope, Mode};
use crate::units::Watts;

fn name() -> PolicyName {
    PolicyName { namespace: "".into(), name: "train".into(), ..PolicyName::default() }
}

fn pod(name: &str) -> PodId {
    PodId { uid: "u1".into(), namespace: "ml".into(), name: name.into() }
}

fn told(from: Option<SubjectState>, to: SubjectState) -> Option<(ChangeKind, String)> {
    let subject = SubjectStatus {
        pod: Some(pod("train-0")),
        state: to,
        reason: None,
        budget: Some(Watts(400.0)),
        power: Some(Watts(512.25)),
        ceiling: 0.5,
        over_budget: std::time::Duration::ZERO,
        over_budget_uj: 0,
        knobs: ["GPU-1", "GPU-2"].map(|uuid| Knob::GpuClock(uuid.into())).to_vec(),
    };
    let policies = [PolicyStatus {
        name: name(),
        mode: Mode::Enforce,
        scope: BudgetScope::PerPod,
        source: "file /p.yaml".into(),
        pods: 1,
        range: None,
        subjects: vec![subject],
        lost: Vec::new(),
    }];
    let kind = BudgetChangeKind::State { from, to, reason: None };
    let change = BudgetChange { policy: name(), pod: Some(pod("train-0")), kind };
    of_budget(change, &policies, |pod| pod).map(|change| {
        assert_eq!((change.policy, change.about), (Some(name()), About::Pod(pod("train-0"))));
        (change.kind, change.message)
    })
}

#[test]
fn the_beginning_and_end_of_a_cap_are_news_with_power_and_budget() {
    use SubjectState::{Capping, Learning, Open, Recommending, Unreachable};
    let power = "512.2 W of 400.0 W, through gpu_locked_clocks";
    assert_eq!(told(Some(Open), Capping), Some((ChangeKind::Capping, format!("capped to keep the budget: {power}"))));
    let released = Some((ChangeKind::Released, format!("no longer capped: {power}")));
    assert_eq!(told(Some(Capping), Open), released);
    assert_eq!(told(Some(Unreachable), Recommending), released);
    assert_eq!(told(Some(Capping), Learning), released);
    for (from, to) in [(Some(Learning), Open), (Some(Open), Recommending), (None, Learning)] {
        assert_eq!(told(from, to), None, "{from:?} {to:?}");
    }
}

#[test]
fn the_end_of_the_agent_lets_pods_go_and_names_what_could_not_be_given_back() {
    let end = BudgetChange { policy: name(), pod: Some(pod("train-0")), kind: BudgetChangeKind::End };
    let told = of_budget(end, &[], |pod| pod).unwrap();
    assert_eq!((told.kind, told.message.as_str()), (ChangeKind::Released, "released: the agent ends"));
    let left = [Knob::GpuClock("GPU-1".into()), Knob::CpuFrequency(4)];
    let told = of_end(left.iter());
    assert!(told.kind == ChangeKind::RestoreFailed && told.about == About::Node);
    // The remedy first: an event's note may end before the list does.
    let expected = "the agent ends with limits that it could not restore; its next start or `energy-agent restore` restores them: \
                    gpu_locked_clocks of GPU-1, cpu_frequency of policy4";
    assert_eq!(told.message, expected);
}

#[test]
fn a_pod_that_nobody_knows_a_name_of_is_news_of_the_node() {
    let gone = || BudgetChange { policy: name(), pod: Some(pod("")), kind: BudgetChangeKind::Gone };
    assert_eq!(of_budget(gone(), &[], |pod| pod).unwrap().about, About::Node);
    let named = of_budget(gone(), &[], |_| pod("train-0")).unwrap();
    assert_eq!((named.kind, named.about), (ChangeKind::Released, About::Pod(pod("train-0"))));
}

#[test]
fn limits_that_are_given_back_together_are_one_piece_of_news() {
    let change = |uuid: &str, kind| KnobChange {
        knob: Knob::GpuClock(uuid.into()),
        policy: Some(name()),
        kind,
        detail: "open".to_owned(),
    };
    let kinds = [
        change("GPU-1", KnobChangeKind::Restored),
        change("GPU-2", KnobChangeKind::Restored),
        change("GPU-3", KnobChangeKind::Reverted),
        change("GPU-4", KnobChangeKind::Foreign),
    ];
    let told = of_knobs(kinds.to_vec());
    assert_eq!(
        told.iter().map(|change| (change.kind, &*change.message)).collect::<Vec<_>>(),
        [
            (ChangeKind::ForeignChange, "gpu_locked_clocks of GPU-4: another program writes it: open"),
            (
                ChangeKind::Restored,
                "gpu_locked_clocks of GPU-1: restored: open; gpu_locked_clocks of GPU-2: restored: open"
            ),
        ]
    );
}

#[test]
fn a_refusal_is_news_of_its_configmap() {
    let problem = |place| Problem {
        policy: Some(name()),
        place,
        message: "policies[0].mode: no such mode".to_owned(),
        kept: true,
    };
    let [namespace, name_of_map, key] = ["energy", "policies", "gpu.yaml"].map(str::to_owned);
    let told = of_problem(&problem(DocumentPlace::ConfigMap { namespace, name: name_of_map, key }));
    assert_eq!(told.about, About::ConfigMap { namespace: "energy".into(), name: "policies".into() });
    assert_eq!(
        told.message,
        "refused, the previous version stays active: ConfigMap energy/policies key gpu.yaml: policies[0].mode: no such mode"
    );
    assert_eq!(of_problem(&problem(DocumentPlace::File("/etc/policies.yaml".to_owned()))).about, About::Node);
}
