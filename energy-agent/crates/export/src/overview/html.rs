//! The page: everything on it comes from the snapshot, is escaped, and needs nothing from elsewhere.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};
use std::time::Duration;

use energy_model::advice::Advice;
use energy_model::meter_state::{MeterState, Reason, UsageMeter};
use energy_model::printable::printable;
use energy_model::snapshot::{GpuNow, Snapshot, ZoneTotals};
use energy_model::units::{Microjoules, Watts, floor_u64, ratio};
use energy_model::workload::names::PodName;
use energy_model::zone::{Source, ZoneKind};

use super::Overview;
use super::consumers::{Consumer, Use, largest};
use crate::html::{escaped, head};

/// How many consumers are shown; `top` and the metrics have all.
const MOST: usize = 5;
/// How many GPUs are shown.
const MOST_GPUS: usize = 16;
const STYLE: &str = include_str!("overview.css");

pub(super) fn page(overview: &Overview<'_>) -> String {
    let Overview { snapshot, uptime, stale, .. } = overview;
    let node = named(&snapshot.node);
    let mut page = head(format_args!("energy-agent on {}", printable(&snapshot.node)), STYLE);
    write(
        &mut page,
        format_args!(
            "<header><h1>energy-agent</h1>\n<p>Energy of the pods, containers and services on <b>{node}</b>. \
             Version {version}, running for {uptime}.</p></header>\n",
            version = env!("CARGO_PKG_VERSION"),
            uptime = duration(*uptime),
        ),
    );
    match stale {
        Some(reason) => write(&mut page, format_args!("<p class=\"bad notice\">{}</p>\n", escaped(reason.trim_end()))),
        None => write_figures(&mut page, snapshot),
    }
    write_links(&mut page, overview);
    write_meters(&mut page, overview);
    page.push_str("</body>\n</html>\n");
    page
}

fn write_figures(page: &mut String, snapshot: &Snapshot) {
    let counted = |totals: &&ZoneTotals| totals.zone.kind.attributed();
    let zones: Vec<&ZoneTotals> = snapshot.zones.iter().filter(counted).collect();
    if zones.is_empty() {
        page.push_str("<p class=\"notice\">No power reading yet. The meters below say what is missing.</p>\n");
        return;
    }
    write_node(page, snapshot, &zones);
    write_largest(page, snapshot);
    write_gpus(page, snapshot);
}

fn write_node(page: &mut String, snapshot: &Snapshot, zones: &[&ZoneTotals]) {
    let sum = |part: &dyn Fn(&ZoneTotals) -> Option<Watts>| {
        zones.iter().filter_map(|totals| part(totals)).reduce(|Watts(a), Watts(b)| Watts(a + b))
    };
    let sources: BTreeSet<Source> = zones.iter().map(|totals| totals.zone.source).collect();
    let energy: Microjoules = zones.iter().map(|totals| totals.measured).sum();
    let busy = snapshot.cpu_usage_ratio.map_or_else(none, |busy| format!("{:.0} %", busy * 100.0));
    page.push_str("<section class=\"tiles\">\n");
    let mut tile = |value: String, what: &str| {
        write(page, format_args!("<p><b>{value}</b><small>{what}</small></p>\n"));
    };
    let kinds: BTreeSet<ZoneKind> = zones.iter().map(|totals| totals.zone.kind).collect();
    let kinds: Vec<&str> = kinds.iter().map(|kind| kind.as_str()).collect();
    tile(watts(sum(&|totals| totals.power)), &format!("now: {}", kinds.join(" + ")));
    tile(watts(sum(&|totals| totals.parts?.active_power)), "of it active: what work adds");
    tile(watts(sum(&|totals| totals.parts?.idle_power)), "of it idle");
    tile(busy, "CPU busy");
    tile(watt_hours(energy), "since the agent started");
    // They hold the others, so they are never added to them.
    for totals in snapshot.zones.iter().filter(|totals| is_whole(totals.zone.kind)) {
        let what = format!("of it and the rest: {}, {}", totals.zone.kind.as_str(), totals.zone.source.as_str());
        tile(watts(totals.power), &what);
    }
    let (estimates, measured): (Vec<_>, Vec<_>) = sources.into_iter().partition(|source| *source == Source::Estimate);
    let measured: Vec<String> = measured.into_iter().map(|source| source.as_str().replace('_', " ")).collect();
    let measured = (!measured.is_empty()).then(|| format!("measured by {}", measured.join(" and ")));
    let how = measured.into_iter().chain(estimates.first().map(|_| "estimated, not measured".to_owned()));
    let how: Vec<String> = how.collect();
    write(page, format_args!("</section>\n<p><small>Energy is {}.</small></p>\n", how.join("; ")));
}

