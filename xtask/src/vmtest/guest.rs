//! One virtual machine from its boot to its end, and what it reported. QEMU emulates the processor: that takes ten times
//! as long as a real one, but runs everywhere.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use super::cycles::{self, Load};
use super::held::Held;
use crate::build::Arch;
use crate::tools;

/// Part of cpu.stat's time by which the agent may differ. `cpu.stat` is the scheduler's clock, the agent's is another,
/// and the first moments in the cgroup are charged when a task leaves the CPU.
const TOLERANCE: f64 = 0.02;

/// QEMU, on the machine or unpacked below `target/tools`.
pub struct Emulator {
    arch: Arch,
    /// The folder that stands for `/`, where it is unpacked.
    unpacked: Option<PathBuf>,
}

impl Emulator {
    /// # Errors
    /// When this machine has no QEMU and Debian's cannot be installed.
    pub fn find(arch: Arch) -> Result<Self> {
        let package = match arch {
            Arch::Amd64 => "qemu-system-x86",
            Arch::Arm64 => "qemu-system-arm",
        };
        let unpacked = if tools::on_path(program(arch)) {
            None
        } else {
            Some(tools::unpacked_with_dependencies(package).context("QEMU cannot be installed")?)
        };
        Ok(Self { arch, unpacked })
    }

    /// Boots to the end; what came over the serial line.
    ///
    /// # Errors
    /// When QEMU can't be started, or the machine does not end in time.
    pub fn boot(&self, kernel: &Path, initramfs: &Path, log: &Path, limit_s: u64) -> Result<String> {
        let output = File::create(log).with_context(|| log.display().to_string())?;
        // Coreutils' own, so that no machine stays when this is interrupted.
        let mut command = Command::new("timeout");
        command.args(["--foreground", "--kill-after=5"]).arg(limit_s.to_string()).stdin(Stdio::null());
        match &self.unpacked {
            None => drop(command.arg(program(self.arch))),
            Some(root) => {
                command.arg(root.join("usr/bin").join(program(self.arch)));
                let libraries = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"].map(|folder| root.join(folder));
                command.env("LD_LIBRARY_PATH", env::join_paths(libraries).unwrap_or_else(|_| OsString::new()));
                // What this machine has of its packages is not unpacked.
                let modules = "usr/lib/x86_64-linux-gnu/qemu";
                if !root.join(modules).exists() {
                    command.env("QEMU_MODULE_DIR", Path::new("/").join(modules));
                }
                for data in ["usr/share/qemu", "usr/share/seabios"] {
                    command.arg("-L").arg(root.join(data)).arg("-L").arg(Path::new("/").join(data));
                }
            }
        }
        // One thread for both CPUs: with one each, the other can run an int3 of the kernel's text patching after it is gone,
        // which is an Oops in `__schedule` when programs are attached or detached there.
        command.args(["-accel", "tcg,thread=single", "-cpu", "max", "-smp", "2", "-m", "768"]);
        command.args(["-nodefaults", "-nographic", "-no-reboot", "-serial", "stdio"]);
        command.arg("-kernel").arg(kernel).arg("-initrd").arg(initramfs);
        let console = match self.arch {
            Arch::Amd64 => "ttyS0",
            Arch::Arm64 => "ttyAMA0",
        };
        if self.arch == Arch::Arm64 {
            command.args(["-machine", "virt"]);
        }
        command.arg("-append").arg(format!("console={console} quiet panic=-1 rdinit=/init"));
        let status = command.stdout(output.try_clone()?).stderr(output).status().context("starting timeout")?;
        match status.code() {
            Some(0) => {}
            Some(124 | 137) => bail!("not done after {limit_s} s (--limit; log: {})", log.display()),
            _ => bail!("QEMU ended with {status} (log: {})", log.display()),
        }
        Ok(String::from_utf8_lossy(&fs::read(log)?).into_owned())
    }
}

const fn program(arch: Arch) -> &'static str {
    match arch {
        Arch::Amd64 => "qemu-system-x86_64",
        Arch::Arm64 => "qemu-system-aarch64",
    }
}

/// What a machine said of itself.
#[derive(Debug, PartialEq)]
pub struct Report {
    /// The eBPF program that the agent chose.
    pub program: String,
    /// CPU time of the container as the agent has it, and as the kernel has it.
    pub agent_s: f64,
    pub kernel_s: f64,
    /// The pod under a power budget.
    pub held: Held,
    /// Energy of the pod.
    joules: f64,
    /// Who counted.
    meter: String,
    /// What weighs work: `cycles` or `runtime`.
    weight: String,
    /// Two loads and their cycles; none where the machine has no counter.
    pub cycles: Vec<Load>,
}

