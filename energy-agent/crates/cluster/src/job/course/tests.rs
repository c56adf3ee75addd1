#![allow(clippy::unwrap_used, clippy::float_cmp, reason = "tests panic, and their times are whole seconds")]

use serde_json::{Value, json};

use super::*;

/// 2026-01-01 00:00:00 UTC, by `date -u -d 2026-01-01 +%s`.
const T: f64 = 1_767_225_600.0;

fn at(second: u32) -> String {
    format!("2026-01-01T00:{:02}:{:02}Z", second / 60, second % 60)
}

fn job(conditions: &Value) -> Heard<Job> {
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train", "uid": "job-1"},
        "status": {"conditions": conditions},
    });
    Heard::Applied(serde_json::from_value(job).unwrap())
}

fn pod_object(uid: &str, status: &Value) -> Pod {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("train-{uid}"), "uid": uid, "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "job-1"}]},
        "spec": {"nodeName": "worker-1", "containers": []},
        "status": status,
    });
    serde_json::from_value(pod).unwrap()
}

fn pod(uid: &str, status: &Value) -> Heard<Pod> {
    Heard::Applied(pod_object(uid, status))
}

fn scheduled(second: u32) -> Value {
    json!([{"type": "PodScheduled", "status": "True", "lastTransitionTime": at(second)}])
}

fn waits(reason: &str, message: &str) -> Value {
    let state = json!({"waiting": {"reason": reason, "message": message}});
    json!({"phase": "Pending", "conditions": scheduled(3), "containerStatuses": [{"name": "main", "state": state}]})
}

fn runs(from: u32) -> Value {
    let state = json!({"running": {"startedAt": at(from)}});
    json!({"phase": "Running", "conditions": scheduled(3), "containerStatuses": [{"name": "main", "imageID": "sha256:1", "state": state}]})
}

fn ended(from: u32, to: u32, code: i32) -> Value {
    let reason = if code == 0 { "Completed" } else { "Error" };
    let state =
        json!({"terminated": {"startedAt": at(from), "finishedAt": at(to), "exitCode": code, "reason": reason}});
    json!({
        "phase": if code == 0 { "Succeeded" } else { "Failed" },
        "conditions": scheduled(3), "containerStatuses": [{"name": "main", "state": state}],
    })
}

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn course(kind: JobKind) -> Course {
    let uid = if kind == JobKind::Job { "job-1" } else { "a" };
    let mut course = Course::new(kind, uid, Deadlines { whole: s(3600), start: s(300) });
    course.hear_job(&job(&json!([])));
    course
}

