#![allow(clippy::unwrap_used, reason = "tests panic")]

use super::claim::ClaimedQuantity;
use super::prices::HourlyPrices;
use super::{CompareOptions, Comparison, RunGroup, compare, profile, render};
use crate::run::{
    API_VERSION, Energy, Gpu, GpuUse, Measured, MeasuredBy, Node, Outcome, Part, Run, Subject, SubjectKind, Warning,
    Work,
};
use crate::sweep::Objective;

/// A run of so many seconds that used so many joules of CPU and GPU.
fn run(seconds: f64, cpu_j: u64, gpu_j: u64) -> Run {
    let energy = |part, zone: &str, joules: u64| Energy {
        part,
        zone: zone.to_owned(),
        node: String::new(),
        source: "rapl".to_owned(),
        estimated: false,
        microjoules: joules * 1_000_000,
        peak_watts: Some(10.0),
    };
    let mut parts = vec![energy(Part::Package, "package-0", cpu_j), energy(Part::Other, "core", 1_000_000)];
    parts.extend((gpu_j > 0).then(|| energy(Part::Gpu, "GPU-1", gpu_j)));
    let measured =
        Measured { by: MeasuredBy::Own, interval_seconds: 0.1, coverage: 1.0, attribution: Default::default() };
    Run {
        api_version: API_VERSION.to_owned(),
        id: String::new(),
        subject: Subject { name: "train".to_owned(), digest: Some("sha256:1".to_owned()), ..Subject::default() },
        work: None,
        labels: Default::default(),
        nodes: Vec::new(),
        measured,
        start: 1000.0,
        end: 1000.0 + seconds,
        waited: None,
        energy: parts,
        cpu_seconds: None,
        prices: None,
        node_energy: Vec::new(),
        gpus: Vec::new(),
        limits: Vec::new(),
        series: Vec::new(),
        pods: Vec::new(),
        outcome: None,
        warnings: Vec::new(),
    }
}

fn group(name: &str, runs: impl IntoIterator<Item = Run>) -> RunGroup {
    RunGroup { name: name.to_owned(), runs: runs.into_iter().collect() }
}

/// Three runs each; the joules of `b` are exactly half of those of `a`, its seconds twice.
fn halves() -> [RunGroup; 2] {
    let a = [(10.0, 90, 110), (11.0, 100, 120), (12.0, 110, 130)];
    let b = [(20.0, 45, 55), (22.0, 50, 60), (24.0, 55, 65)];
    [("a", a), ("b", b)].map(|(name, runs)| group(name, runs.map(|(seconds, cpu, gpu)| run(seconds, cpu, gpu))))
}

fn near(value: f64, expected: f64) -> bool {
    (value - expected).abs() <= 1e-9 * expected.abs()
}

fn texts(comparison: &Comparison) -> Vec<&str> {
    comparison.claims.iter().map(|claim| claim.text.as_str()).collect()
}

#[test]
fn a_row_has_means_and_parts_add_up() {
    let comparison = compare(&halves(), &CompareOptions::default()).unwrap();
    let row = &comparison.rows[0];
    // 200, 220, 240 J in 10, 11, 12 s.
    let mean = |summary: &Option<crate::stats::Summary>| summary.as_ref().unwrap().mean;
    assert!(near(mean(&row.joules), 220.0) && near(mean(&row.cpu_joules), 100.0) && near(mean(&row.gpu_joules), 120.0));
    assert!(near(mean(&row.seconds), 11.0) && near(mean(&row.watts), 20.0));
    // (2000 + 2420 + 2880) / 3
    assert!(near(mean(&row.edp), 7300.0 / 3.0) && near(mean(&row.peak_watts), 20.0));
    assert!(near(row.relative.unwrap(), 2.0) && near(comparison.rows[1].relative.unwrap(), 1.0));
    assert_eq!((row.is_dominated, comparison.rows[1].is_dominated), (Some(false), Some(false)));
}

