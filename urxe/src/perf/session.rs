//! Measurements, one after the other, between a client, which says what, and a server.

use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use ibverbs_api::{Context, Device, Gid, GidEntry, Mtu, OpenOptions};

use super::control::{Control, ControlError, Message, PATIENCE};
use super::end::End;
use super::error::PerfError;
use super::far;
use super::histogram::Histogram;
use super::idle::Idleness;
use super::latency::Player;
use super::load::{Kind, Load};
use super::place::{Allowed, Pinned, Room, Side};
use super::report::Figures;
use super::worker::{Shared, Work, Worker};
use crate::pingpong::port::{self, Wanted};

/// How long a client may take between two measurements: it measures sockets meanwhile.
const BETWEEN: Duration = Duration::from_secs(600);

/// How long the other end may take to say why it could not go on, where this one could not.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What an end sends from: a device, opened for as many threads as a load has.
#[derive(Debug)]
pub(super) struct Host {
    device: Device,
    options: OpenOptions,
    port: u8,
    wanted: Wanted,
    opened: Option<(Context, GidEntry)>,
}

impl Host {
    /// On this device; nothing is opened yet.
    ///
    /// # Errors
    ///
    /// What is wrong with the options in the environment.
    pub(super) fn new(device: Device, port: u8, wanted: Wanted) -> Result<Self, PerfError> {
        Ok(Self { device, options: OpenOptions::from_env()?, port, wanted, opened: None })
    }

    /// Opens it, with a shard for each thread, as far as each has a processor.
    ///
    /// A thread moves what is of its own shard alone. Of two that share a processor one waits, and
    /// so would what has come for it.
    fn open_for(&mut self, threads: u32) -> Result<(Context, GidEntry), PerfError> {
        self.open(threads.min(Allowed::here().of_an_end()))
    }

    fn open(&mut self, shards: u32) -> Result<(Context, GidEntry), PerfError> {
        if let Some((context, gid)) = &self.opened
            && self.options.shards == shards as usize
        {
            return Ok((context.clone(), *gid));
        }
        self.opened = None;
        self.options.shards = shards as usize;
        let context = self.device.open_with(self.options.clone())?;
        let gid = port::choose_gid(&context, self.port, self.wanted)?;
        self.opened = Some((context.clone(), gid));
        Ok((context, gid))
    }

    /// The largest path MTU of its port.
    pub(super) fn largest_mtu(&mut self) -> Result<Mtu, PerfError> {
        let (context, _) = self.open(self.options.shards as u32)?;
        Ok(port::active_mtu(&context, self.port)?)
    }

    /// Its name, and the GID that it sends from.
    pub(super) fn name(&mut self) -> Result<(String, GidEntry), PerfError> {
        let (_, gid) = self.open(self.options.shards as u32)?;
        Ok((self.device.name().to_owned(), gid))
    }
}

/// What a client measured, at both ends.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    pub(super) own: Figures,
    pub(super) peer: Figures,
    pub(super) times: Histogram,
}

/// Measures one load as the client.
///
/// # Errors
///
/// Whatever stands in the way, here or at the other end, which is told of it.
pub(super) fn measure(
    host: &mut Host,
    control: &mut Control,
    load: &Load,
) -> Result<Measured, PerfError> {
    load.check()?;
    let mtu = match load.path_mtu() {
        Some(mtu) => mtu,
        None => host.largest_mtu()?,
    };
    control.say(&Message::Load { load: load.clone(), mtu: mtu.bytes() as u32 })?;
    let result = told(control, |control| play(host, control, load, mtu, true));
    if let Err(PerfError::Completion { .. } | PerfError::Stalled { .. }) = &result
        && let Err(why @ ControlError::Peer(_)) = control.hear(LAST_WORDS)
    {
        // What the other end says of it tells more.
        return Err(why.into());
    }
    result
}

/// Serves one client until it goes.
///
/// # Errors
///
/// Whatever stands in the way, here or at the other end, which is told of it.
pub(super) fn serve(host: &mut Host, control: &mut Control) -> Result<(), PerfError> {
    told(control, |control| Ok(control.greet()?))?;
    while let Some(message) = control.hear(BETWEEN)? {
        told(control, |control| {
            let (load, mtu) = match message {
                Message::Load { load, mtu } => (load, mtu),
                Message::Limit { limit, at } => return far::serve(control, limit, at),
                other => {
                    let (got, wanted) = (format!("{other:?}"), "a load");
                    return Err(ControlError::Unexpected { got, wanted }.into());
                }
            };
            let asked = Load { mtu: Some(mtu), ..load };
            asked.check()?;
            // It is one: that was checked.
            let mtu = asked.path_mtu().unwrap_or(Mtu::M256);
            play(host, control, &asked, mtu, false).map(drop)
        })?;
    }
    Ok(())
}

