//! Domains of extended reliable connections.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::Arc;

use ibverbs_api::XrcDomain;

use crate::call::{Pointer, Positive, Refused, answer};
use crate::context::Context;
use crate::fork::Kept;
use crate::handles::{Held, Object, Shown, Users, object};
use crate::memory::get;
use crate::types::{ibv_context, ibv_xrcd, ibv_xrcd_init_attr};

/// A domain of extended reliable connections, or one handle of it.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Xrcd {
    c: Shown<ibv_xrcd>,
    users: Users,
    pub(crate) facade: XrcDomain,
    pub(crate) context: Held<Context>,
    /// The file that it was opened with.
    file: Option<FileId>,
}

object!(Xrcd, ibv_xrcd, "XRC domain");

/// What tells a file from all others that are there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FileId {
    device: libc::dev_t,
    inode: libc::ino_t,
}

impl FileId {
    /// The file behind a descriptor.
    pub(crate) fn of(fd: c_int) -> Result<Self, Refused> {
        let mut stat = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: there is room for the answer.
        if unsafe { libc::fstat(fd, stat.as_mut_ptr()) } < 0 {
            return Err(Refused::os("the file of a descriptor"));
        }
        // SAFETY: the call has filled it.
        let stat = unsafe { stat.assume_init() };
        Ok(Self { device: stat.st_dev, inode: stat.st_ino })
    }
}

/// `IBV_XRCD_INIT_ATTR_FD` and `IBV_XRCD_INIT_ATTR_OFLAGS`.
const ATTR_FD: u32 = 1;
const ATTR_OFLAGS: u32 = 1 << 1;

/// `ibv_open_xrcd(3)`, which `verbs.h` calls by a pointer.
///
/// Whoever opens the same file with the same context shares a domain. The errors are those of
/// Linux's `ib_uverbs_open_xrcd`: `EAGAIN` when there is none to share, `EINVAL` with `O_EXCL` when
/// there is one.
pub(crate) unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    init: *mut ibv_xrcd_init_attr,
) -> Pointer<ibv_xrcd> {
    answer("ibv_open_xrcd", || {
        // SAFETY: the program points to how it is to be.
        let init = unsafe { get(init) }?;
        if init.comp_mask != ATTR_FD | ATTR_OFLAGS {
            return Err(Refused::invalid("comp_mask must be IBV_XRCD_INIT_ATTR_FD | OFLAGS"));
        }
        let held = Held::<Context>::get(context)?;
        let file = if init.fd == -1 { None } else { Some(FileId::of(init.fd)?) };
        // One at a time: of one file a context has one domain.
        static OPENING: Kept<()> = Kept::new(());
        let _opening = OPENING.lock();
        let facade = match file.and_then(|file| shared(&held, file)) {
            Some(_) if init.oflags & libc::O_EXCL != 0 => {
                return Err(Refused::invalid("O_EXCL, but the file has an XRC domain already"));
            }
            Some(known) => known.facade.clone(),
            None if file.is_some() && init.oflags & libc::O_CREAT == 0 => {
                let why = "the file has no XRC domain in this context: O_CREAT makes one";
                return Err(Refused::new(libc::EAGAIN, why));
            }
            None => held.facade()?.open_xrcd(0)?,
        };
        let c = Shown::new(ibv_xrcd { context });
        let xrcd = Xrcd { c, users: Users::default(), facade, context: held, file };
        Ok(Xrcd::table().publish(Arc::new(xrcd)))
    })
}

/// The domain that a context has for a file.
fn shared(context: &Held<Context>, file: FileId) -> Option<Arc<Xrcd>> {
    Xrcd::table().find(|known| known.file == Some(file) && known.context.is_same(context))
}

/// `ibv_close_xrcd(3)`: `EBUSY` while there is an object that was made with this handle.
pub(crate) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> Positive {
    answer("ibv_close_xrcd", || Xrcd::table().withdraw(xrcd).map(drop))
}
