//! The powercap tree of sysfs: its folders become RAPL zones named by what their files say, and its files become numbers.
//! Nothing is read from an index in a path; indices are hexadecimal and psys may sit between two packages (FC-004).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use energy_model::zone::{Source, ZoneKind};

use crate::errand;

/// The folders of one control type begin with its name and a colon; kernel names.
const CONTROL_TYPES: [(&str, Source); 2] = [("intel-rapl", Source::Rapl), ("intel-rapl-mmio", Source::RaplMmio)];

/// One zone folder. The order is that of preference among copies: the MSR interface before the memory-mapped one, the
/// lowest die first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PowercapZone {
    pub kind: ZoneKind,
    pub socket: Option<u32>,
    pub die: Option<u32>,
    pub source: Source,
    /// Folder with all links resolved.
    pub dir: PathBuf,
    /// Name of the folder, such as `intel-rapl:0:2`.
    pub name: String,
}

/// What the tree offers, and what stood in the way.
#[derive(Debug, Default)]
pub struct Scan {
    /// In order of [`PowercapZone`].
    pub entries: Vec<PowercapZone>,
    /// Zone folders whose name this program does not know, with that name.
    pub unknown: Vec<(PathBuf, String)>,
    /// Folders and files that exist but could not be read.
    pub problems: Vec<(PathBuf, anyhow::Error)>,
}

/// Lists the RAPL zones below `sysfs`: `class/powercap`, or the device folders where the class has no entries.
#[must_use]
pub fn scan(sysfs: &Path) -> Scan {
    let mut scan = Scan::default();
    let mut dirs = BTreeMap::new();
    let class = sysfs.join("class/powercap");
    collect(&class, &mut dirs, &mut scan.problems);
    if dirs.is_empty() {
        for (control_type, _) in CONTROL_TYPES {
            collect(&sysfs.join("devices/virtual/powercap").join(control_type), &mut dirs, &mut scan.problems);
        }
    }
    for (dir, name) in dirs {
        let Some(source) = source_of(&name) else { continue };
        let label = match read_text(&dir.join("name")) {
            Ok(label) => label,
            Err(error) => {
                scan.problems.push((dir, error));
                continue;
            }
        };
        match parse_name(&label) {
            Some((kind, socket, die)) => {
                let (socket, die) = if matches!(kind, ZoneKind::Core | ZoneKind::Uncore | ZoneKind::Dram) {
                    parent_of(&class, &dir, &name)
                } else {
                    (socket, die)
                };
                scan.entries.push(PowercapZone { kind, socket, die, source, dir, name });
            }
            None => scan.unknown.push((dir, label)),
        }
    }
    number_platforms(&mut scan.entries);
    scan.entries.sort();
    scan
}

/// Where a socket has a `psys` of its own, such as `psys-1`, the one without a number is that of socket 0.
fn number_platforms(entries: &mut [PowercapZone]) {
    let numbered: Vec<Source> =
        entries.iter().filter(|it| it.kind == ZoneKind::Psys && it.socket.is_some()).map(|it| it.source).collect();
    for entry in entries.iter_mut().filter(|it| it.kind == ZoneKind::Psys && numbered.contains(&it.source)) {
        entry.socket.get_or_insert(0);
    }
}

/// Adds the zone folders in `folder` and below to `dirs`, each once, whatever links lead to it.
fn collect(folder: &Path, dirs: &mut BTreeMap<PathBuf, String>, problems: &mut Vec<(PathBuf, anyhow::Error)>) {
    let listing = match fs::read_dir(folder) {
        Ok(listing) => listing,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return,
        Err(error) => {
            let error = anyhow::Error::new(error).context(format!("listing {}", folder.display()));
            return problems.push((folder.to_owned(), error));
        }
    };
    for name in listing.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
        if source_of(&name).is_none() {
            continue;
        }
        let path = folder.join(&name);
        match path.canonicalize() {
            Ok(dir) if dir.is_dir() && !dirs.contains_key(&dir) => {
                dirs.insert(dir.clone(), name);
                collect(&dir, dirs, problems);
            }
            Ok(_) => {}
            Err(error) => {
                let error = anyhow::Error::new(error).context(format!("following {}", path.display()));
                problems.push((path, error));
            }
        }
    }
}

fn source_of(folder: &str) -> Option<Source> {
    CONTROL_TYPES
        .into_iter()
        .find(|(control_type, _)| folder.strip_prefix(control_type).is_some_and(|rest| rest.starts_with(':')))
        .map(|(_, source)| source)
}

/// Socket and die of the package a sub-zone lies in: the folder above it, or where the tree is flat the one it is named
/// after.
fn parent_of(class: &Path, dir: &Path, name: &str) -> (Option<u32>, Option<u32>) {
    let above = dir.parent().map(|parent| parent.join("name"));
    let namesake = name.rsplit_once(':').map(|(parent, _)| class.join(parent).join("name"));
    [above, namesake]
        .into_iter()
        .flatten()
        .filter_map(|file| parse_name(&read_text(&file).ok()?))
        .find(|&(kind, ..)| kind == ZoneKind::Package)
        .map_or((None, None), |(_, socket, die)| (socket, die))
}

