//! One end of a datagram path.

use ibverbs_api::{AddressVector, QKey, QpType, Qpn, SendOp};
use rdma_cm::CmId;

use super::error::CmError;
use super::node::{Messages, Node};

/// A node of datagrams, and where its messages go, once that is known.
pub(crate) struct Path {
    pub(crate) node: Node,
    pub(crate) peer: Option<SendOp>,
}

impl Path {
    /// Makes the node.
    pub(crate) fn new(id: &CmId, messages: Messages) -> Result<Self, CmError> {
        let node = Node::new(id.clone(), QpType::Ud, messages)?;
        Ok(Self { node, peer: None })
    }

    /// Sets where its messages go. Each carries the number of our queue pair, for answers.
    pub(crate) fn set_peer(
        &mut self,
        av: &AddressVector,
        qpn: Qpn,
        qkey: QKey,
    ) -> Result<(), CmError> {
        let to = self.node.pd.create_ah(av)?.to(qpn, qkey);
        self.peer = Some(SendOp::SendTo { to, imm: Some(self.node.qp.qpn().get()) });
        Ok(())
    }
}
