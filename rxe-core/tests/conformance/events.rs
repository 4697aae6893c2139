//! Asynchronous events: what raises each, once.

use rxe_core::qp::{QpAttr, QpAttrMask, QpInit, QpState, QpType};
use rxe_core::{
    AsyncEvent, CreateQpError, Device, DeviceConfig, Limits, ModifyQpError, Seed, errno,
};
use rxe_wire::NakCode;

use crate::script::*;

#[test]
fn a_lost_device_fails_all_queue_pairs() {
    let mut s = Script::rts();
    let idle = s.host.shard.create_qp(QpInit::new(QpType::Rc, s.host.pd, &s.host.cq)).unwrap();
    s.recv(10, 8).send(1, 1).sent();
    s.rx(&write_only(0, s.host.remote(0), &[1]).a());
    s.host.device.fail();
    s.host.shard.fail(s.host.now);
    // Not even what is owed leaves.
    s.quiet().done([(1, WrFlushErr), (10, WrFlushErr)]).events([AsyncEvent::DeviceFatal]);
    assert_eq!((s.state(), idle.state()), (QpState::Err, QpState::Err));
    s.host.device.fail();
    s.host.shard.fail(s.host.now);
    s.events([]).done([]).wait(10 * ACK_TIMEOUT).quiet();
    let error = s.host.shard.create_qp(QpInit::new(QpType::Rc, s.host.pd, &s.host.cq)).unwrap_err();
    assert_eq!((error, error.errno()), (CreateQpError::DeviceLost, errno::EIO));
    // Nor is one brought back.
    s.host.modify(QpAttr { state: QpState::Reset, ..s.attr }, QpAttrMask::STATE);
    let (now, qpn) = (s.host.now, s.qpn());
    let attr = QpAttr { state: QpState::Init, ..s.attr };
    let mask = crate::common::init_mask();
    let error = s.host.shard.modify_qp(now, qpn, &attr, mask).unwrap_err();
    assert_eq!((error, error.errno()), (ModifyQpError::DeviceLost, errno::EIO));
}

#[test]
fn a_port_tells_when_it_comes_up_or_goes_down() {
    let mut s = Script::rts();
    let device = s.host.device.clone();
    let port = device.port(1).unwrap();
    assert!(port.is_active());
    device.set_port_active(1, true);
    s.events([]);
    device.set_port_active(1, false);
    device.set_port_active(1, false);
    assert!(!port.is_active());
    s.events([AsyncEvent::PortErr(1)]);
    device.set_port_active(1, true);
    s.events([AsyncEvent::PortActive(1)]);
    device.set_port_active(2, false);
    s.events([]);
    device.raise(AsyncEvent::GidChange(1));
    s.events([AsyncEvent::GidChange(1)]);
}

#[test]
fn the_oldest_events_are_lost_when_nobody_takes_them_and_counted() {
    let limits = Limits { max_async_events: 2, ..Limits::default() };
    let config = DeviceConfig { limits, ..DeviceConfig::new(Seed::for_test(1)) };
    let device = Device::new(config, vec![]);
    (1..=4).for_each(|port| device.raise(AsyncEvent::GidChange(port)));
    let events = device.events();
    assert_eq!(events.dropped(), 2);
    let taken: Vec<_> = std::iter::from_fn(|| events.take()).collect();
    assert_eq!(taken, [AsyncEvent::GidChange(3), AsyncEvent::GidChange(4)]);
}

#[test]
fn an_invalid_request_raises_an_event_at_the_responder() {
    let mut s = Script::rts();
    let qpn = s.qpn();
    s.rx(&send_middle(0, &[0; MTU])).tx([nak(0, NakCode::InvalidRequest, 0)]);
    s.events([AsyncEvent::QpReqErr(qpn)]);
}

#[test]
fn moving_to_the_error_state_by_request_raises_nothing() {
    let mut s = Script::rts();
    s.host.modify(QpAttr { state: QpState::Err, ..s.attr }, QpAttrMask::STATE);
    s.events([]);
}

#[test]
fn every_event_says_what_it_is_about() {
    let s = Script::rts();
    let text = AsyncEvent::QpFatal(s.qpn()).to_string();
    assert_eq!(text, format!("queue pair failed by itself, QP {}", s.qpn()));
    assert_eq!(AsyncEvent::PortErr(1).to_string(), "port went down, port 1");
    assert_eq!(AsyncEvent::DeviceFatal.to_string(), "device lost");
}
