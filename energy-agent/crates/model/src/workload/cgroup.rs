//! What a cgroup path, or the content of `/proc/PID/cgroup`, says about who runs there: pod, container, runtime, unit.
//! Pure text work on input that any user of the node can shape; every input has an answer.

mod unit;

use self::unit::name;
use super::Runtime;

/// The unit of work whose cgroup is not known.
pub const UNKNOWN_UNIT: &str = "unknown";

/// A container as a path names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// 64 hexadecimal digits.
    pub id: String,
    pub runtime: Runtime,
}

/// Where in the node's order a cgroup sits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// In a pod; without a container it is the pod's own folder or a helper beside the containers (conmon).
    /// `uid` has dashes, or is the 32-digit hash of a static pod.
    Pod { uid: String, container: Option<Container> },
    /// Outside pods. `unit` is a systemd unit, or the path itself where systemd did not make it.
    System { unit: String, container: Option<Container> },
    /// A thread of the kernel: in the root of every hierarchy.
    Kernel,
    /// The path does not show enough (private cgroup namespace); the container id may be found in a list of pods.
    Unresolved { unit: String, container: Option<Container> },
}

/// Cgroups named by the kubelet for a quality of service, below `kubepods`.
const QOS: [&str; 2] = ["besteffort", "burstable"];

/// The text before a container's id names the runtime; another text there is an unknown runtime's.
const RUNTIME_PREFIXES: [(&str, Runtime); 7] = [
    ("cri-containerd", Runtime::Containerd),
    ("crio", Runtime::Crio),
    ("docker", Runtime::Docker),
    ("libpod", Runtime::Podman),
    ("libpod-payload", Runtime::Podman),
    ("containerd", Runtime::Containerd),
    ("nerdctl", Runtime::Containerd),
];

/// A cgroup that podman makes in the service that runs it, in place of a scope of its own (Quadlet).
const PAYLOAD: &str = "libpod-payload-";

/// What begins so is in the folder at the top in which Kata keeps what it does not put into pods.
pub const KATA_OVERHEAD: &str = "/kata_overhead/";

/// Places a path below the cgroup v2 root by what it says alone: in the outermost pod that it names, else in the outermost
/// container. Leading `..` components (a view from inside a cgroup namespace) are allowed.
#[must_use]
pub fn classify(path: &str) -> Placement {
    let reading = PathReading::of(path);
    reading.placement(reading.pods.first(), true)
}

/// How deep a pod's or container's folder lies, apart from slices; what a container or a service makes below itself lies
/// deeper than what the node's kubelet or runtime makes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Spot {
    /// Number of folders above it that are no slices (services, scopes, containers, pods), without `kubepods` itself.
    pub level: usize,
    /// The path down to the last of those; empty if there is none.
    pub holder: String,
}

impl Spot {
    /// Whether nothing is around it but slices and plain folders, such as a kubelet's `--cgroup-root`: no service, machine,
    /// pod or container, which make cgroups below their own.
    #[must_use]
    pub(crate) fn is_in_plain_folders(&self) -> bool {
        let (folders, reading) = (components(&self.holder), PathReading::of(&self.holder));
        let is_unit = |at: usize| unit::is_unit(&folders, at);
        reading.pods.is_empty() && reading.container.is_none() && !(0..folders.len()).any(is_unit)
    }
}

/// A pod that a path names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodOnPath {
    pub uid: String,
    pub container: Option<Container>,
    pub spot: Spot,
}

/// All that a path names. Which of it counts can depend on other paths and on the pods that are reported; see
/// [`super::places::Places`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathReading {
    /// Outermost first; a few.
    pub pods: Vec<PodOnPath>,
    /// The outermost container that is not in any of them.
    pub container: Option<(Container, Spot)>,
    /// The unit of that container.
    container_unit: String,
    /// The unit that it is without pods and containers.
    unit: String,
    /// A namespace hides where the path begins.
    hidden: bool,
    /// It lies where only the node itself makes cgroups for the hypervisor of the container's virtual machine.
    is_hypervisors: bool,
}

/// Most pods of a path that are looked at: nobody runs a node in a node in a node in a node.
const MAX_PODS: usize = 4;

