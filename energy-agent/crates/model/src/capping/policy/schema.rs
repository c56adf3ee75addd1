//! The fields of a policy document, in one table: what is checked, explained, and told to editors.

use super::syntax::Syntax;
use super::unit::Unit;

/// A key and its value.
#[derive(Debug)]
pub struct Field {
    pub name: &'static str,
    /// What it means, for people.
    pub doc: &'static str,
    pub kind: Kind,
    pub presence: Presence,
    /// What people write when they mean it, beside what resembles `name`.
    pub alike: &'static [&'static str],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    Required,
    /// The value that stands for it, as it would be written.
    Default(&'static str),
    /// What it means that there is none.
    Optional(&'static str),
}

/// What a value may be.
#[derive(Debug)]
pub enum Kind {
    Text(Syntax),
    Switch,
    Whole {
        unit: Unit,
        min: i32,
        max: i32,
    },
    Number {
        unit: Unit,
        min: f64,
        max: f64,
    },
    Choice(&'static [&'static str]),
    List {
        of: &'static Kind,
        min: usize,
        max: usize,
    },
    /// A map of label keys to label values.
    Labels,
    Object(&'static Object),
}

#[derive(Debug)]
pub struct Object {
    pub fields: &'static [Field],
    /// Of these there has to be exactly one.
    pub one_of: &'static [&'static str],
    /// The first only with the second.
    pub needs: &'static [(&'static str, &'static str)],
}

impl Object {
    const fn of(fields: &'static [Field]) -> Self {
        Self { fields, one_of: &[], needs: &[] }
    }

    #[must_use]
    pub fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.name == name)
    }
}

impl Kind {
    /// The object that it is, or is a list of.
    #[must_use]
    pub const fn object(&self) -> Option<&'static Object> {
        match self {
            Self::Object(object) | Self::List { of: Self::Object(object), .. } => Some(object),
            _ => None,
        }
    }
}

impl Field {
    const fn new(name: &'static str, kind: Kind, presence: Presence, doc: &'static str) -> Self {
        Self { name, doc, kind, presence, alike: &[] }
    }

    const fn alike(mut self, alike: &'static [&'static str]) -> Self {
        self.alike = alike;
        self
    }
}

/// The format that is read.
pub const VERSION: i32 = 1;

/// A whole document.
pub static DOCUMENT: Object = Object::of(&[
    Field::new(
        "version",
        Kind::Whole { unit: Unit::None, min: VERSION, max: VERSION },
        Presence::Required,
        "Version of this format.",
    )
    .alike(&["apiVersion"]),
    Field::new(
        "policies",
        Kind::List { of: &Kind::Object(&POLICY), min: 0, max: 20_000 },
        Presence::Required,
        "The policies. One that is refused does not stop the others; its last good version stays in force.",
    )
    .alike(&["items", "rules"]),
]);

/// The most watts a budget may have: a rack, or a key in another unit.
const MAX_WATTS: f64 = 20_000.0;
/// Items of a list that people write.
const MANY: usize = 256;

pub static POLICY: Object = Object::of(&[
    Field::new(
        "name",
        Kind::Text(Syntax::Name),
        Presence::Required,
        "Name of the policy, unique in its namespace: metrics, events and the journal know it by this.",
    )
    .alike(&["id", "metadata"]),
    Field::new(
        "namespace",
        Kind::Text(Syntax::Namespace),
        Presence::Optional("pods of every namespace"),
        "Only pods of this namespace are selected, as by a NetworkPolicy.",
    ),
    Field::new(
        "mode",
        Kind::Choice(&["Off", "Recommend", "Enforce"]),
        Presence::Default("Recommend"),
        "Off: nothing is done. Recommend: everything but the writes, so that metrics show what would be lowered. \
         Enforce: clocks, limits and quotas are lowered while the power is over the budget.",
    )
    .alike(&["enforcement", "enforcementMode", "action", "enforce"]),
    Field::new(
        "priority",
        Kind::Whole { unit: Unit::None, min: -1_000_000_000, max: 1_000_000_000 },
        Presence::Default("0"),
        "Where several policies select a pod, one decides for each component: the one of the highest priority, then of \
         the lowest budget, then the first by name.",
    )
    .alike(&["weight", "order", "precedence"]),
    Field::new("selector", Kind::Object(&SELECTOR), Presence::Required, "Which pods. All parts have to agree.")
        .alike(&["match", "podSelector", "target", "targets", "pods"]),
    Field::new("budget", Kind::Object(&BUDGET), Presence::Required, "How much power they may draw.").alike(&[
        "limits",
        "limit",
        "cap",
        "powerBudget",
        "power",
    ]),
    Field::new(
        "control",
        Kind::Object(&CONTROL),
        Presence::Default("{}"),
        "How the budget is kept. The percentages are of the budget.",
    )
    .alike(&["controller", "law", "tuning"]),
    Field::new(
        "actuators",
        Kind::Object(&ACTUATORS),
        Presence::Default("{}"),
        "By which means power is lowered, and how far down.",
    )
    .alike(&["actuation", "knobs", "means"]),
]);

