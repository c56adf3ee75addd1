//! Hears of a run: one watch of the Job, and one of the pods that have the run's label.

use std::time::Duration;

use energy_model::meter_state::Reason;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::course::{Course, Deadlines, Phase, RunEnd};
use super::document::{JobKind, RUN_LABEL};
use super::submit::Submitted;
use crate::kubernetes::watch::{self, Age, Heard, Query, Watched};
use crate::kubernetes::{ClusterError, Credentials};

/// How often deadlines are looked at, and the time that has passed is told.
const STEP: Duration = Duration::from_millis(500);

impl Watched for Job {
    fn version(&self) -> &str {
        self.metadata.resource_version.as_deref().unwrap_or_default()
    }
}

impl Watched for Pod {
    fn version(&self) -> &str {
        self.metadata.resource_version.as_deref().unwrap_or_default()
    }
}

/// How things stand.
pub struct RunSight<'a> {
    pub phase: &'a Phase,
    pub course: &'a Course,
    /// Time since the object was created.
    pub elapsed: Duration,
    /// Why the API server tells nothing at the moment.
    pub outage: Option<&'a ClusterError>,
}

impl Submitted {
    /// Follows the object to its end. `tell` hears of each change, and of the time that passes.
    ///
    /// # Errors
    /// When the server does not let this account watch. An outage is waited for.
    pub async fn follow(
        &self,
        limits: Deadlines,
        mut tell: impl FnMut(&RunSight<'_>),
    ) -> Result<(RunEnd, Course), ClusterError> {
        let began = Instant::now();
        let (_watches, mut jobs, mut pods) = self.watches();
        let mut course = Course::new(self.kind, &self.uid, limits);
        // Nothing is known before both have answered.
        let (mut knows_job, mut knows_pods) = (self.kind == JobKind::Pod, false);
        let mut outage = None;
        loop {
            tokio::select! {
                Some(heard) = jobs.recv() => {
                    knows_job |= is_all(&heard, &mut outage)?;
                    course.hear_job(&heard);
                }
                Some(heard) = pods.recv() => {
                    knows_pods |= is_all(&heard, &mut outage)?;
                    course.hear_pods(&heard, now());
                }
                () = sleep(STEP) => {}
            }
            let elapsed = began.elapsed();
            if !(knows_job && knows_pods) && elapsed < limits.whole {
                continue;
            }
            let phase = course.phase(elapsed);
            tell(&RunSight { phase: &phase, course: &course, elapsed, outage: outage.as_ref() });
            if let Phase::Ended(end) = phase {
                return Ok((end, course));
            }
        }
    }

    /// They end with the set.
    fn watches(&self) -> (JoinSet<()>, UnboundedReceiver<Heard<Job>>, UnboundedReceiver<Heard<Pod>>) {
        let ((of_jobs, jobs), (of_pods, pods)) = (unbounded_channel(), unbounded_channel());
        let mut watches = JoinSet::new();
        let query = |kind: JobKind, fields: Option<String>, labels: Option<String>| Query {
            path: kind.path(&self.namespace),
            object: format!("{} in namespace {}", kind.resource(), self.namespace),
            fields,
            labels,
            page: 500,
        };
        if self.kind == JobKind::Job {
            let query = query(JobKind::Job, Some(format!("metadata.name={}", self.name)), None);
            watches.spawn(watch(self.credentials.clone(), query, move |heard| drop(of_jobs.send(heard))));
        }
        let query = query(JobKind::Pod, None, Some(format!("{RUN_LABEL}={}", self.run)));
        watches.spawn(watch(self.credentials.clone(), query, move |heard| drop(of_pods.send(heard))));
        (watches, jobs, pods)
    }
}

/// Whether this tells of all objects; an outage is kept while it lasts, unless waiting does not help.
fn is_all<T>(heard: &Heard<T>, outage: &mut Option<ClusterError>) -> Result<bool, ClusterError> {
    match heard {
        Heard::Failed(error) if is_final(error) => return Err(error.clone()),
        Heard::Failed(error) => *outage = Some(error.clone()),
        Heard::Answered => *outage = None,
        Heard::All(_) | Heard::Applied(_) | Heard::Deleted(_) => {}
    }
    Ok(matches!(heard, Heard::All(_)))
}

/// The first list has to be as new as the object, which a server's cache need not have yet.
async fn watch<T: Watched + DeserializeOwned>(credentials: Credentials, query: Query, tell: impl FnMut(Heard<T>)) {
    watch::run_from(credentials, query, Age::Latest, tell).await;
}

/// Whether waiting does not help.
const fn is_final(error: &ClusterError) -> bool {
    matches!(error.reason, Reason::Forbidden | Reason::Unauthorized | Reason::Config)
}

/// Seconds since the Unix epoch.
fn now() -> f64 {
    Timestamp::now().duration_since(Timestamp::UNIX_EPOCH).as_secs_f64()
}
