//! The TCP exchange of `ibv_rc_pingpong`: how two ends learn each other's QPN, PSN and GID.
//!
//! The client sends 52 bytes, `%04x:%06x:%06x:%s` and a NUL (LID, QPN, PSN, GID as 32 hex digits
//! in wire order), the server answers in the same form, and the client sends `done` and a NUL
//! (facts.md section 2, measured with the program beside Linux 6.1). `ibv_uc_pingpong` and
//! `ibv_ud_pingpong` do the same; `ibv_srq_pingpong` sends 256 such messages each way, of which
//! those without a queue pair are zeros. `ibv_xsrq_pingpong` has its own
//! ([`xrc_exchange`](super::xrc_exchange)).

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

use ibverbs_api::{Gid, Psn, Qpn};
use thiserror::Error;

use super::error::PingpongError;
use super::xrc_exchange::XrcEnd;

/// Bytes of a message, with its NUL.
const LEN: usize = 52;
/// Messages each way of `ibv_srq_pingpong`, and so its queue pairs at most.
pub(super) const SRQ_MESSAGES: usize = 256;
/// What the client says last.
const DONE: &[u8] = b"done\0";
/// How long the other end may take for each step.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why the two ends did not come together.
#[derive(Debug, Error)]
pub(crate) enum ExchangeError {
    #[error("cannot find an {family}address of {host}: {source}")]
    Resolve { host: String, family: &'static str, source: io::Error },
    #[error("the name {host} has no {family}address")]
    NoAddress { host: String, family: &'static str },
    #[error("cannot connect to TCP port {port} of {host}: {source}{hint}")]
    Connect { host: String, port: u16, source: io::Error, hint: &'static str },
    #[error("cannot listen on TCP port {port}: {source}{hint}")]
    Listen { port: u16, source: io::Error, hint: &'static str },
    #[error("cannot take a client in: {0}")]
    Accept(#[source] io::Error),
    #[error(
        "the program at the other end of the TCP connection is no pingpong: it said {got:?}, but \
         wanted is a line like 0000:000011:a1b2c3:00000000000000000000ffff0a000001"
    )]
    Garbage { got: String },
    #[error("the other end closed the TCP connection {after}: see what it says there")]
    Closed { after: String },
    #[error(
        "the other end of the TCP connection said nothing for {} seconds: is it a pingpong?",
        PATIENCE.as_secs()
    )]
    Silent,
    #[error("the TCP connection to the other end broke: {0}")]
    Broken(#[source] io::Error),
    #[error(
        "the other end has {theirs} queue pairs, but {ours} are here: give -q (default 16) the \
         same value at both ends"
    )]
    Count { ours: usize, theirs: usize },
}

/// What one end tells the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Destination {
    /// Local identifier: 0 on Ethernet.
    pub lid: u16,
    /// Its queue pair.
    pub qpn: Qpn,
    /// First PSN that it sends.
    pub psn: Psn,
    /// GID of its port.
    pub gid: Gid,
    /// What more there is of XRC, whose `qpn` is the one that receives.
    pub xrc: Option<XrcEnd>,
}

impl fmt::Display for Destination {
    /// As `ibv_rc_pingpong` prints it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lid, qpn, psn, gid, xrc } = self;
        let (qpn, psn) = (qpn.get(), psn.get());
        write!(f, "LID 0x{lid:04x}, QPN 0x{qpn:06x}, ")?;
        if let Some(XrcEnd { send_qpn, srqn }) = xrc {
            write!(f, "sending QPN 0x{:06x}, SRQN 0x{srqn:06x}, ", send_qpn.get())?;
        }
        write!(f, "PSN 0x{psn:06x}, GID {gid}")
    }
}

impl Destination {
    fn to_bytes(self) -> Vec<u8> {
        let Self { lid, qpn, psn, gid, .. } = self;
        let gid = gid.to_hex();
        format!("{lid:04x}:{:06x}:{:06x}:{gid}\0", qpn.get(), psn.get()).into_bytes()
    }

    /// What stands for no queue pair.
    const NONE: Self =
        Self { lid: 0, qpn: Qpn::new(0), psn: Psn::new(0), gid: Gid::ZERO, xrc: None };

    fn parse(bytes: &[u8; LEN]) -> Option<Self> {
        let text = std::str::from_utf8(bytes.strip_suffix(b"\0")?).ok()?;
        let number = |range: std::ops::Range<usize>| u32::from_str_radix(text.get(range)?, 16).ok();
        Some(Self {
            lid: u16::try_from(number(0..4)?).ok()?,
            qpn: Qpn::new(number(5..11)?),
            psn: Psn::new(number(12..18)?),
            gid: Gid::from_hex(text.get(19..51)?).ok()?,
            xrc: None,
        })
    }
}

