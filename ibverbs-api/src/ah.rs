//! Address handles: where datagrams go.

use std::sync::Arc;

use rxe_core::ah::{AddressHandle as CoreHandle, CreateAhError, Destination, address_from_header};
use rxe_core::qp::AddressVector;
use rxe_wire::{QKey, Qpn};

use crate::pd::PdInner;

/// An address that datagrams can be sent to (`struct ibv_ah`). Cloning gives another handle to the
/// same one; it is destroyed with the last.
///
/// Requests that were posted with it are sent also when it is gone.
#[derive(Clone, Debug)]
pub struct AddressHandle {
    core: Arc<CoreHandle>,
    /// Kept until the handle has let go of it.
    _pd: Arc<PdInner>,
}

impl AddressHandle {
    pub(crate) fn new(pd: &Arc<PdInner>, av: &AddressVector) -> Result<Self, CreateAhError> {
        let core = pd.context.core.create_ah(pd.id, av)?;
        Ok(Self { core, _pd: pd.clone() })
    }

    /// What it was made of.
    pub fn address_vector(&self) -> &AddressVector {
        self.core.address_vector()
    }

    /// Queue pair `qpn` at this address, which takes datagrams with the queue key `qkey`: what
    /// [`SendOp::SendTo`](crate::SendOp::SendTo) needs (`wr.ud` of `struct ibv_send_wr`).
    ///
    /// A `qkey` with the highest bit set stands for the sending queue pair's own.
    pub fn to(&self, qpn: Qpn, qkey: QKey) -> Destination {
        self.core.to(qpn, qkey)
    }
}

impl crate::Context {
    /// The way back to the sender of a datagram, from the 40 bytes before its data
    /// (`ibv_init_ah_from_wc`).
    ///
    /// # Errors
    ///
    /// [`CreateAhError`] when the bytes are no network header, or nothing can be sent from the
    /// address that it came to.
    pub fn address_from_header(
        &self,
        port_num: u8,
        header: &[u8; 40],
    ) -> Result<AddressVector, CreateAhError> {
        address_from_header(&self.inner.core, port_num, header)
    }
}
