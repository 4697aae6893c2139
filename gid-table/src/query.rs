//! The queries of a GID table, with the results of libibverbs.

use crate::table::{GidEntry, GidTable};
use crate::{Gid, GidType};

/// `ENODATA` of Linux.
const ENODATA: i32 = 61;
/// `EINVAL` of Linux.
const EINVAL: i32 = 22;
/// `EBUSY` of Linux.
const EBUSY: i32 = 16;

/// A query of a GID that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueryGidError {
    /// The index is in range, but has no entry (`ENODATA`).
    #[error("GID index {index} has no entry: choose one that query_gid_table lists")]
    Empty {
        /// The index asked for.
        index: u32,
    },
    /// The index is outside of the table (`EINVAL`).
    #[error("GID index {index} is out of range: this port has indices below {capacity}")]
    OutOfRange {
        /// The index asked for.
        index: u32,
        /// How many indices there are.
        capacity: u32,
    },
    /// The index is held as often as it can be counted (`EBUSY`).
    #[error("GID index {index} is held 2^32 - 1 times: destroy QPs or address handles first")]
    TooManyHolds {
        /// The index asked for.
        index: u32,
    },
}

impl QueryGidError {
    /// The errno that libibverbs gives for it, positive.
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Empty { .. } => ENODATA,
            Self::OutOfRange { .. } => EINVAL,
            Self::TooManyHolds { .. } => EBUSY,
        }
    }
}

/// An array too short for the entries that there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{valid} GIDs do not fit in {room} entries: give room for at least {valid}")]
pub struct QueryGidTableError {
    /// How many valid entries there are.
    pub valid: usize,
    /// How many the caller has room for.
    pub room: usize,
}

impl QueryGidTableError {
    /// The errno that libibverbs gives for it, positive; the C function returns it negated.
    pub const fn errno(&self) -> i32 {
        EINVAL
    }
}

impl GidTable {
    /// The entry at an index. Counterpart of `ibv_query_gid_ex(3)`.
    ///
    /// # Errors
    ///
    /// [`QueryGidError::Empty`] (`ENODATA`) and [`QueryGidError::OutOfRange`] (`EINVAL`).
    pub fn query_gid_ex(&self, index: u32) -> Result<GidEntry, QueryGidError> {
        let capacity = self.capacity();
        if index >= capacity {
            return Err(QueryGidError::OutOfRange { index, capacity });
        }
        self.live(index).ok_or(QueryGidError::Empty { index })
    }

    /// The GID at an index, all zeros where there is none. Counterpart of `ibv_query_gid(3)`.
    ///
    /// # Errors
    ///
    /// [`QueryGidError::OutOfRange`] (`EINVAL`).
    pub fn query_gid(&self, index: u32) -> Result<Gid, QueryGidError> {
        match self.query_gid_ex(index) {
            Ok(entry) => Ok(entry.gid),
            Err(QueryGidError::Empty { .. }) => Ok(Gid::ZERO),
            Err(error) => Err(error),
        }
    }

    /// The entry of a GID and type, the one with the lowest index. Counterpart of `rdma_find_gid`.
    pub fn find(&self, gid: Gid, gid_type: GidType) -> Option<GidEntry> {
        self.entries().find(|entry| entry.gid == gid && entry.gid_type == gid_type)
    }

    /// An entry that works where the one at `index` does not, for a message to the user.
    ///
    /// Among the entries that the host owns: one of the same type before another, then one that
    /// is routable before a link-local one, then the lowest index. `None` if the host owns none.
    pub fn suggest_for(&self, index: u32) -> Option<GidEntry> {
        // What an empty index was meant to be is unknown; v2 is what every link can send.
        let gid_type = self.live(index).map_or(GidType::RoceV2, |entry| entry.gid_type);
        self.entries()
            .filter(|entry| entry.owned && entry.gid_index != index)
            .min_by_key(|entry| (entry.gid_type != gid_type, entry.gid.is_link_local()))
    }
}

