//! Bounds what the allocator keeps for itself, so that a page of a big node is not remembered as resident memory for ever.

use std::time::Duration;

/// The tick loop calls [`give_back`] so often: beside a thousand pods under churn it costs some milliseconds.
pub const GIVE_BACK_EVERY: Duration = Duration::from_secs(30);

/// Larger blocks are mapped one by one and go back when they are freed: a page's text, a long table.
#[cfg(target_env = "gnu")]
const MAP_FROM_BYTES: libc::c_int = 1 << 20;
/// Free memory at the end of the heap that is kept: about what a tick takes and gives back, so that it need not ask the
/// kernel each time.
#[cfg(target_env = "gnu")]
const KEEP_BYTES: libc::c_int = 4 << 20;

/// Sets the allocator up; to be called before any thread is started.
///
/// Left alone, glibc learns from the first page of 12 MB that such blocks are to be cut from the heap, which then keeps
/// up to twice as much, and gives each thread a heap of its own (`mallopt(3)`, dynamic threshold): 44 to 53 MiB resident
/// in place of 30 to 41 MiB for a thousand pods under churn. Other C libraries do not.
pub fn bound_what_is_kept() {
    #[cfg(target_env = "gnu")]
    for (option, value) in
        [(libc::M_MMAP_THRESHOLD, MAP_FROM_BYTES), (libc::M_TRIM_THRESHOLD, KEEP_BYTES), (libc::M_ARENA_MAX, 1)]
    {
        // SAFETY: mallopt only sets a number of the allocator, under its own lock; no pointer is passed. A value that it
        // does not take changes nothing.
        unsafe { libc::mallopt(option, value) };
    }
}

/// Gives free pages anywhere in the heap back to the kernel (`malloc_trim(3)`). By itself the allocator does so at the heap's
/// end only, and rows and names of pods that come and go leave holes below it: 50 to 52 MiB resident in place of 42 for a
/// thousand pods under churn.
pub fn give_back() {
    // SAFETY: malloc_trim takes the allocator's own lock and touches free memory only.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(target_env = "gnu")]
#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn resident_kib() -> u64 {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    #[test]
    fn holes_in_the_heap_are_given_back() {
        const BLOCK: usize = 64 << 10;
        let mut blocks: Vec<Vec<u8>> = (0..2000).map(|_| vec![1; BLOCK]).collect();
        // Every second block, and the last of all stays: nothing is free at the heap's end.
        let mut stays = false;
        blocks.retain(|_| {
            stays = !stays;
            stays
        });
        let with_holes = resident_kib();
        give_back();
        let without = resident_kib();
        // 62 MiB of holes, beside what other tests do meanwhile.
        assert!(with_holes > without + 40_000, "{with_holes} KiB resident with holes, {without} without");
        assert_eq!(blocks.len(), 1000);
    }
}
