//! librdmacm: sockets over connections. Nothing of them is there yet.

use crate::call::{Length, MinusOne, missing};

missing! {
    ENOSYS as MinusOne:
        raccept, rbind, rclose, rconnect, rfcntl, rgetpeername, rgetsockname, rgetsockopt,
        riounmap, rlisten, rpoll, rselect, rsetsockopt, rshutdown, rsocket;
    ENOSYS as Length:
        riomap, riowrite, rread, rreadv, rrecv, rrecvfrom, rrecvmsg, rsend, rsendmsg, rsendto,
        rwrite, rwritev;
}
