//! Reads a scrape as a Prometheus server would: series by name, labels by key, values as whole numbers of the smallest
//! unit that the text shows.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};

/// One answer of the metrics endpoint.
pub struct Page(String);

/// One line with a value.
#[derive(Clone, Copy)]
pub struct Series<'a> {
    /// Between the braces, as written.
    pub labels: &'a str,
    value: &'a str,
}

impl Page {
    /// # Errors
    /// When the bytes are no text.
    pub fn new(body: Vec<u8>) -> Result<Self> {
        Ok(Self(String::from_utf8(body).context("a scrape that is no text")?))
    }

    /// All series of exactly this name.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = Series<'a>> {
        self.0.lines().filter_map(move |line| {
            let rest = line.strip_prefix(name)?;
            if let Some(value) = rest.strip_prefix(' ') {
                return Some(Series { labels: "", value });
            }
            let (labels, value) = rest.strip_prefix('{')?.rsplit_once("} ")?;
            Some(Series { labels, value })
        })
    }

    /// The value of the first series of this name with this label, with `digits` decimals; 0 without such a series.
    ///
    /// # Errors
    /// When the value is no plain decimal number.
    pub fn value(&self, name: &str, key: &str, label: &str, digits: usize) -> Result<u64> {
        let found = self.all(name).find(|series| key.is_empty() || series.label(key) == label);
        found.map_or(Ok(0), |series| series.fixed(digits))
    }

    /// Observations of a histogram by upper bound, ascending, each with those of the smaller ones; seconds.
    ///
    /// # Errors
    /// When a bound or count is no number.
    pub fn buckets(&self, name: &str) -> Result<Vec<(f64, u64)>> {
        let name = format!("{name}_bucket");
        let buckets = self.all(&name).map(|series| {
            let bound = series.label("le").replace("+Inf", "inf").parse().context("bound of a bucket")?;
            Ok((bound, series.fixed(0)?))
        });
        buckets.collect()
    }

    /// Pods that are running, anybody's.
    pub fn pods(&self) -> usize {
        let running =
            self.all("energy_agent_pod_cpu_seconds_total").filter(|series| series.label("state") == "running");
        running.count()
    }

    pub fn bytes(&self) -> usize {
        self.0.len()
    }

    /// Series of any name.
    pub fn count(&self) -> usize {
        self.0.lines().filter(|line| !line.starts_with('#')).count()
    }
}

impl<'a> Series<'a> {
    /// The label's value as written; empty when it is not there.
    pub fn label(&self, key: &str) -> &'a str {
        let mut rest = self.labels;
        while let Some((name, value)) = rest.split_once("=\"") {
            let Some(end) = value.find('"') else { break };
            if name.trim_start_matches(',') == key {
                return &value[..end];
            }
            rest = &value[end + 1..];
        }
        ""
    }

    /// The value times ten to the power of `digits`, which must lose nothing.
    ///
    /// # Errors
    /// When it is no plain decimal number or has more decimals.
    pub fn fixed(&self, digits: usize) -> Result<u64> {
        let (whole, fraction) = self.value.split_once('.').unwrap_or((self.value, ""));
        ensure!(fraction.len() <= digits, "{} has more than {digits} decimals", self.value);
        format!("{whole}{fraction:0<digits$}").parse().with_context(|| format!("value {:?}", self.value))
    }
}

/// Checks that energy is conserved on the page, in whole microjoules; says which zone is off, if one is.
///
/// # Errors
/// When a value is not written in microjoules, or no energy is divided: such a page shows nothing.
pub fn conserved(page: &Page) -> Result<Option<String>> {
    let mut measured = BTreeMap::new();
    for series in page.all("kepler_node_cpu_joules_total") {
        measured.insert(series.labels, series.fixed(6)?);
    }
    // By (zone, source): active energy of the node, and the parts it has to consist of.
    let mut sums: BTreeMap<(&str, &str), (u64, u64)> = BTreeMap::new();
    let mut parts: BTreeMap<&str, u64> = BTreeMap::new();
    for series in page.all("kepler_node_cpu_active_joules_total") {
        let active = series.fixed(6)?;
        *parts.entry(series.labels).or_default() += active;
        sums.entry((series.label("zone"), series.label("source"))).or_default().0 += active;
    }
    let mut idle: BTreeMap<(&str, &str), (u64, u64)> = BTreeMap::new();
    for series in page.all("kepler_node_cpu_idle_joules_total") {
        let energy = series.fixed(6)?;
        *parts.entry(series.labels).or_default() += energy;
        idle.entry((series.label("zone"), series.label("source"))).or_default().0 += energy;
    }
    for name in [
        "kepler_pod_cpu_joules_total",
        "energy_agent_system_cpu_joules_total",
        "energy_agent_retired_cpu_joules_total",
        "energy_agent_node_cpu_unattributed_joules_total",
    ] {
        for series in page.all(name) {
            sums.entry((series.label("zone"), series.label("source"))).or_default().1 += series.fixed(6)?;
        }
    }
    ensure!(!sums.is_empty(), "a page without active energy");
    for (labels, sum) in parts {
        if measured.get(labels) != Some(&sum) {
            return Ok(Some(format!("{{{labels}}}: active + idle = {sum} uJ, measured {:?}", measured.get(labels))));
        }
    }
    // Only where a policy hands idle energy out.
    let mut handed_out = false;
    for name in [
        "energy_agent_pod_idle_joules_total",
        "energy_agent_idle_unassigned_joules_total",
        "energy_agent_retired_idle_joules_total",
    ] {
        for series in page.all(name) {
            handed_out = true;
            idle.entry((series.label("zone"), series.label("source"))).or_default().1 += series.fixed(6)?;
        }
    }
    if let Some(((zone, source), (idle, parts))) =
        idle.into_iter().find(|(_, (idle, parts))| handed_out && idle != parts)
    {
        return Ok(Some(format!("{zone} {source}: idle {idle} uJ, parts {parts} uJ")));
    }
    let off = sums.into_iter().find(|(_, (active, parts))| active != parts);
    Ok(off.map(|((zone, source), (active, parts))| format!("{zone} {source}: active {active} uJ, parts {parts} uJ")))
}

