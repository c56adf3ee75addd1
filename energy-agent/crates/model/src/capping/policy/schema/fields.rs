//! The fields of a policy document, one after the other. Each is declared here and nowhere else; [`super`] says how.
//!
//! A new field is an entry here, a place in the types of [`policy`](crate::capping::policy), and a line of `read.rs` that
//! takes it from here to there. `docs/policy.schema.json` is written anew by `UPDATE_DOCS=1 cargo test --test policies`.

use super::{Field, FieldKind, Map, Object, Presence, TypedField, object, words};
use crate::capping::policy::syntax::Syntax;
use crate::capping::policy::unit::Unit;
use crate::capping::policy::{BudgetScope, Component, Mode, Operator, TelemetryLoss};
use std::collections::BTreeMap;
use std::time::Duration;

/// The format that is read.
const FORMAT: i32 = 1;
/// The most watts a budget may have: a rack, or a key in another unit.
pub(crate) const MAX_WATTS: f64 = 20_000.0;
/// The same of a budget of the whole cluster.
pub(crate) const MAX_TOTAL_WATTS: f64 = 10_000_000.0;
/// Items of a list that people write.
const MANY: usize = 256;
/// Shares of a budget.
const SHARE: FieldKind = FieldKind::Number { unit: Unit::Percent, min: 1.0, max: 150.0 };

words! {
    /// How the next clock is found.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum AlgorithmName {
        Ratio = "ratio",
        Table = "table",
        External = "external",
    }
}

words! {
    /// By which means GPUs are lowered.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum GpuMeans {
        LockedClocks = "LockedClocks",
        PowerLimit = "PowerLimit",
    }
}

words! {
    /// By which means CPUs are lowered.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum CpuMeans {
        Frequency = "Frequency",
        Quota = "Quota",
        RaplLimit = "RaplLimit",
    }
}

object! {
    /// A whole document.
    document {
        VERSION: i32 = Field::new(
            "version",
            FieldKind::Whole { unit: Unit::None, min: FORMAT, max: FORMAT },
            Presence::Required,
            "Version of this format.",
        ).alike(&["apiVersion"]);
        POLICIES: Vec<Map> = Field::new(
            "policies",
            FieldKind::List { of: &FieldKind::Object(&policy::OBJECT), min: 0, max: 20_000 },
            Presence::Required,
            "The policies. If one is refused, the others stay active, and its previous version stays active too.",
        ).alike(&["items", "rules"]);
    }
}

object! {
    /// `policies[]`.
    policy {
        NAME: String = Field::new(
            "name",
            FieldKind::Text(Syntax::Name),
            Presence::Required,
            "Name of the policy, unique in its namespace: metrics, events and the journal use it.",
        ).alike(&["id", "metadata"]);
        NAMESPACE: String = Field::new(
            "namespace",
            FieldKind::Text(Syntax::Namespace),
            Presence::Optional("pods of every namespace"),
            "Only pods of this namespace are selected, as by a NetworkPolicy.",
        );
        MODE: Mode = Field::new(
            "mode",
            FieldKind::Choice(Mode::WORDS),
            Presence::Default("Recommend"),
            "Off: nothing is done. Recommend: everything except the writes; metrics show what would be capped. Enforce: clocks, power limits and quotas are capped while the power is over the budget.",
        ).alike(&["enforcement", "enforcementMode", "action", "enforce"]);
        PRIORITY: i32 = Field::new(
            "priority",
            FieldKind::Whole { unit: Unit::None, min: -1_000_000_000, max: 1_000_000_000 },
            Presence::Default("0"),
            "If several policies select a pod, one decides for each component: the one with the highest priority, then with the lowest budget, then the first by name.",
        ).alike(&["weight", "order", "precedence"]);
        SELECTOR: Map = Field::new(
            "selector",
            FieldKind::Object(&selector::OBJECT),
            Presence::Required,
            "Which pods. A pod must match all parts.",
        ).alike(&["match", "podSelector", "target", "targets", "pods"]);
        BUDGET: Map = Field::new(
            "budget",
            FieldKind::Object(&budget::OBJECT),
            Presence::Required,
            "How much power they may draw.",
        ).alike(&["limits", "limit", "cap", "powerBudget", "power"]);
        CONTROL: Map = Field::new(
            "control",
            FieldKind::Object(&control::OBJECT),
            Presence::Default("{}"),
            "How the budget is kept. The percentages are of the budget.",
        ).alike(&["controller", "law", "tuning"]);
        ACTUATORS: Map = Field::new(
            "actuators",
            FieldKind::Object(&actuators::OBJECT),
            Presence::Default("{}"),
            "Which limits are used to lower power, and how far.",
        ).alike(&["actuation", "knobs", "means"]);
    }
}

