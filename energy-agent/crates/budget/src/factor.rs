//! What a watt that nodes measure is in the building: by a share for supplies and fans, or by the building's meter.

use std::time::Duration;

/// A meter that says less or more than this of what nodes measure measures something else.
const LEAST: f64 = 0.8;
const MOST: f64 = 2.0;
/// How much of the way to a new reading is gone at once: a meter shows power some seconds late.
const STEP: f64 = 0.2;
/// How long the last factor holds without a reading.
const HOLDS: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub struct Factor {
    /// Smoothed, and when the meter was read last.
    last: Option<(f64, Duration)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    pub factor: f64,
    /// There is a meter, and it has said nothing for too long.
    pub stale: bool,
}

impl Factor {
    /// `overhead`: what is drawn beside what nodes measure, as a share of it. `meter`: `None` without one, `Some(None)` where
    /// it does not answer. `nodes`: what nodes measure, in watts.
    pub fn step(&mut self, now: Duration, overhead: f64, meter: Option<Option<f64>>, nodes: f64) -> Scale {
        let stated = 1.0 + overhead;
        let Some(reading) = meter else {
            self.last = None;
            return Scale { factor: stated, stale: false };
        };
        if let Some(watts) = reading.filter(|watts| watts.is_finite() && *watts > 0.0 && nodes > 0.0) {
            let seen = (watts / nodes).clamp(LEAST, MOST);
            let factor = self.last.map_or(seen, |(before, _)| before + STEP * (seen - before));
            self.last = Some((factor, now));
        }
        match self.last {
            Some((factor, at)) if now.saturating_sub(at) <= HOLDS => Scale { factor, stale: false },
            _ => Scale { factor: stated, stale: true },
        }
    }
}
