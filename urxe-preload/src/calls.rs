//! Every function of the C library that is replaced.
//!
//! They are all alike: the path is exchanged (`crate::path`), everything else goes on as it came.
//! glibc has several names for one thing: with `64` for large files, with `__..._2` and `__..._chk`
//! for programs built with `_FORTIFY_SOURCE`, and `__xstat` and its kin for those built before glibc
//! 2.33. A thread that is cancelled ends in some of them (pthreads(7)), which unwinds the functions
//! here: that is what `C-unwind` lets it do, and there is nothing in them to be dropped. The variable
//! arguments of `open` are passed as one more argument: on the machines that
//! Linux runs on an integer is passed the same way, and one that is not there is not read.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::{DIR, FILE, mode_t, size_t, ssize_t};

use crate::next::{Next, set_no_such_function};
use crate::path::{Buffer, instead_of};

/// `NAME(arguments before; the path; arguments behind) -> result, or this when it fails`, one
/// function each.
macro_rules! redirect {
    ($($name:ident($($before:ident: $before_type:ty),*; $path:ident; $($behind:ident: $behind_type:ty),*)
        -> $result:ty, $failed:expr;)*) => { $(
        #[doc = concat!("`", stringify!($name), "(3)`, of the path in the folder where it is one of ours.")]
        ///
        /// # Safety
        ///
        /// That of the C function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            $($before: $before_type,)* $path: *const c_char $(, $behind: $behind_type)*
        ) -> $result {
            type Function = unsafe extern "C-unwind" fn(
                $($before_type,)* *const c_char $(, $behind_type)*
            ) -> $result;
            static NEXT: Next = Next::new(
                // The macro adds the 0 itself, since stringify! gives no C text.
                match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name has no 0 in it"),
                },
            );
            let Some(next) = NEXT.address() else {
                set_no_such_function();
                return $failed;
            };
            // SAFETY: the C library's function of this name has this type.
            let next = unsafe { std::mem::transmute::<*mut c_void, Function>(next) };
            let mut buffer = Buffer::new();
            // SAFETY: the caller gives what the C function wants, so a path or null.
            let $path = unsafe { instead_of($path, &mut buffer) };
            // SAFETY: what came is handed on, but for the path, which is valid until it returns.
            unsafe { next($($before,)* $path $(, $behind)*) }
        }
    )* };
}

// Opening.
redirect! {
    open(; path; flags: c_int, mode: mode_t) -> c_int, -1;
    open64(; path; flags: c_int, mode: mode_t) -> c_int, -1;
    __open_2(; path; flags: c_int) -> c_int, -1;
    __open64_2(; path; flags: c_int) -> c_int, -1;
    openat(folder: c_int; path; flags: c_int, mode: mode_t) -> c_int, -1;
    openat64(folder: c_int; path; flags: c_int, mode: mode_t) -> c_int, -1;
    __openat_2(folder: c_int; path; flags: c_int) -> c_int, -1;
    __openat64_2(folder: c_int; path; flags: c_int) -> c_int, -1;
    fopen(; path; mode: *const c_char) -> *mut FILE, std::ptr::null_mut();
    fopen64(; path; mode: *const c_char) -> *mut FILE, std::ptr::null_mut();
    chdir(; path;) -> c_int, -1;
}

// Asking what is there.
redirect! {
    stat(; path; found: *mut c_void) -> c_int, -1;
    stat64(; path; found: *mut c_void) -> c_int, -1;
    lstat(; path; found: *mut c_void) -> c_int, -1;
    lstat64(; path; found: *mut c_void) -> c_int, -1;
    fstatat(folder: c_int; path; found: *mut c_void, flags: c_int) -> c_int, -1;
    fstatat64(folder: c_int; path; found: *mut c_void, flags: c_int) -> c_int, -1;
    statx(folder: c_int; path; flags: c_int, mask: c_uint, found: *mut c_void) -> c_int, -1;
    __xstat(version: c_int; path; found: *mut c_void) -> c_int, -1;
    __xstat64(version: c_int; path; found: *mut c_void) -> c_int, -1;
    __lxstat(version: c_int; path; found: *mut c_void) -> c_int, -1;
    __lxstat64(version: c_int; path; found: *mut c_void) -> c_int, -1;
    __fxstatat(version: c_int, folder: c_int; path; found: *mut c_void, flags: c_int) -> c_int, -1;
    __fxstatat64(version: c_int, folder: c_int; path; found: *mut c_void, flags: c_int)
        -> c_int, -1;
    access(; path; mode: c_int) -> c_int, -1;
    eaccess(; path; mode: c_int) -> c_int, -1;
    euidaccess(; path; mode: c_int) -> c_int, -1;
    faccessat(folder: c_int; path; mode: c_int, flags: c_int) -> c_int, -1;
}

// Folders and links.
redirect! {
    opendir(; path;) -> *mut DIR, std::ptr::null_mut();
    scandir(; path; list: *mut c_void, filter: *mut c_void, order: *mut c_void) -> c_int, -1;
    scandir64(; path; list: *mut c_void, filter: *mut c_void, order: *mut c_void) -> c_int, -1;
    glob(; pattern; flags: c_int, error: *mut c_void, found: *mut c_void)
        -> c_int, libc::GLOB_ABORTED;
    glob64(; pattern; flags: c_int, error: *mut c_void, found: *mut c_void)
        -> c_int, libc::GLOB_ABORTED;
    readlink(; path; target: *mut c_char, room: size_t) -> ssize_t, -1;
    readlinkat(folder: c_int; path; target: *mut c_char, room: size_t) -> ssize_t, -1;
    __readlink_chk(; path; target: *mut c_char, room: size_t, size: size_t) -> ssize_t, -1;
    __readlinkat_chk(folder: c_int; path; target: *mut c_char, room: size_t, size: size_t)
        -> ssize_t, -1;
    realpath(; path; resolved: *mut c_char) -> *mut c_char, std::ptr::null_mut();
    __realpath_chk(; path; resolved: *mut c_char, size: size_t)
        -> *mut c_char, std::ptr::null_mut();
    canonicalize_file_name(; path;) -> *mut c_char, std::ptr::null_mut();
}