impl PathReading {
    #[must_use]
    pub fn of(path: &str) -> Self {
        let mut all = components(path);
        let above = all.iter().take_while(|component| **component == "..").count();
        all.drain(..above);
        let relative = above > 0;
        // Kata repeats the pod's path below this folder, or has the sandbox's id there.
        let is_overhead = !relative && path.starts_with(KATA_OVERHEAD);
        let left_out = usize::from(is_overhead);
        let components = &all[left_out..];
        let places: Vec<(usize, String)> = (0..components.len())
            .filter_map(|at| Some((at, pod_uid(components, at, relative)?)))
            .take(MAX_PODS)
            .collect();
        let is_pod = |at: usize| places.iter().any(|(place, _)| *place == at);
        let pods = places.iter().map(|(at, uid)| PodOnPath {
            uid: uid.clone(),
            container: (at + 1..components.len())
                .take_while(|&at| !is_conmon(components[at]))
                .find_map(|at| container(components, at)),
            spot: pod_spot(components, *at, is_pod),
        });
        // What looks like a pod's container is no container outside pods if the pod does not count.
        let end = places.first().map_or(components.len(), |(at, _)| *at);
        let found = (0..end).find_map(|at| Some((at, container(components, at)?)));
        let parent_hidden = match &found {
            Some((at, _)) => *at == 0,
            None => components.first().is_none_or(|first| is_conmon(first)),
        };
        Self {
            pods: pods.collect(),
            container_unit: found.as_ref().map(|(at, _)| name(&all[..=*at + left_out])).unwrap_or_default(),
            unit: name(&all),
            is_hypervisors: found.as_ref().is_some_and(|(at, _)| {
                let is_kata = components[*at].starts_with("kata_") || (is_overhead && *at == 0);
                is_kata && !relative && components[..*at].iter().all(|above| is_nodes_own(above))
            }),
            hidden: relative && parent_hidden,
            container: found.map(|(at, container)| (container, container_spot(components, at, is_pod))),
        }
    }

    /// In this one of its pods; without one, outside pods, with or without its container.
    #[must_use]
    pub fn placement(&self, pod: Option<&PodOnPath>, in_container: bool) -> Placement {
        if let Some(PodOnPath { uid, container, spot: _ }) = pod {
            return Placement::Pod { uid: uid.clone(), container: container.clone() };
        }
        let (unit, container) = match &self.container {
            Some((container, _)) if in_container => (self.container_unit.clone(), Some(container.clone())),
            _ => (self.unit.clone(), None),
        };
        if self.hidden { Placement::Unresolved { unit, container } } else { Placement::System { unit, container } }
    }

    /// The id of the sandbox whose hypervisor runs there, outside the sandbox's pod.
    #[must_use]
    pub fn hypervisor_of(&self) -> Option<&str> {
        let (container, _) = self.container.as_ref()?;
        (self.is_hypervisors && self.pods.is_empty()).then_some(container.id.as_str())
    }

    /// Whether other paths and the reported pods can make a difference.
    #[must_use]
    pub fn is_doubtful(&self) -> bool {
        match (&self.pods[..], &self.container) {
            ([], None) => false,
            ([], Some((_, spot))) => !spot.holder.is_empty() || self.is_hypervisors,
            ([pod], _) => pod.spot.level > 0,
            _ => true,
        }
    }
}

/// Where the pod's folder at `at` lies. A runtime that makes one folder of three parts does so below its own service.
fn pod_spot(components: &[&str], at: usize, is_pod: impl Fn(usize) -> bool) -> Spot {
    let mut above = &components[..at];
    if let ["system.slice", service] = above
        && service.ends_with(".service")
        && components[at].ends_with(".slice")
    {
        return Spot { level: 0, holder: String::new() };
    }
    for is_its_root in [|name: &str| QOS.contains(&name), is_kubepods] {
        if let [rest @ .., last] = above
            && is_its_root(last)
        {
            above = rest;
        }
    }
    spot(above, is_pod)
}

/// Where the container's folder at `at` lies. The service that it is the payload of is no folder around it; a user's manager
/// is no such service, nor is one that lies deeper.
fn container_spot(components: &[&str], at: usize, is_pod: impl Fn(usize) -> bool) -> Spot {
    let mut spot = spot(&components[..at], is_pod);
    if spot.level == 1
        && components[at].starts_with(PAYLOAD)
        && let Some(service) = at.checked_sub(1).map(|parent| components[parent])
        && service.ends_with(".service")
        && !service.starts_with("user@")
    {
        spot.level = 0;
    }
    spot
}

fn spot(above: &[&str], is_pod: impl Fn(usize) -> bool) -> Spot {
    let counts = |at: &usize| !above[*at].ends_with(".slice") || is_pod(*at);
    let last = (0..above.len()).rev().find(counts);
    Spot {
        level: (0..above.len()).filter(counts).count(),
        holder: last.map(|last| format!("/{}", above[..=last].join("/"))).unwrap_or_default(),
    }
}

/// Places a process by its `/proc/PID/cgroup`, for cgroup v1, hybrid and v2.
///
/// A line with a pod beats one without, whatever its position; hierarchies where the process is in the root say
/// nothing (FC-023). Among equals v2 goes first, then the cpu controllers. A lone v2 root is either a kernel thread or
/// the root of a cgroup namespace, so it is unresolved (FC-022).
#[must_use]
pub fn from_proc_cgroup(text: &str) -> Placement {
    let mut best: Option<((u8, u8), Placement)> = None;
    let (mut in_root, mut has_v1) = (false, false);
    for line in text.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(hierarchy), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        has_v1 |= hierarchy != "0";
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        if path == "/" {
            in_root = true;
            continue;
        }
        let placement = classify(path);
        let rank = (placement.detail(), hierarchy_rank(hierarchy, controllers));
        if best.as_ref().is_none_or(|(best_rank, _)| rank > *best_rank) {
            best = Some((rank, placement));
        }
    }
    match best {
        Some((_, placement)) => placement,
        None if in_root && has_v1 => Placement::Kernel,
        None => Placement::Unresolved { unit: if in_root { "/" } else { UNKNOWN_UNIT }.to_owned(), container: None },
    }
}

