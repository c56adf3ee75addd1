//! What a panic means: the agent ends in order, with everything restored, whatever thread it was in. It can be started
//! again; a part that is gone while the rest goes on cannot be seen from outside.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tokio::sync::Notify;
use tracing::error;

static HAPPENED: AtomicBool = AtomicBool::new(false);
static NEWS: Notify = Notify::const_new();

thread_local! {
    /// A panic of this thread is one caller's answer, and stops nothing else.
    static IS_CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// From now on panics are logged, as any other line is, and noticed by [`news`].
pub fn watch() {
    panic::set_hook(Box::new(|info| {
        let why = info.payload_as_str().unwrap_or("no message");
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        let thread = thread::current();
        error!(thread = thread.name().unwrap_or(""), place, why, "panicked; this is a bug, please report it");
        if !IS_CAUGHT.get() {
            HAPPENED.store(true, Ordering::SeqCst);
            NEWS.notify_one();
        }
    }));
}

/// Comes back once a thread has panicked.
pub async fn news() {
    while !has_happened() {
        NEWS.notified().await;
    }
}

#[must_use]
pub fn has_happened() -> bool {
    HAPPENED.load(Ordering::SeqCst)
}

/// Calls `work`, whose panic is its answer: for the reader of a document, which must not stop the others.
///
/// # Errors
/// When it panicked.
pub fn caught<T>(work: impl FnOnce() -> T) -> thread::Result<T> {
    let before = IS_CAUGHT.replace(true);
    let outcome = panic::catch_unwind(AssertUnwindSafe(work));
    IS_CAUGHT.set(before);
    outcome
}
