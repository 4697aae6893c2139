//! Address handles: where datagrams go to, and where one that came would be answered.

use std::sync::Arc;

use gid_table::{Gid, GidType};
use rxe_wire::{QKey, Qpn};

use crate::device::{Device, Port};
use crate::error::ModifyQpError;
use crate::network_header::NetworkHeader;
use crate::path::Path;
use crate::pd::PdId;
use crate::qp::AddressVector;
use crate::qp::modify::{port, source_gid};

/// Why there is no address handle (`ibv_create_ah`, `ibv_init_ah_from_wc`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CreateAhError {
    /// The address vector leads nowhere.
    #[error("no address handle: {0}")]
    Address(#[from] ModifyQpError),
    /// The bytes at the head of the receive buffer are not the header of an IP or RoCE v1 packet.
    #[error(
        "the first 40 bytes of the receive are no network header: give those of a datagram whose \
         completion has the flag GRH"
    )]
    NoHeader,
    /// The device's limit of address handles is reached.
    #[error("all {max} address handles are in use (max_ah): destroy some")]
    TooMany {
        /// The limit.
        max: u32,
    },
}

impl CreateAhError {
    /// The errno that `ibv_create_ah` would set.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Address(error) => error.errno(),
            Self::NoHeader => crate::errno::EINVAL,
            Self::TooMany { .. } => crate::errno::ENOMEM,
        }
    }
}

/// An address that datagrams can be sent to (`struct ibv_ah`). Dropping it destroys it.
///
/// The GID that it sends from keeps its index as long as the handle is there. Requests that were
/// posted with it are sent also when it is gone.
#[derive(Debug)]
pub struct AddressHandle {
    device: Arc<Device>,
    pd: PdId,
    av: AddressVector,
    path: Path,
}

impl AddressHandle {
    pub(crate) fn new(
        device: &Arc<Device>,
        pd: PdId,
        av: &AddressVector,
    ) -> Result<Self, CreateAhError> {
        if av.flow_label > 0xf_ffff {
            let (what, value, max) = ("av.flow_label", av.flow_label, 0xf_ffff);
            return Err(ModifyQpError::Value { what, value, max }.into());
        }
        let port = port(device, av.port_num)?;
        let entry = source_gid(port, av)?;
        if let Err(error) = port.gids.write().hold(av.sgid_index) {
            return Err(ModifyQpError::GidIndex { error, suggested: None }.into());
        }
        Ok(Self { device: device.clone(), pd, av: *av, path: av.path_from(&entry) })
    }

    /// Its protection domain: that of the queue pairs that may use it.
    pub fn pd(&self) -> PdId {
        self.pd
    }

    /// What it was made of.
    pub fn address_vector(&self) -> &AddressVector {
        &self.av
    }

    /// Queue pair `qpn` at this address, which takes datagrams with the queue key `qkey`.
    ///
    /// A `qkey` with the highest bit set stands for the sending queue pair's own (`wr.ud` of
    /// `struct ibv_send_wr`; IBA volume 1, section 10.2.5).
    pub fn to(&self, qpn: Qpn, qkey: QKey) -> Destination {
        Destination { path: self.path, pd: self.pd, qpn, qkey }
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        let Some(port) = self.device.port(self.av.port_num) else { return };
        if let Err(error) = port.gids.write().release(self.av.sgid_index) {
            tracing::error!(target: "rxe::ah", %error, "the hold on a GID index was lost");
        }
        self.device.forget_ah();
    }
}

/// Where one datagram goes: made by [`AddressHandle::to`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Destination {
    pub(crate) path: Path,
    pub(crate) pd: PdId,
    pub(crate) qpn: Qpn,
    pub(crate) qkey: QKey,
}

/// The way back to the sender of a datagram, from the 40 bytes that stand before its data.
///
/// The answer leaves from the address that the datagram came to; one that came to a group is
/// answered from the first address of its family. Counterpart of `ibv_init_ah_from_wc`.
///
/// # Errors
///
/// [`CreateAhError`] when the bytes are no header, or no GID of the port can be answered from.
pub fn address_from_header(
    device: &Device,
    port_num: u8,
    header: &[u8; 40],
) -> Result<AddressVector, CreateAhError> {
    let port = port(device, port_num)?;
    let header = NetworkHeader::parse(header).ok_or(CreateAhError::NoHeader)?;
    let Path { source, destination, gid_type, traffic_class, flow_label, .. } = header.path();
    let sgid_index = own_index(port, source, destination, gid_type);
    // What is left of the hop limit says nothing on the way back: the plain one is taken.
    let av = AddressVector { port_num, flow_label, traffic_class, ..AddressVector::new(source, 0) };
    let Some(sgid_index) = sgid_index else {
        // Says which index would be right, or that there is none.
        let out_of_range = AddressVector { sgid_index: u32::MAX, ..av };
        source_gid(port, &out_of_range)?;
        return Err(CreateAhError::NoHeader);
    };
    Ok(AddressVector { sgid_index, ..av })
}

/// The index of the GID that a packet came to, or for a group that of one that can answer.
fn own_index(port: &Port, peer: Gid, own: Gid, gid_type: GidType) -> Option<u32> {
    let gids = port.gids.read();
    if !own.is_multicast() {
        return gids.find(own, gid_type).map(|entry| entry.gid_index);
    }
    let is_v4 = |gid: Gid| gid.to_ipv4().is_some();
    let fits = |gid: Gid| is_v4(gid) == is_v4(peer);
    gids.entries()
        .find(|entry| entry.owned && entry.gid_type == gid_type && fits(entry.gid))
        .map(|entry| entry.gid_index)
}
