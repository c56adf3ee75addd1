//! Learns what each zone draws when nothing runs, from the power seen at quiet times, or at least from how power grows
//! with load; and keeps it across restarts.

use std::collections::{BTreeMap, VecDeque};

use anyhow::{Context, Result, anyhow, ensure};
use serde::{Deserialize, Serialize};

use crate::json_fault::json_fault;
use crate::zone::Zone;

/// Load below which an interval is quiet.
const QUIET_BELOW_PPM: u64 = 50_000;
/// Quiet intervals before they are believed: half a minute at the default interval.
const QUIET_MIN: usize = 30;
/// Quiet intervals remembered; older ones make room, so that the baseline follows the machine.
const QUIET_KEPT: usize = 300;
/// The percentile of quiet power that is the baseline: low, because even quiet intervals did some work; not the lowest,
/// because one short reading must not set it.
const QUIET_PERCENTILE: usize = 10;
/// Load bins of equal width, in which power is averaged for the fit, so that a long time at one load does not outweigh
/// the rest.
const BINS: usize = 20;
const BIN_WIDTH_PPM: u64 = 50_000;
/// Intervals in a bin before it takes part in the fit.
const BIN_MIN: u64 = 5;
/// A bin that holds as many is halved, so that it forgets.
const BIN_FULL: u64 = 600;
/// Intervals in all bins before a fit is tried, and the spread of load they have to span.
const FIT_MIN: u64 = 60;
const FIT_SPREAD_PPM: u64 = 200_000;
/// 100 kW: more than any zone draws; a higher reading is no power.
const POWER_MAX_UW: u64 = 100_000_000_000;
/// More zones than any node has; a file with more is not ours.
const ZONES_MAX: usize = 1024;
const VERSION: u32 = 1;

/// Idle power per zone.
///
/// In this order: known beforehand ([`Self::set_known`]); the low percentile of power at quiet times; the intercept of a
/// straight line through power over load; what an earlier boot had learned, but no more than the lowest power seen since.
#[derive(Clone, Debug)]
pub struct IdleModel {
    boot_id: String,
    zones: BTreeMap<String, ZoneModel>,
}

