//! Capping's place in the tick: policies and what the tick measured become limits, which are written at once.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use energy_cluster::events::Outbox;
use energy_host::capping::actuator::{Actuator, ActuatorTrouble, SeenKnobs, TroubleKind};
use energy_host::capping::files::FileKnobs;
use energy_host::meter::gpu::GpuMeter;
use energy_host::workload::owners::Owners;
use energy_model::capping::change::{self, About, Change};
use energy_model::capping::controller::{self, BudgetChange, Controller, Outcome};
use energy_model::capping::knob::{Knob, Limit, Limits};
use energy_model::capping::level::Levels;
use energy_model::capping::observation::{GpuDevice, Observation, PodNow};
use energy_model::capping::policy::{Mode, Policy};
use energy_model::capping::source::ActivePolicies;
use energy_model::capping::status::{CappingStatus, NodePower, PodId, PolicyStatus};
use energy_model::follower::Follower;
use energy_model::meter_state::{MeterName, MeterState, Reason};
use energy_model::snapshot::Snapshot;
use energy_model::units::Watts;
use energy_model::workload::names::{Pod, Pods};
use k8s_openapi::jiff::Timestamp;
use tokio::sync::watch;
use tracing::{info, warn};

use super::observe::Observer;
use super::recent::RecentPowers;
use super::untold::Untold;
use crate::config::Config;
use crate::policies::budgets::{BudgetsEnd, KnownBudgets, bounds_at};

/// How long the first tick waits for policies, and for GPUs that have to be given back. Only after a crash.
const BEGIN: Duration = Duration::from_secs(5);
const BEGIN_STEP: Duration = Duration::from_millis(20);
/// How long caps of an earlier run stand while a source of policies has not answered.
const UNANSWERED: Duration = Duration::from_secs(300);
/// How long giving everything back may take at the end.
const CLOSE: Duration = Duration::from_secs(3);
/// Time between two looks at which cores are one pod's alone.
const CORES_EVERY: Duration = Duration::from_secs(10);
/// Time between two looks at the quota of a pod that does next to nothing and is not held by it.
const QUOTA_EVERY: Duration = Duration::from_secs(10);
/// In this many ticks all of them are looked at, so that a thousand pods are not read at once.
const QUOTA_PARTS: usize = 10;
/// From this many CPUs on, a pod's quota is looked at in each tick. Of such pods there are not more than a CPU has room for.
const BUSY_CPUS: f64 = 0.05;

/// Everything about capping that a tick changes.
pub struct Capper {
    policies: watch::Receiver<Arc<ActivePolicies>>,
    in_force: Arc<ActivePolicies>,
    /// `None` with `--capping.resources=off`.
    budgets: Option<BudgetsEnd>,
    followed: Arc<KnownBudgets>,
    follower: Follower,
    observer: Observer,
    recent: RecentPowers,
    controller: Controller,
    actuator: Actuator,
    files: FileKnobs,
    /// `None` outside a cluster.
    events: Option<Outbox>,
    untold: Untold,
    /// Whether a policy for CPUs selects the pod, by its uid; while pod and policies stay the same.
    selected: HashMap<Arc<str>, (Arc<Pod>, bool)>,
    /// Clocks that are one pod's alone, by the path of its cgroup.
    cores: BTreeMap<Arc<str>, Vec<Knob>>,
    next_cores: Duration,
    /// Quotas by the path of the cgroup, and when they were read; `None`: there was none.
    quotas: HashMap<Arc<str>, (Duration, Option<Knob>)>,
    started: Instant,
    /// `--capping=off`: there are no policies.
    off: bool,
}

/// The ends of what policies and budgets are told through.
pub type Told = (watch::Receiver<Arc<ActivePolicies>>, Option<BudgetsEnd>);

/// A tick as capping sees it.
pub struct CapperTick<'a> {
    pub snapshot: &'a Snapshot,
    pub pods: &'a Pods,
    pub owners: Option<&'a Owners>,
    pub gpus: Vec<GpuDevice>,
}

impl Capper {
    /// Takes the journal over; writes nothing.
    #[must_use]
    pub fn open(config: &Config, (policies, budgets): Told, events: Option<Outbox>) -> Self {
        Self {
            policies,
            in_force: Arc::default(),
            budgets,
            followed: Arc::default(),
            follower: Follower::default(),
            observer: Observer::default(),
            recent: RecentPowers::default(),
            controller: Controller::new(config.host.interval),
            actuator: Actuator::open(&config.host),
            files: FileKnobs::open(&config.host.sysfs, &config.host.cgroupfs),
            events,
            untold: Untold::default(),
            selected: HashMap::new(),
            cores: BTreeMap::new(),
            next_cores: Duration::ZERO,
            quotas: HashMap::new(),
            started: Instant::now(),
            off: false,
        }
    }

