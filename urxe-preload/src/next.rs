//! The functions that are replaced, as the libraries behind this one have them.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of the next library that has one of this name: the C library, or another that is
/// preloaded.
pub(crate) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    /// Not looked for yet.
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Its address; `None` when no library has it, as with functions that came later.
    pub(crate) fn address(&self) -> Option<*mut c_void> {
        let found = self.found.load(Ordering::Acquire);
        if !found.is_null() {
            return Some(found);
        }
        // Two threads that come at once find the same.
        // SAFETY: the name ends with 0, and RTLD_NEXT is what dlsym(3) takes for this purpose.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Release);
        (!found.is_null()).then_some(found)
    }
}

/// Sets errno for a function that no library has.
pub(crate) fn set_no_such_function() {
    // SAFETY: it is the place of this thread's errno, always.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_c_library_has_is_found_once() {
        let next = Next::new(c"getppid");
        let first = next.address().expect("every C library has it");
        assert_eq!(next.address(), Some(first));
        assert_eq!(Next::new(c"urxe_no_such_function").address(), None);
    }
}
