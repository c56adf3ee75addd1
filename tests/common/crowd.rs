//! Hostile clients, many at once: some say nothing, some read nothing, some guess passwords. Each comes again as soon as its
//! connection is closed.

#![allow(dead_code, reason = "each program uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test panics")]

use std::io::{ErrorKind, Read, Result, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A connection, with its socket.
pub trait Stream: Read + Write + Send {
    fn socket(&self) -> &TcpStream;
}

impl Stream for TcpStream {
    fn socket(&self) -> &TcpStream {
        self
    }
}

/// Makes a connection that can be asked on, TLS and all.
pub type Connect = Arc<dyn Fn() -> Result<Box<dyn Stream>> + Send + Sync>;

/// What the clients have seen.
#[derive(Debug, Default)]
pub struct Seen {
    pub connected: AtomicU64,
    /// Closed by the server.
    pub closed: AtomicU64,
    /// Guesses, those answered by a 401, and those by anything else.
    pub guessed: AtomicU64,
    pub refused: AtomicU64,
    pub other: AtomicU64,
}

/// They go on until this is dropped.
pub struct Crowd {
    pub seen: Arc<Seen>,
    ended: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// Connections that one thread looks after.
const PER_THREAD: usize = 250;
/// Between two looks at all of them.
const PAUSE: Duration = Duration::from_millis(50);

impl Crowd {
    pub fn new() -> Self {
        Self { seen: Arc::default(), ended: Arc::default(), threads: Vec::new() }
    }

    /// `count` clients that do what `begin` does on a connection and then nothing.
    pub fn idle<C: Stream + 'static>(
        &mut self,
        count: usize,
        begin: impl Fn() -> Result<C> + Send + Sync + 'static,
    ) -> &mut Self {
        let begin = Arc::new(begin);
        let mut left = count;
        while left > 0 {
            let mut places: Vec<Option<C>> = (0..left.min(PER_THREAD)).map(|_| None).collect();
            left -= places.len();
            let begin = Arc::clone(&begin);
            self.thread(move |seen, ended| {
                for place in &mut places {
                    if ended.load(Ordering::Relaxed) {
                        return;
                    }
                    if place.as_ref().is_some_and(|stream| is_closed(stream.socket())) {
                        seen.closed.fetch_add(1, Ordering::Relaxed);
                        *place = None;
                    }
                    if place.is_none()
                        && let Ok(stream) = begin()
                        && stream.socket().set_nonblocking(true).is_ok()
                    {
                        seen.connected.fetch_add(1, Ordering::Relaxed);
                        *place = Some(stream);
                    }
                }
                thread::sleep(PAUSE);
            });
        }
        self
    }

    /// `count` clients that ask for a page and do not read it. They begin one after another, so that they ask for the pages of
    /// many ticks.
    pub fn slow(&mut self, count: usize, connect: &Connect, headers: &str) -> &mut Self {
        const THREADS: usize = 4;
        for _ in 0..THREADS {
            let mut places: Vec<Option<Box<dyn Stream>>> = (0..count / THREADS).map(|_| None).collect();
            let (connect, headers) = (Arc::clone(connect), headers.to_owned());
            let mut number = 0_usize;
            self.thread(move |seen, ended| {
                for place in &mut places {
                    if ended.load(Ordering::Relaxed) {
                        return;
                    }
                    if place.as_ref().is_some_and(|stream| is_broken(stream.socket())) {
                        seen.closed.fetch_add(1, Ordering::Relaxed);
                        *place = None;
                    }
                    if place.is_none()
                        && let Ok(mut stream) = connect()
                    {
                        number += 1;
                        let accept = ["text/plain", "application/openmetrics-text"][number % 2];
                        let coding = if number.is_multiple_of(4) { "Accept-Encoding: gzip\r\n" } else { "" };
                        let request =
                            format!("GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\n{coding}{headers}\r\n");
                        if stream.write_all(request.as_bytes()).is_ok() && stream.socket().set_nonblocking(true).is_ok()
                        {
                            seen.connected.fetch_add(1, Ordering::Relaxed);
                            *place = Some(stream);
                        }
                        thread::sleep(PAUSE);
                    }
                }
                thread::sleep(PAUSE);
            });
        }
        self
    }

    /// `count` clients that try one password after another for a user, whose header line is what `header` makes of each. A
    /// third stays on its connection, a third comes anew each time, and a third does not wait for longer than a second.
    pub fn guessers(
        &mut self,
        count: usize,
        connect: &Connect,
        header: impl Fn(&str) -> String + Send + Sync + 'static,
    ) -> &mut Self {
        let header = Arc::new(header);
        for guesser in 0..count {
            let (connect, header) = (Arc::clone(connect), Arc::clone(&header));
            let (mut kept, mut number) = (None, 0_u64);
            self.thread(move |seen, _| {
                number += 1;
                let mut guess = || -> Result<bool> {
                    let mut stream = match kept.take() {
                        Some(stream) => stream,
                        None => connect()?,
                    };
                    let patience = if guesser % 3 == 2 { Duration::from_secs(1) } else { Duration::from_secs(60) };
                    stream.socket().set_read_timeout(Some(patience))?;
                    let header = header(&format!("guess-{guesser}-{number}"));
                    write!(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\n{header}\r\n")?;
                    seen.guessed.fetch_add(1, Ordering::Relaxed);
                    let (mut answer, mut part) = (Vec::new(), [0; 1024]);
                    while !answer.ends_with(b"401 unauthorized\n") {
                        match stream.read(&mut part)? {
                            0 => return Err(ErrorKind::UnexpectedEof.into()),
                            length => answer.extend_from_slice(&part[..length]),
                        }
                        if answer.len() >= 12 && !answer.starts_with(b"HTTP/1.1 401") {
                            return Ok(false);
                        }
                    }
                    if guesser % 3 == 0 {
                        kept = Some(stream);
                    }
                    Ok(true)
                };
                match guess() {
                    Ok(is_refused) => {
                        let count = if is_refused { &seen.refused } else { &seen.other };
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(_) => {
                        seen.closed.fetch_add(1, Ordering::Relaxed);
                        thread::sleep(PAUSE);
                    }
                }
            });
        }
        self
    }

    fn thread(&mut self, mut round: impl FnMut(&Seen, &AtomicBool) + Send + 'static) {
        let (seen, ended) = (Arc::clone(&self.seen), Arc::clone(&self.ended));
        let rounds = move || {
            // They stand for other machines, which take no CPU from the agent. What is not allowed only makes it harder.
            let _ = rustix::process::nice(19);
            while !ended.load(Ordering::Relaxed) {
                round(&seen, &ended);
            }
        };
        self.threads.push(thread::Builder::new().stack_size(256 * 1024).spawn(rounds).unwrap());
    }
}

impl Drop for Crowd {
    /// A thread that waits for an answer ends by itself when the server does.
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

/// Whether the server has closed it; what it has sent is thrown away.
fn is_closed(mut socket: &TcpStream) -> bool {
    let mut thrown_away = [0; 1024];
    loop {
        match socket.read(&mut thrown_away) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != ErrorKind::WouldBlock,
        }
    }
}

/// Whether the connection is reset; nothing is read.
fn is_broken(socket: &TcpStream) -> bool {
    match socket.peek(&mut [0]) {
        Ok(0) => true,
        Ok(_) => false,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

/// How many times as long as without a crowd a probe may take beside one. A probe alone takes a few milliseconds where the time
/// of the kubelet is five seconds.
const TIMES: u32 = 1000;

/// What a probe may take beside a crowd, measured before it comes: the kubelet's time, and more where the machine is slow.
pub fn allowance(connect: &Connect, path: &str, headers: &str, kubelet: Duration) -> Result<Duration> {
    let alone = |_| Ok(probe(connect, path, headers, Duration::from_secs(60))?.0);
    let mut alone = (0..11).map(alone).collect::<Result<Vec<_>>>()?;
    alone.sort_unstable();
    Ok(kubelet.max(alone[5] * TIMES))
}

/// What a client with a time limit waited for the status of a page; an error where it was not answered.
pub fn probe(connect: &Connect, path: &str, headers: &str, limit: Duration) -> Result<(Duration, String)> {
    let began = Instant::now();
    let mut stream = connect()?;
    let left = limit.checked_sub(began.elapsed()).filter(|left| !left.is_zero()).ok_or(ErrorKind::TimedOut)?;
    stream.socket().set_read_timeout(Some(left))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n")?;
    let mut answer = [0; 4096];
    let length = stream.read(&mut answer)?;
    let line = String::from_utf8_lossy(&answer[..length]).lines().next().unwrap_or_default().to_owned();
    Ok((began.elapsed(), line))
}
