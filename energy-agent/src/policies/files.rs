//! A file, or a folder of files, into documents. A folder may be a mounted ConfigMap, of which one version is read whole.

use std::path::Path;
use std::sync::Arc;
use std::{fs, io};

pub use energy_files::config_file::MAX_BYTES;
use energy_files::config_file::{self, FileError};
use energy_files::mounted::{self, Unread, at};
use energy_model::capping::status::DocumentPlace;
use energy_model::meter_state::Reason;

use super::store::Documents;

/// Most documents of a source.
pub const MAX_DOCUMENTS: usize = 256;
/// Most bytes of all documents of a source.
pub const MAX_TOTAL_BYTES: usize = 8 << 20;
/// What keeps a source from being read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceError {
    pub reason: Reason,
    /// With the object and the remedy.
    pub message: String,
}

/// All documents at `path`; none where nothing is there.
///
/// # Errors
/// When it is something else or cannot be read, or when there is too much of it. A single file of a folder that cannot be
/// read is an error in its place.
pub fn read(path: &Path) -> Result<Documents, SourceError> {
    let metadata = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Documents::new()),
        Err(error) => return Err(unreadable(path, &error.into())),
        Ok(metadata) => metadata,
    };
    if metadata.is_dir() {
        return match mounted::read(path, |version| read_folder(path, version)) {
            Err((file, fault)) => Err(unreadable(&file, &fault)),
            Ok(documents) => within_limits(&path.display().to_string(), documents),
        };
    }
    match text(path) {
        Err(FileError::NotFound) => Ok(Documents::new()),
        Err(FileError::NotRegular(_)) => {
            let message = format!("{}: neither a file nor a folder; name one with --capping.policy", path.display());
            Err(SourceError { reason: Reason::Unreadable, message })
        }
        Err(fault) => Err(unreadable(path, &fault)),
        Ok(content) => Ok(Documents::from([(DocumentPlace::File(path.display().to_string()), content)])),
    }
}

/// The documents, unless they are more than a source may have.
///
/// # Errors
/// With the limit that `title` is over.
pub fn within_limits(title: &str, documents: Documents) -> Result<Documents, SourceError> {
    let bytes: usize = documents.values().flatten().map(|text| text.len()).sum();
    let limit = match documents.len() {
        count if count > MAX_DOCUMENTS => format!("{count} documents, more than {MAX_DOCUMENTS}"),
        _ if bytes > MAX_TOTAL_BYTES => format!("{bytes} bytes, more than {} MiB", MAX_TOTAL_BYTES >> 20),
        _ => return Ok(documents),
    };
    Err(SourceError { reason: Reason::Limit, message: format!("{title}: {limit}; combine policies, or remove some") })
}

/// The documents of `folder`, of which `version` is read.
fn read_folder(folder: &Path, version: &Path) -> Result<Documents, Unread> {
    let mut names = Vec::new();
    for entry in fs::read_dir(version).map_err(at(version))? {
        let name = entry.map_err(at(version))?.file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') && is_document(&name) {
            names.push(name);
        }
    }
    names.sort();
    let too_many = names.len() > MAX_DOCUMENTS;
    let (mut documents, mut bytes) = (Documents::new(), 0);
    for name in names {
        let path = version.join(&name);
        // Its name in the folder: that of the version is another after each edit.
        let place = DocumentPlace::File(folder.join(&name).display().to_string());
        if too_many || bytes > MAX_TOTAL_BYTES {
            // Refused as a whole, whatever is in it.
            documents.insert(place, Ok(Arc::default()));
            continue;
        }
        // A folder in it is not looked into. A pipe or a device in place of a file deletes no policy.
        if path.is_dir() {
            continue;
        }
        match text(&path) {
            // It went away; in a version of the kubelet's, the whole version did.
            Err(FileError::NotFound) if version != folder => return Err((path, FileError::NotFound)),
            Err(FileError::NotFound) => {}
            Err(fault) => drop(documents.insert(place, Err(unreadable(&path, &fault).message))),
            Ok(content) => {
                bytes += content.as_ref().map_or(0, |text| text.len());
                documents.insert(place, content);
            }
        }
    }
    Ok(documents)
}

/// Whether it is the name of a document.
#[must_use]
pub fn is_document(name: &str) -> bool {
    [".yaml", ".yml", ".json"].iter().any(|ending| name.ends_with(ending))
}

/// The text of a document, or why it is none.
fn text(path: &Path) -> Result<Result<Arc<str>, String>, FileError> {
    match config_file::text(path, MAX_BYTES) {
        Ok(text) => Ok(Ok(text.into())),
        Err(FileError::TooLarge(_)) => Ok(Err(too_large())),
        Err(fault @ FileError::NotText(_)) => Ok(Err(fault.to_string())),
        Err(fault) => Err(fault),
    }
}

/// What is said of a document over [`MAX_BYTES`].
pub fn too_large() -> String {
    format!("{}; divide it", FileError::TooLarge(MAX_BYTES))
}

fn unreadable(path: &Path, fault: &FileError) -> SourceError {
    let remedy = if *fault == FileError::Denied { "; make it readable for the agent's user" } else { "" };
    SourceError { reason: Reason::Unreadable, message: format!("{}: {fault}{remedy}", path.display()) }
}

#[cfg(test)]
mod tests;
