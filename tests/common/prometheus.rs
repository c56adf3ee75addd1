//! A real Prometheus server that scrapes what a test says; ended on drop.

use std::fs;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tempfile::TempDir;

use super::agent::wait_for;

pub struct Prometheus {
    child: Child,
    address: String,
    _folder: TempDir,
}

impl Prometheus {
    /// Starts it with these `scrape_configs`, scraped every second.
    pub fn scraping(scrape_configs: &str) -> Self {
        (0..3).find_map(|_| Self::start(scrape_configs)).expect("a port for Prometheus")
    }

    /// `None`: somebody else has got the port before the server came.
    fn start(scrape_configs: &str) -> Option<Self> {
        let folder = TempDir::new().unwrap();
        let config = folder.path().join("prometheus.yml");
        let every = "global: {scrape_interval: 1s, scrape_timeout: 1s}";
        fs::write(&config, format!("{every}\nscrape_configs: {scrape_configs}\n")).unwrap();
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .arg("--log.level=error")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("prometheus: {error}; `cargo xtask test` provides it"));
        let mut prometheus = Self { child, address, _folder: folder };
        let runs = wait_for("Prometheus", || {
            let ended = prometheus.child.try_wait().unwrap().map(|_| false);
            ended.or_else(|| ureq::get(format!("http://{}/-/ready", prometheus.address)).call().ok().map(|_| true))
        });
        runs.then_some(prometheus)
    }

    /// Where its API is.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The series that a query gives now: labels and value.
    pub fn query(&self, query: &str) -> Vec<(Value, f64)> {
        self.query_at(query, now_s())
    }

    /// The series that a query gives at a Unix time.
    pub fn query_at(&self, query: &str, time_s: f64) -> Vec<(Value, f64)> {
        let result = self.ask("query", query, &[("time", time_s)]);
        result.iter().map(|series| (series["metric"].clone(), number(&series["value"][1]))).collect()
    }

    /// The series that a query gives over a time: labels, and Unix time and value of each point.
    pub fn range(&self, query: &str, start: f64, end: f64, step_s: f64) -> Vec<(Value, Vec<(f64, f64)>)> {
        let result = self.ask("query_range", query, &[("start", start), ("end", end), ("step", step_s)]);
        let points = |series: &Value| series["values"].as_array().unwrap().clone();
        let point = |point: &Value| (point[0].as_f64().unwrap(), number(&point[1]));
        result.iter().map(|series| (series["metric"].clone(), points(series).iter().map(point).collect())).collect()
    }

    fn ask(&self, endpoint: &str, query: &str, more: &[(&str, f64)]) -> Vec<Value> {
        let mut request = ureq::get(format!("http://{}/api/v1/{endpoint}", self.address)).query("query", query);
        for (name, value) in more {
            request = request.query(*name, value.to_string());
        }
        let answer = request.config().http_status_as_error(false).build().call();
        let body = answer.unwrap().body_mut().with_config().limit(64 << 20).read_to_string().unwrap();
        let answer: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        answer["data"]["result"].as_array().unwrap().clone()
    }
}

/// Unix time.
pub fn now_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

/// Prometheus writes numbers as text.
fn number(value: &Value) -> f64 {
    value.as_str().unwrap().parse().unwrap()
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
