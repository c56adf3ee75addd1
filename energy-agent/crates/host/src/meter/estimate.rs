//! A model of CPU power for machines without a meter: threads x (idle watts + utilisation x (busy - idle watts)).
//!
//! The coefficients are those of Cloud Carbon Footprint (Apache-2.0, see `coefficients.json` for source and copyright):
//! averages over whole servers of one microarchitecture. They rank workloads of one machine, and are wrong by a factor
//! for any single machine; that is why the figures carry `source="estimate"`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use energy_files::config_file;
use energy_model::cpu::{Domain, DomainLoad};
use energy_model::json_fault::json_fault;
use energy_model::meter_state::{MeterName, MeterState};
use energy_model::printable::cut;
use energy_model::units::{Microjoules, floor_u64, nanos};
use energy_model::zone::{Source, Zone, ZoneEnergy, ZoneKind};
use serde::Deserialize;

use super::cpu::CpuModel;

const BUILT_IN: &str = include_str!("coefficients.json");

/// The format of `coefficients.json` and of `--meter.estimate-coefficients`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Coefficients {
    /// Used where no row matches.
    average: ThreadWatts,
    #[serde(default)]
    rows: Vec<CoefficientRow>,
    #[serde(default, rename = "source")]
    _source: String,
    #[serde(default, rename = "url")]
    _url: String,
    #[serde(default, rename = "licence")]
    _licence: String,
    #[serde(default, rename = "copyright")]
    _copyright: String,
    #[serde(default, rename = "note")]
    _note: String,
}

/// Power of one hardware thread, with nothing and with everything to do.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ThreadWatts {
    min_watts: f64,
    max_watts: f64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CoefficientRow {
    name: String,
    min_watts: f64,
    max_watts: f64,
    vendor: String,
    family: Option<u32>,
    models: Vec<u32>,
    /// First and last.
    steppings: Option<(u32, u32)>,
}

/// The estimate with the coefficients of this machine's processor.
#[derive(Debug)]
pub struct Estimate {
    /// Microwatts of a thread that has nothing to do.
    min_uw: u64,
    /// Microwatts that a thread adds when it is busy all the time.
    span_uw: u64,
    path: String,
    detail: String,
    sockets: Vec<Socket>,
}

#[derive(Debug)]
struct Socket {
    zone: Arc<Zone>,
    /// Below a microjoule, carried over so that the total is exact; 10^-15 J.
    rest: u128,
}

impl Estimate {
    /// Picks the coefficients for `cpu` from the built-in table, or from `file` instead.
    ///
    /// # Errors
    /// When `file` cannot be read or holds something else than coefficients; names the file and the value.
    pub fn open(cpu: &CpuModel, file: Option<&Path>) -> anyhow::Result<Self> {
        let (table, origin) = match file {
            Some(path) => {
                let text = config_file::text(path, config_file::MAX_BYTES);
                let text = text.with_context(|| format!("reading {}", path.display()))?;
                (
                    Coefficients::parse(&text).with_context(|| format!("reading {}", path.display()))?,
                    path.display().to_string(),
                )
            }
            None => (
                Coefficients::parse(BUILT_IN).context("reading the built-in coefficients")?,
                "built-in table".to_owned(),
            ),
        };
        let processor = if cpu.name.is_empty() { "unnamed processor" } else { &cpu.name };
        let row = table.rows.iter().find(|row| row.matches(cpu));
        let (name, watts, detail) = match row {
            Some(row) => {
                let watts = ThreadWatts { min_watts: row.min_watts, max_watts: row.max_watts };
                (row.name.as_str(), watts, format!("coefficients {} for {processor}", row.name))
            }
            None => ("average", table.average, format!("no coefficients for {processor}, using the average")),
        };
        let ThreadWatts { min_watts, max_watts } = watts;
        let min_uw = microwatts(min_watts);
        Ok(Self {
            min_uw,
            span_uw: microwatts(max_watts) - min_uw,
            path: format!("estimate/{name}"),
            detail: format!("{detail} ({origin}): {min_watts} W idle to {max_watts} W busy per thread"),
            sockets: Vec::new(),
        })
    }

