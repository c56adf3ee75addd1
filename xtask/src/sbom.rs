//! The bill of materials of the agent: every crate it is linked with, in CycloneDX 1.5.
//!
//! Source: <https://cyclonedx.org/docs/1.5/json/>.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::build::VERSION;
use crate::inventory::Linked;

/// The document, without a time or a number of its own: the same crates give the same bytes.
pub fn document(linked: &BTreeSet<Linked>) -> Value {
    let component = |Linked { name, version, licence, repository, checksum, .. }: &Linked| {
        let mut component = json!({
            "type": "library", "bom-ref": reference(name, version), "name": name, "version": version,
            "purl": reference(name, version),
            "licenses": [{"expression": licence}],
            "hashes": [{"alg": "SHA-256", "content": checksum}],
        });
        if !repository.is_empty() {
            component["externalReferences"] = json!([{"type": "vcs", "url": repository}]);
        }
        component
    };
    let known: BTreeSet<(&str, &str)> =
        linked.iter().map(|linked| (linked.name.as_str(), linked.version.as_str())).collect();
    let uses = |linked: &Linked| {
        let used = linked.uses.iter().filter(|(name, version)| known.contains(&(name, version)));
        let used: Vec<String> = used.map(|(name, version)| reference(name, version)).collect();
        json!({"ref": reference(&linked.name, &linked.version), "dependsOn": used})
    };
    let ours = reference("energy-agent", VERSION);
    let all: Vec<String> = linked.iter().map(|linked| reference(&linked.name, &linked.version)).collect();
    let mut dependencies = vec![json!({"ref": ours, "dependsOn": all})];
    dependencies.extend(linked.iter().map(uses));
    json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {"component": {
            "type": "application", "bom-ref": ours, "name": "energy-agent", "version": VERSION, "purl": ours,
            "licenses": [{"expression": "Apache-2.0"}],
        }},
        "components": linked.iter().map(component).collect::<Vec<_>>(),
        "dependencies": dependencies,
    })
}

/// A package URL.
fn reference(name: &str, version: &str) -> String {
    // A plus sign begins what a build adds to its version; here it must be escaped.
    format!("pkg:cargo/{name}@{}", version.replace('+', "%2B"))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn a_crate_is_named_by_its_package_url_and_refers_only_to_what_is_linked() {
        let macro_crate = ("serde_derive".to_owned(), "1.0.0".to_owned());
        let linked = Linked {
            name: "zstd-sys".to_owned(),
            version: "2.0.16+zstd.1.5.7".to_owned(),
            licence: "MIT OR Apache-2.0".to_owned(),
            repository: String::new(),
            folder: PathBuf::new(),
            checksum: "00".repeat(32),
            uses: [macro_crate].into(),
        };
        let document = document(&[linked].into());
        assert_eq!(document["components"][0]["purl"], "pkg:cargo/zstd-sys@2.0.16%2Bzstd.1.5.7");
        assert_eq!(document["components"][0]["licenses"], json!([{"expression": "MIT OR Apache-2.0"}]));
        assert_eq!(document["dependencies"][0]["dependsOn"], json!(["pkg:cargo/zstd-sys@2.0.16%2Bzstd.1.5.7"]));
        assert_eq!(document["dependencies"][1]["dependsOn"], json!([]));
    }
}
