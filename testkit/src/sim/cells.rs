//! Eight-byte cells that queue pairs of many hosts do atomics on, and the proof of exactly-once.
//!
//! Every addend and every new value is random, so the values that a cell takes are all different:
//! the original values that came back can be put in one order only. Each atomic that completed must
//! stand in it exactly once, those of one queue pair in their order, and it must end at what is in
//! the cell. Atomics that were flushed may stand in it or not: of each queue pair the first few.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use rxe_core::Device;
use rxe_core::mem::{AccessFlags, DmaBuf, MrKeys};
use rxe_core::pd::PdId;
use rxe_core::wq::RemoteAddr;

use super::dice::Dice;

/// What an atomic does to its cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// Adds.
    Add(u64),
    /// Stores `swap` where `compare` is.
    Swap {
        /// What must be there.
        compare: u64,
        /// What is there then.
        swap: u64,
    },
}

impl Change {
    /// What is in the cell afterwards.
    pub fn apply(self, value: u64) -> u64 {
        match self {
            Self::Add(add) => value.wrapping_add(add),
            Self::Swap { compare, swap } if compare == value => swap,
            Self::Swap { .. } => value,
        }
    }
}

/// An atomic that was executed, or may have been.
#[derive(Clone, Copy, Debug)]
struct Deed {
    /// Who asked for it.
    owner: usize,
    /// Its place among the requests of the owner.
    number: usize,
    change: Change,
    /// What came back; `None` when nothing did.
    original: Option<u64>,
}

/// The history of one cell.
#[derive(Clone, Debug, Default)]
pub struct History {
    deeds: Vec<Deed>,
}

/// Steps that a search may take.
const TRIES_MAX: usize = 2_000_000;

impl History {
    /// Notes an atomic of `owner`, its request `number`; `original` when it completed.
    pub fn note(&mut self, owner: usize, number: usize, change: Change, original: Option<u64>) {
        self.deeds.push(Deed { owner, number, change, original });
    }

    /// Whether the atomics lead from one value to the other.
    ///
    /// # Errors
    ///
    /// What is wrong.
    pub fn judge(&self, from: u64, to: u64) -> Result<(), String> {
        let mut by_original = HashMap::new();
        let mut seen_only = Vec::new();
        for deed in &self.deeds {
            let Some(original) = deed.original else { continue };
            if deed.change.apply(original) == original {
                seen_only.push(*deed);
            } else if let Some(other) = by_original.insert(original, *deed) {
                return Err(format!("{deed:?} and {other:?} found the same value"));
            }
        }
        let mut open: BTreeMap<usize, Vec<Deed>> = BTreeMap::new();
        for deed in self.deeds.iter().filter(|deed| deed.original.is_none()) {
            open.entry(deed.owner).or_default().push(*deed);
        }
        let open: Vec<Vec<Deed>> = open.into_values().collect();
        let seen = seen_only.iter().filter_map(|deed| deed.original).collect();
        let mut search = Search { by_original, open, to, seen, tried: HashSet::new() };
        let mut path = vec![from];
        let taken = vec![0; search.open.len()];
        if !search.go_on(&mut path, &taken, 0, &HashMap::new())? {
            return Err(format!(
                "no order of its atomics, each once, leads from {from:#x} to {to:#x}: {:?}",
                self.deeds
            ));
        }
        Ok(())
    }
}

struct Search {
    by_original: HashMap<u64, Deed>,
    /// Of each owner, those that may have been executed: the first few of them were.
    open: Vec<Vec<Deed>>,
    to: u64,
    /// Values that must have been there: some atomics found them, and changed nothing.
    seen: HashSet<u64>,
    /// What has led nowhere: how many of each owner were executed, and the value then.
    tried: HashSet<(Vec<usize>, u64, Vec<u64>)>,
}

impl Search {
    fn go_on(
        &mut self,
        path: &mut Vec<u64>,
        taken: &[usize],
        mut used: usize,
        last: &HashMap<usize, usize>,
    ) -> Result<bool, String> {
        let length = path.len();
        let mut last = last.clone();
        let mut value = path[length - 1];
        // What completed leaves no choice.
        while let Some(deed) = self.by_original.get(&value) {
            if last.insert(deed.owner, deed.number).is_some_and(|before| before >= deed.number) {
                path.truncate(length);
                return Ok(false);
            }
            value = deed.change.apply(value);
            path.push(value);
            used += 1;
            if used > self.by_original.len() {
                path.truncate(length);
                return Ok(false);
            }
        }
        let mut met: Vec<u64> =
            path.iter().copied().filter(|value| self.seen.contains(value)).collect();
        met.sort_unstable();
        met.dedup();
        let is_whole = used == self.by_original.len() && met.len() == self.seen.len();
        if is_whole && value == self.to {
            return Ok(true);
        }
        if !self.tried.insert((taken.to_vec(), value, met)) {
            path.truncate(length);
            return Ok(false);
        }
        if self.tried.len() > TRIES_MAX {
            return Err("too many orders are possible to find one".to_owned());
        }
        for owner in 0..self.open.len() {
            let Some(deed) = self.open[owner].get(taken[owner]).copied() else { continue };
            let mut taken = taken.to_vec();
            taken[owner] += 1;
            path.push(deed.change.apply(value));
            if self.go_on(path, &taken, used, &last)? {
                return Ok(true);
            }
            path.pop();
        }
        path.truncate(length);
        Ok(false)
    }
}