    /// One package zone per socket. `loads` is parallel to `domains`; domains of one socket are added up.
    pub fn read(&mut self, elapsed: Duration, loads: &[DomainLoad], domains: &[Domain]) -> Vec<ZoneEnergy> {
        let mut sockets: Vec<(Option<u32>, u128)> = Vec::new();
        for (load, Domain { socket, .. }) in loads.iter().zip(domains).filter(|(load, _)| load.cpus > 0) {
            let time_ns = u128::from(load.cpus) * u128::from(nanos(elapsed));
            let busy_ns = u128::from(load.busy_ns).min(time_ns);
            let energy = u128::from(self.min_uw) * time_ns + u128::from(self.span_uw) * busy_ns;
            match sockets.iter_mut().find(|(known, _)| known == socket) {
                Some((_, sum)) => *sum += energy,
                None => sockets.push((*socket, energy)),
            }
        }
        sockets.into_iter().map(|(socket, energy)| self.socket(socket).charge(energy)).collect()
    }

    /// The power that the model gives one thread with nothing to do: the idle part of the estimate is this times the
    /// online CPUs, nothing to be learned; microwatts.
    #[must_use]
    pub(crate) fn idle_power_uw(&self) -> u64 {
        self.min_uw
    }

    #[must_use]
    pub fn state(&self) -> MeterState {
        MeterState::up(MeterName::Estimate, &*self.detail)
    }

    fn socket(&mut self, socket: Option<u32>) -> &mut Socket {
        let index = self.sockets.iter().position(|known| known.zone.socket == socket).unwrap_or_else(|| {
            let path = self.path.clone();
            let zone = Zone { kind: ZoneKind::Package, socket, die: None, source: Source::Estimate, path };
            self.sockets.push(Socket { zone: Arc::new(zone), rest: 0 });
            self.sockets.len() - 1
        });
        &mut self.sockets[index]
    }
}

impl Socket {
    fn charge(&mut self, energy: u128) -> ZoneEnergy {
        let sum = self.rest + energy;
        self.rest = sum % 1_000_000_000;
        let energy = Microjoules(u64::try_from(sum / 1_000_000_000).unwrap_or(u64::MAX));
        ZoneEnergy { zone: Arc::clone(&self.zone), energy, gap: false }
    }
}

impl Coefficients {
    fn parse(text: &str) -> anyhow::Result<Self> {
        let table: Self = serde_json::from_str(text).map_err(|error| anyhow!(json_fault(&error)))?;
        table.average.check("average")?;
        for row in &table.rows {
            ThreadWatts { min_watts: row.min_watts, max_watts: row.max_watts }.check(&cut(&row.name))?;
        }
        Ok(table)
    }
}

impl ThreadWatts {
    /// A kilowatt per thread is beyond any processor; it is milliwatts by mistake.
    fn check(self, name: &str) -> anyhow::Result<()> {
        let Self { min_watts, max_watts } = self;
        if !(0.0 <= min_watts && min_watts <= max_watts && max_watts <= 1000.0) {
            bail!("{name}: min_watts {min_watts} and max_watts {max_watts} do not satisfy 0 <= min <= max <= 1000");
        }
        Ok(())
    }
}

impl CoefficientRow {
    fn matches(&self, cpu: &CpuModel) -> bool {
        self.vendor == cpu.vendor
            && (self.family.is_none() || self.family == cpu.family)
            && cpu.model.is_some_and(|model| self.models.contains(&model))
            && self.steppings.is_none_or(|(first, last)| cpu.stepping.is_some_and(|it| (first..=last).contains(&it)))
    }
}

