//! A real API server and its etcd as processes, which can be given back what they once had.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use std::{fs, thread};

use super::cluster::TOKEN;

pub struct RealApi {
    /// `https://127.0.0.1:PORT`.
    pub url: String,
    /// File with the certificate of the server's authority.
    pub authority: PathBuf,
    folder: PathBuf,
    etcd: Vec<String>,
    api: Vec<String>,
    /// etcd, and the API server.
    running: Mutex<Vec<Ended>>,
}

/// A process that is killed on drop.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl RealApi {
    /// What these two programs would be in a folder of their own; nothing runs yet.
    pub fn new(folder: &Path, api: &Path, etcd: &Path) -> Self {
        let [clients, peers, port] = free_ports();
        let (clients, peers) = (format!("http://127.0.0.1:{clients}"), format!("http://127.0.0.1:{peers}"));
        let words = |program: &Path, words: &[&str]| {
            [&[program.to_str().unwrap()], words].concat().into_iter().map(str::to_owned).collect()
        };
        let (data, certificates) = (folder.join("etcd"), folder.join("certificates"));
        let etcd = words(
            etcd,
            &[
                "--unsafe-no-fsync",
                &format!("--data-dir={}", data.display()),
                &format!("--listen-client-urls={clients}"),
                &format!("--advertise-client-urls={clients}"),
                &format!("--listen-peer-urls={peers}"),
                &format!("--initial-advertise-peer-urls={peers}"),
                &format!("--initial-cluster=default={peers}"),
            ],
        );
        let (port, certificates_path) = (port.to_string(), certificates.display().to_string());
        let flags = ["--etcd", &clients, "--port", &port, "--token", TOKEN, "--cert-dir", &certificates_path];
        Self {
            url: format!("https://127.0.0.1:{port}"),
            authority: certificates.join("apiserver.crt"),
            folder: folder.to_owned(),
            etcd,
            api: words(api, &flags),
            running: Mutex::default(),
        }
    }

    /// Starts what does not run, and waits until `answers`; `false` where a program ended or a minute has passed.
    pub fn start(&self, answers: impl Fn() -> bool) -> bool {
        let mut running = self.running.lock().unwrap();
        *running = vec![self.spawn("etcd", &self.etcd), self.spawn("kube-api", &self.api)];
        let deadline = Instant::now() + Duration::from_secs(60);
        while Instant::now() < deadline && running.iter_mut().all(|process| process.0.try_wait().unwrap().is_none()) {
            if answers() {
                return true;
            }
            thread::sleep(Duration::from_millis(50));
        }
        false
    }

    fn spawn(&self, name: &str, words: &[String]) -> Ended {
        let log = |ending: &str| {
            let path = self.folder.join(format!("{name}.{ending}"));
            fs::OpenOptions::new().create(true).append(true).open(path).unwrap()
        };
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::null()).stdout(log("out")).stderr(log("log"));
        Ended(command.spawn().unwrap_or_else(|error| panic!("{}: {error}", words[0])))
    }

    /// Copies what etcd keeps; it ends and starts for that, as its files change while it runs.
    pub fn back_up(&self) {
        let mut running = self.running.lock().unwrap();
        drop(running.remove(0));
        self.copy("etcd", "backup");
        running.insert(0, self.spawn("etcd", &self.etcd));
    }

    /// Ends both; etcd's files are those of the backup.
    pub fn restore(&self) {
        self.running.lock().unwrap().clear();
        fs::remove_dir_all(self.folder.join("etcd")).unwrap();
        self.copy("backup", "etcd");
    }

    fn copy(&self, from: &str, to: &str) {
        let copied = Command::new("cp").arg("-a").args([from, to].map(|name| self.folder.join(name))).status().unwrap();
        assert!(copied.success(), "{from} is not copied");
    }

    pub fn print_logs(&self) {
        for name in ["etcd.log", "kube-api.log"] {
            println!("{name}: {}", fs::read_to_string(self.folder.join(name)).unwrap_or_default());
        }
    }
}

/// Ports that nobody used a moment ago.
fn free_ports<const N: usize>() -> [u16; N] {
    [(); N].map(|()| TcpListener::bind("127.0.0.1:0").unwrap()).map(|listener| listener.local_addr().unwrap().port())
}
