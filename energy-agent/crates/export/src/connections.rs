//! Who is connected, and who has to go: connections and the answers that they read, bounded in number, time and bytes.
//! A new connection is always accepted; where there are too many, the one that has been idle longest is closed for it.

mod files;
mod pages;
mod place;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::task::AbortHandle;
use tracing::{info, warn};

pub use self::files::open_files;
use self::pages::SharedPages;
use self::place::ClientProgress;
use crate::self_metrics::{CloseReason, SelfMetrics};

/// Most connections at a time. One that has sent nothing yet costs about a kilobyte.
const MOST: usize = 4096;
/// Most of them that have sent something: each of these has buffers, and the state of TLS.
const MOST_TALKING: usize = 1024;
/// A client has this long to make its first request, a TLS handshake included.
const FIRST_REQUEST: Duration = Duration::from_secs(10);
/// An answer of which nothing was read for this time is given up. Prometheus waits for 10 s.
const UNREAD: Duration = Duration::from_secs(15);
/// An answer that takes longer is given up, however steadily it is read.
const LONGEST_ANSWER: Duration = Duration::from_secs(60);
/// Bytes of pages that are kept for readers. Above, the readers of the oldest page are cut.
const MOST_BYTES: usize = 32 << 20;
/// Without a connection closed for this time, the log says that it is over.
const CALM: Duration = Duration::from_secs(60);

/// What a connection has shown of its client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientStanding {
    #[default]
    New,
    /// Its last request was let pass.
    Passed,
    /// Its last password was wrong.
    Failed,
}

/// All connections.
#[derive(Debug)]
pub struct Connections {
    table: Mutex<ConnectionTable>,
    most: usize,
    own: Arc<SelfMetrics>,
}

#[derive(Debug, Default)]
struct ConnectionTable {
    /// Name of the next connection.
    next: u64,
    open: BTreeMap<u64, OpenConnection>,
    pages: SharedPages,
    /// When the last one was closed, and how many since the log said so.
    closed: Option<(Instant, u64)>,
}

#[derive(Debug)]
struct OpenConnection {
    place: ClientProgress,
    standing: ClientStanding,
    task: Option<AbortHandle>,
}

/// One of them; no longer counted when this is dropped.
#[derive(Debug)]
pub struct Connection {
    name: u64,
    all: Arc<Connections>,
}

impl Connections {
    /// `files`: how many files the process may have open; half of them are left to the meters.
    #[must_use]
    pub fn new(files: usize, own: Arc<SelfMetrics>) -> Arc<Self> {
        Arc::new(Self { table: Mutex::default(), most: MOST.min(files / 2), own })
    }

    /// A new one; closes another where there are too many.
    pub fn open(self: &Arc<Self>) -> Connection {
        let now = Instant::now();
        let mut table = self.table();
        if table.open.len() >= self.most {
            self.close_first(&mut table, now, |_| true);
        }
        let name = table.next;
        table.next += 1;
        let place = ClientProgress::silent(now);
        table.open.insert(name, OpenConnection { place, standing: ClientStanding::default(), task: None });
        Connection { name, all: Arc::clone(self) }
    }

    /// The task that serves it; ending that closes the connection.
    pub(crate) fn served_by(&self, name: u64, task: AbortHandle) {
        if let Some(entry) = self.table().open.get_mut(&name) {
            entry.task = Some(task);
        }
    }

    /// Closes the connection that can best be spared, whatever their number; whether there was one.
    pub(crate) fn make_room(&self) -> bool {
        let mut table = self.table();
        self.close_first(&mut table, Instant::now(), |_| true)
    }

    /// Closes those whose time is over. To be called about every second.
    pub(crate) fn close_late(&self, now: Instant) {
        let mut table = self.table();
        let late = |entry: &OpenConnection| entry.place.is_late(now, FIRST_REQUEST, UNREAD, LONGEST_ANSWER);
        let late: Vec<_> =
            table.open.iter().filter_map(|(name, entry)| late(entry).map(|reason| (*name, reason))).collect();
        for (name, reason) in late {
            self.close(&mut table, name, reason, now);
        }
        if let Some((last, count)) = table.closed
            && now.saturating_duration_since(last) > CALM
        {
            info!(closed = count, "no connection had to be closed for a minute");
            table.closed = None;
        }
    }

