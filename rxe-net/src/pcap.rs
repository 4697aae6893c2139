//! `URXE_PCAP=FILE`: every packet that a link sends or receives, in a file for Wireshark.
//!
//! A link holds a [`Capture`], shared with the other links of the process, and opens a
//! [`CaptureBatch`] for each batch that it sends or receives. The records of a batch are gathered
//! and handed to the system in one `write(2)` when the batch ends. So a process that is killed,
//! or leaves by `_exit(2)` without running a destructor, has everything but the batch at hand in
//! its file, and the file ends with a whole record: there is no other buffer, and no timer.

mod file;
mod frame;

use std::ffi::OsString;
use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rxe_core::time::Instant;

pub use frame::CapturedPacket;

/// The environment variable that names the file.
pub const PCAP_VARIABLE: &str = "URXE_PCAP";

/// Records of one batch beyond this many bytes are written before it ends.
const BUFFER_MAX: usize = 256 * 1024;

/// A capture file that could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenCaptureError {
    /// The file cannot be made or written.
    #[error(
        "cannot write packets to {}: {PCAP_VARIABLE} needs a file in a directory that this \
         process may write to", path.display()
    )]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another process is writing to it.
    #[error(
        "cannot write packets to {}: another process does; put %p into {PCAP_VARIABLE}, which \
         becomes the process id", path.display()
    )]
    InUse {
        /// The file.
        path: PathBuf,
    },
}

/// How far a capture has come.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CaptureStats {
    /// Packets written.
    pub written: u64,
    /// Packets not written: after a write error, or because they have no frame.
    pub lost: u64,
}

/// A file that packets are written to, for all links of a process.
///
/// A write error ends the capture, never the traffic: it is told once in the log, and
/// [`Capture::stats`] counts what is missing from then on.
pub struct Capture {
    /// What instant zero is, since the Unix epoch.
    epoch: Duration,
    state: Mutex<State>,
}

struct State {
    /// `None` after a write error.
    out: Option<Box<dyn Write + Send>>,
    /// Where it goes, for messages.
    name: String,
    /// Records not yet written, and how many they are.
    buffer: Vec<u8>,
    buffered: u64,
    /// Where frames are built.
    frame: Vec<u8>,
    stats: CaptureStats,
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capture").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

impl Capture {
    /// The capture that `URXE_PCAP` asks for; `None` when it is unset or empty.
    ///
    /// `epoch` is the time since the Unix epoch of the instant zero that links are given.
    ///
    /// # Errors
    ///
    /// [`OpenCaptureError`], when the file cannot be had.
    pub fn from_env(epoch: Duration) -> Result<Option<Self>, OpenCaptureError> {
        match std::env::var_os(PCAP_VARIABLE) {
            Some(name) if !name.is_empty() => {
                Self::create(&expand_process_id(&name, std::process::id()), epoch).map(Some)
            }
            Some(_) | None => Ok(None),
        }
    }

    /// Makes the file, or empties it, and writes the header of the format.
    ///
    /// It stays locked (`flock(2)`) while the capture lives, so that no second process writes
    /// into it. A pipe is written to as well, for `tshark -i`.
    ///
    /// # Errors
    ///
    /// [`OpenCaptureError`], when the file cannot be had.
    pub fn create(path: &FilePath, epoch: Duration) -> Result<Self, OpenCaptureError> {
        let failed = |source| OpenCaptureError::Open { path: path.to_owned(), source };
        // Truncated only once it is ours: another process may be writing.
        let options = OpenOptions::new().write(true).create(true).truncate(false).to_owned();
        let file = options.open(path).map_err(failed)?;
        if file.metadata().map_err(failed)?.is_file() {
            claim(&file, path)?;
            file.set_len(0).map_err(failed)?;
        }
        Self::with_writer(Box::new(Descriptor(file)), path.display().to_string(), epoch)
            .map_err(failed)
    }

    /// A capture into anything that can be written to, such as memory.
    ///
    /// `name` stands for it in messages.
    ///
    /// # Errors
    ///
    /// Those of writing the header.
    pub fn with_writer(
        mut out: Box<dyn Write + Send>,
        name: String,
        epoch: Duration,
    ) -> io::Result<Self> {
        out.write_all(&file::file_header())?;
        out.flush()?;
        let state = State {
            out: Some(out),
            name,
            buffer: Vec::new(),
            buffered: 0,
            frame: Vec::new(),
            stats: CaptureStats::default(),
        };
        Ok(Self { epoch, state: Mutex::new(state) })
    }

    /// Begins a batch of packets, all of the time `now`; they are written when it is dropped.
    ///
    /// Other links wait meanwhile: keep it no longer than the batch takes.
    pub fn batch(&self, now: Instant) -> CaptureBatch<'_> {
        let time = self.epoch.saturating_add(Duration::from_nanos(now.as_nanos()));
        CaptureBatch { time, state: self.state.lock() }
    }

