//! Pictures of the dashboards for the documentation: the dashboards' test plays a node for some minutes and keeps each
//! panel's answers from Prometheus; a page draws them, and Chromium makes PNG files of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{cargo, checked, root, tools};

const PAGE: &str = include_str!("pictures/page.html");
/// Width of the page, and pixels of its height beside the panels and for each unit of the panels' grid.
const SIZE: (u64, u64, u64) = (1400, 50, 38);
/// The program's own pages that the test keeps, and the sizes of their pictures.
const PAGES: [(&str, (u64, u64)); 3] = [("landing", (1100, 1000)), ("policies", (1100, 900)), ("budgets", (1100, 900))];

/// Draws every dashboard into `docs/pictures`; with `redraw` from the answers of the last time.
///
/// # Errors
/// When the test fails or there is no Chromium.
pub fn draw(seconds: u64, redraw: bool) -> Result<()> {
    let programs = ["chromium", "chromium-browser", "google-chrome"];
    let chromium = programs.into_iter().find(|name| tools::on_path(name));
    let chromium = chromium.context("no Chromium; on Debian: apt-get install chromium fonts-dejavu-core")?;
    let folder = root().join("target/pictures");
    fs::create_dir_all(&folder)?;
    if !redraw {
        let test = ["test", "--workspace", "--locked", "--test", "pages", "every_query_gives_data"];
        let mut command = cargo();
        command.args(test).env("PICTURES_FOLDER", &folder).env("PICTURES_SECONDS", seconds.to_string());
        checked(&mut command)?;
    }
    let pictures = root().join("docs/pictures");
    fs::create_dir_all(&pictures)?;
    // Drawn by the program itself.
    fs::copy(folder.join("report.svg"), pictures.join("report.svg")).context("report.svg")?;
    for entry in fs::read_dir(root().join("dashboards"))? {
        let board = entry?.path();
        let name = PathBuf::from(board.file_stem().unwrap_or_default());
        let mut recorded = json(&folder.join(&name).with_extension("json"))?;
        recorded["board"] = json(&board)?;
        let page = folder.join(&name).with_extension("html");
        // A `<` could end the script.
        fs::write(&page, PAGE.replace("/*DATA*/null", &recorded.to_string().replace('<', "\\u003c")))?;
        let (width, beside, unit) = SIZE;
        let height = beside + unit * units(&recorded)?;
        shoot(chromium, &page, &pictures.join(&name).with_extension("png"), (width, height))?;
    }
    for (name, size) in PAGES {
        shoot(chromium, &folder.join(name).with_extension("html"), &pictures.join(name).with_extension("png"), size)?;
    }
    Ok(())
}

/// A picture of a page, of this many pixels before it is made smaller.
fn shoot(chromium: &str, page: &Path, picture: &Path, (width, height): (u64, u64)) -> Result<()> {
    let mut command = Command::new(chromium);
    command
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--hide-scrollbars",
            "--disable-lcd-text",
            "--force-device-scale-factor=0.7",
        ])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .arg(format!("--user-data-dir={}", page.with_file_name("profile").display()))
        .arg(format!("--window-size={width},{height}"))
        .arg(format!("--screenshot={}", picture.display()))
        .arg(format!("file://{}", page.display()));
    checked(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()))?;
    println!("{}: {} bytes", picture.display(), fs::metadata(picture)?.len());
    Ok(())
}

fn json(file: &Path) -> Result<Value> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    serde_json::from_str(&text).with_context(|| file.display().to_string())
}

/// Height of a dashboard in units of its grid.
fn units(answers: &Value) -> Result<u64> {
    let panels = answers["board"]["panels"].as_array().context("a dashboard without panels")?;
    let ends = panels.iter().filter_map(|panel| {
        let place = &panel["gridPos"];
        Some(place["y"].as_u64()? + place["h"].as_u64()?)
    });
    let most = ends.max().unwrap_or_default();
    ensure!(most > 0, "panels without places");
    Ok(most)
}
