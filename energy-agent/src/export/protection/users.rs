//! Basic authentication: user names and bcrypt hashes into whether a request may pass. A check takes 50 ms and more of
//! CPU by design; so one is made at a time, off the threads that serve and measure, and a good outcome is remembered.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result};
use axum::http::HeaderValue;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bcrypt::HashParts;
use ring::hmac;
use ring::rand::SystemRandom;
use tokio::sync::Semaphore;

/// Proven credentials that are remembered; forgotten all at once when there are more.
const REMEMBERED: usize = 128;
/// At this cost a check takes some 15 seconds.
const MAX_COST: u32 = 18;
/// Whose turn it is to be checked. The permit goes with the check: a client that leaves does not make room for a second one.
static TURN: Semaphore = Semaphore::const_new(1);

/// Who may read, and who has proven to be one of them.
#[derive(Debug)]
pub struct Users {
    hashes: BTreeMap<String, String>,
    /// New with each value: nobody outside can tell which tags are near to one that is remembered.
    key: hmac::Key,
    /// Tags of credentials that passed.
    proven: Mutex<HashSet<Vec<u8>>>,
}

impl Users {
    /// # Errors
    /// When a hash is none of bcrypt's or too costly, or the system gives no random bytes.
    pub fn new(hashes: BTreeMap<String, String>) -> Result<Self, String> {
        for (user, hash) in &hashes {
            let problem = match hash.parse::<HashParts>() {
                Ok(parts) if parts.get_cost() <= MAX_COST => continue,
                Ok(parts) => {
                    format!("cost {} is above {MAX_COST}, a check would take half a minute and more", parts.get_cost())
                }
                Err(error) => format!("{error}; make one by: htpasswd -nBC 10 {user}"),
            };
            return Err(format!("basic_auth_users: {user:?}: no bcrypt hash that can be used: {problem}"));
        }
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new())
            .map_err(|_| "basic_auth_users: the system gives no random bytes".to_owned())?;
        Ok(Self { hashes, key, proven: Mutex::default() })
    }

    #[must_use]
    pub fn count(&self) -> usize {
        self.hashes.len()
    }

    /// Whether a request with this header may pass. A user that does not exist costs as much time as one of those that do.
    pub async fn admit(&self, authorization: Option<&HeaderValue>) -> bool {
        let Some((user, password)) = authorization.and_then(credentials) else { return false };
        let Some(hash) = self.hashes.get(&user).or_else(|| self.stand_in(&user)) else { return false };
        let known = self.hashes.contains_key(&user);
        let tag = self.tag(&[user.as_bytes(), hash.as_bytes(), &password]);
        if known && self.proven().contains(&tag) {
            return true;
        }
        let hash = hash.clone();
        let matches = match proves(password, hash).await {
            Ok(matches) => matches,
            Err(error) => {
                tracing::error!(error = format!("{error:#}"), "password not checked");
                false
            }
        };
        if known && matches {
            let mut proven = self.proven();
            if proven.len() >= REMEMBERED {
                proven.clear();
            }
            proven.insert(tag);
        }
        known && matches
    }

    /// The hash that an unknown user's password is compared with, always the same for a name. All are in use, so that
    /// costs that differ from user to user tell nothing.
    fn stand_in(&self, user: &str) -> Option<&String> {
        let place = self
            .tag(&[user.as_bytes()])
            .iter()
            .fold(0, |sum, byte| (sum * 256 + usize::from(*byte)) % self.count().max(1));
        self.hashes.values().nth(place)
    }

    /// Different for different parts, and as good as random without the key.
    fn tag(&self, parts: &[&[u8]]) -> Vec<u8> {
        let mut context = hmac::Context::with_key(&self.key);
        for part in parts {
            context.update(&part.len().to_le_bytes());
            context.update(part);
        }
        context.sign().as_ref().to_vec()
    }

    fn proven(&self) -> std::sync::MutexGuard<'_, HashSet<Vec<u8>>> {
        self.proven.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One bcrypt comparison, when its turn has come. As everywhere with bcrypt, 72 bytes of a password count.