/// Does `work`, and tells the other end if it fails here.
fn told<T>(
    control: &mut Control,
    work: impl FnOnce(&mut Control) -> Result<T, PerfError>,
) -> Result<T, PerfError> {
    let result = work(control);
    if let Err(error) = &result
        && !matches!(error, PerfError::Control(_))
    {
        // Whether or not it is heard, the error is the result.
        let _ = control.say(&Message::Failed { why: error.to_string() });
    }
    result
}

/// One load, at either end.
fn play(
    host: &mut Host,
    control: &mut Control,
    load: &Load,
    mtu: Mtu,
    is_client: bool,
) -> Result<Measured, PerfError> {
    let (context, gid) = host.open_for(load.threads)?;
    if load.service.head() > 0 {
        port::check_datagram(&context, host.port, load.size)?;
    } else {
        port::check_mtu(&context, host.port, mtu)?;
    }
    let mut end = End::new(&context, load, is_client)?;
    control.say(&Message::Places { gid: gid.gid.to_hex(), places: end.places() })?;
    let (remote, places) =
        control.expect(PATIENCE, "where its queue pairs are", |message| match message {
            Message::Places { gid, places } => Ok((gid, places)),
            other => Err(other),
        })?;
    let remote = Gid::from_hex(&remote).map_err(|_| PerfError::Gid(remote))?;
    end.connect(load, mtu, &gid, remote, &places)?;
    control.say(&Message::Ready)?;
    control.expect(PATIENCE, "that it is ready", |message| match message {
        Message::Ready => Ok(()),
        other => Err(other),
    })?;

    let shared = Shared::new(load.threads);
    let (work, times, peer_sent) = match load.kind {
        Kind::Latency if is_client || !load.operation.fetches() => {
            alone(control, load, &mut end, &shared, is_client)?
        }
        _ => together(control, load, &end, &shared, is_client)?,
    };
    let own = Figures::of(&work);
    let arrived = if load.operation.takes_receive() { own.received > 0 } else { peer_sent > 0 };
    end.check(load, own.sent > 0, arrived)?;
    if load.operation.is_atomic() {
        end.check_atomics(peer_sent)?;
    }
    if load.service.is_reliable() && load.operation.takes_receive() && own.received < peer_sent {
        return Err(PerfError::Missing { sent: peer_sent, received: own.received });
    }
    let (own, idle) = match Duration::from_secs_f64(load.idle) {
        Duration::ZERO => (own, Duration::ZERO),
        idle => (Figures { idle: Some(Idleness::of(idle).map_err(PerfError::Idle)?), ..own }, idle),
    };
    control.say(&Message::Measured { figures: own })?;
    let peer = control.expect(PATIENCE + idle, "what it measured", |message| match message {
        Message::Measured { figures } => Ok(figures),
        other => Err(other),
    })?;
    Ok(Measured { own, peer, times })
}

/// Says how much this end sent, and hears how much the other did; lets the threads know.
fn exchange_sent(
    control: &mut Control,
    load: &Load,
    shared: &Shared,
    sent: Vec<u64>,
) -> Result<u64, PerfError> {
    control.say(&Message::Sent { messages: sent })?;
    let peer = control.expect(load.patience(), "how much it sent", |message| match message {
        Message::Sent { messages } => Ok(messages),
        other => Err(other),
    })?;
    for (place, &count) in shared.peer_sent.iter().zip(&peer) {
        place.store(count, Ordering::Release);
    }
    shared.peer_done.store(true, Ordering::Release);
    Ok(peer.iter().fold(0, |sum, &count| sum.saturating_add(count)))
}

/// What the threads did, the times of the messages, and how many messages the other end sent.
type Played = (Vec<Work>, Histogram, u64);

