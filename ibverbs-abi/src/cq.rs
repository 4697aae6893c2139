//! Completion queues.

use crate::call::{Pointer, Positive, missing};
use crate::types::ibv_cq;

missing! {
    EOPNOTSUPP as Pointer<ibv_cq>:
        ibv_create_cq;
    EOPNOTSUPP as Positive:
        ibv_destroy_cq, ibv_resize_cq;
}
