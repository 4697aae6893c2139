//! A fixed sequence of messages between two engines, of which the test `instructions` has valgrind
//! count the instructions.
//!
//! `fixed_sequence CASE` runs one case and prints the packets that it took; without an argument it
//! names the cases. Only [`counted`] is counted.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use rxe_bench::{Message, Pair, Result};
use rxe_core::qp::Mtu;

/// Messages before those that count: windows are open then, and queues have their memory.
const WARM_UP: usize = 50;

/// One case: what is sent, how long each message is, how many go at a time, and how often.
struct Case {
    name: &'static str,
    message: Message,
    len: u32,
    at_once: usize,
    times: usize,
}

/// The path MTU of all.
const MTU: Mtu = Mtu::M1024;

const CASES: [Case; 7] = [
    case("send-8", Message::Send, 8, 1, 400),
    case("write-8", Message::Write, 8, 1, 400),
    case("write-8-of-16", Message::Write, 8, 16, 50),
    case("read-8", Message::Read, 8, 1, 400),
    case("send-64k", Message::Send, 65_536, 1, 20),
    case("write-64k", Message::Write, 65_536, 1, 20),
    case("read-64k", Message::Read, 65_536, 1, 20),
];

const fn case(
    name: &'static str,
    message: Message,
    len: u32,
    at_once: usize,
    times: usize,
) -> Case {
    Case { name, message, len, at_once, times }
}

/// So many rounds of a case.
fn rounds(pair: &mut Pair, case: &Case, times: usize) -> Result<()> {
    for _ in 0..times {
        pair.step();
        for _ in 0..case.at_once {
            pair.post(case.message, case.len)?;
        }
        pair.carry();
        pair.complete(case.at_once)?;
    }
    Ok(())
}

/// What is counted.
#[inline(never)]
fn counted(pair: &mut Pair, case: &Case) -> Result<u64> {
    let before = pair.wire.carried;
    rounds(pair, case, case.times)?;
    Ok(pair.wire.carried - before)
}

fn run() -> Result<()> {
    let Some(name) = std::env::args().nth(1) else {
        CASES.iter().for_each(|case| println!("{}", case.name));
        return Ok(());
    };
    let case = CASES.iter().find(|case| case.name == name).ok_or("there is no such case")?;
    let mut pair = Pair::new(MTU)?;
    rounds(&mut pair, case, WARM_UP)?;
    println!("{}", counted(&mut pair, case)?);
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fixed_sequence: {error}");
            ExitCode::FAILURE
        }
    }
}
