//! Capping's place in the tick: policies and what the tick measured become limits, which are written at once.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};

use super::observe::Observer;
use crate::capping::actuator::Actuator;
use crate::capping::controller::{Controller, Outcome};
use crate::capping::files::FileKnobs;
use crate::capping::observation::GpuDevice;
use crate::capping::policy::Mode;
use crate::capping::source::InForce;
use crate::capping::status::{CappingStatus, Change};
use crate::config::Config;
use crate::meter::gpu::GpuMeter;
use crate::snapshot::Snapshot;
use crate::workload::names::{Pod, Pods};
use crate::workload::owners::Owners;
