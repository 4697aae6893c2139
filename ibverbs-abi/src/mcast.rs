//! Multicast groups.

use crate::call::{Positive, missing};

missing! {
    EOPNOTSUPP as Positive:
        ibv_attach_mcast, ibv_detach_mcast;
}