/// Kind, socket and die from the content of `name`; `None` for a name that is not known.
fn parse_name(label: &str) -> Option<(ZoneKind, Option<u32>, Option<u32>)> {
    let kind = match label {
        "core" => ZoneKind::Core,
        "uncore" => ZoneKind::Uncore,
        "dram" => ZoneKind::Dram,
        "psys" => ZoneKind::Psys,
        _ => {
            let number = |text: &str| u32::try_from(parse_decimal(text.as_bytes()).ok()?).ok();
            if let Some(socket) = label.strip_prefix("psys-") {
                return Some((ZoneKind::Psys, Some(number(socket)?), None));
            }
            let numbers = label.strip_prefix("package-")?;
            let (socket, die) = match numbers.split_once("-die-") {
                Some((socket, die)) => (number(socket)?, Some(number(die)?)),
                None => (number(numbers)?, None),
            };
            return Some((ZoneKind::Package, Some(socket), die));
        }
    };
    Some((kind, None, None))
}

fn read_text(path: &Path) -> Result<String> {
    let file = path.to_owned();
    let bytes = errand::run(path, move || fs::read(file))
        .and_then(|bytes| bytes)
        .with_context(|| format!("reading {}", path.display()))?;
    Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
}

/// The number in an attribute file.
///
/// # Errors
/// When the file is missing, unreadable, does not answer, or is not a decimal number.
pub fn read_number(path: &Path) -> Result<u64> {
    let file = path.to_owned();
    let number = errand::run(path, move || read_number_again(&open(&file)?, &file));
    number.with_context(|| format!("reading {}", path.display()))?
}

/// Opens an attribute file for [`read_number_again`]; both may hang.
///
/// # Errors
/// When it is missing or may not be read.
pub fn open(path: &Path) -> Result<File> {
    File::open(path).with_context(|| format!("opening {}", path.display()))
}

/// The number that the open attribute file `file` shows now; the kernel forms it anew at each read from the start.
///
/// # Errors
/// When reading fails or the content is not a decimal number; `path` is for the message.
pub(crate) fn read_number_again(file: &File, path: &Path) -> Result<u64> {
    let mut content = [0; 64];
    let len = file.read_at(&mut content, 0).with_context(|| format!("reading {}", path.display()))?;
    parse_decimal(&content[..len]).with_context(|| format!("reading {}", path.display()))
}

/// A whole number in decimal digits, with nothing beside it but blanks and the line feed.
fn parse_decimal(content: &[u8]) -> Result<u64> {
    let text = content.trim_ascii();
    if text.is_empty() {
        bail!("expected a decimal number, found nothing");
    }
    // `parse` alone would take a sign.
    let number = str::from_utf8(text).ok().filter(|_| text.iter().all(u8::is_ascii_digit)).map(str::parse);
    match number {
        Some(Ok(number)) => Ok(number),
        Some(Err(_)) => bail!("expected a decimal number up to {}, found {}", u64::MAX, text.escape_ascii()),
        None => bail!("expected a decimal number, found \"{}\"", text.escape_ascii()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_zone_is_what_its_name_says() {
        assert_eq!(parse_name("package-0"), Some((ZoneKind::Package, Some(0), None)));
        assert_eq!(parse_name("package-12-die-3"), Some((ZoneKind::Package, Some(12), Some(3))));
        assert_eq!(parse_name("dram"), Some((ZoneKind::Dram, None, None)));
        for unknown in
            ["", "package", "package-", "package-x", "package-+1", "package-0-die-", "Core", "gpu", "package-1-2"]
        {
            assert_eq!(parse_name(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn only_folders_of_a_known_control_type_are_zones() {
        assert_eq!(source_of("intel-rapl:a"), Some(Source::Rapl));
        assert_eq!(source_of("intel-rapl-mmio:0:1"), Some(Source::RaplMmio));
        for other in ["intel-rapl", "intel-rapl-mmio", "dtpm:0", "intel-rapl-other:0"] {
            assert_eq!(source_of(other), None, "{other}");
        }
    }

    #[test]
    fn a_number_is_digits_and_nothing_else() {
        assert_eq!(parse_decimal(b"18446744073709551615\n").unwrap(), u64::MAX);
        for (content, found) in [
            (&b""[..], "found nothing"),
            (b"\n", "found nothing"),
            (b"12abc\n", "found \"12abc\""),
            (b"-5\n", "found \"-5\""),
            (b"+5\n", "found \"+5\""),
            (b"1 2\n", "found \"1 2\""),
            (b"18446744073709551616\n", "found 18446744073709551616"),
            (b"\xff\x00\n", "found \"\\xff\\x00\""),
        ] {
            let error = parse_decimal(content).unwrap_err().to_string();
            assert!(error.ends_with(found), "{error}");
        }
    }

    proptest! {
        #[test]
        fn no_content_makes_the_parsers_panic(content: Vec<u8>, label in "(package-)?[0-9+]{0,12}(-die-)?.{0,5}") {
            let _ = parse_decimal(&content);
            let _ = parse_name(&String::from_utf8_lossy(&content));
            let _ = parse_name(&label);
        }
    }
}
