//! Opened devices, and the tables of functions that `verbs.h` calls by pointers.

use std::ffi::c_int;
use std::fmt;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::ptr;
use std::sync::{Arc, Once};
use std::time::Duration;

use ibverbs_api::{DeviceAttr, Limits, OpenOptions};

use crate::ah::Ah;
use crate::call::{Convention, Count, MinusOne, Pointer, Positive, Refused, answer};
use crate::channel::Channel;
use crate::clock::query_rt_values;
use crate::cq::{Cq, modify_cq};
use crate::cq_ex::create_cq_ex;
use crate::descriptor::let_block;
use crate::device::Device;
use crate::dm::{Dm, alloc_dm, free_dm};
use crate::handles::{Held, Object, Shown, Table, Users, live};
use crate::memory::{copy_text, put, put_sized};
use crate::mr::{Mr, advise_mr, alloc_null_mr, reg_dm_mr};
use crate::mw::{Mw, alloc_mw, bind_mw, dealloc_mw};
use crate::opened::Opened;
use crate::pd::{Pd, alloc_parent_domain};
use crate::poll::{poll_cq, req_notify_cq};
use crate::port::query_port;
use crate::post::{post_recv, post_send, post_srq_recv};
use crate::qp::{Qp, open_qp};
use crate::qp_ex::create_qp_ex;
use crate::srq::{Srq, create_srq_ex, get_srq_num};
use crate::td::{Td, alloc_td, dealloc_td};
use crate::types::{
    ibv_context, ibv_context_ops, ibv_cq, ibv_cq_moderation_caps, ibv_device, ibv_device_attr,
    ibv_device_attr_ex, ibv_odp_caps, ibv_odp_transport_caps, ibv_query_device_ex_input, ibv_wc,
    verbs_context,
};
use crate::xrcd::{FileId, Xrcd, close_xrcd, open_xrcd};

/// An opened device.
#[repr(C)]
pub(crate) struct Context {
    c: Shown<verbs_context>,
    /// What the parent's queues show in the child of a fork, instead of `c`: its functions refuse.
    of_parent: Shown<verbs_context>,
    users: Users,
    opened: Opened,
    device: Held<Device>,
    /// What `cmd_fd` is: nothing can be done with it, but to import the context by it.
    command: OwnedFd,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("device", &self.device).finish_non_exhaustive()
    }
}

impl Object for Context {
    type C = ibv_context;
    const NAME: &'static str = "context";
    const SURVIVES_FORK: bool = true;

    fn table() -> &'static Table<Self> {
        static TABLE: Table<Context> = Table::new();
        &TABLE
    }

    fn handle(&self) -> *mut ibv_context {
        ptr::from_ref(self).cast_mut().cast::<ibv_context>().wrapping_byte_add(CONTEXT_OFFSET)
    }

    fn users(&self) -> &Users {
        &self.users
    }

    unsafe fn trusted<'a>(handle: *mut ibv_context) -> &'a Self {
        // SAFETY: the pointer is into the first field of an object that is there.
        unsafe { &*handle.wrapping_byte_sub(CONTEXT_OFFSET).cast::<Self>() }
    }

    fn after_fork(&self) {
        // SAFETY: the child of a fork has one thread, which is here.
        unsafe { self.opened.begin_anew() };
        self.users.forget();
    }
}

/// The program's pointer is to the end of the block, since the block grows at its front.
const CONTEXT_OFFSET: usize = std::mem::offset_of!(verbs_context, context);

/// Says that `sz` and what is before the context are there (`verbs_get_ctx` of verbs.h).
const EXTENDED: usize = usize::MAX;

/// The functions of an opened device. NULL is a legal "not supported".
fn operations() -> ibv_context_ops {
    ibv_context_ops {
        _compat_query_device: Some(ibv_query_device),
        alloc_mw: Some(alloc_mw),
        bind_mw: Some(bind_mw),
        dealloc_mw: Some(dealloc_mw),
        poll_cq: Some(poll_cq),
        req_notify_cq: Some(req_notify_cq),
        post_srq_recv: Some(post_srq_recv),
        post_send: Some(post_send),
        post_recv: Some(post_recv),
        ..ibv_context_ops::zeroed()
    }
}

/// The functions for queues of the process that this one was forked from: they refuse. All others
/// look their objects up, which are unknown here.
fn operations_of_parent() -> ibv_context_ops {
    unsafe extern "C" fn poll_cq(_: *mut ibv_cq, _: c_int, _: *mut ibv_wc) -> Count {
        Count::failed(libc::EINVAL)
    }
    unsafe extern "C" fn req_notify_cq(_: *mut ibv_cq, _: c_int) -> Positive {
        Positive::failed(libc::EINVAL)
    }
    unsafe extern "C" fn post<Queue, Request>(
        _: *mut Queue,
        first: *mut Request,
        bad: *mut *mut Request,
    ) -> Positive {
        // SAFETY: the program wants the request that was refused there.
        let put = unsafe { put(bad, first) };
        Positive::failed(put.map_or_else(|refused| refused.errno(), |()| libc::EINVAL))
    }
    ibv_context_ops {
        poll_cq: Some(poll_cq),
        req_notify_cq: Some(req_notify_cq),
        post_send: Some(post),
        post_recv: Some(post),
        post_srq_recv: Some(post),
        ..operations()
    }
}

