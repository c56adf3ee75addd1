//! The report as aligned text: groups of rows with name, status and detail, long details on continuation lines, each remedy on
//! its own.

use std::env;
use std::io::{self, IsTerminal as _, Write};

use energy_model::printable::steers;
use ratatui::crossterm::terminal;

use super::{CheckRow, CheckStatus, Report};

/// Widths of the first two columns with the blanks around them; the longest name and the longest status word fit.
const NAME: usize = 18;
const STATUS: usize = 10;
/// Columns where the output is no terminal and `COLUMNS` is not set.
const WIDTH: usize = 100;
/// Longer lines are hard to read.
const MAX_TERMINAL_WIDTH: usize = 160;
/// Below this the text column has no room left.
const MIN_WIDTH: usize = 50;

/// The table and the verdict. Coloured on a terminal unless `NO_COLOR` is set; as wide as `COLUMNS` or the terminal.
pub fn write(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let terminal = io::stdout().is_terminal();
    let colour = terminal && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let columns = env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok()).filter(|columns| *columns > 0);
    let size =
        || terminal::size().ok().filter(|_| terminal).map(|(width, _)| usize::from(width).min(MAX_TERMINAL_WIDTH));
    let width = columns.or_else(size).unwrap_or(WIDTH).max(MIN_WIDTH);
    write_at(out, report, width, colour)
}

fn write_at(out: &mut impl Write, report: &Report, width: usize, colour: bool) -> io::Result<()> {
    writeln!(out, "{:<NAME$}{:<STATUS$}DETAIL, -> REMEDY", "SOURCE", "STATUS")?;
    let mut group = None;
    for row in &report.checks {
        if group.replace(row.group) != Some(row.group) {
            let title = row.group.as_str();
            if colour { writeln!(out, "\x1b[1m{title}\x1b[0m")? } else { writeln!(out, "{title}")? }
        }
        write_row(out, row, width, colour.then(|| sgr(row.status, report.attribution)))?;
    }
    writeln!(out)?;
    wrap(&report.summary, width).iter().try_for_each(|line| writeln!(out, "{line}"))
}

fn write_row(out: &mut impl Write, row: &CheckRow, width: usize, colour: Option<u8>) -> io::Result<()> {
    let CheckRow { group: _, name, status, detail, remedy } = row;
    let name = format!("  {name}");
    let room = width - NAME - STATUS;
    let mut lines = wrap(detail, room);
    if !remedy.is_empty() {
        let remedy = wrap(remedy, room - 3);
        lines.extend(
            remedy.iter().enumerate().map(|(at, line)| format!("{} {line}", if at == 0 { "->" } else { "  " })),
        );
    }
    let word = format!("{:<STATUS$}", status.as_str());
    let word = match colour {
        Some(colour) => format!("\x1b[{colour}m{word}\x1b[0m"),
        None => word,
    };
    for (at, line) in lines.iter().enumerate() {
        if at == 0 {
            writeln!(out, "{name:<NAME$}{word}{line}")?;
        } else {
            writeln!(out, "{:1$}{line}", "", NAME + STATUS)?;
        }
    }
    Ok(())
}

/// Green, yellow, dim; red for what is missing where energy cannot be attributed, and plain where it can without.
const fn sgr(status: CheckStatus, attribution: bool) -> u8 {
    match status {
        CheckStatus::Ok => 32,
        CheckStatus::Fallback => 33,
        CheckStatus::Missing if attribution => 0,
        CheckStatus::Missing => 31,
        CheckStatus::Off => 2,
    }
}

/// Lines of at most `width` characters, broken at blanks; a longer word has a line of its own. Never empty. What would
/// steer a terminal (a process may name itself so) is replaced.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let text = text.replace(|letter: char| steers(letter) && !letter.is_whitespace(), "?");
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("starts with one line");
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::super::CheckGroup;
    use super::*;

    fn report() -> Report {
        let detail = "a\u{1b}b is there, and its detail is longer than fits into the line that it has";
        let checks = vec![
            CheckRow::ok("rapl", "used"),
            CheckRow {
                group: CheckGroup::Capping,
                ..CheckRow::new("perf", CheckStatus::Missing, detail, "do this, then that, and look again")
            },
        ];
        Report {
            attribution: false,
            summary: "Energy CANNOT be attributed. CPU energy: none; usage: none".to_owned(),
            checks,
        }
    }

    fn text(width: usize, colour: bool) -> String {
        let mut out = Vec::new();
        write_at(&mut out, &report(), width, colour).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn long_details_and_remedies_go_on_below_themselves() {
        let expected = [
            "SOURCE            STATUS    DETAIL, -> REMEDY",
            "Metering",
            "  rapl            ok        used",
            "Capping",
            "  perf            missing   a?b is there, and its",
            "                            detail is longer than",
            "                            fits into the line",
            "                            that it has",
            "                            -> do this, then that,",
            "                               and look again",
            "",
            "Energy CANNOT be attributed. CPU energy: none;",
            "usage: none",
        ];
        assert_eq!(text(50, false).lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn only_status_words_and_titles_are_coloured() {
        let text = text(50, true);
        assert_eq!(text.matches('\x1b').count(), 8, "{text}");
        assert!(text.contains("\x1b[1mMetering\x1b[0m\n"), "{text}");
        assert!(text.contains("rapl            \x1b[32mok        \x1b[0mused\n"), "{text}");
        assert!(text.contains("perf            \x1b[31mmissing   \x1b[0ma?b"), "{text}");
    }
}
