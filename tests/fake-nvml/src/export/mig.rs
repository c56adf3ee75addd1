//! Multi-instance GPUs: a GPU cut into instances, each of which is a device of its own.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlDeviceAttributes_t, nvmlGpuInstanceProfileInfo_t};

use crate::abi::put;
use crate::returns::Return;
use crate::state::{Instance, Mig};
use crate::world::{Device, device, whole_gpu};

super::export! {
    fn nvmlDeviceGetMigMode(handle: nvmlDevice_t, current: *mut c_uint, pending: *mut c_uint) {
        let device = whole_gpu(NAME, handle)?;
        let mode = u32::from(mig_of(&device)?.enabled);
        put(current, mode)?;
        put(pending, mode)
    }

    fn nvmlDeviceGetMaxMigDeviceCount(handle: nvmlDevice_t, number: *mut c_uint) {
        put(number, if whole_gpu(NAME, handle)?.gpu().mig.is_some() { 7 } else { 0 })
    }

    fn nvmlDeviceGetMigDeviceHandleByIndex(handle: nvmlDevice_t, index: c_uint, mig_device: *mut nvmlDevice_t) {
        let mut device = whole_gpu(NAME, handle)?;
        let mig = mig_of(&device)?;
        if !mig.enabled {
            return Err(Return::NotFound);
        }
        let index = usize::try_from(index).map_err(|_| Return::InvalidArgument)?;
        let uuid = mig.instances.get(index).map(|instance| instance.uuid.clone()).ok_or(Return::NotFound)?;
        put(mig_device, device.world().handle(&uuid))
    }

    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle: nvmlDevice_t, parent: *mut nvmlDevice_t) {
        let mut device = device(NAME, handle)?;
        instance_of(&device)?;
        let uuid = device.gpu().uuid.clone();
        put(parent, device.world().handle(&uuid))
    }

    fn nvmlDeviceIsMigDeviceHandle(handle: nvmlDevice_t, is_mig: *mut c_uint) {
        put(is_mig, u32::from(device(NAME, handle)?.instance().is_some()))
    }

    fn nvmlDeviceGetGpuInstanceId(handle: nvmlDevice_t, id: *mut c_uint) {
        put(id, instance_of(&device(NAME, handle)?)?.gpu_instance)
    }

    fn nvmlDeviceGetComputeInstanceId(handle: nvmlDevice_t, id: *mut c_uint) {
        put(id, instance_of(&device(NAME, handle)?)?.compute_instance)
    }

    fn nvmlDeviceGetAttributes_v2(handle: nvmlDevice_t, attributes: *mut nvmlDeviceAttributes_t) {
        let device = device(NAME, handle)?;
        let instance = instance_of(&device)?;
        put(attributes, nvmlDeviceAttributes_t {
            multiprocessorCount: instance.multiprocessors,
            sharedCopyEngineCount: 1,
            sharedDecoderCount: 0,
            sharedEncoderCount: 0,
            sharedJpegCount: 0,
            sharedOfaCount: 0,
            gpuInstanceSliceCount: instance.slices,
            computeInstanceSliceCount: instance.slices,
            memorySizeMB: instance.memory_mb,
        })
    }

    fn nvmlDeviceGetGpuInstanceProfileInfo(
        handle: nvmlDevice_t,
        profile: c_uint,
        info: *mut nvmlGpuInstanceProfileInfo_t,
    ) {
        let device = whole_gpu(NAME, handle)?;
        mig_of(&device)?;
        // NVML_GPU_INSTANCE_PROFILE_{1,2,3,4,7}_SLICE are 0 to 4.
        let index = usize::try_from(profile).map_err(|_| Return::InvalidArgument)?;
        let slices = [1, 2, 3, 4, 7].get(index).copied().ok_or(Return::NotSupported)?;
        let memory_mb = device.gpu().memory_total_bytes.unwrap_or(0) >> 20;
        put(info, nvmlGpuInstanceProfileInfo_t {
            id: profile,
            isP2pSupported: 0,
            sliceCount: slices,
            instanceCount: 7 / slices,
            multiprocessorCount: 14 * slices,
            copyEngineCount: 1,
            decoderCount: 0,
            encoderCount: 0,
            jpegCount: 0,
            ofaCount: 0,
            memorySizeMB: memory_mb * u64::from(slices) / 8,
        })
    }
}

fn mig_of(device: &Device) -> Result<&Mig, Return> {
    device.gpu().mig.as_ref().ok_or(Return::NotSupported)
}

fn instance_of(device: &Device) -> Result<&Instance, Return> {
    device.instance().ok_or(Return::InvalidArgument)
}