/// What is kept in the state directory.
#[derive(Debug, Serialize, Deserialize)]
struct File<Zones> {
    version: u32,
    boot_id: String,
    zones: Zones,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct ZoneModel {
    /// Learned in another boot. Firmware settings or the kernel may have changed since: used until this boot knows better.
    #[serde(default)]
    inherited_uw: Option<u64>,
    /// Lowest power seen in this boot.
    #[serde(default)]
    lowest_uw: Option<u64>,
    /// Power of the last quiet intervals.
    quiet_uw: VecDeque<u64>,
    bins: [Bin; BINS],
    #[serde(skip)]
    known_uw: Option<u64>,
    /// What the fields above amount to.
    #[serde(skip)]
    learned_uw: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Bin {
    count: u64,
    sum_ppm: u64,
    sum_uw: u64,
}

impl IdleModel {
    /// Knows nothing yet. `boot_id` is the content of `/proc/sys/kernel/random/boot_id`.
    #[must_use]
    pub fn new(boot_id: &str) -> Self {
        Self { boot_id: boot_id.to_owned(), zones: BTreeMap::new() }
    }

    /// Continues from what [`Self::to_json`] wrote: where it left off within the same boot; after a reboot with the old
    /// idle power as a starting point, to be learned anew.
    ///
    /// # Errors
    /// When the text is not what `to_json` writes, or holds numbers that no zone can have shown.
    pub fn load(text: &str, boot_id: &str) -> Result<Self> {
        let file: File<BTreeMap<String, ZoneModel>> = serde_json::from_str(text)
            .map_err(|error| anyhow!(json_fault(&error)))
            .context("reading the idle model")?;
        ensure!(file.version == VERSION, "version {} of the idle model, expected {VERSION}", file.version);
        ensure!(file.zones.len() <= ZONES_MAX, "{} zones in the idle model", file.zones.len());
        let same_boot = file.boot_id == boot_id;
        let mut zones = BTreeMap::new();
        for (name, mut zone) in file.zones {
            ensure!(zone.is_plausible(), "implausible numbers in the idle model of zone {name}");
            zone.learned_uw = zone.learn();
            if !same_boot {
                zone = ZoneModel { inherited_uw: zone.baseline_uw(), ..ZoneModel::default() };
            }
            zones.insert(name, zone);
        }
        Ok(Self { boot_id: boot_id.to_owned(), zones })
    }

    /// What [`Self::load`] reads.
    #[must_use]
    pub fn to_json(&self) -> String {
        let file = File { version: VERSION, boot_id: self.boot_id.clone(), zones: &self.zones };
        serde_json::to_string(&file).expect("numbers and maps with text keys are always JSON")
    }

    /// Takes the idle power of a zone from elsewhere, such as the model of an estimate. It is not learned and not kept.
    pub(crate) fn set_known(&mut self, zone: &Zone, idle_uw: u64) {
        self.zones.entry(name(zone)).or_default().known_uw = Some(idle_uw);
    }

    /// Learns from the mean power of one interval and the busy share of the zone's CPUs in it, in millionths.
    ///
    /// Hardware that is on draws something: zero is a counter that stood still, and is not learned from.
    pub fn observe(&mut self, zone: &Zone, power_uw: u64, busy_ppm: u64) {
        let model = self.zones.entry(name(zone)).or_default();
        if model.known_uw.is_some() || power_uw == 0 || power_uw > POWER_MAX_UW {
            return;
        }
        let busy_ppm = busy_ppm.min(1_000_000);
        model.lowest_uw = Some(model.lowest_uw.map_or(power_uw, |lowest| lowest.min(power_uw)));
        if busy_ppm < QUIET_BELOW_PPM {
            if model.quiet_uw.len() == QUIET_KEPT {
                model.quiet_uw.pop_front();
            }
            model.quiet_uw.push_back(power_uw);
        }
        let bin = usize::try_from(busy_ppm / BIN_WIDTH_PPM).map_or(BINS - 1, |index| index.min(BINS - 1));
        model.bins[bin].add(busy_ppm, power_uw);
        model.learned_uw = model.learn();
    }

    /// Power the zone draws when nothing runs, microwatts; `None` until it is known.
    #[must_use]
    pub fn baseline_uw(&self, zone: &Zone) -> Option<u64> {
        self.zones.get(&name(zone))?.baseline_uw()
    }

    /// `learned` when the idle power of all these zones is known, else `ratio`; the label `idle`.
    #[must_use]
    pub(crate) fn method_in_force<'a>(&self, zones: impl IntoIterator<Item = &'a Zone>) -> &'static str {
        let mut attributed = zones.into_iter().filter(|zone| zone.kind.attributed()).peekable();
        let any = attributed.peek().is_some();
        if any && attributed.all(|zone| self.baseline_uw(zone).is_some()) { "learned" } else { "ratio" }
    }
}

impl ZoneModel {
    fn baseline_uw(&self) -> Option<u64> {
        let inherited = || Some(self.inherited_uw?.min(self.lowest_uw.unwrap_or(u64::MAX)));
        self.known_uw.or(self.learned_uw).or_else(inherited)
    }

    fn learn(&self) -> Option<u64> {
        self.quiet().or_else(|| self.intercept())
    }

    fn quiet(&self) -> Option<u64> {
        if self.quiet_uw.len() < QUIET_MIN {
            return None;
        }
        let mut powers: Vec<u64> = self.quiet_uw.iter().copied().collect();
        let rank = (powers.len() - 1) * QUIET_PERCENTILE / 100;
        Some(*powers.select_nth_unstable(rank).1)
    }

