//! What a frame says under tshark's names, for comparison with tshark's own reading.

// Each test uses a part of this.
#![allow(dead_code)]

pub(crate) mod packets;

use std::collections::BTreeMap;

use rxe_wire::Packet;
use rxe_wire::net::{Frame, Net};

/// The value of a field, as far as two programs can agree on it.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Value {
    Number(u64),
    Text(String),
}

/// Our reading of a frame, by tshark's field names. A field that is missing is not in the packet.
#[derive(Debug, Default)]
pub(crate) struct Reading(BTreeMap<&'static str, Value>);

impl Reading {
    pub(crate) fn of(frame: &Frame<'_>) -> Self {
        let mut reading = Self::default();
        reading.below_bth(frame);
        reading.headers(&frame.packet().unwrap());
        // tshark shows the four bytes in wire order as one big-endian number.
        let carried = frame.icrc().unwrap().carried.to_le_bytes();
        reading.number("infiniband.invariant.crc", u32::from_be_bytes(carried));
        reading
    }

    pub(crate) fn get(&self, field: &str) -> Option<&Value> {
        self.0.get(field)
    }

    /// Asserts that each of `fields` is what tshark printed, absent ones too.
    pub(crate) fn assert_equals<'a>(
        &self,
        whose: &str,
        fields: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) {
        for (field, theirs) in fields {
            let theirs = (!theirs.is_empty()).then(|| parse(field, theirs));
            assert_eq!(self.get(field), theirs.as_ref(), "{whose}: {field} (ours, tshark's)");
        }
    }

    fn number(&mut self, field: &'static str, value: impl Into<u64>) {
        self.0.insert(field, Value::Number(value.into()));
    }

    fn text(&mut self, field: &'static str, value: impl ToString) {
        self.0.insert(field, Value::Text(value.to_string()));
    }

    fn below_bth(&mut self, frame: &Frame<'_>) {
        if let Some(link) = frame.link {
            self.text("eth.src", link.ethernet.source);
            self.text("eth.dst", link.ethernet.destination);
            if let Some(tag) = link.vlan {
                self.number("vlan.id", tag.id);
                self.number("vlan.priority", tag.priority);
                self.number("vlan.dei", tag.drop_eligible);
            }
        }
        match frame.net {
            Net::V1(grh) => {
                self.number("infiniband.grh.tclass", grh.traffic_class);
                self.number("infiniband.grh.flowlabel", grh.flow_label);
                self.number("infiniband.grh.paylen", grh.payload_len);
                self.number("infiniband.grh.nxthdr", grh.next_header);
                self.number("infiniband.grh.hoplmt", grh.hop_limit);
                self.text("infiniband.grh.sgid", std::net::Ipv6Addr::from(grh.source));
                self.text("infiniband.grh.dgid", std::net::Ipv6Addr::from(grh.destination));
            }
            Net::V4 { ip, .. } => {
                self.text("ip.src", ip.source);
                self.text("ip.dst", ip.destination);
                self.number("ip.dsfield", ip.traffic_class);
                self.number("ip.len", ip.total_len);
                self.number("ip.id", ip.identification);
                self.number("ip.flags.df", ip.dont_fragment);
                self.number("ip.ttl", ip.ttl);
                self.number("ip.checksum", ip.checksum);
                let good = ip.computed_checksum().unwrap() == ip.checksum;
                self.number("ip.checksum.status", good);
            }
            Net::V6 { ip, .. } => {
                self.text("ipv6.src", ip.source);
                self.text("ipv6.dst", ip.destination);
                self.number("ipv6.tclass", ip.traffic_class);
                self.number("ipv6.flow", ip.flow_label);
                self.number("ipv6.plen", ip.payload_len);
                self.number("ipv6.hlim", ip.hop_limit);
            }
        }
        if let Some(udp) = frame.net.udp() {
            self.number("udp.srcport", udp.source_port);
            self.number("udp.dstport", udp.destination_port);
            self.number("udp.length", udp.length);
        }
    }

    fn headers(&mut self, packet: &Packet<'_>) {
        let bth = packet.bth();
        self.number("infiniband.bth.opcode", bth.opcode.get());
        self.number("infiniband.bth.se", bth.solicited);
        self.number("infiniband.bth.m", bth.migreq);
        self.number("infiniband.bth.padcnt", bth.pad);
        self.number("infiniband.bth.tver", bth.tver);
        self.number("infiniband.bth.p_key", bth.pkey.get());
        self.number("infiniband.bth.destqp", bth.dest_qpn.get());
        self.number("infiniband.bth.a", bth.ack_req);
        self.number("infiniband.bth.reserved7", bth.reserved7);
        self.number("infiniband.bth.psn", bth.psn.get());
        if let Some(rdeth) = packet.rdeth() {
            self.number("infiniband.rdeth.eecnxt", rdeth.ee_context);
        }
        if let Some(deth) = packet.deth() {
            self.number("infiniband.deth.q_key", deth.qkey.get());
            self.number("infiniband.deth.srcqp", deth.source_qpn.get());
        }
        if let Some(reth) = packet.reth() {
            self.number("infiniband.reth.va", reth.va);
            self.number("infiniband.reth.r_key", reth.rkey.get());
            self.number("infiniband.reth.dmalen", reth.len);
        }
        if let Some(atomic) = packet.atomic_eth() {
            // tshark uses the names of RETH here.
            self.number("infiniband.reth.va", atomic.va);
            self.number("infiniband.reth.r_key", atomic.rkey.get());
            self.number("infiniband.atomiceth.swapdt", atomic.swap_or_add);
            self.number("infiniband.atomiceth.cmpdt", atomic.compare);
        }
        if let Some(aeth) = packet.aeth() {
            self.number("infiniband.aeth.syndrome", aeth.syndrome.to_byte());
            self.number("infiniband.aeth.msn", aeth.msn.get());
        }
        if let Some(answer) = packet.atomic_ack_eth() {
            self.number("infiniband.atomicacketh.origremdt", answer.original);
        }
        if let Some(imm) = packet.imm() {
            self.number("infiniband.immdt", imm);
        }
        if let Some(ieth) = packet.ieth() {
            self.number("infiniband.ieth", ieth.0.get());
        }
        // Byte offsets of the MAD header: class at 1, attribute at 16.
        if packet.bth().dest_qpn == rxe_wire::Qpn::GSI
            && let Some(mad) = packet.payload().first_chunk::<24>()
        {
            self.number("infiniband.mad.mgmtclass", mad[1]);
            self.number("infiniband.mad.attributeid", u16::from_be_bytes([mad[16], mad[17]]));
        }
    }
}

/// A value as tshark prints it, by the name of its field.
fn parse(field: &str, text: &str) -> Value {
    let number = match (field, text) {
        // Printed as bytes, without 0x.
        ("infiniband.immdt" | "infiniband.ieth", _) => u64::from_str_radix(text, 16).ok(),
        (_, "True") => Some(1),
        (_, "False") => Some(0),
        _ => match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => text.parse().ok(),
        },
    };
    number.map_or_else(|| Value::Text(text.to_owned()), Value::Number)
}
