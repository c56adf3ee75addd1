//! The tick thread: at a fixed rate it measures, decides and publishes, whatever the scrapes do; at its end it restores
//! what is capped.

use std::collections::BTreeSet;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use energy_cluster::pods::{self, KnownPods, PodSource};
use energy_export::level::Level;
use energy_export::page::Published;
use energy_export::selection::ActiveSelection;
use energy_export::self_metrics::SelfMetrics;
use energy_host::memory;
use energy_model::attribution::method::IdlePolicy;
use tokio::sync::{Notify, oneshot, watch};
use tracing::warn;

use crate::config::Config;
use crate::node::{Node, node_name};

/// The end of the tick thread is waited for no longer than this: restoring takes three seconds at most, the tick under
/// way and the end of the eBPF programs the rest.
const END: Duration = Duration::from_secs(5);
const END_STEP: Duration = Duration::from_millis(10);

/// From the first readings to the first tick, which shows what was used since, however long the interval is. Counters of the
/// hardware move every millisecond, those of the kernel every ten.
const FIRST_TICK: Duration = Duration::from_millis(300);

/// How the tick thread ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// Everything is as it was before the first write.
    Restored,
    /// The log has what could not be restored; it is in the journal.
    Left,
    Panicked,
    /// It has not ended.
    Hangs,
}

/// The running tick thread. Dropped, it is ended as by [`Self::end`].
#[derive(Debug)]
pub struct TickThread {
    /// Dropped to end it.
    end: Option<mpsc::Sender<()>>,
    stopped: oneshot::Receiver<()>,
    thread: Option<JoinHandle<bool>>,
}

impl TickThread {
    /// # Errors
    /// When no thread can be started.
    pub fn start(ticker: Ticker) -> Result<Self> {
        let (end, ended) = mpsc::channel::<()>();
        let (ticking, stopped) = oneshot::channel::<()>();
        let run = move || {
            // Dropped with the thread, however that ends.
            let _ticking = ticking;
            ticker.run(&ended)
        };
        let thread = thread::Builder::new().name("tick".to_owned()).spawn(run).context("tick thread")?;
        Ok(Self { end: Some(end), stopped, thread: Some(thread) })
    }

    /// Comes back when the thread has ended by itself, which it never should.
    pub async fn stopped(&mut self) {
        let _ = (&mut self.stopped).await;
    }

    /// Has it restore everything and end, and waits for that for a stated time.
    pub fn end(mut self) -> Closed {
        self.close()
    }

    fn close(&mut self) -> Closed {
        drop(self.end.take());
        let Some(thread) = self.thread.take() else { return Closed::Hangs };
        let until = Instant::now() + END;
        while !thread.is_finished() {
            if Instant::now() >= until {
                return Closed::Hangs;
            }
            thread::sleep(END_STEP);
        }
        match thread.join() {
            Ok(true) => Closed::Restored,
            Ok(false) => Closed::Left,
            Err(_) => Closed::Panicked,
        }
    }
}

impl Drop for TickThread {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.close();
        }
    }
}

/// The tick thread's end of what is known of the pods.
pub struct PodsEnd {
    told: watch::Receiver<KnownPods>,
    /// Asks a kubelet before its time.
    unknown: Option<Arc<Notify>>,
    /// Pods without a name at the last tick; each brings forward one question at most.
    unnamed: BTreeSet<Arc<str>>,
}

impl PodsEnd {
    #[must_use]
    pub fn start(config: &Config) -> Self {
        let source = PodSource::choose(&config.cluster);
        if config.idle_policy == IdlePolicy::Requests && matches!(source, PodSource::None { .. }) {
            warn!(
                "no CPU request of a pod is known, so all idle energy stays unassigned: --attribution.idle-policy=requests \
                 needs a --pods.source other than none that answers"
            );
        }
        let (told, unknown) = pods::start(source, &node_name(config));
        Self { told, unknown, unnamed: BTreeSet::new() }
    }

    fn told(&self) -> KnownPods {
        self.told.borrow().clone()
    }

    fn ask_for_unnamed(&mut self, node: &Node) {
        let Some(unknown) = &self.unknown else { return };
        let unnamed: BTreeSet<_> = node.unnamed_pods().cloned().collect();
        if !unnamed.is_subset(&self.unnamed) {
            unknown.notify_one();
        }
        self.unnamed = unnamed;
    }
}

/// The tick loop: at a fixed rate, whatever the scrapes do.
pub struct Ticker {
    pub node: Node,
    pub pods: PodsEnd,
    pub interval: Duration,
    pub export: watch::Receiver<Arc<ActiveSelection>>,
    pub publish: watch::Sender<Arc<Published>>,
    pub own: Arc<SelfMetrics>,
}

impl Ticker {
    /// Ticks until `ended` says so or its sender is gone. Returns whether everything was restored.
    fn run(mut self, ended: &mpsc::Receiver<()>) -> bool {
        self.node.begin();
        let goes_on = |until: Instant| {
            let ended = ended.recv_timeout(until.saturating_duration_since(Instant::now()));
            matches!(ended, Err(mpsc::RecvTimeoutError::Timeout))
        };
        let mut due = Instant::now() + first_pause(self.interval);
        let mut given_back = Instant::now();
        while goes_on(due) {
            let began = Instant::now();
            let late = began.saturating_duration_since(due) > self.interval / 2;
            {
                let wanted = &self.export.borrow().selection;
                self.node.account_processes(wanted.levels().contains(&Level::Process));
                self.node.choose_units(wanted.units());
            }
            let snapshot = self.node.tick(late, &self.pods.told());
            self.pods.ask_for_unnamed(&self.node);
            let export = Arc::clone(&self.export.borrow());
            let published = Arc::new(Published::new(snapshot, export));
            // Before the page of this tick may be encoded.
            self.own.tick_took(began.elapsed());
            self.publish.send_replace(published);
            due = next_due(due, self.interval, Instant::now());
            if given_back.elapsed() >= memory::GIVE_BACK_EVERY {
                // Between two ticks, when nobody waits for the heap.
                if !goes_on(due - self.interval / 2) {
                    break;
                }
                memory::give_back();
                given_back = Instant::now();
            }
        }
        self.node.close(&self.pods.told())
    }
}

/// From the first readings to the first tick.
fn first_pause(interval: Duration) -> Duration {
    FIRST_TICK.min(interval)
}

/// When the tick after the one of `due` is due. Ticks that were missed (the machine slept) are not made up for; their time
/// is in the next one.
fn next_due(due: Instant, interval: Duration, now: Instant) -> Instant {
    let next = due + interval;
    if next < now { now + interval } else { next }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_first_figures_do_not_wait_for_an_interval() {
        assert_eq!(first_pause(Duration::from_mins(1)), FIRST_TICK);
        assert_eq!(first_pause(SECOND), FIRST_TICK);
        assert_eq!(first_pause(Duration::from_millis(100)), Duration::from_millis(100));
    }

    #[test]
    fn ticks_keep_their_rate_however_late_one_is() {
        let due = Instant::now();
        assert_eq!(next_due(due, SECOND, due), due + SECOND);
        assert_eq!(next_due(due, SECOND, due + SECOND * 9 / 10), due + SECOND);
    }

    #[test]
    fn ticks_that_were_missed_are_not_made_up_for() {
        let due = Instant::now();
        let awake = due + SECOND * 1000;
        assert_eq!(next_due(due, SECOND, awake), awake + SECOND);
    }
}
