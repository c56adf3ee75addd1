//! The library, the driver, and how devices are found.

use std::ffi::{c_char, c_int, c_uint};
use std::fs;

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlReturn_t};

use crate::abi::{put, put_text, text};
use crate::returns::Return;
use crate::units::count;
use crate::world::{enter, system};

/// What NVML says a code means.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(result: nvmlReturn_t) -> *const c_char {
    Return::text(result).as_ptr()
}

super::export! {
    fn nvmlInit_v2() {
        enter(NAME)?.world().initialise();
        Ok(())
    }

    fn nvmlInitWithFlags(_flags: c_uint) {
        enter(NAME)?.world().initialise();
        Ok(())
    }

    fn nvmlShutdown() {
        // A driver that has gone does not keep a program from leaving.
        let shut_down = match enter(NAME) {
            Ok(mut call) => call.world().shut_down(),
            Err(Return::DriverNotLoaded) => {
                crate::world::forget();
                true
            }
            Err(error) => return Err(error),
        };
        if shut_down { Ok(()) } else { Err(Return::Uninitialized) }
    }

    fn nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint) {
        put_text(version, length, &system(NAME)?.state().driver_version)
    }

    fn nvmlSystemGetNVMLVersion(version: *mut c_char, length: c_uint) {
        let call = system(NAME)?;
        put_text(version, length, &format!("{}.{}", call.state().cuda_version / 1000, call.state().driver_version))
    }

    fn nvmlSystemGetCudaDriverVersion_v2(version: *mut c_int) {
        put(version, system(NAME)?.state().cuda_version)
    }

    fn nvmlSystemGetProcessName(pid: c_uint, name: *mut c_char, length: c_uint) {
        drop(system(NAME)?);
        let command = fs::read(format!("/proc/{pid}/cmdline")).map_err(|_| Return::NotFound)?;
        let first = command.split(|byte| *byte == 0).next().unwrap_or_default();
        put_text(name, length, &String::from_utf8_lossy(first))
    }

    fn nvmlDeviceGetCount_v2(number: *mut c_uint) {
        put(number, count(system(NAME)?.state().gpus.len()))
    }

    fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut nvmlDevice_t) {
        let call = system(NAME)?;
        let index = usize::try_from(index).map_err(|_| Return::InvalidArgument)?;
        let uuid = call.state().gpus.get(index).map(|gpu| gpu.uuid.clone()).ok_or(Return::InvalidArgument)?;
        put(device, call.obey(NAME, Some(index))?.world().handle(&uuid))
    }

    fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut nvmlDevice_t) {
        let mut call = system(NAME)?;
        let uuid = text(uuid)?;
        let (gpu, _) = call.world().find(uuid).ok_or(Return::NotFound)?;
        put(device, call.obey(NAME, Some(gpu))?.world().handle(uuid))
    }

    fn nvmlDeviceGetHandleByPciBusId_v2(bus_id: *const c_char, device: *mut nvmlDevice_t) {
        let call = system(NAME)?;
        let bus_id = text(bus_id)?;
        let gpus = &call.state().gpus;
        let index = gpus.iter().position(|gpu| gpu.bus_id.eq_ignore_ascii_case(bus_id)).ok_or(Return::NotFound)?;
        let uuid = gpus.get(index).map(|gpu| gpu.uuid.clone()).ok_or(Return::NotFound)?;
        put(device, call.obey(NAME, Some(index))?.world().handle(&uuid))
    }
}
