//! The GID table of one port: entries at stable indices.
//!
//! A QP and an address handle name their source GID by index. Between the moment a program looks
//! an index up and the moment its packets leave, addresses come and go. So an index is held while
//! something uses it: when its address disappears the entry becomes a tombstone, which answers
//! like an empty index but is not given to another address until the last holder lets go.

use crate::query::QueryGidError;
use crate::{Gid, GidType};

/// What an entry of a GID table should be, before it has an index.
///
/// Two are the same entry when GID, type and interface agree; whether it is owned may change.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WantedGid {
    /// The GID.
    pub gid: Gid,
    /// The kind of network it is used on.
    pub gid_type: GidType,
    /// Index of the interface that has the address (`if_nametoindex(3)`).
    pub ifindex: u32,
    /// Whether the host owns the address, that is, can send from it and receive on it.
    pub owned: bool,
}

impl WantedGid {
    /// Whether `other` is the same entry, owned or not.
    pub fn is_same_entry(&self, other: &Self) -> bool {
        self.gid == other.gid && self.gid_type == other.gid_type && self.ifindex == other.ifindex
    }
}

/// An entry of a GID table. Counterpart of `struct ibv_gid_entry`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GidEntry {
    /// The GID.
    pub gid: Gid,
    /// Its index in the table of the port.
    pub gid_index: u32,
    /// The port, counted from 1.
    pub port_num: u32,
    /// The kind of network it is used on.
    pub gid_type: GidType,
    /// Index of the interface that has the address (`ndev_ifindex` in C).
    pub ifindex: u32,
    /// Whether the host owns the address; not in C. A QP cannot send from an entry that is not.
    pub owned: bool,
}

/// A change of the table, for whoever follows it (`IBV_EVENT_GID_CHANGE`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GidChange {
    /// The entry is new, at an index that was empty.
    Added(GidEntry),
    /// The entry is gone; its index answers as empty from now on.
    Removed(GidEntry),
    /// The host has come to own the address, or ceased to: the entry as it is now.
    OwnershipChanged(GidEntry),
}

/// A table with no empty index left, and the entry that found none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "GID {} ({}) has no room in the table of {capacity} entries: remove addresses from the \
     interface or destroy the QPs and address handles that hold removed ones",
    wanted.gid, wanted.gid_type
)]
pub struct TableFullError {
    /// The entry that found no index.
    pub wanted: WantedGid,
    /// How many entries the table can have.
    pub capacity: u32,
}

/// A release of an index that nothing holds: a hold was given back twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("GID index {index} is not held: each hold can be released once")]
pub struct NotHeldError {
    /// The index given.
    pub index: u32,
}

/// One index of the table.
#[derive(Clone, Copy, Debug)]
enum Slot {
    /// Nothing here, and nothing refers to it.
    Empty,
    /// An entry, and how many users hold it.
    Live { entry: WantedGid, holds: u32 },
    /// An entry that was removed while held; `holds` is never 0.
    Tombstone { entry: WantedGid, holds: u32 },
}

/// The GID table of one port.
///
/// Pure data: it knows nothing of the host, and whoever shares it locks it. Fill it with
/// [`crate::populate::sync`], read it with the queries of [`crate::query`].
///
/// The contract of an index: from a successful [`GidTable::hold`] to the matching
/// [`GidTable::release`], the index means the same GID, type and interface, or nothing when the
/// address is gone (and the same again should it come back). Only an index that nobody holds is
/// given to another address, lowest first.
#[derive(Clone, Debug)]
pub struct GidTable {
    port_num: u32,
    slots: Vec<Slot>,
    generation: u64,
}

impl GidTable {
    /// How many entries a port of rdma_rxe has (`RXE_PORT_GID_TBL_LEN`), and ours by default.
    pub const DEFAULT_CAPACITY: u32 = 1024;

    /// An empty table of `capacity` entries for the port `port_num`, counted from 1.
    pub fn new(port_num: u32, capacity: u32) -> Self {
        Self { port_num, slots: vec![Slot::Empty; capacity as usize], generation: 0 }
    }

