//! How two ends talk about their measurements: JSON objects, one a line.
//!
//! Over TCP where they are two processes, over a pair of connected sockets where they are two
//! threads of one. It is for two of urxe: it has a version, and no other program speaks it.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::limits::Limit;
use super::load::Load;
use super::report::Figures;

/// The version of these messages.
pub(super) const VERSION: u32 = 2;
/// Bytes of a line at most: the queue pairs of an end take some 80 each.
const LINE_MAX: u64 = 1 << 20;
/// How long the other end may take for a step that is none of measuring.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// Why the two ends do not understand each other.
#[derive(Debug, Error)]
pub(super) enum ControlError {
    #[error("the other end closed the TCP connection: see what it says there")]
    Closed,
    #[error("the other end said nothing for {:.0} seconds: is it urxe perf?", .0.as_secs_f64())]
    Silent(Duration),
    #[error("the TCP connection to the other end broke: {0}")]
    Broken(#[source] io::Error),
    #[error("the other end said {got:?}, but {wanted} was wanted: is it urxe perf?")]
    Unexpected { got: String, wanted: &'static str },
    #[error(
        "the other end speaks version {theirs} of urxe perf, this is version {VERSION}: use the \
         same urxe at both"
    )]
    Version { theirs: u32 },
    #[error("at the other end: {0}")]
    Peer(String),
}

/// One queue pair, as the other end must know it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Place {
    pub qpn: u32,
    pub psn: u32,
    pub rkey: u32,
    /// Where messages go to.
    pub target: u64,
    /// Where READs come from.
    pub source: u64,
}

/// What is said.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub(super) enum Message {
    /// First, from both.
    Hello { version: u32 },
    /// The client: measure this.
    Load { load: Load, mtu: u32 },
    /// Where an end is: its GID, as hex digits, and its queue pairs.
    Places { gid: String, places: Vec<Place> },
    /// All queue pairs are connected, and the receives posted.
    Ready,
    /// This end has sent all that it sends: so much, thread by thread, and all is complete.
    Sent { messages: Vec<u64> },
    /// What this end measured.
    Measured { figures: Figures },
    /// The client: listen at this address of yours, for me to measure what sockets carry.
    Limit { limit: Limit, at: IpAddr },
    /// There it is.
    Listening { port: u16 },
    /// The client has measured it.
    Over,
    /// What came of it, where the server counts.
    Carried { bytes: u64, seconds: f64 },
    /// This end cannot go on.
    Failed { why: String },
}

/// The connection.
#[derive(Debug)]
pub(super) struct Control {
    stream: BufReader<Stream>,
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Read for Stream {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(to),
            Self::Unix(stream) => stream.read(to),
        }
    }
}

impl Stream {
    fn set_patience(&self, patience: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_read_timeout(Some(patience)),
            Self::Unix(stream) => stream.set_read_timeout(Some(patience)),
        }
    }

    fn say(&mut self, line: &[u8]) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.write_all(line),
            Self::Unix(stream) => stream.write_all(line),
        }
    }
}

impl Control {
    /// Over TCP.
    pub(super) fn over(stream: TcpStream) -> Self {
        Self { stream: BufReader::new(Stream::Tcp(stream)) }
    }

    /// Both ends of a connection within this process.
    ///
    /// # Errors
    ///
    /// That of the system.
    pub(super) fn pair() -> Result<(Self, Self), ControlError> {
        let (one, two) = UnixStream::pair().map_err(ControlError::Broken)?;
        let over = |stream| Self { stream: BufReader::new(Stream::Unix(stream)) };
        Ok((over(one), over(two)))
    }

    /// Says something.
    pub(super) fn say(&mut self, message: &Message) -> Result<(), ControlError> {
        let mut line = serde_json::to_vec(message).map_err(|e| ControlError::Broken(e.into()))?;
        line.push(b'\n');
        self.stream.get_mut().say(&line).map_err(ControlError::Broken)
    }

    /// Hears what the other end says within this time; `None` when it has closed the connection.
    pub(super) fn hear(&mut self, patience: Duration) -> Result<Option<Message>, ControlError> {
        self.stream.get_ref().set_patience(patience).map_err(ControlError::Broken)?;
        let mut line = Vec::new();
        let read = (&mut self.stream).take(LINE_MAX).read_until(b'\n', &mut line);
        match read {
            Ok(0) => return Ok(None),
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Err(ControlError::Silent(patience));
            }
            Err(error) => return Err(ControlError::Broken(error)),
        }
        match serde_json::from_slice(&line) {
            Ok(Message::Failed { why }) => Err(ControlError::Peer(why)),
            Ok(message) => Ok(Some(message)),
            Err(_) => Err(unexpected(&line, "a message of urxe perf")),
        }
    }

    /// Hears something of which `wanted` is the name, and takes it apart.
    pub(super) fn expect<T>(
        &mut self,
        patience: Duration,
        wanted: &'static str,
        take: impl FnOnce(Message) -> Result<T, Message>,
    ) -> Result<T, ControlError> {
        let message = self.hear(patience)?.ok_or(ControlError::Closed)?;
        take(message).map_err(|other| {
            let text = serde_json::to_vec(&other).unwrap_or_default();
            unexpected(&text, wanted)
        })
    }

    /// Both say who they are.
    pub(super) fn greet(&mut self) -> Result<(), ControlError> {
        self.say(&Message::Hello { version: VERSION })?;
        let theirs = self.expect(PATIENCE, "a greeting", |message| match message {
            Message::Hello { version } => Ok(version),
            other => Err(other),
        })?;
        if theirs == VERSION { Ok(()) } else { Err(ControlError::Version { theirs }) }
    }
}

fn unexpected(got: &[u8], wanted: &'static str) -> ControlError {
    let shown = &got[..got.len().min(80)];
    ControlError::Unexpected { got: String::from_utf8_lossy(shown).trim_end().to_owned(), wanted }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What one hears when the other says these bytes and goes.
    fn heard(bytes: &[u8]) -> Result<Option<Message>, ControlError> {
        let (mut one, mut two) = Control::pair().expect("a pair");
        two.stream.get_mut().say(bytes).expect("said");
        drop(two);
        one.hear(Duration::from_secs(5))
    }

    #[test]
    fn messages_come_as_they_were_said() {
        let (mut one, mut two) = Control::pair().expect("a pair");
        let place = Place { qpn: 1, psn: 2, rkey: 3, target: u64::MAX, source: 5 };
        let message = Message::Places { gid: "ff".repeat(16), places: vec![place] };
        one.say(&message).expect("said");
        assert_eq!(two.hear(PATIENCE).expect("heard"), Some(message));
        one.say(&Message::Failed { why: "no".to_owned() }).expect("said");
        assert!(matches!(two.hear(PATIENCE), Err(ControlError::Peer(why)) if why == "no"));
        drop(one);
        assert_eq!(two.hear(PATIENCE).expect("heard"), None);
    }

    #[test]
    fn another_protocol_is_told() {
        let error = heard(b"SSH-2.0-x\r\n").expect_err("refused").to_string();
        assert!(error.contains("SSH-2.0"), "{error}");
        let cut = heard(b"{\"say\":\"ready\"").expect_err("refused");
        assert!(matches!(cut, ControlError::Unexpected { .. }), "{cut}");
    }

    #[test]
    fn another_version_is_told() {
        let (mut one, mut two) = Control::pair().expect("a pair");
        two.say(&Message::Hello { version: 7 }).expect("said");
        assert!(matches!(one.greet(), Err(ControlError::Version { theirs: 7 })));
    }
}
