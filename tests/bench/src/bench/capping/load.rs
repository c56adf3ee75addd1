//! Loads over time, the same in every run.

use fake_nvml::units::{float, whole};

const SECOND_US: u64 = 1_000_000;

/// Loads of a GPU: from a time on (microseconds since the start) a part of what it can do, 0 to 1.
pub type Steps = Vec<(u64, f64)>;

/// Idle until `from_s`, then everything.
pub fn step(from_s: f64) -> Steps {
    vec![(0, 0.0), (whole(from_s * 1e6), 1.0)]
}

/// Everything for `on` of every `on + off` seconds, from `from_s` until `end_s`; `low` in between.
pub fn bursts(from_s: f64, end_s: f64, (on, off): (f64, f64), low: f64) -> Steps {
    let mut steps = vec![(0, low)];
    let mut at_s = from_s;
    while at_s < end_s {
        steps.extend([(whole(at_s * 1e6), 1.0), (whole((at_s + on) * 1e6), low)]);
        at_s += on + off;
    }
    steps
}

/// Anywhere between `low` and 1, anew each `every_s`; other `seed`s are other noises.
pub fn noise(seed: u64, from_s: f64, end_s: f64, every_s: f64, low: f64) -> Steps {
    let mut steps = vec![(0, 0.0)];
    let (mut at_us, every_us) = (whole(from_s * 1e6), whole(every_s * 1e6).max(SECOND_US / 100));
    while at_us < whole(end_s * 1e6) {
        steps.push((at_us, low + (1.0 - low) * random(seed, at_us / every_us)));
        at_us += every_us;
    }
    steps
}

/// Evenly distributed over 0 to 1 (splitmix64).
fn random(seed: u64, index: u64) -> f64 {
    let mut state = index.wrapping_add(seed << 32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    state = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    float((state ^ (state >> 31)) >> 32) / float(1 << 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_come_and_go() {
        let wanted = vec![(0, 0.0), (2_500_000, 1.0), (7_500_000, 0.0), (12_500_000, 1.0), (17_500_000, 0.0)];
        assert_eq!(bursts(2.5, 20.0, (5.0, 5.0), 0.0), wanted);
    }

    #[test]
    fn noise_lies_between_its_bounds_and_covers_them() {
        let steps = noise(7, 0.0, 1000.0, 1.0, 0.2);
        assert_eq!(steps.len(), 1001);
        let (below, above) = (
            steps.iter().skip(1).filter(|(_, load)| *load < 0.25).count(),
            steps.iter().skip(1).filter(|(_, load)| *load > 0.95).count(),
        );
        assert!(steps.iter().skip(1).all(|(_, load)| (0.2..1.0).contains(load)));
        // A sixteenth each of a thousand: 62, give or take 8.
        assert!((30..100).contains(&below) && (30..100).contains(&above), "{below} {above}");
    }
}