/// Zones that contain packages.
const fn is_whole(kind: ZoneKind) -> bool {
    matches!(kind, ZoneKind::Psys | ZoneKind::Platform)
}

fn write_largest(page: &mut String, snapshot: &Snapshot) {
    let largest = largest(snapshot, MOST);
    page.push_str("<section><h2>What draws most</h2>\n");
    let Some((_, first)) = largest.first() else {
        page.push_str("<p>Nothing draws active power now.</p></section>\n");
        return;
    };
    page.push_str(
        "<table class=\"largest\">\n<thead><tr><th>workload</th><th class=\"n\">active power</th><th></th>\
         <th class=\"n\">since start</th></tr></thead>\n<tbody>\n",
    );
    for (consumer, Use { power, energy }) in &largest {
        let width = floor_u64(power.0 / first.power.0 * 100.0).min(100);
        write(
            page,
            format_args!(
                "<tr><td>{}</td><td class=\"n\">{}</td><td><span class=\"part\"><i style=\"width:{width}%\"></i></span></td>\
                 <td class=\"n\">{}</td></tr>\n",
                name(*consumer, snapshot),
                watts(Some(*power)),
                watt_hours(*energy),
            ),
        );
    }
    page.push_str(
        "</tbody></table>\n<p><small>All of them live: <code>energy-agent top</code> on the node.</small></p></section>\n",
    );
}

fn name(consumer: Consumer<'_>, snapshot: &Snapshot) -> String {
    let (name, kind) = match consumer {
        Consumer::Pod(uid) => match snapshot.names.pod(uid) {
            PodName { id, name: "", .. } => (named(id), "pod"),
            PodName { name, namespace, .. } => (format!("{}/<b>{}</b>", named(namespace), named(name)), "pod"),
        },
        Consumer::Container(id) => (named(id.get(..12).unwrap_or(id)), "container"),
        Consumer::Unit("kernel") => ("kernel".to_owned(), "threads and interrupts"),
        Consumer::Unit("/") => ("in no unit".to_owned(), "the root cgroup and what belongs to no service"),
        Consumer::Unit(unit) => (named(unit), "unit"),
    };
    format!("{name} <small>{kind}</small>")
}

fn write_gpus(page: &mut String, snapshot: &Snapshot) {
    let gpus: Vec<&GpuNow> = snapshot.gpus.iter().filter(|gpu| gpu.current).collect();
    if gpus.is_empty() {
        return;
    }
    page.push_str(
        "<section><h2>GPUs</h2>\n<table>\n<thead><tr><th>GPU</th><th class=\"n\">power</th><th class=\"n\">busy</th>\
         <th class=\"n\">memory</th><th class=\"n\">temperature</th></tr></thead>\n<tbody>\n",
    );
    for GpuNow { gpu, state, .. } in gpus.iter().take(MOST_GPUS) {
        let zone = snapshot.zones.iter().find(|totals| totals.zone.path == *gpu.uuid);
        let limit = state.power_limit.map(|limit| format!(" <small>of {}</small>", watts(Some(limit))));
        let memory = state.memory_used_bytes.zip(state.memory_total_bytes).map_or_else(none, |(used, total)| {
            format!("{:.1} <small>of {:.0} GiB</small>", ratio(used, 1 << 30), ratio(total, 1 << 30))
        });
        write(
            page,
            format_args!(
                "<tr><td>{} <small>{}</small></td><td class=\"n\">{}{}</td><td class=\"n\">{}</td><td class=\"n\">{memory}</td>\
                 <td class=\"n\">{}</td></tr>\n",
                gpu.index,
                named(&gpu.name),
                watts(zone.and_then(|totals| totals.power).or(state.power)),
                limit.unwrap_or_default(),
                state.utilization_ppm.map_or_else(none, |ppm| format!("{} %", ppm / 10_000)),
                state.temperature_celsius.map_or_else(none, |celsius| format!("{celsius} \u{b0}C")),
            ),
        );
    }
    page.push_str("</tbody></table>\n");
    if gpus.len() > MOST_GPUS {
        write(page, format_args!("<p>and {} more</p>\n", gpus.len() - MOST_GPUS));
    }
    page.push_str("</section>\n");
}

