//! Power readings into energy by the trapezoid rule, in whole microjoules: what is less is carried over.

use energy_model::units::Microjoules;

/// The sum so far, in halves of the product of a power unit and a time unit.
#[derive(Debug)]
pub struct Trapezoid {
    sum: u128,
    per_microjoule: u128,
}

impl Trapezoid {
    /// `products`: that many times the power unit and the time unit are a microjoule.
    pub const fn new(products: u128) -> Self {
        Self { sum: 0, per_microjoule: 2 * products }
    }

    /// The power went from one value to the other in this time.
    pub fn add(&mut self, from: u64, to: u64, time: u64) {
        self.sum += (u128::from(from) + u128::from(to)) * u128::from(time);
    }

    /// The whole microjoules; the rest stays.
    pub fn take(&mut self) -> Microjoules {
        let whole = self.sum / self.per_microjoule;
        self.sum %= self.per_microjoule;
        Microjoules(u64::try_from(whole).unwrap_or(u64::MAX))
    }
}
