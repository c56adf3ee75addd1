//! Levels as they are written: whole thousandths of the way from a node's floor to its most.

/// 1000: open, no limit at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Permille(u16);

impl Permille {
    pub const FLOOR: Self = Self(0);
    pub const OPEN: Self = Self(1000);

    /// More than 1000 is 1000.
    #[must_use]
    pub const fn new(permille: u16) -> Self {
        if permille > 1000 { Self::OPEN } else { Self(permille) }
    }

    /// Rounded down, so that limits never add up to more than was asked for.
    #[must_use]
    pub(crate) fn at_most(level: f64) -> Self {
        // A hair more, as 0.42 * 1000 is 419.99999999999994.
        let permille = (level * 1000.0 + 1e-6).clamp(0.0, 1000.0);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it lies within 0 and 1000")]
        Self(permille as u16)
    }

    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }

    #[must_use]
    pub fn level(self) -> f64 {
        f64::from(self.0) / 1000.0
    }

    #[must_use]
    pub fn is_open(self) -> bool {
        self == Self::OPEN
    }

    /// The limit of a node at this level.
    #[must_use]
    pub fn limit(self, floor: f64, most: f64) -> f64 {
        if self.is_open() { most } else { floor + self.level() * (most - floor) }
    }
}
