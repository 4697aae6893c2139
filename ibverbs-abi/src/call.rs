//! How a call from C ends: what it returns, where its error goes, and that no panic leaves it.
//!
//! The functions of libibverbs tell errors in different ways, each as its man page has it. Here each
//! has a return type that says which way; its body gives a value or a [`Refused`], and [`answer`]
//! makes the one of the other.
//!
//! A thread that is to be cancelled (`pthread_cancel(3)`) would end in the first function of the C
//! library that is a cancellation point, with locks in its hands, and no Rust function may be left
//! like that. So it ends after the call ([`Uncancelled`]). Calls that are made for each packet do
//! without that, since nothing in them is such a point: rxe-net makes its system calls itself. Only
//! where programs sleep, may a thread end in the call (src/descriptor.rs).

use std::any::Any;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ffi::c_int;
use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use crate::fork::Kept;
use crate::log;

unsafe extern "C" {
    safe fn pthread_setcancelstate(state: c_int, old: Option<&mut c_int>) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE`.
const CANCEL_DISABLE: c_int = 1;

/// As long as this lives, its thread is not cancelled.
#[must_use]
#[derive(Debug)]
pub(crate) struct Uncancelled {
    before: c_int,
    /// It is of one thread.
    _thread: PhantomData<*const ()>,
}

impl Uncancelled {
    #[inline]
    pub(crate) fn new() -> Self {
        let mut before = 0;
        // It fails for other states alone.
        pthread_setcancelstate(CANCEL_DISABLE, Some(&mut before));
        Self { before, _thread: PhantomData }
    }
}

impl Drop for Uncancelled {
    #[inline]
    fn drop(&mut self) {
        pthread_setcancelstate(self.before, None);
    }
}

/// How a function tells whether it did what was asked.
pub(crate) trait Convention {
    /// What it gives, if it did.
    type Value;

    /// It did.
    fn done(value: Self::Value) -> Self;

    /// It did not.
    fn failed(errno: c_int) -> Self;
}

/// 0, or a positive errno.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Positive(pub(crate) c_int);

impl Convention for Positive {
    type Value = ();

    fn done((): ()) -> Self {
        Self(0)
    }

    fn failed(errno: c_int) -> Self {
        Self(errno)
    }
}

/// 0, or -1 and errno.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MinusOne(c_int);

impl Convention for MinusOne {
    type Value = ();

    fn done((): ()) -> Self {
        Self(0)
    }

    fn failed(errno: c_int) -> Self {
        set_errno(errno);
        Self(-1)
    }
}

impl MinusOne {
    /// It did not, and errno says so already.
    pub(crate) const AS_ERRNO_SAYS: Self = Self(-1);
}

/// A number, or the one that says that there is none, and errno.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Number<T>(pub(crate) T);

/// What says that there is no number.
pub(crate) trait NoNumber {
    const NONE: Self;
}

impl<T: NoNumber> Convention for Number<T> {
    type Value = T;

    fn done(value: T) -> Self {
        Self(value)
    }

    fn failed(errno: c_int) -> Self {
        set_errno(errno);
        Self(T::NONE)
    }
}

/// A number that is not negative, or -1 and errno.
pub(crate) type Count = Number<c_int>;

impl NoNumber for c_int {
    const NONE: Self = -1;
}

/// A length that is not negative, or -1 and errno.
pub(crate) type Length = Number<isize>;

impl NoNumber for isize {
    const NONE: Self = -1;
}

/// A GUID, or 0 and errno.
pub(crate) type Guid = Number<u64>;

impl NoNumber for u64 {
    const NONE: Self = 0;
}

/// A length that is not negative, or a negative errno.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Negative(isize);

impl Convention for Negative {
    type Value = isize;

    fn done(value: isize) -> Self {
        Self(value)
    }

    fn failed(errno: c_int) -> Self {
        Self(-(errno as isize))
    }
}

/// A pointer, or NULL and errno.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Pointer<T>(*mut T);

impl<T> Convention for Pointer<T> {
    type Value = *mut T;

    fn done(value: *mut T) -> Self {
        Self(value)
    }

    fn failed(errno: c_int) -> Self {
        set_errno(errno);
        Self(ptr::null_mut())
    }
}

/// Nothing: the caller is not told.
impl Convention for () {
    type Value = ();

    fn done((): ()) -> Self {}

    fn failed(_: c_int) -> Self {}
}

/// Why a call did not do what was asked.
#[derive(Debug)]
pub(crate) struct Refused {
    errno: c_int,
    why: Cow<'static, str>,
}

impl Refused {
    pub(crate) fn new(errno: c_int, why: impl Into<Cow<'static, str>>) -> Self {
        Self { errno, why: why.into() }
    }

    /// An argument is no good.
    pub(crate) fn invalid(why: impl Into<Cow<'static, str>>) -> Self {
        Self::new(libc::EINVAL, why)
    }

    /// What the system said last.
    pub(crate) fn os(doing: &str) -> Self {
        let error = std::io::Error::last_os_error();
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        Self::new(errno, format!("{doing}: {error}"))
    }

    pub(crate) fn errno(&self) -> c_int {
        self.errno
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (errno {})", self.why, self.errno)
    }
}

/// Errors of the facade: each says what is wrong in words, and has an errno.
pub(crate) trait FacadeError: fmt::Display {
    /// The errno of the C function.
    fn errno(&self) -> c_int;
}

macro_rules! facade_errors {
    ($($error:ty),* $(,)?) => {$(
        impl FacadeError for $error {
            fn errno(&self) -> c_int {
                <$error>::errno(self)
            }
        }
    )*};
}

facade_errors!(
    ibverbs_api::AllocDmError,
    ibverbs_api::AllocParentError,
    ibverbs_api::AllocPdError,
    ibverbs_api::AttachMulticastError,
    ibverbs_api::BindMwError,
    ibverbs_api::CatchFaultsError,
    ibverbs_api::CreateAhError,
    ibverbs_api::CreateCqError,
    ibverbs_api::CreateQpError,
    ibverbs_api::CreateXrcSrqError,
    ibverbs_api::DeviceError,
    ibverbs_api::ModifyError,
    ibverbs_api::MulticastError,
    ibverbs_api::OpenError,
    ibverbs_api::OpenQpError,
    ibverbs_api::OpenXrcdError,
    ibverbs_api::PostRecvError,
    ibverbs_api::PostSendError,
    ibverbs_api::QueryError,
    ibverbs_api::QueryGidTableError,
    ibverbs_api::RegMrError,
    ibverbs_api::ReregMrError,
    ibverbs_api::ResizeCqError,
    ibverbs_api::SrqError,
);

impl<E: FacadeError> From<E> for Refused {
    fn from(error: E) -> Self {
        Self::new(error.errno(), error.to_string())
    }
}

/// Runs the body of a call and tells its end in the way of the call.
///
/// What is refused is told in the log, at the level of debugging: programs ask for much that they
/// can do without. A panic, a defect of this library, ends here; the program gets EIO.
pub(crate) fn answer<C: Convention>(
    call: &'static str,
    body: impl FnOnce() -> Result<C::Value, Refused>,
) -> C {
    let _uncancelled = Uncancelled::new();
    log::start();
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => C::done(value),
        Ok(Err(refused)) => {
            tracing::debug!(target: "rxe::abi", "{call}: {refused}");
            C::failed(refused.errno)
        }
        Err(panic) => C::failed(defect(call, &*panic)),
    }
}

/// As [`answer`], for calls that are made for each packet: whatever they refuse is an errno alone,
/// and nothing in them may be a cancellation point.
#[inline]
pub(crate) fn answer_fast<C: Convention>(
    call: &'static str,
    body: impl FnOnce() -> Result<C::Value, c_int>,
) -> C {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => C::done(value),
        Ok(Err(errno)) => C::failed(errno),
        Err(panic) => C::failed(defect(call, &*panic)),
    }
}

#[cold]
fn defect(call: &'static str, panic: &(dyn Any + Send)) -> c_int {
    let what = panic.downcast_ref::<String>().map(String::as_str);
    let what = what.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
    tracing::error!(target: "rxe::abi", "{call}: a defect of this library: {what}");
    libc::EIO
}

/// The calls that were told to be missing.
static MISSING: Kept<BTreeSet<&'static str>> = Kept::new(BTreeSet::new());

/// Answers a call of something that is not there; the log tells so at the first one.
pub(crate) fn unsupported<C: Convention>(call: &'static str, errno: c_int) -> C {
    let _uncancelled = Uncancelled::new();
    log::start();
    if MISSING.lock().insert(call) {
        tracing::warn!(target: "rxe::abi", "{call} is not supported");
    }
    C::failed(errno)
}

/// Functions that only say that they are not there, and how they say it.
///
/// A C caller may give a function more arguments than it takes, so these take none.
macro_rules! missing {
    ($($errno:ident as $way:ty: $($name:ident),+ $(,)?;)*) => {$($(
        #[doc = concat!("`", stringify!($name), "`: not there.")]
        pub(crate) extern "C" fn $name() -> $way {
            $crate::call::unsupported(stringify!($name), libc::$errno)
        }
    )+)*};
}

pub(crate) use missing;

/// The C library's errno of this thread.
pub(crate) fn last_errno() -> c_int {
    // SAFETY: the C library gives the address of this thread's errno.
    unsafe { *libc::__errno_location() }
}

/// Sets the C library's errno of this thread.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the C library gives the address of this thread's errno.
    unsafe { *libc::__errno_location() = errno };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errno() -> c_int {
        std::io::Error::last_os_error().raw_os_error().unwrap()
    }

    #[test]
    fn each_way_of_telling_an_error() {
        let refuse = || Err(Refused::invalid("a test"));
        assert_eq!(answer::<Positive>("test", refuse), Positive(libc::EINVAL));
        set_errno(0);
        assert_eq!(answer::<MinusOne>("test", refuse), MinusOne(-1));
        assert_eq!(errno(), libc::EINVAL);
        set_errno(0);
        assert_eq!(answer::<Count>("test", || Err(Refused::invalid("a test"))), Number(-1));
        assert_eq!(answer::<Guid>("test", || Err(Refused::invalid("a test"))), Number(0));
        assert_eq!(errno(), libc::EINVAL);
        set_errno(0);
        let none = answer::<Pointer<u8>>("test", || Err(Refused::new(libc::ENOMEM, "a test")));
        assert!(none.0.is_null());
        assert_eq!(errno(), libc::ENOMEM);
        let negative = answer::<Negative>("test", || Err(Refused::invalid("a test")));
        assert_eq!(negative, Negative(-(libc::EINVAL as isize)));
    }

    #[test]
    fn a_panic_becomes_an_error_of_the_call() {
        assert_eq!(answer::<Positive>("test", || panic!("on purpose")), Positive(libc::EIO));
        assert_eq!(answer_fast::<Positive>("test", || panic!("on purpose")), Positive(libc::EIO));
    }
}
