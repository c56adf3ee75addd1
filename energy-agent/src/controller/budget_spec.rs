//! A budget's object, read and checked: what the API server cannot judge is judged here.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use energy_budget::settings::Settings;
use energy_model::capping::policy::Mode;
use energy_model::resources::cluster_power_budget::ClusterPowerBudgetSpec;
use energy_model::resources::object::KubeObject;

/// Kubernetes allows names of 253 characters, and a level's name is seven longer than its budget's.
const LONGEST_NAME: usize = 246;

#[derive(Clone, Debug)]
pub struct CheckedBudget {
    pub spec: ClusterPowerBudgetSpec,
    pub settings: Settings,
    pub overhead: f64,
    pub unreported_watts: f64,
    watts: f64,
    targets: Vec<(SystemTime, SystemTime, f64)>,
}

/// Why an object's last version is not in force, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(pub String);

impl CheckedBudget {
    pub fn read(object: &KubeObject) -> Result<Self, Refusal> {
        if object.metadata.name.len() > LONGEST_NAME {
            return Err(Refusal(format!("the name has more than {LONGEST_NAME} characters; give it a shorter one")));
        }
        let spec: ClusterPowerBudgetSpec = object.spec().map_err(Refusal)?;
        let control = &spec.control;
        if !(control.release_percent < control.target_percent && control.target_percent <= control.engage_percent) {
            return Err(Refusal("spec.control: need releasePercent < targetPercent <= engagePercent".to_owned()));
        }
        if spec.watts_from.as_ref().is_some_and(|from| from.min > from.max) {
            return Err(Refusal("spec.wattsFrom: need min <= max".to_owned()));
        }
        if spec.watts <= 0 {
            return Err(Refusal("spec.watts: a budget needs more than 0 W".to_owned()));
        }
        let targets = spec.targets.iter().map(|target| {
            let time = |field: &str, text: &str| {
                let problem =
                    |_| Refusal(format!("spec.targets {}: {field} is no time such as 2026-01-31T18:00:00Z", target.id));
                text.parse::<k8s_openapi::jiff::Timestamp>().map(SystemTime::from).map_err(problem)
            };
            Ok((time("from", &target.from)?, time("to", &target.to)?, whole(target.watts)))
        });
        let targets = targets.collect::<Result<_, _>>()?;
        let share = |percent: u32| f64::from(percent) / 100.0;
        let settings = Settings {
            tiers: spec.tiers.iter().map(|tier| tier.name.clone()).chain([String::new()]).collect(),
            engage: share(control.engage_percent),
            target: share(control.target_percent),
            release: share(control.release_percent),
            hold: Duration::from_secs(control.hold_seconds.into()),
            oversubscription: spec.oversubscription_percent.map(share),
            enforced: spec.mode == Mode::Enforce,
        };
        let (overhead, watts) = (share(spec.overhead_percent), whole(spec.watts));
        let unreported_watts = whole(spec.unreported_node_watts);
        Ok(Self { spec, settings, overhead, unreported_watts, watts, targets })
    }

    pub fn is_enforced(&self) -> bool {
        self.spec.mode == Mode::Enforce
    }

    /// The tier of a node with these labels.
    pub fn tier(&self, labels: &BTreeMap<String, String>) -> usize {
        let name = self.spec.tier_of(labels);
        let last = self.settings.tiers.len() - 1;
        self.settings.tiers.iter().position(|tier| tier == name).unwrap_or(last)
    }

    /// The lowest of its watts and the targets of this time.
    pub fn watts_at(&self, wall: SystemTime) -> f64 {
        let targets = self.targets.iter().filter(|(from, to, _)| *from <= wall && wall < *to);
        targets.map(|(_, _, watts)| *watts).fold(self.watts, f64::min)
    }
}

/// Watts of an object, which are whole; a negative number is 0.
pub fn whole(watts: i64) -> f64 {
    f64::from(u32::try_from(watts.max(0)).unwrap_or(u32::MAX))
}
