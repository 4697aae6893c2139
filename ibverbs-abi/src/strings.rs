//! Names of values, as every libibverbs has them: programs print them, and people search for them.

use std::ffi::{CStr, c_char, c_int};

/// The name of a value, or what unknown ones are called.
fn name(names: &'static [&'static CStr], value: i64, unknown: &'static CStr) -> *const c_char {
    let index = usize::try_from(value).ok();
    index.and_then(|index| names.get(index)).unwrap_or(&unknown).as_ptr()
}

const EVENTS: [&CStr; 20] = [
    c"CQ error",
    c"local work queue catastrophic error",
    c"invalid request local work queue error",
    c"local access violation work queue error",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration request error",
    c"local catastrophic error",
    c"port active",
    c"port error",
    c"LID change",
    c"P_Key change",
    c"SM change",
    c"SRQ catastrophic error",
    c"SRQ limit reached",
    c"last WQE reached",
    c"client reregistration",
    c"GID table change",
    c"WQ fatal",
];

const NODES: [&CStr; 8] = [
    c"unknown",
    c"InfiniBand channel adapter",
    c"InfiniBand switch",
    c"InfiniBand router",
    c"iWARP NIC",
    c"usNIC",
    c"usNIC UDP",
    c"unspecified",
];

const PORTS: [&CStr; 6] =
    [c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];

const STATUS: [&CStr; 24] = [
    c"success",
    c"local length error",
    c"local QP operation error",
    c"local EE context operation error",
    c"local protection error",
    c"Work Request Flushed Error",
    c"memory management operation error",
    c"bad response error",
    c"local access error",
    c"remote invalid request error",
    c"remote access error",
    c"remote operation error",
    c"transport retry counter exceeded",
    c"RNR retry counter exceeded",
    c"local RDD violation error",
    c"remote invalid RD request",
    c"aborted error",
    c"invalid EE context number",
    c"invalid EE context state",
    c"fatal error",
    c"response timeout error",
    c"general error",
    c"TM error",
    c"TM software rendezvous",
];

const CM_EVENTS: [&CStr; 16] = [
    c"RDMA_CM_EVENT_ADDR_RESOLVED",
    c"RDMA_CM_EVENT_ADDR_ERROR",
    c"RDMA_CM_EVENT_ROUTE_RESOLVED",
    c"RDMA_CM_EVENT_ROUTE_ERROR",
    c"RDMA_CM_EVENT_CONNECT_REQUEST",
    c"RDMA_CM_EVENT_CONNECT_RESPONSE",
    c"RDMA_CM_EVENT_CONNECT_ERROR",
    c"RDMA_CM_EVENT_UNREACHABLE",
    c"RDMA_CM_EVENT_REJECTED",
    c"RDMA_CM_EVENT_ESTABLISHED",
    c"RDMA_CM_EVENT_DISCONNECTED",
    c"RDMA_CM_EVENT_DEVICE_REMOVAL",
    c"RDMA_CM_EVENT_MULTICAST_JOIN",
    c"RDMA_CM_EVENT_MULTICAST_ERROR",
    c"RDMA_CM_EVENT_ADDR_CHANGE",
    c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
];

/// `ibv_event_type_str`.
pub(crate) extern "C" fn ibv_event_type_str(event: u32) -> *const c_char {
    name(&EVENTS, event.into(), c"unknown")
}

/// `ibv_node_type_str`.
pub(crate) extern "C" fn ibv_node_type_str(node_type: c_int) -> *const c_char {
    name(&NODES, node_type.into(), c"unknown")
}

/// `ibv_port_state_str`.
pub(crate) extern "C" fn ibv_port_state_str(port_state: u32) -> *const c_char {
    name(&PORTS, port_state.into(), c"unknown")
}

/// `ibv_wc_status_str`.
pub(crate) extern "C" fn ibv_wc_status_str(status: u32) -> *const c_char {
    name(&STATUS, status.into(), c"unknown")
}

/// `rdma_event_str`.
pub(crate) extern "C" fn rdma_event_str(event: u32) -> *const c_char {
    name(&CM_EVENTS, event.into(), c"UNKNOWN EVENT")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(name: *const c_char) -> &'static str {
        // SAFETY: all names are C strings that last for ever.
        unsafe { CStr::from_ptr(name) }.to_str().unwrap()
    }

    #[test]
    fn names_and_what_has_none() {
        assert_eq!(text(ibv_event_type_str(16)), "last WQE reached");
        assert_eq!(text(ibv_event_type_str(20)), "unknown");
        assert_eq!(text(ibv_node_type_str(1)), "InfiniBand channel adapter");
        assert_eq!(text(ibv_node_type_str(-1)), "unknown");
        assert_eq!(text(ibv_port_state_str(4)), "active");
        assert_eq!(text(ibv_wc_status_str(12)), "transport retry counter exceeded");
        assert_eq!(text(ibv_wc_status_str(u32::MAX)), "unknown");
        assert_eq!(text(rdma_event_str(9)), "RDMA_CM_EVENT_ESTABLISHED");
        assert_eq!(text(rdma_event_str(16)), "UNKNOWN EVENT");
    }
}
