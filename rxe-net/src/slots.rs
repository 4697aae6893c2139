//! Slots: who in this network namespace has which QPNs, and the post between them.
//!
//! A slot, 1 to 254, is the top byte of the QPNs of one shard. It is unique in a network namespace,
//! over all processes and addresses, because a QPN exists before its address is known. A shard
//! holds its slot by an abstract AF_UNIX datagram socket of the slot's name: such a name belongs to
//! the namespace, and is gone with the process, however that ends. There is no daemon and no file.
//!
//! The socket is also the slot's *inbox*. The kernel decides by a program which process's UDP
//! socket gets a packet (`udp/steer.rs`), and may be wrong. Whoever gets a packet for another slot
//! puts it in a *letter* to that slot. Letters are believed from the own user alone, may be
//! dropped, and are never sent on: what came by letter is for its reader.
//!
//! QP1 has the same number everywhere, so its packets come to any process of the address. A message
//! of connection management names who it is for: by a communication id, whose top byte is a slot,
//! or by a service id, for which a process has registered ([`ServiceRegistration`]), again by an
//! inbox with a name. A requester that gives up before it has heard our id names none: that is for
//! everybody. What nobody claims is for whoever got it. These messages come again after seconds
//! only, so they are not dropped where an inbox is full: they wait in the steward's *outbox*.
//!
//! One thread of a process, the *steward*, reads all its inboxes, and renews the program
//! when it is wrong: it makes a *survey* of the sockets of an address.

pub(crate) mod detour;
pub(crate) mod fork;
mod gsi;
pub(crate) mod inbox;
pub(crate) mod letter;
pub(crate) mod name;
mod outbox;
pub(crate) mod registry;
mod service;
pub(crate) mod steward;
pub(crate) mod survey;

pub use fork::after_fork_in_child;
pub use registry::NoSlotError;
pub use service::{RegisterServiceError, ServiceRegistration};
