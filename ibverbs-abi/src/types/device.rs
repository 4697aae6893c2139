//! Devices.

use core::ffi::{c_char, c_int};

use super::context::ibv_context;
use crate::call::Pointer;

abi_struct! {
    /// Two functions that nobody calls any more.
    struct _ibv_device_ops(16) {
        0 _dummy1: Option<unsafe extern "C" fn(*mut ibv_device, c_int) -> Pointer<ibv_context>>,
        8 _dummy2: Option<unsafe extern "C" fn(*mut ibv_context)>,
    }
}

abi_struct! {
    /// A device that can be opened.
    struct ibv_device(664) {
        0 _ops: _ibv_device_ops,
        16 node_type: c_int,
        20 transport_type: c_int,
        24 name: [c_char; 64],
        88 dev_name: [c_char; 64],
        152 dev_path: [c_char; 256],
        408 ibdev_path: [c_char; 256],
    }
}
