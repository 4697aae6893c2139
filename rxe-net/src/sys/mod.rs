//! System calls about network interfaces and descriptors, each behind a safe function.

pub(crate) mod descriptor;
pub(crate) mod ifreq;
