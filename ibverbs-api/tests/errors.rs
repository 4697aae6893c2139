//! Bad use gets a typed error that says what is wrong and what would be right.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod common;

use std::error::Error;
use std::fmt::Write;
use std::time::{Duration, Instant};

use common::*;
use ibverbs_api::*;

/// A list of cases with what the program is told, for a snapshot.
#[derive(Default)]
struct Told(String);

impl Told {
    fn case<T>(&mut self, case: &str, result: Result<T, impl Error>) {
        let Err(error) = result else { panic!("{case}: no error") };
        writeln!(self.0, "{case}:\n    {error}").unwrap();
        // What a source says is in the message already; printing both must not say it twice.
        assert!(!format!("{error}").is_empty());
    }
}

fn fresh(context: &Context) -> End {
    End::new(context, &Setup::default(), None)
}

/// Attributes that are right for every step to RTS, to the context itself.
fn good(context: &Context, family: Family) -> (QpAttr, [QpAttrMask; 3]) {
    let own = gid(context, family);
    let attr = QpAttr {
        dest_qpn: Qpn::new(0x01_0203),
        av: AddressVector::new(own.gid, own.gid_index),
        access: ALL,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        ..QpAttr::default()
    };
    (attr, RC_TO_RTS.map(|(_, mask)| mask))
}

#[test]
fn devices_and_contexts() {
    let mut told = Told::default();
    let error = Device::by_name("mlx5_0").unwrap_err();
    assert_eq!(error.errno(), 19, "ENODEV");
    let DeviceError::NoSuchDevice { name, known } = &error else { panic!("{error:?}") };
    assert_eq!(name, "mlx5_0");
    assert!(known.contains(&"rxe_lo".to_owned()));
    assert!(error.to_string().contains("rxe_lo"), "{error}");
    for shards in [0, 65] {
        let options = OpenOptions { shards, ..options() };
        let device = Device::by_name("rxe_lo").unwrap();
        let error = device.open_with(options).unwrap_err();
        assert_eq!(error.errno(), 22, "EINVAL");
        told.case(&format!("{shards} shards"), Err::<(), _>(error));
    }
    let context = open();
    told.case("port 0", context.query_port(0));
    told.case("port 2", context.query_port(2));
    told.case("partition key 1", context.query_pkey(1, 1));
    told.case("GID far out", context.query_gid(1, 100_000));
    let free = (0..).find(|&index| context.query_gid_ex(1, index).is_err()).unwrap();
    let empty = context.query_gid_ex(1, free).unwrap_err();
    told.0.push_str(
        &format!("GID index with no entry:\n    {empty}\n").replace(&free.to_string(), "N"),
    );
    insta::assert_snapshot!(told.0);
}

#[test]
fn objects() {
    let mut told = Told::default();
    let mut options = options();
    options.limits = Limits {
        max_qp: 1,
        max_cq: 2,
        max_cqe: 100,
        max_mr: 1,
        max_pd: 1,
        max_qp_wr: 1000,
        ..Limits::default()
    };
    let context = open_with(options);
    let pd = context.alloc_pd().unwrap();
    told.case("one domain too many", context.alloc_pd());
    told.case("a queue without entries", context.create_cq(0, None, 0));
    told.case("a queue too long", context.create_cq(101, None, 0));
    let cq = context.create_cq(100, None, usize::MAX).unwrap();
    let other = context.create_cq(1, None, 1).unwrap();
    told.case("one queue too many", context.create_cq(1, None, 0));
    drop(other);
    context.create_cq(1, None, 0).unwrap();

    let buffer = || DmaBuf::zeroed(16);
    told.case("remote write alone", pd.register(buffer(), AccessFlags::REMOTE_WRITE));
    told.case("addresses that wrap", pd.register_at(buffer(), u64::MAX - 3, ALL));
    let region = pd.register(buffer(), ALL).unwrap();
    told.case("one region too many", pd.register(buffer(), ALL));
    drop(region);
    pd.register(buffer(), ALL).unwrap();

    let init = QpInit::new(QpType::Rc, &cq, &cq);
    let qp_type = QpType::XrcRecv;
    told.case("a target without a domain", pd.create_qp(QpInit { qp_type, ..init.clone() }));
    let caps = QpCaps::default();
    for (what, caps) in [
        ("send queue too long", QpCaps { max_send_wr: 1001, ..caps }),
        ("receive queue too long", QpCaps { max_recv_wr: u32::MAX, ..caps }),
        ("too many pieces to send", QpCaps { max_send_sge: 33, ..caps }),
        ("too many pieces to receive", QpCaps { max_recv_sge: 33, ..caps }),
        ("too much inline", QpCaps { max_inline_data: 1025, ..caps }),
    ] {
        told.case(what, pd.create_qp(QpInit { caps, ..init.clone() }));
    }
    let qp = pd.create_qp(init.clone()).unwrap();
    told.case("one queue pair too many", pd.create_qp(init.clone()));
    drop(qp);
    let stranger = open().create_cq(1, None, 0).unwrap();
    let foreign = QpInit { send_cq: stranger.clone(), ..init.clone() };
    told.case("send queue of another context", pd.create_qp(foreign));
    told.case(
        "receive queue of another context",
        pd.create_qp(QpInit { recv_cq: stranger, ..init.clone() }),
    );
    pd.create_qp(init).unwrap();
    insta::assert_snapshot!(told.0);
}

