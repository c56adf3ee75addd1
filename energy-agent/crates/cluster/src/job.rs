//! A Job or Pod that is submitted, followed to its end by one watch of each kind, and deleted.
//!
//! `document` reads the file, `submit` creates and deletes the object, `follow` hears of it and its pods, `course` adds up
//! what was heard, and `pod_run` says what one pod is doing. All but `submit` and `follow` is free of I/O.

mod course;
mod document;
mod follow;
mod pod_run;
mod submit;

pub use self::course::{Course, Deadlines, Phase, RunEnd};
pub use self::document::{JobDocument, JobKind};
pub use self::follow::RunSight;
pub use self::pod_run::{Obstacle, PodRun, PodState};
pub use self::submit::{SubmitError, Submitted};
