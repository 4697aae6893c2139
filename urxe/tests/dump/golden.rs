//! Over the captures of the Linux driver.

use std::net::IpAddr;

use crate::support::{dump, golden, golden_captures, table};

#[test]
fn golden_captures_have_as_many_good_packets_as_rows() {
    for capture in golden_captures() {
        let rows = table(&capture.with_extension("tsv")).len();
        let run = dump(&[capture.to_str().unwrap()], b"");
        assert_eq!((run.status, run.stderr.as_str()), (0, ""), "{}", capture.display());
        assert_eq!(run.lines().len(), rows + 1, "{}", capture.display());
        let expected =
            format!("{rows} packets, {rows} RoCE, iCRC {rows} good 0 bad, 0 malformed, 0 foreign");
        assert_eq!(run.last(), expected, "{}", capture.display());
        assert!(!run.stdout.contains("odd:"), "{}", capture.display());
    }
}

/// A cell of a table as a number: 0x-hex or decimal.
fn number(cell: &str) -> u64 {
    match cell.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).unwrap(),
        None => cell.parse().unwrap(),
    }
}

#[test]
fn json_says_what_the_tables_say() {
    for capture in golden_captures() {
        let rows = table(&capture.with_extension("tsv"));
        let run = dump(&["--json", capture.to_str().unwrap()], b"");
        assert_eq!(run.status, 0);
        let objects = run.json();
        assert_eq!(objects.len(), rows.len() + 1);
        for (row, object) in rows.iter().zip(&objects) {
            let at = format!("{} {object}", capture.display());
            let bth = &object["bth"];
            for (column, field) in [
                ("opcode", "opcode"),
                ("padcnt", "pad"),
                ("p_key", "pkey"),
                ("destqp", "dest_qpn"),
                ("psn", "psn"),
            ] {
                let cell = &row[&format!("infiniband.bth.{column}")];
                assert_eq!(bth[field].as_u64(), Some(number(cell)), "{column} {at}");
            }
            let ack_req = number(&row["infiniband.bth.a"]) != 0;
            assert_eq!(bth["ack_req"].as_bool(), Some(ack_req), "{at}");
            let source_port = number(&row["udp.srcport"]);
            assert_eq!(object["udp"]["source_port"].as_u64(), Some(source_port), "{at}");
            // The table has the bytes of the wire in order, the value is little-endian.
            let crc = (number(&row["infiniband.invariant.crc"]) as u32).swap_bytes();
            assert_eq!(object["icrc"]["carried"], format!("0x{crc:08x}"), "{at}");
            assert_eq!(object["kind"], "roce", "{at}");
        }
        let summary = objects.last().unwrap();
        assert_eq!(summary["kind"], "summary");
        assert_eq!(summary["icrc_good"].as_u64(), Some(rows.len() as u64));
        assert_eq!(summary["icrc_bad"].as_u64(), Some(0));
    }
}

#[test]
fn the_output_for_one_capture_is_this() {
    let capture = golden("rdma_client.pcap");
    let text = dump(&[capture.to_str().unwrap()], b"").stdout;
    insta::assert_snapshot!("rdma_client_text", text);
    let verbose = dump(&["--verbose", capture.to_str().unwrap()], b"").stdout;
    insta::assert_snapshot!("rdma_client_verbose", verbose);
    let json = dump(&["--json", capture.to_str().unwrap()], b"").stdout;
    insta::assert_snapshot!("rdma_client_json", json);
}

#[test]
fn addresses_of_the_tables_are_those_of_the_lines() {
    for capture in ["rping.pcap", "rc_v6.pcap"].map(golden) {
        let run = dump(&["--json", capture.to_str().unwrap()], b"");
        for (row, object) in table(&capture.with_extension("tsv")).iter().zip(run.json()) {
            let cell = [&row["ip.src"], &row["ipv6.src"]].into_iter().find(|cell| !cell.is_empty());
            let expected: IpAddr = cell.unwrap().parse().unwrap();
            assert_eq!(object["ip"]["source"], expected.to_string());
        }
    }
}