    /// Where the least-squares line through the bins' means meets no load.
    fn intercept(&self) -> Option<u64> {
        let bins = || self.bins.iter().filter(|bin| bin.count >= BIN_MIN);
        let (first, last) = (bins().next()?, bins().next_back()?);
        let spread_ppm = (last.sum_ppm / last.count).saturating_sub(first.sum_ppm / first.count);
        if bins().map(|bin| bin.count).sum::<u64>() < FIT_MIN || spread_ppm < FIT_SPREAD_PPM {
            return None;
        }
        let (mut n, mut sx, mut sy, mut sxx, mut sxy) = (0_i128, 0_i128, 0_i128, 0_i128, 0_i128);
        for bin in bins() {
            let (x, y) = (i128::from(bin.sum_ppm / bin.count), i128::from(bin.sum_uw / bin.count));
            (n, sx, sy, sxx, sxy) = (n + 1, sx + x, sy + y, sxx + x * x, sxy + x * y);
        }
        let intercept = (sy * sxx - sx * sxy).checked_div(n * sxx - sx * sx)?;
        Some(u64::try_from(intercept.max(0)).ok()?.min(self.lowest_uw?))
    }

    fn is_plausible(&self) -> bool {
        let power = |uw: &u64| (1..=POWER_MAX_UW).contains(uw);
        self.quiet_uw.len() <= QUIET_KEPT
            && self.quiet_uw.iter().all(power)
            && self.lowest_uw.iter().all(power)
            && self.inherited_uw.is_none_or(|uw| uw <= POWER_MAX_UW)
            && self.bins.iter().all(Bin::is_plausible)
    }
}

impl Bin {
    fn add(&mut self, busy_ppm: u64, power_uw: u64) {
        if self.count >= BIN_FULL {
            *self = Self { count: self.count / 2, sum_ppm: self.sum_ppm / 2, sum_uw: self.sum_uw / 2 };
        }
        self.count += 1;
        self.sum_ppm += busy_ppm;
        self.sum_uw += power_uw;
    }

    const fn is_plausible(&self) -> bool {
        self.count <= BIN_FULL && self.sum_ppm <= self.count * 1_000_000 && self.sum_uw <= self.count * POWER_MAX_UW
    }
}

