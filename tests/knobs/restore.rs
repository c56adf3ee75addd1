//! What was lowered comes back: when limits end, when the agent ends, and after it was killed at any moment, by the next
//! start or by `energy-agent restore` (FC-089).

#![expect(clippy::unwrap_used, reason = "a test panics, its helpers too")]

mod damaged;
mod gpus;
mod killed;
mod node;

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use energy_model::capping::knob::KnobState;
use energy_model::capping::knob::{Knob, Limits};
use node::{Node, limits};

const JOURNAL: &str = "capping-journal.jsonl";

#[test]
fn nothing_is_written_or_noted_before_there_is_a_limit() {
    let node = Node::new();
    let mut agent = node.open();
    for _ in 0..12 {
        agent.tick(&Limits::new());
    }
    assert_eq!(node.contents(), node.before);
    assert_eq!(fs::read_to_string(node.state.path().join(JOURNAL)).unwrap(), "");
    let knobs = agent.actuator.knobs();
    assert_eq!(knobs[&Knob::CpuFrequency(4)].original, Some(2_956_800));
    assert_eq!(knobs[&Knob::CpuFrequency(4)].min, 739_200, "a quarter of the highest clock");
    assert_eq!(agent.actuator.caps(&BTreeSet::new()), []);
}

#[test]
fn limits_are_written_once_and_their_end_gives_everything_back() {
    let node = Node::new();
    let mut agent = node.open();
    for _ in 0..3 {
        agent.tick(&node.capped_to);
    }
    for (knob, limit) in &node.capped_to {
        assert_eq!(agent.actuator.knobs()[knob].current, Some(limit.value), "{knob}");
        assert_ne!(node.content(knob), node.before[knob], "{knob}");
    }
    let caps = agent.actuator.caps(&BTreeSet::new());
    assert_eq!(caps.len(), node.capped_to.len());
    for cap in &caps {
        assert_eq!((cap.state, cap.writes.ok, cap.writes.failed), (KnobState::Ok, 1, 0), "{cap:?}");
    }
    agent.tick(&Limits::new());
    assert_eq!(node.contents(), node.before);
    assert_eq!(fs::read_to_string(node.state.path().join(JOURNAL)).unwrap(), "");
}

#[test]
fn an_agent_that_ends_gives_everything_back() {
    let node = Node::new();
    let mut agent = node.open();
    agent.tick(&node.capped_to);
    let until = Instant::now() + Duration::from_secs(60);
    assert!(agent.actuator.close(agent.now, until, &mut agent.files, &mut agent.gpus));
    assert_eq!(node.contents(), node.before);
}

#[test]
fn the_next_run_adopts_what_stands_and_remembers_what_was_before_the_first_cap() {
    let node = Node::new();
    let mut agent = node.open();
    agent.tick(&node.capped_to);
    // As a kill would.
    drop(agent);
    let mut agent = node.open();
    assert_eq!(agent.actuator.adopted(), node.capped_to);
    agent.tick(&node.capped_to);
    agent.tick(&node.capped_to);
    assert_eq!(agent.actuator.knobs()[&Knob::CpuFrequency(0)].original, Some(1_766_400));
    assert!(
        agent.actuator.caps(&BTreeSet::new()).iter().all(|cap| cap.writes.ok == 0),
        "what stands is not written again"
    );
    drop(agent);
    // The policy is gone: all is back before the first limits are made.
    let mut agent = node.open();
    agent.tick(&Limits::new());
    assert_eq!(node.contents(), node.before);
    drop(agent);
    let mut agent = node.open();
    assert_eq!(agent.actuator.adopted(), Limits::new());
    agent.tick(&Limits::new());
    assert_eq!(node.contents(), node.before);
}

#[test]
fn without_a_folder_for_the_journal_nothing_is_written() {
    let mut node = Node::new();
    node.config.host.state_directory = "/proc/nothing".into();
    let mut agent = node.open();
    for _ in 0..3 {
        agent.tick(&node.capped_to);
    }
    assert_eq!(node.contents(), node.before);
    assert_eq!(agent.actuator.knobs()[&Knob::CpuFrequency(0)].state, KnobState::NoPermission);
    assert!(agent.actuator.trouble().unwrap().detail.contains("--state.directory"));
}

