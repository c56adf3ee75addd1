//! The dashboards' node kept alive for somebody to look at, which is what `cargo xtask demo` starts; and a test of it.

use std::collections::BTreeMap;
use std::env;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{Response, StatusCode, header};
use serde_json::json;

use super::board::boards;
use super::world::World;
use crate::common::agent::{PROGRAM, wait_for};
use crate::common::cgroup::v2_root;
use crate::common::kubernetes::server::Server;
use crate::common::prometheus::{Prometheus, now_s};

/// Draws a dashboard in a browser, from the answers of Prometheus.
const PAGE: &str = include_str!("../../../xtask/src/pictures/page.html");
/// How long the policies only recommend, unless the variable says otherwise, and how long after a cap the report comes.
const RECOMMEND: Duration = Duration::from_secs(30);
const RECOMMEND_VARIABLE: &str = "DEMO_RECOMMEND_SECONDS";
const CAPPED: Duration = Duration::from_secs(20);
/// How often the demo asks whether the pod is capped, and whether it is to end.
const LOOK: Duration = Duration::from_secs(1);

/// What is to be shown next.
enum Next {
    Enforcing(Instant),
    Cap,
    Report(Instant),
    Nothing,
}

#[test]
#[ignore = "`cargo xtask demo` runs it, until its standard input ends"]
fn demo() {
    // Standard output has the lines of the test harness.
    let recommend = env::var(RECOMMEND_VARIABLE).ok().map_or(RECOMMEND, |s| Duration::from_secs(s.parse().unwrap()));
    let mut world = World::start();
    let pages = pages(&world);
    let (agent, prometheus) = (world.agent.address.clone(), world.prometheus.url());
    eprintln!(
        "
A node with five pods. Their CPU work is real; the energy counters of its CPUs and its two GPUs are simulated.

dashboards   http://{}/
budgets      http://{agent}/policies
metrics      http://{agent}/metrics
Prometheus   {prometheus}/graph
the table    {PROGRAM} top {agent}
a report     {PROGRAM} report pod ml/train-0 --prometheus {prometheus}

ml/train-0 may draw 400 W, and for {} s the policy only recommends. Ctrl-C ends everything.
",
        pages.address,
        recommend.as_secs()
    );
    let ended = end_of_input();
    let mut next = Next::Enforcing(Instant::now() + recommend);
    while ended.try_recv() != Err(mpsc::TryRecvError::Disconnected) {
        world.run_for(LOOK);
        next = match next {
            Next::Enforcing(from) if Instant::now() >= from => {
                world.enforce();
                eprintln!("The policy is enforced: ml/train-0 draws {}.", watts(&world.prometheus));
                Next::Cap
            }
            Next::Cap if !world.prometheus.query(CAPPING).is_empty() => {
                eprintln!(
                    "ml/train-0 is capped: the clocks of its GPU are locked. Its line in the dashboards falls now."
                );
                Next::Report(Instant::now() + CAPPED)
            }
            Next::Report(from) if Instant::now() >= from => {
                eprintln!("ml/train-0 draws {}. Its report:\n\n{}", watts(&world.prometheus), report(&prometheus));
                Next::Nothing
            }
            waiting => waiting,
        };
    }
    drop(pages);
    let (status, _) = world.agent.end("TERM");
    assert!(status.success(), "the agent: {status}");
    drop(world);
    eprintln!("\nThe demo has ended. Nothing is left of it.");
}

const CAPPING: &str = r#"energy_agent_policy_state{pod_name="train-0", state="capping"}"#;

fn watts(prometheus: &Prometheus) -> String {
    let found = prometheus.query(r#"energy_agent_policy_power_watts{pod_name="train-0"}"#);
    found.first().map_or_else(|| "an unknown power".to_owned(), |(_, watts)| format!("{watts:.0} W"))
}

fn report(prometheus: &str) -> String {
    let asked = ["report", "pod", "ml/train-0", "--prometheus", prometheus, "--price-per-kwh=0.30", "--currency=EUR"];
    let output = Command::new(PROGRAM).args(asked).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Disconnected when standard input has ended: who started the demo has ended then, in whatever way.
fn end_of_input() -> mpsc::Receiver<()> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        drop(sender);
    });
    receiver
}

/// Serves a page for each dashboard by its name, and the first one people look at as `/`.
fn pages(world: &World) -> Server {
    let boards = boards();
    let mut others: Vec<_> = boards
        .iter()
        .map(|board| (format!("/{}", board.name), board.json["title"].as_str().unwrap().to_owned()))
        .collect();
    others.push((format!("http://{}/policies", world.agent.address), "Policies now".to_owned()));
    let since = now_s();
    let pages: BTreeMap<String, String> = boards
        .iter()
        .map(|board| {
            let data =
                json!({"prometheus": world.prometheus.url(), "board": board.json, "others": others, "since": since});
            // A `<` could end the script.
            let data = data.to_string().replace('<', "\\u003c");
            (format!("/{}", board.name), PAGE.replace("/*DATA*/null", &data))
        })
        .collect();
    Server::start(
        None,
        Arc::new(move |request| {
            let path = request.uri().path();
            let answer = Response::builder();
            let answer = match (path, pages.get(path)) {
                ("/", _) => {
                    answer.status(StatusCode::FOUND).header(header::LOCATION, "/pod-energy").body(Body::empty())
                }
                (_, Some(page)) => {
                    answer.header(header::CONTENT_TYPE, "text/html; charset=utf-8").body(Body::from(page.clone()))
                }
                (_, None) => answer.status(StatusCode::NOT_FOUND).body(Body::from("no such dashboard\n")),
            };
            Box::pin(async { answer.unwrap() })
        }),
    )
}

/// Started as `cargo xtask demo` starts it, and ended as by its Ctrl-C.
#[test]
fn the_demo_shows_a_capped_pod_and_its_report_and_leaves_nothing() {
    let mut demo = Command::new(env::current_exe().unwrap())
        .args(["dashboards::demo::demo", "--exact", "--ignored", "--nocapture"])
        .env(RECOMMEND_VARIABLE, "5")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = demo.id();
    let mut lines = BufReader::new(demo.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut said = Vec::new();
    let mut until = |part: &str| loop {
        let line = lines.next().unwrap_or_else(|| panic!("the demo ended before it said {part:?}: {said:#?}"));
        said.push(line.clone());
        if line.contains(part) {
            return line;
        }
    };
    let dashboards = until("dashboards ").split_whitespace().nth(1).unwrap().to_owned();
    let page = ureq::get(&dashboards).call().unwrap().body_mut().read_to_string().unwrap();
    assert!(page.contains("\"title\":\"Pod energy\"") && page.contains("/gpu-health"), "{page:.300}");
    until("is capped");
    until("pod ml/train-0 on worker-1");
    let limit = until("limit ");
    assert!(limit.contains("MHz") || limit.contains('W'), "{limit}");

    let left = || {
        let names =
            std::fs::read_dir(v2_root()).unwrap().flatten().filter_map(|entry| entry.file_name().into_string().ok());
        names.filter(|name| name.starts_with(&format!("energy-agent-test-{pid}-"))).count()
    };
    assert!(left() > 0, "the pods of the demo have other cgroups");
    drop(demo.stdin.take());
    until("Nothing is left");
    let status = wait_for("the end of the demo", || demo.try_wait().unwrap());
    assert!(status.success(), "{status}");
    assert_eq!(left(), 0, "cgroups are left");
    assert!(ureq::get(&dashboards).call().is_err(), "the pages are still served");
}
