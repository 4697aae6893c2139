//! All of issue 4's list: every size, path MTU and option with each other, where the table has each once.
//!
//! A quarter of an hour; nothing is written, and a run that goes wrong is told:
//! `cargo test --release -p integration-tests --test programs long -- --ignored --nocapture`

use integration_tests::Packages;
use testkit::netns::with_namespaces;

use crate::table::{Row, play_all};
use crate::{perftest, pingpongs};

const SIZES: [u32; 9] = [1, 2, 64, 1023, 1024, 1025, 4096, 65_536, 1_048_576];
const MTUS: [&str; 5] = ["256", "512", "1024", "2048", "4096"];
/// The largest UD message, which is the MTU: of loopback, and of an interface with 1500.
const DATAGRAM_MAX: (u32, u32) = (4096, 1024);

fn run(test: &str, programs: &[&str], rows: &[Row]) {
    with_namespaces(&format!("long::{test}"), || {
        let files: Vec<_> = programs.iter().map(|name| format!("/usr/bin/{name}")).collect();
        let files: Vec<_> = files.iter().map(|file| (file.as_str(), "its package")).collect();
        let Some(packages) = Packages::find(test, &files) else { return };
        let runs = play_all(&packages, rows);
        println!("{test}: {runs} runs, of which none went wrong");
    });
}

/// How often a message of this size is exchanged.
fn messages(size: u32) -> u32 {
    (4 * 1_048_576 / size).clamp(5, 100)
}

#[test]
#[ignore = "takes minutes"]
fn ping_pongs_with_every_size_and_mtu() {
    let mut rows = Vec::new();
    for size in SIZES {
        let count = messages(size);
        let each = |program: &str, options: String| pingpongs::row(program, options.trim());
        for events in ["", " -e"] {
            for mtu in MTUS {
                let options = format!("-s {size} -n {count} -m {mtu}{events}");
                rows.push(each("ibv_rc_pingpong", format!("-c {options}")));
                rows.push(each("ibv_xsrq_pingpong", options.clone()));
                rows.push(each("ibv_srq_pingpong", format!("-c {options}")));
                rows.push(each("ibv_uc_pingpong", format!("-c {options}")));
            }
            if size <= DATAGRAM_MAX.0 {
                let mut row = each("ibv_ud_pingpong", format!("-c -s {size} -n 100{events}"));
                row.on_veth &= size <= DATAGRAM_MAX.1;
                rows.push(row);
            }
        }
        for option in ["-N", "-t", "-o", "-O", "-o -P", "-j", "-N -t", "-N -e"] {
            // Device memory is copied by words of four bytes, as on adapters that have some.
            if option == "-j" && size % 4 != 0 {
                continue;
            }
            rows.push(each("ibv_rc_pingpong", format!("-c -s {size} -n {count} {option}")));
        }
    }
    let programs = ["rc", "uc", "ud", "srq", "xsrq"].map(|name| format!("ibv_{name}_pingpong"));
    let programs: Vec<_> = programs.iter().map(String::as_str).collect();
    run("ping_pongs_with_every_size_and_mtu", &programs, &rows);
}

/// What a program of perftest may be given, and whether it takes it.
fn takes(program: &str, connection: &str, option: &str) -> bool {
    let (bandwidth, write) = (program.ends_with("bw"), program.starts_with("ib_write"));
    let (send, atomic) = (program.starts_with("ib_send"), program.starts_with("ib_atomic"));
    match option.split(' ').next().unwrap_or_default() {
        "-q" | "-b" | "-l" => bandwidth,
        "-e" => !write,
        "--use-srq" => send && connection != "UC",
        "-I" => send || write,
        "-A" => atomic,
        "-m" => connection != "UD",
        _ => true,
    }
}

const OPTIONS: [&str; 14] = [
    "",
    "--use_old_post_send",
    "-e",
    "-q 8",
    "-b",
    "-l 5",
    "--use-srq",
    "-I 1",
    "-I 64",
    "-A CMP_AND_SWAP",
    "-m 256",
    "-m 512",
    "-m 1024",
    "-q 8 -b --use_old_post_send",
];

/// A row, where the program takes the option.
fn perftest_row(program: &str, connection: &str, size: &str, option: &str) -> Option<Row> {
    takes(program, connection, option).then(|| {
        let options = format!("-c {connection} {size} {option}");
        let case = perftest::case(program, options.trim());
        Row { on_veth: option.is_empty(), ..Row::new(case, perftest::measured) }
    })
}

#[test]
#[ignore = "takes minutes"]
fn perftest_over_rc_with_every_option_and_size() {
    let verbs = ["ib_send", "ib_write", "ib_read", "ib_atomic"];
    let programs = verbs.map(|verb| [format!("{verb}_bw"), format!("{verb}_lat")]);
    let programs: Vec<_> = programs.iter().flatten().map(String::as_str).collect();
    let row = |option, program: &&str| {
        let size = match *program {
            "ib_atomic_bw" | "ib_atomic_lat" => "-n 100",
            // Both ends spin on memory, and on two cores leave little for what moves 8 MiB.
            "ib_write_lat" => "-n 5 -s 65536",
            _ => "-n 5 -a",
        };
        perftest_row(program, "RC", size, option)
    };
    let rows = OPTIONS.iter().flat_map(|option| programs.iter().map(move |name| row(option, name)));
    let rows: Vec<_> = rows.flatten().collect();
    run("perftest_over_rc_with_every_option_and_size", &programs, &rows);
}

/// What is lost is waited for without end.
#[test]
#[ignore = "takes minutes"]
fn perftest_over_uc_and_ud_with_every_option() {
    let programs = ["ib_send_bw", "ib_send_lat", "ib_write_bw", "ib_write_lat"];
    let mut rows = Vec::new();
    for option in OPTIONS {
        for program in programs {
            for size in ["-n 100 -s 2", "-n 100 -s 65536"] {
                rows.extend(perftest_row(program, "UC", size, option));
            }
            for size in ["-n 100 -s 2", "-n 100 -s 1024"] {
                let sends = program.starts_with("ib_send");
                rows.extend(perftest_row(program, "UD", size, option).filter(|_| sends));
            }
        }
    }
    run("perftest_over_uc_and_ud_with_every_option", &programs, &rows);
}
