//! A file system that stops answering, for a while or for these requests for good.

use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::thread;

use super::*;
use crate::common::agent::PROGRAM;
use crate::common::fuse::{Answering, SlowFiles};
use crate::common::page::Page;

/// Metric of what is active of the file, with its label.
const STATES: [(&str, &str); 3] = [
    ("web_config", "energy_agent_web_config_valid"),
    ("policies", "energy_agent_policy_source_up"),
    ("export_config", "energy_agent_export_config_valid"),
];

fn states(page: &Page) -> [u64; 3] {
    STATES.map(|(_, metric)| page.count(metric))
}

fn lost(page: &Page) -> [u64; 3] {
    STATES.map(|(file, _)| page.one("energy_agent_lost_readings_total", &[("file", file)]).value.parse().unwrap())
}

/// An agent, and the file system with the files that it follows. The file system ends first: a process cannot end while a
/// thread waits in it.
struct World {
    files: SlowFiles,
    agent: Agent,
}

impl World {
    fn new() -> Self {
        let texts = [("web.yaml", web("deny")), ("policies.yaml", policy(100)), ("export", export(INFO))];
        let files = SlowFiles::new(&texts.each_ref().map(|(name, text)| (*name, text.as_str())));
        let agent = agent(&files.path("web.yaml"), &files.path("policies.yaml"), &files.path("export"));
        Self { files, agent }
    }
}

/// The second versions come while nothing answers, and count when something does.
fn hang(answering: Answering) {
    let mut world = World::new();
    let World { files, agent } = &mut world;
    let active = |agent: &Agent| (frame(agent), budget(agent), exported(agent));
    let first = ("deny".to_owned(), Some(100.0), vec![INFO]);
    assert_eq!(active(agent), first);
    assert_eq!((states(&agent.scrape()), lost(&agent.scrape())), ([1, 1, 1], [0, 0, 0]));

    files.set(answering);
    files.write("web.yaml", &web("sameorigin"));
    files.write("policies.yaml", &policy(200));
    files.write("export", &export(BUSY));
    let page = wait_for("the states to say that nothing can be read", || {
        let page = agent.scrape();
        (states(&page) == [0, 0, 0]).then_some(page)
    });
    assert_eq!(lost(&page), [1, 1, 1], "given up once");
    assert_eq!(active(agent), first, "the previous versions stay active");
    let told = |text: &str| agent.logged(text).into_iter().filter(|line| line.contains(" WARN ")).count();
    for text in
        ["previous web configuration stays active", "policies cannot be read", "previous selection stays active"]
    {
        let silent = |line: &String| line.contains("the file system has not answered for 5 s");
        wait_for("a line about it", || agent.logged(text).into_iter().find(silent));
    }
    let source = &agent.policies()["sources"][0];
    assert_eq!((&source["up"], &source["reason"]), (&false.into(), &"unreadable".into()), "{source}");

    files.set(Answering::Now);
    wait_for("the second versions", || {
        (active(agent) == ("sameorigin".to_owned(), Some(200.0), vec![BUSY])).then_some(())
    });
    wait_for("the states to say that all is well", || (states(&agent.scrape()) == [1, 1, 1]).then_some(()));
    assert_eq!(
        told("selection stays active") + told("web configuration stays active") + told("policies cannot be read"),
        3,
        "each said once: {:#?}",
        agent.log()
    );
    assert!(files.asked_in_vain() >= 3, "nothing was asked while nothing was answered");
    // And so on with the third.
    files.write("web.yaml", &web("deny"));
    files.write("policies.yaml", &policy(100));
    files.write("export", &export(INFO));
    wait_for("the third versions", || (active(agent) == first).then_some(()));
    agent.assert_well();
}

#[test]
fn files_that_hang_for_a_while_count_again_when_they_answer() {
    hang(Answering::Later);
}

/// A reading that never returns does not end following.
#[test]
fn files_that_hang_for_good_once_count_again_by_another_reading() {
    hang(Answering::Never);
}

/// The server ends while threads hang.
#[test]
fn files_that_hang_hold_up_no_end() {
    let mut world = World::new();
    let World { files, agent } = &mut world;
    files.set(Answering::Later);
    wait_for("a reading of each to be lost", || (lost(&agent.scrape()) == [1, 1, 1]).then_some(()));
    thread::scope(|scope| {
        let address = agent.address.clone();
        scope.spawn(move || {
            wait_for("the server to end", || TcpStream::connect(&address).err());
            // The kernel frees a process only when none of its threads waits in a file system.
            files.set(Answering::Now);
        });
        assert!(agent.end("TERM").0.success());
    });
}

/// Whatever hangs at the start, is said and ends the start; it does not hang as well.
#[test]
fn a_web_configuration_that_hangs_at_the_start_is_a_usage_error() {
    let files = SlowFiles::new(&[("web.yaml", &web("deny"))]);
    files.set(Answering::Later);
    let mut start = Command::new(PROGRAM);
    start.arg(format!("--web.config.file={}", files.path("web.yaml").display()));
    let mut child = start.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let line = BufReader::new(child.stderr.take().unwrap()).lines().next().unwrap().unwrap();
    files.set(Answering::Now);
    assert_eq!(child.wait().unwrap().code(), Some(2), "{line}");
    assert!(line.contains("web.yaml: the file system has not answered for 5 s"), "{line}");
}
