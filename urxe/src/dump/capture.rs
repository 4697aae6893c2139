//! Reading captures: pcap and pcapng, either byte order, and the link types that carry RoCE.

use std::io::{self, Read};
use std::time::Duration;

use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::{Block, PcapNgReader};
use pcap_file::{DataLink, PcapError, TsResolution};
use thiserror::Error;

/// The first four bytes of a pcapng file, in either byte order.
const PCAPNG_MAGIC: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
/// The first four bytes of a pcap file: microseconds and nanoseconds, in either byte order.
const PCAP_MAGICS: [[u8; 4]; 4] = [
    [0xa1, 0xb2, 0xc3, 0xd4],
    [0xd4, 0xc3, 0xb2, 0xa1],
    [0xa1, 0xb2, 0x3c, 0x4d],
    [0x4d, 0x3c, 0xb2, 0xa1],
];
/// The link type is in the lower half of the word; above it may stand the length of an FCS.
const LINK_TYPE_MASK: u32 = 0xffff;
/// The raw-IP link type that some BSDs write (DLT_RAW).
const BSD_RAW: [u32; 2] = [12, 14];
/// No frame is longer: an IP packet of the greatest length and what stands before it.
const FRAME_LEN_MAX: usize = 0x1_0000 + 64;
const ETHERNET_LEN: usize = 14;
const SLL_LEN: usize = 16;
const SLL2_LEN: usize = 20;

/// Why a capture could not be read on.
#[derive(Debug, Error)]
pub(super) enum CaptureError {
    #[error("not a capture: it begins with {0:02x?}, not like a pcap or pcapng file")]
    NotACapture(Vec<u8>),
    #[error("not a capture: the file is empty")]
    Empty,
    #[error("truncated: the file ends inside its own header")]
    TruncatedHeader,
    #[error("damaged header: {0}")]
    DamagedHeader(#[source] PcapError),
    #[error("truncated: the file ends in the middle of a record, {0} frames are whole")]
    Truncated(u64),
    #[error("damaged after frame {frames}: {source}")]
    Damaged { frames: u64, source: PcapError },
    #[error("cannot read on after frame {frames}: {source}")]
    Io { frames: u64, source: io::Error },
}

/// What the bytes of a record begin with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FirstLayer {
    /// Ethernet.
    Ethernet,
    /// Linux "cooked" capture, rewritten as Ethernet without destination.
    Cooked,
    /// An IP header.
    Ip,
    /// Nothing that is known here: the number of the link type.
    Unknown(u32),
}

/// One frame of a capture.
#[derive(Debug)]
pub(super) struct Record {
    /// Position in the file, from 1.
    pub number: u64,
    /// Time since 1970 UTC; a pcapng simple packet has none.
    pub time: Option<Duration>,
    /// Length in bytes of the frame on the wire, as the file says.
    pub frame_len: usize,
    /// Length in bytes of what the file holds of it.
    pub captured_len: usize,
    /// What [`Record::bytes`] begins with.
    pub first_layer: FirstLayer,
    /// The frame. Where the capture cut it, zeros fill it up to its length on the wire, so that the
    /// lengths in its headers can be judged; see [`Record::known_len`].
    pub bytes: Vec<u8>,
    /// How many of [`Record::bytes`] come from the file.
    pub known_len: usize,
}

impl Record {
    /// Whether the capture holds less than the whole frame.
    pub(super) const fn is_cut(&self) -> bool {
        self.captured_len < self.frame_len
    }

    fn new(
        number: u64,
        time: Option<Duration>,
        link: DataLink,
        data: &[u8],
        frame_len: u32,
    ) -> Self {
        let frame_len = usize::try_from(frame_len).unwrap_or(usize::MAX).max(data.len());
        let (first_layer, mut bytes) = first_layer(link, data);
        let known_len = bytes.len();
        let missing = frame_len - data.len();
        if known_len.saturating_add(missing) <= FRAME_LEN_MAX {
            bytes.resize(known_len + missing, 0);
        }
        Self { number, time, frame_len, captured_len: data.len(), first_layer, bytes, known_len }
    }
}

