//! Moving a queue pair between states: all checks first, then all changes.

use gid_table::{Gid, GidEntry, GidType};

use super::attr::{AddressVector, QpAttr, QpAttrMask, QpState, QpType};
use super::completer::Completer;
use super::machine::{Connection, Machine, ShardContext};
use super::requester::Requester;
use super::responder::Responder;
use super::send_queue::SendQueue;
use super::transition::transition;
use crate::device::{Device, Port};
use crate::error::ModifyQpError;

impl Machine {
    /// Checks what [`Self::modify`] would refuse.
    pub(crate) fn check_modify(
        &self,
        device: &Device,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Result<(), ModifyQpError> {
        let from = self.attr.state;
        let to = if mask.contains(QpAttrMask::STATE) { attr.state } else { from };
        if device.has_failed() && !matches!(to, QpState::Err | QpState::Reset) {
            return Err(ModifyQpError::DeviceLost);
        }
        check_transition(self.qp.qp_type(), from, to, attr, mask)?;
        check_values(device, &self.attr, attr, mask)?;
        if mask.contains(QpAttrMask::AV) {
            source_gid(port(device, attr.av.port_num)?, &attr.av)?;
        }
        if mask.contains(QpAttrMask::ALT_PATH) {
            port(device, attr.alt_port_num)?;
            source_gid(port(device, attr.alt_av.port_num)?, &attr.alt_av)?;
        }
        Ok(())
    }

    /// Changes attributes and state (`ibv_modify_qp`); on an error nothing has changed.
    pub(crate) fn modify(
        &mut self,
        cx: &mut ShardContext<'_>,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Result<(), ModifyQpError> {
        let from = self.attr.state;
        let to = if mask.contains(QpAttrMask::STATE) { attr.state } else { from };
        self.check_modify(cx.device, attr, mask)?;
        if mask.contains(QpAttrMask::AV) {
            self.connect(cx, &attr.av, attr.dest_qpn, mask)?;
        }
        self.store(attr, mask);
        self.enter(cx, from, to, mask);
        Ok(())
    }

    /// Takes over the attributes of `mask`.
    fn store(&mut self, attr: &QpAttr, mask: QpAttrMask) {
        macro_rules! take {
            ($($flag:ident => $field:ident),* $(,)?) => {
                $(if mask.contains(QpAttrMask::$flag) { self.attr.$field = attr.$field; })*
            };
        }
        take! {
            ACCESS_FLAGS => access,
            PKEY_INDEX => pkey_index,
            PORT => port_num,
            QKEY => qkey,
            AV => av,
            PATH_MTU => path_mtu,
            TIMEOUT => timeout,
            RETRY_CNT => retry_cnt,
            RNR_RETRY => rnr_retry,
            RQ_PSN => rq_psn,
            MAX_QP_RD_ATOMIC => max_rd_atomic,
            MIN_RNR_TIMER => min_rnr_timer,
            SQ_PSN => sq_psn,
            MAX_DEST_RD_ATOMIC => max_dest_rd_atomic,
            DEST_QPN => dest_qpn,
            PATH_MIG_STATE => path_mig_state,
            ALT_PATH => alt_av,
            ALT_PATH => alt_pkey_index,
            ALT_PATH => alt_port_num,
            ALT_PATH => alt_timeout,
        }
    }

    /// Does what entering a state means.
    fn enter(&mut self, cx: &mut ShardContext<'_>, from: QpState, to: QpState, mask: QpAttrMask) {
        tracing::debug!(target: "rxe::qp", qpn = %self.qp.qpn(), ?from, ?to, "modify");
        match to {
            QpState::Err => return self.enter_error_by_request(cx),
            QpState::Reset => {
                self.disconnect(cx);
                let qp = self.qp.clone();
                qp.set_state(QpState::Reset);
                qp.clear();
                let is_ready = self.is_ready;
                // The old deadlines find timers that are not set: they do nothing.
                *self = Self { is_ready, ..Self::new(self.key, qp) };
                return;
            }
            QpState::Rtr if from == QpState::Init => {
                self.responder = Responder::new(self.attr.rq_psn);
            }
            QpState::Rts if from == QpState::Rtr => {
                self.send = SendQueue::new(self.attr.sq_psn);
                self.requester = Requester::default();
                self.completer = Completer::default();
            }
            QpState::Rts => self.tell_drained = false,
            QpState::Sqd if from == QpState::Rts => {
                self.tell_drained = mask.contains(QpAttrMask::EN_SQD_ASYNC_NOTIFY);
            }
            _ => {}
        }
        self.attr.state = to;
        self.qp.set_state(to);
        if to == QpState::Sqd {
            self.tell_if_drained(cx);
        }
    }

    pub(crate) fn enter_error_by_request(&mut self, cx: &mut ShardContext<'_>) {
        self.responder.forget_replies();
        self.enter_error(cx);
    }

    /// Resolves an address vector and takes hold of what it needs.
    fn connect(
        &mut self,
        cx: &mut ShardContext<'_>,
        av: &AddressVector,
        dest_qpn: rxe_wire::Qpn,
        mask: QpAttrMask,
    ) -> Result<(), ModifyQpError> {
        let port = port(cx.device, av.port_num)?;
        let entry = source_gid(port, av)?;
        if let Err(error) = port.gids.write().hold(av.sgid_index) {
            return Err(ModifyQpError::GidIndex { error, suggested: None });
        }
        let path = av.path_from(&entry);
        self.disconnect(cx);
        let dest_qpn =
            if mask.contains(QpAttrMask::DEST_QPN) { dest_qpn } else { self.attr.dest_qpn };
        let window = cx.windows.acquire((av.dgid, dest_qpn.slot()), dest_qpn, self.key);
        let source = (av.port_num, av.sgid_index);
        self.connection = Some(Connection { path, dest_qpn, window, source });
        Ok(())
    }
}

fn check_transition(
    qp_type: QpType,
    from: QpState,
    to: QpState,
    attr: &QpAttr,
    mask: QpAttrMask,
) -> Result<(), ModifyQpError> {
    if mask.contains(QpAttrMask::CUR_STATE) && attr.cur_state != from {
        return Err(ModifyQpError::CurrentState { expected: attr.cur_state, actual: from });
    }
    let Some(row) = transition(qp_type, from, to) else {
        let hint = hint_for(from);
        return Err(ModifyQpError::Transition { qp_type, from, to, hint });
    };
    let missing = row.required.difference(mask);
    let not_allowed = mask.difference(row.required | row.optional | QpAttrMask::STATE);
    if missing.is_empty() && not_allowed.is_empty() {
        return Ok(());
    }
    Err(ModifyQpError::Attributes { from, to, missing, not_allowed })
}

fn hint_for(from: QpState) -> &'static str {
    match from {
        QpState::Reset => "from Reset it goes to Init",
        QpState::Init => "from Init it goes to Rtr",
        QpState::Rtr => "from Rtr it goes to Rts",
        QpState::Rts => "from Rts it goes to Sqd, Err or Reset",
        QpState::Sqd => "from Sqd it goes to Rts, Err or Reset",
        QpState::Sqe => "from Sqe it goes to Rts, Err or Reset",
        QpState::Err => "from Err it goes to Reset only",
    }
}

