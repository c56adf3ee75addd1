//! The course of a run: what was heard of the object and its pods, added up to what the run is doing. No clock and no I/O:
//! times are arguments.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;

use super::document::JobKind;
use super::pod_run::{Obstacle, PodRun, PodState, seconds};
use crate::kubernetes::watch::Heard;

/// After the end of a Job, its last pods have this long to end too.
const LAST_PODS: Duration = Duration::from_secs(60);

/// How long a run may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// From the creation of the object to its end.
    pub whole: Duration,
    /// Without a running container, while one is to run.
    pub start: Duration,
}

/// What a run is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    Waiting(Obstacle),
    /// With so many pods at work.
    Running(usize),
    Ended(RunEnd),
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunEnd {
    Complete,
    /// The reason as Kubernetes names it.
    Failed {
        reason: String,
        message: String,
    },
    /// Somebody else deleted the object.
    Deleted,
    /// It did not begin to run in time; what it waited for.
    NotStarted(Obstacle),
    /// It did not end in time.
    TimedOut,
}

impl RunEnd {
    /// One word, as Kubernetes names it where it does.
    #[must_use]
    pub fn reason(&self) -> &str {
        match self {
            Self::Complete => "Complete",
            Self::Failed { reason, .. } => reason,
            Self::Deleted => "Deleted",
            Self::NotStarted(obstacle) => &obstacle.reason,
            Self::TimedOut => "TimedOut",
        }
    }
}

/// What was heard by now.
#[derive(Clone, Debug)]
pub struct Course {
    kind: JobKind,
    /// The uid of the object; others of the same name or label are not this run's.
    uid: String,
    limits: Deadlines,
    job: Option<Job>,
    pods: BTreeMap<String, PodRun>,
    /// Those that are no longer in the cluster.
    gone: Vec<String>,
    is_deleted: bool,
    /// Since when nothing has run, and since when the Job has ended; after its creation.
    idle_since: Duration,
    ended_since: Option<Duration>,
}

impl Course {
    #[must_use]
    pub(super) fn new(kind: JobKind, uid: &str, limits: Deadlines) -> Self {
        Self {
            kind,
            uid: uid.to_owned(),
            limits,
            job: None,
            pods: BTreeMap::new(),
            gone: Vec::new(),
            is_deleted: false,
            idle_since: Duration::ZERO,
            ended_since: None,
        }
    }

    /// All pods that belong to the run, in the order in which they began.
    #[must_use]
    pub fn pods(&self) -> Vec<PodRun> {
        let mut pods: Vec<PodRun> = self.pods.values().cloned().collect();
        let began = |pod: &PodRun| pod.started.unwrap_or(f64::INFINITY);
        pods.sort_by(|a, b| began(a).total_cmp(&began(b)).then_with(|| a.name.cmp(&b.name)));
        pods
    }

    /// Something was told of the Job.
    pub(super) fn hear_job(&mut self, heard: &Heard<Job>) {
        let is_ours = |job: &&Job| job.metadata.uid.as_deref() == Some(&self.uid);
        match heard {
            // The list is as fresh as the creation of the object.
            Heard::All(jobs) => match jobs.iter().find(is_ours) {
                Some(job) => self.job = Some(job.clone()),
                None => self.is_deleted = true,
            },
            Heard::Applied(job) if is_ours(&job) => self.job = Some(job.clone()),
            Heard::Deleted(job) if is_ours(&job) => {
                self.job = Some(job.clone());
                self.is_deleted = true;
            }
            Heard::Applied(_) | Heard::Deleted(_) | Heard::Answered | Heard::Failed(_) => {}
        }
    }

    /// Something was told of pods with the run's label; `now` is the time of day.
    pub(super) fn hear_pods(&mut self, heard: &Heard<Pod>, now: f64) {
        match heard {
            Heard::All(pods) => {
                let ours: Vec<&Pod> = pods.iter().filter(|pod| self.owns(pod)).collect();
                let there: Vec<&str> = ours.iter().filter_map(|pod| pod.metadata.uid.as_deref()).collect();
                let lost: Vec<String> =
                    self.pods.keys().filter(|uid| !there.contains(&uid.as_str())).cloned().collect();
                for uid in lost {
                    self.lose(&uid, now);
                }
                if self.kind == JobKind::Pod && ours.is_empty() {
                    self.is_deleted = true;
                }
                ours.into_iter().for_each(|pod| self.take(pod));
            }
            Heard::Applied(pod) if self.owns(pod) => self.take(pod),
            Heard::Deleted(pod) if self.owns(pod) => {
                // What it was in the end comes with the news of its end.
                self.take(pod);
                self.lose(pod.metadata.uid.as_deref().unwrap_or_default(), now);
                self.is_deleted |= self.kind == JobKind::Pod;
            }
            Heard::Applied(_) | Heard::Deleted(_) | Heard::Answered | Heard::Failed(_) => {}
        }
    }

    fn owns(&self, pod: &Pod) -> bool {
        match self.kind {
            JobKind::Pod => pod.metadata.uid.as_deref() == Some(&self.uid),
            JobKind::Job => pod.metadata.owner_references.iter().flatten().any(|owner| owner.uid == self.uid),
        }
    }