    /// How far it has come.
    pub fn stats(&self) -> CaptureStats {
        self.state.lock().stats
    }
}

/// The packets of one batch, on their way into a [`Capture`].
pub struct CaptureBatch<'c> {
    time: Duration,
    state: MutexGuard<'c, State>,
}

impl fmt::Debug for CaptureBatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CaptureBatch").field("time", &self.time).finish_non_exhaustive()
    }
}

impl CaptureBatch<'_> {
    /// Records a packet that a link knows from BTH on: the headers below are made up for it.
    pub fn packet(&mut self, packet: &CapturedPacket<'_>) {
        let state = &mut *self.state;
        if state.out.is_none() {
            state.stats.lost += 1;
            return;
        }
        let mut frame = std::mem::take(&mut state.frame);
        frame.clear();
        match packet.write_frame(&mut frame) {
            Ok(()) => self.frame(&frame),
            Err(error) => {
                // Only a packet of addresses that cannot go together: of mixed IP versions.
                tracing::debug!(%error, ?packet, "a packet that has no frame is not captured");
                self.state.stats.lost += 1;
            }
        }
        self.state.frame = frame;
    }

    /// Records a whole Ethernet frame, without its frame check sequence.
    pub fn frame(&mut self, frame: &[u8]) {
        let state = &mut *self.state;
        if state.out.is_none() {
            state.stats.lost += 1;
            return;
        }
        file::append_record(&mut state.buffer, self.time, frame);
        state.buffered += 1;
        if state.buffer.len() >= BUFFER_MAX {
            state.write_out();
        }
    }
}

impl Drop for CaptureBatch<'_> {
    fn drop(&mut self) {
        self.state.write_out();
    }
}

impl State {
    /// Hands the buffered records to the system; after an error the capture is over.
    fn write_out(&mut self) {
        if self.buffer.is_empty() {
            return;
        }
        let Some(out) = &mut self.out else { return };
        // A file does not buffer; flushing is for other writers.
        match out.write_all(&self.buffer).and_then(|()| out.flush()) {
            Ok(()) => self.stats.written += self.buffered,
            Err(error) => {
                tracing::warn!(%error, file = self.name, "the capture of packets stops here");
                self.stats.lost += self.buffered;
                self.out = None;
            }
        }
        self.buffered = 0;
        self.buffer.clear();
    }
}

/// A file that is written to by system calls, not by the C library's function: that is a
/// cancellation point, and whoever writes has a shard's lock (see `udp/sys.rs`).
struct Descriptor(File);

impl Write for Descriptor {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(&self.0, bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Locks a file for this process, or says that another has it.
fn claim(file: &File, path: &FilePath) -> Result<(), OpenCaptureError> {
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(OpenCaptureError::InUse { path: path.to_owned() }),
        // Some network file systems have no locks; the capture does not need it there.
        Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => Ok(()),
        Err(TryLockError::Error(source)) => {
            Err(OpenCaptureError::Open { path: path.to_owned(), source })
        }
    }
}

/// The file that a name stands for: `%p` becomes the process id, and nothing else changes.
fn expand_process_id(name: &OsString, process_id: u32) -> PathBuf {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};

