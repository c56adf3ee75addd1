//! Whose a process of the host is, by its cgroup: for meters that name processes by PID. What was learned is kept, because
//! a process' last work is read after it ended, and because asking again each time would cost more than all the rest.
//!
//! In a cgroup namespace of its own the agent reads other processes' cgroups as relative paths. They are placed as absolute ones
//! are. A container whose pod is hidden (one beside the agent's own) is looked up by its id among the known pods and belongs to no
//! workload if none has it. The same goes for what shows as `/`, which may be any cgroup there.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use energy_model::table;
use energy_model::workload::Workload;
use energy_model::workload::cgroup::{Container, Placement, classify, from_proc_cgroup};
use energy_model::workload::names::Pods;

use super::owners::Owners;
use super::pid_namespace;

/// Time between two looks at a process that is there all along: whether it is still the same, and in the same cgroup.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// How long a process that is not asked for is remembered.
const KEEP: Duration = Duration::from_secs(10);
/// The inode of the first cgroup namespace, `PROC_CGROUP_INIT_INO`.
/// <https://github.com/torvalds/linux/blob/v6.12/include/linux/proc_ns.h>
const HOST: &str = "cgroup:[4026531835]";

/// What is known of a PID.
#[derive(Debug)]
struct KnownPid {
    /// Start time in clock ticks since boot: with the PID, the identity of a process.
    start: u64,
    workload: Arc<Workload>,
    looked: Instant,
    asked: Instant,
    /// When it was found to be gone.
    gone: Option<Instant>,
}

/// The workloads of processes, by PID of the host.
#[derive(Debug)]
pub struct Pids {
    procfs: PathBuf,
    /// `procfs` has the host's PIDs. In any other the same number is another process, so nothing is looked up.
    in_sight: bool,
    /// The agent is in a cgroup namespace of its own, whose root is what it shows as `/`.
    veiled: bool,
    known: HashMap<u32, KnownPid>,
    now: Instant,
    before: Instant,
}

impl Pids {
    #[must_use]
    pub fn new(procfs: &Path, now: Instant) -> Self {
        let veiled = fs::read_link(procfs.join("self/ns/cgroup")).is_ok_and(|link| link.as_os_str() != HOST);
        let in_sight = pid_namespace::is_hosts(procfs);
        Self { procfs: procfs.to_owned(), in_sight, veiled, known: HashMap::new(), now, before: now }
    }

    /// Begins a tick.
    pub fn begin(&mut self, now: Instant) {
        (self.before, self.now) = (self.now, now);
        self.known.retain(|_, known| now.saturating_duration_since(known.asked) < KEEP);
        table::fit(&mut self.known);
    }

    /// The workload of a process, also of one that ended since it was asked for last. `None` if it is not there, or its
    /// cgroup is not to be seen from here and none of `pods` has its container, or the agent cannot see the host's processes.
    pub fn owner(&mut self, pid: u32, owners: Option<&Owners>, pods: &Pods) -> Option<Arc<Workload>> {
        if !self.in_sight {
            return None;
        }
        let (now, before) = (self.now, self.before);
        if let Some(known) = self.known.get_mut(&pid) {
            // A PID that was there in every tick has hardly changed hands in between.
            let unbroken = known.asked >= before;
            known.asked = now;
            if unbroken && now.saturating_duration_since(known.looked) < LOOK_EVERY {
                return Some(Arc::clone(&known.workload));
            }
        }
        let Some((start, place)) = look(&self.procfs, pid, self.veiled) else {
            let known = self.known.get_mut(&pid)?;
            // A driver may still list a process that has ended; then it belongs to nobody.
            let gone = *known.gone.get_or_insert(now);
            return (now.saturating_duration_since(gone) < KEEP).then(|| Arc::clone(&known.workload));
        };
        let workload = place?.owner(owners, pods)?;
        let known = KnownPid { start, workload: Arc::clone(&workload), looked: now, asked: now, gone: None };
        self.known.insert(pid, known);
        Some(workload)
    }

    /// Start time of a process that [`Self::owner`] placed, in clock ticks since boot.
    #[must_use]
    pub fn start(&self, pid: u32) -> Option<u64> {
        self.known.get(&pid).map(|known| known.start)
    }
}

/// Start time and place of a process that is there; no place where its cgroup is hidden by a namespace.
fn look(procfs: &Path, pid: u32, veiled: bool) -> Option<(u64, Option<ProcessPlace>)> {
    let folder = procfs.join(pid.to_string());
    let start = start_time(&fs::read_to_string(folder.join("stat")).ok()?)?;
    let cgroup = fs::read_to_string(folder.join("cgroup")).ok()?;
    // The PID may have changed hands between the two.
    let same = start_time(&fs::read_to_string(folder.join("stat")).ok()?) == Some(start);
    same.then(|| (start, ProcessPlace::of(&cgroup, veiled)))
}

