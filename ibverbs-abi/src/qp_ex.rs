//! Queue pairs whose requests are put together call by call (`ibv_wr_*`).

use crate::call::{Pointer, missing};
use crate::types::ibv_qp_ex;

missing! {
    EOPNOTSUPP as Pointer<ibv_qp_ex>:
        ibv_qp_to_qp_ex;
}
