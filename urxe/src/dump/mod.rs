//! `urxe dump`: what is in a capture, one line a packet, with every header and every iCRC checked.
//!
//! A capture is read record by record ([`capture`]), each is taken apart ([`decode`]) and written
//! as text ([`text`]) or JSON ([`json`]), or the messages of connection management are put together
//! ([`conversations`]); [`summary`] counts. Nothing in a capture makes it stop
//! but the end of the file: what is not RoCE, not whole or not well-formed is told.

mod capture;
mod cm_json;
mod conversations;
mod decode;
mod json;
mod names;
mod summary;
mod text;

use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use thiserror::Error;

use capture::{Capture, CaptureError, Record};
use conversations::Conversations;
use summary::Summary;

/// The exit status when an iCRC is bad.
const STATUS_BAD_ICRC: u8 = 1;
/// The exit status when the file cannot be read to its end (and clap's for bad usage).
const STATUS_ERROR: u8 = 2;

/// Arguments of `urxe dump`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Exit status: 0 when every iCRC is good, 1 when one is bad, 2 when the \
    arguments are wrong or the file cannot be read to its end. Times are of UTC.")]
pub(crate) struct Args {
    /// The capture, pcap or pcapng; - is the standard input.
    file: PathBuf,
    /// Write one JSON object a line, with every field.
    #[arg(long)]
    json: bool,
    /// Show the conversations of connection management instead of the packets: for each who connects
    /// to whom, its messages with their times, and what came of it.
    #[arg(long, conflicts_with = "verbose")]
    cm: bool,
    /// Show Ethernet addresses and the whole IP and UDP headers too.
    #[arg(short, long)]
    verbose: bool,
}

/// Why a dump ended before the end of the capture.
#[derive(Debug, Error)]
enum DumpError {
    #[error("cannot open the file: {0}")]
    Open(#[source] io::Error),
    #[error(transparent)]
    Capture(#[from] CaptureError),
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
}

/// Dumps a capture to the standard output, and says how it went.
pub(crate) fn run(args: &Args) -> ExitCode {
    let mut summary = Summary::default();
    let mut out = BufWriter::new(io::stdout().lock());
    let result = dump(args, &mut out, &mut summary);
    // What was read before an error is worth showing, so flush in any case.
    let flushed = out.flush().map_err(DumpError::Output);
    match result.and(flushed) {
        // Whoever reads has seen enough, as with `urxe dump FILE | head`.
        Err(DumpError::Output(error)) if error.kind() == ErrorKind::BrokenPipe => {}
        Err(error) => {
            eprintln!("urxe dump: {}: {error}", args.file.display());
            return ExitCode::from(STATUS_ERROR);
        }
        Ok(()) => {}
    }
    if summary.has_bad_icrc() { ExitCode::from(STATUS_BAD_ICRC) } else { ExitCode::SUCCESS }
}

/// Writes every packet and the summary. The summary is written also when the file breaks off.
fn dump(args: &Args, out: &mut impl Write, summary: &mut Summary) -> Result<(), DumpError> {
    let mut capture = Capture::new(open(&args.file)?)?;
    let mut conversations = Conversations::default();
    let end = loop {
        match capture.next() {
            Ok(Some(record)) => show(args, &record, out, summary, &mut conversations)?,
            Ok(None) => break Ok(()),
            Err(error) => break Err(error.into()),
        }
    };
    if args.json {
        conversations.write_json(out)?;
    } else {
        conversations.write_text(out)?;
    }
    if args.json {
        json::write_summary(summary, out)?;
    } else {
        writeln!(out, "{summary}")?;
    }
    end
}

fn open(path: &Path) -> Result<Box<dyn Read>, DumpError> {
    if path == Path::new("-") {
        return Ok(Box::new(io::stdin()));
    }
    let file = File::open(path).map_err(DumpError::Open)?;
    Ok(Box::new(file))
}

fn show(
    args: &Args,
    record: &Record,
    out: &mut impl Write,
    summary: &mut Summary,
    conversations: &mut Conversations,
) -> io::Result<()> {
    let content = decode::decode(record);
    summary.count(&content);
    if args.cm {
        conversations.take(record, &content);
        Ok(())
    } else if args.json {
        json::write_record(record, &content, out)
    } else {
        text::write_record(record, &content, args.verbose, out)
    }
}
