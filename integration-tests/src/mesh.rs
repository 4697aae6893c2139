//! Several processes on one address, each exchanging messages with each other one: the program
//! `mesh-member`, led by a test.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use thiserror::Error;

/// For an answer, on a machine where many processes are busy.
const LIMIT: Duration = Duration::from_secs(30);

/// What a member did not do.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MeshError {
    /// The program cannot be started, or its streams cannot be used.
    #[error("member {member}: {source}")]
    Os {
        /// Its number.
        member: u32,
        /// The reason.
        source: io::Error,
    },
    /// It ended, or did not answer in time.
    #[error("member {member} did not answer `{order}`: {why}")]
    Silent {
        /// Its number.
        member: u32,
        /// The order.
        order: String,
        /// Whether it ended or was slow.
        why: RecvTimeoutError,
    },
    /// It answered something else.
    #[error("member {member} answered `{order}` with `{answer}`")]
    Answer {
        /// Its number.
        member: u32,
        /// The order.
        order: String,
        /// What it said.
        answer: String,
    },
}

/// What a member has seen.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Report {
    /// Packets that came.
    pub received: u64,
    /// Packets that came for other slots and were passed on.
    pub forwarded: u64,
    /// Packets that came for other slots and were dropped.
    pub astray: u64,
    /// For each other member: messages whose sending was acknowledged, and messages that came.
    pub messages: BTreeMap<u32, (u64, u64)>,
}

/// Processes on one address, all joined with each other.
#[derive(Debug)]
pub struct Mesh<F> {
    command: F,
    members: BTreeMap<u32, Member>,
    next: u32,
    failures: Vec<String>,
}

impl<F: Fn() -> Command> Mesh<F> {
    /// No member yet; `command` starts one.
    pub fn new(command: F) -> Self {
        Self { command, members: BTreeMap::new(), next: 0, failures: Vec::new() }
    }

    /// The numbers of the members that live.
    pub fn members(&self) -> Vec<u32> {
        self.members.keys().copied().collect()
    }

    /// What pairs of living members have told of that should not have happened.
    pub fn failures(&mut self) -> &[String] {
        for (number, member) in &mut self.members {
            let found = member.failures().into_iter().map(|text| format!("{number}: {text}"));
            self.failures.extend(found);
        }
        &self.failures
    }

    /// Starts a member and joins it with all others. Returns its number.
    ///
    /// # Errors
    ///
    /// [`MeshError`]: it did not get in.
    pub fn add(&mut self) -> Result<u32, MeshError> {
        let number = self.next;
        self.next += 1;
        let mut new = Member::start(number, &mut (self.command)())?;
        for (&other, member) in &mut self.members {
            let id = pair_id(number, other);
            let qpn = new.ask(&format!("pair {id}"), "paired")?;
            let peer = member.ask(&format!("pair {id}"), "paired")?;
            let number_of = |answer: &str| answer.rsplit(' ').next().map(str::to_owned);
            let (qpn, peer) = (number_of(&qpn), number_of(&peer));
            new.ask(&format!("connect {id} {}", peer.unwrap_or_default()), "connected")?;
            member.ask(&format!("connect {id} {}", qpn.unwrap_or_default()), "connected")?;
        }
        self.members.insert(number, new);
        Ok(number)
    }

    /// Kills a member as `kill -9` does, and lets the others end their pairs with it.
    ///
    /// # Errors
    ///
    /// [`MeshError`]: another one did not.
    pub fn kill(&mut self, number: u32) -> Result<(), MeshError> {
        // It is killed as it is dropped; what it has told before still counts.
        if let Some(mut member) = self.members.remove(&number) {
            let found = member.failures().into_iter().map(|text| format!("{number}: {text}"));
            self.failures.extend(found);
        }
        for (&other, member) in &mut self.members {
            let id = pair_id(number, other);
            member.ask(&format!("drop {id}"), "dropped")?;
            // Until then it could only notice that nobody answers any more.
            member.forget(id);
        }
        Ok(())
    }

