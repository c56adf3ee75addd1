//! When a counter stands still: it has gained nothing for [`STILL_FOR`] and [`STILL_READINGS`] readings, in which the thing it
//! counts for cannot have used nothing. Pure, on the caller's clock.

use std::time::Duration;

use energy_model::zone::ZoneKind;

/// RAPL counts every millisecond, a GPU ten times a second; a board's controller may take seconds for it.
pub(crate) const STILL_FOR: Duration = Duration::from_secs(10);
/// Where readings are far apart.
pub(crate) const STILL_READINGS: u32 = 3;

/// How long one counter has gained nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Still {
    time: Duration,
    readings: u32,
}

impl Still {
    /// A reading `elapsed` after the one before gained something, or nothing. Whether the counter stands still now.
    pub fn read(&mut self, gained: bool, elapsed: Duration) -> bool {
        if gained {
            *self = Self::default();
        } else {
            self.time = self.time.saturating_add(elapsed);
            self.readings = self.readings.saturating_add(1);
        }
        self.stands()
    }

    #[must_use]
    pub fn stands(&self) -> bool {
        self.time >= STILL_FOR && self.readings >= STILL_READINGS
    }

    /// For people: since when.
    #[must_use]
    pub fn describe(&self) -> String {
        format!("the counter has gained nothing for {} s ({} readings)", self.time.as_secs(), self.readings)
    }
}

/// Where a zone is: kind, socket and die.
pub type ZonePlace = (ZoneKind, Option<u32>, Option<u32>);

/// Which of the zones that stand still are broken: a package and a whole platform draw some power whatever runs there. Memory
/// may draw none where a socket has none, and cores and graphics where they are asleep: those are broken with their package.
#[must_use]
pub fn broken(zones: &[(ZonePlace, Still)]) -> Vec<bool> {
    let package_stands = |place: &ZonePlace| {
        zones.iter().any(|((kind, socket, die), still)| {
            *kind == ZoneKind::Package && (socket, die) == (&place.1, &place.2) && still.stands()
        })
    };
    let judge = |(place, still): &(ZonePlace, Still)| {
        still.stands()
            && match place.0 {
                ZoneKind::Package | ZoneKind::Psys | ZoneKind::Platform | ZoneKind::Gpu => true,
                ZoneKind::Dram | ZoneKind::Core | ZoneKind::Uncore => package_stands(place),
            }
    };
    zones.iter().map(judge).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(readings: u32, elapsed: Duration) -> Still {
        let mut still = Still::default();
        (0..readings).for_each(|_| _ = still.read(false, elapsed));
        still
    }

    #[test]
    fn ten_seconds_and_three_readings_without_a_gain_are_a_standstill() {
        let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
        assert!(!after(9, second).stands() && after(10, second).stands());
        assert!(!after(2, minute).stands() && after(3, minute).stands());
        assert!(!after(99, Duration::from_millis(100)).stands() && after(100, Duration::from_millis(100)).stands());
        let mut still = after(30, second);
        assert!(!still.read(true, second), "it counts again");
        assert!(!still.read(false, second));
    }

    #[test]
    fn memory_that_draws_nothing_is_broken_with_its_package_alone() {
        let (stands, counts) = (after(10, Duration::from_secs(1)), Still::default());
        let zone = |kind, socket, still| ((kind, Some(socket), None), still);
        let zones = [
            zone(ZoneKind::Package, 0, counts),
            zone(ZoneKind::Dram, 0, stands),
            zone(ZoneKind::Package, 1, stands),
            zone(ZoneKind::Dram, 1, stands),
            zone(ZoneKind::Core, 1, counts),
            ((ZoneKind::Psys, None, None), stands),
        ];
        assert_eq!(broken(&zones), [false, false, true, true, false, true]);
    }
}
