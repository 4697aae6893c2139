//! Pages of a test, as a C program has them.
#![allow(dead_code, clippy::unwrap_used)] // each test file uses a part of it

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr;
use std::sync::Arc;

use rxe_core::mem::{Backing, UserMemory, catch_faults};

/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;

/// Memory mapped for reading and writing; dropping it unmaps what is left.
///
/// Before and behind it is a page that nobody may access: so what is unmapped is a small hole, in
/// which the mappings of other tests do not fit.
#[derive(Debug)]
pub(crate) struct Pages {
    base: *mut u8,
    count: usize,
    file: Option<File>,
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: all of it is ours, and nothing in it is referred to.
        let done = unsafe { libc::munmap(self.base.sub(PAGE).cast(), (self.count + 2) * PAGE) };
        assert_eq!(done, 0);
    }
}

impl Pages {
    /// `count` pages of zeros.
    pub(crate) fn anonymous(count: usize) -> Self {
        Self::map(count, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, None)
    }

    /// `count` pages of a file that has no name.
    pub(crate) fn of_file(count: usize) -> Self {
        // SAFETY: a name without flags.
        let fd = unsafe { libc::memfd_create(c"urxe test".as_ptr(), 0) };
        assert!(fd >= 0);
        // SAFETY: it has just been opened, and nobody else has it.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len((count * PAGE) as u64).unwrap();
        Self::map(count, libc::MAP_SHARED, Some(file))
    }

    fn map(count: usize, flags: i32, file: Option<File>) -> Self {
        let reserve = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let size = (count + 2) * PAGE;
        // SAFETY: a new mapping, where the kernel likes it.
        let all = unsafe { libc::mmap(ptr::null_mut(), size, libc::PROT_NONE, reserve, -1, 0) };
        assert_ne!(all, libc::MAP_FAILED);
        let base = all.cast::<u8>().wrapping_add(PAGE);
        let fd = file.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, flags | libc::MAP_FIXED);
        // SAFETY: the middle of what has just been mapped.
        let mapped = unsafe { libc::mmap(base.cast(), count * PAGE, access, flags, fd, 0) };
        assert_eq!(mapped, base.cast());
        Self { base, count, file }
    }

    /// The memory for registration; the faults of this process are caught from here on.
    pub(crate) fn backing(&self) -> Arc<dyn Backing> {
        Arc::new(self.user_memory())
    }

    /// As [`Self::backing`].
    pub(crate) fn user_memory(&self) -> UserMemory {
        catch_faults().unwrap();
        // SAFETY: faults are caught, and nothing in these pages is referred to.
        unsafe { UserMemory::new(self.base, self.count * PAGE) }.unwrap()
    }

    /// Address of the first byte.
    pub(crate) fn addr(&self) -> u64 {
        self.base as u64
    }

    /// Takes pages away.
    pub(crate) fn unmap(&self, first: usize, count: usize) {
        // SAFETY: these pages are ours, and nothing in them is referred to.
        let done = unsafe { libc::munmap(self.page(first).cast(), count * PAGE) };
        assert_eq!(done, 0);
    }

    /// Changes what may be done with pages.
    pub(crate) fn protect(&self, first: usize, count: usize, protection: i32) {
        // SAFETY: as for `unmap`.
        let done = unsafe { libc::mprotect(self.page(first).cast(), count * PAGE, protection) };
        assert_eq!(done, 0);
    }

    /// Shortens the file to `count` pages.
    pub(crate) fn truncate(&self, count: usize) {
        self.file.as_ref().unwrap().set_len((count * PAGE) as u64).unwrap();
    }

    /// What the program sees at an offset.
    pub(crate) fn byte(&self, offset: usize) -> u8 {
        // SAFETY: the test looks where there is something, and nobody writes meanwhile.
        unsafe { self.base.add(offset).read_volatile() }
    }

    fn page(&self, index: usize) -> *mut u8 {
        assert!(index <= self.count);
        self.base.wrapping_add(index * PAGE)
    }
}
