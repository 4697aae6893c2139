//! The system calls of datagram sockets: the only `unsafe` code of this crate.
//!
//! Everything here is a thin, checked cover of one call. Addresses and control messages are built
//! and read as bytes in safe code; `unsafe` is left for the calls and the memory they fill.
#![allow(unsafe_code)]

use std::io;
use std::mem::offset_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

/// Messages that one call of [`send_messages`] takes at most.
pub(crate) const MAX_SEND: usize = 32;

/// Bytes of the address structures that IPv4 and IPv6 use (`struct sockaddr_in6`: 28).
const ADDRESS_LEN: usize = 28;
/// Bytes of `struct cmsghdr`: the length as a `size_t`, then two ints.
const CONTROL_HEADER: usize = size_of::<usize>() + 8;
/// Bytes that data and next header of a control message are aligned to (`CMSG_ALIGN`).
const CONTROL_ALIGN: usize = size_of::<usize>();

/// A socket address as the kernel reads it: `struct sockaddr_in`, `struct sockaddr_in6` or, of a
/// packet socket, `struct sockaddr_ll`.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub(crate) struct RawAddress {
    bytes: [u8; 32],
    len: u32,
}

impl RawAddress {
    /// No address, for places not used.
    pub(crate) const EMPTY: Self = Self { bytes: [0; 32], len: 0 };

    /// The address of `to`, with `flow_label` when it is IPv6.
    pub(crate) fn new(to: SocketAddr, flow_label: u32) -> Self {
        let mut bytes = [0; 32];
        bytes[2..4].copy_from_slice(&to.port().to_be_bytes());
        let (family, len) = match to {
            SocketAddr::V4(v4) => {
                bytes[4..8].copy_from_slice(&v4.ip().octets());
                (libc::AF_INET, 16)
            }
            SocketAddr::V6(v6) => {
                bytes[4..8].copy_from_slice(&flow_label.to_be_bytes());
                bytes[8..24].copy_from_slice(&v6.ip().octets());
                bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
                (libc::AF_INET6, ADDRESS_LEN as u32)
            }
        };
        bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
        Self { bytes, len }
    }

    /// The interface that a packet socket sends frames by, which name their receivers themselves.
    pub(crate) fn interface(ifindex: u32) -> Self {
        let mut bytes = [0; 32];
        bytes[..2].copy_from_slice(&(libc::AF_PACKET as u16).to_ne_bytes());
        // The EtherType is that of the frame.
        bytes[2..4].copy_from_slice(&(libc::ETH_P_ALL as u16).to_be_bytes());
        bytes[4..8].copy_from_slice(&ifindex.to_ne_bytes());
        Self { bytes, len: 20 }
    }

    fn parse(bytes: &[u8]) -> Option<SocketAddr> {
        let family = u16::from_ne_bytes(*bytes.first_chunk()?);
        let port = u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?);
        match i32::from(family) {
            libc::AF_INET => {
                let ip: [u8; 4] = bytes.get(4..8)?.try_into().ok()?;
                Some(SocketAddr::new(Ipv4Addr::from(ip).into(), port))
            }
            libc::AF_INET6 => {
                let ip: [u8; 16] = bytes.get(8..24)?.try_into().ok()?;
                let scope = u32::from_ne_bytes(bytes.get(24..28)?.try_into().ok()?);
                Some(SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, scope).into())
            }
            _ => None,
        }
    }
}

/// Makes a datagram socket of the family of `ip`, non-blocking and closed on exec.
pub(crate) fn udp_socket(ip: IpAddr) -> io::Result<OwnedFd> {
    let family = if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: `socket` takes no pointers.
    let fd = check(unsafe { libc::socket(family, kind, 0) })?;
    // SAFETY: the call succeeded, so `fd` is open, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Binds a socket to an address.
pub(crate) fn bind(fd: BorrowedFd<'_>, to: SocketAddr) -> io::Result<()> {
    let address = RawAddress::new(to, 0);
    // SAFETY: the pointer is to `address.len` initialised bytes that live through the call.
    check(unsafe { libc::bind(fd.as_raw_fd(), address.bytes.as_ptr().cast(), address.len) })?;
    Ok(())
}

/// The address that a socket is bound to.
pub(crate) fn local_address(fd: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    let mut bytes = [0_u8; 32];
    let mut len = bytes.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `bytes`, and the length to `len`.
    check(unsafe { libc::getsockname(fd.as_raw_fd(), bytes.as_mut_ptr().cast(), &raw mut len) })?;
    RawAddress::parse(&bytes).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// Sets a socket option that is an int.
pub(crate) fn set_int(fd: BorrowedFd<'_>, level: i32, name: i32, value: i32) -> io::Result<()> {
    let value: libc::c_int = value;
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes, the size of `value`, during the call.
    let result =
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), len) };
    check(result)?;
    Ok(())
}

