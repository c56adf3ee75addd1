//! kubectl against the API server of the tests.

use std::path::PathBuf;
use std::process::Command;

use serde_json::json;
use tempfile::TempDir;

use crate::common::kubernetes::cluster::{Cluster, TOKEN, kubeconfig};

pub struct Kubectl {
    namespace: String,
    folder: TempDir,
}

impl Kubectl {
    pub fn new(cluster: &Cluster, namespace: &str) -> Self {
        let folder = TempDir::new().unwrap();
        kubeconfig(folder.path(), &cluster.url, Some(&cluster.authority), &json!({"token": TOKEN}));
        Self { namespace: namespace.to_owned(), folder }
    }

    /// Runs it with these arguments, separated by blanks, in a folder with `files`.
    pub fn run(&self, arguments: &str) {
        let output = self.command(arguments).output();
        let output = output.unwrap_or_else(|error| panic!("kubectl: {error}; `cargo xtask test` provides it"));
        assert!(output.status.success(), "kubectl {arguments}: {output:?}");
    }

    /// `kubectl edit` with an editor that is sed.
    pub fn edit(&self, object: &str, script: &str) {
        let mut command = self.command(&format!("edit {object}"));
        let output = command.env("KUBE_EDITOR", format!("sed -i '{script}'")).output().unwrap();
        assert!(output.status.success(), "kubectl edit {object}: {output:?}");
    }

    /// A file in the folder that it runs in.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, arguments: &str) -> Command {
        let mut kubectl = Command::new("kubectl");
        kubectl.arg("--kubeconfig=kubeconfig").arg(format!("--namespace={}", self.namespace));
        kubectl.args(arguments.split_whitespace()).current_dir(self.folder.path());
        // It keeps what it discovered there.
        kubectl.env("HOME", self.folder.path());
        kubectl
    }
}