    /// With `--capping=off`: only where an earlier run left something capped, which is given back. `None`: nothing is left,
    /// as on every node that was never capped; then no journal is made either.
    #[must_use]
    pub fn left_over(config: &Config) -> Option<Self> {
        let left = Actuator::peek(&config.host);
        if left.held().next().is_none() && left.loss().is_none() {
            return None;
        }
        info!("capping is off, limits that an earlier run left are restored");
        let none = ActivePolicies { complete: true, ..ActivePolicies::default() };
        let capper = Self { off: true, ..Self::open(config, (watch::channel(Arc::new(none)).1, None), None) };
        // What is limited by an agent that runs is not left over.
        let is_other = capper.actuator.trouble().is_some_and(|trouble| trouble.kind == TroubleKind::OtherAgent);
        (!is_other && !capper.is_done()).then_some(capper)
    }

    /// There is nothing to do now, and there will not be.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.off && self.actuator.trouble().is_none() && self.actuator.held().next().is_none()
    }

    /// Before the first tick: what an earlier run left capped is given back where its policy is gone, and adopted where it
    /// stands. Waits a few seconds for policies and GPUs if there is such a thing, else not at all.
    pub fn begin(&mut self, gpus: &mut GpuMeter) {
        let written = self.actuator.adopted();
        if written.is_empty() {
            return;
        }
        let until = Instant::now() + BEGIN;
        let is_known = |capper: &Self| {
            let budgets = capper.budgets.as_ref().is_none_or(|budgets| budgets.told.borrow().seen.complete);
            budgets && capper.policies.borrow().complete
        };
        while !is_known(self) && Instant::now() < until {
            thread::sleep(BEGIN_STEP);
        }
        self.take_policies();
        let levels = self.take_levels(self.started.elapsed());
        let stands = |limit: &Limit| controller::stands(&limit.policy, &self.in_force, &levels).unwrap_or(true);
        let kept: Limits = written.into_iter().filter(|(_, limit)| stands(limit)).collect();
        self.controller.adopt(&kept);
        loop {
            let now = self.started.elapsed();
            self.actuator.look(now, SeenKnobs::default(), &mut self.files, gpus);
            self.actuator.apply(now, &kept, &mut self.files, gpus);
            let left = self.actuator.adopted().keys().any(|knob| !kept.contains_key(knob));
            if !left || Instant::now() >= until {
                return;
            }
            // GPUs are there once the driver has answered. Nothing was measured before, so that no energy is lost.
            let now = Instant::now();
            let late = gpus.ask(now);
            drop(gpus.take(now, late));
            gpus.settle((now + BEGIN_STEP).min(until));
            thread::sleep(BEGIN_STEP);
        }
    }

    /// One tick: decides, writes, and says how it stands.
    pub fn step(&mut self, tick: CapperTick<'_>, gpus: &mut GpuMeter) -> CappingStatus {
        let now = self.started.elapsed();
        self.take_policies();
        let CapperTick { snapshot, pods, owners, gpus: devices } = tick;
        let mut seen = self.observer.observe(now, snapshot, pods, devices);
        let mut known = self.find_knobs(&mut seen, owners);
        let clocks = seen.gpus.iter().filter_map(|gpu| Some((Arc::clone(&gpu.uuid), gpu.clock_mhz?)));
        known.clocks_mhz = clocks.collect();
        known.looks = seen.gpus.iter().filter_map(|gpu| Some((Arc::clone(&gpu.uuid), gpu.look?))).collect();
        self.actuator.look(now, known, &mut self.files, gpus);
        seen.knobs = self.actuator.knobs();
        seen.bounds = bounds_at(&self.followed.bounds, Timestamp::now());
        self.want_levels(&seen);
        let levels = self.take_levels(now);
        let Outcome { mut limits, clamped, unusable, policies, changes, power, range } =
            self.controller.step(&self.in_force, &levels, &seen);
        if now < UNANSWERED {
            // A policy that is missing may be one that was not read yet.
            for (knob, limit) in self.actuator.adopted() {
                if controller::stands(&limit.policy, &self.in_force, &levels).is_none() {
                    limits.entry(knob).or_insert(limit);
                }
            }
        }
        self.actuator.apply(now, &limits, &mut self.files, gpus);
        self.tell(changes, &policies, pods);
        let mut caps = self.actuator.caps(&unusable);
        for cap in &mut caps {
            cap.clamped |= clamped.contains(&cap.knob);
        }
        let mut status = CappingStatus {
            policies,
            caps,
            problems: [&*self.in_force.problems, &*self.followed.problems].concat(),
            namespaces: namespaces(seen.pods.iter().map(|pod| &pod.pod)),
            node: NodePower { power, floor: Watts(range.floor), most: Watts(range.most) },
            levels: levels.budgets,
            sources: [&*self.in_force.sources, &*self.followed.sources].concat(),
            restore_pending: self.actuator.restore_pending(),
            restore_failures: self.actuator.restore_failures(),
            journal_repairs: self.actuator.journal_repairs(),
        };
        self.recent.fill(now, &mut status);
        status
    }

    /// Writes the changes of budgets to the log, which has those of knobs already, and all changes to the cluster.
    fn tell(&mut self, changes: Vec<BudgetChange>, policies: &[PolicyStatus], pods: &Pods) {
        let mut told: Vec<Change> = changes
            .into_iter()
            .filter_map(|change| change::of_budget(change, policies, |pod| named(pod, pods)))
            .collect();
        told.iter().for_each(log);
        told.extend(change::of_knobs(self.actuator.take_changes()));
        told.extend(self.untold.take(&namespaces(pods.by_uid.values())).iter().map(change::of_problem));
        if let Some(events) = &mut self.events {
            told.into_iter().for_each(|change| events.post(change));
        }
    }

    /// Restores everything, and says so. Returns whether all is as it was.
    pub fn close(&mut self, pods: &Pods, gpus: &mut GpuMeter) -> bool {
        let all = self.actuator.close(self.started.elapsed(), Instant::now() + CLOSE, &mut self.files, gpus);
        // Limits before pods: there may be more pods than events that can be sent at once.
        self.tell(Vec::new(), &[], pods);
        if all {
            let ended = self.controller.end();
            self.tell(ended, &[], pods);
            return true;
        }
        let left = change::of_end(self.actuator.held().map(|managed| &managed.knob));
        log(&left);
        if let Some(events) = &mut self.events {
            events.post(left);
        }
        false
    }

    /// Rows of `energy_agent_meter_up`: where policies come from, and whether anything may be written.
    pub fn states(&self) -> Vec<MeterState> {
        let journal = match self.actuator.trouble() {
            None => MeterState::up(MeterName::Capping, "limits can be written"),
            Some(ActuatorTrouble { kind, detail }) => {
                let reason = match kind {
                    TroubleKind::OtherAgent => Reason::OtherAgent,
                    TroubleKind::RunDirectory => Reason::RunDirectory,
                    TroubleKind::Journal => Reason::Journal,
                };
                MeterState::down(MeterName::Capping, reason, &**detail)
            }
        };
        vec![journal]
    }

    /// Has the levels followed of the policies of scope Total that decide about a pod of this node. Each is a watch of the API
    /// server, and a tenant may write thousands that select one pod.
    fn want_levels(&mut self, seen: &Observation) {
        let Some(BudgetsEnd { totals, .. }) = &self.budgets else { return };
        let wanted = self.controller.totals(&self.in_force, &seen.pods);
        totals.send_if_modified(|before| {
            let is_other = *before != wanted;
            *before = wanted;
            is_other
        });
    }

    /// What budgets over many nodes ask of this one now. Without any to follow, that is known to be nothing.
    fn take_levels(&mut self, now: Duration) -> Levels {
        let Some(budgets) = &mut self.budgets else { return Levels { complete: true, ..Levels::default() } };
        let followed = Arc::clone(&budgets.told.borrow_and_update());
        let before = std::mem::replace(&mut self.followed, followed);
        self.untold.note(&before.problems, &self.followed.problems);
        self.follower.step(&self.followed.seen, now)
    }

    fn take_policies(&mut self) {
        let now = Arc::clone(&self.policies.borrow_and_update());
        if Arc::ptr_eq(&now, &self.in_force) {
            return;
        }
        let before = std::mem::replace(&mut self.in_force, now);
        for (name, sourced) in &self.in_force.policies {
            if before.policies.get(name).is_some_and(|before| before.policy != sourced.policy) {
                self.actuator.policy_changed(name);
            }
        }
        self.untold.note(&before.problems, &self.in_force.problems);
        self.selected.clear();
        self.next_cores = Duration::ZERO;
    }

    /// Gives the pods that a policy selects their quotas and cores.
    fn find_knobs(&mut self, seen: &mut Observation, owners: Option<&Owners>) -> SeenKnobs {
        let Some(owners) = owners else { return SeenKnobs::default() };
        let (in_force, now) = (&self.in_force, seen.now);
        let for_cpus = |policy: &Policy| policy.mode != Mode::Off && policy.budget.components.cpu;
        let selects = |pod: &Pod| {
            in_force.policies.values().any(|sourced| for_cpus(&sourced.policy) && sourced.policy.selects(pod))
        };
        let mut before = std::mem::take(&mut self.selected);
        let mut chosen: Vec<(&mut PodNow, &Arc<str>)> = Vec::new();
        for pod in &mut seen.pods {
            let known = before.remove(&pod.uid).filter(|(known, _)| Arc::ptr_eq(known, &pod.pod));
            let (_, selected) = self
                .selected
                .entry(Arc::clone(&pod.uid))
                .or_insert_with(|| known.unwrap_or_else(|| (Arc::clone(&pod.pod), selects(&pod.pod))));
            if let (true, Some(path)) = (*selected, owners.pod_cgroup(&pod.uid)) {
                chosen.push((pod, path));
            }
        }
        let mut before = std::mem::take(&mut self.quotas);
        let mut known = SeenKnobs::default();
        if !chosen.is_empty() && now >= self.next_cores {
            self.next_cores = now + CORES_EVERY;
            self.cores = self.files.exclusive_frequencies(owners.pod_cgroups().map(|path| &**path));
        }
        // Those first whose turn is longest ago, whatever the ticks are apart.
        chosen.sort_by_key(|(_, path)| before.get(*path).map(|(read_at, _)| *read_at));
        let mut may_read = chosen.len().div_ceil(QUOTA_PARTS);
        for (pod, path) in chosen {
            pod.frequencies = self.cores.get(path).cloned().unwrap_or_default();
            if let Some((read_at, knob)) = before.get(path) {
                let old = now >= *read_at + QUOTA_EVERY && may_read > 0;
                may_read -= usize::from(old);
                let in_use = knob.as_ref().is_some_and(|knob| self.actuator.is_in_use(knob));
                if !old && pod.cpus_used < BUSY_CPUS && !in_use {
                    pod.quota.clone_from(knob);
                    self.quotas.extend(before.remove_entry(path));
                    continue;
                }
            }
            let (read, earlier) = (self.files.pod_quota(path), before.remove(path));
            pod.quota = read.as_ref().map(|(knob, _)| knob.clone());
            known.ended.extend(earlier.and_then(|(_, knob)| knob).filter(|_| read.is_none()));
            self.quotas.insert(Arc::clone(path), (now, pod.quota.clone()));
            known.quotas.extend(read);
        }
        known.ended.extend(before.into_values().filter_map(|(_, knob)| knob));
        known
    }
}

