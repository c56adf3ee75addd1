//! The file of `--job`: one Job or Pod, and what is added to it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use energy_model::printable::cut;
use serde_json::{Map, Value, json};

/// The label on the object and its pods. Its value names one run, so that the run's objects are found again.
pub(super) const RUN_LABEL: &str = "energy-agent.io/run";
/// Runs of one class do the same kind of work.
const CLASS_ANNOTATION: &str = "energy-agent.io/class";
/// The server adds five characters, and the name of a pod adds six more. A label, which holds the name, has 63.
const PREFIX_LENGTH: usize = 48;

/// What a file may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobKind {
    Job,
    Pod,
}

impl JobKind {
    /// In the words of RBAC.
    #[must_use]
    pub(super) const fn resource(self) -> &'static str {
        match self {
            Self::Job => "jobs.batch",
            Self::Pod => "pods",
        }
    }

    /// Where objects of a namespace are.
    #[must_use]
    pub(super) fn path(self, namespace: &str) -> String {
        match self {
            Self::Job => format!("/apis/batch/v1/namespaces/{namespace}/jobs"),
            Self::Pod => format!("/api/v1/namespaces/{namespace}/pods"),
        }
    }
}

impl fmt::Display for JobKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Job => "job",
            Self::Pod => "pod",
        })
    }
}

/// The one object of a file, with a name of its own or one that the server completes.
#[derive(Clone, Debug, PartialEq)]
pub struct JobDocument {
    pub kind: JobKind,
    object: Value,
}

impl JobDocument {
    /// Reads YAML or JSON. An object without a name gets one that begins with the file's.
    ///
    /// # Errors
    /// One sentence with what is wrong and the remedy.
    pub fn read(text: &str, file: &Path) -> Result<Self, String> {
        // No part of the text is repeated in a message: a Job may hold secrets.
        let options = serde_saphyr::options! { with_snippet: false };
        let mut documents: Vec<Value> =
            serde_saphyr::from_multiple_with_options(text, options).map_err(|error| match error.location() {
                Some(at) => format!("line {}: this is not YAML; correct it", at.line()),
                None => "this is not YAML; correct it".to_owned(),
            })?;
        if documents.len() > 1 {
            let found = documents.len();
            return Err(format!("{found} documents; a run has one Job or Pod: put the others into files of their own"));
        }
        let object = documents.pop().ok_or("no document; write one Job or Pod")?;
        let text_of = |key: &str| object[key].as_str().unwrap_or_default();
        let kind = match (text_of("apiVersion"), text_of("kind")) {
            ("batch/v1", "Job") => JobKind::Job,
            ("v1", "Pod") => JobKind::Pod,
            (version, kind) => {
                let what = if kind.is_empty() { "no kind".to_owned() } else { format!("kind {}", cut(kind)) };
                let version = if version.is_empty() {
                    "no apiVersion".to_owned()
                } else {
                    format!("apiVersion {}", cut(version))
                };
                return Err(format!("{what}, {version}; write a Job of batch/v1 or a Pod of v1"));
            }
        };
        let mut document = Self { kind, object };
        let metadata = map(&mut document.object, "metadata")?;
        // A manifest that was read from a server has these, and no server creates an object that has them.
        for of_server in ["uid", "resourceVersion", "creationTimestamp", "managedFields"] {
            metadata.remove(of_server);
        }
        let is_named = |key: &str| metadata.get(key).and_then(Value::as_str).is_some_and(|name| !name.is_empty());
        if !is_named("name") && !is_named("generateName") {
            metadata.insert("generateName".to_owned(), json!(prefix(file)));
        }
        map(metadata_of(&mut document.object), "labels")?;
        if kind == JobKind::Job {
            let spec = map(&mut document.object, "spec")?;
            let template = spec.get_mut("template").filter(|template| template.is_object());
            let template = template.ok_or("spec.template is missing; a Job needs the pod that it runs")?;
            map(template, "metadata")?;
            map(metadata_of(template), "labels")?;
        }
        document.check_that_it_ends()?;
        Ok(document)
    }

    /// A pod that is restarted for ever never ends, and so its run never does.
    fn check_that_it_ends(&self) -> Result<(), String> {
        let policy = self.pod_spec()["restartPolicy"].as_str().unwrap_or("Always");
        if self.kind == JobKind::Pod && policy == "Always" {
            return Err("the pod never ends, because its restartPolicy is Always; write Never or OnFailure".to_owned());
        }
        Ok(())
    }

