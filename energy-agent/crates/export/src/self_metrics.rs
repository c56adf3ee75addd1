//! What the agent measures about itself, kept in a `prometheus` registry: durations, duplicates and the process.
//! The registry's families go through the writer that the workload series go through, into either format.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use energy_model::units::ratio;
use prometheus::core::{Collector, Desc};
use prometheus::process_collector::ProcessCollector;
use prometheus::proto::{Counter, MetricFamily, MetricType};
use prometheus::{Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, Opts, Registry};
use rustix::time::{ClockId, clock_gettime};

use crate::metrics::FamilyKind;
use crate::metrics::{self, Metric};
use crate::text::{Labels, SeriesValue, Writer};

/// Why a connection was closed before its client wanted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// It made no request in time, or gave way to a new one.
    Idle,
    /// It did not read its answer in time, or kept old pages in memory.
    Slow,
}

impl CloseReason {
    pub const ALL: [Self; 2] = [Self::Idle, Self::Slow];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Slow => "slow",
        }
    }
}

/// The agent's own metrics; counted into by the tick loop and by the web server.
#[derive(Debug)]
pub struct SelfMetrics {
    registry: Registry,
    tick_duration: Histogram,
    scrape_duration: Histogram,
    duplicates: IntCounter,
    connections_closed: IntCounterVec,
    export_valid: Gauge,
    export_changed: Gauge,
    /// Not there without a web configuration.
    web_config_valid: OnceLock<Gauge>,
    /// Not there where none is sent.
    events: OnceLock<IntCounterVec>,
    /// Not there where no file is followed.
    lost_readings: OnceLock<IntCounterVec>,
}

impl Default for SelfMetrics {
    fn default() -> Self {
        Self::new()
    }
}

impl SelfMetrics {
    #[must_use]
    pub fn new() -> Self {
        let registry = Registry::new();
        let tick_duration = histogram(&metrics::TICK_DURATION);
        let scrape_duration = histogram(&metrics::SCRAPE_DURATION);
        let duplicates =
            IntCounter::new(metrics::DUPLICATES.name, metrics::DUPLICATES.help).expect("the table has valid names");
        let Metric { name, help, labels, .. } = metrics::CONNECTIONS_CLOSED;
        let connections_closed = IntCounterVec::new(Opts::new(name, help), labels).expect("the table has valid names");
        for reason in CloseReason::ALL {
            connections_closed.with_label_values(&[reason.name()]);
        }
        let export_valid = gauge(&metrics::EXPORT_VALID);
        let export_changed = gauge(&metrics::EXPORT_CHANGED);
        for collector in [
            Box::new(tick_duration.clone()) as Box<dyn Collector>,
            Box::new(scrape_duration.clone()),
            Box::new(duplicates.clone()),
            Box::new(connections_closed.clone()),
            Box::new(export_valid.clone()),
            Box::new(export_changed.clone()),
            Box::new(OwnProcess(ProcessCollector::for_self())),
        ] {
            registry.register(collector).expect("the names differ");
        }
        let (web_config_valid, events, lost_readings) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        Self {
            registry,
            tick_duration,
            scrape_duration,
            duplicates,
            connections_closed,
            export_valid,
            export_changed,
            web_config_valid,
            events,
            lost_readings,
        }
    }

    /// One tick took this long, from the first reading to the finished snapshot.
    pub fn tick_took(&self, duration: Duration) {
        self.tick_duration.observe(duration.as_secs_f64());
    }

    /// One request for metrics was answered in this time.
    pub(crate) fn scrape_took(&self, duration: Duration) {
        self.scrape_duration.observe(duration.as_secs_f64());
    }

    /// A connection was closed before its client wanted it.
    pub(crate) fn connection_closed(&self, reason: CloseReason) {
        self.connections_closed.with_label_values(&[reason.name()]).inc();
    }

    /// Whether the whole requested selection is active.
    pub fn export_valid(&self, valid: bool) {
        self.export_valid.set(f64::from(u8::from(valid)));
    }

    /// Something else is exported since `at`.
    pub fn export_changed(&self, at: SystemTime) {
        self.export_changed.set(at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64());
    }

    /// Whether the last version of the web configuration is active.
    pub fn web_config_valid(&self, valid: bool) {
        let registered = || {
            let gauge = gauge(&metrics::WEB_CONFIG_VALID);
            self.registry.register(Box::new(gauge.clone())).expect("the names differ");
            gauge
        };
        self.web_config_valid.get_or_init(registered).set(f64::from(u8::from(valid)));
    }

    /// From now on [`Self::event`] is called.
    pub fn count_events(&self) {
        for result in ["posted", "dropped"] {
            self.events().with_label_values(&[result]);
        }
    }

    /// The cluster has an event, or will never have it.
    pub fn event(&self, posted: bool) {
        self.events().with_label_values(&[if posted { "posted" } else { "dropped" }]).inc();
    }

    fn events(&self) -> &IntCounterVec {
        self.events.get_or_init(|| self.counters(&metrics::CAPPING_EVENTS))
    }

