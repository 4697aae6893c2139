//! The side that reads what it is pinged with, and writes it back.

use std::thread;

use rdma_cm::{CmId, EventChannel, EventType, PortSpace};

use super::args::{Args, SIZE_MAX};
use super::end::{End, conn_param};
use super::info::Info;
use super::pattern::text;
use crate::cm::CmError;

/// What a server needs to know of its arguments.
#[derive(Clone, Copy)]
struct Manner {
    verbose: bool,
    debug: bool,
    own_qp: bool,
}

/// Serves one client, or many.
pub(super) fn run(args: &Args) -> Result<(), CmError> {
    let Args { verbose, debug, own_qp, .. } = *args;
    let manner = Manner { verbose, debug, own_qp };
    let events = EventChannel::new()?;
    let listener = CmId::create(&events, PortSpace::Tcp);
    listener.bind_addr(args.server_address()?)?;
    listener.listen(3)?;
    loop {
        let id = request(&events)?;
        if !args.persistent {
            return serve(id, manner);
        }
        thread::spawn(move || {
            if let Err(error) = serve(id, manner) {
                eprintln!("urxe rping: {error}");
            }
        });
    }
}

/// The next client. Its events go to a channel of its own.
fn request(events: &EventChannel) -> Result<(CmId, EventChannel), CmError> {
    loop {
        let event = events.get()?;
        if event.event() == EventType::ConnectRequest {
            let own = EventChannel::new()?;
            event.id().migrate(&own);
            return Ok((event.id().clone(), own));
        }
    }
}

fn serve((id, events): (CmId, EventChannel), manner: Manner) -> Result<(), CmError> {
    let mut end = End::new(id, events, manner.own_qp)?;
    end.make_ready()?;
    end.id.accept(&conn_param(&end))?;
    end.expect(EventType::Established)?;
    if manner.debug {
        eprintln!("connected to {:?}", end.id.peer_addr());
    }
    let played = play(&mut end, manner.verbose);
    // It is the peer's wish, or has failed: either way this is the end.
    end.id.disconnect()?;
    end.id.destroy();
    match played {
        Err(CmError::Disconnected) => Ok(()),
        other => other,
    }
}

fn play(end: &mut End, verbose: bool) -> Result<(), CmError> {
    /// Go on: what it says means nothing.
    const GO_ON: Info = Info { addr: 0, rkey: 0, size: 0 };
    loop {
        let source = end.receive()?;
        let len = source.size as usize;
        if len > SIZE_MAX {
            return Err(CmError::TooLong { wanted: source.size, most: SIZE_MAX });
        }
        end.read(source)?;
        let mut data = vec![0; len];
        end.sink.buffer().read_at(0, &mut data)?;
        if verbose {
            println!("server ping data: {}", text(&data));
        }
        end.send(GO_ON)?;
        let sink = end.receive()?;
        // Up to the NUL, as rping does.
        let text_len = data.iter().position(|&byte| byte == 0).map_or(len, |nul| nul + 1);
        end.write(sink, text_len.min(sink.size as usize))?;
        end.send(GO_ON)?;
    }
}
