//! A real Kubernetes API server with its etcd, and what is asked of it.

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::runtime::Handle;

const TOKEN: &str = "administrator";
pub const NAMESPACE: &str = "fleet";
pub const GROUP: &str = "/apis/power.energy-agent.io/v1alpha1";

pub struct ApiServer {
    pub client: Client,
    /// For the controllers.
    pub kubeconfig: PathBuf,
    runtime: Handle,
    programs: Vec<Child>,
}

impl ApiServer {
    /// Starts both programs in a cgroup, with what they keep in `folder`.
    ///
    /// # Errors
    /// When they are not built or do not start.
    pub fn start(runtime: &Handle, folder: &Path, cgroup: &Path) -> Result<Self> {
        let program = |name: &str| {
            env::var_os(name).with_context(|| {
                format!("{name} is not set; `cargo xtask kube-api` builds the API server, `cargo xtask bench` names it")
            })
        };
        let (api, etcd) = (program("TEST_KUBE_API")?, program("TEST_ETCD")?);
        let [clients, peers, port] = free_ports()?;
        let (clients, peers) = (format!("http://127.0.0.1:{clients}"), format!("http://127.0.0.1:{peers}"));
        let spawn = |program: &Path, arguments: &[&str], name: &str| -> Result<Child> {
            let log = File::create(folder.join(format!("{name}.log")))?;
            let mut command = Command::new("sh");
            command.args(["-c", r#"echo $$ > "$1/cgroup.procs" && shift && exec "$@""#, name]).arg(cgroup);
            command.arg(program).args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
            command.spawn().with_context(|| format!("starting {}", program.display()))
        };
        let data = folder.join("etcd").display().to_string();
        let cluster = format!("default={peers}");
        let etcd = spawn(
            Path::new(&etcd),
            &[
                "--unsafe-no-fsync",
                "--data-dir",
                &data,
                "--listen-client-urls",
                &clients,
                "--advertise-client-urls",
                &clients,
                "--listen-peer-urls",
                &peers,
                "--initial-advertise-peer-urls",
                &peers,
                "--initial-cluster",
                &cluster,
            ],
            "etcd",
        )?;
        let certificates = folder.join("certificates").display().to_string();
        let port = port.to_string();
        let flags = ["--etcd", &clients, "--port", &port, "--token", TOKEN, "--cert-dir", &certificates];
        let mut programs = vec![etcd];
        programs.push(spawn(Path::new(&api), &flags, "kube-api")?);
        let authority = folder.join("certificates/apiserver.crt");
        let deadline = Instant::now() + Duration::from_secs(120);
        while !fs::metadata(&authority).is_ok_and(|file| file.len() > 0) {
            ensure!(Instant::now() < deadline, "the API server does not start; see {}", folder.display());
            thread::sleep(Duration::from_millis(100));
        }
        let kubeconfig = kubeconfig(folder, &port, &authority)?;
        let client = runtime.block_on(async {
            let file = Kubeconfig::read_from(&kubeconfig)?;
            let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
            anyhow::Ok(Client::try_from(config)?)
        })?;
        let server = Self { client, kubeconfig, runtime: runtime.clone(), programs };
        while server.get("/api/v1/nodes").is_err() {
            ensure!(Instant::now() < deadline, "the API server does not answer; see {}", folder.display());
            thread::sleep(Duration::from_millis(100));
        }
        Ok(server)
    }

    /// # Errors
    /// When the server refuses.
    pub fn get(&self, path: &str) -> Result<Value> {
        self.ask("GET", path, "application/json", String::new())
    }

    /// # Errors
    /// When the server refuses.
    pub fn create(&self, collection: &str, object: &Value) -> Result<Value> {
        self.ask("POST", collection, "application/json", object.to_string())
    }

    /// # Errors
    /// When the server refuses.
    pub fn patch(&self, path: &str, change: &Value) -> Result<Value> {
        self.ask("PATCH", path, "application/merge-patch+json", change.to_string())
    }

    /// # Errors
    /// When the server refuses.
    pub fn delete(&self, path: &str) -> Result<Value> {
        self.ask("DELETE", path, "application/json", String::new())
    }

    fn ask(&self, method: &str, path: &str, kind: &str, body: String) -> Result<Value> {
        let request = hyper::http::Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", kind)
            .body(body.into_bytes())?;
        self.runtime.block_on(self.client.request(request)).with_context(|| format!("{method} {path}"))
    }

    /// The kinds of the program, as it prints them.
    ///
    /// # Errors
    /// When the server refuses one, or does not serve them.
    pub fn install_kinds(&self, printed: &str) -> Result<()> {
        let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let documents = printed.split("\n---").map(|part| part.trim_start_matches("---").trim());
        for kind in documents.filter(|part| part.contains("kind: CustomResourceDefinition")) {
            self.ask("POST", definitions, "application/yaml", kind.to_owned())?;
        }
        // The tests' API server has no EndpointSlices of its own.
        let endpoint_slices = include_str!("../../../../common/kubernetes/endpoint_slices.json");
        self.create(definitions, &serde_json::from_str(endpoint_slices)?)?;
        let lists = [
            format!("{GROUP}/clusterpowerbudgets"),
            format!("{GROUP}/powerlevels"),
            "/apis/discovery.k8s.io/v1/endpointslices".to_owned(),
        ];
        let deadline = Instant::now() + Duration::from_secs(60);
        while let Some(missing) = lists.iter().find(|list| self.get(list).is_err()) {
            ensure!(Instant::now() < deadline, "{missing} is not served");
            thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }

    /// How many requests that write the server has answered since its start, by its own count and by what they wrote.
    ///
    /// # Errors
    /// When it has no such count.
    pub fn writes(&self) -> Result<BTreeMap<String, u64>> {
        let request = hyper::http::Request::get("/metrics").body(Vec::new())?;
        let page = self.runtime.block_on(self.client.request_text(request)).context("GET /metrics")?;
        let mut writes = BTreeMap::new();
        for line in page.lines().filter(|line| line.starts_with("apiserver_request_total{")) {
            let label = |name: &str| line.split_once(&format!(",{name}=\""))?.1.split('"').next();
            let verb = label("verb").context("a request without a verb")?;
            if ["POST", "PUT", "PATCH", "APPLY", "DELETE"].contains(&verb) {
                let value: f64 = line.rsplit(' ').next().unwrap_or_default().parse()?;
                let (resource, sub) = (label("resource").unwrap_or_default(), label("subresource").unwrap_or_default());
                let what = if sub.is_empty() { resource.to_owned() } else { format!("{resource}/{sub}") };
                *writes.entry(what).or_default() += fake_nvml::units::whole(value);
            }
        }
        ensure!(!writes.is_empty(), "the API server does not count requests");
        Ok(writes)
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        for program in self.programs.iter_mut().rev() {
            let _ = program.kill();
            let _ = program.wait();
        }
    }
}

fn kubeconfig(folder: &Path, port: &str, authority: &Path) -> Result<PathBuf> {
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "bench",
        "clusters": [{"name": "bench", "cluster": {
            "server": format!("https://127.0.0.1:{port}"), "certificate-authority": authority,
        }}],
        "users": [{"name": "bench", "user": {"token": TOKEN}}],
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
    });
    let file = folder.join("kubeconfig");
    fs::write(&file, text.to_string())?;
    Ok(file)
}

/// Ports that nobody used a moment ago.
fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let listeners: Vec<TcpListener> =
        (0..N).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<_, _>>().context("a free port")?;
    let mut ports = [0; N];
    for (port, listener) in ports.iter_mut().zip(&listeners) {
        *port = listener.local_addr()?.port();
    }
    Ok(ports)
}
