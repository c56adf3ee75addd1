//! A CUDA process of a chosen load, for trying the agent on a machine with an NVIDIA GPU. Needs the driver only: the
//! kernel is PTX that the driver compiles.
//!
//! `cuda-load DUTY SECONDS`: busy for DUTY (0 to 1) of each period. The period is no fraction of the fifth of a second in
//! which drivers look at the GPU, and longer for a higher duty: loads in step with the driver or each other would fool it.

#![expect(clippy::unwrap_used, reason = "tried by people; it ends at the first thing that is wrong")]

use std::ffi::{CString, c_char, c_int, c_void};
use std::thread::sleep;
use std::time::{Duration, Instant};
use std::{env, mem, process, ptr};

const SHORTEST_PERIOD: Duration = Duration::from_millis(31);
/// About half a millisecond on a GPU of today.
const CYCLES: u64 = 1_000_000;
const BLOCKS: u32 = 1024;
const THREADS: u32 = 256;

/// Multiplies and adds for `cycles` of the SM's clock.
const PTX: &str = "
.version 6.3
.target sm_75
.address_size 64
.visible .entry spin(.param .u64 cycles, .param .u64 out)
{
    .reg .pred %p<3>;
    .reg .f32 %f<6>;
    .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [cycles];
    mov.u64 %rd2, %clock64;
    mov.f32 %f1, 0f3F800000;
    mov.f32 %f2, 0f3F800001;
    mov.f32 %f3, 0f3F000000;
    mov.f32 %f4, 0f3F400000;
    mov.f32 %f5, 0f3FA00000;
AGAIN:
    fma.rn.f32 %f1, %f1, %f2, %f3;
    fma.rn.f32 %f4, %f4, %f2, %f3;
    fma.rn.f32 %f5, %f5, %f2, %f3;
    fma.rn.f32 %f1, %f1, %f2, %f4;
    fma.rn.f32 %f4, %f4, %f2, %f5;
    fma.rn.f32 %f5, %f5, %f2, %f1;
    mov.u64 %rd3, %clock64;
    sub.u64 %rd4, %rd3, %rd2;
    setp.lt.u64 %p1, %rd4, %rd1;
    @%p1 bra AGAIN;
    setp.eq.f32 %p2, %f1, 0f00000000;
    ld.param.u64 %rd5, [out];
    @%p2 st.global.f32 [%rd5], %f5;
    ret;
}
";

fn main() {
    let mut arguments = env::args().skip(1).map(|argument| argument.parse::<f64>());
    let (Some(Ok(duty)), Some(Ok(seconds))) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: cuda-load DUTY SECONDS");
        process::exit(2);
    };
    let gpu = Gpu::open();
    println!("ready: {}", if gpu.function.is_null() { "memset" } else { "fma kernel" });
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let period = SHORTEST_PERIOD.mul_f64(1.0 + duty / 3.0);
    while Instant::now() < end {
        let began = Instant::now();
        while began.elapsed() < period.mul_f64(duty) {
            gpu.work();
        }
        sleep(period.saturating_sub(began.elapsed()));
    }
}

/// The first GPU, with a context.
struct Gpu {
    driver: *mut c_void,
    /// Null where the driver cannot compile PTX; then memory is set instead.
    function: *mut c_void,
    memory: u64,
}

const MEMORY_BYTES: usize = 1 << 28;

impl Gpu {
    fn open() -> Self {
        // SAFETY: the driver's public functions are called with the types of cuda.h.
        unsafe {
            let driver = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW);
            assert!(!driver.is_null(), "libcuda.so.1 is not there: no NVIDIA driver");
            let init: unsafe extern "C" fn(u32) -> c_int = symbol(driver, "cuInit");
            check("cuInit", init(0));
            let get: unsafe extern "C" fn(*mut c_int, c_int) -> c_int = symbol(driver, "cuDeviceGet");
            let mut device = 0;
            check("cuDeviceGet", get(&raw mut device, 0));
            let retain: unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int =
                symbol(driver, "cuDevicePrimaryCtxRetain");
            let mut context = ptr::null_mut();
            check("cuDevicePrimaryCtxRetain", retain(&raw mut context, device));
            let current: unsafe extern "C" fn(*mut c_void) -> c_int = symbol(driver, "cuCtxSetCurrent");
            check("cuCtxSetCurrent", current(context));
            let allocate: unsafe extern "C" fn(*mut u64, usize) -> c_int = symbol(driver, "cuMemAlloc_v2");
            let mut memory = 0;
            check("cuMemAlloc_v2", allocate(&raw mut memory, MEMORY_BYTES));
            let load: unsafe extern "C" fn(*mut *mut c_void, *const c_char) -> c_int =
                symbol(driver, "cuModuleLoadData");
            let (mut module, mut function) = (ptr::null_mut(), ptr::null_mut());
            let text = CString::new(PTX).unwrap();
            let loaded = load(&raw mut module, text.as_ptr());
            if loaded == 0 {
                let find: unsafe extern "C" fn(*mut *mut c_void, *mut c_void, *const c_char) -> c_int =
                    symbol(driver, "cuModuleGetFunction");
                check("cuModuleGetFunction", find(&raw mut function, module, c"spin".as_ptr()));
            } else {
                eprintln!("cuModuleLoadData: error {loaded}, setting memory instead");
            }
            Self { driver, function, memory }
        }
    }

    /// About half a millisecond of work on all SMs.
    fn work(&self) {
        // SAFETY: as in `open`; the arguments of the kernel live until it has been launched.
        unsafe {
            if self.function.is_null() {
                let set: unsafe extern "C" fn(u64, u32, usize) -> c_int = symbol(self.driver, "cuMemsetD32_v2");
                check("cuMemsetD32_v2", set(self.memory, 7, MEMORY_BYTES / 4));
            } else {
                let (mut cycles, mut out) = (CYCLES, self.memory);
                let mut arguments = [(&raw mut cycles).cast::<c_void>(), (&raw mut out).cast()];
                let launch: Launch = symbol(self.driver, "cuLaunchKernel");
                let (stream, extra) = (ptr::null_mut(), ptr::null_mut());
                let arguments = arguments.as_mut_ptr();
                let launched = launch(self.function, BLOCKS, 1, 1, THREADS, 1, 1, 0, stream, arguments, extra);
                check("cuLaunchKernel", launched);
            }
            let wait: unsafe extern "C" fn() -> c_int = symbol(self.driver, "cuCtxSynchronize");
            check("cuCtxSynchronize", wait());
        }
    }
}

type Launch = unsafe extern "C" fn(
    *mut c_void,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    *mut c_void,
    *mut *mut c_void,
    *mut *mut c_void,
) -> c_int;

/// # Safety
/// `F` must be the type of the function `name` of the library.
unsafe fn symbol<F: Copy>(library: *mut c_void, name: &str) -> F {
    let text = CString::new(name).unwrap();
    // SAFETY: the library is open and the name ends with a zero; a function pointer is as large as a pointer.
    unsafe {
        let found = libc::dlsym(library, text.as_ptr());
        assert!(!found.is_null(), "libcuda.so.1 lacks {name}");
        mem::transmute_copy(&found)
    }
}

fn check(call: &str, result: c_int) {
    assert_eq!(result, 0, "{call} failed");
}