    /// Adds an entry at the index that it had, if that is still held, or the lowest empty one.
    ///
    /// `None` when the table has it already and nothing changed.
    ///
    /// # Errors
    ///
    /// [`TableFullError`] when no index is empty.
    pub fn add(&mut self, wanted: WantedGid) -> Result<Option<GidChange>, TableFullError> {
        if let Some(index) = self.live_index(&wanted) {
            return Ok(self.set_owned(index, wanted.owned));
        }
        let capacity = self.capacity();
        let index = self.index_for_new(&wanted).ok_or(TableFullError { wanted, capacity })?;
        let holds = match self.slots[index] {
            Slot::Tombstone { holds, .. } => holds,
            Slot::Empty | Slot::Live { .. } => 0,
        };
        self.slots[index] = Slot::Live { entry: wanted, holds };
        self.generation += 1;
        Ok(Some(GidChange::Added(self.entry(index, wanted))))
    }

    /// Removes the entry of this GID, type and interface; `None` when the table has none.
    ///
    /// Its index answers as empty at once, and is reused when nobody holds it.
    pub fn remove(&mut self, gone: &WantedGid) -> Option<GidChange> {
        let index = self.live_index(gone)?;
        let Slot::Live { entry, holds } = self.slots[index] else { return None };
        self.slots[index] = if holds == 0 { Slot::Empty } else { Slot::Tombstone { entry, holds } };
        self.generation += 1;
        Some(GidChange::Removed(self.entry(index, entry)))
    }

    /// Takes a hold on an index, so that it keeps its meaning until [`GidTable::release`].
    ///
    /// A QP holds its source GID from the move to RTR on, an address handle for its life.
    ///
    /// # Errors
    ///
    /// As [`GidTable::query_gid_ex`]: the index is out of range or empty.
    pub fn hold(&mut self, index: u32) -> Result<GidEntry, QueryGidError> {
        let found = self.query_gid_ex(index)?;
        if let Some(Slot::Live { holds, .. }) = self.slots.get_mut(index as usize) {
            *holds = holds.checked_add(1).ok_or(QueryGidError::TooManyHolds { index })?;
        }
        Ok(found)
    }

    /// Gives a hold back.
    ///
    /// # Errors
    ///
    /// [`NotHeldError`] when nothing holds this index; the table is unchanged.
    pub fn release(&mut self, index: u32) -> Result<(), NotHeldError> {
        let slot = self.slots.get_mut(index as usize).ok_or(NotHeldError { index })?;
        match slot {
            Slot::Live { holds, .. } if *holds > 0 => *holds -= 1,
            Slot::Tombstone { holds, .. } if *holds > 1 => *holds -= 1,
            Slot::Tombstone { .. } => *slot = Slot::Empty,
            Slot::Empty | Slot::Live { .. } => return Err(NotHeldError { index }),
        }
        Ok(())
    }

    /// The port this table belongs to, counted from 1.
    pub const fn port_num(&self) -> u32 {
        self.port_num
    }

    /// How many entries the table can have (`gid_tbl_len` of `struct ibv_port_attr`).
    pub fn capacity(&self) -> u32 {
        // `new` made the slots from a u32.
        u32::try_from(self.slots.len()).unwrap_or(u32::MAX)
    }