#[test]
fn a_journal_that_cannot_be_written_any_more_stops_writes_and_not_restores() {
    let node = Node::new();
    let mut agent = node.open();
    agent.tick(&limits([(Knob::CpuFrequency(0), 1_000_000)]));
    let blocked = node.state.path().join("capping-journal.next");
    fs::create_dir(&blocked).unwrap();
    agent.tick(&node.capped_to);
    assert_eq!(node.content(&Knob::CpuFrequency(4)), node.before[&Knob::CpuFrequency(4)]);
    agent.tick(&Limits::new());
    assert_eq!(node.contents(), node.before);
    fs::remove_dir(&blocked).unwrap();
    agent.tick(&node.capped_to);
    assert_eq!(node.content(&Knob::CpuFrequency(4)), "1000000\n");
}

#[test]
fn a_pod_that_has_gone_leaves_nothing_behind() {
    let mut node = Node::new();
    let Some(pod) = node.pod.take() else { return };
    let mut agent = node.open();
    agent.tick(&node.capped_to);
    let quota = node.capped_to.keys().find(|knob| matches!(knob, Knob::CpuQuota(_))).unwrap();
    assert!(agent.actuator.adopted().contains_key(quota));
    drop(pod);
    agent.tick(&Limits::new());
    assert_eq!(agent.actuator.adopted(), Limits::new());
    assert!(!agent.actuator.knobs().contains_key(quota));
    assert_eq!((agent.actuator.restore_pending(), agent.actuator.restore_failures()), (0, 0));
}

/// The kubelet writes between the look and the write of a tick: at the first write, while the cap is changed, and while it is
/// given back.
#[test]
fn no_write_covers_a_resize_that_was_not_seen_yet_fc_121() {
    let node = Node::new();
    let Some(pod) = &node.pod else { return };
    let quota = node.capped_to.keys().find(|knob| matches!(knob, Knob::CpuQuota(_))).unwrap();
    let to = |millicpus| limits([(quota.clone(), millicpus)]);
    let resize = |quota_us| move || pod.set(quota_us, 100_000);
    let journal = || fs::read_to_string(node.state.path().join(JOURNAL)).unwrap();
    pod.set(100_000, 100_000);
    let mut agent = node.open();
    agent.tick_with(&to(500), resize(200_000));
    agent.tick(&to(500));
    agent.tick(&to(500));
    assert_eq!(pod.millicpus(), Some(500));
    assert!(journal().contains("\"original_raw\":\"200000 100000\""), "{}", journal());

    agent.tick_with(&to(400), resize(170_000));
    assert_eq!(pod.millicpus(), Some(1700), "it is looked at first");
    agent.tick(&to(400));
    agent.tick(&to(400));
    assert_eq!(pod.millicpus(), Some(400));
    assert!(journal().contains("\"original_raw\":\"170000 100000\""), "{}", journal());

    agent.tick_with(&Limits::new(), resize(150_000));
    agent.tick(&Limits::new());
    assert_eq!((pod.millicpus(), journal().as_str()), (Some(1500), ""));
}

#[test]
fn the_command_shows_what_it_would_do_and_does_it() {
    let node = Node::new();
    let mut agent = node.open();
    agent.tick(&node.capped_to);
    drop(agent);
    let capped = node.contents();

    let dry = node.restore(&["--dry-run"]);
    assert_eq!(dry.code, Some(0), "{dry:#?}");
    let words: Vec<&str> = dry.line(&Knob::CpuFrequency(0)).split_whitespace().collect();
    let expected = "cpu_frequency of policy0 1000 MHz 1766 MHz would be restored";
    assert_eq!(words.join(" "), expected);
    assert_eq!(node.contents(), capped, "nothing was written");

    let done = node.restore(&[]);
    assert_eq!(done.code, Some(0), "{done:#?}");
    for knob in node.before.keys() {
        assert!(done.line(knob).ends_with("  restored"), "{done:#?}");
    }
    assert!(done.text.ends_with("Everything is restored.\n"), "{done:#?}");
    assert_eq!(node.contents(), node.before);

    let again = node.restore(&[]);
    assert_eq!(again.code, Some(0), "{again:#?}");
    assert!(again.text.starts_with("Nothing to restore"), "{again:#?}");
}

