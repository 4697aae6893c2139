//! Programs that only look: devices, their attributes, their events.

use std::fmt::Write;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use integration_tests::Packages;
use testkit::netns::{Joined, VethOptions, with_namespaces};
use testkit::process::{self, ProcessError, Running};

use crate::PROGRAMS;

pub(crate) const TITLE: &str = "Devices and their attributes";
const LIMIT: Duration = Duration::from_secs(30);

/// A program, its options, and what it prints among other things.
const RUNS: &[(&str, &str, &[&str])] = &[
    ("ibv_devices", "", &["rxe_eth0", "rxe_lo"]),
    ("ibv_devinfo", "-l", &["2 HCAs found", "rxe_eth0"]),
    ("ibv_devinfo", "", &["hca_id:\trxe_eth0", "PORT_ACTIVE", "active_mtu:\t\t1024"]),
    ("ibv_devinfo", "-v", &["GID[  1]:\t\t::ffff:10.77.0.1, RoCE v2", "ATOMIC_HCA", "max_qp_wr"]),
    ("ibv_devinfo", "-d rxe_eth0 -i 1", &["link_layer:\t\tEthernet"]),
    ("ucx_info", "-d", &["Transport: rc_verbs", "Transport: ud_verbs", "Device: rxe_eth0:1"]),
];

#[test]
fn the_tools_run() {
    with_namespaces("tools::the_tools_run", || {
        let files = [
            ("/usr/bin/ibv_devices", "ibverbs-utils"),
            ("/usr/bin/ibv_devinfo", "ibverbs-utils"),
            ("/usr/bin/ibv_asyncwatch", "ibverbs-utils"),
            ("/usr/bin/ucx_info", "ucx-utils"),
        ];
        let Some(packages) = Packages::find("the_tools_run", &files) else { return };
        let joined = Joined::new(VethOptions::default()).unwrap();
        let mut text = "| program | options | runs |\n|---|---|---|\n".to_owned();
        for (program, options, words) in RUNS {
            let path = packages.path(&format!("/usr/bin/{program}"));
            let mut command = packages.command(&joined.left, &path);
            command.args(options.split_whitespace());
            let seen = process::run(program, &mut command, LIMIT).unwrap().success().unwrap();
            for word in *words {
                assert!(seen.stdout.contains(word), "{word:?} is not in: {seen}");
            }
            let options = if options.is_empty() { String::new() } else { format!("`{options}`") };
            writeln!(text, "| {program} | {options} | yes |").unwrap();
        }
        watch_events(&packages, &joined).unwrap();
        writeln!(text, "| ibv_asyncwatch | | yes |").unwrap();
        PROGRAMS.check(TITLE, text);
    });
}

/// It waits for events of the device, and tells of each, until it is stopped.
fn watch_events(packages: &Packages, joined: &Joined) -> Result<(), ProcessError> {
    let program = packages.path("/usr/bin/ibv_asyncwatch");
    let mut command = packages.command(&joined.left, &program);
    command.args(["-d", "rxe_eth0"]);
    let mut watch = Running::start("ibv_asyncwatch", &mut command)?;
    watch.wait_for_text("rxe_eth0: async event FD", LIMIT)?;
    assert!(!watch.has_ended()?, "it does not wait: {}", watch.printed());
    for (change, event) in [
        ("address add 10.78.0.1/24 dev eth0", "IBV_EVENT_GID_CHANGE (18), port 1"),
        ("link set eth0 down", "IBV_EVENT_PORT_ERR (10), port 1"),
        ("link set eth0 up", "IBV_EVENT_PORT_ACTIVE (9), port 1"),
    ] {
        joined.left.tool("ip", change.split(' ')).expect(change);
        watch.wait_for_text(event, LIMIT)?;
    }
    watch.interrupt()?;
    let seen = watch.wait(LIMIT)?;
    assert_eq!(seen.status.signal(), Some(2), "{seen}");
    Ok(())
}
