//! The inner loops of the wire formats: parsing, building, the iCRC.
//!
//! `cargo bench -p rxe-wire`.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rxe_wire::hdr::{Aeth, Bth, Reth};
use rxe_wire::icrc::IcrcFlow;
use rxe_wire::{Headers, Msn, Opcode, PKey, Packet, Psn, Qpn, RKey, Syndrome};

/// Payloads of the packets whose iCRC is made.
const PAYLOADS: [usize; 5] = [0, 64, 256, 1024, 4096];

/// Headers of the packets that RC has most of, with their names.
fn headers() -> [(&'static str, Headers); 3] {
    let bth = |opcode| Bth {
        opcode: Opcode::new(opcode),
        pkey: PKey::new(0xffff),
        dest_qpn: Qpn::new(0x01_0203),
        psn: Psn::new(77),
        ..Bth::default()
    };
    let reth = Reth { va: 1 << 40, rkey: RKey::new(0x1234), len: 4096 };
    let aeth = Aeth { syndrome: Syndrome::ack(31), msn: Msn::new(7) };
    // By the codes of the specification: WRITE middle and first, acknowledge.
    [
        ("WRITE middle", Headers::new(bth(0x07))),
        ("WRITE first", Headers { reth: Some(reth), ..Headers::new(bth(0x06)) }),
        ("ACK", Headers { aeth: Some(aeth), ..Headers::new(bth(0x11)) }),
    ]
}

fn build_and_parse(c: &mut Criterion) {
    let mut group = c.benchmark_group("headers");
    for (name, headers) in headers() {
        let mut packet = vec![0; headers.len()];
        group.bench_function(BenchmarkId::new("build", name), |b| {
            b.iter(|| black_box(&headers).write(black_box(&mut packet)));
        });
        group.bench_function(BenchmarkId::new("parse", name), |b| {
            b.iter(|| {
                let packet = Packet::parse(black_box(&packet)).expect("it is one");
                (packet.reth(), packet.aeth())
            });
        });
    }
    group.finish();
}

fn icrc(c: &mut Criterion) {
    let flow = IcrcFlow::v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 0xc000);
    let mut group = c.benchmark_group("iCRC");
    for payload in PAYLOADS {
        let packet = vec![0x5a; Bth::LEN + payload];
        group.throughput(Throughput::Bytes(packet.len() as u64));
        group.bench_function(BenchmarkId::new("make", payload), |b| {
            b.iter(|| flow.icrc(0, black_box(&packet)));
        });
        let right = flow.icrc(0, &packet);
        group.bench_function(BenchmarkId::new("check", payload), |b| {
            b.iter(|| flow.identify(black_box(&packet), right));
        });
    }
    group.finish();
}

criterion_group!(benches, build_and_parse, icrc);
criterion_main!(benches);
