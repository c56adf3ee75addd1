//! A run as Markdown, for a pull request or an issue.

use crate::figures::{facts, heading, rows};
use crate::run::Run;
use crate::table::cells;

/// A table, the figures below it as a list, and warnings as notes.
#[must_use]
pub fn markdown(run: &Run) -> String {
    let [what, when] = heading(run);
    let mut text = format!("**{}**\n\n{}\n\n", escaped(&what), escaped(&when));
    let rows = rows(run);
    let (columns, cells) = cells(run, &rows);
    if rows.is_empty() {
        text.push_str("no energy was seen\n");
    } else {
        text.push_str(&format!("| | {} |\n| --- |{}\n", columns.join(" | "), " ---: |".repeat(columns.len())));
    }
    for (row, cells) in rows.iter().zip(&cells) {
        let mark = if row.is_total { "**" } else { "" };
        text.push_str(&format!("| {mark}{}{mark} | {} |\n", escaped(&row.name), cells.join(" | ")));
    }
    let facts = facts(run);
    if !facts.is_empty() {
        text.push('\n');
    }
    for (name, fact) in facts {
        text.push_str(&format!("- {}: {}\n", escaped(&name), escaped(&fact)));
    }
    for warning in &run.warnings {
        text.push_str(&format!("\n> {}: {}\n", escaped(&warning.code), escaped(&warning.message)));
    }
    text
}

/// Foreign text that begins no markup, link, mention or cell of its own.
#[must_use]
pub fn escaped(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '@' => out.push_str("&#64;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '#' | '!' | '~' => {
                out.push('\\');
                out.push(character);
            }
            character if character.is_control() => out.push(' '),
            character => out.push(character),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_names_are_no_markup() {
        let name = "a|b<img src=x>\n# [t](http://e) @org `c`";
        assert_eq!(escaped(name), "a\\|b&lt;img src=x&gt; \\# \\[t\\](http://e) &#64;org \\`c\\`");
    }
}
