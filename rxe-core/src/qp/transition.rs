//! Which attributes each state transition of a queue pair needs or allows: one table a service.
//!
//! The tables of IBA volume 1, section 11.2.5.2 (Modify Queue Pair), as Linux's `ib_core` applies
//! them. Two differences: any state may go to ERR, RESET too, as the specification says; and only
//! UC and UD can be in, and leave, SQE.

use super::attr::{QpAttrMask, QpState, QpType};

/// One row of a transition table: what going to `to` needs and allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transition {
    /// The state that it leaves.
    pub from: QpState,
    /// The state that it enters; the same one where attributes change and the state does not.
    pub to: QpState,
    /// Attributes that must be given beside [`QpAttrMask::STATE`].
    pub required: QpAttrMask,
    /// Attributes that may be given.
    pub optional: QpAttrMask,
}

use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};

const NONE: QpAttrMask = QpAttrMask::empty();
const ACCESS: QpAttrMask = QpAttrMask::ACCESS_FLAGS;
const ALT: QpAttrMask = QpAttrMask::ALT_PATH;
const AV: QpAttrMask = QpAttrMask::AV;
const CUR: QpAttrMask = QpAttrMask::CUR_STATE;
const DEST_READS: QpAttrMask = QpAttrMask::MAX_DEST_RD_ATOMIC;
const MIG: QpAttrMask = QpAttrMask::PATH_MIG_STATE;
const NOTIFY: QpAttrMask = QpAttrMask::EN_SQD_ASYNC_NOTIFY;
const PKEY: QpAttrMask = QpAttrMask::PKEY_INDEX;
const PORT: QpAttrMask = QpAttrMask::PORT;
const QKEY: QpAttrMask = QpAttrMask::QKEY;
const READS: QpAttrMask = QpAttrMask::MAX_QP_RD_ATOMIC;
const RNR_TIMER: QpAttrMask = QpAttrMask::MIN_RNR_TIMER;
const SQ_PSN: QpAttrMask = QpAttrMask::SQ_PSN;
const TIMEOUT: QpAttrMask = QpAttrMask::TIMEOUT;
/// What a requester that is answered needs to know of time.
const RETRIES: QpAttrMask = all(&[TIMEOUT, QpAttrMask::RETRY_CNT, QpAttrMask::RNR_RETRY]);
/// Where a connection leads, and where its stream of requests begins.
const PEER: QpAttrMask = all(&[AV, QpAttrMask::PATH_MTU, QpAttrMask::DEST_QPN, QpAttrMask::RQ_PSN]);
/// What connections may change on the way.
const PATHS: QpAttrMask = all(&[ALT, ACCESS, MIG]);

/// Reliable connections.
const RC: &[Transition] = &[
    row(Reset, Init, &[PKEY, PORT, ACCESS], &[]),
    row(Init, Init, &[], &[PKEY, PORT, ACCESS]),
    row(Init, Rtr, &[PEER, DEST_READS, RNR_TIMER], &[ALT, ACCESS, PKEY]),
    row(Rtr, Rts, &[RETRIES, SQ_PSN, READS], &[CUR, PATHS, RNR_TIMER]),
    row(Rts, Rts, &[], &[CUR, PATHS, RNR_TIMER]),
    row(Rts, Sqd, &[], &[NOTIFY]),
    row(Sqd, Rts, &[], &[CUR, PATHS, RNR_TIMER]),
    row(Sqd, Sqd, &[], &[PORT, AV, RETRIES, READS, DEST_READS, PATHS, PKEY, RNR_TIMER]),
];

/// Unreliable connections.
const UC: &[Transition] = &[
    row(Reset, Init, &[PKEY, PORT, ACCESS], &[]),
    row(Init, Init, &[], &[PKEY, PORT, ACCESS]),
    row(Init, Rtr, &[PEER], &[ALT, ACCESS, PKEY]),
    row(Rtr, Rts, &[SQ_PSN], &[CUR, PATHS]),
    row(Rts, Rts, &[], &[CUR, PATHS]),
    row(Rts, Sqd, &[], &[NOTIFY]),
    row(Sqd, Rts, &[], &[CUR, PATHS]),
    row(Sqd, Sqd, &[], &[AV, PATHS, PKEY]),
    row(Sqe, Rts, &[], &[CUR, ACCESS]),
];

