//! The objects that the program has pointers to.
//!
//! Each is an `Arc` of a struct that begins with what the C header shows of it; the program gets the
//! address of that part. A table of each kind holds those that are alive. Calls off the data path
//! look the pointer up in it: so a pointer that is NULL, was destroyed, or never was one, is an
//! error of the call, and what a call works on stays there while it does, whatever other threads
//! destroy. Posting and polling do not look ([`Object::trusted`]), and trust the program as every
//! libibverbs does.

use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::fmt;
use std::mem;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Once};

use std::time::Duration;

use parking_lot::RwLock;

use crate::call::Refused;
use crate::fork::{self, AcrossFork};

/// The part of an object that the C header shows. The program may read it at any time.
#[repr(transparent)]
pub(crate) struct Shown<T>(UnsafeCell<T>);

// SAFETY: it is only reached by raw pointers, as the program reaches it; what is written after the
// object was given to the program is single words that the program expects to change.
unsafe impl<T> Send for Shown<T> {}
// SAFETY: as for `Send`.
unsafe impl<T> Sync for Shown<T> {}

impl<T> Shown<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    /// Its address.
    pub(crate) fn as_ptr(&self) -> *mut T {
        self.0.get()
    }
}

impl<T> fmt::Debug for Shown<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:p}", self.0.get())
    }
}

/// Something that the program has a pointer to.
pub(crate) trait Object: Sized + 'static {
    /// What the C header calls it.
    type C: 'static;
    /// What messages call it.
    const NAME: &'static str;

    /// Those that are alive.
    fn table() -> &'static Table<Self>;

    /// The address that the program has.
    fn handle(&self) -> *mut Self::C;

    /// How many objects are made with it.
    fn users(&self) -> &Users;

    /// The object of a pointer, without a look.
    ///
    /// # Safety
    ///
    /// The pointer is what [`Table::publish`] gave, and the object is not destroyed while the result
    /// is in use.
    unsafe fn trusted<'a>(handle: *mut Self::C) -> &'a Self;

    /// The child of a fork has it too; others are the parent's alone.
    const SURVIVES_FORK: bool = false;

    /// In the child of a fork: makes the parent's part of it useless, as what the program calls by
    /// pointers in it. It only writes to memory, no more.
    fn after_fork(&self) {}
}

/// How many objects are made with this one.
#[derive(Debug, Default)]
pub(crate) struct Users(AtomicU32);

impl Users {
    /// In the child of a fork: those are the parent's.
    pub(crate) fn forget(&self) {
        self.0.store(0, Ordering::Release);
    }
}

/// The live objects of one kind, by their addresses.
pub(crate) struct Table<T> {
    objects: UnsafeCell<RwLock<Objects<T>>>,
    /// Told to the handler of forks.
    is_watched: Once,
}

type Objects<T> = BTreeMap<usize, Arc<T>>;

// SAFETY: the cell is only written to in the child of a fork, which has one thread.
unsafe impl<T: Send + Sync> Sync for Table<T> {}

impl<T: Object> fmt::Debug for Table<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of kind {}", self.len(), T::NAME)
    }
}

impl<T: Object + Send + Sync> AcrossFork for Table<T> {
    fn lock(&self) {
        mem::forget(self.objects().write());
    }

    unsafe fn unlock(&self) {
        // SAFETY: the caller's: this thread has locked it.
        unsafe { self.objects().force_unlock_write() };
    }

    unsafe fn begin_anew(&self) {
        // SAFETY: the caller's: there is no other thread, and the lock was taken before the fork, so
        // the map is whole. The old lock is left as it is: threads that are not here waited for it.
        unsafe {
            let old = mem::take(&mut *self.objects().data_ptr());
            old.values().for_each(|object| object.after_fork());
            let kept = if T::SURVIVES_FORK {
                old
            } else {
                // Not dropped: dropping would work on what is the parent's.
                mem::forget(old);
                BTreeMap::new()
            };
            self.objects.get().write(RwLock::new(kept));
        }
    }
}

