//! Negotiation, methods, health and the end of the web server.

use std::io::{ErrorKind, Read as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use energy_export::parse::samples;
use energy_model::snapshot::Snapshot;

use super::server::{Server, gunzip};
use super::world::{case, crowded, published, rich};

/// Clients that ask for the same page at once.
const SCRAPERS: usize = 4;

/// FC-070.
#[test]
fn format_and_content_type_follow_accept() {
    let server = Server::start(published(rich()));
    for request in case("FC-070-openmetrics.json")["requests"].as_array().unwrap() {
        let accept = request["accept"].as_str();
        let headers: Vec<_> = accept.iter().map(|value| ("Accept", *value)).collect();
        let answer = server.get("/metrics", &headers);
        let body = answer.text();
        assert!(samples(body).unwrap().len() > 50);
        assert_eq!((answer.status, answer.header("vary")), (200, "Accept, Accept-Encoding"));
        if let Some(expected) = request["expect"]["content_type"].as_str() {
            assert_eq!(answer.header("content-type"), expected);
        }
        if answer.header("content-type").starts_with("application/openmetrics-text") {
            assert!(body.ends_with("\n# EOF\n"));
            assert!(body.contains("# TYPE kepler_node_cpu_joules counter\n# UNIT kepler_node_cpu_joules joules\n"));
            assert!(body.contains("# TYPE kepler_node_cpu_watts gauge\n# UNIT kepler_node_cpu_watts watts\n"));
            assert!(body.contains("# TYPE process_cpu_seconds counter\n# UNIT process_cpu_seconds seconds\n"));
            assert!(body.contains("\nkepler_node_cpu_joules_total{") && !body.contains("\nkepler_node_cpu_joules{"));
            assert!(body.contains("energy_agent_tick_duration_seconds_bucket{le=\"1.0\"} 0\n"));
        } else {
            assert_eq!(answer.header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
            assert!(!body.contains("# EOF") && !body.contains("# UNIT"));
            assert!(body.contains("# TYPE kepler_node_cpu_joules_total counter\nkepler_node_cpu_joules_total{"));
        }
    }
}

/// FC-072.
#[test]
fn methods_encodings_and_health_paths() {
    let server = Server::start(published(rich()));
    let plain = server.get("/metrics", &[]);
    for request in case("FC-072-head-gzip.json")["requests"].as_array().unwrap() {
        let [method, path] = ["method", "path"].map(|key| request[key].as_str().unwrap());
        let encoding = request["accept_encoding"].as_str();
        let headers: Vec<_> = encoding.iter().map(|value| ("Accept-Encoding", *value)).collect();
        let answer = server.ask(method, path, &headers);
        match (method, path) {
            ("POST", _) => {
                assert_eq!(answer.status, 405);
                assert_eq!(answer.header("allow"), "GET,HEAD");
            }
            ("HEAD", _) => {
                let get = server.get(path, &[]);
                assert_eq!((answer.status, &answer.headers, answer.body.len()), (get.status, &get.headers, 0));
            }
            (_, "/metrics") if encoding == Some("gzip") => {
                assert_eq!(answer.header("content-encoding"), "gzip");
                assert_eq!(gunzip(&answer.body), plain.body);
            }
            (_, "/metrics") => {
                assert_eq!((answer.header("content-encoding"), &answer.body), ("", &plain.body));
            }
            (_, path) => {
                assert_eq!(answer.status, 200);
                let most = if path == "/" { 16_000 } else { 4000 };
                assert!(answer.body.len() < most && !answer.text().contains("kepler_"), "{path}");
            }
        }
    }
    assert_eq!((server.get("/nothing", &[]).status, server.get("/nothing", &[]).text()), (404, "404 page not found\n"));
    let landing = server.get("/", &[]);
    assert_eq!(landing.header("content-type"), "text/html; charset=utf-8");
    for part in ["node-a", env!("CARGO_PKG_VERSION"), "href=\"/metrics\"", "5 zones below &lt;sysfs&gt;", "ebpf tp_btf"]
    {
        assert!(landing.text().contains(part), "{part}");
    }
}

#[test]
fn ready_after_the_first_tick_and_unhealthy_when_ticks_stop() {
    let server = Server::with_interval(published(Snapshot::empty("node-a")), Duration::from_secs(10));
    assert_eq!((server.get("/readyz", &[]).status, server.get("/healthz", &[]).status), (503, 200));
    assert_eq!(server.get("/metrics", &[]).status, 200);
    server.snapshots.send_replace(Arc::new(published(rich())));
    assert_eq!((server.get("/readyz", &[]).status, server.get("/healthz", &[]).status), (200, 200));
    let mut old = published(rich());
    old.completed = Instant::now().checked_sub(Duration::from_secs(120)).unwrap();
    server.snapshots.send_replace(Arc::new(old));
    let answer = server.get("/healthz", &[]);
    let text =
        answer.text().strip_prefix("no tick for ").and_then(|text| text.strip_suffix(" s, expected one every 10s\n"));
    assert_eq!((answer.status, text.unwrap().parse::<u32>().unwrap() >= 120), (503, true), "{}", answer.text());
}

#[test]
fn two_scrapes_in_one_tick_see_the_same_bytes() {
    let server = Server::start(published(rich()));
    let first = server.get("/metrics", &[]);
    assert_eq!(first.body, server.get("/metrics", &[]).body);
    server.snapshots.send_replace(Arc::new(published(Snapshot { ticks: 4, ..rich() })));
    assert_ne!(first.body, server.get("/metrics", &[]).body);
}

#[test]
fn probes_are_answered_while_a_large_page_is_encoded_once_for_all_who_ask() {
    let server = Server::start(published(crowded(3_000)));
    let asked = AtomicUsize::new(0);
    let unanswered = AtomicUsize::new(SCRAPERS);
    let (bodies, probes) = thread::scope(|scope| {
        let scrape = || {
            asked.fetch_add(1, Ordering::Relaxed);
            let body = server.get("/metrics", &[("Accept-Encoding", "gzip")]).body;
            unanswered.fetch_sub(1, Ordering::Relaxed);
            body
        };
        let scrapers = [(); SCRAPERS].map(|()| scope.spawn(scrape));
        while asked.load(Ordering::Relaxed) < SCRAPERS {
            thread::yield_now();
        }
        let mut probes = 0;
        while unanswered.load(Ordering::Relaxed) == SCRAPERS {
            assert_eq!(server.get("/healthz", &[]).status, 200);
            probes += 1;
        }
        (scrapers.map(|scraper| scraper.join().unwrap()), probes)
    });
    // A client before the scrapers and one that waits for the page would be two.
    assert!(probes > 4, "{probes} probes were answered before the page");
    // A page says how much CPU time the agent has used so far: encoded twice it would differ.
    assert!(bodies.iter().all(|body| *body == bodies[0]), "{:?}", bodies.map(|body| body.len()));
    let page = gunzip(&bodies[0]);
    assert!(samples(std::str::from_utf8(&page).unwrap()).unwrap().len() > 42_000);
}

#[test]
fn shutdown_does_not_wait_for_open_connections() {
    // Clients have a limited time for a request. Of another server, one that began before: it still has time afterwards.
    let other = Server::start(published(rich()));
    let mut earlier = std::net::TcpStream::connect(other.address).unwrap();
    earlier.write_all(b"GET /metrics HTTP/1.1\r\nHost:").unwrap();
    let mut server = Server::start(published(rich()));
    let idle = std::net::TcpStream::connect(server.address).unwrap();
    let mut half = std::net::TcpStream::connect(server.address).unwrap();
    half.write_all(b"GET /metrics HTTP/1.1\r\nHost:").unwrap();
    let mut kept = std::net::TcpStream::connect(server.address).unwrap();
    kept.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    assert_eq!(kept.read(&mut [0; 4]).unwrap(), 4);
    server.stop();
    earlier.set_nonblocking(true).unwrap();
    assert_eq!(earlier.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    drop((idle, half, kept));
}

#[test]
fn headers_without_end_are_refused() {
    let server = Server::start(published(rich()));
    let answer = server.get("/metrics", &[("X-Long", &"x".repeat(64 * 1024))]);
    assert_eq!(answer.status, 431);
    assert_eq!(server.get("/healthz", &[]).status, 200);
}
