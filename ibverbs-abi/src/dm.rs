//! Device memory.

use crate::call::{Pointer, missing};
use crate::types::ibv_dm;

missing! {
    EOPNOTSUPP as Pointer<ibv_dm>:
        ibv_import_dm;
    EOPNOTSUPP as ():
        ibv_unimport_dm;
}
