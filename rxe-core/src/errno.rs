//! The errno values of Linux that verbs return.

/// Input/output error: the device is lost.
pub const EIO: i32 = 5;
/// No such device or address.
pub const ENXIO: i32 = 6;
/// Out of memory, or of queue entries.
pub const ENOMEM: i32 = 12;
/// Bad address: memory that is not there.
pub const EFAULT: i32 = 14;
/// In use.
pub const EBUSY: i32 = 16;
/// No such device.
pub const ENODEV: i32 = 19;
/// Invalid argument.
pub const EINVAL: i32 = 22;
/// No data: the GID table entry is empty.
pub const ENODATA: i32 = 61;
/// Not supported.
pub const EOPNOTSUPP: i32 = 95;
/// Address in use.
pub const EADDRINUSE: i32 = 98;
/// Address not available.
pub const EADDRNOTAVAIL: i32 = 99;
