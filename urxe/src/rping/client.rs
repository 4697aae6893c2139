//! The side that pings.

use rdma_cm::{CmId, EventChannel, EventType, PortSpace};

use super::args::Args;
use super::end::{End, conn_param, info};
use super::pattern::{ping, text};
use crate::cm::{CmError, Told};

/// Connects, and sends messages to and fro.
pub(super) fn run(args: &Args) -> Result<(), CmError> {
    let events = EventChannel::new()?;
    let id = CmId::create(&events, PortSpace::Tcp);
    id.resolve_addr(args.source_address()?, args.server_address()?)?;
    Told::expect(&events, EventType::AddrResolved)?;
    id.resolve_route()?;
    Told::expect(&events, EventType::RouteResolved)?;
    let mut end = End::new(id, events, args.own_qp)?;
    end.id.connect(&conn_param(&end))?;
    if args.own_qp {
        end.expect(EventType::ConnectResponse)?;
        end.make_ready()?;
        end.id.establish()?;
    } else {
        end.expect(EventType::Established)?;
    }
    if args.debug {
        eprintln!("connected to {}", args.server_address()?);
    }
    let played = play(args, &mut end);
    end.id.disconnect()?;
    end.id.destroy();
    played
}

fn play(args: &Args, end: &mut End) -> Result<(), CmError> {
    let numbers = 0..args.count.unwrap_or(u64::MAX);
    for number in numbers {
        let data = ping(number, args.size as usize);
        end.source.buffer().write_at(0, &data)?;
        // The server reads it,
        end.send(info(&end.source, args.size))?;
        end.receive()?;
        // and writes it back elsewhere.
        end.send(info(&end.sink, args.size))?;
        end.receive()?;
        let mut back = vec![0; data.len()];
        end.sink.buffer().read_at(0, &mut back)?;
        if args.validate && back != data {
            return Err(CmError::Data(number));
        }
        if args.verbose {
            println!("ping data: {}", text(&back));
        }
    }
    Ok(())
}
