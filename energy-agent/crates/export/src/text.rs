//! Writes families of samples, in the Prometheus text format 0.0.4 or OpenMetrics 1.0.0, as text or compressed.
//! Energy and time are written as exact decimals of their integers, so that sums can be checked on the scraped text.
//!
//! Written by hand because crates for these formats keep every value as a float in a registry, and copy it for each scrape.

use std::fmt::Write as _;
use std::hash::Hasher as _;

use energy_model::units::{Microjoules, Watts};
use rustc_hash::{FxHashMap, FxHasher};

use crate::decimal;
use crate::gzip::Gzip;
use crate::metrics::FamilyKind;
use crate::selection::Selection;

/// Which exposition format is written; decides the `Content-Type` too, so that body and header belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Prometheus text format 0.0.4.
    Text,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

impl Format {
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// A sample's value. A `Float` or `Watts` that is no finite number was not measured, and the sample is left out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SeriesValue {
    Integer(u64),
    /// Written in joules with six decimals, exact.
    Energy(Microjoules),
    /// Nanoseconds, written in seconds with nine decimals, exact.
    Time(u64),
    /// Written to the microwatt.
    Power(Watts),
    Float(f64),
}

/// Labels already escaped and joined, without the braces: they are made once for a workload and used in all its series.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels {
    text: String,
    /// Of `text`.
    hash: u64,
}

impl Labels {
    /// Labels with an empty value are left out: to a scraper both mean the same (FC-069).
    #[must_use]
    pub fn new(pairs: &[(&str, &str)]) -> Self {
        // The quotes, the equals sign and the comma of each.
        let room = pairs.iter().map(|(name, value)| name.len() + value.len() + 4).sum();
        let mut text = String::with_capacity(room);
        write_labels(&mut text, true, pairs);
        let hash = hash(0, [text.as_bytes()]);
        Self { text, hash }
    }
}

/// When a counter was 0: milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Created(pub u64);

/// One scrape under construction.
#[derive(Debug)]
pub struct Writer {
    format: Format,
    /// The families so far, or those that are not compressed yet.
    text: String,
    /// Takes the finished families, so that the whole text of a large page is never in memory.
    gzip: Option<Gzip>,
    /// Name that samples of the current family begin with.
    name: String,
    /// Where the current family's header begins and ends.
    header: (usize, usize),
    /// What is left out of the page.
    selection: Selection,
    /// The current family is left out.
    hidden: bool,
    /// Series of the current family by hash: where the series is in `text`.
    seen: FxHashMap<u64, (usize, usize)>,
    duplicates: Vec<String>,
}

impl Writer {
    #[must_use]
    pub fn new(format: Format) -> Self {
        Self::of_page(format, None, Selection::default())
    }

    /// A page, perhaps compressed, that has only the families of `selection`; writers need not know.
    #[must_use]
    pub(crate) fn of_page(format: Format, gzip: Option<Gzip>, selection: Selection) -> Self {
        Self {
            format,
            gzip,
            selection,
            hidden: false,
            text: String::with_capacity(64 * 1024),
            name: String::new(),
            header: (0, 0),
            seen: FxHashMap::default(),
            duplicates: Vec::new(),
        }
    }

    /// Begins the family of `name`, which for a counter ends in `_total`. Without a sample it leaves no trace.
    pub fn family(&mut self, name: &str, kind: FamilyKind, help: &str) {
        self.drop_empty_family();
        self.compress();
        self.hidden = !self.selection.shows(name);
        if self.hidden {
            return;
        }
        let base = if kind == FamilyKind::Counter { name.strip_suffix("_total").unwrap_or(name) } else { name };
        let family = match self.format {
            Format::Text => name,
            Format::OpenMetrics => base,
        };
        self.name.clear();
        self.name.push_str(base);
        if kind == FamilyKind::Counter {
            self.name.push_str("_total");
        }
        let start = self.text.len();
        self.text.push_str("# HELP ");
        self.text.push_str(family);
        self.text.push(' ');
        escape(&mut self.text, help, self.format == Format::OpenMetrics);
        for part in ["\n# TYPE ", family, " ", kind.as_str(), "\n"] {
            self.text.push_str(part);
        }
        if let (Format::OpenMetrics, Some(unit)) = (self.format, unit(base)) {
            for part in ["# UNIT ", family, " ", unit, "\n"] {
                self.text.push_str(part);
            }
        }
        self.header = (start, self.text.len());
        self.seen.clear();
    }