#[test]
fn changes_of_state() {
    let mut told = Told::default();
    let context = open();
    let (attr, [init, rtr, rts]) = good(&context, Family::V4);
    let end = fresh(&context);
    let qp = &end.qp;
    let at = |state| QpAttr { state, ..attr };
    told.case("Reset to Rts", qp.modify(&at(QpState::Rts), rts));
    told.case("Reset to Rtr", qp.modify(&at(QpState::Rtr), rtr));
    told.case("Init without a port", qp.modify(&at(QpState::Init), init - QpAttrMask::PORT));
    told.case(
        "Init with a path MTU, without access",
        qp.modify(&at(QpState::Init), (init - QpAttrMask::ACCESS_FLAGS) | QpAttrMask::PATH_MTU),
    );
    let far_port = QpAttr { port_num: 2, ..at(QpState::Init) };
    told.case("Init at port 2", qp.modify(&far_port, init));
    let far_key = QpAttr { pkey_index: 1, ..at(QpState::Init) };
    told.case("Init with partition key 1", qp.modify(&far_key, init));
    qp.modify(&at(QpState::Init), init).unwrap();
    told.case("Init to Rts", qp.modify(&at(QpState::Rts), rts));
    told.case("Rtr with nothing", qp.modify(&at(QpState::Rtr), QpAttrMask::STATE));
    let many_reads = QpAttr { max_dest_rd_atomic: 129, ..at(QpState::Rtr) };
    told.case("Rtr with 129 READs", qp.modify(&many_reads, rtr));
    let timer = QpAttr { min_rnr_timer: 32, ..at(QpState::Rtr) };
    told.case("Rtr with RNR timer 32", qp.modify(&timer, rtr));
    assert_eq!(qp.state(), QpState::Init, "nothing has changed");
    qp.modify(&at(QpState::Rtr), rtr).unwrap();
    for (what, attr) in [
        ("retries 8", QpAttr { retry_cnt: 8, ..attr }),
        ("RNR retries 8", QpAttr { rnr_retry: 8, ..attr }),
        ("timeout 32", QpAttr { timeout: 32, ..attr }),
        ("129 READs of our own", QpAttr { max_rd_atomic: 129, ..attr }),
    ] {
        let attr = QpAttr { state: QpState::Rts, ..attr };
        told.case(&format!("Rts with {what}"), qp.modify(&attr, rts));
    }
    let wrong = QpAttr { cur_state: QpState::Init, ..at(QpState::Rts) };
    told.case("Rts from what is not so", qp.modify(&wrong, rts | QpAttrMask::CUR_STATE));
    qp.modify(&at(QpState::Rts), rts).unwrap();
    told.case("Rts to Init", qp.modify(&at(QpState::Init), init));
    qp.modify(&at(QpState::Err), QpAttrMask::STATE).unwrap();
    told.case("Err to Rts", qp.modify(&at(QpState::Rts), QpAttrMask::STATE));
    insta::assert_snapshot!(told.0);
}