async fn proves(password: Vec<u8>, hash: String) -> Result<bool> {
    let permit = TURN.acquire().await.context("waiting for the turn")?;
    let check = tokio::task::spawn_blocking(move || {
        let matches = bcrypt::verify(password, &hash);
        drop(permit);
        matches
    });
    check.await.context("the check ended early")?.context("comparing with a bcrypt hash")
}

/// <https://www.rfc-editor.org/rfc/rfc7617#section-2>
fn credentials(header: &HeaderValue) -> Option<(String, Vec<u8>)> {
    let (scheme, encoded) = header.as_bytes().split_at_checked("Basic ".len())?;
    if !scheme.eq_ignore_ascii_case(b"Basic ") {
        return None;
    }
    let decoded = STANDARD.decode(encoded.trim_ascii()).ok()?;
    let colon = decoded.iter().position(|byte| *byte == b':')?;
    let user = String::from_utf8(decoded[..colon].to_vec()).ok()?;
    Some((user, decoded[colon + 1..].to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// libxcrypt's, of the password `s3cret:`.
    const HASH: &str = "$2y$04$abcdefghijklmnopqrstuuGNMgpuepsYegrrerinIHLQTAX/MtE9a";

    fn header(text: &str) -> HeaderValue {
        HeaderValue::from_str(&format!("Basic {}", STANDARD.encode(text))).unwrap()
    }

    fn users() -> Users {
        Users::new(BTreeMap::from([("ada".to_owned(), HASH.to_owned())])).unwrap()
    }

    #[test]
    fn credentials_are_split_at_the_first_colon() {
        assert_eq!(credentials(&header("ada:s3cret:")), Some(("ada".to_owned(), b"s3cret:".to_vec())));
        assert_eq!(credentials(&HeaderValue::from_static("bAsIc OjE=")), Some((String::new(), b"1".to_vec())));
        for not in ["", "Basic", "Basic ", "Basic YQ==", "Basic ada:s3cret", "Bearer YTox", "Basic YTox YTox"] {
            assert_eq!(credentials(&HeaderValue::from_static(not)), None, "{not:?}");
        }
    }

    #[tokio::test]
    async fn only_the_right_password_of_a_user_passes_and_is_remembered() {
        let users = users();
        for wrong in ["ada:s3cret", "ada:", ":s3cret:", "bob:s3cret:"] {
            assert!(!users.admit(Some(&header(wrong))).await, "{wrong}");
        }
        assert!(!users.admit(None).await);
        assert!(users.proven().is_empty());
        for _ in 0..2 {
            assert!(users.admit(Some(&header("ada:s3cret:"))).await);
        }
        assert_eq!(users.proven().len(), 1);
        assert!(!users.admit(Some(&header("bob:s3cret:"))).await);
    }

    #[test]
    fn an_unknown_user_is_compared_with_each_of_the_hashes_in_use() {
        let hashes =
            ["a", "b", "c"].map(|user| (user.to_owned(), HASH.replacen("$04$", "$05$", usize::from(user == "b"))));
        let users = Users::new(BTreeMap::from(hashes)).unwrap();
        let costly = (0..1000).filter(|i| users.stand_in(&format!("user-{i}")).unwrap().contains("$05$")).count();
        assert!((200..500).contains(&costly), "{costly} of 1000");
        assert_eq!(users.stand_in("x"), users.stand_in("x"));
    }

    #[test]
    fn what_is_no_hash_is_refused_with_the_user_and_without_the_hash() {
        let refused = |hash: &str| Users::new(BTreeMap::from([("ada".to_owned(), hash.to_owned())])).unwrap_err();
        let problem = refused("s3cret");
        assert!(
            problem.contains("\"ada\"") && problem.contains("htpasswd") && !problem.contains("s3cret"),
            "{problem}"
        );
        assert!(refused(&HASH.replacen("$04$", "$19$", 1)).contains("cost 19 is above 18"));
    }
}