    /// The namespace that the file names.
    #[must_use]
    pub fn namespace(&self) -> Option<&str> {
        self.object["metadata"]["namespace"].as_str().filter(|namespace| !namespace.is_empty())
    }

    /// What kind of work this is: an annotation, else the name without what the server adds.
    #[must_use]
    pub fn class(&self) -> &str {
        let metadata = &self.object["metadata"];
        let annotation = metadata["annotations"][CLASS_ANNOTATION].as_str();
        let name = metadata["name"].as_str().or(metadata["generateName"].as_str()).unwrap_or_default();
        annotation.unwrap_or_else(|| name.trim_end_matches('-'))
    }

    /// Name, image, command and arguments of each container, as the file has them.
    #[must_use]
    pub fn containers(&self) -> Vec<[Value; 4]> {
        let spec = self.pod_spec();
        let lists = ["initContainers", "containers"].map(|list| spec[list].as_array());
        let containers = lists.into_iter().flatten().flatten();
        containers.map(|it| ["name", "image", "command", "args"].map(|key| it[key].clone())).collect()
    }

    /// The same work, on nodes that have these labels too.
    ///
    /// # Errors
    /// When the file itself says where its pods run: one sentence with the remedy.
    pub fn on_nodes(&self, labels: &BTreeMap<String, String>) -> Result<Self, String> {
        let mut document = self.clone();
        let spec = match document.kind {
            JobKind::Job => &mut document.object["spec"]["template"],
            JobKind::Pod => &mut document.object,
        };
        let spec = map(spec, "spec")?;
        if spec.get("nodeName").is_some_and(|name| !name.is_null()) {
            return Err("its nodeName names one node; take that out of the file".to_owned());
        }
        let selector = spec.entry("nodeSelector").or_insert(Value::Null);
        if selector.is_null() {
            *selector = json!({});
        }
        let selector = selector.as_object_mut().ok_or("nodeSelector is not a map; correct it")?;
        for (key, value) in labels {
            let before = selector.insert(key.clone(), json!(value));
            if before.is_some_and(|before| before != *value) {
                return Err(format!("its nodeSelector has another value for {key}; take that out of the file"));
            }
        }
        Ok(document)
    }

    /// What is sent to the server for one run.
    #[must_use]
    pub(super) fn object_of_run(&self, run: &str, namespace: &str) -> Value {
        let mut object = self.object.clone();
        object["metadata"]["namespace"] = json!(namespace);
        object["metadata"]["labels"][RUN_LABEL] = json!(run);
        if self.kind == JobKind::Job {
            object["spec"]["template"]["metadata"]["labels"][RUN_LABEL] = json!(run);
        }
        object
    }

    fn pod_spec(&self) -> &Value {
        match self.kind {
            JobKind::Job => &self.object["spec"]["template"]["spec"],
            JobKind::Pod => &self.object["spec"],
        }
    }
}

fn metadata_of(object: &mut Value) -> &mut Value {
    &mut object["metadata"]
}

/// A map within a map; one that is missing or null is made.
fn map<'a>(object: &'a mut Value, key: &str) -> Result<&'a mut Map<String, Value>, String> {
    let wrong = || format!("{key} is not a map; correct it");
    let inner = object.as_object_mut().ok_or_else(wrong)?.entry(key).or_insert(Value::Null);
    if inner.is_null() {
        *inner = json!({});
    }
    inner.as_object_mut().ok_or_else(wrong)
}

