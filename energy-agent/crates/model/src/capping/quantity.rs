//! The whole numbers that knobs are written with into base units, and into words for people: the one place where they are
//! converted.

use std::fmt;

use super::knob::Knob;
use crate::units::{Watts, ratio};

/// A knob's value in its base unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Quantity {
    Hertz(u64),
    Power(Watts),
    /// CPUs' worth of run time a second.
    Cpus(f64),
}

impl Quantity {
    /// `value` is in the unit of `knob`.
    #[must_use]
    pub fn of(knob: &Knob, value: u64) -> Self {
        match knob {
            Knob::GpuClock(_) => Self::Hertz(value.saturating_mul(1_000_000)),
            Knob::CpuFrequency(_) => Self::Hertz(value.saturating_mul(1_000)),
            Knob::GpuPower(_) => Self::Power(Watts(ratio(value, 1_000))),
            Knob::RaplLimit(_) => Self::Power(Watts(ratio(value, 1_000_000))),
            Knob::CpuQuota(_) => Self::Cpus(ratio(value, 1_000)),
        }
    }

    /// The unit's name, as metrics and JSON spell it.
    #[must_use]
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Hertz(_) => "hertz",
            Self::Power(_) => "watts",
            Self::Cpus(_) => "cpus",
        }
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hertz(hertz) => write!(f, "{} MHz", hertz / 1_000_000),
            Self::Power(Watts(watts)) => write!(f, "{watts:.1} W"),
            Self::Cpus(cpus) => write!(f, "{cpus} CPUs"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_knob_is_told_in_its_base_unit() {
        let uuid = || "GPU-1".into();
        assert_eq!(Quantity::of(&Knob::GpuClock(uuid()), 1_410), Quantity::Hertz(1_410_000_000));
        assert_eq!(Quantity::of(&Knob::CpuFrequency(0), 2_400_000), Quantity::Hertz(2_400_000_000));
        assert_eq!(Quantity::of(&Knob::GpuPower(uuid()), 250_500), Quantity::Power(Watts(250.5)));
        assert_eq!(Quantity::of(&Knob::RaplLimit(uuid()), 95_500_000), Quantity::Power(Watts(95.5)));
        assert_eq!(Quantity::of(&Knob::CpuQuota(uuid()), 2_500), Quantity::Cpus(2.5));
    }

    #[test]
    fn people_read_megahertz_watts_and_cpus() {
        assert_eq!(Quantity::Hertz(1_410_000_000).to_string(), "1410 MHz");
        assert_eq!(Quantity::Power(Watts(250.0)).to_string(), "250.0 W");
        assert_eq!(Quantity::Cpus(0.25).to_string(), "0.25 CPUs");
    }
}
