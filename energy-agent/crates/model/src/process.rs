//! What single processes did, as the kernel side accounts for it where that is asked for.

use std::sync::Arc;

pub use energy_ebpf::{Comm, Process};

/// What a process is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub comm: Arc<str>,
    /// Empty where it is not known.
    pub exe: Arc<str>,
}
