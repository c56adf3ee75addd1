//! Single programs and maps of the loaded object.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use anyhow::{Context, Result, anyhow};
use aya::maps::Map;
use aya::programs::{BtfTracePoint, ProgramError};
use aya::{Btf, Endianness};

use crate::meter::btf;

/// What aya needs of the kernel's types to name a tracepoint, which is not what most of their room is for.
pub(super) fn tracepoints(types: &btf::Types<'_>) -> Result<Btf> {
    Ok(Btf::parse(&types.only("btf_trace_")?, Endianness::default())?)
}

/// Loads a typed program and attaches it.
pub(super) fn attach_btf(loaded: &mut aya::Ebpf, name: &str, tracepoint: &str, btf: &Btf) -> Result<()> {
    let program = loaded.program_mut(name).with_context(|| format!("object without {name}"))?;
    let program: &mut BtfTracePoint = program.try_into()?;
    program.load(tracepoint, btf).map_err(short).with_context(|| format!("loading {name}"))?;
    program.attach().map_err(short).with_context(|| format!("attaching {name}"))?;
    Ok(())
}

/// The kernel's error and the end of the verifier's log, which otherwise runs to thousands of lines.
pub(super) fn short(error: ProgramError) -> anyhow::Error {
    match error {
        ProgramError::LoadError { io_error, verifier_log } => {
            let log = verifier_log.to_string();
            let lines: Vec<&str> = log.lines().filter(|line| !line.trim().is_empty()).collect();
            let end = lines[lines.len().saturating_sub(3)..].join(" | ");
            if end.is_empty() { io_error.into() } else { anyhow::Error::new(io_error).context(end) }
        }
        other => other.into(),
    }
}

pub(super) fn map_fd<'a>(loaded: &'a aya::Ebpf, name: &str) -> Result<BorrowedFd<'a>> {
    match loaded.map(name) {
        Some(Map::Array(data) | Map::HashMap(data) | Map::PerfEventArray(data)) => Ok(data.fd().as_fd()),
        _ => Err(anyhow!("object without the map {name}")),
    }
}

pub(super) fn owned_fd(loaded: &aya::Ebpf, name: &str) -> Result<OwnedFd> {
    map_fd(loaded, name)?.try_clone_to_owned().with_context(|| format!("descriptor of the map {name}"))
}
