//! Bounds what the allocator keeps for itself, so that a page of a big node is not remembered as resident memory for ever.

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
