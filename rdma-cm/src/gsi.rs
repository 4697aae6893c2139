//! The QP1 of a device: how messages leave and arrive.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use gid_table::{Gid, GidEntry, GidType};
use ibverbs_api::{
    ALL_PORTS, AccessFlags, AddressVector, CompletionChannel, CompletionQueue, Context, DmaBuf,
    MemoryRegion, Mtu, ProtectionDomain, QpInit, QpState, QpType, Qpn, QueuePair, RecvWr, SendData,
    SendFlags, SendOp, SendWr, WcOpcode, WcStatus,
};
use rxe_wire::mad::MAD_LEN;
use rxe_wire::mad::cm::{Bits, GSI_QKEY, PathMtu};

use crate::engine::{CmPath, CmTransmit};

/// Bytes in front of a datagram that was received: the network header.
const HEAD: usize = 40;
/// Bytes of a receive buffer.
const BUFFER: usize = HEAD + MAD_LEN;
/// Receives that are posted.
const RECEIVES: usize = 1024;
/// Messages that wait to leave at most.
const SENDS: u32 = 1024;
/// Completions taken in one go.
const BATCH: usize = 64;
/// Batches taken in before what they say is told on.
const ROUNDS: usize = RECEIVES / BATCH;

/// A QP1 with receives, which serves all ports of the device.
#[derive(Debug)]
pub(crate) struct Gsi {
    qp: QueuePair,
    cq: CompletionQueue,
    channel: CompletionChannel,
    memory: MemoryRegion,
    pd: ProtectionDomain,
    context: Context,
}

impl Gsi {
    pub(crate) fn new(context: &Context) -> io::Result<Self> {
        let pd = context.alloc_pd().map_err(io::Error::other)?;
        let channel = context.create_channel()?;
        let entries = RECEIVES as u32 + SENDS;
        let cq = context.create_cq(entries, Some(&channel), 0).map_err(io::Error::other)?;
        let mut init = QpInit::new(QpType::Gsi, &cq, &cq);
        init.caps.max_recv_wr = RECEIVES as u32;
        init.caps.max_send_wr = SENDS;
        init.caps.max_inline_data = MAD_LEN as u32;
        init.port_num = ALL_PORTS;
        let qp = pd.create_qp(init).map_err(|error| os(error.errno(), error))?;
        qp.start_datagrams(ALL_PORTS, GSI_QKEY).map_err(|error| os(error.errno(), error))?;
        let memory = pd
            .register(DmaBuf::zeroed(RECEIVES * BUFFER), AccessFlags::LOCAL_WRITE)
            .map_err(io::Error::other)?;
        let gsi = Self { qp, cq, channel, memory, pd, context: context.clone() };
        (0..RECEIVES).for_each(|index| gsi.post_receive(index));
        gsi.cq.req_notify(false);
        Ok(gsi)
    }

    pub(crate) fn qp(&self) -> &QueuePair {
        &self.qp
    }

    pub(crate) fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// The entry of an address, as the table is now: addresses come and go.
    pub(crate) fn gid_entry(&self, gid: Gid) -> Option<GidEntry> {
        let find = |gid_type| self.context.find_gid(gid, gid_type);
        // Of both versions of RoCE the second, as Linux's connection manager does.
        find(GidType::RoceV2).or_else(|| find(GidType::RoceV1))
    }

    /// The descriptor that is readable when something has come.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// The port of an address, counted from 1; `None` when it is none of ours.
    pub(crate) fn port_num(&self, gid: Gid) -> Option<u8> {
        self.gid_entry(gid).map(|entry| port_of(&entry))
    }

    /// The greatest path MTU that the port of an address carries; of one that is none of ours, the
    /// smallest there is.
    pub(crate) fn path_mtu(&self, gid: Gid) -> PathMtu {
        let port = self.port_num(gid).and_then(|port| self.context.query_port(port).ok());
        PathMtu(Bits::new(port.map_or(Mtu::M256, |port| port.active_mtu) as u8))
    }

    /// The greatest path MTU that any port carries.
    pub(crate) fn greatest_path_mtu(&self) -> PathMtu {
        let ports = 1..=self.context.query_device().phys_port_cnt;
        let all = ports.filter_map(|port| self.context.query_port(port).ok());
        let most = all.map(|port| port.active_mtu).max().unwrap_or(Mtu::M256);
        PathMtu(Bits::new(most as u8))
    }

