//! The eBPF object. On the host this is an empty program, so that the workspace builds with stable Rust alone; the
//! object beside this crate is remade by `cargo xtask ebpf`.
#![cfg_attr(target_arch = "bpf", no_std, no_main, feature(asm_experimental_arch))]

#[cfg(target_arch = "bpf")]
mod programs;

#[cfg(not(target_arch = "bpf"))]
fn main() {}
