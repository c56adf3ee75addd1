//! How policies and caps stand after a tick: what metrics, the page `/policies` and events are made from.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::knob::Knob;
use super::level::NodeBudget;
use super::policy::{Authority, BudgetScope, Component, Mode, PolicyName};
use crate::capping::knob::KnobState;
use crate::meter_state::Reason;

use crate::units::Watts;

/// Part of the snapshot.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CappingStatus {
    /// Ascending by name.
    pub policies: Vec<PolicyStatus>,
    /// Ascending by knob.
    pub caps: Vec<CapStatus>,
    /// Documents and policies that were refused: `policies[0].budget.watts: ...`, with their source.
    pub problems: Vec<Problem>,
    /// Namespaces with pods here.
    pub namespaces: BTreeSet<Arc<str>>,
    /// The whole node, for budgets over many.
    pub node: NodePower,
    /// Budgets over many nodes that select this one, ascending by name.
    pub levels: Vec<NodeBudget>,
    /// Files and ConfigMaps that policies are read from, in the order of their rank.
    pub sources: Vec<SourceState>,
    /// Entries of the journal that could not be restored so far.
    pub restore_pending: u64,
    pub restore_failures: u64,
    /// Times that the journal was written anew because somebody else had removed or changed it.
    pub journal_repairs: u64,
}

/// All that a node draws, and the range that its power can be held in.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NodePower {
    /// `None`: some of it was not measured in the last seconds.
    pub power: Option<Watts>,
    /// What it can be held at.
    pub floor: Watts,
    /// What its devices may draw together.
    pub most: Watts,
}

/// What a node may draw by all budgets over many nodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NodeLimit<'a> {
    pub watts: Watts,
    /// The budget without which the node would draw more.
    pub held_by: Option<&'a PolicyName>,
}

/// Where a document of policies lies. The order decides between two policies of one name: the first one counts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DocumentPlace {
    File(String),
    ConfigMap {
        namespace: String,
        name: String,
        key: String,
    },
    /// Of `power.energy-agent.io`; the namespace is empty for kinds without.
    Object {
        kind: &'static str,
        namespace: String,
        name: String,
    },
}

impl fmt::Display for DocumentPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "file {path}"),
            Self::ConfigMap { namespace, name, key } => write!(f, "ConfigMap {namespace}/{name} key {key}"),
            Self::Object { kind, namespace, name } if namespace.is_empty() => write!(f, "{kind} {name}"),
            Self::Object { kind, namespace, name } => write!(f, "{kind} {namespace}/{name}"),
        }
    }
}

/// What is wrong with a document or one policy of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    /// `None`: the whole document.
    pub policy: Option<PolicyName>,
    pub place: DocumentPlace,
    /// With its path, and line where it is known.
    pub message: String,
    /// An earlier version of the policy is still active.
    pub kept: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct PolicyStatus {
    pub name: PolicyName,
    pub mode: Mode,
    pub scope: BudgetScope,
    /// Where it was read.
    pub source: Arc<str>,
    /// Those that it decides about.
    pub pods: usize,
    /// Where it follows a level.
    pub range: Option<LevelRange>,
    /// One for each selected pod, or one for the node.
    pub subjects: Vec<SubjectStatus>,
    /// Pods that a policy of higher rank decides about.
    pub lost: Vec<Conflict>,
}

/// Between which bounds the devices of a budget over many nodes can be held on this one, and what its level lets them draw.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LevelRange {
    pub floor: Watts,
    pub most: Watts,
    /// `None`: the level is open.
    pub limit: Option<Watts>,
}

/// A pod whose component another policy decides about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Conflict {
    pub pod: PodId,
    pub component: Component,
    pub winner: PolicyName,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodId {
    pub uid: Arc<str>,
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

/// What one budget is compared with.
#[derive(Clone, Debug, PartialEq)]
pub struct SubjectStatus {
    /// `None`: the node.
    pub pod: Option<PodId>,
    pub state: SubjectState,
    /// Why, for people, where the state alone does not say it.
    pub reason: Option<String>,
    /// `None`: not known yet (percentOfPeak without a peak).
    pub budget: Option<Watts>,
    pub power: Option<Watts>,
    /// Share of the full range that is allowed, 0 to 1; 1 is open.
    pub ceiling: f64,
    /// Since the policy came into force.
    pub over_budget: Duration,
    pub over_budget_uj: u64,
    /// The knobs through which it acts.
    pub knobs: Vec<Knob>,
}

/// The value of the label `state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SubjectState {
    /// Mode Off.
    Off,
    /// Under its budget, nothing is lowered.
    Open,
    /// Something is lowered.
    Capping,
    /// Mode Recommend: it would be lowered.
    Recommending,
    /// At the floor and still over the budget.
    Unreachable,
    /// Power is not measured at present.
    TelemetryLost,
    /// No knob can be used: none there, not supported, not permitted, shared with others, yielded.
    NoActuator,
    /// The peak that the budget is a part of is not known yet.
    Learning,
}

