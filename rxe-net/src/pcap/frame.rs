//! The frame that a captured packet has, or might have had.

use gid_table::Gid;
use rxe_core::path::Path;
use rxe_wire::icrc::ICRC_LEN;

use crate::frame::{self, FrameError, FrameHeaders};

/// A packet as a link without frames knows it: enough to make up the rest.
///
/// A socket does not show Ethernet addresses. Those in the file are `02:00` and the last four
/// bytes of the GID, or that of the multicast group. The other headers are as on the wire, except
/// that the UDP checksum is 0 on IPv4.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CapturedPacket<'p> {
    /// Its addressing.
    pub path: &'p Path,
    /// Its UDP source port.
    pub source_port: u16,
    /// Its IPv4 identification: the one it was sealed with, or the one found on receipt. With
    /// another one its iCRC looks wrong.
    pub identification: u16,
    /// Whether IPv4's "don't fragment" is set.
    pub dont_fragment: bool,
    /// Its bytes, from BTH to the end of the iCRC.
    pub sealed: &'p [u8],
}

impl CapturedPacket<'_> {
    /// Writes its frame to the end of `out`.
    pub(super) fn write_frame(&self, out: &mut Vec<u8>) -> Result<(), FrameError> {
        let (packet, icrc) = match self.sealed.split_last_chunk::<ICRC_LEN>() {
            Some((packet, icrc)) => (packet, Some(*icrc)),
            // Refused below, as too short.
            None => (self.sealed, None),
        };
        let headers = FrameHeaders {
            source_mac: made_up_mac(self.path.source),
            destination_mac: made_up_mac(self.path.destination),
            source_port: self.source_port,
            identification: self.identification,
            dont_fragment: self.dont_fragment,
        };
        frame::write(out, self.path, &headers, packet, icrc)?;
        Ok(())
    }
}

/// An Ethernet address for a GID; those of `02` are assigned locally, so it is nobody's.
fn made_up_mac(gid: Gid) -> [u8; 6] {
    let [.., a, b, c, d] = gid.raw();
    gid.multicast_mac().unwrap_or([0x02, 0x00, a, b, c, d])
}
