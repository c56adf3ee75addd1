//! Entries into a tree in which everything is counted once: a namespace holds pods, a pod its containers; a slice holds slices
//! and users' managers, a unit what runs in it. The figures of a branch are those of all that is in it.

use std::collections::{BTreeMap, BTreeSet};

use super::entry::{Entries, Entry, EntryKey};
use super::figures::Figures;

/// What a row is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RowKind {
    #[default]
    Group,
    Namespace,
    Pod,
    Container,
    Slice,
    Unit,
    Process,
}

energy_model::as_str!(RowKind {
    Group => "group",
    Namespace => "namespace",
    Pod => "pod",
    Container => "container",
    Slice => "slice",
    Unit => "unit",
    Process => "process",
});

/// A row with those below it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Branch {
    pub kind: RowKind,
    pub name: String,
    /// Of it and of all below it.
    pub figures: Figures,
    pub ended: bool,
    pub children: Vec<Branch>,
}

/// Where all pods without a known namespace are.
const UNNAMED_PODS: &str = "pods without a name yet";
const SERVICES: &str = "services";
const CONTAINERS: &str = "containers";
/// What runs in the root cgroup, or in a scope or folder that no unit holds; the label `unit` is `/`.
const NO_UNIT: &str = "in no unit (/)";
const USERS: &str = "user.slice";
/// Deeper ones are shown as one name: a tenant may nest cgroups as deep as a path allows.
const DEEPEST: usize = 12;

/// What pods, containers and units use.
pub fn workloads(entries: &Entries) -> Vec<Branch> {
    let mut roots = Roots::default();
    let scopes = scopes(entries);
    for (key, entry) in &entries.all {
        match key {
            EntryKey::Pod { uid } => roots.at(pod_path(uid, entry)).own(entry),
            EntryKey::Unit { name } => match scopes.get(name.as_str()) {
                Some(id) => roots.at(scope_path(id)).own(&Entry { name: short(id), ..entry.clone() }),
                None => roots.at(unit_path(name)).own(entry),
            },
            EntryKey::Container { .. } | EntryKey::Process { .. } | EntryKey::Unattributed { .. } => {}
        }
    }
    for (key, entry) in &entries.all {
        let EntryKey::Container { uid, id } = key else { continue };
        let step = TreeStep { kind: RowKind::Container, key: id.clone(), name: entry.name.clone() };
        let unit = entries.unit_of.get(id);
        let mut path = match unit {
            _ if !uid.is_empty() => {
                let pod = entries.all.get(&EntryKey::Pod { uid: uid.clone() });
                pod_path(uid, pod.unwrap_or(&Entry { name: uid.clone(), ..Entry::default() }))
            }
            Some(unit) if !scopes.contains_key(unit.as_str()) => unit_path(unit),
            // Its unit is nothing but this container.
            Some(unit) if entries.all.contains_key(&EntryKey::Unit { name: unit.clone() }) => continue,
            _ => vec![TreeStep::new(RowKind::Group, CONTAINERS)],
        };
        path.push(step);
        let node = roots.at(path);
        node.own(entry);
        node.is_part_of_own = true;
    }
    roots.0.into_values().map(TreeNode::branch).collect()
}

/// What processes use: another division of the same energy.
pub fn processes(entries: &Entries) -> Vec<Branch> {
    let process = |(key, entry): (&EntryKey, &Entry)| {
        let Entry { name, figures, ended, namespace: _ } = entry.clone();
        let is_process = matches!(key, EntryKey::Process { .. });
        is_process.then_some(Branch { kind: RowKind::Process, name, figures, ended, children: Vec::new() })
    };
    entries.all.iter().filter_map(process).collect()
}

/// One step on the way to a row.
#[derive(Clone, Debug)]
struct TreeStep {
    kind: RowKind,
    /// Among its siblings.
    key: String,
    name: String,
}

impl TreeStep {
    fn new(kind: RowKind, name: &str) -> Self {
        Self { kind, key: name.to_owned(), name: energy_model::printable::printable(name).into_owned() }
    }
}

fn pod_path(uid: &str, entry: &Entry) -> Vec<TreeStep> {
    let group = match entry.namespace.as_str() {
        "" => TreeStep::new(RowKind::Group, UNNAMED_PODS),
        // No name of a slice, a unit or a group has a blank.
        namespace => TreeStep { key: format!("namespace {namespace}"), ..TreeStep::new(RowKind::Namespace, namespace) },
    };
    vec![group, TreeStep { kind: RowKind::Pod, key: uid.to_owned(), name: entry.name.clone() }]
}

/// Of a container that is a unit by itself.
fn scope_path(id: &str) -> Vec<TreeStep> {
    let container = TreeStep { kind: RowKind::Container, key: id.to_owned(), name: short(id) };
    vec![TreeStep::new(RowKind::Group, CONTAINERS), container]
}

