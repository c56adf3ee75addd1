//! The contract between the kernel side and user space.
#![no_std]
