//! What was done how often.

/// In the order of the first time.
#[derive(Default)]
pub struct Tally(Vec<(&'static str, u64)>);

impl Tally {
    pub fn add(&mut self, what: &'static str, count: u64) {
        match self.0.iter_mut().find(|(name, _)| *name == what) {
            Some((_, sum)) => *sum += count,
            None => self.0.push((what, count)),
        }
    }

    pub fn of(&self, what: &str) -> u64 {
        self.0.iter().find(|(name, _)| *name == what).map_or(0, |(_, count)| *count)
    }

    pub fn merge(&mut self, other: &Self) {
        other.0.iter().for_each(|(what, count)| self.add(what, *count));
    }

    pub fn text(&self) -> String {
        self.0.iter().map(|(what, count)| format!("{count} {what}")).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_a_thing_add_up() {
        let (mut all, mut round) = (Tally::default(), Tally::default());
        round.add("kills", 2);
        round.add("restores", 1);
        all.merge(&round);
        all.merge(&round);
        assert_eq!((all.text().as_str(), all.of("kills"), all.of("ends")), ("4 kills, 2 restores", 4, 0));
    }
}