    let mut expanded = Vec::new();
    let mut rest = name.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        if let Some(after) = rest.strip_prefix(b"%p") {
            expanded.extend(process_id.to_string().into_bytes());
            rest = after;
        } else {
            expanded.push(byte);
            rest = after;
        }
    }
    PathBuf::from(OsString::from_vec(expanded))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pcap_file::pcap::PcapReader;
    use rxe_core::path::Path;
    use rxe_wire::icrc::IcrcFlow;
    use rxe_wire::net::Frame;

    use super::*;

    /// A file in memory that a test can read, and that fails when told to.
    #[derive(Clone, Default)]
    struct Memory(Arc<Mutex<(Vec<u8>, bool)>>);

    impl Write for Memory {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let (file, is_full) = &mut *self.0.lock();
            if *is_full {
                return Err(io::ErrorKind::StorageFull.into());
            }
            file.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Memory {
        fn capture(&self) -> Capture {
            let epoch = Duration::from_secs(1_700_000_000);
            Capture::with_writer(Box::new(self.clone()), "memory".to_owned(), epoch).expect("room")
        }

        fn packets(&self) -> Vec<(Duration, Vec<u8>)> {
            let file = self.0.lock().0.clone();
            let mut reader = PcapReader::new(file.as_slice()).expect("a header");
            let mut packets = Vec::new();
            while let Some(packet) = reader.next_packet() {
                let packet = packet.expect("a whole record");
                packets.push((packet.timestamp, packet.data.into_owned()));
            }
            packets
        }
    }

    fn path(source: &str, destination: &str) -> Path {
        Path::new(source.parse().expect("a GID"), destination.parse().expect("a GID"))
    }

    /// An acknowledgement, sealed as segment 3 of a send over IPv4.
    fn sealed() -> Vec<u8> {
        let mut packet = vec![0x11, 0, 0xff, 0xff, 0, 0, 0, 9, 0, 0, 0, 1, 0x1f, 0, 0, 1];
        let flow = IcrcFlow::v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 0xc001);
        packet.extend(flow.icrc(3, &packet).to_le_bytes());
        packet
    }

    fn captured<'p>(path: &'p Path, sealed: &'p [u8]) -> CapturedPacket<'p> {
        CapturedPacket { path, source_port: 0xc001, identification: 3, dont_fragment: true, sealed }
    }

    #[test]
    fn a_packet_is_written_as_it_was_on_the_wire() {
        let memory = Memory::default();
        let capture = memory.capture();
        let path = path("10.0.0.1", "10.0.0.2");
        let sealed = sealed();
        capture.batch(Instant::from_nanos(5)).packet(&captured(&path, &sealed));

        let packets = memory.packets();
        let [(time, bytes)] = packets.as_slice() else { panic!("one packet: {packets:?}") };
        assert_eq!(*time, Duration::new(1_700_000_000, 5));
        let frame = Frame::parse_ethernet(bytes).expect("a frame");
        assert_eq!(frame.roce, &sealed[..16]);
        assert!(frame.icrc().expect("has one").is_good());
        assert_eq!(&bytes[..12], [2, 0, 10, 0, 0, 2, 2, 0, 10, 0, 0, 1]);
        assert_eq!(capture.stats(), CaptureStats { written: 1, lost: 0 });
    }

    #[test]
    fn a_batch_is_in_the_file_when_it_ends() {
        let memory = Memory::default();
        let capture = memory.capture();
        let mut batch = capture.batch(Instant::ZERO);
        batch.frame(&[1; 60]);
        batch.frame(&[2; 60]);
        assert_eq!(memory.packets().len(), 0);
        drop(batch);
        assert_eq!(memory.packets().len(), 2);
    }

    #[test]
    fn a_packet_without_a_frame_is_counted() {
        let memory = Memory::default();
        let capture = memory.capture();
        let mixed = path("10.0.0.1", "fd00::2");
        capture.batch(Instant::ZERO).packet(&captured(&mixed, &sealed()));
        capture.batch(Instant::ZERO).packet(&captured(&path("10.0.0.1", "10.0.0.2"), &[1; 3]));
        assert_eq!(capture.stats(), CaptureStats { written: 0, lost: 2 });
    }

    #[test]
    fn a_write_error_stops_the_capture_and_nothing_else() {
        let memory = Memory::default();
        let capture = memory.capture();
        capture.batch(Instant::ZERO).frame(&[1; 60]);
        memory.0.lock().1 = true;
        capture.batch(Instant::ZERO).frame(&[2; 60]);
        memory.0.lock().1 = false;
        capture.batch(Instant::ZERO).frame(&[3; 60]);
        assert_eq!(memory.packets().len(), 1);
        assert_eq!(capture.stats(), CaptureStats { written: 1, lost: 2 });
    }

    #[test]
    fn a_name_gets_the_process_id() {
        let expanded = |name: &str| expand_process_id(&OsString::from(name), 42);
        assert_eq!(expanded("/tmp/%p-%%p.%x.pcap"), PathBuf::from("/tmp/42-%42.%x.pcap"));
        assert_eq!(expanded("plain"), PathBuf::from("plain"));
    }

    fn scratch_file(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("urxe-{name}-{}.pcap", std::process::id()))
    }

    #[test]
    fn a_file_is_emptied_and_belongs_to_one_process() {
        let path = scratch_file("owned");
        std::fs::write(&path, [7; 1000]).expect("a scratch file");
        let capture = Capture::create(&path, Duration::ZERO).expect("a capture");
        assert_eq!(std::fs::metadata(&path).expect("there").len(), 24);
        capture.batch(Instant::ZERO).frame(&[1; 60]);
        let error = Capture::create(&path, Duration::ZERO).expect_err("in use");
        assert!(error.to_string().contains("%p"), "{error}");
        assert_eq!(std::fs::metadata(&path).expect("there").len(), 24 + 16 + 60);
        drop(capture);
        Capture::create(&path, Duration::ZERO).expect("free again");
        std::fs::remove_file(&path).expect("there");
    }

    #[test]
    fn a_file_that_cannot_be_made_is_told() {
        let path = FilePath::new("/nonexistent/urxe.pcap");
        let error = Capture::create(path, Duration::ZERO).expect_err("no such directory");
        assert!(error.to_string().contains("/nonexistent/urxe.pcap"), "{error}");
    }
}