#[test]
fn a_difference_is_said_in_percent_with_its_bounds() {
    let comparison = compare(&halves(), &CompareOptions::default()).unwrap();
    // Logarithms of 200, 220, 240 lie 0.0953 and 0.0870 apart: standard deviation 0.0912, twice in the difference, over three runs:
    // 0.07446. With 4 degrees of freedom t is 2.776: the ratio is 0.5 times exp(-0.2067) to exp(0.2067), 0.407 to 0.615.
    assert_eq!(
        texts(&comparison),
        [
            "b uses 50.0 % less energy than a (95 %: 38.5 to 59.3 %, n = 3 + 3)",
            "b takes 100.0 % longer than a (95 %: 62.6 to 145.9 %, n = 3 + 3)",
        ]
    );
    assert!(comparison.claims.iter().all(|claim| claim.is_shown));
}

#[test]
fn an_interval_that_holds_one_shows_no_difference_and_two_runs_claim_nothing() {
    let a = group("a", [run(10.0, 100, 0), run(10.0, 120, 0), run(10.0, 110, 0)]);
    let b = group("b", [run(10.0, 101, 0), run(10.0, 119, 0), run(10.0, 109, 0)]);
    let comparison = compare(&[a.clone(), b], &CompareOptions::default()).unwrap();
    assert!(
        comparison.claims[0].text.starts_with("no difference shown in the energy of b and a (95 %: "),
        "{comparison:?}"
    );
    assert!(!comparison.claims[0].is_shown);
    let few = group("few", [run(10.0, 10, 0), run(10.0, 10, 0)]);
    let comparison = compare(&[a, few], &CompareOptions::default()).unwrap();
    let expected = "no claim about the energy of few and a: n = 2 + 3, at least 3 runs of each are needed";
    assert_eq!((comparison.claims[0].text.as_str(), comparison.claims[0].ratio), (expected, None));
}

#[test]
fn unequal_work_is_compared_by_its_unit_or_not_at_all() {
    let with = |run: Run, amount: f64| {
        let work = Some(Work { amount, unit: "image".to_owned() });
        Run { work, ..run }
    };
    let [a, b] = halves();
    let [a, b] = [(a, 100.0), (b, 50.0)].map(|(group, amount)| RunGroup {
        runs: group.runs.into_iter().map(|run| with(run, amount)).collect(),
        name: group.name,
    });
    let comparison = compare(&[a.clone(), b.clone()], &CompareOptions::default()).unwrap();
    assert!(!comparison.same_work);
    assert_eq!(comparison.notes[0].code, "different_work");
    let row = &comparison.rows[0];
    assert_eq!((&row.seconds, &row.joules, row.is_dominated), (&None, &None, None));
    assert!(near(row.joules_per_work.as_ref().unwrap().mean, 2.2));
    // Half the energy for half the work.
    let quantities: Vec<ClaimedQuantity> = comparison.claims.iter().map(|claim| claim.quantity).collect();
    assert_eq!(
        (quantities.as_slice(), comparison.claims[0].is_shown),
        ([ClaimedQuantity::EnergyPerWork].as_slice(), false)
    );

    let mut other = b.clone();
    other.runs.iter_mut().for_each(|run| run.work = None);
    let refused = compare(&[a.clone(), other], &CompareOptions::default()).unwrap_err();
    assert!(
        refused.starts_with("a and b did different work: only one of them says how much; measure or report with"),
        "{refused}"
    );

    let digest = |group: &RunGroup, digest: Option<&str>| {
        let mut group = group.clone();
        group.runs.iter_mut().for_each(|run| (run.work, run.subject.digest) = (None, digest.map(str::to_owned)));
        group
    };
    let [one, two] = [digest(&a, Some("1")), digest(&b, Some("2"))];
    assert!(compare(&[one.clone(), two.clone()], &CompareOptions::default()).is_err());
    let stated = CompareOptions { same_work: true, ..CompareOptions::default() };
    assert!(compare(&[one.clone(), two], &stated).unwrap().same_work);
    assert!(compare(&[one.clone(), digest(&b, Some("1"))], &CompareOptions::default()).unwrap().same_work);

    // Reports of pods of one name: nothing says what they did, but an amount of work.
    let [mut one, mut two] = [digest(&a, None), digest(&b, None)];
    let refused = compare(&[one.clone(), two.clone()], &CompareOptions::default()).unwrap_err();
    assert!(refused.starts_with("runs of a may have done different work: no command or image is known"), "{refused}");
    assert!(compare(&[one.clone(), two.clone()], &stated).unwrap().same_work);
    for run in one.runs.iter_mut().chain(&mut two.runs) {
        run.work = Some(Work { amount: 10.0, unit: "image".to_owned() });
    }
    assert!(compare(&[one.clone(), two.clone()], &CompareOptions::default()).unwrap().same_work);
    two.runs.iter_mut().for_each(|run| run.subject.kind = SubjectKind::Pod);
    let comparison = compare(&[one, two], &CompareOptions::default()).unwrap();
    assert!(
        comparison.notes[0]
            .message
            .starts_with("a and b did different work: a command and a pod; so only the energy per unit")
    );
}

