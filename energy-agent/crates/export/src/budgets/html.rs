//! The page for people: halls with their racks, power and level over time, and who is limited and why. Everything on it is
//! escaped and needs nothing from elsewhere.

use std::fmt::{self, Write as _};

use energy_model::capping::quantity::Quantity;
use energy_model::units::{Watts, floor_u64};

use super::view::{BudgetRow, HistoryPoint, NodeStanding, NodeView, View};
use crate::html::{escaped, head};

const STYLE: &str = ".in{margin-left:1.5em}svg{width:100%;height:3.5em}";
/// Of one budget; the JSON has all.
const MOST_NODES: usize = 100;
/// How deep racks in halls are shown.
const DEEPEST: usize = 8;

pub fn page(view: &View) -> String {
    let mut page = head("Power budgets", STYLE);
    let who = match (&view.leader, view.leads) {
        (_, true) => format!("{} leads, epoch {}", escaped(&view.identity), view.epoch),
        (Some(leader), false) => {
            format!("{} waits; <b>{}</b> leads, and its page has the budgets", escaped(&view.identity), escaped(leader))
        }
        (None, false) => format!("{} does not know who leads", escaped(&view.identity)),
    };
    write(
        &mut page,
        format_args!(
            "<header><p>energy-agent controller</p><h1>Power budgets</h1>\n<p>{who}. {}, {}. As of <time>{}</time>.</p>\
             </header>\n",
            count(view.budgets.len(), "budget"),
            count(view.nodes.len(), "node"),
            humantime::format_rfc3339_seconds(view.taken),
        ),
    );
    for trouble in &view.troubles {
        write(&mut page, format_args!("<p class=\"bad notice\">{}</p>\n", escaped(trouble)));
    }
    if view.budgets.is_empty() && view.leads {
        page.push_str("<p class=\"notice\">There is no ClusterPowerBudget: nothing is limited.</p>\n");
    }
    // The largest first, each followed by those within it.
    for budget in view.budgets.iter().rev().filter(|budget| budget.parent.is_none()) {
        write_budget(&mut page, view, budget, 0);
    }
    for policy in &view.policies {
        write_budget(&mut page, view, policy, 0);
    }
    page.push_str(
        "<footer><p>The same as JSON: <a href=\"/budgets?format=json\">/budgets?format=json</a></p></footer>\n</body>\n</html>\n",
    );
    page
}

fn write_budget(page: &mut String, view: &View, budget: &BudgetRow, depth: usize) {
    let tone = if budget.mode == "Enforce" { "active" } else { "plain" };
    let inside = if depth > 0 { " class=\"in\"" } else { "" };
    write(
        page,
        format_args!(
            "<section{inside}><h2>{}</h2>\n<p><span class=\"chip {tone}\">{}</span> {} of {} {} \u{2014} {}; {}, {} limited, \
             {} silent</p>\n",
            escaped(&budget.name),
            budget.mode,
            watts(Some(budget.watts)),
            watts(Some(budget.budget_watts)),
            bar(budget.watts, budget.budget_watts),
            levels(budget),
            count(budget.nodes.len(), "node"),
            budget.limited,
            budget.silent,
        ),
    );
    for (kind, is, reason, message) in &budget.conditions {
        let bad = kind != "Limiting" && !is;
        if bad || (kind == "Limiting" && *is) {
            let class = if bad { "bad" } else { "active" };
            let (reason, message) = (escaped(reason), escaped(message));
            write(page, format_args!("<p><span class=\"chip {class}\">{reason}</span> {message}</p>\n"));
        }
    }
    write_history(page, budget);
    write_nodes(page, view, budget);
    page.push_str("</section>\n");
    if depth < DEEPEST {
        let within = |child: &&BudgetRow| child.parent.as_deref() == Some(budget.name.as_str());
        for child in view.budgets.iter().rev().filter(within) {
            write_budget(page, view, child, depth + 1);
        }
    }
}

