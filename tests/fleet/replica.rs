//! One replica of the controller, as a process, with a proxy of its own before the API server.

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::api::NAMESPACE;
use crate::common::agent::wait_for;
use crate::common::kubernetes::cluster::{Cluster, TOKEN, kubeconfig};
use crate::common::kubernetes::controller::Controller;
use crate::common::kubernetes::proxy::Proxy;

pub struct Replica {
    pub name: String,
    pub proxy: Proxy,
    process: Controller,
    _folder: TempDir,
}

impl Replica {
    pub fn start(cluster: &Cluster, name: &str, prometheus: &str) -> Self {
        Self::start_with(cluster, name, prometheus, &[])
    }

    /// Starts it with more flags, and waits until it listens.
    pub fn start_with(cluster: &Cluster, name: &str, prometheus: &str, flags: &[&str]) -> Self {
        let (proxy, folder) = (Proxy::start(cluster), TempDir::new().unwrap());
        let server = format!("http://{}", proxy.address());
        let kubeconfig = kubeconfig(folder.path(), &server, None, &json!({"token": TOKEN}));
        let own = [
            "--controller.interval=400ms",
            "--controller.lease-duration=3s",
            &format!("--controller.prometheus={prometheus}"),
            &format!("--controller.identity={name}"),
        ];
        let process = Controller::spawn(&kubeconfig, NAMESPACE, &[&own, flags].concat());
        Self { name: name.to_owned(), proxy, process, _folder: folder }
    }

    pub fn log(&self) -> Vec<String> {
        self.process.log()
    }

    pub fn wait_for_log(&self, text: &str) {
        wait_for(text, || self.log().iter().any(|line| line.contains(text)).then_some(()));
    }

    pub fn page(&self, path: &str, accept: &str) -> String {
        let url = format!("http://{}{path}", self.process.address);
        ureq::get(&url).header("Accept", accept).call().unwrap().body_mut().read_to_string().unwrap()
    }

    /// `/budgets` for programs.
    pub fn budgets(&self) -> Value {
        serde_json::from_str(&self.page("/budgets", "application/json")).unwrap()
    }

    pub fn send(&self, signal: &str) {
        self.process.send(signal);
    }

    /// Ends it without a word.
    pub fn kill(self) {
        self.process.kill();
    }
}
