//! What the agent reports to the service manager (`sd_notify(3)`): ready, reloading, stopping, and that the agent is alive.
//!
//! A message is one datagram of text. The crate `sd-notify` would save the forty lines below and not the watchdog's rule.

use std::env;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process;
use std::time::Duration;

use energy_host::clock::monotonic_ns;
use tracing::warn;

/// The service manager, if there is one that wants reports.
#[derive(Debug, Default)]
pub struct Manager {
    to: Option<(UnixDatagram, SocketAddr)>,
    /// It ends an agent that is silent for this long.
    watchdog: Option<Duration>,
}

impl Manager {
    /// As `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID` have it; each may be missing.
    #[must_use]
    pub fn of_environment() -> Self {
        let Some(name) = env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else { return Self::default() };
        let address = match name.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name),
            None => SocketAddr::from_pathname(&name),
        };
        let socket = UnixDatagram::unbound().and_then(|socket| {
            // A manager that hangs stops nothing here.
            socket.set_nonblocking(true)?;
            Ok((socket, address?))
        });
        match socket {
            Ok(to) => Self { to: Some(to), watchdog: watchdog() },
            Err(error) => {
                warn!(%error, "the service manager at NOTIFY_SOCKET cannot be notified");
                Self::default()
            }
        }
    }

    /// Everything works, or works again.
    pub fn ready(&self) {
        self.tell("READY=1");
    }

    /// Files are read again; [`Self::ready`] follows.
    pub fn reloading(&self) {
        self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={}", monotonic_ns() / 1000));
    }

    pub fn stopping(&self) {
        self.tell("STOPPING=1");
    }

    pub fn alive(&self) {
        self.tell("WATCHDOG=1");
    }

    /// Time between two [`Self::alive`]: a third of what the manager waits. `None`: it does not wait for any.
    #[must_use]
    pub fn alive_every(&self) -> Option<Duration> {
        self.watchdog.map(|watchdog| watchdog / 3)
    }

    fn tell(&self, state: &str) {
        let Some((socket, address)) = &self.to else { return };
        match socket.send_to_addr(state.as_bytes(), address) {
            Ok(_) => {}
            // It has more to read than it can; the next one counts.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => warn!(%error, state, "the service manager cannot be notified"),
        }
    }
}

fn watchdog() -> Option<Duration> {
    let number = |name: &str| env::var(name).ok()?.parse::<u64>().ok();
    let is_for_us = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(process::id()));
    number("WATCHDOG_USEC").filter(|&usec| usec > 0 && is_for_us).map(Duration::from_micros)
}
