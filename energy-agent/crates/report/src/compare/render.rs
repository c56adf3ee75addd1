//! A comparison as text: a table for a terminal, Markdown for a pull request, CSV for a program. JSON is the comparison itself.

use super::number::plain;
use super::{Comparison, GroupRow};
use crate::stats::Summary;

/// A column of the table.
struct TextColumn {
    title: String,
    cell: fn(&GroupRow) -> Option<String>,
}

/// Lines with aligned columns, the claims and the notes.
#[must_use]
pub fn table(comparison: &Comparison) -> String {
    let (titles, rows) = cells(comparison);
    let width = |column: usize| {
        let texts = rows.iter().map(|row| &row[column]).chain([&titles[column]]);
        texts.map(|text| text.chars().count()).max().unwrap_or_default()
    };
    let mut text = String::new();
    for row in [&titles].into_iter().chain(&rows) {
        let line: Vec<String> = row
            .iter()
            .enumerate()
            .map(|(column, cell)| {
                let width = width(column);
                if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
            })
            .collect();
        text.push_str(line.join("  ").trim_end());
        text.push('\n');
    }
    for (number, claim) in comparison.claims.iter().enumerate() {
        text.push_str(if number == 0 { "\n" } else { "" });
        text.push_str(&format!("{}\n", claim.text));
    }
    for (number, note) in comparison.notes.iter().enumerate() {
        text.push_str(if number == 0 { "\n" } else { "" });
        text.push_str(&format!("note: {} ({})\n", note.message, note.code));
    }
    text
}

/// A table and lists.
#[must_use]
pub fn markdown(comparison: &Comparison) -> String {
    let (titles, rows) = cells(comparison);
    let line = |cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|cell| escaped(cell)).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let mut text = line(&titles);
    let rule: Vec<String> =
        (0..titles.len()).map(|column| if column == 0 { ":--" } else { "--:" }.to_owned()).collect();
    text.push_str(&format!("| {} |\n", rule.join(" | ")));
    rows.iter().for_each(|row| text.push_str(&line(row)));
    let items = comparison.claims.iter().map(|claim| escaped(&claim.text));
    let notes =
        comparison.notes.iter().map(|note| format!("Note: {} ({})", escaped(&note.message), escaped(&note.code)));
    for (number, item) in items.chain(notes).enumerate() {
        text.push_str(if number == 0 { "\n" } else { "" });
        text.push_str(&format!("- {item}\n"));
    }
    text
}

/// A line for each group, with mean, half interval, deviation, least and greatest of each figure.
#[must_use]
pub fn csv(comparison: &Comparison) -> String {
    let mut text = "name,runs,estimated,dominated,relative".to_owned();
    for (name, _) in FIGURES {
        for part in ["mean", "half_interval_95", "stddev", "min", "max"] {
            text.push_str(&format!(",{name}_{part}"));
        }
    }
    text.push_str("\r\n");
    for row in &comparison.rows {
        let dominated = row.is_dominated.map_or(String::new(), |is_dominated| is_dominated.to_string());
        let relative = row.relative.map_or(String::new(), |relative| relative.to_string());
        text.push_str(&format!("{},{},{},{dominated},{relative}", quoted(&row.name), row.n, row.estimated));
        for (_, figure) in FIGURES {
            let summary = figure(row).as_ref();
            let part = |value: fn(&Summary) -> Option<f64>| {
                summary.and_then(value).map_or(String::new(), |value| value.to_string())
            };
            let parts = [
                part(|summary| Some(summary.mean)),
                part(|summary| summary.half),
                part(|summary| summary.stddev),
                part(|summary| Some(summary.min)),
                part(|summary| Some(summary.max)),
            ];
            text.push_str(&format!(",{}", parts.join(",")));
        }
        text.push_str("\r\n");
    }
    text
}