#[test]
fn what_failed_is_left_out_and_what_was_seen_in_part_claims_nothing() {
    let [a, mut b] = halves();
    let failed = Outcome { succeeded: false, exit_code: Some(1), reason: String::new() };
    b.runs.push(Run { outcome: Some(failed.clone()), ..run(1.0, 1, 1) });
    let comparison = compare(&[a.clone(), b.clone()], &CompareOptions::default()).unwrap();
    assert_eq!((comparison.rows[1].n, comparison.notes[0].code.as_str()), (3, "run_failed"));
    b.runs[0].measured.coverage = 0.9;
    let comparison = compare(&[a.clone(), b], &CompareOptions::default()).unwrap();
    assert!(comparison.notes.iter().any(|note| note.code == "at_least"), "{:?}", comparison.notes);
    assert_eq!(comparison.claims[0].text, "no claim about the energy of b and a: see the notes");
    assert!(comparison.claims[1].is_shown, "time was seen");
    let all_failed = group("c", [Run { outcome: Some(failed), ..run(1.0, 1, 1) }]);
    assert!(compare(&[a, all_failed], &CompareOptions::default()).is_err());
}

#[test]
fn measured_and_estimated_energy_are_neither_added_nor_compared() {
    let [a, mut b] = halves();
    for run in &mut b.runs {
        run.energy[0].estimated = true;
    }
    let comparison = compare(&[a.clone(), b.clone()], &CompareOptions::default()).unwrap();
    assert!(near(comparison.rows[1].joules.as_ref().unwrap().mean, 60.0), "the GPU's alone is measured");
    assert_eq!(comparison.notes[0].code, "measured_differently");
    assert_eq!(comparison.claims[0].ratio, None);
    for run in &mut b.runs {
        run.energy.retain(|energy| energy.part != Part::Gpu);
    }
    let comparison = compare(&[b.clone(), b], &CompareOptions::default()).unwrap();
    assert!(comparison.rows[0].estimated && near(comparison.rows[0].joules.as_ref().unwrap().mean, 50.0));
}

/// Three equal runs.
fn of(name: &str, joules: u64, seconds: f64) -> RunGroup {
    group(name, [run(seconds, joules, 0), run(seconds, joules, 0), run(seconds, joules, 0)])
}

/// Each group's RELATIVE, and whether it is dominated.
fn places(comparison: &Comparison) -> Vec<(Option<f64>, Option<bool>)> {
    comparison.rows.iter().map(|row| (row.relative, row.is_dominated)).collect()
}

