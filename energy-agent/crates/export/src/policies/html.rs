//! The page for people: everything on it comes from the snapshot, is escaped, and needs nothing from elsewhere.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Write as _};
use std::time::Duration;

use energy_model::capping::knob::Knob;
use energy_model::capping::policy::{Mode, PolicyName};
use energy_model::capping::quantity::Quantity;
use energy_model::capping::status::SourceState;
use energy_model::capping::status::{CapStatus, CappingStatus, PodId, PolicyStatus, Problem, SubjectStatus};
use energy_model::snapshot::Snapshot;
use energy_model::units::{Watts, floor_u64};

use super::wording::{self, Tone};
use crate::html::{escaped, head};

pub fn page(snapshot: &Snapshot, status: &CappingStatus) -> String {
    let CappingStatus { policies, caps, problems, sources, restore_pending, restore_failures, .. } = status;
    let mut page = head(format_args!("Policies on {}", snapshot.node), "");
    write(
        &mut page,
        format_args!(
            "<header><p><a href=\"/\">energy-agent</a> on <b>{node}</b></p><h1>Policies</h1>\n<p>{summary}</p></header>\n",
            node = escaped(&snapshot.node),
            summary = summary(snapshot, status),
        ),
    );
    write_problems(&mut page, problems);
    if *restore_pending > 0 {
        let line = format_args!(
            "<p class=\"bad notice\">{restore_pending} limits could not be restored so far, after {restore_failures} attempts; \
             the log says why, and <code>energy-agent restore</code> tries again.</p>\n"
        );
        write(&mut page, line);
    }
    if policies.is_empty() {
        page.push_str("<p class=\"notice\">No policy is active: nothing is limited.</p>\n");
    }
    policies.iter().for_each(|policy| write_policy(&mut page, policy));
    write_caps(&mut page, caps, policies);
    write_sources(&mut page, sources);
    page.push_str(
        "<footer><p>The same as JSON: <a href=\"/policies?format=json\">/policies?format=json</a></p></footer>\n\
         </body>\n</html>\n",
    );
    page
}

fn summary(snapshot: &Snapshot, status: &CappingStatus) -> String {
    let subjects = || status.policies.iter().flat_map(|policy| &policy.subjects);
    let capped = subjects().filter(|subject| wording::state(subject.state).tone == Tone::Active).count();
    let trouble = subjects().filter(|subject| wording::state(subject.state).tone == Tone::Bad).count();
    let limited = status.caps.iter().filter(|cap| cap.wanted.is_some()).count();
    let taken = humantime::format_rfc3339_seconds(snapshot.taken);
    format!(
        "{}, {}: {capped} capped, {trouble} with problems; {}; {}. As of <time>{taken}</time>.",
        counted(status.policies.len(), "policy", "policies"),
        counted(subjects().count(), "budget", "budgets"),
        counted(limited, "limit set", "limits set"),
        counted(status.problems.len(), "refusal", "refusals"),
    )
}

fn write_problems(page: &mut String, problems: &[Problem]) {
    if problems.is_empty() {
        return;
    }
    page.push_str("<section class=\"bad notice\"><h2>Refused</h2>\n<ul>\n");
    for Problem { policy, place, message, kept } in problems {
        let what = policy.as_ref().map_or_else(|| "the whole document".to_owned(), bold);
        let outcome = if *kept { "the previous version stays active" } else { "not active" };
        let (place, message) = (place.to_string(), escaped(message));
        let line = format_args!("<li>{what} in {}: {outcome}<br><code>{message}</code></li>\n", escaped(&place));
        write(page, line);
    }
    page.push_str("</ul></section>\n");
}

