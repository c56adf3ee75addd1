//! Files that do not answer: pipes in the place of the hardware's files and of the configuration, and calls of the driver that
//! do not return. The agent goes on with everything else, recovers when the answer comes, and ends when it is asked to.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;

use super::Place;
use super::machine::replace;
use super::node::{Node, policies};
use super::patience::until;
use super::tally::Tally;
use crate::bench::agent::ticks;
use crate::bench::page::{Page, fallen};
use crate::checked;

const HANGS: u32 = 4;

/// # Errors
/// When ticks stop, something does not recover, an end does not come, or something is not as it was before.
pub fn round(place: &Place, rng: &mut Rng) -> Result<Tally> {
    let mut node = Node::new(place, rng)?;
    node.policies(&policies(rng))?;
    let (web, selection) = (place.folder.join("web.yaml"), place.folder.join("selection.yaml"));
    replace(&web, b"http_server_config: {}\n")?;
    replace(&selection, b"SOURCE.GPU: enabled\n")?;
    let flags = [format!("--web.config.file={}", web.display()), format!("--export.config={}", selection.display())];
    let mut agent = node.agent(&flags)?;
    let mut scraper = agent.ready()?;
    node.wait_until_lowered(&mut agent)?;
    let mut tally = Tally::default();
    let mut last: Option<Page> = None;
    let [slow, fast, limit] = node.machine.knobs();
    let files = [node.policy_file(), web, selection, node.machine.package("energy_uj"), slow, fast, limit];
    for _ in 0..HANGS {
        let at = rng.usize(..files.len() + 1);
        let time = Duration::from_millis(rng.u64(300..2500));
        let before = ticks(&scraper.page()?)?;
        if let Some(file) = files.get(at) {
            if file.ends_with("energy_uj") {
                node.rest();
            }
            let pipe = Pipe::instead_of(file, place)?;
            thread::sleep(time);
            pipe.undo()?;
            tally.add("files that hung", 1);
        } else {
            node.state.hangs.insert("*".to_owned(), 60.0);
            node.driver.play(&node.state);
            thread::sleep(time);
            node.state.hangs.clear();
            node.driver.play(&node.state);
            tally.add("drivers that hung", 1);
        }
        until("ticks to go on", || {
            agent.is_well()?;
            Ok((ticks(&scraper.page()?)? > before + 2).then_some(()))
        })?;
        let page = agent.fresh_page(&mut scraper)?;
        if let Some(fell) = last.map(|last| fallen(&last, &page)).transpose()?.flatten() {
            anyhow::bail!("{fell}");
        }
        last = Some(page);
    }
    // A new version of the policies is in force although a reading of the old one was lost.
    node.policies("")?;
    until("an edit to count", || Ok(node.knobs_are_as_before().is_ok().then_some(())))
        .or_else(|_| node.knobs_are_as_before())?;
    node.policies(&policies(rng))?;
    node.wait_until_lowered(&mut agent)?;
    let file = &files[rng.usize(..files.len())];
    if file.ends_with("energy_uj") {
        node.rest();
    }
    let pipe = Pipe::instead_of(file, place)?;
    agent.end("TERM").with_context(|| format!("while {} hangs", file.display()))?;
    tally.add("ends while something hung", 1);
    pipe.undo()?;
    node.restore().with_context(|| format!("{} hung at the end", file.display()))?;
    node.is_as_before()?;
    Ok(tally)
}

/// A pipe in the place of a file: an open waits for the other end.
struct Pipe {
    file: PathBuf,
    content: Vec<u8>,
    /// Another name of the pipe.
    pipe: PathBuf,
}

impl Pipe {
    fn instead_of(file: &Path, place: &Place) -> Result<Self> {
        let content = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
        let pipe = place.folder.join("pipe");
        let _ = fs::remove_file(&pipe);
        checked(Command::new("mkfifo").arg(&pipe))?;
        let next = file.with_extension("pipe");
        fs::hard_link(&pipe, &next)?;
        fs::rename(next, file)?;
        Ok(Self { file: file.to_owned(), content, pipe })
    }

    /// Puts the file back, and lets those go on that wait for the pipe.
    fn undo(self) -> Result<()> {
        ensure!(!self.file.is_file(), "{} was replaced", self.file.display());
        replace(&self.file, &self.content)?;
        // Both ends at once: this never waits.
        let both = File::options().read(true).write(true).open(&self.pipe)?;
        thread::sleep(Duration::from_millis(20));
        drop(both);
        Ok(())
    }
}