/// Sets a socket option that is a structure, given as its bytes.
pub(crate) fn set_bytes(fd: BorrowedFd<'_>, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
    let len = libc::socklen_t::try_from(value.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the kernel reads `len` bytes, all of `value`, during the call.
    let result =
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, value.as_ptr().cast(), len) };
    check(result)?;
    Ok(())
}

/// Reads a socket option that is an int.
pub(crate) fn get_int(fd: BorrowedFd<'_>, level: i32, name: i32) -> io::Result<i32> {
    let mut value: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, the size of `value`, during the call.
    let result = unsafe {
        libc::getsockopt(fd.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut len)
    };
    check(result)?;
    Ok(value)
}

/// Gives the reuse-port group of a socket a classic BPF program that picks the receiver.
pub(crate) fn attach_reuseport_program(
    fd: BorrowedFd<'_>,
    program: &[libc::sock_filter],
) -> io::Result<()> {
    attach_program(fd, libc::SO_ATTACH_REUSEPORT_CBPF, program)
}

/// Makes a socket receive only what a classic BPF program accepts.
pub(crate) fn attach_filter(fd: BorrowedFd<'_>, program: &[libc::sock_filter]) -> io::Result<()> {
    attach_program(fd, libc::SO_ATTACH_FILTER, program)
}

/// Makes a socket drop whatever is sent to it; its error queue works on.
pub(crate) fn drop_all_input(fd: BorrowedFd<'_>) -> io::Result<()> {
    // Accept the first 0 bytes.
    let code = (libc::BPF_RET | libc::BPF_K) as u16;
    let program = [libc::sock_filter { code, jt: 0, jf: 0, k: 0 }];
    attach_program(fd, libc::SO_ATTACH_FILTER, &program)
}

/// `struct sock_fprog` with its padding by name: the kernel is given all of it, and memcheck looks at
/// all of it.
#[repr(C)]
struct SockFprog {
    len: libc::c_ushort,
    unused: [libc::c_ushort; 3],
    filter: *const libc::sock_filter,
}

const _: () = assert!(size_of::<SockFprog>() == size_of::<libc::sock_fprog>());
const _: () = assert!(offset_of!(SockFprog, filter) == offset_of!(libc::sock_fprog, filter));

fn attach_program(
    fd: BorrowedFd<'_>,
    option: i32,
    program: &[libc::sock_filter],
) -> io::Result<()> {
    let len = libc::c_ushort::try_from(program.len())
        .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let header = SockFprog { len, unused: [0; 3], filter: program.as_ptr() };
    // SAFETY: the kernel reads `header` and the `len` instructions it points to during the call,
    // and writes to neither.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw const header).cast(),
            size_of::<SockFprog>() as libc::socklen_t,
        )
    };
    check(result)?;
    Ok(())
}

/// A datagram to send, or several that the kernel cuts apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutMessage<'a> {
    /// Where to.
    pub(crate) to: RawAddress,
    /// The datagram, or the datagrams one after another.
    pub(crate) bytes: &'a [u8],
    /// Size of each datagram but the last (`UDP_SEGMENT`); 0 when there is but one.
    pub(crate) segment: u16,
}

impl OutMessage<'_> {
    /// No message, for places not used.
    pub(crate) const EMPTY: Self = Self { to: RawAddress::EMPTY, bytes: &[], segment: 0 };
}

/// The control message that carries the segment size.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct SegmentControl([u8; CONTROL_HEADER + 8]);

impl SegmentControl {
    fn new(segment: u16) -> Self {
        let mut bytes = [0; CONTROL_HEADER + 8];
        let word = size_of::<usize>();
        bytes[..word].copy_from_slice(&(CONTROL_HEADER + 2).to_ne_bytes());
        bytes[word..word + 4].copy_from_slice(&libc::SOL_UDP.to_ne_bytes());
        bytes[word + 4..word + 8].copy_from_slice(&libc::UDP_SEGMENT.to_ne_bytes());
        bytes[CONTROL_HEADER..CONTROL_HEADER + 2].copy_from_slice(&segment.to_ne_bytes());
        Self(bytes)
    }

