//! aya's loader, kept from reading what the object has no use for: the kernel's types, which are 18 MB for a moment.

use std::{io, thread};

use aya::EbpfLoader;
use tracing::debug;

/// `BPF_LD | BPF_W | BPF_ABS`.
const LOAD_WORD: u16 = 0x20;
/// `BPF_JMP | BPF_JEQ | BPF_K`.
const SKIP_UNLESS_EQUAL: u16 = 0x15;
/// `BPF_RET | BPF_K`.
const RETURN: u16 = 0x06;
/// `ENOENT`.
const NOT_FOUND: u32 = 2;

/// A loader that relocates nothing by the kernel's types; Rust programs have no such relocations.
///
/// `EbpfLoader::new` reads and parses the types in any case, and [`EbpfLoader::btf`] then drops them. Where they cannot be
/// opened it goes on without, so it is called on a thread that can open no file.
pub fn loader() -> EbpfLoader<'static> {
    let make = || {
        if let Err(error) = open_no_file() {
            debug!(%error, "the kernel's types are parsed for nothing");
        }
        EbpfLoader::new()
    };
    let made = thread::Builder::new().name("loader".to_owned()).spawn(make);
    let mut loader = made.ok().and_then(|thread| thread.join().ok()).unwrap_or_default();
    loader.btf(None);
    loader
}

/// From now on the calling thread, and no other, can open no file: `openat` gives `ENOENT`.
fn open_no_file() -> io::Result<()> {
    let openat = u32::try_from(libc::SYS_openat).map_err(io::Error::other)?;
    let statement = |code, k| libc::sock_filter { code, jt: 0, jf: 0, k };
    let filter = [
        // The number of the system call is the first word of what a filter sees.
        statement(LOAD_WORD, 0),
        libc::sock_filter { jf: 1, ..statement(SKIP_UNLESS_EQUAL, openat) },
        statement(RETURN, libc::SECCOMP_RET_ERRNO | NOT_FOUND),
        statement(RETURN, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 4, filter: filter.as_ptr().cast_mut() };
    // SAFETY: the first call takes numbers only; the second reads the four instructions, which live until it returns.
    // Neither concerns another thread.
    let refused = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program, 0, 0) != 0
    };
    if refused { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn only_the_calling_thread_can_open_no_file() {
        let opened = thread::spawn(|| open_no_file().map(|()| File::open("/proc/self/status").map(drop)));
        let refused = opened.join().unwrap().unwrap().unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::NotFound);
        File::open("/proc/self/status").unwrap();
    }
}
