//! The licences of everything that is linked into the agent, as one text for whoever gets the program.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use crate::inventory::Linked;

/// How files with licences begin, in capitals.
const NAMES: [&str; 6] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];

/// Lists the crates, then every text once with the crates it belongs to.
///
/// # Errors
/// When a source cannot be read, or neither a crate nor another one with the same licence has its text.
pub fn text(linked: &BTreeSet<Linked>) -> Result<String> {
    let mut texts: BTreeMap<String, (String, BTreeSet<String>)> = BTreeMap::new();
    let (mut with_text, mut without) = (BTreeSet::new(), Vec::new());
    for linked in linked {
        let found = files(&linked.folder)?;
        if found.is_empty() {
            without.push(linked);
        } else {
            with_text.extend(identifiers(&linked.licence));
        }
        for text in found {
            // The same text often differs in spaces alone.
            let same = text.split_whitespace().collect::<Vec<_>>().join(" ");
            let entry = texts.entry(same).or_insert_with(|| (text, BTreeSet::new()));
            entry.1.insert(format!("{} {}", linked.name, linked.version));
        }
    }
    for linked in &without {
        let known = identifiers(&linked.licence).any(|name| with_text.contains(name));
        ensure!(known, "nobody has the text of {}, the licence of {}", linked.licence, linked.name);
    }
    let mut page =
        "energy-agent is linked with these crates (name, version, licence by SPDX, source). The texts of their \
                    licences follow.\n\n"
            .to_owned();
    for Linked { name, version, licence, repository, .. } in linked {
        let _ = writeln!(page, "{name} {version}: {licence} {repository}");
    }
    if !without.is_empty() {
        page +=
            "\nThese have no file with a licence in their package; the text is that of other crates with the same:\n";
        for Linked { name, version, licence, .. } in without {
            let _ = writeln!(page, "{name} {version}: {licence}");
        }
    }
    let mut by_crate: Vec<(String, BTreeSet<String>)> = texts.into_values().collect();
    by_crate.sort_by(|(_, a), (_, b)| a.cmp(b));
    for (text, crates) in by_crate {
        let crates = crates.into_iter().collect::<Vec<_>>().join(", ");
        let _ = write!(page, "\n{}\n{crates}\n\n{}\n", "-".repeat(80), text.trim_end());
    }
    Ok(page)
}

/// The texts in a crate's folder.
fn files(folder: &Path) -> Result<Vec<String>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        if path.is_file() && NAMES.iter().any(|start| name.starts_with(start)) {
            let text = fs::read(&path).with_context(|| path.display().to_string())?;
            found.insert(name, String::from_utf8_lossy(&text).into_owned());
        }
    }
    Ok(found.into_values().collect())
}

/// The licences that an expression names.
fn identifiers(expression: &str) -> impl Iterator<Item = &str> {
    let words = expression.split(|letter: char| letter.is_whitespace() || letter == '(' || letter == ')');
    words.filter(|word| !["", "OR", "AND", "WITH"].contains(word))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests panic")]

    use std::path::PathBuf;

    use tempfile::TempDir;

    use super::*;

    fn linked(folder: &Path, name: &str, licence: &str) -> Linked {
        Linked {
            name: name.to_owned(),
            version: "1.0.0".to_owned(),
            licence: licence.to_owned(),
            repository: String::new(),
            folder: PathBuf::from(folder).join(name),
            checksum: String::new(),
            uses: BTreeSet::new(),
        }
    }

    fn folder(files: &[(&str, &str)]) -> TempDir {
        let folder = TempDir::new().unwrap();
        for (path, text) in files {
            fs::create_dir_all(folder.path().join(path).parent().unwrap()).unwrap();
            fs::write(folder.path().join(path), text).unwrap();
        }
        folder
    }

    #[test]
    fn a_text_that_two_crates_share_stands_once_with_both_names() {
        let folder = folder(&[
            ("a/LICENSE-MIT", "Permission is\nhereby granted\n"),
            ("b/license.md", "Permission is hereby granted"),
            ("b/src.rs", "code"),
        ]);
        let crates = ["a", "b"].map(|name| linked(folder.path(), name, "MIT"));
        let page = text(&crates.into()).unwrap();
        assert_eq!(page.matches("hereby").count(), 1, "{page}");
        assert!(page.contains("\na 1.0.0, b 1.0.0\n"), "{page}");
        assert!(!page.contains("code"), "{page}");
    }

    #[test]
    fn a_crate_without_a_text_needs_one_of_the_same_licence() {
        let folder = folder(&[("a/COPYING", "text of MIT"), ("b/README", ""), ("c/README", "")]);
        let crates = [linked(folder.path(), "a", "MIT"), linked(folder.path(), "b", "(MIT OR Apache-2.0) AND Zlib")];
        assert!(text(&crates.clone().into()).unwrap().contains("\nb 1.0.0: (MIT OR Apache-2.0) AND Zlib\n"));
        let [a, _] = crates;
        let refused = text(&[a, linked(folder.path(), "c", "ISC")].into()).unwrap_err().to_string();
        assert_eq!(refused, "nobody has the text of ISC, the licence of c");
    }
}