#[test]
fn a_doubtful_energy_is_related_to_none_and_never_best() {
    let [slow, fast, mut other] = [of("slow", 100, 10.0), of("fast", 200, 5.0), of("other", 50, 12.0)];
    let plain = compare(&[slow.clone(), fast.clone(), other.clone()], &CompareOptions::default()).unwrap();
    let front = Some(false);
    assert_eq!(places(&plain), [(Some(2.0), front), (Some(4.0), front), (Some(1.0), front)]);
    assert_eq!(plain.best(Objective::Energy), Some(2));

    let mut partly = other.clone();
    partly.runs[0].measured.coverage = 0.9;
    other.runs.iter_mut().for_each(|run| run.energy[0].estimated = true);
    for doubtful in [partly, other.clone()] {
        let groups = [slow.clone(), fast.clone(), doubtful];
        let comparison = compare(&groups, &CompareOptions::default()).unwrap();
        assert_eq!(places(&comparison), [(Some(1.0), front), (Some(2.0), front), (None, None)]);
        assert_eq!(comparison.best(Objective::Energy), Some(0));
        // 1000 J s and 1000 J s: the first of equals.
        assert_eq!((comparison.best(Objective::Edp), comparison.best(Objective::Time)), (Some(0), Some(1)));
        let two = compare(&[groups[0].clone(), groups[2].clone()], &CompareOptions::default()).unwrap();
        assert_eq!(places(&two), [(None, None), (None, None)], "one alone is not the best of two");
    }
    // A group has no mean of both.
    let mut mixed = slow.clone();
    mixed.runs.extend(other.runs);
    let comparison = compare(&[fast, mixed], &CompareOptions::default()).unwrap();
    assert_eq!((&comparison.rows[1].joules, comparison.rows[1].n), (&None, 6));
    let said = "slow has no mean energy: the CPU of one run is measured, that of another is estimated";
    assert!(comparison.notes.iter().any(|note| note.message == said), "{:?}", comparison.notes);
    // All of a GPU's energy, as a sweep has it, is more than its active part.
    let gpu = |name| group(name, [run(1.0, 10, 10), run(1.0, 10, 10), run(1.0, 10, 10)]);
    let mut swept = gpu("swept");
    swept.runs.iter_mut().for_each(|run| run.warnings.push(whole_gpu()));
    let comparison = compare(&[gpu("active"), swept], &CompareOptions::default()).unwrap();
    let said = "the GPU energy of active does not include idle energy, that of swept includes it: their energies cannot be compared";
    assert_eq!((comparison.notes[0].message.as_str(), comparison.claims[0].ratio), (said, None));
}

fn whole_gpu() -> Warning {
    Warning { code: crate::run::WHOLE_GPU.to_owned(), message: String::new() }
}

#[test]
fn a_run_that_failed_is_never_the_best() {
    let [slow, mut fast] = [of("slow", 100, 10.0), of("fast", 200, 5.0)];
    let failed = Outcome { succeeded: false, exit_code: Some(1), reason: String::new() };
    // It used next to nothing.
    fast.runs.extend((0..5).map(|_| Run { outcome: Some(failed.clone()), ..run(0.1, 1, 0) }));
    let comparison = compare(&[slow, fast], &CompareOptions::default()).unwrap();
    assert_eq!((comparison.best(Objective::Energy), comparison.best(Objective::Time)), (Some(0), Some(1)));
}

