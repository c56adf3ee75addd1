//! CPU time that the calls took, so that a benchmark can tell it from its caller's: added up in the folder's `spent_ns`, eight
//! bytes of the machine's order, if that file is there when the first call is made.

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::folder::Folder;

/// In the folder.
pub const FILE: &str = "spent_ns";

/// Makes a call, and counts its time if somebody wants to know.
pub fn during<T>(call: impl FnOnce() -> T) -> T {
    static COUNTER: OnceLock<Option<&'static AtomicU64>> = OnceLock::new();
    let Some(counter) = COUNTER.get_or_init(counter) else { return call() };
    let began_ns = thread_ns();
    let answer = call();
    counter.fetch_add(thread_ns().saturating_sub(began_ns), Ordering::Relaxed);
    answer
}

fn counter() -> Option<&'static AtomicU64> {
    let path = Folder::of_this_library().path().join(FILE);
    let file = OpenOptions::new().read(true).write(true).open(path).ok()?;
    if file.metadata().ok()?.len() < 8 {
        return None;
    }
    // SAFETY: the file is open and as long as what is mapped; nobody unmaps it; a page is aligned for an integer.
    unsafe {
        let (rights, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let address = libc::mmap(ptr::null_mut(), 8, rights, shared, file.as_raw_fd(), 0);
        if address == libc::MAP_FAILED { None } else { address.cast::<AtomicU64>().as_ref() }
    }
}

/// CPU time of this thread, nanoseconds.
fn thread_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writing.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}
