//! The symbols that the library exports, with their versions: all of Debian 12's libibverbs.so.1 and
//! librdmacm.so.1 (tests/data/exports.txt), and the private ones under the names of later releases.
//!
//! Each symbol is a jump to an ordinary function, in assembly beside the directive that gives it its
//! version: rustc's own list of exports knows no versions, and puts whatever it names where it has
//! none. The nodes themselves are in nodes.map.

/// The jump to a function. What marks it as a target of indirect jumps is nothing where the
/// processor does not check that.
#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "endbr64; jmp {to}"
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "bti c; b {to}"
    };
}

/// Puts functions into version nodes; `@@` makes a version the default one of its name.
macro_rules! export {
    ($($node:literal $at:literal { $($module:ident: $($name:ident),+;)+ })+) => {
        $($($(
            core::arch::global_asm!(
                concat!(".pushsection .text.abi.", $node, ".", stringify!($name), ",\"ax\",@progbits"),
                ".p2align 4",
                concat!(".globl __abi_", $node, "_", stringify!($name)),
                concat!(".type __abi_", $node, "_", stringify!($name), ",@function"),
                concat!("__abi_", $node, "_", stringify!($name), ":"),
                jump!(),
                concat!(
                    ".size __abi_", $node, "_", stringify!($name),
                    ", . - __abi_", $node, "_", stringify!($name)
                ),
                concat!(
                    ".symver __abi_", $node, "_", stringify!($name),
                    ", ", stringify!($name), $at, $node
                ),
                ".popsection",
                to = sym crate::$module::$name,
            );
        )+)+)+
    };
}

/// What the vendors' libraries use. It has a node of another name in each generation of releases:
/// 34 for versions 44 to 56, 59 for 59 to 63, then 64.
macro_rules! export_private {
    ($node:literal $at:literal $register:ident) => {
        export! {
            $node $at {
                gid: ibv_query_gid_type;
                sysfs: ibv_read_ibdev_sysfs_file;
                private:
                    __ioctl_final_num_attrs, __verbs_log, _verbs_init_and_alloc_context,
                    execute_ioctl, ibv_cmd_advise_mr, ibv_cmd_alloc_dm, ibv_cmd_alloc_mw,
                    ibv_cmd_alloc_pd, ibv_cmd_attach_mcast, ibv_cmd_close_xrcd, ibv_cmd_create_ah,
                    ibv_cmd_create_counters, ibv_cmd_create_cq, ibv_cmd_create_cq_ex,
                    ibv_cmd_create_flow, ibv_cmd_create_flow_action_esp, ibv_cmd_create_qp,
                    ibv_cmd_create_qp_ex, ibv_cmd_create_qp_ex2, ibv_cmd_create_rwq_ind_table,
                    ibv_cmd_create_srq, ibv_cmd_create_srq_ex, ibv_cmd_create_wq,
                    ibv_cmd_dealloc_mw, ibv_cmd_dealloc_pd, ibv_cmd_dereg_mr, ibv_cmd_destroy_ah,
                    ibv_cmd_destroy_counters, ibv_cmd_destroy_cq, ibv_cmd_destroy_flow,
                    ibv_cmd_destroy_flow_action, ibv_cmd_destroy_qp, ibv_cmd_destroy_rwq_ind_table,
                    ibv_cmd_destroy_srq, ibv_cmd_destroy_wq, ibv_cmd_detach_mcast, ibv_cmd_free_dm,
                    ibv_cmd_get_context, ibv_cmd_modify_cq, ibv_cmd_modify_flow_action_esp,
                    ibv_cmd_modify_qp, ibv_cmd_modify_qp_ex, ibv_cmd_modify_srq, ibv_cmd_modify_wq,
                    ibv_cmd_open_qp, ibv_cmd_open_xrcd, ibv_cmd_poll_cq, ibv_cmd_post_recv,
                    ibv_cmd_post_send, ibv_cmd_post_srq_recv, ibv_cmd_query_context,
                    ibv_cmd_query_device_any, ibv_cmd_query_mr, ibv_cmd_query_port,
                    ibv_cmd_query_qp, ibv_cmd_query_srq, ibv_cmd_read_counters, ibv_cmd_reg_dm_mr,
                    ibv_cmd_reg_dmabuf_mr, ibv_cmd_reg_mr, ibv_cmd_req_notify_cq, ibv_cmd_rereg_mr,
                    ibv_cmd_resize_cq, verbs_init_cq, verbs_open_device, verbs_set_ops,
                    verbs_uninit_context, $register;
            }
        }

        // A byte that drivers may set, and that nobody reads.
        core::arch::global_asm!(
            concat!(".pushsection .bss.abi.", $node, ",\"aw\",@nobits"),
            concat!(".globl __abi_", $node, "_allow"),
            concat!(".type __abi_", $node, "_allow,@object"),
            concat!(".size __abi_", $node, "_allow, 1"),
            concat!("__abi_", $node, "_allow:"),
            ".zero 1",
            concat!(
                ".symver __abi_",
                $node,
                "_allow, verbs_allow_disassociate_destroy",
                $at,
                $node
            ),
            ".popsection",
        );
    };
}

export_private!("IBVERBS_PRIVATE_34" "@@" verbs_register_driver_34);
export_private!("IBVERBS_PRIVATE_59" "@" verbs_register_driver_59);
export_private!("IBVERBS_PRIVATE_64" "@" verbs_register_driver_64);

