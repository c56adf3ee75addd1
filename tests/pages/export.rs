//! Scrapes of a hand-made snapshot over real TCP: identities on the text, names, labels, formats and the web server.
#![expect(clippy::unwrap_used, reason = "helpers of tests panic as tests do")]

mod capping;
mod overview;
mod policies;
mod server;
mod web;
mod world;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use crate::common::agent::wait_for;
use energy_agent::config::{Login, TopArgs};
use energy_export::level::Level;
use energy_export::metrics;
use energy_export::metrics::FamilyKind;
use energy_export::negotiate::Coding;
use energy_export::page::Published;
use energy_export::parse::{ParsedSample, samples};
use energy_export::self_metrics::SelfMetrics;
use energy_export::text::{Format, Labels, SeriesValue, Writer};
use energy_model::cpu::CpuInfo;
use energy_model::meter_state::UsageMeter;
use energy_model::snapshot::Snapshot;
use energy_model::zone::ZoneKind;
use proptest::prelude::*;

use server::{Server, gunzip};
use world::{UID, case, crowded, export, named, page, published, rich, text, zone};

/// Microjoules of a value with six decimals, without a float.
fn microjoules(value: &str) -> u64 {
    let (whole, fraction) = value.split_once('.').unwrap();
    assert_eq!(fraction.len(), 6, "{value}");
    whole.parse::<u64>().unwrap() * 1_000_000 + fraction.parse::<u64>().unwrap()
}

/// Sum of a family's joules by (zone, source).
fn sums(page: &[ParsedSample], name: &str) -> BTreeMap<(String, String), u64> {
    let mut sums = BTreeMap::new();
    for sample in page.iter().filter(|sample| sample.name == name) {
        let key = (sample.label("zone").to_owned(), sample.label("source").to_owned());
        *sums.entry(key).or_default() += microjoules(&sample.value);
    }
    sums
}

#[test]
fn the_parts_of_the_active_energy_sum_to_it_on_the_scraped_text() {
    let server = Server::start(published(rich()));
    let page = samples(server.get("/metrics", &[]).text()).unwrap();
    let active = sums(&page, "kepler_node_cpu_active_joules_total");
    let key = |zone: &str| (zone.to_owned(), "rapl".to_owned());
    assert_eq!(active, BTreeMap::from([(key("package"), 60_000_005), (key("dram"), 3_000_001)]));
    let mut parts = BTreeMap::new();
    for name in [
        "kepler_pod_cpu_joules_total",
        "energy_agent_system_cpu_joules_total",
        "energy_agent_retired_cpu_joules_total",
        "energy_agent_node_cpu_unattributed_joules_total",
    ] {
        for (key, sum) in sums(&page, name) {
            *parts.entry(key).or_default() += sum;
        }
    }
    assert_eq!(parts, active);
    let idle = sums(&page, "kepler_node_cpu_idle_joules_total");
    let measured = sums(&page, "kepler_node_cpu_joules_total");
    for zone in ["package", "dram"] {
        assert_eq!(active[&key(zone)] + idle[&key(zone)], measured[&key(zone)], "{zone}");
    }
    let mut given = BTreeMap::new();
    for name in [
        "energy_agent_pod_idle_joules_total",
        "energy_agent_idle_unassigned_joules_total",
        "energy_agent_retired_idle_joules_total",
    ] {
        for (key, sum) in sums(&page, name) {
            *given.entry(key).or_default() += sum;
        }
    }
    assert_eq!(given, idle);
}