    /// The address vector of a path; `None` when the local address is none of ours.
    pub(crate) fn address_vector(&self, path: &CmPath) -> Option<AddressVector> {
        let entry = self.gid_entry(path.local)?;
        let mut av = AddressVector::new(path.remote, entry.gid_index);
        av.traffic_class = path.traffic_class;
        av.flow_label = path.flow_label;
        av.hop_limit = path.hop_limit;
        av.port_num = port_of(&entry);
        Some(av)
    }

    /// Sends a message. One that cannot be sent is lost: the engine sends again.
    pub(crate) fn send(&self, transmit: &CmTransmit) {
        if let Err(why) = self.try_send(transmit) {
            tracing::warn!(target: "rxe::cm", message = %transmit.message, %why, "not sent");
        }
    }

    fn try_send(&self, transmit: &CmTransmit) -> io::Result<()> {
        let av = self
            .address_vector(&transmit.path)
            .ok_or_else(|| io::Error::other("the device has lost the address"))?;
        let to = self.pd.create_ah(&av).map_err(io::Error::other)?;
        let mut mad = [0; MAD_LEN];
        transmit.write(&mut mad);
        let request = SendWr {
            wr_id: 0,
            op: SendOp::SendTo { to: to.to(Qpn::GSI, GSI_QKEY), imm: None },
            flags: SendFlags::empty(),
            data: SendData::Inline(&mad),
            srq_number: None,
        };
        self.qp.post_send(&request).map_err(io::Error::other)
    }

    /// Gives each message that has come to `each`, and asks to be told of the next. Whether there
    /// may be more: where messages come without end, others want their turn too.
    pub(crate) fn receive(&self, mut each: impl FnMut(&CmPath, &[u8])) -> bool {
        while self.channel.take().is_some() {}
        self.cq.req_notify(false);
        let mut completions = Vec::with_capacity(BATCH);
        for _ in 0..ROUNDS {
            if self.cq.poll(BATCH, &mut completions) == 0 {
                return false;
            }
            for wc in completions.drain(..) {
                if wc.opcode != WcOpcode::Recv {
                    continue;
                }
                let index = wc.wr_id as usize;
                let is_whole = wc.byte_len as usize == BUFFER;
                if wc.status == WcStatus::Success
                    && is_whole
                    && wc.source_qpn == Qpn::GSI
                    && let Some((path, mad)) = self.read(index)
                {
                    each(&path, &mad);
                }
                if wc.status != WcStatus::WrFlushErr {
                    self.post_receive(index);
                }
            }
        }
        true
    }

    /// Whether the device is lost: then all queue pairs have failed, this one too.
    pub(crate) fn is_lost(&self) -> bool {
        self.qp.state() == QpState::Err
    }

    /// The datagram in a buffer, and between which addresses it came.
    fn read(&self, index: usize) -> Option<(CmPath, [u8; MAD_LEN])> {
        let (mut head, mut mad) = ([0; HEAD], [0; MAD_LEN]);
        let memory = self.memory.buffer();
        memory.read_at(index * BUFFER, &mut head).ok()?;
        memory.read_at(index * BUFFER + HEAD, &mut mad).ok()?;
        // By the port that has the address that it came to.
        let mut ports = 1..=self.context.query_device().phys_port_cnt;
        let back = ports.find_map(|port| self.context.address_from_header(port, &head).ok())?;
        let local = self.context.query_gid_ex(back.port_num, back.sgid_index).ok()?.gid;
        let path = CmPath { traffic_class: back.traffic_class, ..CmPath::new(local, back.dgid) };
        Some((path, mad))
    }

    fn post_receive(&self, index: usize) {
        let at = index * BUFFER;
        let sges = [self.memory.sge(at..at + BUFFER)];
        if let Err(error) = self.qp.post_recv(RecvWr { wr_id: index as u64, sges: &sges }) {
            tracing::warn!(target: "rxe::cm", %error, "a receive of QP1 is lost");
        }
    }
}

fn port_of(entry: &GidEntry) -> u8 {
    // They are counted with 8 bits.
    u8::try_from(entry.port_num).unwrap_or(u8::MAX)
}

/// An error of the OS that says what this one does.
fn os(errno: i32, error: impl std::error::Error) -> io::Error {
    tracing::warn!(target: "rxe::cm", %error, "no QP1");
    io::Error::from_raw_os_error(errno)
}
