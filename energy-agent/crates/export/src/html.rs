//! What pages for people share: their style, their head, and text that cannot become markup.

use std::fmt::Display;

/// Seconds after which a browser asks again.
const REFRESH: u64 = 5;
const STYLE: &str = include_str!("page.css");

/// Text that nothing of is taken for markup, between tags and in double quotes.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The beginning of a page, up to its body. The title is escaped; `style` is what this page has in addition.
pub(crate) fn head(title: impl Display, style: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\">\
         <meta http-equiv=\"refresh\" content=\"{REFRESH}\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>{}</title>\n<style>\n{STYLE}{style}</style></head>\n<body>\n",
        escaped(&title.to_string()),
    )
}