#[test]
fn a_pod_is_the_sum_of_its_containers_and_runs_while_one_of_them_does() {
    let page = page(rich());
    let find = |name: &str, zone: &str, id: &str| {
        let mut all = page.iter().filter(|sample| sample.name == name && sample.label("zone") == zone);
        let found = all.find(|sample| [sample.label("container_id"), sample.label("unit"), ""].contains(&id)).unwrap();
        found.clone()
    };
    let pod = find("kepler_pod_cpu_joules_total", "package", "");
    assert_eq!((pod.value.as_str(), pod.label("pod_id"), pod.label("state")), ("40.000004", UID, "running"));
    let infra = find("kepler_container_cpu_joules_total", "package", "POD");
    assert_eq!((infra.value.as_str(), infra.label("container_name"), infra.label("pod_id")), ("10.000003", "POD", UID));
    let ended = find("kepler_container_cpu_joules_total", "dram", "c1");
    assert_eq!(
        (ended.value.as_str(), ended.label("state"), ended.label("runtime")),
        ("1.000000", "terminated", "containerd")
    );
    let outside = find("kepler_container_cpu_joules_total", "package", "d0c");
    assert_eq!((outside.value.as_str(), outside.label("pod_id"), outside.label("runtime")), ("1.000000", "", "docker"));
    let unit = find("energy_agent_system_cpu_joules_total", "package", "docker.service");
    assert_eq!((unit.value.as_str(), unit.label("state")), ("8.000000", "running"));
    assert_eq!(find("energy_agent_pod_cpu_seconds_total", "", "").value, "3.000000000");
    assert_eq!(find("kepler_pod_cpu_watts", "dram", "").value, "2.500000");
}

/// Rows of the compatibility contract that this agent has today, and their labels; `socket`, `source` and others come on top.
#[test]
fn keplers_series_have_all_of_keplers_labels() {
    let page = page(rich());
    let zone: &[&str] = &["zone", "path", "node_name"];
    for (name, labels) in [
        ("kepler_node_cpu_active_joules_total", zone),
        ("kepler_node_cpu_active_watts", zone),
        ("kepler_node_cpu_idle_joules_total", zone),
        ("kepler_node_cpu_idle_watts", zone),
        ("kepler_node_cpu_joules_total", zone),
        ("kepler_node_cpu_watts", zone),
        ("kepler_node_cpu_usage_ratio", &["node_name"]),
        ("kepler_node_cpu_info", &["processor", "vendor_id", "model_name", "core_id"]),
        ("kepler_build_info", &["arch", "branch", "revision", "version"]),
    ] {
        let sample = page.iter().find(|sample| sample.name == name).unwrap_or_else(|| panic!("no {name}"));
        for label in labels {
            assert!(!sample.label(label).is_empty(), "{name} has no {label}");
        }
    }
    // Names come from the API server, which this snapshot knows nothing of.
    for (name, labels) in [
        ("kepler_container_cpu_joules_total", "container_id container_name runtime state zone pod_id node_name source"),
        ("kepler_container_cpu_watts", "container_id container_name runtime state zone pod_id node_name source"),
        ("kepler_container_cpu_seconds_total", "container_id container_name runtime state pod_id node_name"),
        ("kepler_pod_cpu_joules_total", "pod_id pod_name pod_namespace state zone node_name source"),
        ("kepler_process_cpu_joules_total", "pid comm exe type state container_id vm_id zone node_name source"),
        ("kepler_process_cpu_seconds_total", "pid comm exe type container_id vm_id node_name"),
        ("kepler_pod_cpu_watts", "pod_id pod_name pod_namespace state zone node_name source"),
    ] {
        let declared = metrics::ALL.iter().find(|metric| metric.name == name).unwrap().labels;
        assert_eq!(HashSet::from_iter(declared.iter().copied()), labels.split(' ').collect::<HashSet<_>>(), "{name}");
    }
}