crate::as_str!(SubjectState {
    Off => "off",
    Open => "open",
    Capping => "capping",
    Recommending => "recommending",
    Unreachable => "unreachable",
    TelemetryLost => "telemetry_lost",
    NoActuator => "no_actuator",
    Learning => "learning",
});

/// One knob that is or was written since the agent started, or that an active policy would use.
#[derive(Clone, Debug, PartialEq)]
pub struct CapStatus {
    pub knob: Knob,
    pub state: KnobState,
    /// What is wanted; `None`: as it was.
    pub wanted: Option<u64>,
    /// What was found when it was read last; `None`: open, or not readable.
    pub found: Option<u64>,
    pub original: Option<u64>,
    /// Whose limit it is.
    pub policy: Option<PolicyName>,
    /// Raised to the least that the device allows.
    pub clamped: bool,
    /// For people, with the remedy: what the state alone does not say.
    pub detail: Option<String>,
    pub writes: Writes,
}

/// Writes since the agent started, by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Writes {
    pub ok: u64,
    pub failed: u64,
    /// Given back.
    pub restored: u64,
    /// Put off because there were too many in the last minute.
    pub deferred: u64,
}

impl Problem {
    /// Whether it is this node's to tell, which has pods in these namespaces. Every node reads the objects of all tenants, and a
    /// mistake of one is nothing that thousands of nodes have to report.
    #[must_use]
    pub fn concerns(&self, namespaces: &BTreeSet<Arc<str>>) -> bool {
        let tenant = self.policy.as_ref().filter(|policy| policy.authority == Authority::Tenant);
        tenant.is_none_or(|policy| namespaces.contains(&policy.namespace))
    }
}

impl CappingStatus {
    /// The refusals that are this node's to tell.
    pub fn own_problems(&self) -> impl Iterator<Item = &Problem> {
        self.problems.iter().filter(|problem| problem.concerns(&self.namespaces))
    }

    /// The lowest limit of all budgets that are enforced; `None`: no budget limits the node.
    #[must_use]
    pub fn node_limit(&self) -> Option<NodeLimit<'_>> {
        let enforced = self.levels.iter().filter(|budget| budget.mode == Mode::Enforce);
        let limits = enforced.filter_map(|budget| {
            let policy = self.policy_of(budget)?;
            Some((policy.range?.limit?, policy))
        });
        let (watts, policy) = limits.min_by(|(a, _), (b, _)| a.0.total_cmp(&b.0))?;
        let holds = policy.subjects.iter().any(|subject| subject.state.is_capped());
        Some(NodeLimit { watts, held_by: holds.then_some(&policy.name) })
    }

    /// The node's floor for this budget, where protected pods raise it.
    #[must_use]
    pub fn raised_floor(&self, budget: &NodeBudget) -> Option<Watts> {
        let floor = self.policy_of(budget)?.range?.floor;
        (floor > self.node.floor).then_some(floor)
    }

    /// The budget as the node keeps it.
    fn policy_of(&self, budget: &NodeBudget) -> Option<&PolicyStatus> {
        self.policies.iter().find(|policy| policy.name == budget.name)
    }
}

impl SubjectState {
    /// It would draw more if nothing were lowered.
    #[must_use]
    pub const fn is_capped(self) -> bool {
        matches!(self, Self::Capping | Self::Unreachable)
    }
}

impl PolicyStatus {
    /// It is no tenant's, or selects a pod here.
    #[must_use]
    pub fn concerns_node(&self) -> bool {
        self.name.authority != Authority::Tenant || self.pods > 0 || !self.lost.is_empty()
    }

    /// Pods that a policy of higher rank decides about, in whole or in part.
    #[must_use]
    pub fn lost_pods(&self) -> BTreeSet<&PodId> {
        self.lost.iter().map(|conflict| &conflict.pod).collect()
    }
}

impl SubjectStatus {
    /// Budget minus power; negative over the budget.
    #[must_use]
    pub fn headroom(&self) -> Option<Watts> {
        let (Watts(budget), Watts(power)) = (self.budget?, self.power?);
        Some(Watts(budget - power))
    }
}

impl CapStatus {
    /// It can be written, as far as is known.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.state == KnobState::Ok
    }
}

impl Writes {
    /// By the values of the label `result`.
    #[must_use]
    pub const fn by_result(self) -> [(&'static str, u64); 4] {
        let Self { ok, failed, restored, deferred } = self;
        [("ok", ok), ("failed", failed), ("restored", restored), ("deferred", deferred)]
    }
}

/// The state of one of the configured sources. Its last answer is active, whatever the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceState {
    /// `file /etc/...`, `ConfigMap ns/name` or `ConfigMaps ns with LABELS`.
    pub source: Arc<str>,
    /// It can be read at present.
    pub up: bool,
    /// [`Reason::Ok`] or [`Reason::Absent`] where it is up.
    pub reason: Reason,
    /// For people: what was found, or the object and the remedy.
    pub detail: String,
}
