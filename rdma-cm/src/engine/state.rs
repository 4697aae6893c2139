//! The states of a connection, and the one table of what each does with each message and request.

use std::fmt;

use rxe_wire::mad::cm::{AnsweredMessage, CmMessage, RejReason};

/// Where a connection is (IBA vol. 1, chapter 12; C: `enum ib_cm_state`).
///
/// ```text
///   the side that asks                      the side that is asked
///
///   ReqSent --MRA--> MraReqReceived         ReqReceived --hold--> MraReqSent
///      |                |                        |                   |
///      +------ REP -----+                        +----- accept ------+
///             |                                           |
///   RepReceived --hold--> MraRepSent        RepSent --MRA--> MraRepReceived
///      |                |                        |                   |
///      +----- ready ----+                        +------- RTU -------+
///                   |                                     |
///                   +----------> Established <------------+
///                                  |       |
///                          DREQ received   disconnect
///                                  |       |
///                       DreqReceived       DreqSent
///                                  |       |
///                            agree |       | DREP, DREQ, or no answer
///                                  TimeWait ----> gone
/// ```
///
/// Lookups of datagram services (SIDR) have three states of their own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum ConnState {
    /// Refused, given up or never made; only the caller knows of it.
    Idle,
    /// A REQ is out.
    ReqSent,
    /// The REQ arrived there, its answer takes longer.
    MraReqReceived,
    /// A REQ came in; the caller is to say.
    ReqReceived,
    /// Likewise, and the requester may be told to wait.
    MraReqSent,
    /// A REP is out.
    RepSent,
    /// The REP arrived there, the RTU takes longer.
    MraRepReceived,
    /// A REP came in; the caller is to make its queue pair ready.
    RepReceived,
    /// Likewise, and the responder may be told to wait.
    MraRepSent,
    /// Connected.
    Established,
    /// A DREQ is out.
    DreqSent,
    /// A DREQ came in; the caller is to agree.
    DreqReceived,
    /// Over; ids and queue pair numbers are kept until late packets are gone.
    TimeWait,
    /// A SIDR_REQ is out.
    SidrReqSent,
    /// A SIDR_REQ came in; the caller is to answer.
    SidrReqReceived,
    /// A SIDR_REP is out, and kept in case that it is asked for again.
    SidrRepSent,
}

use ConnState as S;

impl ConnState {
    /// All states, in the order of the table's rows.
    pub const ALL: [Self; 16] = [
        Self::Idle,
        Self::ReqSent,
        Self::MraReqReceived,
        Self::ReqReceived,
        Self::MraReqSent,
        Self::RepSent,
        Self::MraRepReceived,
        Self::RepReceived,
        Self::MraRepSent,
        Self::Established,
        Self::DreqSent,
        Self::DreqReceived,
        Self::TimeWait,
        Self::SidrReqSent,
        Self::SidrReqReceived,
        Self::SidrRepSent,
    ];
}

impl fmt::Display for ConnState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "idle",
            Self::ReqSent => "REQ sent",
            Self::MraReqReceived => "MRA of REQ received",
            Self::ReqReceived => "REQ received",
            Self::MraReqSent => "MRA of REQ sent",
            Self::RepSent => "REP sent",
            Self::MraRepReceived => "MRA of REP received",
            Self::RepReceived => "REP received",
            Self::MraRepSent => "MRA of REP sent",
            Self::Established => "established",
            Self::DreqSent => "DREQ sent",
            Self::DreqReceived => "DREQ received",
            Self::TimeWait => "timewait",
            Self::SidrReqSent => "SIDR_REQ sent",
            Self::SidrReqReceived => "SIDR_REQ received",
            Self::SidrRepSent => "SIDR_REP sent",
        })
    }
}

/// What can happen to a connection: a message about it, a request of the caller, or time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Input {
    /// The REQ that made it came again.
    Req,
    /// An MRA of a REQ.
    MraReq,
    /// An MRA of a REP.
    MraRep,
    /// An MRA of anything else.
    MraOther,
    /// A REP.
    Rep,
    /// An RTU.
    Rtu,
    /// A REJ for any reason but the next.
    Rej,
    /// A REJ that calls the connection stale.
    RejStale,
    /// A DREQ.
    Dreq,
    /// A DREP.
    Drep,
    /// A LAP.
    Lap,
    /// An APR.
    Apr,
    /// The SIDR_REQ that made it came again.
    SidrReq,
    /// A SIDR_REP.
    SidrRep,
    /// The caller accepts: REP.
    Accept,
    /// The caller refuses: REJ.
    Refuse,
    /// The caller needs more time: MRA.
    Hold,
    /// The caller's queue pair is ready: RTU.
    Ready,
    /// The caller's queue pair heard from the peer, so the RTU was lost.
    Heard,
    /// The caller wants the end: DREQ.
    Part,
    /// The caller agrees to the end: DREP.
    Agree,
    /// The caller answers a lookup: SIDR_REP.
    Answer,
    /// The peer has made a new connection with the queue pair of this one.
    Stale,
    /// The last repetition had no answer either, or the time of waiting is over.
    Expire,
    /// The caller does not want to hear of it again.
    Abandon,
}