#[test]
fn cost_is_hours_of_the_hardware_and_kilowatt_hours() {
    let mut used = run(1800.0, 3_600_000, 3_600_000);
    let gpu = |uuid: &str| Gpu { uuid: uuid.to_owned(), index: 0, model: Some("NVIDIA L4".to_owned()) };
    used.nodes = vec![Node { gpus: vec![gpu("GPU-1"), gpu("GPU-2"), gpu("GPU-3")], ..Node::default() }];
    let held = |uuid: &str| GpuUse {
        uuid: uuid.to_owned(),
        node: String::new(),
        utilization: None,
        memory_utilization: None,
        celsius: None,
        clock_hertz: None,
    };
    used.gpus = vec![held("GPU-1"), held("GPU-2")];
    let prices = |entries: &[(&str, f64)]| HourlyPrices {
        currency: String::new(),
        per_hour: entries.iter().map(|(key, price)| ((*key).to_owned(), *price)).collect(),
    };
    let cost = |run: &Run, prices: HourlyPrices, per_kwh| {
        let options =
            CompareOptions { prices: Some(prices), per_kwh, grams_per_kwh: Some(400.0), ..CompareOptions::default() };
        compare(&[group("a", [run.clone()]), group("b", [run.clone()])], &options)
    };
    // Half an hour of two GPUs at 0.8, and 2 kWh at 0.25.
    let comparison = cost(&used, prices(&[("NVIDIA L4", 0.8)]), Some(0.25)).unwrap();
    assert!(near(comparison.rows[0].cost.as_ref().unwrap().mean, 0.8 + 0.5));
    assert!(near(comparison.rows[0].grams_co2.as_ref().unwrap().mean, 800.0));
    // A label is a price of the node.
    used.labels.insert("pool".to_owned(), "spot".to_owned());
    let comparison = cost(&used, prices(&[("NVIDIA L4", 0.8), ("pool=spot", 3.0)]), None).unwrap();
    assert!(near(comparison.rows[0].cost.as_ref().unwrap().mean, 1.5));
    used.labels.insert("zone".to_owned(), "a".to_owned());
    assert!(cost(&used, prices(&[("zone=a", 2.0), ("pool=spot", 3.0)]), None).unwrap_err().starts_with("two prices"));
    let comparison = cost(&used, prices(&[("Tesla T4", 0.8)]), Some(0.25)).unwrap();
    assert_eq!((comparison.rows[0].cost.clone(), comparison.notes[0].code.as_str()), (None, "no_price"));
    assert!(prices(&[("a", -1.0)]).check().is_err());
}

#[test]
fn several_groups_hold_together_and_what_is_worse_in_both_is_dominated() {
    let of = |name, joules: [u64; 3], seconds| group(name, joules.map(|joules| run(seconds, joules, 0)));
    let groups = [
        of("open", [100, 101, 102], 10.0),
        of("mid", [80, 81, 82], 11.0),
        of("low", [90, 91, 92], 15.0),
        of("same", [100, 101, 102], 10.0),
    ];
    let comparison = compare(&groups, &CompareOptions::default()).unwrap();
    let dominated: Vec<Option<bool>> = comparison.rows.iter().map(|row| row.is_dominated).collect();
    assert_eq!(dominated, [Some(false), Some(false), Some(true), Some(false)], "equal ones do not dominate each other");
    assert!(texts(&comparison)[0].contains("(95 %, Holm: "), "{:?}", texts(&comparison));
    assert!(comparison.notes[0].message.contains("not all of them together"), "{:?}", comparison.notes);
    assert!(texts(&comparison)[2].starts_with("no difference shown"), "{:?}", texts(&comparison));
}

#[test]
fn names_of_others_are_no_markup_and_cells_of_a_file_are_quoted() {
    let [a, mut b] = halves();
    b.name = "<b>|`x`\n# \"y\", @all".to_owned();
    let comparison = compare(&[a, b], &CompareOptions::default()).unwrap();
    let markdown = render::markdown(&comparison);
    let row = markdown.lines().nth(3).unwrap();
    assert!(row.starts_with("| &lt;b>\\|\\`x\\` \\# \"y\", \\@all | 3 |"), "{markdown}");
    let csv = render::csv(&comparison);
    assert!(csv.contains("\"<b>|`x`\n# \"\"y\"\", @all\",3,false,false,1,"), "{csv}");
    assert_eq!(csv.lines().next().unwrap().split(',').count(), 5 + 10 * 5);
}

