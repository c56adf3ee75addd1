//! Reads the headers `Accept` and `Accept-Encoding` and decides which body a client gets.
//! What cannot be understood counts as not said, and the answer is then the text format without compression.
//!
//! Written by hand because the format depends on the version parameter of OpenMetrics, which crates for these headers
//! do not compare.

use crate::text::Format;

/// How a body is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    Identity,
    Gzip,
}

/// OpenMetrics when the client names it and likes it no less than the text format; else text.
#[must_use]
pub fn format(accept: &str) -> Format {
    let (mut open_metrics, mut text) = (0, None::<(u8, u16)>);
    for (range, parameters) in elements(accept) {
        let quality = quality(parameters);
        let version = parameter(parameters, "version");
        let specificity = match &*range {
            "application/openmetrics-text" if version.is_none_or(|version| version == "1.0.0") => {
                open_metrics = open_metrics.max(quality);
                continue;
            }
            "text/plain" if version.is_none_or(|version| version == "0.0.4") => 2,
            "text/*" => 1,
            "*/*" => 0,
            _ => continue,
        };
        // The most specific range decides, whatever its quality (RFC 9110, 12.5.1).
        text = text.max(Some((specificity, quality)));
    }
    if open_metrics > 0 && open_metrics >= text.map_or(0, |(_, quality)| quality) {
        Format::OpenMetrics
    } else {
        Format::Text
    }
}

/// A client that names HTML, and likes it no less than JSON: a browser.
#[must_use]
pub(crate) fn prefers_html(accept: &str) -> bool {
    let named = |wanted: &[&str]| {
        let ranges = elements(accept).filter(|(range, _)| wanted.contains(&&**range));
        ranges.map(|(_, parameters)| quality(parameters)).max().unwrap_or(0)
    };
    let html = named(&["text/html", "application/xhtml+xml"]);
    html > 0 && html >= named(&["application/json", "application/*"])
}

/// Gzip when the client allows it and does not prefer the body as it is.
#[must_use]
pub fn coding(accept_encoding: &str) -> Coding {
    let (mut gzip, mut any, mut identity) = (None, None, None);
    for (name, parameters) in elements(accept_encoding) {
        let place = match &*name {
            "gzip" | "x-gzip" => &mut gzip,
            "*" => &mut any,
            "identity" => &mut identity,
            _ => continue,
        };
        *place = Some(quality(parameters));
    }
    let gzip = gzip.or(any).unwrap_or(0);
    if gzip > 0 && gzip >= identity.unwrap_or(0) { Coding::Gzip } else { Coding::Identity }
}

/// Elements of a comma-separated header, each with what follows its first semicolon; names in lower case.
fn elements(header: &str) -> impl Iterator<Item = (String, &str)> {
    header.split(',').map(|element| {
        let (name, parameters) = element.split_once(';').unwrap_or((element, ""));
        (name.trim().to_ascii_lowercase(), parameters)
    })
}

fn parameter<'a>(parameters: &'a str, name: &str) -> Option<&'a str> {
    parameters.split(';').find_map(|parameter| {
        let (key, value) = parameter.split_once('=')?;
        key.trim().eq_ignore_ascii_case(name).then(|| value.trim().trim_matches('"'))
    })
}

/// The weight `q` in thousandths; 1000 when absent, 0 when it is no number from 0 to 1.
fn quality(parameters: &str) -> u16 {
    let Some(text) = parameter(parameters, "q") else { return 1000 };
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if fraction.len() > 3 || !digits(fraction) {
        return 0;
    }
    match whole {
        "1" if fraction.bytes().all(|byte| byte == b'0') => 1000,
        "0" => format!("{fraction:0<3}").parse().unwrap_or(0),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openmetrics_is_for_those_who_name_it_and_do_not_prefer_text() {
        let prometheus_3 = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
            application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for accept in [
            prometheus_3,
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            "Application/OpenMetrics-Text",
            "application/openmetrics-text;q=0.5, */*;q=0.1",
            "application/openmetrics-text;version=\"1.0.0\", text/plain",
        ] {
            assert_eq!(format(accept), Format::OpenMetrics, "{accept}");
        }
        for accept in [
            "",
            "*/*",
            "text/plain;version=0.0.4",
            "text/html,application/xhtml+xml,*/*;q=0.8",
            "application/json",
            "application/openmetrics-text;q=0",
            "application/openmetrics-text;q=0.4, text/plain;q=0.5",
            "application/openmetrics-text;version=0.0.1",
            "application/openmetrics-text;q=many",
            ";;,,=;q",
        ] {
            assert_eq!(format(accept), Format::Text, "{accept}");
        }
    }

    #[test]
    fn the_most_specific_range_weighs_the_text_format() {
        assert_eq!(format("application/openmetrics-text;q=0.5, text/plain;q=0.3, */*;q=0.9"), Format::OpenMetrics);
    }

    #[test]
    fn html_is_for_browsers() {
        let firefox = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
        for accept in [firefox, "TEXT/HTML", "application/json;q=0.5, text/html"] {
            assert!(prefers_html(accept), "{accept}");
        }
        for accept in ["", "*/*", "application/json", "text/*", "text/html;q=0", "text/html;q=0.5, application/json"] {
            assert!(!prefers_html(accept), "{accept}");
        }
    }

    #[test]
    fn gzip_is_for_those_who_allow_it() {
        for header in ["gzip", "deflate, GZIP;q=0.5", "*", "br;q=1.0, gzip;q=0.001", "gzip;q=1.000"] {
            assert_eq!(coding(header), Coding::Gzip, "{header}");
        }
        for header in ["", "gzip;q=0", "gzip; q=0.000, identity", "*;q=0", "gzip;q=0, *", "identity, gzip;q=0.5", "br"]
        {
            assert_eq!(coding(header), Coding::Identity, "{header}");
        }
    }
}