    /// A number that grows with every change: whoever remembers it knows if it must look again.
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// The entries there are, by index.
    pub fn entries(&self) -> impl Iterator<Item = GidEntry> + Clone + '_ {
        self.slots.iter().enumerate().filter_map(|(index, slot)| match *slot {
            Slot::Live { entry, .. } => Some(self.entry(index, entry)),
            Slot::Empty | Slot::Tombstone { .. } => None,
        })
    }

    /// The entry at an index, if there is one.
    pub(crate) fn live(&self, index: u32) -> Option<GidEntry> {
        match *self.slots.get(index as usize)? {
            Slot::Live { entry, .. } => Some(self.entry(index as usize, entry)),
            Slot::Empty | Slot::Tombstone { .. } => None,
        }
    }

    fn set_owned(&mut self, index: usize, owned: bool) -> Option<GidChange> {
        let Some(Slot::Live { entry, .. }) = self.slots.get_mut(index) else { return None };
        if entry.owned == owned {
            return None;
        }
        entry.owned = owned;
        let entry = *entry;
        self.generation += 1;
        Some(GidChange::OwnershipChanged(self.entry(index, entry)))
    }

    fn live_index(&self, wanted: &WantedGid) -> Option<usize> {
        self.slots.iter().position(
            |slot| matches!(slot, Slot::Live { entry, .. } if entry.is_same_entry(wanted)),
        )
    }

    /// The index a new entry gets: its own tombstone before any empty one, so that holders of
    /// an address that comes back find it where it was.
    fn index_for_new(&self, wanted: &WantedGid) -> Option<usize> {
        let own = self.slots.iter().position(|slot| match slot {
            Slot::Tombstone { entry, .. } => entry.is_same_entry(wanted),
            Slot::Empty | Slot::Live { .. } => false,
        });
        own.or_else(|| self.slots.iter().position(|slot| matches!(slot, Slot::Empty)))
    }

    fn entry(&self, index: usize, entry: WantedGid) -> GidEntry {
        let WantedGid { gid, gid_type, ifindex, owned } = entry;
        // `new` made the slots from a u32, so every index fits.
        let gid_index = u32::try_from(index).unwrap_or(u32::MAX);
        GidEntry { gid, gid_index, port_num: self.port_num, gid_type, ifindex, owned }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn wanted(last: u8) -> WantedGid {
        let gid = Gid::from_ip([10, 0, 0, last].into());
        WantedGid { gid, gid_type: GidType::RoceV2, ifindex: 2, owned: true }
    }

    fn added(table: &mut GidTable, last: u8) -> u32 {
        match table.add(wanted(last)).expect("room") {
            Some(GidChange::Added(entry)) => entry.gid_index,
            other => panic!("expected an addition, not {other:?}"),
        }
    }

    #[test]
    fn the_lowest_empty_index_is_taken() {
        let mut table = GidTable::new(1, 4);
        assert_eq!([added(&mut table, 1), added(&mut table, 2), added(&mut table, 3)], [0, 1, 2]);
        assert!(
            matches!(table.remove(&wanted(2)), Some(GidChange::Removed(e)) if e.gid_index == 1)
        );
        assert_eq!(added(&mut table, 4), 1);
        assert_eq!(table.generation(), 5);
    }

    #[test]
    fn a_second_addition_changes_nothing() {
        let mut table = GidTable::new(1, 4);
        added(&mut table, 1);
        assert_eq!(table.add(wanted(1)), Ok(None));
        assert_eq!((table.entries().count(), table.generation()), (1, 1));
    }

    #[test]
    fn the_same_gid_of_another_type_or_interface_is_another_entry() {
        let mut table = GidTable::new(1, 4);
        added(&mut table, 1);
        let v1 = WantedGid { gid_type: GidType::RoceV1, ..wanted(1) };
        let other = WantedGid { ifindex: 3, ..wanted(1) };
        assert!(matches!(table.add(v1), Ok(Some(GidChange::Added(e))) if e.gid_index == 1));
        assert!(matches!(table.add(other), Ok(Some(GidChange::Added(e))) if e.gid_index == 2));
    }

    #[test]
    fn a_held_index_is_not_given_away() {
        let mut table = GidTable::new(1, 4);
        let index = added(&mut table, 1);
        table.hold(index).expect("is there");
        table.hold(index).expect("is there");
        table.remove(&wanted(1));
        assert_eq!(table.query_gid_ex(index), Err(QueryGidError::Empty { index }));
        assert_eq!(table.hold(index), Err(QueryGidError::Empty { index }));
        assert_eq!(added(&mut table, 2), 1);
        table.release(index).expect("held twice");
        assert_eq!(added(&mut table, 3), 2);
        table.release(index).expect("held once");
        assert_eq!(table.release(index), Err(NotHeldError { index }));
        assert_eq!(added(&mut table, 4), index);
    }

    #[test]
    fn an_address_that_comes_back_finds_its_held_index() {
        let mut table = GidTable::new(1, 4);
        added(&mut table, 1);
        let index = added(&mut table, 2);
        table.hold(index).expect("is there");
        table.remove(&wanted(1));
        table.remove(&wanted(2));
        assert_eq!(added(&mut table, 2), index);
        table.release(index).expect("still held");
        assert_eq!(table.release(index), Err(NotHeldError { index }));
    }

    #[test]
    fn ownership_changes_in_place() {
        let mut table = GidTable::new(1, 4);
        table.add(WantedGid { owned: false, ..wanted(1) }).expect("room");
        let change = table.add(wanted(1)).expect("is there");
        assert!(matches!(change, Some(GidChange::OwnershipChanged(e)) if e.owned));
    }

    #[test]
    fn a_full_table_says_so() {
        let mut table = GidTable::new(1, 1);
        let index = added(&mut table, 1);
        let error = TableFullError { wanted: wanted(2), capacity: 1 };
        assert_eq!(table.add(wanted(2)), Err(error));
        assert!(error.to_string().contains("::ffff:10.0.0.2"), "{error}");
        table.hold(index).expect("is there");
        table.remove(&wanted(1));
        assert_eq!(table.add(wanted(2)), Err(error), "the only index is still held");
    }

    #[derive(Clone, Copy, Debug)]
    enum Op {
        Add(u8, bool),
        Remove(u8),
        Hold(u32),
        Release(u32),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            (0..8_u8, any::<bool>()).prop_map(|(last, owned)| Op::Add(last, owned)),
            (0..8_u8).prop_map(Op::Remove),
            (0..6_u32).prop_map(Op::Hold),
            (0..6_u32).prop_map(Op::Release),
        ]
    }

    proptest! {
        /// Against a model of what holders were promised: a held index never means another
        /// address, no address is there twice, and the changes told add up to the table.
        #[test]
        fn indices_keep_their_meaning_while_held(ops in prop::collection::vec(op(), 0..80)) {
            let mut table = GidTable::new(1, 5);
            let mut held: HashMap<u32, (Gid, u32)> = HashMap::new();
            let mut told: HashMap<u32, GidEntry> = HashMap::new();
            for op in ops {
                let before = table.generation();
                let change = match op {
                    Op::Add(last, owned) => {
                        table.add(WantedGid { owned, ..wanted(last) }).unwrap_or(None)
                    }
                    Op::Remove(last) => table.remove(&wanted(last)),
                    Op::Hold(index) => {
                        if let Ok(entry) = table.hold(index) {
                            held.entry(index).or_insert((entry.gid, 0)).1 += 1;
                        }
                        None
                    }
                    Op::Release(index) => {
                        let count = held.get_mut(&index).map(|(_, count)| { *count -= 1; *count });
                        prop_assert_eq!(table.release(index).is_ok(), count.is_some());
                        if count == Some(0) {
                            held.remove(&index);
                        }
                        None
                    }
                };
                prop_assert_eq!(table.generation() > before, change.is_some());
                match change {
                    Some(GidChange::Added(e)) => {
                        prop_assert_eq!(told.insert(e.gid_index, e), None);
                    }
                    Some(GidChange::Removed(e)) => {
                        prop_assert_eq!(told.remove(&e.gid_index), Some(e));
                    }
                    Some(GidChange::OwnershipChanged(e)) => {
                        let old = told.insert(e.gid_index, e).expect("was there");
                        prop_assert_eq!(GidEntry { owned: !old.owned, ..old }, e);
                    }
                    None => {}
                }
                let mut now: Vec<_> = told.values().copied().collect();
                now.sort_by_key(|e| e.gid_index);
                prop_assert_eq!(&now, &table.entries().collect::<Vec<_>>());
                for (i, entry) in now.iter().enumerate() {
                    prop_assert!(now[..i].iter().all(|other| other.gid != entry.gid));
                    if let Some((gid, _)) = held.get(&entry.gid_index) {
                        prop_assert_eq!(*gid, entry.gid);
                    }
                }
            }
        }
    }
}
