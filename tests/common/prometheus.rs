//! A real Prometheus server that scrapes what a test says; ended on drop.

use std::fs;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

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
        let folder = TempDir::new().unwrap();
        let config = folder.path().join("prometheus.yml");
        let every = "global: {scrape_interval: 1s, scrape_timeout: 1s}";
        fs::write(&config, format!("{every}\nscrape_configs: {scrape_configs}\n")).unwrap();
        // Free now, and not given out again soon.
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
        let prometheus = Self { child, address, _folder: folder };
        wait_for("Prometheus", || ureq::get(format!("http://{}/-/ready", prometheus.address)).call().ok());
        prometheus
    }

    /// The series that a query gives now: labels and value.
    pub fn query(&self, query: &str) -> Vec<(Value, f64)> {
        let url = format!("http://{}/api/v1/query", self.address);
        let answer = ureq::get(url).query("query", query).config().http_status_as_error(false).build().call();
        let body = answer.unwrap().body_mut().with_config().limit(64 << 20).read_to_string().unwrap();
        let answer: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        let result = answer["data"]["result"].as_array().unwrap();
        let number = |series: &Value| series["value"][1].as_str().unwrap().parse().unwrap();
        result.iter().map(|series| (series["metric"].clone(), number(series))).collect()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