export! {
    "IBVERBS_1.0" "@" {
        first_release:
            ibv_ack_async_event, ibv_ack_cq_events, ibv_alloc_pd, ibv_attach_mcast,
            ibv_close_device, ibv_create_ah, ibv_create_cq, ibv_create_qp, ibv_create_srq,
            ibv_dealloc_pd, ibv_dereg_mr, ibv_destroy_ah, ibv_destroy_cq, ibv_destroy_qp,
            ibv_destroy_srq, ibv_detach_mcast, ibv_free_device_list, ibv_get_async_event,
            ibv_get_cq_event, ibv_get_device_guid, ibv_get_device_list, ibv_get_device_name,
            ibv_modify_qp, ibv_modify_srq, ibv_open_device, ibv_query_device, ibv_query_gid,
            ibv_query_pkey, ibv_query_port, ibv_query_qp, ibv_query_srq, ibv_reg_mr, ibv_resize_cq;
    }
    "IBVERBS_1.0" "@@" {
        channel: ibv_create_comp_channel, ibv_destroy_comp_channel;
        kernel_forms:
            ibv_copy_path_rec_from_kern, ibv_copy_path_rec_to_kern, ibv_copy_qp_attr_from_kern;
        rates: ibv_rate_to_mult, mult_to_ibv_rate;
        sysfs: ibv_get_sysfs_path, ibv_read_sysfs_file;
    }
    "IBVERBS_1.1" "@" {
        first_release: ibv_register_driver;
    }
    "IBVERBS_1.1" "@@" {
        ah:
            ibv_create_ah, ibv_create_ah_from_wc, ibv_destroy_ah, ibv_init_ah_from_wc,
            ibv_resolve_eth_l2_from_gid;
        channel: ibv_ack_cq_events, ibv_get_cq_event;
        context: ibv_close_device, ibv_open_device, ibv_query_device;
        cq: ibv_create_cq, ibv_destroy_cq, ibv_resize_cq;
        device: ibv_free_device_list, ibv_get_device_guid, ibv_get_device_list, ibv_get_device_name;
        event: ibv_ack_async_event, ibv_get_async_event;
        fork: ibv_dofork_range, ibv_dontfork_range, ibv_fork_init;
        gid: ibv_query_gid;
        kernel_forms: ibv_copy_ah_attr_from_kern;
        mcast: ibv_attach_mcast, ibv_detach_mcast;
        mr: ibv_dereg_mr, ibv_reg_mr, ibv_rereg_mr;
        pd: ibv_alloc_pd, ibv_dealloc_pd;
        port: ibv_query_pkey, ibv_query_port;
        qp: ibv_create_qp, ibv_destroy_qp, ibv_modify_qp, ibv_query_qp;
        rates: ibv_rate_to_mbps, mbps_to_ibv_rate;
        srq: ibv_create_srq, ibv_destroy_srq, ibv_modify_srq, ibv_query_srq;
        strings: ibv_event_type_str, ibv_node_type_str, ibv_port_state_str, ibv_wc_status_str;
    }
    "IBVERBS_1.5" "@@" {
        port: ibv_get_pkey_index;
    }
    "IBVERBS_1.6" "@@" {
        qp_ex: ibv_qp_to_qp_ex;
    }
    "IBVERBS_1.7" "@@" {
        mr: ibv_reg_mr_iova;
    }
    "IBVERBS_1.8" "@@" {
        mr: ibv_reg_mr_iova2;
    }
    "IBVERBS_1.9" "@@" {
        device: ibv_get_device_index;
    }
    "IBVERBS_1.10" "@@" {
        context: ibv_import_device;
        mr: ibv_import_mr, ibv_unimport_mr;
        pd: ibv_import_pd, ibv_unimport_pd;
        qp: ibv_query_ece, ibv_set_ece;
    }
    "IBVERBS_1.11" "@@" {
        gid: _ibv_query_gid_ex, _ibv_query_gid_table;
    }
    "IBVERBS_1.12" "@@" {
        mr: ibv_reg_dmabuf_mr;
    }
    "IBVERBS_1.13" "@@" {
        dm: ibv_import_dm, ibv_unimport_dm;
        fork: ibv_is_fork_initialized;
    }
    "IBVERBS_1.14" "@@" {
        qp: ibv_query_qp_data_in_order;
    }
    "RDMACM_1.0" "@@" {
        strings: rdma_event_str;
        rdmacm:
            rdma_accept, rdma_ack_cm_event, rdma_bind_addr, rdma_connect, rdma_create_ep,
            rdma_create_event_channel, rdma_create_id, rdma_create_qp, rdma_create_qp_ex,
            rdma_create_srq, rdma_create_srq_ex, rdma_destroy_ep, rdma_destroy_event_channel,
            rdma_destroy_id, rdma_destroy_qp, rdma_destroy_srq, rdma_disconnect,
            rdma_free_devices, rdma_freeaddrinfo, rdma_get_cm_event, rdma_get_devices,
            rdma_get_dst_port, rdma_get_request, rdma_get_src_port, rdma_getaddrinfo,
            rdma_join_multicast, rdma_leave_multicast, rdma_listen, rdma_migrate_id, rdma_notify,
            rdma_reject, rdma_resolve_addr, rdma_resolve_route, rdma_set_option;
        rsocket:
            raccept, rbind, rclose, rconnect, rfcntl, rgetpeername, rgetsockname, rgetsockopt,
            riomap, riounmap, riowrite, rlisten, rpoll, rread, rreadv, rrecv, rrecvfrom, rrecvmsg,
            rselect, rsend, rsendmsg, rsendto, rsetsockopt, rshutdown, rsocket, rwrite, rwritev;
    }
    "RDMACM_1.1" "@@" {
        rdmacm: rdma_join_multicast_ex;
    }
    "RDMACM_1.2" "@@" {
        rdmacm: rdma_establish, rdma_init_qp_attr;
    }
    "RDMACM_1.3" "@@" {
        rdmacm: rdma_get_remote_ece, rdma_reject_ece, rdma_set_local_ece;
    }
}
