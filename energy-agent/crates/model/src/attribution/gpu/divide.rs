//! To whom the active energy of a GPU belongs: by work where it was sampled, else to the only one that can have used it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{GpuMethod, GpuUse};
use crate::attribution::split::split;
use crate::attribution::usage::CpuUsage;
use crate::attribution::{Division, Method};
use crate::gpu::{Evidence, GpuProcess, GpuProcessKind};
use crate::units::Microjoules;
use crate::workload::Workload;

/// Active energy, divided; the parts sum to it.
#[derive(Debug)]
pub struct Parts {
    pub unattributed: Microjoules,
    pub method: GpuMethod,
    pub shares: BTreeMap<Arc<Workload>, Microjoules>,
    pub processes: BTreeMap<u32, Microjoules>,
}

/// A process with its owner.
type Member<'a> = (&'a GpuProcess, Option<&'a Arc<Workload>>);

pub fn divide(used: &GpuUse<'_>, active: Microjoules) -> Parts {
    let mut parts = Parts {
        unattributed: Microjoules::ZERO,
        method: GpuMethod::None,
        shares: BTreeMap::new(),
        processes: BTreeMap::new(),
    };
    let reading = used.reading;
    let owners = used.owners.iter().map(Option::as_ref).chain(std::iter::repeat(None));
    let mut members: Vec<Member<'_>> = reading.processes.iter().zip(owners).collect();
    // The order breaks ties, so it must not be the driver's.
    members.sort_by_key(|(process, _)| (process.pid, process.kind, process.instance));
    if reading.instances.is_empty() {
        let device: Vec<_> = used.allocation.device.iter().collect();
        // Samples that show no work, on a GPU that is not said to have worked, are evidence that nobody did.
        let silent = reading.evidence == Evidence::Samples && reading.state.utilization_ppm.unwrap_or(0) == 0;
        parts.method = parts.share(active, &members, &device, silent);
        return parts;
    }
    let (method, weights) = used.instance_weights();
    let Some(energies) = split(active, &weights) else {
        parts.unattributed = active;
        return parts;
    };
    parts.method = method;
    for (instance, energy) in reading.instances.iter().zip(energies) {
        let inside: Vec<_> =
            members.iter().filter(|(process, _)| process.instance == Some(instance.id)).copied().collect();
        let given = used.allocation.instances.iter().filter(|(id, _)| *id == instance.id);
        let given: Vec<_> = given.map(|(_, workload)| workload).collect();
        parts.share(energy, &inside, &given, false);
    }
    parts
}

impl Parts {
    /// The GPU's energy in the terms of all zones. Every workload charged is in `usage`.
    pub fn division(self, usage: &CpuUsage, active: Microjoules, idle: Microjoules) -> Division {
        let Self { unattributed, method, shares, processes } = self;
        let place = |owner| usage.position(&owner).expect("each workload charged has a share");
        let shares = shares.into_iter().map(|(owner, part)| (place(owner), part)).collect();
        let processes = processes.into_iter().collect();
        Division { active, idle, unattributed, method: Method::Gpu(method), shares, processes }
    }

    /// Shares among the processes of a GPU or an instance, which was given to `allocated`. `silent` says that nobody is to
    /// be charged for work that no sample shows.
    fn share(
        &mut self,
        energy: Microjoules,
        members: &[Member<'_>],
        allocated: &[&Arc<Workload>],
        silent: bool,
    ) -> GpuMethod {
        let work: Vec<u64> = members.iter().map(|(process, _)| process.work).collect();
        if let Some(energies) = split(energy, &work) {
            let mut method = GpuMethod::Samples;
            for (&member, energy) in members.iter().zip(energies) {
                if member.0.kind == GpuProcessKind::MpsServer {
                    if member.0.work > 0 {
                        method = GpuMethod::Mps;
                    }
                    self.share_server(energy, members, allocated);
                } else {
                    self.give(energy, member, allocated);
                }
            }
            return method;
        }
        if silent {
            self.unattributed += energy;
            return GpuMethod::None;
        }
        let contexts: Vec<Member<'_>> =
            members.iter().filter(|(process, _)| process.kind != GpuProcessKind::MpsServer).copied().collect();
        if let [(process, Some(owner))] = contexts[..] {
            self.charge(energy, owner);
            self.note(energy, process.pid);
            return GpuMethod::Context;
        }
        let owners: Option<Vec<&Arc<Workload>>> = contexts.iter().map(|(_, owner)| *owner).collect();
        let (sole, method) = match owners.and_then(|owners| sole(&owners)) {
            Some(owner) => (Some(owner), GpuMethod::Context),
            None => (sole(allocated), GpuMethod::Allocation),
        };
        let Some(owner) = sole else {
            self.unattributed += energy;
            return GpuMethod::None;
        };
        self.charge(energy, &owner);
        method
    }

    /// What the MPS server was seen to do was its clients' work: by their own work where it was seen, else by the memory
    /// they hold.
    fn share_server(&mut self, energy: Microjoules, members: &[Member<'_>], allocated: &[&Arc<Workload>]) {
        let clients: Vec<Member<'_>> =
            members.iter().filter(|(process, _)| process.kind == GpuProcessKind::Mps).copied().collect();
        if let [client] = clients[..] {
            return self.give(energy, client, allocated);
        }
        let by = |weight: &dyn Fn(&GpuProcess) -> u64| {
            let weights: Vec<u64> = clients.iter().map(|(process, _)| weight(process)).collect();
            split(energy, &weights)
        };
        let energies = by(&|process| process.work).or_else(|| by(&|process| process.memory_bytes.unwrap_or(0)));
        match energies {
            Some(energies) => {
                for (&client, energy) in clients.iter().zip(energies) {
                    self.give(energy, client, allocated);
                }
            }
            None => match sole(allocated) {
                Some(owner) => self.charge(energy, &owner),
                None => self.unattributed += energy,
            },
        }
    }

    /// To the process' workload, or to the only one that can be its owner.
    fn give(&mut self, energy: Microjoules, (process, owner): Member<'_>, allocated: &[&Arc<Workload>]) {
        match owner.cloned().or_else(|| sole(allocated)) {
            Some(owner) => {
                self.charge(energy, &owner);
                self.note(energy, process.pid);
            }
            None => self.unattributed += energy,
        }
    }

    fn charge(&mut self, energy: Microjoules, owner: &Arc<Workload>) {
        if energy > Microjoules::ZERO {
            *self.shares.entry(Arc::clone(owner)).or_default() += energy;
        }
    }

    fn note(&mut self, energy: Microjoules, pid: u32) {
        if energy > Microjoules::ZERO {
            *self.processes.entry(pid).or_default() += energy;
        }
    }
}

/// The workload that all of `owners` are, or the pod that they are all in.
fn sole(owners: &[&Arc<Workload>]) -> Option<Arc<Workload>> {
    let (first, others) = owners.split_first()?;
    if others.iter().all(|other| other == first) {
        return Some(Arc::clone(first));
    }
    let uid = first.pod_uid()?;
    let same = others.iter().all(|other| other.pod_uid() == Some(uid));
    same.then(|| Arc::new(Workload::PodOverhead { uid: Arc::clone(uid) }))
}
