//! Shared receive queues.

use crate::call::{Pointer, Positive, missing};
use crate::types::ibv_srq;

missing! {
    EOPNOTSUPP as Pointer<ibv_srq>:
        ibv_create_srq;
    EOPNOTSUPP as Positive:
        ibv_modify_srq, ibv_query_srq, ibv_destroy_srq;
}
