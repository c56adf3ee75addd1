//! One line of the journal: JSON for people and `jq`, in which the first field is a checksum of the text after it.

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::knob::{Found, Knob};
use super::policy::{Authority, PolicyName};

const PREFIX: &str = "{\"crc\":\"";
/// After the digits of the checksum.
const SUFFIX: &str = "\",";
const DIGITS: usize = 8;
/// Values that may be found: the last one, the one before, and what the device made of each.
const OURS: usize = 4;

/// A knob that is or may be written.
#[derive(Clone, Debug, PartialEq)]
pub struct JournalEntry {
    pub knob: Knob,
    /// The kernel's boot id at that time: nothing that was written outlives it.
    pub boot: String,
    /// [`Found::value`] and [`Found::raw`] before the first write.
    pub original: Option<u64>,
    pub original_raw: String,
    /// [`Found::epoch`] of then: of a cgroup, which one it was.
    pub epoch: u64,
    /// What it was set to last, or was about to be.
    pub written: u64,
    /// All that may be found there and is of the agent: also the value before, and what the device made of it.
    pub ours: Vec<u64>,
    pub policy: PolicyName,
    /// Of the first write; seconds since 1970.
    pub time: u64,
    /// Fields that a newer version wrote.
    pub unknown: Map<String, Value>,
}

/// The fields as they are written.
#[derive(Serialize, Deserialize)]
struct Line {
    boot: String,
    actuator: String,
    device: String,
    original: Option<u64>,
    original_raw: String,
    epoch: u64,
    written: u64,
    ours: Vec<u64>,
    /// Not there for an admin's, as in lines of versions that knew no other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    authority: Option<String>,
    namespace: String,
    policy: String,
    time: u64,
    #[serde(flatten)]
    unknown: Map<String, Value>,
}

impl JournalEntry {
    /// Of a knob as it was found, about to be set to `value`.
    #[must_use]
    pub fn new(knob: &Knob, found: &Found, value: u64, policy: &PolicyName, boot: &str, time: u64) -> Self {
        Self {
            knob: knob.clone(),
            boot: boot.to_owned(),
            original: found.value,
            original_raw: found.raw.clone(),
            epoch: found.epoch,
            written: value,
            ours: vec![value],
            policy: policy.clone(),
            time,
            unknown: Map::new(),
        }
    }

    /// Notes that it is about to be set to `value`; until that has happened, it may still show what it does: `found`.
    pub fn intend(&mut self, value: u64, found: Option<u64>, policy: &PolicyName) {
        add_own(&mut self.ours, value, found);
        self.written = value;
        self.policy = policy.clone();
    }

    /// The line, without its line feed.
    #[must_use]
    pub fn to_line(&self) -> String {
        let Self { knob, boot, original, original_raw, epoch, written, ours, policy, time, unknown } = self;
        let line = Line {
            boot: boot.clone(),
            actuator: knob.actuator().to_owned(),
            device: knob.device(),
            original: *original,
            original_raw: original_raw.clone(),
            epoch: *epoch,
            written: *written,
            ours: ours.clone(),
            authority: (policy.authority != Authority::Admin).then(|| policy.authority.as_str().to_owned()),
            namespace: policy.namespace.to_string(),
            policy: policy.name.to_string(),
            time: *time,
            unknown: unknown.clone(),
        };
        let text = serde_json::to_string(&line).expect("texts and numbers are always JSON");
        seal(&text)
    }

    /// The entry in a line that [`is_whole`].
    ///
    /// # Errors
    /// When it is of a kind that this version does not know.
    pub fn from_line(line: &str) -> Result<Self> {
        let body = body(line)?;
        let line: Line = serde_json::from_str(&format!("{{{body}")).context("not the fields of an entry")?;
        let Line { boot, actuator, device, original, original_raw, epoch, written, ours, .. } = line;
        let knob = knob(&actuator, &device).with_context(|| format!("{actuator} of {device} is not known"))?;
        let authority = match line.authority.as_deref() {
            None => Authority::Admin,
            Some(word) => Authority::of(word).with_context(|| format!("authority {word:?} is not known"))?,
        };
        let policy = PolicyName { authority, namespace: line.namespace.into(), name: line.policy.into() };
        let (time, unknown) = (line.time, line.unknown);
        Ok(Self { knob, boot, original, original_raw, epoch, written, ours, policy, time, unknown })
    }
}

/// Adds a value that is about to be written to those that may be found and are the agent's own. The one that shows now
/// stays, however many writes after it fail.
pub(crate) fn add_own(ours: &mut Vec<u64>, value: u64, found: Option<u64>) {
    let shows = ours.iter().copied().find(|&own| Some(own) == found);
    ours.retain(|&own| own != value && Some(own) != shows);
    ours.splice(0..0, [value].into_iter().chain(shows.filter(|&shows| shows != value)));
    ours.truncate(OURS);
}