    /// Writes one sample of the current family. A series that it already has is left out and counted.
    pub fn sample(&mut self, labels: &Labels, more: &[(&str, &str)], value: SeriesValue) {
        self.sample_of("", labels, more, value);
    }

    /// [`Self::sample`] of a counter, which is followed by when it was created, if that is known and the format has it.
    pub fn counter(&mut self, labels: &Labels, more: &[(&str, &str)], value: SeriesValue, created: Option<Created>) {
        let start = self.text.len();
        self.sample(labels, more, value);
        let (Format::OpenMetrics, Some(Created(ms)), Some(base)) =
            (self.format, created, self.name.strip_suffix("_total"))
        else {
            return;
        };
        // There is no blank in a value. Nothing is there of a series that was left out.
        let Some(end) = self.text.get(start..).and_then(|line| line.rfind(' ')) else { return };
        let labels = start + self.name.len()..start + end;
        self.text.push_str(base);
        self.text.push_str("_created");
        self.text.extend_from_within(labels);
        self.text.push(' ');
        decimal::write_fraction(&mut self.text, ms, 1_000);
        self.text.push('\n');
    }

    /// [`Self::sample`] of a histogram's part: `suffix` is `_bucket`, `_sum` or `_count`.
    pub(crate) fn sample_of(&mut self, suffix: &str, labels: &Labels, more: &[(&str, &str)], value: SeriesValue) {
        if self.hidden {
            return;
        }
        if let SeriesValue::Float(number) | SeriesValue::Power(Watts(number)) = value
            && !number.is_finite()
        {
            return;
        }
        let start = self.text.len();
        self.text.push_str(&self.name);
        self.text.push_str(suffix);
        let open = self.text.len();
        self.text.push('{');
        self.text.push_str(&labels.text);
        let rest = self.text.len();
        write_labels(&mut self.text, labels.text.is_empty(), more);
        if self.text.len() == open + 1 {
            self.text.pop();
        } else {
            self.text.push('}');
        }
        let series = (start, self.text.len());
        let bytes = self.text.as_bytes();
        // Within a family, series differ in their labels and, of a histogram, their suffix.
        let hashed = hash(labels.hash, [suffix.as_bytes(), bytes.get(rest..).unwrap_or_default()]);
        let first = *self.seen.entry(hashed).or_insert(series);
        if first != series && bytes[first.0..first.1] == bytes[start..] {
            self.duplicates.push(self.text.split_off(start));
            return;
        }
        self.text.push(' ');
        write_value(&mut self.text, value);
        self.text.push('\n');
    }

    /// The finished page, and the series that came twice and were left out the second time.
    #[must_use]
    pub fn finish(mut self) -> (Vec<u8>, Vec<String>) {
        self.drop_empty_family();
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        let body = match self.gzip {
            None => self.text.into_bytes(),
            Some(mut gzip) => {
                gzip.push(self.text.as_bytes());
                gzip.finish()
            }
        };
        (body, self.duplicates)
    }

    /// Between two families, as the series of one are compared with each other.
    fn compress(&mut self) {
        if let Some(gzip) = &mut self.gzip {
            gzip.push(self.text.as_bytes());
            self.text.clear();
            self.header = (0, 0);
        }
    }

    fn drop_empty_family(&mut self) {
        if self.header.1 == self.text.len() {
            self.text.truncate(self.header.0);
        }
    }
}

/// Goes on from `before`. Where hashes are equal, the series are compared, so it need not be strong.
fn hash<const N: usize>(before: u64, parts: [&[u8]; N]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write_u64(before);
    parts.into_iter().for_each(|part| hasher.write(part));
    hasher.finish()
}

