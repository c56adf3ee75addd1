//! Every signal, alone and in bursts, before and while something is lowered: one that ends the agent ends it in order, SIGHUP
//! and SIGPIPE do not end it, and what a crash leaves is restored by the next start or the command.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;

use super::Place;
use super::node::{Node, policies};
use super::patience::until;
use super::tally::Tally;

const STARTS: u32 = 5;
/// Signals whose default action ends a process; two of the real-time signals by their numbers.
const ENDS: [&str; 15] = [
    "TERM", "INT", "QUIT", "USR1", "USR2", "ALRM", "VTALRM", "PROF", "IO", "PWR", "XCPU", "XFSZ", "STKFLT", "37", "62",
];
const CRASHES: [&str; 5] = ["SEGV", "BUS", "ILL", "FPE", "ABRT"];
/// A daemon lives through these.
const LIVES: [&str; 2] = ["HUP", "PIPE"];

/// # Errors
/// When something is not as it was before, or a signal does what it should not.
pub fn round(place: &Place, rng: &mut Rng) -> Result<Tally> {
    let node = Node::new(place, rng)?;
    let mut tally = Tally::default();
    for _ in 0..STARTS {
        node.policies(&policies(rng))?;
        let mut agent = node.agent(&[])?;
        if rng.u32(..4) > 0 {
            node.wait_until_lowered(&mut agent)?;
        } else {
            agent.address()?;
        }
        thread::sleep(Duration::from_millis(rng.u64(..200)));
        for _ in 0..rng.u32(..4) {
            let signal = LIVES[rng.usize(..LIVES.len())];
            agent.signal(signal)?;
            thread::sleep(Duration::from_millis(rng.u64(..50)));
            agent.runs().with_context(|| format!("after SIG{signal}"))?;
            tally.add("signals that it lived through", 1);
        }
        if rng.u32(..4) == 0 {
            let signal = CRASHES[rng.usize(..CRASHES.len())];
            agent.crash(signal)?;
            node.heal()?;
            tally.add("crashes", 1);
            if rng.bool() {
                node.restore().with_context(|| format!("after SIG{signal}"))?;
            } else {
                node.policies("")?;
                let mut next = node.agent(&[])?;
                next.ready()?;
                until("a start to bring everything back", || Ok(node.is_as_before().is_ok().then_some(())))
                    .or_else(|_| node.is_as_before())
                    .with_context(|| format!("after SIG{signal}"))?;
                next.end_well()?;
            }
            node.is_as_before().with_context(|| format!("after SIG{signal}"))?;
            continue;
        }
        agent.is_well()?;
        // More of them come while it ends.
        let signals: Vec<&str> = (0..rng.u32(1..4)).map(|_| ENDS[rng.usize(..ENDS.len())]).collect();
        let (last, first) = signals.split_last().context("no signal")?;
        for signal in first {
            // It may have ended by the one before.
            let _ = agent.signal(signal);
        }
        let status = agent.end(last).with_context(|| format!("signals {signals:?}"))?;
        tally.add("ends", 1);
        ensure!(status.code().is_some(), "signals {signals:?} ended it by {status}, not in order");
        node.is_as_before().with_context(|| format!("after {signals:?}, {status}"))?;
    }
    Ok(tally)
}
