//! One pod of a run: what it is doing, and when its containers began and ended.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// What one pod is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodState {
    Waiting(Obstacle),
    Running,
    Succeeded,
    /// The reason as Kubernetes names it.
    Failed {
        reason: String,
        message: String,
    },
}

/// Why nothing runs yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Obstacle {
    /// As Kubernetes names it: `Unschedulable`, `ErrImagePull`.
    pub reason: String,
    pub message: String,
    /// It passes by itself, so that no deadline for the start applies: the pause before a restart.
    pub passes: bool,
}

impl Obstacle {
    #[must_use]
    pub(super) fn new(reason: &str, message: &str) -> Self {
        let passes = reason == "CrashLoopBackOff";
        Self { reason: reason.to_owned(), message: message.to_owned(), passes }
    }
}

/// A pod over its whole life. Times are seconds since the Unix epoch.
#[derive(Clone, Debug, PartialEq)]
pub struct PodRun {
    pub uid: String,
    pub name: String,
    pub node: String,
    pub state: PodState,
    /// When the scheduler gave it a node.
    pub scheduled: Option<f64>,
    /// When its first container began, restarts included.
    pub started: Option<f64>,
    /// When its last container ended; `None` while one runs.
    pub finished: Option<f64>,
    /// Exit code of the container that failed, else 0 once it has ended.
    pub exit_code: Option<i32>,
    /// Images as the runtime has resolved them, by container.
    pub images: Vec<(String, String)>,
    /// What the last attempt to get an image said; the pause after it says nothing.
    pull_error: Option<String>,
}

impl PodRun {
    #[must_use]
    pub(super) fn new(pod: &Pod) -> Self {
        let mut run = Self {
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            node: String::new(),
            state: PodState::Running,
            scheduled: None,
            started: None,
            finished: None,
            exit_code: None,
            images: Vec::new(),
            pull_error: None,
        };
        run.update(pod);
        run
    }

