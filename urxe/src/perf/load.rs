//! What is measured: one operation, over some queue pairs, for a time.
//!
//! The client chooses it and tells the server ([`super::control`]), so it is serialised, and the
//! server checks what it gets ([`Load::check`]).

use std::time::Duration;

use ibverbs_api::{Mtu, QpType};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The largest message.
pub(super) const MAX_SIZE: u32 = 8 << 20;
/// The most queue pairs.
pub(super) const MAX_PAIRS: u32 = 4096;
/// The most threads at an end.
pub(super) const MAX_THREADS: u32 = 64;
/// The most requests under way for a queue pair.
pub(super) const MAX_DEPTH: u32 = 16_384;
/// Inline data at most: what a device takes.
pub(super) const MAX_INLINE: u32 = 1024;
/// Bytes of all messages of an end's queue pairs at most: its memory is twice that.
const MAX_MEMORY: u64 = 1 << 31;
/// The longest that one measurement may take.
pub(super) const MAX_SECONDS: f64 = 3600.0;

/// What each message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(super) enum Operation {
    /// SEND.
    Send,
    /// WRITE.
    Write,
    /// WRITE with immediate data, which completes at the other end.
    WriteImm,
    /// READ.
    Read,
    /// Fetch-and-add.
    FetchAdd,
    /// Compare-and-swap.
    CompareSwap,
}

impl Operation {
    /// Its name in tables.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Send => "SEND",
            Self::Write => "WRITE",
            Self::WriteImm => "WRITE_IMM",
            Self::Read => "READ",
            Self::FetchAdd => "FETCH_ADD",
            Self::CompareSwap => "CMP_SWAP",
        }
    }

    /// Whether it takes a receive of the other end.
    pub(super) const fn takes_receive(self) -> bool {
        matches!(self, Self::Send | Self::WriteImm)
    }

    /// Whether it is one of eight bytes.
    pub(super) const fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CompareSwap)
    }

    /// Whether it brings data to the end that posts it.
    pub(super) const fn fetches(self) -> bool {
        matches!(self, Self::Read | Self::FetchAdd | Self::CompareSwap)
    }
}

/// What is asked of the messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    /// How many there are in a second, many being under way.
    Bandwidth,
    /// How long one takes, alone: SEND and WRITE there and back, halved; READ and atomics whole.
    Latency,
}

/// The service that carries them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "UPPER")]
pub(super) enum Service {
    /// A reliable connection.
    Rc,
    /// An unreliable connection.
    Uc,
    /// Datagrams.
    Ud,
}

impl Service {
    /// Its name, as `-c` takes it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
        }
    }

    /// The queue pairs that it has.
    pub(super) const fn qp_type(self) -> QpType {
        match self {
            Self::Rc => QpType::Rc,
            Self::Uc => QpType::Uc,
            Self::Ud => QpType::Ud,
        }
    }

    /// Whether nothing is lost.
    pub(super) const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc)
    }

    /// Bytes of a receive before the data: a datagram comes with its network header.
    pub(super) const fn head(self) -> usize {
        match self {
            Self::Ud => 40,
            Self::Rc | Self::Uc => 0,
        }
    }

    fn has(self, operation: Operation) -> bool {
        match self {
            Self::Rc => true,
            Self::Uc => !operation.fetches(),
            Self::Ud => operation == Operation::Send,
        }
    }
}

/// How long it goes on.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Amount {
    /// So many messages of each queue pair.
    Messages(u64),
    /// So many seconds.
    Seconds(f64),
}

/// One measurement.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Load {
    pub kind: Kind,
    pub operation: Operation,
    pub service: Service,
    /// Bytes of a message.
    pub size: u32,
    pub amount: Amount,
    /// Queue pairs.
    pub pairs: u32,
    /// Threads of an end, over which the queue pairs are spread.
    pub threads: u32,
    /// Send requests under way for each queue pair.
    pub depth: u32,
    /// Receives posted for each queue pair.
    pub receives: u32,
    /// Requests posted at a time; 1: by `ibv_post_send` of one.
    pub list: u32,
    /// One request in so many asks for a completion.
    pub moderation: u32,
    /// Messages up to so many bytes go inline.
    pub inline: u32,
    /// Bytes of the path MTU; the largest of the client's port when `None`.
    pub mtu: Option<u32>,
    /// READs and atomics under way.
    pub outstanding: u8,
    /// Both ends send.
    pub is_both_ways: bool,
    /// Ends sleep on events instead of polling.
    pub has_events: bool,
    /// The end that is written to or read from has no thread that polls: the device serves it.
    pub is_peer_idle: bool,
    /// Seconds that all is left alone afterwards, while it is counted what wakes up.
    pub idle: f64,
}

