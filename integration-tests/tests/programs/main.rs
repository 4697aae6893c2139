//! Unmodified programs of Debian's packages on urxe's libibverbs, and the table of those that run.
//!
//! Each group of programs is a test, and a section of `docs/programs.md`. After a change of what
//! runs, `URXE_BLESS=1 cargo test -p integration-tests --test programs` writes the table anew.

mod long;
mod perftest;
mod pingpongs;
mod qperf;
mod table;
mod tools;
mod ucx;

use integration_tests::Document;

const PROGRAMS: Document = Document {
    name: "programs.md",
    head: "\
# Unmodified programs that run

Made by `URXE_BLESS=1 cargo test -p integration-tests --test programs`; do not edit. That test runs the programs of Debian 12's packages
under `urxe run`, and fails when this table is not what it saw: a row says \"yes\" when both ends ran to their proper end, and what an end
prints when they do not. *lo* are two processes of one host, which share the address 127.0.0.1; *veth* are two hosts, each a network
namespace. Every size and path MTU with every option is tried by `cargo test --release -p integration-tests --test programs long -- --ignored`,
which takes a quarter of an hour and writes nothing.
",
    sections: &[
        tools::TITLE,
        pingpongs::TITLE,
        perftest::RC,
        perftest::OTHERS, ucx::TITLE, qperf::TITLE,
    ],
    command: "URXE_BLESS=1 cargo test -p integration-tests --test programs",
};

#[test]
fn the_table_has_a_section_for_each_group() {
    PROGRAMS.check_outline();
}
