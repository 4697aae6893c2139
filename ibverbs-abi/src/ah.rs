//! Address handles.

use crate::call::{MinusOne, Pointer, Positive, missing};
use crate::types::ibv_ah;

missing! {
    EOPNOTSUPP as Pointer<ibv_ah>:
        ibv_create_ah, ibv_create_ah_from_wc;
    EOPNOTSUPP as MinusOne:
        ibv_init_ah_from_wc, ibv_resolve_eth_l2_from_gid;
    EOPNOTSUPP as Positive:
        ibv_destroy_ah;
}
