//! Basic authentication: user names and bcrypt hashes into whether a request may pass. A check takes 50 ms and more of
//! CPU by design; so few are made at a time, off the threads that serve and measure, and outcomes are remembered.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use energy_model::advice::Advice;

use anyhow::{Context as _, Result};
use axum::http::HeaderValue;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bcrypt::HashParts;
use ring::hmac;
use ring::rand::SystemRandom;

use super::turns::{HeldBack, Lane, TURNS, Turn};
use crate::connections::ClientStanding;

/// Proven credentials that are remembered; forgotten all at once when there are more.
const REMEMBERED: usize = 128;
/// Wrong ones that are remembered, in the same way.
const WRONG_REMEMBERED: usize = 4096;
/// At this cost a check takes some 15 seconds.
const MAX_COST: u32 = 18;

/// Who may read, and who has proven to be one of them.
#[derive(Debug)]
pub struct Users {
    hashes: BTreeMap<String, String>,
    memory: Arc<OutcomeMemory>,
}

/// What became of credentials. It outlives a new web configuration: each outcome is about one hash.
#[derive(Debug)]
struct OutcomeMemory {
    /// New with each start: no client can find out which tags are near to one that is remembered.
    key: hmac::Key,
    outcomes: Mutex<Outcomes>,
}

#[derive(Debug, Default)]
struct Outcomes {
    /// Tags of user, hash and password that passed.
    proven: HashSet<Tag>,
    /// Tags of user and password that did not, with that of the hash they were compared with.
    wrong: HashMap<Tag, Tag>,
}

type Tag = Vec<u8>;

/// Whether a request may pass.
#[derive(Debug)]
pub enum Admission {
    Passes,
    /// It named no user.
    Unnamed,
    /// Its answer has to wait, as long as that says.
    Wrong(HeldBack),
}

impl Users {
    /// # Errors
    /// When a hash is none of bcrypt's or too costly, or the system gives no random bytes.
    pub fn new(hashes: BTreeMap<String, String>) -> Result<Self, Advice> {
        for (user, hash) in &hashes {
            let problem = match hash.parse::<HashParts>() {
                Ok(parts) if parts.get_cost() <= MAX_COST => continue,
                Ok(parts) => Advice::from(format!(
                    "cost {} is above {MAX_COST}, a check would take half a minute or more",
                    parts.get_cost()
                )),
                Err(error) => Advice::new(error.to_string(), format!("make one with: htpasswd -nBC 10 {user}")),
            };
            return Err(problem.of(format_args!("basic_auth_users: {user:?}: no usable bcrypt hash")));
        }
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new())
            .map_err(|_| Advice::from("basic_auth_users: the system gives no random bytes"))?;
        Ok(Self { hashes, memory: Arc::new(OutcomeMemory { key, outcomes: Mutex::default() }) })
    }

    /// Remembers what was known of the version before: a user whose hash is the same need not be checked again.
    pub fn remember(&mut self, before: &Self) {
        self.memory = Arc::clone(&before.memory);
    }

    #[must_use]
    pub fn count(&self) -> usize {
        self.hashes.len()
    }

    /// Whether a request with this header may pass. A user that does not exist costs as much time as one of those that do.
    pub async fn admit(&self, authorization: Option<&HeaderValue>, standing: ClientStanding) -> Admission {
        let Some((user, password)) = authorization.and_then(credentials) else { return Admission::Unnamed };
        let Some(hash) = self.hashes.get(&user).or_else(|| self.stand_in(&user)) else { return Admission::Unnamed };
        let known = self.hashes.contains_key(&user);
        let right = self.tag(&[user.as_bytes(), hash.as_bytes(), &password]);
        let (given, compared) = (self.tag(&[user.as_bytes(), &password]), self.tag(&[hash.as_bytes()]));
        let outcome = || {
            let outcomes = self.outcomes();
            match outcomes.wrong.get(&given) {
                _ if outcomes.proven.contains(&right) => Ok(true),
                Some(wrong) if *wrong == compared => Ok(false),
                // Wrong for a hash that the user had before.
                Some(_) => Err(Lane::Failed),
                None => Err(match standing {
                    ClientStanding::Passed => Lane::Proven,
                    ClientStanding::New => Lane::New,
                    ClientStanding::Failed => Lane::Failed,
                }),
            }
        };
        let passes = match outcome() {
            Ok(known) => known,
            Err(lane) => {
                let turn = TURNS.turn(lane, &compared).await;
                match outcome() {
                    // Another client came with the same meanwhile.
                    Ok(known) => known,
                    Err(_) => {
                        let matches = proves(password, hash.clone(), turn).await;
                        self.keep(known, matches, right, given, compared)
                    }
                }
            }
        };
        if passes { Admission::Passes } else { Admission::Wrong(TURNS.hold_back()) }
    }

    /// Remembers an outcome, and says whether it lets the request pass.
    fn keep(&self, known: bool, matches: Result<bool>, right: Tag, given: Tag, compared: Tag) -> bool {
        let matches = match matches {
            Ok(matches) => matches,
            Err(error) => {
                tracing::error!(error = format!("{error:#}"), "password not checked");
                return false;
            }
        };
        let mut outcomes = self.outcomes();
        if known && matches {
            if outcomes.proven.len() >= REMEMBERED {
                outcomes.proven.clear();
            }
            outcomes.proven.insert(right);
        } else {
            if outcomes.wrong.len() >= WRONG_REMEMBERED {
                outcomes.wrong.clear();
            }
            outcomes.wrong.insert(given, compared);
        }
        known && matches
    }

    /// The hash that an unknown user's password is compared with, always the same for a name. All are in use, so that
    /// costs that differ from user to user reveal nothing.
    fn stand_in(&self, user: &str) -> Option<&String> {
        let place = self
            .tag(&[user.as_bytes()])
            .iter()
            .fold(0, |sum, byte| (sum * 256 + usize::from(*byte)) % self.count().max(1));
        self.hashes.values().nth(place)
    }

    /// Different for different parts, and as good as random without the key.
    fn tag(&self, parts: &[&[u8]]) -> Vec<u8> {
        let mut context = hmac::Context::with_key(&self.memory.key);
        for part in parts {
            context.update(&part.len().to_le_bytes());
            context.update(part);
        }
        context.sign().as_ref().to_vec()
    }

    fn outcomes(&self) -> MutexGuard<'_, Outcomes> {
        self.memory.outcomes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One bcrypt comparison. The turn goes with it: a client that leaves does not make room for a second one. As everywhere