/// Where a process is.
#[derive(Debug, PartialEq, Eq)]
enum ProcessPlace {
    Seen {
        /// By the hierarchy that says most.
        workload: Workload,
        /// By cgroup v2, as its work on the CPUs is charged: its path there, where the hierarchy's root is not hidden.
        v2: Option<String>,
        /// By the other hierarchies, if they name a pod.
        v1_pod: Option<Workload>,
    },
    /// In this container of a pod that a cgroup namespace hides: a sibling of the agent's own (FC-022).
    Hidden(Container),
}

impl ProcessPlace {
    /// By the same rules as a cgroup found by its folder; a process that somebody named by PID is never the kernel.
    fn of(proc_cgroup: &str, veiled: bool) -> Option<Self> {
        let root = || (!veiled).then(|| classify("/").into());
        let workload = match from_proc_cgroup(proc_cgroup) {
            Placement::Kernel => root()?,
            Placement::Unresolved { unit, container: None } if unit == "/" && !proc_cgroup.contains("/..") => root()?,
            Placement::Unresolved { unit: _, container } => return container.map(Self::Hidden),
            placement => placement.into(),
        };
        let (v2, v1): (Vec<&str>, Vec<&str>) = proc_cgroup.lines().partition(|line| line.starts_with("0::"));
        let v1_pod = Some(from_proc_cgroup(&v1.join("\n"))).filter(|it| matches!(it, Placement::Pod { .. }));
        let v2 = v2.first().and_then(|line| line.strip_prefix("0::")).filter(|_| !veiled);
        Some(Self::Seen { workload, v2: v2.map(str::to_owned), v1_pod: v1_pod.map(Workload::from) })
    }

    /// The workload that work on the CPUs is charged to as well, unless another hierarchy alone knows the pod.
    fn owner(self, owners: Option<&Owners>, pods: &Pods) -> Option<Arc<Workload>> {
        let living = |workload: Workload, path: &str| {
            let workload = owners.map_or(workload.clone(), |owners| owners.row(workload, path));
            let known = owners.and_then(|owners| owners.living(&workload));
            known.unwrap_or_else(|| Arc::new(workload))
        };
        match self {
            Self::Seen { workload, v2, v1_pod } => {
                let at = |path: &String| owners.and_then(|owners| owners.at(path)).cloned();
                Some(match (v2.as_ref().and_then(at), v1_pod) {
                    (Some(known), None) => known,
                    (Some(known), Some(_)) if known.pod_uid().is_some() => known,
                    (_, Some(pod)) => living(pod, ""),
                    (None, None) => living(workload, removed_or_not(v2.as_deref().unwrap_or_default())),
                })
            }
            Self::Hidden(Container { id, runtime }) => {
                let uid = pods.with_container(&id)?.cgroup_name();
                Some(living(Workload::PodContainer { uid: Arc::clone(uid), id: id.into(), runtime }, ""))
            }
        }
    }
}

/// A path of `/proc/PID/cgroup`, without what the kernel adds to it when the cgroup is removed.
fn removed_or_not(path: &str) -> &str {
    path.strip_suffix(" (deleted)").unwrap_or(path)
}

