//! A node, and a cluster in which the test is every controller.
#![allow(clippy::unwrap_used, reason = "tests panic")]

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use std::{env, fs, thread};

use energy_report::run::Run;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::agent::{PROGRAM, wait_for};
use crate::common::cgroup::ids;
use crate::common::kubernetes::node::{Node, Pod};
use crate::common::skip::{API_SERVER, skip};

pub struct World {
    pub node: Node,
    folder: TempDir,
}

impl World {
    /// `None`, said aloud: there is no API server that has Jobs.
    pub fn new() -> Option<Self> {
        if env::var_os("TEST_KUBE_API").is_none() {
            skip(&API_SERVER);
            return None;
        }
        Some(Self { node: Node::new(), folder: TempDir::new().unwrap() })
    }

    pub fn namespace(&self) -> &str {
        &self.node.name
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let file = self.folder.path().join(name);
        fs::write(&file, text).unwrap();
        file
    }

    pub fn job_text(&self, name: &str) -> String {
        format!(
            "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: {name}, namespace: {}}}\nspec:\n  template:\n    spec:\n      \
             restartPolicy: Never\n      containers: [{{name: main, image: registry.example/image:1}}]\n",
            self.namespace()
        )
    }

    pub fn job(&self, name: &str) -> PathBuf {
        self.file(&format!("{name}.yaml"), &self.job_text(name))
    }