object! {
    /// `policies[].selector`.
    selector {
        MATCH_LABELS: BTreeMap<String, String> = Field::new(
            "matchLabels",
            FieldKind::Labels,
            Presence::Optional("any labels"),
            "Pods that have all of these labels.",
        ).alike(&["labels", "podLabels"]);
        MATCH_EXPRESSIONS: Vec<Map> = Field::new(
            "matchExpressions",
            FieldKind::List { of: &FieldKind::Object(&requirement::OBJECT), min: 1, max: MANY },
            Presence::Optional("any labels"),
            "Pods whose labels meet all of these requirements, as in a Kubernetes label selector.",
        ).alike(&["expressions"]);
        NAMESPACES: Vec<String> = Field::new(
            "namespaces",
            FieldKind::List { of: &FieldKind::Text(Syntax::Namespace), min: 1, max: MANY },
            Presence::Optional("every namespace, or the policy's own if it has one"),
            "Pods of these namespaces.",
        ).alike(&["namespaceSelector"]);
        SELECT_ALL: bool = Field::new(
            "selectAll",
            FieldKind::Switch,
            Presence::Default("false"),
            "Every pod (of the policy's namespace, if it has one). Needed if there is no other part, and only then. So a forgotten part does not slow down a whole cluster.",
        ).alike(&["all", "everything"]);
    }
}

object! {
    /// `policies[].selector.matchExpressions[]`.
    requirement {
        KEY: String = Field::new(
            "key",
            FieldKind::Text(Syntax::LabelKey),
            Presence::Required,
            "Key of the label.",
        );
        OPERATOR: Operator = Field::new(
            "operator",
            FieldKind::Choice(Operator::WORDS),
            Presence::Required,
            "In: the label has one of the values. NotIn: it has none of them, or does not exist. Exists, DoesNotExist: the label exists or not, with any value.",
        ).alike(&["op"]);
        VALUES: Vec<String> = Field::new(
            "values",
            FieldKind::List { of: &FieldKind::Text(Syntax::LabelValue), min: 1, max: MANY },
            Presence::Optional("for Exists and DoesNotExist, which take none"),
            "For In and NotIn.",
        );
    }
}

