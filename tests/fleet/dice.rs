//! Kills at moments that nobody has chosen.

use std::thread::sleep;
use std::time::Duration;

/// How many there are: five, or what `cargo xtask fleet --kills` says.
pub fn kills() -> u32 {
    let asked = std::env::var("TEST_FLEET_KILLS").ok();
    asked.map_or(5, |text| text.parse().unwrap_or_else(|error| panic!("TEST_FLEET_KILLS={text}: {error}")))
}

/// Numbers of a linear congruential generator, which begins elsewhere in each run.
pub struct Dice(u64);

impl Dice {
    pub fn new() -> Self {
        Self(u64::from(std::process::id()))
    }

    pub fn below(&mut self, end: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from((self.0 >> 33) % u64::from(end)).unwrap()
    }

    pub fn wait(&mut self) {
        sleep(Duration::from_millis(self.below(1200).into()));
    }
}
