//! The messages of rtnetlink(7) that tell of interfaces, their addresses, and the way to others.
//!
//! Only what a RoCE port wants to know is read, attribute by attribute, and all else is passed
//! over: what a newer kernel adds, or tells otherwise, must not make a message unreadable.

use std::net::IpAddr;

use netlink_packet_core::{
    DecodeError, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkBuffer, NlaBuffer, NlasIterator,
};

/// Bytes of `struct nlmsghdr`.
const HEADER_LEN: usize = 16;
/// Bytes of `struct ifinfomsg`.
const LINK_LEN: usize = 16;
/// Bytes of `struct ifaddrmsg`.
const ADDRESS_LEN: usize = 8;
/// Bytes of `struct ndmsg`, and of `struct rtmsg`.
const NEIGHBOUR_LEN: usize = 12;
const ROUTE_LEN: usize = 12;

/// Types of message that are no rtnetlink's, but netlink's own (`NLMSG_ERROR`, `NLMSG_DONE`).
const ERROR: u16 = 2;
const DONE: u16 = 3;

/// Attributes of links, of `<linux/if_link.h>`.
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
const IFLA_LINKINFO: u16 = 18;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_VLAN_ID: u16 = 1;
/// Attributes of addresses, of `<linux/if_addr.h>`.
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;

/// Attributes of neighbours, of `<linux/neighbour.h>`.
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
/// Attributes of routes, of `<linux/rtnetlink.h>`.
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;

/// Flags of links, of `<linux/if.h>`.
const IFF_UP: u32 = 1;
const IFF_LOWER_UP: u32 = 1 << 16;
/// Kinds of hardware that have addresses of 6 bytes, of `<linux/if_arp.h>`.
const ARPHRD_ETHER: u16 = 1;
const ARPHRD_LOOPBACK: u16 = 772;
/// Flags of addresses that cannot be sent from: DAD runs, or has failed (`<linux/if_addr.h>`).
const IFA_F_OPTIMISTIC: u32 = 0x04;
const IFA_F_DADFAILED: u32 = 0x08;
const IFA_F_TENTATIVE: u32 = 0x40;

/// What a kernel says, in one message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Message {
    /// An interface as it is now.
    Link(Link),
    /// The interface of this index is gone.
    LinkGone(u32),
    /// An address as it is now.
    Address(Address),
    /// An address that is gone.
    AddressGone(Address),
    /// A neighbour as it is now.
    Neighbour(Neighbour),
    /// A route.
    Route(Route),
    /// All that was asked for has been told.
    Done,
    /// The answer to a request: 0 for done, or an errno, positive.
    Answer(i32),
}

/// A message, and what its header says beside.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Received {
    /// The number of the request that it answers.
    pub sequence: u32,
    /// What was asked for has changed while it was told (`NLM_F_DUMP_INTR`).
    pub interrupted: bool,
    pub message: Message,
}

/// An interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Link {
    pub ifindex: u32,
    pub name: String,
    pub mac: Option<[u8; 6]>,
    pub mtu: u32,
    pub up: bool,
    /// Has a carrier. Not `IFF_RUNNING`, which comes up to a second later.
    pub running: bool,
    /// The interface below, in this namespace, of one whose addresses count as that one's too.
    pub lower: Option<u32>,
    pub vlan: Option<u16>,
}

/// An address of an interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Address {
    pub ifindex: u32,
    pub ip: IpAddr,
    /// An interface may have the same address with several lengths.
    pub prefix_len: u8,
    /// Packets can be sent from it.
    pub usable: bool,
}

/// A neighbour: which Ethernet address an IP address has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Neighbour {
    /// How sure the kernel is (`NUD_*`).
    pub state: u16,
    pub mac: Option<[u8; 6]>,
}

/// The way to an address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Route {
    /// Its type (`RTN_*`).
    pub kind: u8,
    /// The interface that it leaves by.
    pub ifindex: Option<u32>,
    /// The router that it leads to; `None` for one on the link.
    pub gateway: Option<IpAddr>,
}

/// What the kernel can be asked to list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Listing {
    Links,
    Addresses,
}

/// The request for a listing.
pub(super) fn request(listing: Listing, sequence: u32) -> Vec<u8> {
    let (kind, len) = match listing {
        Listing::Links => (libc::RTM_GETLINK, LINK_LEN),
        Listing::Addresses => (libc::RTM_GETADDR, ADDRESS_LEN),
    };
    // All families: what follows the header is zero.
    message(kind, NLM_F_REQUEST | NLM_F_DUMP, sequence, &vec![0; len])
}