impl Input {
    /// All inputs, in the order of the table's columns.
    pub const ALL: [Self; 25] = [
        Self::Req,
        Self::MraReq,
        Self::MraRep,
        Self::MraOther,
        Self::Rep,
        Self::Rtu,
        Self::Rej,
        Self::RejStale,
        Self::Dreq,
        Self::Drep,
        Self::Lap,
        Self::Apr,
        Self::SidrReq,
        Self::SidrRep,
        Self::Accept,
        Self::Refuse,
        Self::Hold,
        Self::Ready,
        Self::Heard,
        Self::Part,
        Self::Agree,
        Self::Answer,
        Self::Stale,
        Self::Expire,
        Self::Abandon,
    ];

    /// The column of a message.
    pub const fn of(message: &CmMessage) -> Self {
        match message {
            CmMessage::Req(_) => Self::Req,
            CmMessage::Mra(mra) => match mra.message {
                AnsweredMessage::Req => Self::MraReq,
                AnsweredMessage::Rep => Self::MraRep,
                AnsweredMessage::Other | AnsweredMessage::Reserved => Self::MraOther,
            },
            CmMessage::Rej(rej) if rej.reason.0 == RejReason::STALE_CONNECTION.0 => Self::RejStale,
            CmMessage::Rej(_) => Self::Rej,
            CmMessage::Rep(_) => Self::Rep,
            CmMessage::Rtu(_) => Self::Rtu,
            CmMessage::Dreq(_) => Self::Dreq,
            CmMessage::Drep(_) => Self::Drep,
            CmMessage::SidrReq(_) => Self::SidrReq,
            CmMessage::SidrRep(_) => Self::SidrRep,
            CmMessage::Lap(_) => Self::Lap,
            CmMessage::Apr(_) => Self::Apr,
        }
    }
}

/// What a state does with an input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reaction {
    /// They do not go together: a message is dropped, a request of the caller refused.
    No,
    /// A message that was heard before, and is being or was answered: dropped.
    Known,
    /// A message that was heard before, whose answer may be lost: the answer is sent again.
    Again,
    /// The message is answered with a REJ that calls the connection stale.
    RejectStale,
    /// The message is answered with a REJ: its id names nothing.
    RejectId,
    /// The message is answered with a DREP.
    Drep,
    /// It has its effect, and this is the state afterwards.
    To(ConnState),
}

use Reaction::{Again, Drep, Known, No, RejectId, RejectStale, To};

impl fmt::Display for Reaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::No => f.write_str("no"),
            Self::Known => f.write_str("known"),
            Self::Again => f.write_str("answer again"),
            Self::RejectStale => f.write_str("REJ stale"),
            Self::RejectId => f.write_str("REJ invalid id"),
            Self::Drep => f.write_str("DREP"),
            Self::To(state) => write!(f, "-> {state}"),
        }
    }
}

/// A row of the table: the reactions to the messages, and those to requests and time.
const fn row(messages: [Reaction; 14], others: [Reaction; 11]) -> [Reaction; 25] {
    let mut row = [No; 25];
    let mut column = 0;
    while column < 25 {
        row[column] = if column < 14 { messages[column] } else { others[column - 14] };
        column += 1;
    }
    row
}

