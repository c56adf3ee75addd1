#![allow(clippy::float_cmp, reason = "sums of halves are exact")]
#![allow(clippy::unwrap_used, reason = "tests panic")]

use super::*;
use crate::run::Panel;
use crate::samples::{INTERVAL, LAST_TICK, Labels, RawSeries, START};

const TARGET: [(&str, &str); 2] = [("instance", "10.0.0.1:9102"), ("job", "agents")];

fn add(samples: &mut Samples, name: &str, pairs: &[(&str, &str)], points: &[(f64, f64)]) {
    let labels: Labels =
        TARGET.iter().chain(pairs).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    samples.add(RawSeries { name: name.to_owned(), labels, points: points.to_vec() });
}

/// A pod that ran from 1010 to 1040 s on a node with one GPU, scraped each 15 s from 1000 s on.
fn world() -> Samples {
    let mut samples = Samples::default();
    let scrapes = [1000.0, 1015.0, 1030.0, 1045.0, 1060.0];
    let all = |value: f64| scrapes.map(|at| (at, value));
    add(&mut samples, START, &[], &all(500.0));
    add(&mut samples, LAST_TICK, &[], &scrapes.map(|at| (at, at - 0.5)));
    let pod = [("pod_id", "u"), ("pod_name", "train"), ("pod_namespace", "ml"), ("node_name", "n"), ("source", "rapl")];
    for (zone, joules) in
        [("package", [150.0, 450.0, 600.0]), ("dram", [10.0, 30.0, 40.0]), ("core", [100.0, 300.0, 400.0])]
    {
        let of = |state| [&pod[..], &[("zone", zone), ("state", state)]].concat();
        let metric = "kepler_pod_cpu_joules_total";
        add(&mut samples, metric, &of("running"), &[(1015.0, joules[0]), (1030.0, joules[1])]);
        add(&mut samples, metric, &of("terminated"), &[(1045.0, joules[2]), (1060.0, joules[2])]);
    }
    let gpu = [("pod_id", "u"), ("node_name", "n"), ("source", "nvml")];
    for (state, points) in
        [("running", [(1015.0, 1000.0), (1030.0, 4000.0)]), ("terminated", [(1045.0, 5000.0), (1060.0, 5000.0)])]
    {
        add(&mut samples, "kepler_pod_gpu_joules_total", &[&gpu[..], &[("state", state)]].concat(), &points);
    }
    let held = [("gpu", "0"), ("gpu_uuid", "GPU-a"), ("node_name", "n"), ("pod_id", "u"), ("evidence", "context")];
    add(&mut samples, gpus::HOLDER, &held, &[(1015.0, 1.0), (1030.0, 1.0)]);
    let card = [("gpu", "0"), ("gpu_uuid", "GPU-a"), ("gpu_name", "Tesla T4"), ("node_name", "n")];
    add(&mut samples, "kepler_node_gpu_info", &card, &all(1.0));
    add(&mut samples, gpus::UTILIZATION, &card, &[(1000.0, 0.0), (1015.0, 0.5), (1030.0, 1.0), (1045.0, 0.0)]);
    let limit = [("actuator", "gpu_locked_clocks"), ("device", "GPU-a"), ("policy", "p"), ("node_name", "n")];
    add(&mut samples, gpus::LIMIT_HERTZ, &limit, &[(1030.0, 1.4e9)]);
    let node = [("zone", "package"), ("socket", "0"), ("node_name", "n"), ("source", "rapl")];
    add(&mut samples, "kepler_node_cpu_joules_total", &node, &scrapes.map(|at| (at, 50.0 * at)));
    samples
}

fn ask() -> Ask {
    Ask {
        id: "r".to_owned(),
        subject: Subject { kind: SubjectKind::Pod, name: "train".to_owned(), ..Subject::default() },
        by: MeasuredBy::Prometheus,
        window: Window { from: 900.0, to: 1060.0 },
        pods: vec!["u".to_owned()],
        ran: None,
    }
}

#[test]
fn a_pod_has_its_parts_its_gpu_and_its_limits() {
    let run = run(&world(), &ask()).unwrap();
    let parts: Vec<_> = run.energy.iter().map(|it| (it.part, it.zone.as_str(), it.microjoules)).collect();
    let expected = [
        (Part::Package, "package", 600_000_000),
        (Part::Dram, "dram", 40_000_000),
        (Part::Other, "core", 400_000_000),
        (Part::Gpu, "gpu", 5_000_000_000),
    ];
    assert_eq!(parts, expected);
    // Core is within the package and not added.
    assert_eq!(run.microjoules(false), 5_640_000_000);
    assert_eq!(run.pods[0].microjoules, 5_640_000_000);
    // The page of 999.5 was without the pod, that of 1044.5 has its end.
    assert_eq!((run.start, run.end, run.measured.coverage, run.measured.interval_seconds), (999.5, 1044.5, 1.0, 15.0));
    // (450 - 150) / 15 s.
    assert_eq!(run.energy[0].peak_watts, Some(20.0));
    let [gpu] = &run.gpus[..] else { panic!("{:?}", run.gpus) };
    assert_eq!(gpu.utilization, Some(crate::run::MeanMax { mean: 0.75, max: 1.0 }));
    assert_eq!(run.nodes[0].gpus[0].model.as_deref(), Some("Tesla T4"));
    let limits: Vec<_> = run.limits.iter().map(|limit| (limit.policy.as_str(), limit.value)).collect();
    assert_eq!(limits, [("p", 1.4e9)]);
    // 50 W from 999.5 to 1044.5.
    assert_eq!(run.node_energy[0].microjoules, 2_250_000_000);
    let power = run.series.iter().find(|series| series.panel == Panel::CpuPower && series.label == "package").unwrap();
    assert_eq!(power.points[..3], [(999.5, 0.0), (1014.5, 10.0), (1029.5, 20.0)]);
}

