//! The opcodes of BTH, and for each its extended headers, position and length rule.
//!
//! [`OPCODES`] is the one table that the rest of the project asks. Counterpart of `rxe_opcode.c`
//! and `rdma/ib_pack.h` in Linux.

use std::fmt;

use bitflags::bitflags;

use crate::hdr;

/// The operation code, the first byte of BTH.
///
/// Its top three bits are the transport service, the low five the operation. Any byte can be held;
/// [`info`](Self::info) tells which are defined.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Opcode(u8);

impl Opcode {
    /// Makes one of the byte.
    #[inline]
    pub const fn new(byte: u8) -> Self {
        Self(byte)
    }

    /// The byte.
    #[inline]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// What the table says of this opcode; `None` when it is not defined.
    #[inline]
    pub fn info(self) -> Option<&'static OpcodeInfo> {
        // A `u8` cannot leave a table of 256, so the compiler drops the check.
        OPCODES.get(usize::from(self.0)).and_then(Option::as_ref)
    }

    /// The opcode of the same operation in another service: the low five bits stay.
    ///
    /// Not every service has every operation; [`info`](Self::info) tells.
    #[inline]
    pub const fn in_service(self, service: Service) -> Self {
        let prefix = match service {
            Service::Rc => 0x00,
            Service::Uc => 0x20,
            Service::Rd => 0x40,
            Service::Ud => 0x60,
            Service::Cnp => 0x80,
            Service::Xrc => 0xa0,
        };
        Self(prefix | self.0 & 0x1f)
    }

    /// Whether a requester sends it: what the responder handles.
    #[inline]
    pub fn is_request(self) -> bool {
        self.info().is_some_and(OpcodeInfo::is_request)
    }

    /// Whether a responder sends it: what the completer handles.
    #[inline]
    pub fn is_response(self) -> bool {
        self.info().is_some_and(OpcodeInfo::is_response)
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.info() {
            Some(info) => f.write_str(info.name),
            None => write!(f, "opcode 0x{:02x}", self.0),
        }
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The transport service that an opcode belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram. The table knows it, the engine does not offer it.
    Rd,
    /// Unreliable datagram.
    Ud,
    /// Congestion notification: RoCEv2 only, belongs to no service.
    Cnp,
    /// Extended reliable connection.
    Xrc,
}

/// What a packet does, whatever its service and its place in the message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operation {
    /// SEND, also with immediate data or with invalidate.
    Send,
    /// RDMA WRITE, also with immediate data.
    Write,
    /// RDMA READ request.
    ReadRequest,
    /// RDMA READ response.
    ReadResponse,
    /// Acknowledge, positive or negative (see [`Syndrome`](crate::Syndrome)).
    Acknowledge,
    /// Acknowledge of an atomic, with the original value.
    AtomicAcknowledge,
    /// Atomic compare and swap.
    CompareSwap,
    /// Atomic fetch and add.
    FetchAdd,
    /// RESYNC of a reliable datagram.
    Resync,
    /// FLUSH of written data to visibility or persistence.
    Flush,
    /// ATOMIC WRITE of eight bytes.
    AtomicWrite,
    /// Congestion notification.
    Cnp,
}

/// Where a packet stands in its message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Position {
    /// The first of several packets.
    First,
    /// Neither the first nor the last.
    Middle,
    /// The last of several packets.
    Last,
    /// The whole message.
    Only,
}

