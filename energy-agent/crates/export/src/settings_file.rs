//! Reads export settings from a file of `KEY: value` or `KEY=value` lines, or from a folder with one file a key, as a
//! mounted ConfigMap is.

use std::fs;
use std::path::Path;

use energy_files::config_file::{self, FileError, MAX_BYTES};
use energy_files::mounted::{self, Unread, at};

/// Most keys of a folder; there are far fewer.
const MAX_KEYS: usize = 256;

/// The keys and values at `path`, in a stable order.
///
/// # Errors
/// One line with the path and what is wrong: it is not there or not readable, is no text, or a line is no pair.
pub fn read(path: &Path) -> Result<Vec<(String, String)>, String> {
    let metadata = fs::metadata(path).map_err(|error| format!("{}: {}", path.display(), FileError::from(error)))?;
    if !metadata.is_dir() {
        let text = config_file::text(path, MAX_BYTES).map_err(|fault| format!("{}: {fault}", path.display()))?;
        return pairs(&text).map_err(|problem| format!("{} {problem}", path.display()));
    }
    mounted::read(path, version).map_err(|(file, fault)| format!("{}: {fault}", file.display()))
}

/// The files of a folder, by name.
fn version(version: &Path) -> Result<Vec<(String, String)>, Unread> {
    let (mut pairs, mut bytes) = (Vec::new(), 0);
    for entry in fs::read_dir(version).map_err(at(version))? {
        let path = entry.map_err(at(version))?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if name.starts_with('.') || path.is_dir() {
            continue;
        }
        let text = config_file::text(&path, MAX_BYTES).map_err(at(&path))?;
        bytes += text.len();
        pairs.push((name, text));
        // A ConfigMap has no more in all.
        if bytes > MAX_BYTES || pairs.len() > MAX_KEYS {
            return Err((version.to_owned(), FileError::TooLarge(MAX_BYTES)));
        }
    }
    pairs.sort();
    Ok(pairs)
}

/// The pairs of a file's lines. Blank lines and comments (`#`) are left out, quotes around a value are dropped.
fn pairs(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut pairs = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.split_once(" #").map_or(line, |(line, _)| line).trim();
        if line.is_empty() || line.starts_with('#') || line == "---" {
            continue;
        }
        let pair = line.split_once([':', '=']).filter(|(key, _)| !key.trim().is_empty() && !key.trim().contains(' '));
        let Some((key, value)) = pair else {
            // The line is not repeated: this may be any file.
            return Err(format!("line {}: neither KEY: value nor KEY=value", index + 1));
        };
        let value = value.trim();
        let quoted = ['"', '\''].iter().find_map(|quote| value.strip_prefix(*quote)?.strip_suffix(*quote));
        pairs.push((key.trim().to_owned(), quoted.unwrap_or(value).to_owned()));
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    fn owned(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn lines_are_yaml_or_shell() {
        let text = "---\n# what we need\nEXPORT_METRICS: pod, kepler_node_*  # all of pods\n\n SOURCE.GPU = disabled\r\n\
                    A=\nB: \"x=y: z\"\nC='*'";
        assert_eq!(
            pairs(text).unwrap(),
            owned(&[
                ("EXPORT_METRICS", "pod, kepler_node_*"),
                ("SOURCE.GPU", "disabled"),
                ("A", ""),
                ("B", "x=y: z"),
                ("C", "*")
            ])
        );
        for (text, problem) in [
            ("A: b\nnonsense", "line 2: neither KEY: value nor KEY=value"),
            (": x", "line 1: neither"),
            ("two words: x", "line 1: neither"),
        ] {
            assert!(pairs(text).unwrap_err().starts_with(problem), "{text:?}");
        }
    }

    #[test]
    fn a_folder_has_a_file_a_key_and_a_mounted_one_its_version() {
        let folder = TempDir::new().unwrap();
        let path = folder.path();
        fs::write(path.join("SOURCE.GPU"), "disabled\n").unwrap();
        fs::write(path.join(".hidden"), "x").unwrap();
        assert_eq!(read(path).unwrap(), owned(&[("SOURCE.GPU", "disabled\n")]));
        // As the kubelet has it: a key that is gone may still have its link beside `..data`.
        fs::create_dir(path.join("..1")).unwrap();
        fs::write(path.join("..1/EXPORT_METRICS"), "pod").unwrap();
        symlink("..1", path.join("..data")).unwrap();
        symlink("..data/EXPORT_METRICS", path.join("EXPORT_METRICS")).unwrap();
        assert_eq!(read(path).unwrap(), owned(&[("EXPORT_METRICS", "pod")]));
        fs::remove_file(path.join("..1/EXPORT_METRICS")).unwrap();
        fs::remove_dir(path.join("..1")).unwrap();
        assert!(read(path).unwrap_err().contains("..data: No such file"));
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("export");
        assert!(read(&path).unwrap_err().starts_with(&format!("{}: No such file", path.display())));
        fs::write(&path, [0xff, 0xfe]).unwrap();
        assert!(read(&path).unwrap_err().contains("UTF-8"));
        fs::write(&path, vec![b'#'; 1_048_577]).unwrap();
        assert!(read(&path).unwrap_err().ends_with("larger than 1 MiB"));
        fs::write(&path, "A").unwrap();
        assert_eq!(read(&path).unwrap_err(), format!("{} line 1: neither KEY: value nor KEY=value", path.display()));
    }
}
