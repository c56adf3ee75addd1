//! Text that somebody else may have written, such as the name of a cgroup, into what can be printed: no character of it
//! steers a terminal, begins another line or turns the direction of writing.

use std::borrow::Cow;

/// Characters of a foreign word that a message repeats.
const SHOWN: usize = 64;

/// The text with such characters written out, as `\u{1b}`.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.chars().any(steers) {
        return Cow::Borrowed(text);
    }
    let write_out = |character: char| {
        let (own, escaped) =
            if steers(character) { (None, Some(character.escape_default())) } else { (Some(character), None) };
        own.into_iter().chain(escaped.into_iter().flatten())
    };
    text.chars().flat_map(write_out).collect()
}

/// The same line by line, for a text of several lines.
#[must_use]
pub fn printable_lines(text: &str) -> String {
    text.lines().map(printable).collect::<Vec<_>>().join("\n")
}

/// Controls, separators of lines, and what changes the direction of writing
/// (<https://www.unicode.org/reports/tr9/#Directional_Formatting_Characters>).
#[must_use]
pub fn steers(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The beginning of a key or value, for a message or a path.
#[must_use]
pub fn cut(text: &str) -> String {
    let mut cut: String = text.chars().take(SHOWN).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN).is_some() {
        cut.push('…');
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_is_printed_steers_a_terminal() {
        for (text, printed) in [
            ("", ""),
            ("grün, 漢字: \"x\" \\ ", "grün, 漢字: \"x\" \\ "),
            ("a\u{1b}[2Jb\nc\r\t\u{7f}", "a\\u{1b}[2Jb\\nc\\r\\t\\u{7f}"),
            ("\u{9b}31m\u{202e}txt\u{2066}\u{2028}", "\\u{9b}31m\\u{202e}txt\\u{2066}\\u{2028}"),
        ] {
            assert_eq!(printable(text), printed);
        }
        assert_eq!(printable_lines("a\u{7}\nb\n"), "a\\u{7}\nb");
    }
}
