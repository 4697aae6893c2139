//! Queue pairs.

use crate::call::{Pointer, Positive, missing};
use crate::types::ibv_qp;

missing! {
    EOPNOTSUPP as Pointer<ibv_qp>:
        ibv_create_qp;
    EOPNOTSUPP as Positive:
        ibv_modify_qp, ibv_query_qp, ibv_destroy_qp, ibv_query_qp_data_in_order, ibv_query_ece,
        ibv_set_ece;
}
