//! Conversations of connection management: which messages belong together, and what came of it.

use std::fmt::{self, Write as _};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use rxe_wire::mad::TransactionId;
use rxe_wire::mad::cm::{CmMessage, CommId, RejReason, ServiceId, SidrStatus};
use rxe_wire::net::Net;
use rxe_wire::{Psn, Qpn};
use serde_json::{Value, json};

use super::capture::Record;
use super::cm_json;
use super::decode::{Content, Roce, cm_message};
use super::text::time_of_day;

/// All conversations of a capture, in the order in which they begin.
#[derive(Debug, Default)]
pub(super) struct Conversations(Vec<Conversation>);

/// Which of the two ends of a conversation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    Requester,
    Responder,
}

/// One end.
#[derive(Clone, Copy, Debug)]
struct End {
    ip: IpAddr,
    id: Option<CommId>,
    qpn: Option<Qpn>,
}

/// A message of a conversation.
#[derive(Debug)]
struct Said {
    frame: u64,
    time: Option<Duration>,
    by: Side,
    message: CmMessage,
    transaction: TransactionId,
    /// In which packet of QP1 it was: a packet that is twice in the capture was sent once.
    psn: Psn,
    /// It was said before.
    is_again: bool,
}

/// What two ends say to each other about one connection, or one lookup of a datagram service.
#[derive(Debug)]
struct Conversation {
    requester: End,
    responder: End,
    service: Option<ServiceId>,
    is_lookup: bool,
    said: Vec<Said>,
}

impl Conversations {
    /// Takes the messages of a record.
    pub(super) fn take(&mut self, record: &Record, content: &Content<'_>) {
        match content {
            Content::Roce(roce) => self.take_packet(record, roce),
            Content::SuperFrame(batch) => {
                batch.packets.iter().for_each(|roce| self.take_packet(record, roce));
            }
            Content::Foreign(_) | Content::Truncated(_) | Content::Malformed(_) => {}
        }
    }

    fn take_packet(&mut self, record: &Record, roce: &Roce<'_>) {
        let (Some(Ok(mad)), Ok(packet)) = (roce.mad(), &roce.packet) else { return };
        let Ok(message) = cm_message(&mad) else { return };
        let (from, to) = addresses(&roce.net);
        let said = Said {
            frame: record.number,
            time: record.time,
            by: Side::Requester,
            message,
            transaction: mad.header.transaction_id,
            psn: packet.bth().psn,
            is_again: false,
        };
        // The latest first: ids are used again.
        let known = self.0.iter_mut().rev().find_map(|one| {
            let side = one.side_of(&said, from, to)?;
            Some((one, side))
        });
        match known {
            Some((conversation, by)) => conversation.add(Said { by, ..said }),
            None => self.0.push(Conversation::begin(said, from, to)),
        }
    }

    /// Writes all of them as text.
    pub(super) fn write_text(&self, out: &mut impl Write) -> io::Result<()> {
        for (number, conversation) in (1..).zip(&self.0) {
            writeln!(out, "conversation {number}: {conversation}")?;
            conversation.write_messages(out)?;
        }
        Ok(())
    }

    /// Writes each of them as a JSON object on a line.
    pub(super) fn write_json(&self, out: &mut impl Write) -> io::Result<()> {
        for (number, conversation) in (1..).zip(&self.0) {
            writeln!(out, "{}", conversation.json(number))?;
        }
        Ok(())
    }
}

/// The addresses that a packet came from and went to.
fn addresses(net: &Net) -> (IpAddr, IpAddr) {
    let of = |bytes: [u8; 16]| IpAddr::from(Ipv6Addr::from(bytes)).to_canonical();
    match net {
        Net::V1(grh) => (of(grh.source), of(grh.destination)),
        Net::V4 { ip, .. } => (ip.source.into(), ip.destination.into()),
        Net::V6 { ip, .. } => (ip.source.into(), ip.destination.into()),
    }
}

/// The ids that a message carries: the sender's, and the receiver's, if it says them.
fn ids(message: &CmMessage) -> (Option<CommId>, Option<CommId>) {
    let (local, remote) = match message {
        CmMessage::Req(message) => (message.local_comm_id, CommId(0)),
        CmMessage::Mra(message) => (message.local_comm_id, message.remote_comm_id),
        CmMessage::Rej(message) => (message.local_comm_id, message.remote_comm_id),
        CmMessage::Rep(message) => (message.local_comm_id, message.remote_comm_id),
        CmMessage::Rtu(message) => (message.local_comm_id, message.remote_comm_id),
        CmMessage::Dreq(message) => (message.local_comm_id, message.remote_comm_id),
        CmMessage::Drep(message) => (message.local_comm_id, message.remote_comm_id),
        CmMessage::Lap(message) => (message.local_comm_id, message.remote_comm_id),
        CmMessage::Apr(message) => (message.local_comm_id, message.remote_comm_id),
        CmMessage::SidrReq(message) => (message.request_id, CommId(0)),
        CmMessage::SidrRep(message) => (CommId(0), message.request_id),
    };
    let known = |id: CommId| (id != CommId(0)).then_some(id);
    (known(local), known(remote))
}