object! {
    /// `policies[].budget`.
    budget
    one_of: [WATTS, PERCENT_OF_PEAK],
    needs: [LOOKBACK with PERCENT_OF_PEAK],
    {
        WATTS: f64 = Field::new(
            "watts",
            FieldKind::Number { unit: Unit::Watts, min: 1.0, max: MAX_WATTS },
            Presence::Optional("percentOfPeak is given"),
            "Power that may be drawn. For GPUs the pods' whole GPU power counts, idle included. For CPUs only the pods' active power counts (for PerNode with selectAll, the whole node's power).",
        ).alike(&["power", "gpuPowerWatts", "cpuPackageWatts", "milliwatts", "budgetWatts", "maxPower"]);
        PERCENT_OF_PEAK: f64 = Field::new(
            "percentOfPeak",
            FieldKind::Number { unit: Unit::Percent, min: 1.0, max: 100.0 },
            Presence::Optional("watts is given"),
            "The budget as a percentage of the highest power that was seen while nothing was capped.",
        ).alike(&["percent", "peakPercent"]);
        LOOKBACK: Duration = Field::new(
            "lookbackHours",
            FieldKind::Number { unit: Unit::Hours, min: 0.01, max: 720.0 },
            Presence::Default("24"),
            "The time over which the peak is taken; only time without a cap counts. Nothing is capped until this much time was seen. Choose it longer than the load's pauses: if the load pauses longer, the peak is its idle power, and it is capped to a percentage of that when it resumes. Only with percentOfPeak.",
        );
        SCOPE: BudgetScope = Field::new(
            "scope",
            FieldKind::Choice(BudgetScope::WORDS),
            Presence::Default("PerPod"),
            "PerPod: each selected pod has the budget for itself. PerNode: all selected pods of a node share it. Total: all selected pods of the cluster share it; only for a PowerCappingPolicy, and with the controller.",
        );
        COMPONENTS: Vec<Component> = Field::new(
            "components",
            FieldKind::List { of: &FieldKind::Choice(Component::WORDS), min: 1, max: 2 },
            Presence::Required,
            "What is counted and capped: gpu, cpu, or the sum of both.",
        ).alike(&["devices", "component", "resources"]);
        WINDOW: Duration = Field::new(
            "windowSeconds",
            FieldKind::Number { unit: Unit::Seconds, min: 0.1, max: 3600.0 },
            Presence::Default("1"),
            "Power is the mean over this time, at least the agent's interval. A longer time allows short peaks.",
        ).alike(&["interval"]);
    }
}

object! {
    /// `policies[].control`. The percentages are of the budget.
    control {
        ALGORITHM: AlgorithmName = Field::new(
            "algorithm",
            FieldKind::Choice(AlgorithmName::WORDS),
            Presence::Default("ratio"),
            "ratio: clocks follow the ratio of target to power, for any device. table: a profile that was measured on this kind of device gives the clock. external: clocks come from NodeFrequencies; where they expire or do not keep the budget, ratio takes over.",
        );
        ENGAGE: f64 = Field::new(
            "engagePercent",
            SHARE,
            Presence::Default("100"),
            "Above this, limits are cut.",
        );
        TARGET: f64 = Field::new(
            "targetPercent",
            SHARE,
            Presence::Default("95"),
            "Power is cut to this; not above engagePercent.",
        );
        RELEASE: f64 = Field::new(
            "releasePercent",
            SHARE,
            Presence::Default("90"),
            "Below this, limits are raised step by step; less than targetPercent.",
        );
        HOLD: Duration = Field::new(
            "holdSeconds",
            FieldKind::Number { unit: Unit::Seconds, min: 0.0, max: 3600.0 },
            Presence::Default("5"),
            "After a cut, no limit is raised for this long; longer if the last raise exceeded the budget.",
        ).alike(&["cooldown", "cooldownSeconds"]);
        STANDING: bool = Field::new(
            "standing",
            FieldKind::Switch,
            Presence::Default("false"),
            "Limits are held always, also while the power is low: each device is limited to its part of the budget as soon as the policy is active. Only with watts. Good for a fixed limit per GPU; without it, limits are set while the power is above the budget.",
        ).alike(&["always", "static", "permanent"]);
        CONTROLLER_NAME: String = Field::new(
            "controllerName",
            FieldKind::Text(Syntax::LabelKey),
            Presence::Optional("energy-agent's own controller"),
            "Who writes the PowerLevel of a policy with scope Total, as in example.com/my-controller. Only with scope Total.",
        );
        ON_TELEMETRY_LOSS: TelemetryLoss = Field::new(
            "onTelemetryLoss",
            FieldKind::Choice(TelemetryLoss::WORDS),
            Presence::Default("Hold"),
            "What happens when power is no longer measured. Hold: keep the limits for telemetryTimeoutSeconds, then restore them. Release: restore them at once. Floor: lower them as far as allowed.",
        );
        TELEMETRY_TIMEOUT: Duration = Field::new(
            "telemetryTimeoutSeconds",
            FieldKind::Number { unit: Unit::Seconds, min: 1.0, max: 86_400.0 },
            Presence::Default("300"),
            "How long Hold keeps the limits.",
        ).alike(&["timeout", "timeoutSeconds"]);
        TABLE: Vec<Map> = Field::new(
            "table",
            FieldKind::List { of: &FieldKind::Object(&point::OBJECT), min: 2, max: MANY },
            Presence::Optional("for algorithm ratio"),
            "For algorithm table: the power of one device under full load at some clocks, ascending in both.",
        ).alike(&["points", "profile", "curve"]);
    }
}

