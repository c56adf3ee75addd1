//! Being on a CPU for a moment makes it switch, which shows the kernel side who was running there.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, TryRecvError};
use std::thread;
use std::time::Duration;

use tracing::info;

/// How long to wait for the visits. A CPU that a real-time task never leaves may not let anybody in.
const VISIT_WAIT: Duration = Duration::from_millis(200);

/// Visits to CPUs, one round at a time: a CPU that lets nobody in must not collect waiting threads.
#[derive(Debug, Default)]
pub struct Visits {
    /// Disconnected when the last round is over.
    under_way: Option<Receiver<()>>,
}

impl Visits {
    /// Runs for a moment on each CPU, so that a task which was there before the programs and never switches gets its slot
    /// opened; waits for that. CPUs that this process may not use are left out.
    pub fn make(&mut self, cpus: Vec<u32>) {
        let begun = self.begin(cpus);
        let waited = self.under_way.as_ref().map(|round| round.recv_timeout(VISIT_WAIT));
        if !begun || waited == Some(Err(RecvTimeoutError::Timeout)) {
            info!("a CPU cannot be visited; a task that never leaves it may be counted late");
        }
    }

    /// The same without waiting; `false` when the last round is not over yet.
    pub fn begin(&mut self, cpus: Vec<u32>) -> bool {
        if self.under_way.as_ref().is_some_and(|round| round.try_recv() == Err(TryRecvError::Empty)) {
            return false;
        }
        let (visiting, round) = mpsc::channel();
        // Without a thread to spare nobody is visited, and the round is over.
        let _ = thread::Builder::new().name("visit".to_owned()).spawn(move || {
            cpus.into_iter().for_each(visit);
            drop(visiting);
        });
        self.under_way = Some(round);
        true
    }
}

fn visit(cpu: u32) {
    let Some(cpu) = usize::try_from(cpu).ok().filter(|cpu| *cpu < 8 * size_of::<libc::cpu_set_t>()) else { return };
    // SAFETY: a plain bit set on the stack that holds the bit.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
    thread::yield_now();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_that_lets_nobody_in_keeps_one_thread_waiting_and_no_more() {
        let (waiting, round) = mpsc::channel();
        let mut visits = Visits { under_way: Some(round) };
        assert!(!visits.begin(vec![0]) && !visits.begin(vec![0]));
        // Given up after a moment.
        visits.make(vec![0]);
        assert!(!visits.begin(vec![0]));
        drop(waiting);
        assert!(visits.begin(vec![0]));
    }
}
