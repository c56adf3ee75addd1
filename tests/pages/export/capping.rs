//! A hand-made state of capping, with names that have to be escaped, of all that is served.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use energy_model::capping::knob::Knob;
use energy_model::capping::knob::KnobState;
use energy_model::capping::level::{NodeBudget, NodeLevel, Standing};
use energy_model::capping::policy::{Authority, BudgetScope, Component, Mode, PolicyName};
use energy_model::capping::status::SourceState;
use energy_model::capping::status::{
    CapStatus, CappingStatus, Conflict, DocumentPlace, LevelRange, NodePower, PodId, PolicyStatus, Problem,
    SubjectState, SubjectStatus, Writes,
};
use energy_model::meter_state::Reason;
use energy_model::units::Watts;

pub const GPU: &str = "GPU-5fd4f087-86f3-7a43-b711-4771313afc50";
const SOURCE: &str = "ConfigMap energy/policies key gpu.yaml";

fn pod(uid: &str, name: &str) -> PodId {
    PodId { uid: uid.into(), namespace: "ml".into(), name: name.into() }
}

fn policy(name: &str) -> PolicyName {
    PolicyName { namespace: Arc::from(""), name: name.into(), ..PolicyName::default() }
}

fn subject(pod: Option<PodId>, state: SubjectState, budget: f64, power: Option<f64>, ceiling: f64) -> SubjectStatus {
    SubjectStatus {
        pod,
        state,
        reason: (state == SubjectState::TelemetryLost).then(|| "no <power> of a GPU".to_owned()),
        budget: Some(Watts(budget)),
        power: power.map(Watts),
        ceiling,
        over_budget: Duration::from_millis(12_500),
        over_budget_uj: 431_000_000,
        knobs: vec![Knob::GpuClock(GPU.into())],
    }
}

fn cap(knob: Knob, state: KnobState, values: [Option<u64>; 3], by: Option<&str>) -> CapStatus {
    let [wanted, found, original] = values;
    let writes = Writes { ok: 7, failed: 1, restored: 2, deferred: 3 };
    CapStatus { knob, state, wanted, found, original, policy: by.map(policy), clamped: false, detail: None, writes }
}

/// Two policies, of which the second lost a pod to the first; a budget over many nodes; a refused policy; a cap of each unit.
pub fn status() -> CappingStatus {
    let conflict = |component| Conflict { pod: pod("u1", "train-0"), component, winner: policy("train-cap") };
    let quota = Knob::CpuQuota("/kubepods.slice/kubepods-podu3.slice".into());
    CappingStatus {
        policies: vec![
            PolicyStatus {
                name: policy("node-ceiling"),
                mode: Mode::Recommend,
                scope: BudgetScope::PerNode,
                source: SOURCE.into(),
                pods: 1,
                range: None,
                subjects: vec![subject(None, SubjectState::Recommending, 900.0, Some(955.5), 0.9)],
                lost: vec![conflict(Component::Gpu), conflict(Component::Cpu)],
            },
            PolicyStatus {
                name: policy("train-cap"),
                mode: Mode::Enforce,
                scope: BudgetScope::PerPod,
                source: SOURCE.into(),
                pods: 1,
                range: None,
                subjects: vec![
                    subject(Some(pod("u1", "train-0")), SubjectState::Capping, 250.0, Some(262.5), 0.75),
                    subject(Some(pod("u3", "train-1")), SubjectState::TelemetryLost, 250.0, None, 1.0),
                ],
                lost: Vec::new(),
            },
            // A budget over many nodes, for which protected pods raise the floor: 600 W and 420 thousandths of 900 W.
            PolicyStatus {
                name: PolicyName { authority: Authority::Budget, ..policy("hall-2") },
                mode: Mode::Enforce,
                scope: BudgetScope::PerNode,
                source: "ClusterPowerBudget hall-2".into(),
                pods: 0,
                range: Some(LevelRange { floor: Watts(600.0), most: Watts(1500.0), limit: Some(Watts(978.0)) }),
                subjects: Vec::new(),
                lost: Vec::new(),
            },
        ],
        caps: vec![
            cap(Knob::GpuClock(GPU.into()), KnobState::Ok, [Some(1_215), Some(1_305), None], Some("train-cap")),
            cap(
                Knob::GpuPower(GPU.into()),
                KnobState::Ok,
                [Some(300_000), Some(300_000), Some(700_000)],
                Some("train-cap"),
            ),
            cap(quota, KnobState::Yielded, [Some(2_500), Some(1_500), None], Some("train-cap")),
        ],
        problems: vec![Problem {
            policy: Some(policy("night")),
            place: DocumentPlace::File("/etc/energy-agent/<night>.yaml".to_owned()),
            message: "policies[0].budget.watts: \"<b>\" is no number".to_owned(),
            kept: true,
        }],
        namespaces: BTreeSet::new(),
        node: NodePower { power: Some(Watts(900.0)), floor: Watts(300.0), most: Watts(1500.0) },
        levels: vec![NodeBudget {
            name: PolicyName { authority: Authority::Budget, ..policy("hall-2") },
            mode: Mode::Enforce,
            level: NodeLevel::Permille(420),
            epoch: 17,
            standing: Standing::Followed,
            protect: None,
        }],
        sources: vec![SourceState {
            source: "ConfigMap energy/<policies>".into(),
            up: false,
            reason: Reason::Forbidden,
            detail: "<no> permission".to_owned(),
        }],
        restore_pending: 1,
        restore_failures: 2,
        journal_repairs: 0,
    }
}
