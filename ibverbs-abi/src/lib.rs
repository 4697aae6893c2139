//! libibverbs.so.1 and librdmacm.so.1 for unmodified programs: one library that is both.
//!
//! A program that was built against rdma-core loads it instead of the real ones, by
//! `LD_LIBRARY_PATH`, and finds a device for each interface of the host ([`ibverbs_api`]), which
//! needs neither kernel module nor root.
//!
//! Nothing here is for Rust programs: the interface is the symbols and structs of C, on Linux. The
//! rules of this crate, where to look, and how an object is added:
//!
//! * `types/` has the structs of the headers, under their C names, sizes and offsets checked.
//! * `exports.rs` puts each symbol into its version node; all are there from the first day. One file
//!   an object has the functions, which answer "not supported" until they are written (`missing!`).
//!   Functions that `verbs.h` calls by pointers go into the tables of `context.rs`; NULL there is a
//!   legal "not supported".
//! * `call.rs`: each function has a return type that says how it tells errors (they differ from call
//!   to call), and its body, run by `answer`, returns a `Result`. No panic gets out of it, and no
//!   thread is cancelled in it; what may sleep does so outside, in `wait_for` (`descriptor.rs`).
//! * `handles.rs`: what the program has pointers to. Calls off the data path look each pointer up,
//!   so that one that is no good is an error; posting and polling do not.
//! * What a call refuses is in the log in words: `URXE_LOG=debug`.
//!
//! The `unsafe` here is in reading and writing what the program points to. The contract with it is
//! that of the man pages: pointers that are not handles are valid for as long as the call lasts, and
//! lists are as long as it says.

mod acks;
mod ah;
mod call;
mod channel;
mod clock;
mod context;
mod cq;
mod cq_ex;
mod descriptor;
mod device;
mod dm;
mod event;
mod exports;
mod first_release;
mod fork;
mod gid;
mod handles;
mod kernel_forms;
mod log;
mod mcast;
mod memory;
mod mr;
mod mw;
mod nap;
mod opened;
mod pd;
mod poll;
mod port;
mod post;
mod private;
mod qp;
mod qp_attr;
mod qp_ex;
mod qp_of_parent;
mod rates;
mod rdmacm;
mod rsocket;
mod signals;
mod srq;
mod strings;
mod supplied;
mod sysfs;
mod td;
mod types;
mod xrcd;
