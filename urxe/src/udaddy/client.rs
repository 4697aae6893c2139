//! The side that asks where to send to, and sends first.

use rdma_cm::{CmId, EventChannel};

use super::PATIENCE;
use super::args::{Args, PORT};
use super::connect::find_all;
use crate::cm::{CmError, Expected, HEAD, Told, pattern, resolve_pair};

/// Finds the server's queue pairs, and sends messages to and fro.
pub(super) fn run(args: &Args) -> Result<String, CmError> {
    let server = args.server.as_deref().unwrap_or_default();
    let (source, server) = resolve_pair(server, args.bind.as_deref(), PORT, args.format)?;
    let events = EventChannel::new()?;
    let mut ids = Vec::new();
    let start = || {
        let id = CmId::create(&events, args.port_space());
        id.resolve_addr(source, server)?;
        ids.push(id);
        Ok(())
    };
    let mut paths = find_all(args, &events, start)?;
    for (number, path) in paths.iter_mut().enumerate() {
        path.node.set_data(&pattern(number, args.size))?;
        path.node.expected = Some(expected(number, args.size));
        if let Some(peer) = path.peer {
            path.node.send(peer)?;
        }
    }
    for path in &mut paths {
        path.node.complete_sends(&events, &mut Told::none_expected)?;
        path.node.receive_all(&events, &mut Told::none_expected, Some(PATIENCE))?;
    }
    Ok(args.outcome())
}

/// What comes back of a message: first the 40 bytes that stood before it, which we do not know, and then
/// its beginning.
fn expected(number: usize, size: u32) -> Expected {
    let mut data = pattern(number, size);
    let from = data.len().min(HEAD);
    data.truncate(data.len() - from);
    Expected { from, data }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_of_a_message_comes_back() {
        let all = pattern(3, 100);
        assert_eq!(expected(3, 100), Expected { from: 40, data: all[..60].to_vec() });
        assert_eq!(expected(3, 10), Expected { from: 10, data: vec![] });
    }
}
