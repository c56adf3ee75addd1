//! The documentation as pages that can be searched: mdBook over `docs/`, with chapters in the order of `docs/README.md`.

mod links;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::{cargo, checked, output, root, tools};

/// Built from source once.
const VERSION: &str = "0.5.4";
/// Pages of the repository that belong to the documentation, beside `docs/`.
const BESIDE: [&str; 5] =
    ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "deploy/helm/energy-agent/README.md"];
const SETTINGS: &str = r#"[book]
title = "energy-agent"
language = "en"
src = "pages"
[build]
# README.md stays a page of that name, so that links to it lead there; and nothing in the pages is a template.
use-default-preprocessors = false
[output.html]
no-section-label = true
[output.html.print]
enable = false
[output.html.search]
limit-results = 20
"#;

/// Writes the pages to `target/book/html` and checks their links.
///
/// # Errors
/// When mdBook cannot be installed or refuses a page, or when a link leads nowhere; it is named.
pub fn build() -> Result<()> {
    let mdbook = mdbook()?;
    let folder = root().join("target/book");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    let pages = folder.join("pages");
    // The same places as in the repository, so that links stay as they are.
    copy(&root().join("docs"), &pages.join("docs"))?;
    for page in BESIDE {
        put(page, &pages)?;
    }
    for file in linked_files(&pages)? {
        put(&file, &pages)?;
    }
    fs::write(pages.join("SUMMARY.md"), summary(&fs::read_to_string(root().join("docs/README.md"))?)?)?;
    fs::write(folder.join("book.toml"), SETTINGS)?;
    let html = folder.join("html");
    checked(Command::new(mdbook).arg("build").arg(&folder).arg("--dest-dir").arg(&html))?;
    let wrong = links::wrong(&html)?;
    ensure!(wrong.is_empty(), "links of the book that lead nowhere:\n{}", wrong.join("\n"));
    println!("{}", html.join("index.html").display());
    Ok(())
}

fn mdbook() -> Result<PathBuf> {
    let folder = tools::folder("mdbook");
    let program = folder.join("bin/mdbook");
    if !output(Command::new(&program).arg("--version")).is_ok_and(|said| said == format!("mdbook v{VERSION}")) {
        println!("building mdbook {VERSION}, once; some minutes");
        let mut install = cargo();
        install.args(["install", "mdbook", "--version", VERSION, "--locked", "--force"]);
        // The server and the watching of files are not used.
        install.args(["--debug", "--no-default-features", "--features", "search", "--quiet", "--root"]).arg(&folder);
        checked(&mut install).context("installing mdbook")?;
    }
    Ok(program)
}

/// Copies a file of the repository to the same place among the pages.
fn put(file: &str, pages: &Path) -> Result<()> {
    let to = pages.join(file);
    fs::create_dir_all(to.parent().unwrap_or(pages))?;
    fs::copy(root().join(file), &to).with_context(|| file.to_owned())?;
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// Files of the repository that the pages link to and that are no pages, such as manifests. A link to a folder becomes its name.
fn linked_files(pages: &Path) -> Result<BTreeSet<String>> {
    let mut files = BTreeSet::new();
    let beside = BESIDE.iter().map(|page| pages.join(page));
    let docs = fs::read_dir(pages.join("docs"))?.flatten().map(|entry| entry.path());
    for page in docs.chain(beside).filter(|page| page.extension().is_some_and(|ending| ending == "md")) {
        let mut text = fs::read_to_string(&page)?;
        let folder = page.parent().and_then(|folder| folder.strip_prefix(pages).ok()).unwrap_or(Path::new(""));
        for (words, target) in links::of_markdown(&text.clone()) {
            let Some(place) = links::place(folder, &target) else { continue };
            if root().join(&place).is_dir() {
                text = text.replace(&format!("[{words}]({target})"), &words);
            } else if !pages.join(&place).exists() {
                files.insert(place);
            }
        }
        fs::write(page, text)?;
    }
    Ok(files)
}

/// The table of contents: what the page of all pages has in bold becomes a part, what it links to a chapter.
fn summary(readme: &str) -> Result<String> {
    let mut text = "# Summary\n\n[energy-agent](README.md)\n[Documentation](docs/README.md)\n".to_owned();
    let mut seen = BTreeSet::new();
    for line in readme.lines() {
        if let Some(part) = line.strip_prefix("**").and_then(|rest| rest.strip_suffix("**")) {
            text += &format!("\n# {part}\n\n");
        }
        for (words, target) in links::of_markdown(line) {
            let Some(place) = links::place(Path::new("docs"), &target) else { bail!("docs/README.md: {target}") };
            if place.ends_with(".md") && seen.insert(place.clone()) {
                text += &format!("- [{}]({place})\n", title(&words));
            }
        }
    }
    let missing = [("Changes", "CHANGELOG.md"), ("Values of the Helm chart", "deploy/helm/energy-agent/README.md")];
    for (words, page) in missing {
        text += &format!("- [{words}]({page})\n");
    }
    Ok(text)
}

/// Words of a sentence as a title.
fn title(words: &str) -> String {
    let mut letters = words.chars().filter(|letter| *letter != '`');
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests panic")]

    use super::*;

    #[test]
    fn parts_and_chapters_are_those_of_the_readme() {
        let readme = "# Docs\n\n**Run it**\n\n- [Install](install.md), [file](policies.yaml)\n- [how to help](../CONTRIBUTING.md#x)\n";
        let text = summary(readme).unwrap();
        assert!(
            text.contains("\n# Run it\n\n- [Install](docs/install.md)\n- [How to help](CONTRIBUTING.md)\n"),
            "{text}"
        );
        assert!(!text.contains("policies"), "{text}");
    }

    #[test]
    fn every_page_of_the_documentation_is_a_chapter() {
        let text = summary(&fs::read_to_string(root().join("docs/README.md")).unwrap()).unwrap();
        let pages =
            fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        for page in pages.filter(|page| page.ends_with(".md")) {
            assert!(text.contains(&format!("(docs/{page})")), "docs/README.md does not list docs/{page}");
        }
    }
}
