//! Work of known shape for tests and benchmarks: `load [--cgroup DIR] KIND [ARGUMENTS]`.

use std::io::{Read, Write};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};
use std::{env, fs, hint, io, process, thread};

use rustix::time::{ClockId, clock_gettime};

const USAGE: &str = "usage: load [--cgroup DIR] KIND
  spin SECONDS [THREADS]            busy without ever sleeping; 0 seconds: until killed
  burn US                           busy until it has used this much CPU time, however long a full machine makes it wait
  thread SECONDS                    a thread with a name of its own is busy while its process waits
  sleepers SECONDS WORK_US SLEEP_US busy for WORK_US, asleep for SLEEP_US, and so on
  storm SECONDS WORK_US [JOBS]      one process of WORK_US after another, JOBS at a time
  idle SECONDS PROCESSES            that many processes asleep
  napping SECONDS PROCESSES WORK_US SLEEP_US
                                    that many processes, each mostly asleep and now and then busy for WORK_US
  pingpong ROUNDS [DIR]             two processes pass a byte to and fro, the other one in the cgroup DIR if given;
                                    prints nanoseconds per switch";

fn main() -> ExitCode {
    let mut arguments: Vec<String> = env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "--cgroup") && arguments.len() > 1 {
        let procs = format!("{}/cgroup.procs", arguments[1]);
        if let Err(error) = fs::write(&procs, process::id().to_string()) {
            eprintln!("{procs}: {error}");
            return ExitCode::FAILURE;
        }
        arguments.drain(..2);
    }
    let kind = arguments.first().cloned().unwrap_or_default();
    let other = (kind == "pingpong" && arguments.len() > 2).then(|| arguments.remove(2));
    let number = |at: usize, default: u64| arguments.get(at).map_or(Some(default), |text| text.parse().ok());
    let (Some(first), Some(second), Some(third), Some(fourth)) =
        (number(1, 0), number(2, 0), number(3, 0), number(4, 0))
    else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let seconds = Duration::from_secs(if first == 0 { 1 << 30 } else { first });
    let outcome = match kind.as_str() {
        "spin" => spin(seconds, second.max(1)),
        "thread" => thread::Builder::new()
            .name("CPU 0/KVM".to_owned())
            .spawn(move || burn(seconds))
            .and_then(|thread| thread.join().unwrap_or(Ok(()))),
        "burn" => {
            use_up(Duration::from_micros(first));
            Ok(())
        }
        "sleepers" => sleepers(seconds, Duration::from_micros(second), Duration::from_micros(third)),
        "storm" => storm(seconds, second, third.max(1)),
        "idle" => idle(seconds, second),
        "sleep" => sleep(seconds),
        "napping" => napping(seconds, second, third, fourth),
        "nap" => nap(seconds, second, third),
        "pingpong" => pingpong(first, other.as_deref()),
        "pong" => pong(),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("load {kind}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn burn(time: Duration) -> io::Result<()> {
    let end = Instant::now() + time;
    while Instant::now() < end {
        hint::spin_loop();
    }
    Ok(())
}

/// Until the thread has used this much CPU time.
fn use_up(cpu: Duration) {
    let used = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::try_from(time).unwrap_or_default()
    };
    let end = used() + cpu;
    while used() < end {
        hint::spin_loop();
    }
}

fn spin(time: Duration, threads: u64) -> io::Result<()> {
    let others: Vec<_> = (1..threads).map(|_| thread::spawn(move || burn(time))).collect();
    burn(time)?;
    for other in others {
        let _ = other.join();
    }
    Ok(())
}

fn sleepers(time: Duration, work: Duration, rest: Duration) -> io::Result<()> {
    let end = Instant::now() + time;
    while Instant::now() < end {
        burn(work)?;
        thread::sleep(rest);
    }
    Ok(())
}

