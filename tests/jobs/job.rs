//! `measure --job` against a real API server. The test plays the Job controller, the scheduler, the kubelet and the garbage
//! collector: it creates pods, writes their status, and takes away the finalizer of what is deleted.

pub mod world;

use std::collections::BTreeSet;

use energy_report::run::{MeasuredBy, Part, Run, SubjectKind};
use serde_json::{Value, json};

use self::world::{Measuring, World};
use crate::common::kubernetes::node::POD_JOULES;
use crate::common::kubernetes::proxy::Answer;
use crate::common::manifests;
use crate::common::page::Page;
use crate::common::prometheus::Prometheus;
use crate::schema::assert_valid;

/// What a run counts of a page: the zones that add up.
fn joules(page: &Page, uid: &str) -> u64 {
    ["package", "dram"].iter().map(|zone| page.microjoules(POD_JOULES, &[("pod_id", uid), ("zone", zone)])).sum()
}

fn counted(run: &Run) -> u64 {
    let adds_up = |part: Part| matches!(part, Part::Package | Part::Dram);
    run.energy.iter().filter(|energy| adds_up(energy.part)).map(|energy| energy.microjoules).sum()
}

/// A retry, a watch that breaks, and an answer that is lost on the way are part of it.
#[test]
fn a_job_is_created_followed_measured_by_prometheus_and_deleted() {
    let Some(world) = World::new() else { return };
    let agent = world.node.agent(&["--interval=500ms"]);
    let target = format!("[{{job_name: agent, static_configs: [{{targets: [\"{}\"]}}]}}]", agent.address);
    let prometheus = Prometheus::scraping(&target);
    crate::common::agent::wait_for("a scrape", || {
        (!prometheus.query("energy_agent_ticks_total").is_empty()).then_some(())
    });
    world.node.proxy.faults().of_path.push(("fieldValidation", Answer::Lose));
    let url = format!("--prometheus={}", prometheus.url());
    let measuring = world.measure(&world.job("train"), &[&url, "--label=branch=main", "--work=12"]);

    let job = world.wait_for_job("train");
    assert_eq!(
        job["metadata"]["labels"]["energy-agent.io/run"],
        job["spec"]["template"]["metadata"]["labels"]["energy-agent.io/run"]
    );
    measuring.wait_for_line("NoPod");
    let failing = world.pod_of(&job, "train-1");
    measuring.wait_for_line("runs on");
    failing.burn("main", 100);
    world.end(&failing, 3);
    world.node.proxy.end_watches();
    let other = world.pod_of(&job, "train-2");
    other.burn("main", 200);
    world.end(&other, 0);
    world.set_job_condition("train", &json!({"type": "Complete", "status": "True"}));
    world.collect("train");

    let (code, said) = measuring.ended();
    assert_eq!(code, 0, "{said}");
    let run = world.run_file();
    // The agent still has both pods.
    let page = agent.scrape();
    let [first, second] = [&failing, &other].map(|pod| joules(&page, pod.uid()));
    assert!(first > 0 && second > 0);
    assert_eq!(counted(&run), first + second);
    let rows: Vec<_> = run
        .pods
        .iter()
        .map(|pod| (pod.name.as_str(), pod.phase.as_str(), pod.microjoules + pod.estimated_microjoules))
        .collect();
    assert_eq!(rows, [("train-1", "Failed", first), ("train-2", "Succeeded", second)]);
    assert_eq!(run.id, job["metadata"]["labels"]["energy-agent.io/run"]);
    assert_eq!((run.subject.kind, run.subject.name.as_str()), (SubjectKind::Job, "train"));
    assert_eq!(
        (run.subject.namespace.as_deref(), run.subject.class.as_deref()),
        (Some(world.namespace()), Some("train"))
    );
    assert_eq!(run.measured.by, MeasuredBy::Prometheus);
    let outcome = run.outcome.unwrap();
    assert_eq!((outcome.succeeded, outcome.exit_code, outcome.reason.as_str()), (true, Some(0), "Complete"));
    assert_eq!(run.labels["branch"], "main");
    // Pods began 4 s after they had got a node, which was 2 s after their creation.
    assert_eq!(run.waited.unwrap().image_seconds, Some(4.0));
    world.assert_asked_for(&manifests::example("measure-role.yaml"));
}

