//! Unix times as text, in UTC.

use crate::number::nearest;

/// `2026-11-29 16:02:11 UTC`.
pub(crate) fn text(unix: f64) -> String {
    let seconds = nearest(unix);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    format!("{year}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC", second / 3600, second % 3600 / 60, second % 60)
}

/// Year, month and day of a number of days since 1970, by the Gregorian calendar
/// (<https://howardhinnant.github.io/date_algorithms.html#civil_from_days>).
const fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + if month <= 2 { 1 } else { 0 }, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `date -u -d @N` has them.
    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(text(0.0), "1970-01-01 00:00:00 UTC");
        assert_eq!(text(951_782_400.0), "2000-02-29 00:00:00 UTC");
        assert_eq!(text(1_796_000_523.4), "2026-11-30 01:02:03 UTC");
    }
}
