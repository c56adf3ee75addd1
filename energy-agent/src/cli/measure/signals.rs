//! Signals while a command runs: the command gets them, and `measure` goes on until the command ends.
//!
//! What a terminal sends (Ctrl-C) goes to its whole foreground process group, so the command has it already.

use std::fs;
use std::future::poll_fn;
use std::sync::mpsc::Sender;
use std::task::Poll;
use std::thread;

use anyhow::{Context as _, Result};
use energy_host::early_signals::EarlySignals;
use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};

use super::event::RunEvent;

const FORWARDED: [Signal; 6] = [Signal::INT, Signal::QUIT, Signal::TERM, Signal::HUP, Signal::USR1, Signal::USR2];

/// Tells of every such signal from now on, and takes note of those that come while a command is started. One that was ignored
/// when the program was started (`nohup`) stays ignored.
///
/// # Errors
/// When the kernel refuses a handler, or there is no thread to be had.
pub fn follow(events: Sender<RunEvent>) -> Result<EarlySignals> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().context("starting the runtime")?;
    let ignored = ignored();
    let followed = || FORWARDED.into_iter().filter(|number| ignored >> (number.as_raw() - 1) & 1 == 0);
    let early = EarlySignals::watch(followed().filter(|number| ends(*number))).context("waiting for signals")?;
    let mut signals = Vec::new();
    {
        let _inside = runtime.enter();
        for number in followed() {
            signals.push((number, signal(SignalKind::from_raw(number.as_raw())).context("waiting for signals")?));
        }
    }
    let wait = move || {
        runtime.block_on(async {
            loop {
                let number = poll_fn(|context| {
                    let came = signals
                        .iter_mut()
                        .find_map(|(number, signal)| signal.poll_recv(context).is_ready().then_some(*number));
                    came.map_or(Poll::Pending, Poll::Ready)
                });
                if events.send(RunEvent::Signal(number.await)).is_err() {
                    return;
                }
            }
        });
    };
    thread::Builder::new().name("signals".to_owned()).spawn(wait).context("thread for signals")?;
    Ok(early)
}

/// Whether the signal asks for an end.
pub fn ends(signal: Signal) -> bool {
    [Signal::INT, Signal::QUIT, Signal::TERM, Signal::HUP].contains(&signal)
}

/// Whether the terminal sends this signal, when it does, to the command as well.
pub fn comes_from_terminal(signal: Signal) -> bool {
    [Signal::INT, Signal::QUIT].contains(&signal) && is_in_foreground()
}

/// Whether this process is in the foreground process group of its terminal.
fn is_in_foreground() -> bool {
    // Numbers 5 and 8 are `pgrp` and `tpgid`; the second, the name, may have blanks and brackets.
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace().collect();
    matches!((fields.get(2), fields.get(5)), (Some(group), Some(foreground)) if group == foreground)
}

/// The mask of the signals that are ignored.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