/// The first counter that is lower on the later page, or is not a finite number there. The label `state` is not compared: a
/// workload that ends goes on counting from where it was.
///
/// # Errors
/// When a value is no number.
pub fn fallen(earlier: &Page, later: &Page) -> Result<Option<String>> {
    let before = counters(earlier)?;
    for (series, now) in counters(later)? {
        if !now.is_finite() {
            return Ok(Some(format!("{series} is {now}")));
        }
        if let Some(before) = before.get(&series).filter(|before| **before > now) {
            return Ok(Some(format!("{series} fell from {before} to {now}")));
        }
    }
    Ok(None)
}

fn counters(page: &Page) -> Result<BTreeMap<String, f64>> {
    let mut counters = BTreeMap::new();
    for line in page.0.lines().filter(|line| !line.starts_with('#')) {
        let (series, value) = line.rsplit_once(' ').with_context(|| format!("a line without a value: {line:?}"))?;
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        if !["_total", "_bucket", "_sum", "_count"].iter().any(|end| name.ends_with(end)) {
            continue;
        }
        let value: f64 = value.parse().with_context(|| format!("the value of {line:?}"))?;
        let labels = ["running", "terminated"]
            .iter()
            .fold(labels.to_owned(), |labels, state| labels.replace(&format!("state=\"{state}\""), ""));
        counters.insert(format!("{name}{{{labels}"), value);
    }
    Ok(counters)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "\
# TYPE kepler_node_cpu_joules_total counter
kepler_node_cpu_joules_total{zone=\"package\",source=\"rapl\",socket=\"0\"} 7.000003
kepler_node_cpu_active_joules_total{zone=\"package\",source=\"rapl\",socket=\"0\"} 5.000002
kepler_node_cpu_idle_joules_total{zone=\"package\",source=\"rapl\",socket=\"0\"} 2.000001
kepler_pod_cpu_joules_total{pod_id=\"a\",zone=\"package\",source=\"rapl\"} 1.5
kepler_pod_cpu_joules_total{pod_id=\"b\",zone=\"package\",source=\"rapl\"} 1
energy_agent_system_cpu_joules_total{unit=\"/\",zone=\"package\",source=\"rapl\"} 2.000002
energy_agent_retired_cpu_joules_total{zone=\"package\",source=\"rapl\"} 0.500000
energy_agent_ticks_total 12
";

    #[test]
    fn a_page_that_adds_up_is_conserved_and_one_microjoule_less_is_not() {
        let page = Page::new(PAGE.into()).unwrap();
        assert_eq!(conserved(&page).unwrap(), None);
        let page = Page::new(PAGE.replace("2.000002", "2.000001").into()).unwrap();
        assert_eq!(conserved(&page).unwrap().unwrap(), "package rapl: active 5000002 uJ, parts 5000001 uJ");
        let page = Page::new(PAGE.replace("7.000003", "7.000004").into()).unwrap();
        assert!(conserved(&page).unwrap().unwrap().contains("active + idle = 7000003 uJ, measured Some(7000004)"));
        assert!(
            conserved(&Page::new(b"energy_agent_ticks_total 12\n".to_vec()).unwrap()).is_err(),
            "nothing to conserve"
        );
        let given = |joules: &str| {
            let series = "energy_agent_pod_idle_joules_total{pod_id=\"a\",zone=\"package\",source=\"rapl\"}";
            Page::new(format!("{PAGE}{series} {joules}\n").into()).unwrap()
        };
        assert_eq!(conserved(&given("2.000001")).unwrap(), None);
        assert_eq!(conserved(&given("2.000002")).unwrap().unwrap(), "package rapl: idle 2000001 uJ, parts 2000002 uJ");
    }

    #[test]
    fn a_counter_that_falls_is_found_whatever_its_state() {
        let page = |state: &str, value: &str| {
            Page::new(format!("# HELP a_total x\na_total{{state=\"{state}\",pod_id=\"b\"}} {value}\nwatts 3\n").into())
                .unwrap()
        };
        assert_eq!(fallen(&page("running", "2"), &page("terminated", "2")).unwrap(), None);
        let fell = fallen(&page("running", "2.5"), &page("terminated", "2")).unwrap().unwrap();
        assert_eq!(fell, "a_total{,pod_id=\"b\"} fell from 2.5 to 2");
        assert!(fallen(&page("running", "2"), &page("running", "NaN")).unwrap().is_some());
    }

    #[test]
    fn series_are_counted_without_comments() {
        assert_eq!(Page::new(PAGE.into()).unwrap().count(), 8);
    }

    #[test]
    fn values_are_read_to_the_last_decimal() {
        let page = Page::new(PAGE.into()).unwrap();
        assert_eq!(page.value("kepler_pod_cpu_joules_total", "pod_id", "b", 6).unwrap(), 1_000_000);
        assert_eq!(page.value("energy_agent_ticks_total", "", "", 0).unwrap(), 12);
        assert_eq!(page.value("energy_agent_ticks", "", "", 0).unwrap(), 0);
        assert!(page.value("kepler_pod_cpu_joules_total", "pod_id", "a", 0).is_err());
    }
}