fn block(
    facade: &ibverbs_api::Context,
    ops: ibv_context_ops,
    device: *mut ibv_device,
    command: &OwnedFd,
) -> verbs_context {
    verbs_context {
        advise_mr: Some(advise_mr),
        alloc_null_mr: Some(alloc_null_mr),
        reg_dm_mr: Some(reg_dm_mr),
        open_qp: Some(open_qp),
        get_srq_num: Some(get_srq_num),
        create_srq_ex: Some(create_srq_ex),
        alloc_dm: Some(alloc_dm),
        free_dm: Some(free_dm),
        alloc_parent_domain: Some(alloc_parent_domain),
        alloc_td: Some(alloc_td),
        dealloc_td: Some(dealloc_td),
        query_rt_values: Some(query_rt_values),
        open_xrcd: Some(open_xrcd),
        close_xrcd: Some(close_xrcd),
        query_port: Some(query_port),
        create_cq_ex: Some(create_cq_ex),
        modify_cq: Some(modify_cq),
        query_device_ex: Some(query_device_ex),
        create_qp_ex: Some(create_qp_ex),
        sz: size_of::<verbs_context>(),
        context: ibv_context {
            device,
            ops,
            cmd_fd: command.as_raw_fd(),
            async_fd: facade.event_fd().as_raw_fd(),
            num_comp_vectors: facade.query_device().num_comp_vectors as c_int,
            abi_compat: ptr::without_provenance_mut(EXTENDED),
            ..ibv_context::zeroed()
        },
        ..verbs_context::zeroed()
    }
}

impl Context {
    /// Lets the program have a context.
    fn publish(
        facade: ibverbs_api::Context,
        device: Held<Device>,
        command: OwnedFd,
    ) -> *mut ibv_context {
        let block = |ops| Shown::new(block(&facade, ops, device.handle(), &command));
        let (c, of_parent) = (block(operations()), block(operations_of_parent()));
        let opened = Opened::new(facade);
        let context = Self { c, of_parent, users: Users::default(), opened, device, command };
        Self::table().publish(Arc::new(context))
    }

    /// What was opened, in the child of a fork by now.
    pub(crate) fn facade(&self) -> Result<ibverbs_api::Context, Refused> {
        self.opened.get_or_open(|| {
            let facade = open(&self.device)?;
            // SAFETY: the block is there, and this is the word that the program reads.
            unsafe { (*self.handle()).async_fd = facade.event_fd().as_raw_fd() };
            Ok(facade)
        })
    }

    /// Whether both are handles of what was opened once: what is made with the one goes with the
    /// other.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let both = self.opened.get().zip(other.opened.get());
        ptr::eq(self, other) || both.is_some_and(|(one, other)| one.is_same(&other))
    }

    /// The pointer for queues that are the parent's, in the child of a fork.
    pub(crate) fn of_parent(&self) -> *mut ibv_context {
        self.of_parent.as_ptr().cast::<ibv_context>().wrapping_byte_add(CONTEXT_OFFSET)
    }
}

/// Bytes asked for the receive buffer of a socket; the host grants what it grants anybody
/// (`net.core.rmem_max`).
///
/// Programs that were written for a fabric that loses nothing send datagrams, and messages over
/// UC, as fast as they can, and wait for ever for one that is lost: what comes in a burst must find
/// room.
const RECEIVE_BUFFER: u32 = 8 << 20;

/// How devices are opened for programs in C.
fn options() -> Result<OpenOptions, Refused> {
    let mut options = OpenOptions::from_env()?;
    options.link.buffers.receive.get_or_insert(RECEIVE_BUFFER);
    Ok(options)
}

fn open(device: &Device) -> Result<ibverbs_api::Context, Refused> {
    let facade = device.facade()?.open_with(options()?)?;
    let_block(facade.event_fd())?;
    Ok(facade)
}

/// `ibv_open_device(3)`.
pub(crate) unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> Pointer<ibv_context> {
    answer("ibv_open_device", || {
        let held = Held::<Device>::get(device)?;
        let facade = open(&held)?;
        flush_at_exit();
        // A file of its own, which costs nothing but a descriptor.
        let command = UnixDatagram::unbound().map_err(|_| Refused::os("a descriptor"))?;
        Ok(Context::publish(facade, held, command.into()))
    })
}

/// How long the end of the process waits for another thread, which may have been stopped where it
/// held a lock, or be this one (`exit` in a signal handler).
const PATIENCE: Duration = Duration::from_millis(20);

/// Lets what is owed to peers leave when the program ends without closing its devices: a peer waits
/// for the acknowledgement of its last message.
fn flush_at_exit() {
    extern "C" fn at_exit() {
        let contexts = Context::table().all_within(PATIENCE);
        let opened = contexts.iter().filter_map(|context| context.opened.get());
        opened.for_each(|facade| facade.flush(PATIENCE));
    }
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: a function that may be called at any exit.
        if unsafe { libc::atexit(at_exit) } != 0 {
            tracing::warn!(target: "rxe::abi", "what is owed at the end of the program may be lost");
        }
    });
}