#[test]
fn paths() {
    let mut told = Told::default();
    let context = open();
    let (attr, [init, rtr, _]) = good(&context, Family::V4);
    let (v4, v6) = (gid(&context, Family::V4), gid(&context, Family::V6));
    let end = fresh(&context);
    let modify = |state, mask, change: &dyn Fn(&mut QpAttr)| {
        let mut attr = QpAttr { state, ..attr };
        change(&mut attr);
        end.qp.modify(&attr, mask)
    };
    modify(QpState::Init, init, &|_| {}).unwrap();
    let mut rtr_with = |case: &str, change: &dyn Fn(&mut QpAttr)| {
        let error = modify(QpState::Rtr, rtr, change).expect_err(case);
        // The table of a host may begin elsewhere.
        let text = error
            .to_string()
            .replace(&format!("index {} ", v4.gid_index), "index V4 ")
            .replace(&format!("index {} ", v6.gid_index), "index V6 ");
        writeln!(told.0, "{case}:\n    {text}").unwrap();
        assert_eq!(end.qp.state(), QpState::Init, "nothing has changed");
    };
    rtr_with("no destination", &|attr| attr.av.dgid = Gid::ZERO);
    rtr_with("GID index out of range", &|attr| attr.av.sgid_index = 70_000);
    let length = context.query_port(1).unwrap().gid_tbl_len;
    rtr_with("GID index with no entry", &|attr| attr.av.sgid_index = length - 1);
    rtr_with("from IPv6 to IPv4", &|attr| attr.av.sgid_index = v6.gid_index);
    rtr_with("from IPv4 to IPv6", &|attr| attr.av.dgid = v6.gid);
    rtr_with("port 3", &|attr| attr.av.port_num = 3);
    rtr_with("flow label of 21 bits", &|attr| attr.av.flow_label = 1 << 20);
    insta::assert_snapshot!(told.0);
    modify(QpState::Rtr, rtr, &|_| {}).unwrap();
}

#[test]
fn a_path_mtu_above_that_of_the_port() {
    for device in devices().unwrap() {
        let Ok(context) = device.open() else { continue };
        let active = context.query_port(1).unwrap().active_mtu;
        let Some(asked) = Mtu::ALL.into_iter().find(|mtu| *mtu > active) else { continue };
        let Some(own) = context.query_gid_table().unwrap().into_iter().find(|gid| gid.owned) else {
            continue;
        };
        let end = fresh(&context);
        let av = AddressVector::new(own.gid, own.gid_index);
        let error = end.qp.connect(&ConnectAttr::new(av, end.qp.qpn(), asked)).unwrap_err();
        let (asked, active) = (asked.bytes(), active.bytes());
        let ModifyError::Qp(error) = error else { panic!("{error:?}") };
        assert_eq!(error, ModifyQpError::PathMtu { asked, active });
        let text = error.to_string();
        assert!(text.ends_with(&format!("use {active} or less")), "{text}");
        return;
    }
    println!("every port of this host can send 4096 bytes: nothing to test");
}

/// Such a GID is shown by every interface with a hardware address that lacks the link-local one.
#[test]
fn a_gid_that_the_host_does_not_own() {
    for device in devices().unwrap() {
        let Ok(context) = device.open() else { continue };
        let Some(foreign) =
            context.query_gid_table().unwrap().into_iter().find(|entry| !entry.owned)
        else {
            continue;
        };
        let (mut attr, [init, rtr, _]) = good(&open(), Family::V4);
        let end = fresh(&context);
        end.qp.modify(&QpAttr { state: QpState::Init, ..attr }, init).unwrap();
        attr.av = AddressVector::new(foreign.gid, foreign.gid_index);
        let error = end.qp.modify(&QpAttr { state: QpState::Rtr, ..attr }, rtr).unwrap_err();
        assert!(
            matches!(error, ModifyError::Qp(ModifyQpError::GidNotOwned { .. })),
            "{error}: {error:?}"
        );
        assert_eq!(error.errno(), 99, "EADDRNOTAVAIL");
        return;
    }
    println!("every GID of this host is its own: nothing to test");
}