/// Unreliable datagrams.
const UD: &[Transition] = &[
    row(Reset, Init, &[PKEY, PORT, QKEY], &[]),
    row(Init, Init, &[], &[PKEY, PORT, QKEY]),
    row(Init, Rtr, &[], &[PKEY, QKEY]),
    row(Rtr, Rts, &[SQ_PSN], &[CUR, QKEY]),
    row(Rts, Rts, &[], &[CUR, QKEY]),
    row(Rts, Sqd, &[], &[NOTIFY]),
    row(Sqd, Rts, &[], &[CUR, QKEY]),
    row(Sqd, Sqd, &[], &[PKEY, QKEY]),
    row(Sqe, Rts, &[], &[CUR, QKEY]),
];

/// QP1: datagrams of a queue pair that belongs to its port from the beginning.
const GSI: &[Transition] = &[
    row(Reset, Init, &[PKEY, QKEY], &[]),
    row(Init, Init, &[], &[PKEY, QKEY]),
    row(Init, Rtr, &[], &[PKEY, QKEY]),
    row(Rtr, Rts, &[SQ_PSN], &[CUR, QKEY]),
    row(Rts, Rts, &[], &[CUR, QKEY]),
    row(Rts, Sqd, &[], &[NOTIFY]),
    row(Sqd, Rts, &[], &[CUR, QKEY]),
    row(Sqd, Sqd, &[], &[PKEY, QKEY]),
    row(Sqe, Rts, &[], &[CUR, QKEY]),
];

/// Initiators of extended reliable connections: they answer no requests.
const XRC_SEND: &[Transition] = &[
    row(Reset, Init, &[PKEY, PORT, ACCESS], &[]),
    row(Init, Init, &[], &[PKEY, PORT, ACCESS]),
    row(Init, Rtr, &[PEER], &[ALT, ACCESS, PKEY]),
    row(Rtr, Rts, &[RETRIES, SQ_PSN, READS], &[CUR, PATHS]),
    row(Rts, Rts, &[], &[CUR, PATHS]),
    row(Rts, Sqd, &[], &[NOTIFY]),
    row(Sqd, Rts, &[], &[CUR, PATHS]),
    row(Sqd, Sqd, &[], &[PORT, AV, RETRIES, READS, PATHS, PKEY]),
];

/// Targets of extended reliable connections: they send no requests.
const XRC_RECV: &[Transition] = &[
    row(Reset, Init, &[PKEY, PORT, ACCESS], &[]),
    row(Init, Init, &[], &[PKEY, PORT, ACCESS]),
    row(Init, Rtr, &[PEER, DEST_READS, RNR_TIMER], &[ALT, ACCESS, PKEY]),
    row(Rtr, Rts, &[TIMEOUT, SQ_PSN], &[CUR, PATHS, RNR_TIMER]),
    row(Rts, Rts, &[], &[CUR, PATHS, RNR_TIMER]),
    row(Rts, Sqd, &[], &[NOTIFY]),
    row(Sqd, Rts, &[], &[CUR, PATHS, RNR_TIMER]),
    row(Sqd, Sqd, &[], &[PORT, AV, TIMEOUT, DEST_READS, PATHS, PKEY, RNR_TIMER]),
];

const fn all(masks: &[QpAttrMask]) -> QpAttrMask {
    let mut sum = NONE;
    let mut i = 0;
    while i < masks.len() {
        sum = sum.union(masks[i]);
        i += 1;
    }
    sum
}

const fn row(
    from: QpState,
    to: QpState,
    required: &[QpAttrMask],
    optional: &[QpAttrMask],
) -> Transition {
    Transition { from, to, required: all(required), optional: all(optional) }
}

