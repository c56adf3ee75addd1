//! A state folder on a small disk that becomes full or read-only, and journals that are cut, changed, emptied or deleted:
//! nothing new is lowered, everything that was comes back, and a later value of an administrator stays.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;

use super::Place;
use super::agent::{Agent, Restored};
use super::node::{Node, policies};
use super::patience::until;
use super::tally::Tally;
use crate::checked;

/// # Errors
/// When something is not as it was before, or a loss is not named.
pub fn round(place: &Place, rng: &mut Rng) -> Result<Tally> {
    let node = Node::new(place, rng)?;
    let mut tally = Tally::default();
    let disk = Disk::new(node.state_directory())?;
    node.policies(&policies(rng))?;
    disk.spoil(rng.bool())?;
    tally.add("starts on a bad disk", 1);
    lowers_nothing(&node)?;
    disk.mend()?;
    for _ in 0..2 {
        node.policies(&policies(rng))?;
        let mut agent = node.agent(&[])?;
        node.wait_until_lowered(&mut agent)?;
        disk.spoil(rng.bool())?;
        tally.add("disks that went bad", 1);
        leave(&node, agent, rng, &mut tally)?;
        node.knobs_are_as_before()?;
        // An administrator comes, and what the journal still names must not harm.
        let theirs = node.machine.knobs()[rng.usize(..2)].clone();
        let before = fs::read_to_string(&theirs)?;
        fs::write(&theirs, "1234000\n")?;
        disk.mend()?;
        node.restore()?;
        ensure!(fs::read_to_string(&theirs)? == "1234000\n", "an administrator's later value was overwritten");
        fs::write(&theirs, before)?;
        node.is_as_before()?;
    }
    node.policies(&policies(rng))?;
    let mut agent = node.agent(&[])?;
    node.wait_until_lowered(&mut agent)?;
    remove_under(&node, &mut agent)?;
    agent.end("KILL")?;
    node.heal()?;
    let damage = damage(&node.journal(), rng)?;
    tally.add("damaged journals", 1);
    let Restored { code, said } = node.try_restore()?;
    ensure!(code == Some(1), "a journal that was {damage}: restore ended with {code:?}: {said}");
    node.knobs_are_as_before().with_context(|| format!("a journal that was {damage}: {said}"))?;
    node.restore().context("once more")?;
    Ok(tally)
}

/// An agent that cannot keep what a limit was before does not limit.
fn lowers_nothing(node: &Node) -> Result<()> {
    let mut agent = node.agent(&[])?;
    let mut scraper = agent.ready()?;
    for _ in 0..5 {
        agent.fresh_page(&mut scraper)?;
    }
    node.knobs_are_as_before().context("without a journal")?;
    agent.end_well()
}

/// One of the ways to an end on a bad disk.
fn leave(node: &Node, agent: Agent, rng: &mut Rng, tally: &mut Tally) -> Result<()> {
    match rng.u32(..3) {
        0 => {
            agent.end("TERM")?;
            tally.add("orderly ends", 1);
        }
        1 => {
            agent.end("KILL")?;
            node.heal()?;
            node.restore()?;
            tally.add("restores", 1);
        }
        _ => {
            agent.end("KILL")?;
            node.heal()?;
            node.policies("")?;
            let mut next = node.agent(&[])?;
            next.ready()?;
            until("a start to bring everything back", || Ok(node.knobs_are_as_before().is_ok().then_some(())))
                .or_else(|_| node.knobs_are_as_before())?;
            next.end("TERM")?;
            tally.add("starts that gave back", 1);
        }
    }
    Ok(())
}

/// A journal that somebody deletes under a running agent is written anew.
fn remove_under(node: &Node, agent: &mut Agent) -> Result<()> {
    fs::remove_file(node.journal()).context("removing the journal")?;
    until("the journal to be written anew", || {
        agent.runs()?;
        Ok(fs::metadata(node.journal()).is_ok_and(|file| file.len() > 0).then_some(()))
    })
}

/// Harms the journal; says how.
fn damage(journal: &Path, rng: &mut Rng) -> Result<&'static str> {
    let mut bytes = Vec::new();
    File::open(journal)?.read_to_end(&mut bytes)?;
    let how = match rng.u32(..4) {
        0 => {
            fs::remove_file(journal)?;
            return Ok("deleted");
        }
        1 => {
            bytes.clear();
            "emptied"
        }
        2 => {
            // Not only the line's end, without which it is still whole.
            bytes.truncate(rng.usize(..bytes.len() - 1));
            "cut"
        }
        _ => {
            let at = rng.usize(..bytes.len() - 1);
            bytes[at] ^= 1 << rng.u32(..7);
            "changed"
        }
    };
    fs::write(journal, bytes)?;
    Ok(how)
}

/// 256 KiB of memory as a disk.
struct Disk(PathBuf);

impl Disk {
    fn new(place: PathBuf) -> Result<Self> {
        fs::create_dir_all(&place)?;
        checked(Command::new("mount").args(["-t", "tmpfs", "-o", "size=256k,mode=0700", "chaos"]).arg(&place))?;
        Ok(Self(place))
    }

    /// Makes it read-only, or full to the last byte.
    fn spoil(&self, read_only: bool) -> Result<()> {
        if read_only {
            return checked(Command::new("mount").args(["-o", "remount,ro"]).arg(&self.0));
        }
        let mut filler = File::create(self.0.join("filler"))?;
        for piece in [4096, 1] {
            while filler.write_all(&vec![b'x'; piece]).is_ok() {}
        }
        Ok(())
    }

    fn mend(&self) -> Result<()> {
        checked(Command::new("mount").args(["-o", "remount,rw"]).arg(&self.0))?;
        let _ = fs::remove_file(self.0.join("filler"));
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}
