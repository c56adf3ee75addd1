//! kill -9 at any moment, in the middle of starting, capping or restoring: the next start or `energy-agent restore` brings
//! every original back.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;

use super::Place;
use super::node::{Node, policies};
use super::patience::until;
use super::tally::Tally;

const KILLS: u32 = 5;

/// # Errors
/// When something is not as it was before.
pub fn round(place: &Place, rng: &mut Rng) -> Result<Tally> {
    let node = Node::new(place, rng)?;
    let mut tally = Tally::default();
    for kill in 1..=KILLS {
        node.policies(&policies(rng))?;
        let mut agent = node.agent(&[])?;
        let wait = Duration::from_millis(rng.u64(..300));
        if rng.u32(..4) > 0 {
            node.wait_until_lowered(&mut agent).with_context(|| format!("kill {kill}"))?;
            thread::sleep(wait);
        } else {
            thread::sleep(wait * 5);
        }
        agent.end("KILL")?;
        node.heal()?;
        tally.add("kills", 1);
        tally.add("with something lowered", u64::from(node.knobs()? != node.before));
        match if kill == KILLS { rng.u32(..3) } else { rng.u32(..5) } {
            0 => {
                node.restore()?;
                tally.add("restores", 1);
            }
            1 => {
                // What a start without these policies lets go before its first tick.
                node.policies("")?;
                let mut agent = node.agent(&[])?;
                agent.ready()?;
                until("a start to bring everything back", || Ok(node.is_as_before().is_ok().then_some(())))
                    .or_else(|_| node.is_as_before())?;
                agent.end("KILL")?;
                tally.add("starts that gave back", 1);
            }
            2 => {
                let mut agent = node.agent(&[])?;
                agent.ready()?;
                agent.end_well()?;
                tally.add("orderly ends", 1);
            }
            // The next one takes over.
            _ => continue,
        }
        node.is_as_before().with_context(|| format!("after kill {kill}"))?;
    }
    ensure!(tally.of("with something lowered") > 0, "nothing was ever lowered: nothing was shown");
    Ok(tally)
}
