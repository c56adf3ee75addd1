//! The pointers of the C interface: each of NVML's shapes of writing and reading through them, once.

use std::ffi::{CStr, c_char, c_uint};

use crate::returns::Return;
use crate::units::count;

/// What a call answers.
pub type Answer = Result<(), Return>;

/// Writes one value.
pub fn put<T>(to: *mut T, value: T) -> Answer {
    if to.is_null() {
        return Err(Return::InvalidArgument);
    }
    // SAFETY: by NVML's contract a pointer that is not null is valid for writing one `T`.
    unsafe { to.write(value) };
    Ok(())
}

/// Reads one value.
pub fn take<T: Copy>(from: *const T) -> Result<T, Return> {
    if from.is_null() {
        return Err(Return::InvalidArgument);
    }
    // SAFETY: by NVML's contract a pointer that is not null points to one initialised `T`.
    Ok(unsafe { from.read() })
}

/// Writes a text with its final NUL into a buffer of `length` bytes.
pub fn put_text(to: *mut c_char, length: c_uint, text: &str) -> Answer {
    if to.is_null() {
        return Err(Return::InvalidArgument);
    }
    if count(text.len()) >= length {
        return Err(Return::InsufficientSize);
    }
    // SAFETY: the buffer has `length` bytes, which text and NUL do not exceed; it does not overlap our text.
    unsafe {
        to.copy_from_nonoverlapping(text.as_ptr().cast(), text.len());
        to.add(text.len()).write(0);
    }
    Ok(())
}

/// Writes a list of at most `size` entries; `size` then holds the length of the list.
pub fn put_list<T: Copy>(size: *mut c_uint, to: *mut T, values: &[T]) -> Answer {
    let room = take(size)?;
    put(size, count(values.len()))?;
    if values.is_empty() {
        return Ok(());
    }
    if to.is_null() || count(values.len()) > room {
        return Err(Return::InsufficientSize);
    }
    // SAFETY: the caller's buffer has room for `room` values, which is enough; it does not overlap ours.
    unsafe { to.copy_from_nonoverlapping(values.as_ptr(), values.len()) };
    Ok(())
}

/// Lets `change` loose on each of `length` values that are the caller's.
pub fn each<T>(length: usize, values: *mut T, mut change: impl FnMut(&mut T)) -> Answer {
    if values.is_null() {
        return Err(Return::InvalidArgument);
    }
    for index in 0..length {
        // SAFETY: by NVML's contract there are `length` initialised values, and nobody else uses them during the call.
        change(unsafe { &mut *values.add(index) });
    }
    Ok(())
}

/// Reads a text.
pub fn text<'a>(from: *const c_char) -> Result<&'a str, Return> {
    if from.is_null() {
        return Err(Return::InvalidArgument);
    }
    // SAFETY: by NVML's contract it ends with NUL, and it is used during the call only.
    unsafe { CStr::from_ptr(from) }.to_str().map_err(|_| Return::InvalidArgument)
}

/// Copies a text into a field of fixed size, cut where it is too long.
#[must_use]
pub fn field<const N: usize>(text: &str) -> [c_char; N] {
    let mut field = [0; N];
    for (to, from) in field.iter_mut().zip(text.bytes().take(N - 1)) {
        *to = c_char::from_ne_bytes([from]);
    }
    field
}