static SELECTOR: Object = Object::of(&[
    Field::new("matchLabels", Kind::Labels, Presence::Optional("any labels"), "Pods that have all of these labels.")
        .alike(&["labels", "podLabels"]),
    Field::new(
        "matchExpressions",
        Kind::List { of: &Kind::Object(&REQUIREMENT), min: 1, max: MANY },
        Presence::Optional("any labels"),
        "Pods whose labels meet all of these requirements, as in a Kubernetes label selector.",
    )
    .alike(&["expressions"]),
    Field::new(
        "namespaces",
        Kind::List { of: &Kind::Text(Syntax::Namespace), min: 1, max: MANY },
        Presence::Optional("every namespace, or the policy's own if it has one"),
        "Pods of these namespaces.",
    )
    .alike(&["namespaceSelector"]),
    Field::new(
        "selectAll",
        Kind::Switch,
        Presence::Default("false"),
        "Every pod (of the policy's namespace, if it has one). Needed where there is no other part, and only there, so \
         that a part that was forgotten does not slow down a whole cluster.",
    )
    .alike(&["all", "everything"]),
]);

static REQUIREMENT: Object = Object::of(&[
    Field::new("key", Kind::Text(Syntax::LabelKey), Presence::Required, "Key of the label."),
    Field::new(
        "operator",
        Kind::Choice(&["In", "NotIn", "Exists", "DoesNotExist"]),
        Presence::Required,
        "In: the label has one of the values. NotIn: it has none of them, or is not there. Exists, DoesNotExist: the \
         label is there or not, whatever its value.",
    )
    .alike(&["op"]),
    Field::new(
        "values",
        Kind::List { of: &Kind::Text(Syntax::LabelValue), min: 1, max: MANY },
        Presence::Optional("for Exists and DoesNotExist, which take none"),
        "For In and NotIn.",
    ),
]);

static BUDGET: Object = Object {
    fields: &[
        Field::new(
            "watts",
            Kind::Number { unit: Unit::Watts, min: 1.0, max: MAX_WATTS },
            Presence::Optional("percentOfPeak is given"),
            "Power that may be drawn. Of a GPU all its power counts, idle included; of the CPU what the pods' work adds \
             (for PerNode with selectAll, the whole node's).",
        )
        .alike(&["power", "gpuPowerWatts", "cpuPackageWatts", "milliwatts", "budgetWatts", "maxPower"]),
        Field::new(
            "percentOfPeak",
            Kind::Number { unit: Unit::Percent, min: 1.0, max: 100.0 },
            Presence::Optional("watts is given"),
            "The budget as a part of the highest power that was seen while nothing was capped.",
        )
        .alike(&["percent", "peakPercent"]),
        Field::new(
            "lookbackHours",
            Kind::Number { unit: Unit::Hours, min: 0.01, max: 720.0 },
            Presence::Default("24"),
            "How far back the peak is looked for, in time in which nothing was capped. Until so much was seen nothing is \
             lowered. Longer than the load's pauses: one that rests for longer is held to a part of its idle power when it \
             comes back. Only with percentOfPeak.",
        ),
        Field::new(
            "scope",
            Kind::Choice(&["PerPod", "PerNode"]),
            Presence::Default("PerPod"),
            "PerPod: each selected pod has the budget for itself. PerNode: all selected pods of a node share it.",
        ),
        Field::new(
            "components",
            Kind::List { of: &Kind::Choice(&["gpu", "cpu"]), min: 1, max: 2 },
            Presence::Required,
            "What is counted and lowered: gpu, cpu, or the sum of both.",
        )
        .alike(&["devices", "component", "resources"]),
        Field::new(
            "windowSeconds",
            Kind::Number { unit: Unit::Seconds, min: 0.1, max: 3600.0 },
            Presence::Default("1"),
            "Power is the mean over this time, at least the agent's interval. A longer one lets short peaks pass.",
        )
        .alike(&["interval"]),
    ],
    one_of: &["watts", "percentOfPeak"],
    needs: &[("lookbackHours", "percentOfPeak")],
};

/// Shares of a budget.
const SHARE: Kind = Kind::Number { unit: Unit::Percent, min: 1.0, max: 150.0 };

