//! Which units have a row of their own. Scopes come and go with every login and every started program, so a scope is part
//! of the slice or service that holds it; the scope of a command that `measure --agent` measures is not. A holder of a part of the cgroup tree may make units without end, so below one
//! holder only a fixed number of units have rows. Pure: a workload and its path into the workload whose row it is.

use std::collections::HashMap;
use std::sync::Arc;

use regex::{Regex, RegexBuilder};

use super::Workload;
use super::cgroup::{PathReading, Placement, PodOnPath};

/// The row of all units that the pattern leaves out. No systemd unit and no path is called so.
pub const OTHER_UNIT: &str = "other";

/// What the scopes begin with whose commands are measured by a running agent: they have rows of their own.
pub const MEASURED_SCOPE: &str = "energy-agent-measure-";

/// Most living units below one holder that have rows; what is more is part of the holder's.
const MAX_HELD: usize = 500;

/// Most scopes in each other that are looked at one by one; each look reads the whole path.
const MAX_NESTED: usize = 8;

/// Folders in which LXC before 4.0, and Proxmox still, make one for each container.
const MACHINES: [&str; 3] = ["/lxc/", "/lxc.payload/", "/lxc.monitor/"];

/// What the scope of Slurm's jobs is called, with a node's name before it where a machine has several.
const SLURM: &str = "slurmstepd.scope";

/// Enough for any list of names; a pattern is compiled while nobody waits for it.
const MAX_PATTERN_BYTES: usize = 1 << 20;

/// Which units have rows of their own.
#[derive(Clone, Debug, Default)]
pub struct Units {
    /// `None`: all but scopes.
    pattern: Option<Pattern>,
}

#[derive(Clone, Debug)]
struct Pattern {
    text: String,
    whole: Regex,
}

impl PartialEq for Units {
    fn eq(&self, other: &Self) -> bool {
        self.pattern() == other.pattern()
    }
}

impl Eq for Units {}

impl Units {
    /// Those whose whole name matches; an empty pattern is none.
    ///
    /// # Errors
    /// What is wrong with the pattern, in a few words.
    pub fn matching(pattern: &str) -> Result<Self, String> {
        let text = pattern.trim();
        if text.is_empty() {
            return Ok(Self::default());
        }
        // On its own first, so that what it leaves open is not closed by what is put around it.
        let compiled = RegexBuilder::new(text).size_limit(MAX_PATTERN_BYTES).build();
        let whole = compiled
            .and_then(|_| RegexBuilder::new(&format!("^(?:{text})$")).size_limit(2 * MAX_PATTERN_BYTES).build())
            .map_err(|error| {
                let lines = error.to_string();
                let last = lines.lines().last().unwrap_or_default();
                last.strip_prefix("error: ").unwrap_or(last).trim().to_owned()
            })?;
        Ok(Self { pattern: Some(Pattern { text: text.to_owned(), whole }) })
    }

    /// The pattern as it was given; `None` where there is none.
    #[must_use]
    pub fn pattern(&self) -> Option<&str> {
        self.pattern.as_ref().map(|pattern| &*pattern.text)
    }

    /// The workload in whose row the work of `workload` is, whose cgroup is at `path`.
    #[must_use]
    pub fn row(&self, workload: Workload, path: &str) -> Workload {
        match workload {
            Workload::Unit { unit } => Workload::Unit { unit: self.unit(unit, path) },
            // The container has a row whatever its unit; its scope is no throwaway.
            Workload::Container { unit, id, runtime } => {
                let unit = if self.leaves_out(&unit) { Arc::from(OTHER_UNIT) } else { unit };
                Workload::Container { unit, id, runtime }
            }
            Workload::Kernel
            | Workload::PodOverhead { .. }
            | Workload::PodContainer { .. }
            | Workload::PodEnded { .. } => workload,
        }
    }

    /// The first of the unit, and what holds it while that is a scope, that has a row.
    fn unit(&self, own: Arc<str>, path: &str) -> Arc<str> {
        let (mut unit, mut path) = (own, path);
        for nested in 0.. {
            let above =
                above(&unit, path).and_then(|above| if nested < MAX_NESTED { Some(above) } else { above_all(path) });
            match (&self.pattern, above) {
                (Some(pattern), _) if pattern.whole.is_match(&unit) => return unit,
                (None, Some(_)) if is_measured(&unit) => return unit,
                (_, Some(above)) => (unit, path) = (unit_at(above), above),
                (None, None) => return unit,
                (Some(_), None) => break,
            }
        }
        Arc::from(OTHER_UNIT)
    }

    fn leaves_out(&self, unit: &str) -> bool {
        self.pattern.as_ref().is_some_and(|pattern| !pattern.whole.is_match(unit))
    }
}

