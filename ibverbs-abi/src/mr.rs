//! Registered memory.

use crate::call::{Count, Pointer, Positive, missing};
use crate::types::ibv_mr;

missing! {
    EOPNOTSUPP as Pointer<ibv_mr>:
        ibv_reg_mr, ibv_reg_mr_iova, ibv_reg_mr_iova2, ibv_reg_dmabuf_mr, ibv_import_mr;
    EOPNOTSUPP as Positive:
        ibv_dereg_mr;
    EOPNOTSUPP as Count:
        ibv_rereg_mr;
    EOPNOTSUPP as ():
        ibv_unimport_mr;
}
