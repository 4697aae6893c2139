//! What the folder holds, before it is written.
//!
//! Names and forms are those of Linux (`Documentation/ABI/stable/sysfs-class-infiniband`), the
//! values those of rdma_rxe where it has them.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

use gid_table::{Gid, GidTable};
use rxe_net::host::link_speed;
use rxe_net::runtime::LinkKind;
use rxe_wire::PKey;

use crate::attr::{LinkSpeed, LinkWidth, PortCapFlags, link_rate};
use crate::device::{Device, DevicePort};

/// The version of the kernel's verbs interface that libibverbs looks for
/// (`IB_USER_VERBS_ABI_VERSION`).
const VERBS_ABI_VERSION: u32 = 6;
/// The version of the interface of rdma_rxe's provider (`RXE_UVERBS_ABI_VERSION`).
const PROVIDER_ABI_VERSION: u32 = 2;

/// The name of the kernel's interface to the device at `index` of the list of devices
/// (`ibv_device.dev_name`): `uverbs<index>`.
pub fn uverbs_name(index: usize) -> String {
    format!("uverbs{index}")
}

/// One thing in the folder; folders around it are there of themselves.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Node {
    /// A file with this text.
    File(String),
    /// A symbolic link to this path.
    Link(PathBuf),
    /// A folder with nothing in it.
    EmptyFolder,
}

/// The whole content, by path.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Tree {
    nodes: BTreeMap<PathBuf, Node>,
}

impl Tree {
    /// What stands for these devices.
    pub(super) fn of(devices: &[Device]) -> Self {
        let mut tree = Self { nodes: BTreeMap::new() };
        // The folders are there also when there is no device, as with the driver loaded.
        for folder in ["class/infiniband", "class/infiniband_verbs", "dev/infiniband"] {
            if devices.is_empty() {
                tree.nodes.insert(folder.into(), Node::EmptyFolder);
            }
        }
        tree.file("class/infiniband_verbs/abi_version", VERBS_ABI_VERSION);
        for (index, device) in devices.iter().enumerate() {
            let name = uverbs_name(index);
            tree.add_uverbs(&name, device);
            let folder = Path::new("class/infiniband").join(device.name());
            tree.add_device(&folder, device);
            tree.add_hardware(&folder.join("device"), &name, device);
            // An unreadable choice of the link is told when a device is opened.
            let tables = device.gid_tables(LinkKind::from_env().unwrap_or_default().gid_types());
            for (port, table) in device.ports().iter().zip(tables) {
                tree.add_port(&folder.join(format!("ports/{}", table.port_num())), port, &table);
            }
        }
        tree
    }

    /// Each path with what is there, folders before what is in them.
    pub(super) fn nodes(&self) -> impl Iterator<Item = (&Path, &Node)> {
        self.nodes.iter().map(|(path, node)| (path.as_path(), node))
    }

    /// A name for this content, and no other.
    pub(super) fn key(&self) -> String {
        let mut hasher = DefaultHasher::new();
        (env!("CARGO_PKG_VERSION"), self).hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    }

    fn add_uverbs(&mut self, name: &str, device: &Device) {
        // UCX wants a character device that it may read and write; nothing is ever sent there.
        let node = Path::new("dev/infiniband").join(name);
        self.nodes.insert(node, Node::Link("/dev/null".into()));
        let folder = Path::new("class/infiniband_verbs").join(name);
        self.file(folder.join("ibdev"), device.name());
        self.file(folder.join("abi_version"), PROVIDER_ABI_VERSION);
    }

    fn add_device(&mut self, folder: &Path, device: &Device) {
        let guid = guid_text(device.guid());
        self.file(folder.join("node_type"), "1: CA");
        self.file(folder.join("node_guid"), &guid);
        self.file(folder.join("sys_image_guid"), &guid);
        self.file(folder.join("node_desc"), device.name());
        self.file(folder.join("fw_ver"), env!("CARGO_PKG_VERSION"));
        self.file(folder.join("parent"), &device.interface().name);
    }

    /// What stands behind the device: its interface, and where that is in the machine.
    fn add_hardware(&mut self, folder: &Path, uverbs: &str, device: &Device) {
        let net = Path::new("/sys/class/net");
        for info in device.interfaces() {
            let node = Node::Link(net.join(&info.name));
            self.nodes.insert(folder.join("net").join(&info.name), node);
        }
        let interface = net.join(&device.interface().name);
        self.nodes.insert(folder.join("infiniband_verbs").join(uverbs), Node::EmptyFolder);
        self.nodes.insert(folder.join("infiniband").join(device.name()), Node::EmptyFolder);
        // Interfaces in software have no place: then it is unknown, or left out.
        let of_hardware = |file: &str| fs::read_to_string(interface.join("device").join(file)).ok();
        let node = of_hardware("numa_node").unwrap_or_else(|| "-1".to_owned());
        self.file(folder.join("numa_node"), node.trim_end());
        for file in ["local_cpus", "local_cpulist"] {
            if let Some(text) = of_hardware(file) {
                self.file(folder.join(file), text.trim_end());
            }
        }
    }

