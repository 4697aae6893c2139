//! UDP port 4791 held by something else. A binary of its own: nobody else opens devices here.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

mod common;

use std::net::UdpSocket;

use common::*;
use ibverbs_api::*;

#[test]
fn a_taken_port_is_told_and_free_again_later() {
    let context = open();
    // In this order: [::] holds IPv4 as well, and could not be bound beside a socket of ours.
    for family in [Family::V6, Family::V4] {
        let setup = Setup { family, ..Setup::default() };
        let end = End::new(&context, &setup, None);
        let own = gid(&context, family).gid;
        let attr = attr_to(&setup, &context, own, end.qp.qpn());
        // As rdma_rxe holds it: for all addresses of the host.
        let any = if family == Family::V4 { "0.0.0.0:4791" } else { "[::]:4791" };
        let holder = UdpSocket::bind(any).unwrap();
        let error = end.qp.connect(&attr).unwrap_err();
        let ModifyError::Link(OpenLinkError::Udp(BindError::PortTaken { address })) = &error else {
            panic!("{error:?}")
        };
        assert_eq!(*address, own.to_ip());
        assert_eq!(error.errno(), 98, "EADDRINUSE");
        let text = error.to_string();
        assert!(text.contains("is rdma_rxe loaded on this host?"), "{text}");
        assert!(text.contains("4791"), "{text}");
        assert_eq!(end.qp.state(), QpState::Init, "the last state that it reached");

        drop(holder);
        let to_reset = QpAttr { state: QpState::Reset, ..QpAttr::default() };
        end.qp.modify(&to_reset, QpAttrMask::STATE).unwrap();
        end.qp.connect(&attr).unwrap();
        end.recv(1, &[]);
        end.post(2, SEND, &[]);
        end.done();
        end.done();
    }
}
