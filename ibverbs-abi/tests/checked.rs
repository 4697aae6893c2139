//! The programs in C once more, watched by memcheck and by the address sanitizer: the library touches
//! nothing that it must not, and leaves nothing behind.

mod common;

use common::{LEAKS, NO_LEAKS, run_under_memcheck, run_with_sanitizer};

/// Two tests for each program.
macro_rules! checked {
    ($($program:ident;)+) => {$(
        mod $program {
            use super::*;

            #[test]
            fn under_memcheck() {
                let test = concat!(stringify!($program), "::under_memcheck");
                run_under_memcheck(test, stringify!($program), LEAKS);
            }

            #[test]
            fn with_the_address_sanitizer() {
                let test = concat!(stringify!($program), "::with_the_address_sanitizer");
                run_with_sanitizer(test, stringify!($program));
            }
        }
    )+};
}

checked! {
    wrong;
    domains;
    allocators;
    queues;
    built;
    cq_ex;
    xrc;
    memory;
    events;
}

/// Without the address sanitizer: where a thread of the parent is in its allocator during the fork, that
/// stays locked in the child (GCC 12). And what the child leaves behind is the parent's.
#[test]
fn forks_under_memcheck() {
    run_under_memcheck("forks_under_memcheck", "forks", NO_LEAKS);
}
