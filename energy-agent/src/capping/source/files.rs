//! A file, or a folder of files, into documents. A folder may be a mounted ConfigMap, of which one version is read whole.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;

use super::book::{Documents, Place};
use crate::mounted::{self, Unread, at};

/// Largest document; the API server takes no larger ConfigMap either.
pub const MAX_BYTES: usize = 1 << 20;
/// Most documents of a source.
pub const MAX_DOCUMENTS: usize = 256;
/// Most bytes of all documents of a source.
pub const MAX_TOTAL_BYTES: usize = 8 << 20;
/// What keeps a source from being read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub reason: &'static str,
    /// With the object and the remedy.
    pub message: String,
}

/// All documents at `path`; none where nothing is there.
///
/// # Errors
/// When it is something else or cannot be read, or when there is too much of it. A single file of a folder that cannot be
/// read is an error in its place.
pub fn read(path: &Path) -> Result<Documents, Failure> {
    let metadata = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Documents::new()),
        Err(error) => return Err(unreadable(path, &error)),
        Ok(metadata) => metadata,
    };
    if metadata.is_dir() {
        return match mounted::read(path, |version| read_folder(path, version)) {
            Err((file, error)) => Err(unreadable(&file, &error)),
            Ok(documents) => within_limits(&path.display().to_string(), documents),
        };
    }
    if !metadata.is_file() {
        let message = format!("{}: neither a file nor a folder; name one by --capping.policy", path.display());
        return Err(Failure { reason: "unreadable", message });
    }
    match text(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Documents::new()),
        Err(error) => Err(unreadable(path, &error)),
        Ok(content) => Ok(Documents::from([(Place::File(path.display().to_string()), content)])),
    }
}

/// The documents, unless they are more than a source may have.
///
/// # Errors
/// With the limit that `title` is over.
pub fn within_limits(title: &str, documents: Documents) -> Result<Documents, Failure> {
    let bytes: usize = documents.values().flatten().map(|text| text.len()).sum();
    let limit = match documents.len() {
        count if count > MAX_DOCUMENTS => format!("{count} documents, more than {MAX_DOCUMENTS}"),
        _ if bytes > MAX_TOTAL_BYTES => format!("{bytes} bytes, more than {} MiB", MAX_TOTAL_BYTES >> 20),
        _ => return Ok(documents),
    };
    Err(Failure { reason: "limit", message: format!("{title}: {limit}; put policies together, or remove some") })
}

/// The documents of `folder`, of which `version` is read.
fn read_folder(folder: &Path, version: &Path) -> Result<Documents, Unread> {
    let mut names = Vec::new();
    for entry in fs::read_dir(version).map_err(at(version))? {
        let name = entry.map_err(at(version))?.file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') && [".yaml", ".yml", ".json"].iter().any(|ending| name.ends_with(ending)) {
            names.push(name);
        }
    }
    names.sort();
    let too_many = names.len() > MAX_DOCUMENTS;
    let (mut documents, mut bytes) = (Documents::new(), 0);
    for name in names {
        let path = version.join(&name);
        // Its name in the folder: that of the version is another after each edit.
        let place = Place::File(folder.join(&name).display().to_string());
        if too_many || bytes > MAX_TOTAL_BYTES {
            // Refused as a whole, whatever is in it.
            documents.insert(place, Ok(Arc::default()));
            continue;
        }
        let content = match fs::metadata(&path) {
            Ok(metadata) if !metadata.is_file() => continue,
            Ok(_) => text(&path),
            Err(error) => Err(error),
        };
        match content {
            // It went away; in a version of the kubelet's, the whole version did.
            Err(error) if error.kind() == io::ErrorKind::NotFound && version != folder => return Err((path, error)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => drop(documents.insert(place, Err(unreadable(&path, &error).message))),
            Ok(content) => {
                bytes += content.as_ref().map_or(0, |text| text.len());
                documents.insert(place, content);
            }
        }
    }
    Ok(documents)
}

/// The text of a document, or why it is none.
fn text(path: &Path) -> io::Result<Result<Arc<str>, String>> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(MAX_BYTES).unwrap_or(u64::MAX);
    File::open(path)?.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok(if bytes.len() > MAX_BYTES {
        Err(too_large())
    } else {
        String::from_utf8(bytes).map(Arc::from).map_err(|error| {
            format!("no text: byte {} is not UTF-8; save it as UTF-8", error.utf8_error().valid_up_to())
        })
    })
}

/// What is said of a document over [`MAX_BYTES`].
pub fn too_large() -> String {
    format!("larger than {} MiB; divide it", MAX_BYTES >> 20)
}

fn unreadable(path: &Path, error: &io::Error) -> Failure {
    let remedy = match error.kind() {
        io::ErrorKind::PermissionDenied => "; let the agent's user read it",
        _ => "",
    };
    Failure { reason: "unreadable", message: format!("{}: {error}{remedy}", path.display()) }
}

#[cfg(test)]
mod tests;