#[test]
fn instances_of_a_named_container_are_one_series_under_the_current_id() {
    let page = page(named());
    let package = |name: &str| -> Vec<_> {
        let of = |it: &&ParsedSample| it.name == name && it.label("zone") == "package" && it.label("pod_id") == UID;
        page.iter().filter(of).cloned().collect()
    };
    let containers = package("kepler_container_cpu_joules_total");
    let shown: Vec<_> = containers
        .iter()
        .map(|it| {
            [it.label("container_name"), it.label("container_id"), it.label("state"), it.label("runtime"), &it.value]
        })
        .collect();
    // 30.000001 J of c1, 2 J of c2, 0.5 J of instances that have no row any more.
    let main = ["main", "c2", "running", "containerd", "32.500001"];
    assert_eq!(shown, [["POD", "POD", "running", "unknown", "10.000003"], main]);
    let pods = package("kepler_pod_cpu_joules_total");
    assert_eq!((pods.len(), pods[0].value.as_str()), (1, "42.500004"));
    assert_eq!([pods[0].label("pod_name"), pods[0].label("pod_namespace")], ["web-0", "shop"]);
}

#[test]
fn every_series_is_in_the_table_with_its_labels_and_every_family_is_written() {
    let page = page(named());
    let mut written = HashSet::new();
    for sample in page.iter().filter(|sample| !sample.name.starts_with("process_")) {
        let name = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| sample.name.strip_suffix(suffix));
        let name = name.unwrap_or(&sample.name);
        let metric = metrics::ALL.iter().find(|metric| metric.name == name).unwrap_or_else(|| panic!("{name}"));
        for (label, _) in &sample.labels {
            let declared = if label.starts_with("label_") { "label_*" } else { label };
            assert!(metric.labels.contains(&declared) || label == "le", "{name} {label}");
        }
        assert_eq!(metric.name.ends_with("_total"), metric.kind == FamilyKind::Counter, "{name}");
        written.insert(metric.name);
    }
    for metric in metrics::ALL {
        assert!(written.contains(metric.name), "{} is never written", metric.name);
    }
}

#[test]
fn a_process_is_shown_by_its_odd_name_and_sums_have_no_pid() {
    let page = page(rich());
    let joules: Vec<_> = page.iter().filter(|sample| sample.name == "kepler_process_cpu_joules_total").collect();
    let seen: Vec<_> = joules
        .iter()
        .map(|sample| {
            let [pid, comm, kind, container] = ["pid", "comm", "type", "container_id"].map(|label| sample.label(label));
            (pid, comm, kind, container, sample.value.as_str())
        })
        .collect();
    assert_eq!(
        seen,
        [
            ("", "kernel", "kernel", "", "7.000000"),
            ("", "other", "other", "", "0.000001"),
            ("4242", "od\"d\nna\\me", "container", "c1", "30.000001"),
        ]
    );
    let seconds = page.iter().find(|sample| sample.name == "kepler_process_cpu_seconds_total").unwrap();
    assert_eq!(seconds.label("state"), "", "Kepler has none there");
}

#[test]
fn what_was_not_measured_has_no_series() {
    let mut snapshot = rich();
    for row in &mut snapshot.rows {
        (row.cycles, row.switches) = (0, 0);
        row.energy.iter_mut().for_each(|energy| energy.power = None);
    }
    for zone in &mut snapshot.zones {
        (zone.power, zone.parts) = (None, None);
    }
    for gpu in &mut snapshot.gpus {
        gpu.state = Default::default();
    }
    snapshot.capping = None;
    snapshot.processes.clear();
    snapshot.cpu_usage_ratio = Some(f64::NAN);
    snapshot.idle = None;
    snapshot.health.ebpf_run_ns = None;
    snapshot.attribution.usage = Some(UsageMeter::Files);
    let page = page(snapshot);
    for part in [
        "cycles",
        "context_switches",
        "watts",
        "active",
        "idle_joules",
        "usage_ratio",
        "ebpf_run",
        "kepler_process",
        "map_drops",
        "events_dropped",
        "missed_switches",
        "utilization",
        "gpu_memory",
        "celsius",
        "clock_hertz",
        "throttle",
        "DCGM_FI_DEV_GPU",
    ] {
        let found = page.iter().find(|sample| sample.name.contains(part));
        assert_eq!(found, None, "{part}");
    }
    assert!(page.iter().any(|sample| sample.name == "kepler_node_cpu_joules_total"));
}

