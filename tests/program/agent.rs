//! The program's life: how it starts, what it refuses and how it says so, how it ends, and what it keeps.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::agent::{Agent, PROGRAM, run, wait_for};
use crate::common::cgroup::{Cgroup, Load};
use crate::common::page::Page;
use crate::common::powercap::Powercap;

const SECOND: Duration = Duration::from_secs(1);

/// The one line of standard error that begins with `error:`, and what follows it.
fn refused(arguments: &[&str]) -> (Option<i32>, String) {
    let (code, text) = run(arguments);
    assert!(text.contains("error: "), "{arguments:?} gave {text}");
    (code, text)
}

#[test]
fn a_port_in_use_ends_the_second_agent_with_address_and_remedy() {
    let mut first = Agent::start(&["--interval=200ms"]);
    let (code, text) = refused(&[&format!("--web.listen-address={}", first.address)]);
    assert_eq!(code, Some(1));
    for part in [first.address.as_str(), "Address already in use", "--web.listen-address"] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
    assert_eq!(text.lines().count(), 1, "{text}");
    first.assert_well();
}

#[test]
fn an_unknown_flag_is_answered_with_the_valid_ones() {
    for (arguments, flags) in [
        (["run", "--web.listen-adress=:1"], ["--web.listen-address", "--meter.cpu", "--export.levels"]),
        (["--nonsense", "--interval=1s"], ["--web.listen-address", "--meter.cpu", "--export.levels"]),
        (["doctor", "--nonsense"], ["flags of `energy-agent doctor`: --format", "--meter.cpu", "--path.sysfs"]),
        (["top", "--nonsense"], ["flags of `energy-agent top`: --interval", "--iterations", "--rows"]),
    ] {
        let (code, text) = refused(&arguments);
        assert_eq!(code, Some(2));
        for flag in flags {
            assert!(text.contains(flag), "{flag} is not in: {text}");
        }
    }
}

/// A root that is not there is a wrong flag or a forgotten mount, not missing hardware: going on without it would show
/// an estimate, or nothing, on a node that can measure. A root that is there but lacks files costs only what they say
/// (`tests/meters/degraded.rs`).
#[test]
fn a_root_that_is_not_there_is_named_and_costs_only_what_it_would_hold() {
    let agent = Agent::start(&["--interval=200ms", "--path.procfs=/nonexistent", "--path.sysfs=/proc/version"]);
    let page = agent.after_ticks(2);
    assert!(page.has("energy_agent_system_cpu_seconds_total", &[("unit", "kernel")]));
    for root in ["--path.procfs=/nonexistent is not a folder", "--path.sysfs=/proc/version is not a folder"] {
        agent.assert_logged(root, 1);
    }
}

#[test]
fn a_bad_value_is_answered_with_the_valid_ones() {
    for (flag, valid) in [
        ("--meter.cpu=turbostat", "auto, rapl, perf, hwmon, estimate, none"),
        ("--ebpf=maybe", "auto, on, off"),
        ("--export.levels=node,foo", "node, pod, container"),
        ("--interval=0", "expected 100ms to 1m"),
        ("--interval=2m", "expected 100ms to 1m"),
        ("--interval=5", "a duration such as 1s or 500ms"),
        ("--web.listen-address=9102", ":9102 or 127.0.0.1:9102"),
        ("--web.telemetry-path=metrics", "a path such as /metrics"),
        ("--export.terminated-retention=x", "a duration such as 2m"),
        ("--export.terminated-max=-1", "-1"),
    ] {
        let (code, text) = refused(&[flag]);
        assert_eq!(code, Some(2), "{flag}: {text}");
        let (name, value) = flag.split_once('=').unwrap();
        for part in [name, value.rsplit(',').next().unwrap(), valid] {
            assert!(text.contains(part), "{flag}: {part} is not in: {text}");
        }
    }
}

#[test]
fn sigterm_waits_for_no_client() {
    let mut agent = Agent::start(&["--interval=200ms"]);
    let mut idle = TcpStream::connect(&agent.address).unwrap();
    idle.write_all(b"GET /healthz HTTP/1.1\r\nHost: agent\r\n\r\n").unwrap();
    let mut answer = [0; 512];
    let length = idle.read(&mut answer).unwrap();
    assert!(answer[..length].starts_with(b"HTTP/1.1 200 OK"), "kept open after its answer");
    let mut slow = TcpStream::connect(&agent.address).unwrap();
    slow.write_all(b"GET /metrics HTTP/1.1\r\nHost: ").unwrap();
    let (status, taken) = agent.end("TERM");
    assert_eq!(status.code(), Some(0), "{:?}", agent.log());
    agent.assert_logged("SIGTERM", 1);
    // Clients have 75 s for a request.
    assert!(taken < 75 * SECOND, "{taken:?}");
}