impl<T: Object> Table<T> {
    pub(crate) const fn new() -> Self {
        let objects = UnsafeCell::new(RwLock::new(BTreeMap::new()));
        Self { objects, is_watched: Once::new() }
    }

    fn objects(&self) -> &RwLock<Objects<T>> {
        // SAFETY: it is only written to where there is no other thread, and where nobody holds what
        // this gives.
        unsafe { &*self.objects.get() }
    }

    /// Lets the program have an object, and gives its address.
    pub(crate) fn publish(&'static self, object: Arc<T>) -> *mut T::C
    where
        T: Send + Sync,
    {
        self.is_watched.call_once(|| fork::watch(self));
        let handle = object.handle();
        self.objects().write().insert(handle.addr(), object);
        handle
    }

    /// The object of a pointer.
    pub(crate) fn get(&self, handle: *mut T::C) -> Result<Arc<T>, Refused> {
        self.objects().read().get(&handle.addr()).cloned().ok_or_else(|| Self::unknown(handle))
    }

    /// Takes an object away from the program, unless others are made with it (`EBUSY`).
    pub(crate) fn withdraw(&self, handle: *mut T::C) -> Result<Arc<T>, Refused> {
        let mut table = self.objects().write();
        let object = table.get(&handle.addr()).ok_or_else(|| Self::unknown(handle))?;
        // `Held` counts while it holds the object of a table, so under its lock or by a thread that
        // has looked it up already: such a thread races with the program's own destruction.
        let users = object.users().0.load(Ordering::Acquire);
        if users > 0 {
            let name = T::NAME;
            let why = format!("the {name} is in use: destroy first the {users} made with it");
            return Err(Refused::new(libc::EBUSY, why));
        }
        table.remove(&handle.addr()).ok_or_else(|| Self::unknown(handle))
    }

    /// Takes an object away from the program, whether it is in use or not.
    pub(crate) fn forget(&self, handle: *mut T::C) -> Result<Arc<T>, Refused> {
        self.objects().write().remove(&handle.addr()).ok_or_else(|| Self::unknown(handle))
    }

    /// Takes all objects that `select` wants away from the program, whatever is made with them.
    pub(crate) fn withdraw_all(&self, select: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let mut table = self.objects().write();
        let gone = table.iter().filter(|(_, object)| select(object));
        let gone: Vec<usize> = gone.map(|(&address, _)| address).collect();
        gone.iter().filter_map(|address| table.remove(address)).collect()
    }

    /// The first object that `select` wants.
    pub(crate) fn find(&self, select: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        self.find_and(select, |_| ())
    }

    /// As [`Self::find`]; `act` is done with it before anyone can take it away.
    pub(crate) fn find_and(
        &self,
        select: impl Fn(&T) -> bool,
        act: impl FnOnce(&T),
    ) -> Option<Arc<T>> {
        let table = self.objects().read();
        let found = table.values().find(|object| select(object))?;
        act(found);
        Some(found.clone())
    }

    /// All that are alive, if the table is free within `patience`.
    pub(crate) fn all_within(&self, patience: Duration) -> Vec<Arc<T>> {
        let objects = self.objects().try_read_for(patience);
        objects.map_or_else(Vec::new, |objects| objects.values().cloned().collect())
    }

    /// How many are alive.
    pub(crate) fn len(&self) -> usize {
        self.objects().read().len()
    }

    fn unknown(handle: *mut T::C) -> Refused {
        Refused::invalid(format!("{handle:p} is not a {} that is alive", T::NAME))
    }
}

/// An object that another one is made with: it cannot be destroyed meanwhile.
#[derive(Debug)]
pub(crate) struct Held<T: Object>(Arc<T>);

impl<T: Object> Held<T> {
    /// Holds the object of a pointer.
    pub(crate) fn get(handle: *mut T::C) -> Result<Self, Refused> {
        // Counted under the lock of the table, so that nobody destroys it in between.
        let table = T::table().objects().read();
        let object = table.get(&handle.addr()).ok_or_else(|| Table::<T>::unknown(handle))?;
        object.users().0.fetch_add(1, Ordering::AcqRel);
        Ok(Self(object.clone()))
    }

