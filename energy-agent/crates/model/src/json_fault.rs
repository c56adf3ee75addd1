//! What is wrong with a JSON text, without repeating any of it.

/// What is wrong with a JSON text, by kind and place.
#[must_use]
pub fn json_fault(error: &serde_json::Error) -> String {
    let kind = match error.classify() {
        serde_json::error::Category::Data => "a key is missing, or a value has the wrong type",
        serde_json::error::Category::Eof => "it ends too early",
        serde_json::error::Category::Io => "it cannot be read",
        serde_json::error::Category::Syntax => "not valid JSON",
    };
    format!("{kind} (line {}, column {})", error.line(), error.column())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_of_json_has_its_place_and_nothing_of_the_text() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Known {
            #[expect(dead_code, reason = "only read")]
            watts: f64,
        }
        for (text, said) in [
            ("{\"watts\":\n \"S3CRET\"}", "a key is missing, or a value has the wrong type (line 2, column 9)"),
            ("{\"S3CRET\": 1}", "a key is missing, or a value has the wrong type (line 1, column 9)"),
            ("S3CRET", "not valid JSON (line 1, column 1)"),
            ("{\"watts\":", "it ends too early (line 1, column 9)"),
        ] {
            let error = serde_json::from_str::<Known>(text).unwrap_err();
            assert_eq!(json_fault(&error), said, "{text}");
        }
    }
}
