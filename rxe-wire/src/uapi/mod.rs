//! The structs that the rxe driver of Linux shares with user space, and the entry of a GID table.
//!
//! They have the layout of `rdma_user_rxe.h` (as first published, 2016) and of `struct
//! ib_uverbs_gid_entry` (RFC of 2020) on x86-64, in the byte order of the host; sizes and offsets
//! are asserted at compile time. Padding is spelt out, unions are bytes with one accessor per arm.
//! Every struct can be read from and written to bytes with zerocopy.
//!
//! Nothing here is trusted: any bytes are a valid value. Who shares such structs with another
//! process must copy each once and check counts and indices before use (rule R56).

mod av;
mod gid_entry;
mod send_wr;
mod sockaddr;
mod wqe;

pub use av::{RxeAv, RxeGid, RxeGlobalRoute};
pub use gid_entry::{IbUverbsGidEntry, UverbsGidType};
pub use send_wr::{AtomicArm, RdmaArm, RegArm, RxeSendWr, RxeSendWrUnion, UdArm};
pub use sockaddr::{AF_INET, AF_INET6, RxeSockaddr, Sockaddr, SockaddrIn, SockaddrIn6};
pub use wqe::{DmaDataTooShort, Mminfo, RxeDmaInfo, RxeRecvWqe, RxeSendWqe, RxeSge};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Asserts at compile time the size and alignment of a struct and the offset of each field.
macro_rules! assert_layout {
    ($name:ty, size $size:literal, align $align:literal $(, $field:ident at $offset:literal)*) => {
        const _: () = {
            assert!(size_of::<$name>() == $size);
            assert!(align_of::<$name>() == $align);
            $(assert!(core::mem::offset_of!($name, $field) == $offset);)*
        };
    };
}
use assert_layout;

/// The bytes of a union that begins with `arm`; those behind it are 0.
fn union_of<T: IntoBytes + Immutable, const N: usize>(arm: &T) -> [u8; N] {
    const { assert!(size_of::<T>() <= N, "the arm is longer than the union") };
    let mut union = [0; N];
    union.iter_mut().zip(arm.as_bytes()).for_each(|(to, from)| *to = *from);
    union
}

/// The arm `T` of a union.
fn arm_of<T: FromBytes + IntoBytes, const N: usize>(union: &[u8; N]) -> T {
    const { assert!(size_of::<T>() <= N, "the arm is longer than the union") };
    let mut arm = T::new_zeroed();
    arm.as_mut_bytes().iter_mut().zip(union).for_each(|(to, from)| *to = *from);
    arm
}

#[cfg(test)]
mod tests;
