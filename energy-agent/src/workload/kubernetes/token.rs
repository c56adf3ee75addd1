//! A bearer token that lies in a file and is renewed there, as the kubelet does with a service account's.
//!
//! kube's own reading takes the file as it is, a line feed at its end included, and looks for a new one once a minute.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use hyper::http::HeaderValue;

/// The file, and what was sent of it last.
#[derive(Clone, Debug)]
pub struct TokenFile {
    path: PathBuf,
    sent: Arc<Mutex<HeaderValue>>,
}

impl TokenFile {
    /// # Errors
    /// When the file cannot be read or holds no token; the text names it.
    pub fn open(path: PathBuf) -> Result<Self, String> {
        let header = read(&path).map_err(|problem| format!("token file {}: {problem}", path.display()))?;
        Ok(Self { path, sent: Arc::new(Mutex::new(header)) })
    }

    /// What `Authorization` says now. While the file is away or unusable, what it held before counts, as in kubectl.
    pub fn header(&self) -> HeaderValue {
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok(header) = read(&self.path) {
            *sent = header;
        }
        sent.clone()
    }

    /// Whether the file holds another token than was sent last.
    pub fn is_renewed(&self) -> bool {
        let sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        read(&self.path).is_ok_and(|header| header != *sent)
    }
}

fn read(path: &Path) -> Result<HeaderValue, String> {
    let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    let token = text.trim();
    if token.is_empty() {
        return Err("no token in it".to_owned());
    }
    let mut header = HeaderValue::try_from(format!("Bearer {token}"))
        .map_err(|_| "more than one line, or characters that no token has".to_owned())?;
    header.set_sensitive(true);
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_what_the_file_holds_without_its_line_feed_and_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        fs::write(&path, "old\n").unwrap();
        let file = TokenFile::open(path.clone()).unwrap();
        assert_eq!((file.header().to_str().unwrap(), file.is_renewed()), ("Bearer old", false));
        fs::write(&path, "new\r\n").unwrap();
        assert!(file.is_renewed());
        assert_eq!((file.header().to_str().unwrap(), file.is_renewed()), ("Bearer new", false));
        for unusable in ["", "\n", "two\nlines"] {
            fs::write(&path, unusable).unwrap();
            assert_eq!((file.header().to_str().unwrap(), file.is_renewed()), ("Bearer new", false), "{unusable:?}");
            let problem = TokenFile::open(path.clone()).unwrap_err();
            assert!(problem.contains(path.to_str().unwrap()), "{problem}");
        }
        fs::remove_file(&path).unwrap();
        assert_eq!(file.header(), "Bearer new");
    }
}