    /// `CMSG_SPACE` of a 16-bit value.
    const fn space() -> usize {
        (CONTROL_HEADER + 2).next_multiple_of(CONTROL_ALIGN)
    }
}

/// Sends the first messages of `messages`, as many as one call takes; returns how many it sent.
///
/// # Errors
///
/// That of the first message, when it was not sent. An error of a later one shows in the next
/// call.
pub(crate) fn send_messages(fd: BorrowedFd<'_>, messages: &[OutMessage<'_>]) -> io::Result<usize> {
    let messages = &messages[..messages.len().min(MAX_SEND)];
    if let [message] = messages {
        return send_message(fd, message).map(|()| 1);
    }
    // SAFETY: all of these are plain data for which zero is a valid value.
    let (mut headers, mut vectors): ([libc::mmsghdr; MAX_SEND], [libc::iovec; MAX_SEND]) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    let mut controls = [SegmentControl([0; CONTROL_HEADER + 8]); MAX_SEND];
    for (index, message) in messages.iter().enumerate() {
        controls[index] = SegmentControl::new(message.segment);
        let (header, vector) = (&mut headers[index].msg_hdr, &mut vectors[index]);
        fill_header(header, vector, message, &mut controls[index]);
    }
    // SAFETY: each of the first `messages.len()` headers points to the address and bytes of its
    // message, and to its own vector and control, all of which outlive the call; the kernel
    // reads through these pointers only, and writes to `msg_len` and `msg_flags` of `headers`.
    let sent = unsafe {
        libc::syscall(libc::SYS_sendmmsg, fd.as_raw_fd(), headers.as_mut_ptr(), messages.len(), 0)
    };
    count(sent)
}

fn send_message(fd: BorrowedFd<'_>, message: &OutMessage<'_>) -> io::Result<()> {
    // SAFETY: both are plain data for which zero is a valid value.
    let (mut header, mut vector): (libc::msghdr, libc::iovec) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    let mut control = SegmentControl::new(message.segment);
    fill_header(&mut header, &mut vector, message, &mut control);
    // SAFETY: `header` points to the address and bytes of `message`, to `vector` and `control`,
    // all of which outlive the call; the kernel only reads through these pointers.
    let sent = unsafe { libc::syscall(libc::SYS_sendmsg, fd.as_raw_fd(), &raw const header, 0) };
    count(sent).map(drop)
}

/// Points `header` at the parts of `message`, for sending: nothing is written through it.
fn fill_header(
    header: &mut libc::msghdr,
    vector: &mut libc::iovec,
    message: &OutMessage<'_>,
    control: &mut SegmentControl,
) {
    vector.iov_base = message.bytes.as_ptr().cast_mut().cast();
    vector.iov_len = message.bytes.len();
    header.msg_name = message.to.bytes.as_ptr().cast_mut().cast();
    header.msg_namelen = message.to.len;
    header.msg_iov = vector;
    header.msg_iovlen = 1;
    if message.segment != 0 {
        header.msg_control = control.0.as_mut_ptr().cast();
        header.msg_controllen = SegmentControl::space() as _;
    }
}

/// One message of a [`RecvRing`].
#[derive(Debug)]
pub(crate) struct InMessage<'a> {
    /// Where from; of a message of the error queue, where it was sent to.
    pub(crate) from: Option<SocketAddr>,
    /// The control messages, for [`controls`].
    pub(crate) control: &'a [u8],
    /// What came.
    pub(crate) bytes: &'a mut [u8],
    /// Whether it was longer than the buffer.
    pub(crate) truncated: bool,
}

/// Bytes of a buffer of a [`RecvRing`]: more than the largest datagram or coalesced buffer, also as a
/// whole frame, which has a virtio header, an Ethernet header and two tags in front of 65,535 bytes
/// of IPv4, or of IPv6 behind its header.
pub(crate) const BUFFER_LEN: usize = 65_536 + 128;

/// Where the kernel puts one message.
#[repr(C, align(64))]
struct Slot {
    address: [u8; 32],
    control: [u8; 224],
    bytes: [u8; BUFFER_LEN],
}

