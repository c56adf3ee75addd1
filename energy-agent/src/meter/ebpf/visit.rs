//! Being on a CPU for a moment makes it switch, which shows the kernel side who was running there.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use tracing::info;

/// How long to wait for the visits. A CPU that a real-time task never leaves may not let anybody in.
const VISIT_WAIT: Duration = Duration::from_millis(200);

/// Runs for a moment on each CPU, so that a task which was there before the programs and never switches gets its slot
/// opened; waits for that. CPUs that this process may not use are left out.
pub fn all(cpus: Vec<u32>) {
    if begin(cpus).recv_timeout(VISIT_WAIT) == Err(RecvTimeoutError::Timeout) {
        info!("some CPU lets nobody in; a task that never leaves it may be counted late");
    }
}

/// The same without waiting; the receiver is disconnected when all were visited.
pub fn begin(cpus: Vec<u32>) -> Receiver<()> {
    let (visiting, visited) = mpsc::channel();
    thread::spawn(move || {
        for cpu in cpus {
            visit(cpu);
        }
        drop(visiting);
    });
    visited
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