    /// A pod whose name the server completes.
    pub fn pod_file(&self, prefix: &str) -> PathBuf {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"generateName": prefix, "namespace": self.namespace()},
            "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "registry.example/image:1"}]},
        });
        self.file("pod.json", &pod.to_string())
    }

    /// The flags for figures from the node's agent.
    pub fn direct(&self) -> Vec<&str> {
        vec!["--agents=direct", self.agents_namespace()]
    }

    fn agents_namespace(&self) -> &str {
        // One string for each world, as flags are borrowed.
        Box::leak(format!("--agents.namespace={}-agents", self.namespace()).into_boxed_str())
    }

    /// The pod of the node's agent; the API server's proxy of it leads to `address`.
    pub fn agents_pod(&self, address: &str) {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "energy-agent-x", "namespace": format!("{}-agents", self.namespace()),
                "labels": {"app.kubernetes.io/name": "energy-agent"},
            },
            "spec": {"containers": [{"name": "agent", "image": "a", "ports": [{"name": "metrics", "containerPort": 9102}]}]},
        });
        self.node.create(&pod);
        self.node.proxy.faults().pods_lead_to = Some(address.to_owned());
    }

    /// Starts `measure --job`.
    pub fn measure(&self, file: &Path, flags: &[&str]) -> Measuring {
        self.start("measure", file, flags)
    }

    /// Starts a command that has `--job`. What it prints is kept in a file.
    pub fn start(&self, command: &str, file: &Path, flags: &[&str]) -> Measuring {
        let json = format!("--json={}", self.folder.path().join("run.json").display());
        let kubeconfig = format!("--kubeconfig={}", self.node.kubeconfig.display());
        let job = format!("--job={}", file.display());
        let mut child = Command::new(PROGRAM)
            .args([command, &job, &kubeconfig, &json])
            .args(flags)
            .stdin(Stdio::null())
            .stdout(fs::File::create(self.folder.path().join("stdout")).unwrap())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = Arc::new(Mutex::new(Vec::new()));
        let (lines, kept) = (BufReader::new(child.stderr.take().unwrap()).lines(), Arc::clone(&said));
        let reader =
            thread::spawn(move || lines.map_while(Result::ok).for_each(|line| kept.lock().unwrap().push(line)));
        Measuring { child, said, reader: Some(reader) }
    }

    /// What the command that ended printed.
    pub fn printed(&self) -> String {
        fs::read_to_string(self.folder.path().join("stdout")).unwrap()
    }

    pub fn run_files(&self) -> Vec<Run> {
        serde_json::from_str(&fs::read_to_string(self.folder.path().join("run.json")).unwrap()).unwrap()
    }

    pub fn run_file(&self) -> Run {
        serde_json::from_str(&fs::read_to_string(self.folder.path().join("run.json")).unwrap()).unwrap()
    }

    fn jobs_path(&self) -> String {
        format!("/apis/batch/v1/namespaces/{}/jobs", self.namespace())
    }

    fn pods_path(&self) -> String {
        format!("/api/v1/namespaces/{}/pods", self.namespace())
    }

    pub fn jobs(&self) -> Vec<Value> {
        self.node.cluster.get(&self.jobs_path()).unwrap()["items"].as_array().unwrap().clone()
    }

    pub fn wait_for_job(&self, name: &str) -> Value {
        wait_for("the Job", || self.node.cluster.get(&format!("{}/{name}", self.jobs_path())))
    }

    /// A Job of that name that is none of these, and is not being deleted.
    pub fn wait_for_another_job(&self, name: &str, uids: &BTreeSet<String>) -> Value {
        wait_for("another Job", || {
            let job = self.node.cluster.get(&format!("{}/{name}", self.jobs_path()))?;
            let is_new = !uids.contains(job["metadata"]["uid"].as_str().unwrap());
            (is_new && job["metadata"]["deletionTimestamp"].is_null()).then_some(job)
        })
    }

    /// The pod that was created.
    pub fn wait_for_pod(&self) -> Value {
        self.wait_for_another_pod(&BTreeSet::new())
    }

    pub fn wait_for_another_pod(&self, uids: &BTreeSet<String>) -> Value {
        wait_for("the pod", || {
            let list = self.node.cluster.get(&self.pods_path())?;
            let pods = list["items"].as_array()?.clone();
            pods.into_iter().find(|pod| {
                pod["metadata"]["labels"]["energy-agent.io/run"].is_string()
                    && pod["metadata"]["deletionTimestamp"].is_null()
                    && !uids.contains(pod["metadata"]["uid"].as_str().unwrap())
            })
        })
    }

    /// Whether a pod is there and not being deleted; what is deleted in the foreground waits for the garbage collector.
    pub fn is_there(&self, pod: &Value) -> bool {
        let name = pod["metadata"]["name"].as_str().unwrap();
        let found = self.node.cluster.get(&format!("{}/{name}", self.pods_path()));
        found.is_some_and(|pod| pod["metadata"]["deletionTimestamp"].is_null())
    }

    /// A pod of a Job that runs, and its cgroups.
    pub fn pod_of(&self, job: &Value, name: &str) -> Pod {
        self.pod_on(&self.node, job, name)
    }

    /// The same on another node.
    pub fn pod_on(&self, node: &Node, job: &Value, name: &str) -> Pod {
        node.adopt(&self.object_of(job, name, &running(&ids().1)))
    }

    /// A pod of a Job that does not.
    pub fn waiting_pod_of(&self, job: &Value, name: &str, status: &Value) {
        self.node.create(&self.object_of(job, &format!("{name}-1"), status));
    }

    fn object_of(&self, job: &Value, name: &str, status: &Value) -> Value {
        let owner = json!([{
            "apiVersion": "batch/v1", "kind": "Job", "name": job["metadata"]["name"], "uid": job["metadata"]["uid"], "controller": true,
        }]);
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name, "namespace": self.namespace(), "ownerReferences": owner,
                "labels": job["spec"]["template"]["metadata"]["labels"],
            },
            "spec": job["spec"]["template"]["spec"],
            "status": status,
        })
    }

    /// Has a pod that exists run on this node.
    pub fn run_pod(&self, object: &Value) -> Pod {
        let mut object = object.clone();
        object["spec"]["nodeName"] = json!(self.node.name);
        let mut object = self.node.cluster.update(&object);
        object["status"] = running(&ids().1);
        let object = self.node.cluster.update_status(&object);
        let uid = object["metadata"]["uid"].as_str().unwrap().to_owned();
        Pod::with_cgroups(object, &uid, crate::common::cgroup::Driver::Systemd)
    }

    /// The container of a pod ends; the kubelet says so and removes the cgroups.
    pub fn end(&self, pod: &Pod, code: i32) {
        pod.cgroup.remove();
        let mut object = pod.object.clone();
        let container = &mut object["status"]["containerStatuses"][0];
        let started = container["state"]["running"]["startedAt"].clone();
        let reason = if code == 0 { "Completed" } else { "Error" };
        container["state"] = json!({"terminated": {
            "startedAt": started, "finishedAt": time(Duration::ZERO), "exitCode": code, "reason": reason,
            "containerID": container["containerID"],
        }});
        object["status"]["phase"] = json!(if code == 0 { "Succeeded" } else { "Failed" });
        self.node.cluster.update_status(&object);
    }

    pub fn set_job_condition(&self, name: &str, condition: &Value) {
        let path = format!("{}/{name}", self.jobs_path());
        let mut job = self.node.cluster.get(&path).unwrap();
        job["status"]["conditions"] = json!([condition]);
        self.node.cluster.put(&format!("{path}/status"), &job);
    }

    /// Waits until the Job is deleted in the foreground; then it goes, as its pods have.
    pub fn collect(&self, name: &str) {
        self.collect_at(&format!("{}/{name}", self.jobs_path()));
    }

    /// The same for a pod.
    pub fn collect_pod(&self, name: &str) {
        self.collect_at(&format!("{}/{name}", self.pods_path()));
    }

    fn collect_at(&self, path: &str) {
        let mut object = wait_for("the deletion", || {
            self.node.cluster.get(path).filter(|object| object["metadata"]["deletionTimestamp"].is_string())
        });
        assert_eq!(object["metadata"]["finalizers"], json!(["foregroundDeletion"]));
        object["metadata"]["finalizers"] = json!([]);
        self.node.cluster.put(path, &object);
        assert_eq!(self.node.cluster.get(path), None);
    }

    /// Everything that was asked for is allowed by the rules, and each rule was needed.
    pub fn assert_asked_for(&self, role: &Value) {
        let rules = role["rules"].as_array().unwrap();
        let granted: BTreeSet<(String, String)> = rules
            .iter()
            .flat_map(|rule| {
                let words = |key: &str| -> Vec<String> {
                    rule[key].as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect()
                };
                let verbs = words("verbs");
                words("resources")
                    .into_iter()
                    .flat_map(move |resource| verbs.clone().into_iter().map(move |verb| (verb, resource.clone())))
            })
            .collect();
        let asked: BTreeSet<(String, String)> = self
            .node
            .proxy
            .asked()
            .iter()
            // The agent asks through the same proxy.
            .filter(|asked| asked.path.contains("/namespaces/"))
            .map(|asked| {
                let parts: Vec<&str> = asked.path.split('?').next().unwrap().split('/').collect();
                let at = parts.iter().position(|part| *part == "namespaces").unwrap();
                let verb = match (asked.method.as_str(), asked.is_watch, parts.len() > at + 3) {
                    ("GET", true, _) => "watch",
                    ("GET", _, false) => "list",
                    ("GET", _, true) => "get",
                    ("POST", ..) => "create",
                    ("DELETE", ..) => "delete",
                    other => panic!("{other:?}"),
                };
                (verb.to_owned(), parts[at + 2].to_owned())
            })
            .collect();
        // What only several runs of one name ask for: whether the one before is gone.
        let again = ("get".to_owned(), "jobs".to_owned());
        let asked: BTreeSet<(String, String)> = asked.into_iter().chain([again]).collect();
        assert_eq!(asked, granted);
    }
}