    /// Whether it holds this one.
    pub(crate) fn is(&self, object: &Arc<T>) -> bool {
        Arc::ptr_eq(&self.0, object)
    }

    /// As [`Self::get`]; NULL is nothing.
    pub(crate) fn get_if_any(handle: *mut T::C) -> Result<Option<Self>, Refused> {
        if handle.is_null() { Ok(None) } else { Self::get(handle).map(Some) }
    }
}

impl<T: Object> Clone for Held<T> {
    fn clone(&self) -> Self {
        self.0.users().0.fetch_add(1, Ordering::AcqRel);
        Self(self.0.clone())
    }
}

impl<T: Object> Drop for Held<T> {
    fn drop(&mut self) {
        self.0.users().0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl<T: Object> Deref for Held<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// A number that no other object of the process has: what the program imports an object by.
pub(crate) fn next_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The object of a pointer that the program gave to a call.
pub(crate) fn live<T: Object>(handle: *mut T::C) -> Result<Arc<T>, Refused> {
    T::table().get(handle)
}

/// Implements [`Object`] for a struct whose first field `c` is shown to the program, and which has a
/// field `users`. It is the same in the child of a fork if it `survives_fork`; otherwise it is the
/// parent's, and `after_fork` is what [`Object::after_fork`] does.
macro_rules! object {
    ($object:ty, $c:ty, $name:literal) => {
        $crate::handles::object!(@ $object, $c, $name, false, |_: &$object| ());
    };
    ($object:ty, $c:ty, $name:literal, survives_fork) => {
        $crate::handles::object!(@ $object, $c, $name, true, |_: &$object| ());
    };
    ($object:ty, $c:ty, $name:literal, after_fork: $after_fork:expr) => {
        $crate::handles::object!(@ $object, $c, $name, false, $after_fork);
    };
    (@ $object:ty, $c:ty, $name:literal, $survives:literal, $after_fork:expr) => {
        impl $crate::handles::Object for $object {
            type C = $c;
            const NAME: &'static str = $name;
            const SURVIVES_FORK: bool = $survives;

            fn table() -> &'static $crate::handles::Table<Self> {
                static TABLE: $crate::handles::Table<$object> = $crate::handles::Table::new();
                &TABLE
            }

            fn handle(&self) -> *mut $c {
                const { assert!(core::mem::offset_of!(Self, c) == 0) };
                core::ptr::from_ref(self).cast_mut().cast()
            }

            fn users(&self) -> &$crate::handles::Users {
                &self.users
            }

            fn after_fork(&self) {
                $after_fork(self)
            }

            unsafe fn trusted<'a>(handle: *mut $c) -> &'a Self {
                // SAFETY: the pointer is to the first field of an object that is there.
                unsafe { &*handle.cast::<Self>() }
            }
        }
    };
}

pub(crate) use object;

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    struct Thing {
        c: Shown<u64>,
        users: Users,
    }

    object!(Thing, u64, "thing");

    fn thing() -> *mut u64 {
        Thing::table().publish(Arc::new(Thing { c: Shown::new(7), users: Users::default() }))
    }

    #[test]
    fn an_object_in_use_stays() {
        let handle = thing();
        let held = Held::<Thing>::get(handle).unwrap();
        let twice = held.clone();
        drop(held);
        assert_eq!(Thing::table().withdraw(handle).map(drop).unwrap_err().errno(), libc::EBUSY);
        drop(twice);
        assert!(Thing::table().withdraw(handle).is_ok());
    }

    #[test]
    fn what_is_gone_is_refused() {
        let handle = thing();
        assert!(live::<Thing>(handle).is_ok());
        assert!(Thing::table().withdraw(handle).is_ok());
        assert_eq!(live::<Thing>(handle).map(drop).unwrap_err().errno(), libc::EINVAL);
        assert_eq!(Thing::table().withdraw(handle).map(drop).unwrap_err().errno(), libc::EINVAL);
        assert!(Held::<Thing>::get(std::ptr::null_mut()).is_err());
        assert!(Held::<Thing>::get_if_any(std::ptr::null_mut()).unwrap().is_none());
    }
}
