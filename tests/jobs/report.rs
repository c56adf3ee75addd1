//! `energy-agent report` over a real Prometheus that scrapes a real agent. The truth is the agent's own page, `cpu.stat`, and
//! Prometheus' own arithmetic over whole lives of counters.

#![allow(clippy::unwrap_used, reason = "tests panic")]

mod world;

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::time::Duration;
use std::{fs, thread};

use serde_json::Value;
use tempfile::TempDir;

use crate::common::cgroup::{Cgroup, Load, cpu_ns};
use crate::schema::assert_valid;
use world::{World, microjoules, refusal, report, warnings};

/// One world for all of it: the waiting for scrapes is most of its time.
#[test]
fn jobs_are_counted_whole_across_scrapes_gaps_restarts_and_two_scrapers() {
    let mut world = World::start();

    // Shorter than a scrape, and longer; each is counted to the microjoule.
    let (short, short_cpu_ns) = world.job("short", 300);
    let short_truth = world.end(&short);
    let (long, long_cpu_ns) = world.job("long", 2500);
    let long_truth = world.end(&long);
    // A pod that runs and ends while nobody scrapes.
    world.stop_scraping();
    let (hidden, hidden_cpu_ns) = world.job("hidden-x7k2p", 1000);
    let hidden_truth = world.end(&hidden);
    world.scrape_again();
    for (pod, (joules, cpu), truth_ns) in
        [(&short, short_truth, short_cpu_ns), (&long, long_truth, long_cpu_ns), (&hidden, hidden_truth, hidden_cpu_ns)]
    {
        let run = world.run(&["pod", &world.name_of(pod)]);
        assert_eq!(microjoules(&run), joules, "{run:#}");
        assert_eq!(run["measured"]["coverage"], 1.0, "{run:#}");
        assert!(!warnings(&run).contains(&"end_not_seen") && !warnings(&run).contains(&"began_before"), "{run:#}");
        // The page has nanoseconds, the run microseconds as a float.
        let seconds = run["cpuSeconds"].as_f64().unwrap();
        assert!((seconds - std::time::Duration::from_nanos(cpu).as_secs_f64()).abs() < 1e-5, "{seconds} s, {cpu} ns");
        let truth = std::time::Duration::from_nanos(truth_ns).as_secs_f64();
        assert!((seconds / truth - 1.0).abs() < 0.05, "{seconds} s, {truth} s by cpu.stat");
    }
    let run = world.run(&["pod", &world.name_of(&hidden)]);
    assert!(warnings(&run).contains(&"short_for_readings"), "{run:#}");
    // By the name of its Job; and all of them as their namespace.
    let job = world.run(&["job", &format!("{}/hidden", world.node.name)]);
    assert_eq!(microjoules(&job), hidden_truth.0);
    let namespace = world.run(&["namespace", &world.node.name]);
    assert_eq!(microjoules(&namespace), short_truth.0 + long_truth.0 + hidden_truth.0, "{namespace:#}");
    assert_eq!(namespace["pods"].as_array().unwrap().len(), 3);

    // The agent restarts in the middle of one. What each agent counted as far as it was scraped is what Prometheus finds as
    // the largest value of each.
    let torn = world.node.pod("torn", &["main"]);
    torn.burn("main", 700);
    world.wait_until_scraped();
    world.restart_agent();
    torn.burn("main", 700);
    let (after, _) = world.end(&torn);
    world.wait_until_scraped();
    let run = world.run(&["pod", &world.name_of(&torn)]);
    let query = format!(
        "max by (zone, instance) (max_over_time(kepler_pod_cpu_joules_total{{pod_id=\"{}\"}}[10m]))",
        torn.uid()
    );
    let lives = world.prometheus.query(&query);
    assert_eq!(lives.len(), 4, "two zones by two agents: {lives:?}");
    let seen: f64 = lives.iter().map(|(_, joules)| joules * 1e6).sum();
    assert_eq!(microjoules(&run).to_string(), format!("{seen:.0}"), "{run:#}");
    assert!(microjoules(&run) > after);
    assert!(warnings(&run).contains(&"agent_restarted"), "{run:#}");
    assert!(run["measured"]["coverage"].as_f64().unwrap() < 1.0, "{run:#}");

    units_and_nodes(&world);
    refusals(&world);
    outputs(&world, &world.name_of(&long), long_truth.0);
    followed(&world);
    world.agent.assert_well();
}