    /// Takes in what the pod is now.
    pub(super) fn update(&mut self, pod: &Pod) {
        let none = PodStatus::default();
        let status = pod.status.as_ref().unwrap_or(&none);
        if let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()) {
            self.node.clone_from(node);
        }
        let conditions = status.conditions.iter().flatten();
        let scheduled = conditions.clone().find(|it| it.type_ == "PodScheduled" && it.status == "True");
        self.scheduled = self.scheduled.or(scheduled.and_then(|it| seconds(it.last_transition_time.as_ref())));
        self.state = self.state_of(status);
        let began = containers(status).flat_map(|container| {
            let states = [&container.state, &container.last_state];
            states.map(|state| state.as_ref().and_then(started)).into_iter().flatten()
        });
        self.started = began.chain(self.started).reduce(f64::min);
        let ends: Vec<Option<f64>> = containers(status)
            .filter(|container| container.state.as_ref().is_some_and(|state| state.waiting.is_none()))
            .map(|container| seconds(terminated(container)?.finished_at.as_ref()))
            .collect();
        let has_ended = matches!(self.state, PodState::Succeeded | PodState::Failed { .. });
        self.finished = if has_ended || ends.iter().all(Option::is_some) {
            ends.into_iter().flatten().chain(self.finished).reduce(f64::max)
        } else {
            None
        };
        if has_ended {
            let codes = containers(status).filter_map(terminated).map(|end| end.exit_code);
            self.exit_code = codes.clone().find(|code| *code != 0).or(codes.last());
        }
        let images: Vec<_> = containers(status)
            .filter(|container| !container.image_id.is_empty())
            .map(|container| (container.name.clone(), container.image_id.clone()))
            .collect();
        if !images.is_empty() {
            self.images = images;
        }
    }

    /// It is gone from the cluster: whatever still ran has ended now.
    pub(super) fn gone(&mut self, now: f64) {
        if !self.has_ended() {
            self.state = PodState::Failed { reason: "Deleted".to_owned(), message: "the pod was deleted".to_owned() };
        }
        if self.started.is_some() {
            self.finished = self.finished.or(Some(now));
        }
    }

    #[must_use]
    pub fn has_ended(&self) -> bool {
        matches!(self.state, PodState::Succeeded | PodState::Failed { .. })
    }

    fn state_of(&mut self, status: &PodStatus) -> PodState {
        match status.phase.as_deref() {
            Some("Succeeded") => return PodState::Succeeded,
            Some("Failed") => return failure(status),
            _ => {}
        }
        if containers(status).any(|it| it.state.as_ref().is_some_and(|state| state.running.is_some())) {
            return PodState::Running;
        }
        let waiting = containers(status).filter_map(|it| it.state.as_ref()?.waiting.as_ref());
        // What waits for another container says less than that one.
        let dull = ["", "PodInitializing", "ContainerCreating"];
        let told = waiting.clone().find(|it| !dull.contains(&it.reason.as_deref().unwrap_or_default()));
        if let Some(waiting) = told.or(waiting.clone().next()) {
            let reason = waiting.reason.as_deref().unwrap_or("ContainerCreating");
            let mut obstacle = Obstacle::new(reason, waiting.message.as_deref().unwrap_or_default());
            match reason {
                "ErrImagePull" => self.pull_error = Some(obstacle.message.clone()),
                "ImagePullBackOff" => obstacle.message = self.pull_error.clone().unwrap_or(obstacle.message),
                _ => {}
            }
            return PodState::Waiting(obstacle);
        }
        // All have ended, and the kubelet has not said so of the pod.
        if containers(status).next().is_some() {
            return PodState::Running;
        }
        let conditions = status.conditions.iter().flatten();
        let place = conditions.clone().find(|it| it.type_ == "PodScheduled");
        match place {
            Some(place) if place.status == "True" => {
                PodState::Waiting(Obstacle::new("Scheduled", "the node has not begun to start it"))
            }
            Some(place) => PodState::Waiting(Obstacle::new(
                place.reason.as_deref().unwrap_or("Unschedulable"),
                place.message.as_deref().unwrap_or_default(),
            )),
            None => PodState::Waiting(Obstacle::new("Pending", "the scheduler has not looked at it")),
        }
    }
}

/// Why a pod has failed: what is said of it as a whole, else its first container that did not end with 0.
fn failure(status: &PodStatus) -> PodState {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    if let Some(reason) = status.reason.clone().filter(|reason| !reason.is_empty()) {
        return PodState::Failed { reason, message: text(&status.message) };
    }
    let ended = containers(status).filter_map(|container| Some((container, terminated(container)?)));
    let Some((container, end)) = ended.into_iter().find(|(_, end)| end.exit_code != 0) else {
        return PodState::Failed { reason: "Failed".to_owned(), message: text(&status.message) };
    };
    let reason = end.reason.clone().filter(|reason| !reason.is_empty()).unwrap_or_else(|| "Error".to_owned());
    let message = format!("container {} ended with exit code {}", container.name, end.exit_code);
    PodState::Failed { reason, message }
}

fn containers(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> + Clone {
    status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten())
}

fn terminated(container: &ContainerStatus) -> Option<&k8s_openapi::api::core::v1::ContainerStateTerminated> {
    container.state.as_ref()?.terminated.as_ref()
}

fn started(state: &ContainerState) -> Option<f64> {
    let running = state.running.as_ref().and_then(|it| seconds(it.started_at.as_ref()));
    running.or_else(|| seconds(state.terminated.as_ref()?.started_at.as_ref()))
}

/// A container that never ran has a time of 1970 or earlier.
pub(super) fn seconds(time: Option<&Time>) -> Option<f64> {
    let duration = time?.0.duration_since(k8s_openapi::jiff::Timestamp::UNIX_EPOCH);
    Some(duration.as_secs_f64()).filter(|seconds| *seconds > 0.0)
}
