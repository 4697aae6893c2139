//! The game of `ibv_rc_pingpong` and its family, one end of it, on an opened device.

use std::io::Write;
use std::net::TcpStream;
use std::ops::Range;
use std::time::{Duration, Instant};

use ibverbs_api::{
    AccessFlags, CompletionChannel, CompletionQueue, Context, Counter, DmaBuf, Gid, GidEntry,
    MemoryRegion, Mtu, ProtectionDomain, Psn, RecvWr, SharedReceiveQueue, SrqAttr, WaitError,
    WcStatus, WorkCompletion,
};

use super::companion::{Companion, Peer};
use super::error::PingpongError;
use super::exchange::{self, Destination};
use super::pair::{Pair, RECV, SEND};
use super::service::Service;
use super::{pattern, port, xrc_exchange};

/// What buffers hold at first, as in `ibv_rc_pingpong`.
const FILLING: u8 = 0x7b;
/// With `-c` the client of `ibv_rc_pingpong` writes, and its server wants, a zero at the start of
/// each page (it computes a value modulo the size of a char, which is 0).
const PAGE: usize = 4096;
/// Silence after which the other end counts as gone. A peer in an emulator is slow, and its own
/// retries take seconds; so this is long.
const STALL: Duration = Duration::from_secs(30);
/// Silence after which we look whether the other end is still there.
const ATTENTION: Duration = Duration::from_millis(100);
/// Empty polls in a row before the core is offered to others: about as long as a message takes.
/// Where both ends share a core, they wait for each other no longer than that.
const SPINS: u32 = 16;
/// How long after the last packet an end that keeps no TCP connection may still want an answer: it
/// resends after 67 ms (timeout 14), so this is three times its turn.
const LINGER_QUIET: Duration = Duration::from_millis(200);
/// How long to wait in all for the other end: its seven retries, and as much again.
const LINGER_MAX: Duration = Duration::from_secs(2);

/// What both ends must agree on, and how this one plays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Rules {
    /// Which game of the family.
    pub service: Service,
    /// Bytes of a message.
    pub size: u32,
    /// Path MTU; a datagram has the port's.
    pub mtu: Mtu,
    /// Receives posted at a time.
    pub rx_depth: u32,
    /// Messages each way.
    pub iters: u32,
    /// Service level.
    pub sl: u8,
    /// Sleep on events.
    pub events: bool,
    /// Check the data.
    pub check: bool,
}

impl Rules {
    /// Messages each way, of all queue pairs.
    pub(super) fn total(&self) -> u64 {
        self.service.total(self.iters)
    }
}

/// Which end of the game. The client sends first, but for XRC the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    /// Connects.
    Client,
    /// Waits for a client.
    Server,
}

/// How a game went.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Outcome {
    /// Our end: its queue pairs.
    pub local: Vec<Destination>,
    /// The other one.
    pub remote: Vec<Destination>,
    /// From the first send to the last completion.
    pub elapsed: Duration,
}

/// Plays one end of the game over the queue pairs that the exchange on `streams` arranges; tells
/// `out` the addresses as soon as they are known. There is one stream, or one for each XRC client.
pub(super) fn play(
    context: &Context,
    gid: &GidEntry,
    rules: &Rules,
    side: Side,
    mut streams: Vec<TcpStream>,
    out: &mut dyn Write,
) -> Result<Outcome, PingpongError> {
    let port_num = u8::try_from(gid.port_num).unwrap_or(u8::MAX);
    if rules.service.has_path_mtu() {
        port::check_mtu(context, port_num, rules.mtu)?;
    } else {
        port::check_datagram(context, port_num, rules.size)?;
    }
    let mut player = Player::new(context, port_num, *rules, side)?;
    let lid = context.query_port(port_num)?.lid;
    let local = player.destinations(lid, gid.gid);
    for address in &local {
        writeln!(out, "  local address:  {address}")?;
    }
    let remote = match rules.service {
        Service::Xrc { .. } => player.meet_each(gid, &mut streams, &local, out)?,
        _ => player.meet(gid, &mut streams, &local, out)?,
    };
    out.flush()?;
    let companion = match rules.service {
        Service::Xrc { .. } => Companion::staying,
        _ => Companion::new,
    };
    let mut companions: Vec<_> = streams.into_iter().map(companion).collect();
    let elapsed = player.run(&mut companions)?;
    player.check_end()?;
    player.take_leave(context, companions)?;
    Ok(Outcome { local, remote, elapsed })
}

