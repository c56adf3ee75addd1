//! Attacks the agent for a given time and says what held. Each attack works in rounds; what a round does follows from the
//! seed, the attack and the number of the round alone, so that a round that failed can be run again by itself.

mod agent;
mod churn;
pub mod clients;
mod disks;
mod garbage;
mod hangs;
mod kill;
mod machine;
mod node;
mod patience;
mod signals;
pub mod tally;

use std::env;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use clap::{Args, ValueEnum};
use fastrand::Rng;

use self::tally::Tally;
use crate::{cargo, checked, root};

#[derive(Args)]
pub struct Options {
    /// Only these attacks.
    #[arg(value_enum)]
    attacks: Vec<Attack>,
    /// How long; a round that has begun is finished, and each attack has one round at least.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The same in minutes.
    #[arg(long, conflicts_with = "seconds")]
    minutes: Option<u64>,
    /// The same seed gives the same actions; a new one each time when not given.
    #[arg(long)]
    seed: Option<u64>,
    /// The number of the first round.
    #[arg(long, default_value_t = 1)]
    round: u64,
    /// Attack the release build instead of the debug build, which is slower and stops at an arithmetic overflow.
    #[arg(long)]
    release: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Attack {
    /// kill -9 at any moment while clocks, limits and quotas are lowered.
    Kill,
    /// Pods and processes that come and go, with counters that are known to the microjoule.
    Churn,
    /// Random bytes, cut files and absurd values from the hardware, the driver and in the configuration.
    Garbage,
    /// Every signal, alone and in bursts, before and while something is lowered.
    Signals,
    /// A state folder that becomes full or read-only, and journals that are cut, changed, emptied or deleted.
    Disks,
    /// Files of the hardware and of the configuration that do not answer, and a driver that does not.
    Hangs,
    /// Thousands of clients that do nothing, do not read or guess passwords.
    Clients,
}

impl Attack {
    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// One round; an error is a promise that was broken.
    fn round(self, place: &Place, rng: &mut Rng) -> Result<Tally> {
        match self {
            Self::Kill => kill::round(place, rng),
            Self::Churn => churn::round(place, rng),
            Self::Garbage => garbage::round(place, rng),
            Self::Signals => signals::round(place, rng),
            Self::Disks => disks::round(place, rng),
            Self::Hangs => hangs::round(place, rng),
            Self::Clients => clients::round(place, rng),
        }
    }
}

/// Where a round works, and with which programs.
pub struct Place {
    /// Of `target/`: the agent, the example `load` and the fake NVML library.
    pub programs: PathBuf,
    /// Empty at the start of the round.
    pub folder: PathBuf,
    /// How long an attack should last that has no end of its own.
    pub time: Duration,
}

/// An attack and what came of it so far.
struct Course {
    attack: Attack,
    rounds: u64,
    tally: Tally,
    /// The round that broke a promise, and which.
    broken: Option<(u64, String)>,
}

/// Attacks until the time is over; prints what was done and what held.
///
/// # Errors
/// When the programs do not build, or a promise was broken.
pub fn run(options: &Options) -> Result<()> {
    with_own_mounts()?;
    let programs = build(options.release)?;
    let seed = options.seed.unwrap_or_else(any_seed);
    let time = Duration::from_secs(options.minutes.map_or(options.seconds, |minutes| minutes * 60));
    println!("seed {seed}, {} s", time.as_secs());
    let attacks = if options.attacks.is_empty() { Attack::value_variants() } else { &options.attacks };
    let course = |&attack: &Attack| Course { attack, rounds: 0, tally: Tally::default(), broken: None };
    let mut courses: Vec<Course> = attacks.iter().map(course).collect();
    let end = Instant::now() + time;
    let time = (time / 5).clamp(Duration::from_secs(5), Duration::from_secs(120));
    let mut round = options.round;
    while round == options.round || Instant::now() < end && courses.iter().any(|course| course.broken.is_none()) {
        for course in courses.iter_mut().filter(|course| course.broken.is_none()) {
            if round == options.round || Instant::now() < end {
                course.step(&programs, time, seed, round)?;
            }
        }
        round += 1;
    }
    println!("\n{}", table(&courses));
    let again = if options.release { " --release" } else { "" };
    for (course, (round, what)) in courses.iter().filter_map(|course| Some((course, course.broken.as_ref()?))) {
        let name = course.attack.name();
        println!("{name}, round {round}: {what}");
        println!("again: cargo xtask chaos --seed {seed} --round {round} --seconds 1{again} {name}");
        println!("left for a look: {}\n", folder(course.attack).display());
    }
    let broken = courses.iter().filter(|course| course.broken.is_some()).count();
    ensure!(broken == 0, "{broken} of {} attacks broke a promise", courses.len());
    Ok(())
}

impl Course {
    fn step(&mut self, programs: &Path, time: Duration, seed: u64, round: u64) -> Result<()> {
        let place = Place { programs: programs.to_owned(), folder: folder(self.attack), time };
        let _ = fs::remove_dir_all(&place.folder);
        fs::create_dir_all(&place.folder).with_context(|| format!("making {}", place.folder.display()))?;
        let began = Instant::now();
        let (name, mut rng) = (self.attack.name(), numbers(seed, &self.attack.name(), round));
        let outcome = self.attack.round(&place, &mut rng);
        let took = began.elapsed().as_secs_f64();
        self.rounds += 1;
        match outcome {
            Ok(tally) => {
                println!("{name} {round}: {} ({took:.1} s)", tally.text());
                self.tally.merge(&tally);
            }
            Err(error) => {
                println!("{name} {round}: BROKEN ({took:.1} s): {error:#}");
                self.broken = Some((round, format!("{error:#}")));
            }
        }
        Ok(())
    }
}

/// Goes on in a mount namespace of its own, so that no mount outlives this command, whatever ends it.
fn with_own_mounts() -> Result<()> {
    const VARIABLE: &str = "CHAOS_ENERGY_AGENT_MOUNTS";
    if env::var_os(VARIABLE).is_some() {
        return Ok(());
    }
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--propagation=private"]).arg(env::current_exe()?).args(env::args_os().skip(1));
    Err(unshare.env(VARIABLE, "own").exec()).context("starting unshare, which needs root")
}

/// The numbers of a round.
fn numbers(seed: u64, attack: &str, round: u64) -> Rng {
    let name = attack.bytes().fold(0_u64, |sum, byte| sum.wrapping_mul(257).wrapping_add(u64::from(byte)));
    let mut of_attack = Rng::with_seed(seed ^ name);
    Rng::with_seed(of_attack.u64(..).wrapping_add(round))
}

fn folder(attack: Attack) -> PathBuf {
    root().join("target/chaos").join(attack.name())
}

fn any_seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_secs())
}

/// The debug build is the one of `cargo xtask test`, with the same features, so that nothing is compiled twice.
fn build(release: bool) -> Result<PathBuf> {
    println!("building in {}", if release { "release" } else { "debug" });
    let mut command = cargo();
    command.args(["build", "--locked", "--workspace", "--lib", "--bins", "--examples"]);
    if release {
        command.arg("--release");
    }
    checked(&mut command)?;
    Ok(root().join("target").join(if release { "release" } else { "debug" }))
}

fn table(courses: &[Course]) -> String {
    let mut lines = vec!["| attack | count | outcome |".to_owned(), "| --- | --- | --- |".to_owned()];
    for Course { attack, rounds, tally, broken } in courses {
        let outcome = if broken.is_some() { "BROKEN" } else { "held" };
        lines.push(format!("| {} | {rounds} rounds: {} | {outcome} |", attack.name(), tally.text()));
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_has_its_own_numbers_each_time() {
        let first = |attack, round| numbers(7, attack, round).u64(..);
        assert_eq!(first("kill", 1), first("kill", 1));
        assert_ne!(first("kill", 1), first("kill", 2));
        assert_ne!(first("kill", 1), first("churn", 1));
    }
}