/// The name of a zone in the file; constant across restarts.
fn name(zone: &Zone) -> String {
    let Zone { kind, socket: _, die: _, source, path } = zone;
    format!("{} {} {path}", source.as_str(), kind.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zone::{Source, ZoneKind};

    fn zone() -> Zone {
        Zone { kind: ZoneKind::Package, socket: Some(0), die: None, source: Source::Rapl, path: "intel-rapl:0".into() }
    }

    /// A model that saw 1, 2, .. `count` W (once each, quiet).
    fn quiet(count: u64) -> IdleModel {
        let mut model = IdleModel::new("boot-1");
        for watts in 1..=count {
            model.observe(&zone(), watts * 1_000_000, 49_999);
        }
        model
    }

    #[test]
    fn idle_power_is_the_tenth_percentile_of_quiet_times() {
        assert_eq!(quiet(29).baseline_uw(&zone()), None);
        // The 3rd lowest of 30: two tenths of them are below 3.9.
        assert_eq!(quiet(30).baseline_uw(&zone()), Some(3_000_000));
        // 300 are kept: of 101..=400 W the 30th lowest.
        assert_eq!(quiet(400).baseline_uw(&zone()), Some(130_000_000));
    }

    #[test]
    fn without_quiet_times_a_line_through_power_over_load_tells_it() {
        // 20 W and 1 W per percent of load, at 30, 40, 50 %: 50, 60, 70 W.
        let mut model = IdleModel::new("boot-1");
        for round in 0..20 {
            assert_eq!(model.baseline_uw(&zone()), None, "after {round} rounds");
            for percent in [30, 40, 50] {
                model.observe(&zone(), (20 + percent) * 1_000_000, percent * 10_000);
            }
        }
        assert_eq!(model.baseline_uw(&zone()), Some(20_000_000));
    }

    #[test]
    fn a_line_through_one_load_tells_nothing() {
        let mut model = IdleModel::new("boot-1");
        for round in 0..1_000 {
            model.observe(&zone(), 50_000_000, 500_000 + round % 150 * 1_000);
        }
        assert_eq!(model.baseline_uw(&zone()), None);
    }

    #[test]
    fn a_line_is_no_lower_than_zero_and_no_higher_than_the_lowest_power() {
        let fitted = |low_w: u64, high_w: u64| {
            let mut model = IdleModel::new("boot-1");
            for _ in 0..30 {
                model.observe(&zone(), low_w * 1_000_000, 200_000);
                model.observe(&zone(), high_w * 1_000_000, 800_000);
            }
            model.baseline_uw(&zone())
        };
        // Through (20 %, 10 W) and (80 %, 100 W): -20 W. Through (20 %, 60 W) and (80 %, 30 W): 70 W.
        assert_eq!(fitted(10, 100), Some(0));
        assert_eq!(fitted(60, 30), Some(30_000_000));
    }

    #[test]
    fn a_counter_that_stands_still_teaches_nothing() {
        let mut model = quiet(30);
        for power_uw in [0, u64::MAX] {
            for _ in 0..300 {
                model.observe(&zone(), power_uw, 0);
            }
        }
        assert_eq!(model.baseline_uw(&zone()), Some(3_000_000));
    }

    #[test]
    fn what_is_known_is_not_learned() {
        let mut model = IdleModel::new("boot-1");
        model.set_known(&zone(), 7);
        for _ in 0..100 {
            model.observe(&zone(), 5_000_000, 0);
        }
        assert_eq!(model.baseline_uw(&zone()), Some(7));
    }

    #[test]
    fn a_restart_goes_on_where_it_was() {
        let model = quiet(40);
        let mut loaded = IdleModel::load(&model.to_json(), "boot-1").unwrap();
        assert_eq!(loaded.to_json(), model.to_json());
        // 40 quiet values: the 4th lowest. 60 more of 1 W: 1 W.
        assert_eq!(loaded.baseline_uw(&zone()), Some(4_000_000));
        for _ in 0..60 {
            loaded.observe(&zone(), 1_000_000, 0);
        }
        assert_eq!(loaded.baseline_uw(&zone()), Some(1_000_000));
    }

    #[test]
    fn a_reboot_starts_from_the_old_idle_power_and_learns_anew() {
        let mut loaded = IdleModel::load(&quiet(40).to_json(), "boot-2").unwrap();
        assert_eq!(loaded.baseline_uw(&zone()), Some(4_000_000));
        // Lower power than that was seen, under load even: it cannot be right any more.
        loaded.observe(&zone(), 3_500_000, 900_000);
        assert_eq!(loaded.baseline_uw(&zone()), Some(3_500_000));
        for _ in 0..30 {
            loaded.observe(&zone(), 9_000_000, 0);
        }
        assert_eq!(loaded.baseline_uw(&zone()), Some(9_000_000));
        // A third boot that learned nothing passes on what it had.
        let second = IdleModel::load(&quiet(40).to_json(), "boot-2").unwrap();
        let third = IdleModel::load(&second.to_json(), "boot-3").unwrap();
        assert_eq!(third.baseline_uw(&zone()), Some(4_000_000));
    }

    #[test]
    fn a_damaged_file_is_an_error() {
        let whole = quiet(40).to_json();
        for end in 0..whole.len() {
            assert!(IdleModel::load(&whole[..end], "boot-1").is_err());
        }
        for (from, to) in [("\"version\":1", "\"version\":2"), ("[1000000,", "[0,"), ("[1000000,", "[-1,")] {
            assert!(whole.contains(from));
            assert!(IdleModel::load(&whole.replacen(from, to, 1), "boot-1").is_err(), "{to}");
        }
        let huge = whole.replacen("\"count\":40", "\"count\":18446744073709551615", 1);
        assert!(huge != whole && IdleModel::load(&huge, "boot-1").is_err());
    }

    #[test]
    fn the_method_is_learned_once_every_divided_zone_is_known() {
        let model = quiet(30);
        let dram = Zone { kind: ZoneKind::Dram, ..zone() };
        let psys = Zone { kind: ZoneKind::Psys, ..zone() };
        assert_eq!(model.method_in_force([&zone(), &psys]), "learned");
        assert_eq!(model.method_in_force([&zone(), &dram]), "ratio");
        assert_eq!(model.method_in_force([&psys]), "ratio");
    }
}