fn storm(time: Duration, work_us: u64, jobs: u64) -> io::Result<()> {
    let end = Instant::now() + time;
    let program = env::current_exe()?;
    let run = move || -> io::Result<()> {
        while Instant::now() < end {
            Command::new(&program).args(["burn", &work_us.to_string()]).status()?;
        }
        Ok(())
    };
    let others: Vec<_> = (1..jobs).map(|_| thread::spawn(run.clone())).collect();
    run()?;
    for other in others {
        let _ = other.join();
    }
    Ok(())
}

fn idle(time: Duration, processes: u64) -> io::Result<()> {
    let program = env::current_exe()?;
    let seconds = time.as_secs().to_string();
    let mut children = Vec::new();
    for _ in 0..processes {
        children.push(Command::new(&program).args(["sleep", &seconds]).spawn()?);
    }
    println!("ready");
    thread::sleep(time);
    for mut child in children {
        child.wait()?;
    }
    Ok(())
}

/// Ends a while after its parent, so that killing `idle` leaves nothing behind; for as long as a test takes it does not
/// run at all.
fn sleep(time: Duration) -> io::Result<()> {
    let end = Instant::now() + time;
    let parent = std::os::unix::process::parent_id();
    while Instant::now() < end && std::os::unix::process::parent_id() == parent {
        thread::sleep(Duration::from_secs(60).min(end - Instant::now()));
    }
    Ok(())
}

/// This process is one of them.
fn napping(time: Duration, processes: u64, work_us: u64, sleep_us: u64) -> io::Result<()> {
    let program = env::current_exe()?;
    let arguments = ["nap".to_owned(), time.as_secs().to_string(), work_us.to_string(), sleep_us.to_string()];
    let children = (1..processes).map(|_| Command::new(&program).args(&arguments).spawn());
    let children: Vec<_> = children.collect::<io::Result<_>>()?;
    nap(time, work_us, sleep_us)?;
    for mut child in children {
        child.wait()?;
    }
    Ok(())
}

/// Ends with its parent, as `sleep` does.
fn nap(time: Duration, work_us: u64, sleep_us: u64) -> io::Result<()> {
    let end = Instant::now() + time;
    let parent = std::os::unix::process::parent_id();
    let rest = Duration::from_micros(sleep_us);
    // So that those that began together do not wake together.
    thread::sleep(Duration::from_micros(u64::from(process::id()) * 7919 % sleep_us.max(1)));
    while Instant::now() < end && std::os::unix::process::parent_id() == parent {
        burn(Duration::from_micros(work_us))?;
        thread::sleep(rest);
    }
    Ok(())
}

fn pingpong(rounds: u64, cgroup: Option<&str>) -> io::Result<()> {
    let place = cgroup.iter().flat_map(|dir| ["--cgroup", dir]);
    let mut other = Command::new(env::current_exe()?)
        .args(place)
        .arg("pong")
        .stdin(process::Stdio::piped())
        .stdout(process::Stdio::piped())
        .spawn()?;
    let (Some(mut to), Some(mut from)) = (other.stdin.take(), other.stdout.take()) else {
        return Err(io::Error::other("no pipes"));
    };
    let mut byte = [0];
    let mut exchange = |rounds: u64| -> io::Result<Duration> {
        let start = Instant::now();
        for _ in 0..rounds {
            to.write_all(&byte)?;
            from.read_exact(&mut byte)?;
        }
        Ok(start.elapsed())
    };
    exchange(rounds / 10)?;
    let taken = exchange(rounds)?;
    println!("{}", taken.as_nanos() / u128::from(2 * rounds.max(1)));
    drop(to);
    other.wait()?;
    Ok(())
}

fn pong() -> io::Result<()> {
    let (mut input, mut output) =
        (fs::File::open("/dev/stdin")?, fs::OpenOptions::new().write(true).open("/dev/stdout")?);
    let mut byte = [0];
    while input.read(&mut byte)? == 1 {
        output.write_all(&byte)?;
    }
    Ok(())
}
