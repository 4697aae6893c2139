//! Memory of send requests that was too long for the queue, kept for the next ones.

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::send::WqeData;
use super::{Sge, SgeList};

/// Inline data; what is longer than this lies outside of the queue.
pub(crate) type InlineBytes = SmallVec<[u8; 64]>;

/// Where inline data and pieces go that have no room in the queue itself.
///
/// What a request had is for the next one that needs it. So there is no more than was outstanding
/// at once, and once so much has been, posting allocates nothing.
#[derive(Debug, Default)]
pub(crate) struct Spares {
    bytes: Mutex<Vec<InlineBytes>>,
    sges: Mutex<Vec<SgeList>>,
}

impl Spares {
    /// A copy of inline data.
    pub(crate) fn copy_bytes(&self, bytes: &[u8]) -> InlineBytes {
        if bytes.len() <= InlineBytes::new().inline_size() {
            return InlineBytes::from_slice(bytes);
        }
        let mut copy = self.bytes.lock().pop().unwrap_or_default();
        copy.extend_from_slice(bytes);
        copy
    }

    /// A copy of a list of pieces.
    pub(crate) fn copy_sges(&self, sges: &[Sge]) -> SgeList {
        if sges.len() <= SgeList::new().inline_size() {
            return SgeList::from_slice(sges);
        }
        let mut copy = self.sges.lock().pop().unwrap_or_default();
        copy.extend_from_slice(sges);
        copy
    }

    /// Keeps the memory of a request that is complete.
    pub(crate) fn keep(&self, data: WqeData) {
        match data {
            WqeData::Inline(mut bytes) if bytes.spilled() => {
                bytes.clear();
                self.bytes.lock().push(bytes);
            }
            WqeData::Sges(mut sges) if sges.spilled() => {
                sges.clear();
                self.sges.lock().push(sges);
            }
            WqeData::Inline(_) | WqeData::Sges(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use rxe_wire::LKey;

    use super::*;

    #[test]
    fn what_was_too_long_once_is_not_allocated_again() {
        let spares = Spares::default();
        let bytes = spares.copy_bytes(&[1; 200]);
        let place = bytes.as_ptr();
        spares.keep(WqeData::Inline(bytes));
        let again = spares.copy_bytes(&[2; 100]);
        assert_eq!((again.as_ptr(), &again[..]), (place, &[2; 100][..]));
        assert_ne!(spares.copy_bytes(&[3; 100]).as_ptr(), place, "that is in use");
        let sge = Sge { addr: 1, length: 2, lkey: LKey::new(3) };
        let sges = spares.copy_sges(&[sge; 9]);
        let place = sges.as_ptr();
        spares.keep(WqeData::Sges(sges));
        assert_eq!(spares.copy_sges(&[sge; 5]).as_ptr(), place);
    }

    #[test]
    fn what_is_short_lies_in_the_queue() {
        let spares = Spares::default();
        let bytes = spares.copy_bytes(&[1; 64]);
        assert!(!bytes.spilled());
        spares.keep(WqeData::Inline(bytes));
        assert!(spares.bytes.lock().is_empty());
    }
}
