//! Structs as the kernel's interface has them, made into those of verbs.h, which only librdmacm over the
//! kernel needs.

use crate::call::missing;

missing! {
    EOPNOTSUPP as ():
        ibv_copy_ah_attr_from_kern, ibv_copy_path_rec_from_kern, ibv_copy_path_rec_to_kern,
        ibv_copy_qp_attr_from_kern;
}