fn write_links(page: &mut String, overview: &Overview<'_>) {
    let path = escaped(overview.telemetry_path);
    write(
        page,
        format_args!(
            "<section><h2>Pages</h2>\n<ul>\n<li><a href=\"{path}\">{path}</a>: metrics, as Prometheus text or OpenMetrics</li>\n"
        ),
    );
    if overview.snapshot.capping.is_some() {
        page.push_str("<li><a href=\"/policies\">/policies</a>: budgets of pods, and their limits</li>\n");
    }
    if overview.power {
        page.push_str("<li><a href=\"/power\">/power</a>: the power report for the controller</li>\n");
    }
    page.push_str("<li><a href=\"/healthz\">/healthz</a>, <a href=\"/readyz\">/readyz</a>: health and readiness</li>\n</ul></section>\n");
}

fn write_meters(page: &mut String, overview: &Overview<'_>) {
    let Overview { snapshot, export, .. } = overview;
    let how = &snapshot.attribution;
    page.push_str("<section><h2>Meters</h2>\n<table>\n<tbody>\n");
    for MeterState { meter, reason, detail: Advice { what, remedy } } in &snapshot.meters {
        let remedy = if remedy.is_empty() { String::new() } else { format!("<br><small>{}</small>", named(remedy)) };
        write(
            page,
            format_args!(
                "<tr><td>{} <span class=\"chip {}\">{}</span></td><td>{}{remedy}</td></tr>\n",
                meter.as_str().replace('_', " "),
                tone(*reason),
                reason.as_str().replace('_', " "),
                named(what),
            ),
        );
    }
    let problem = export.problem.as_ref().map(|problem| format!(". Not active: {}", named(problem)));
    write(
        page,
        format_args!(
            "</tbody></table>\n<p><small>CPU usage by {} {}, weight {}, idle split {}. {} ticks, one every {:.1} s. Exported: {}{}</small></p>\
             </section>\n",
            how.usage.map_or("none", UsageMeter::as_str),
            how.usage.map_or("", UsageMeter::program),
            how.usage.map_or("none", |_| how.weight.as_str()),
            if how.idle.is_empty() { "none" } else { how.idle },
            snapshot.ticks,
            snapshot.elapsed.as_secs_f64(),
            named(export.selection.text()),
            problem.unwrap_or_default(),
        ),
    );
}

/// What another meter replaces, or what a flag turns off, is no fault.
const fn tone(reason: Reason) -> &'static str {
    match reason {
        Reason::Ok => "good",
        Reason::Off | Reason::Unused | Reason::Absent | Reason::Guest | Reason::Starting | Reason::Connecting => {
            "plain"
        }
        _ => "bad",
    }
}

/// Somebody else's text: no markup, and nothing that turns the direction of writing.
fn named(text: &str) -> String {
    escaped(&printable(text))
}

fn none() -> String {
    "\u{2013}".to_owned()
}

fn watts(power: Option<Watts>) -> String {
    power.map_or_else(none, |Watts(watts)| match watts {
        watts if watts < 10.0 => format!("{watts:.2} W"),
        watts => format!("{watts:.1} W"),
    })
}

fn watt_hours(Microjoules(energy): Microjoules) -> String {
    match ratio(energy, 3_600_000_000) {
        hours if hours < 10.0 => format!("{hours:.3} Wh"),
        hours if hours < 1000.0 => format!("{hours:.1} Wh"),
        hours => format!("{:.2} kWh", hours / 1000.0),
    }
}

/// `12s`, `3m 20s`, `2h 3m`, `5days 2h`.
fn duration(time: Duration) -> String {
    let unit = match time.as_secs() {
        0..3600 => 1,
        3600..86_400 => 60,
        _ => 3600,
    };
    humantime::format_duration(Duration::from_secs(time.as_secs() / unit * unit)).to_string()
}

fn write(page: &mut String, text: fmt::Arguments<'_>) {
    page.write_fmt(text).expect("a String takes every write");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_as_long_as_people_read_them() {
        assert_eq!(
            [0.0, 9.994, 42.55, 1234.5].map(|it| watts(Some(Watts(it)))),
            ["0.00 W", "9.99 W", "42.5 W", "1234.5 W"]
        );
        assert_eq!(watts(None), "\u{2013}");
        // 3600 J are 1 Wh.
        let hours = [3_600_000, 3_600_000_000, 72_000_000_000, 9_000_000_000_000].map(|it| watt_hours(Microjoules(it)));
        assert_eq!(hours, ["0.001 Wh", "1.000 Wh", "20.0 Wh", "2.50 kWh"]);
        let times = [12, 200, 7_385, 439_262].map(|seconds| duration(Duration::from_secs(seconds)));
        assert_eq!(times, ["12s", "3m 20s", "2h 3m", "5days 2h"]);
    }
}