/// A PSN that a successor of this process is unlikely to use again: 24 random bits.
fn random_psn() -> Psn {
    use std::hash::{BuildHasher, Hasher};
    // The standard library seeds its hash tables from the OS.
    let random = std::collections::hash_map::RandomState::new().build_hasher().finish();
    Psn::new(random as u32 & 0xff_ffff)
}

/// One end, with all that it owns.
struct Player {
    rules: Rules,
    side: Side,
    channel: Option<CompletionChannel>,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    pairs: Vec<Pair>,
    /// Where all of them take their receives from, if not each from its own.
    srq: Option<SharedReceiveQueue>,
    mr: MemoryRegion,
    /// What a message is made in, and compared in.
    bytes: Vec<u8>,
    /// Receives posted and not completed.
    posted: u32,
    received: u64,
    sent: u64,
    last_progress: Instant,
}

impl Player {
    fn new(
        context: &Context,
        port_num: u8,
        rules: Rules,
        side: Side,
    ) -> Result<Self, PingpongError> {
        let pd = context.alloc_pd()?;
        let channel = match rules.events {
            true => Some(context.create_channel().map_err(PingpongError::Channel)?),
            false => None,
        };
        let size = rules.size as usize;
        let head = rules.service.head();
        // A message of no bytes still has an address.
        let mr = pd.register(DmaBuf::zeroed((head + size).max(1)), AccessFlags::LOCAL_WRITE)?;
        let entries = rules.rx_depth.saturating_add(rules.service.pairs());
        let cq = context.create_cq(entries, channel.as_ref(), 0)?;
        let attr = SrqAttr { max_wr: rules.rx_depth, max_sge: 1, srq_limit: 0 };
        let xrcd = match rules.service {
            Service::Xrc { .. } => Some(context.open_xrcd(0)?),
            _ => None,
        };
        let srq = match (rules.service, &xrcd) {
            (Service::Srq { .. }, _) => Some(pd.create_srq(attr)?),
            (_, Some(xrcd)) => Some(pd.create_xrc_srq(attr, xrcd, &cq)?),
            _ => None,
        };
        let pair = |_| Pair::new(&pd, &cq, srq.as_ref(), xrcd.as_ref(), &rules, port_num);
        let pairs = (0..rules.service.pairs()).map(pair).collect::<Result<_, _>>()?;
        let mut bytes = vec![FILLING; size];
        if side == rules.service.first() && rules.check {
            make_message(0, &mut bytes);
        }
        mr.buffer().write_at(head, &bytes)?;
        let mut player = Self {
            rules,
            side,
            channel,
            pd,
            cq,
            pairs,
            srq,
            mr,
            bytes,
            posted: 0,
            received: 0,
            sent: 0,
            last_progress: Instant::now(),
        };
        player.post_receives()?;
        if rules.events {
            player.cq.req_notify(false);
        }
        Ok(player)
    }

    /// Where each of our queue pairs is, and the PSN that it starts with.
    fn destinations(&self, lid: u16, gid: Gid) -> Vec<Destination> {
        let of = |pair: &Pair| pair.destination(lid, random_psn(), gid, self.srq.as_ref());
        self.pairs.iter().map(of).collect()
    }

    /// The exchange of all games but XRC, on one connection.
    fn meet(
        &mut self,
        gid: &GidEntry,
        streams: &mut [TcpStream],
        local: &[Destination],
        out: &mut dyn Write,
    ) -> Result<Vec<Destination>, PingpongError> {
        let (count, messages) = (local.len(), self.rules.service.messages());
        let mut all = Vec::new();
        for stream in streams {
            if self.side == Side::Client {
                exchange::send(stream, local, messages)?;
            }
            let remote = exchange::receive(stream, count, messages)?;
            for address in &remote {
                writeln!(out, "  remote address: {address}")?;
            }
            // A server is ready to receive before the client knows where to send to; and it hears
            // it when the client cannot connect.
            for ((pair, &local), &remote) in self.pairs.iter_mut().zip(local).zip(&remote) {
                pair.connect(&self.pd, &self.rules, gid, local, remote)?;
            }
            match self.side {
                Side::Client => exchange::send_done(stream)?,
                Side::Server => {
                    exchange::send(stream, local, messages)?;
                    exchange::receive_done(stream)?;
                }
            }
            all.extend(remote);
        }
        Ok(all)
    }

