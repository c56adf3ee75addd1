//! What runs outside pods: which units have a row of their own, and that there are never more than a stated number,
//! whatever is made in the cgroup tree. The sum over all rows stays the node's active energy on every page.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic as tests do")]

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use crate::common::agent::{Agent, run, wait_for};
use crate::common::cgroup::{Cgroup, Load, cpu_ns, remove_ended};
use crate::common::one_of_three;
use crate::common::page::Page;
use tempfile::TempDir;

const SECONDS: &str = "energy_agent_system_cpu_seconds_total";

/// The maximum of ended units outside pods that keep their rows, and of living units below one holder.
const BOUND: usize = 500;

/// The units that have any series on the page.
fn units(page: &Page) -> BTreeSet<&str> {
    page.samples.iter().map(|sample| sample.label("unit")).filter(|unit| !unit.is_empty()).collect()
}

/// The units whose names say that they were made below the cgroup.
fn units_of<'a>(page: &'a Page, mark: &str) -> BTreeSet<&'a str> {
    units(page).into_iter().filter(|unit| unit.contains(mark)).collect()
}

/// What nobody else on this machine is called.
fn mark(cgroup: &Cgroup) -> String {
    cgroup.path.trim_matches('/').trim_end_matches(".slice").split('/').next().unwrap().to_owned()
}

fn used_ns(page: &Page, unit: &str) -> u64 {
    page.nanoseconds(SECONDS, &[("unit", unit)])
}

#[track_caller]
fn assert_its_own(shown_ns: u64, truth_ns: u64) {
    let allowed = truth_ns / 20 + 10_000_000;
    assert!(shown_ns.abs_diff(truth_ns) <= allowed, "{shown_ns} ns shown, {truth_ns} ns is true");
}

#[test]
fn a_throwaway_scope_is_part_of_the_slice_or_service_that_holds_it() {
    one_of_three(|| {
        let slice = Cgroup::slice();
        let mark = mark(&slice);
        let manager = format!("user@{mark}.service");
        let container = format!("docker-{:064x}.scope", std::process::id());
        let machine = format!("machine-{mark}.scope");
        let service = format!("{mark}.service");
        for lasting in [&service, &machine, &container] {
            slice.child(lasting);
        }
        let agent = Agent::start(&["--interval=200ms"]);
        let sessions: Vec<PathBuf> = (0..10).map(|n| slice.child(&format!("session-{mark}-{n}.scope"))).collect();
        let app = |n: usize| slice.child(&format!("{manager}/app.slice/app-{mark}-{n}.scope"));
        let apps: Vec<PathBuf> = (0..10).map(app).collect();
        for n in 0..5 {
            slice.child(&format!("run-r{mark}{n}.scope"));
        }
        Load::start(&sessions[0], &["burn", "300000"]).wait();
        Load::start(&apps[0], &["burn", "200000"]).wait();
        let truths = [cpu_ns(&sessions[0]), cpu_ns(&apps[0])];
        let page = agent.after_ticks(2);

        let own = format!("{mark}.slice");
        let expected = [&own, &service, &machine, &manager].map(String::as_str);
        assert_eq!(units_of(&page, &mark), BTreeSet::from(expected));
        assert!(units(&page).contains(&*container), "a container's scope is a workload of its own");
        assert_its_own(used_ns(&page, &own), truths[0]);
        assert_its_own(used_ns(&page, &manager), truths[1]);
        page.assert_conserved();

        sessions.iter().chain(&apps).for_each(|scope| remove_ended(scope));
        let later = agent.after_ticks(2);
        later.assert_conserved();
        later.assert_not_below(&page);
        assert_eq!(later.one(SECONDS, &[("unit", &own)]).label("state"), "running");
    });
}

#[test]
fn a_storm_of_cgroups_leaves_the_series_bounded_and_the_sum_exact() {
    let holder = Cgroup::new("x");
    let slice = Cgroup::slice();
    let [below, plain] = [&holder, &slice].map(mark);
    let agent = Agent::start(&["--interval=200ms"]);
    let mut before = agent.after_ticks(1);
    let quiet = before.samples.len();
    let check = |before: &Page| {
        let page = agent.after_ticks(2);
        page.assert_conserved();
        page.assert_not_below(before);
        page
    };
    // Services of ever new names, of the node itself and below a cgroup that somebody else may write to.
    for round in 0..8 {
        let makers = [(&holder, format!("{below}-{round}")), (&slice, format!("{plain}-{round}"))];
        let made = makers.iter().flat_map(|(cgroup, name)| {
            (0..250).map(move |n| {
                // Each name form in turn; of four, one is a scope.
                let kind = ["service", "scope", "mount", "slice/a.service"][n % 4];
                cgroup.child(&format!("{name}-{n}.{kind}"))
            })
        });
        let made: Vec<PathBuf> = made.collect();
        Load::start(&made[0], &["burn", "50000"]).wait();
        let page = check(&before);
        for dir in &made {
            remove_ended(dir);
            if dir.ends_with("a.service") {
                remove_ended(dir.parent().unwrap());
            }
        }
        before = check(&page);
    }
    let ended = before.select(SECONDS, &[("state", "terminated")]).len();
    assert!(ended <= BOUND, "{ended} units that ended have rows, of 4000 that were made");
    assert!(before.microjoules("energy_agent_retired_cpu_joules_total", &[]) > 0, "nothing was retired");

    // And many that live, below one holder.
    let living: Vec<PathBuf> = (0..3 * BOUND).map(|n| holder.child(&format!("{n}.service"))).collect();
    let page = check(&before);
    let own = format!("/{below}");
    let rows: BTreeSet<&str> = page
        .select(SECONDS, &[("state", "running")])
        .iter()
        .filter_map(|sample| sample.label("unit").strip_prefix(&own)?.rsplit_once('/'))
        .map(|(_, name)| name)
        .collect();
    assert_eq!(rows.len(), BOUND, "living units of one holder that have rows");
    assert!(page.samples.len() <= quiet + 5 * 2 * BOUND + 100, "{quiet} series became {}", page.samples.len());
    // What has no row of its own works for its holder.
    let name = |dir: &PathBuf| dir.file_name().unwrap().to_string_lossy().into_owned();
    let without = living.iter().find(|dir| !rows.contains(&*name(dir))).unwrap();
    let _load = Load::start(without, &["spin", "0"]);
    let until = used_ns(&page, &own) + 100_000_000;
    let page = wait_for("the holder's work", || Some(agent.scrape()).filter(|page| used_ns(page, &own) >= until));
    page.assert_conserved();
    let ends = format!("/{}", name(without));
    assert!(units_of(&page, &below).iter().all(|unit| !unit.ends_with(&ends)), "{ends} has a row of its own");
}