#[test]
fn levels_select_the_families() {
    let own = SelfMetrics::new();
    for (level, name) in [
        (Level::Node, "kepler_node_cpu_joules_total"),
        (Level::Pod, "kepler_pod_cpu_joules_total"),
        (Level::Container, "kepler_container_cpu_joules_total"),
        (Level::Node, "energy_agent_system_cpu_joules_total"),
    ] {
        let export = export(&[("EXPORT_LEVELS", level.as_str())]);
        let body = Published::new(rich(), export).body(Format::Text, Coding::Identity, &own);
        for sample in samples(std::str::from_utf8(&body).unwrap()).unwrap() {
            let metric = metrics::ALL.iter().find(|metric| metric.name == sample.name);
            assert!(metric.is_none_or(|metric| metric.level.is_none_or(|of| of == level)), "{sample:?}");
        }
        assert!(std::str::from_utf8(&body).unwrap().contains(name));
    }
}

/// FC-068.
#[test]
fn exactly_three_characters_are_escaped() {
    let case = case("FC-068-label-escaping.json");
    for value in case["label_values"].as_array().unwrap() {
        let raw = value["raw"].as_str().unwrap();
        let expected = value["text"].as_str().unwrap().replace(" (UTF-8 as is)", "");
        let mut snapshot = rich();
        snapshot.cpu_info = Arc::from([CpuInfo { model_name: raw.to_owned(), ..snapshot.cpu_info[0].clone() }]);
        let series = page(rich()).len();
        let body = String::from_utf8(text(snapshot, Format::Text)).unwrap();
        assert!(body.contains(&expected.replace("pod_note", "model_name")), "{raw:?}");
        let page = samples(&body).unwrap();
        assert_eq!(page.len(), series, "an odd value lost other series");
        assert!(page.iter().any(|sample| sample.label("model_name") == raw));
    }
}

/// FC-069.
#[test]
fn no_series_comes_twice_and_empty_labels_are_left_out() {
    let mut snapshot = rich();
    snapshot.node = Arc::from("");
    snapshot.zones.push(zone(ZoneKind::Dram, 0, "intel-rapl:0:0", 1, None));
    snapshot.zones.push(zone(ZoneKind::Dram, 2, "intel-rapl:2:0", 1, None));
    let server = Server::start(published(snapshot.clone()));
    let body = server.get("/metrics", &[]);
    assert!(!body.text().contains("=\"\""));
    let page = samples(body.text()).unwrap();
    let series: HashSet<_> = page.iter().map(|sample| (&sample.name, &sample.labels)).collect();
    assert_eq!(series.len(), page.len());
    let dram =
        page.iter().filter(|sample| sample.name == "kepler_node_cpu_joules_total" && sample.label("zone") == "dram");
    assert_eq!(dram.map(|sample| sample.label("socket")).collect::<Vec<_>>(), ["0", "1", "2"]);
    assert!(!body.text().contains("node_name"));
    // Two series of the second zone with one identity, joules and watts: the page after it shows the count.
    server.snapshots.send_replace(Arc::new(published(snapshot)));
    let page = samples(server.get("/metrics", &[]).text()).unwrap();
    let count = page.iter().find(|sample| sample.name == "energy_agent_duplicate_series_total").unwrap();
    assert_eq!(count.value, "2");
}