/// What cannot be measured.
#[derive(Clone, PartialEq, Debug, Error)]
pub(super) enum LoadError {
    #[error("{service} has no {operation}: {hint}")]
    Service { service: &'static str, operation: &'static str, hint: &'static str },
    #[error("{what}: {value} asked for, {least} to {most} are possible")]
    Range { what: &'static str, value: f64, least: f64, most: f64 },
    #[error(
        "a latency is that of one message on one queue pair: leave out {what}, or measure bandwidth"
    )]
    OneAtATime { what: &'static str },
    #[error("{threads} threads for {pairs} queue pairs: each thread needs one, raise -q")]
    IdleThreads { threads: u32, pairs: u32 },
    #[error(
        "{pairs} queue pairs with messages of {size} bytes need {} MiB at each end, {} are allowed: \
         lower -q or -s", (2 * *pairs as u64 * *size as u64) >> 20, MAX_MEMORY >> 19
    )]
    Memory { pairs: u32, size: u32 },
    #[error("-l {list} is more than -t {depth}: a list must fit in the send queue")]
    List { list: u32, depth: u32 },
    #[error("an atomic has 8 bytes, not {size}: leave out -s")]
    AtomicSize { size: u32 },
}

impl Load {
    /// The path MTU, where one is said.
    pub(super) fn path_mtu(&self) -> Option<Mtu> {
        self.mtu.and_then(|bytes| Mtu::from_bytes(bytes as usize))
    }

    /// Whether the other end does something that this one must wait for.
    pub(super) fn is_active(&self, is_client: bool) -> bool {
        is_client || self.is_both_ways
    }

    /// How long an end waits for the other to finish.
    pub(super) fn patience(&self) -> Duration {
        let seconds = match self.amount {
            Amount::Seconds(seconds) => seconds,
            Amount::Messages(_) => MAX_SECONDS,
        };
        Duration::from_secs_f64(seconds.clamp(0.0, MAX_SECONDS) + 60.0)
    }

    /// Checks that it can be measured; of whatever a peer says too.
    pub(super) fn check(&self) -> Result<(), LoadError> {
        let (service, operation) = (self.service, self.operation);
        if !service.has(operation) {
            let hint = match service {
                Service::Ud => "datagrams are only sent (-c RC or UC)",
                Service::Rc | Service::Uc => "nothing answers there (-c RC)",
            };
            let (service, operation) = (service.name(), operation.name());
            return Err(LoadError::Service { service, operation, hint });
        }
        self.check_ranges()?;
        if operation.is_atomic() && self.size != 8 {
            return Err(LoadError::AtomicSize { size: self.size });
        }
        if self.list > self.depth {
            return Err(LoadError::List { list: self.list, depth: self.depth });
        }
        let (threads, pairs, size) = (self.threads, self.pairs, self.size);
        if threads > pairs {
            return Err(LoadError::IdleThreads { threads, pairs });
        }
        if u64::from(pairs) * u64::from(size) > MAX_MEMORY {
            return Err(LoadError::Memory { pairs, size });
        }
        if self.kind == Kind::Latency {
            let alone = [
                (pairs > 1, "-q"),
                (threads > 1, "--threads"),
                (self.list > 1, "-l"),
                (self.is_both_ways, "-b"),
            ];
            if let Some(&(_, what)) = alone.iter().find(|(given, _)| *given) {
                return Err(LoadError::OneAtATime { what });
            }
        }
        Ok(())
    }

