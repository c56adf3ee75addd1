//! Encodes one page at a time, however many clients ask at once, and for all of them who wait for the same kind of page.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{Mutex, watch};
use tokio::task::JoinError;

use crate::negotiate::Coding;
use crate::page::Published;
use crate::self_metrics::SelfMetrics;
use crate::text::Format;

/// Whose turn it is to encode, and the last pages for those who wait.
#[derive(Debug, Default)]
pub struct Encoding {
    kinds: Arc<Mutex<[Option<Page>; 4]>>,
    waiting: [AtomicUsize; 4],
}

#[derive(Debug)]
struct Page {
    /// When its tick was completed.
    completed: Instant,
    body: Bytes,
}

/// One who waits for a page of a kind.
struct Waits<'a>(&'a AtomicUsize);

impl Encoding {
    /// Held while a page is encoded ahead and shown: one of an older tick that was encoded meanwhile would have later values of
    /// the agent's own counters than the page that comes after it.
    pub async fn turn(&self) -> impl Sized + use<> {
        Arc::clone(&self.kinds).lock_owned().await
    }

    /// The page of the newest tick, or of any that was not older when this was called.
    ///
    /// # Errors
    /// When encoding panicked.
    pub async fn page(
        &self,
        format: Format,
        coding: Coding,
        snapshots: &watch::Receiver<Arc<Published>>,
        interval: Duration,
        own: &Arc<SelfMetrics>,
    ) -> Result<Bytes, JoinError> {
        let came = {
            let newest = snapshots.borrow();
            if !newest.is_stale(interval)
                && let Some(body) = newest.ready_body(format, coding)
            {
                return Ok(body);
            }
            newest.completed
        };
        let kind = usize::from(format == Format::OpenMetrics) * 2 + usize::from(coding == Coding::Gzip);
        let waits = Waits::new(&self.waiting[kind]);
        // Goes along with the work: a client that leaves does not make room for a second one.
        let mut kinds = Arc::clone(&self.kinds).lock_owned().await;
        let is_last = waits.0.load(Ordering::Relaxed) == 1;
        let mut newest = Arc::clone(&snapshots.borrow());
        let is_stale = newest.is_stale(interval);
        if let Some(page) = &kinds[kind]
            && page.completed >= came
            && !is_stale
        {
            let body = page.body.clone();
            if is_last {
                kinds[kind] = None;
            }
            return Ok(body);
        }
        if is_stale {
            newest = Arc::new(newest.without_measurements());
        }
        let own = Arc::clone(own);
        // Milliseconds of CPU on a big node; neither tick nor probes must wait for them.
        let encode = move || {
            let body = newest.body(format, coding, &own);
            kinds[kind] = (!is_last && !is_stale).then(|| Page { completed: newest.completed, body: body.clone() });
            body
        };
        tokio::task::spawn_blocking(encode).await
    }
}

impl<'a> Waits<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