#[test]
fn a_pattern_chooses_the_units_with_rows_and_the_others_are_summed() {
    one_of_three(|| {
        let slice = Cgroup::slice();
        let mark = mark(&slice);
        let [web, batch] = ["web", "batch"].map(|name| slice.child(&format!("{mark}-{name}.service")));
        let session = slice.child(&format!("session-{mark}.scope"));
        let pattern = format!("--export.units={mark}-web.*|session-{mark}\\.scope");
        let agent = Agent::start(&["--interval=200ms", &pattern]);
        let first = agent.after_ticks(2);
        for (dir, us) in [(&web, "200000"), (&batch, "300000"), (&session, "100000")] {
            Load::start(dir, &["burn", us]).wait();
        }
        let page = agent.after_ticks(2);
        let (web_unit, session_unit) = (format!("{mark}-web.service"), format!("session-{mark}.scope"));
        let rest: BTreeSet<&str> =
            units(&page).into_iter().filter(|unit| !["kernel", "unknown"].contains(unit)).collect();
        assert_eq!(rest, BTreeSet::from(["other", &web_unit, &session_unit]), "the pattern is anchored");
        assert_its_own(used_ns(&page, &web_unit), cpu_ns(&web));
        assert_its_own(used_ns(&page, &session_unit), cpu_ns(&session));
        let (summed, burned) = (used_ns(&page, "other") - used_ns(&first, "other"), cpu_ns(&batch));
        assert!(summed >= burned / 20 * 19, "{summed} ns in other, {burned} ns burned by one of them");
        page.assert_conserved();
        page.assert_not_below(&first);
    });
}

#[test]
fn a_pattern_in_the_file_counts_without_a_restart_and_no_counter_falls() {
    let slice = Cgroup::slice();
    let mark = mark(&slice);
    let [web, batch] = ["web", "batch"].map(|name| slice.child(&format!("{mark}-{name}.service")));
    let container_id = format!("{:064x}", std::process::id());
    let container = slice.child(&format!("docker-{container_id}.scope"));
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("export");
    fs::write(&path, "").unwrap();
    let file = format!("--export.config={}", path.display());
    let agent = Agent::start(&["--interval=200ms", "--export.terminated-retention=1s", &file]);
    let _loads = [&web, &batch, &container].map(|dir| Load::start(dir, &["sleepers", "0", "2000", "20000"]));
    let [web, batch] = ["web", "batch"].map(|name| format!("{mark}-{name}.service"));
    let mut last = agent.after_ticks(3);
    assert!(units(&last).is_superset(&BTreeSet::from([&*web, &*batch])));
    assert!(!units(&last).contains("other"), "without a pattern there is no such row");
    let mut follow = |what: &str, is_there: &dyn Fn(&Page) -> bool| {
        wait_for(what, || {
            let page = agent.after_ticks(1);
            page.assert_conserved();
            page.assert_not_below(&last);
            let found = is_there(&page);
            last = page;
            found.then_some(())
        });
    };
    fs::write(&path, format!("EXPORT_UNITS: {mark}-web\\.service\n")).unwrap();
    follow("the pattern", &|page| units(page).contains("other") && !units(page).contains(&*batch));
    follow("both rows to grow", &|page| used_ns(page, &web) > 0 && used_ns(page, "other") > 0);
    // What is no pattern leaves the one before in force.
    fs::write(&path, "EXPORT_UNITS: (\n").unwrap();
    let line = wait_for("a line about it", || agent.logged("previous selection stays active").pop());
    assert!(line.contains("EXPORT_UNITS in ") && line.contains("not a regular expression"), "{line}");
    follow("a page", &|page| !units(page).contains(&*batch));
    fs::write(&path, "").unwrap();
    follow("all units", &|page| units(page).contains(&*batch) && used_ns(page, &batch) > 0);
    follow("the container", &|page| page.has("kepler_container_cpu_joules_total", &[("container_id", &container_id)]));
}

#[test]
fn what_is_no_pattern_is_exit_code_2() {
    let (code, said) = run(&["--export.units=sshd.service|(", "--web.listen-address=127.0.0.1:0"]);
    assert_eq!(code, Some(2), "{said}");
    for part in ["--export.units", "not a regular expression", "unclosed group"] {
        assert!(said.contains(part), "{part} is not in {said}");
    }
}
