//! The web server in a thread of the test, and a client that sends what a test says and shows the raw answer.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use energy_export::http::{Web, serve};
use energy_export::page::Published;
use energy_export::self_metrics::SelfMetrics;
use tokio::sync::{oneshot, watch};

/// The server on a port of its own, in a thread; ends with the value.
pub struct Server {
    pub address: SocketAddr,
    pub snapshots: watch::Sender<Arc<Published>>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    /// What it has been given is never stale, however slow the machine is.
    pub fn start(first: Published) -> Self {
        Self::with_interval(first, Duration::from_hours(1))
    }

    /// What it has been given is stale after five intervals.
    pub fn with_interval(first: Published, interval: Duration) -> Self {
        let (snapshots, receiver) = watch::channel(Arc::new(first));
        let (end, ended) = oneshot::channel::<()>();
        let (listening, address) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
                listening.send(listener.local_addr().unwrap()).unwrap();
                let web = Web {
                    telemetry_path: "/metrics".to_owned(),
                    interval,
                    power: false,
                    snapshots: receiver,
                    own: Arc::new(SelfMetrics::new()),
                    web_config: watch::channel(Arc::default()).1,
                };
                serve(listener, web, async { drop(ended.await) }).await.unwrap();
            });
        });
        Self { address: address.recv().unwrap(), snapshots, end: Some(end), thread: Some(thread) }
    }

    pub fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
        let mut stream = std::net::TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut request = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n");
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        stream.write_all(format!("{request}\r\n").as_bytes()).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let status = head[9..12].parse().unwrap();
        let headers = head.lines().skip(1).map(|line| line.split_once(": ").unwrap());
        let headers = headers.map(|(name, value)| (name.to_lowercase(), value.to_owned()));
        Answer {
            status,
            headers: headers.filter(|(name, _)| name != "date").collect(),
            body: bytes[end + 4..].to_vec(),
        }
    }

    pub fn get(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.ask("GET", path, headers)
    }

    pub fn stop(&mut self) {
        if let Some(end) = self.end.take() {
            let _ = end.send(());
        }
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.stop();
        }
    }
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

pub fn gunzip(body: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    flate2::read::GzDecoder::new(body).read_to_end(&mut plain).unwrap();
    plain
}