/// Field 22 of `/proc/PID/stat`; the command name before it may hold spaces and parentheses.
fn start_time(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use energy_model::workload::names::{Pod, PodContainer};

    const POD: &str = "/kubepods/podd1578427-1919-52ea-898e-2489f38c2504";

    fn process(procfs: &Path, pid: u32, start: u64, cgroup: &str) {
        let folder = procfs.join(pid.to_string());
        fs::create_dir_all(&folder).unwrap();
        let fields = "0 ".repeat(18);
        fs::write(folder.join("stat"), format!("{pid} (a) b) (c) S {fields}{start} 0 0\n")).unwrap();
        fs::write(folder.join("cgroup"), format!("0::{cgroup}\n")).unwrap();
    }

    /// A procfs that shows the PID namespace with this inode.
    fn procfs(namespace: &str) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("self/ns")).unwrap();
        symlink(format!("pid:[{namespace}]"), directory.path().join("self/ns/pid")).unwrap();
        directory
    }

    const FIRST: &str = "4026531836";

    fn unit(workload: Option<&Arc<Workload>>) -> Option<&str> {
        workload.and_then(|workload| workload.unit())
    }

    #[test]
    fn a_process_belongs_to_its_cgroups_workload_and_is_remembered_when_it_ends() {
        let directory = procfs(FIRST);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        process(directory.path(), 7, 100, POD);
        let mut pids = Pids::new(directory.path(), start);
        pids.begin(at(1));
        let pod = pids.owner(7, None, &Pods::default()).unwrap();
        assert_eq!(pod.pod_uid().unwrap().as_ref(), "d1578427-1919-52ea-898e-2489f38c2504");
        assert_eq!((pids.start(7), pids.owner(8, None, &Pods::default())), (Some(100), None));
        fs::remove_dir_all(directory.path().join("7")).unwrap();
        pids.begin(at(5));
        assert_eq!(pids.owner(7, None, &Pods::default()), Some(pod));
        // However often it is asked for.
        for second in 6..=14 {
            pids.begin(at(second));
            assert!(pids.owner(7, None, &Pods::default()).is_some());
        }
        for second in 15..=60 {
            pids.begin(at(second));
            assert!(second < 45 || pids.owner(7, None, &Pods::default()).is_none());
        }
    }

    #[test]
    fn fc_107_in_a_pid_namespace_of_its_own_a_number_names_nobody() {
        let now = Instant::now();
        for (namespace, found) in [("4026532900", false), (FIRST, true)] {
            let directory = procfs(namespace);
            process(directory.path(), 7, 100, POD);
            let mut pids = Pids::new(directory.path(), now);
            assert_eq!(pids.owner(7, None, &Pods::default()).is_some(), found, "{namespace}");
        }
    }

    #[test]
    fn fc_038_a_pid_that_was_not_seen_for_a_tick_is_looked_at_again() {
        let directory = procfs(FIRST);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        process(directory.path(), 7, 100, "/system.slice/a.service");
        let mut pids = Pids::new(directory.path(), start);
        pids.begin(at(1));
        assert_eq!(unit(pids.owner(7, None, &Pods::default()).as_ref()), Some("a.service"));
        process(directory.path(), 7, 900, "/system.slice/b.service");
        pids.begin(at(2));
        pids.begin(at(3));
        assert_eq!(unit(pids.owner(7, None, &Pods::default()).as_ref()), Some("b.service"));
        // One that is there all along is looked at now and then.
        process(directory.path(), 7, 900, "/system.slice/c.service");
        for second in 4..=32 {
            pids.begin(at(second));
            assert_eq!(unit(pids.owner(7, None, &Pods::default()).as_ref()), Some("b.service"));
        }
        pids.begin(at(33));
        assert_eq!(unit(pids.owner(7, None, &Pods::default()).as_ref()), Some("c.service"));
    }

    #[test]
    fn fc_022_what_a_cgroup_namespace_hides_is_placed_by_the_pod_list_alone() {
        let id = "8dc2d3c8ac041c20daf6d8c735971de90022bd9173cc18ceea05bb15dfc2a54f";
        let container = PodContainer { name: "main".into(), id: Some(id.into()), past_ids: Vec::new() };
        let pod = Pod { uid: "u".into(), containers: vec![container], ..Pod::default() };
        let mirror = Pod { config_hash: Some("hash".into()), ..pod.clone() };
        let told = |pod: Pod| Pods { by_uid: [(Arc::from("u"), Arc::new(pod))].into(), ..Pods::default() };
        let owner = |text: &str, veiled, pods: &Pods| ProcessPlace::of(text, veiled)?.owner(None, pods);
        let sibling = format!("0::/../cri-containerd-{id}.scope\n");
        assert_eq!(owner(&sibling, true, &Pods::default()), None, "never assumed");
        let uid = |pods: &Pods| owner(&sibling, true, pods).and_then(|owner| owner.pod_uid().cloned());
        // As its cgroup is named, a static pod's by the hash.
        assert_eq!([uid(&told(pod)), uid(&told(mirror))], [Some("u".into()), Some("hash".into())]);
        assert_eq!(owner("0::/..\n", true, &Pods::default()), None);
        // A namespace's own root may be any cgroup, the first one's is none.
        for text in ["0::/\n", "1:cpu:/\n0::/\n"] {
            assert_eq!(owner(text, false, &Pods::default()).unwrap().unit(), Some("/"));
            assert_eq!(owner(text, true, &Pods::default()), None);
        }
    }

    #[test]
    fn outside_pods_it_is_charged_where_its_work_on_the_cpus_is() {
        let hierarchy = tempfile::tempdir().unwrap();
        fs::create_dir(hierarchy.path().join("a.service")).unwrap();
        let owners = Owners::open(hierarchy.path(), Instant::now()).unwrap();
        let owner = |text: &str| ProcessPlace::of(text, false).unwrap().owner(Some(&owners), &Pods::default());
        let unit = |text: &str| unit(owner(text).as_ref()).map(str::to_owned);
        assert_eq!(unit("3:cpu:/v1.slice\n0::/a.service\n").as_deref(), Some("a.service"));
        assert_eq!(unit("3:cpu:/v1.slice\n0::/\n").as_deref(), Some("/"));
        assert_eq!(unit("3:cpu:/v1.slice\n0::/gone.service\n").as_deref(), Some("gone.service"));
        let pod = owner(&format!("3:cpu:{POD}\n0::/a.service\n")).unwrap();
        assert!(pod.pod_uid().is_some());
    }

    #[test]
    fn a_process_of_a_session_that_is_over_is_its_slices() {
        let hierarchy = tempfile::tempdir().unwrap();
        fs::create_dir_all(hierarchy.path().join("user.slice/user-1000.slice")).unwrap();
        let owners = Owners::open(hierarchy.path(), Instant::now()).unwrap();
        let place = ProcessPlace::of("0::/user.slice/user-1000.slice/session-3.scope (deleted)\n", false).unwrap();
        assert_eq!(unit(place.owner(Some(&owners), &Pods::default()).as_ref()), Some("user-1000.slice"));
    }
}
