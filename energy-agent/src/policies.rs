//! Where policies come from: a file or folder and ConfigMaps, all followed at once.

pub mod budgets;
pub mod files;
mod follow;
mod store;

pub use self::follow::start;
