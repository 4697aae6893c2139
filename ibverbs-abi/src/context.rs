//! Opened devices, and the tables of functions that `verbs.h` calls by pointers.

use std::ffi::c_int;
use std::fmt;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use ibverbs_api::{DeviceAttr, Limits};

use crate::call::{MinusOne, Pointer, Positive, Refused, answer, missing};
use crate::device::Device;
use crate::handles::{Held, Object, Shown, Table, Users, live};
use crate::memory::{copy_text, put, put_sized};
use crate::port::query_port;
use crate::types::{
    ibv_context, ibv_context_ops, ibv_device, ibv_device_attr, ibv_device_attr_ex,
    ibv_query_device_ex_input, verbs_context,
};

missing! {
    EOPNOTSUPP as Pointer<ibv_context>:
        ibv_import_device;
}

/// An opened device.
#[repr(C)]
pub(crate) struct Context {
    c: Shown<verbs_context>,
    users: Users,
    pub(crate) facade: ibverbs_api::Context,
    device: Held<Device>,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("device", &self.device).finish_non_exhaustive()
    }
}

impl Object for Context {
    type C = ibv_context;
    const NAME: &'static str = "context";

    fn table() -> &'static Table<Self> {
        static TABLE: Table<Context> = Table::new();
        &TABLE
    }

    fn handle(&self) -> *mut ibv_context {
        // SAFETY: the block is there, and this only computes an address within it.
        unsafe { &raw mut (*self.c.as_ptr()).context }
    }

    fn users(&self) -> &Users {
        &self.users
    }
}

/// Says that `sz` and what is before the context are there (`verbs_get_ctx` of verbs.h).
const EXTENDED: usize = usize::MAX;

/// The functions of an opened device. NULL is a legal "not supported".
fn operations() -> ibv_context_ops {
    ibv_context_ops { _compat_query_device: Some(ibv_query_device), ..ibv_context_ops::zeroed() }
}

fn block(facade: &ibverbs_api::Context, device: *mut ibv_device) -> verbs_context {
    verbs_context {
        query_port: Some(query_port),
        query_device_ex: Some(query_device_ex),
        sz: size_of::<verbs_context>(),
        context: ibv_context {
            device,
            ops: operations(),
            cmd_fd: -1,
            async_fd: facade.event_fd().as_raw_fd(),
            num_comp_vectors: facade.query_device().num_comp_vectors as c_int,
            abi_compat: std::ptr::without_provenance_mut(EXTENDED),
            ..ibv_context::zeroed()
        },
        ..verbs_context::zeroed()
    }
}

/// `ibv_open_device(3)`.
pub(crate) unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> Pointer<ibv_context> {
    answer("ibv_open_device", || {
        let held = Held::<Device>::get(device)?;
        let facade = held.facade()?.open()?;
        let c = Shown::new(block(&facade, device));
        let context = Context { c, users: Users::default(), facade, device: held };
        Ok(Context::table().publish(Arc::new(context)))
    })
}

/// `ibv_close_device(3)`.
pub(crate) unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> MinusOne {
    answer("ibv_close_device", || Context::table().withdraw(context).map(drop))
}

/// `ibv_query_device(3)`.
pub(crate) unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> Positive {
    answer("ibv_query_device", || {
        let attributes = device_attr(&live::<Context>(context)?.facade.query_device());
        // SAFETY: the program wants the attributes there.
        unsafe { put(attr, attributes) }
    })
}

/// `ibv_query_device_ex(3)`, which `verbs.h` calls by a pointer.
unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    attr_size: usize,
) -> Positive {
    answer("ibv_query_device_ex", || {
        // SAFETY: the program points to what it wants, or to nothing.
        if !input.is_null() && unsafe { (*input).comp_mask } != 0 {
            return Err(Refused::invalid("comp_mask of the input must be 0"));
        }
        if attr_size < size_of::<ibv_device_attr>() {
            return Err(Refused::invalid("there is no room for the attributes"));
        }
        let facade = live::<Context>(context)?.facade.query_device();
        let mut attributes = ibv_device_attr_ex::zeroed();
        attributes.orig_attr = device_attr(&facade);
        attributes.phys_port_cnt_ex = facade.phys_port_cnt.into();
        // SAFETY: the program says how much room there is.
        unsafe { put_sized(attr, attributes, attr_size) }
    })
}

/// Bits of `device_cap_flags` (`enum ibv_device_cap_flags`).
mod capability {
    pub(super) const CURR_QP_STATE_MOD: u32 = 1 << 7;
    pub(super) const SYS_IMAGE_GUID: u32 = 1 << 11;
    pub(super) const RC_RNR_NAK_GEN: u32 = 1 << 12;
    pub(super) const SRQ_RESIZE: u32 = 1 << 13;
}

/// What the device and its calls here can do.
const CAPABILITIES: u32 = capability::CURR_QP_STATE_MOD
    | capability::SYS_IMAGE_GUID
    | capability::RC_RNR_NAK_GEN
    | capability::SRQ_RESIZE;

/// The largest capacity that a C program can be told.
fn int(value: impl TryInto<c_int>) -> c_int {
    value.try_into().unwrap_or(c_int::MAX)
}

fn device_attr(facade: &DeviceAttr) -> ibv_device_attr {
    let limits: &Limits = &facade.limits;
    let mut attr = ibv_device_attr {
        node_guid: facade.node_guid.to_be(),
        sys_image_guid: facade.sys_image_guid.to_be(),
        max_mr_size: facade.max_mr_size,
        page_size_cap: facade.page_size_cap,
        max_qp: int(limits.max_qp),
        max_qp_wr: int(limits.max_qp_wr),
        device_cap_flags: CAPABILITIES,
        max_sge: int(limits.max_sge),
        max_sge_rd: int(limits.max_sge),
        max_cq: int(limits.max_cq),
        max_cqe: int(limits.max_cqe),
        max_mr: int(limits.max_mr),
        max_pd: int(limits.max_pd),
        max_qp_rd_atom: int(limits.max_qp_rd_atom),
        max_res_rd_atom: int(u64::from(limits.max_qp_rd_atom) * u64::from(limits.max_qp)),
        max_qp_init_rd_atom: int(limits.max_qp_init_rd_atom),
        atomic_cap: facade.atomic_cap as u32,
        max_mcast_grp: int(limits.max_mcast_grp),
        max_mcast_qp_attach: int(limits.max_mcast_qp_attach),
        max_total_mcast_qp_attach: int(
            u64::from(limits.max_mcast_grp) * u64::from(limits.max_mcast_qp_attach)
        ),
        max_ah: int(limits.max_ah),
        max_srq: int(limits.max_srq),
        max_srq_wr: int(limits.max_srq_wr),
        max_srq_sge: int(limits.max_srq_sge),
        max_pkeys: facade.max_pkeys,
        local_ca_ack_delay: facade.local_ca_ack_delay,
        phys_port_cnt: facade.phys_port_cnt,
        ..ibv_device_attr::zeroed()
    };
    copy_text(&mut attr.fw_ver, &facade.fw_ver);
    attr
}