#[test]
fn a_profile_has_the_means_of_a_class_on_a_model() {
    let [a, _] = halves();
    let mut runs = a.runs;
    for (number, run) in runs.iter_mut().enumerate() {
        run.subject.class = Some("resnet".to_owned());
        run.nodes = vec![Node { cpu: Some("Xeon  Gold".to_owned()), ..Node::default() }];
        run.end += if number == 2 { 0.0 } else { -1.0 };
        run.start += if number == 2 { 0.0 } else { -1.0 };
    }
    let day = |seconds: f64| format!("day {seconds}");
    let profile = profile::profiles(&runs, day).unwrap();
    let of = &profile["resnet"]["Xeon-Gold"];
    // 200, 220, 240 J in 10, 11, 12 s, the last ends at 1012.
    assert!(near(of.joules, 220.0) && near(of.seconds, 11.0) && near(of.watts, 20.0) && near(of.stddev.unwrap(), 20.0));
    assert_eq!((of.n, of.unit.as_str(), of.date.as_str()), (3, "run", "day 1012"));
    runs[0].work = Some(Work { amount: 10.0, unit: "image".to_owned() });
    assert!(profile::profiles(&runs, day).unwrap_err().contains("resnet on Xeon-Gold: the work of some runs is in"));
    for run in &mut runs {
        run.work = Some(Work { amount: 10.0, unit: "image".to_owned() });
        run.labels.insert("nvidia.com/gpu.product".to_owned(), "NVIDIA-L4".to_owned());
    }
    let profile = profile::profiles(&runs, day).unwrap();
    let of = &profile["resnet"]["NVIDIA-L4"];
    assert!(near(of.joules, 22.0) && near(of.seconds, 1.1) && near(of.watts, 20.0) && of.unit == "image");
    // Of a sweep.
    runs.iter_mut().for_each(|run| run.warnings.push(whole_gpu()));
    let json = serde_json::to_value(profile::profiles(&runs, day).unwrap()).unwrap();
    assert_eq!(json["resnet"]["NVIDIA-L4"]["includesGpuIdle"], true);
    runs[1].warnings.clear();
    assert!(profile::profiles(&runs, day).unwrap_err().contains("the GPU's idle energy is part of some runs"));
    runs[0].energy.clear();
    assert!(profile::profiles(&runs, day).unwrap_err().ends_with("the energy of a run was not measured"));
}

#[test]
fn two_commands_of_one_name_are_no_class_and_a_label_is_one() {
    let [mut a, mut b] = [of("a", 100, 10.0), of("b", 200, 20.0)].map(|group| group.runs);
    for run in a.iter_mut().chain(&mut b) {
        run.subject.name = "sh".to_owned();
        run.nodes = vec![Node { cpu: Some("Xeon".to_owned()), ..Node::default() }];
    }
    b.iter_mut().for_each(|run| run.subject.digest = Some("sha256:2".to_owned()));
    let day = |_| String::new();
    let refused = profile::profiles(a.iter().chain(&b), day).unwrap_err();
    assert!(
        refused.starts_with("sh on Xeon: the runs are of different commands") && refused.contains("--label class=")
    );
    for (runs, class) in [(&mut a, "sort"), (&mut b, "zip")] {
        runs.iter_mut().for_each(|run| drop(run.labels.insert("class".to_owned(), class.to_owned())));
    }
    let profiles = profile::profiles(a.iter().chain(&b), day).unwrap();
    let of = |class: &str| (profiles[class]["Xeon"].joules, profiles[class]["Xeon"].seconds);
    assert_eq!((of("sort"), of("zip")), ((100.0, 10.0), (200.0, 20.0)));
}

#[test]
fn the_picture_has_every_group_and_no_markup_of_a_name() {
    let [a, mut b] = halves();
    b.name = "<script>\"b\"&".to_owned();
    let comparison = compare(&[a.clone(), b], &CompareOptions::default()).unwrap();
    let text = super::chart::svg(&comparison, "a & b").unwrap();
    assert!(text.contains("&lt;script&gt;") && !text.contains("<script"), "{text}");
    assert_eq!(text.matches("<circle").count(), 2);
    assert_eq!(text.matches("<text").count(), text.matches("</text>").count());
    let alone = compare(&[a], &CompareOptions::default()).unwrap();
    assert_eq!(super::chart::svg(&alone, ""), None);
}
