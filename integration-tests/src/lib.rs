//! Tests of urxe over real links and against real programs.