    /// The exchange of XRC, with each client on its own connection.
    fn meet_each(
        &mut self,
        gid: &GidEntry,
        streams: &mut [TcpStream],
        local: &[Destination],
        out: &mut dyn Write,
    ) -> Result<Vec<Destination>, PingpongError> {
        let mut all = Vec::new();
        for ((stream, pair), &local) in streams.iter_mut().zip(&mut self.pairs).zip(local) {
            if self.side == Side::Client {
                xrc_exchange::send(stream, &local)?;
                xrc_exchange::be_patient(stream)?;
            }
            let remote = xrc_exchange::receive(stream)?;
            writeln!(out, "  remote address: {remote}")?;
            pair.connect(&self.pd, &self.rules, gid, local, remote)?;
            if self.side == Side::Server {
                xrc_exchange::send(stream, &local)?;
            }
            all.push(remote);
        }
        Ok(all)
    }

    /// Goes when the other end, or each, needs nothing more.
    fn take_leave(
        &self,
        context: &Context,
        mut companions: Vec<Companion>,
    ) -> Result<(), PingpongError> {
        if let Service::Xrc { .. } = self.rules.service {
            if self.side == Side::Client {
                companions.iter_mut().for_each(Companion::say_end);
            }
            companions.iter_mut().try_for_each(Companion::wait_end)?;
            if self.side == Side::Server {
                companions.iter_mut().for_each(Companion::say_end);
            }
            return Ok(());
        }
        for mut companion in companions {
            if self.rules.service.is_acknowledged() {
                linger(context, &self.cq, companion);
            } else {
                companion.say_bye();
            }
        }
        Ok(())
    }

    /// Where a message stands in the buffer; before it is room for the head of a datagram.
    fn data(&self) -> Range<usize> {
        let head = self.rules.service.head();
        head..head + self.rules.size as usize
    }

    /// Posts receives up to the depth.
    fn post_receives(&mut self) -> Result<(), PingpongError> {
        let sges = [self.mr.sge(0..self.data().end)];
        while self.posted < self.rules.rx_depth {
            let receive = RecvWr { wr_id: RECV, sges: &sges };
            match &self.srq {
                Some(srq) => srq.post_recv(receive)?,
                None => self.pairs.iter().try_for_each(|pair| pair.qp.post_recv(receive))?,
            }
            self.posted += 1;
        }
        Ok(())
    }

    /// Posts a send on the queue pair at `index`; then its completion and the answer are awaited.
    fn post_send(&mut self, index: usize) -> Result<(), PingpongError> {
        // Queue pairs that share a buffer share a message: another one would overwrite it.
        if self.rules.check && self.is_first() && self.pairs.len() == 1 {
            make_message(self.sent, &mut self.bytes);
            self.mr.buffer().write_at(self.data().start, &self.bytes)?;
        }
        let data = self.mr.sge(self.data());
        self.pairs[index].post_send(data)
    }

    /// Plays until every message has gone both ways; returns how long it took.
    fn run(&mut self, companions: &mut [Companion]) -> Result<Duration, PingpongError> {
        let start = Instant::now();
        self.last_progress = start;
        if self.is_first() {
            (0..self.pairs.len()).try_for_each(|index| self.post_send(index))?;
        }
        let total = self.rules.total();
        let mut completions = Vec::with_capacity(16);
        while self.received < total || self.sent < total {
            self.await_completions(companions, &mut completions)?;
            if self.received == 0 && completions.iter().any(|completion| completion.wr_id == RECV) {
                companions.iter_mut().for_each(Companion::say_hello);
            }
            for completion in completions.drain(..) {
                self.handle(&completion)?;
            }
            self.last_progress = Instant::now();
        }
        Ok(self.last_progress - start)
    }

