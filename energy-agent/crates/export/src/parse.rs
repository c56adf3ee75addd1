//! Reads the text format back, strictly: `top` and the tests take exactly what [`crate::text`] writes and nothing looser.
//! Every line is a comment or a sample; anything else is an error that names the line.
//!
//! Written by hand because crates that read the format turn values into floats, which are not exact.

use anyhow::{Context as _, Result, bail, ensure};

/// One sample line. The value stays text, so that exact decimals stay exact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedSample {
    pub name: String,
    pub labels: Vec<(String, String)>,
    pub value: String,
}

impl ParsedSample {
    /// Value of a label; empty where the sample does not have it.
    #[must_use]
    pub fn label(&self, name: &str) -> &str {
        self.labels.iter().find(|(label, _)| label == name).map_or("", |(_, value)| value)
    }

    /// The value as a float; [`samples`] has seen that it is a finite number.
    #[must_use]
    pub fn number(&self) -> f64 {
        self.value.parse().unwrap_or(f64::NAN)
    }
}

/// The samples of a whole page, in its order.
///
/// # Errors
/// When a line is neither a comment nor a well-formed sample with a finite value.
pub fn samples(page: &str) -> Result<Vec<ParsedSample>> {
    ensure!(page.is_empty() || page.ends_with('\n'), "last line has no end");
    let mut samples = Vec::new();
    for (index, line) in page.split_terminator('\n').enumerate() {
        if !line.starts_with("# ") {
            samples.push(sample(line).with_context(|| format!("line {}: {line:?}", index + 1))?);
        }
    }
    Ok(samples)
}

fn sample(line: &str) -> Result<ParsedSample> {
    let (name, mut rest) = split_name(line)?;
    let mut labels = Vec::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            let (label, after) = split_name(rest)?;
            let quoted = after.strip_prefix("=\"").context("a label without =\"")?;
            let (value, after) = unquote(quoted)?;
            labels.push((label.to_owned(), value));
            match after.as_bytes().first() {
                Some(b',') => rest = &after[1..],
                Some(b'}') => {
                    rest = &after[1..];
                    break;
                }
                _ => bail!("labels that do not end"),
            }
        }
    }
    let value = rest.strip_prefix(' ').context("no value")?;
    ensure!(value.parse::<f64>().is_ok_and(f64::is_finite), "value {value:?} is not a number");
    Ok(ParsedSample { name: name.to_owned(), labels, value: value.to_owned() })
}

fn split_name(text: &str) -> Result<(&str, &str)> {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    ensure!(name.starts_with(|c: char| !c.is_ascii_digit()), "no name at {text:?}");
    Ok((name, rest))
}

/// The value up to the closing quote, unescaped, and what follows the quote.
fn unquote(text: &str) -> Result<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Ok((value, &text[at + 1..])),
            '\\' => value.push(match chars.next() {
                Some((_, 'n')) => '\n',
                Some((_, c @ ('\\' | '"'))) => c,
                _ => bail!("an invalid escape"),
            }),
            c => value.push(c),
        }
    }
    bail!("a label value that does not end")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read_with_its_escapes() {
        let page = "# HELP a A.\na 1\na_b{c=\"d\\\\\\\"\\n e\",f=\"},\"} 0.500000\n";
        let read = samples(page).unwrap();
        assert_eq!(read.len(), 2);
        assert_eq!((read[1].name.as_str(), read[1].value.as_str()), ("a_b", "0.500000"));
        assert_eq!((read[1].label("c"), read[1].label("f"), read[1].label("g")), ("d\\\"\n e", "},", ""));
    }

    #[test]
    fn what_the_writer_never_writes_is_refused_with_its_line() {
        for line in
            ["a", "a NaN", "a +Inf", "a  1", "a 1 2", "a{} 1", "a{b=\"c\" 1", "a{b=\"\\t\"} 1", "1a 1", "<p>", "", "#x"]
        {
            let error = format!("{:#}", samples(&format!("ok 1\n{line}\n")).unwrap_err());
            assert!(error.starts_with("line 2: "), "{line:?} gave {error}");
        }
        assert!(samples("a 1").is_err());
    }
}
