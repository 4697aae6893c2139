//! A packet from BTH on: the view of a received one, and the headers of one to send.

use std::fmt;

use crate::PKey;
use crate::error::{EmitError, Layer, ParseError};
use crate::hdr::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, Ieth, ImmDt, Rdeth, Reth, Xrceth,
};
use crate::opcode::{ExtHeaders, OpcodeInfo};

/// A packet from BTH to its last pad byte, whose opcode is known and whose headers are all there.
///
/// The iCRC is not part of it: the link checks it and cuts it off. The payload's length is *not*
/// yet judged against the path MTU; ask [`PayloadRule::check`](crate::opcode::PayloadRule::check)
/// of `info().payload`. Nothing is decoded but BTH until it is asked for.
#[derive(Clone, Copy)]
pub struct Packet<'a> {
    bytes: &'a [u8],
    bth: Bth,
    info: &'static OpcodeInfo,
}

impl<'a> Packet<'a> {
    /// Looks at `bytes`, from BTH to the last pad byte.
    ///
    /// Never panics and never allocates, whatever the bytes are.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] when BTH, the opcode's headers and the pad do not fit, and
    /// [`ParseError::UnknownOpcode`] (rule R35: both before any arithmetic on the payload).
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let have = bytes.len();
        let Some(bth) = Bth::read(bytes) else {
            return Err(ParseError::Truncated { layer: Layer::Bth, needed: Bth::LEN, have });
        };
        let Some(info) = bth.opcode.info() else {
            return Err(ParseError::UnknownOpcode { opcode: bth.opcode });
        };
        let header_len = info.header_len();
        if have < header_len {
            let layer = Layer::ExtendedHeaders;
            return Err(ParseError::Truncated { layer, needed: header_len, have });
        }
        let needed = header_len + usize::from(bth.pad);
        if have < needed {
            return Err(ParseError::Truncated { layer: Layer::Pad, needed, have });
        }
        Ok(Self { bytes, bth, info })
    }

    /// All of its bytes, from BTH to the last pad byte.
    #[inline]
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The base transport header.
    #[inline]
    pub const fn bth(&self) -> Bth {
        self.bth
    }

    /// The opcode's row of the table.
    #[inline]
    pub const fn info(&self) -> &'static OpcodeInfo {
        self.info
    }

    /// The payload, without the pad bytes.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        // `parse` has made sure that start <= end <= length.
        let end = self.bytes.len() - self.pad_len();
        self.bytes.get(self.info.header_len()..end).unwrap_or_default()
    }

    /// How many pad bytes follow the payload, 0 to 3.
    #[inline]
    pub const fn pad_len(&self) -> usize {
        self.bth.pad as usize
    }

    /// The pad bytes. They are sent as zeros, but the iCRC covers them whatever they are (R59).
    #[inline]
    pub fn pad(&self) -> &'a [u8] {
        self.bytes.get(self.bytes.len() - self.pad_len()..).unwrap_or_default()
    }

    /// RETH, where the opcode has it.
    #[inline]
    pub fn reth(&self) -> Option<Reth> {
        Reth::read(self.at(ExtHeaders::RETH)?)
    }

    /// AETH, where the opcode has it.
    #[inline]
    pub fn aeth(&self) -> Option<Aeth> {
        Aeth::read(self.at(ExtHeaders::AETH)?)
    }

    /// AtomicETH, where the opcode has it.
    #[inline]
    pub fn atomic_eth(&self) -> Option<AtomicEth> {
        AtomicEth::read(self.at(ExtHeaders::ATOMIC_ETH)?)
    }

    /// AtomicAckETH, where the opcode has it.
    #[inline]
    pub fn atomic_ack_eth(&self) -> Option<AtomicAckEth> {
        AtomicAckEth::read(self.at(ExtHeaders::ATOMIC_ACK_ETH)?)
    }

    /// DETH, where the opcode has it.
    #[inline]
    pub fn deth(&self) -> Option<Deth> {
        Deth::read(self.at(ExtHeaders::DETH)?)
    }

    /// The immediate data as a host-order number, where the opcode has it.
    #[inline]
    pub fn imm(&self) -> Option<u32> {
        ImmDt::read(self.at(ExtHeaders::IMM_DT)?).map(|imm| imm.0)
    }

    /// IETH, where the opcode has it.
    #[inline]
    pub fn ieth(&self) -> Option<Ieth> {
        Ieth::read(self.at(ExtHeaders::IETH)?)
    }

    /// FETH, where the opcode has it.
    #[inline]
    pub fn feth(&self) -> Option<Feth> {
        Feth::read(self.at(ExtHeaders::FETH)?)
    }

    /// RDETH, where the opcode has it.
    #[inline]
    pub fn rdeth(&self) -> Option<Rdeth> {
        Rdeth::read(self.at(ExtHeaders::RDETH)?)
    }

    /// XRCETH, where the opcode has it.
    #[inline]
    pub fn xrceth(&self) -> Option<Xrceth> {
        Xrceth::read(self.at(ExtHeaders::XRCETH)?)
    }

    /// All headers as values; writing them again gives the same bytes.
    pub fn headers(&self) -> Headers {
        Headers {
            bth: self.bth,
            rdeth: self.rdeth(),
            deth: self.deth(),
            xrceth: self.xrceth(),
            feth: self.feth(),
            reth: self.reth(),
            atomic: self.atomic_eth(),
            aeth: self.aeth(),
            atomic_ack: self.atomic_ack_eth(),
            imm: self.imm().map(ImmDt),
            ieth: self.ieth(),
        }
    }

    /// The bytes from where `header` starts.
    #[inline]
    fn at(&self, header: ExtHeaders) -> Option<&'a [u8]> {
        self.bytes.get(self.info.offset_of(header)?..)
    }
}

