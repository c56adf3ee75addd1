//! The module of a superchip (CPU, GPU and memory in one): its power beside the GPU's own, by NVML's scopes.

use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper_sys::bindings::field_id::NVML_FI_DEV_POWER_AVERAGE;
use nvml_wrapper_sys::bindings::{nvmlFieldValue_t, nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT};

/// What a field of power covers; `NVML_POWER_SCOPE_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerScope {
    Gpu,
    Module,
}

/// Power of the GPU or of the module around it, as a mean of about a second; milliwatts.
///
/// # Errors
/// As NVML says; `NotSupported` for the module of a GPU that has none.
pub fn power_mw(device: &Device<'_>, scope: PowerScope) -> Result<u32, NvmlError> {
    let call = nvml_sym(device.nvml().lib().nvmlDeviceGetFieldValues.as_ref())?;
    let scope_id = match scope {
        PowerScope::Gpu => 0,
        PowerScope::Module => 1,
    };
    // SAFETY: all fields are numbers, or a union of numbers.
    let mut value: nvmlFieldValue_t = unsafe { std::mem::zeroed() };
    (value.fieldId, value.scopeId) = (NVML_FI_DEV_POWER_AVERAGE, scope_id);
    // SAFETY: the handle is of this library, which `device` borrows and so keeps open, and the one value lives through the call.
    nvml_try(unsafe { call(device.handle(), 1, &raw mut value) })?;
    nvml_try(value.nvmlReturn)?;
    if value.valueType != nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT {
        return Err(NvmlError::NotSupported);
    }
    // SAFETY: the type says which field of the union was written.
    Ok(unsafe { value.value.uiVal })
}

/// Whether the GPU is part of a superchip, whose energy counter may be that of the whole module.
///
/// # Errors
/// When that can't be asked.
pub(crate) fn is_part_of_one(device: &Device<'_>, name: &str) -> Result<bool, NvmlError> {
    if ["GH200", "GB200", "GB300"].iter().any(|chip| name.contains(chip)) {
        return Ok(true);
    }
    match power_mw(device, PowerScope::Module) {
        Ok(_) => Ok(true),
        Err(NvmlError::NotSupported | NvmlError::InvalidArg | NvmlError::FunctionNotFound | NvmlError::NotFound) => {
            Ok(false)
        }
        Err(NvmlError::FailedToLoadSymbol(_)) => Ok(false),
        Err(error) => Err(error),
    }
}