#[test]
fn the_command_makes_nothing_where_there_is_nothing() {
    let node = Node::new();
    let outcome = node.restore(&[]);
    assert_eq!(outcome.code, Some(0), "{outcome:#?}");
    assert_eq!(fs::read_dir(node.state.path()).unwrap().count(), 0);
    assert_eq!(fs::read_dir(node.run.path()).unwrap().count(), 0);
    fs::remove_dir(node.state.path()).unwrap();
    let outcome = node.restore(&[]);
    assert_eq!(outcome.code, Some(0), "{outcome:#?}");
    assert!(outcome.text.starts_with("Nothing to restore"), "{outcome:#?}");
    assert!(!node.state.path().exists());
}

#[test]
fn the_command_refuses_while_an_agent_runs_and_names_it() {
    let node = Node::new();
    let mut agent = node.open();
    agent.tick(&node.capped_to);
    let capped = node.contents();
    let refused = node.command(&[]);
    assert_eq!(refused.code, Some(1), "{refused:#?}");
    assert!(refused.errors.contains(&format!("process {} caps", std::process::id())), "{refused:#?}");
    assert_eq!(node.command(&["--dry-run"]).code, Some(0), "a look disturbs nobody");
    assert_eq!(node.contents(), capped);
}

#[test]
fn the_command_leaves_what_somebody_has_set_since() {
    let node = Node::new();
    let mut agent = node.open();
    agent.tick(&node.capped_to);
    drop(agent);
    let [theirs, back] = [Knob::CpuFrequency(4), Knob::CpuFrequency(0)];
    fs::write(node.file(&theirs), "2000000\n").unwrap();
    fs::write(node.file(&back), "1766400\n").unwrap();
    let outcome = node.restore(&[]);
    assert_eq!(outcome.code, Some(0), "{outcome:#?}");
    let words: Vec<&str> = outcome.line(&theirs).split_whitespace().collect();
    let expected = "cpu_frequency of policy4 2000 MHz 2956 MHz left: another program has set it, it is 2000 MHz, but \
                    1000 MHz was written; it stays";
    assert_eq!(words.join(" "), expected, "{outcome:#?}");
    assert!(outcome.line(&back).ends_with("already at the original value"), "{outcome:#?}");
    assert_eq!(node.content(&theirs), "2000000\n");
}

#[test]
fn what_cannot_be_restored_is_said_stays_in_the_journal_and_comes_back_later() {
    let node = Node::new();
    let mut agent = node.open();
    agent.tick(&node.capped_to);
    drop(agent);
    let broken = Knob::CpuFrequency(4);
    let file = node.file(&broken);
    let kept = fs::read_to_string(&file).unwrap();
    // The first page of a process is never mapped: reading there gives EIO.
    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("/proc/self/mem", &file).unwrap();
    let outcome = node.restore(&[]);
    assert_eq!(outcome.code, Some(1), "{outcome:#?}");
    assert!(outcome.line(&broken).contains("FAILED: reading"), "{outcome:#?}");
    assert!(outcome.line(&Knob::CpuFrequency(0)).ends_with("restored"), "the others are");
    fs::remove_file(&file).unwrap();
    fs::write(&file, kept).unwrap();
    let outcome = node.restore(&[]);
    assert_eq!(outcome.code, Some(0), "{outcome:#?}");
    assert_eq!(node.contents(), node.before);
}

#[test]
fn a_journal_of_another_boot_is_not_followed() {
    let mut node = Node::new();
    let mut agent = node.open();
    agent.tick(&node.capped_to);
    drop(agent);
    let capped = node.contents();
    node.tree.apply("f proc/sys/kernel/random/boot_id = 0f1e2d3c-0000-4000-8000-000000000002");
    let outcome = node.restore(&[]);
    assert_eq!(outcome.code, Some(0), "{outcome:#?}");
    assert!(outcome.text.starts_with("Nothing to restore"), "{outcome:#?}");
    assert_eq!(node.contents(), capped, "whatever these values are, they are of this boot");
    let mut agent = node.open();
    agent.tick(&Limits::new());
    assert_eq!(node.contents(), capped);
}