    fn add_port(&mut self, folder: &Path, port: &DevicePort, gids: &GidTable) {
        let (state, physical) = match port.is_active() {
            true => ("4: ACTIVE", "5: LinkUp"),
            false => ("1: DOWN", "2: Polling"),
        };
        self.file(folder.join("state"), state);
        self.file(folder.join("phys_state"), physical);
        self.file(folder.join("link_layer"), "Ethernet");
        self.file(folder.join("rate"), rate_text(link_rate(link_speed(&port.interface.name))));
        let can = PortCapFlags::all().bits();
        self.file(folder.join("cap_mask"), format_args!("{can:#010x}"));
        for (name, value) in [("lid", "0x0"), ("sm_lid", "0x0")] {
            self.file(folder.join(name), value);
        }
        for name in ["lid_mask_count", "sm_sl"] {
            self.file(folder.join(name), 0);
        }
        self.file(folder.join("pkeys/0"), format_args!("{:#06x}", PKey::DEFAULT.get()));
        for entry in gids.entries() {
            let index = entry.gid_index.to_string();
            self.file(folder.join("gids").join(&index), gid_text(entry.gid));
            self.file(folder.join("gid_attrs/types").join(&index), entry.gid_type);
            // R60: of an interface on top, its own name.
            let interface = port.interface_name(entry.ifindex);
            self.file(folder.join("gid_attrs/ndevs").join(&index), interface);
        }
    }

    fn file(&mut self, path: impl Into<PathBuf>, text: impl std::fmt::Display) {
        self.nodes.insert(path.into(), Node::File(format!("{text}\n")));
    }
}

/// Width and speed as sysfs writes them (`rate_show` of Linux): the sum, and what it is made of.
fn rate_text((width, speed): (LinkWidth, LinkSpeed)) -> String {
    let (lanes, tenths) = (width.lanes(), width.lanes() * speed.tenths());
    let half = if tenths % 10 == 5 { ".5" } else { "" };
    let name = match speed {
        LinkSpeed::Sdr => " SDR",
        LinkSpeed::Ddr => " DDR",
        LinkSpeed::Fdr10 => " FDR10",
        LinkSpeed::Edr => " EDR",
    };
    format!("{}{half} Gb/sec ({lanes}X{name})", tenths / 10)
}

/// A GUID as sysfs writes it: four groups of four digits.
fn guid_text(guid: u64) -> String {
    let group = |shift: u32| (guid >> shift) & 0xffff;
    format!("{:04x}:{:04x}:{:04x}:{:04x}", group(48), group(32), group(16), group(0))
}

/// A GID as sysfs writes it: eight groups, none left out (`%pI6`).
fn gid_text(gid: Gid) -> String {
    let groups = Ipv6Addr::from(gid.raw()).segments().map(|group| format!("{group:04x}"));
    groups.join(":")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::test_device;

    fn text<'a>(tree: &'a Tree, path: &str) -> &'a str {
        match tree.nodes.get(Path::new(path)) {
            Some(Node::File(text)) => text,
            other => panic!("{path}: {other:?}"),
        }
    }

    fn renamed(device: Device, name: &str) -> Device {
        device.renamed(name).expect("a name")
    }

    #[test]
    fn each_port_has_its_folder() {
        let two = [test_device("eth0", 2), test_device("eth1", 3)];
        let tree = Tree::of(&[Device::joined("dual", &two).expect("two interfaces")]);
        for (port, ndev, gid) in [(1, "eth0\n", "0a00:0002\n"), (2, "eth1\n", "0a00:0003\n")] {
            let port = format!("class/infiniband/dual/ports/{port}");
            assert_eq!(text(&tree, &format!("{port}/gid_attrs/ndevs/1")), ndev);
            assert!(text(&tree, &format!("{port}/gids/1")).ends_with(gid));
            let net = format!("class/infiniband/dual/device/net/{}", ndev.trim());
            assert!(tree.nodes.contains_key(Path::new(&net)), "{net}");
        }
    }

    #[test]
    fn gids_are_written_as_linux_does() {
        let tree = Tree::of(&[test_device("lo", 1), renamed(test_device("eth0", 2), "mlx5_0")]);
        let port = "class/infiniband/mlx5_0/ports/1";
        let read = |file: &str| text(&tree, &format!("{port}/{file}"));
        assert_eq!(read("gids/0"), "fe80:0000:0000:0000:5054:00ff:fe00:0002\n");
        assert_eq!(read("gids/1"), "0000:0000:0000:0000:0000:ffff:0a00:0002\n");
        assert_eq!(read("gid_attrs/types/1"), "RoCE v2\n");
        assert_eq!(read("gid_attrs/ndevs/1"), "eth0\n");
        assert_eq!(read("state"), "4: ACTIVE\n");
        assert_eq!(read("pkeys/0"), "0xffff\n");
        assert_eq!(read("cap_mask"), "0x04010000\n");
        assert_eq!(text(&tree, "class/infiniband/rxe_lo/ports/1/rate"), "2.5 Gb/sec (1X SDR)\n");
        assert_eq!(rate_text((LinkWidth::X4, LinkSpeed::Edr)), "100 Gb/sec (4X EDR)");
        assert!(!tree.nodes.contains_key(Path::new(port).join("gids/2").as_path()));
    }

    #[test]
    fn each_device_has_its_uverbs() {
        let tree = Tree::of(&[test_device("lo", 1), test_device("eth0", 2)]);
        assert_eq!(text(&tree, "class/infiniband_verbs/uverbs1/ibdev"), "rxe_eth0\n");
        assert_eq!(text(&tree, "class/infiniband/rxe_eth0/node_guid"), "5054:00ff:fe00:0002\n");
        let node = tree.nodes.get(Path::new("dev/infiniband/uverbs1"));
        assert_eq!(node, Some(&Node::Link("/dev/null".into())));
    }

    #[test]
    fn the_key_tells_contents_apart() {
        let (one, two) = (test_device("lo", 1), test_device("eth0", 2));
        let key = |devices: &[Device]| Tree::of(devices).key();
        assert_eq!(key(std::slice::from_ref(&one)), key(&[test_device("lo", 1)]));
        assert_ne!(key(&[one.clone(), two.clone()]), key(&[two.clone(), one.clone()]));
        assert_ne!(key(std::slice::from_ref(&two)), key(&[renamed(two.clone(), "x")]));
        assert_ne!(key(&[]), key(&[one]));
    }
}