    fn check_ranges(&self) -> Result<(), LoadError> {
        let (seconds, messages) = match self.amount {
            Amount::Seconds(seconds) => (seconds, 1),
            Amount::Messages(messages) => (1.0, messages),
        };
        let whole = f64::from;
        let mtu = self.mtu.map_or(1, |_| u32::from(self.path_mtu().is_some()));
        for (what, value, least, most) in [
            ("bytes of a message (-s)", whole(self.size), 1.0, whole(MAX_SIZE)),
            ("seconds (-D)", seconds, 0.01, MAX_SECONDS),
            ("seconds of idling (--idle)", self.idle, 0.0, MAX_SECONDS),
            ("messages (-n)", messages as f64, 1.0, 1e12),
            ("queue pairs (-q)", whole(self.pairs), 1.0, whole(MAX_PAIRS)),
            ("threads (--threads)", whole(self.threads), 1.0, whole(MAX_THREADS)),
            ("requests under way (-t)", whole(self.depth), 1.0, whole(MAX_DEPTH)),
            ("receives (-r)", whole(self.receives), 1.0, whole(MAX_DEPTH)),
            ("requests of a list (-l)", whole(self.list), 1.0, whole(MAX_DEPTH)),
            ("requests a completion (-Q)", whole(self.moderation), 1.0, whole(MAX_DEPTH)),
            ("bytes of inline data (-I)", whole(self.inline), 0.0, whole(MAX_INLINE)),
            ("READs under way (-o)", self.outstanding.into(), 1.0, 128.0),
            ("path MTU (-m), one of 256, 512, 1024, 2048 and 4096", whole(mtu), 1.0, 1.0),
        ] {
            if !(least..=most).contains(&value) {
                return Err(LoadError::Range { what, value, least, most });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A small load that is right.
    pub(in super::super) fn small(kind: Kind, operation: Operation, service: Service) -> Load {
        Load {
            kind,
            operation,
            service,
            size: 8,
            amount: Amount::Messages(200),
            pairs: 1,
            threads: 1,
            depth: 16,
            receives: 64,
            list: 1,
            moderation: 4,
            inline: 0,
            mtu: None,
            outstanding: 16,
            is_both_ways: false,
            has_events: false,
            is_peer_idle: false,
            idle: 0.0,
        }
    }

    #[test]
    fn what_a_peer_asks_for_is_bounded() {
        let good = small(Kind::Bandwidth, Operation::Send, Service::Rc);
        assert_eq!(good.check(), Ok(()));
        let bad: [fn(&mut Load); 15] = [
            |l| l.size = 0,
            |l| l.size = MAX_SIZE + 1,
            |l| l.amount = Amount::Seconds(f64::NAN),
            |l| l.amount = Amount::Seconds(1e9),
            |l| l.amount = Amount::Messages(0),
            |l| l.pairs = 0,
            |l| l.threads = 2,
            |l| l.list = 17,
            |l| l.mtu = Some(1000),
            |l| (l.pairs, l.size) = (MAX_PAIRS, MAX_SIZE),
            |l| l.operation = Operation::FetchAdd,
            |l| (l.operation, l.size) = (Operation::CompareSwap, 16),
            |l| l.service = Service::Ud,
            |l| (l.kind, l.pairs) = (Kind::Latency, 2),
            |l| l.idle = -1.0,
        ];
        for (index, change) in bad.iter().enumerate() {
            let mut load = good.clone();
            change(&mut load);
            // Two of these are right by themselves: eight bytes for an atomic, SEND over UD.
            let fine = matches!(index, 10 | 12);
            assert_eq!(load.check().is_ok(), fine, "{index}: {load:?}");
        }
    }

    #[test]
    fn services_have_what_they_have() {
        let can = |service, operation| small(Kind::Latency, operation, service).check().is_ok();
        assert!(can(Service::Uc, Operation::WriteImm) && !can(Service::Uc, Operation::Read));
        assert!(can(Service::Ud, Operation::Send) && !can(Service::Ud, Operation::Write));
    }

    #[test]
    fn a_load_comes_back_from_its_text() {
        let load = small(Kind::Latency, Operation::WriteImm, Service::Uc);
        let text = serde_json::to_string(&load).expect("text");
        assert_eq!(serde_json::from_str::<Load>(&text).expect("a load"), load);
    }
}