/// The boot that a line is of, whatever else is in it.
#[must_use]
pub fn boot_of(line: &str) -> Option<String> {
    let fields: Map<String, Value> = serde_json::from_str(line).ok()?;
    Some(fields.get("boot")?.as_str()?.to_owned())
}

/// Nothing of the line is missing or changed since it was written.
#[must_use]
pub fn is_whole(line: &str) -> bool {
    body(line).is_ok()
}

/// Puts the checksum of the text after it first into a JSON object.
pub fn seal(object: &str) -> String {
    let body = object.strip_prefix('{').expect("an object");
    format!("{PREFIX}{:08x}{SUFFIX}{body}", checksum(body))
}

/// What the checksum of a line is of, if it is right.
fn body(line: &str) -> Result<&str> {
    let rest = line.strip_prefix(PREFIX).context("no checksum")?;
    let Some((sum, rest)) = rest.split_at_checked(DIGITS) else { bail!("no checksum") };
    let body = rest.strip_prefix(SUFFIX).context("no checksum")?;
    ensure!(sum == format!("{:08x}", checksum(body)), "the checksum is wrong");
    Ok(body)
}

fn checksum(text: &str) -> u32 {
    crc32fast::hash(text.as_bytes())
}

/// From [`Knob::actuator`] and [`Knob::device`].
fn knob(actuator: &str, device: &str) -> Option<Knob> {
    Some(match actuator {
        "gpu_locked_clocks" => Knob::GpuClock(device.into()),
        "gpu_power_limit" => Knob::GpuPower(device.into()),
        "cpu_frequency" => Knob::CpuFrequency(device.strip_prefix("policy")?.parse().ok()?),
        "cpu_quota" => Knob::CpuQuota(device.into()),
        "rapl_limit" => Knob::RaplLimit(device.into()),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> JournalEntry {
        JournalEntry {
            knob: Knob::CpuQuota("kubepods/pod \"x\"\n".into()),
            boot: "b1".to_owned(),
            original: None,
            original_raw: "max 100000".to_owned(),
            epoch: 7,
            written: 500,
            ours: vec![500, 750],
            policy: PolicyName { namespace: "team".into(), name: "night".into(), ..PolicyName::default() },
            time: 1_700_000_000,
            unknown: Map::new(),
        }
    }

    #[test]
    fn a_line_is_json_that_gives_the_entry_back() {
        let line = entry().to_line();
        let json: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(json["actuator"], "cpu_quota");
        assert_eq!(json["original_raw"], "max 100000");
        assert!(!line.contains('\n'), "{line}");
        assert_eq!(JournalEntry::from_line(&line).unwrap(), entry());
    }

    #[test]
    fn the_value_that_shows_is_ours_however_many_writes_after_it_fail() {
        let mut entry = entry();
        for value in 501..550 {
            entry.intend(value, Some(500), &PolicyName::default());
        }
        assert_eq!(entry.ours, [549, 500, 548, 547]);
        // Somebody else's is not made ours.
        entry.intend(550, Some(1000), &PolicyName::default());
        assert_eq!(entry.ours, [550, 549, 500, 548]);
    }

    #[test]
    fn every_kind_of_knob_comes_back() {
        for knob in [
            Knob::GpuClock("GPU-1".into()),
            Knob::GpuPower("GPU-1".into()),
            Knob::CpuFrequency(17),
            Knob::CpuQuota("a/b".into()),
            Knob::RaplLimit("intel-rapl:0".into()),
        ] {
            let line = JournalEntry { knob: knob.clone(), ..entry() }.to_line();
            assert_eq!(JournalEntry::from_line(&line).unwrap().knob, knob);
        }
        assert_eq!(super::knob("fan_speed", "fan0"), None);
        assert_eq!(super::knob("cpu_frequency", "7"), None);
    }

    #[test]
    fn fields_of_a_newer_version_are_kept() {
        let line = entry().to_line();
        let newer = seal(&format!("{{\"colour\":[1,2],{}", body(&line).unwrap()));
        let read = JournalEntry::from_line(&newer).unwrap();
        assert_eq!(read.unknown["colour"], serde_json::json!([1, 2]));
        assert_eq!(JournalEntry::from_line(&read.to_line()).unwrap(), read);
    }

    #[test]
    fn a_line_that_lacks_or_changes_a_byte_is_not_whole() {
        let line = entry().to_line();
        assert!(is_whole(&line));
        for end in 0..line.len() {
            assert!(!is_whole(&line[..end]), "{}", &line[..end]);
        }
        for at in 0..line.len() {
            let mut bytes = line.clone().into_bytes();
            bytes[at] = if bytes[at] == b'0' { b'1' } else { b'0' };
            assert!(!is_whole(str::from_utf8(&bytes).unwrap()), "byte {at}");
        }
    }
}