fn write_policy(page: &mut String, policy: &PolicyStatus) {
    let PolicyStatus { name, mode, scope, source, pods: _, range: _, subjects, lost } = policy;
    let line = format_args!(
        "<section><h2>{}</h2>\n<p><span class=\"chip {}\">{}</span> {}; from {}</p>\n",
        escaped(&name.to_string()),
        if *mode == Mode::Enforce { "active" } else { "plain" },
        wording::mode(*mode),
        wording::scope(*scope),
        escaped(source),
    );
    write(page, line);
    if subjects.is_empty() {
        page.push_str("<p>Decides about no pod on this node.</p>\n");
    } else {
        page.push_str(
            "<table>\n<thead><tr><th>pod</th><th>state</th><th>power of budget</th><th class=\"n\">power</th>\
             <th class=\"n\">budget</th><th class=\"n\">headroom</th><th class=\"n\">ceiling</th>\
             <th class=\"n\">over budget</th><th>limits</th></tr></thead>\n<tbody>\n",
        );
        subjects.iter().for_each(|subject| write_subject(page, subject));
        page.push_str("</tbody></table>\n");
    }
    if !lost.is_empty() {
        page.push_str("<h3>Other policies decide</h3>\n<ul>\n");
        for conflict in lost {
            let (pod, component) = (pod(&conflict.pod), wording::component(conflict.component));
            write(page, format_args!("<li>{component} of {pod}: {} decides</li>\n", bold(&conflict.winner)));
        }
        page.push_str("</ul>\n");
    }
    page.push_str("</section>\n");
}

fn write_subject(page: &mut String, subject: &SubjectStatus) {
    let SubjectStatus { pod: of, state, reason, budget, power, ceiling, over_budget, over_budget_uj: _, knobs } =
        subject;
    let wording::StateWords { name, meaning, tone } = wording::state(*state);
    let of = of.as_ref().map_or_else(|| "all pods of the policy".to_owned(), pod);
    let line = format_args!(
        "<tr><td>{of}</td><td><span class=\"chip {}\" title=\"{meaning}\">{name}</span>{}</td><td>{}</td>\
         <td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n{}\">{}</td><td class=\"n\">{} %</td>\
         <td class=\"n\">{}</td><td>{}</td></tr>\n",
        tone.class(),
        reason.as_ref().map(|reason| format!("<br><small>{}</small>", escaped(reason))).unwrap_or_default(),
        bar(*power, *budget),
        watts(*power),
        watts(*budget),
        if subject.headroom().is_some_and(|Watts(left)| left < 0.0) { " over" } else { "" },
        watts(subject.headroom()),
        floor_u64(ceiling * 100.0),
        duration(*over_budget),
        through(knobs),
    );
    write(page, line);
}

/// Power as a part of the budget; the mark is at the budget, the end at 4/3 of it.
fn bar(power: Option<Watts>, budget: Option<Watts>) -> String {
    let (Some(Watts(power)), Some(Watts(budget))) = (power, budget) else { return "\u{2013}".to_owned() };
    if budget <= 0.0 {
        return "\u{2013}".to_owned();
    }
    let share = floor_u64(power / budget * 100.0);
    let (width, class) = (floor_u64(power / budget * 75.0).min(100), if power > budget { " over" } else { "" });
    format!("<span class=\"bar{class}\" title=\"{share} %\"><i style=\"width:{width}%\"></i></span>")
}

fn through(knobs: &[Knob]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for knob in knobs {
        *counts.entry(wording::knob(knob)).or_default() += 1;
    }
    let parts: Vec<String> = counts
        .into_iter()
        .map(|(name, count)| if count == 1 { name.to_owned() } else { format!("{name} \u{d7}{count}") })
        .collect();
    if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") }
}

