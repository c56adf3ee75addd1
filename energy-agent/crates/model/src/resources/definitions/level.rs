//! The definition of PowerLevel.

use super::schema::{self, Schema, integer, integer_in, object, text, time};
use super::{Definition, column};
use crate::resources::LEVELS_LEASE;
use crate::resources::power_level::{KIND, OPEN, PLURAL};

pub(super) fn definition() -> Definition {
    Definition {
        kind: KIND,
        plural: PLURAL,
        singular: "powerlevel",
        short: &[],
        category: "power-internal",
        is_namespaced: true,
        doc: "How far nodes may go between their floor and their most. Written by a controller, followed by the nodes that it is for.",
        columns: vec![
            column("For", "string", ".spec.for.kind", ""),
            column("Lowest", "integer", ".spec.lowestPermille", ""),
            column("Fallback", "integer", ".spec.fallbackPermille", ""),
            column("Epoch", "integer", ".spec.epoch", ""),
            column("Changed", "date", ".spec.changeTime", ""),
        ],
        spec: spec(),
        needs_spec: true,
        status: None,
    }
}

fn permille() -> Schema {
    integer_in(0, OPEN.into())
}

fn spec() -> Schema {
    let subject = object(
        vec![
            ("kind", schema::choice(&["ClusterPowerBudget", "PowerCappingPolicy"])),
            ("name", text(253)),
            ("uid", text(36)),
            ("generation", integer()),
        ],
        &["kind", "name", "uid", "generation"],
    );
    let subject = subject.rule(
        "self.uid == oldSelf.uid && self.name == oldSelf.name && self.kind == oldSelf.kind",
        "a level is for one object; delete it, and make one for the other",
    );
    let epoch = integer().with("minimum", 0).rule("self >= oldSelf", "an earlier leader may not write any more");
    let level = object(vec![("tier", text(63)), ("permille", permille().doc("1000: open."))], &["tier", "permille"]);
    let fields = vec![
        ("for", subject),
        ("epoch", epoch.doc("The leader's; it never goes back.")),
        ("changeTime", time().doc("When a level was changed last.")),
        (
            "leaseName",
            text(253).default(LEVELS_LEASE).doc(
                "Lease in the agents' namespace that its writer renews; where it does not change for staleAfterSeconds, onControllerLoss holds.",
            ),
        ),
        ("staleAfterSeconds", integer_in(10, 86_400)),
        ("levels", schema::map_list(level, "tier", 9).with("minItems", 1)),
        ("lowestPermille", permille().doc("Of levels, for people.")),
        ("fallbackPermille", permille().doc("The node's part of the budget whatever the others draw.")),
    ];
    object(fields, &["for", "epoch", "staleAfterSeconds", "levels", "fallbackPermille"])
}
