//! Who else can say no: why the kernel refuses something to a process that has the capabilities for it, with the remedy.

use std::fs;
use std::path::Path;

use energy_model::advice::Advice;

/// Numbers of `linux/capability.h`.
const CAP_DAC_OVERRIDE: u32 = 1;
const CAP_DAC_READ_SEARCH: u32 = 2;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

/// What was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Loading a tracing program.
    Bpf,
    /// `perf_event_open` on a CPU.
    Perf,
    /// Reading a file of another user.
    Files,
}

impl Need {
    /// Each of these sets is enough.
    const fn enough(self) -> &'static [&'static [(u32, &'static str)]] {
        match self {
            Self::Bpf => &[&[(CAP_BPF, "CAP_BPF"), (CAP_PERFMON, "CAP_PERFMON")], &[(CAP_SYS_ADMIN, "CAP_SYS_ADMIN")]],
            Self::Perf => &[&[(CAP_PERFMON, "CAP_PERFMON")], &[(CAP_SYS_ADMIN, "CAP_SYS_ADMIN")]],
            Self::Files => {
                &[&[(CAP_DAC_READ_SEARCH, "CAP_DAC_READ_SEARCH")], &[(CAP_DAC_OVERRIDE, "CAP_DAC_OVERRIDE")]]
            }
        }
    }
}

/// What the kernel says of this process, and of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Situation {
    effective: u64,
    seccomp: bool,
    own_user_namespace: bool,
    /// Security modules beside the kernel's own checks; empty where the kernel does not list them.
    modules: Vec<String>,
}

/// A refusal with its cause and remedy; `remedy` is for a process that lacks the capabilities.
#[must_use]
pub(crate) fn advise(refusal: Option<String>, need: Need, sysfs: &Path, remedy: &str) -> Advice {
    match (explain(need, sysfs), refusal) {
        (Some(Advice { what, remedy }), Some(refusal)) => Advice::new(format!("{refusal}; {what}"), remedy),
        (Some(cause), None) => cause,
        (None, refusal) => Advice::new(refusal.unwrap_or_else(|| "not permitted".to_owned()), remedy),
    }
}

/// What is in the way of a process that has the capabilities, and the remedy. `None` where it lacks some.
/// `sysfs` may hold the list of security modules (`kernel/security/lsm`).
fn explain(need: Need, sysfs: &Path) -> Option<Advice> {
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
    let modules = [sysfs, Path::new("/sys")].map(|root| read(&root.join("kernel/security/lsm")));
    let modules = modules.iter().find(|list| !list.is_empty()).map_or("", String::as_str);
    // Of the process that runs, not of the host whose procfs may be mounted somewhere.
    let own = Path::new("/proc/self");
    Situation::parse(&read(&own.join("status")), &read(&own.join("uid_map")), modules).explain(need)
}

impl Situation {
    fn parse(status: &str, uid_map: &str, modules: &str) -> Self {
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim();
        let map: Vec<&str> = uid_map.split_whitespace().collect();
        // They check no more than capabilities, or restrict what asks for it.
        let usual = |module: &&str| !["capability", "lockdown", "yama", "landlock", "integrity"].contains(module);
        Self {
            effective: u64::from_str_radix(field("CapEff:"), 16).unwrap_or_default(),
            seccomp: field("Seccomp:") == "2",
            own_user_namespace: !map.is_empty() && map != ["0", "0", "4294967295"],
            modules: modules
                .trim()
                .split(',')
                .filter(|name| !name.is_empty())
                .filter(usual)
                .map(str::to_owned)
                .collect(),
        }
    }

    fn explain(&self, need: Need) -> Option<Advice> {
        let has = |(number, _): &&(u32, &str)| self.effective >> number & 1 == 1;
        let set = need.enough().iter().find(|set| set.iter().all(|capability| has(&capability)))?;
        let names: Vec<&str> = set.iter().map(|(_, name)| *name).collect();
        let has = format!("though the agent has {} (CapEff {:016x})", names.join(" and "), self.effective);
        if self.own_user_namespace {
            let what = format!("denied {has}, which count only in its own user namespace");
            return Some(Advice::new(what, "run it in the host's user namespace"));
        }
        let filter = if self.seccomp { "its seccomp filter or " } else { "" };
        let modules = if self.modules.is_empty() {
            "a security module (SELinux, AppArmor)".to_owned()
        } else {
            format!("a security module ({})", self.modules.join(", "))
        };
        Some(Advice::new(
            format!("denied by {filter}{modules} {has}"),
            "look for the denial in the audit log (ausearch -m avc, dmesg) and allow it, in Kubernetes by \
             seLinuxOptions.type spc_t, appArmorProfile or seccompProfile Unconfined",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "         0          0 4294967295\n";

    fn status(effective: &str, seccomp: u8) -> String {
        format!("Name:\tenergy-agent\nCapEff:\t{effective}\nNoNewPrivs:\t0\nSeccomp:\t{seccomp}\nSeccomp_filters:\t0\n")
    }

    fn explained(need: Need, effective: &str, seccomp: u8, uid_map: &str, modules: &str) -> Option<String> {
        let advice = Situation::parse(&status(effective, seccomp), uid_map, modules).explain(need);
        advice.map(|advice| advice.to_string())
    }

    #[test]
    fn root_with_all_capabilities_is_not_told_to_become_root() {
        // All 41 capabilities.
        let all = "000001ffffffffff";
        let text = explained(Need::Bpf, all, 0, HOST, "lockdown,capability,yama,selinux,bpf\n").unwrap();
        assert!(
            text.starts_with("denied by a security module (selinux, bpf) though the agent has CAP_BPF and CAP_PERFMON")
        );
        assert!(text.contains("CapEff 000001ffffffffff") && text.contains("; look for the denial"), "{text}");
        assert!(!text.contains("run as root"), "{text}");
        let text = explained(Need::Bpf, all, 2, HOST, "").unwrap();
        assert!(text.starts_with("denied by its seccomp filter or a security module (SELinux, AppArmor)"), "{text}");
        let text = explained(Need::Perf, all, 0, "0 100000 65536\n", "").unwrap();
        assert!(text.contains("user namespace"), "{text}");
        let cut = text.split_once("; ").unwrap();
        assert_eq!(cut.1, "run it in the host's user namespace", "{text}");
    }

    #[test]
    fn who_lacks_a_capability_is_told_so_elsewhere() {
        // Bit 39 alone, bits 38 and 39, bit 21, bit 2, bit 1.
        for (effective, bpf, perf, files) in [
            ("0000000000000000", false, false, false),
            ("0000008000000000", false, false, false),
            ("000000c000000000", true, true, false),
            ("0000000000200000", true, true, false),
            ("0000000000000004", false, false, true),
            ("0000000000000002", false, false, true),
        ] {
            let known = |need| explained(need, effective, 0, HOST, "").is_some();
            assert_eq!((known(Need::Bpf), known(Need::Perf), known(Need::Files)), (bpf, perf, files), "{effective}");
        }
    }

    #[test]
    fn a_status_without_sense_claims_nothing() {
        for text in ["", "CapEff:\tmany\n", "CapEff:\n"] {
            assert_eq!(Situation::parse(text, "", "").explain(Need::Files), None);
        }
    }
}
