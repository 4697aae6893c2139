//! Packets of RoCE v2 for this host itself, and for groups, in which it may be.
//!
//! A frame that a packet socket puts on `lo` reaches packet sockets alone: IP takes one whose source
//! is an address of the host for a martian. And of what is sent to a group, the host hands back to
//! its own sockets of IP only what has left by IP. So these packets leave as the UDP link sends them,
//! and reach packet links and UDP links alike.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use gid_table::Gid;
use rxe_core::path::Transmit;

use crate::batch::ICRC_LEN;
use crate::udp::{
    BufferSizes, ROCE_PORT, TxKey, TxSockets, drain_errors, may_be_icmp, socket_address, sys,
};

/// Times that a send is repeated while ICMP errors that came before keep failing it.
const MAX_ATTEMPTS: usize = 4;
/// Messages of an error queue that are taken at once.
const ERRORS: usize = 4;

/// Sends from one address of this host, to all of them and to groups.
pub(super) struct ByUdp {
    sockets: TxSockets,
    scope_id: u32,
    /// Made when the first error has come.
    errors: Option<sys::RecvRing>,
}

impl fmt::Debug for ByUdp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByUdp").field("sockets", &self.sockets).finish_non_exhaustive()
    }
}

impl ByUdp {
    /// From this GID, of this interface and shard. Nothing is opened yet.
    pub(super) fn new(gid: Gid, ifindex: u32, slot: u8, buffers: BufferSizes) -> Self {
        let scope_id = if gid.is_link_local() { ifindex } else { 0 };
        let local = socket_address(gid.to_ip(), 0, scope_id);
        Self { sockets: TxSockets::new(local, slot, ifindex, buffers), scope_id, errors: None }
    }

    /// Readies the socket of a packet; says from which port that sends, which the iCRC covers.
    pub(super) fn prepare(&mut self, packet: &Transmit) -> io::Result<u16> {
        let path = &packet.path;
        let socket = self.sockets.get(key_of(packet))?;
        socket.set_header(path.traffic_class, path.hop_limit)?;
        Ok(socket.port())
    }

    /// Sends packets like this one, the last of which may be shorter, each with its iCRC.
    pub(super) fn send(&mut self, packet: &Transmit, sealed: &[u8]) -> io::Result<()> {
        let key = key_of(packet);
        let to = packet.path.destination.to_ip();
        let to: SocketAddr = socket_address(to, ROCE_PORT, self.scope_id);
        let len = packet.len + ICRC_LEN;
        let is_one = sealed.len() <= len;
        // Fits: no packet is longer than 65,535 bytes.
        let segment = if is_one { 0 } else { len as u16 };
        let to = sys::RawAddress::new(to, key.flow_label);
        let message = sys::OutMessage { to, bytes: sealed, segment };
        for _ in 0..MAX_ATTEMPTS {
            match sys::send_messages(self.sockets.get(key)?.fd(), &[message]) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // What came of an earlier packet, for which nobody was there.
                Err(error) if error.raw_os_error().is_some_and(may_be_icmp) => {
                    let ring = self.errors.get_or_insert_with(|| sys::RecvRing::new(ERRORS));
                    if drain_errors(self.sockets.get(key)?.fd(), ring, |_| ())? == 0 {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::ConnectionRefused.into())
    }
}

fn key_of(packet: &Transmit) -> TxKey {
    let flow_label = packet.path.flow_label & 0x000f_ffff;
    TxKey { slot: packet.dest_qpn.slot(), flow_label }
}
