//! Reading and writing what the program points to.

use std::slice;

use crate::call::Refused;

/// Writes a result to where the program wants it.
///
/// # Safety
///
/// `to` is NULL, which is refused, or valid for writing a `T`.
pub(crate) unsafe fn put<T>(to: *mut T, value: T) -> Result<(), Refused> {
    if to.is_null() {
        return Err(null());
    }
    // SAFETY: not NULL, so valid for writing.
    unsafe { to.write(value) };
    Ok(())
}

/// Writes the first `size` bytes of a result; what the program has room for beyond is zeroed: its
/// headers are newer, and have fields that are not known here.
///
/// # Safety
///
/// `to` is NULL, which is refused, or valid for writing `size` bytes; `T` has no padding that
/// matters, as structs of C headers.
pub(crate) unsafe fn put_sized<T: Copy>(to: *mut T, value: T, size: usize) -> Result<(), Refused> {
    if to.is_null() {
        return Err(null());
    }
    let known = size.min(size_of::<T>());
    let to = to.cast::<u8>();
    // SAFETY: `to` has room for `size` bytes, of which `known` come from a value of as many or more;
    // they are apart, since `value` is ours.
    unsafe {
        to.copy_from_nonoverlapping((&raw const value).cast(), known);
        to.add(known).write_bytes(0, size - known);
    }
    Ok(())
}

/// Reads an argument that the program points to.
///
/// # Safety
///
/// `from` is NULL, which is refused, or points to a `T`.
pub(crate) unsafe fn get<T: Copy>(from: *const T) -> Result<T, Refused> {
    if from.is_null() {
        return Err(null());
    }
    // SAFETY: not NULL, so it points to a `T`.
    Ok(unsafe { from.read() })
}

/// As [`get`], of a struct of which programs may have the first bytes alone, since their headers are
/// older: so many as `size` says. The rest is that of `zeroed`.
///
/// # Safety
///
/// `from` is NULL, which is refused, or points to as many bytes, and to all that `size` reads.
pub(crate) unsafe fn get_sized<T: Copy>(
    from: *const T,
    zeroed: T,
    size: impl FnOnce(*const T) -> usize,
) -> Result<T, Refused> {
    if from.is_null() {
        return Err(null());
    }
    let mut value = zeroed;
    let size = size(from).min(size_of::<T>());
    // SAFETY: so many bytes are there, and `value` has room for them: it is a struct of C, for which
    // any bytes will do.
    unsafe { (&raw mut value).cast::<u8>().copy_from_nonoverlapping(from.cast(), size) };
    Ok(value)
}

/// A list that the program points to; NULL is an empty one.
///
/// # Safety
///
/// `from` is NULL, or points to `count` values that nobody changes while the result is in use.
pub(crate) unsafe fn list<'a, T>(from: *const T, count: usize) -> &'a [T] {
    if from.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: not NULL, so it points to as many.
    unsafe { slice::from_raw_parts(from, count) }
}

fn null() -> Refused {
    Refused::invalid("a pointer is NULL that must not be")
}

/// Copies text into an array of C, cut off where it does not fit, and always ended.
pub(crate) fn copy_text(to: &mut [std::ffi::c_char], text: &str) {
    let room = to.len().saturating_sub(1);
    for (to, from) in to.iter_mut().zip(text.bytes().take(room)) {
        *to = from as std::ffi::c_char;
    }
}