/// FC-076: what the ledger counts, 0, 3, 3, 7, and 0 after a restart, is exported as it is; no other form of number leaves.
#[test]
fn an_exported_counter_follows_the_ledger_exactly() {
    let server = Server::start(published(Snapshot::empty("node-a")));
    let exported = case("FC-076-monotonic.json")["exported"].clone();
    let mut before = None;
    for joules in exported.as_array().unwrap().iter().map(|value| value.as_u64().unwrap()) {
        let snapshot = Snapshot { zones: vec![zone(ZoneKind::Psys, 0, "psys", joules * 1_000_000, None)], ..rich() };
        server.snapshots.send_replace(Arc::new(published(snapshot)));
        let wanted = format!("{joules}.000000");
        // Another thread shows a snapshot; until then the page is the one before.
        let page = wait_for("the next page", || {
            let page = samples(server.get("/metrics", &[]).text()).unwrap();
            let found = page.iter().find(|sample| sample.name == "kepler_node_cpu_joules_total");
            let found = found.map(|found| found.value.clone());
            assert!(found == before || found.as_ref() == Some(&wanted), "{found:?} between {before:?} and {wanted}");
            (found.as_ref() == Some(&wanted)).then_some(page)
        });
        before = Some(wanted);
        assert!(
            page.iter().all(|sample| (sample.number() >= 0.0 || sample.name == "energy_agent_policy_headroom_watts")
                && !sample.value.contains('e'))
        );
        assert!(page.iter().any(|sample| sample.name == "process_start_time_seconds"));
    }
}

/// FC-074, the scrape's part: 500 pods of three containers, two zones.
#[test]
fn the_page_of_a_big_node_packs_well() {
    let (published, own) = (published(crowded(500)), SelfMetrics::new());
    let plain = published.body(Format::Text, Coding::Identity, &own);
    let packed = published.body(Format::Text, Coding::Gzip, &own);
    assert!(plain.len() > 1_000_000 && packed.len() * 5 < plain.len(), "{} to {}", plain.len(), packed.len());
    assert_eq!(gunzip(&packed), plain);
}

#[test]
fn promtool_finds_nothing() {
    let mut child = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("this test needs promtool: apt-get install --no-install-recommends prometheus");
    // DCGM exporter's names and labels are not ours to judge.
    let snapshot = Snapshot { dcgm_names: false, ..rich() };
    child.stdin.take().unwrap().write_all(&text(snapshot, Format::Text)).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && said.is_empty(), "{said}");
}

#[test]
fn openmetrics_says_when_the_counters_of_workloads_were_created() {
    let since = UNIX_EPOCH + Duration::from_millis(1_700_000_000_250);
    let counting = || Snapshot { counting_since: Some(since), ..named() };
    let of = |snapshot, format| String::from_utf8(text(snapshot, format)).unwrap();
    assert!(!of(named(), Format::OpenMetrics).contains("_created"));
    assert!(!of(counting(), Format::Text).contains("_created"));
    let page = of(counting(), Format::OpenMetrics);
    let lines: Vec<_> = page.lines().collect();
    let mut families = BTreeSet::new();
    for pair in lines.windows(2) {
        let Some((series, created)) = pair[1].rsplit_once(' ').filter(|(series, _)| series.contains("_created")) else {
            continue;
        };
        // 1.5 s after the agent's start, as the rows have it.
        assert_eq!(created, "1700000001.750");
        let total = series.replacen("_created", "_total", 1);
        assert_eq!(pair[0].rsplit_once(' ').unwrap().0, total, "right after its counter");
        families.insert(series.split('{').next().unwrap());
    }
    let expected: BTreeSet<String> = ["kepler_pod", "kepler_container", "energy_agent_system"]
        .iter()
        .flat_map(|level| ["cpu_joules", "gpu_joules"].map(|what| format!("{level}_{what}_created")))
        .chain(["pod", "system"].iter().flat_map(|level| {
            let usage = ["cpu_seconds", "cpu_cycles", "context_switches"];
            usage.map(|what| format!("energy_agent_{level}_{what}_created"))
        }))
        .chain([
            "kepler_container_cpu_seconds_created".to_owned(),
            "energy_agent_container_cpu_cycles_created".to_owned(),
            "energy_agent_container_context_switches_created".to_owned(),
            "energy_agent_pod_idle_joules_created".to_owned(),
        ])
        .chain(["cpu_joules", "gpu_joules", "cpu_seconds"].map(|what| format!("kepler_process_{what}_created")))
        .collect();
    assert_eq!(families, expected.iter().map(String::as_str).collect());
}

