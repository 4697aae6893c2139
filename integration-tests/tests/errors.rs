//! What goes wrong between hosts is told in words, in time.

use std::time::Duration;

use integration_tests::Pingpong;
use testkit::netns::{Joined, VethOptions, with_namespaces};
use testkit::process::Running;

const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn a_taken_port_4791_is_told() {
    with_namespaces("a_taken_port_4791_is_told", || {
        let joined = Joined::new(VethOptions::default()).unwrap();
        let mut hold = joined.left.command(env!("CARGO_BIN_EXE_hold-port"));
        let mut holder = Running::start("hold-port", hold.arg("::")).unwrap();
        holder.wait_for_text("held", LIMIT).unwrap();

        let game = Pingpong::new(&joined);
        let _server = game.start_server().unwrap();
        let client = game.start_client().unwrap().wait(LIMIT).unwrap();
        assert_eq!(client.status.code(), Some(1), "{client}");
        assert!(client.stderr.contains("4791"), "{client}");
        assert!(client.stderr.contains("is rdma_rxe loaded on this host?"), "{client}");
    });
}

#[test]
fn an_unreachable_peer_ends_in_retry_exceeded_in_its_time() {
    with_namespaces("an_unreachable_peer_ends_in_retry_exceeded_in_its_time", || {
        let joined = Joined::new(VethOptions::default()).unwrap();
        // TCP still passes, so the two ends meet.
        joined.right.drop_arriving(100).unwrap();
        let game = Pingpong::new(&joined);
        let _server = game.start_server().unwrap();
        let client = game.start_client().unwrap().wait(LIMIT).unwrap();
        assert_eq!(client.status.code(), Some(1), "{client}");
        assert!(client.stderr.contains("retries exceeded"), "{client}");
        // Timeout 14 is 67.1 ms at least and four times that at most, and 7 retries follow the
        // first try; then some for a busy machine.
        let timeout = Duration::from_nanos(4096 << 14);
        assert!(client.elapsed > timeout * 8, "{client}");
        assert!(client.elapsed < timeout * 8 * 4 + Duration::from_secs(3), "{client}");
        assert!(joined.right.dropped().unwrap() >= 8);
    });
}

#[test]
fn an_unknown_device_is_told_with_those_there_are() {
    with_namespaces("an_unknown_device_is_told_with_those_there_are", || {
        let joined = Joined::new(VethOptions::default()).unwrap();
        let game = Pingpong::new(&joined).options("-d mlx5_0");
        let client = game.start_client().unwrap().wait(LIMIT).unwrap();
        assert_eq!(client.status.code(), Some(1), "{client}");
        assert!(client.stderr.contains("mlx5_0"), "{client}");
        assert!(client.stderr.contains("rxe_eth0") && client.stderr.contains("rxe_lo"), "{client}");
    });
}
