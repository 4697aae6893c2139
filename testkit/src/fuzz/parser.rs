//! Any bytes as a packet, as a frame and as a MAD: what is read is written again as it came.

use rxe_wire::mad::cm::CmMessage;
use rxe_wire::mad::{MAD_LEN, Mad};
use rxe_wire::net::{Frame, SuperFrame};
use rxe_wire::{Packet, ParseError};

pub(super) fn run(input: &[u8]) {
    packet(input);
    for frame in [Frame::parse_ethernet(input), Frame::parse_ip(input)].into_iter().flatten() {
        self::frame(&frame, input);
    }
    mad(input);
}

fn packet(bytes: &[u8]) {
    let packet = match Packet::parse(bytes) {
        Ok(packet) => packet,
        Err(ParseError::Truncated { needed, have, .. }) => return assert!(needed > have),
        Err(_) => return,
    };
    let headers = packet.headers();
    let mut again = vec![0; bytes.len()];
    let len = headers.write(&mut again).expect("what was read can be written");
    again[len..].copy_from_slice(&bytes[len..]);
    assert_eq!(again, bytes, "{packet}");
    assert_eq!(len + packet.payload().len() + packet.pad().len(), bytes.len());
    let _ = format!("{packet} {packet:?}");
}

fn frame(frame: &Frame<'_>, bytes: &[u8]) {
    let mut again = vec![0; bytes.len()];
    assert_eq!(frame.write(&mut again), Ok(bytes.len()), "what was read can be written");
    assert_eq!(again, bytes, "{frame:?}");
    let _ = (frame.icrc(), frame.packet().map(|packet| packet.to_string()));
    if let Some(super_frame) = SuperFrame::find(frame) {
        // A segment is never empty, so there are not more than bytes.
        assert!(super_frame.segments().take(1 << 16).count() < 1 << 16);
    }
}

fn mad(bytes: &[u8]) {
    let Ok(mad) = Mad::parse(bytes) else { return };
    let mut again = [0; MAD_LEN];
    mad.write(&mut again);
    assert_eq!(again, bytes[..MAD_LEN]);
    let Ok(message) = CmMessage::parse(&mad) else { return };
    let mut first = [0; MAD_LEN];
    message.write_mad(mad.header.transaction_id, &mut first);
    // Reserved bits may get lost once, and nothing more.
    let reread = Mad::parse(&first).expect("a MAD that was written");
    let second = CmMessage::parse(&reread).expect("a message that was written");
    assert_eq!(second, message);
    let _ = (message.cma_header(), format!("{message:?}"));
}
