//! What all calls share: the played state, the handles that were given out, and the way into every call, where it is
//! counted and hangs or fails as the state says.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings::nvmlDevice_t;

use crate::clock;
use crate::folder::{Folder, HeldGpu};
use crate::plant::{Bounds, Running};
use crate::returns::Return;
use crate::state::{Gpu, Instance, State};

/// How often a hanging call looks whether it may go on.
const HANG_POLL: Duration = Duration::from_millis(20);

pub struct World {
    pub folder: Folder,
    state: Option<State>,
    /// `nvmlInit` calls less `nvmlShutdown` calls.
    initialised: u32,
    /// The driver that was there at the first of them.
    generation: u64,
    /// A handle is one more than the index here: the UUID of a GPU or MIG device.
    handles: Vec<String>,
    /// An event set is one more than the index here: how many XIDs of each GPU it has reported.
    pub event_sets: Vec<Option<BTreeMap<String, usize>>>,
}

static WORLD: Mutex<Option<World>> = Mutex::new(None);

/// The world during one call; the driver is loaded.
pub struct Call(MutexGuard<'static, Option<World>>);

/// A call on one device.
pub struct Device {
    call: Call,
    gpu: usize,
    instance: Option<usize>,
}

/// Enters a call that needs no initialisation.
pub fn enter(symbol: &'static str) -> Result<Call, Return> {
    let mut call = Call::lock();
    call.world().folder.called(symbol, None);
    call.obey(symbol, None)
}

/// Leaves the library although the driver has gone.
pub fn forget() {
    Call::lock().world().initialised = 0;
}

/// Enters a call on the library.
pub fn system(symbol: &'static str) -> Result<Call, Return> {
    let mut call = enter(symbol)?;
    call.world().check()?;
    Ok(call)
}

/// Enters a call on a device.
pub fn device(symbol: &'static str, handle: nvmlDevice_t) -> Result<Device, Return> {
    let mut call = Call::lock();
    let world = call.world();
    let uuid = (handle.addr().checked_sub(1)).and_then(|index| world.handles.get(index)).cloned();
    let found = uuid.as_deref().and_then(|uuid| world.find(uuid));
    world.folder.called(symbol, found.map(|(gpu, _)| gpu));
    let mut call = call.obey(symbol, found.map(|(gpu, _)| gpu))?;
    call.world().check()?;
    // The device may have gone during a hang, or before.
    match (found, uuid) {
        (_, None) => Err(Return::InvalidArgument),
        (_, Some(uuid)) => {
            let (gpu, instance) = call.world().find(&uuid).ok_or(Return::GpuIsLost)?;
            Ok(Device { call, gpu, instance })
        }
    }
}

/// Enters a call on a whole GPU; MIG devices do not have it.
pub fn whole_gpu(symbol: &'static str, handle: nvmlDevice_t) -> Result<Device, Return> {
    let device = device(symbol, handle)?;
    if device.instance.is_some() { Err(Return::NotSupported) } else { Ok(device) }
}

impl Call {
    /// The world, with the state as it is now.
    fn lock() -> Self {
        let mut guard = WORLD.lock().unwrap_or_else(PoisonError::into_inner);
        let world = guard.get_or_insert_with(|| World {
            folder: Folder::of_this_library(),
            state: None,
            initialised: 0,
            generation: 0,
            handles: Vec::new(),
            event_sets: Vec::new(),
        });
        world.folder.refresh(&mut world.state);
        if let Some(state) = &world.state {
            world.folder.count_calls = state.count_calls;
        }
        Self(guard)
    }

    /// Enters once more for a call that waits.
    pub fn again() -> Result<Self, Return> {
        let mut call = Self::lock();
        call.world().check()?;
        Ok(call)
    }

    pub fn world(&mut self) -> &mut World {
        self.0.as_mut().expect("it is filled when it is locked")
    }

    /// The played state.
    pub fn state(&self) -> &State {
        self.0.as_ref().and_then(|world| world.state.as_ref()).expect("a call is made with the driver loaded")
    }

    /// Hangs and fails as the state says. Other calls go on meanwhile.
    pub fn obey(mut self, symbol: &'static str, gpu: Option<usize>) -> Result<Self, Return> {
        let began = Instant::now();
        loop {
            if self.world().state.is_none() {
                return Err(Return::DriverNotLoaded);
            }
            let state = self.state();
            let gpu = gpu.and_then(|index| state.gpus.get(index));
            let hangs = [Some(&state.hangs), gpu.map(|gpu| &gpu.hangs)];
            let hang_s = hangs.into_iter().flatten().filter_map(|hangs| of(hangs, symbol)).fold(0.0, f64::max);
            if began.elapsed().as_secs_f64() >= hang_s {
                let errors = [Some(&state.errors), gpu.map(|gpu| &gpu.errors)];
                let error = errors.into_iter().flatten().find_map(|errors| of(errors, symbol));
                return error.map_or(Ok(self), Err);
            }
            drop(self);
            thread::sleep(HANG_POLL);
            self = Self::lock();
        }
    }
}

fn of<T: Copy>(map: &BTreeMap<String, T>, symbol: &str) -> Option<T> {
    map.get(symbol).or_else(|| map.get("*")).copied()
}

impl World {
    pub fn initialise(&mut self) {
        if self.initialised == 0 {
            self.generation = self.state.as_ref().map_or(0, |state| state.generation);
        }
        self.initialised += 1;
    }

    /// `false`: nobody had initialised.
    pub fn shut_down(&mut self) -> bool {
        let was = self.initialised > 0;
        self.initialised = self.initialised.saturating_sub(1);
        was
    }

    /// Whether the caller has initialised with the driver that is there.
    pub fn check(&self) -> Result<(), Return> {
        if self.initialised == 0 {
            return Err(Return::Uninitialized);
        }
        match &self.state {
            Some(state) if state.generation == self.generation => Ok(()),
            _ => Err(Return::Unknown),
        }
    }

    /// The handle of a GPU or MIG device: the same whenever it is asked for, whatever its index.
    pub fn handle(&mut self, uuid: &str) -> nvmlDevice_t {
        let index = self.handles.iter().position(|known| known == uuid).unwrap_or_else(|| {
            self.handles.push(uuid.to_owned());
            self.handles.len() - 1
        });
        std::ptr::without_provenance_mut(index + 1)
    }

    /// The index of a GPU, and of the instance where the UUID is a MIG device's.
    pub fn find(&self, uuid: &str) -> Option<(usize, Option<usize>)> {
        self.state.as_ref()?.gpus.iter().enumerate().find_map(|(index, gpu)| {
            if gpu.uuid == uuid {
                return Some((index, None));
            }
            let mig = gpu.mig.as_ref().filter(|mig| mig.enabled)?;
            mig.instances.iter().position(|instance| instance.uuid == uuid).map(|instance| (index, Some(instance)))
        })
    }
}

impl Device {
    pub fn gpu(&self) -> &Gpu {
        self.call.state().gpus.get(self.gpu).expect("it was found in this call")
    }

    pub fn index(&self) -> usize {
        self.gpu
    }

    pub fn world(&mut self) -> &mut World {
        self.call.world()
    }

    /// The MIG device, where it is one.
    pub fn instance(&self) -> Option<&Instance> {
        self.instance.and_then(|index| self.gpu().mig.as_ref()?.instances.get(index))
    }

    /// Of the GPU or the MIG device.
    pub fn uuid(&self) -> String {
        self.instance().map_or_else(|| self.gpu().uuid.clone(), |instance| instance.uuid.clone())
    }

    /// What the driver holds for the GPU, after `change`.
    pub fn held<T>(&self, change: impl FnOnce(&mut HeldGpu) -> T) -> T {
        let folder = &self.call.0.as_ref().expect("it is filled when it is locked").folder;
        let uuid = &self.gpu().uuid;
        folder.held(self.call.state().generation, |held| change(held.gpus.entry(uuid.clone()).or_default()))
    }

    /// The plant at this moment, where the GPU has one.
    pub fn running(&self) -> Option<Running> {
        let gpu = self.gpu();
        let plant = gpu.plant.as_ref()?;
        Some(self.held(|held| {
            let now_us = clock::monotonic_us();
            let limit_mw = held.power_limit_mw.or(gpu.limits.as_ref().map(|limits| limits.default_mw));
            let locked_mhz = held.locked_mhz.filter(|_| !gpu.clocks.ignore_locks);
            let bounds = Bounds { locked_mhz, limit_w: limit_mw.map(|limit_mw| f64::from(limit_mw) / 1000.0) };
            let running = held.running.get_or_insert_with(|| Running::start(now_us, plant, &gpu.clocks));
            running.advance(now_us, plant, &gpu.clocks, bounds, |at_us| gpu.load(at_us));
            running.clone()
        }))
    }

    /// Records a write and answers it.
    pub fn wrote(&self, symbol: &str, arguments: &[u32], answer: Return) -> Result<(), Return> {
        let folder = &self.call.0.as_ref().expect("it is filled when it is locked").folder;
        folder.wrote(&self.gpu().uuid, symbol, arguments, answer, clock::monotonic_us());
        if answer == Return::Success { Ok(()) } else { Err(answer) }
    }
}