fn short(id: &str) -> String {
    energy_model::printable::printable(id).chars().take(12).collect()
}

/// Units of the node that hold one container and are named by it, such as `docker-ID.scope`; with the container's id.
fn scopes(entries: &Entries) -> BTreeMap<&str, &str> {
    let mut scopes = BTreeMap::new();
    let mut several = BTreeSet::new();
    for (id, unit) in &entries.unit_of {
        let is_of_node = unit.starts_with('/') || !unit.contains('/');
        if is_of_node
            && !id.is_empty()
            && unit.contains(id.as_str())
            && scopes.insert(unit.as_str(), id.as_str()).is_some()
        {
            several.insert(unit.as_str());
        }
    }
    scopes.retain(|unit, _| !several.contains(unit));
    scopes
}

/// The chain of units that its name is, below what systemd puts the first one in.
fn unit_path(name: &str) -> Vec<TreeStep> {
    let (root, chain) = match name.strip_prefix('/') {
        Some(chain) if !chain.is_empty() => ("/", chain),
        _ => ("", name),
    };
    if name == "/" {
        return vec![TreeStep { kind: RowKind::Unit, key: name.to_owned(), name: NO_UNIT.to_owned() }];
    }
    let parts: Vec<&str> = chain.splitn(DEEPEST, '/').collect();
    let mut path = if root.is_empty() { slices(parts[0]) } else { Vec::new() };
    if parts.len() == 1 && parts[0].ends_with(".slice") {
        // It is the last of its own slices.
        return path;
    }
    for (at, part) in parts.iter().enumerate() {
        let step = TreeStep::new(RowKind::Unit, part);
        path.push(if at == 0 {
            TreeStep { key: format!("{root}{part}"), name: format!("{root}{}", step.name), ..step }
        } else {
            step
        });
    }
    path
}

/// The slices around a unit of the node, as far as its name says so: `user-1000.slice` lies in `user.slice`, and the manager
/// `user@1000.service` in `user-1000.slice`.
fn slices(unit: &str) -> Vec<TreeStep> {
    if matches!(unit, "kernel" | "unknown" | "other") {
        return Vec::new();
    }
    if let Some(uid) = unit.strip_prefix("user@").and_then(|rest| rest.strip_suffix(".service")) {
        let own = format!("user-{uid}.slice");
        return vec![TreeStep::new(RowKind::Slice, USERS), TreeStep::new(RowKind::Slice, &own)];
    }
    let Some(slice) = unit.strip_suffix(".slice") else { return vec![TreeStep::new(RowKind::Group, SERVICES)] };
    let dashes: Vec<usize> = slice.match_indices('-').map(|(at, _)| at).collect();
    if slice.split('-').any(str::is_empty) || dashes.len() > DEEPEST {
        return vec![TreeStep::new(RowKind::Slice, unit)];
    }
    let ends = dashes.into_iter().chain([slice.len()]);
    ends.map(|end| TreeStep::new(RowKind::Slice, &format!("{}.slice", &slice[..end]))).collect()
}

/// The tree under construction, by the keys of the steps.
#[derive(Default)]
struct Roots(BTreeMap<String, TreeNode>);

#[derive(Default)]
struct TreeNode {
    kind: RowKind,
    name: String,
    /// What the page says of it itself.
    own: Option<Figures>,
    ended: bool,
    /// What the page says of the row around it holds this one.
    is_part_of_own: bool,
    children: BTreeMap<String, TreeNode>,
}

impl Roots {
    /// The node at the end of a path, which has one step at least.
    fn at(&mut self, path: Vec<TreeStep>) -> &mut TreeNode {
        let mut steps = path.into_iter();
        let mut node = TreeNode::below(&mut self.0, steps.next().unwrap_or(TreeStep::new(RowKind::Group, "")));
        for step in steps {
            node = TreeNode::below(&mut node.children, step);
        }
        node
    }
}

impl TreeNode {
    fn below(siblings: &mut BTreeMap<String, Self>, step: TreeStep) -> &mut Self {
        let TreeStep { kind, key, name } = step;
        siblings.entry(key).or_insert_with(|| Self { kind, name, ..Self::default() })
    }

    fn own(&mut self, entry: &Entry) {
        self.own.get_or_insert_default().add(&entry.figures);
        self.ended = entry.ended;
    }