/// The request for a neighbour.
pub(super) fn request_neighbour(ifindex: u32, ip: IpAddr, sequence: u32) -> Vec<u8> {
    let mut body = vec![0; NEIGHBOUR_LEN];
    body[0] = family_of(ip);
    body[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    push_attribute(&mut body, NDA_DST, &octets_of(ip));
    message(libc::RTM_GETNEIGH, NLM_F_REQUEST, sequence, &body)
}

/// The request for the route to an address: by way of an interface, or of any.
pub(super) fn request_route(ifindex: Option<u32>, ip: IpAddr, sequence: u32) -> Vec<u8> {
    let mut body = vec![0; ROUTE_LEN];
    let octets = octets_of(ip);
    body[0] = family_of(ip);
    // The length of the destination's prefix: all of it. (32 or 128.)
    body[1] = u8::try_from(octets.len() * 8).unwrap_or(128);
    push_attribute(&mut body, RTA_DST, &octets);
    if let Some(ifindex) = ifindex {
        push_attribute(&mut body, RTA_OIF, &ifindex.to_ne_bytes());
    }
    message(libc::RTM_GETROUTE, NLM_F_REQUEST, sequence, &body)
}

fn family_of(ip: IpAddr) -> u8 {
    let family = if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // Both are below 256.
    u8::try_from(family).unwrap_or_default()
}

fn octets_of(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// Appends an attribute to a body, padded to four bytes.
fn push_attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    // No value here is longer than an address.
    let len = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
    body.extend(len.to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

/// A message with this body.
fn message(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_LEN + body.len()];
    bytes[HEADER_LEN..].copy_from_slice(body);
    let len = bytes.len();
    let mut header = NetlinkBuffer::new(&mut bytes);
    // No body here is longer than a few dozen bytes.
    header.set_length(u32::try_from(len).unwrap_or(u32::MAX));
    header.set_message_type(kind);
    header.set_flags(flags);
    header.set_sequence_number(sequence);
    bytes
}

/// Reads what one call of `recv` has given, which may be several messages.
///
/// Messages of other types are left out, and so are those that tell only a part.
///
/// # Errors
///
/// [`DecodeError`] when a length is wrong: the rest of the buffer has no meaning then.
pub(super) fn read(mut bytes: &[u8]) -> Result<Vec<Received>, DecodeError> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let buffer = NetlinkBuffer::new_checked(bytes)?;
        let body = buffer.payload();
        if let Some(message) = read_message(buffer.message_type(), body)? {
            let interrupted = buffer.flags() & NLM_F_DUMP_INTR != 0;
            all.push(Received { sequence: buffer.sequence_number(), interrupted, message });
        }
        let len = buffer.length() as usize;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(all)
}

fn read_message(kind: u16, body: &[u8]) -> Result<Option<Message>, DecodeError> {
    Ok(match kind {
        ERROR => Some(Message::Answer(int(body).map_or(0, i32::wrapping_neg))),
        DONE => Some(Message::Done),
        libc::RTM_NEWLINK => read_link(body)?.map(Message::Link),
        libc::RTM_DELLINK => link_header(body).map(|header| Message::LinkGone(header.ifindex)),
        libc::RTM_NEWADDR => read_address(body)?.map(Message::Address),
        libc::RTM_DELADDR => read_address(body)?.map(Message::AddressGone),
        libc::RTM_NEWNEIGH => read_neighbour(body)?.map(Message::Neighbour),
        libc::RTM_NEWROUTE => read_route(body)?.map(Message::Route),
        _ => None,
    })
}

struct LinkHeader {
    hardware: u16,
    ifindex: u32,
    flags: u32,
}

/// Reads `struct ifinfomsg`; `None` for one of a protocol.
///
/// A bridge tells of its ports by messages of its own family, also that they are gone from it,
/// which is not to be taken for the interface's end.
fn link_header(body: &[u8]) -> Option<LinkHeader> {
    let family = *body.first()?;
    let hardware = u16::from_ne_bytes(*body.get(2..4)?.first_chunk()?);
    let (ifindex, flags) = (word(body.get(4..)?)?, word(body.get(8..)?)?);
    (i32::from(family) == libc::AF_UNSPEC).then_some(LinkHeader { hardware, ifindex, flags })
}

fn read_link(body: &[u8]) -> Result<Option<Link>, DecodeError> {
    let Some(LinkHeader { hardware, ifindex, flags }) = link_header(body) else { return Ok(None) };
    let has_mac = matches!(hardware, ARPHRD_ETHER | ARPHRD_LOOPBACK);
    let (mut name, mut mtu, mut mac, mut below) = (None, None, None, None);
    let (mut kind, mut is_elsewhere) = (Kind::default(), false);
    for attribute in attributes(body, LINK_LEN) {
        let attribute = attribute?;
        let value = attribute.value();
        match attribute.kind() {
            IFLA_IFNAME => name = Some(text(value)),
            IFLA_MTU => mtu = word(value),
            IFLA_ADDRESS if has_mac => mac = value.try_into().ok(),
            IFLA_LINK => below = word(value),
            // Its other end, or what it is put on, is in another network namespace.
            IFLA_LINK_NETNSID => is_elsewhere = true,
            IFLA_LINKINFO => kind = read_kind(value)?,
            _ => {}
        }
    }
    // Wireless drivers tell of other things by messages with a name alone.
    let (Some(name), Some(mtu)) = (name, mtu) else { return Ok(None) };
    let lower = below.filter(|_| kind.is_upper && !is_elsewhere);
    let (up, running) = (flags & IFF_UP != 0, flags & IFF_LOWER_UP != 0);
    Ok(Some(Link { ifindex, name, mac, mtu, up, running, lower, vlan: kind.vlan }))
}

/// What kind of software made an interface.
#[derive(Default)]
struct Kind {
    /// It is put on top of another one and shares its wire. (For a veth, which is not, `IFLA_LINK`
    /// is its other end.)
    is_upper: bool,
    vlan: Option<u16>,
}

fn read_kind(info: &[u8]) -> Result<Kind, DecodeError> {
    let (mut name, mut data) = (String::new(), &[][..]);
    for attribute in NlasIterator::new(info) {
        let attribute = attribute?;
        match attribute.kind() {
            IFLA_INFO_KIND => name = text(attribute.value()),
            IFLA_INFO_DATA => data = attribute.into_inner(),
            _ => {}
        }
    }
    let is_upper = matches!(name.as_str(), "vlan" | "macvlan" | "ipvlan");
    let vlan = if name == "vlan" { read_vlan(data)? } else { None };
    Ok(Kind { is_upper, vlan })
}

/// Reads the attribute with the data of a VLAN.
fn read_vlan(data: &[u8]) -> Result<Option<u16>, DecodeError> {
    let Ok(data) = NlaBuffer::new_checked(data) else { return Ok(None) };
    for attribute in NlasIterator::new(data.value()) {
        let attribute = attribute?;
        if attribute.kind() == IFLA_VLAN_ID {
            return Ok(attribute.value().first_chunk().map(|bytes| u16::from_ne_bytes(*bytes)));
        }
    }
    Ok(None)
}

fn read_address(body: &[u8]) -> Result<Option<Address>, DecodeError> {
    let Some(header) = body.first_chunk::<ADDRESS_LEN>() else { return Ok(None) };
    let [family, prefix_len, flags, _, ..] = *header;
    let Some(ifindex) = word(&header[4..]) else { return Ok(None) };
    let (mut local, mut address, mut flags) = (None, None, u32::from(flags));
    for attribute in attributes(body, ADDRESS_LEN) {
        let attribute = attribute?;
        match attribute.kind() {
            IFA_LOCAL => local = ip(family, attribute.value()),
            IFA_ADDRESS => address = ip(family, attribute.value()),
            // All 32 of them, where the header has room for 8.
            IFA_FLAGS => flags = word(attribute.value()).unwrap_or(flags),
            _ => {}
        }
    }
    // With a peer, IFA_ADDRESS is the peer's.
    let Some(ip) = local.or(address) else { return Ok(None) };
    // An optimistic address can be sent from while it is tentative (RFC 4429).
    let tentative = flags & IFA_F_TENTATIVE != 0 && flags & IFA_F_OPTIMISTIC == 0;
    let usable = !tentative && flags & IFA_F_DADFAILED == 0;
    Ok(Some(Address { ifindex, ip, prefix_len, usable }))
}

fn read_neighbour(body: &[u8]) -> Result<Option<Neighbour>, DecodeError> {
    let Some(header) = body.first_chunk::<NEIGHBOUR_LEN>() else { return Ok(None) };
    let (state, mut mac) = (u16::from_ne_bytes([header[8], header[9]]), None);
    for attribute in attributes(body, NEIGHBOUR_LEN) {
        let attribute = attribute?;
        if attribute.kind() == NDA_LLADDR {
            mac = attribute.value().try_into().ok();
        }
    }
    Ok(Some(Neighbour { state, mac }))
}

fn read_route(body: &[u8]) -> Result<Option<Route>, DecodeError> {
    let Some(header) = body.first_chunk::<ROUTE_LEN>() else { return Ok(None) };
    let (family, kind) = (header[0], header[7]);
    let (mut ifindex, mut gateway) = (None, None);
    for attribute in attributes(body, ROUTE_LEN) {
        let attribute = attribute?;
        match attribute.kind() {
            RTA_OIF => ifindex = word(attribute.value()),
            RTA_GATEWAY => gateway = ip(family, attribute.value()),
            _ => {}
        }
    }
    Ok(Some(Route { kind, ifindex, gateway }))
}

/// The attributes behind a header of this length.
fn attributes(
    body: &[u8],
    header_len: usize,
) -> impl Iterator<Item = Result<NlaBuffer<&[u8]>, DecodeError>> {
    NlasIterator::new(body.get(header_len..).unwrap_or_default())
}

fn ip(family: u8, value: &[u8]) -> Option<IpAddr> {
    match i32::from(family) {
        libc::AF_INET => <[u8; 4]>::try_from(value).ok().map(IpAddr::from),
        libc::AF_INET6 => <[u8; 16]>::try_from(value).ok().map(IpAddr::from),
        _ => None,
    }
}

fn text(value: &[u8]) -> String {
    let end = value.iter().position(|&byte| byte == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

fn word(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|word| u32::from_ne_bytes(*word))
}

fn int(bytes: &[u8]) -> Option<i32> {
    bytes.first_chunk().map(|word| i32::from_ne_bytes(*word))
}
