//! System calls about network interfaces, each behind a safe function.

pub(crate) mod ifreq;
