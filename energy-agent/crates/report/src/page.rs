//! A run as one HTML page without script: its figures, and its plots above each other on one axis of time.

use crate::chart::{Chart, ChartPanel, Line, Shape, round_top, svg};
use crate::figures::{facts, heading, rows};
use crate::markup::escaped;
use crate::run::{self, Run, Series, SeriesKind};
use crate::table::cells;

/// The panels in their order: title, factor to the unit that is shown, and the top of the axis where it is fixed.
const PANELS: [(run::Panel, &str, f64, Option<f64>); 6] = [
    (run::Panel::GpuUtilization, "GPU utilisation, %", 100.0, Some(100.0)),
    (run::Panel::GpuTemperature, "GPU temperature, °C", 1.0, None),
    (run::Panel::GpuMemoryUtilization, "GPU memory copy utilisation, %", 100.0, Some(100.0)),
    (run::Panel::GpuPower, "GPU power, W", 1.0, None),
    (run::Panel::CpuPower, "CPU power, W", 1.0, None),
    (run::Panel::Clock, "clock and limits, MHz", 1e-6, None),
];
const PANEL_HEIGHT: u32 = 120;

const STYLE: &str = ":root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;\
color:#222;background:#fff}h1{font-size:1.4em;margin-bottom:.2em}table{border-collapse:collapse;margin:1em 0}\
th,td{padding:.25em .8em;text-align:right;border-bottom:1px solid #ddd}th:first-child,td:first-child{text-align:left;padding-left:0}\
tr.total td{font-weight:bold}dt{float:left;clear:left;min-width:9em;color:#666}dd{margin:0 0 .2em 10em}\
.warning{border-left:4px solid #d55e00;padding-left:.7em}svg{max-width:100%;height:auto}footer{color:#666;margin-top:2em}\
@media(prefers-color-scheme:dark){body{color:#d8dade;background:#16181c}th,td{border-color:#33363c}dt,footer{color:#9a9fa8}}";

/// The plots of a run; `None` where it has no curve.
#[must_use]
pub fn plots(run: &Run) -> Option<String> {
    let panels: Vec<ChartPanel> = PANELS
        .iter()
        .filter_map(|(panel, axis, factor, top)| {
            let series: Vec<&Series> = run.series.iter().filter(|series| series.panel == *panel).collect();
            let lines: Vec<Line> = series.into_iter().map(|series| line(run, series, *factor)).collect();
            let highest = lines.iter().flat_map(|line| &line.points).map(|(_, value)| *value).fold(0.0, f64::max);
            let (axis, height, top) = ((*axis).to_owned(), PANEL_HEIGHT, top.unwrap_or_else(|| round_top(highest)));
            (!lines.is_empty()).then_some(ChartPanel { axis, height, top, lines })
        })
        .collect();
    let [title, _] = heading(run);
    (!panels.is_empty()).then(|| svg(&Chart { title, panels }))
}

fn line(run: &Run, series: &Series, factor: f64) -> Line {
    let points = series.points.iter().map(|(at, value)| ((at - run.start).max(0.0), value * factor)).collect();
    let name = if series.node.is_empty() { series.label.clone() } else { format!("{} {}", series.node, series.label) };
    let shape = match series.kind {
        SeriesKind::Reading => Shape::Line,
        SeriesKind::Mean => Shape::Steps,
        SeriesKind::Limit => Shape::Limit,
    };
    Line { name, points, shape }
}

/// The page.
#[must_use]
pub fn page(run: &Run) -> String {
    let [what, when] = heading(run);
    let (what, when) = (escaped(&what), escaped(&when));
    let mut body = format!("<h1>{what}</h1>\n<p>{when}</p>\n");
    let rows = rows(run);
    if rows.is_empty() {
        body.push_str("<p>No energy was seen.</p>\n");
    } else {
        let (columns, cells) = cells(run, &rows);
        let head: String = columns.iter().map(|column| format!("<th>{column}</th>")).collect();
        body.push_str(&format!("<table>\n<tr><th></th>{head}</tr>\n"));
        for (row, cells) in rows.iter().zip(cells) {
            let class = if row.is_total { " class=\"total\"" } else { "" };
            let cells: String = cells.iter().map(|cell| format!("<td>{}</td>", escaped(cell))).collect();
            body.push_str(&format!("<tr{class}><td>{}</td>{cells}</tr>\n", escaped(&row.name)));
        }
        body.push_str("</table>\n");
    }
    let facts = facts(run);
    if !facts.is_empty() {
        body.push_str("<dl>\n");
        for (name, fact) in facts {
            body.push_str(&format!("<dt>{}</dt><dd>{}</dd>\n", escaped(&name), escaped(&fact)));
        }
        body.push_str("</dl>\n");
    }
    for warning in &run.warnings {
        let (code, message) = (escaped(&warning.code), escaped(&warning.message));
        body.push_str(&format!("<p class=\"warning\"><b>{code}</b> {message}</p>\n"));
    }
    body.push_str(&plots(run).unwrap_or_else(|| "<p>No curves: the run has too few readings.</p>\n".to_owned()));
    if run.pods.len() > 1 {
        body.push_str("<table>\n<tr><th>pod</th><th>joules</th><th>estimated J</th><th>node</th></tr>\n");
        let joules = |microjoules: u64| crate::number::grouped(crate::number::float(microjoules) / 1e6, 3);
        for pod in &run.pods {
            let [name, node] = [&pod.name, &pod.node].map(|text| escaped(text));
            let [measured, estimated] = [pod.microjoules, pod.estimated_microjoules].map(joules);
            body.push_str(&format!("<tr><td>{name}</td><td>{measured}</td><td>{estimated}</td><td>{node}</td></tr>\n"));
        }
        body.push_str("</table>\n");
    }
    // Nothing may be loaded or run, whatever a name says.
    let policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{what}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n\
         {body}\n<footer>energy-agent report, run {}</footer>\n</body>\n</html>\n",
        escaped(&run.id)
    )
}
