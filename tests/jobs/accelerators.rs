//! `compare --job`: one Job on nodes with different GPUs, in turns. The test plays the cluster, and both nodes have agents.

#![allow(clippy::unwrap_used, reason = "tests panic")]

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::{env, fs};

use serde_json::{Value, json};

use crate::common::agent::{Agent, wait_for};
use crate::common::kubernetes::node::Node;
use crate::common::nvml::{FakeNvml, Gpu, gpu, process, sample};
use crate::common::prometheus::Prometheus;
use crate::job::world::{Measuring, World};

const GPU_JOULES: &str = "kepler_pod_gpu_joules_total";
const LABEL: &str = "nvidia.com/gpu.product";
/// The models, as the label of a node has them, and what a run uses on each, about: joules, and ticks of the agent.
const MODELS: [(&str, u64, u64); 2] = [("NVIDIA-L4", 120, 2), ("Tesla-T4", 190, 8)];

/// A node's GPU and agent.
struct Accelerator {
    nvml: FakeNvml,
    agent: Agent,
}

impl Accelerator {
    fn new(node: &Node, model: &str) -> Self {
        let uuid = format!("GPU-{model}");
        let nvml = FakeNvml::new().gpu(Gpu { name: model.replace('-', " "), ..gpu(&uuid) });
        nvml.play();
        let agent = node.agent(&["--interval=200ms", "--meter.cpu=none", "--ebpf=off", &nvml.flag()]);
        wait_for("the GPU", || (!agent.scrape().select("energy_agent_gpu_up", &[]).is_empty()).then_some(()));
        Self { nvml, agent }
    }
}

/// Two nodes, of which the world's own has the first model.
struct Accelerators {
    world: World,
    other: Node,
    all: [Accelerator; 2],
    prometheus: Prometheus,
    uids: BTreeSet<String>,
    /// What was used on each, run by run; millijoules.
    used: [Vec<u64>; 2],
}

impl Accelerators {
    fn new() -> Option<Self> {
        let world = World::new()?;
        let other = Node::new();
        let all = [Accelerator::new(&world.node, MODELS[0].0), Accelerator::new(&other, MODELS[1].0)];
        let targets = all.each_ref().map(|it| it.agent.address.clone());
        let prometheus =
            Prometheus::scraping(&format!("[{{job_name: agent, static_configs: [{{targets: {}}}]}}]", json!(targets)));
        wait_for("scrapes of both", || (prometheus.query("energy_agent_ticks_total").len() == 2).then_some(()));
        Some(Self { world, other, all, prometheus, uids: BTreeSet::new(), used: [Vec::new(), Vec::new()] })
    }

    fn compare(&self, flags: &[&str]) -> Measuring {
        let url = format!("--prometheus={}", self.prometheus.url());
        let on = MODELS.map(|(model, ..)| format!("--on={LABEL}={model}"));
        let flags = [&[&*url, "--seed=5", &on[0], &on[1]], flags].concat();
        self.world.start("compare", &self.world.job("train"), &flags)
    }

    /// Plays the next run: on the node that its Job asks for, with this exit code. The model.
    fn play(&mut self, code: i32) -> String {
        let job = self.world.wait_for_another_job("train", &self.uids);
        self.uids.insert(job["metadata"]["uid"].as_str().unwrap().to_owned());
        let model = job["spec"]["template"]["spec"]["nodeSelector"][LABEL].as_str().unwrap().to_owned();
        let index = MODELS.iter().position(|(name, ..)| *name == model).unwrap();
        let node = [&self.world.node, &self.other][index];
        let pod = self.world.pod_on(node, &job, &format!("train-{}", self.uids.len()));
        let (_, joules, ticks) = MODELS[index];
        // No two runs are alike.
        let millijoules = joules * 1000 + u64::try_from(self.uids.len() * 700).unwrap();
        pod.use_gpu(&mut self.all[index], millijoules, ticks);
        self.used[index].push(millijoules);
        self.world.end(&pod, code);
        let condition = if code == 0 { "Complete" } else { "Failed" };
        self.world.set_job_condition("train", &json!({"type": condition, "status": "True"}));
        self.world.collect("train");
        model
    }
}