fn obstacle(phase: &Phase) -> (&str, &str) {
    match phase {
        Phase::Waiting(obstacle) | Phase::Ended(RunEnd::NotStarted(obstacle)) => (&obstacle.reason, &obstacle.message),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_job_waits_runs_and_completes_and_its_times_are_those_of_the_containers() {
    let mut course = course(JobKind::Job);
    assert_eq!(obstacle(&course.phase(s(1))).0, "NoPod");
    let unschedulable = json!({"phase": "Pending", "conditions": [{
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available",
    }]});
    course.hear_pods(&pod("a", &unschedulable), T);
    assert_eq!(obstacle(&course.phase(s(2))), ("Unschedulable", "0/1 nodes are available"));
    course.hear_pods(&pod("a", &waits("ContainerCreating", "")), T);
    assert_eq!(obstacle(&course.phase(s(3))), ("ContainerCreating", ""));
    course.hear_pods(&pod("a", &runs(10)), T);
    assert_eq!(course.phase(s(10)), Phase::Running(1));
    course.hear_pods(&pod("a", &ended(10, 25, 0)), T);
    // The Job controller has not said so.
    assert_eq!(obstacle(&course.phase(s(25))).0, "BetweenPods");
    course.hear_job(&job(&json!([{"type": "Complete", "status": "True"}])));
    assert_eq!(course.phase(s(26)), Phase::Ended(RunEnd::Complete));
    let pods = course.pods();
    let a = &pods[0];
    assert_eq!((a.scheduled, a.started, a.finished), (Some(T + 3.0), Some(T + 10.0), Some(T + 25.0)));
    assert_eq!(
        (a.node.as_str(), a.exit_code, a.images.clone()),
        ("worker-1", Some(0), vec![("main".into(), "sha256:1".into())])
    );
    assert_eq!(course.waited(Some(T + 1.0)), (Some(2.0), Some(7.0)));
}

#[test]
fn what_keeps_it_from_starting_ends_it_after_the_deadline_with_its_reason() {
    for (reason, message) in [
        ("ErrImagePull", "not found"),
        ("ErrImageNeverPull", "image is not present"),
        ("CreateContainerConfigError", "secret \"key\" not found"),
        ("ContainerCreating", ""),
    ] {
        let mut course = course(JobKind::Job);
        course.hear_pods(&pod("a", &waits(reason, message)), T);
        assert_eq!(obstacle(&course.phase(s(299))), (reason, message));
        let phase = course.phase(s(300));
        assert_eq!(obstacle(&phase), (reason, message));
        assert!(matches!(&phase, Phase::Ended(end) if end.reason() == reason));
    }
}

#[test]
fn the_pause_between_two_attempts_keeps_what_the_attempt_said() {
    let mut course = course(JobKind::Job);
    course.hear_pods(&pod("a", &waits("ErrImagePull", "no such host")), T);
    course.hear_pods(&pod("a", &waits("ImagePullBackOff", "Back-off pulling image")), T);
    assert_eq!(obstacle(&course.phase(s(9))), ("ImagePullBackOff", "no such host"));
}

#[test]
fn the_deadline_for_the_start_counts_from_the_last_moment_of_work_and_not_between_retries() {
    let mut course = course(JobKind::Job);
    course.hear_pods(&pod("a", &runs(10)), T);
    assert_eq!(course.phase(s(400)), Phase::Running(1));
    course.hear_pods(&pod("a", &ended(10, 400, 1)), T);
    // A pause of six minutes is what the Job controller makes of many failures.
    assert_eq!(obstacle(&course.phase(s(760))).0, "BetweenPods");
    course.hear_pods(&pod("b", &waits("ErrImagePull", "gone")), T);
    assert_eq!(obstacle(&course.phase(s(1059))).0, "ErrImagePull");
    assert!(matches!(course.phase(s(1060)), Phase::Ended(RunEnd::NotStarted(_))));
}

#[test]
fn a_pod_beside_one_that_waits_keeps_the_run_going() {
    let mut course = course(JobKind::Job);
    course.hear_pods(&pod("a", &waits("ErrImagePull", "gone")), T);
    course.hear_pods(&pod("b", &runs(10)), T);
    assert_eq!(course.phase(s(1000)), Phase::Running(1));
}

#[test]
fn retries_are_pods_of_their_own_and_a_failed_job_says_why() {
    let mut course = course(JobKind::Job);
    course.hear_pods(&pod("b", &ended(40, 50, 3)), T);
    course.hear_pods(&pod("a", &ended(10, 20, 3)), T);
    let failed = json!([{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "limit"}]);
    course.hear_job(&job(&failed));
    let end = RunEnd::Failed { reason: "BackoffLimitExceeded".to_owned(), message: "limit".to_owned() };
    assert_eq!(course.phase(s(60)), Phase::Ended(end));
    let pods = course.pods();
    let rows: Vec<_> = pods.iter().map(|pod| (pod.name.as_str(), pod.started.unwrap(), pod.exit_code)).collect();
    assert_eq!(rows, [("train-a", T + 10.0, Some(3)), ("train-b", T + 40.0, Some(3))]);
    let said = "container main ended with exit code 3".to_owned();
    assert_eq!(pods[0].state, PodState::Failed { reason: "Error".to_owned(), message: said });
}

#[test]
fn after_the_end_of_a_job_its_last_pods_may_end_for_a_minute() {
    let mut course = course(JobKind::Job);
    course.hear_pods(&pod("a", &runs(10)), T);
    course.hear_job(&job(&json!([{"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}])));
    assert_eq!(course.phase(s(30)), Phase::Running(1));
    assert_eq!(course.phase(s(89)), Phase::Running(1));
    assert!(matches!(course.clone().phase(s(90)), Phase::Ended(RunEnd::Failed { .. })));
    // The Job controller deletes it.
    course.hear_pods(&Heard::Deleted(pod_object("a", &runs(10))), T + 35.0);
    assert!(matches!(course.phase(s(36)), Phase::Ended(RunEnd::Failed { .. })));
    assert_eq!(course.pods()[0].finished, Some(T + 35.0));
}

#[test]
fn an_object_that_somebody_else_deletes_has_ended_unless_it_had_before() {
    let mut course = course(JobKind::Job);
    course.hear_pods(&pod("a", &runs(10)), T);
    let Heard::Applied(object) = job(&json!([])) else { unreachable!() };
    course.hear_job(&Heard::Deleted(object));
    // Its pod is still there.
    assert_eq!(course.phase(s(20)), Phase::Running(1));
    course.hear_pods(&Heard::All(Vec::new()), T + 21.0);
    assert_eq!(course.phase(s(21)), Phase::Ended(RunEnd::Deleted));
    // By ttlSecondsAfterFinished.
    let mut course = super::tests::course(JobKind::Job);
    course.hear_job(&job(&json!([{"type": "Complete", "status": "True"}])));
    course.hear_job(&Heard::All(Vec::new()));
    assert_eq!(course.phase(s(22)), Phase::Ended(RunEnd::Complete));
}

#[test]
fn a_pod_alone_ends_by_its_phase_or_by_its_deletion() {
    for (status, expected) in [(ended(1, 2, 0), "Complete"), (ended(1, 2, 1), "Error")] {
        let mut course = course(JobKind::Pod);
        course.hear_pods(&pod("a", &status), T);
        let phase = course.phase(s(5));
        assert!(matches!(&phase, Phase::Ended(end) if end.reason() == expected), "{phase:?}");
    }
    let mut course = course(JobKind::Pod);
    course.hear_pods(&pod("a", &runs(5)), T);
    course.hear_pods(&Heard::Deleted(pod_object("a", &runs(5))), T + 9.0);
    assert_eq!(course.phase(s(9)), Phase::Ended(RunEnd::Deleted));
    assert_eq!(course.pods()[0].finished, Some(T + 9.0));
}

#[test]
fn pods_of_others_with_the_same_label_are_none_of_the_run() {
    let mut course = course(JobKind::Job);
    let mut other = pod_object("x", &runs(5));
    other.metadata.owner_references = None;
    course.hear_pods(&Heard::All(vec![other.clone()]), T);
    course.hear_pods(&Heard::Deleted(other), T);
    assert_eq!((course.pods(), obstacle(&course.phase(s(1))).0), (Vec::new(), "NoPod"));
}

#[test]
fn a_restarted_container_began_at_its_first_start_and_waits_for_its_next_without_a_deadline() {
    let mut course = course(JobKind::Pod);
    let status = |state: &Value| {
        let last = json!({"terminated": {"startedAt": at(10), "finishedAt": at(20), "exitCode": 1}});
        json!({"phase": "Running", "conditions": scheduled(3), "containerStatuses": [{"name": "main", "state": state, "lastState": last}]})
    };
    let waiting = json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}});
    course.hear_pods(&pod("a", &status(&waiting)), T);
    assert_eq!(obstacle(&course.phase(s(3000))).0, "CrashLoopBackOff");
    course.hear_pods(&pod("a", &status(&json!({"running": {"startedAt": at(60)}}))), T);
    assert_eq!(course.phase(s(3001)), Phase::Running(1));
    let pod = &course.pods()[0];
    assert_eq!((pod.started, pod.finished), (Some(T + 10.0), None));
}

#[test]
fn a_container_that_never_ran_has_no_time() {
    let mut course = course(JobKind::Pod);
    let state = json!({"terminated": {"startedAt": "1970-01-01T00:00:00Z", "finishedAt": null, "exitCode": 128, "reason": "ContainerCannotRun"}});
    let status = json!({"phase": "Failed", "containerStatuses": [{"name": "main", "state": state}]});
    course.hear_pods(&pod("a", &status), T);
    let phase = course.phase(s(1));
    assert!(matches!(&phase, Phase::Ended(end) if end.reason() == "ContainerCannotRun"), "{phase:?}");
    let pod = &course.pods()[0];
    assert_eq!((pod.started, pod.finished, course.waited(Some(T))), (None, None, (None, None)));
}

#[test]
fn a_run_over_its_time_has_timed_out_and_a_suspended_job_says_so() {
    let mut course = course(JobKind::Job);
    course.hear_pods(&pod("a", &runs(10)), T);
    assert_eq!(course.phase(s(3600)), Phase::Ended(RunEnd::TimedOut));
    let mut course = super::tests::course(JobKind::Job);
    let suspended = json!({"metadata": {"name": "train", "uid": "job-1"}, "spec": {"suspend": true, "template": {}}});
    course.hear_job(&Heard::Applied(serde_json::from_value(suspended).unwrap()));
    assert_eq!(obstacle(&course.phase(s(1))).0, "Suspended");
}

/// What a Kubernetes 1.20.2 node with its scheduler, Job controller and kubelet told of six Jobs, as watches gave it up to the
/// deletion: metadata and spec are cut to what is read here.
#[test]
fn the_course_of_recorded_jobs_is_what_kubectl_showed() {
    let recorded: Value = serde_json::from_str(include_str!("recorded.json")).unwrap();
    let courses: [(&str, &[&str]); 6] = [
        ("Complete", &["NoPod", "Pending", "Scheduled", "ContainerCreating", "runs", "BetweenPods", "Complete"]),
        (
            "BackoffLimitExceeded",
            &[
                "NoPod",
                "Pending",
                "Scheduled",
                "ContainerCreating",
                "runs",
                "BetweenPods",
                "Pending",
                "Scheduled",
                "ContainerCreating",
                "runs",
                "BetweenPods",
                "BackoffLimitExceeded",
            ],
        ),
        ("Unschedulable", &["NoPod", "Pending", "Unschedulable"]),
        ("ErrImageNeverPull", &["NoPod", "Pending", "Scheduled", "ContainerCreating", "ErrImageNeverPull"]),
        ("ErrImagePull", &["NoPod", "Pending", "Scheduled", "ContainerCreating", "ErrImagePull", "ImagePullBackOff"]),
        (
            "CreateContainerConfigError",
            &["NoPod", "Pending", "Scheduled", "ContainerCreating", "CreateContainerConfigError"],
        ),
    ];
    for (name, expected) in courses {
        let events = recorded[name].as_array().unwrap();
        let uid = events[0]["object"]["metadata"]["uid"].as_str().unwrap();
        let mut course = Course::new(JobKind::Job, uid, Deadlines { whole: s(3600), start: s(300) });
        let mut seen: Vec<String> = Vec::new();
        for event in events {
            let object = event["object"].clone();
            if event["kind"] == "Job" {
                course.hear_job(&Heard::Applied(serde_json::from_value(object).unwrap()));
            } else {
                course.hear_pods(&Heard::Applied(serde_json::from_value(object).unwrap()), T);
            }
            let now = match course.phase(s(1)) {
                Phase::Waiting(obstacle) => obstacle.reason,
                Phase::Running(_) => "runs".to_owned(),
                Phase::Ended(end) => end.reason().to_owned(),
            };
            if seen.last() != Some(&now) {
                seen.push(now);
            }
        }
        assert_eq!(seen, expected, "{name}");
    }
}
