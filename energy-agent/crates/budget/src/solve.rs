//! The level at which the nodes draw a given power together: exact, by sorting the levels at which nodes have enough.

use crate::permille::Permille;

/// A node that draws `min(wish, floor + level * (most - floor))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    pub floor: f64,
    pub most: f64,
    pub wish: f64,
}

impl Share {
    pub fn at(&self, level: f64) -> f64 {
        self.wish.min(self.floor + level * (self.most - self.floor).max(0.0))
    }

    /// The level at which it has all it wishes for.
    fn enough(&self) -> f64 {
        ((self.wish - self.floor) / (self.most - self.floor)).min(1.0)
    }

    fn can_be_lowered(&self) -> bool {
        self.most > self.floor && self.wish > self.floor
    }
}

fn total(shares: &[Share], level: f64) -> f64 {
    shares.iter().map(|share| share.at(level)).sum()
}

/// What all draw at their floors.
pub fn floors(tiers: &[Vec<Share>]) -> f64 {
    tiers.iter().map(|shares| total(shares, 0.0)).sum()
}

/// A level for each tier, such that all draw at most `goal`. Floors come first; then tiers are served from the last to the
/// first.
pub fn levels(tiers: &[Vec<Share>], goal: f64) -> Vec<Permille> {
    let mut left = goal - floors(tiers);
    let mut levels = vec![Permille::FLOOR; tiers.len()];
    for (shares, level) in tiers.iter().zip(&mut levels).rev() {
        let lowest = total(shares, 0.0);
        let need = total(shares, 1.0) - lowest;
        if left <= 0.0 {
            continue;
        }
        if need <= left {
            *level = Permille::OPEN;
            left -= need;
        } else {
            *level = Permille::at_most(level_for(shares, lowest, lowest + left));
            left = 0.0;
        }
    }
    levels
}

/// The level at which these draw `goal`, which lies between what they draw at 0 (`lowest`) and at 1.
fn level_for(shares: &[Share], lowest: f64, goal: f64) -> f64 {
    let mut rising: Vec<(f64, &Share)> =
        shares.iter().filter(|share| share.can_be_lowered()).map(|share| (share.enough(), share)).collect();
    rising.sort_unstable_by(|(a, _), (b, _)| a.total_cmp(b));
    // Between two of these levels the sum is a straight line: `fixed + level * slope`.
    let mut fixed = lowest;
    let mut slope: f64 = rising.iter().map(|(_, share)| share.most - share.floor).sum();
    for (enough, share) in rising {
        if fixed + enough * slope >= goal {
            return (goal - fixed) / slope;
        }
        fixed += enough * (share.most - share.floor);
        slope -= share.most - share.floor;
    }
    1.0
}
