//! Attributes of queue pairs, between the program's form and the facade's.

use ibverbs_api::{MigState, Mtu, Psn, QpAttr, QpAttrMask, QpCaps, QpState, Qpn};

use crate::ah::{address_vector, ah_attr};
use crate::call::Refused;
use crate::mr::access_flags;
use crate::types::{ibv_qp_attr, ibv_qp_cap};

/// Capacities as the program has them.
pub(crate) fn qp_caps(cap: &ibv_qp_cap) -> QpCaps {
    let &ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data } = cap;
    QpCaps { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
}

/// Capacities for the program.
pub(crate) fn qp_cap(caps: &QpCaps) -> ibv_qp_cap {
    let &QpCaps { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data } = caps;
    ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
}

fn unknown(what: &str, value: u32) -> Refused {
    Refused::invalid(format!("{what} {value} is none of its enumeration"))
}

fn state(value: u32) -> Result<QpState, Refused> {
    let found = QpState::ALL.into_iter().find(|state| *state as u32 == value);
    found.ok_or_else(|| unknown("qp_state", value))
}

fn mtu(value: u32) -> Result<Mtu, Refused> {
    let found = Mtu::ALL.into_iter().find(|mtu| *mtu as u32 == value);
    found.ok_or_else(|| unknown("path_mtu", value))
}

fn mig_state(value: u32) -> Result<MigState, Refused> {
    let all = [MigState::Migrated, MigState::Rearm, MigState::Armed];
    let found = all.into_iter().find(|state| *state as u32 == value);
    found.ok_or_else(|| unknown("path_mig_state", value))
}

/// What a call sets, as the facade has it. Only what the mask names is looked at: the program need
/// not have set the rest.
pub(crate) fn to_facade(attr: &ibv_qp_attr, mask: u32) -> Result<(QpAttr, QpAttrMask), Refused> {
    let mask = QpAttrMask::from_bits(mask);
    let mask = mask.ok_or_else(|| Refused::invalid("attr_mask has bits that are not known"))?;
    let mut to = QpAttr {
        qkey: attr.qkey,
        rq_psn: Psn::new(attr.rq_psn),
        sq_psn: Psn::new(attr.sq_psn),
        dest_qpn: Qpn::new(attr.dest_qp_num),
        pkey_index: attr.pkey_index,
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port_num,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        ..QpAttr::default()
    };
    if mask.contains(QpAttrMask::STATE) {
        to.state = state(attr.qp_state)?;
    }
    if mask.contains(QpAttrMask::CUR_STATE) {
        to.cur_state = state(attr.cur_qp_state)?;
    }
    if mask.contains(QpAttrMask::PATH_MTU) {
        to.path_mtu = mtu(attr.path_mtu)?;
    }
    if mask.contains(QpAttrMask::ACCESS_FLAGS) {
        to.access = access_flags(attr.qp_access_flags)?;
    }
    if mask.contains(QpAttrMask::AV) {
        to.av = address_vector(&attr.ah_attr)?;
    }
    if mask.contains(QpAttrMask::ALT_PATH) {
        to.alt_av = address_vector(&attr.alt_ah_attr)?;
        (to.alt_pkey_index, to.alt_port_num) = (attr.alt_pkey_index, attr.alt_port_num);
        to.alt_timeout = attr.alt_timeout;
    }
    if mask.contains(QpAttrMask::PATH_MIG_STATE) {
        to.path_mig_state = mig_state(attr.path_mig_state)?;
    }
    Ok((to, mask))
}

/// The attributes that a queue pair has, for the program.
pub(crate) fn from_facade(attr: &QpAttr, caps: &QpCaps) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: attr.state as u32,
        cur_qp_state: attr.cur_state as u32,
        path_mtu: attr.path_mtu as u32,
        path_mig_state: attr.path_mig_state as u32,
        qkey: attr.qkey,
        rq_psn: attr.rq_psn.get(),
        sq_psn: attr.sq_psn.get(),
        dest_qp_num: attr.dest_qpn.get(),
        qp_access_flags: attr.access.bits(),
        cap: qp_cap(caps),
        ah_attr: ah_attr(&attr.av),
        alt_ah_attr: ah_attr(&attr.alt_av),
        pkey_index: attr.pkey_index,
        alt_pkey_index: attr.alt_pkey_index,
        sq_draining: attr.sq_draining.into(),
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port_num,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        alt_port_num: attr.alt_port_num,
        alt_timeout: attr.alt_timeout,
        ..ibv_qp_attr::zeroed()
    }
}
