//! Whether runs did the same work.

use super::RunGroup;
use crate::run::Run;

/// What the runs of all groups did.
pub(super) enum WorkMatch {
    Same {
        unit: Option<String>,
    },
    /// It can be compared by the unit of work only.
    Different {
        unit: String,
        why: String,
    },
}

impl WorkMatch {
    /// # Errors
    /// When the work differs and not all runs have an amount of it in one unit.
    pub fn of(groups: &[RunGroup], is_stated: bool) -> Result<Self, String> {
        let all: Vec<(&str, &Run)> =
            groups.iter().flat_map(|group| group.runs.iter().map(|run| (group.name.as_str(), run))).collect();
        let unit = common_unit(&all);
        let difference = all.first().zip(all.get(1..)).and_then(|(first, others)| {
            others.iter().find_map(|other| differs(first.1, other.1).map(|how| (first.0, other.0, how)))
        });
        match difference {
            Some((first, other, how)) if !is_stated => {
                let who = if first == other { format!("runs of {first}") } else { format!("{first} and {other}") };
                let why = format!("{who} {how}");
                let remedy = "measure or report with --work N --work-unit UNIT to compare by unit of work, or state with --same-work \
                              that the work is the same";
                unit.map(|unit| Self::Different { unit, why: why.clone() }).ok_or(format!("{why}; {remedy}"))
            }
            _ => Ok(Self::Same { unit }),
        }
    }
}

/// What is said of two runs that did not do the same work, or of which that is not known.
fn differs(a: &Run, b: &Run) -> Option<String> {
    if a.subject.kind != b.subject.kind {
        return different(&format!("a {} and a {}", a.subject.kind.as_str(), b.subject.kind.as_str()));
    }
    let has_same_amount = match (&a.work, &b.work) {
        (Some(a), Some(b)) if a.unit != b.unit || (a.amount - b.amount).abs() > 1e-9 * a.amount.abs() => {
            return different(&format!("{} {} and {} {}", a.amount, a.unit, b.amount, b.unit));
        }
        (Some(_), None) | (None, Some(_)) => return different("only one of them says how much"),
        (Some(_), Some(_)) => true,
        (None, None) => false,
    };
    let (a, b) = (&a.subject, &b.subject);
    match (&a.digest, &b.digest) {
        (Some(a), Some(b)) if a != b => different("another command or image (digest)"),
        (Some(_), Some(_)) => None,
        _ if a.class.is_some() && b.class.is_some() && a.class != b.class => different("another class"),
        _ if has_same_amount => None,
        // A name says nothing of the image, nor of the time that was looked at.
        _ => Some("may have done different work: no command or image is known of them (digest)".to_owned()),
    }
}

fn different(how: &str) -> Option<String> {
    Some(format!("did different work: {how}"))
}

fn common_unit(all: &[(&str, &Run)]) -> Option<String> {
    let mut units =
        all.iter().map(|(_, run)| run.work.as_ref().filter(|work| work.amount > 0.0).map(|work| &work.unit));
    let first = units.next()??;
    units.all(|unit| unit == Some(first)).then(|| first.clone())
}
