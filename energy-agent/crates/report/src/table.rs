//! A run as aligned lines for a terminal.

use crate::figures::{Row, facts, heading, rows};
use crate::number::grouped;
use crate::run::Run;

/// Lines for a terminal; the caller makes foreign text harmless.
#[must_use]
pub fn table(run: &Run) -> String {
    let [what, when] = heading(run);
    let mut text = format!("{what}\n{when}\n\n");
    let rows = rows(run);
    if rows.is_empty() {
        text.push_str("no energy was seen\n");
    } else {
        text.push_str(&energies(run, &rows));
    }
    let facts = facts(run);
    if !facts.is_empty() {
        text.push('\n');
    }
    let width = facts.iter().map(|(name, _)| name.chars().count()).max().unwrap_or_default();
    for (name, fact) in &facts {
        text.push_str(&format!("{name:<width$}  {fact}\n"));
    }
    let pods = pods(run);
    if !pods.is_empty() {
        text.push_str(&format!("\n{pods}"));
    }
    for warning in &run.warnings {
        text.push_str(&format!("\nwarning {}: {}", warning.code, warning.message));
    }
    if !run.warnings.is_empty() {
        text.push('\n');
    }
    text
}

/// The columns that hold something, and the cells of each row.
pub(crate) fn cells(run: &Run, rows: &[Row]) -> (Vec<&'static str>, Vec<Vec<String>>) {
    let (measured, estimated) = (rows.iter().any(|row| !row.estimated), rows.iter().any(|row| row.estimated));
    let mut columns = Vec::new();
    if measured {
        columns.push("joules");
    }
    if estimated {
        columns.push("estimated J");
    }
    columns.extend(["kWh", "mean W", "peak W"]);
    let least = if run.is_at_least() { "at least " } else { "" };
    let cells = rows.iter().map(|row| {
        let joules = |estimated: bool| {
            if row.estimated == estimated { format!("{least}{}", grouped(row.joules, 3)) } else { String::new() }
        };
        let watts = |watts: Option<f64>| watts.map_or_else(String::new, |watts| grouped(watts, 2));
        let mut cells = Vec::new();
        if measured {
            cells.push(joules(false));
        }
        if estimated {
            cells.push(joules(true));
        }
        cells.extend([grouped(row.kwh, 6), watts(row.mean_watts), watts(row.peak_watts)]);
        cells
    });
    (columns, cells.collect())
}

fn energies(run: &Run, rows: &[Row]) -> String {
    let (columns, cells) = cells(run, rows);
    let names: Vec<String> = rows.iter().map(|row| row.name.clone()).collect();
    aligned(&columns, &names, &cells)
}

/// A first column of names, and columns of numbers.
fn aligned(columns: &[&str], names: &[String], cells: &[Vec<String>]) -> String {
    let width = |text: &str| text.chars().count();
    let first = names.iter().map(|name| width(name)).max().unwrap_or_default();
    let widths: Vec<usize> = columns
        .iter()
        .enumerate()
        .map(|(index, column)| cells.iter().map(|row| width(&row[index])).max().unwrap_or_default().max(width(column)))
        .collect();
    let mut text = format!("{:first$}", "");
    for (column, width) in columns.iter().zip(&widths) {
        text.push_str(&format!("  {column:>width$}"));
    }
    text.push('\n');
    for (name, row) in names.iter().zip(cells) {
        let mut line = format!("{name:<first$}");
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(&format!("  {cell:>width$}"));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// The pods, where there are several.
fn pods(run: &Run) -> String {
    const MOST: usize = 20;
    if run.pods.len() < 2 {
        return String::new();
    }
    let shown = run.pods.iter().take(MOST);
    let names: Vec<String> = shown.clone().map(|pod| pod.name.clone()).collect();
    let both = run.pods.iter().any(|pod| pod.estimated_microjoules > 0);
    let joules = |microjoules: u64| grouped(crate::number::float(microjoules) / 1e6, 3);
    let cells: Vec<Vec<String>> = shown
        .map(|pod| {
            let mut cells = vec![joules(pod.microjoules)];
            if both {
                cells.push(joules(pod.estimated_microjoules));
            }
            cells.extend([
                crate::number::duration((pod.end - pod.start).max(0.0)),
                pod.node.clone(),
                pod.phase.clone(),
            ]);
            cells
        })
        .collect();
    let mut columns = vec!["joules"];
    if both {
        columns.push("estimated J");
    }
    columns.extend(["time", "node", "phase"]);
    let mut text = aligned(&columns, &names, &cells);
    if run.pods.len() > MOST {
        text.push_str(&format!("{} more pods are in the JSON\n", run.pods.len() - MOST));
    }
    text
}