/// A unit that nothing else touches, and the node: what Prometheus finds by the counters' own ends.
fn units_and_nodes(world: &World) {
    let slice = Cgroup::slice();
    let unit = slice.path[1..].replace(".slice", ".service");
    let service = slice.child(&unit);
    Load::start(&service, &["spin", "1"]).wait();
    let used_ns = cpu_ns(&service);
    world.wait_until_scraped();
    let run = world.run(&["unit", &unit]);
    let page = world.agent.scrape();
    let truth: u64 = ["package", "dram"]
        .iter()
        .map(|zone| page.microjoules("energy_agent_system_cpu_joules_total", &[("unit", &unit), ("zone", zone)]))
        .sum();
    assert!(truth > 0 && microjoules(&run) == truth, "{truth}: {run:#}");
    assert_eq!(run["subject"]["kind"], "unit");
    let (seconds, kernel) = (run["cpuSeconds"].as_f64().unwrap(), Duration::from_nanos(used_ns).as_secs_f64());
    assert!((seconds / kernel - 1.0).abs() < 0.05, "{seconds} s, {kernel} s by cpu.stat");
    let (code, text) = refusal(&world.report(&["unit", "absent.service"]));
    assert!(code == Some(3) && text.contains("has no unit absent.service") && text.contains("Known then"), "{text}");

    // The node, over the lives of both agents, while no page comes.
    world.stop_scraping();
    let node = world.node.name.as_str();
    let run = world.run(&["node", node, "--from=1h"]);
    assert_eq!((&run["subject"]["kind"], run["nodes"][0]["name"].as_str()), (&Value::from("node"), Some(node)));
    let last = format!(
        "max by (zone, path, instance) (max_over_time(kepler_node_cpu_joules_total{{node_name=\"{node}\"}}[1h]))"
    );
    let lives: f64 = world.prometheus.query(&last).iter().map(|(_, joules)| joules * 1e6).sum();
    assert_eq!(format!("{lives:.0}"), microjoules(&run).to_string(), "{run:#}");
    // 60 W and 5 W a socket, in steps of 50 ms or more.
    let peaks = run["energy"].as_array().unwrap().iter().map(|part| part["peakWatts"].as_f64().unwrap_or(-1.0));
    assert!(peaks.clone().all(|peak| peak > 0.0), "{run:#}");
    let (code, text) = refusal(&world.report(&["node", "absent", "--from=1h"]));
    assert!(code == Some(3) && text.contains("has no node absent") && text.contains(node), "{text}");
    world.scrape_again();
}

/// What cannot be reported is said with the remedy.
fn refusals(world: &World) {
    let namespace = &world.node.name;
    let missing = format!("{namespace}/absent");
    let said = |arguments: &[&str]| refusal(&world.report(arguments));
    let (code, text) = said(&["pod", &missing]);
    assert!(
        code == Some(3) && text.contains("is the name right") && text.contains("Known then: hidden-x7k2p, long"),
        "{text}"
    );
    let (code, text) = said(&["pod", &missing, "--from=2020-01-01T00:00:00Z", "--to=2020-01-02T00:00:00Z"]);
    assert!(code == Some(3) && text.contains("keeps samples for 15.0 days"), "{text}");
    let (code, text) = said(&["pod", &missing, "--from=3h", "--to=2h"]);
    assert!(code == Some(3) && text.contains("has no metrics of energy-agent"), "{text}");
    let (code, text) = said(&["pod", &missing, "--from=1h", "--to=1h"]);
    assert!(code == Some(2) && text.contains("longer than 0 s"), "{text}");
    for arguments in [&["pod", "no-namespace"][..], &["pod"], &["cluster", "a"], &["node", "absent", "--for=1s"]] {
        assert_eq!(said(arguments).0, Some(2), "{arguments:?}: {}", said(arguments).1);
    }
    // Two pods of one name.
    let twin = || {
        let (pod, _) = world.job("twin", 100);
        let (joules, _) = world.end(&pod);
        world.node.cluster.delete(&pod.object);
        (pod, joules)
    };
    let twins = [twin(), twin()];
    world.wait_until_scraped();
    let name = world.name_of(&twins[0].0);
    let (code, text) = said(&["pod", &name]);
    assert!(
        code == Some(2) && twins.iter().all(|(pod, _)| text.contains(pod.uid())) && text.contains("--uid"),
        "{text}"
    );
    for (pod, joules) in &twins {
        assert_eq!(microjoules(&world.run(&["pod", &name, "--uid", pod.uid()])), *joules);
    }
    let (code, text) = refusal(&report(&["pod", &name, "--prometheus", "http://127.0.0.1:1"]));
    assert!(code == Some(3) && text.contains("can it be reached from here"), "{text}");
    let (code, text) = refusal(&report(&["pod", "a/b", "--prometheus", &format!("http://{}", answering_403())]));
    assert!(code == Some(3) && text.contains("403: this user may not query it"), "{text}");
    bearer_token(&answering_with_token("secret-1"));
    let (code, text) =
        refusal(&report(&["pod", "a/b", "--prometheus", &format!("http://{}/metrics", world.agent.address)]));
    assert!(code == Some(3) && text.contains("is not the API of a Prometheus server"), "{text}");
    let (code, text) = refusal(&report(&["absent.json"]));
    assert!(code == Some(2) && text.contains("absent.json"), "{text}");
}