#[test]
fn sigterm_and_sigint_end_a_long_interval_long_before_its_tick() {
    for signal in ["TERM", "INT"] {
        let mut agent = Agent::spawn(&[PROGRAM], &["--interval=1m"]);
        let (status, taken) = agent.end(signal);
        assert_eq!(status.code(), Some(0), "{:?}", agent.log());
        // The next tick is a minute away.
        assert!(taken < 60 * SECOND, "{taken:?}");
    }
}

#[test]
fn before_the_first_tick_the_agent_is_healthy_and_not_ready() {
    wait_for("a look at an agent before its first tick", || {
        let agent = Agent::spawn(&[PROGRAM], &["--interval=1m"]);
        let get = |path: &str| ureq::get(&format!("http://{}{path}", agent.address)).call();
        let (healthy, ready, page) = (get("/healthz"), get("/readyz"), agent.scrape());
        if page.ticks() > 0 {
            return None;
        }
        assert_eq!(healthy.unwrap().status(), 200);
        assert!(matches!(ready, Err(ureq::Error::StatusCode(503))));
        assert_eq!(page.energy_names(), Vec::<&str>::new(), "nothing was measured yet");
        page.one("energy_agent_meter_up", &[("meter", "ebpf")]);
        Some(())
    });
}

#[test]
fn the_first_tick_has_energy_and_does_not_wait_for_an_interval() {
    let counters = Powercap::two_sockets();
    let agent = Agent::start(&["--interval=1m", "--meter.cpu=rapl", "--meter.trust-guest", &counters.sysfs_flag()]);
    let page = agent.scrape();
    // The second tick is a minute away.
    assert_eq!(page.ticks(), 1);
    for zone in &counters.zones {
        page.one("kepler_node_cpu_joules_total", &zone.labels());
    }
}

#[test]
fn after_a_kill_counters_start_again_with_a_new_start_time() {
    let powercap = Powercap::two_sockets();
    let start = |state: &str| {
        let sysfs = powercap.sysfs_flag();
        let flags = ["--interval=200ms", "--meter.trust-guest", &sysfs];
        if state.is_empty() { Agent::start(&flags) } else { Agent::start(&[&flags[..], &[state]].concat()) }
    };
    let mut first = start("");
    let package = &powercap.zones[0];
    package.add(5_000_000);
    let before = first.after_ticks(2);
    let joules = |page: &Page| page.microjoules("kepler_node_cpu_joules_total", &package.labels());
    assert_eq!(joules(&before), 5_000_000);
    let (status, _) = first.end("KILL");
    assert_eq!(status.code(), None);
    // The start time has whole seconds.
    thread::sleep(SECOND);
    let second = start(&format!("--state.directory={}", first.state.path().display()));
    package.add(2_000_000);
    let after = second.after_ticks(2);
    assert_eq!(joules(&after), 2_000_000, "what the first run counted is not in it, nor the value of the register");
    let started = |page: &Page| page.number("process_start_time_seconds");
    assert!(started(&after) > started(&before), "{} and {}", started(&before), started(&after));
    after.assert_conserved();
}

#[test]
fn the_agents_own_cpu_time_is_told_to_less_than_a_tick_of_the_kernel() {
    let agent = Agent::start(&["--interval=200ms"]);
    // By /proc/PID/stat, in ticks of 10 ms, which user and system time are each rounded down to.
    let cpu_seconds = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields = stat.rsplit_once(") ").unwrap().1.split(' ').skip(11).take(2);
        let ticks: u32 = fields.map(|field| field.parse::<u32>().unwrap()).sum();
        f64::from(ticks) / 100.0
    };
    let mut earlier = 0.0;
    for _ in 0..3 {
        let least = cpu_seconds(agent.pid());
        let seconds = agent.after_ticks(1).number("process_cpu_seconds_total");
        let most = cpu_seconds(agent.pid()) + 0.02;
        assert!((least..=most).contains(&seconds), "{least} <= {seconds} <= {most}");
        assert!(seconds > earlier, "{seconds} after {earlier}: an agent that ticks takes some time");
        earlier = seconds;
    }
}

