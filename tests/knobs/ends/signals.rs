//! Every signal, and SIGHUP in each of its meanings.

use std::fs;
use std::process::{Child, Command};

use tempfile::TempDir;

use super::capped::Capped;
use crate::common::agent::{Agent, PROGRAM, wait_for};
use crate::common::alone;

/// The default action of each ends a process.
const ENDS: [&str; 15] = [
    "INT", "QUIT", "USR1", "USR2", "ALRM", "VTALRM", "PROF", "POLL", "PWR", "XCPU", "XFSZ", "STKFLT", "TRAP", "SYS",
    "RTMIN+7",
];

#[test]
fn every_signal_that_ends_a_process_ends_the_agent_in_order() {
    for signal in ENDS {
        let mut agent = Agent::start(&["--interval=200ms"]);
        let (status, _) = agent.end(signal);
        assert_eq!(status.code(), Some(0), "{signal}: {:?}", agent.log());
        // POLL is another name of IO.
        let name = if signal == "POLL" { "IO" } else { signal };
        agent.assert_logged(&format!("SIG{name}, the agent ends"), 1);
    }
}

#[test]
fn limits_are_restored_whatever_signal_comes() {
    let capped = Capped::new();
    for signal in ["QUIT", "USR1", "ALRM", "RTMIN"] {
        let mut agent = capped.agent();
        let (status, _) = agent.end(signal);
        capped.assert_restored(signal);
        assert_eq!(status.code(), Some(0), "{signal}: {:?}", agent.log());
    }
}

#[test]
fn a_crash_leaves_limits_to_the_next_start() {
    let capped = Capped::new();
    for signal in ["SEGV", "BUS", "ILL", "FPE", "ABRT"] {
        let mut agent = capped.agent();
        // Rust looks whether the first SEGV or BUS is a stack that is too deep, and would come to the same fault again if not.
        // Two that are sent before it has looked are one.
        let status = wait_for("the agent to crash", || {
            agent.send(signal);
            agent.ended()
        });
        assert_eq!(status.code(), None, "{signal} is a crash");
        capped.assert_limited(signal);
    }
    capped.world.no_policies();
    let flags = capped.flags();
    let _agent = Agent::start(&flags.iter().map(String::as_str).collect::<Vec<_>>());
    capped.wait_until_restored();
}

#[test]
fn sighup_has_a_daemon_read_its_files_again_and_ends_nothing() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("web.yaml");
    fs::write(&file, "http_server_config: {headers: {X-Frame-Options: deny}}\n").unwrap();
    let flag = format!("--web.config.file={}", file.display());
    let mut agent = Agent::spawn(&["setsid", PROGRAM], &["--interval=200ms", &flag]);
    agent.wait_until_ready();
    let valid = |agent: &Agent| agent.scrape().number("energy_agent_web_config_valid") > 0.5;
    for (text, is_valid) in
        [("nonsense: [\n", false), ("http_server_config: {headers: {X-Frame-Options: deny}}\n", true)]
    {
        let before = agent.logged("SIGHUP").len();
        fs::write(&file, text).unwrap();
        agent.send("HUP");
        wait_for("the files to be read", || Some(()).filter(|()| valid(&agent) == is_valid));
        wait_for("a line about it", || {
            Some(()).filter(|()| agent.logged("SIGHUP: reading web configuration").len() > before)
        });
    }
    agent.after_ticks(2);
    agent.assert_well();
    assert_eq!(agent.end("TERM").0.code(), Some(0));
}

#[test]
fn sighup_keeps_limits_of_a_daemon() {
    let capped = Capped::new();
    let mut agent = capped.agent();
    agent.send("HUP");
    wait_for("a line about it", || agent.logged("SIGHUP: reading web configuration").pop());
    agent.after_ticks(3);
    capped.assert_limited("SIGHUP");
    agent.assert_well();
    agent.end("TERM");
    capped.assert_restored("SIGTERM");
}