#[test]
fn posts() {
    let mut told = Told::default();
    let setup = Setup {
        caps: QpCaps {
            max_send_wr: 3,
            max_recv_wr: 2,
            max_send_sge: 2,
            max_recv_sge: 1,
            max_inline_data: 8,
        },
        ..Setup::default()
    };
    let context = open();
    let (one, two) = (End::new(&context, &setup, None), End::new(&context, &setup, None));
    let buffer = one.register(64);
    let piece = buffer.sge(0..8);
    let signaled = SendFlags::SIGNALED;
    let send = |data: SendData<'_>| one.qp.post_send(&wr(1, SEND, signaled, data));
    told.case("a receive in Reset", one.qp.post_recv(RecvWr { wr_id: 1, sges: &[] }));
    told.case("a send in Reset", send(SendData::Sges(&[])));
    let (attr, [init, ..]) = good(&context, Family::V4);
    one.qp.modify(&QpAttr { state: QpState::Init, ..attr }, init).unwrap();
    told.case("a send in Init", send(SendData::Sges(&[])));
    one.qp.modify(&QpAttr { state: QpState::Reset, ..attr }, QpAttrMask::STATE).unwrap();
    connect(&setup, (&context, &one.qp), (&context, &two.qp));

    told.case("three pieces", send(SendData::Sges(&[piece; 3])));
    told.case("nine bytes inline", send(SendData::Inline(&[0; 9])));
    let huge = Sge { length: u32::MAX, ..piece };
    told.case("a message too long", send(SendData::Sges(&[huge, huge])));
    let read = SendOp::Read { remote: buffer.remote_addr(0) };
    let request = wr(1, read, signaled, SendData::Inline(&[0; 4]));
    told.case("a READ inline", one.qp.post_send(&request));
    // The peer has no receive: nothing completes.
    let sends = [wr(1, SEND, signaled, SendData::Inline(b"a")); 5];
    let list = one.qp.post_send_list(&sends).unwrap_err();
    assert_eq!((list.index, list.errno()), (3, 12), "R13: ENOMEM");
    told.case("a list longer than the queue", Err::<(), _>(list));
    told.case("two pieces to receive", two.qp.post_recv(RecvWr { wr_id: 1, sges: &[piece; 2] }));
    let receives = [RecvWr { wr_id: 1, sges: &[] }; 3];
    let list = two.qp.post_recv_list(&receives).unwrap_err();
    assert_eq!((list.index, list.errno()), (2, 12), "R13: ENOMEM");
    told.case("a list of receives longer than the queue", Err::<(), _>(list));
    insta::assert_snapshot!(told.0);
}

#[test]
fn options_of_the_environment() {
    let told = ["", "on", "off", "maybe"].map(|gso| {
        // Another process: the environment of this one belongs to all its threads.
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", "--ignored", "child_opens_with_its_environment"])
            .env("URXE_GSO", gso)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("told: ")).map(str::to_owned);
        line.unwrap_or(text)
    });
    assert_eq!(told[..3], ["fine", "fine", "fine"]);
    insta::assert_snapshot!(told[3]);
}

#[test]
#[ignore = "run by options_of_the_environment in a process of its own"]
fn child_opens_with_its_environment() {
    match OpenOptions::from_env() {
        Ok(_) => println!("\ntold: fine"),
        Err(error) => println!("\ntold: {error}"),
    }
}

#[test]
fn an_unreachable_peer_fails_in_the_time_that_the_timeout_says() {
    for (timeout, retry_cnt) in [(12, 2), (14, 0), (13, 3)] {
        let setup = Setup { timeout, retry_cnt, ..Setup::default() };
        let context = open();
        let end = fresh(&context);
        // Nobody has this number: the slot is that of the queue pair itself.
        let nobody = Qpn::new(end.qp.qpn().get() ^ 0x8000);
        let own = gid(&context, Family::V4).gid;
        end.qp.connect(&attr_to(&setup, &context, own, nobody)).unwrap();
        let start = Instant::now();
        end.post(5, SEND, &[]);
        end.post(6, SEND, &[]);
        let done = end.cq.wait_one(LONG).unwrap();
        let took = start.elapsed();
        assert_eq!((done.status, done.wr_id), (WcStatus::RetryExcErr, 5));
        assert_eq!(end.cq.wait_one(LONG).unwrap().status, WcStatus::WrFlushErr);
        assert_eq!(end.qp.state(), QpState::Err);
        let unit = Duration::from_nanos(4096 << timeout);
        let expected = unit * (u32::from(retry_cnt) + 1);
        assert!(took >= expected, "{took:?}, but {expected:?} were asked for");
        assert!(took < expected * 2 + Duration::from_secs(2), "{took:?} for {expected:?}");
        assert_eq!(context.counter(Counter::retry_exceeded_err), 1);
    }
}

#[test]
fn a_receiver_that_is_never_ready() {
    let setup = Setup { rnr_retry: 3, min_rnr_timer: 14, ..Setup::default() };
    let (one, _two) = pair(&setup);
    let start = Instant::now();
    one.post(5, SEND, &[]);
    let done = one.cq.wait_one(LONG).unwrap();
    assert_eq!((done.status, done.wr_id), (WcStatus::RnrRetryExcErr, 5));
    // Three waits of 1.28 ms each.
    assert!(start.elapsed() >= Duration::from_micros(3 * 1280), "{:?}", start.elapsed());
}