    /// Polls, or sleeps, until there is a completion.
    fn await_completions(
        &self,
        companions: &mut [Companion],
        to: &mut Vec<WorkCompletion>,
    ) -> Result<(), PingpongError> {
        let mut idle = 0u32;
        while self.cq.poll(16, to) == 0 {
            idle += 1;
            if let Some(channel) = &self.channel {
                match channel.wait(ATTENTION) {
                    Ok(_) => {}
                    Err(WaitError::TimedOut(_)) => self.check_companions(companions)?,
                    Err(error) => return Err(error.into()),
                }
                // Before polling: a completion in between raises the next event.
                self.cq.req_notify(false);
            } else if idle.is_multiple_of(SPINS) {
                std::thread::yield_now();
                if self.last_progress.elapsed() > ATTENTION {
                    self.check_companions(companions)?;
                }
            }
        }
        Ok(())
    }

    /// Looks whether the other end can still be waited for, after some time without a completion.
    fn check_companions(&self, companions: &mut [Companion]) -> Result<(), PingpongError> {
        let (received, sent) = (self.received, self.sent);
        // An end that finished has told us all; what is under way may still have to be resent.
        if companions.iter_mut().any(|companion| companion.peer() == Peer::Gone) {
            return Err(PingpongError::PeerGone { received, sent });
        }
        // A server that sends first may wait for its other clients.
        let may_wait = self.rules.service.first() == Side::Server && self.side == Side::Client;
        if self.last_progress.elapsed() > STALL && !(may_wait && received == 0) {
            return Err(PingpongError::Stalled { stall: STALL, received, sent });
        }
        Ok(())
    }

    fn handle(&mut self, completion: &WorkCompletion) -> Result<(), PingpongError> {
        let WorkCompletion { wr_id, status, byte_len, qpn, .. } = *completion;
        let index = self.pairs.iter().position(|pair| pair.has(qpn));
        let index = index.ok_or(PingpongError::UnknownCompletion { wr_id })?;
        if status != WcStatus::Success {
            let what = if wr_id == SEND { "a SEND" } else { "a receive" };
            let after = Some(self.last_progress.elapsed());
            return Err(PingpongError::Completion { what, status, after });
        }
        match wr_id {
            SEND => self.sent += 1,
            RECV => {
                self.posted -= 1;
                self.check_message(byte_len)?;
                self.received += 1;
                if self.posted <= self.rules.service.pairs() {
                    self.post_receives()?;
                }
            }
            _ => return Err(PingpongError::UnknownCompletion { wr_id }),
        }
        let pair = &mut self.pairs[index];
        pair.pending &= !wr_id;
        let has_more = match self.rules.service {
            // Each client has its own share.
            Service::Xrc { .. } => pair.posted < self.rules.iters,
            _ => self.sent < self.rules.total(),
        };
        if pair.pending == 0 && has_more {
            self.post_send(index)?;
        }
        Ok(())
    }

    /// Whether this end sends first.
    fn is_first(&self) -> bool {
        self.side == self.rules.service.first()
    }

    /// Checks the message that just came, while the other end waits for the next one.
    ///
    /// A server sends back the bytes that came, so what the client gets is what it sent, byte for
    /// byte; its messages all differ. With XRC it is the other way round.
    fn check_message(&mut self, byte_len: u32) -> Result<(), PingpongError> {
        let message = self.received;
        let wanted = self.data().end;
        if byte_len as usize != wanted {
            return Err(PingpongError::Length { message, got: byte_len, wanted });
        }
        if !self.rules.check {
            return Ok(());
        }
        match self.is_first() {
            true => {
                let mut got = vec![0; self.bytes.len()];
                self.mr.buffer().read_at(self.data().start, &mut got)?;
                match got.iter().zip(&self.bytes).position(|(got, sent)| got != sent) {
                    Some(offset) => {
                        Err(PingpongError::Data { what: "the echo of message", message, offset })
                    }
                    None => Ok(()),
                }
            }
            false => self.check_page_starts(),
        }
    }

    fn check_page_starts(&self) -> Result<(), PingpongError> {
        let data = self.data();
        for offset in (0..data.len()).step_by(PAGE) {
            let mut got = [0];
            self.mr.buffer().read_at(data.start + offset, &mut got)?;
            if got != [0] {
                return Err(PingpongError::PageStart { offset, got: got[0] });
            }
        }
        Ok(())
    }

    /// What the server of `ibv_rc_pingpong` checks, when everything has arrived.
    fn check_end(&self) -> Result<(), PingpongError> {
        if self.rules.check { self.check_page_starts() } else { Ok(()) }
    }
}

