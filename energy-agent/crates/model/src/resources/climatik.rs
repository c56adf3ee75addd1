//! Climatik's kinds, `climatik.io/v1alpha1`, and what their objects are in kinds of ours. Pure.
//!
//! A PowerCappingPolicy of Climatik has a mirror beside it, a PowerCappingPolicy of ours that it owns. Climatik's NodeFrequencies
//! become clocks in those of ours, which have the names of nodes.

pub mod clocks;
pub mod mirror;

use serde_json::Value;

use super::object::KubeObject;

pub const GROUP: &str = "climatik.io";
pub const VERSION: &str = "v1alpha1";
/// Annotation of what the bridge writes: the spec that it wrote, so that it notices what is no longer asked for.
const WRITTEN: &str = "power.energy-agent.io/climatik";

/// Nothing else was asked for since, and nobody has changed what was written.
fn is_as_written(there: &KubeObject, written: &str, spec: &Value) -> bool {
    there.metadata.annotations.get(WRITTEN).is_some_and(|before| before == written) && is_within(spec, &there.spec)
}

/// The API server adds defaults, and other writers items of lists.
fn is_within(asked: &Value, there: &Value) -> bool {
    match (asked, there) {
        (Value::Object(asked), Value::Object(there)) => {
            asked.iter().all(|(key, asked)| there.get(key).is_some_and(|there| is_within(asked, there)))
        }
        (Value::Array(asked), Value::Array(there)) => {
            asked.iter().all(|asked| there.iter().any(|there| is_within(asked, there)))
        }
        _ => asked == there,
    }
}
