//! A send work request as user space writes it into the queue.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{arm_of, assert_layout, union_of};

/// WRITE and READ (C: `wr.rdma`).
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct RdmaArm {
    /// Address in the peer's memory.
    pub remote_addr: u64,
    /// The peer's key.
    pub rkey: u32,
    /// Padding that C leaves unnamed.
    pub padding: u32,
}

assert_layout!(RdmaArm, size 16, align 8, remote_addr at 0, rkey at 8, padding at 12);

/// Atomic operations (C: `wr.atomic`).
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct AtomicArm {
    /// Address in the peer's memory.
    pub remote_addr: u64,
    /// Operand of the comparison or the addition.
    pub compare_add: u64,
    /// What a successful comparison stores.
    pub swap: u64,
    /// The peer's key.
    pub rkey: u32,
    /// Padding that C leaves unnamed.
    pub padding: u32,
}

assert_layout!(
    AtomicArm, size 32, align 8,
    remote_addr at 0, compare_add at 8, swap at 16, rkey at 24, padding at 28
);

/// Unreliable datagrams (C: `wr.ud`).
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct UdArm {
    /// The peer's QP.
    pub remote_qpn: u32,
    /// The peer's Q_Key.
    pub remote_qkey: u32,
    /// Index in the port's P_Key table.
    pub pkey_index: u16,
    /// Padding that C leaves unnamed.
    pub padding: u16,
}

assert_layout!(
    UdArm, size 12, align 4, remote_qpn at 0, remote_qkey at 4, pkey_index at 8, padding at 10
);

/// Registration of memory by a work request, of kernel users only (C: `wr.reg`).
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct RegArm {
    /// A pointer of the kernel's; to everybody else a number.
    pub mr: u64,
    /// The new key.
    pub key: u32,
    /// Access flags (a C `int`).
    pub access: i32,
}

assert_layout!(RegArm, size 16, align 8, mr at 0, key at 8, access at 12);

/// The union of what the operations need (C: `wr`); [`RxeSendWr::opcode`] says which arm counts.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C, align(8))]
pub struct RxeSendWrUnion {
    /// The bytes of the arm, and what follows it.
    pub bytes: [u8; 32],
}

assert_layout!(RxeSendWrUnion, size 32, align 8, bytes at 0);

impl RxeSendWrUnion {
    /// A union whose arm is that of WRITE and READ; the bytes after the arm are 0.
    pub fn from_rdma(arm: RdmaArm) -> Self {
        Self { bytes: union_of(&arm) }
    }

    /// A union whose arm is that of atomic operations.
    pub fn from_atomic(arm: AtomicArm) -> Self {
        Self { bytes: union_of(&arm) }
    }

    /// A union whose arm is that of unreliable datagrams; the bytes after the arm are 0.
    pub fn from_ud(arm: UdArm) -> Self {
        Self { bytes: union_of(&arm) }
    }

    /// A union whose arm is that of registration; the bytes after the arm are 0.
    pub fn from_reg(arm: RegArm) -> Self {
        Self { bytes: union_of(&arm) }
    }

    /// The arm of WRITE and READ.
    pub fn as_rdma(&self) -> RdmaArm {
        arm_of(&self.bytes)
    }

    /// The arm of atomic operations.
    pub fn as_atomic(&self) -> AtomicArm {
        arm_of(&self.bytes)
    }

    /// The arm of unreliable datagrams.
    pub fn as_ud(&self) -> UdArm {
        arm_of(&self.bytes)
    }

    /// The arm of registration.
    pub fn as_reg(&self) -> RegArm {
        arm_of(&self.bytes)
    }
}

/// A send work request (C: `struct rxe_send_wr`).
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct RxeSendWr {
    /// The caller's number for the request.
    pub wr_id: u64,
    /// How many scatter/gather entries follow the work queue element.
    pub num_sge: u32,
    /// The operation, a number of `ibv_wr_opcode`.
    pub opcode: u32,
    /// Flags, of `ibv_send_flags`.
    pub send_flags: u32,
    /// The union `ex`: immediate data in network order, or a key in the order of the host.
    pub ex: [u8; 4],
    /// The union `wr`.
    pub wr: RxeSendWrUnion,
}

assert_layout!(
    RxeSendWr, size 56, align 8,
    wr_id at 0, num_sge at 8, opcode at 12, send_flags at 16, ex at 20, wr at 24
);

impl RxeSendWr {
    /// The immediate data (C: `ex.imm_data`).
    pub const fn imm_data(&self) -> u32 {
        u32::from_be_bytes(self.ex)
    }

    /// Sets the immediate data.
    pub const fn set_imm_data(&mut self, value: u32) {
        self.ex = value.to_be_bytes();
    }

    /// The key that the request invalidates (C: `ex.invalidate_rkey`).
    pub const fn invalidate_rkey(&self) -> u32 {
        u32::from_ne_bytes(self.ex)
    }

    /// Sets the key that the request invalidates.
    pub const fn set_invalidate_rkey(&mut self, value: u32) {
        self.ex = value.to_ne_bytes();
    }
}
