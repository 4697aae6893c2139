//! Links, threads and clocks that run the rxe-core engine.
//!
//! The engine sees packets from BTH on and is told the time; all else is here:
//!
//! - [`link`] says what a link is: it carries packets to the network and back, adds and removes
//!   what is below BTH, and makes and checks the iCRC. [`udp`] does so over ordinary sockets,
//!   [`memory`] over a network within the process.
//! - [`batch`] is the buffer that packets are built in and leave from.
//! - [`faults`] and [`pcap`] go around any link: `URXE_FAULTS` and `URXE_PCAP`.
//! - [`runtime`] runs a shard with its links in the threads that call in, and in a background
//!   thread when none does.
//! - [`slots`] share the QPNs of a host, and its addresses, among processes.
//! - [`host`] tells the interfaces of this host.
//!
//! The contract: a link may lose, repeat and reorder packets, and the engine repairs it; what the
//! engine gets has a good iCRC (over IPv4 as far as a socket can tell, see [`udp::UdpLink`]).
//! Links get `now` as an argument; `runtime` reads the clock for them. Nothing waits for the
//! network while it holds a lock. Errors of the operating system end here: as a typed error of the
//! call that met them, in a counter, or in the log.
//!
//! Counterpart of `rxe_net.c` in Linux, and of the kernel's threads that run its driver.
#![deny(unsafe_code)] // allowed in udp/sys.rs and sys/ alone, which hold the system calls

pub mod batch;
pub mod faults;
mod frame;
pub mod host;
pub mod link;
pub mod memory;
pub mod packet;
pub mod pcap;
pub mod runtime;
pub mod slots;
mod sys;
pub mod udp;
