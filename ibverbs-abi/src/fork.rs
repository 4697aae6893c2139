//! Processes that fork.

use crate::call::{MinusOne, Positive, missing};

missing! {
    EOPNOTSUPP as Positive:
        ibv_fork_init, ibv_is_fork_initialized;
    EOPNOTSUPP as MinusOne:
        ibv_dontfork_range, ibv_dofork_range;
}