/// The transitions of a service, but for those to RESET and ERR, which are always allowed and take
/// no attributes.
pub const fn transitions(qp_type: QpType) -> &'static [Transition] {
    match qp_type {
        QpType::Gsi => GSI,
        QpType::Rc => RC,
        QpType::Uc => UC,
        QpType::Ud => UD,
        QpType::XrcSend => XRC_SEND,
        QpType::XrcRecv => XRC_RECV,
    }
}

/// What a transition of a QP needs and allows; `None` when there is no such transition.
///
/// Counterpart of `ib_modify_qp_is_ok` in Linux.
pub const fn transition(qp_type: QpType, from: QpState, to: QpState) -> Option<Transition> {
    if matches!(to, Reset | Err) {
        return Some(row(from, to, &[], &[]));
    }
    let table = transitions(qp_type);
    let mut i = 0;
    while i < table.len() {
        let row = table[i];
        if row.from as u32 == from as u32 && row.to as u32 == to as u32 {
            return Some(row);
        }
        i += 1;
    }
    None
}

/// The way of a new queue pair to RTS: each state, with the attributes that its step must give,
/// [`QpAttrMask::STATE`] included.
pub const fn steps_to_rts(qp_type: QpType) -> [(QpState, QpAttrMask); 3] {
    [step(qp_type, Reset, Init), step(qp_type, Init, Rtr), step(qp_type, Rtr, Rts)]
}

/// [`steps_to_rts`] of a reliable connection.
pub const RC_TO_RTS: [(QpState, QpAttrMask); 3] = steps_to_rts(QpType::Rc);

const fn step(qp_type: QpType, from: QpState, to: QpState) -> (QpState, QpAttrMask) {
    let required = match transition(qp_type, from, to) {
        Some(row) => row.required,
        None => panic!("each table has this transition"),
    };
    (to, required.union(QpAttrMask::STATE))
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    /// The whole table, pinned: a change to it must be seen in review.
    #[test]
    fn transition_table() {
        let mut text = String::new();
        let names = |mask: QpAttrMask| {
            mask.iter_names().map(|(name, _)| name).collect::<Vec<_>>().join(" ")
        };
        for qp_type in QpType::ALL {
            for from in QpState::ALL {
                for to in QpState::ALL {
                    write!(text, "{qp_type:?} {from:?}->{to:?} ").unwrap();
                    match transition(qp_type, from, to) {
                        Some(row) => {
                            assert_eq!((row.from, row.to), (from, to));
                            let (required, optional) = (names(row.required), names(row.optional));
                            writeln!(text, "[{required}] ({optional})").unwrap();
                        }
                        None => text.push_str("no\n"),
                    }
                }
            }
        }
        insta::assert_snapshot!(text);
    }

    #[test]
    fn each_row_stands_once_and_asks_for_nothing_twice() {
        for qp_type in QpType::ALL {
            let table = transitions(qp_type);
            for (i, row) in table.iter().enumerate() {
                assert!(!row.required.intersects(row.optional), "{qp_type:?} {row:?}");
                let same = |other: &&Transition| (other.from, other.to) == (row.from, row.to);
                assert_eq!(table.iter().position(|other| same(&other)), Some(i));
                assert!(!matches!(row.to, Reset | Err));
            }
            let last = steps_to_rts(qp_type)[2];
            assert!(last.0 == Rts && last.1.contains(SQ_PSN | QpAttrMask::STATE));
        }
    }

    /// The columns of the table differ just where the services do.
    #[test]
    fn services_differ_where_they_must() {
        for from in QpState::ALL {
            for to in QpState::ALL {
                let [gsi, ud] = [QpType::Gsi, QpType::Ud].map(|service| {
                    transition(service, from, to).map(|row| (row.required, row.optional))
                });
                // QP1 has its port from the beginning.
                assert_eq!(gsi, ud.map(|(required, optional)| (required - PORT, optional - PORT)));
            }
        }
        assert!(transition(QpType::Rc, Sqe, Rts).is_none(), "RC has no SQE");
        assert!(transition(QpType::Uc, Sqe, Rts).is_some());
    }
}