/// with bcrypt, 72 bytes of a password count.
async fn proves(password: Vec<u8>, hash: String, turn: Option<Turn>) -> Result<bool> {
    let turn = turn.context("the check was not started in time")?;
    let check = tokio::task::spawn_blocking(move || {
        let began = Instant::now();
        let matches = bcrypt::verify(password, &hash);
        TURNS.took(began.elapsed());
        drop(turn);
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

    async fn passes(users: &Users, text: &str) -> bool {
        matches!(users.admit(Some(&header(text)), ClientStanding::New).await, Admission::Passes)
    }

    #[tokio::test]
    async fn only_the_right_password_of_a_user_passes_and_outcomes_are_remembered() {
        let users = users();
        for wrong in ["ada:s3cret", "ada:", ":s3cret:", "bob:s3cret:"] {
            assert!(!passes(&users, wrong).await, "{wrong}");
        }
        assert!(matches!(users.admit(None, ClientStanding::New).await, Admission::Unnamed));
        assert!(users.outcomes().proven.is_empty());
        for _ in 0..2 {
            assert!(passes(&users, "ada:s3cret:").await);
        }
        assert!(!passes(&users, "bob:s3cret:").await);
        let outcomes = users.outcomes();
        assert_eq!((outcomes.proven.len(), outcomes.wrong.len()), (1, 4));
    }

    #[tokio::test]
    async fn what_was_proven_counts_after_a_change_as_long_as_the_hash_is_the_same() {
        let before = users();
        assert!(passes(&before, "ada:s3cret:").await && !passes(&before, "ada:guess").await);
        let next = |hash: &str| {
            let mut users = Users::new(BTreeMap::from([("ada".to_owned(), hash.to_owned())])).unwrap();
            users.remember(&before);
            users
        };
        assert!(passes(&next(HASH), "ada:s3cret:").await);
        let other = next("$2a$11$abcdefghijklmnopqrstuu/MuAeqovAjO5.o12ibA2PqzRzMqv9iu");
        assert!(!passes(&other, "ada:s3cret:").await, "proven for the hash before");
        assert!(passes(&other, "ada:other").await);
        assert_eq!(other.outcomes().wrong.len(), 2);
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
        let refused =
            |hash: &str| Users::new(BTreeMap::from([("ada".to_owned(), hash.to_owned())])).unwrap_err().to_string();
        let problem = refused("s3cret");
        assert!(
            problem.contains("\"ada\"") && problem.contains("htpasswd") && !problem.contains("s3cret"),
            "{problem}"
        );
        assert!(refused(&HASH.replacen("$04$", "$19$", 1)).contains("cost 19 is above 18"));
    }
}
