//! One replica of the controller, as a process, with a proxy of its own before the API server.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::api::NAMESPACE;
use crate::common::agent::{PROGRAM, wait_for};
use crate::common::kubernetes::cluster::{Cluster, TOKEN, kubeconfig};
use crate::common::kubernetes::proxy::Proxy;

pub struct Replica {
    pub name: String,
    pub proxy: Proxy,
    child: Child,
    address: String,
    log: Arc<Mutex<Vec<String>>>,
    _folder: TempDir,
}

impl Replica {
    /// Starts it, and waits until it listens.
    pub fn start(cluster: &Cluster, name: &str, prometheus: &str) -> Self {
        let (proxy, folder) = (Proxy::start(cluster), TempDir::new().unwrap());
        let server = format!("http://{}", proxy.address());
        let kubeconfig = kubeconfig(folder.path(), &server, None, &json!({"token": TOKEN}));
        let mut child = Command::new(PROGRAM)
            .args(["controller", "--web.listen-address=127.0.0.1:0", "--controller.interval=400ms"])
            .args(["--controller.lease-duration=3s", &format!("--controller.namespace={NAMESPACE}")])
            .arg(format!("--controller.prometheus={prometheus}"))
            .args([format!("--controller.identity={name}"), format!("--kubeconfig={}", kubeconfig.display())])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let (lines, kept) = (BufReader::new(child.stderr.take().unwrap()).lines(), Arc::clone(&log));
        thread::spawn(move || lines.map_while(Result::ok).for_each(|line| kept.lock().unwrap().push(line)));
        let mut replica = Self { name: name.to_owned(), proxy, child, address: String::new(), log, _folder: folder };
        replica.address = wait_for("the controller's address in its log", || {
            let log = replica.log();
            let listens = log.iter().find_map(|line| line.split_once(" listening address="));
            if listens.is_none()
                && let Some(status) = replica.child.try_wait().unwrap()
            {
                panic!("the controller ended with {status}: {log:#?}");
            }
            Some(listens?.1.split_once(' ')?.0.to_owned())
        });
        replica
    }

    pub fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    pub fn wait_for_log(&self, text: &str) {
        wait_for(text, || self.log().iter().any(|line| line.contains(text)).then_some(()));
    }

    pub fn page(&self, path: &str, accept: &str) -> String {
        let url = format!("http://{}{path}", self.address);
        ureq::get(&url).header("Accept", accept).call().unwrap().body_mut().read_to_string().unwrap()
    }

    /// `/budgets` for programs.
    pub fn budgets(&self) -> Value {
        serde_json::from_str(&self.page("/budgets", "application/json")).unwrap()
    }

    pub fn send(&self, signal: &str) {
        let sent = Command::new("kill").args(["-s", signal, &self.child.id().to_string()]).status();
        assert!(sent.is_ok_and(|status| status.success()), "kill -s {signal}");
    }

    /// Ends it without a word.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("log of {}: {:#?}", self.name, self.log());
        }
    }
}