/// A GPU draws 600 W. It is read once a second, and pages come once a second: some have two of its readings and some none.
#[test]
fn the_peak_is_what_the_agent_says_and_not_two_readings_at_once() {
    let mut samples = Samples::default();
    let times: Vec<f64> = (0..30).map(|second: u32| 1000.0 + f64::from(second)).collect();
    let readings = [0.0, 1.0, 1.0, 3.0, 4.0, 5.0, 5.0, 7.0, 8.0, 9.0];
    let all = |value: f64| times.iter().map(|at| (*at, value)).collect::<Vec<_>>();
    add(&mut samples, START, &[], &all(500.0));
    add(&mut samples, INTERVAL, &[], &all(1.0));
    add(&mut samples, LAST_TICK, &[], &times.iter().map(|at| (*at, *at)).collect::<Vec<_>>());
    let gpu = [("pod_id", "u"), ("node_name", "n"), ("source", "nvml"), ("state", "running")];
    let points: Vec<_> = times
        .iter()
        .zip(0_u32..)
        .map(|(at, n)| (*at, 600.0 * (readings[usize::try_from(n % 10).unwrap()] + 10.0 * f64::from(n / 10))))
        .collect();
    add(&mut samples, "kepler_pod_gpu_joules_total", &gpu, &points[1..]);
    let peak = |samples: &Samples| {
        let run = run(samples, &ask()).unwrap();
        let watts = run.series.iter().find(|series| series.panel == Panel::GpuPower).unwrap();
        let highest = watts.points.iter().map(|(_, watts)| *watts).fold(0.0, f64::max);
        (run.energy[0].peak_watts.unwrap(), highest)
    };
    // Without the agent's own figure: never too high, and over ten seconds at least 10 of 11 readings.
    let (from_below, _) = peak(&samples);
    assert!((600.0 * 10.0 / 11.0..=600.0).contains(&from_below), "{from_below}");
    add(&mut samples, "kepler_pod_gpu_watts", &gpu, &times[1..].iter().map(|at| (*at, 600.0)).collect::<Vec<_>>());
    assert_eq!(peak(&samples), (600.0, 600.0));
}

#[test]
fn measured_and_estimated_energy_are_never_one_sum() {
    let mut samples = world();
    let other =
        [("pod_id", "v"), ("node_name", "m"), ("source", "estimate"), ("zone", "package"), ("state", "running")];
    add(&mut samples, "kepler_pod_cpu_joules_total", &other, &[(1030.0, 70.0), (1060.0, 90.0)]);
    let ask = Ask { pods: vec!["u".to_owned(), "v".to_owned()], ..ask() };
    let run = run(&samples, &ask).unwrap();
    assert_eq!((run.microjoules(false), run.microjoules(true)), (5_640_000_000, 90_000_000));
    assert!(run.warnings.iter().any(|warning| warning.code == "estimated"));
    let table = crate::table::table(&run);
    assert!(table.contains("estimated J") && table.contains("total estimated"), "{table}");
    let pods: Vec<_> = run.pods.iter().map(|pod| (pod.microjoules, pod.estimated_microjoules)).collect();
    assert_eq!(pods, [(5_640_000_000, 0), (0, 90_000_000)]);
}

#[test]
fn a_last_total_that_nobody_saw_is_at_least() {
    let mut samples = Samples::default();
    let scrapes = [1000.0, 1015.0, 1030.0, 1045.0];
    add(&mut samples, START, &[], &scrapes.map(|at| (at, 500.0)));
    let pod = [("pod_id", "u"), ("node_name", "n"), ("source", "rapl"), ("zone", "package"), ("state", "running")];
    add(&mut samples, "kepler_pod_cpu_joules_total", &pod, &[(1015.0, 150.0)]);
    let run = run(&samples, &ask()).unwrap();
    assert!(run.is_at_least() && run.warnings.iter().any(|warning| warning.code == "end_not_seen"), "{run:#?}");
    assert!(crate::table::table(&run).contains("at least 150.000"));
}

#[test]
fn another_exporter_of_the_same_names_is_left_out() {
    let mut samples = world();
    let kepler = [("pod_id", "u"), ("node_name", "n"), ("zone", "package"), ("state", "running"), ("job", "kepler")];
    add(&mut samples, "kepler_pod_cpu_joules_total", &kepler, &[(1015.0, 7.0), (1030.0, 77.0)]);
    assert_eq!(run(&samples, &ask()).unwrap().microjoules(false), 5_640_000_000);
    assert_eq!(run(&Samples::default(), &ask()), None);
}
