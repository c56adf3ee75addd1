//! The program as it is started, configured, packaged and installed.

#[path = "../common/mod.rs"]
mod common;

mod agent;
mod config_files;
mod deb;
mod deploy;
mod doctor;
mod end_to_end;
mod flags;
mod identity;
mod image;
mod release;
mod static_program;
