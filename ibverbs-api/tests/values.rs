//! Numeric values are those of `infiniband/verbs.h` (rdma-core 44), which programs compile in.

use ibverbs_api::*;

#[test]
fn statuses_of_completions() {
    use WcStatus::*;
    let all = [
        Success,
        LocLenErr,
        LocQpOpErr,
        LocEecOpErr,
        LocProtErr,
        WrFlushErr,
        MwBindErr,
        BadRespErr,
        LocAccessErr,
        RemInvReqErr,
        RemAccessErr,
        RemOpErr,
        RetryExcErr,
        RnrRetryExcErr,
        LocRddViolErr,
        RemInvRdReqErr,
        RemAbortErr,
        InvEecnErr,
        InvEecStateErr,
        FatalErr,
        RespTimeoutErr,
        GeneralErr,
    ];
    assert_eq!(all.map(|status| status as u32), std::array::from_fn(|i| i as u32));
}

#[test]
fn opcodes_and_flags_of_completions() {
    let opcodes = [
        (WcOpcode::Send, 0),
        (WcOpcode::RdmaWrite, 1),
        (WcOpcode::RdmaRead, 2),
        (WcOpcode::CompSwap, 3),
        (WcOpcode::FetchAdd, 4),
        (WcOpcode::BindMw, 5),
        (WcOpcode::LocalInv, 6),
        (WcOpcode::Recv, 128),
        (WcOpcode::RecvRdmaWithImm, 129),
    ];
    for (opcode, value) in opcodes {
        assert_eq!(opcode as u32, value, "{opcode:?}");
    }
    assert_eq!(WcFlags::GRH.bits(), 1);
    assert_eq!(WcFlags::WITH_IMM.bits(), 2);
    assert_eq!(WcFlags::WITH_INV.bits(), 8);
}

#[test]
fn access_and_send_flags() {
    let access = [
        (AccessFlags::LOCAL_WRITE, 1),
        (AccessFlags::REMOTE_WRITE, 2),
        (AccessFlags::REMOTE_READ, 4),
        (AccessFlags::REMOTE_ATOMIC, 8),
        (AccessFlags::MW_BIND, 16),
        (AccessFlags::ZERO_BASED, 32),
        (AccessFlags::ON_DEMAND, 64),
        (AccessFlags::HUGETLB, 128),
        (AccessFlags::RELAXED_ORDERING, 1_048_576),
    ];
    for (flag, value) in access {
        assert_eq!(flag.bits(), value, "{flag:?}");
    }
    assert_eq!(SendFlags::FENCE.bits(), 1);
    assert_eq!(SendFlags::SIGNALED.bits(), 2);
    assert_eq!(SendFlags::SOLICITED.bits(), 4);
}

#[test]
fn queue_pairs() {
    use QpState::*;
    let states = [Reset, Init, Rtr, Rts, Sqd, Sqe, Err];
    assert_eq!(states.map(|state| state as u32), [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(QpType::ALL.map(|qp_type| qp_type as u32), [1, 2, 3, 4, 9, 10]);
    let mtus = Mtu::ALL.map(|mtu| (mtu as u32, mtu.bytes()));
    assert_eq!(mtus, [(1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096)]);
    let masks = [
        (QpAttrMask::STATE, 1),
        (QpAttrMask::CUR_STATE, 2),
        (QpAttrMask::EN_SQD_ASYNC_NOTIFY, 4),
        (QpAttrMask::ACCESS_FLAGS, 8),
        (QpAttrMask::PKEY_INDEX, 16),
        (QpAttrMask::PORT, 32),
        (QpAttrMask::QKEY, 64),
        (QpAttrMask::AV, 128),
        (QpAttrMask::PATH_MTU, 256),
        (QpAttrMask::TIMEOUT, 512),
        (QpAttrMask::RETRY_CNT, 1024),
        (QpAttrMask::RNR_RETRY, 2048),
        (QpAttrMask::RQ_PSN, 4096),
        (QpAttrMask::MAX_QP_RD_ATOMIC, 8192),
        (QpAttrMask::ALT_PATH, 16_384),
        (QpAttrMask::MIN_RNR_TIMER, 32_768),
        (QpAttrMask::SQ_PSN, 65_536),
        (QpAttrMask::MAX_DEST_RD_ATOMIC, 131_072),
        (QpAttrMask::PATH_MIG_STATE, 262_144),
        (QpAttrMask::CAP, 524_288),
        (QpAttrMask::DEST_QPN, 1_048_576),
    ];
    for (mask, value) in masks {
        assert_eq!(mask.bits(), value, "{mask:?}");
    }
    let all = masks.iter().fold(0, |all, (_, value)| all | value);
    assert_eq!(QpAttrMask::all().bits(), all, "a flag that this test does not know");
}

#[test]
fn events_ports_and_gids() {
    let qpn = Qpn::new(7);
    let srq = SrqId(5);
    let events = [
        AsyncEvent::CqErr(CqId(1)),
        AsyncEvent::QpFatal(qpn),
        AsyncEvent::QpReqErr(qpn),
        AsyncEvent::QpAccessErr(qpn),
        AsyncEvent::CommEst(qpn),
        AsyncEvent::SqDrained(qpn),
        AsyncEvent::PathMig(qpn),
        AsyncEvent::PathMigErr(qpn),
        AsyncEvent::DeviceFatal,
        AsyncEvent::PortActive(1),
        AsyncEvent::PortErr(1),
        AsyncEvent::LidChange(1),
        AsyncEvent::PKeyChange(1),
        AsyncEvent::SmChange(1),
        AsyncEvent::SrqErr(srq),
        AsyncEvent::SrqLimitReached(srq),
        AsyncEvent::QpLastWqeReached(qpn),
        AsyncEvent::ClientReregister(1),
        AsyncEvent::GidChange(1),
    ];
    for (value, event) in events.into_iter().enumerate() {
        assert_eq!(event.event_type(), value as u32, "{event}");
    }
    assert_eq!((SrqAttrMask::MAX_WR.bits(), SrqAttrMask::LIMIT.bits()), (1, 2));
    assert_eq!([PortState::Down as u32, PortState::Active as u32], [1, 4]);
    assert_eq!(LinkLayer::Ethernet as u8, 2);
    assert_eq!([GidType::Ib as u32, GidType::RoceV1 as u32, GidType::RoceV2 as u32], [0, 1, 2]);
}