fn count(number: usize, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

fn levels(budget: &BudgetRow) -> String {
    if budget.permille() == 1000 {
        return "open".to_owned();
    }
    let tier = |tier: &super::view::TierView| {
        let name = if tier.name.is_empty() { "level" } else { &tier.name };
        format!("{} {:.1} %", escaped(name), f64::from(tier.permille) / 10.0)
    };
    budget.tiers.iter().map(tier).collect::<Vec<_>>().join(", ")
}

/// Power as a part of the budget, and the level below it.
fn write_history(page: &mut String, budget: &BudgetRow) {
    let Some(highest) = budget.history.iter().map(|point| point.watts).max_by(f64::total_cmp) else { return };
    let top = highest.max(budget.budget_watts).max(1.0) * 1.05;
    let line = |value: &dyn Fn(&HistoryPoint) -> f64| {
        let mut line = String::new();
        for (x, point) in budget.history.iter().enumerate() {
            write(&mut line, format_args!("{x},{:.1} ", 100.0 - 100.0 * value(point)));
        }
        line
    };
    let (width, mark) = (budget.history.len().max(2) - 1, 100.0 - 100.0 * budget.budget_watts / top);
    write(
        page,
        format_args!(
            "<svg viewBox=\"0 0 {width} 100\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"power and level over time\" \
             fill=\"none\" stroke-width=\"1.5\"><g vector-effect=\"non-scaling-stroke\">\
             <path d=\"M0 {mark:.1}H{width}\" stroke=\"var(--bad)\" stroke-dasharray=\"4\" vector-effect=\"non-scaling-stroke\"/>\
             <polyline points=\"{}\" stroke=\"var(--active)\" vector-effect=\"non-scaling-stroke\"/>\
             <polyline points=\"{}\" stroke=\"var(--dim)\" vector-effect=\"non-scaling-stroke\"/></g></svg>\n\
             <p><small>Blue: power; dashed: the budget; grey: the level.</small></p>\n",
            line(&|point| point.watts / top),
            line(&|point| f64::from(point.permille) / 1000.0),
        ),
    );
}

/// Those that are limited or silent, then the others.
fn write_nodes(page: &mut String, view: &View, budget: &BudgetRow) {
    let mut nodes: Vec<&NodeView> = budget.nodes.iter().filter_map(|place| view.nodes.get(*place)).collect();
    nodes.sort_by_key(|node| {
        (node.state == NodeStanding::Reporting, node.limited_by.is_none(), std::sync::Arc::clone(&node.name))
    });
    let left = nodes.len().saturating_sub(MOST_NODES);
    write(
        page,
        format_args!(
            "<details><summary>Nodes</summary>\n<table>\n<thead><tr><th>node</th><th>state</th><th class=\"n\">power</th>\
             <th class=\"n\">floor</th><th class=\"n\">limit</th><th class=\"n\">most</th><th>limited by</th></tr></thead>\n<tbody>\n"
        ),
    );
    for node in nodes.into_iter().take(MOST_NODES) {
        let tone = if node.state == NodeStanding::Silent { "bad" } else { "plain" };
        let trouble =
            node.trouble.as_ref().map(|text| format!("<br><small>{}</small>", escaped(text))).unwrap_or_default();
        write(
            page,
            format_args!(
                "<tr><td>{}</td><td><span class=\"chip {tone}\">{}</span>{trouble}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
                 <td class=\"n\">{}</td><td class=\"n\">{}</td><td>{}</td></tr>\n",
                escaped(&node.name),
                node.state.as_str(),
                watts(node.watts),
                watts(node.floor_watts),
                node.limit_watts.map_or_else(|| "open".to_owned(), |limit| watts(Some(limit))),
                watts(node.most_watts),
                node.limited_by.as_deref().map(escaped).unwrap_or_default(),
            ),
        );
    }
    page.push_str("</tbody></table>\n");
    if left > 0 {
        write(page, format_args!("<p>and {left} more</p>\n"));
    }
    page.push_str("</details>\n");
}

fn bar(power: f64, budget: f64) -> String {
    let (width, class) =
        (floor_u64(power / budget.max(1.0) * 75.0).min(100), if power > budget { " over" } else { "" });
    format!("<span class=\"bar{class}\"><i style=\"width:{width}%\"></i></span>")
}

fn watts(power: Option<f64>) -> String {
    power.map_or_else(|| "\u{2013}".to_owned(), |power| Quantity::Power(Watts(power)).to_string())
}

fn write(page: &mut String, text: fmt::Arguments<'_>) {
    page.write_fmt(text).expect("a String takes every write");
}
