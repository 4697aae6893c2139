//! Packets made of an input: near enough to right ones that they reach what is behind the checks.

use arbitrary::{Result, Unstructured};
use rxe_core::qp::QpType;
use rxe_wire::{ExtHeaders, OPCODES, OpcodeInfo, PKey, Psn, Qpn, Service};

use super::arena::{Arena, Zone};

/// The queue key of all datagram queue pairs here.
pub(super) const QKEY: u32 = 0x1111_1111;

/// What a packet is made for.
pub(super) struct Recipe {
    pub(super) service: Service,
    /// Responses instead of requests.
    pub(super) responses: bool,
    pub(super) dest_qpn: Qpn,
    pub(super) mtu: usize,
}

/// The service of a queue pair's packets.
pub(super) const fn service_of(qp_type: QpType) -> Service {
    match qp_type {
        QpType::Uc => Service::Uc,
        QpType::Ud | QpType::Gsi => Service::Ud,
        QpType::XrcSend | QpType::XrcRecv => Service::Xrc,
        _ => Service::Rc,
    }
}

impl Recipe {
    /// Makes a packet with a PSN near `psn`; returns it with the number of PSNs that it takes.
    pub(super) fn make(
        &self,
        u: &mut Unstructured<'_>,
        arena: &Arena,
        psn: Psn,
    ) -> Result<(Vec<u8>, u32)> {
        let info = self.opcode(u)?;
        let flags: u8 = u.arbitrary()?;
        let delta: i8 = if flags & 1 == 0 { 0 } else { u.arbitrary()? };
        let psn = psn.plus(delta as u32);
        let payload = match u.int_in_range(0..=3u8)? {
            0 => 0,
            1 => self.mtu,
            2 => 8,
            _ => u.int_in_range(0..=self.mtu as u16 + 8)?.into(),
        };
        let mut bytes = vec![0; info.header_len()];
        u.fill_buffer(&mut bytes[12..])?;
        self.fit_headers(info, &mut bytes, (flags, payload as u32), u.arbitrary()?, arena);
        let asked = asked_bytes(info, &bytes);
        bytes.resize(bytes.len() + payload, flags);
        let pad = payload.wrapping_neg() & 3;
        bytes.resize(bytes.len() + pad, 0);
        self.write_bth(info, &mut bytes, flags, pad as u8, psn);
        if flags & 0x80 != 0 && u.ratio(1, 4u8)? {
            // Something is wrong with it.
            let at = u.choose_index(bytes.len())?;
            bytes[at] ^= u.arbitrary::<u8>()?;
        }
        let packets = asked.map_or(1, |len| len.div_ceil(self.mtu as u32).max(1));
        Ok((bytes, packets))
    }

    fn opcode(&self, u: &mut Unstructured<'_>) -> Result<&'static OpcodeInfo> {
        let any = u.ratio(1, 32u8)?;
        let fits = |info: &&OpcodeInfo| {
            any || info.service == self.service && info.is_response() == self.responses
        };
        let count = OPCODES.iter().flatten().filter(fits).count();
        let index = u.choose_index(count)?;
        OPCODES.iter().flatten().filter(fits).nth(index).ok_or(arbitrary::Error::EmptyChoose)
    }

    /// Makes addresses, keys and lengths right, but where the flags say otherwise.
    fn fit_headers(
        &self,
        info: &OpcodeInfo,
        bytes: &mut [u8],
        (flags, payload): (u8, u32),
        offset: u16,
        arena: &Arena,
    ) {
        let mut put = |header, skip, value: &[u8]| {
            if let Some(at) = info.offset_of(header).filter(|_| info.headers.contains(header)) {
                bytes[at + skip..at + skip + value.len()].copy_from_slice(value);
            }
        };
        let zone = Zone::of(flags >> 4);
        if flags & 2 == 0 {
            let place = arena.remote(zone, offset);
            for header in [ExtHeaders::RETH, ExtHeaders::ATOMIC_ETH] {
                put(header, 0, &place.addr.to_be_bytes());
                put(header, 8, &place.rkey.get().to_be_bytes());
            }
            put(ExtHeaders::IETH, 0, &place.rkey.get().to_be_bytes());
            put(ExtHeaders::DETH, 0, &QKEY.to_be_bytes());
        }
        if flags & 4 == 0 {
            // A message of this packet alone, or a READ of a few.
            let len = if payload == 0 { u32::from(flags) * 7 } else { payload };
            put(ExtHeaders::RETH, 12, &len.to_be_bytes());
            put(ExtHeaders::AETH, 0, &[0x1f]);
        } else {
            // A message of at most 64 KiB.
            put(ExtHeaders::RETH, 12, &[0, 0]);
        }
    }

    fn write_bth(&self, info: &OpcodeInfo, bytes: &mut [u8], flags: u8, pad: u8, psn: Psn) {
        bytes[0] = info.opcode.get();
        bytes[1] = (flags & 0x80) | pad << 4;
        bytes[2..4].copy_from_slice(&PKey::DEFAULT.get().to_be_bytes());
        bytes[4..8].copy_from_slice(&self.dest_qpn.get().to_be_bytes());
        bytes[8..12].copy_from_slice(&psn.get().to_be_bytes());
        bytes[8] = (flags & 8) << 4;
    }
}

/// Bytes that a READ request asks for.
fn asked_bytes(info: &OpcodeInfo, bytes: &[u8]) -> Option<u32> {
    if info.operation != rxe_wire::Operation::ReadRequest {
        return None;
    }
    let at = info.offset_of(ExtHeaders::RETH)? + 12;
    let len = bytes.get(at..at + 4)?;
    Some(u32::from_be_bytes([len[0], len[1], len[2], len[3]]))
}
