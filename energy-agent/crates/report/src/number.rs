//! The only numeric conversions of this crate, and numbers as people read them.

/// A whole number as a float, for figures that people read.
#[expect(clippy::cast_precision_loss, reason = "53 bits of microjoules are 2,500 kWh to the microjoule")]
pub(crate) const fn float(value: u64) -> f64 {
    value as f64
}

/// A number of things as a float.
#[expect(clippy::cast_precision_loss, reason = "nobody has 2^53 things")]
pub(crate) const fn count(value: usize) -> f64 {
    value as f64
}

/// The whole number nearest to `value`; 0 below it and for what is no number.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "float-to-int `as` saturates and maps NaN to 0"
)]
pub(crate) fn nearest(value: f64) -> u64 {
    value.round() as u64
}

/// With commas between thousands: `1,182.41`. What is rounded to zero has no sign.
#[must_use]
pub fn grouped(value: f64, decimals: usize) -> String {
    let text = format!("{:.decimals$}", value.abs());
    let (whole, fraction) = text.split_once('.').map_or((text.as_str(), None), |(whole, part)| (whole, Some(part)));
    let mut out = String::new();
    if value < 0.0 && text.bytes().any(|byte| (b'1'..=b'9').contains(&byte)) {
        out.push('-');
    }
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    if let Some(fraction) = fraction {
        out.push('.');
        out.push_str(fraction);
    }
    out
}

/// With three significant digits at least, for what may be small: costs, kilowatt-hours.
pub(crate) fn significant(value: f64) -> String {
    let size = value.abs();
    let decimals = [(100.0, 0), (10.0, 1), (1.0, 2), (0.1, 3), (0.01, 4), (0.001, 5), (0.0001, 6)];
    let decimals = decimals.iter().find(|(least, _)| size >= *least).map_or(8, |(_, decimals)| *decimals);
    if size <= 0.0 { "0".to_owned() } else { grouped(value, decimals) }
}

/// A length of time: `850 ms`, `12.3 s`, `31 min 29 s`, `2 h 05 min`.
pub(crate) fn duration(seconds: f64) -> String {
    let whole = nearest(seconds);
    match seconds {
        s if s < 1.0 => format!("{:.0} ms", s * 1000.0),
        s if s < 120.0 => format!("{s:.1} s"),
        s if s < 7200.0 => format!("{} min {:02} s", whole / 60, whole % 60),
        s if s < 172_800.0 => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
        _ => format!("{} d {:02} h", whole / 86_400, whole % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_and_durations_have_units() {
        assert_eq!(grouped(1_234_567.891, 2), "1,234,567.89");
        assert_eq!(grouped(999.0, 0), "999");
        assert_eq!(grouped(-1000.5, 1), "-1,000.5");
        assert_eq!([grouped(-0.004, 2), grouped(-0.0, 2), grouped(-0.006, 2)], ["0.00", "0.00", "-0.01"]);
        assert_eq!(significant(0.000_123), "0.000123");
        assert_eq!(significant(12.345), "12.3");
        assert_eq!(significant(1234.5), "1,234");
        assert_eq!(significant(0.0), "0");
        for (seconds, text) in [
            (0.85, "850 ms"),
            (12.34, "12.3 s"),
            (1889.0, "31 min 29 s"),
            (7500.0, "2 h 05 min"),
            (180_000.0, "2 d 02 h"),
        ] {
            assert_eq!(duration(seconds), text);
        }
    }
}