#[test]
fn what_was_learned_is_kept_and_a_spoilt_file_costs_one_warning() {
    let mut first = Agent::start(&["--interval=200ms", "--log.format=text"]);
    assert_eq!(first.end("TERM").0.code(), Some(0));
    let file = first.state.path().join("idle.json");
    let flag = format!("--state.directory={}", first.state.path().display());
    assert!(file.exists(), "{:?}", first.log());
    let second = Agent::start(&["--interval=200ms", &flag]);
    second.assert_logged("learned idle power loaded", 1);
    drop(second);

    for spoilt in ["", "{\"version\": 1", "null", "\u{0}\u{1}\u{2}"] {
        fs::write(&file, spoilt).unwrap();
        let third = Agent::start(&["--interval=200ms", &flag]);
        third.after_ticks(2);
        let told = third.assert_logged(file.to_str().unwrap(), 1);
        assert!(told[0].contains(" WARN "), "{told:?}");
    }
}

#[test]
fn a_state_directory_that_cannot_be_made_is_told_once() {
    let mut agent = Agent::start(&["--interval=200ms", "--state.directory=/proc/nothing"]);
    agent.assert_logged("--state.directory", 1);
    assert_eq!(agent.end("TERM").0.code(), Some(0));
    let told = agent.assert_logged("--state.directory", 1);
    assert!(told[0].contains(" WARN ") && told[0].contains("/proc/nothing"), "{told:?}");
}

#[test]
fn neither_ticks_nor_scrapes_write_to_the_log() {
    let agent = Agent::start(&["--interval=200ms"]);
    let before = agent.after_ticks(2);
    let lines = agent.log();
    let start = Instant::now();
    let ticks = wait_for("twenty ticks", || {
        agent.fetch("application/openmetrics-text; version=1.0.0");
        let _ = ureq::get(&format!("http://{}/nowhere", agent.address)).call();
        Some(agent.scrape().ticks() - before.ticks()).filter(|ticks| *ticks >= 20)
    });
    // Fault 9: nor does a scrape make a tick, however many come.
    assert!(u128::from(ticks) <= start.elapsed().as_millis() / 200 + 2, "{ticks} ticks");
    assert_eq!(agent.log(), lines);
}

/// What a tenant may name: a cgroup inside its own.
#[test]
fn a_cgroup_whose_name_steers_a_terminal_is_printed_as_text() {
    let name = "evil\u{1b}[2J\u{9b}31m\u{202e}txt";
    let cgroup = Cgroup::new(name);
    let agent = Agent::start(&["--ebpf=off", "--gpu=off", "--interval=200ms", "--meter.cpu=estimate"]);
    let load = Load::start(&cgroup.dir, &["spin", "60"]);
    wait_for("the unit on the page", || {
        let page = agent.scrape();
        let units = page.select("energy_agent_system_cpu_joules_total", &[]);
        units.iter().any(|sample| sample.label("unit").contains(name)).then_some(())
    });
    let output =
        Command::new(PROGRAM).args(["top", &agent.address, "--once", "--all", "--rows=1000"]).output().unwrap();
    drop(load);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("evil\\u{1b}[2J\\u{9b}31m\\u{202e}txt"), "{text}");
    assert!(!text.chars().any(|letter| letter.is_control() && letter != '\n'), "{text:?}");
}

/// A value in the log begins no line of its own and steers no terminal.
#[test]
fn a_line_of_the_log_is_one_line_whatever_a_value_holds() {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("no\n2030-01-01T00:00:00Z  INFO forged\u{1b}[2J");
    let mut agent = Agent::start(&["--ebpf=off", "--gpu=off", &format!("--export.config={}", path.display())]);
    let said = wait_for("the warning", || agent.logged("the previous selection stays active").pop());
    assert!(said.contains("no\\n2030-01-01T00:00:00Z  INFO forged\\u{1b}[2J: No such file"), "{said}");
    assert!(agent.log().iter().all(|line| !line.starts_with("2030") && !line.contains('\u{1b}')), "{:#?}", agent.log());
    agent.assert_well();
}