/// The base unit that a name ends in, as OpenMetrics wants it stated.
fn unit(name: &str) -> Option<&'static str> {
    ["joules", "seconds", "watts", "bytes", "ratio"]
        .into_iter()
        .find(|unit| name.strip_suffix(unit).is_some_and(|rest| rest.ends_with('_')))
}

fn write_labels(text: &mut String, first: bool, pairs: &[(&str, &str)]) {
    let mut first = first;
    for (name, value) in pairs.iter().filter(|(_, value)| !value.is_empty()) {
        if !first {
            text.push(',');
        }
        first = false;
        text.push_str(name);
        text.push_str("=\"");
        escape(text, value, true);
        text.push('"');
    }
}

/// Exactly backslash, line feed and (in quoted places) the double quote are escaped; all else is UTF-8 as it is (FC-068).
fn escape(text: &mut String, value: &str, quoted: bool) {
    let is_escaped = |byte: u8| byte == b'\\' || byte == b'\n' || (quoted && byte == b'"');
    // Hardly any value has one; without a branch for each byte, many are looked at in one step.
    if !value.bytes().fold(false, |any, byte| any | is_escaped(byte)) {
        text.push_str(value);
        return;
    }
    for letter in value.chars() {
        match letter {
            '\\' => text.push_str(r"\\"),
            '\n' => text.push_str(r"\n"),
            '"' if quoted => text.push_str(r#"\""#),
            letter => text.push(letter),
        }
    }
}

fn write_value(text: &mut String, value: SeriesValue) {
    match value {
        SeriesValue::Integer(number) => decimal::write_integer(text, number),
        SeriesValue::Energy(Microjoules(uj)) => decimal::write_fraction(text, uj, 1_000_000),
        SeriesValue::Time(ns) => decimal::write_fraction(text, ns, 1_000_000_000),
        SeriesValue::Power(Watts(watts)) => decimal::write_rounded(text, watts),
        // Adding zero turns the negative zero into zero.
        SeriesValue::Float(number) => write!(text, "{}", number + 0.0).expect("a String takes every write"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gzip::gunzip;

    fn written(format: Format, write: impl FnOnce(&mut Writer)) -> String {
        let mut writer = Writer::new(format);
        write(&mut writer);
        String::from_utf8(writer.finish().0).unwrap()
    }

    #[test]
    fn a_counter_has_its_full_name_in_text_and_its_unit_in_openmetrics() {
        let write = |writer: &mut Writer| {
            writer.family("a_joules_total", FamilyKind::Counter, "Energy.");
            writer.sample(&Labels::new(&[("zone", "package")]), &[], SeriesValue::Energy(Microjoules(12_345_678)));
        };
        assert_eq!(
            written(Format::Text, write),
            "# HELP a_joules_total Energy.\n# TYPE a_joules_total counter\na_joules_total{zone=\"package\"} 12.345678\n"
        );
        assert_eq!(
            written(Format::OpenMetrics, write),
            "# HELP a_joules Energy.\n# TYPE a_joules counter\n# UNIT a_joules joules\n\
             a_joules_total{zone=\"package\"} 12.345678\n# EOF\n"
        );
    }

    #[test]
    fn a_counter_says_when_it_was_created_in_openmetrics_alone() {
        let write = |writer: &mut Writer| {
            writer.family("a_joules_total", FamilyKind::Counter, "Energy.");
            let value = SeriesValue::Energy(Microjoules(1));
            writer.counter(
                &Labels::new(&[("pod", "a b")]),
                &[("zone", "c d")],
                value,
                Some(Created(1_700_000_000_007)),
            );
            writer.counter(&Labels::new(&[("pod", "a b")]), &[("zone", "c d")], value, Some(Created(5)));
            writer.counter(&Labels::default(), &[], value, None);
        };
        assert_eq!(
            written(Format::OpenMetrics, write),
            "# HELP a_joules Energy.\n# TYPE a_joules counter\n# UNIT a_joules joules\n\
             a_joules_total{pod=\"a b\",zone=\"c d\"} 0.000001\n\
             a_joules_created{pod=\"a b\",zone=\"c d\"} 1700000000.007\n\
             a_joules_total 0.000001\n# EOF\n"
        );
        assert!(!written(Format::Text, write).contains("created"));
    }

    #[test]
    fn a_family_without_a_sample_leaves_no_trace() {
        let text = written(Format::Text, |writer| {
            writer.family("a", FamilyKind::Gauge, "A.");
            writer.family("b", FamilyKind::Gauge, "B.");
            writer.sample(&Labels::default(), &[], SeriesValue::Integer(1));
            writer.family("c", FamilyKind::Gauge, "C.");
            writer.sample(&Labels::default(), &[], SeriesValue::Float(f64::NAN));
        });
        assert_eq!(text, "# HELP b B.\n# TYPE b gauge\nb 1\n");
    }

    #[test]
    fn numbers_are_exact_and_plain() {
        let text = written(Format::Text, |writer| {
            for (name, value) in [
                ("a", SeriesValue::Energy(Microjoules(u64::MAX))),
                ("b", SeriesValue::Energy(Microjoules(1))),
                ("c", SeriesValue::Time(1_000_000_007)),
                ("d", SeriesValue::Power(Watts(-0.0))),
                ("e", SeriesValue::Float(-0.0)),
                ("f", SeriesValue::Float(0.25)),
                ("g", SeriesValue::Power(Watts(1.5))),
            ] {
                writer.family(name, FamilyKind::Gauge, "");
                writer.sample(&Labels::default(), &[], value);
            }
        });
        let values: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            values,
            ["a 18446744073709.551615", "b 0.000001", "c 1.000000007", "d 0.000000", "e 0", "f 0.25", "g 1.500000"]
        );
    }

    #[test]
    fn a_series_that_comes_twice_is_written_once_and_reported() {
        let mut writer = Writer::new(Format::Text);
        writer.family("a", FamilyKind::Gauge, "A.");
        for (label, value) in [("x", 1), ("y", 2), ("x", 3)] {
            writer.sample(&Labels::default(), &[("l", label)], SeriesValue::Integer(value));
        }
        let (body, duplicates) = writer.finish();
        assert_eq!(body, b"# HELP a A.\n# TYPE a gauge\na{l=\"x\"} 1\na{l=\"y\"} 2\n");
        assert_eq!(duplicates, ["a{l=\"x\"}"]);
    }

    #[test]
    fn a_series_that_comes_again_is_known_however_many_are_between() {
        let mut writer = Writer::new(Format::Text);
        for family in ["a", "b", "c"] {
            writer.family(family, FamilyKind::Gauge, "");
            for series in (0..5_000).chain([0]) {
                writer.sample(&Labels::default(), &[("l", &series.to_string())], SeriesValue::Integer(7));
            }
        }
        let (text, duplicates) = writer.finish();
        assert_eq!(duplicates, ["a", "b", "c"].map(|family| format!("{family}{{l=\"0\"}}")));
        assert_eq!(text.iter().filter(|byte| **byte == b'\n').count(), 3 * (5_000 + 2));
    }

    #[test]
    fn a_compressed_page_is_the_same_page() {
        let write = |gzip| {
            let mut writer = Writer::of_page(Format::OpenMetrics, gzip, Selection::default());
            for family in ["empty", "a", "b", "also_empty"] {
                writer.family(family, FamilyKind::Gauge, "Help.");
                let series = if family.ends_with("empty") { 0..0 } else { 0..3_000 };
                for series in series.chain(if family == "b" { 7..8 } else { 0..0 }) {
                    writer.sample(&Labels::default(), &[("l", &series.to_string())], SeriesValue::Integer(7));
                }
            }
            writer.finish()
        };
        let (text, duplicates) = write(None);
        let (coded, same_duplicates) = write(Some(Gzip::new()));
        assert!(gunzip(&coded) == text, "{} bytes of text", text.len());
        assert_eq!(duplicates, ["b{l=\"7\"}"]);
        assert_eq!(same_duplicates, duplicates);
    }
}
