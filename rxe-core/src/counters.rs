//! Counters under the names that Linux's driver gives them (`rxe_hw_counters.c`), those of
//! congestion as mlx5 calls them, and one for each reason a packet was dropped.

use std::fmt;
use std::ops::AddAssign;
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

            /// The counter of this name.
            pub fn by_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|counter| counter.name() == name)
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
    /// Packets that this host dropped on their way out (R18); of a device only.
    send_err,
    /// Times that a port went down; of a device only.
    link_downed,
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
    /// Dropped: a part of an unreliable message of which another part is missing.
    drop_broken_message,
    /// Dropped: an unreliable message, and no receive was posted for it.
    drop_no_receive,
    /// Dropped: an unreliable message of a wrong length, or longer than the receive.
    drop_bad_length,
    /// Dropped: the queue key of a datagram is not that of the queue pair.
    drop_bad_qkey,
    /// Dropped: to a multicast group that no queue pair here is attached to.
    drop_no_group,
    /// Dropped: an unreliable WRITE that the queue pair or the memory does not allow.
    drop_no_access,
}

/// The value of each [`Counter`] at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CounterValues([u64; Counter::ALL.len()]);

impl Default for CounterValues {
    fn default() -> Self {
        Self([0; Counter::ALL.len()])
    }
}

impl CounterValues {
    /// The value of one counter.
    pub const fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize]
    }

    pub(crate) fn set(&mut self, counter: Counter, value: u64) {
        self.0[counter as usize] = value;
    }

    /// All counters with their values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Counter, u64)> + '_ {
        Counter::ALL.iter().map(|&counter| (counter, self.get(counter)))
    }
}

impl AddAssign for CounterValues {
    fn add_assign(&mut self, other: Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, value)| *sum = sum.wrapping_add(value));
    }
}

/// One line for each counter that is not 0: name and value.
impl fmt::Display for CounterValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.iter()
            .filter(|&(_, value)| value != 0)
            .try_for_each(|(counter, value)| writeln!(f, "{} {value}", counter.name()))
    }
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

    /// The values of all, each as it is when it is read.
    pub fn values(&self) -> CounterValues {
        CounterValues(self.0.each_ref().map(|value| value.load(Ordering::Relaxed)))
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

/// The counters of a shard and of one queue pair, which count together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tally<'a> {
    pub(crate) shard: &'a Counters,
    pub(crate) qp: &'a Counters,
}

impl Tally<'_> {
    #[inline]
    pub(crate) fn add(self, counter: Counter, count: u64) {
        self.shard.add(counter, count);
        self.qp.add(counter, count);
    }

    #[inline]
    pub(crate) fn bump(self, counter: Counter) {
        self.add(counter, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_added_named_and_shown() {
        let counters = Counters::default();
        counters.bump(Counter::sent_pkts);
        counters.add(Counter::drop_bad_pkey, 3);
        let mut sum = counters.values();
        sum += counters.values();
        assert_eq!((sum.get(Counter::sent_pkts), sum.get(Counter::rcvd_pkts)), (2, 0));
        assert_eq!(sum.to_string(), "sent_pkts 2\ndrop_bad_pkey 6\n");
        for &counter in Counter::ALL {
            assert_eq!(Counter::by_name(counter.name()), Some(counter));
        }
    }

    /// All names of Linux's driver are there (`rxe_counter_descs` of `rxe_hw_counters.c`).
    #[test]
    fn the_drivers_names_are_known() {
        for name in [
            "sent_pkts",
            "rcvd_pkts",
            "duplicate_request",
            "out_of_seq_request",
            "rcvd_rnr_err",
            "send_rnr_err",
            "rcvd_seq_err",
            "ack_deferred",
            "retry_exceeded_err",
            "retry_rnr_exceeded_err",
            "completer_retry_err",
            "send_err",
            "link_downed",
            "rdma_sends",
            "rdma_recvs",
        ] {
            assert!(Counter::by_name(name).is_some(), "{name}");
        }
    }
}