/// Checks that one GID can be reached from the other.
pub(super) fn check_gids(own: Gid, remote: Gid) -> Result<(), PingpongError> {
    if remote.is_zero() {
        return Err(PingpongError::NoRemoteGid);
    }
    if own.to_ip().is_ipv6() != remote.to_ip().is_ipv6() {
        return Err(PingpongError::FamiliesDiffer { own, remote });
    }
    Ok(())
}

/// Whether `byte` may stand at place `index` of a message.
fn fits(index: usize, byte: u8) -> bool {
    match index {
        4 | 11 | 18 => byte == b':',
        51 => byte == 0,
        _ => byte.is_ascii_hexdigit(),
    }
}

/// Listens where a client will come: on all addresses, of both families where the host has IPv6.
pub(crate) fn listen(port: u16, ipv6: bool) -> Result<TcpListener, ExchangeError> {
    let listener = match TcpListener::bind(("::", port)) {
        Err(error) if !ipv6 && error.kind() != ErrorKind::AddrInUse => {
            TcpListener::bind(("0.0.0.0", port))
        }
        other => other,
    };
    listener.map_err(|source| {
        let hint = match source.kind() {
            ErrorKind::AddrInUse => ": is another server running? choose one with -p (0: any)",
            ErrorKind::PermissionDenied => ": ports below 1024 are for root; choose one with -p",
            _ => "",
        };
        ExchangeError::Listen { port, source, hint }
    })
}

/// Takes a client in.
pub(crate) fn accept(listener: &TcpListener) -> Result<TcpStream, ExchangeError> {
    let (stream, _) = listener.accept().map_err(ExchangeError::Accept)?;
    prepare(&stream)?;
    Ok(stream)
}

/// Connects to a server.
pub(crate) fn connect(host: &str, port: u16, ipv6: bool) -> Result<TcpStream, ExchangeError> {
    let family = if ipv6 { "IPv6 " } else { "" };
    let addresses = (host, port).to_socket_addrs().map_err(|source| ExchangeError::Resolve {
        host: host.to_owned(),
        family,
        source,
    })?;
    let mut last = None;
    for address in addresses.filter(|address| !ipv6 || address.is_ipv6()) {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => {
                prepare(&stream)?;
                return Ok(stream);
            }
            Err(error) => last = Some(error),
        }
    }
    let Some(source) = last else {
        return Err(ExchangeError::NoAddress { host: host.to_owned(), family });
    };
    let hint = match source.kind() {
        ErrorKind::ConnectionRefused => ": is the server running there? (urxe … --server)",
        ErrorKind::TimedOut => ": is the host up, and does a firewall let this port through?",
        _ => "",
    };
    Err(ExchangeError::Connect { host: host.to_owned(), port, source, hint })
}

fn prepare(stream: &TcpStream) -> Result<(), ExchangeError> {
    stream.set_read_timeout(Some(PATIENCE)).map_err(ExchangeError::Broken)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(ExchangeError::Broken)?;
    stream.set_nodelay(true).map_err(ExchangeError::Broken)
}

/// Says where we are, in so many messages.
pub(super) fn send(
    stream: &mut TcpStream,
    own: &[Destination],
    messages: usize,
) -> Result<(), ExchangeError> {
    let all = own.iter().copied().chain(std::iter::repeat(Destination::NONE)).take(messages);
    let bytes: Vec<u8> = all.flat_map(Destination::to_bytes).collect();
    stream.write_all(&bytes).map_err(broken)
}

/// Hears where the other end is, in so many messages; it must have `count` queue pairs.
pub(super) fn receive(
    stream: &mut TcpStream,
    count: usize,
    messages: usize,
) -> Result<Vec<Destination>, ExchangeError> {
    let mut all = Vec::with_capacity(messages);
    for _ in 0..messages {
        all.push(receive_one(stream)?);
    }
    if messages > 1 {
        // One that claims to have none is told so where it is connected to.
        all.retain(|destination| destination.qpn != Destination::NONE.qpn);
        if all.len() != count {
            return Err(ExchangeError::Count { ours: count, theirs: all.len() });
        }
    }
    Ok(all)
}

/// Hears of one queue pair.
///
/// What does not fit is refused at its first byte: a program with another protocol may say less
/// than a message and wait.
fn receive_one(stream: &mut TcpStream) -> Result<Destination, ExchangeError> {
    let mut bytes = [0; LEN];
    read_checked(stream, &mut bytes, fits)?;
    Destination::parse(&bytes).ok_or_else(|| garbage(&bytes))
}

/// Says that the exchange is over.
pub(super) fn send_done(stream: &mut TcpStream) -> Result<(), ExchangeError> {
    stream.write_all(DONE).map_err(broken)
}

/// Hears that the exchange is over.
pub(super) fn receive_done(stream: &mut TcpStream) -> Result<(), ExchangeError> {
    let mut bytes = [0; DONE.len()];
    read_checked(stream, &mut bytes, |index, byte| DONE[index] == byte)
}