const fn is_of_lookup(message: &CmMessage) -> bool {
    matches!(message, CmMessage::SidrReq(_) | CmMessage::SidrRep(_))
}

/// Whether two names of one thing agree, as far as they are said.
fn agree(one: Option<CommId>, other: Option<CommId>) -> bool {
    one.zip(other).is_none_or(|(one, other)| one == other)
}

impl Conversation {
    /// One whose first message in the capture is this one.
    fn begin(said: Said, from: IpAddr, to: IpAddr) -> Self {
        let (local, remote) = ids(&said.message);
        let sender = End { ip: from, id: local, qpn: None };
        let receiver = End { ip: to, id: remote, qpn: None };
        // Where the beginning is not in the capture, the message tells who has begun, or nobody does.
        let by = match said.message {
            CmMessage::Rep(_) | CmMessage::SidrRep(_) => Side::Responder,
            _ => Side::Requester,
        };
        let (requester, responder) = match by {
            Side::Requester => (sender, receiver),
            Side::Responder => (receiver, sender),
        };
        let is_lookup = is_of_lookup(&said.message);
        let mut one = Self { requester, responder, service: None, is_lookup, said: Vec::new() };
        one.add(Said { by, ..said });
        one
    }

    /// Who has said a message, if it is of this conversation.
    fn side_of(&self, said: &Said, from: IpAddr, to: IpAddr) -> Option<Side> {
        if self.is_lookup != is_of_lookup(&said.message) {
            return None;
        }
        let (local, remote) = ids(&said.message);
        let fits = |sender: &End, receiver: &End| {
            let are_known =
                sender.id.is_some() && local.is_some() || receiver.id.is_some() && remote.is_some();
            let do_agree = agree(sender.id, local) && agree(receiver.id, remote);
            (sender.ip, receiver.ip) == (from, to) && are_known && do_agree
        };
        // A request begins a conversation, unless it is the same one again.
        if matches!(said.message, CmMessage::Req(_) | CmMessage::SidrReq(_)) {
            let first = self.said.first()?;
            let is_same = first.message == said.message
                && first.transaction == said.transaction
                && (self.requester.ip, self.responder.ip) == (from, to);
            return is_same.then_some(Side::Requester);
        }
        if fits(&self.requester, &self.responder) {
            return Some(Side::Requester);
        }
        fits(&self.responder, &self.requester).then_some(Side::Responder)
    }

    fn add(&mut self, mut said: Said) {
        let same = |known: &&Said| {
            (known.by, known.transaction) == (said.by, said.transaction)
                && known.message == said.message
        };
        let before: Vec<_> = self.said.iter().filter(same).collect();
        if before.iter().any(|known| known.psn == said.psn) {
            // Seen by both ends of one host.
            return;
        }
        said.is_again = !before.is_empty();
        let end = match said.by {
            Side::Requester => &mut self.requester,
            Side::Responder => &mut self.responder,
        };
        let (local, _) = ids(&said.message);
        end.id = end.id.or(local);
        match &said.message {
            CmMessage::Req(req) => {
                end.qpn = Some(req.local_qpn);
                self.service = Some(req.service_id);
            }
            CmMessage::Rep(rep) => end.qpn = Some(rep.local_qpn),
            CmMessage::SidrReq(request) => self.service = Some(request.service_id),
            CmMessage::SidrRep(reply) if reply.status == SidrStatus::SUCCESS => {
                end.qpn = Some(reply.qpn);
            }
            _ => {}
        }
        self.said.push(said);
    }

    /// How long it took from the first message until one of a kind; `None` where that did not come.
    fn until(&self, wanted: impl Fn(&CmMessage) -> bool) -> Option<Duration> {
        let found = self.said.iter().find(|said| wanted(&said.message))?;
        found.time?.checked_sub(self.said.first()?.time?)
    }

