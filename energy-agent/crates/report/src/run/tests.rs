#![allow(clippy::unwrap_used, reason = "tests panic")]

use std::path::Path;
use std::{env, fs};

use serde_json::{Value, json};

use super::*;

/// The least that a run file has.
fn least() -> Value {
    json!({
        "apiVersion": "energy-agent.io/run/v1", "id": "a", "subject": {"kind": "pod", "name": "train"},
        "measured": {"by": "prometheus", "intervalSeconds": 15.0, "coverage": 1.0},
        "start": 100.0, "end": 160.0,
        "energy": [{"part": "package", "zone": "package", "source": "rapl", "microjoules": 12},
                   {"part": "gpu", "zone": "GPU-a", "source": "nvml", "microjoules": 34}],
    })
}

#[test]
fn keys_of_a_later_version_are_ignored() {
    let mut file = least();
    file["fromLater"] = json!({"a": 1});
    file["energy"][0]["fromLater"] = json!([1]);
    let [run] = <[Run; 1]>::try_from(Run::parse_all(file.to_string().as_bytes()).unwrap()).unwrap();
    assert_eq!((run.energy[1].microjoules, run.subject.kind), (34, SubjectKind::Pod));
    assert_eq!(Run::parse_all(run.to_json().unwrap().as_bytes()), Ok(vec![run.clone()]));
    let list = serde_json::to_string(&[run.clone(), run.clone()]).unwrap();
    assert_eq!(Run::parse_all(list.as_bytes()), Ok(vec![run.clone(), run]));
}

#[test]
fn what_is_no_run_file_is_said_without_its_content() {
    let said = |text: &str| Run::parse_all(text.as_bytes()).unwrap_err().to_string();
    let mut file = least();
    file["apiVersion"] = json!("energy-agent.io/run/v2");
    assert!(
        said(&file.to_string()).contains("\"energy-agent.io/run/v2\" is not supported, only energy-agent.io/run/v1")
    );
    assert!(said("{\"a\": \"secret\"}").contains("no apiVersion"));
    file = least();
    file["start"] = json!("secret");
    for text in [file.to_string(), "{\"secret\": ".to_owned(), "secret".to_owned(), "[]".to_owned()] {
        let said = said(&text);
        assert!(said.starts_with("no run file: ") && !said.contains("secret"), "{said}");
    }
    let said = said(&json!([least(), file]).to_string());
    assert!(said.ends_with("in run 2") && !said.contains("secret"), "{said}");
}

/// docs/run-v1.schema.json is made from the types: `UPDATE_DOCS=1 cargo test -p energy-report schema` writes it anew.
#[test]
fn the_schema_in_the_docs_is_that_of_the_types() {
    let mut schema = schemars::schema_for!(Run).to_value();
    schema["$id"] = json!("https://energy-agent.io/run/v1.schema.json");
    schema["properties"]["apiVersion"] = json!({"const": API_VERSION});
    let text = format!("{schema:#}\n");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/run-v1.schema.json");
    if env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&file, &text).unwrap();
    }
    assert_eq!(fs::read_to_string(&file).unwrap_or_default(), text, "{}", file.display());
}
