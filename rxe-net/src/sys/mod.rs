//! System calls about network interfaces, descriptors and threads, each behind a safe function.

pub(crate) mod descriptor;
pub(crate) mod ifreq;
pub(crate) mod thread;