pub(super) fn read_checked(
    stream: &mut TcpStream,
    to: &mut [u8],
    fits: impl Fn(usize, u8) -> bool,
) -> Result<(), ExchangeError> {
    let mut done = 0;
    while done < to.len() {
        let count = match stream.read(&mut to[done..]) {
            Ok(0) => {
                let after = match done {
                    0 => "without a word".to_owned(),
                    _ => format!("in the middle, after {done} of {} bytes", to.len()),
                };
                return Err(ExchangeError::Closed { after });
            }
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(broken(error)),
        };
        let new = done..done + count;
        if !new.clone().all(|index| fits(index, to[index])) {
            return Err(garbage(&to[..new.end]));
        }
        done = new.end;
    }
    Ok(())
}

pub(super) fn garbage(bytes: &[u8]) -> ExchangeError {
    ExchangeError::Garbage { got: String::from_utf8_lossy(bytes).into_owned() }
}

pub(super) fn broken(error: io::Error) -> ExchangeError {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => ExchangeError::Silent,
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
            ExchangeError::Closed { after: "before it had read everything".to_owned() }
        }
        _ => ExchangeError::Broken(error),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The message of a server of Linux 6.1.
    const LINUX: &[u8; LEN] = b"0000:000011:a1b2c3:00000000000000000000ffff0a000001\0";

    #[test]
    fn a_message_of_ibv_rc_pingpong() {
        let parsed = Destination::parse(LINUX).expect("parses");
        assert_eq!(parsed.qpn.get(), 0x11);
        assert_eq!(parsed.to_bytes(), LINUX);
        assert_eq!(
            parsed.to_string(),
            "LID 0x0000, QPN 0x000011, PSN 0xa1b2c3, GID ::ffff:10.0.0.1"
        );
    }

    /// What `receive` makes of these bytes from a client that then closes.
    fn received(bytes: &[u8]) -> Result<Destination, ExchangeError> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
        let mut client = TcpStream::connect(listener.local_addr().expect("address")).expect("tcp");
        client.write_all(bytes).expect("writes");
        let mut stream = accept(&listener).expect("accepts");
        drop(client);
        receive_one(&mut stream)
    }

    #[test]
    fn many_queue_pairs_in_as_many_messages_as_ibv_srq_pingpong_sends() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
        let mut client = TcpStream::connect(listener.local_addr().expect("address")).expect("tcp");
        let mut stream = accept(&listener).expect("accepts");
        let one = Destination::parse(LINUX).expect("parses");
        let own = [one, Destination { qpn: Qpn::new(0x12), ..one }];
        for wanted in [2, 3] {
            send(&mut client, &own, SRQ_MESSAGES).expect("sends");
            match receive(&mut stream, wanted, SRQ_MESSAGES) {
                Ok(got) => assert_eq!((wanted, &got[..]), (2, &own[..])),
                Err(error) => {
                    assert!(matches!(error, ExchangeError::Count { ours: 3, theirs: 2 }), "{error}")
                }
            }
        }
        // Nothing is left over, and nothing was missing.
        send_done(&mut client).expect("sends");
        receive_done(&mut stream).expect("hears");
    }

    #[test]
    fn another_protocol_is_told_from_a_pingpong() {
        assert!(received(LINUX).is_ok());
        let garbage = received(b"SSH-2.0-OpenSSH_9.2").expect_err("refused").to_string();
        assert!(garbage.contains("SSH-2.0"), "{garbage}");
        let cut = received(&LINUX[..20]).expect_err("refused").to_string();
        assert!(cut.contains("after 20 of 52 bytes"), "{cut}");
        let nothing = received(b"").expect_err("refused").to_string();
        assert!(nothing.contains("without a word"), "{nothing}");
    }

    proptest! {
        #[test]
        fn messages_come_back(lid: u16, qpn in 0u32..1 << 24, psn in 0u32..1 << 24, gid: [u8; 16]) {
            let gid = Gid::from_raw(gid);
            let (qpn, psn) = (Qpn::new(qpn), Psn::new(psn));
            let sent = Destination { lid, qpn, psn, gid, xrc: None };
            let bytes: [u8; LEN] = sent.to_bytes().try_into().expect("52 bytes");
            prop_assert!((0..LEN).all(|index| fits(index, bytes[index])));
            prop_assert_eq!(Destination::parse(&bytes), Some(sent));
        }

        #[test]
        fn arbitrary_bytes_are_no_panic(bytes: [u8; 32], tail: [u8; 20]) {
            let mut all = [0; LEN];
            all[..32].copy_from_slice(&bytes);
            all[32..].copy_from_slice(&tail);
            let _ = Destination::parse(&all);
        }
    }
}
