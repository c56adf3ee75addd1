use super::*;
use crate::metrics::FamilyKind;

const fn metric(name: &'static str, level: Option<Level>, source: Option<SourceSwitch>) -> Metric {
    Metric { name, kind: FamilyKind::Gauge, labels: &[], level, source, help: "" }
}

const TABLE: [Metric; 9] = [
    metric("kepler_node_cpu_watts", Some(Level::Node), None),
    metric("kepler_pod_cpu_joules_total", Some(Level::Pod), None),
    metric("kepler_pod_cpu_watts", Some(Level::Pod), None),
    metric("kepler_pod_gpu_joules_total", Some(Level::Pod), Some(SourceSwitch::Gpu)),
    metric("energy_agent_pod_cpu_seconds_total", Some(Level::Pod), Some(SourceSwitch::Cgroup)),
    metric("energy_agent_container_cpu_cycles_total", Some(Level::Container), Some(SourceSwitch::Counter)),
    metric("energy_agent_container_context_switches_total", Some(Level::Container), Some(SourceSwitch::Cgroup)),
    metric("kepler_process_cpu_seconds_total", Some(Level::Process), None),
    metric("energy_agent_ticks_total", None, None),
];

fn select(entries: &[(&str, &str)]) -> Result<Selection, String> {
    let entries: Vec<_> = entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let selection = Selection::new(&Settings::read(&entries, "in a test").unwrap(), &TABLE, true);
    selection.map_err(|refusal| refusal.to_string())
}

/// One letter a metric of the table, in its order: shown or not.
fn shown(entries: &[(&str, &str)]) -> String {
    let selection = select(entries).unwrap();
    TABLE.iter().map(|metric| if selection.shows(metric.name) { 'x' } else { '.' }).collect()
}

#[test]
fn levels_names_and_sources_choose() {
    for (entries, expected) in [
        (&[] as &[_], "xxxxxxx.x"),
        (&[("EXPORT_METRICS", "")], "xxxxxxx.x"),
        (&[("EXPORT_LEVELS", "node")], "x.......x"),
        (&[("EXPORT_LEVELS", "process,pod")], ".xxxx..xx"),
        // A level's word stands for all of it, also beside names of others.
        (&[("EXPORT_METRICS", "container")], ".....xx.x"),
        (&[("EXPORT_METRICS", "container,kepler_node_cpu_watts")], "x....xx.x"),
        (&[("EXPORT_METRICS", "Process")], ".......xx"),
        // Names and wildcards choose from the levels: a wildcard does not turn processes on.
        (&[("EXPORT_METRICS", "kepler_*")], "xxxx....x"),
        (&[("EXPORT_METRICS", "kepler_*"), ("EXPORT_LEVELS", "pod")], ".xxx....x"),
        (&[("EXPORT_METRICS", "kepler_process_*"), ("EXPORT_LEVELS", "pod,process")], ".......xx"),
        (&[("EXPORT_METRICS", "*_watts")], "x.x.....x"),
        (&[("EXPORT_METRICS", "*pod*total")], ".x.xx...x"),
        (&[("EXPORT_METRICS", "kepler_pod_cpu_watts")], "..x.....x"),
        // Taking away comes last, wherever it stands.
        (&[("EXPORT_METRICS", "-*_watts")], ".x.xxxx.x"),
        (&[("EXPORT_METRICS", "-*_watts,pod")], ".x.xx...x"),
        (&[("EXPORT_METRICS", "-pod")], "x....xx.x"),
        (&[("EXPORT_METRICS", "-*")], "........x"),
        (&[("EXPORT_METRICS", "energy_agent_ticks_total")], "........x"),
        (&[("EXPORT_METRICS", "process_start_time_seconds")], "........x"),
        (&[("SOURCE.GPU", "disabled")], "xxx.xxx.x"),
        (&[("SOURCE.COUNTER", "disabled")], "xxxxx.x.x"),
        // CPU time of processes is not accounted per cgroup.
        (&[("SOURCE.CGROUP", "disabled"), ("ENABLE_PROCESS_METRICS", "true")], "xxxx.x.xx"),
        (&[("SOURCE.KUBELET", "disabled")], "xxxxxxx.x"),
        (&[("ENABLE_PROCESS_METRICS", "true")], "xxxxxxxxx"),
        (&[("EXPOSE_CONTAINER_METRICS", "false")], "xxxxx...x"),
        (&[("EXPORT_METRICS", "kepler_*"), ("SOURCE.GPU", "disabled")], "xxx.....x"),
    ] {
        assert_eq!(shown(entries), expected, "{entries:?}");
    }
}

#[test]
fn levels_are_those_of_which_anything_is_shown() {
    for (entries, levels) in [
        (&[] as &[_], "[Node, Pod, Container]"),
        (&[("EXPORT_METRICS", "kepler_*")], "[Node, Pod]"),
        (&[("EXPORT_METRICS", "-*")], "[]"),
        (&[("EXPORT_METRICS", "-pod")], "[Node, Container]"),
        (&[("EXPORT_METRICS", "kepler_pod_cpu_watts"), ("ENABLE_PROCESS_METRICS", "true")], "[Pod]"),
    ] {
        assert_eq!(format!("{:?}", select(entries).unwrap().levels()), levels, "{entries:?}");
    }
    assert!(select(&[]).unwrap().names());
    assert!(!select(&[("SOURCE.KUBELET", "disabled")]).unwrap().names());
}

