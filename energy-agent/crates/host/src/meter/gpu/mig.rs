//! The MIG instances of one GPU.

use std::sync::Arc;

use energy_model::gpu::GpuInstance;
use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};

/// Whether MIG is on; a GPU without MIG answers `NotSupported`.
///
/// # Errors
/// As NVML says.
pub(crate) fn is_on(device: &Device<'_>) -> Result<bool, NvmlError> {
    device.mig_mode().map(|mode| mode.current == 1)
}

/// The GPU instances that are set up, by id. Several compute instances of one GPU instance are one entry, with the UUID of
/// the first.
///
/// # Errors
/// As NVML says, where one instance cannot be read.
pub fn instances(device: &Device<'_>) -> Result<Vec<GpuInstance>, NvmlError> {
    let mut found: Vec<GpuInstance> = Vec::new();
    for index in 0..device.mig_device_count()? {
        let instance = match device.mig_device_by_index(index) {
            Ok(instance) => instance,
            // Indices have holes.
            Err(NvmlError::NotFound | NvmlError::InvalidArg) => continue,
            Err(error) => return Err(error),
        };
        let id = instance_id(&instance)?;
        if found.iter().all(|known| known.id != id) {
            let slices = instance.attributes()?.gpu_instance_slice_count;
            found.push(GpuInstance { id, uuid: Arc::from(instance.uuid()?), index, slices, activity_ppm: None });
        }
    }
    found.sort_by_key(|instance| instance.id);
    Ok(found)
}

fn instance_id(instance: &Device<'_>) -> Result<u32, NvmlError> {
    let call = nvml_sym(instance.nvml().lib().nvmlDeviceGetGpuInstanceId.as_ref())?;
    let mut id = 0;
    // SAFETY: the handle is of this library, which `instance` borrows and so keeps open, and `id` lives through the call.
    nvml_try(unsafe { call(instance.handle(), &raw mut id) })?;
    Ok(id)
}