    /// What a member has seen.
    ///
    /// # Errors
    ///
    /// [`MeshError`].
    pub fn report(&mut self, number: u32) -> Result<Report, MeshError> {
        let Some(member) = self.members.get_mut(&number) else { return Ok(Report::default()) };
        let line = member.ask("report", "report")?;
        let read = || {
            let mut words = line.split(' ').skip(1);
            let mut count = || words.next()?.parse().ok();
            let mut report = Report {
                received: count()?,
                forwarded: count()?,
                astray: count()?,
                messages: BTreeMap::new(),
            };
            for word in words {
                let mut parts = word.split(':').map(|part| part.parse::<u64>().ok());
                let (id, sent, came) = (parts.next()??, parts.next()??, parts.next()??);
                let (high, low) = ((id >> 16) as u32, (id & 0xffff) as u32);
                let other = if high == number { low } else { high };
                report.messages.insert(other, (sent, came));
            }
            Some(report)
        };
        read().ok_or_else(|| MeshError::Answer {
            member: number,
            order: "report".into(),
            answer: line.clone(),
        })
    }
}

/// The number of a pair: the same at both ends, and never used again.
fn pair_id(one: u32, other: u32) -> u32 {
    one.max(other) << 16 | one.min(other)
}

/// A process that takes orders by lines and answers each by a line. Dropping it kills it.
#[derive(Debug)]
pub struct Member {
    number: u32,
    child: Child,
    orders: ChildStdin,
    lines: Receiver<String>,
    /// What it has told unasked, by pair.
    unasked: Vec<(u32, String)>,
}

impl Member {
    /// Starts a process, which says `ready`; `number` names it in errors.
    ///
    /// # Errors
    ///
    /// [`MeshError`]: it cannot be started, or is not ready.
    pub fn start(number: u32, command: &mut Command) -> Result<Self, MeshError> {
        let os = |source| MeshError::Os { member: number, source };
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(os)?;
        let closed = || os(io::ErrorKind::BrokenPipe.into());
        let orders = child.stdin.take().ok_or_else(closed)?;
        let output = child.stdout.take().ok_or_else(closed)?;
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                let Ok(line) = line else { return };
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut member = Self { number, child, orders, lines, unasked: Vec::new() };
        member.wait_for("", "ready")?;
        Ok(member)
    }

    /// Gives an order, and returns the answer, which begins with `expected`.
    ///
    /// # Errors
    ///
    /// [`MeshError`]: it gives no such answer.
    pub fn ask(&mut self, order: &str, expected: &str) -> Result<String, MeshError> {
        let sent = writeln!(self.orders, "{order}").and_then(|()| self.orders.flush());
        sent.map_err(|source| MeshError::Os { member: self.number, source })?;
        self.wait_for(order, expected)
    }

    /// Waits for an answer that begins with `expected`.
    fn wait_for(&mut self, order: &str, expected: &str) -> Result<String, MeshError> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left).map_err(|why| MeshError::Silent {
                member: self.number,
                order: order.into(),
                why,
            })?;
            if line.starts_with(expected) {
                return Ok(line);
            }
            if !self.keep_unasked(&line) {
                let order = order.into();
                return Err(MeshError::Answer { member: self.number, order, answer: line });
            }
        }
    }

    fn keep_unasked(&mut self, line: &str) -> bool {
        let Some(rest) = line.strip_prefix("failed ") else { return false };
        let id = rest.split(' ').next().and_then(|id| id.parse().ok()).unwrap_or_default();
        self.unasked.push((id, line.to_owned()));
        true
    }

    fn failures(&mut self) -> Vec<String> {
        while let Ok(line) = self.lines.try_recv() {
            self.keep_unasked(&line);
        }
        self.unasked.drain(..).map(|(_, line)| line).collect()
    }

    /// Forgets what it has told of a pair.
    fn forget(&mut self, pair: u32) {
        self.unasked.retain(|(id, _)| *id != pair);
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // It fails only when the program has ended, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