/// An address that answers everything with 403.
fn answering_403() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
    });
    address
}

/// The token of a file is sent; none, another or a broken one is refused.
fn bearer_token(address: &str) {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("token");
    let (url, flag) = (format!("http://{address}"), format!("--bearer-token-file={}", file.display()));
    let said = |flags: &[&str]| refusal(&report(&[&["pod", "a/b", "--prometheus", &url], flags].concat()));
    let (code, text) = said(&[]);
    assert!(code == Some(3) && text.contains("answers 401") && text.contains("--bearer-token-file"), "{text}");
    let (code, text) = said(&[&flag]);
    assert!(code == Some(3) && text.contains("reading") && text.contains("token"), "{text}");
    for (token, expected) in
        [("secret-1\n", "has no metrics of energy-agent"), ("other", "answers 401"), ("a b", "no bearer token")]
    {
        fs::write(&file, token).unwrap();
        let (code, text) = said(&[&flag]);
        assert!(code == Some(3) && text.contains(expected) && !text.contains("secret"), "{token:?}: {text}");
    }
}

/// A Prometheus server without samples that asks for this token.
fn answering_with_token(token: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut buffer = [0; 8192];
            let (mut asked, header) = (String::new(), format!("authorization: bearer {token}\r\n"));
            // The question itself comes after the head, maybe in another piece.
            while let Ok(read @ 1..) = stream.read(&mut buffer) {
                asked += &String::from_utf8_lossy(&buffer[..read]).to_lowercase();
                let Some((head, body)) = asked.split_once("\r\n\r\n") else { continue };
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                    break;
                }
            }
            let (status, body) = if asked.contains(&header) {
                ("200 OK", r#"{"status":"success","data":{"resultType":"vector","result":[]}}"#)
            } else {
                ("401 Unauthorized", "")
            };
            let _ = write!(
                stream,
                "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            );
        }
    });
    address
}

