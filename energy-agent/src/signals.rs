//! Signals: which of them end the agent in order, and what SIGHUP means.
//!
//! Every signal whose default action would end the process ends it in order. Left to the kernel are SIGKILL and those
//! that a bug in the program raises (SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT): after such a crash the next start
//! restores. SIGPIPE stays ignored, as Rust has it.
//!
//! SIGHUP has the files read again. On a terminal it means that the terminal is gone, so an agent that was started with a
//! controlling terminal ends. One that was started with SIGHUP ignored (`nohup`) goes on ignoring it.

use std::fmt;
use std::fs;
use std::future::poll_fn;
use std::sync::mpsc;
use std::task::Poll;
use std::thread;

use anyhow::{Context as _, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals that end the agent in order, beside the real-time signals.
const ENDS: [(libc::c_int, &str); 15] = [
    (libc::SIGTERM, "SIGTERM"),
    (libc::SIGINT, "SIGINT"),
    (libc::SIGQUIT, "SIGQUIT"),
    (libc::SIGUSR1, "SIGUSR1"),
    (libc::SIGUSR2, "SIGUSR2"),
    (libc::SIGALRM, "SIGALRM"),
    (libc::SIGVTALRM, "SIGVTALRM"),
    (libc::SIGPROF, "SIGPROF"),
    (libc::SIGIO, "SIGIO"),
    (libc::SIGPWR, "SIGPWR"),
    (libc::SIGXCPU, "SIGXCPU"),
    (libc::SIGXFSZ, "SIGXFSZ"),
    (libc::SIGSTKFLT, "SIGSTKFLT"),
    (libc::SIGTRAP, "SIGTRAP"),
    (libc::SIGSYS, "SIGSYS"),
];

const HANGUP: (libc::c_int, &str) = (libc::SIGHUP, "SIGHUP");
/// What a shell adds to the number of a signal.
const BY_SIGNAL: libc::c_int = 128;

/// A signal that ends the program. As text it is its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndSignal {
    name: String,
    number: libc::c_int,
}

impl EndSignal {
    pub fn of(number: libc::c_int) -> Self {
        let known = ENDS.iter().chain(&[HANGUP]).find(|(known, _)| *known == number);
        let name = known.map_or_else(|| format!("signal {number}"), |(_, name)| (*name).to_owned());
        Self { name, number }
    }

    /// The exit code of a program that ends with it, as a shell has it.
    pub fn exit_code(&self) -> u8 {
        u8::try_from(BY_SIGNAL + self.number).unwrap_or(u8::MAX)
    }
}

impl fmt::Display for EndSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl std::error::Error for EndSignal {}

/// What a signal asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// The agent ends.
    End(EndSignal),
    /// Files are read again.
    Reload,
}

/// The signals of this process, from the moment on at which this is made.
pub struct Signals {
    ends: Vec<(EndSignal, Signal)>,
    /// `None`: SIGHUP ends the agent, or is ignored.
    reload: Option<Signal>,
}

impl Signals {
    /// Needs a runtime.
    ///
    /// # Errors
    /// When the kernel refuses a handler.
    pub fn listen() -> Result<Self> {
        let on =
            |number, name: &str| signal(SignalKind::from_raw(number)).with_context(|| format!("waiting for {name}"));
        let mut ends = Vec::new();
        for (number, name) in ENDS {
            ends.push((EndSignal { name: name.to_owned(), number }, on(number, name)?));
        }
        for number in libc::SIGRTMIN()..=libc::SIGRTMAX() {
            let name = format!("SIGRTMIN+{}", number - libc::SIGRTMIN());
            let signal = on(number, &name)?;
            ends.push((EndSignal { name, number }, signal));
        }
        let mut reload = None;
        if !is_hangup_ignored() {
            let (number, name) = HANGUP;
            let hangup = on(number, name)?;
            if has_terminal() {
                ends.push((EndSignal { name: name.to_owned(), number }, hangup));
            } else {
                reload = Some(hangup);
            }
        }
        Ok(Self { ends, reload })
    }

    /// The next signal that means something.
    pub async fn next(&mut self) -> Meaning {
        poll_fn(|context| {
            for (end, signal) in &mut self.ends {
                if signal.poll_recv(context).is_ready() {
                    return Poll::Ready(Meaning::End(end.clone()));
                }
            }
            let reload = self.reload.as_mut().is_some_and(|signal| signal.poll_recv(context).is_ready());
            if reload { Poll::Ready(Meaning::Reload) } else { Poll::Pending }
        })
        .await
    }
}

/// The first signal that ends the program, SIGHUP too, for a program without a runtime.
///
/// # Errors
/// When the kernel refuses a handler, or no thread can be started.
pub fn end() -> Result<mpsc::Receiver<EndSignal>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().context("starting the runtime")?;
    let mut signals = {
        let _inside = runtime.enter();
        Signals::listen()?
    };
    let (send, ended) = mpsc::channel();
    let wait = move || {
        let first = runtime.block_on(async {
            loop {
                if let Meaning::End(signal) = signals.next().await {
                    return signal;
                }
            }
        });
        // It may have ended otherwise.
        let _ = send.send(first);
    };
    thread::Builder::new().name("signals".to_owned()).spawn(wait).context("thread for signals")?;
    Ok(ended)
}

/// # Errors
/// When such a signal has come.
pub fn none_yet(ended: &mpsc::Receiver<EndSignal>) -> Result<(), EndSignal> {
    ended.try_recv().map_or(Ok(()), Err)
}

/// Whether SIGHUP was ignored when the program was started, as `nohup` has it.
fn is_hangup_ignored() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).is_ok_and(|mask| mask & 1 == 1))
}

/// Whether the process has a controlling terminal, whose end the kernel says by SIGHUP.
fn has_terminal() -> bool {
    // Number 7 is `tty_nr`; the second, the name, may have blanks and brackets.
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    fields.split_whitespace().nth(4).is_some_and(|terminal| terminal != "0")
}
