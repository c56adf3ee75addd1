//! Disks that fill up or become read-only under a capped node: to restore, the journal need only be read.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::package::{Package, policy};
use crate::common::agent::wait_for;
use crate::common::busy_node::wait_for_state;

const OPEN: &str = "200000000";

/// A node whose package is over a policy's budget, and its state folder on a disk of its own, which goes first.
fn capped() -> (Package, Disk) {
    let node = Package::new(200_000_000, 90);
    let disk = Disk::at(node.world.state.path());
    (node, disk)
}

/// A small file system that is mounted until it goes out of scope.
struct Disk {
    folder: PathBuf,
}

impl Disk {
    fn at(folder: &Path) -> Self {
        let disk = Self { folder: folder.to_owned() };
        disk.mount(&["-t", "tmpfs", "-o", "size=64k,nr_inodes=16,mode=700", "tmpfs"]);
        disk
    }

    fn mount(&self, arguments: &[&str]) {
        let status = Command::new("mount").args(arguments).arg(&self.folder).status().unwrap();
        assert!(status.success(), "mount {arguments:?}; needs root");
    }

    /// Neither a byte nor a file is left.
    fn fill(&self) {
        // What does not fit is written in part.
        fs::write(self.filler(0), vec![b'x'; 1 << 17]).unwrap_err();
        let full = (1..100).find_map(|number| fs::File::create(self.filler(number)).err());
        assert!(full.is_some());
    }

    fn free(&self) {
        (0..100).map(|number| fs::remove_file(self.filler(number))).take_while(Result::is_ok).for_each(drop);
    }

    /// Called as a file of the agent: what is not would keep the folder as it is.
    fn filler(&self, number: u32) -> PathBuf {
        self.folder.join(format!("idle.json.{number}"))
    }

    fn read_only(&self, yes: bool) {
        self.mount(&["-o", if yes { "remount,ro" } else { "remount,rw" }]);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.folder).status();
    }
}

#[test]
fn a_crash_and_a_full_disk_are_restored_by_the_command() {
    let (node, disk) = capped();
    node.crash();
    disk.fill();
    let (code, said) = node.restore();
    assert_eq!((code, node.limit().as_str()), (Some(0), OPEN), "{said}");
    assert!(said.contains("Everything is restored"), "{said}");
    assert!(said.contains("could not be brought up to date") && said.contains("--state.directory"), "{said}");
    // What the journal still says is over: an administrator may set the same value.
    let stale = node.world.journal();
    let written = stale.split("\"written\":").nth(1).unwrap().split(',').next().unwrap();
    fs::write(node.machine.limit_file(0), format!("{written}\n")).unwrap();
    let (code, said) = node.restore();
    assert_eq!((code, node.limit().as_str()), (Some(0), written), "{said}");
    disk.free();
    let (code, said) = node.restore();
    assert_eq!((code, node.limit().as_str()), (Some(0), written), "{said}");
    assert_eq!(node.world.journal(), "");
}

#[test]
fn a_crash_and_a_read_only_disk_are_restored_by_command_and_next_start() {
    let (node, disk) = capped();
    node.crash();
    disk.read_only(true);
    let (code, said) = node.restore();
    assert_eq!((code, node.limit().as_str()), (Some(0), OPEN), "{said}");
    disk.read_only(false);

    node.crash();
    disk.read_only(true);
    node.world.no_policies();
    let agent = node.agent();
    node.wait_until_open();
    let page = agent.after_ticks(2);
    let state = page.one("energy_agent_meter_up", &[("meter", "capping")]);
    assert_eq!((state.label("reason"), state.value.as_str()), ("journal", "0"));
    // Nothing new is limited, and the policy says so.
    node.world.policies(&policy(90));
    wait_for_state(&agent, "package", "no_actuator");
    assert_eq!(node.limit(), OPEN);
    agent.assert_logged("no new limits are set", 1);
    disk.read_only(false);
    node.wait_until_capped();
    wait_for("the line about the journal", || agent.logged("the capping journal can be written").pop());
    agent.assert_logged("the capping journal can be written", 1);
}

#[test]
fn an_agent_whose_disk_fills_up_restores_at_its_end_and_lifts_no_limit_before() {
    let (node, disk) = capped();
    let mut agent = node.agent();
    node.wait_until_capped();
    agent.after_ticks(4);
    disk.fill();
    let before = node.limit();
    // It has noticed once a minute has passed, or at its next write; neither opens anything.
    agent.after_ticks(6);
    assert_ne!(node.limit(), OPEN, "capped to {before} before");
    let (status, _) = agent.end("TERM");
    assert!(status.success(), "{:#?}", agent.log());
    assert_eq!(node.limit(), OPEN, "{:#?}", agent.log());
    // The next one does not take the stale line for its own.
    node.world.no_policies();
    fs::write(node.machine.limit_file(0), format!("{before}\n")).unwrap();
    let mut agent = node.agent();
    agent.after_ticks(4);
    assert_eq!(node.limit(), before, "an administrator's by now");
    assert!(agent.end("TERM").0.success());
    assert_eq!(node.limit(), before);
}

#[test]
fn a_crash_and_a_full_disk_are_restored_by_the_next_start() {
    let (node, disk) = capped();
    node.crash();
    disk.fill();
    node.world.no_policies();
    let mut agent = node.agent();
    node.wait_until_open();
    assert!(agent.end("TERM").0.success());
    assert_eq!(node.limit(), OPEN);
}

/// As an older agent left it, which had no record of the boot.
#[test]
fn a_deleted_journal_is_written_anew_by_the_agent_that_caps() {
    let (node, _disk) = capped();
    let mut agent = node.agent();
    node.wait_until_capped();
    agent.after_ticks(4);
    let path = node.world.state.path().join("capping-journal.jsonl");
    fs::remove_file(&path).unwrap();
    wait_for("the journal", || path.exists().then_some(()));
    assert!(node.world.journal().contains("\"original_raw\":\"200000000\""), "{}", node.world.journal());
    let page = agent.after_ticks(2);
    assert_eq!(page.count("energy_agent_capping_journal_repairs_total"), 1);
    agent.assert_logged("removed or changed the capping journal", 1);
    agent.end("KILL");
    fs::remove_file(&path).unwrap();
    let (code, said) = node.restore();
    assert_eq!((code, node.limit().as_str()), (Some(1), OPEN), "{said}");
    assert!(said.contains("does not exist any more") && said.contains("rapl_limit of intel-rapl:0"), "{said}");
    let (code, said) = node.restore();
    assert_eq!(code, Some(0), "{said}");
}