/// The scope of a command that a running agent is asked to measure.
fn is_measured(unit: &str) -> bool {
    unit.rsplit('/').next().is_some_and(|scope| scope.starts_with(MEASURED_SCOPE))
}

/// The path of what holds the scope that `unit` at `path` is; `None` for all that is no scope, for machines (libvirt's and
/// systemd's, and Proxmox' in `qemu.slice`), and for systemd's own at the root, which no slice holds.
fn above<'a>(unit: &str, path: &'a str) -> Option<&'a str> {
    let scope = unit.rsplit('/').next().filter(|name| name.ends_with(".scope"))?;
    let mut end = path.len();
    // The innermost folder of that name.
    let folders = path.rsplit('/').map(|folder| {
        let start = end - folder.len();
        end = start.saturating_sub(1);
        (start, folder)
    });
    let start = { folders }.find(|(_, folder)| *folder == scope)?.0;
    holder_of_scope(scope, &path[..start.saturating_sub(1)])
}

/// The path of what holds the outermost scope of `path` that is part of something.
fn above_all(path: &str) -> Option<&str> {
    let starts = path.match_indices('/').map(|(at, _)| at);
    { starts }.find_map(|at| {
        let scope = path[at + 1..].split('/').next().filter(|name| name.ends_with(".scope"))?;
        holder_of_scope(scope, &path[..at])
    })
}

/// The path `above` the scope, if it is part of what is there.
fn holder_of_scope<'a>(scope: &str, above: &'a str) -> Option<&'a str> {
    let in_slices = above.split('/').all(|folder| folder.is_empty() || folder.ends_with(".slice"));
    let is_machine = in_slices && (scope.starts_with("machine-") || above == "/qemu.slice");
    let is_init = above.is_empty() && scope == "init.scope";
    (!is_machine && !is_init).then_some(above)
}

/// What a path is without pods and containers; it holds something that is in neither.
fn unit_at(path: &str) -> Arc<str> {
    match PathReading::of(path).placement(None, false) {
        Placement::System { unit, .. } | Placement::Unresolved { unit, .. } => Arc::from(unit),
        Placement::Pod { .. } | Placement::Kernel => Arc::from("/"),
    }
}

/// The row that a workload asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// As its path alone has it.
    pub own: Workload,
    /// As the units that have rows have it.
    pub row: Workload,
    /// The unit that it is part of where there is no room for it.
    pub holder: Option<Arc<str>>,
}

impl Units {
    /// What `own` asks for, whose cgroup is at `path`; `pod` is the one that it is in, unless that is the node's own.
    #[must_use]
    pub fn claim(&self, own: Workload, path: &str, pod: Option<&PodOnPath>) -> Claim {
        let row = self.row(own.clone(), path);
        let holder = match (&own, &row) {
            (_, Workload::Unit { unit }) => holder(unit).map(Arc::from),
            (Workload::Container { unit, id, .. }, _) => {
                // A folder or a service makes as many as it likes; a scope of its own is one.
                holder(unit).map(Arc::from).or_else(|| (!unit.contains(&**id)).then(|| Arc::clone(unit)))
            }
            // In plain folders it is a pod of a kubelet that has a folder of its own.
            _ => pod.filter(|pod| !pod.spot.is_in_plain_folders()).map(|pod| {
                let unit = unit_at(&pod.spot.holder);
                holder(&unit).map_or_else(|| Arc::clone(&unit), Arc::from)
            }),
        };
        Claim { own, row, holder }
    }

    /// The row of what `holder` has no room for.
    #[must_use]
    pub fn overflow(&self, holder: Arc<str>) -> Workload {
        Workload::Unit { unit: if self.leaves_out(&holder) { Arc::from(OTHER_UNIT) } else { holder } }
    }
}

/// How many workloads that have rows live below each holder: a service or a container of LXC that was given a part of the
/// tree, or a job of Slurm. Units right below the node's slices are made by its systemd alone, and are not counted, nor are
/// the pods of the node's kubelet.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct HeldWorkloads {
    living: HashMap<Arc<str>, usize>,
}

impl HeldWorkloads {
    /// Whether there is no room below the holder for one that has no row yet.
    #[must_use]
    pub fn is_full(&self, holder: &str) -> bool {
        self.living.get(holder).is_some_and(|living| *living >= MAX_HELD)
    }

    /// One below the holder lives from now on.
    pub fn came(&mut self, holder: &Arc<str>) {
        *self.living.entry(Arc::clone(holder)).or_default() += 1;
    }

    /// It lives no more.
    pub fn went(&mut self, holder: &str) {
        let Some(living) = self.living.get_mut(holder) else { return };
        *living -= 1;
        if *living == 0 {
            self.living.remove(holder);
        }
    }
}