fn namespaces<'a>(pods: impl Iterator<Item = &'a Arc<Pod>>) -> BTreeSet<Arc<str>> {
    pods.map(|pod| Arc::clone(&pod.namespace)).collect()
}

/// A pod that is gone may be known by what its cgroup was named by only.
fn named(pod: PodId, pods: &Pods) -> PodId {
    if !pod.name.is_empty() {
        return pod;
    }
    let uid = Arc::clone(&pod.uid);
    let known = [&pods.by_uid, &pods.gone].into_iter().find_map(|pods| pods.get(&uid));
    let hashed = || pods.by_uid.values().find(|known| known.config_hash.as_ref() == Some(&uid));
    known.or_else(hashed).map_or(pod, |known| PodId {
        uid: Arc::clone(&known.uid),
        namespace: Arc::clone(&known.namespace),
        name: Arc::clone(&known.name),
    })
}

/// The line of a change in the log.
fn log(change: &Change) {
    let Change { kind, policy, about, message } = change;
    let policy = policy.as_ref().map(ToString::to_string).unwrap_or_default();
    let pod = match about {
        About::Pod(PodId { namespace, name, .. }) => format!("{namespace}/{name}"),
        About::Node | About::ConfigMap { .. } | About::Object { .. } => String::new(),
    };
    let change = kind.as_str();
    if kind.is_warning() {
        warn!(change, policy, pod, "{message}");
    } else {
        info!(change, policy, pod, "{message}");
    }
}
