//! A hostile peer gains nothing: it sends whatever it likes through the UDP link, and afterwards the
//! process lives, nothing but what was granted has changed, what must survive still works, and what
//! must fail has failed with its event.
//!
//! The attacker is a plain UDP socket on an address of its own, which makes packets by hand, with a
//! right iCRC unless that is what it lies about. Each test has a network namespace of its own, since
//! it counts all that comes, and sends to everybody.

#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]
#![allow(unreachable_pub, reason = "modules of one binary")]

#[path = "../common/mod.rs"]
mod common;

mod attacker;
mod floods;
mod keys;
mod messages;
mod opcodes;
mod strangers;
mod victim;