/// `ibv_import_device(3)`: one more handle of a context of this process, by a copy of its `cmd_fd`,
/// which belongs to the new handle from now on.
///
/// Contexts of other processes cannot be imported: they and what is made with them live in these.
pub(crate) unsafe extern "C" fn ibv_import_device(cmd_fd: c_int) -> Pointer<ibv_context> {
    answer("ibv_import_device", || {
        let file = FileId::of(cmd_fd).map_err(|error| Refused::invalid(error.to_string()))?;
        let is_it = |context: &Context| {
            FileId::of(context.command.as_raw_fd()).is_ok_and(|known| known == file)
        };
        let Some(known) = Context::table().find(is_it) else {
            let why = "the descriptor is the cmd_fd of no context that this process has opened";
            return Err(Refused::new(libc::ENODEV, why));
        };
        if known.command.as_raw_fd() == cmd_fd {
            return Err(Refused::invalid("import a copy of cmd_fd, made by dup(2), not itself"));
        }
        // SAFETY: the descriptor is open, and the program gives it away.
        let command = unsafe { OwnedFd::from_raw_fd(cmd_fd) };
        Ok(Context::publish(known.facade()?, known.device.clone(), command))
    })
}

/// `ibv_close_device(3)`. What the program has not destroyed goes with it, as with the descriptor of
/// the kernel's device.
pub(crate) unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> MinusOne {
    answer("ibv_close_device", || {
        let object = live::<Context>(context)?;
        // Those first that are made with others.
        drop(Qp::table().withdraw_all(|qp| qp.context.is(&object)));
        drop(Ah::table().withdraw_all(|ah| ah.pd.context.is(&object)));
        drop(Mw::table().withdraw_all(|mw| mw.pd.context.is(&object)));
        drop(Mr::table().withdraw_all(|mr| mr.pd.lock().context.is(&object)));
        drop(Srq::table().withdraw_all(|srq| srq.context.is(&object)));
        drop(Cq::table().withdraw_all(|cq| cq.context.is(&object)));
        drop(Channel::table().withdraw_all(|channel| channel.context.is(&object)));
        drop(Dm::table().withdraw_all(|dm| dm.context.is(&object)));
        drop(Xrcd::table().withdraw_all(|xrcd| xrcd.context.is(&object)));
        drop(Pd::table().withdraw_all(|pd| pd.context.is(&object)));
        drop(Td::table().withdraw_all(|td| td.context.is(&object)));
        // Whatever calls of other threads still hold of it.
        Context::table().forget(context)?.opened.close();
        Ok(())
    })
}

/// `ibv_query_device(3)`.
pub(crate) unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> Positive {
    answer("ibv_query_device", || {
        let attributes = device_attr(&live::<Context>(context)?.facade()?.query_device());
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
        let facade = live::<Context>(context)?.facade()?.query_device();
        let mut attributes = ibv_device_attr_ex::zeroed();
        attributes.orig_attr = device_attr(&facade);
        attributes.phys_port_cnt_ex = facade.phys_port_cnt.into();
        attributes.max_dm_size = facade.limits.max_dm_size;
        let on_demand = &facade.on_demand;
        attributes.odp_caps = ibv_odp_caps {
            general_caps: ODP_SUPPORT | if on_demand.implicit { ODP_SUPPORT_IMPLICIT } else { 0 },
            per_transport_caps: ibv_odp_transport_caps {
                rc_odp_caps: on_demand.rc.bits(),
                uc_odp_caps: on_demand.uc.bits(),
                ud_odp_caps: on_demand.ud.bits(),
            },
        };
        attributes.xrc_odp_caps = on_demand.xrc.bits();
        attributes.completion_timestamp_mask = facade.timestamp_mask;
        attributes.hca_core_clock = facade.clock_khz;
        attributes.cq_mod_caps = ibv_cq_moderation_caps {
            max_cq_count: facade.max_moderation_count,
            max_cq_period: facade.max_moderation_period_us,
        };
        // SAFETY: the program says how much room there is.
        unsafe { put_sized(attr, attributes, attr_size) }
    })
}

/// `IBV_ODP_SUPPORT` and `IBV_ODP_SUPPORT_IMPLICIT`: memory need not be pinned, and never is
/// (docs/memory.md).
const ODP_SUPPORT: u64 = 1;
const ODP_SUPPORT_IMPLICIT: u64 = 1 << 1;

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
        vendor_id: facade.vendor_id,
        vendor_part_id: facade.vendor_part_id,
        hw_ver: facade.hw_ver,
        max_qp: int(limits.max_qp),
        max_qp_wr: int(limits.max_qp_wr),
        device_cap_flags: facade.capabilities.bits(),
        max_sge: int(limits.max_sge),
        max_sge_rd: int(limits.max_sge),
        max_cq: int(limits.max_cq),
        max_cqe: int(limits.max_cqe),
        max_mr: int(limits.max_mr),
        max_mw: int(limits.max_mr),
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
