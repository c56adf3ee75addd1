//! What one row says in numbers, and the columns that show them. `None` is what is not known.

/// Of one row, with all that is in it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Of CPUs and memory.
    pub cpu_watts: Option<f64>,
    pub gpu_watts: Option<f64>,
    /// Of CPUs, memory and GPUs, since the agent started.
    pub joules: Option<f64>,
    /// Percent of one CPU.
    pub cpu_percent: Option<f64>,
}

/// What the last digit of a column leaves of a half.
const LEAST_WATTS: f64 = 0.0005;
const LEAST_PERCENT: f64 = 0.05;
const LEAST_HOURS: f64 = 0.0005;
const JOULES_OF_AN_HOUR: f64 = 3600.0;

impl Figures {
    pub fn total_watts(&self) -> Option<f64> {
        sum(self.cpu_watts, self.gpu_watts)
    }

    pub fn watt_hours(&self) -> Option<f64> {
        self.joules.map(|joules| joules / JOULES_OF_AN_HOUR)
    }

    pub fn add(&mut self, other: &Self) {
        let Self { cpu_watts, gpu_watts, joules, cpu_percent } = other;
        self.cpu_watts = sum(self.cpu_watts, *cpu_watts);
        self.gpu_watts = sum(self.gpu_watts, *gpu_watts);
        self.joules = sum(self.joules, *joules);
        self.cpu_percent = sum(self.cpu_percent, *cpu_percent);
    }

    /// Power and CPU time are known, and would both be shown as 0.
    pub fn is_idle(&self) -> bool {
        let (watts, percent) = (self.total_watts(), self.cpu_percent);
        let is_zero = |value: Option<f64>, least: f64| value.is_none_or(|value| value < least);
        (watts.is_some() || percent.is_some()) && is_zero(watts, LEAST_WATTS) && is_zero(percent, LEAST_PERCENT)
    }

    pub fn used_energy(&self) -> bool {
        self.watt_hours().is_some_and(|hours| hours >= LEAST_HOURS)
    }
}

pub fn sum(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    a.into_iter().chain(b).reduce(|a, b| a + b)
}

/// A column of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// CPUs, memory and GPUs together.
    Total,
    CpuWatts,
    GpuWatts,
    CpuPercent,
    WattHours,
}

impl Column {
    /// Without GPUs the total is all there is.
    pub const fn shown(gpus: bool) -> &'static [Self] {
        const WITHOUT: [Column; 3] = [Column::Total, Column::CpuPercent, Column::WattHours];
        const WITH: [Column; 5] =
            [Column::Total, Column::CpuWatts, Column::GpuWatts, Column::CpuPercent, Column::WattHours];
        if gpus { &WITH } else { &WITHOUT }
    }

    pub const fn heading(self) -> &'static str {
        match self {
            Self::Total => "TOTAL W",
            Self::CpuWatts => "CPU W",
            Self::GpuWatts => "GPU W",
            Self::CpuPercent => "CPU%",
            Self::WattHours => "Wh",
        }
    }

    pub const fn width(self) -> u16 {
        match self {
            Self::Total | Self::CpuWatts | Self::GpuWatts => 8,
            Self::CpuPercent => 7,
            Self::WattHours => 10,
        }
    }

    pub fn value(self, figures: &Figures) -> Option<f64> {
        match self {
            Self::Total => figures.total_watts(),
            Self::CpuWatts => figures.cpu_watts,
            Self::GpuWatts => figures.gpu_watts,
            Self::CpuPercent => figures.cpu_percent,
            Self::WattHours => figures.watt_hours(),
        }
    }

    pub fn text(self, figures: &Figures) -> String {
        let Some(value) = self.value(figures) else { return "-".to_owned() };
        match self {
            Self::CpuPercent => format!("{value:.1}"),
            _ if value < 100.0 => format!("{value:.3}"),
            _ => format!("{value:.1}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_adds_nothing_and_is_no_zero() {
        let mut cpu = Figures { cpu_watts: Some(1.5), joules: Some(3600.0), ..Figures::default() };
        assert_eq!((cpu.total_watts(), cpu.gpu_watts), (Some(1.5), None));
        cpu.add(&Figures { gpu_watts: Some(200.0), joules: Some(7200.0), ..Figures::default() });
        let texts: Vec<String> = Column::shown(true).iter().map(|column| column.text(&cpu)).collect();
        assert_eq!(texts, ["201.5", "1.500", "200.0", "-", "3.000"]);
    }

    #[test]
    fn idle_is_what_shows_zeros_only() {
        let of = |watts, percent| Figures { cpu_watts: watts, cpu_percent: percent, ..Figures::default() };
        assert!(
            of(Some(0.0), None).is_idle() && of(Some(0.0004), Some(0.04)).is_idle() && of(None, Some(0.0)).is_idle()
        );
        assert!(!of(Some(0.0006), Some(0.0)).is_idle() && !of(Some(0.0), Some(0.06)).is_idle());
        assert!(!of(None, None).is_idle(), "nothing is known");
        let used = |joules| Figures { joules: Some(joules), ..Figures::default() }.used_energy();
        // 1.8 J are 0.0005 Wh.
        assert!(used(1.9) && !used(1.7));
    }
}