#[test]
fn top_reads_the_page_and_says_what_is_wrong_with_others() {
    let login = Login::default();
    let top = |address: String| TopArgs {
        address,
        interval: Duration::ZERO,
        once: false,
        iterations: 2,
        rows: 3,
        all: false,
        processes: false,
        login: login.clone(),
    };
    let mut server = Server::start(published(rich()));
    let address = server.address.to_string();
    energy_agent::cli::top::run(&top(address.clone())).unwrap();
    let wrong = |address: String| format!("{:#}", energy_agent::cli::top::run(&top(address)).unwrap_err());
    assert!(wrong(format!("http://{address}/healthz")).contains("is not the metrics page of an energy-agent"));
    assert!(wrong(format!("http://{address}/nothing")).contains("/nothing answers 404"));
    server.stop();
    let gone = wrong(address.clone());
    assert!(gone.contains(&address) && gone.contains("is the agent running? energy-agent run"), "{gone}");
}

#[test]
fn the_documentation_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
    let expected = metrics::documentation(&SelfMetrics::new().process_metrics());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, &expected).unwrap();
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    assert!(found == expected, "docs/metrics.md is old; run UPDATE_DOCS=1 cargo test -p energy-agent --test export");
}

proptest! {
    #[test]
    fn any_label_value_survives_writing_and_reading(values in prop::collection::vec(any::<String>(), 1..4)) {
        let names = ["a", "b_c", "d"];
        let pairs: Vec<_> = names.iter().copied().zip(values.iter().map(String::as_str)).collect();
        let mut writer = Writer::new(Format::Text);
        writer.family("m", FamilyKind::Gauge, &values[0]);
        writer.sample(&Labels::new(&pairs[..1]), &pairs[1..], SeriesValue::Integer(1));
        let body = String::from_utf8(writer.finish().0).unwrap();
        let read = samples(&body).unwrap();
        let kept: Vec<_> = pairs.iter().filter(|(_, value)| !value.is_empty()).collect();
        prop_assert_eq!(read.len(), 1);
        prop_assert_eq!(read[0].labels.len(), kept.len());
        for (name, value) in kept {
            prop_assert_eq!(read[0].label(name), *value);
        }
    }
}

/// docs/selection.md counts series by level and by the size of a cluster.
#[test]
fn a_pod_and_a_container_have_as_many_series_as_the_documentation_counts() {
    let docs = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/selection.md")).unwrap();
    assert!(
        docs.contains("| `pod` | 4 per pod |")
            && docs.contains("| `container` | 4 per container, sandboxes included; 1 more outside pods |")
    );
    assert!(docs.contains("Each further zone (dram, GPUs that were used) adds two series, a cycle counter adds one"));
    let (without, with) = (page(crowded(0)), page(crowded(1)));
    let count = |page: &[ParsedSample], level: &str| page.iter().filter(|sample| sample.name.contains(level)).count();
    let more = |level: &str| count(&with, level) - count(&without, level);
    // 4 with one zone, 2 for the second one, 1 for cycles; the pod of `crowded` has three containers.
    assert_eq!((more("_pod_"), more("_container_")), (7, 3 * 7));

    let number = |cell: &str| cell.chars().filter(char::is_ascii_digit).collect::<String>().parse::<u64>().unwrap();
    let mut sizes = 0;
    for row in docs.lines().filter(|line| line.ends_with(" a day |")) {
        let cells: Vec<_> = row.trim_matches(['|', ' ']).split(" | ").collect();
        let (nodes, pods) = cells[0].split_once(", ").unwrap();
        let (nodes, pods) = (number(nodes), number(pods));
        // 80 of the node and the agent, 31 units of 4; pods of a container and a sandbox.
        let node = nodes * (80 + 31 * 4);
        let expected = [node, node + nodes * pods * 4, node + nodes * pods * (4 + 2 * 4)];
        assert_eq!([1, 2, 3].map(|cell| number(cells[cell])), expected, "{row}");
        sizes += 1;
    }
    assert_eq!(sizes, 3);
}