/// What the bytes begin with, cooked headers rewritten as Ethernet.
fn first_layer(link: DataLink, data: &[u8]) -> (FirstLayer, Vec<u8>) {
    let number = u32::from(link) & LINK_TYPE_MASK;
    match DataLink::from(number) {
        DataLink::ETHERNET => (FirstLayer::Ethernet, data.to_vec()),
        DataLink::RAW | DataLink::IPV4 | DataLink::IPV6 => (FirstLayer::Ip, data.to_vec()),
        DataLink::LINUX_SLL => match data.split_at_checked(SLL_LEN) {
            Some((header, rest)) => cooked(header.get(6..12), header.get(14..16), rest),
            None => (FirstLayer::Cooked, Vec::new()),
        },
        DataLink::LINUX_SLL2 => match data.split_at_checked(SLL2_LEN) {
            Some((header, rest)) => cooked(header.get(12..18), header.get(..2), rest),
            None => (FirstLayer::Cooked, Vec::new()),
        },
        _ if BSD_RAW.contains(&number) => (FirstLayer::Ip, data.to_vec()),
        _ => (FirstLayer::Unknown(number), data.to_vec()),
    }
}

fn cooked(source: Option<&[u8]>, protocol: Option<&[u8]>, rest: &[u8]) -> (FirstLayer, Vec<u8>) {
    let mut bytes = Vec::with_capacity(ETHERNET_LEN + rest.len());
    bytes.extend([0; 6]);
    bytes.extend(source.unwrap_or_default());
    bytes.extend(protocol.unwrap_or_default());
    bytes.extend(rest);
    (FirstLayer::Cooked, bytes)
}

enum Format {
    Pcap(PcapReader<Box<dyn Read>>),
    PcapNg(PcapNgReader<Box<dyn Read>>),
}

/// A capture that is being read.
pub(super) struct Capture {
    format: Format,
    /// Frames read so far.
    frames: u64,
}

impl Capture {
    /// Begins to read.
    ///
    /// # Errors
    /// [`CaptureError`] when this is no capture.
    pub(super) fn new(mut input: Box<dyn Read>) -> Result<Self, CaptureError> {
        let mut magic = Vec::new();
        let io = |source| CaptureError::Io { frames: 0, source };
        input.by_ref().take(4).read_to_end(&mut magic).map_err(io)?;
        if magic.is_empty() {
            return Err(CaptureError::Empty);
        }
        let is_pcapng = magic == PCAPNG_MAGIC;
        if !is_pcapng && !PCAP_MAGICS.iter().any(|known| known == magic.as_slice()) {
            return Err(CaptureError::NotACapture(magic));
        }
        let whole: Box<dyn Read> = Box::new(io::Cursor::new(magic).chain(input));
        let format = if is_pcapng {
            PcapNgReader::new(whole).map(Format::PcapNg)
        } else {
            PcapReader::new(whole).map(Format::Pcap)
        };
        let format = format.map_err(|error| match error {
            error if is_end(&error) => CaptureError::TruncatedHeader,
            PcapError::IoError(source) => io(source),
            error => CaptureError::DamagedHeader(error),
        })?;
        Ok(Self { format, frames: 0 })
    }

    /// The next frame, or `None` at the end of the file.
    ///
    /// # Errors
    /// [`CaptureError`] when the file is truncated or damaged; nothing can be read after that.
    pub(super) fn next(&mut self) -> Result<Option<Record>, CaptureError> {
        let frames = self.frames;
        let record = match &mut self.format {
            Format::Pcap(reader) => next_of_pcap(reader, frames + 1),
            Format::PcapNg(reader) => next_of_pcapng(reader, frames + 1),
        };
        let record = record.map_err(|error| match error {
            error if is_end(&error) => CaptureError::Truncated(frames),
            PcapError::IoError(source) => CaptureError::Io { frames, source },
            source => CaptureError::Damaged { frames, source },
        })?;
        self.frames += u64::from(record.is_some());
        Ok(record)
    }
}