trait UsesGpu {
    fn use_gpu(&self, on: &mut Accelerator, millijoules: u64, ticks: u64);
}

impl UsesGpu for crate::common::kubernetes::node::Pod {
    /// A process of the pod keeps the GPU busy while it uses so much, and the agent has seen it.
    fn use_gpu(&self, on: &mut Accelerator, millijoules: u64, ticks: u64) {
        let load = self.load("main", &["sleep", "0"]);
        let pids = fs::read_to_string(self.cgroup.another(&self.id("main")).join("cgroup.procs")).unwrap();
        let pid: u32 = pids.trim().parse().unwrap();
        on.nvml.set(|state| state.gpus[0].processes = Some(vec![process(pid)]));
        on.agent.after_ticks(ticks);
        on.nvml.set(|state| {
            state.gpus[0].samples = Some(vec![sample(pid, 100)]);
            *state.gpus[0].energy_mj.as_mut().unwrap() += millijoules;
        });
        wait_for("the pod's energy", || {
            let page = on.agent.scrape();
            (!page.select(GPU_JOULES, &[("pod_id", self.uid())]).is_empty()).then_some(())
        });
        on.agent.after_ticks(4);
        on.nvml.set(|state| state.gpus[0].processes = Some(Vec::new()));
        drop(load);
    }
}

#[test]
fn one_job_is_compared_on_two_accelerators() {
    let Some(mut cluster) = Accelerators::new() else { return };
    let prices = cluster
        .world
        .file("prices.yaml", &format!("currency: EUR\nperHour: {{{LABEL}=NVIDIA-L4: 3.6, {LABEL}=Tesla-T4: 7.2}}\n"));
    let prices = format!("--prices={}", prices.display());
    let profile = cluster.world.folder().join("profile.yaml");
    let exported = format!("--export-profile={}", profile.display());
    // For the documentation, runs enough for a claim.
    let pictures = env::var_os("PICTURES_FOLDER").map(PathBuf::from);
    let rounds = if pictures.is_some() { 5 } else { 2 };
    let comparing = cluster.compare(&[
        "-r",
        &rounds.to_string(),
        "--format=json",
        "--work=10",
        "--work-unit=images",
        &prices,
        &exported,
    ]);
    let order: Vec<String> = (0..rounds * 2).map(|_| cluster.play(0)).collect();
    let (code, said) = comparing.ended();
    assert_eq!(code, 0, "{said}");
    for round in order.chunks(2) {
        assert_ne!(round[0], round[1], "each once in a round");
    }
    let result: Value = serde_json::from_str(&cluster.world.printed()).unwrap();
    let rows = result["rows"].as_array().unwrap();
    for ((row, (model, ..)), used) in rows.iter().zip(MODELS).zip(&cluster.used) {
        assert_eq!((&row["name"], &row["n"]), (&json!(model), &json!(rounds)));
        let mean = row["gpuJoules"]["mean"].as_f64().unwrap();
        let truth = f64::from(u32::try_from(used.iter().sum::<u64>()).unwrap()) / 1000.0 / f64::from(rounds);
        assert!((mean / truth - 1.0).abs() < 0.01, "{mean} J of {truth} J on {model}");
        let per_work = row["joulesPerWork"]["mean"].as_f64().unwrap();
        assert!((per_work / (truth / 10.0) - 1.0).abs() < 0.01, "{per_work}");
        // 3.6 EUR an hour are 0.1 cent a second.
        let (seconds, cost) = (row["seconds"]["mean"].as_f64().unwrap(), row["cost"]["mean"].as_f64().unwrap());
        let each = if model == "NVIDIA-L4" { 0.001 } else { 0.002 };
        assert!((cost / (seconds * each) - 1.0).abs() < 1e-6, "{cost} for {seconds} s");
    }
    if let Some(folder) = pictures {
        fs::copy(cluster.world.folder().join("run.json"), folder.join("accelerators.json")).unwrap();
        return;
    }
    // Two runs of each are too few for a claim.
    assert!(result["claims"].as_array().unwrap().iter().all(|claim| claim["isShown"] == false), "{result:#}");
    let runs = cluster.world.run_files();
    let labelled: Vec<&str> = runs.iter().map(|run| run.labels[LABEL].as_str()).collect();
    assert_eq!((labelled, runs[0].labels["seed"].as_str()), (order.iter().map(String::as_str).collect(), "5"));
    let profile = fs::read_to_string(profile).unwrap();
    assert!(profile.contains("\"NVIDIA-L4\"") && profile.contains("\"Tesla-T4\""), "{profile}");
}