object! {
    /// `policies[].control.table[]`.
    point {
        CLOCK: u32 = Field::new(
            "clockMHz",
            FieldKind::Whole { unit: Unit::Megahertz, min: 100, max: 10_000 },
            Presence::Required,
            "Clock of the device.",
        ).alike(&["frequencyMHz"]);
        WATTS: f64 = Field::new(
            "watts",
            FieldKind::Number { unit: Unit::Watts, min: 1.0, max: MAX_WATTS },
            Presence::Required,
            "Power of one device at this clock under full load.",
        ).alike(&["power"]);
    }
}

object! {
    /// `policies[].actuators`.
    actuators {
        GPU: Map = Field::new(
            "gpu",
            FieldKind::Object(&gpu::OBJECT),
            Presence::Default("{}"),
            "Limits of the pods' GPUs.",
        ).alike(&["gpus"]);
        CPU: Map = Field::new(
            "cpu",
            FieldKind::Object(&cpu::OBJECT),
            Presence::Default("{}"),
            "Limits of the CPUs.",
        ).alike(&["cpus"]);
    }
}

object! {
    /// `policies[].actuators.gpu`.
    gpu {
        USE: Vec<GpuMeans> = Field::new(
            "use",
            FieldKind::List { of: &FieldKind::Choice(GpuMeans::WORDS), min: 0, max: 2 },
            Presence::Default("[LockedClocks, PowerLimit]"),
            "LockedClocks: the upper end of the clock range, which is precise. PowerLimit: the driver's own limit, as a backstop a little above the budget, or alone if clocks cannot be locked.",
        );
        MIN_CLOCK: u32 = Field::new(
            "minClockMHz",
            FieldKind::Whole { unit: Unit::Megahertz, min: 100, max: 10_000 },
            Presence::Optional("the agent's floor, or the device's lowest"),
            "Clocks are never locked below this.",
        ).alike(&["minClock", "floorMHz", "minFrequencyMHz"]);
        ALLOW_SHARED: bool = Field::new(
            "allowShared",
            FieldKind::Switch,
            Presence::Default("false"),
            "A GPU that other pods use too may be capped, if their policies also allow it. Else a GPU is capped only if all its pods have this policy.",
        ).alike(&["shared"]);
    }
}

object! {
    /// `policies[].actuators.cpu`.
    cpu {
        USE: Vec<CpuMeans> = Field::new(
            "use",
            FieldKind::List { of: &FieldKind::Choice(CpuMeans::WORDS), min: 0, max: 3 },
            Presence::Default("[Frequency, Quota]"),
            "Frequency: scaling_max_freq, if a pod has cores of its own. Quota: CPU time (cpu.max), for any pod. RaplLimit: the processor's own limit, for whole nodes only (scope PerNode and selectAll, without a namespace).",
        );
        MIN_FREQUENCY: u32 = Field::new(
            "minFrequencyMHz",
            FieldKind::Whole { unit: Unit::Megahertz, min: 100, max: 10_000 },
            Presence::Optional("the agent's floor, or the processor's lowest"),
            "Frequencies are never set below this.",
        ).alike(&["minFreqMHz", "cpuMinFreqMHz", "minClockMHz"]);
        MIN_CPUS: f64 = Field::new(
            "minCPUs",
            FieldKind::Number { unit: Unit::Cpus, min: 0.01, max: 1024.0 },
            Presence::Optional("the agent's floor"),
            "A pod's quota is never set below this number of CPUs; 0.5 is 500m.",
        ).alike(&["minCores", "minQuota"]);
    }
}
