//! Limits between two hosts: the client measures, the server receives or sends back.
//!
//! TCP and the UDP ping-pong, that is. The two ends of the bare pipe must see how far the other is
//! without a message, so it is measured on one host only ([`super::limits`]).

use std::io::{self, ErrorKind, Read};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::control::{Control, Message, PATIENCE};
use super::error::PerfError;
use super::limits::{Ends, LONGEST, Limit, TCP_WRITE, exchange, send_tcp};
use super::place::{Pinned, Room, Side};

/// How long the client may measure.
const LONG: Duration = Duration::from_secs(60);
/// Between two looks whether the client has connected.
const PAUSE: Duration = Duration::from_millis(1);

/// Whether a limit can be measured between two hosts.
pub(super) const fn can(limit: Limit) -> bool {
    matches!(limit, Limit::Tcp | Limit::UdpPolling | Limit::UdpBlocking)
}

/// Whether an address is none of this host, or of this network namespace.
pub(super) fn is_far(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_err_and(|error| error.kind() == ErrorKind::AddrNotAvailable)
}

/// Measures a limit with the server, which is at `to`.
///
/// # Errors
///
/// Those of the sockets at both ends, and of talking with the server.
pub(super) fn measure(
    control: &mut Control,
    limit: Limit,
    (from, to): (IpAddr, IpAddr),
    size: usize,
    duration: Duration,
) -> Result<f64, PerfError> {
    control.say(&Message::Limit { limit, at: to })?;
    let port = control.expect(PATIENCE, "where it listens", |message| match message {
        Message::Listening { port } => Ok(port),
        other => Err(other),
    })?;
    let to = SocketAddr::new(to, port);
    let times = match limit {
        Limit::Tcp => {
            let _pinned = Pinned::to(Side::Asking, Room::Half);
            send_tcp(to, Instant::now(), duration).map(|()| None)
        }
        _ => ping_pong(from, to, limit == Limit::UdpBlocking, size, duration).map(Some),
    };
    // Whatever happened: the server waits for it.
    control.say(&Message::Over)?;
    let carried = control.expect(LONG, "what it received", |message| match message {
        Message::Carried { bytes, seconds } => Ok(bytes as f64 / seconds.max(f64::MIN_POSITIVE)),
        other => Err(other),
    })?;
    Ok(times.map_err(PerfError::Limit)?.unwrap_or(carried))
}

/// Microseconds, one way.
fn ping_pong(
    from: IpAddr,
    to: SocketAddr,
    blocks: bool,
    size: usize,
    duration: Duration,
) -> io::Result<f64> {
    let socket = UdpSocket::bind((from, 0))?;
    socket.connect(to)?;
    let _pinned = Pinned::to(Side::Asking, Room::One);
    Ok(exchange(&Ends::connected(socket), blocks, size, duration)?.percentile(50.0))
}

/// The server's end of a limit.
///
/// # Errors
///
/// As [`measure`].
pub(super) fn serve(control: &mut Control, limit: Limit, at: IpAddr) -> Result<(), PerfError> {
    let over = AtomicBool::new(false);
    let (tcp, udp) = match limit {
        Limit::Tcp => (Some(TcpListener::bind((at, 0)).map_err(PerfError::Limit)?), None),
        _ => (None, Some(UdpSocket::bind((at, 0)).map_err(PerfError::Limit)?)),
    };
    let address = match (&tcp, &udp) {
        (Some(listener), _) => listener.local_addr(),
        (None, Some(socket)) => socket.local_addr(),
        (None, None) => Err(ErrorKind::NotConnected.into()),
    };
    let port = address.map_err(PerfError::Limit)?.port();
    thread::scope(|scope| {
        let over = &over;
        let working = scope.spawn(move || match (tcp, udp) {
            (Some(listener), _) => take_in(&listener, over),
            (None, Some(socket)) => send_back(socket, limit == Limit::UdpBlocking, over),
            (None, None) => Ok((0, 0.0)),
        });
        let heard = control.say(&Message::Listening { port }).and_then(|()| {
            control.expect(LONG, "that it has measured", |message| match message {
                Message::Over => Ok(()),
                other => Err(other),
            })
        });
        over.store(true, Ordering::Relaxed);
        let worked = working.join().unwrap_or_else(|_| Err(io::Error::other("a panic")));
        heard?;
        let (bytes, seconds) = worked.map_err(PerfError::Limit)?;
        Ok(control.say(&Message::Carried { bytes, seconds })?)
    })
}

/// Reads what comes over one connection; how many bytes, in how many seconds.
fn take_in(listener: &TcpListener, over: &AtomicBool) -> io::Result<(u64, f64)> {
    let _pinned = Pinned::to(Side::Answering, Room::Half);
    listener.set_nonblocking(true)?;
    let mut stream: TcpStream = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
            // It never connected, and says why.
            Err(_) if over.load(Ordering::Relaxed) => return Ok((0, 0.0)),
            Err(_) => thread::sleep(PAUSE),
        }
    };
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let (start, mut memory, mut bytes) = (Instant::now(), vec![0; TCP_WRITE], 0);
    let mut last = start;
    loop {
        match stream.read(&mut memory)? {
            0 => return Ok((bytes, (last - start).as_secs_f64())),
            count => bytes += count as u64,
        }
        last = Instant::now();
    }
}

/// Sends datagrams back to whoever sends the first one.
fn send_back(socket: UdpSocket, blocks: bool, over: &AtomicBool) -> io::Result<(u64, f64)> {
    let _pinned = Pinned::to(Side::Answering, Room::One);
    let ends = Ends::connected(socket);
    ends.prepare(blocks)?;
    let (mut bytes, mut is_met) = (vec![0; LONGEST], false);
    while !over.load(Ordering::Relaxed) {
        if !is_met {
            // Connected sockets are quicker; and what others send is none of this.
            is_met = ends.meet_first(&mut bytes)?;
        } else if let Some(count) = ends.receive(&mut bytes)? {
            ends.send(&bytes[..count])?;
            continue;
        }
        if !blocks {
            thread::yield_now();
        }
    }
    Ok((0, 0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_that_can_be_measured_is() {
        let ip = IpAddr::from([127, 0, 0, 1]);
        let (mut client, mut server) = Control::pair().expect("a pair");
        let serving = thread::spawn(move || {
            for _ in 0..3 {
                let message = server.hear(PATIENCE).expect("heard");
                let Some(Message::Limit { limit, at }) = message else { panic!("{message:?}") };
                serve(&mut server, limit, at).expect("served");
            }
        });
        for limit in [Limit::Tcp, Limit::UdpPolling, Limit::UdpBlocking] {
            assert!(can(limit));
            let time = Duration::from_millis(60);
            let value = measure(&mut client, limit, (ip, ip), 64, time).expect("measured");
            let least = if limit == Limit::Tcp { 1e6 } else { 0.2 };
            assert!(value > least && value < 1e12, "{limit:?}: {value}");
        }
        serving.join().expect("joined");
        assert!(!can(Limit::IcrcPipe) && !can(Limit::BarePipe));
    }

    #[test]
    fn addresses_of_this_host_are_not_far() {
        assert!(!is_far([127, 0, 0, 1].into()));
        // For documentation (RFC 5737): nobody has it.
        assert!(is_far([192, 0, 2, 77].into()));
    }
}