/// Many messages under way: a thread for each group, as far as it has something to do.
fn together(
    control: &mut Control,
    load: &Load,
    end: &End,
    shared: &Shared,
    is_client: bool,
) -> Result<Played, PerfError> {
    let is_active = load.is_active(is_client);
    // Where nothing completes, the device does the work alone, if it is to.
    let is_served = !load.is_peer_idle && !load.has_events;
    let has_threads = is_active || load.operation.takes_receive() || is_served;
    let is_crowded = load.threads > Allowed::here().of_an_end();
    let (finished, heard) = mpsc::channel();
    thread::scope(|scope| {
        let threads: Vec<_> = match has_threads {
            true => (0..).zip(&end.groups).collect(),
            false => Vec::new(),
        };
        let threads: Vec<_> = threads
            .into_iter()
            .map(|(number, group)| {
                let worker = Worker::new(load, group, shared, number, is_crowded);
                let finished = finished.clone();
                let run = move || {
                    let _pinned = Pinned::to(Side::of(is_client), Room::Half);
                    worker.run(is_active, &finished)
                };
                thread::Builder::new().name(format!("perf-{number}")).spawn_scoped(scope, run)
            })
            .collect();
        drop(finished);
        let mut sent = vec![0; end.groups.len()];
        let mut waiting = if is_active { threads.len() } else { 0 };
        while waiting > 0
            && let Ok((number, count)) = heard.recv()
        {
            sent[number] = count;
            waiting -= 1;
        }
        // A thread that cannot go on says nothing.
        let told = if waiting == 0 { exchange_sent(control, load, shared, sent) } else { Ok(0) };
        if told.is_err() {
            shared.failed.store(true, Ordering::Release);
        }
        let mut work = Vec::new();
        let mut failed = None;
        for thread in threads {
            let joined = thread.map_err(PerfError::Output)?.join();
            match joined.unwrap_or(Err(PerfError::Panicked)) {
                Ok(done) => work.push(done),
                // The others only give up since one has failed.
                Err(PerfError::Stalled { .. }) if failed.is_some() => {}
                Err(error) => failed = Some(error),
            }
        }
        match (told, failed) {
            (Err(told @ PerfError::Control(ControlError::Peer(_))), _) => Err(told),
            (_, Some(failed)) => Err(failed),
            (Err(told), None) => Err(told),
            (Ok(peer_sent), None) => Ok((work, Histogram::default(), peer_sent)),
        }
    })
}

/// One message at a time.
fn alone(
    control: &mut Control,
    load: &Load,
    end: &mut End,
    shared: &Shared,
    is_client: bool,
) -> Result<Played, PerfError> {
    let group = &mut end.groups[0];
    let start = Instant::now();
    if is_client {
        let _pinned = Pinned::to(Side::Asking, Room::One);
        let mut player = Player::new(load, group, shared);
        let times = player.play()?;
        let span = Some((start, Instant::now()));
        let work = Work { sent: player.sent(), received: player.taken(), span };
        let peer_sent = exchange_sent(control, load, shared, vec![work.sent])?;
        return Ok((vec![work], times, peer_sent));
    }
    thread::scope(|scope| {
        let answering = scope.spawn(|| {
            let _pinned = Pinned::to(Side::Answering, Room::One);
            let mut player = Player::new(load, group, shared);
            let result = player.answer();
            result.map(|()| Work { sent: player.sent(), received: player.taken(), span: None })
        });
        // The client tells when it has finished; so has this end then.
        let heard = control.expect(load.patience(), "how much it sent", |message| match message {
            Message::Sent { messages } => Ok(messages),
            other => Err(other),
        });
        match heard {
            Ok(_) => shared.peer_done.store(true, Ordering::Release),
            Err(_) => shared.failed.store(true, Ordering::Release),
        }
        let work = answering.join().unwrap_or(Err(PerfError::Panicked));
        let peer_sent = heard?.iter().fold(0u64, |sum, &count| sum.saturating_add(count));
        let work = work?;
        control.say(&Message::Sent { messages: vec![work.sent] })?;
        Ok((vec![work], Histogram::default(), peer_sent))
    })
}

/// Both ends in this process: a thread is the server.
///
/// # Errors
///
/// Whatever stands in the way of either.
pub(super) fn in_this_process<T>(
    mut server: Host,
    client: impl FnOnce(&mut Control) -> Result<T, PerfError>,
) -> Result<T, PerfError> {
    let (mut control, mut other) = Control::pair()?;
    thread::scope(|scope| {
        let serving = scope.spawn(move || serve(&mut server, &mut other));
        let result = control.greet().map_err(PerfError::from).and_then(|()| client(&mut control));
        drop(control);
        let served = serving.join().unwrap_or(Err(PerfError::Panicked));
        match (result, served) {
            (Ok(value), Ok(())) => Ok(value),
            // What the server could tell, the client has heard.
            (Err(error), _) | (Ok(_), Err(error)) => Err(error),
        }
    })
}

/// How long the threads of an end took, all in all.
pub(super) fn elapsed(work: &[Work]) -> Duration {
    let spans = || work.iter().filter_map(|work| work.span);
    let start = spans().map(|span| span.0).min();
    let end = spans().map(|span| span.1).max();
    start.zip(end).map_or(Duration::ZERO, |(start, end)| end.saturating_duration_since(start))
}
