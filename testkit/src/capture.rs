//! Capturing what crosses an interface, with dumpcap.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use thiserror::Error;

use crate::netns::{INTERFACE, Namespace, NetnsError, Side};
use crate::process::{ProcessError, Running};
use crate::tshark::Tshark;

/// RoCEv2 on UDP and RoCEv1.
const ROCE: &str = "udp port 4791 or ether proto 0x8915";
/// The end of a capture is marked by a packet to this port: a program that captures gets packets
/// late, and one that is stopped forgets what it has not got.
const MARK_PORT: u16 = 9;
/// What the marking packet carries.
const MARK: &[u8] = b"urxe: the end of this capture";
/// The time for dumpcap to start, to see the mark, and to stop.
const LIMIT: Duration = Duration::from_secs(30);

/// Why there is no capture.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// dumpcap or tshark failed.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The mark could not be sent.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// The capture could not be read.
    #[error("the capture: {0}")]
    Io(#[from] io::Error),
    /// Packets are missing in the capture.
    #[error("the capture is not whole:\n{0}")]
    NotWhole(String),
}

/// A capture that runs.
#[derive(Debug)]
pub struct PacketCapture {
    dumpcap: Running,
    raw: PathBuf,
    file: PathBuf,
}

impl PacketCapture {
    /// Starts to capture the RoCE packets at the interface of a namespace, in both directions, into
    /// `file`. It runs when this returns.
    ///
    /// # Errors
    ///
    /// That dumpcap does not start.
    pub fn start(namespace: &Namespace, file: &Path) -> Result<Self, CaptureError> {
        let raw = file.with_extension("raw");
        let filter = format!("{ROCE} or udp port {MARK_PORT}");
        // Not tcpdump: it wants to change its user, which a user namespace does not allow.
        let mut command = namespace.command("dumpcap");
        // A classic pcap file, and 64 MiB of room for bursts.
        command.args(["-P", "-B", "64", "-i", INTERFACE, "-f", &filter, "-w"]).arg(&raw);
        let mut dumpcap = Running::start("dumpcap", &mut command)?;
        dumpcap.wait_for_text("File: ", LIMIT)?;
        Ok(Self { dumpcap, raw, file: file.to_owned() })
    }

    /// Ends the capture, with everything in it that crossed the interface before. `namespace` and
    /// `side` are those of the interface.
    ///
    /// # Errors
    ///
    /// That dumpcap fails, or has missed packets.
    pub fn stop(self, namespace: &Namespace, side: Side) -> Result<PathBuf, CaptureError> {
        let peer = match side {
            Side::Left => Side::Right.ipv4(),
            Side::Right => Side::Left.ipv4(),
        };
        let mark = String::from_utf8_lossy(MARK);
        let send = format!("printf '%s' '{mark}' > /dev/udp/{peer}/{MARK_PORT}");
        namespace.tool("bash", ["-c", &send])?;
        let deadline = Instant::now() + LIMIT;
        while !contains(&fs::read(&self.raw)?, MARK) {
            if Instant::now() >= deadline {
                return Err(CaptureError::NotWhole(self.dumpcap.printed()));
            }
            thread::sleep(Duration::from_millis(20));
        }
        self.dumpcap.interrupt()?;
        let finished = self.dumpcap.wait(LIMIT)?.success()?;
        if !finished.stderr.contains("/0 (pcap:0/dumpcap:0/") {
            return Err(CaptureError::NotWhole(finished.stderr));
        }
        let no_mark = format!("!(udp.dstport == {MARK_PORT})");
        Tshark::new(&self.raw).extract(&no_mark, &self.file)?;
        fs::remove_file(&self.raw)?;
        Ok(self.file)
    }
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::{Joined, VethOptions, with_namespaces};
    use crate::scratch::Scratch;

    #[test]
    fn a_capture_holds_the_packets_of_its_port_alone() {
        with_namespaces("capture::tests::a_capture_holds_the_packets_of_its_port_alone", || {
            let joined = Joined::new(VethOptions::default()).unwrap();
            let scratch = Scratch::new("capture").unwrap();
            let capture = PacketCapture::start(&joined.left, &scratch.file("x.pcap")).unwrap();
            let send = "for p in 4790 4791 4791; do echo x > /dev/udp/10.77.0.2/$p; done";
            joined.left.tool("bash", ["-c", send]).unwrap();
            let file = capture.stop(&joined.left, Side::Left).unwrap();
            let rows = Tshark::new(&file).fields("", &["udp.dstport", "ip.dst"]).unwrap();
            assert_eq!(rows, [["4791", "10.77.0.2"], ["4791", "10.77.0.2"]]);
            assert_eq!(Tshark::new(&file).count("infiniband").unwrap(), 2);
            // Two bytes are no RoCE packet.
            assert_eq!(Tshark::new(&file).malformed().unwrap().len(), 2);
        });
    }
}