    /// What has become of it, as far as the capture goes.
    fn outcome(&self) -> String {
        let last = |wanted: fn(&CmMessage) -> bool| {
            self.said.iter().rev().find(|said| wanted(&said.message))
        };
        if let Some(Said { by, message: CmMessage::Rej(rej), .. }) =
            last(|message| matches!(message, CmMessage::Rej(_)))
        {
            return match rej.reason {
                RejReason::TIMEOUT => format!("given up by the {by}"),
                reason => format!("refused by the {by}: {reason}"),
            };
        }
        if let Some(Said { message: CmMessage::SidrRep(reply), .. }) =
            last(|message| matches!(message, CmMessage::SidrRep(_)))
        {
            return match reply.status {
                SidrStatus::SUCCESS => format!("found, queue key {}", reply.qkey),
                status => format!("not found: {status}"),
            };
        }
        let asked_to_end = self.said.iter().find(|said| matches!(said.message, CmMessage::Dreq(_)));
        if let Some(Said { by, .. }) = asked_to_end {
            let is_granted = last(|message| matches!(message, CmMessage::Drep(_))).is_some();
            let how = if is_granted { "" } else { ", which nobody has granted" };
            return format!("{}ended by the {by}{how}", self.connected());
        }
        if last(|message| matches!(message, CmMessage::Rtu(_))).is_some() {
            return format!("{}not ended", self.connected());
        }
        if last(|message| matches!(message, CmMessage::Rep(_))).is_some() {
            return "accepted, and not confirmed".to_owned();
        }
        "not answered".to_owned()
    }

    /// How long it took to connect.
    fn connected(&self) -> String {
        let is_whole = matches!(self.said.first(), Some(Said { message: CmMessage::Req(_), .. }));
        match self.until(|message| matches!(message, CmMessage::Rtu(_))) {
            Some(took) if is_whole => format!("connected in {took:.1?}, "),
            _ => "connected, ".to_owned(),
        }
    }

    /// How many messages were said more than once.
    fn again(&self) -> usize {
        self.said.iter().filter(|said| said.is_again).count()
    }

    fn write_messages(&self, out: &mut impl Write) -> io::Result<()> {
        let first = self.said.first().and_then(|said| said.time);
        for Said { frame, time, by, message, is_again, .. } in &self.said {
            let since = time.zip(first).and_then(|(time, first)| time.checked_sub(first));
            let since =
                since.map(|since| format!("+{:.6}", since.as_secs_f64())).unwrap_or_default();
            let (time, again) = (time_of_day(*time), if *is_again { " (again)" } else { "" });
            let arrow = match by {
                Side::Requester => "-->",
                Side::Responder => "<--",
            };
            writeln!(out, "    {frame} {time} {since} {arrow} {message}{again}")?;
        }
        Ok(())
    }

    fn json(&self, number: u64) -> Value {
        let messages: Vec<_> = self.said.iter().map(Said::json).collect();
        json!({
            "kind": "conversation",
            "number": number,
            "requester": self.requester.json(),
            "responder": self.responder.json(),
            "service": self.service.map(|service| service.to_string()),
            "lookup": self.is_lookup,
            "outcome": self.outcome(),
            "again": self.again(),
            "messages": messages,
        })
    }
}

impl fmt::Display for Conversation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requester, responder, service, said, .. } = self;
        let what = if self.is_lookup { "looks up" } else { "connects to" };
        write!(f, "{requester} {what} {responder}")?;
        if let Some(service) = service {
            write!(f, " {service}")?;
        }
        write!(f, ": {}; {} messages", self.outcome(), said.len())?;
        match self.again() {
            0 => Ok(()),
            count => write!(f, ", {count} of them again"),
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names = String::new();
        if let Some(id) = self.id {
            write!(names, "id {id}")?;
        }
        if let Some(qpn) = self.qpn {
            let comma = if names.is_empty() { "" } else { ", " };
            write!(names, "{comma}qpn {qpn}")?;
        }
        write!(f, "{}", self.ip)?;
        if names.is_empty() { Ok(()) } else { write!(f, " ({names})") }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Requester => "requester",
            Self::Responder => "responder",
        })
    }
}

impl End {
    fn json(&self) -> Value {
        json!({
            "address": self.ip.to_string(),
            "id": self.id.map(|id| id.to_string()),
            "qpn": self.qpn.map(Qpn::get),
        })
    }
}

impl Said {
    fn json(&self) -> Value {
        json!({
            "frame": self.frame,
            "time": self.time.map(|time| time.as_secs_f64()),
            "from": self.by.to_string(),
            "transaction": self.transaction.to_string(),
            "again": self.is_again,
            "cm": cm_json::of_message(&self.message),
        })
    }
}
