//! Run files against the schema of the documentation, by a library that is not ours.

#![allow(clippy::unwrap_used, reason = "tests panic")]

use std::env;
use std::path::Path;
use std::process::Command;

use crate::common::skip::{PYTHON, skip};

const CHECK: &str = "
import json, sys, jsonschema
schema, file = (json.load(open(path)) for path in sys.argv[1:])
checked = jsonschema.validators.validator_for(schema)
checked.check_schema(schema)
for run in file if isinstance(file, list) else [file]:
    checked(schema).validate(run)
";

/// The file holds one run or a list of runs.
pub fn assert_valid(file: &Path) {
    let Some(python) = env::var_os("TEST_PYTHON") else { return skip(&PYTHON) };
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/run-v1.schema.json");
    let output = Command::new(python).args(["-c", CHECK]).arg(schema).arg(file).output().unwrap();
    assert!(output.status.success(), "{}: {}", file.display(), String::from_utf8_lossy(&output.stderr));
}