/// Writes all valid entries of the ports of a device into `out`, in order of port and index.
///
/// Returns how many they are. Counterpart of `ibv_query_gid_table(3)`, as released: the RFC that
/// proposed it (Pandit, 2020) filled a short array and had the count in a fourth argument; released
/// libibverbs returns the count, and refuses an array that is too short. There, each entry is of
/// an interface (`ndev_ifindex`, 0 for none; `-ENODEV` in the RFC); here, each always has one.
///
/// # Errors
///
/// [`QueryGidTableError`] when they do not fit; `out` is then unchanged.
pub fn query_gid_table<'t>(
    ports: impl IntoIterator<Item = &'t GidTable, IntoIter: Clone>,
    out: &mut [GidEntry],
) -> Result<usize, QueryGidTableError> {
    let entries = ports.into_iter().flat_map(GidTable::entries);
    let valid = entries.clone().count();
    let room = out.len();
    if valid > room {
        return Err(QueryGidTableError { valid, room });
    }
    for (place, entry) in out.iter_mut().zip(entries) {
        *place = entry;
    }
    Ok(valid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::WantedGid;

    fn wanted(gid: &str, gid_type: GidType, owned: bool) -> WantedGid {
        WantedGid { gid: gid.parse().expect("a GID"), gid_type, ifindex: 2, owned }
    }

    fn table(port_num: u32, entries: &[WantedGid]) -> GidTable {
        let mut table = GidTable::new(port_num, 8);
        for &entry in entries {
            table.add(entry).expect("room");
        }
        table
    }

    #[test]
    fn empty_and_out_of_range_differ() {
        let table = table(1, &[wanted("10.0.0.1", GidType::RoceV2, true)]);
        let found = table.query_gid_ex(0).expect("is there");
        assert_eq!((found.gid.to_string().as_str(), found.port_num), ("::ffff:10.0.0.1", 1));
        assert_eq!(table.query_gid_ex(1).map_err(|e| e.errno()), Err(61));
        assert_eq!(table.query_gid_ex(8).map_err(|e| e.errno()), Err(22));
        assert_eq!(table.query_gid(1), Ok(Gid::ZERO));
        assert_eq!(table.query_gid(8).map_err(|e| e.errno()), Err(22));
    }

    #[test]
    fn the_table_query_takes_all_ports_or_nothing() {
        let entry = |gid| wanted(gid, GidType::RoceV2, true);
        let mut first = table(1, &[entry("10.0.0.1"), entry("10.0.0.2"), entry("10.0.0.3")]);
        first.remove(&entry("10.0.0.2"));
        let ports = [first, table(2, &[entry("10.0.1.1")])];
        let filler = ports[1].query_gid_ex(0).expect("is there");

        let mut out = [filler; 4];
        assert_eq!(query_gid_table(&ports, &mut out), Ok(3));
        let seen: Vec<_> = out[..3].iter().map(|e| (e.port_num, e.gid_index)).collect();
        assert_eq!(seen, [(1, 0), (1, 2), (2, 0)]);

        let mut short = [filler; 2];
        let error = QueryGidTableError { valid: 3, room: 2 };
        assert_eq!(query_gid_table(&ports, &mut short), Err(error));
        assert_eq!((short, error.errno()), ([filler; 2], 22));
    }

    #[test]
    fn the_lowest_index_is_found() {
        let v1 = wanted("10.0.0.1", GidType::RoceV1, true);
        let v2 = wanted("10.0.0.1", GidType::RoceV2, true);
        let table = table(1, &[v1, v2, WantedGid { ifindex: 3, ..v2 }]);
        assert_eq!(table.find(v2.gid, GidType::RoceV2).map(|e| e.gid_index), Some(1));
        assert_eq!(table.find(Gid::ZERO, GidType::RoceV2), None);
    }

    #[test]
    fn a_suggestion_is_owned_and_of_the_same_type() {
        let table = table(
            1,
            &[
                wanted("fe80::1", GidType::RoceV1, false),
                wanted("fe80::1", GidType::RoceV2, false),
                wanted("fe80::2", GidType::RoceV1, true),
                wanted("fe80::2", GidType::RoceV2, true),
                wanted("10.0.0.1", GidType::RoceV2, true),
            ],
        );
        assert_eq!(table.suggest_for(0).map(|e| e.gid_index), Some(2));
        assert_eq!(table.suggest_for(1).map(|e| e.gid_index), Some(4));
        assert_eq!(table.suggest_for(4).map(|e| e.gid_index), Some(3));
        assert_eq!(table.suggest_for(7).map(|e| e.gid_index), Some(4));
    }

    #[test]
    fn no_suggestion_where_nothing_is_owned() {
        let table = table(1, &[wanted("fe80::1", GidType::RoceV2, false)]);
        assert_eq!(table.suggest_for(0), None);
    }
}