/// Whether the file ended where more was expected.
fn is_end(error: &PcapError) -> bool {
    match error {
        PcapError::IncompleteBuffer => true,
        PcapError::IoError(source) => source.kind() == io::ErrorKind::UnexpectedEof,
        _ => false,
    }
}

fn next_of_pcap(
    reader: &mut PcapReader<Box<dyn Read>>,
    number: u64,
) -> Result<Option<Record>, PcapError> {
    let header = reader.header();
    let Some(packet) = reader.next_raw_packet() else { return Ok(None) };
    let packet = packet?;
    let unit_ns = match header.ts_resolution {
        TsResolution::MicroSecond => 1000,
        TsResolution::NanoSecond => 1,
    };
    let fraction = Duration::from_nanos(u64::from(packet.ts_frac) * unit_ns);
    let time = Duration::from_secs(u64::from(packet.ts_sec)) + fraction;
    Ok(Some(Record::new(number, Some(time), header.datalink, &packet.data, packet.orig_len)))
}

fn next_of_pcapng(
    reader: &mut PcapNgReader<Box<dyn Read>>,
    number: u64,
) -> Result<Option<Record>, PcapError> {
    // A packet borrows the reader, and so do the interfaces: what counts is copied out between.
    struct Packet {
        interface: u32,
        units: Option<u64>,
        data: Vec<u8>,
        frame_len: u32,
    }
    let packet = loop {
        let Some(block) = reader.next_block() else { return Ok(None) };
        match block? {
            Block::EnhancedPacket(packet) => {
                break Packet {
                    interface: packet.interface_id,
                    // The library takes the units, whatever they are, for nanoseconds.
                    units: Some(u64::try_from(packet.timestamp.as_nanos()).unwrap_or(u64::MAX)),
                    data: packet.data.into_owned(),
                    frame_len: packet.original_len,
                };
            }
            Block::Packet(packet) => {
                break Packet {
                    interface: packet.interface_id.into(),
                    units: Some(packet.timestamp),
                    data: packet.data.into_owned(),
                    frame_len: packet.original_len,
                };
            }
            Block::SimplePacket(packet) => {
                let frame_len = packet.original_len;
                let data = packet.data.into_owned();
                break Packet { interface: 0, units: None, data, frame_len };
            }
            _ => {}
        }
    };
    let interface = usize::try_from(packet.interface)
        .ok()
        .and_then(|index| reader.interfaces().get(index))
        .ok_or(PcapError::InvalidInterfaceId(packet.interface))?;
    let time = packet.units.map(|units| time_of(units, interface));
    let mut data = packet.data;
    if packet.units.is_none() {
        // A simple packet does not say how much of it there is, and its padding comes along.
        let limit = if interface.snaplen == 0 { u32::MAX } else { interface.snaplen };
        data.truncate(usize::try_from(packet.frame_len.min(limit)).unwrap_or(usize::MAX));
    }
    Ok(Some(Record::new(number, time, interface.linktype, &data, packet.frame_len)))
}

/// The time that `units` of the interface's resolution make; microseconds when it says none.
fn time_of(units: u64, interface: &InterfaceDescriptionBlock<'_>) -> Duration {
    let mut resolution = 6;
    let mut offset = 0;
    for option in &interface.options {
        match option {
            InterfaceDescriptionOption::IfTsResol(value) => resolution = *value,
            InterfaceDescriptionOption::IfTsOffset(value) => offset = *value,
            _ => {}
        }
    }
    // With the top bit set the resolution is a power of two instead of ten.
    let (base, exponent) =
        if resolution & 0x80 == 0 { (10_u128, resolution) } else { (2, resolution & 0x7f) };
    let Some(per_second) = base.checked_pow(exponent.into()) else { return Duration::ZERO };
    let units = u128::from(units);
    let seconds = u64::try_from(units / per_second).unwrap_or(u64::MAX);
    // The rest is below one second's units; units fit in 64 bits, so the product fits in 128.
    let nanos = units % per_second * 1_000_000_000 / per_second;
    Duration::new(seconds.saturating_add(offset), u32::try_from(nanos).unwrap_or_default())
}
