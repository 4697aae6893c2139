//! Packet scripts: one packet in, exactly these packets out, then nothing.
//!
//! One host is real, the peer is the test. Each test shows one rule of rules.md (its number begins
//! the name) or one behaviour that follows from several of them. Packet sequence numbers in the
//! scripts count from 0; on the wire they start two before the wrap, so every script crosses it.

#![allow(unreachable_pub, clippy::unwrap_used)] // a test has no API, and may fail

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/pages.rs"]
mod pages;

mod addressing;
mod atomic_write;
mod atomics;
mod completions;
mod congestion;
mod cq;
mod errors;
mod events;
mod flush;
mod gsi;
mod hostile;
mod invalidate;
mod multicast;
mod ports;
mod read_gaps;
mod regions;
mod registration;
mod requester;
mod responder;
mod script;
mod srq;
mod states;
mod timers;
mod uc;
mod ud;
mod user_memory;
mod window;
mod windows;
mod xrc;
