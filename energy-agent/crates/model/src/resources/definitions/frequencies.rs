//! The definition of NodeFrequencies.

use super::schema::{self, Schema, integer, integer_in, map_list, object, text, time};
use super::{Definition, column, wide};
use crate::resources::node_frequencies::{KIND, PLURAL};

pub(crate) const GPUS: usize = 64;
pub(crate) const CORES: usize = 1024;

pub(super) fn definition() -> Definition {
    Definition {
        kind: KIND,
        plural: PLURAL,
        singular: "nodefrequency",
        short: &["nf"],
        category: "power",
        is_namespaced: false,
        doc: "Upper bounds for clocks of a node that recommenders ask for, and how the node stands.",
        columns: vec![
            column("Power", "integer", ".status.watts", "W"),
            column("Limit", "integer", ".status.limitWatts", "W, of all budgets"),
            column("Limited-By", "string", ".status.limitedBy", ""),
            column("GPUs", "integer", ".status.gpus", ""),
            column("Lowered", "integer", ".status.loweredGpus", ""),
            column("Applied", "string", ".status.conditions[?(@.type==\"Applied\")].status", "what spec asks for"),
            wide(column("Floor", "integer", ".status.floorWatts", "W, what the node can be held at")),
            wide(column("Most", "integer", ".status.mostWatts", "W, what the node may draw at most")),
            wide(column("Model", "string", ".status.model", "")),
            column("Reported", "date", ".status.reportTime", ""),
        ],
        spec: spec(),
        needs_spec: false,
        status: Some(status()),
    }
}

fn megahertz() -> Schema {
    integer_in(100, 10_000)
}

fn spec() -> Schema {
    let gpu = object(
        vec![
            ("uuid", text(64)),
            ("graphicsFrequency", megahertz().doc("MHz; the upper end of the range, so that the GPU can still idle.")),
            ("expirationTime", time().doc("After this the bound is gone.")),
        ],
        &["uuid", "graphicsFrequency"],
    );
    let cpu = object(
        vec![
            ("coreId", integer_in(0, 65_535)),
            ("frequency", megahertz().doc("MHz")),
            ("expirationTime", time().doc("After this the bound is gone.")),
        ],
        &["coreId", "frequency"],
    );
    let fields = vec![
        ("nodeName", text(253).doc("The object's name where it is not given.")),
        ("gpuFrequencies", map_list(gpu, "uuid", GPUS)),
        ("cpuFrequencies", map_list(cpu, "coreId", CORES)),
    ];
    object(fields, &[]).doc("Followed for devices whose policy has algorithm external.")
}

fn status() -> Schema {
    let gpu = object(
        vec![
            ("uuid", text(64)),
            ("ceilingFrequency", integer().doc("MHz; what it is limited to.")),
            ("graphicsFrequency", integer().doc("MHz; what it runs at.")),
            ("limitedBy", text(512)),
        ],
        &["uuid"],
    );
    let fields = vec![
        ("observedGeneration", integer()),
        ("reportTime", time()),
        ("watts", integer()),
        ("limitWatts", integer()),
        ("limitedBy", text(512)),
        ("floorWatts", integer().doc("What the node can be held at.")),
        ("mostWatts", integer().doc("What the node may draw at most.")),
        ("model", text(256).doc("Of its GPUs.")),
        ("gpus", integer()),
        ("loweredGpus", integer()),
        ("gpuFrequencies", map_list(gpu, "uuid", GPUS)),
        ("conditions", schema::conditions()),
    ];
    object(fields, &[])
}
