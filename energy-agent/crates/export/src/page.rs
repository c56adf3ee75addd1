//! A snapshot as it is published: pages are encoded when somebody asks for them, and then kept until the next tick.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use energy_model::meter_state::{MeterName, MeterState, Reason};
use energy_model::snapshot::Snapshot;

use crate::gzip::{Gzip, gunzip, gzip};
use crate::negotiate::Coding;
use crate::selection::ActiveSelection;
use crate::self_metrics::SelfMetrics;
use crate::series;
use crate::text::{Format, Writer};

/// What the tick loop hands to the web server after each tick, and once before the first.
#[derive(Debug)]
pub struct Published {
    pub snapshot: Snapshot,
    /// When the tick was completed, for liveness.
    pub completed: Instant,
    /// What of it is exported.
    pub export: Arc<ActiveSelection>,
    text: Page,
    open_metrics: Page,
}

#[derive(Debug, Default)]
struct Page {
    /// In the coding that was asked for first.
    first: OnceLock<(Coding, Bytes)>,
    /// The same page in the other.
    other: OnceLock<Bytes>,
}

impl Published {
    #[must_use]
    pub fn new(mut snapshot: Snapshot, export: Arc<ActiveSelection>) -> Self {
        if !export.selection.names() {
            snapshot.names = Arc::default();
        }
        let [text, open_metrics] = [Page::default(), Page::default()];
        Self { snapshot, completed: Instant::now(), export, text, open_metrics }
    }

    /// Whether ticks have come to a stand: nothing of it may be taken for what is measured now.
    #[must_use]
    pub fn is_stale(&self, interval: Duration) -> bool {
        self.completed.elapsed() > stale_after(interval)
    }

    /// What is served in its place once it is stale: the agent's own series, and why there are no others.
    #[must_use]
    pub(crate) fn without_measurements(&self) -> Self {
        let Snapshot { node, taken, elapsed, ticks, meters, health, .. } = &self.snapshot;
        let detail = format!("no tick for {} s", self.completed.elapsed().as_secs());
        let ticker = MeterState::down(MeterName::Tick, Reason::Hanging, detail);
        let snapshot = Snapshot {
            taken: *taken,
            elapsed: *elapsed,
            ticks: *ticks,
            meters: meters.iter().cloned().chain([ticker]).collect(),
            health: *health,
            ..Snapshot::empty(node)
        };
        let [text, open_metrics] = [Page::default(), Page::default()];
        Self { snapshot, completed: self.completed, export: Arc::clone(&self.export), text, open_metrics }
    }

    /// The metrics page, encoded on the first call for this format and coding; everyone after gets the same bytes.
    /// The agent's own metrics are as they were at that moment.
    pub fn body(&self, format: Format, coding: Coding, own: &SelfMetrics) -> Bytes {
        let page = self.page(format);
        let encode = || {
            let selection = &self.export.selection;
            let gzip = (coding == Coding::Gzip).then(Gzip::new);
            let mut writer = Writer::of_page(format, gzip, selection.clone());
            series::write(&mut writer, &self.snapshot, selection.levels());
            own.write(&mut writer);
            let (body, duplicates) = writer.finish();
            own.found_duplicates(&duplicates);
            (coding, Bytes::from(body))
        };
        let (first_coding, first) = page.first.get_or_init(encode);
        if *first_coding == coding {
            return first.clone();
        }
        let recode = || match coding {
            Coding::Identity => Bytes::from(gunzip(first)),
            Coding::Gzip => Bytes::from(gzip(first)),
        };
        page.other.get_or_init(recode).clone()
    }

    /// The body if it is encoded already.
    pub(crate) fn ready_body(&self, format: Format, coding: Coding) -> Option<Bytes> {
        let page = self.page(format);
        let (coded, first) = page.first.get()?;
        if *coded == coding { Some(first.clone()) } else { page.other.get().cloned() }
    }

    const fn page(&self, format: Format) -> &Page {
        match format {
            Format::Text => &self.text,
            Format::OpenMetrics => &self.open_metrics,
        }
    }
}

/// A page without a tick for this long is stale: five intervals, and at least five seconds.
fn stale_after(interval: Duration) -> Duration {
    (interval * 5).max(Duration::from_secs(5))
}
