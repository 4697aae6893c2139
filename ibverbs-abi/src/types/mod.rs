//! What `infiniband/verbs.h` and `rdma/rdma_cma.h` show: the structs, by the names that they have
//! there, one family a file.
//!
//! Enumerations are numbers here: a C program may put any value there. All sizes and offsets are
//! checked when this is compiled, and a test compares them with what a C compiler says
//! (tests/data/layout.txt).

// The headers are here whole, whether their parts are used yet or not.
#![allow(dead_code, unused_imports)]

/// A struct of the C header, with its size, and the offset before each field.
///
/// A field that is a union in C, and has no name of its own there, goes by the name of its first
/// member.
macro_rules! abi_struct {
    ($(#[$meta:meta])* struct $name:ident($size:literal) {
        $($offset:literal $field:ident: $ty:ty,)*
    }) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        #[allow(non_camel_case_types, non_snake_case)]
        pub(crate) struct $name {
            $(pub(crate) $field: $ty,)*
        }

        const _: () = {
            assert!(size_of::<$name>() == $size);
            $(assert!(core::mem::offset_of!($name, $field) == $offset);)*
        };

        impl $name {
            /// All zero: what the C programs call `memset`.
            pub(crate) const fn zeroed() -> Self {
                // SAFETY: all fields are numbers, pointers that may be NULL, functions that need
                // not be there, or made of such.
                unsafe { core::mem::zeroed() }
            }
        }
    };
}

mod ah;
mod attr;
mod context;
mod cq;
mod device;
mod event;
mod gid;
mod mr;
mod pd;
mod qp;
mod rdmacm;
mod sa;
mod srq;
mod wr;

pub(crate) use ah::{ibv_ah, ibv_ah_attr, ibv_global_route, ibv_grh};
pub(crate) use attr::{
    ibv_cq_moderation_caps, ibv_device_attr, ibv_device_attr_ex, ibv_odp_caps,
    ibv_odp_transport_caps, ibv_packet_pacing_caps, ibv_pci_atomic_caps, ibv_port_attr,
    ibv_query_device_ex_input, ibv_rss_caps, ibv_tm_caps, ibv_tso_caps, ibv_values_ex,
};
pub(crate) use context::{ibv_context, ibv_context_ops, verbs_context};
pub(crate) use cq::{
    ibv_comp_channel, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_moderate_cq, ibv_modify_cq_attr,
    ibv_poll_cq_attr, ibv_wc, ibv_wc_tm_info,
};
pub(crate) use device::{_ibv_device_ops, ibv_device};
pub(crate) use event::{ibv_async_element, ibv_async_event};
pub(crate) use gid::{ibv_gid, ibv_gid_entry};
pub(crate) use mr::{ibv_alloc_dm_attr, ibv_dm, ibv_mr, ibv_mw, ibv_mw_bind, ibv_mw_bind_info};
pub(crate) use pd::{
    Alloc, Free, ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr, ibv_xrcd,
    ibv_xrcd_init_attr,
};
pub(crate) use qp::{
    ibv_ece, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex,
    ibv_qp_open_attr, ibv_qp_rate_limit_attr, ibv_rx_hash_conf,
};
pub(crate) use rdmacm::{
    rdma_addr, rdma_addrinfo, rdma_cm_event, rdma_cm_event_param, rdma_cm_id,
    rdma_cm_join_mc_attr_ex, rdma_conn_param, rdma_event_channel, rdma_ib_addr, rdma_route,
    rdma_ud_param,
};
pub(crate) use sa::{ibv_path_data, ibv_path_record, ibv_sa_path_rec};
pub(crate) use srq::{ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex, ibv_tm_cap};
pub(crate) use wr::{
    ibv_data_buf, ibv_recv_wr, ibv_send_wr, ibv_send_wr_atomic, ibv_send_wr_bind_mw,
    ibv_send_wr_qp_type, ibv_send_wr_rdma, ibv_send_wr_tail, ibv_send_wr_target, ibv_send_wr_tso,
    ibv_send_wr_ud, ibv_sge,
};