/// The cells of a host.
pub(super) struct Cells {
    device: Arc<Device>,
    buf: Arc<DmaBuf>,
    initial: Vec<u64>,
    guards: Vec<u64>,
    pub(super) histories: Vec<History>,
}

/// From one cell to the next; eight bytes between them belong to nobody.
const STRIDE: usize = 16;

impl Cells {
    /// Makes `count` cells.
    pub(super) fn new(dice: &mut Dice, device: &Arc<Device>, count: usize) -> Result<Self, String> {
        let buf = Arc::new(DmaBuf::zeroed(STRIDE * count));
        let mut word = || dice.word();
        let initial: Vec<u64> = (0..count).map(|_| word()).collect();
        let guards: Vec<u64> = (0..count).map(|_| word()).collect();
        for cell in 0..count {
            let words = [guards[cell].to_ne_bytes(), initial[cell].to_ne_bytes()].concat();
            buf.write_at(STRIDE * cell, &words).map_err(|fault| fault.to_string())?;
        }
        let histories = vec![History::default(); count];
        Ok(Self { device: device.clone(), buf, initial, guards, histories })
    }

    pub(super) fn count(&self) -> usize {
        self.initial.len()
    }

    pub(super) fn initial(&self, cell: usize) -> u64 {
        self.initial[cell]
    }

    /// Registers them for the peers of a protection domain.
    pub(super) fn register(&self, dice: &mut Dice, pd: PdId) -> Result<CellKeys, String> {
        let iova = dice.word() >> 16 & !7;
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_ATOMIC;
        let (len, memory) = (self.buf.len() as u64, self.device.memory());
        let keys = memory.register(pd, self.buf.clone(), 0, len, iova, access);
        Ok(CellKeys { iova, keys: keys.map_err(|error| format!("register: {error}"))? })
    }

    /// Compares what is there with the histories.
    pub(super) fn judge(&self) -> Result<(), String> {
        let load = |offset| self.buf.load_u64(offset).map_err(|fault| fault.to_string());
        for cell in 0..self.count() {
            if load(STRIDE * cell)? != self.guards[cell] {
                return Err(format!("the bytes before cell {cell} were changed"));
            }
            let now = load(STRIDE * cell + 8)?;
            self.histories[cell]
                .judge(self.initial[cell], now)
                .map_err(|what| format!("cell {cell}: {what}"))?;
        }
        Ok(())
    }
}

/// Cells as the peers of a protection domain know them.
#[derive(Clone, Copy, Debug)]
pub(super) struct CellKeys {
    iova: u64,
    keys: MrKeys,
}

impl CellKeys {
    /// A cell, as a peer names it.
    pub(super) fn remote(&self, cell: usize) -> RemoteAddr {
        let addr = self.iova.wrapping_add((STRIDE * cell + 8) as u64);
        RemoteAddr { addr, rkey: self.keys.rkey }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(deeds: &[(usize, usize, Change, Option<u64>)]) -> History {
        let mut history = History::default();
        for &(owner, number, change, original) in deeds {
            history.note(owner, number, change, original);
        }
        history
    }

    #[test]
    fn an_order_is_found_or_there_is_none() {
        let (add, swap) = (Change::Add, |compare, swap| Change::Swap { compare, swap });
        let all = [
            (0, 0, add(5), Some(10)),
            (1, 0, swap(15, 100), Some(15)),
            (1, 1, swap(1, 2), Some(100)),
            (0, 3, add(7), Some(100)),
        ];
        assert_eq!(history(&all).judge(10, 107), Ok(()));
        assert!(history(&all).judge(10, 114).is_err(), "one was executed twice");
        assert!(history(&all[..3]).judge(10, 107).is_err(), "who added 7?");
        let mut turned = all;
        (turned[0].1, turned[3].1) = (3, 0);
        assert!(history(&turned).judge(10, 107).is_err(), "out of order");
        turned = all;
        turned[2].3 = Some(3);
        assert!(history(&turned).judge(10, 107).is_err(), "3 was never there");
        turned = all;
        turned[3].3 = Some(10);
        assert!(history(&turned).judge(10, 107).is_err(), "two found the same");
    }

    #[test]
    fn what_was_flushed_may_have_been_executed_in_order() {
        let add = Change::Add;
        let all = [
            (0, 0, add(1), Some(0)),
            (0, 1, add(10), None),
            (0, 2, add(100), None),
            (1, 0, add(1000), Some(11)),
        ];
        assert_eq!(history(&all).judge(0, 1011), Ok(()));
        assert_eq!(history(&all).judge(0, 1111), Ok(()));
        assert!(history(&all).judge(0, 1101).is_err());
        assert!(history(&all[..3]).judge(0, 101).is_err(), "the second before the first");
    }
}
