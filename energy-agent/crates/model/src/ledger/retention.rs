//! How long what has ended keeps its row: for a time, as long as there are not too many.

use std::time::Duration;

/// Bounds on the rows of what has ended.
#[derive(Clone, Copy, Debug)]
pub struct Retention {
    pub time: Duration,
    /// Most rows; the oldest go first.
    pub max: usize,
}

impl Retention {
    /// Takes out of `ended` whatever is to go by now. Each is with the time at which it ended; of the same time the lesser
    /// goes first.
    pub(crate) fn take_due<T: Ord>(self, ended: &mut Vec<(Duration, T)>, now: Duration) -> impl Iterator<Item = T> {
        ended.sort_unstable();
        let late = ended.partition_point(|(since, _)| now.saturating_sub(*since) >= self.time);
        let excess = ended.len().saturating_sub(self.max);
        ended.drain(..late.max(excess)).map(|(_, gone)| gone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(max: usize, ended: &[(u64, char)], now: u64) -> (String, String) {
        let retention = Retention { time: Duration::from_secs(10), max };
        let mut ended: Vec<_> = ended.iter().map(|&(since, name)| (Duration::from_secs(since), name)).collect();
        let gone = retention.take_due(&mut ended, Duration::from_secs(now)).collect();
        (gone, ended.into_iter().map(|(_, name)| name).collect())
    }

    #[test]
    fn what_ended_long_ago_goes_and_the_oldest_of_too_many() {
        let ended = [(7, 'c'), (1, 'a'), (7, 'b'), (9, 'd')];
        assert_eq!(due(9, &ended, 10), (String::new(), "abcd".to_owned()));
        assert_eq!(due(9, &ended, 11), ("a".to_owned(), "bcd".to_owned()));
        assert_eq!(due(2, &ended, 11), ("ab".to_owned(), "cd".to_owned()));
        assert_eq!(due(2, &ended, 17), ("abc".to_owned(), "d".to_owned()));
        assert_eq!(due(0, &ended, 9), ("abcd".to_owned(), String::new()));
    }
}
