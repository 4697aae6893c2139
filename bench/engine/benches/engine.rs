//! The inner loops of the engine: requester, responder, completer, completions, copies.
//!
//! `cargo bench -p rxe-bench`. Each figure of the first four is of a whole message's packets: those
//! of 64 KiB in packets of 1 KiB are 64.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rxe_bench::{Message, Pair};
use rxe_core::mem::DmaBuf;
use rxe_core::qp::Mtu;

const SIZES: [u32; 3] = [8, 1024, 65_536];

/// The parts of a message's way, each timed by itself.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Building the packets of a request.
    Requester,
    /// Taking them in.
    Responder,
    /// Taking in what comes back.
    Completer,
    /// Taking out the completion.
    Poll,
}

/// How long a part of so many messages takes.
fn time(pair: &mut Pair, part: Part, message: Message, len: u32, count: u64) -> Duration {
    let mut total = Duration::ZERO;
    let mut timed = |wanted: Part, work: &mut dyn FnMut()| {
        let start = Instant::now();
        work();
        if wanted == part {
            total += start.elapsed();
        }
    };
    for _ in 0..count {
        pair.step();
        pair.post(message, len).expect("posted");
        let now = pair.now;
        timed(Part::Requester, &mut || pair.wire.take(now, &mut pair.one.shard));
        timed(Part::Responder, &mut || pair.wire.give(now, &mut pair.two.shard));
        pair.wire.take(now, &mut pair.two.shard);
        timed(Part::Completer, &mut || pair.wire.give(now, &mut pair.one.shard));
        // What the window did not let out at first.
        pair.carry();
        timed(Part::Poll, &mut || pair.complete(1).expect("completed"));
    }
    total
}

fn parts(c: &mut Criterion) {
    for (name, part) in [
        ("requester", Part::Requester),
        ("responder", Part::Responder),
        ("completer", Part::Completer),
        ("poll", Part::Poll),
    ] {
        let mut group = c.benchmark_group(name);
        for message in [Message::Send, Message::Write, Message::Read] {
            for len in SIZES {
                let mut pair = Pair::new(Mtu::M1024).expect("a pair");
                // Opens the window.
                (0..50).for_each(|_| pair.message(message, len).expect("carried"));
                group.throughput(Throughput::Bytes(len.into()));
                group.bench_function(BenchmarkId::new(format!("{message:?}"), len), |b| {
                    b.iter_custom(|count| time(&mut pair, part, message, len, count));
                });
            }
        }
        group.finish();
    }
}

fn whole(c: &mut Criterion) {
    let mut group = c.benchmark_group("message");
    for message in [Message::Send, Message::Write, Message::Read] {
        for len in SIZES {
            let mut pair = Pair::new(Mtu::M1024).expect("a pair");
            group.throughput(Throughput::Bytes(len.into()));
            group.bench_function(BenchmarkId::new(format!("{message:?}"), len), |b| {
                b.iter(|| pair.message(message, len).expect("carried"));
            });
        }
    }
    group.finish();
}

fn copies(c: &mut Criterion) {
    let memory = DmaBuf::zeroed(1 << 20);
    let mut bytes = vec![0x5a; 65_536];
    let mut group = c.benchmark_group("copy");
    for len in [8, 64, 1024, 4096, 65_536] {
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function(BenchmarkId::new("out of registered memory", len), |b| {
            b.iter(|| memory.read_at(0, black_box(&mut bytes[..len])));
        });
        group.bench_function(BenchmarkId::new("into registered memory", len), |b| {
            b.iter(|| memory.write_at(0, black_box(&bytes[..len])));
        });
    }
    group.finish();
}

criterion_group!(benches, parts, whole, copies);
criterion_main!(benches);
