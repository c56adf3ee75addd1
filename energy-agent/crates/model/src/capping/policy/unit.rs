//! Units of a policy's numbers, and what a number looks like that was meant in another one.

/// The unit that a key names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A plain number.
    None,
    Watts,
    Megahertz,
    Seconds,
    Hours,
    Percent,
    Cpus,
}

/// Another unit of the same quantity: its name, its signs, and how much of the key's unit it is.
struct Other(&'static str, &'static [&'static str], f64);

impl Unit {
    /// As it stands behind a number.
    #[must_use]
    pub const fn sign(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Watts => "W",
            Self::Megahertz => "MHz",
            Self::Seconds => "s",
            Self::Hours => "h",
            Self::Percent => "%",
            Self::Cpus => "CPUs",
        }
    }

    const fn others(self) -> &'static [Other] {
        match self {
            Self::None => &[],
            Self::Watts => &[
                Other("milliwatts", &["mW"], 1e-3),
                Other("microwatts", &["uW", "µW"], 1e-6),
                Other("kilowatts", &["kW"], 1e3),
            ],
            Self::Megahertz => &[Other("GHz", &["GHz"], 1e3), Other("kHz", &["kHz"], 1e-3), Other("Hz", &["Hz"], 1e-6)],
            Self::Seconds => &[
                Other("milliseconds", &["ms"], 1e-3),
                Other("minutes", &["m", "min"], 60.0),
                Other("hours", &["h"], 3600.0),
            ],
            Self::Hours => &[
                Other("seconds", &["s"], 1.0 / 3600.0),
                Other("minutes", &["m", "min"], 1.0 / 60.0),
                Other("days", &["d"], 24.0),
            ],
            Self::Percent => &[Other("a share of 1", &[], 100.0)],
            Self::Cpus => &[Other("thousandths of a CPU", &["m"], 1e-3)],
        }
    }

    /// A number with its unit.
    #[must_use]
    pub fn show(self, number: f64) -> String {
        match self {
            Self::None => plain(number),
            Self::Percent => format!("{} %", plain(number)),
            _ => format!("{} {}", plain(number), self.sign()),
        }
    }

    /// For a number outside `min` to `max`: in which other units it would lie within, as `; in milliwatts? 250000 mW is
    /// 250 W`.
    #[must_use]
    pub fn hint(self, number: f64, min: f64, max: f64) -> String {
        let mut hint = String::new();
        for Other(name, signs, size) in self.others() {
            let meant = number * size;
            if (min..=max).contains(&meant) {
                let sign = signs.first().map_or(String::new(), |sign| format!(" {sign}"));
                hint += &format!("; in {name}? {}{sign} is {}", plain(number), self.show(meant));
            }
        }
        hint
    }

    /// The number in this unit that a text such as `250W`, `0.25 kW` or `"250"` stands for.
    #[must_use]
    pub(crate) fn number_in(self, text: &str) -> Option<f64> {
        let text = text.trim();
        let end = text.find(|c: char| !matches!(c, '0'..='9' | '.' | '+' | '-')).unwrap_or(text.len());
        let (number, sign) = text.split_at(end);
        let number: f64 = number.parse().ok()?;
        let sign = sign.trim();
        if sign.is_empty() || sign.eq_ignore_ascii_case(self.sign()) {
            return Some(number);
        }
        let other = |Other(_, signs, size): &Other| signs.contains(&sign).then_some(number * size);
        self.others().iter().find_map(other)
    }
}

/// As people write it: at most six decimals, no zeros at the end, no exponent.
#[must_use]
pub fn plain(number: f64) -> String {
    if !number.is_finite() {
        return number.to_string();
    }
    let text = format!("{number:.6}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}