fn write_caps(page: &mut String, caps: &[CapStatus], policies: &[PolicyStatus]) {
    if caps.is_empty() {
        return;
    }
    let mut users: BTreeMap<&Knob, Vec<&PodId>> = BTreeMap::new();
    for subject in policies.iter().flat_map(|policy| &policy.subjects) {
        for knob in &subject.knobs {
            users.entry(knob).or_default().extend(&subject.pod);
        }
    }
    page.push_str(
        "<section><h2>Limits</h2>\n<p>What the agent writes or would write. \u{201c}Found\u{201d} was read back from the \
         device; \u{201c}before\u{201d} is the value that is restored at the end.",
    );
    if caps.iter().any(|cap| is_clock(&cap.knob)) {
        page.push_str(
            " No driver reports whether GPU clocks were locked before. Without <code>--capping.gpu-clock-before</code> the end \
             of a cap resets them.",
        );
    }
    page.push_str(
        "</p>\n<table>\n<thead><tr><th>limit</th><th>device</th><th>for</th><th class=\"n\">wanted</th><th class=\"n\">found</th>\
         <th class=\"n\">before</th><th>state</th><th>writes</th></tr></thead>\n<tbody>\n",
    );
    for cap in caps {
        let CapStatus { knob, state, wanted, found, original, policy, clamped, detail, writes } = cap;
        let wording::StateWords { name, meaning, tone } = wording::knob_state(*state);
        let value = |value: &Option<u64>| value.map(|value| Quantity::of(knob, value).to_string());
        let whose = users.get(knob).map_or(&[][..], |pods| pods);
        let pods: Vec<String> = whose.iter().map(|of| pod(of)).collect();
        let policy = policy.as_ref().map(bold).unwrap_or_default();
        let counts = writes.by_result().into_iter().filter(|(_, count)| *count > 0);
        let counts: Vec<String> = counts.map(|(result, count)| format!("{count} {result}")).collect();
        let line = format_args!(
            "<tr><td>{}</td><td><code>{}</code></td><td>{policy} <small>{}</small></td>\
             <td class=\"n\">{}{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td><span class=\"chip {}\" title=\"{meaning}\">{name}</span>{}</td><td>{}</td></tr>\n",
            wording::knob(knob),
            escaped(&knob.device()),
            pods.join(", "),
            value(wanted).unwrap_or_else(|| "as before".to_owned()),
            if *clamped {
                " <small title=\"the policy asks for less than the device allows\">(minimum)</small>"
            } else {
                ""
            },
            value(found).unwrap_or_else(|| "\u{2013}".to_owned()),
            value(original).unwrap_or_else(|| if is_clock(knob) { "reset" } else { "open" }.to_owned()),
            tone.class(),
            detail.as_ref().map(|detail| format!("<br><small>{}</small>", escaped(detail))).unwrap_or_default(),
            counts.join(", "),
        );
        write(page, line);
    }
    page.push_str("</tbody></table></section>\n");
}

const fn is_clock(knob: &Knob) -> bool {
    matches!(knob, Knob::GpuClock(_))
}

fn write_sources(page: &mut String, sources: &[SourceState]) {
    page.push_str("<section><h2>Sources</h2>\n");
    if sources.is_empty() {
        page.push_str(
            "<p>None. Name one with <code>--capping.policy</code>, <code>--capping.configmap</code> or \
             <code>--capping.configmap-selector</code>.</p></section>\n",
        );
        return;
    }
    page.push_str("<table>\n<thead><tr><th>source</th><th>state</th><th></th></tr></thead>\n<tbody>\n");
    for SourceState { source, up, reason, detail } in sources {
        let tone = if *up { Tone::Good } else { Tone::Bad };
        let (source, class, reason, detail) = (escaped(source), tone.class(), reason.as_str(), escaped(detail));
        let line = format_args!(
            "<tr><td>{source}</td><td><span class=\"chip {class}\">{reason}</span></td><td>{detail}</td></tr>\n"
        );
        write(page, line);
    }
    page.push_str("</tbody></table></section>\n");
}

fn pod(pod: &PodId) -> String {
    let PodId { uid, namespace, name } = pod;
    if name.is_empty() {
        return format!("<span title=\"uid\">{}</span>", escaped(uid));
    }
    format!("<span title=\"{}\">{}/<b>{}</b></span>", escaped(uid), escaped(namespace), escaped(name))
}

fn bold(name: &PolicyName) -> String {
    format!("<b>{}</b>", escaped(&name.to_string()))
}

fn watts(power: Option<Watts>) -> String {
    power.map_or_else(|| "\u{2013}".to_owned(), |power| Quantity::Power(power).to_string())
}

/// `-`, `12 s`, `3m 20s`.
fn duration(time: Duration) -> String {
    match time.as_secs() {
        0 if time.is_zero() => "\u{2013}".to_owned(),
        0..60 => format!("{:.1} s", time.as_secs_f64()),
        seconds => humantime::format_duration(Duration::from_secs(seconds)).to_string(),
    }
}

fn counted(count: usize, one: &str, many: &str) -> impl Display {
    format!("{count} {}", if count == 1 { one } else { many })
}

fn write(page: &mut String, text: fmt::Arguments<'_>) {
    page.write_fmt(text).expect("a String takes every write");
}
