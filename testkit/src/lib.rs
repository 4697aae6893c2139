//! Simulated networks, packet scripts and namespaces for the tests of urxe.
