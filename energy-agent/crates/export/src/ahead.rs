//! Encodes the page of a scraper that keeps a schedule, as Prometheus does, right after the tick before it comes: what the
//! tick touched is still at hand, and the scraper waits for nothing but the network.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::encoding::Encoding;
use crate::negotiate::Coding;
use crate::page::Published;
use crate::self_metrics::SelfMetrics;
use crate::text::Format;

/// Arrivals remembered of each page: of one scraper for a quarter of an hour at the usual 15 seconds.
const KEPT: usize = 64;
/// So far from its schedule a scraper may come.
const JITTER: Duration = Duration::from_millis(25);
/// So long after a tick a scraper may still be answered from the one before, while the page of this one is encoded.
const ENCODING: Duration = Duration::from_millis(50);

/// Who asked for the metrics page, and when.
#[derive(Debug, Default)]
pub struct Scrapers(Mutex<Vec<(Format, Coding, Arrivals)>>);

impl Scrapers {
    /// Somebody asked for this page.
    pub fn note(&self, format: Format, coding: Coding, at: Instant) {
        let mut pages = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let place = pages.iter().position(|page| (page.0, page.1) == (format, coding)).unwrap_or_else(|| {
            pages.push((format, coding, Arrivals::default()));
            pages.len() - 1
        });
        pages[place].2.note(at);
    }

    /// The pages that somebody will ask for in this time, going by the past.
    fn expected(&self, from: Instant, to: Instant) -> Vec<(Format, Coding)> {
        let pages = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let expected = pages.iter().filter(|(_, _, arrivals)| arrivals.go_on_between(from, to));
        expected.map(|(format, coding, _)| (*format, *coding)).collect()
    }
}

/// When a page was asked for, in order. Whoever asked is not told apart: two servers may share an address, and one may
/// come by several connections.
#[derive(Debug, Default)]
struct Arrivals(VecDeque<Instant>);

impl Arrivals {
    fn note(&mut self, at: Instant) {
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back(at);
    }

    /// Whether three arrivals at even distances have their fourth in this time.
    fn go_on_between(&self, from: Instant, to: Instant) -> bool {
        let came = |at: Instant| {
            let near =
                |time: &Instant| time.saturating_duration_since(at).max(at.saturating_duration_since(*time)) <= JITTER;
            self.0.iter().any(near)
        };
        self.0.iter().enumerate().any(|(number, &last)| {
            self.0.range(..number).any(|&before| {
                let period = last.saturating_duration_since(before);
                let next = last + period;
                // Arrivals at once are no schedule, and who has come already does not come again.
                period > 2 * JITTER
                    && (from..to).contains(&next)
                    && before.checked_sub(period).is_some_and(came)
                    && !came(next)
            })
        })
    }
}

/// Encodes of each snapshot what is expected to be asked for before the next, and shows it then. Whoever comes meanwhile
/// sees the snapshot before, and the last is shown for good once nobody publishes any more.
pub(super) async fn encode_ahead(
    scrapers: &Scrapers,
    mut snapshots: watch::Receiver<Arc<Published>>,
    shown: &watch::Sender<Arc<Published>>,
    interval: Duration,
    own: &Arc<SelfMetrics>,
    encoding: &Encoding,
) -> Infallible {
    while snapshots.changed().await.is_ok() {
        let published = Arc::clone(&snapshots.borrow_and_update());
        let now = Instant::now();
        let from = now.checked_sub(JITTER).unwrap_or(now);
        let expected = scrapers.expected(from, now + interval + ENCODING + JITTER);
        let _turn = if expected.is_empty() { None } else { Some(encoding.turn().await) };
        for (format, coding) in expected {
            let (published, own) = (Arc::clone(&published), Arc::clone(own));
            // What fails here fails again for whoever asks, and is told there.
            let _ = tokio::task::spawn_blocking(move || published.body(format, coding, &own)).await;
        }
        shown.send_replace(published);
    }
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether somebody is expected within the second that begins at `from`; all times in seconds.
    fn expects(arrivals: &[f64], from: f64) -> bool {
        let start = Instant::now();
        let at = |seconds: f64| start + Duration::from_secs_f64(seconds);
        let mut noted = Arrivals::default();
        arrivals.iter().for_each(|&seconds| noted.note(at(seconds)));
        noted.go_on_between(at(from), at(from + 1.0))
    }

    #[test]
    fn the_third_of_three_even_steps_is_expected_and_nothing_else() {
        let scraper = [3.0, 18.004, 32.99];
        let expected: Vec<u32> = (33..120).filter(|&second| expects(&scraper, f64::from(second))).collect();
        assert_eq!(expected, [47], "at 47.976");
        assert!(!expects(&scraper[..2], 32.0), "two are no schedule");
        assert!(!expects(&[3.0, 3.01], 3.0), "nor are two at once");
        assert!(!expects(&[3.0, 18.0, 33.0, 47.99], 47.98), "who came a moment early has come");
        assert!(!expects(&[3.0, 17.0, 32.0], 46.0) && !expects(&[3.0, 17.0, 32.0], 47.0), "nor are uneven steps");
    }

    #[test]
    fn two_servers_and_a_person_do_not_hide_each_other() {
        // Every 10 s from 1 s on, every 15 s from 4.5 s on, and somebody with curl.
        let mut arrivals = vec![1.0, 11.0, 21.0, 31.0, 4.5, 19.5, 34.5, 12.3, 13.1, 36.2];
        arrivals.sort_by(f64::total_cmp);
        let expected: Vec<u32> = (37..52).filter(|&second| expects(&arrivals, f64::from(second))).collect();
        assert_eq!(expected, [41, 49]);
    }

    #[test]
    fn a_server_that_stopped_is_soon_forgotten() {
        let arrivals: Vec<f64> = (0..KEPT).map(|scrape| 15.0 * f64::from(u32::try_from(scrape).unwrap())).collect();
        let last = 15 * 63;
        let expected = (last + 1..last * 3).filter(|&second| expects(&arrivals, f64::from(second)));
        assert!(expected.count() <= KEPT / 2, "at most half as often again as it came");
    }
}
