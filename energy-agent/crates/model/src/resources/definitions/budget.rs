//! The definition of ClusterPowerBudget.

use super::schema::{self, Schema, integer, integer_in, labels, object, percent, switch, text, time, whole_in};
use super::{Definition, age, column, condition};
use crate::resources::CONTROLLER;
use crate::resources::cluster_power_budget::{KIND, PLURAL};

/// A hall.
const MOST_WATTS: i64 = 1_000_000_000;
/// Less is no node.
const LEAST_WATTS: i64 = 100;
const QUERY: usize = 4096;

pub(super) fn definition() -> Definition {
    Definition {
        kind: KIND,
        plural: PLURAL,
        singular: "clusterpowerbudget",
        short: &["cpb"],
        category: "power",
        is_namespaced: false,
        doc: "Watts that a set of nodes may draw together.",
        columns: vec![
            column("Mode", "string", ".spec.mode", ""),
            column("Budget", "integer", ".spec.watts", "W"),
            column("Power", "integer", ".status.watts", "W, of all selected nodes"),
            column("%", "integer", ".status.percent", ""),
            column(
                "Level",
                "integer",
                ".status.levelPermille",
                "Of the range between floor and most, of the tier that is cut most; 1000: open",
            ),
            column("Nodes", "integer", ".status.nodes", ""),
            column("Silent", "integer", ".status.silentNodes", ""),
            condition("InBudget"),
            condition("Ready"),
            age(),
        ],
        spec: spec(),
        needs_spec: true,
        status: Some(status()),
    }
}

fn spec() -> Schema {
    let watts = || whole_in(LEAST_WATTS, MOST_WATTS);
    let fields = vec![
        (
            "mode",
            schema::mode().doc(
                "Off: the nodes are open. Recommend: status says what would be done, and no node is limited. Enforce: nodes are limited while the power is over the budget. Write 'Off' in quotes.",
            ),
        ),
        ("watts", watts().doc("Power that the nodes may draw together.")),
        ("nodes", nodes()),
        (
            "overheadPercent",
            percent(0, 100, 0).doc(
                "What is drawn beside what nodes measure (supplies, fans), as a part of it. Not used where meter answers.",
            ),
        ),
        (
            "unreportedNodeWatts",
            whole_in(0, 1_000_000).default(0).doc("What a selected node is taken to draw that no agent reports."),
        ),
        (
            "oversubscriptionPercent",
            integer_in(100, 1000).doc(
                "Limits of all nodes together never exceed this part of the budget. 100: kept whatever the controller does. Not given: limits follow the power that is drawn, and nothing is lowered below engagePercent.",
            ),
        ),
        ("tiers", tiers()),
        ("control", control()),
        ("onControllerLoss", on_controller_loss()),
        ("meter", object(vec![("query", query("PromQL with one value in watts; what the building's meter says of these nodes."))], &["query"])),
        ("protect", protect()),
        ("targets", targets(watts())),
        ("wattsFrom", watts_from(watts)),
    ];
    object(fields, &["watts", "nodes"])
}

fn query(doc: &str) -> Schema {
    text(QUERY).with("minLength", 1).doc(doc)
}

fn nodes() -> Schema {
    let fields = vec![
        ("matchLabels", labels().doc("Nodes that have all of these labels.")),
        ("selectAll", switch().doc("Every node.")),
    ];
    object(fields, &[]).doc("Which nodes.").rule(
        "(has(self.selectAll) && self.selectAll) != has(self.matchLabels)",
        "give matchLabels, or set selectAll: true to select every node",
    )
}

fn tiers() -> Schema {
    let name = text(63).with("pattern", "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$");
    let tier = object(vec![("name", name), ("matchLabels", labels())], &["name", "matchLabels"]);
    schema::map_list(tier, "name", 8).doc("In the order in which they are cut. Nodes of none are cut last.")
}