#[test]
fn a_comparison_of_jobs_ends_with_what_does_not_complete_and_deletes_it() {
    let Some(mut cluster) = Accelerators::new() else { return };
    // The second fails: the run before it is kept.
    let comparing = cluster.compare(&["-r", "2"]);
    cluster.play(0);
    cluster.play(7);
    let (code, said) = comparing.ended();
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("did not complete, so no other is made and nothing is compared"), "{said}");
    let runs = cluster.world.run_files();
    let succeeded: Vec<bool> = runs.iter().map(|run| run.outcome.as_ref().unwrap().succeeded).collect();
    assert_eq!(succeeded, [true, false]);

    // Ctrl-C while a Job waits.
    let comparing = cluster.compare(&["-r", "2"]);
    cluster.world.wait_for_another_job("train", &cluster.uids);
    comparing.wait_for_line("NoPod");
    comparing.send("INT");
    cluster.world.collect("train");
    assert_eq!(comparing.ended().0, 130);
    assert_eq!(cluster.world.jobs(), Vec::<Value>::new());

    // What is wrong is said before anything is created.
    let job = cluster.world.job("train");
    let pinned = cluster.world.job_text("a").replace("restartPolicy", "nodeName: n\n      restartPolicy");
    let pinned = cluster.world.file("pinned.yaml", &pinned);
    // A server that scrapes no agent.
    let empty = Prometheus::scraping("[]");
    let other = format!("--prometheus={}", empty.url());
    let (url, none) = (format!("--prometheus={}", cluster.prometheus.url()), cluster.world.folder().join("none.yaml"));
    for (file, flags, code, expected) in [
        (&job, &["-r", "2", &url, "--on=a=b"][..], 2, "needs two --on at least"),
        (&job, &["-r", "2", &url, "--on=a=b", "--on=a=b"], 2, "--on a=b is given twice"),
        (&job, &[&url, "--on=a=b", "--on=a=c"], 2, "--runs"),
        (&job, &["-r", "2", &url, "--on=a", "--on=a=c"], 2, "expected KEY=VALUE"),
        (&pinned, &["-r", "2", &url, "--on=a=b", "--on=a=c"], 2, "its nodeName names one node"),
        (&none, &["-r", "2", &url, "--on=a=b", "--on=a=c"], 2, "none.yaml"),
        (&job, &["-r", "2", "--prometheus=http://127.0.0.1:1", "--on=a=b", "--on=a=c"], 3, "no answer from Prometheus"),
        (&job, &["-r", "2", &other, "--on=a=b", "--on=a=c"], 3, "has no metrics of an energy-agent at the moment"),
    ] {
        let (ended, said) = cluster.world.start("compare", file, flags).ended();
        assert!(ended == code && said.contains(expected), "{ended} {expected:?} is not in {said}");
    }
    assert_eq!(cluster.world.jobs(), Vec::<Value>::new());
}