impl Report {
    /// # Errors
    /// When it is not complete; with what was wrong in the machine's words.
    pub fn read(text: &str) -> Result<Self> {
        let lines: Vec<_> =
            text.lines().filter_map(|line| line.split_once("@@ ")).map(|(_, said)| said.trim_end()).collect();
        let said = |start: &str| lines.iter().find_map(|line| line.strip_prefix(start));
        let complaints: Vec<_> = lines.iter().filter_map(|line| line.strip_prefix("log ")).collect();
        match said("end ") {
            Some("ok") => {}
            Some(end) => bail!("{end}: {}", complaints.join(" | ")),
            None => bail!("it went down before the end: {}", text.lines().last().unwrap_or("not a word")),
        }
        let metric = |name: &str| {
            let of = format!("metric {name}{{");
            said(&of).with_context(|| format!("no {name}; {}", complaints.join(" | ")))
        };
        let value = |name: &str| -> Result<f64> {
            let text = metric(name)?;
            text.rsplit(' ').next().and_then(|value| value.parse().ok()).with_context(|| format!("{name}: {text}"))
        };
        let info = metric("energy_agent_attribution_info")?;
        let label = |name: &str| {
            let (_, rest) = info.split_once(&format!("{name}=\""))?;
            Some(rest.split('"').next().unwrap_or_default().to_owned())
        };
        let usage_usec: f64 = said("usage_usec ").and_then(|usec| usec.parse().ok()).context("no usage_usec")?;
        ensure!(usage_usec > 500_000.0, "the container ran for {usage_usec} us only, nothing to compare");
        Ok(Self {
            program: label("program").unwrap_or_default(),
            meter: label("meter").unwrap_or_default(),
            weight: label("weight").unwrap_or_default(),
            cycles: lines
                .iter()
                .filter_map(|line| line.strip_prefix("cycles "))
                .map(Load::read)
                .collect::<Result<_>>()?,
            agent_s: value("kepler_container_cpu_seconds_total")?,
            kernel_s: usage_usec / 1e6,
            held: Held::read(said("held ").context("no pod was held")?, value("energy_agent_cap_found_cpus")?)?,
            joules: value("kepler_pod_cpu_joules_total")?,
        })
    }

    /// What the agent has more than the kernel, as part of the kernel's.
    pub fn difference(&self) -> f64 {
        self.agent_s / self.kernel_s - 1.0
    }

    /// Empty where all is well.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = self.held.problems();
        if self.meter != "ebpf" {
            problems.push(format!("CPU time was counted by {:?}, not by eBPF", self.meter));
        }
        if self.difference().abs() > TOLERANCE {
            problems.push(format!("more than {:.0} % apart", TOLERANCE * 100.0));
        }
        if self.joules <= 0.0 {
            problems.push("the pod used no energy".to_owned());
        }
        problems.extend(cycles::problems(&self.weight, &self.cycles));
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is read of a page is what the guest says of one.
    #[test]
    fn every_metric_that_is_read_is_printed_by_the_guest() {
        let scripts =
            [include_str!("../../../tests/vm/init.sh"), include_str!("../../../tests/vm/capping.sh")].concat();
        let (source, _) = include_str!("guest.rs").split_once("#[cfg(test)]").unwrap();
        let names: Vec<_> =
            source.split('"').filter(|text| text.starts_with("kepler_") || text.starts_with("energy_agent_")).collect();
        assert!(names.len() >= 4, "{names:?}");
        for name in names {
            assert!(scripts.contains(name), "no script prints {name}");
        }
    }

    const LOG: &str = "[    0.1] boot\r\n@@ kernel 5.10.0\r\n\
        @@ metric energy_agent_attribution_info{meter=\"ebpf\",program=\"tp_btf\",weight=\"cpu_time\",idle=\"ratio\"} 1\r\n\
        @@ metric kepler_container_cpu_seconds_total{container_id=\"01\"} 2.020000000\r\n\
        @@ metric kepler_pod_cpu_joules_total{pod_id=\"1\"} 3.500000\r\n\
        @@ usage_usec 2000000\r\n@@ metric energy_agent_cap_found_cpus{actuator=\"cpu_quota\"} 0.37\r\n\
        @@ held 37000 100000 5550000 148 1500\r\n@@ end ok\r\n[    9.9] reboot: Power down\r\n";

    #[test]
    fn a_report_within_two_percent_passes() {
        let report = Report::read(LOG).unwrap();
        assert_eq!((report.program.as_str(), report.meter.as_str()), ("tp_btf", "ebpf"));
        assert!((report.difference() - 0.01).abs() < 1e-9 && report.problems().is_empty(), "{report:?}");
    }

    #[test]
    fn what_is_wrong_is_said() {
        let problems =
            |from: &str, to: &str| Report::read(&LOG.replace(from, to)).map(|report| report.problems().join(";"));
        assert_eq!(problems("2.020000000", "1.950000000").unwrap(), "more than 2 % apart");
        assert!(problems("\"ebpf\"", "\"cgroup\"").unwrap().contains("counted by \"cgroup\""));
        assert_eq!(problems("3.500000", "0.000000").unwrap(), "the pod used no energy");
        assert_eq!(
            problems("37000 100000 5550000 148", "37000 100000 5550000 0").unwrap(),
            "throttled 0 times in 150 periods"
        );
        assert!(problems("usage_usec 2000000", "usage_usec 20").unwrap_err().to_string().contains("20 us only"));
        let refused = "@@ log WARN refused\n@@ end the agent is not ready";
        assert_eq!(problems("@@ end ok", refused).unwrap_err().to_string(), "the agent is not ready: WARN refused");
        let panic = problems("@@ end ok\r\n[    9.9] reboot: Power down", "Kernel panic - not syncing").unwrap_err();
        assert_eq!(panic.to_string(), "it went down before the end: Kernel panic - not syncing");
    }
}
