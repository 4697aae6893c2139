//! Memory of objects that the program supplies: the allocators of a parent domain
//! (`ibv_alloc_parent_domain(3)`).
//!
//! Asked for is what this library keeps of an object's size: the pieces and the inline data of the
//! request that is put together on a queue pair, and the completion that is read from an extended
//! completion queue. Shared receive queues have nothing of the kind. The queues of the engine are no
//! part of it: they are memory of its own, and grow with what is posted.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::{c_int, c_void};
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::slice;

use crate::call::Refused;
use crate::handles::{Held, Object};
use crate::pd::Pd;
use crate::types::{Alloc, Free};

/// The functions of a program that give memory and take it back, and its own word for them.
#[derive(Clone, Copy)]
pub(crate) struct Allocators {
    pub(crate) alloc: Alloc,
    pub(crate) free: Free,
    pub(crate) pd_context: *mut c_void,
}

// SAFETY: the word is the program's, and only handed back to it; its functions are called by the
// thread that makes or destroys an object, as with any libibverbs.
unsafe impl Send for Allocators {}
// SAFETY: as for `Send`.
unsafe impl Sync for Allocators {}

impl fmt::Debug for Allocators {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allocators").finish_non_exhaustive()
    }
}

/// `IBV_ALLOCATOR_USE_DEFAULT`: the program leaves this one to us.
const USE_DEFAULT: usize = usize::MAX;

/// What memory is for: the `resource_type` of the program's functions. The upper half names the
/// driver of the kernel (`enum rdma_driver_id`), and 0 is none that it knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub(crate) enum Resource {
    /// The request that is put together on a queue pair.
    QueuePair = 1,
    /// The completion that is read from a queue.
    CompletionQueue = 2,
}

/// The alignment that is asked for: a line of the cache.
const ALIGN: usize = 64;

/// A list of limited length, in memory of the program or our own.
pub(crate) struct SuppliedList<T> {
    base: NonNull<T>,
    capacity: usize,
    len: usize,
    source: Source,
    values: PhantomData<T>,
}

enum Source {
    /// There is none, as nothing fits in it.
    Nothing,
    Heap(Layout),
    Program {
        pd: Held<Pd>,
        allocators: Allocators,
        resource: Resource,
    },
}

// SAFETY: the list owns its memory, and gives it away by `&self` and `&mut self` as a `Vec` does.
unsafe impl<T: Send> Send for SuppliedList<T> {}
// SAFETY: as for `Send`.
unsafe impl<T: Sync> Sync for SuppliedList<T> {}

impl<T> fmt::Debug for SuppliedList<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} values", self.len, self.capacity)
    }
}

impl<T: Copy> SuppliedList<T> {
    /// A list for as many values; the memory is that of the domain's allocators, if it has any.
    pub(crate) fn new(
        pd: Option<&Held<Pd>>,
        capacity: usize,
        resource: Resource,
    ) -> Result<Self, Refused> {
        let too_long = |_| Refused::new(libc::ENOMEM, "no memory can be as long");
        let layout = Layout::array::<T>(capacity).and_then(|layout| layout.align_to(ALIGN));
        let layout = layout.map_err(too_long)?;
        let (base, source) = if layout.size() == 0 {
            (NonNull::dangling(), Source::Nothing)
        } else {
            memory(pd, layout, resource)?
        };
        Ok(Self { base: base.cast(), capacity, len: 0, source, values: PhantomData })
    }

    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    /// Adds values; `EINVAL` where there is no room for all of them.
    pub(crate) fn extend(&mut self, values: &[T]) -> Result<(), c_int> {
        // SAFETY: a list is as long as it says.
        unsafe { self.extend_from(values.as_ptr(), values.len()) }
    }

    /// As [`Self::extend`].
    ///
    /// # Safety
    ///
    /// So many values can be read there; they may be anything's but this list's.
    pub(crate) unsafe fn extend_from(&mut self, from: *const T, count: usize) -> Result<(), c_int> {
        if count > self.capacity - self.len {
            return Err(libc::EINVAL);
        }
        if count == 0 {
            return Ok(());
        }
        // SAFETY: there is room for as many behind those that are there, and the caller's.
        unsafe { self.base.as_ptr().add(self.len).copy_from_nonoverlapping(from, count) };
        self.len += count;
        Ok(())
    }

    pub(crate) fn as_slice(&self) -> &[T] {
        // SAFETY: so many have been written.
        unsafe { slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

/// Asks the program, if it is to be asked, and the heap otherwise.
fn memory(
    pd: Option<&Held<Pd>>,
    layout: Layout,
    resource: Resource,
) -> Result<(NonNull<u8>, Source), Refused> {
    let none = || Refused::new(libc::ENOMEM, format!("no {} bytes of memory", layout.size()));
    if let Some((pd, allocators)) = pd.and_then(|pd| Some((pd, pd.allocators()?))) {
        let Allocators { alloc, pd_context, .. } = allocators;
        // SAFETY: the program's function, called as it wants to be.
        let given = unsafe {
            alloc(pd.handle(), pd_context, layout.size(), layout.align(), resource as u64)
        };
        let given = given.cast::<u8>();
        if given.addr() != USE_DEFAULT {
            let base = NonNull::new(given).ok_or_else(none)?;
            let source = Source::Program { pd: pd.clone(), allocators, resource };
            if !base.addr().get().is_multiple_of(layout.align()) {
                give_back(base.as_ptr(), &source);
                let why = format!("the program's memory is not aligned to {} bytes", ALIGN);
                return Err(Refused::invalid(why));
            }
            return Ok((base, source));
        }
    }
    // SAFETY: the size is not 0.
    let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(none)?;
    Ok((base, Source::Heap(layout)))
}

fn give_back(base: *mut u8, source: &Source) {
    match source {
        Source::Nothing => {}
        // SAFETY: it comes from the heap, with this layout.
        Source::Heap(layout) => unsafe { dealloc(base, *layout) },
        Source::Program { pd, allocators: Allocators { free, pd_context, .. }, resource } => {
            // SAFETY: the program's function, for memory that its other one gave.
            unsafe { free(pd.handle(), *pd_context, base.cast(), *resource as u64) }
        }
    }
}

impl<T> Drop for SuppliedList<T> {
    fn drop(&mut self) {
        give_back(self.base.as_ptr().cast(), &self.source);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_takes_as_many_as_it_has_room_for() {
        let mut list = SuppliedList::<u32>::new(None, 3, Resource::QueuePair).unwrap();
        assert_eq!(list.as_slice(), &[]);
        list.extend(&[1, 2]).unwrap();
        assert_eq!(list.extend(&[3, 4]), Err(libc::EINVAL));
        list.extend(&[3]).unwrap();
        assert_eq!(list.as_slice(), &[1, 2, 3]);
        assert!(list.base.as_ptr().addr().is_multiple_of(ALIGN));
        list.clear();
        list.extend(&[7]).unwrap();
        assert_eq!(list.as_slice(), &[7]);
    }

    #[test]
    fn nothing_needs_no_memory() {
        let mut list = SuppliedList::<u64>::new(None, 0, Resource::QueuePair).unwrap();
        assert!(matches!(list.source, Source::Nothing));
        assert_eq!((list.extend(&[]), list.extend(&[1])), (Ok(()), Err(libc::EINVAL)));
        assert!(SuppliedList::<u64>::new(None, usize::MAX, Resource::QueuePair).is_err());
    }
}