    fn take(&mut self, pod: &Pod) {
        let Some(uid) = pod.metadata.uid.clone() else { return };
        self.pods.entry(uid).and_modify(|run| run.update(pod)).or_insert_with(|| PodRun::new(pod));
    }

    fn lose(&mut self, uid: &str, now: f64) {
        if let Some(run) = self.pods.get_mut(uid) {
            run.gone(now);
            self.gone.push(uid.to_owned());
        }
    }

    /// What the run is doing, so long after its creation.
    pub(super) fn phase(&mut self, elapsed: Duration) -> Phase {
        let phase = self.phase_as_told();
        match &phase {
            Phase::Ended(end) => {
                let since = *self.ended_since.get_or_insert(elapsed);
                if self.has_live_pods() && elapsed < since + LAST_PODS {
                    return Phase::Running(self.running());
                }
                return Phase::Ended(end.clone());
            }
            Phase::Running(_) => self.idle_since = elapsed,
            Phase::Waiting(obstacle) => {
                if obstacle.passes {
                    self.idle_since = elapsed;
                }
                if elapsed >= self.idle_since + self.limits.start {
                    return Phase::Ended(RunEnd::NotStarted(obstacle.clone()));
                }
            }
        }
        if elapsed >= self.limits.whole { Phase::Ended(RunEnd::TimedOut) } else { phase }
    }

    /// By the objects alone.
    fn phase_as_told(&self) -> Phase {
        let ended = match self.kind {
            JobKind::Job => self.job.as_ref().and_then(end_of_job),
            JobKind::Pod => self.pods.get(&self.uid).and_then(|pod| self.end_of_pod(pod)),
        };
        if let Some(end) = ended {
            return Phase::Ended(end);
        }
        if self.is_deleted {
            return Phase::Ended(RunEnd::Deleted);
        }
        match self.running() {
            0 => Phase::Waiting(self.obstacle()),
            running => Phase::Running(running),
        }
    }

    fn end_of_pod(&self, pod: &PodRun) -> Option<RunEnd> {
        match &pod.state {
            PodState::Succeeded => Some(RunEnd::Complete),
            PodState::Failed { .. } if self.gone.contains(&pod.uid) && pod.exit_code.is_none() => Some(RunEnd::Deleted),
            PodState::Failed { reason, message } => {
                Some(RunEnd::Failed { reason: reason.clone(), message: message.clone() })
            }
            PodState::Waiting(_) | PodState::Running => None,
        }
    }

    fn running(&self) -> usize {
        self.pods.values().filter(|pod| pod.state == PodState::Running).count()
    }

    /// Pods that have begun and not ended.
    fn has_live_pods(&self) -> bool {
        self.pods.values().any(|pod| pod.started.is_some() && !pod.has_ended())
    }

    /// Why nothing runs.
    fn obstacle(&self) -> Obstacle {
        let waiting = self.pods.values().filter_map(|pod| match &pod.state {
            PodState::Waiting(obstacle) => Some(obstacle),
            _ => None,
        });
        // One that waits for help says more than one that only has to wait.
        if let Some(obstacle) = waiting.clone().find(|it| !it.passes).or(waiting.clone().next()) {
            return obstacle.clone();
        }
        let is_suspended = self.job.as_ref().and_then(|job| job.spec.as_ref()?.suspend).unwrap_or(false);
        if is_suspended {
            return Obstacle::new("Suspended", "the Job is suspended; a queue or spec.suspend=false starts it");
        }
        if self.pods.is_empty() {
            let message = "the Job has no pod; `kubectl describe` shows why, as a quota that refuses it";
            return Obstacle::new("NoPod", message);
        }
        // The Job controller waits before it tries again, or has yet to say that it is done.
        Obstacle {
            passes: true,
            ..Obstacle::new("BetweenPods", "no pod runs; the Job controller decides what comes next")
        }
    }

    /// Time from the creation of the object to the first container, in the queue and then for images and the like.
    #[must_use]
    pub fn waited(&self, created: Option<f64>) -> (Option<f64>, Option<f64>) {
        let pods = self.pods();
        let Some((pod, started)) = pods.first().and_then(|pod| Some((pod, pod.started?))) else { return (None, None) };
        let queue = created.zip(pod.scheduled).map(|(created, scheduled)| (scheduled - created).max(0.0));
        (queue, pod.scheduled.map(|scheduled| (started - scheduled).max(0.0)))
    }
}

/// Conditions `Complete` and `Failed` are final.
fn end_of_job(job: &Job) -> Option<RunEnd> {
    let conditions = job.status.as_ref()?.conditions.iter().flatten();
    let condition = |kind: &str| conditions.clone().find(|it| it.type_ == kind && it.status == "True");
    if condition("Complete").is_some() {
        return Some(RunEnd::Complete);
    }
    let failed = condition("Failed")?;
    Some(RunEnd::Failed {
        reason: failed.reason.clone().unwrap_or_else(|| "Failed".to_owned()),
        message: failed.message.clone().unwrap_or_default(),
    })
}

/// When an object was created.
pub(super) fn created(time: Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>) -> Option<f64> {
    seconds(time)
}

#[cfg(test)]
mod tests;