/// Makes message `index` of a client that checks: bytes of its own, with the zeros that the server
/// of `ibv_rc_pingpong -c` wants.
fn make_message(index: u64, to: &mut [u8]) {
    // Far apart, since a pattern of the next seed is this one shifted by a word.
    pattern::fill(index << 32, to);
    to.iter_mut().step_by(PAGE).for_each(|byte| *byte = 0);
}

/// Stays to answer for as long as the other end may need it.
///
/// Our last completion says that we need nothing more, not that the other end does not: the
/// acknowledgement of its last message may have been lost, and only we can send it again. An end
/// of urxe says when it has all its completions, so that is waited for. An end that closed its
/// connection right after the exchange, as `ibv_rc_pingpong` does, cannot say so: there we stay
/// until no packet has come for longer than its timeout.
fn linger(context: &Context, cq: &CompletionQueue, mut companion: Companion) {
    companion.say_bye();
    let start = Instant::now();
    let packets = || context.counter(Counter::rcvd_pkts);
    let (mut seen, mut last) = (packets(), start);
    let mut completions = Vec::new();
    loop {
        // Nothing is expected any more; polling receives, and answers.
        cq.poll(1, &mut completions);
        completions.clear();
        let now = Instant::now();
        if packets() != seen {
            (seen, last) = (packets(), now);
        }
        let is_over = match companion.peer() {
            Peer::Playing => false,
            Peer::Finished | Peer::Gone => true,
            Peer::Unknown => now - last > LINGER_QUIET,
        };
        if is_over || now - start > LINGER_MAX {
            return;
        }
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, TcpListener};
    use std::thread;

    use ibverbs_api::Qpn;

    use super::*;
    use crate::pingpong::port::Wanted;
    use crate::pingpong::test_port;

    const RULES: Rules = Rules {
        service: Service::Rc,
        size: 4096,
        mtu: Mtu::M1024,
        rx_depth: 500,
        iters: 20,
        sl: 0,
        events: false,
        check: true,
    };

    /// What one end came to, and what it printed.
    type Played = Result<(Outcome, String), PingpongError>;

    fn play_end(ip: IpAddr, rules: &Rules, side: Side, stream: TcpStream) -> Played {
        let context = port::device_of(ip)?.open()?;
        let gid = port::choose_gid(&context, 1, Wanted::Near(ip))?;
        let mut out = Vec::new();
        let outcome = play(&context, &gid, rules, side, vec![stream], &mut out)?;
        Ok((outcome, String::from_utf8(out).expect("UTF-8")))
    }

    fn play_both(ip: IpAddr, server: Rules, client: Rules) -> (Played, Played) {
        let listener = TcpListener::bind((ip, 0)).expect("listens");
        let address = listener.local_addr().expect("an address");
        thread::scope(|scope| {
            let serving = scope.spawn(move || {
                let stream = exchange::accept(&listener)?;
                play_end(ip, &server, Side::Server, stream)
            });
            let stream = exchange::connect(&ip.to_string(), address.port(), false);
            let client = stream
                .map_err(Into::into)
                .and_then(|stream| play_end(ip, &client, Side::Client, stream));
            (serving.join().expect("no panic"), client)
        })
    }

    fn both_well(ip: &str, rules: Rules) {
        let ip = ip.parse().expect("an address");
        let (server, client) = test_port::retried(|| {
            let (server, client) = play_both(ip, rules, rules);
            Ok((server?, client?))
        })
        .unwrap_or_else(|error| panic!("{rules:?}: {error}"));
        let [server_end, client_end] = [&server.0, &client.0];
        assert_eq!(
            (&server_end.local, &server_end.remote),
            (&client_end.remote, &client_end.local)
        );
        let told = |remote| client.1.contains(&format!("  remote address: {remote}\n"));
        assert!(client_end.remote.iter().all(told), "{}", client.1);
        assert!(client.1.starts_with("  local address:  LID 0x0000, QPN 0x"), "{}", client.1);
    }

    #[test]
    fn messages_of_many_sizes_over_ipv4_and_ipv6() {
        for ip in ["127.0.0.1", "::1"] {
            for size in [0, 1, 4096, 100_000] {
                both_well(ip, Rules { size, ..RULES });
            }
        }
    }

    #[test]
    fn the_family_with_and_without_events() {
        for service in [Service::Uc, Service::Srq { pairs: 1 }, Service::Srq { pairs: 20 }] {
            for events in [false, true] {
                let (size, rx_depth) = (3000, 25);
                both_well("127.0.0.1", Rules { service, events, size, rx_depth, ..RULES });
            }
        }
    }

    #[test]
    fn datagrams_of_many_sizes_with_and_without_events() {
        for ip in ["127.0.0.1", "::1"] {
            for (size, events) in [(0, false), (1, true), (2048, false), (4096, true)] {
                both_well(ip, Rules { service: Service::Ud, size, events, rx_depth: 3, ..RULES });
            }
        }
    }

    #[test]
    fn xrc_with_and_without_events() {
        for ip in ["127.0.0.1", "::1"] {
            for (size, events) in [(0, false), (1, true), (4096, false), (50_000, true)] {
                let service = Service::Xrc { clients: 1 };
                both_well(ip, Rules { service, size, events, rx_depth: 3, ..RULES });
            }
        }
    }

    /// A server with three clients, which end at different times.
    #[test]
    fn xrc_with_several_clients() {
        let ip: IpAddr = "127.0.0.1".parse().expect("an address");
        let rules = |clients, events| Rules {
            service: Service::Xrc { clients },
            events,
            size: 3000,
            iters: 100,
            ..RULES
        };
        let outcome = test_port::retried(|| {
            let listener = TcpListener::bind((ip, 0)).expect("listens");
            let port = listener.local_addr().expect("an address").port();
            thread::scope(|scope| {
                let clients = [false, true, false].map(|events| {
                    scope.spawn(move || {
                        let stream = exchange::connect(&ip.to_string(), port, false)?;
                        play_end(ip, &rules(1, events), Side::Client, stream)
                    })
                });
                let streams: Result<Vec<_>, _> =
                    (0..3).map(|_| exchange::accept(&listener)).collect();
                let context = port::device_of(ip)?.open()?;
                let gid = port::choose_gid(&context, 1, Wanted::Near(ip))?;
                let (rules, mut out) = (rules(3, true), Vec::new());
                let server = play(&context, &gid, &rules, Side::Server, streams?, &mut out);
                for client in clients {
                    client.join().expect("no panic")?;
                }
                server
            })
        })
        .unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((outcome.local.len(), outcome.remote.len()), (3, 3));
        let queues = outcome.local.iter().map(|end| end.xrc.expect("XRC").srqn);
        assert_eq!(queues.collect::<std::collections::HashSet<_>>().len(), 1, "one queue for all");
    }

    #[test]
    fn a_datagram_is_no_larger_than_the_ports_mtu() {
        let ip = "127.0.0.1".parse().expect("an address");
        let rules = Rules { service: Service::Ud, size: 4097, ..RULES };
        let (server, client) = play_both(ip, rules, rules);
        for end in [server, client] {
            let error = end.expect_err("refused").to_string();
            assert!(error.contains("has at most 4096: use -s 4096"), "{error}");
        }
    }

    #[test]
    fn every_path_mtu_few_receives_and_events() {
        for mtu in Mtu::ALL {
            both_well("127.0.0.1", Rules { mtu, size: 10_000, ..RULES });
        }
        for rx_depth in [1, 2, 3] {
            both_well("127.0.0.1", Rules { rx_depth, ..RULES });
        }
        both_well("::1", Rules { events: true, ..RULES });
        both_well("127.0.0.1", Rules { iters: 1, check: false, ..RULES });
    }

    #[test]
    fn different_sizes_are_told() {
        let ip = "127.0.0.1".parse().expect("an address");
        // Shorter than the receive: it arrives, and is found out. Longer: the transport refuses.
        for (server, client) in [(4096, 100), (100, 4096)] {
            let error = test_port::retried(|| {
                let rules = |size| Rules { size, ..RULES };
                let (server, client) = play_both(ip, rules(server), rules(client));
                let client = client.expect_err("it has no answer");
                let is_told = matches!(
                    client,
                    PingpongError::PeerGone { received: 0, .. } | PingpongError::Completion { .. }
                );
                // Only this error may be tried again.
                if is_told { server } else { Err(client) }
            })
            .expect_err("found out");
            assert!(error.to_string().contains("is -s the same at both ends?"), "{error}");
        }
    }

    /// A client's game with a server that answers the exchange with `remote`, and plays no game.
    fn play_with(ip: IpAddr, remote: Destination) -> Played {
        let listener = TcpListener::bind((ip, 0)).expect("listens");
        let address = listener.local_addr().expect("an address");
        thread::scope(|scope| {
            scope.spawn(move || {
                let (mut stream, _) = listener.accept().expect("accepts");
                exchange::receive(&mut stream, 1, 1).expect("a client");
                exchange::send(&mut stream, &[remote], 1).expect("sends");
                let _ = exchange::receive_done(&mut stream);
            });
            let stream = exchange::connect(&ip.to_string(), address.port(), false)?;
            play_end(ip, &RULES, Side::Client, stream)
        })
    }

    #[test]
    fn a_server_that_is_not_there_is_given_up_in_time() {
        let ip: IpAddr = "127.0.0.1".parse().expect("an address");
        // Slot 0 is nobody's.
        let (qpn, psn) = (Qpn::new(0x00_0777), Psn::new(1));
        let remote = Destination { lid: 0, qpn, psn, gid: Gid::from_ip(ip), xrc: None };
        let error = test_port::retried(|| play_with(ip, remote)).expect_err("nobody answers");
        let PingpongError::Completion { status, after, .. } = error else { panic!("{error}") };
        assert_eq!(status, WcStatus::RetryExcErr);
        // Seven retries follow the first try, each after 67 ms at least.
        assert!(after >= Some(Duration::from_nanos(4096 << 14) * 8), "{after:?}");
    }

    #[test]
    fn a_gid_that_cannot_be_reached_is_told() {
        let ip: IpAddr = "127.0.0.1".parse().expect("an address");
        let (qpn, psn) = (Qpn::new(1), Psn::new(1));
        let with = |gid| {
            let remote = Destination { lid: 0, qpn, psn, gid, xrc: None };
            test_port::retried(|| play_with(ip, remote)).expect_err("refused").to_string()
        };
        assert!(with(Gid::ZERO).contains("with -g INDEX"), "{}", with(Gid::ZERO));
        let other = with(Gid::from_ip("::1".parse().expect("an address")));
        assert!(other.contains("different IP versions"), "{other}");
    }

    #[test]
    fn wrong_data_is_found_at_both_ends() {
        let context = port::device_of("127.0.0.1".parse().expect("an address"))
            .and_then(|device| Ok(device.open()?))
            .expect("lo");
        for (service, head) in [(Service::Rc, 0), (Service::Ud, 40)] {
            let rules = Rules { service, ..RULES };
            let player = |side| Player::new(&context, 1, rules, side).expect("a player");
            let came = head as u32 + 4096;

            let mut client = player(Side::Client);
            make_message(3, &mut client.bytes);
            client.mr.buffer().write_at(head, &client.bytes).expect("writes");
            assert!(client.check_message(came).is_ok());
            client.mr.buffer().write_at(head + 1000, &[!client.bytes[1000]]).expect("writes");
            let error = client.check_message(came).expect_err("found");
            assert!(matches!(error, PingpongError::Data { offset: 1000, .. }), "{error}");
            let error = client.check_message(came - 1).expect_err("found");
            assert!(matches!(error, PingpongError::Length { got, .. } if got == came - 1));

            let mut server = player(Side::Server);
            let error = server.check_message(came).expect_err("the filling is no message");
            assert!(
                matches!(error, PingpongError::PageStart { offset: 0, got: FILLING }),
                "{error}"
            );
            server.mr.buffer().write_at(head, &[0]).expect("writes");
            assert!(server.check_message(came).is_ok() && server.check_end().is_ok());
        }
    }

    #[test]
    fn messages_of_a_checking_client_have_what_linux_checks() {
        let mut bytes = vec![FILLING; 10_000];
        make_message(0, &mut bytes);
        assert_eq!([bytes[0], bytes[4096], bytes[8192]], [0; 3]);
        let mut next = bytes.clone();
        make_message(1, &mut next);
        let same = bytes.iter().zip(&next).filter(|(a, b)| a == b).count();
        // By chance one in 256 is the same.
        assert!(same < 200, "{same} bytes of 10,000 are the same in the next message");
    }
}
