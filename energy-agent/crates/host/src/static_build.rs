//! The static build, one file for any Linux. It has its C library in it and can load no other one beside that, be it the
//! NVIDIA driver's or one by which a C library looks up names.

/// Whether this is one.
pub const IS_STATIC: bool = cfg!(target_feature = "crt-static");

/// Has the C library look up names in files and by DNS only; to be called before any thread is started.
///
/// Left alone, a static glibc loads a module for every other word in the machine's /etc/nsswitch.conf (`resolve`, `sss`), and
/// with it the machine's own glibc. Where the two differ, that fails or crashes. Files and DNS are in it since glibc 2.34.
pub fn look_up_names_without_modules() {
    #[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
    for (database, services) in [(c"hosts", c"files dns"), (c"passwd", c"files")] {
        unsafe extern "C" {
            /// Source: <https://sourceware.org/git/?p=glibc.git;a=blob;f=nss/nss.h;hb=refs/tags/glibc-2.36>.
            fn __nss_configure_lookup(database: *const libc::c_char, services: *const libc::c_char) -> libc::c_int;
        }
        // SAFETY: both texts are constants that end with a zero; they are only read.
        unsafe { __nss_configure_lookup(database.as_ptr(), services.as_ptr()) };
    }
}