impl Position {
    /// Whether a message starts with this packet.
    #[inline]
    pub const fn is_start(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Whether a message ends with this packet.
    #[inline]
    pub const fn is_end(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

bitflags! {
    /// The extended transport headers between BTH and the payload.
    ///
    /// A lower bit stands nearer to BTH on the wire, so the set also gives the order.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct ExtHeaders: u16 {
        /// Reliable datagram header, [`Rdeth`](crate::hdr::Rdeth).
        const RDETH = 1 << 0;
        /// Datagram header, [`Deth`](crate::hdr::Deth).
        const DETH = 1 << 1;
        /// Extended reliable connection header, [`Xrceth`](crate::hdr::Xrceth).
        const XRCETH = 1 << 2;
        /// FLUSH header, [`Feth`](crate::hdr::Feth).
        const FETH = 1 << 3;
        /// RDMA header, [`Reth`](crate::hdr::Reth).
        const RETH = 1 << 4;
        /// Atomic request header, [`AtomicEth`](crate::hdr::AtomicEth).
        const ATOMIC_ETH = 1 << 5;
        /// Acknowledge header, [`Aeth`](crate::hdr::Aeth).
        const AETH = 1 << 6;
        /// Atomic acknowledge header, [`AtomicAckEth`](crate::hdr::AtomicAckEth).
        const ATOMIC_ACK_ETH = 1 << 7;
        /// Immediate data, [`ImmDt`](crate::hdr::ImmDt).
        const IMM_DT = 1 << 8;
        /// Invalidate header, [`Ieth`](crate::hdr::Ieth).
        const IETH = 1 << 9;
    }
}

/// How many extended headers there are.
const EXT_COUNT: usize = 10;

/// Length in bytes of each extended header, in the order of the bits of [`ExtHeaders`].
const EXT_LEN: [u8; EXT_COUNT] = [
    hdr::Rdeth::LEN as u8,
    hdr::Deth::LEN as u8,
    hdr::Xrceth::LEN as u8,
    hdr::Feth::LEN as u8,
    hdr::Reth::LEN as u8,
    hdr::AtomicEth::LEN as u8,
    hdr::Aeth::LEN as u8,
    hdr::AtomicAckEth::LEN as u8,
    hdr::ImmDt::LEN as u8,
    hdr::Ieth::LEN as u8,
];

/// How long the payload of a packet must be, pad bytes not counted (rule R29; R34 for 8 bytes).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PayloadRule {
    /// No payload at all.
    None,
    /// One path MTU: first and middle packets.
    ExactlyMtu,
    /// From one byte to one path MTU: last packets.
    AtLeastOne,
    /// From nothing to one path MTU: only packets.
    UpToMtu,
    /// This many bytes, whatever the MTU.
    Exactly(u16),
}

impl PayloadRule {
    /// Whether a payload of `len` bytes obeys the rule on a path of `mtu` bytes.
    #[inline]
    pub const fn check(self, len: usize, mtu: usize) -> bool {
        match self {
            Self::None => len == 0,
            Self::ExactlyMtu => len == mtu,
            Self::AtLeastOne => len >= 1 && len <= mtu,
            Self::UpToMtu => len <= mtu,
            Self::Exactly(exact) => len == exact as usize,
        }
    }
}

/// One row of the opcode table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpcodeInfo {
    /// Service and operation in words, such as `RC SEND_FIRST`.
    pub name: &'static str,
    /// The opcode itself.
    pub opcode: Opcode,
    /// The transport service.
    pub service: Service,
    /// What the packet does.
    pub operation: Operation,
    /// Its place in the message.
    pub position: Position,
    /// The extended headers that follow BTH; the order on the wire is that of the bits.
    pub headers: ExtHeaders,
    /// Length in bytes of the extended headers together, BTH not counted.
    pub ext_len: u8,
    /// The rule for the payload's length.
    pub payload: PayloadRule,
    /// Whether immediate data is carried.
    pub with_imm: bool,
    /// Whether the message asks the responder to invalidate a remote key.
    pub with_inv: bool,
    /// Offset of each extended header from the start of BTH, 0 when there is none.
    offsets: [u8; EXT_COUNT],
}

impl OpcodeInfo {
    /// Length in bytes of BTH and the extended headers.
    #[inline]
    pub const fn header_len(&self) -> usize {
        hdr::Bth::LEN + self.ext_len as usize
    }

    /// Where `header`, a single one, starts, in bytes from the start of BTH.
    #[inline]
    pub fn offset_of(&self, header: ExtHeaders) -> Option<usize> {
        let index = header.bits().trailing_zeros() as usize;
        self.offsets.get(index).filter(|&&offset| offset != 0).map(|&offset| usize::from(offset))
    }

    /// Whether a requester sends it: what the responder handles.
    #[inline]
    pub const fn is_request(&self) -> bool {
        !self.is_response() && !matches!(self.operation, Operation::Cnp)
    }

    /// Whether a responder sends it: what the completer handles.
    #[inline]
    pub const fn is_response(&self) -> bool {
        matches!(
            self.operation,
            Operation::ReadResponse | Operation::Acknowledge | Operation::AtomicAcknowledge
        )
    }

