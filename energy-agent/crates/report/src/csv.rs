//! Runs as CSV (RFC 4180): one line for each energy, and the totals of each run.

use std::borrow::Cow;

use crate::figures::{Row, rows};
use crate::number::float;
use crate::run::{Energy, Part, Run};

/// Lines with a heading; the last column is the number of the run.
#[must_use]
pub fn csv(runs: &[Run]) -> String {
    let mut text =
        "subject,node,part,zone,source,estimated,at_least,start,end,joules,kwh,mean_watts,peak_watts,run\r\n"
            .to_owned();
    for (number, run) in (1..).zip(runs) {
        add(&mut text, number, run);
    }
    text
}

fn add(text: &mut String, number: u32, run: &Run) {
    let seconds = run.seconds();
    let subject = match &run.subject.namespace {
        Some(namespace) => format!("{namespace}/{}", run.subject.name),
        None => run.subject.name.clone(),
    };
    let watts = |watts: Option<f64>| watts.map_or_else(String::new, |watts| format!("{watts:.3}"));
    let mut line =
        |node: &str, part: &str, zone: &str, source: &str, estimated: bool, microjoules: u64, peak: Option<f64>| {
            let joules = float(microjoules) / 1e6;
            let cells = [
                cell(&subject),
                cell(node),
                cell(part),
                cell(zone),
                cell(source),
                estimated.to_string().into(),
                run.is_at_least().to_string().into(),
                format!("{:.3}", run.start).into(),
                format!("{:.3}", run.end).into(),
                format!("{joules:.6}").into(),
                format!("{:.9}", joules / 3.6e6).into(),
                watts((seconds > 0.0).then(|| joules / seconds)).into(),
                watts(peak).into(),
                number.to_string().into(),
            ];
            text.push_str(&cells.join(","));
            text.push_str("\r\n");
        };
    for Energy { part, zone, node, source, estimated, microjoules, peak_watts } in &run.energy {
        line(node, part_name(*part), zone, source, *estimated, *microjoules, *peak_watts);
    }
    for Row { estimated, is_total, .. } in rows(run) {
        if is_total {
            line("", "total", "", "", estimated, run.microjoules(estimated), None);
        }
    }
}

const fn part_name(part: Part) -> &'static str {
    match part {
        Part::Package => "package",
        Part::Dram => "dram",
        Part::Other => "other",
        Part::Gpu => "gpu",
        Part::Idle => "idle",
    }
}

/// A cell of foreign text. What a spreadsheet would take for a formula gets an apostrophe before it.
fn cell(text: &str) -> Cow<'_, str> {
    let formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let text = if formula { Cow::Owned(format!("'{text}")) } else { Cow::Borrowed(text) };
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")).into() } else { text }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn formulas_and_quotes_are_text() {
        assert_eq!(cell("=1+1"), "'=1+1");
        assert_eq!(cell("a,\"b\""), "\"a,\"\"b\"\"\"");
        assert_eq!(cell("plain"), "plain");
    }

    proptest! {
        /// Reading the quoted cell by RFC 4180 gives the text, and none begins a formula.
        #[test]
        fn a_cell_is_read_back(text in "[a=+@,\"\r\n\t-]{0,8}") {
            let written = cell(&text).into_owned();
            let inner = match written.strip_prefix('"') {
                Some(quoted) => quoted.strip_suffix('"').unwrap_or_default().replace("\"\"", "\""),
                None => written.clone(),
            };
            prop_assert!(!inner.starts_with(['=', '+', '-', '@', '\t', '\r']));
            prop_assert_eq!(inner.strip_prefix('\'').unwrap_or(&inner), &text);
            prop_assert!(written.starts_with('"') || !written.contains([',', '"', '\n', '\r']));
        }
    }
}
