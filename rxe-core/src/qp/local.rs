//! Requests about this host's own keys: they send nothing, and take no PSN.

use super::machine::Machine;
use crate::mem::MemoryTable;
use crate::wc::WcStatus;
use crate::wq::SendOp;

impl Machine {
    /// Carries out the request at the cursor. It completes once everything before it has; if it
    /// fails, the queue pair fails with it then (R8).
    pub(super) fn carry_out(&mut self, memory: &MemoryTable) {
        let Some(wqe) = self.send.wqes.get_mut(self.send.cursor.index) else { return };
        let holder = self.qp.holder();
        // The statuses are those of rdma_rxe.
        let (done, failure) = match wqe.op {
            SendOp::LocalInvalidate { key } => {
                (memory.invalidate(holder, key.get()), WcStatus::LocQpOpErr)
            }
            SendOp::RegisterMr { key, access } => {
                (memory.register_fast(holder, key.get(), access), WcStatus::LocQpOpErr)
            }
            SendOp::BindMw { window, rkey, bind } => {
                (memory.bind(holder, window, rkey, &bind), WcStatus::MwBindErr)
            }
            // All others send packets.
            _ => return,
        };
        if let Err(error) = done {
            tracing::debug!(target: "rxe::req", wr_id = wqe.wr_id, %error, "cannot be carried out");
            wqe.failed = Some(failure);
            return;
        }
        let qp = &self.qp;
        self.send.carried_out(|wqe| qp.complete_send(wqe, WcStatus::Success));
    }
}