    /// From now on [`Self::lost_reading`] may be called for this file.
    pub fn count_lost_readings(&self, file: &str) {
        self.lost_readings().with_label_values(&[file]);
    }

    /// A reading of this file was given up.
    pub fn lost_reading(&self, file: &str) {
        self.lost_readings().with_label_values(&[file]).inc();
    }

    fn lost_readings(&self) -> &IntCounterVec {
        self.lost_readings.get_or_init(|| self.counters(&metrics::LOST_READINGS))
    }

    fn counters(&self, metric: &Metric) -> IntCounterVec {
        let Metric { name, help, labels, .. } = metric;
        let counters = IntCounterVec::new(Opts::new(*name, *help), labels).expect("the table has valid names");
        self.registry.register(Box::new(counters.clone())).expect("the names differ");
        counters
    }

    /// Counts series that a page had twice; the first ever are logged, a bug in the agent must not fill the log.
    pub(crate) fn found_duplicates(&self, series: &[String]) {
        let Some(first) = series.first() else { return };
        if self.duplicates.get() == 0 {
            tracing::error!(%first, count = series.len(), "duplicate series left out; this is a bug, please report it");
        }
        self.duplicates.inc_by(u64::try_from(series.len()).unwrap_or(u64::MAX));
    }

    /// Writes all families of the registry.
    pub fn write(&self, writer: &mut Writer) {
        for family in self.registry.gather() {
            let Some(kind) = kind(&family) else { continue };
            writer.family(family.name(), kind, family.help());
            for metric in family.get_metric() {
                let pairs: Vec<_> = metric.get_label().iter().map(|pair| (pair.name(), pair.value())).collect();
                let labels = Labels::new(&pairs);
                match kind {
                    FamilyKind::Counter => {
                        writer.sample(&labels, &[], SeriesValue::Float(metric.get_counter().get_value()))
                    }
                    FamilyKind::Gauge => {
                        writer.sample(&labels, &[], SeriesValue::Float(metric.get_gauge().get_value()))
                    }
                    FamilyKind::Histogram => write_histogram(writer, &labels, metric.get_histogram()),
                }
            }
        }
    }

    /// Name, type and HELP of the process metrics, for the documentation.
    #[must_use]
    pub fn process_metrics(&self) -> Vec<(String, FamilyKind, String)> {
        let families = self.registry.gather();
        let process = families.iter().filter(|family| family.name().starts_with("process_"));
        process.filter_map(|family| Some((family.name().to_owned(), kind(family)?, family.help().to_owned()))).collect()
    }
}

/// The crate's collector with the process's CPU time as the kernel keeps it, to the nanosecond: the crate counts whole
/// seconds, by which an agent that takes a thousandth of a CPU shows nothing for a quarter of an hour and then a spike.
struct OwnProcess(ProcessCollector);

impl Collector for OwnProcess {
    fn desc(&self) -> Vec<&Desc> {
        self.0.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut families = self.0.collect();
        let cpu_time = families.iter_mut().filter(|family| family.name() == "process_cpu_seconds_total");
        for metric in cpu_time.flat_map(MetricFamily::mut_metric) {
            let mut seconds = Counter::default();
            seconds.set_value(process_cpu_seconds());
            metric.set_counter(seconds);
        }
        families
    }
}

/// CPU time of this process's threads, ended ones included.
fn process_cpu_seconds() -> f64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    let part = |value: i64| u64::try_from(value).unwrap_or_default();
    ratio(part(used.tv_sec) * 1_000_000_000 + part(used.tv_nsec), 1_000_000_000)
}

fn histogram(metric: &Metric) -> Histogram {
    let buckets = vec![0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5];
    Histogram::with_opts(HistogramOpts::new(metric.name, metric.help).buckets(buckets))
        .expect("the table has valid names and the buckets rise")
}

fn gauge(metric: &Metric) -> Gauge {
    Gauge::new(metric.name, metric.help).expect("the table has valid names")
}

fn kind(family: &MetricFamily) -> Option<FamilyKind> {
    match family.get_field_type() {
        MetricType::COUNTER => Some(FamilyKind::Counter),
        MetricType::GAUGE => Some(FamilyKind::Gauge),
        MetricType::HISTOGRAM => Some(FamilyKind::Histogram),
        MetricType::SUMMARY | MetricType::UNTYPED => None,
    }
}

fn write_histogram(writer: &mut Writer, labels: &Labels, histogram: &prometheus::proto::Histogram) {
    for bucket in histogram.get_bucket().iter().filter(|bucket| bucket.upper_bound().is_finite()) {
        // Debug writes 1.0, the form OpenMetrics asks for; Display would write 1.
        let bound = format!("{:?}", bucket.upper_bound());
        writer.sample_of("_bucket", labels, &[("le", &bound)], SeriesValue::Integer(bucket.cumulative_count()));
    }
    let count = SeriesValue::Integer(histogram.get_sample_count());
    writer.sample_of("_bucket", labels, &[("le", "+Inf")], count);
    writer.sample_of("_sum", labels, &[], SeriesValue::Float(histogram.get_sample_sum()));
    writer.sample_of("_count", labels, &[], count);
}
