//! `urxe devices`, beside what the host says of its interfaces.

use std::time::Duration;

use serde_json::Value;
use testkit::binary::urxe_binary;
use testkit::netns::{INTERFACE, Joined, Namespace, Side, VethOptions, with_namespaces};
use testkit::process::{self, Finished};

const LIMIT: Duration = Duration::from_secs(60);

fn devices(namespace: &Namespace, arguments: &[&str]) -> Finished {
    let mut command = namespace.command(urxe_binary());
    command.arg("devices").args(arguments);
    process::run("urxe devices", &mut command, LIMIT).expect("it ends")
}

#[test]
fn devices_are_told_as_the_host_has_them() {
    with_namespaces("devices_are_told_as_the_host_has_them", || {
        let joined = Joined::new(VethOptions { mtu: 9000, ..VethOptions::default() }).unwrap();
        let seen = devices(&joined.left, &["--json"]).success().unwrap();
        let all: Value = serde_json::from_str(&seen.stdout).unwrap();
        let names: Vec<_> = all.as_array().unwrap().iter().map(|d| &d["hca_id"]).collect();
        assert_eq!(names, ["rxe_lo", "rxe_eth0"]);
        let port = &all[1]["ports"][0];
        assert_eq!((&port["state"], &port["active_mtu"]), (&"PORT_ACTIVE".into(), &4096.into()));
        let gids = port["gids"].as_array().unwrap();
        let ipv4 = format!("::ffff:{}", Side::Left.ipv4());
        let found = gids.iter().find(|entry| entry["gid"] == ipv4.as_str()).unwrap();
        assert_eq!((&found["type"], &found["owned"]), (&"RoCE v2".into(), &true.into()));

        let text = devices(&joined.left, &["rxe_eth0"]).success().unwrap().stdout;
        assert!(text.starts_with("hca_id:\trxe_eth0\n"), "{text}");
        for line in [
            format!("\tinterface:\t\t\t{INTERFACE}\n"),
            "\t\t\tstate:\t\t\tPORT_ACTIVE (4)\n".to_owned(),
            "\t\t\tactive_mtu:\t\t4096 (5)\n".to_owned(),
            // A veth says that it has 10 Gb/s.
            "\t\t\tactive_width:\t\t1X (1)\n".to_owned(),
            "\t\t\tactive_speed:\t\t10.0 Gbps (8)\n".to_owned(),
            "\t\t\tphys_state:\t\tLINK_UP (5)\n".to_owned(),
            "\tvendor_id:\t\t\t0xffffff\n".to_owned(),
            "\tatomic_cap:\t\t\tATOMIC_HCA (1)\n".to_owned(),
            format!("GID[  {}]:\t\t{ipv4}, RoCE v2, eth0 (the one to take)\n", found["index"]),
        ] {
            assert!(text.contains(&line), "{line:?} is not in:\n{text}");
        }
        assert!(!text.contains("rxe_lo"), "{text}");
    });
}

#[test]
fn no_device_and_a_wrong_one_are_told() {
    with_namespaces("no_device_and_a_wrong_one_are_told", || {
        let namespace = Namespace::new("devices").unwrap();
        let wrong = devices(&namespace, &["mlx5_0"]);
        assert_eq!(wrong.status.code(), Some(1), "{wrong}");
        assert!(wrong.stderr.contains("\"mlx5_0\"; there is rxe_lo"), "{wrong}");
        namespace.tool("ip", ["link", "set", "lo", "down"]).unwrap();
        let none = devices(&namespace, &[]);
        assert_eq!(none.status.code(), Some(1), "{none}");
        assert!(none.stderr.contains("ip link set lo up"), "{none}");
    });
}