impl fmt::Debug for Packet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packet")
            .field("headers", &self.headers())
            .field("payload_len", &self.payload().len())
            .finish()
    }
}

/// One line: the headers, then the payload's length in bytes.
impl fmt::Display for Packet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} payload={}", self.headers(), self.payload().len())
    }
}

/// The headers of one packet, to be written.
///
/// Those beside BTH must be the ones that the opcode's table row names: [`write`](Self::write)
/// refuses other sets. Counterpart of what `rxe_req.c` and `rxe_resp.c` fill in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Headers {
    /// The base transport header.
    pub bth: Bth,
    /// Reliable datagram header.
    pub rdeth: Option<Rdeth>,
    /// Datagram header.
    pub deth: Option<Deth>,
    /// Extended reliable connection header.
    pub xrceth: Option<Xrceth>,
    /// FLUSH header.
    pub feth: Option<Feth>,
    /// RDMA header.
    pub reth: Option<Reth>,
    /// Atomic request header.
    pub atomic: Option<AtomicEth>,
    /// Acknowledge header.
    pub aeth: Option<Aeth>,
    /// Atomic acknowledge header.
    pub atomic_ack: Option<AtomicAckEth>,
    /// Immediate data.
    pub imm: Option<ImmDt>,
    /// Invalidate header.
    pub ieth: Option<Ieth>,
}

impl Headers {
    /// Headers of BTH alone; the others are set as fields.
    #[inline]
    pub fn new(bth: Bth) -> Self {
        Self { bth, ..Self::default() }
    }

    /// The extended headers that are there.
    #[inline]
    pub fn ext_headers(&self) -> ExtHeaders {
        let mut set = ExtHeaders::empty();
        set.set(ExtHeaders::RDETH, self.rdeth.is_some());
        set.set(ExtHeaders::DETH, self.deth.is_some());
        set.set(ExtHeaders::XRCETH, self.xrceth.is_some());
        set.set(ExtHeaders::FETH, self.feth.is_some());
        set.set(ExtHeaders::RETH, self.reth.is_some());
        set.set(ExtHeaders::ATOMIC_ETH, self.atomic.is_some());
        set.set(ExtHeaders::AETH, self.aeth.is_some());
        set.set(ExtHeaders::ATOMIC_ACK_ETH, self.atomic_ack.is_some());
        set.set(ExtHeaders::IMM_DT, self.imm.is_some());
        set.set(ExtHeaders::IETH, self.ieth.is_some());
        set
    }

