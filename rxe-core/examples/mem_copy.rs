//! What a copy in and out of registered memory costs, beside a plain copy.
//!
//! `cargo run --release -p rxe-core --example mem_copy` prints nanoseconds a copy, the best of many
//! rounds, in two places: within the first-level cache, and through 64 MiB, as far as caches reach;
//! then what it costs to catch a fault, and to be ready for one.

use std::hint::black_box;
use std::time::Instant;

use rxe_core::mem::{Backing, DmaBuf, UserMemory, catch_faults};

const SIZES: [usize; 6] = [8, 64, 100, 1024, 4096, 65536];
const ROUNDS: usize = 40;

/// Nanoseconds for each of `count` calls, in the best round.
fn best(count: usize, mut call: impl FnMut(usize)) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for index in 0..count {
            call(index);
        }
        best = best.min(start.elapsed().as_nanos() as f64 / count as f64);
    }
    best
}

fn main() {
    for (name, span) in [("in cache", 16 << 10), ("through 64 MiB", 64 << 20)] {
        println!("{name}: ns a copy");
        println!(
            "{:>7} {:>9} {:>9} {:>9} {:>12} {:>12}",
            "bytes", "memcpy", "in", "out", "in/memcpy", "out/memcpy"
        );
        for size in SIZES {
            let places = (span / size).max(1);
            let count = if span > 1 << 20 { places.min(20_000) } else { 20_000_000 / (size + 256) };
            let registered = DmaBuf::zeroed(places * size);
            let mut plain = vec![1_u8; places * size];
            let mut private = vec![0_u8; size];
            let at = |index: usize| (index % places) * size;
            let memcpy = best(count, |index| {
                let at = at(index);
                plain[at..at + size].copy_from_slice(black_box(&private));
            });
            let into = best(count, |index| {
                registered.write_at(at(index), black_box(&private)).expect("it is inside");
            });
            let out = best(count, |index| {
                registered.read_at(at(index), black_box(&mut private)).expect("it is inside");
            });
            println!(
                "{size:>7} {memcpy:>9.2} {into:>9.2} {out:>9.2} {:>12.2} {:>12.2}",
                into / memcpy,
                out / memcpy
            );
        }
    }
    faults();
}

fn faults() {
    catch_faults().expect("handlers can be installed");
    let again = best(1000, |_| catch_faults().expect("they are there"));
    // SAFETY: faults are caught, and nobody is at this address.
    let nowhere = unsafe { UserMemory::new(std::ptr::null_mut(), 4096) }.expect("it fits");
    let nowhere: &dyn Backing = &nowhere;
    let fault = best(1000, |_| assert!(nowhere.write_at(8, &[1; 8]).is_err()));
    println!("a fault: {fault:.0} ns; catch_faults once more: {again:.0} ns");
}
