//! Captures, as Wireshark reads them.

use std::io::Write;
use std::path::{Path as FilePath, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use gid_table::GidType;
use rxe_core::path::{Path, Transmit};
use rxe_core::time::Instant;
use rxe_net::batch::TxBatch;
use rxe_net::link::Link;
use rxe_net::memory::{Fabric, PortConfig};
use rxe_net::pcap::{Capture, CaptureStats, CapturedPacket};
use rxe_wire::Qpn;
use rxe_wire::icrc::IcrcFlow;

/// What a test asks of each packet, in this order.
const FIELDS: [&str; 7] = [
    "infiniband.bth.opcode",
    "infiniband.bth.psn",
    "vlan.id",
    "ip.src",
    "ipv6.src",
    "infiniband.grh.sgid",
    "infiniband.invariant.crc",
];

/// A scratch file that is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("urxe-{name}-{}.pcap", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // It is in a directory for such files: one that cannot be removed does no harm.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Runs tshark on a file; one row a packet. `None`, and a word about it, where there is none.
fn tshark(file: &FilePath, arguments: &[&str]) -> Option<Vec<String>> {
    let mut command = Command::new("tshark");
    // Its RPC-over-RDMA guess takes small payloads for its own.
    command.args(["--disable-protocol", "rpcordma", "-r"]).arg(file).args(arguments);
    match command.output() {
        Ok(output) => {
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "tshark fails: {errors}");
            assert!(!errors.contains("cut short"), "{errors}");
            Some(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            assert!(std::env::var_os("CI").is_none(), "CI needs tshark: install it");
            // Not by a macro: what a test prints by one is seen only when it fails.
            let _ = writeln!(std::io::stderr(), "left out: there is no tshark here");
            None
        }
        Err(error) => panic!("tshark cannot be run: {error}"),
    }
}

fn rows(file: &FilePath) -> Option<Vec<Vec<String>>> {
    let mut arguments = vec!["-T", "fields", "-E", "separator=;", "-E", "occurrence=f"];
    for field in FIELDS {
        arguments.extend(["-e", field]);
    }
    let split = |row: &String| row.split(';').map(str::to_owned).collect();
    Some(tshark(file, &arguments)?.iter().map(split).collect())
}

/// Asserts that tshark finds nothing wrong with any packet.
fn assert_clean(file: &FilePath) {
    let filter = "_ws.malformed || _ws.expert.severity >= 6291456"; // warnings and errors
    let found = tshark(file, &["-Y", filter, "-V"]).unwrap_or_default();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

fn path(source: &str, destination: &str) -> Path {
    Path::new(source.parse().expect("a GID"), destination.parse().expect("a GID"))
}

/// An RC SEND_ONLY of twelve bytes.
fn packet(psn: u8) -> Vec<u8> {
    let mut packet = vec![0x04, 0, 0xff, 0xff, 0, 0x01, 0x02, 0x03, 0x80, 0, 0, psn];
    packet.extend(*b"hello, world");
    packet
}

#[test]
fn frames_of_the_memory_link_are_well_formed() {
    let file = Scratch::new("frames");
    let capture = Capture::create(&file.0, Duration::from_secs(1_700_000_000)).expect("a file");
    let capture = Arc::new(capture);
    let fabric = Fabric::new();
    fabric.set_capture(Some(Arc::clone(&capture)));
    let left = fabric.add_port(PortConfig::numbered(1)).expect("free addresses");
    fabric.add_port(PortConfig::numbered(2)).expect("free addresses");
    let mut left = fabric.attach(left, 1).expect("a free slot");

    let v4 = path("10.0.0.1", "10.0.0.2");
    let v6 = Path { flow_label: 0x1_2345, ..path("fd00::1", "fd00::2") };
    let v1 = Path { gid_type: GidType::RoceV1, ..v6 };
    let multicast = path("10.0.0.1", "239.1.2.3");
    let tagged = |path| Path { vlan: Some(7), ..path };
    let paths = [v4, v6, v1, multicast, tagged(v4), tagged(v6), tagged(v1)];
    let mut batch = TxBatch::new();
    for (psn, path) in (0..).zip(paths) {
        let transmit = Transmit { len: 0, path, dest_qpn: Qpn::new(0x01_0203) };
        assert!(batch.push_copy(&packet(psn), transmit, None));
    }
    left.transmit(Instant::from_nanos(123_456_789), &mut batch);
    assert_eq!(capture.stats(), CaptureStats { written: 7, lost: 0 });

    let Some(rows) = rows(&file.0) else { return };
    assert_eq!(rows.len(), paths.len());
    for ((psn, path), row) in (0..).zip(paths).zip(&rows) {
        let [opcode, seen_psn, vlan, ip, ipv6, grh, icrc] = row.as_slice() else {
            panic!("another number of fields: {row:?}")
        };
        assert_eq!((opcode.as_str(), seen_psn), ("4", &format!("{psn}")));
        assert_eq!(*vlan, path.vlan.map_or_else(String::new, |id| id.to_string()));
        let seen: String = [ip, ipv6, grh].into_iter().flat_map(|text| text.chars()).collect();
        assert_eq!(seen, path.source.to_ip().to_string(), "{row:?}");
        assert!(!icrc.is_empty());
    }
    assert_clean(&file.0);
    let times = tshark(&file.0, &["-T", "fields", "-e", "frame.time_epoch"]).expect("is there");
    assert!(times.iter().all(|time| time == "1700000000.123456789"), "{times:?}");
}

#[test]
fn packets_of_a_socket_get_well_formed_frames() {
    let file = Scratch::new("packets");
    let capture = Capture::create(&file.0, Duration::ZERO).expect("a file");
    let v4 = path("10.0.0.1", "10.0.0.2");
    let v6 = path("fd00::1", "fd00::2");
    let flows = [
        (v4, IcrcFlow::v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 0xc001)),
        (v6, {
            let ends = ["fd00::1", "fd00::2"].map(|text| text.parse().expect("an address"));
            IcrcFlow::v6(ends[0], ends[1], 0xc001)
        }),
    ];
    let mut batch = capture.batch(Instant::ZERO);
    for (path, flow) in flows {
        for identification in 0..3 {
            let mut sealed = packet(9);
            sealed.extend(flow.icrc(identification, &sealed).to_le_bytes());
            batch.packet(&CapturedPacket {
                path: &path,
                source_port: 0xc001,
                identification,
                dont_fragment: true,
                sealed: &sealed,
            });
        }
    }
    // The file is whole before the capture ends: a process may be killed at any time.
    drop(batch);
    let Some(rows) = rows(&file.0) else { return };
    assert_eq!(rows.len(), 6);
    assert!(rows.iter().all(|row| row[0] == "4" && row[1] == "9"), "{rows:?}");
    assert_clean(&file.0);
}
