//! Completion channels, and the events that come by them.

use crate::call::{MinusOne, Pointer, Positive, missing};
use crate::types::ibv_comp_channel;

missing! {
    EOPNOTSUPP as Pointer<ibv_comp_channel>:
        ibv_create_comp_channel;
    EOPNOTSUPP as Positive:
        ibv_destroy_comp_channel;
    EOPNOTSUPP as MinusOne:
        ibv_get_cq_event;
    EOPNOTSUPP as ():
        ibv_ack_cq_events;
}
