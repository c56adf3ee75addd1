//! How many files the process may have open: each connection is one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// No more are asked for.
const WANTED: u64 = 16_384;

/// Raises the limit where that is allowed, and returns it.
pub fn open_files() -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = WANTED.min(maximum.unwrap_or(WANTED));
    let mut limit = current.unwrap_or(WANTED);
    if limit < wanted && setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }).is_ok() {
        limit = wanted;
    }
    usize::try_from(limit).unwrap_or(usize::MAX)
}
