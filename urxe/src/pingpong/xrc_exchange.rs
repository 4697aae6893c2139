//! The TCP exchange of `ibv_xsrq_pingpong`, of which each client has its own.
//!
//! The client sends 66 bytes, `%04x:%06x:%06x:%06x:%06x:%s` and a NUL (LID, the queue pair that
//! receives, the one that sends, PSN, the number of the shared receive queue, GID as 32 hex digits
//! in wire order), and the server answers in the same form. After the game the client says `END`
//! and a NUL, and the server says it when all its clients have (the program's source, of
//! rdma-core).

use std::io::Write;
use std::net::TcpStream;
use std::ops::Range;

use ibverbs_api::{Gid, Psn, Qpn};

use super::exchange::{Destination, ExchangeError, broken, garbage, read_checked};

/// Bytes of a message, with its NUL.
const LEN: usize = 66;

/// What more there is to tell of an end of an extended reliable connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct XrcEnd {
    /// The queue pair that sends.
    pub send_qpn: Qpn,
    /// The shared receive queue.
    pub srqn: u32,
}

fn to_bytes(end: &Destination) -> Vec<u8> {
    let Destination { lid, qpn, psn, gid, xrc } = end;
    let (qpn, psn, gid) = (qpn.get(), psn.get(), gid.to_hex());
    let (send_qpn, srqn) = xrc.map_or((0, 0), |xrc| (xrc.send_qpn.get(), xrc.srqn));
    format!("{lid:04x}:{qpn:06x}:{send_qpn:06x}:{psn:06x}:{srqn:06x}:{gid}\0").into_bytes()
}

fn parse(bytes: &[u8; LEN]) -> Option<Destination> {
    let text = std::str::from_utf8(bytes.strip_suffix(b"\0")?).ok()?;
    let number = |range: Range<usize>| u32::from_str_radix(text.get(range)?, 16).ok();
    let xrc = XrcEnd { send_qpn: Qpn::new(number(12..18)?), srqn: number(26..32)? };
    Some(Destination {
        lid: u16::try_from(number(0..4)?).ok()?,
        qpn: Qpn::new(number(5..11)?),
        psn: Psn::new(number(19..25)?),
        gid: Gid::from_hex(text.get(33..65)?).ok()?,
        xrc: Some(xrc),
    })
}

/// Whether `byte` may stand at place `index` of a message.
fn fits(index: usize, byte: u8) -> bool {
    match index {
        4 | 11 | 18 | 25 | 32 => byte == b':',
        65 => byte == 0,
        _ => byte.is_ascii_hexdigit(),
    }
}

/// Says where we are.
pub(super) fn send(stream: &mut TcpStream, own: &Destination) -> Result<(), ExchangeError> {
    stream.write_all(&to_bytes(own)).map_err(broken)
}

/// From now on the other end may take as long as it wants: a server waits for all its clients.
pub(super) fn be_patient(stream: &TcpStream) -> Result<(), ExchangeError> {
    stream.set_read_timeout(None).map_err(ExchangeError::Broken)
}

/// Hears where the other end is.
pub(super) fn receive(stream: &mut TcpStream) -> Result<Destination, ExchangeError> {
    let mut bytes = [0; LEN];
    read_checked(stream, &mut bytes, fits)?;
    parse(&bytes).ok_or_else(|| garbage(&bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_message_of_ibv_xsrq_pingpong() {
        let message = b"0000:000011:000012:a1b2c3:000007:00000000000000000000ffff0a000001\0";
        let end = parse(message).expect("parses");
        let xrc = end.xrc.expect("it is of XRC");
        assert_eq!((end.qpn.get(), xrc.send_qpn.get(), xrc.srqn), (0x11, 0x12, 7));
        assert_eq!((end.psn.get(), end.gid.to_string()), (0xa1_b2c3, "::ffff:10.0.0.1".to_owned()));
        assert_eq!(to_bytes(&end), message);
    }

    proptest! {
        #[test]
        fn messages_come_back(numbers: [u16; 5], gid: [u8; 16]) {
            let [lid, qpn, psn, send_qpn, srqn] = numbers;
            let xrc = XrcEnd { send_qpn: Qpn::new(send_qpn.into()), srqn: srqn.into() };
            let (qpn, psn) = (Qpn::new(qpn.into()), Psn::new(psn.into()));
            let sent = Destination { lid, qpn, psn, gid: Gid::from_raw(gid), xrc: Some(xrc) };
            let bytes: [u8; LEN] = to_bytes(&sent).try_into().expect("66 bytes");
            prop_assert!((0..LEN).all(|index| fits(index, bytes[index])));
            prop_assert_eq!(parse(&bytes), Some(sent));
        }
    }
}