/// The part of a unit's name before what it holds: `user@1000.service`, a job of Slurm, or the first folder of a path that
/// systemd did not make, with the machine's where that folder holds machines. `None` for what is held by none.
#[must_use]
pub fn holder(unit: &str) -> Option<&str> {
    let own = MACHINES
        .iter()
        .find(|folder| unit.starts_with(**folder))
        .map_or(usize::from(unit.starts_with('/')), |folder| folder.len());
    let end = own + unit[own..].find('/')?;
    let (first, below) = (&unit[..end], &unit[end + 1..]);
    // Not one user's steps for all.
    match below.find('/') {
        Some(job) if first.ends_with(SLURM) && below.starts_with("job_") => Some(&unit[..end + 1 + job]),
        _ => Some(first),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Runtime;
    use crate::workload::cgroup::classify;

    const ID: &str = "e163073df4c38b1df6bff3b06c1d62392a3fbf7592afe21e312a53ff0c532736";

    fn row(units: &Units, path: &str) -> String {
        units.row(classify(path).into(), path).unit().unwrap().to_owned()
    }

    #[test]
    fn a_scope_is_part_of_what_holds_it() {
        for (path, unit) in [
            ("/user.slice/user-1000.slice/session-3.scope", "user-1000.slice"),
            ("/user.slice/user-1000.slice/session-3.scope/a/b", "user-1000.slice"),
            (
                "/user.slice/user-1000.slice/user@1000.service/app.slice/app-gnome-firefox-1234.scope",
                "user@1000.service",
            ),
            ("/user.slice/user-1000.slice/user@1000.service/init.scope", "user@1000.service"),
            ("/system.slice/run-r1234.scope", "system.slice"),
            ("/x.scope", "/"),
            ("/a.slice/x.scope/y.scope", "a.slice"),
            ("/batch/x.scope", "/batch"),
            ("/batch/job/x.scope", "/batch/job"),
            ("/lxc.payload.c1/system.slice/run-r1.scope", "/lxc.payload.c1"),
            // Of a command that is measured.
            (
                "/user.slice/user-1000.slice/user@1000.service/app.slice/energy-agent-measure-7-1.scope/a",
                "user@1000.service/energy-agent-measure-7-1.scope",
            ),
            ("/energy-agent.slice/energy-agent-measure-7-1.scope", "energy-agent-measure-7-1.scope"),
            ("/energy-agent.slice/energy-agent-measure-7-1.scope/x.scope", "energy-agent-measure-7-1.scope"),
            ("/energy-agent.slice/measure-7-1.scope", "energy-agent.slice"),
            // Kept: what is no scope, machines, systemd itself.
            ("/system.slice/sshd.service", "sshd.service"),
            ("/user.slice", "user.slice"),
            ("/", "/"),
            ("/init.scope", "init.scope"),
            ("/machine.slice/machine-web.scope", "machine-web.scope"),
            (r"/machine.slice/machine-qemu\x2d1\x2dweb.scope", r"machine-qemu\x2d1\x2dweb.scope"),
            ("/machine.slice/machine-web.scope/payload/init.scope", "machine-web.scope"),
            // A name alone makes no machine.
            ("/user.slice/user@1000.service/app.slice/machine-web.scope", "user@1000.service"),
            ("/qemu.slice/100.scope", "100.scope"),
            ("/system.slice/slurmstepd.scope/job_1/step_0", "slurmstepd.scope/job_1/step_0"),
            ("/lxc/101/ns/user.slice/session-3.scope", "/lxc/101"),
        ] {
            assert_eq!(row(&Units::default(), path), unit, "{path}");
        }
    }

    /// Whoever nests them pays by having no row for those far inside, not the node by looking at each.
    #[test]
    fn of_scopes_in_scopes_in_scopes_the_inner_ones_are_looked_at() {
        let user = "/user.slice/user-1000.slice/user@1000.service";
        let nested = |n: usize| (0..n).map(|n| format!("/s{n}.scope")).collect::<String>();
        let deep = format!("{user}{}", nested(400));
        assert_eq!(row(&Units::default(), &deep), "user@1000.service");
        let some = Units::matching(r"(.*/)?s(395|300)\.scope|user@1000\.service").unwrap();
        assert!(row(&some, &deep).ends_with("/s395.scope"));
        let far = Units::matching(r"(.*/)?s300\.scope|user@1000\.service").unwrap();
        assert_eq!(row(&far, &deep), "user@1000.service");
        assert_eq!(row(&Units::matching("sshd.service").unwrap(), &deep), OTHER_UNIT);
        // Nor is a service with eight in it, whatever that is in.
        let service = format!("{user}/run.scope/own.service{}", nested(8));
        assert_eq!(row(&Units::default(), &service), "user@1000.service/run.scope/own.service");
        // A machine, or what has no unit around it, is not climbed over.
        let machine = format!("/machine.slice/machine-web.scope/payload{}", nested(50));
        assert_eq!(row(&Units::default(), &machine), "machine-web.scope");
        assert_eq!(row(&Units::default(), &nested(50)), "/");
        assert_eq!(row(&Units::default(), &format!("/batch{}", nested(50))), "/batch");
    }

    #[test]
    fn a_containers_scope_is_its_own_and_its_monitor_is_not() {
        let container = |path: &str| Units::default().row(classify(path).into(), path);
        let scope = format!("libpod-{ID}.scope");
        let own = Workload::Container { unit: Arc::from(&*scope), id: Arc::from(ID), runtime: Runtime::Podman };
        assert_eq!(container(&format!("/machine.slice/{scope}/container")), own);
        assert_eq!(row(&Units::default(), &format!("/machine.slice/libpod-conmon-{ID}.scope")), "machine.slice");
        let some = Units::matching("sshd.service").unwrap();
        let path = format!("/machine.slice/{scope}");
        let of_others =
            Workload::Container { unit: Arc::from(OTHER_UNIT), id: Arc::from(ID), runtime: Runtime::Podman };
        assert_eq!(some.row(classify(&path).into(), &path), of_others);
    }

    #[test]
    fn a_pattern_chooses_whole_names() {
        let units = Units::matching(" sshd|user-.*\\.slice|session-4.scope\n").unwrap();
        assert_eq!(units.pattern(), Some("sshd|user-.*\\.slice|session-4.scope"));
        for (path, unit) in [
            ("/system.slice/sshd.service", OTHER_UNIT),
            ("/user.slice/user-1000.slice/session-3.scope", "user-1000.slice"),
            ("/user.slice/user-1000.slice/session-4.scope", "session-4.scope"),
            ("/system.slice/run-r1.scope", OTHER_UNIT),
            ("/", OTHER_UNIT),
        ] {
            assert_eq!(row(&units, path), unit, "{path}");
        }
        let measured = "/user.slice/user-1000.slice/user@1000.service/app.slice/energy-agent-measure-7-1.scope";
        assert_eq!(row(&Units::matching("user@1000.service").unwrap(), measured), "user@1000.service");
        assert_eq!(row(&Units::matching("sshd.service").unwrap(), measured), OTHER_UNIT);
        let everything = Units::matching(".*").unwrap();
        assert_eq!(row(&everything, "/user.slice/user-1000.slice/session-3.scope"), "session-3.scope");
        assert_eq!(everything.row(Workload::Kernel, ""), Workload::Kernel);
        assert_eq!(Units::matching(" \n"), Ok(Units::default()));
        // Closed by what is put around it.
        for (pattern, problem) in [("a(", "unclosed group"), ("a)|(b", "unopened group"), ("(?i", "end of regex")] {
            let said = Units::matching(pattern).unwrap_err();
            assert!(said.contains(problem) && !said.contains('\n'), "{pattern}: {said}");
        }
        assert!(Units::matching("(a{1000}){1000}").unwrap_err().contains("size limit"));
    }

    #[test]
    fn a_holder_is_the_outermost_unit_and_of_slurms_steps_the_job() {
        for (unit, wanted) in [
            ("user@1000.service/a.service", Some("user@1000.service")),
            ("user@1000.service/slurmstepd.scope/job_1/step_0", Some("user@1000.service")),
            ("/lxc/101/a.service", Some("/lxc/101")),
            ("/batch/late/deep", Some("/batch")),
            ("slurmstepd.scope/job_1", Some("slurmstepd.scope")),
            ("n1_slurmstepd.scope/job_1/step_0", Some("n1_slurmstepd.scope/job_1")),
            ("slurmstepd.scope/job_1/step_0/a.service", Some("slurmstepd.scope/job_1")),
            ("late.service", None),
            ("/batch", None),
            ("/", None),
        ] {
            assert_eq!(holder(unit), wanted, "{unit}");
        }
    }

    #[test]
    fn a_holder_is_full_until_one_below_it_goes() {
        let (user, other) = (Arc::from("user@1000.service"), Arc::from("user@1001.service"));
        let mut held = HeldWorkloads::default();
        for _ in 0..MAX_HELD {
            assert!(!held.is_full(&user));
            held.came(&user);
        }
        held.came(&other);
        assert_eq!((held.is_full(&user), held.is_full(&other)), (true, false));
        held.went(&user);
        assert!(!held.is_full(&user));
    }
}