    /// Makes a row: lengths, offsets and the two flags follow from the set of headers.
    #[expect(clippy::indexing_slicing, reason = "evaluated by the compiler")]
    const fn new(
        name: &'static str,
        opcode: Opcode,
        (service, operation, position): (Service, Operation, Position),
        headers: ExtHeaders,
        payload: PayloadRule,
    ) -> Self {
        let mut offsets = [0; EXT_COUNT];
        let mut end = hdr::Bth::LEN as u8;
        let mut index = 0;
        while index < EXT_COUNT {
            if headers.bits() & (1 << index) != 0 {
                offsets[index] = end;
                end += EXT_LEN[index];
            }
            index += 1;
        }
        Self {
            name,
            opcode,
            service,
            operation,
            position,
            headers,
            ext_len: end - hdr::Bth::LEN as u8,
            payload,
            with_imm: headers.contains(ExtHeaders::IMM_DT),
            with_inv: headers.contains(ExtHeaders::IETH),
            offsets,
        }
    }
}

/// Defines the opcodes' constants and the table from one list.
macro_rules! opcodes {
    ($($id:ident = $code:literal, $name:literal, $service:ident, $operation:ident,
       $position:ident, [$($header:ident),*], $payload:ident $(($exact:literal))?;)*) => {
        impl Opcode {
            $(#[doc = concat!("`", $name, "`.")]
            pub const $id: Self = Self($code);)*
        }

        /// All 256 opcodes; `None` where none is defined.
        pub static OPCODES: [Option<OpcodeInfo>; 256] = {
            let mut table = [None; 256];
            $(table[$code] = Some(OpcodeInfo::new(
                $name,
                Opcode::$id,
                (Service::$service, Operation::$operation, Position::$position),
                ExtHeaders::empty()$(.union(ExtHeaders::$header))*,
                PayloadRule::$payload $(($exact))?,
            ));)*
            table
        };
    };
}