    /// Length in bytes of all headers that are there, BTH included.
    #[inline]
    pub fn len(&self) -> usize {
        let mut len = Bth::LEN;
        len += self.rdeth.map_or(0, |_| Rdeth::LEN);
        len += self.deth.map_or(0, |_| Deth::LEN);
        len += self.xrceth.map_or(0, |_| Xrceth::LEN);
        len += self.feth.map_or(0, |_| Feth::LEN);
        len += self.reth.map_or(0, |_| Reth::LEN);
        len += self.atomic.map_or(0, |_| AtomicEth::LEN);
        len += self.aeth.map_or(0, |_| Aeth::LEN);
        len += self.atomic_ack.map_or(0, |_| AtomicAckEth::LEN);
        len += self.imm.map_or(0, |_| ImmDt::LEN);
        len += self.ieth.map_or(0, |_| Ieth::LEN);
        len
    }

    /// Always false: BTH is always there.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Writes all headers to the start of `buf`, and gives their length in bytes.
    ///
    /// # Errors
    /// [`EmitError::UnknownOpcode`]; [`EmitError::HeaderMismatch`] when the set of headers is not
    /// the opcode's; [`EmitError::BufferTooShort`]. Nothing is written then.
    #[inline]
    pub fn write(&self, buf: &mut [u8]) -> Result<usize, EmitError> {
        let opcode = self.bth.opcode;
        let info = opcode.info().ok_or(EmitError::UnknownOpcode { opcode })?;
        let given = self.ext_headers();
        if given != info.headers {
            return Err(EmitError::HeaderMismatch { opcode, expected: info.headers, given });
        }
        let needed = info.header_len();
        let have = buf.len();
        let Some(buf) = buf.get_mut(..needed) else {
            return Err(EmitError::BufferTooShort { needed, have });
        };
        self.bth.write(buf)?;
        let mut rest = buf.get_mut(Bth::LEN..).unwrap_or_default();
        // The order is that of the wire, and of the bits of `ExtHeaders`.
        rest = put(self.rdeth, Rdeth::LEN, Rdeth::write, rest)?;
        rest = put(self.deth, Deth::LEN, Deth::write, rest)?;
        rest = put(self.xrceth, Xrceth::LEN, Xrceth::write, rest)?;
        rest = put(self.feth, Feth::LEN, Feth::write, rest)?;
        rest = put(self.reth, Reth::LEN, Reth::write, rest)?;
        rest = put(self.atomic, AtomicEth::LEN, AtomicEth::write, rest)?;
        rest = put(self.aeth, Aeth::LEN, Aeth::write, rest)?;
        rest = put(self.atomic_ack, AtomicAckEth::LEN, AtomicAckEth::write, rest)?;
        rest = put(self.imm, ImmDt::LEN, ImmDt::write, rest)?;
        put(self.ieth, Ieth::LEN, Ieth::write, rest)?;
        Ok(needed)
    }
}