/// A status as the kubelet writes it: the pod got its node 4 s before its container began.
fn running(id: &str) -> Value {
    json!({
        "phase": "Running",
        "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": time(Duration::from_secs(4))}],
        "containerStatuses": [{
            "name": "main", "containerID": format!("containerd://{id}"), "restartCount": 0, "ready": true, "image": "",
            "imageID": "sha256:1", "state": {"running": {"startedAt": time(Duration::ZERO)}},
        }],
    })
}

/// So long ago, as objects have it: whole seconds.
fn time(ago: Duration) -> String {
    humantime::format_rfc3339_seconds(SystemTime::now() - ago).to_string()
}

/// A running `measure --job`; killed on drop.
pub struct Measuring {
    child: Child,
    said: Arc<Mutex<Vec<String>>>,
    reader: Option<thread::JoinHandle<()>>,
}

impl Measuring {
    pub fn wait_for_line(&self, text: &str) {
        wait_for(&format!("a line with {text:?}, of {:?}", self.said.lock().unwrap()), || {
            self.said.lock().unwrap().iter().any(|line| line.contains(text)).then_some(())
        });
    }

    pub fn send(&self, signal: &str) {
        let sent = Command::new("kill").args(["-s", signal, &self.child.id().to_string()]).status();
        assert!(sent.is_ok_and(|status| status.success()));
    }

    /// Waits for its end; exit code and standard error.
    pub fn ended(mut self) -> (i32, String) {
        let status = wait_for("the end of measure", || self.child.try_wait().unwrap());
        self.reader.take().unwrap().join().unwrap();
        let said = self.said.lock().unwrap().join("\n");
        (status.code().unwrap_or_else(|| panic!("{status}: {said}")), said)
    }
}

impl Drop for Measuring {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("measure said {:#?}", self.said.lock().unwrap());
        }
    }
}