#[test]
fn what_cannot_be_had_is_named() {
    let in_test = "EXPORT_METRICS in a test: ";
    for (entries, expected) in [
        (
            &[("EXPORT_METRICS", "pods")] as &[_],
            "pods: is not a level (node, pod, container, process) and matches no metric, did you mean pod?",
        ),
        (
            &[("EXPORT_METRICS", "kepler_pod_cpu_watt")],
            "kepler_pod_cpu_watt: is not a level (node, pod, container, process) and matches no metric, \
             did you mean kepler_pod_cpu_watts?",
        ),
        (&[("EXPORT_METRICS", "-zzz*")], "-zzz*: is not a level (node, pod, container, process) and matches no metric"),
        (
            &[("EXPORT_METRICS", "kepler_process_*")],
            "kepler_process_*: belongs to the level process, which is not selected; add process to --export.levels",
        ),
        (
            &[("EXPORT_METRICS", "kepler_node_cpu_watts"), ("EXPORT_LEVELS", "pod")],
            "kepler_node_cpu_watts: belongs to the level node, which is not selected; add node to EXPORT_LEVELS in a test",
        ),
        (
            &[("EXPORT_METRICS", "kepler_pod_gpu_joules_total"), ("SOURCE.GPU", "disabled")],
            "kepler_pod_gpu_joules_total: its source is turned off by SOURCE.GPU in a test",
        ),
        (
            &[("EXPORT_METRICS", "*_gpu_*"), ("ENABLE_GPU", "false")],
            "*_gpu_*: its source is turned off by ENABLE_GPU in a test",
        ),
        (
            &[("EXPORT_METRICS", "pod,process"), ("ENABLE_PROCESS_METRICS", "false")],
            "process: the level is turned off by ENABLE_PROCESS_METRICS in a test",
        ),
        (
            &[("EXPORT_METRICS", "-energy_agent_ticks_total")],
            "-energy_agent_ticks_total: the agent's own metrics are always exported",
        ),
    ] {
        assert_eq!(select(entries).unwrap_err(), format!("{in_test}{expected}"));
    }
}

#[test]
fn processes_need_ebpf() {
    for (key, value) in
        [("EXPORT_METRICS", "process"), ("EXPORT_LEVELS", "node,process"), ("ENABLE_PROCESS_METRICS", "true")]
    {
        let settings = Settings::read(&[(key.to_owned(), value.to_owned())], "in a test").unwrap();
        let problem = Selection::new(&settings, &TABLE, false).unwrap_err().to_string();
        assert!(problem.starts_with(&format!("{key} in a test: level process needs eBPF")), "{problem}");
    }
}

#[test]
fn the_text_says_what_was_chosen_and_by_what() {
    let entries = [("EXPORT_LEVELS", "pod,node"), ("EXPORT_METRICS", "kepler_*, -*_watts"), ("SOURCE_GPU", "disabled")];
    assert_eq!(
        select(&entries).unwrap().text(),
        "levels node,pod (EXPORT_LEVELS in a test); of them kepler_*,-*_watts (EXPORT_METRICS in a test); \
         without SOURCE_GPU in a test"
    );
}

#[test]
fn a_star_stands_for_any_text() {
    for (pattern, name, expected) in [
        ("a_b", "a_b", true),
        ("a_b", "a_bc", false),
        ("*", "a", true),
        ("a*", "a", true),
        ("*b", "ab", true),
        ("*b", "abc", false),
        ("a*c", "abbc", true),
        ("a*b*c", "a_c", false),
        ("a*b*c", "axbxc", true),
        ("ab*ba", "aba", false),
        ("a**c", "abc", true),
        ("a*b*b", "ab", false),
    ] {
        assert_eq!(glob(pattern, name), expected, "{pattern} {name}");
    }
}

/// So that a new family does not change sides unseen. Those about GPUs have `_gpu_` in their names.
#[test]
fn the_sources_of_the_exported_families() {
    let of = |wanted: SourceSwitch| {
        let found = crate::metrics::ALL.iter().filter(|metric| metric.source == Some(wanted));
        found.map(|metric| metric.name).collect::<Vec<_>>()
    };
    for name in ["energy_agent_pod_cpu_cycles_total", "energy_agent_system_cpu_cycles_total"] {
        assert!(of(SourceSwitch::Counter).contains(&name));
    }
    assert_eq!(
        of(SourceSwitch::Cgroup),
        [
            "energy_agent_pod_cpu_seconds_total",
            "energy_agent_pod_context_switches_total",
            "kepler_container_cpu_seconds_total",
            "energy_agent_container_context_switches_total",
            "energy_agent_system_cpu_seconds_total",
            "energy_agent_system_context_switches_total",
        ]
    );
    for metric in crate::metrics::ALL {
        let of_gpus = metric.level.is_some() && metric.name.contains("_gpu_");
        assert_eq!(metric.source == Some(SourceSwitch::Gpu), of_gpus, "{}", metric.name);
    }
    for metric in crate::metrics::ALL.iter().filter(|metric| metric.level.is_none()) {
        assert_eq!(metric.source, None, "{}", metric.name);
    }
}
