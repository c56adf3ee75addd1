//! NVML's return codes, by the names of `nvmlReturn_t` without the prefix.

use std::ffi::CStr;

use serde::{Deserialize, Serialize};

macro_rules! returns {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "SCREAMING_SNAKE_CASE")]
        pub enum Return {
            $($(#[$doc])* $name,)*
        }

        impl Return {
            /// The number of `nvmlReturn_t`.
            #[must_use]
            pub fn code(self) -> u32 {
                match self {
                    $(Self::$name => $code,)*
                }
            }

            /// What `nvmlErrorString` says.
            #[must_use]
            pub fn text(code: u32) -> &'static CStr {
                match code {
                    $($code => $text,)*
                    _ => c"Unknown Error",
                }
            }
        }
    };
}

returns! {
    Success = 0, c"Success";
    Uninitialized = 1, c"Uninitialized";
    InvalidArgument = 2, c"Invalid Argument";
    NotSupported = 3, c"Not Supported";
    NoPermission = 4, c"Insufficient Permissions";
    AlreadyInitialized = 5, c"Already Initialized";
    NotFound = 6, c"Not Found";
    InsufficientSize = 7, c"Insufficient Size";
    InsufficientPower = 8, c"Insufficient External Power";
    DriverNotLoaded = 9, c"Driver Not Loaded";
    Timeout = 10, c"Timeout";
    IrqIssue = 11, c"Interrupt Request Issue";
    LibraryNotFound = 12, c"NVML Shared Library Not Found";
    FunctionNotFound = 13, c"Function Not Found";
    CorruptedInforom = 14, c"Corrupted infoROM";
    GpuIsLost = 15, c"GPU is lost";
    ResetRequired = 16, c"GPU requires reset";
    OperatingSystem = 17, c"GPU access blocked by the operating system";
    LibRmVersionMismatch = 18, c"Driver/library version mismatch";
    InUse = 19, c"In use by another client";
    Memory = 20, c"Insufficient Memory";
    NoData = 21, c"No data";
    InsufficientResources = 23, c"Insufficient resources";
    FreqNotSupported = 24, c"Frequency not supported";
    ArgumentVersionMismatch = 25, c"The provided version is invalid/unsupported";
    Deprecated = 26, c"The requested functionality has been deprecated";
    NotReady = 27, c"The system is not ready for the request";
    GpuNotFound = 28, c"No GPUs were found";
    InvalidState = 29, c"Resource not in correct state to perform requested operation";
    Unknown = 999, c"Unknown Error";
}

#[cfg(test)]
mod tests {
    use nvml_wrapper_sys::bindings as nvml;

    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_header() {
        assert_eq!(Return::NotSupported.code(), nvml::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED);
        assert_eq!(Return::GpuIsLost.code(), nvml::nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST);
        assert_eq!(Return::LibRmVersionMismatch.code(), nvml::nvmlReturn_enum_NVML_ERROR_LIB_RM_VERSION_MISMATCH);
        assert_eq!(Return::InvalidState.code(), nvml::nvmlReturn_enum_NVML_ERROR_INVALID_STATE);
        assert_eq!(Return::text(15), c"GPU is lost");
    }

    #[test]
    fn the_names_are_those_of_the_header() {
        let json = serde_json::to_string(&Return::LibRmVersionMismatch).unwrap();
        assert_eq!(json, r#""LIB_RM_VERSION_MISMATCH""#);
    }
}
