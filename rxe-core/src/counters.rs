//! Counters under the names that Linux's driver gives them, and one for each reason a packet was
//! dropped.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What the engine counts, one value a name (`rdma statistic show`).
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(usize)]
        #[allow(non_camel_case_types)]
        pub enum Counter { $($(#[$doc])* $name,)* }

        impl Counter {
            /// All counters, in order.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The name, as Linux's driver spells it.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }
        }
    };
}

counters! {
    /// Packets sent.
    sent_pkts,
    /// Packets received.
    rcvd_pkts,
    /// Requests received that had been executed before.
    duplicate_request,
    /// Requests received ahead of their turn.
    out_of_seq_request,
    /// RNR NAKs received.
    rcvd_rnr_err,
    /// RNR NAKs sent.
    send_rnr_err,
    /// PSN sequence NAKs received.
    rcvd_seq_err,
    /// Acknowledgements held back behind a READ response.
    ack_deferred,
    /// Work requests that failed since nobody answered.
    retry_exceeded_err,
    /// Work requests that failed since the receiver was never ready.
    retry_rnr_exceeded_err,
    /// Resends after the ACK timer.
    completer_retry_err,
    /// Resends after the short, RTT-based timer.
    early_resend,
    /// Packets of ours that the network reported as undeliverable.
    unreachable_hints,
    /// Packets received that a router had marked: ECN "congestion experienced", or FECN.
    np_ecn_marked_roce_packets,
    /// Congestion notification packets sent.
    np_cnp_sent,
    /// Congestion notification packets received that slowed a queue pair down.
    rp_cnp_handled,
    /// Congestion notification packets received to no effect: the queue pair does not send, or the
    /// device does not react.
    rp_cnp_ignored,
    /// RDMA messages sent.
    rdma_sends,
    /// RDMA messages received.
    rdma_recvs,
    /// Dropped: no such QP.
    drop_no_such_qp,
    /// Dropped: malformed, or an opcode that nobody defined.
    drop_malformed,
    /// Dropped: an opcode of another service than the QP's.
    drop_wrong_service,
    /// Dropped: transport version not 0.
    drop_bad_version,
    /// Dropped: addresses are not those of the QP's peer.
    drop_wrong_address,
    /// Dropped: the partition key does not match.
    drop_bad_pkey,
    /// Dropped: the QP's state does not take it.
    drop_wrong_state,
    /// Dropped: a response outside what is outstanding.
    drop_stale_response,
    /// Dropped: a duplicate that cannot be answered any more.
    drop_unknown_duplicate,
    /// Dropped: ahead of its turn, after the one NAK for the gap.
    drop_after_nak,
}

/// One value for each [`Counter`]; written by one shard, read by anyone.
#[derive(Debug)]
pub struct Counters([AtomicU64; Counter::ALL.len()]);

impl Default for Counters {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Counters {
    /// The value of one counter.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize].load(Ordering::Relaxed)
    }

    // Only the shard that owns the counters writes, under its lock: no read-modify-write needed.
    #[inline]
    pub(crate) fn add(&self, counter: Counter, count: u64) {
        let value = &self.0[counter as usize];
        value.store(value.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn bump(&self, counter: Counter) {
        self.add(counter, 1);
    }
}
