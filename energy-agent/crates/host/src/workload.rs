//! Who ran, as the machine shows it: cgroups, processes and their owners.

pub mod owners;
pub mod pid_namespace;
pub mod pids;
pub mod process;
pub mod tree;