/// Buffers to receive many messages with one call, made once and used again and again.
pub(crate) struct RecvRing {
    /// Made by `Box::into_raw`, owned; the headers point into it, so no reference to it is kept.
    slots: NonNull<[Slot]>,
    headers: Box<[libc::mmsghdr]>,
    /// The headers point to these.
    _vectors: Vec<libc::iovec>,
    /// How many messages the last call filled.
    filled: usize,
    /// How many messages the next call asks for: at least one, at most as many as there are
    /// headers.
    wanted: usize,
    /// How many headers the last call may have written to.
    dirty: usize,
}

// SAFETY: the ring owns all that its pointers point to, and nothing in it knows its thread.
unsafe impl Send for RecvRing {}

impl std::fmt::Debug for RecvRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecvRing")
            .field("slots", &self.slots.len())
            .field("filled", &self.filled)
            .finish()
    }
}

impl RecvRing {
    /// Makes a ring for `count` messages a call. Memory never used is never touched.
    pub(crate) fn new(count: usize) -> Self {
        // SAFETY: a slot is made of bytes, for which zero is a valid value.
        let slots = unsafe { Box::<[Slot]>::new_zeroed_slice(count).assume_init() };
        let slots = NonNull::from(Box::leak(slots));
        let mut vectors = vec![libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; count];
        // SAFETY: mmsghdr is plain data for which zero is a valid value.
        let mut headers = unsafe { Box::<[libc::mmsghdr]>::new_zeroed_slice(count).assume_init() };
        let first_vector = vectors.as_mut_ptr();
        for (index, header) in headers.iter_mut().enumerate() {
            let slot = slots.cast::<Slot>().as_ptr().wrapping_add(index);
            let vector = first_vector.wrapping_add(index);
            // SAFETY: `index` is below `count`, so both pointers are to live elements; only the
            // addresses of the slot's fields are taken.
            unsafe {
                (*vector).iov_base = (&raw mut (*slot).bytes).cast();
                (*vector).iov_len = BUFFER_LEN;
                header.msg_hdr.msg_name = (&raw mut (*slot).address).cast();
                header.msg_hdr.msg_control = (&raw mut (*slot).control).cast();
            }
            header.msg_hdr.msg_iov = vector;
            header.msg_hdr.msg_iovlen = 1;
        }
        Self { slots, headers, _vectors: vectors, filled: 0, wanted: count, dirty: count }
    }

    /// Receives what waits, without blocking; returns how many messages it got.
    ///
    /// It asks for as many messages as seem to wait: twice as many as the call before got, if that
    /// got all that it asked for, and half as many if it got no more than half. Where one message
    /// at a time comes, to look for a second costs a third of what it takes to receive the first.
    ///
    /// `flags` may hold `MSG_ERRQUEUE`. The messages of the call before are overwritten.
    ///
    /// # Errors
    ///
    /// `WouldBlock` when nothing waits; otherwise that of the call.
    pub(crate) fn receive(&mut self, fd: BorrowedFd<'_>, flags: i32) -> io::Result<usize> {
        for header in &mut self.headers[..self.dirty] {
            header.msg_hdr.msg_namelen = 32;
            header.msg_hdr.msg_controllen = 224;
            header.msg_hdr.msg_flags = 0;
        }
        (self.filled, self.dirty) = (0, self.headers.len().min(1));
        let received = match self.wanted {
            1 => self.receive_one(fd, flags),
            wanted => self.receive_many(fd, flags, wanted),
        };
        self.plan(*received.as_ref().unwrap_or(&0));
        let count = received?;
        (self.filled, self.dirty) = (count, self.dirty.max(count));
        Ok(count)
    }

    /// Receives up to `wanted` messages, which is no more than there are headers.
    fn receive_many(&mut self, fd: BorrowedFd<'_>, flags: i32, wanted: usize) -> io::Result<usize> {
        // SAFETY: each header points to a vector, an address and a control buffer of the lengths
        // that it states, which live in `self`, exclusively borrowed, as do the buffers.
        let received = unsafe {
            libc::syscall(
                libc::SYS_recvmmsg,
                fd.as_raw_fd(),
                self.headers.as_mut_ptr(),
                wanted.min(self.headers.len()),
                libc::MSG_DONTWAIT | flags,
                std::ptr::null_mut::<libc::timespec>(),
            )
        };
        count(received)
    }

