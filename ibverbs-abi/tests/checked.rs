//! The programs in C once more, watched by memcheck and by the address sanitizer: the library touches
//! nothing that it must not, and leaves nothing behind.

mod common;

use common::{LEAKS, NO_LEAKS, run_under_memcheck, run_with_sanitizer};

/// Two tests for each program. What the child of a fork leaves behind is the parent's.
macro_rules! checked {
    ($($program:ident: $leaks:ident;)+) => {$(
        mod $program {
            use super::*;

            #[test]
            fn under_memcheck() {
                let test = concat!(stringify!($program), "::under_memcheck");
                run_under_memcheck(test, stringify!($program), $leaks);
            }

            #[test]
            fn with_the_address_sanitizer() {
                let test = concat!(stringify!($program), "::with_the_address_sanitizer");
                run_with_sanitizer(test, stringify!($program), $leaks);
            }
        }
    )+};
}

checked! {
    wrong: LEAKS;
    domains: LEAKS;
    allocators: LEAKS;
    queues: LEAKS;
    built: LEAKS;
    cq_ex: LEAKS;
    xrc: LEAKS;
    memory: LEAKS;
    events: LEAKS;
    forks: NO_LEAKS;
}
