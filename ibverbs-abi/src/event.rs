//! Asynchronous events.

use crate::call::{MinusOne, missing};

missing! {
    EOPNOTSUPP as MinusOne:
        ibv_get_async_event;
    EOPNOTSUPP as ():
        ibv_ack_async_event;
}
