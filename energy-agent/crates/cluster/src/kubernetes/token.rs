//! A bearer token that lies in a file and is renewed there, as the kubelet does with a service account's.
//!
//! kube's own reading takes the file as it is, a line feed at its end included, and looks for a new one once a minute.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use energy_files::config_file;
use hyper::http::HeaderValue;

/// More than any token has; servers take a few KiB.
const MAX_BYTES: usize = 64 << 10;
/// A request waits no longer for the file than this; a file system that hangs holds up one thread and no later request.
const PATIENCE: Duration = Duration::from_millis(200);

/// The file, and what was sent of it last.
#[derive(Clone, Debug)]
pub struct TokenFile {
    path: PathBuf,
    state: Arc<Mutex<TokenState>>,
}

#[derive(Debug)]
struct TokenState {
    sent: HeaderValue,
    /// A reading that has not returned yet.
    late: Option<Receiver<Result<HeaderValue, String>>>,
}

impl TokenFile {
    /// Waits for the file.
    ///
    /// # Errors
    /// When the file cannot be read or holds no token; the text names it.
    pub fn open(path: PathBuf) -> Result<Self, String> {
        let sent = read(&path).map_err(|problem| format!("token file {}: {problem}", path.display()))?;
        Ok(Self { path, state: Arc::new(Mutex::new(TokenState { sent, late: None })) })
    }

    /// What `Authorization` says now. While the file is away or unusable, what it held before counts, as in kubectl.
    pub fn header(&self) -> HeaderValue {
        let mut state = self.state();
        if let Some(header) = self.look(&mut state) {
            state.sent = header;
        }
        state.sent.clone()
    }

    /// Whether the file holds another token than was sent last.
    pub(crate) fn is_renewed(&self) -> bool {
        let mut state = self.state();
        self.look(&mut state).is_some_and(|header| header != state.sent)
    }

    /// What the file holds, if it says so in time.
    fn look(&self, state: &mut TokenState) -> Option<HeaderValue> {
        let (reading, patience) = match state.late.take() {
            Some(late) => (late, Duration::ZERO),
            None => (self.begin()?, PATIENCE),
        };
        match reading.recv_timeout(patience) {
            Ok(read) => read.ok(),
            Err(RecvTimeoutError::Timeout) => {
                state.late = Some(reading);
                None
            }
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }

    fn begin(&self) -> Option<Receiver<Result<HeaderValue, String>>> {
        let (tell, told) = mpsc::channel();
        let path = self.path.clone();
        let reading = move || drop(tell.send(read(&path)));
        thread::Builder::new().name("token".to_owned()).spawn(reading).ok()?;
        Some(told)
    }

    fn state(&self) -> MutexGuard<'_, TokenState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read(path: &Path) -> Result<HeaderValue, String> {
    let text = config_file::text(path, MAX_BYTES).map_err(|fault| fault.to_string())?;
    let token = text.trim();
    if token.is_empty() {
        return Err("no token in it".to_owned());
    }
    let mut header = HeaderValue::try_from(format!("Bearer {token}"))
        .map_err(|_| "more than one line, or characters that are invalid in a token".to_owned())?;
    header.set_sensitive(true);
    Ok(header)
}

#[cfg(test)]
mod tests {
    use std::fs;

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