    fn branch(self) -> Branch {
        let Self { kind, name, own, ended, is_part_of_own: _, children } = self;
        let mut figures = own.unwrap_or_default();
        let mut below = Vec::with_capacity(children.len());
        for child in children.into_values() {
            let is_counted = child.is_part_of_own && own.is_some();
            let child = child.branch();
            if !is_counted {
                figures.add(&child.figures);
            }
            below.push(child);
        }
        Branch { kind, name, figures, ended, children: below }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests panic")]

    use energy_export::parse::samples;

    use super::super::rates::PreviousPage;
    use super::*;

    /// Every row with its watts, indented by its depth.
    fn drawn(branches: &[Branch], depth: usize) -> String {
        let line = |it: &Branch| {
            let watts = it.figures.total_watts().map_or_else(|| "-".to_owned(), |watts| watts.to_string());
            let below = drawn(&it.children, depth + 1);
            format!("{:1$}{2} {3} {watts}\n{below}", "", depth * 2, it.kind.as_str(), it.name)
        };
        branches.iter().map(line).collect()
    }

    fn tree(page: &str) -> String {
        drawn(&workloads(&Entries::read(&samples(page).unwrap(), &mut PreviousPage::default())), 0)
    }

    fn unit(name: &str, watts: u32) -> String {
        format!("energy_agent_system_cpu_watts{{unit=\"{name}\"}} {watts}\n")
    }

    #[test]
    fn a_namespace_is_the_sum_of_its_pods_and_a_pod_is_not_counted_with_its_containers() {
        let page = "kepler_pod_cpu_watts{pod_id=\"u1\",pod_name=\"train\",pod_namespace=\"ml\"} 5\n\
             kepler_pod_gpu_watts{pod_id=\"u1\",pod_name=\"train\",pod_namespace=\"ml\"} 100\n\
             kepler_pod_cpu_watts{pod_id=\"u2\",pod_name=\"train\",pod_namespace=\"ml\"} 2\n\
             kepler_pod_cpu_watts{pod_id=\"u3\"} 1\n\
             kepler_container_cpu_watts{container_id=\"c1\",container_name=\"main\",pod_id=\"u1\"} 4\n\
             kepler_container_cpu_watts{container_id=\"POD\",container_name=\"POD\",pod_id=\"u1\"} 1\n\
             kepler_container_cpu_watts{container_id=\"c9\",pod_id=\"u9\"} 3\n";
        let expected = "namespace ml 107\n  pod train 105\n    container POD 1\n    container main 4\n  pod train 2\n\
             group pods without a name yet 4\n  pod u3 1\n  pod u9 3\n    container c9 3\n";
        assert_eq!(tree(page), expected);
    }

    #[test]
    fn slices_and_managers_hold_what_is_in_them() {
        let page = [
            unit("kernel", 1),
            unit("sshd.service", 2),
            unit("user-1000.slice", 3),
            unit("user@1000.service", 4),
            unit("user@1000.service/app.service", 5),
            unit("/lxc.payload.c1", 6),
            unit("/lxc.payload.c1/nginx.service", 7),
            unit("/", 8),
            unit("-odd--.slice", 9),
        ];
        let expected = "slice -odd--.slice 9\nunit in no unit (/) 8\nunit /lxc.payload.c1 13\n  unit nginx.service 7\nunit kernel 1\n\
             group services 2\n  unit sshd.service 2\n\
             slice user.slice 12\n  slice user-1000.slice 12\n    unit user@1000.service 9\n      unit app.service 5\n";
        assert_eq!(tree(&page.concat()), expected);
    }

    #[test]
    fn a_container_outside_pods_is_counted_once() {
        let id = "3f1c2ab49d0777";
        let info = |id: &str, unit: &str| {
            format!("energy_agent_container_unit_info{{container_id=\"{id}\",unit=\"{unit}\"}} 1\n")
        };
        let container = |id: &str, watts: u32| format!("kepler_container_cpu_watts{{container_id=\"{id}\"}} {watts}\n");
        let scope = format!("docker-{id}.scope");
        let page = [
            // A unit that is nothing but a container, and a service with one in it.
            [unit(&scope, 4), container(id, 4), info(id, &scope)].concat(),
            [unit("shop.service", 7), container("c2", 5), info("c2", "shop.service")].concat(),
        ];
        let expected = "group containers 4\n  container 3f1c2ab49d07 4\n\
             group services 7\n  unit shop.service 7\n    container c2 5\n";
        assert_eq!(tree(&page.concat()), expected);
        // Without the level node there are no units.
        let page = [container(id, 4), info(id, &scope), container("c2", 5), info("c2", "shop.service")].concat();
        let expected = "group containers 4\n  container 3f1c2ab49d07 4\n\
             group services 5\n  unit shop.service 5\n    container c2 5\n";
        assert_eq!(tree(&page), expected);
    }

    #[test]
    fn a_deep_or_hostile_name_is_bounded_and_printable() {
        let name = "/a".repeat(2000);
        assert_eq!(tree(&unit(&name, 1)).lines().count(), DEEPEST);
        let drawn = tree(&unit("a\u{1b}[2J\u{202e}.slice", 1));
        assert_eq!(drawn, "slice a\\u{1b}[2J\\u{202e}.slice 1\n");
    }
}
