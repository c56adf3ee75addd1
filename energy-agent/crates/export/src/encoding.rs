//! Encodes one page at a time, on a thread beside the main one, for all clients that wait for the same kind of page.

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

/// Bounds the encoding of pages. A kind of page is a format in a coding.
#[derive(Debug, Default)]
pub struct Encoding {
    /// Locked while a page is encoded. Of each kind the last page, while clients wait for it.
    kinds: Arc<Mutex<[Option<TickPage>; 4]>>,
    /// How many clients wait for each kind.
    waiting: [AtomicUsize; 4],
}

#[derive(Debug)]
struct TickPage {
    /// When its tick was completed.
    completed: Instant,
    body: Bytes,
}

/// A client that waits for a page of a kind.
struct Waits<'a>(&'a AtomicUsize);

impl Encoding {
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
        // The lock moves into the encoding thread: when a client leaves, its page is still the only one that is encoded.
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
        // It takes milliseconds of CPU time on a big node; neither the tick nor probes may wait for it.
        let encode = move || {
            let body = newest.body(format, coding, &own);
            kinds[kind] = (!is_last && !is_stale).then(|| TickPage { completed: newest.completed, body: body.clone() });
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