    fn close_first(&self, table: &mut ConnectionTable, now: Instant, among: impl Fn(&ClientProgress) -> bool) -> bool {
        let candidates = table.open.iter().filter(|(_, entry)| among(&entry.place) && entry.task.is_some());
        let first = candidates.min_by_key(|(_, entry)| entry.place.rank(entry.standing, now));
        let Some((name, reason)) = first.map(|(name, entry)| (*name, entry.place.reason())) else { return false };
        self.close(table, name, reason, now);
        true
    }

    fn close(&self, table: &mut ConnectionTable, name: u64, reason: CloseReason, now: Instant) {
        let Some(entry) = table.open.remove(&name) else { return };
        if let Some(task) = entry.task {
            task.abort();
        }
        table.pages.left(name);
        self.own.connection_closed(reason);
        let count = table.closed.map_or(0, |(_, count)| count);
        if count == 0 {
            let open = table.open.len();
            warn!(
                reason = reason.name(),
                open, "connections are closed early; energy_agent_web_connections_closed_total counts them"
            );
        }
        table.closed = Some((now, count + 1));
    }

    fn table(&self) -> MutexGuard<'_, ConnectionTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection {
    #[must_use]
    pub const fn name(&self) -> u64 {
        self.name
    }

    /// Its first byte is there.
    pub(crate) fn talks(&self) {
        let now = Instant::now();
        let mut table = self.all.table();
        if table.open.values().filter(|entry| !entry.place.is_silent()).count() >= MOST_TALKING {
            self.all.close_first(&mut table, now, |place| !place.is_silent());
        }
        set(&mut table, self.name, ClientProgress::opening(now));
    }

    /// A request is there.
    pub fn asks(&self) {
        set(&mut self.all.table(), self.name, ClientProgress::asking(Instant::now()));
    }

    /// Its password was wrong, and the answer that says so waits.
    pub(crate) fn is_held_back(&self) {
        set(&mut self.all.table(), self.name, ClientProgress::held_back(Instant::now()));
    }

    /// Whether it may be answered with a page.
    pub fn stands(&self, standing: ClientStanding) {
        if let Some(entry) = self.all.table().open.get_mut(&self.name) {
            entry.standing = standing;
        }
    }

    #[must_use]
    pub fn standing(&self) -> ClientStanding {
        self.all.table().open.get(&self.name).map_or_else(ClientStanding::default, |entry| entry.standing)
    }

    /// It begins to read `page`; readers of other pages are cut where all are too many bytes.
    pub fn reads(&self, page: &Bytes) {
        let now = Instant::now();
        let mut table = self.all.table();
        set(&mut table, self.name, ClientProgress::reading(now));
        for name in table.pages.read(self.name, page, MOST_BYTES) {
            self.all.close(&mut table, name, CloseReason::Slow, now);
        }
    }

    /// It has read some of its answer.
    pub(crate) fn reads_on(&self) {
        if let Some(entry) = self.all.table().open.get_mut(&self.name) {
            entry.place.goes_on(Instant::now());
        }
    }

    /// Its answer is sent.
    pub(crate) fn has_read(&self) {
        let mut table = self.all.table();
        table.pages.left(self.name);
        set(&mut table, self.name, ClientProgress::idle(Instant::now()));
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut table = self.all.table();
        table.pages.left(self.name);
        table.open.remove(&self.name);
    }
}

fn set(table: &mut ConnectionTable, name: u64, place: ClientProgress) {
    if let Some(entry) = table.open.get_mut(&name) {
        entry.place = place;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_one_idle_longest_gives_way_and_its_task_ends() {
        let own = Arc::new(SelfMetrics::new());
        let all = Connections::new(6, Arc::clone(&own));
        let open = || {
            let connection = Arc::new(all.open());
            let task = tokio::spawn(std::future::pending::<()>());
            all.served_by(connection.name(), task.abort_handle());
            (connection, task)
        };
        let (first, second, third) = (open(), open(), open());
        first.0.talks();
        first.0.asks();
        let fourth = open();
        // The first is answered just now, the second has said nothing for longer than the third.
        assert!(second.1.await.unwrap_err().is_cancelled());
        assert_eq!(all.table().open.len(), 3);
        drop((first.0, second.0, third.0, fourth.0));
        assert_eq!(all.table().open.len(), 0);
    }
}