#[test]
fn wrong_keys_and_ranges() {
    // Each case breaks its connection. At the peer, a refused access is an event (R36).
    type Make<'a> = &'a dyn Fn(&MemoryRegion, &MemoryRegion) -> (SendOp, Sge);
    let cases: [(&str, Make<'_>, WcStatus); 7] = [
        (
            "no such local key",
            &|from, _| (SEND, Sge { lkey: LKey::new(0xdead_be00), ..from.sge(0..8) }),
            WcStatus::LocProtErr,
        ),
        ("beyond the end here", &|from, _| (SEND, from.sge(60..65)), WcStatus::LocProtErr),
        (
            "beyond the end there",
            &|from, to| (SendOp::Write { remote: to.remote_addr(60), imm: None }, from.sge(0..8)),
            WcStatus::RemAccessErr,
        ),
        (
            "an address that wraps",
            &|from, to| {
                let remote = RemoteAddr { addr: u64::MAX - 2, rkey: to.rkey() };
                (SendOp::Write { remote, imm: None }, from.sge(0..8))
            },
            WcStatus::RemAccessErr,
        ),
        (
            "no such remote key",
            &|from, to| {
                let remote = RemoteAddr { rkey: RKey::new(1), ..to.remote_addr(0) };
                (SendOp::Read { remote }, from.sge(0..8))
            },
            WcStatus::RemAccessErr,
        ),
        (
            "a READ beyond the end",
            &|from, to| (SendOp::Read { remote: to.remote_addr(57) }, from.sge(0..8)),
            WcStatus::RemAccessErr,
        ),
        (
            "a READ to no memory of ours",
            &|from, to| {
                let lkey = LKey::new(0xdead_be00);
                (SendOp::Read { remote: to.remote_addr(0) }, Sge { lkey, ..from.sge(0..8) })
            },
            WcStatus::LocProtErr,
        ),
    ];
    for (case, make, status) in cases {
        let (one, two) = pair(&Setup::default());
        let (from, to) = (one.register(64), two.register(64));
        two.recv(0, &[to.sge(0..64)]);
        let (op, piece) = make(&from, &to);
        one.post(1, op, &[piece]);
        let done = one.cq.wait_one(LONG).unwrap();
        assert_eq!(done.status, status, "{case}");
        assert_eq!(one.qp.state(), QpState::Err, "{case}");
        if status == WcStatus::RemAccessErr {
            let event = two.context.wait_event(LONG).unwrap();
            assert_eq!(event, AsyncEvent::QpAccessErr(two.qp.qpn()), "{case}");
        }
        // R9: whatever is posted now is flushed.
        one.post(2, SEND, &[]);
        assert_eq!(one.cq.wait_one(LONG).unwrap().status, WcStatus::WrFlushErr);
    }
}

#[test]
fn a_message_longer_than_the_receive() {
    let (one, two) = pair(&Setup::default());
    let (from, to) = (one.register(64), two.register(64));
    two.recv(0, &[to.sge(0..10)]);
    one.post(1, SEND, &[from.sge(0..11)]);
    assert_eq!(one.cq.wait_one(LONG).unwrap().status, WcStatus::RemInvReqErr);
    assert_eq!(two.cq.wait_one(LONG).unwrap().status, WcStatus::LocLenErr);
    assert_eq!(two.qp.state(), QpState::Err);
}

#[test]
fn the_queue_pair_must_grant_what_the_region_grants() {
    let setup = Setup::default();
    let (one, two) = (fresh(&open()), fresh(&open()));
    let to_two = attr_to(&setup, &one.context, gid(&two.context, Family::V4).gid, two.qp.qpn());
    let mut to_one = attr_to(&setup, &two.context, gid(&one.context, Family::V4).gid, one.qp.qpn());
    to_one.access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
    one.qp.connect(&to_two).unwrap();
    two.qp.connect(&to_one).unwrap();
    let (from, to) = (one.register(8), two.register(8));
    one.post(1, SendOp::Read { remote: to.remote_addr(0) }, &[from.sge(0..8)]);
    one.done();
    one.post(2, SendOp::Write { remote: to.remote_addr(0), imm: None }, &[from.sge(0..8)]);
    let status = one.cq.wait_one(LONG).unwrap().status;
    assert!(matches!(status, WcStatus::RemInvReqErr | WcStatus::RemAccessErr), "{status}");
}
