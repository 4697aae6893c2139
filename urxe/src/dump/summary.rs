//! Counting, and the closing line.

use std::fmt;

use super::decode::{Content, Roce};

/// What was seen in a capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Summary {
    /// Frames in the file.
    pub frames: u64,
    /// RoCE packets; those of a super-frame count each.
    pub roce: u64,
    /// RoCE packets with the right iCRC.
    pub icrc_good: u64,
    /// RoCE packets with a wrong iCRC.
    pub icrc_bad: u64,
    /// RoCE packets that the capture cut, so that their iCRC cannot be checked.
    pub icrc_unknown: u64,
    /// Frames that turned out to be several packets.
    pub super_frames: u64,
    /// Packets with wrong lengths or fields.
    pub malformed: u64,
    /// Frames that end before anything can be told.
    pub truncated: u64,
    /// Frames of other protocols.
    pub foreign: u64,
}

impl Summary {
    /// Counts a frame.
    pub(super) fn count(&mut self, content: &Content<'_>) {
        self.frames += 1;
        match content {
            Content::Roce(roce) => self.count_packet(roce),
            Content::SuperFrame(batch) => {
                self.super_frames += 1;
                batch.packets.iter().for_each(|roce| self.count_packet(roce));
            }
            Content::Foreign(_) => self.foreign += 1,
            Content::Truncated(_) => self.truncated += 1,
            Content::Malformed(_) => self.malformed += 1,
        }
    }

    fn count_packet(&mut self, roce: &Roce<'_>) {
        self.roce += 1;
        self.malformed += u64::from(roce.packet.is_err() && roce.flow_note().is_none());
        match roce.icrc {
            Some(icrc) if icrc.is_good() => self.icrc_good += 1,
            Some(_) => self.icrc_bad += 1,
            None => self.icrc_unknown += 1,
        }
    }

    /// Whether an iCRC was bad.
    pub(super) const fn has_bad_icrc(&self) -> bool {
        self.icrc_bad > 0
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { frames, roce, icrc_good, icrc_bad, malformed, foreign, .. } = self;
        write!(f, "{frames} packets, {roce} RoCE, iCRC {icrc_good} good {icrc_bad} bad, ")?;
        write!(f, "{malformed} malformed, {foreign} foreign")?;
        for (count, what) in [
            (self.truncated, "truncated"),
            (self.icrc_unknown, "cut before the iCRC"),
            (self.super_frames, "super-frames"),
        ] {
            if count > 0 {
                write!(f, ", {count} {what}")?;
            }
        }
        Ok(())
    }
}