/// The beginning of a name that the server completes, of what is left of the file's name by the rules for names.
fn prefix(file: &Path) -> String {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy().to_lowercase();
    let valid = |character: char| character.is_ascii_lowercase() || character.is_ascii_digit();
    let name: String = stem.chars().map(|character| if valid(character) { character } else { '-' }).collect();
    let name: String = name.trim_matches('-').chars().take(PREFIX_LENGTH).collect();
    let name = name.trim_end_matches('-');
    if name.is_empty() { "run-".to_owned() } else { format!("{name}-") }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests panic")]

    use super::*;

    const JOB: &str = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: train}\nspec:\n  template:\n    spec: {restartPolicy: Never, containers: [{name: main, image: a, command: [b], args: [c]}]}\n";

    fn read(text: &str) -> Result<JobDocument, String> {
        JobDocument::read(text, Path::new("/jobs/My train_v2.yaml"))
    }

    #[test]
    fn a_job_gets_the_label_of_its_run_and_so_do_its_pods() {
        let document = read(JOB).unwrap();
        assert_eq!((document.kind, document.namespace(), document.class()), (JobKind::Job, None, "train"));
        let object = document.object_of_run("r1", "ml");
        let expected = json!({
            "apiVersion": "batch/v1", "kind": "Job",
            "metadata": {"name": "train", "namespace": "ml", "labels": {"energy-agent.io/run": "r1"}},
            "spec": {"template": {
                "metadata": {"labels": {"energy-agent.io/run": "r1"}},
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [{"name": "main", "image": "a", "command": ["b"], "args": ["c"]}],
                },
            }},
        });
        assert_eq!(object, expected);
        assert_eq!(document.containers(), [[json!("main"), json!("a"), json!(["b"]), json!(["c"])]]);
    }

    #[test]
    fn other_labels_and_a_generated_name_stay_and_what_a_server_has_set_goes() {
        let text = "{apiVersion: v1, kind: Pod, metadata: {generateName: x-, uid: u, resourceVersion: '4', labels: {app: a}, \
                    annotations: {energy-agent.io/class: big}}, spec: {restartPolicy: OnFailure}}";
        let document = read(text).unwrap();
        assert_eq!((document.kind, document.class()), (JobKind::Pod, "big"));
        let metadata = document.object_of_run("r", "n")["metadata"].clone();
        let labels = json!({"app": "a", "energy-agent.io/run": "r"});
        assert_eq!((&metadata["generateName"], &metadata["labels"]), (&json!("x-"), &labels));
        assert!(metadata["uid"].is_null() && metadata["resourceVersion"].is_null());
    }

    #[test]
    fn the_nodes_of_a_job_are_chosen_unless_the_file_has_chosen_them() {
        let labels = BTreeMap::from([("gpu".to_owned(), "L4".to_owned())]);
        let on = |text: &str| read(text)?.on_nodes(&labels);
        let chosen = on(JOB).unwrap();
        assert_eq!(chosen.pod_spec()["nodeSelector"], json!({"gpu": "L4"}));
        assert_eq!(chosen.containers(), read(JOB).unwrap().containers());
        let pod = "{apiVersion: v1, kind: Pod, spec: {restartPolicy: Never, nodeSelector: {zone: a, gpu: L4}}}";
        assert_eq!(on(pod).unwrap().pod_spec()["nodeSelector"], json!({"zone": "a", "gpu": "L4"}));
        for (text, expected) in [
            (
                pod.replace("gpu: L4", "gpu: T4"),
                "its nodeSelector has another value for gpu; take that out of the file",
            ),
            (pod.replace("{zone: a, gpu: L4}", "[1]"), "nodeSelector is not a map; correct it"),
            (
                pod.replace("nodeSelector: {zone: a, gpu: L4}", "nodeName: n1"),
                "its nodeName names one node; take that out of the file",
            ),
        ] {
            assert_eq!(on(&text).unwrap_err(), expected);
        }
    }

    #[test]
    fn an_object_without_a_name_is_named_after_its_file() {
        let document = read(&JOB.replace("metadata: {name: train}\n", "")).unwrap();
        assert_eq!(document.object["metadata"]["generateName"], "my-train-v2-");
        for (file, expected) in
            [("_.yaml", "run-"), ("ß-9.json", "9-"), (&"a".repeat(99), &*format!("{}-", "a".repeat(48)))]
        {
            assert_eq!(prefix(Path::new(file)), expected, "{file}");
        }
    }

    #[test]
    fn what_is_not_one_job_or_pod_is_refused_with_the_remedy() {
        for (text, expected) in [
            ("", "no document; write one Job or Pod"),
            (
                &format!("{JOB}---\n{JOB}"),
                "2 documents; a run has one Job or Pod: put the others into files of their own",
            ),
            ("a: [", "line 1: this is not YAML; correct it"),
            (
                "kind: Deployment\napiVersion: apps/v1",
                "kind Deployment, apiVersion apps/v1; write a Job of batch/v1 or a Pod of v1",
            ),
            ("[]", "no kind, no apiVersion; write a Job of batch/v1 or a Pod of v1"),
            ("apiVersion: batch/v1\nkind: Job", "spec.template is missing; a Job needs the pod that it runs"),
            ("apiVersion: batch/v1\nkind: Job\nmetadata: 7", "metadata is not a map; correct it"),
            (
                "apiVersion: v1\nkind: Pod\nspec: {}",
                "the pod never ends, because its restartPolicy is Always; write Never or OnFailure",
            ),
        ] {
            assert_eq!(read(text).unwrap_err(), expected, "{text}");
        }
        // A separator alone makes no second document.
        read(&format!("---\n{JOB}---\n")).unwrap();
    }
}
