//! Asynchronous events.

use core::ffi::{c_int, c_void};

use super::cq::ibv_cq;
use super::qp::ibv_qp;
use super::srq::ibv_srq;

abi_struct! {
    /// Something that happened outside any work request.
    struct ibv_async_event(16) {
        0 element: ibv_async_element,
        8 event_type: u32,
    }
}

/// What an event is about: which member counts follows from its type.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub(crate) union ibv_async_element {
    pub(crate) cq: *mut ibv_cq,
    pub(crate) qp: *mut ibv_qp,
    pub(crate) srq: *mut ibv_srq,
    pub(crate) wq: *mut c_void,
    pub(crate) port_num: c_int,
}