// constant = code, name, service, operation, position, [extended headers], payload rule;
opcodes! {
    // === RC
    RC_SEND_FIRST = 0x00, "RC SEND_FIRST", Rc, Send, First, [], ExactlyMtu;
    RC_SEND_MIDDLE = 0x01, "RC SEND_MIDDLE", Rc, Send, Middle, [], ExactlyMtu;
    RC_SEND_LAST = 0x02, "RC SEND_LAST", Rc, Send, Last, [], AtLeastOne;
    RC_SEND_LAST_WITH_IMM = 0x03, "RC SEND_LAST_WITH_IMM", Rc, Send, Last, [IMM_DT], AtLeastOne;
    RC_SEND_ONLY = 0x04, "RC SEND_ONLY", Rc, Send, Only, [], UpToMtu;
    RC_SEND_ONLY_WITH_IMM = 0x05, "RC SEND_ONLY_WITH_IMM", Rc, Send, Only, [IMM_DT], UpToMtu;
    RC_WRITE_FIRST = 0x06, "RC WRITE_FIRST", Rc, Write, First, [RETH], ExactlyMtu;
    RC_WRITE_MIDDLE = 0x07, "RC WRITE_MIDDLE", Rc, Write, Middle, [], ExactlyMtu;
    RC_WRITE_LAST = 0x08, "RC WRITE_LAST", Rc, Write, Last, [], AtLeastOne;
    RC_WRITE_LAST_WITH_IMM = 0x09, "RC WRITE_LAST_WITH_IMM", Rc, Write, Last, [IMM_DT], AtLeastOne;
    RC_WRITE_ONLY = 0x0a, "RC WRITE_ONLY", Rc, Write, Only, [RETH], UpToMtu;
    RC_WRITE_ONLY_WITH_IMM = 0x0b, "RC WRITE_ONLY_WITH_IMM", Rc, Write, Only,
        [RETH, IMM_DT], UpToMtu;
    RC_READ_REQUEST = 0x0c, "RC READ_REQUEST", Rc, ReadRequest, Only, [RETH], None;
    RC_READ_RESPONSE_FIRST = 0x0d, "RC READ_RESPONSE_FIRST", Rc, ReadResponse, First,
        [AETH], ExactlyMtu;
    RC_READ_RESPONSE_MIDDLE = 0x0e, "RC READ_RESPONSE_MIDDLE", Rc, ReadResponse, Middle,
        [], ExactlyMtu;
    RC_READ_RESPONSE_LAST = 0x0f, "RC READ_RESPONSE_LAST", Rc, ReadResponse, Last,
        [AETH], AtLeastOne;
    RC_READ_RESPONSE_ONLY = 0x10, "RC READ_RESPONSE_ONLY", Rc, ReadResponse, Only, [AETH], UpToMtu;
    RC_ACKNOWLEDGE = 0x11, "RC ACKNOWLEDGE", Rc, Acknowledge, Only, [AETH], None;
    RC_ATOMIC_ACKNOWLEDGE = 0x12, "RC ATOMIC_ACKNOWLEDGE", Rc, AtomicAcknowledge, Only,
        [AETH, ATOMIC_ACK_ETH], None;
    RC_COMPARE_SWAP = 0x13, "RC COMPARE_SWAP", Rc, CompareSwap, Only, [ATOMIC_ETH], None;
    RC_FETCH_ADD = 0x14, "RC FETCH_ADD", Rc, FetchAdd, Only, [ATOMIC_ETH], None;
    RC_SEND_LAST_WITH_INV = 0x16, "RC SEND_LAST_WITH_INV", Rc, Send, Last, [IETH], AtLeastOne;
    RC_SEND_ONLY_WITH_INV = 0x17, "RC SEND_ONLY_WITH_INV", Rc, Send, Only, [IETH], UpToMtu;
    RC_FLUSH = 0x1c, "RC FLUSH", Rc, Flush, Only, [FETH, RETH], None;
    RC_ATOMIC_WRITE = 0x1d, "RC ATOMIC_WRITE", Rc, AtomicWrite, Only, [RETH], Exactly(8);
    // === UC
    UC_SEND_FIRST = 0x20, "UC SEND_FIRST", Uc, Send, First, [], ExactlyMtu;
    UC_SEND_MIDDLE = 0x21, "UC SEND_MIDDLE", Uc, Send, Middle, [], ExactlyMtu;
    UC_SEND_LAST = 0x22, "UC SEND_LAST", Uc, Send, Last, [], AtLeastOne;
    UC_SEND_LAST_WITH_IMM = 0x23, "UC SEND_LAST_WITH_IMM", Uc, Send, Last, [IMM_DT], AtLeastOne;
    UC_SEND_ONLY = 0x24, "UC SEND_ONLY", Uc, Send, Only, [], UpToMtu;
    UC_SEND_ONLY_WITH_IMM = 0x25, "UC SEND_ONLY_WITH_IMM", Uc, Send, Only, [IMM_DT], UpToMtu;
    UC_WRITE_FIRST = 0x26, "UC WRITE_FIRST", Uc, Write, First, [RETH], ExactlyMtu;
    UC_WRITE_MIDDLE = 0x27, "UC WRITE_MIDDLE", Uc, Write, Middle, [], ExactlyMtu;
    UC_WRITE_LAST = 0x28, "UC WRITE_LAST", Uc, Write, Last, [], AtLeastOne;
    UC_WRITE_LAST_WITH_IMM = 0x29, "UC WRITE_LAST_WITH_IMM", Uc, Write, Last, [IMM_DT], AtLeastOne;
    UC_WRITE_ONLY = 0x2a, "UC WRITE_ONLY", Uc, Write, Only, [RETH], UpToMtu;
    UC_WRITE_ONLY_WITH_IMM = 0x2b, "UC WRITE_ONLY_WITH_IMM", Uc, Write, Only,
        [RETH, IMM_DT], UpToMtu;
    // === RD
    RD_SEND_FIRST = 0x40, "RD SEND_FIRST", Rd, Send, First, [RDETH, DETH], ExactlyMtu;
    RD_SEND_MIDDLE = 0x41, "RD SEND_MIDDLE", Rd, Send, Middle, [RDETH, DETH], ExactlyMtu;
    RD_SEND_LAST = 0x42, "RD SEND_LAST", Rd, Send, Last, [RDETH, DETH], AtLeastOne;
    RD_SEND_LAST_WITH_IMM = 0x43, "RD SEND_LAST_WITH_IMM", Rd, Send, Last,
        [RDETH, DETH, IMM_DT], AtLeastOne;
    RD_SEND_ONLY = 0x44, "RD SEND_ONLY", Rd, Send, Only, [RDETH, DETH], UpToMtu;
    RD_SEND_ONLY_WITH_IMM = 0x45, "RD SEND_ONLY_WITH_IMM", Rd, Send, Only,
        [RDETH, DETH, IMM_DT], UpToMtu;
    RD_WRITE_FIRST = 0x46, "RD WRITE_FIRST", Rd, Write, First, [RDETH, DETH, RETH], ExactlyMtu;
    RD_WRITE_MIDDLE = 0x47, "RD WRITE_MIDDLE", Rd, Write, Middle, [RDETH, DETH], ExactlyMtu;
    RD_WRITE_LAST = 0x48, "RD WRITE_LAST", Rd, Write, Last, [RDETH, DETH], AtLeastOne;
    RD_WRITE_LAST_WITH_IMM = 0x49, "RD WRITE_LAST_WITH_IMM", Rd, Write, Last,
        [RDETH, DETH, IMM_DT], AtLeastOne;
    RD_WRITE_ONLY = 0x4a, "RD WRITE_ONLY", Rd, Write, Only, [RDETH, DETH, RETH], UpToMtu;
    RD_WRITE_ONLY_WITH_IMM = 0x4b, "RD WRITE_ONLY_WITH_IMM", Rd, Write, Only,
        [RDETH, DETH, RETH, IMM_DT], UpToMtu;
    RD_READ_REQUEST = 0x4c, "RD READ_REQUEST", Rd, ReadRequest, Only, [RDETH, DETH, RETH], None;
    RD_READ_RESPONSE_FIRST = 0x4d, "RD READ_RESPONSE_FIRST", Rd, ReadResponse, First,
        [RDETH, AETH], ExactlyMtu;
    RD_READ_RESPONSE_MIDDLE = 0x4e, "RD READ_RESPONSE_MIDDLE", Rd, ReadResponse, Middle,
        [RDETH], ExactlyMtu;
    RD_READ_RESPONSE_LAST = 0x4f, "RD READ_RESPONSE_LAST", Rd, ReadResponse, Last,
        [RDETH, AETH], AtLeastOne;
    RD_READ_RESPONSE_ONLY = 0x50, "RD READ_RESPONSE_ONLY", Rd, ReadResponse, Only,
        [RDETH, AETH], UpToMtu;
    RD_ACKNOWLEDGE = 0x51, "RD ACKNOWLEDGE", Rd, Acknowledge, Only, [RDETH, AETH], None;
    RD_ATOMIC_ACKNOWLEDGE = 0x52, "RD ATOMIC_ACKNOWLEDGE", Rd, AtomicAcknowledge, Only,
        [RDETH, AETH, ATOMIC_ACK_ETH], None;
    RD_COMPARE_SWAP = 0x53, "RD COMPARE_SWAP", Rd, CompareSwap, Only,
        [RDETH, DETH, ATOMIC_ETH], None;
    RD_FETCH_ADD = 0x54, "RD FETCH_ADD", Rd, FetchAdd, Only, [RDETH, DETH, ATOMIC_ETH], None;
    RD_RESYNC = 0x55, "RD RESYNC", Rd, Resync, Only, [RDETH, DETH], None;
    // Other RD requests all have DETH. The draft of Linux's FLUSH patches leaves it out here, and
    // Linux never took that row; nobody is known to send this.
    RD_FLUSH = 0x5c, "RD FLUSH", Rd, Flush, Only, [RDETH, DETH, FETH, RETH], None;
    // === UD
    UD_SEND_ONLY = 0x64, "UD SEND_ONLY", Ud, Send, Only, [DETH], UpToMtu;
    UD_SEND_ONLY_WITH_IMM = 0x65, "UD SEND_ONLY_WITH_IMM", Ud, Send, Only, [DETH, IMM_DT], UpToMtu;
    // === XRC
    XRC_SEND_FIRST = 0xa0, "XRC SEND_FIRST", Xrc, Send, First, [XRCETH], ExactlyMtu;
    XRC_SEND_MIDDLE = 0xa1, "XRC SEND_MIDDLE", Xrc, Send, Middle, [XRCETH], ExactlyMtu;
    XRC_SEND_LAST = 0xa2, "XRC SEND_LAST", Xrc, Send, Last, [XRCETH], AtLeastOne;
    XRC_SEND_LAST_WITH_IMM = 0xa3, "XRC SEND_LAST_WITH_IMM", Xrc, Send, Last,
        [XRCETH, IMM_DT], AtLeastOne;
    XRC_SEND_ONLY = 0xa4, "XRC SEND_ONLY", Xrc, Send, Only, [XRCETH], UpToMtu;
    XRC_SEND_ONLY_WITH_IMM = 0xa5, "XRC SEND_ONLY_WITH_IMM", Xrc, Send, Only,
        [XRCETH, IMM_DT], UpToMtu;
    XRC_WRITE_FIRST = 0xa6, "XRC WRITE_FIRST", Xrc, Write, First, [XRCETH, RETH], ExactlyMtu;
    XRC_WRITE_MIDDLE = 0xa7, "XRC WRITE_MIDDLE", Xrc, Write, Middle, [XRCETH], ExactlyMtu;
    XRC_WRITE_LAST = 0xa8, "XRC WRITE_LAST", Xrc, Write, Last, [XRCETH], AtLeastOne;
    XRC_WRITE_LAST_WITH_IMM = 0xa9, "XRC WRITE_LAST_WITH_IMM", Xrc, Write, Last,
        [XRCETH, IMM_DT], AtLeastOne;
    XRC_WRITE_ONLY = 0xaa, "XRC WRITE_ONLY", Xrc, Write, Only, [XRCETH, RETH], UpToMtu;
    XRC_WRITE_ONLY_WITH_IMM = 0xab, "XRC WRITE_ONLY_WITH_IMM", Xrc, Write, Only,
        [XRCETH, RETH, IMM_DT], UpToMtu;
    XRC_READ_REQUEST = 0xac, "XRC READ_REQUEST", Xrc, ReadRequest, Only, [XRCETH, RETH], None;
    XRC_READ_RESPONSE_FIRST = 0xad, "XRC READ_RESPONSE_FIRST", Xrc, ReadResponse, First,
        [AETH], ExactlyMtu;
    XRC_READ_RESPONSE_MIDDLE = 0xae, "XRC READ_RESPONSE_MIDDLE", Xrc, ReadResponse, Middle,
        [], ExactlyMtu;
    XRC_READ_RESPONSE_LAST = 0xaf, "XRC READ_RESPONSE_LAST", Xrc, ReadResponse, Last,
        [AETH], AtLeastOne;
    XRC_READ_RESPONSE_ONLY = 0xb0, "XRC READ_RESPONSE_ONLY", Xrc, ReadResponse, Only,
        [AETH], UpToMtu;
    XRC_ACKNOWLEDGE = 0xb1, "XRC ACKNOWLEDGE", Xrc, Acknowledge, Only, [AETH], None;
    XRC_ATOMIC_ACKNOWLEDGE = 0xb2, "XRC ATOMIC_ACKNOWLEDGE", Xrc, AtomicAcknowledge, Only,
        [AETH, ATOMIC_ACK_ETH], None;
    XRC_COMPARE_SWAP = 0xb3, "XRC COMPARE_SWAP", Xrc, CompareSwap, Only, [XRCETH, ATOMIC_ETH], None;
    XRC_FETCH_ADD = 0xb4, "XRC FETCH_ADD", Xrc, FetchAdd, Only, [XRCETH, ATOMIC_ETH], None;
    XRC_SEND_LAST_WITH_INV = 0xb6, "XRC SEND_LAST_WITH_INV", Xrc, Send, Last,
        [XRCETH, IETH], AtLeastOne;
    XRC_SEND_ONLY_WITH_INV = 0xb7, "XRC SEND_ONLY_WITH_INV", Xrc, Send, Only,
        [XRCETH, IETH], UpToMtu;
    XRC_FLUSH = 0xbc, "XRC FLUSH", Xrc, Flush, Only, [XRCETH, FETH, RETH], None;
    XRC_ATOMIC_WRITE = 0xbd, "XRC ATOMIC_WRITE", Xrc, AtomicWrite, Only, [XRCETH, RETH], Exactly(8);
    // Congestion notification
    CNP = 0x81, "CNP", Cnp, Cnp, Only, [], Exactly(16);
}
