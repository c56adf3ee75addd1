//! The exported calls, under NVIDIA's names and with NVIDIA's types; by subject.

pub mod clocks;
pub mod device;
pub mod events;
pub mod mig;
pub mod power;
pub mod processes;
pub mod system;

/// Defines exported calls. Each has `NAME`, answers as its block does, and its type is compared with the bindings' by a
/// test.
macro_rules! export {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(
            #[doc = concat!("<https://docs.nvidia.com/deploy/nvml-api/>: `", stringify!($name), "`.")]
            ///
            /// # Safety
            /// As NVML's: pointers are null or valid.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> nvml_wrapper_sys::bindings::nvmlReturn_t {
                #[allow(dead_code, reason = "not every call uses it")]
                const NAME: &str = stringify!($name);
                fn answer($($argument: $type),*) -> $crate::abi::Answer $body
                $crate::spent::during(|| answer($($argument),*).map_or_else(|error| error.code(), |()| 0))
            }
        )*

        pub(super) const SYMBOLS: &[&str] = &[$(stringify!($name)),*];

        #[cfg(test)]
        pub(super) fn have_the_types_of(library: &mut nvml_wrapper_sys::bindings::NvmlLib) {
            $(library.$name = Ok($name);)*
        }
    };
}
use export;

/// Whether that is one of the calls.
#[must_use]
pub fn is_symbol(name: &str) -> bool {
    symbols().any(|symbol| symbol == name)
}

/// The names of all calls.
pub fn symbols() -> impl Iterator<Item = &'static str> {
    let all = [
        clocks::SYMBOLS,
        device::SYMBOLS,
        events::SYMBOLS,
        mig::SYMBOLS,
        power::SYMBOLS,
        processes::SYMBOLS,
        system::SYMBOLS,
    ];
    all.into_iter().flatten().copied().chain(["nvmlErrorString"])
}

#[cfg(test)]
mod tests {
    use nvml_wrapper_sys::bindings::NvmlLib;

    use super::*;

    /// That it compiles says that every call has the type that the bindings of NVML's header give it.
    #[test]
    fn every_call_has_the_type_of_the_header() {
        let checks: [fn(&mut NvmlLib); 7] = [
            clocks::have_the_types_of,
            device::have_the_types_of,
            events::have_the_types_of,
            mig::have_the_types_of,
            power::have_the_types_of,
            processes::have_the_types_of,
            system::have_the_types_of,
        ];
        assert_eq!(checks.len(), 7);
        assert!(is_symbol("nvmlDeviceGetPowerUsage") && !is_symbol("nvmlDeviceGetPowerUse"));
    }
}