/// One line: opcode, destination QP, PSN, the flags that are set, then each header's fields.
impl fmt::Display for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Bth { opcode, dest_qpn, psn, .. } = self.bth;
        write!(f, "{opcode} qpn={dest_qpn} psn={psn}")?;
        self.fmt_flags(f)?;
        if let Some(Rdeth { ee_context, .. }) = self.rdeth {
            write!(f, " eec=0x{ee_context:06x}")?;
        }
        if let Some(Deth { qkey, source_qpn, .. }) = self.deth {
            write!(f, " qkey={qkey} srcqp={source_qpn}")?;
        }
        if let Some(Xrceth { srqn, .. }) = self.xrceth {
            write!(f, " srqn=0x{srqn:06x}")?;
        }
        if let Some(Feth { placement, selectivity, .. }) = self.feth {
            write!(f, " placement=0x{:x} selectivity={selectivity:?}", placement.bits())?;
        }
        if let Some(Reth { va, rkey, len }) = self.reth {
            write!(f, " va=0x{va:016x} rkey={rkey} dmalen={len}")?;
        }
        if let Some(AtomicEth { va, rkey, swap_or_add, compare }) = self.atomic {
            write!(f, " va=0x{va:016x} rkey={rkey} swap_or_add={swap_or_add} compare={compare}")?;
        }
        if let Some(Aeth { syndrome, msn }) = self.aeth {
            write!(f, " [{syndrome}] msn={msn}")?;
        }
        if let Some(AtomicAckEth { original }) = self.atomic_ack {
            write!(f, " original={original}")?;
        }
        if let Some(ImmDt(imm)) = self.imm {
            write!(f, " imm=0x{imm:08x}")?;
        }
        if let Some(Ieth(rkey)) = self.ieth {
            write!(f, " invalidate={rkey}")?;
        }
        Ok(())
    }
}

impl Headers {
    /// What of BTH is out of the ordinary: flags that are set, values that are not the usual.
    fn fmt_flags(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bth = &self.bth;
        for (set, name) in [
            (bth.ack_req, " A"),
            (bth.solicited, " SE"),
            (bth.migreq, " M"),
            (bth.fecn, " FECN"),
            (bth.becn, " BECN"),
        ] {
            if set {
                f.write_str(name)?;
            }
        }
        if bth.pad != 0 {
            write!(f, " pad={}", bth.pad)?;
        }
        if bth.pkey != PKey::DEFAULT {
            write!(f, " pkey={}", bth.pkey)?;
        }
        if bth.tver != 0 {
            write!(f, " tver={}", bth.tver)?;
        }
        Ok(())
    }
}

/// Writes one header, if it is there, and gives the room after it.
#[inline]
fn put<T>(
    header: Option<T>,
    len: usize,
    write: impl FnOnce(&T, &mut [u8]) -> Result<(), EmitError>,
    buf: &mut [u8],
) -> Result<&mut [u8], EmitError> {
    let Some(header) = header else { return Ok(buf) };
    write(&header, buf)?;
    Ok(buf.get_mut(len..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Opcode, Psn, Qpn, RKey};

    #[test]
    fn a_packet_is_shown_on_one_line() {
        let bth = Bth {
            opcode: Opcode::RC_WRITE_ONLY_WITH_IMM,
            solicited: true,
            pad: 1,
            pkey: PKey::DEFAULT,
            dest_qpn: Qpn::new(0x11),
            ack_req: true,
            psn: Psn::new(7),
            ..Bth::default()
        };
        let headers = Headers {
            reth: Some(Reth { va: 0x1000, rkey: RKey::new(0x1405), len: 3 }),
            imm: Some(ImmDt(0xcafe)),
            ..Headers::new(bth)
        };
        let mut bytes = [0; 36];
        headers.write(&mut bytes).unwrap();
        assert_eq!(
            Packet::parse(&bytes).unwrap().to_string(),
            "RC WRITE_ONLY_WITH_IMM qpn=0x000011 psn=7 A SE pad=1 va=0x0000000000001000 \
             rkey=0x00001405 dmalen=3 imm=0x0000cafe payload=3"
        );
        let headers = Headers {
            aeth: Some(Aeth::default()),
            ..Headers::new(Bth { opcode: Opcode::RC_ACKNOWLEDGE, ..bth })
        };
        assert_eq!(headers.to_string(), "RC ACKNOWLEDGE qpn=0x000011 psn=7 A SE pad=1 [ACK] msn=0");
        assert_eq!(
            Headers::new(Bth { opcode: Opcode::new(0xff), tver: 2, ..Bth::default() }).to_string(),
            "opcode 0xff qpn=0x000000 psn=0 pkey=0x0000 tver=2"
        );
    }
}