/// A terminal that is closed, as by the end of an ssh session: `script` is the terminal, and its end closes it.
#[test]
fn the_end_of_its_terminal_ends_an_agent_with_everything_restored() {
    let capped = Capped::new();
    let on_a_terminal = r#"exec 3>&2; exec script --quiet --command "exec $* 2>&3" /dev/null"#;
    let mut terminal = capped.agent_by(&["setsid", "sh", "-c", on_a_terminal, "sh", PROGRAM]);
    terminal.end("KILL");
    capped.wait_until_restored();
    wait_for("a line about it", || terminal.logged("SIGHUP, the agent ends").pop());
    // The agent is no child of the test, which can't wait for its end.
    wait_for("the journal to be empty", || capped.world.journal().is_empty().then_some(()));
    capped.assert_restored("the end of the terminal");
}

/// The state and the signals of FC-134.
#[test]
fn whatever_ends_the_agent_in_order_restores_a_quota_and_is_no_failure_fc_134() {
    let _alone = alone();
    let capped = Capped::new();
    let Some(pod) = capped.world.pod("quota-0") else { return };
    let _load = pod.spin();
    capped.world.policies(&capped.world.policy(2.0));
    let code = capped.world.node.folder().join("code");
    // The shell hands SIGHUP on to its job, as the shell of a session does.
    let shell = format!(
        r"trap 'kill -s HUP \$agent' HUP; $* 2>&3 & agent=\$!; wait \$agent; wait \$agent; echo \$? >{0}.new; mv {0}.new {0}",
        code.display()
    );
    let on_a_terminal = format!(r#"exec 3>&2; exec script --quiet --command "{shell}" /dev/null"#);
    let before = pod.quota.quota();
    assert_eq!(pod.quota.millicpus(), None, "no quota: {before}");
    for signal in ["TERM", "INT", "QUIT"] {
        let mut agent = capped.spawn(&["setsid", PROGRAM]);
        pod.wait_until_capped();
        agent.send("HUP");
        wait_for("a line about it", || agent.logged("SIGHUP: reading web configuration").pop());
        agent.after_ticks(2);
        assert_ne!(pod.quota.quota(), before, "SIGHUP ends nothing");
        assert_eq!(agent.end(signal).0.code(), Some(0), "{signal}: {:?}", agent.log());
        assert_eq!((pod.quota.quota(), capped.world.journal().as_str()), (before.clone(), ""), "{signal}");
    }
    let mut terminal = capped.spawn(&["setsid", "sh", "-c", &on_a_terminal, "sh", PROGRAM]);
    pod.wait_until_capped();
    terminal.end("KILL");
    let ended = wait_for("the agent's exit code", || fs::read_to_string(&code).ok());
    assert_eq!(ended, "0\n", "{:?}", terminal.log());
    assert_eq!((pod.quota.quota(), capped.world.journal().as_str()), (before, ""), "SIGHUP on a terminal");
}

#[test]
fn an_agent_under_nohup_goes_on_ignoring_sighup() {
    let mut agent = Agent::spawn(&["setsid", "nohup", PROGRAM], &["--interval=200ms"]);
    agent.wait_until_ready();
    agent.send("HUP");
    agent.after_ticks(3);
    agent.assert_well();
    assert_eq!(agent.logged("SIGHUP"), Vec::<String>::new());
    assert_eq!(agent.end("TERM").0.code(), Some(0));
}

/// `script`. When it ends, the terminal closes.
struct Terminal(Child);

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn sighup_ends_the_live_table_with_the_terminal_restored() {
    let agent = Agent::start(&["--interval=200ms"]);
    let folder = TempDir::new().unwrap();
    let (screen, pid) = (folder.path().join("screen"), folder.path().join("pid"));
    let shell = format!("stty rows 24 cols 80; echo $$ >{}; exec {PROGRAM} top {}", pid.display(), agent.address);
    let terminal = Command::new("script")
        .args(["--quiet", "--flush", "--command", &shell])
        .arg(&screen)
        .env("TERM", "xterm")
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut terminal = Terminal(terminal);
    let shown = || String::from_utf8_lossy(&fs::read(&screen).unwrap_or_default()).into_owned();
    // xterm's other screen, entered and left.
    wait_for("the table", || Some(()).filter(|()| shown().contains("\u{1b}[?1049h") && shown().contains("quit")));
    let pid = fs::read_to_string(&pid).unwrap();
    assert!(Command::new("kill").args(["-HUP", pid.trim()]).status().unwrap().success());
    wait_for("the end", || terminal.0.try_wait().unwrap());
    assert!(shown().contains("\u{1b}[?1049l"), "{:?}", shown());
}