/// A pod alone, through the API server's proxy of the agent's pod.
#[test]
fn without_prometheus_the_page_of_the_nodes_agent_is_read_through_the_api_server() {
    let Some(mut world) = World::new() else { return };
    let agent = world.node.agent(&["--interval=500ms"]);
    world.agents_pod(&agent.address);
    // Another context is the current one.
    let text = std::fs::read_to_string(&world.node.kubeconfig).unwrap();
    world.node.kubeconfig =
        world.file("contexts", &text.replace(r#""current-context":"test""#, r#""current-context":"away""#));
    let measuring = world.measure(&world.pod_file("probe-"), &[&world.direct()[..], &["--context=test"]].concat());
    let object = world.wait_for_pod();
    assert!(object["metadata"]["name"].as_str().unwrap().starts_with("probe-"), "{object}");
    let pod = world.run_pod(&object);
    measuring.wait_for_line("runs on");
    pod.burn("main", 200);
    world.end(&pod, 0);
    let (code, said) = measuring.ended();
    assert_eq!(code, 0, "{said}");
    let run = world.run_file();
    assert_eq!(counted(&run), joules(&agent.scrape(), pod.uid()));
    assert_eq!((run.measured.by, run.subject.kind), (MeasuredBy::Agent, SubjectKind::Pod));
    assert!(!world.is_there(&object));
}

#[test]
fn a_workload_that_fails_or_never_starts_ends_with_1_and_its_reason_and_is_deleted() {
    let Some(world) = World::new() else { return };
    let agent = world.node.agent(&["--interval=500ms"]);
    world.agents_pod(&agent.address);
    for (name, status, expected) in [
        (
            "big",
            json!({"phase": "Pending", "conditions": [{
                "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available: 1 Insufficient cpu.",
            }]}),
            "did not start within --start-timeout: Unschedulable: 0/1 nodes are available: 1 Insufficient cpu.",
        ),
        (
            "typo",
            json!({"phase": "Pending", "containerStatuses": [{
                "name": "main", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"waiting": {"reason": "ErrImagePull", "message": "not found\u{1b}[2J"}},
            }]}),
            "did not start within --start-timeout: ErrImagePull: not found",
        ),
    ] {
        let flags = [&world.direct()[..], &["--start-timeout=1s"]].concat();
        let measuring = world.measure(&world.job(name), &flags);
        let job = world.wait_for_job(name);
        world.waiting_pod_of(&job, name, &status);
        world.collect(name);
        let (code, said) = measuring.ended();
        assert_eq!(code, 1, "{said}");
        assert!(said.contains(expected) && !said.contains('\u{1b}'), "{said}");
    }
    // One whose pod has run.
    let measuring = world.measure(&world.job("broken"), &world.direct());
    let job = world.wait_for_job("broken");
    let pod = world.pod_of(&job, "broken-1");
    measuring.wait_for_line("runs on");
    pod.burn("main", 100);
    world.end(&pod, 3);
    let failed = json!({"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"});
    world.set_job_condition("broken", &failed);
    world.collect("broken");
    let (code, said) = measuring.ended();
    assert_eq!(code, 1, "{said}");
    let run = world.run_file();
    assert!(counted(&run) > 0, "{run:?}");
    let outcome = run.outcome.unwrap();
    assert_eq!(
        (outcome.succeeded, outcome.exit_code, outcome.reason.as_str()),
        (false, Some(3), "BackoffLimitExceeded")
    );
    assert_valid(&world.folder().join("run.json"));
}

/// It was created before that was known.
#[test]
fn a_watch_that_is_refused_ends_it_with_3_and_the_object_is_deleted() {
    let Some(world) = World::new() else { return };
    world.agents_pod("127.0.0.1:1");
    let refusal = crate::common::kubernetes::status_object(403, "Forbidden", "pods is forbidden");
    world.node.proxy.faults().of_path.push(("watch=", Answer::Refuse(403, refusal)));
    let measuring = world.measure(&world.job("a"), &world.direct());
    world.collect("a");
    let (code, said) = measuring.ended();
    assert_eq!(code, 3, "{said}");
    assert!(said.contains("no permission to"), "{said}");
    assert_eq!(world.jobs(), Vec::<Value>::new());
}

#[test]
fn a_signal_and_a_foreign_deletion_end_it_and_keep_leaves_the_object() {
    let Some(world) = World::new() else { return };
    world.agents_pod("127.0.0.1:1");
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        let measuring = world.measure(&world.pod_file("a-"), &world.direct());
        let object = world.wait_for_pod();
        measuring.wait_for_line("Pending");
        measuring.send(signal);
        assert_eq!(measuring.ended().0, code);
        assert!(!world.is_there(&object));
    }
    let measuring = world.measure(&world.pod_file("b-"), &world.direct());
    let object = world.wait_for_pod();
    measuring.wait_for_line("Pending");
    world.node.cluster.delete(&object);
    let (code, said) = measuring.ended();
    assert_eq!(code, 1);
    assert!(said.contains("was deleted by somebody else"), "{said}");

    let flags = [&world.direct()[..], &["--keep", "--timeout=1s"]].concat();
    let measuring = world.measure(&world.pod_file("c-"), &flags);
    let object = world.wait_for_pod();
    let (code, said) = measuring.ended();
    assert_eq!(code, 1);
    assert!(said.contains("did not end within --timeout"), "{said}");
    let name = object["metadata"]["name"].as_str().unwrap();
    assert!(said.contains(&format!("kubectl delete pod {name} --namespace {}", world.namespace())), "{said}");
    assert!(world.is_there(&object));
}