static CONTROL: Object = Object::of(&[
    Field::new(
        "algorithm",
        Kind::Choice(&["ratio", "table"]),
        Presence::Default("ratio"),
        "ratio: clocks follow the ratio of target to power, whatever the device. table: a profile that was measured on \
         this kind of device says which clock to go to.",
    ),
    Field::new("engagePercent", SHARE, Presence::Default("100"), "Above this, power is lowered."),
    Field::new("targetPercent", SHARE, Presence::Default("95"), "To this it is lowered; not above engagePercent."),
    Field::new(
        "releasePercent",
        SHARE,
        Presence::Default("90"),
        "Below this, the limits are given back step by step; less than targetPercent.",
    ),
    Field::new(
        "holdSeconds",
        Kind::Number { unit: Unit::Seconds, min: 0.0, max: 3600.0 },
        Presence::Default("5"),
        "After a cut, nothing is given back for this long; longer where the power has just risen again.",
    )
    .alike(&["cooldown", "cooldownSeconds"]),
    Field::new(
        "onTelemetryLoss",
        Kind::Choice(&["Hold", "Release", "Floor"]),
        Presence::Default("Hold"),
        "When power is not measured any more. Hold: keep what is set for telemetryTimeoutSeconds, then give it back. \
         Release: give it back at once. Floor: go down as far as allowed.",
    ),
    Field::new(
        "telemetryTimeoutSeconds",
        Kind::Number { unit: Unit::Seconds, min: 1.0, max: 86_400.0 },
        Presence::Default("300"),
        "How long Hold holds.",
    )
    .alike(&["timeout", "timeoutSeconds"]),
    Field::new(
        "table",
        Kind::List { of: &Kind::Object(&POINT), min: 2, max: MANY },
        Presence::Optional("for algorithm ratio"),
        "For algorithm table: the power of one device under full load at some clocks, ascending in both.",
    )
    .alike(&["points", "profile", "curve"]),
]);

static POINT: Object = Object::of(&[
    Field::new(
        "clockMHz",
        Kind::Whole { unit: Unit::Megahertz, min: 100, max: 10_000 },
        Presence::Required,
        "Clock of the device.",
    )
    .alike(&["frequencyMHz"]),
    Field::new(
        "watts",
        Kind::Number { unit: Unit::Watts, min: 1.0, max: MAX_WATTS },
        Presence::Required,
        "What one device draws at this clock under full load.",
    )
    .alike(&["power"]),
]);

static ACTUATORS: Object = Object::of(&[
    Field::new("gpu", Kind::Object(&GPU), Presence::Default("{}"), "Of the pods' GPUs.").alike(&["gpus"]),
    Field::new("cpu", Kind::Object(&CPU), Presence::Default("{}"), "Of the CPUs.").alike(&["cpus"]),
]);

static GPU: Object = Object::of(&[
    Field::new(
        "use",
        Kind::List { of: &Kind::Choice(&["LockedClocks", "PowerLimit"]), min: 0, max: 2 },
        Presence::Default("[LockedClocks, PowerLimit]"),
        "LockedClocks: the upper end of the clock range, the precise means. PowerLimit: the driver's own limit, as a \
         backstop a little above the budget, or alone where clocks cannot be locked.",
    ),
    Field::new(
        "minClockMHz",
        Kind::Whole { unit: Unit::Megahertz, min: 100, max: 10_000 },
        Presence::Optional("the agent's floor, or the device's lowest"),
        "Clocks are never locked below this.",
    )
    .alike(&["minClock", "floorMHz", "minFrequencyMHz"]),
    Field::new(
        "allowShared",
        Kind::Switch,
        Presence::Default("false"),
        "A GPU that other pods use as well may be capped, where their policies say so too. Else only a GPU whose pods \
         all share this policy.",
    )
    .alike(&["shared"]),
]);

static CPU: Object = Object::of(&[
    Field::new(
        "use",
        Kind::List { of: &Kind::Choice(&["Frequency", "Quota", "RaplLimit"]), min: 0, max: 3 },
        Presence::Default("[Frequency, Quota]"),
        "Frequency: scaling_max_freq, where a pod has its cores for itself. Quota: CPU time (cpu.max), for any pod. \
         RaplLimit: the processor's own limit, for whole nodes only (scope PerNode and selectAll, without a namespace).",
    ),
    Field::new(
        "minFrequencyMHz",
        Kind::Whole { unit: Unit::Megahertz, min: 100, max: 10_000 },
        Presence::Optional("the agent's floor, or the processor's lowest"),
        "Frequencies are never set below this.",
    )
    .alike(&["minFreqMHz", "cpuMinFreqMHz", "minClockMHz"]),
    Field::new(
        "minCPUs",
        Kind::Number { unit: Unit::Cpus, min: 0.01, max: 1024.0 },
        Presence::Optional("the agent's floor"),
        "A pod's quota is never set below this many CPUs; 0.5 is 500m.",
    )
    .alike(&["minCores", "minQuota"]),
]);
