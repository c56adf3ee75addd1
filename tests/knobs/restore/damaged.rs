//! A journal that somebody has cut, changed, emptied or deleted after a crash: what can be read is restored, what was lost
//! is named.

use std::fs;

use energy_model::capping::knob::{Knob, Limits};

use super::JOURNAL;
use super::node::{Node, limits};

/// A node whose agent was killed while it capped.
fn crashed() -> Node {
    let node = Node::new();
    let mut agent = node.open();
    agent.tick(&node.capped_to);
    drop(agent);
    assert_ne!(node.contents(), node.before);
    node
}

/// What becomes of a text; `None`: the file goes.
type Damage = fn(&str) -> Option<Vec<u8>>;

/// What can happen to a file.
fn damages() -> [(&'static str, Damage); 5] {
    [
        ("cut", |text| Some(text.as_bytes()[..text.len() / 3].to_vec())),
        ("flipped", |text| {
            let mut bytes = text.as_bytes().to_vec();
            bytes[40] ^= 1;
            Some(bytes)
        }),
        ("emptied", |_| Some(Vec::new())),
        ("deleted", |_| None),
        ("garbage", |_| Some(b"\0\xff{}\n[1, 2]\n".to_vec())),
    ]
}

fn damage(node: &Node, how: Damage) {
    let path = node.state.path().join(JOURNAL);
    match how(&fs::read_to_string(&path).unwrap()) {
        Some(bytes) => fs::write(&path, bytes).unwrap(),
        None => fs::remove_file(&path).unwrap(),
    }
}

#[test]
fn a_damaged_journal_is_named_and_the_record_of_the_boot_restores_all_of_it() {
    for (name, how) in damages() {
        let node = crashed();
        damage(&node, how);
        let capped = node.contents();
        let dry = node.restore(&["--dry-run"]);
        assert_eq!((dry.code, node.contents()), (Some(1), capped), "{name}: {dry:#?}");
        let done = node.restore(&[]);
        assert_eq!(done.code, Some(1), "{name}: {done:#?}");
        assert!(done.text.contains(&node.state.path().join(JOURNAL).display().to_string()), "{name}: {done:#?}");
        assert!(done.text.contains("nothing is lost"), "{name}: {done:#?}");
        assert_eq!(node.contents(), node.before, "{name}: {done:#?}");
        let again = node.restore(&[]);
        assert_eq!(again.code, Some(0), "{name}: {again:#?}");
        assert!(again.text.starts_with("Nothing to restore"), "{name}: {again:#?}");
    }
}

#[test]
fn the_next_start_restores_all_of_a_damaged_journal() {
    for (name, how) in damages() {
        let node = crashed();
        damage(&node, how);
        let mut agent = node.open();
        assert_eq!(agent.actuator.adopted(), node.capped_to, "{name}");
        agent.tick(&Limits::new());
        assert_eq!(node.contents(), node.before, "{name}");
        assert_eq!(fs::read_to_string(node.state.path().join(JOURNAL)).unwrap(), "", "{name}");
    }
}

#[test]
fn without_a_record_whole_lines_are_used_and_the_way_out_for_the_others_is_said() {
    let node = crashed();
    fs::remove_dir_all(node.run.path()).unwrap();
    // The first line is that of policy 0.
    damage(&node, |text| Some(text.replacen("1766400", "1766401", 1).into_bytes()));
    let lost = Knob::CpuFrequency(0);
    let done = node.restore(&[]);
    assert_eq!(done.code, Some(1), "{done:#?}");
    assert!(done.text.contains("1 line of "), "{done:#?}");
    assert!(done.text.contains("  cpu_frequency of policy0: 1000 MHz of 2956 MHz\n"), "{done:#?}");
    assert!(done.text.contains("Set by hand those that you did not set yourself"), "{done:#?}");
    for (knob, before) in node.before.iter().filter(|(knob, _)| **knob != lost) {
        assert!(done.line(knob).ends_with("restored"), "{done:#?}");
        assert_eq!(node.content(knob), *before);
    }
    assert_eq!(node.content(&lost), "1000000\n");
    assert!(node.state.path().join("capping-journal.damaged").exists());
}

#[test]
fn an_agent_that_finds_damage_leaves_it_to_the_command_to_say_so() {
    let node = crashed();
    fs::remove_dir_all(node.run.path()).unwrap();
    damage(&node, |text| Some(text.replacen("1766400", "1766401", 1).into_bytes()));
    let mut agent = node.open();
    agent.tick(&Limits::new());
    drop(agent);
    let said = node.restore(&[]);
    assert_eq!(said.code, Some(1), "{said:#?}");
    assert!(said.text.contains("cpu_frequency of policy0: 1000 MHz"), "{said:#?}");
    let again = node.restore(&[]);
    assert_eq!(again.code, Some(0), "said once: {again:#?}");
}

#[test]
fn a_record_that_is_damaged_or_gone_costs_nothing_while_the_journal_is_whole() {
    for (name, how) in damages() {
        let node = crashed();
        let path = node.run.path().join("capping-record.jsonl");
        match how(&fs::read_to_string(&path).unwrap()) {
            Some(bytes) => fs::write(&path, bytes).unwrap(),
            None => fs::remove_file(&path).unwrap(),
        }
        let done = node.restore(&[]);
        let expected = if matches!(name, "emptied" | "deleted") { 0 } else { 1 };
        assert_eq!(done.code, Some(expected), "{name}: {done:#?}");
        assert_eq!(node.contents(), node.before, "{name}: {done:#?}");
    }
}

#[test]
fn an_agent_writes_a_journal_anew_that_somebody_deletes() {
    let node = Node::new();
    let mut agent = node.open();
    agent.tick(&node.capped_to);
    let path = node.state.path().join(JOURNAL);
    let text = fs::read_to_string(&path).unwrap();
    for how in damages().map(|(_, how)| how) {
        damage(&node, how);
        agent.tick(&node.capped_to);
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
    assert_eq!(agent.actuator.journal_repairs(), 5);
    assert_eq!(agent.actuator.trouble(), None);
    agent.tick(&limits([]));
    assert_eq!(node.contents(), node.before);
}

#[test]
fn where_no_agent_has_capped_nothing_is_lost() {
    let node = Node::new();
    let mut agent = node.open();
    agent.tick(&Limits::new());
    drop(agent);
    fs::remove_file(node.state.path().join(JOURNAL)).unwrap();
    let outcome = node.restore(&[]);
    assert_eq!(outcome.code, Some(0), "{outcome:#?}");
    assert!(outcome.text.starts_with("Nothing to restore"), "{outcome:#?}");
}