fn check_values(
    device: &Device,
    current: &QpAttr,
    attr: &QpAttr,
    mask: QpAttrMask,
) -> Result<(), ModifyQpError> {
    let limits = device.limits();
    let ranges = [
        (QpAttrMask::PKEY_INDEX, "pkey_index", u32::from(attr.pkey_index), 0),
        (QpAttrMask::TIMEOUT, "timeout", attr.timeout.into(), 31),
        (QpAttrMask::ALT_PATH, "alt_timeout", attr.alt_timeout.into(), 31),
        (QpAttrMask::ALT_PATH, "alt_pkey_index", attr.alt_pkey_index.into(), 0),
        (QpAttrMask::RETRY_CNT, "retry_cnt", attr.retry_cnt.into(), 7),
        (QpAttrMask::RNR_RETRY, "rnr_retry", attr.rnr_retry.into(), 7),
        (QpAttrMask::MIN_RNR_TIMER, "min_rnr_timer", attr.min_rnr_timer.into(), 31),
        (
            QpAttrMask::MAX_QP_RD_ATOMIC,
            "max_rd_atomic",
            attr.max_rd_atomic.into(),
            limits.max_qp_init_rd_atom.into(),
        ),
        (
            QpAttrMask::MAX_DEST_RD_ATOMIC,
            "max_dest_rd_atomic",
            attr.max_dest_rd_atomic.into(),
            limits.max_qp_rd_atom.into(),
        ),
        (QpAttrMask::AV, "av.flow_label", attr.av.flow_label, 0xf_ffff),
    ];
    for (flag, what, value, max) in ranges {
        if mask.contains(flag) && value > max {
            return Err(ModifyQpError::Value { what, value, max });
        }
    }
    if mask.contains(QpAttrMask::PORT) {
        port(device, attr.port_num)?;
    }
    if mask.contains(QpAttrMask::PATH_MTU) {
        let number =
            if mask.contains(QpAttrMask::AV) { attr.av.port_num } else { current.port_num };
        let active = port(device, number)?.active_mtu();
        if attr.path_mtu > active {
            let (asked, active) = (attr.path_mtu.bytes(), active.bytes());
            return Err(ModifyQpError::PathMtu { asked, active });
        }
    }
    Ok(())
}

pub(crate) fn port(device: &Device, number: u8) -> Result<&Port, ModifyQpError> {
    // A device has at most 255 ports: their numbers have 8 bits.
    let ports = device.ports().len().min(255) as u8;
    device.port(number).ok_or(ModifyQpError::Port { port: number, ports })
}

/// The source GID of an address vector, if packets can be sent from it to the destination.
pub(crate) fn source_gid(port: &Port, av: &AddressVector) -> Result<GidEntry, ModifyQpError> {
    if av.dgid.is_zero() {
        return Err(ModifyQpError::NoDestination);
    }
    let gids = port.gids.read();
    let index = av.sgid_index;
    let is_v4 = |gid: Gid| gid.to_ipv4().is_some();
    let suggested = gids
        .entries()
        .find(|entry| entry.owned && is_v4(entry.gid) == is_v4(av.dgid))
        .map(|entry| (entry.gid_index, entry.gid));
    let entry = match gids.query_gid_ex(index) {
        Ok(entry) => entry,
        Err(error) => return Err(ModifyQpError::GidIndex { error, suggested }),
    };
    if !entry.owned {
        return Err(ModifyQpError::GidNotOwned { index, gid: entry.gid, suggested });
    }
    // RoCE v1 has no IP: its header takes any two GIDs, as that of an IPv4 address and that of the
    // group that stands for one of IPv4 there (`ff0e::ffff:239.1.2.3`).
    if entry.gid_type == GidType::RoceV2 && is_v4(entry.gid) != is_v4(av.dgid) {
        let (source_gid, dgid) = (entry.gid, av.dgid);
        return Err(ModifyQpError::Family { source_gid, dgid, suggested });
    }
    Ok(entry)
}