#[test]
fn what_cannot_be_measured_is_not_begun() {
    let Some(world) = World::new() else { return };
    world.agents_pod("127.0.0.1:1");
    let two = world.file("two.yaml", &format!("{}---\n{}", world.job_text("a"), world.job_text("b")));
    let typo = world.file("typo.yaml", &world.job_text("a").replace("template:", "backofLimit: 3\n  template:"));
    let (job, direct) = (world.job("a"), world.direct());
    let direct: Vec<&str> = direct.iter().map(|flag| &**flag).collect();
    for (file, flags, code, expected) in [
        (&two, &direct[..], 2, "2 documents; a run has one Job or Pod"),
        (&typo, &direct[..], 2, "unknown field \"spec.backofLimit\""),
        (&job, &[][..], 2, "--prometheus URL, or read the agents with --agents=direct"),
        (&job, &["--prometheus=http://127.0.0.1:1"], 3, "no answer from Prometheus at http://127.0.0.1:1"),
        (&job, &["--agents=direct", "--agents.namespace=nowhere"], 3, "no agent: no pod with the label"),
        (&job, &[direct[0], direct[1], "--namespace=x"], 2, "leave one of them out"),
        (&job, &[direct[0], direct[1], "--context=away"], 3, "no context \"away\"; it has test"),
        (&world.folder().join("none.yaml"), &direct[..], 2, "none.yaml"),
    ] {
        let (ended, said) = world.measure(file, flags).ended();
        assert_eq!(ended, code, "{said}");
        assert!(said.contains(expected), "{expected:?} is not in {said}");
    }
    let refusal = crate::common::kubernetes::status_object(403, "Forbidden", "jobs.batch is forbidden");
    world.node.proxy.faults().of_path.push(("/jobs", Answer::Refuse(403, refusal)));
    let (ended, said) = world.measure(&job, &direct).ended();
    assert_eq!(ended, 3, "{said}");
    assert!(said.contains("no permission to create jobs.batch"), "{said}");
    assert_eq!(world.jobs(), Vec::<Value>::new());
}

#[test]
fn runs_follow_each_other_and_each_is_in_the_file() {
    let Some(world) = World::new() else { return };
    let agent = world.node.agent(&["--interval=500ms"]);
    world.agents_pod(&agent.address);
    let flags = [&world.direct()[..], &["--runs=2"]].concat();
    let measuring: Measuring = world.measure(&world.pod_file("r-"), &flags);
    let mut uids = BTreeSet::new();
    for _ in 0..2 {
        let object = world.wait_for_another_pod(&uids);
        let pod = world.run_pod(&object);
        pod.burn("main", 50);
        world.end(&pod, 0);
        world.collect_pod(pod.name());
        uids.insert(pod.uid().to_owned());
    }
    let (code, said) = measuring.ended();
    assert_eq!(code, 0, "{said}");
    assert_eq!(world.run_files().len(), 2);
}
