//! What the owner of a node says its GPUs' clocks were locked to, because no driver reports it: the value of
//! `--capping.gpu-clock-before`.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

const EXPECTED: &str = "expected MIN-MAX in MHz, as in 345-1200 (nvidia-smi's --lock-gpu-clocks=345,1200), or open; for one GPU \
                        UUID=MIN-MAX; several with commas";

/// The clocks of one GPU before anything was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stated {
    /// Not locked.
    Open,
    Locked(ClockRange),
}

/// Both ends in MHz, the lower one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockRange {
    pub min: u32,
    pub max: u32,
}

/// Of all GPUs of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatedClocks {
    /// Of those that are not named.
    others: Option<Stated>,
    by_uuid: BTreeMap<String, Stated>,
}

impl StatedClocks {
    /// `None`: nothing is stated of it.
    #[must_use]
    pub fn of(&self, uuid: &str) -> Option<Stated> {
        self.by_uuid.get(uuid).copied().or(self.others)
    }

    /// The GPUs that are named.
    pub fn uuids(&self) -> impl Iterator<Item = &str> {
        self.by_uuid.keys().map(String::as_str)
    }
}

impl FromStr for StatedClocks {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut clocks = Self::default();
        for part in text.split(',').map(str::trim) {
            let (uuid, stated) = part.split_once('=').map_or((None, part), |(uuid, stated)| (Some(uuid), stated));
            let stated = stated.parse()?;
            let before = match uuid {
                Some(uuid) if !uuid.starts_with("GPU-") => {
                    return Err(format!("{uuid:?} is not the UUID of a GPU, which begins with GPU- (nvidia-smi -L)"));
                }
                Some(uuid) => clocks.by_uuid.insert(uuid.to_owned(), stated),
                None => clocks.others.replace(stated),
            };
            if before.is_some() {
                let whose = uuid.map_or_else(|| "all GPUs have".to_owned(), |uuid| format!("{uuid} has"));
                return Err(format!("{whose} two values; {EXPECTED}"));
            }
        }
        Ok(clocks)
    }
}

impl FromStr for Stated {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "open" {
            return Ok(Self::Open);
        }
        let ends = text.split_once('-').and_then(|(min, max)| Some((min.parse().ok()?, max.parse().ok()?)));
        match ends {
            Some((min, max)) if min <= max && max > 0 => Ok(Self::Locked(ClockRange { min, max })),
            Some((min, max)) => Err(format!("{min}-{max} is not a range; {EXPECTED}")),
            None => Err(format!("{text:?} is not a range; {EXPECTED}")),
        }
    }
}

/// As it is parsed.
impl fmt::Display for Stated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open => f.write_str("open"),
            Self::Locked(ClockRange { min, max }) => write!(f, "{min}-{max}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locked(min: u32, max: u32) -> Stated {
        Stated::Locked(ClockRange { min, max })
    }

    #[test]
    fn a_gpu_that_is_named_has_its_own_range() {
        let clocks: StatedClocks = "345-1200,GPU-a=open, GPU-b=600-600".parse().unwrap();
        let of = |uuid| clocks.of(uuid);
        assert_eq!(
            [of("GPU-a"), of("GPU-b"), of("GPU-c")].map(Option::unwrap),
            [Stated::Open, locked(600, 600), locked(345, 1200)]
        );
        let clocks: StatedClocks = "GPU-a=345-1200".parse().unwrap();
        assert_eq!((clocks.of("GPU-a"), clocks.of("GPU-b")), (Some(locked(345, 1200)), None));
        assert_eq!(StatedClocks::default().of("GPU-a"), None);
    }

    #[test]
    fn what_is_no_range_is_refused_in_a_sentence() {
        for (text, problem) in [
            ("", "\"\" is not a range"),
            ("1200", "\"1200\" is not a range"),
            ("345,1200", "\"345\" is not a range"),
            ("1200-345", "1200-345 is not a range"),
            ("0-0", "0-0 is not a range"),
            ("345-12x0", "\"345-12x0\" is not a range"),
            ("0=345-1200", "\"0\" is not the UUID of a GPU"),
            ("345-1200,open", "all GPUs have two values"),
            ("GPU-a=open,GPU-a=345-1200", "GPU-a has two values"),
        ] {
            let error = text.parse::<StatedClocks>().unwrap_err();
            assert!(error.starts_with(problem), "{text}: {error}");
            assert!(error.contains("345-1200") || error.contains("nvidia-smi -L"), "{error}");
        }
    }

    #[test]
    fn it_is_written_as_it_is_read() {
        for text in ["open", "345-1200"] {
            assert_eq!(text.parse::<Stated>().unwrap().to_string(), text);
        }
    }
}