/// The same run in every format, and again from its file.
fn outputs(world: &World, pod: &str, truth: u64) {
    let folder = TempDir::new().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let flags = ["--price-per-kwh=0.30", "--currency=EUR", "--gco2-per-kwh=400", "--work=1000", "--work-unit=images"];
    let files = [
        format!("--html={}", file("run.html")),
        format!("--svg={}", file("run.svg")),
        format!("--json={}", file("run.json")),
    ];
    let mut arguments = vec!["pod", pod];
    arguments.extend(flags);
    arguments.extend(files.iter().map(String::as_str));
    let output = world.report(&arguments);
    assert!(output.status.success(), "{output:?}");
    let table = String::from_utf8(output.stdout).unwrap();
    println!("{table}");
    for word in [
        "package",
        "dram",
        "total",
        "CPU time",
        "J for each",
        "EUR at 0.3 EUR/kWh",
        "g at 400 g/kWh",
        "100 % of the time seen",
    ] {
        assert!(table.contains(word), "{word} is not in {table}");
    }
    let counted = world.run(&["pod", pod, "--work-query=sum(vector(40)) + 2"]);
    assert_eq!(counted["work"]["amount"], 42.0);
    let run: Value = serde_json::from_slice(&fs::read(file("run.json")).unwrap()).unwrap();
    assert_eq!(microjoules(&run), truth);
    assert_eq!(run["apiVersion"], energy_report::run::API_VERSION);
    assert_valid(folder.path().join("run.json").as_path());
    // 0.30 EUR and 400 g for 3.6e12 microjoules.
    let kwh: f64 = truth.to_string().parse::<f64>().unwrap() / 3.6e12;
    let close = |value: &Value, expected: f64| {
        assert!((value.as_f64().unwrap() / expected - 1.0).abs() < 1e-9, "{value} {expected}")
    };
    close(&run["prices"]["measured"]["cost"], kwh * 0.30);
    close(&run["prices"]["measured"]["gco2"], kwh * 400.0);
    let page = fs::read_to_string(file("run.html")).unwrap();
    assert!(
        !page.contains("<script") && page.contains("default-src 'none'") && page.contains("CPU power, W"),
        "{page}"
    );
    assert!(page.contains("prefers-color-scheme"), "{page}");
    let svg = fs::read_to_string(file("run.svg")).unwrap();
    assert!(svg.starts_with("<svg ") && page.contains(svg.trim_end()), "the page has the same picture");

    // Again from the file: nothing is measured twice.
    let again = |format: &str| {
        let output = report(&[&file("run.json"), format]);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(serde_json::from_str::<Value>(&again("--format=json")).unwrap(), run);
    let csv = again("--format=csv");
    let total = csv.lines().find(|line| line.contains(",total,")).unwrap().to_owned();
    assert!(total.contains(&format!(",{}.{:06},", truth / 1_000_000, truth % 1_000_000)), "{total}");
    assert!(again("--format=markdown").contains("| **total** |"));
    // A list of runs, as `measure -r` writes it.
    fs::write(file("runs.json"), format!("[{run}, {run}]")).unwrap();
    let pages = format!("--html={}", file("list.html"));
    let output = report(&[&file("runs.json"), "--format=json", &pages]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(serde_json::from_slice::<Vec<Value>>(&output.stdout).unwrap(), [run.clone(), run]);
    assert!(["list-1.html", "list-2.html"].into_iter().all(|name| fs::exists(file(name)).unwrap()));

    // What cannot be written is said before anything is asked, and what has no plot after all is printed.
    let output = world.report(&["pod", pod, &format!("--csv={}", file("none/run.csv"))]);
    let (code, text) = refusal(&output);
    assert!(code == Some(3) && text.contains("none/run.csv") && output.stdout.is_empty(), "{text}");
    let mut bare: Value = serde_json::from_slice(&fs::read(file("run.json")).unwrap()).unwrap();
    bare["series"] = Value::Array(Vec::new());
    fs::write(file("bare.json"), bare.to_string()).unwrap();
    let (svg, csv) = (format!("--svg={}", file("bare.svg")), format!("--csv={}", file("bare.csv")));
    let output = report(&[&file("bare.json"), &svg, &csv]);
    let (code, text) = refusal(&output);
    assert!(code == Some(3) && text.contains("too few readings for a plot"), "{text}");
    assert!(String::from_utf8(output.stdout).unwrap().contains("package") && fs::exists(file("bare.csv")).unwrap());
}

/// Without Prometheus: a running agent's page from now on.
fn followed(world: &World) {
    let pod = world.node.pod("followed", &["main"]);
    let load = pod.load("main", &["spin", "0"]);
    pod.wait_for_name(&world.agent);
    let before = world.agent.scrape();
    let agent = ["--agent", &world.agent.address, "--for=2s", "--format=json"];
    let output = report(&[&["pod", &world.name_of(&pod)], &agent[..]].concat());
    let after = world.agent.scrape();
    assert!(output.status.success(), "{output:?}");
    let run: Value = serde_json::from_slice(&output.stdout).unwrap();
    let most = pod.used(&after).0 - pod.used(&before).0;
    let seen = microjoules(&run);
    assert!(seen > 0 && seen <= most, "{seen} of {most}: {run:#}");
    assert_eq!(run["measured"]["by"], "agent");
    let (code, text) = refusal(&report(&[&["pod", &format!("{}/absent", world.node.name)], &agent[..]].concat()));
    assert!(code == Some(3) && text.contains("workloads of its own node only"), "{text}");
    drop(load);
}
