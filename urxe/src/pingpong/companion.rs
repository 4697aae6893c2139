//! The TCP connection after the exchange: how two ends of urxe know of each other while they play.
//!
//! `ibv_rc_pingpong` closes the connection right after the exchange. An end of urxe keeps it, and
//! says that it does so (`urxe` and a NUL) when the first message of the game has come: then the
//! other end has left the exchange behind, and will not take the word for a part of it. With all
//! its completions it says `bye` and a NUL. So an end that goes without a `bye` is found out.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};

use super::exchange::{self, ExchangeError};

const HELLO: &[u8] = b"urxe\0";
const BYE: &[u8] = b"bye\0";
/// What both ends of `ibv_xsrq_pingpong` say at the end.
const END: &[u8] = b"END\0";
/// Bytes heard at most; what another program says beyond that is of no interest.
const HEARD_MAX: usize = 16;

/// How the other end is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Peer {
    /// It keeps the connection.
    Playing,
    /// It has all its completions and needs nothing more from us.
    Finished,
    /// It closed the connection, as `ibv_rc_pingpong` does: nothing can be known.
    Unknown,
    /// It would have said so at its end, and ended before it had all its completions.
    Gone,
}

/// The other end, over TCP.
#[derive(Debug)]
pub(super) struct Companion {
    stream: TcpStream,
    heard: Vec<u8>,
    is_closed: bool,
    /// The other end keeps the connection till it has said END, whoever it is.
    stays: bool,
}

impl Companion {
    /// Keeps the connection of an exchange that is over.
    pub(super) const fn new(stream: TcpStream) -> Self {
        Self { stream, heard: Vec::new(), is_closed: false, stays: false }
    }

    /// Keeps the connection to an end that plays as `ibv_xsrq_pingpong` does.
    pub(super) fn staying(stream: TcpStream) -> Self {
        Self { stays: true, ..Self::new(stream) }
    }

    /// Says that we keep the connection. Not before a message of the game has come.
    pub(super) fn say_hello(&mut self) {
        if !self.stays {
            self.say(HELLO);
        }
    }

    /// Says that we need nothing more, as `ibv_xsrq_pingpong` does.
    pub(super) fn say_end(&mut self) {
        self.say(END);
    }

    /// Hears that the other end needs nothing more. It may wait for its other clients, however long
    /// they take.
    pub(super) fn wait_end(&mut self) -> Result<(), ExchangeError> {
        let mut left = [0; END.len()];
        let left = &mut left[self.heard.len().min(END.len())..];
        exchange::read_checked(&mut self.stream, left, |_, _| true)?;
        self.heard.extend_from_slice(left);
        if self.heard == END { Ok(()) } else { Err(exchange::garbage(&self.heard)) }
    }

    /// Says that we have all our completions.
    pub(super) fn say_bye(&mut self) {
        self.say(BYE);
        // Nothing more is said, whether or not it was heard.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    fn say(&mut self, word: &[u8]) {
        // An end that has closed the connection need not hear it.
        if let Err(error) = self.stream.write_all(word) {
            tracing::debug!(target: "urxe", %error, "the other end does not listen any more");
        }
    }

    /// Hears how the other end is doing. Never blocks.
    pub(super) fn peer(&mut self) -> Peer {
        self.hear();
        if self.stays {
            return match (self.heard == END, self.is_closed) {
                (true, _) => Peer::Finished,
                (false, true) => Peer::Gone,
                (false, false) => Peer::Playing,
            };
        }
        let said_hello = self.heard.starts_with(HELLO);
        let said_bye = said_hello && self.heard[HELLO.len()..].starts_with(BYE);
        match (said_bye, self.is_closed, said_hello) {
            (true, ..) => Peer::Finished,
            (false, false, _) => Peer::Playing,
            (false, true, true) => Peer::Gone,
            (false, true, false) => Peer::Unknown,
        }
    }

    fn hear(&mut self) {
        let mut bytes = [0; HEARD_MAX];
        while !self.is_closed && self.heard.len() < HEARD_MAX {
            let got = self.stream.set_nonblocking(true).and_then(|()| self.stream.read(&mut bytes));
            match got {
                Ok(count) if count > 0 => self.heard.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // A broken connection tells no more than a closed one.
                Ok(_) | Err(_) => self.is_closed = true,
            }
        }
        // What we say must leave whole.
        if self.stream.set_nonblocking(false).is_err() {
            self.is_closed = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Both ends of a connection.
    fn pair() -> (Companion, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
        let other = TcpStream::connect(listener.local_addr().expect("address")).expect("tcp");
        let (stream, _) = listener.accept().expect("accepts");
        (Companion::new(stream), other)
    }

    /// What becomes of the other end in the end, as what it said is under way for a while.
    fn settled(companion: &mut Companion) -> Peer {
        loop {
            match companion.peer() {
                Peer::Playing => std::thread::yield_now(),
                other => return other,
            }
        }
    }

    #[test]
    fn an_end_that_closes_after_the_exchange_is_unknown() {
        let (mut companion, other) = pair();
        assert_eq!(companion.peer(), Peer::Playing);
        drop(other);
        assert_eq!(settled(&mut companion), Peer::Unknown);
        // Saying something to it does no harm.
        companion.say_hello();
        companion.say_bye();
        assert_eq!(companion.peer(), Peer::Unknown);
    }

    #[test]
    fn an_end_that_stays_says_end_or_is_gone() {
        for (word, is_end) in [(END, true), (b"EN".as_slice(), false), (b"ENDE", false)] {
            for looks in [false, true] {
                let (companion, mut other) = pair();
                let mut companion = Companion::staying(companion.stream);
                other.write_all(word).expect("writes");
                drop(other);
                if looks {
                    let wanted = if is_end { Peer::Finished } else { Peer::Gone };
                    assert_eq!(settled(&mut companion), wanted);
                }
                assert_eq!(companion.wait_end().is_ok(), is_end, "{word:?}");
            }
        }
    }

    #[test]
    fn an_end_of_urxe_finishes_or_is_gone() {
        for (says_bye, wanted) in [(true, Peer::Finished), (false, Peer::Gone)] {
            let (mut companion, other) = pair();
            let mut other = Companion::new(other);
            other.say_hello();
            if says_bye {
                other.say_bye();
            }
            drop(other);
            assert_eq!(settled(&mut companion), wanted);
        }
    }
}
