//! Whose password is checked next. A check takes 50 ms and more of CPU by design: there are few at a time, those who have
//! proven themselves come first and those who were wrong come last, each user has the same share of the turns, and a client
//! that has left is not checked at all.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use std::{iter, mem};

use tokio::sync::oneshot;

/// An answer to a wrong password waits no longer.
const LONGEST: Duration = Duration::from_secs(300);
/// At this length a queue is searched for clients that have left.
const TIDIED: usize = 1024;

/// All checks of this program: a new web configuration does not make room for more.
pub static TURNS: Turns = Turns::new();

/// Which check comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// On this connection a password was right before.
    Proven,
    New,
    /// On this connection, or anywhere before, this was wrong.
    Failed,
}

#[derive(Debug)]
pub struct Turns(Mutex<TurnsState>);

#[derive(Debug)]
struct TurnsState {
    running: usize,
    lanes: [Queues; 3],
    held_back: u32,
    /// About how long a check takes.
    check: Duration,
}

/// By the hash that is compared with, which is that of a user or, for one that does not exist, of any: who guesses the
/// password of one user does not hold up another.
#[derive(Debug, Default)]
struct Queues(VecDeque<(Vec<u8>, TurnQueue)>);

type TurnQueue = VecDeque<oneshot::Sender<Turn>>;

/// The right to make one check; the next one's turn comes when it is dropped.
#[derive(Debug)]
pub struct Turn(&'static Turns);

/// A wrong password whose answer waits.
#[derive(Debug)]
pub struct HeldBack {
    turns: &'static Turns,
    pub time: Duration,
}

impl Turns {
    const fn new() -> Self {
        let lanes = [const { Queues(VecDeque::new()) }; 3];
        Self(Mutex::new(TurnsState { running: 0, lanes, held_back: 0, check: Duration::from_millis(50) }))
    }

    /// Waits for the turn; `None` cannot be, since the queue lives as long as the program.
    pub async fn turn(&'static self, lane: Lane, hash: &[u8]) -> Option<Turn> {
        let turn = {
            let mut state = self.state();
            if state.running < at_once() {
                state.running += 1;
                return Some(Turn(self));
            }
            let (give, turn) = oneshot::channel();
            state.lanes[lane as usize].push(hash, give);
            turn
        };
        turn.await.ok()
    }

    /// The answer to a wrong password has to wait, so that clients that try one after the other spend most of their time
    /// waiting and keep the checks busy for half of the time at most.
    pub(crate) fn hold_back(&'static self) -> HeldBack {
        let mut state = self.state();
        state.held_back += 1;
        let waiting = state.lanes.iter().map(Queues::waiting).sum::<usize>();
        let many = state.held_back.saturating_add(u32::try_from(waiting).unwrap_or(u32::MAX));
        let time = state.check.saturating_mul(many).saturating_mul(2).min(LONGEST);
        HeldBack { turns: self, time }
    }

    /// A check took this long.
    pub fn took(&self, duration: Duration) {
        let mut state = self.state();
        state.check = (state.check * 3 + duration) / 4;
    }

    fn state(&self) -> MutexGuard<'_, TurnsState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queues {
    fn push(&mut self, hash: &[u8], waits: oneshot::Sender<Turn>) {
        let place = self.0.iter().position(|(of, _)| of == hash).unwrap_or_else(|| {
            self.0.push_back((hash.to_vec(), TurnQueue::new()));
            self.0.len() - 1
        });
        let queue = &mut self.0[place].1;
        if queue.len() >= TIDIED {
            queue.retain(|waits| !waits.is_closed());
        }
        queue.push_back(waits);
    }

    /// The one who has waited longest of the hash whose turn it is.
    fn pop(&mut self) -> Option<oneshot::Sender<Turn>> {
        while let Some((hash, mut queue)) = self.0.pop_front() {
            let next = iter::from_fn(|| queue.pop_front()).find(|waits| !waits.is_closed());
            if !queue.is_empty() {
                self.0.push_back((hash, queue));
            }
            if next.is_some() {
                return next;
            }
        }
        None
    }

    fn waiting(&self) -> usize {
        self.0.iter().flat_map(|(_, queue)| queue).filter(|waits| !waits.is_closed()).count()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.running -= 1;
        while let Some(next) = state.lanes.iter_mut().find_map(Queues::pop) {
            state.running += 1;
            match next.send(Turn(self.0)) {
                Ok(()) => break,
                // Its client has left. Dropping the turn would ask for the lock that is held here.
                Err(turn) => mem::forget(turn),
            }
            state.running -= 1;
        }
    }
}

impl Drop for HeldBack {
    fn drop(&mut self) {
        self.turns.state().held_back -= 1;
    }
}

/// Checks at a time: one for each eight CPUs, and at most four.
fn at_once() -> usize {
    static CPUS: OnceLock<usize> = OnceLock::new();
    let cpus = CPUS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from));
    (cpus / 8).clamp(1, 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_go_round_the_hashes_and_past_clients_that_have_left() {
        let mut queues = Queues::default();
        let mut clients: Vec<_> = ["a", "a", "a", "b", "b"]
            .map(|hash| {
                let (give, turn) = oneshot::channel();
                queues.push(hash.as_bytes(), give);
                Some(turn)
            })
            .into_iter()
            .collect();
        assert_eq!(queues.waiting(), 5);
        clients[0] = None;
        let mut order = Vec::new();
        while let Some(next) = queues.pop() {
            drop(next);
            let closed = |turn: &mut oneshot::Receiver<Turn>| {
                matches!(turn.try_recv(), Err(oneshot::error::TryRecvError::Closed))
            };
            let served = clients.iter_mut().position(|turn| turn.as_mut().is_some_and(closed)).unwrap();
            clients[served] = None;
            order.push(served);
        }
        assert_eq!(order, [1, 3, 2, 4], "a, b, a, b, each in the order of coming");
    }
}