type RowFigure = (&'static str, fn(&GroupRow) -> &Option<Summary>);
/// All figures of a row, by the name of their column.
const FIGURES: [RowFigure; 10] = [
    ("seconds", |row| &row.seconds),
    ("joules", |row| &row.joules),
    ("cpu_joules", |row| &row.cpu_joules),
    ("gpu_joules", |row| &row.gpu_joules),
    ("watts", |row| &row.watts),
    ("peak_watts", |row| &row.peak_watts),
    ("edp_joule_seconds", |row| &row.edp),
    ("joules_per_work", |row| &row.joules_per_work),
    ("cost", |row| &row.cost),
    ("grams_co2", |row| &row.grams_co2),
];

/// The titles, and the cells of each row. A column that no row has is left out.
fn cells(comparison: &Comparison) -> (Vec<String>, Vec<Vec<String>>) {
    let unit = comparison.unit.as_deref().unwrap_or("work");
    let currency = if comparison.currency.is_empty() { String::new() } else { format!(" {}", comparison.currency) };
    let columns = [
        ("NAME".to_owned(), (|row| Some(row.name.clone())) as fn(&GroupRow) -> Option<String>),
        ("RUNS".to_owned(), |row| Some(row.n.to_string())),
        ("TIME s".to_owned(), |row| spread(row.seconds.as_ref())),
        ("ENERGY J".to_owned(), energy),
        ("CPU J".to_owned(), |row| mean(row.cpu_joules.as_ref())),
        ("GPU J".to_owned(), |row| mean(row.gpu_joules.as_ref())),
        ("MEAN W".to_owned(), |row| mean(row.watts.as_ref())),
        ("PEAK W".to_owned(), |row| mean(row.peak_watts.as_ref())),
        ("EDP Js".to_owned(), |row| mean(row.edp.as_ref())),
        (format!("J/{unit}"), |row| spread(row.joules_per_work.as_ref())),
        (format!("COST{currency}"), |row| mean(row.cost.as_ref())),
        ("gCO2".to_owned(), |row| mean(row.grams_co2.as_ref())),
        ("RELATIVE".to_owned(), |row| row.relative.map(|relative| format!("{relative:.2}"))),
        ("PARETO".to_owned(), |row| row.is_dominated.map(|is| if is { "dominated" } else { "front" }.to_owned())),
    ]
    .map(|(title, cell)| TextColumn { title, cell });
    let used: Vec<&TextColumn> =
        columns.iter().filter(|column| comparison.rows.iter().any(|row| (column.cell)(row).is_some())).collect();
    let titles = used.iter().map(|column| column.title.clone()).collect();
    let cells =
        |row: &GroupRow| used.iter().map(|column| (column.cell)(row).unwrap_or_else(|| "-".to_owned())).collect();
    (titles, comparison.rows.iter().map(cells).collect())
}

fn energy(row: &GroupRow) -> Option<String> {
    let text = spread(row.joules.as_ref())?;
    Some(if row.estimated { format!("{text} est.") } else { text })
}

fn mean(summary: Option<&Summary>) -> Option<String> {
    summary.map(|summary| plain(summary.mean))
}

/// The mean and half of its interval in percent.
fn spread(summary: Option<&Summary>) -> Option<String> {
    let summary = summary?;
    let half = summary.relative().map(|half| format!(" +- {:.1} %", half * 100.0));
    Some(format!("{}{}", plain(summary.mean), half.unwrap_or_default()))
}

/// Nothing of a name is markup, and none begins a line.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for character in text.chars() {
        match character {
            '<' => escaped.push_str("&lt;"),
            '&' => escaped.push_str("&amp;"),
            '\\' | '|' | '`' | '*' | '_' | '[' | ']' | '#' | '@' => escaped.extend(['\\', character]),
            character if character.is_control() => escaped.push(' '),
            character => escaped.push(character),
        }
    }
    escaped
}

/// RFC 4180.
fn quoted(text: &str) -> String {
    if text.contains(['"', ',', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}