    /// Receives one message, by a call that takes less time for it.
    fn receive_one(&mut self, fd: BorrowedFd<'_>, flags: i32) -> io::Result<usize> {
        let Some(header) = self.headers.first_mut() else { return Ok(0) };
        // SAFETY: the header points to a vector, an address and a control buffer of the lengths
        // that it states, which live in `self`, exclusively borrowed, as does the buffer.
        let received = unsafe {
            libc::syscall(
                libc::SYS_recvmsg,
                fd.as_raw_fd(),
                &raw mut header.msg_hdr,
                libc::MSG_DONTWAIT | flags,
            )
        };
        // Fits: it is no longer than the buffer.
        header.msg_len = count(received)? as u32;
        Ok(1)
    }

    /// Decides how many messages the next call asks for, after one that got `count`.
    fn plan(&mut self, count: usize) {
        if count >= self.wanted {
            self.wanted = (2 * self.wanted).min(self.headers.len());
        } else if count <= self.wanted / 2 {
            self.wanted = (self.wanted / 2).max(1);
        }
    }

    /// Message `index` of the last call; `None` when it did not fill so many.
    pub(crate) fn message(&mut self, index: usize) -> Option<InMessage<'_>> {
        let header = self.headers[..self.filled].get(index)?;
        let len = (header.msg_len as usize).min(BUFFER_LEN);
        let slot = self.slots.cast::<Slot>().as_ptr().wrapping_add(index);
        // SAFETY: `index` is below the number of slots, which are initialised, owned by `self`
        // and borrowed exclusively for the life of the message; the kernel writes to them only
        // in `receive`.
        let slot = unsafe { &mut *slot };
        #[allow(clippy::unnecessary_cast, reason = "a u32 in other C libraries than glibc")]
        let control_len = (header.msg_hdr.msg_controllen as usize).min(slot.control.len());
        Some(InMessage {
            from: RawAddress::parse(&slot.address[..(header.msg_hdr.msg_namelen as usize).min(32)]),
            control: &slot.control[..control_len],
            bytes: &mut slot.bytes[..len],
            truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
        })
    }
}

impl Drop for RecvRing {
    fn drop(&mut self) {
        // SAFETY: the pointer came from a leaked box, is not freed elsewhere, and the headers
        // that point into it are not used again.
        drop(unsafe { Box::from_raw(self.slots.as_ptr()) });
    }
}

/// A control message: its level, its type and its data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Control<'a> {
    pub(crate) level: i32,
    pub(crate) kind: i32,
    pub(crate) data: &'a [u8],
}

impl Control<'_> {
    /// The data as an int, or as a byte where the kernel sends one (`IP_TOS`).
    pub(crate) fn int(&self) -> Option<i32> {
        match self.data {
            [byte] => Some(i32::from(*byte)),
            data => data.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes)),
        }
    }
}

/// The control messages in `bytes`, as the kernel laid them out.
pub(crate) fn controls(bytes: &[u8]) -> impl Iterator<Item = Control<'_>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let word = size_of::<usize>();
        let len = usize::from_ne_bytes(rest.get(..word)?.try_into().ok()?);
        let level = i32::from_ne_bytes(rest.get(word..word + 4)?.try_into().ok()?);
        let kind = i32::from_ne_bytes(rest.get(word + 4..word + 8)?.try_into().ok()?);
        let data = rest.get(CONTROL_HEADER..len)?;
        rest = rest.get(len.next_multiple_of(CONTROL_ALIGN)..).unwrap_or_default();
        Some(Control { level, kind, data })
    })
}