fn control() -> Schema {
    let fields = vec![
        ("engagePercent", percent(1, 100, 99).doc("Above this, the level is cut.")),
        ("targetPercent", percent(1, 100, 95).doc("It is cut so far that this is drawn.")),
        ("releasePercent", percent(1, 100, 90).doc("Below this, the level is raised step by step.")),
        ("holdSeconds", integer_in(0, 3600).default(30).doc("After a cut, the level is not raised for this long.")),
        ("controllerName", text(253).default(CONTROLLER).doc("Who writes the PowerLevel.")),
    ];
    let usual = serde_json::json!({
        "engagePercent": 99, "targetPercent": 95, "releasePercent": 90, "holdSeconds": 30, "controllerName": CONTROLLER,
    });
    object(fields, &[]).default(usual).doc("How the budget is kept. The percentages are of the budget.").rule(
        "self.releasePercent < self.targetPercent && self.targetPercent <= self.engagePercent",
        "need releasePercent < targetPercent <= engagePercent",
    )
}

fn on_controller_loss() -> Schema {
    let fields = vec![
        ("afterSeconds", integer_in(30, 86_400).default(60).doc("How long the writer of the level has to be silent.")),
        (
            "limit",
            schema::choice(&["StaticShare", "Hold", "Release"]).doc(
                "StaticShare: no more than the node's part of the budget. Hold: what was said last. Release: no limit. Not given: StaticShare with oversubscriptionPercent, else Hold.",
            ),
        ),
    ];
    object(fields, &[])
        .default(serde_json::json!({"afterSeconds": 60}))
        .doc("What nodes do once nobody renews the level.")
}

fn protect() -> Schema {
    let fields = vec![
        (
            "priorityAtLeast",
            integer_in(-2_000_001_000, 2_000_001_000).doc("Pods whose PriorityClass has at least this value."),
        ),
        ("matchLabels", labels().doc("Pods that have all of these labels.")),
    ];
    object(fields, &[])
        .doc("Pods that are not slowed down: a device that only they hold counts with its most in the node's floor.")
        .rule(
            "has(self.priorityAtLeast) || has(self.matchLabels)",
            "write priorityAtLeast or matchLabels, or remove protect",
        )
}

fn targets(watts: Schema) -> Schema {
    let target = object(
        vec![
            ("id", text(63).with("minLength", 1)),
            ("from", time()),
            ("to", time().doc("Does not count itself.")),
            ("watts", watts),
        ],
        &["id", "from", "to", "watts"],
    );
    let target = target.rule("timestamp(self.from) < timestamp(self.to)", "to has to be later than from");
    schema::map_list(target, "id", 64)
        .doc("Lower budgets for a time: of those that apply and of watts the lowest counts. Each ends by itself.")
}

fn watts_from(watts: impl Fn() -> Schema) -> Schema {
    let fields = vec![
        ("query", query("PromQL with one value in watts, such as a budget that follows price, carbon or cooling.")),
        ("min", watts().doc("The budget never falls below this.")),
        ("max", watts().doc("The budget never rises above this.")),
        ("staleAfterSeconds", integer_in(10, 86_400).default(300).doc("An answer counts for so long.")),
        ("onStale", schema::choice(&["Min", "Last"]).default("Min").doc("What counts then: min, or the last answer.")),
    ];
    object(fields, &["query", "min", "max"])
        .doc("The budget follows a query; watts stays its upper bound.")
        .rule("self.min <= self.max", "min has to be at most max")
}

fn status() -> Schema {
    let fields = vec![
        ("observedGeneration", integer()),
        ("observedTime", time().doc("When the figures were taken.")),
        (
            "budgetWatts",
            integer().doc("The budget that counts at present: of watts, targets and wattsFrom the lowest."),
        ),
        ("watts", integer().doc("What the selected nodes draw together.")),
        ("percent", integer().doc("The same as a part of the budget.")),
        ("limitWatts", integer().doc("What the nodes may draw at most as things stand.")),
        ("levelPermille", integer().doc("Of the tier that is cut most; 1000: open.")),
        ("nodes", integer()),
        ("limitedNodes", integer()),
        ("silentNodes", integer()),
        ("conditions", schema::conditions()),
    ];
    object(fields, &[])
}