/// What each state (the rows, [`ConnState::ALL`]) does with each input (the columns,
/// [`Input::ALL`]).
///
/// It follows the state diagrams of IBA vol. 1, chapter 12, and Linux where it goes beyond. What
/// stands out: a DREQ that meets ours ends both at once; a REJ ends an established connection too;
/// LAP and APR are dropped as Linux does on RoCE, which has no alternate paths.
#[rustfmt::skip]
pub const TABLE: [[Reaction; 25]; 16] = [
    // Idle
    //  REQ MRAs           REP       RTU REJs    DREQ  DREP LAP APR SIDR
    row([No, No, No, No,   RejectId, No, No, No, Drep, No,  No, No, No, No],
    //  accept refuse hold ready heard part agree answer stale expire abandon
        [No,   No,    No,  No,   No,   No,  No,   No,    No,   No,    To(S::Idle)]),
    // ReqSent
    row([No, To(S::MraReqReceived), No, No, To(S::RepReceived), No, To(S::Idle), To(S::TimeWait),
         No, No, No, No, No, No],
        [No, To(S::Idle), No, No, No, No, No, No, No, To(S::Idle), To(S::Idle)]),
    // MraReqReceived
    row([No, To(S::MraReqReceived), No, No, To(S::RepReceived), No, To(S::Idle), To(S::TimeWait),
         No, No, No, No, No, No],
        [No, To(S::Idle), No, No, No, No, No, No, No, To(S::Idle), To(S::Idle)]),
    // ReqReceived
    row([Known, No, No, No, No, No, To(S::Idle), To(S::Idle), No, No, No, No, No, No],
        [To(S::RepSent), To(S::Idle), To(S::MraReqSent), No, No, No, No, No, To(S::Idle), No,
         To(S::Idle)]),
    // MraReqSent
    row([Again, No, No, No, No, No, To(S::Idle), To(S::Idle), No, No, No, No, No, No],
        [To(S::RepSent), To(S::Idle), To(S::MraReqSent), No, No, No, No, No, To(S::Idle), No,
         To(S::Idle)]),
    // RepSent
    row([Again, No, To(S::MraRepReceived), No, No, To(S::Established), To(S::Idle),
         To(S::TimeWait), To(S::DreqReceived), No, No, No, No, No],
        [No, To(S::TimeWait), No, No, To(S::Established), No, No, No, To(S::Idle), To(S::Idle),
         To(S::TimeWait)]),
    // MraRepReceived
    row([Known, No, To(S::MraRepReceived), No, No, To(S::Established), To(S::Idle),
         To(S::TimeWait), To(S::DreqReceived), No, No, No, No, No],
        [No, To(S::TimeWait), No, No, To(S::Established), No, No, No, To(S::Idle), To(S::Idle),
         To(S::TimeWait)]),
    // RepReceived
    row([No, Known, No, No, Known, No, To(S::TimeWait), To(S::TimeWait), No, No, No, No, No, No],
        [No, To(S::Idle), To(S::MraRepSent), To(S::Established), No, No, No, No, To(S::Idle), No,
         To(S::Idle)]),
    // MraRepSent
    row([No, Known, No, No, Again, No, To(S::TimeWait), To(S::TimeWait), No, No, No, No, No, No],
        [No, To(S::Idle), To(S::MraRepSent), To(S::Established), No, No, No, No, To(S::Idle), No,
         To(S::Idle)]),
    // Established
    row([Known, Known, Known, No, Again, Known, To(S::TimeWait), To(S::TimeWait),
         To(S::DreqReceived), No, No, No, No, No],
        [No, No, No, No, To(S::Established), To(S::DreqSent), No, No, To(S::DreqSent), No,
         To(S::DreqSent)]),
    // DreqSent
    row([Known, Known, Known, No, Known, Known, To(S::TimeWait), To(S::TimeWait), To(S::TimeWait),
         To(S::TimeWait), No, No, No, No],
        [No, No, No, No, No, No, No, No, To(S::TimeWait), To(S::TimeWait), To(S::DreqSent)]),
    // DreqReceived
    row([Known, Known, Known, No, Known, Known, To(S::TimeWait), To(S::TimeWait), Known,
         To(S::TimeWait), No, No, No, No],
        [No, No, No, No, No, No, To(S::TimeWait), No, To(S::TimeWait), No, To(S::TimeWait)]),
    // TimeWait
    row([RejectStale, Known, Known, No, Known, Known, Known, Known, Drep, Known, No, No, No, No],
        [No, No, No, No, No, No, No, No, No, To(S::Idle), To(S::TimeWait)]),
    // SidrReqSent
    row([No, No, No, No, No, No, No, No, No, No, No, No, No, To(S::Idle)],
        [No, No, No, No, No, No, No, No, No, To(S::Idle), To(S::Idle)]),
    // SidrReqReceived
    row([No, No, No, No, No, No, No, No, No, No, No, No, Known, No],
        [No, No, No, No, No, No, No, To(S::SidrRepSent), No, No, To(S::SidrRepSent)]),
    // SidrRepSent
    row([No, No, No, No, No, No, No, No, No, No, No, No, Again, No],
        [No, No, No, No, No, No, No, No, No, To(S::Idle), To(S::SidrRepSent)]),
];

/// What `state` does with `input`.
pub const fn reaction(state: ConnState, input: Input) -> Reaction {
    TABLE[state as usize][input as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_columns_are_in_order() {
        for (row, state) in ConnState::ALL.into_iter().enumerate() {
            assert_eq!(row, state as usize);
        }
        for (column, input) in Input::ALL.into_iter().enumerate() {
            assert_eq!(column, input as usize);
        }
    }

    #[test]
    fn the_whole_table() {
        let mut text = String::new();
        for state in ConnState::ALL {
            text += &format!("{state}\n");
            for input in Input::ALL {
                let reaction = reaction(state, input);
                if reaction != No {
                    text += &format!("    {:<10} {reaction}\n", format!("{input:?}"));
                }
            }
        }
        insta::assert_snapshot!(text);
    }

    #[test]
    fn nothing_but_the_caller_ends_or_moves_what_is_idle() {
        for input in Input::ALL {
            assert!(
                !matches!(reaction(S::Idle, input), To(state) if state != S::Idle),
                "{input:?}"
            );
        }
    }

    #[test]
    fn whatever_the_state_the_caller_may_leave() {
        for state in ConnState::ALL {
            assert!(matches!(reaction(state, Input::Abandon), To(_)), "{state}");
        }
    }

    #[test]
    fn lap_and_apr_are_dropped_in_every_state() {
        for state in ConnState::ALL {
            for input in [Input::Lap, Input::Apr, Input::MraOther] {
                assert_eq!(reaction(state, input), No, "{state} {input:?}");
            }
        }
    }
}