impl Placement {
    /// How much the placement says, to choose among the hierarchies of one process.
    const fn detail(&self) -> u8 {
        match self {
            Self::Pod { container: Some(_), .. } => 4,
            Self::Pod { container: None, .. } => 3,
            Self::System { container: Some(_), .. } | Self::Unresolved { container: Some(_), .. } => 2,
            Self::System { container: None, .. } | Self::Kernel => 1,
            Self::Unresolved { container: None, .. } => 0,
        }
    }
}

/// The parts of a path. A runtime told to use systemd's names with the cgroupfs driver makes one folder of three parts,
/// `kubepods-podUID.slice:cri-containerd:ID`.
fn components(path: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    for folder in path.split('/').filter(|folder| !folder.is_empty() && *folder != ".") {
        if folder.contains(".slice:") {
            parts.extend(folder.split(':').filter(|part| !part.is_empty()));
        } else {
            parts.push(folder);
        }
    }
    parts
}

/// The pod uid if the component at `at` is a pod's folder by its own name (systemd driver) or by its name and place
/// (cgroupfs driver; the hidden part of a relative path is taken to be `kubepods`).
fn pod_uid(components: &[&str], at: usize, relative: bool) -> Option<String> {
    let component = components[at];
    if let Some((parent, uid)) = component.strip_suffix(".slice").and_then(|slice| slice.rsplit_once("-pod")) {
        let root = QOS
            .iter()
            .find_map(|qos| parent.strip_suffix(qos).and_then(|parent| parent.strip_suffix('-')))
            .unwrap_or(parent);
        let uid = uid.replace('_', "-");
        return ((root == "kubepods" || root.ends_with("-kubepods")) && is_pod_uid(&uid)).then_some(uid);
    }
    let uid = component.strip_prefix("pod").filter(|uid| is_pod_uid(uid))?;
    let below_kubepods = |at: usize| if at == 0 { relative } else { is_kubepods(components[at - 1]) };
    let below_qos = at > 0 && QOS.contains(&components[at - 1]) && below_kubepods(at - 1);
    (below_kubepods(at) || below_qos).then(|| uid.to_owned())
}

/// A folder in which only the node's systemd and kubelet make others.
fn is_nodes_own(component: &str) -> bool {
    component.ends_with(".slice") || is_kubepods(component) || QOS.contains(&component)
}

fn is_kubepods(component: &str) -> bool {
    component == "kubepods" || component == "kubepods.slice" || component.ends_with("-kubepods.slice")
}

/// A UUID, or the 32-digit hash that a static pod's cgroup is named by.
pub fn is_pod_uid(text: &str) -> bool {
    is_hex(text, 32)
        || (text.split('-').count() == 5 && text.split('-').zip([8, 4, 4, 4, 12]).all(|(part, len)| is_hex(part, len)))
}

fn is_hex(text: &str, len: usize) -> bool {
    text.len() == len && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn container(components: &[&str], at: usize) -> Option<Container> {
    let component = components[at];
    if is_hex(component, 64) {
        let runtime = match at.checked_sub(1).map(|parent| components[parent]) {
            Some("docker") => Runtime::Docker,
            Some("cri-containerd") => Runtime::Containerd,
            Some("crio") => Runtime::Crio,
            _ => Runtime::Unknown,
        };
        return Some(Container { id: component.to_owned(), runtime });
    }
    let name = component.strip_suffix(".scope").unwrap_or(component);
    let (prefix, id) = name.split_at_checked(name.len().checked_sub(64)?)?;
    let prefix = prefix.strip_suffix(['-', '_'])?;
    if prefix.is_empty() || !is_hex(id, 64) || is_conmon(component) {
        return None;
    }
    let known = RUNTIME_PREFIXES.iter().find(|(known, _)| *known == prefix);
    Some(Container { id: id.to_owned(), runtime: known.map_or(Runtime::Unknown, |(_, runtime)| *runtime) })
}

/// The monitor process beside a container, named by the container's id.
fn is_conmon(component: &str) -> bool {
    component.contains("-conmon-")
}

fn hierarchy_rank(hierarchy: &str, controllers: &str) -> u8 {
    if hierarchy == "0" {
        3
    } else if controllers.split(',').any(|controller| controller == "cpu" || controller == "cpuacct") {
        2
    } else {
        u8::from(controllers == "name=systemd")
    }
}

#[cfg(test)]
mod tests;
