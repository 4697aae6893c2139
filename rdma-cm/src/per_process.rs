//! What there is once for each process, and anew in a child after fork.

use std::sync::OnceLock;

/// Children of children that have their own.
const GENERATIONS: usize = 32;

/// Something that there is once for each process.
///
/// A child after fork has a new one. It must not even look at its parent's: a thread of the parent
/// may have held the lock when that forked, and is not there in the child to give it back. So none
/// of the parent's is dropped there either.
#[derive(Debug)]
pub(crate) struct PerProcess<T> {
    /// Each with the process that it is of.
    cells: [OnceLock<(u32, T)>; GENERATIONS],
}

impl<T: Default> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self { cells: [const { OnceLock::new() }; GENERATIONS] }
    }

    /// That of this process.
    pub(crate) fn get(&self) -> &T {
        let process = std::process::id();
        let own =
            |cell: &OnceLock<(u32, T)>| cell.get_or_init(|| (process, T::default())).0 == process;
        // Where there are too many generations, the last ones share.
        let at = self.cells.iter().position(own).unwrap_or(GENERATIONS - 1);
        &self.cells[at].get_or_init(|| (process, T::default())).1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_one_and_looks_past_those_of_others() {
        let things = PerProcess::<u8>::new();
        // As a child finds it whose parent, and whose parent's parent, had one.
        for (cell, process) in things.cells.iter().zip([1, 2]) {
            assert!(cell.set((process, 7)).is_ok());
        }
        assert_eq!(*things.get(), 0);
        assert!(std::ptr::eq(things.get(), things.get()));
        assert!(std::ptr::eq(things.get(), &raw const things.cells[2].get().expect("made").1));
    }
}