/// What a system call has counted, that is made without the C library's function of its name.
///
/// Those that wait are cancellation points (pthreads(7)): a thread of a C program that is to be
/// cancelled would end in the midst of them, with the shard's lock in its hands.
fn count(result: libc::c_long) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn pair(ip: &str) -> (OwnedFd, OwnedFd, SocketAddr, SocketAddr) {
        let ip = ip.parse().expect("an address");
        let (one, two) = (udp_socket(ip).expect("socket"), udp_socket(ip).expect("socket"));
        for fd in [&one, &two] {
            bind(fd.as_fd(), SocketAddr::new(ip, 0)).expect("bind");
        }
        let names = (local_address(one.as_fd()), local_address(two.as_fd()));
        (one, two, names.0.expect("name"), names.1.expect("name"))
    }

    #[test]
    fn messages_arrive_with_sender_and_segment_size() {
        for ip in ["127.0.0.1", "::1"] {
            let (one, two, from, to) = pair(ip);
            set_int(two.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1).expect("UDP_GRO");
            let to = RawAddress::new(to, 0);
            let messages = [
                OutMessage { to, bytes: b"one", segment: 0 },
                OutMessage { to, bytes: b"abcabcab", segment: 3 },
            ];
            assert_eq!(send_messages(one.as_fd(), &messages).expect("send"), 2);
            assert_eq!(send_messages(one.as_fd(), &messages[..1]).expect("send"), 1);
            let mut ring = RecvRing::new(4);
            assert_eq!(ring.receive(two.as_fd(), 0).expect("receive"), 3);
            let expected: [(&[u8], Option<i32>); 3] =
                [(b"one", None), (b"abcabcab", Some(3)), (b"one", None)];
            for (index, (bytes, segment)) in expected.into_iter().enumerate() {
                let message = ring.message(index).expect("a message");
                assert_eq!(message.bytes, bytes);
                assert_eq!(message.from, Some(from));
                assert!(!message.truncated);
                let gro = controls(message.control)
                    .find(|control| (control.level, control.kind) == (17, libc::UDP_GRO))
                    .and_then(|control| control.int());
                assert_eq!(gro, segment);
            }
            assert!(ring.message(3).is_none());
            let empty = ring.receive(two.as_fd(), 0).expect_err("nothing waits");
            assert_eq!(empty.kind(), io::ErrorKind::WouldBlock);
            assert!(ring.message(0).is_none());
        }
    }

    #[test]
    fn a_ring_asks_for_as_many_messages_as_seem_to_wait() {
        let (one, two, _, to) = pair("127.0.0.1");
        let message = OutMessage { to: RawAddress::new(to, 0), bytes: b"one", segment: 0 };
        let send = |count| {
            let sent = send_messages(one.as_fd(), &vec![message; count]).expect("send");
            assert_eq!(sent, count);
        };
        let mut ring = RecvRing::new(4);
        let mut counts = Vec::new();
        for count in [0, 0, 1, 0, 7] {
            send(count);
            let mut left = count;
            loop {
                let received = ring.receive(two.as_fd(), 0).unwrap_or(0);
                for index in 0..received {
                    let message = ring.message(index).expect("a message");
                    assert_eq!((&*message.bytes, message.from.is_some()), (&b"one"[..], true));
                }
                counts.push(received);
                left -= received;
                if left == 0 {
                    break;
                }
            }
        }
        // 4 and 2 in vain; one, where one is asked for, then two in vain; all the others.
        assert_eq!(counts, [0, 0, 1, 0, 1, 2, 4]);
    }

    #[test]
    fn control_messages_that_are_cut_or_lie_about_their_length_end_the_list() {
        let mut bytes = SegmentControl::new(77).0;
        let found: Vec<_> = controls(&bytes).collect();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].level, found[0].kind), (libc::SOL_UDP, libc::UDP_SEGMENT));
        assert_eq!(found[0].data, 77_u16.to_ne_bytes());
        assert_eq!(controls(&bytes[..CONTROL_HEADER + 1]).count(), 0);
        for len in [0_usize, 3, usize::MAX, 1000] {
            bytes[..size_of::<usize>()].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(controls(&bytes).count(), 0, "length {len}");
        }
    }

    #[test]
    fn a_socket_can_drop_its_input() {
        let (one, two, _, to) = pair("127.0.0.1");
        drop_all_input(two.as_fd()).expect("attach");
        let message = OutMessage { to: RawAddress::new(to, 0), bytes: b"junk", segment: 0 };
        send_messages(one.as_fd(), &[message]).expect("send");
        let nothing = RecvRing::new(1).receive(two.as_fd(), 0).expect_err("dropped");
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn options_are_read_back_and_errors_told() {
        let fd = udp_socket("127.0.0.1".parse().expect("ip")).expect("socket");
        set_int(fd.as_fd(), libc::SOL_IP, libc::IP_TTL, 9).expect("set");
        assert_eq!(get_int(fd.as_fd(), libc::SOL_IP, libc::IP_TTL).expect("get"), 9);
        let refused = set_int(fd.as_fd(), libc::SOL_IP, libc::IP_TTL, 256).expect_err("too high");
        assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
    }
}