/// To the nearest microwatt: decimal fractions have no exact float, and 0.57 W is not 569,999 uW.
fn microwatts(watts: f64) -> u64 {
    floor_u64((watts * 1e6).round())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::NamedTempFile;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn cpu(vendor: &str, family: Option<u32>, model: u32, stepping: u32) -> CpuModel {
        CpuModel {
            vendor: vendor.to_owned(),
            family,
            model: Some(model),
            stepping: Some(stepping),
            ..CpuModel::default()
        }
    }

    fn load(cpus: u32, busy_ns: u64) -> DomainLoad {
        DomainLoad { cpus, busy_ns, dropped_ns: 0, cycles: false }
    }

    fn skylake() -> Estimate {
        Estimate::open(&cpu("GenuineIntel", Some(6), 85, 4), None).unwrap()
    }

    const NODE: [Domain; 1] = [Domain { socket: Some(0), die: None }];

    #[test]
    fn processors_are_told_apart_by_their_identification() {
        for (cpu, path) in [
            (cpu("GenuineIntel", Some(6), 45, 7), "estimate/sandy-bridge"),
            (cpu("GenuineIntel", Some(6), 62, 4), "estimate/ivy-bridge"),
            (cpu("GenuineIntel", Some(6), 63, 2), "estimate/haswell"),
            (cpu("GenuineIntel", Some(6), 79, 1), "estimate/broadwell"),
            (cpu("GenuineIntel", Some(6), 85, 4), "estimate/skylake"),
            (cpu("GenuineIntel", Some(6), 85, 7), "estimate/cascade-lake"),
            (cpu("GenuineIntel", Some(6), 158, 10), "estimate/coffee-lake"),
            (cpu("AuthenticAMD", Some(23), 1, 2), "estimate/epyc-1st-gen"),
            (cpu("AuthenticAMD", Some(23), 49, 0), "estimate/epyc-2nd-gen"),
            (cpu("AuthenticAMD", Some(25), 1, 1), "estimate/epyc-3rd-gen"),
            (cpu("0x41", None, 0xd0c, 0), "estimate/graviton2"),
            (cpu("GenuineIntel", Some(15), 45, 0), "estimate/average"),
            (CpuModel::default(), "estimate/average"),
        ] {
            assert_eq!(Estimate::open(&cpu, None).unwrap().path, path);
        }
        let unknown = Estimate::open(&CpuModel::default(), None).unwrap();
        assert!(unknown.state().detail.to_string().contains("average"));
    }

    /// FC-060: without CPU time there is idle power and nothing else. Skylake: 0.65 W to 4.26 W a thread.
    #[test]
    fn zero_cpu_time_is_exactly_the_idle_power() {
        let mut estimate = skylake();
        let zones = estimate.read(SECOND, &[load(8, 0)], &NODE);
        assert_eq!(zones[0].energy, Microjoules(5_200_000));
        assert_eq!(estimate.idle_power_uw() * 8, 5_200_000);
        assert_eq!((zones[0].zone.source, zones[0].zone.path.as_str()), (Source::Estimate, "estimate/skylake"));
    }

    #[test]
    fn power_rises_with_utilisation_up_to_the_busy_power() {
        // 8 x 0.65 W + 2 s of (4.26 - 0.65) W = 5.2 J + 7.22 J.
        assert_eq!(skylake().read(SECOND, &[load(8, 2_000_000_000)], &NODE)[0].energy, Microjoules(12_420_000));
        // 8 x 4.26 W, however much time a clock that ran ahead reports.
        assert_eq!(skylake().read(SECOND, &[load(8, 9_000_000_000)], &NODE)[0].energy, Microjoules(34_080_000));
    }

    #[test]
    fn dies_add_up_to_one_zone_per_socket() {
        let domains = [(0, Some(0)), (0, Some(1)), (1, None)].map(|(socket, die)| Domain { socket: Some(socket), die });
        let zones = skylake().read(SECOND, &[load(2, 0), load(2, 0), load(1, 0)], &domains);
        let energy: Vec<_> = zones.iter().map(|zone| (zone.zone.socket, zone.energy.0)).collect();
        assert_eq!(energy, [(Some(0), 2_600_000), (Some(1), 650_000)]);
    }

    #[test]
    fn parts_of_a_microjoule_are_not_lost() {
        let mut estimate = skylake();
        // 0.65 uJ each; ten of them are 6.5 uJ.
        let total: Microjoules = (0..10)
            .flat_map(|_| estimate.read(Duration::from_micros(1), &[load(1, 0)], &NODE))
            .map(|zone| zone.energy)
            .sum();
        assert_eq!(total, Microjoules(6));
    }

    #[test]
    fn a_file_replaces_the_table_or_is_refused_by_name_and_place() {
        let file = NamedTempFile::new().unwrap();
        let open = |text: &str| {
            fs::write(file.path(), text).unwrap();
            Estimate::open(&CpuModel::default(), Some(file.path()))
        };
        let mut own = open(r#"{"average": {"min_watts": 1, "max_watts": 2}}"#).unwrap();
        assert_eq!(own.read(SECOND, &[load(1, 500_000_000)], &NODE)[0].energy, Microjoules(1_500_000));
        for (text, value) in [
            (r#"{"average": {"min_watts": 3, "max_watts": 2}}"#, "min_watts 3"),
            (r#"{"average": {"min_watts": 1, "max_watts": 5000}}"#, "max_watts 5000"),
            (r#"{"average": {"min_watts": "low", "max_watts": 2}}"#, "(line 1, column 31)"),
            (r#"{"avarage": {}}"#, "(line 1, column 10)"),
            ("", "line 1"),
        ] {
            let error = format!("{:#}", open(text).unwrap_err());
            assert!(error.contains(value) && error.contains(file.path().to_str().unwrap()), "{error}");
        }
        assert!(Estimate::open(&CpuModel::default(), Some(Path::new("/nonexistent"))).is_err());
    }
}
