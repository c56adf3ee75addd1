//! Links of Markdown and of finished pages, and where they lead.

use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::Result;

/// Pairs of words and target of the links in a text, pictures included.
pub fn of_markdown(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("](") {
        let words = text[..at].rsplit_once('[').map(|(_, words)| words);
        let target = text[at + 2..].split_once(')').map(|(target, _)| target);
        if let (Some(words), Some(target)) = (words, target)
            && !target.contains(char::is_whitespace)
        {
            found.push((words.to_owned(), target.to_owned()));
        }
    }
    found
}

/// The file that a link from a page in `folder` means, below the root; `None` for other sites and places within a page.
pub fn place(folder: &Path, target: &str) -> Option<String> {
    let file = target.split_once('#').map_or(target, |(file, _)| file);
    if file.is_empty() || file.contains("://") {
        return None;
    }
    let mut place = PathBuf::new();
    for part in folder.join(file).components() {
        match part {
            Component::ParentDir => drop(place.pop()),
            Component::Normal(name) => place.push(name),
            _ => {}
        }
    }
    place.to_str().map(str::to_owned)
}

/// Links of the pages below a folder that lead nowhere: `page: link`.
///
/// # Errors
/// When a page cannot be read.
pub fn wrong(book: &Path) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    for page in html(book, Path::new(""))? {
        // Its links begin at the root of the site, wherever that is.
        if page.ends_with("404.html") {
            continue;
        }
        let text = fs::read_to_string(book.join(&page))?;
        let folder = page.parent().unwrap_or(Path::new(""));
        for link in attributes(&text, "href").chain(attributes(&text, "src")) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            if file.contains(':') {
                continue;
            }
            let target = if file.is_empty() { page.to_str().map(str::to_owned) } else { place(folder, file) };
            let target = target.map(|target| book.join(target)).filter(|target| target.is_file());
            let leads = target.is_some_and(|target| anchor.is_empty() || has_anchor(&target, anchor));
            if !leads {
                wrong.push(format!("{}: {link}", page.display()));
            }
        }
    }
    Ok(wrong)
}

fn html(book: &Path, folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(book.join(folder))? {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            found.extend(html(book, &path)?);
        } else if path.extension().is_some_and(|ending| ending == "html") {
            found.push(path);
        }
    }
    Ok(found)
}

/// The values of an attribute in a page.
fn attributes<'a>(page: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let begin = format!(" {name}=\"");
    let places: Vec<usize> = page.match_indices(&begin).map(|(at, found)| at + found.len()).collect();
    places.into_iter().filter_map(|at| Some(page[at..].split_once('"')?.0))
}

fn has_anchor(page: &Path, anchor: &str) -> bool {
    fs::read_to_string(page).is_ok_and(|text| text.contains(&format!("id=\"{anchor}\"")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests panic")]

    use super::*;

    #[test]
    fn links_are_found_and_followed() {
        let text = "See [the guide](../a/b.md#part), ![Picture](c.png) and [x](https://example.com/y).";
        let links = of_markdown(text);
        assert_eq!(links[0], ("the guide".to_owned(), "../a/b.md#part".to_owned()));
        let places: Vec<_> = links.iter().map(|(_, target)| place(Path::new("docs"), target)).collect();
        assert_eq!(places, [Some("a/b.md".to_owned()), Some("docs/c.png".to_owned()), None]);
    }

    #[test]
    fn a_link_to_a_missing_page_or_title_is_wrong() {
        let book = tempfile::tempdir().unwrap();
        let page = |name: &str, text: &str| fs::write(book.path().join(name), text).unwrap();
        page(
            "a.html",
            r##"<a href="b.html#there">1</a><a href="b.html#gone">2</a><a href="c.html">3</a><a href="#x">4</a>"##,
        );
        page("b.html", r#"<h2 id="there"></h2><a href="https://example.com">5</a>"#);
        assert_eq!(wrong(book.path()).unwrap(), ["a.html: b.html#gone", "a.html: c.html", "a.html: #x"]);
    }
}
