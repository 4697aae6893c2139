//! What the kernel has told of the interfaces of this host: messages in, interfaces out.

use std::collections::BTreeMap;

use gid_table::InterfaceInfo;

use super::message::{Address, Link, Listing, Message, Received};

/// The interfaces of a network namespace, as far as messages have told.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct HostTable {
    links: BTreeMap<u32, Link>,
    /// In the order that the kernel told of them.
    addresses: Vec<Address>,
}

impl HostTable {
    /// Takes a message in; says whether it has changed anything.
    pub(super) fn apply(&mut self, message: Message) -> bool {
        match message {
            Message::Link(link) => {
                let old = self.links.insert(link.ifindex, link.clone());
                old.as_ref() != Some(&link)
            }
            Message::LinkGone(ifindex) => {
                // The kernel tells of its addresses too, but not if the table was read meanwhile.
                self.addresses.retain(|address| address.ifindex != ifindex);
                self.links.remove(&ifindex).is_some()
            }
            Message::Address(address) => self.put_address(address),
            Message::AddressGone(address) => {
                let place = self.place_of(&address);
                place.map(|place| self.addresses.remove(place)).is_some()
            }
            Message::Neighbour(_) | Message::Route(_) => false,
            Message::Done | Message::Answer(_) => false,
        }
    }

    fn put_address(&mut self, address: Address) -> bool {
        // The kernel tells of an address again and again: of its state, of its lifetime.
        match self.place_of(&address) {
            Some(place) => {
                let old = std::mem::replace(&mut self.addresses[place], address.clone());
                old != address
            }
            None => {
                self.addresses.push(address);
                true
            }
        }
    }

    fn place_of(&self, wanted: &Address) -> Option<usize> {
        self.addresses.iter().position(|known| {
            let Address { ifindex, ip, prefix_len, usable: _ } = *known;
            ifindex == wanted.ifindex && ip == wanted.ip && prefix_len == wanted.prefix_len
        })
    }

    /// The interfaces with their addresses, by index.
    pub(super) fn interfaces(&self) -> Vec<InterfaceInfo> {
        self.links.values().map(|link| self.interface(link)).collect()
    }

    fn interface(&self, link: &Link) -> InterfaceInfo {
        let Link { ifindex, ref name, mac, mtu, up, running, lower, vlan } = *link;
        let mut info = InterfaceInfo {
            name: name.clone(),
            ifindex,
            mac,
            mtu,
            up,
            running,
            lower,
            vlan,
            ..InterfaceInfo::default()
        };
        for address in self.addresses.iter().filter(|address| address.ifindex == ifindex) {
            if !info.addrs.contains(&address.ip) {
                info.addrs.push(address.ip);
            }
            if !address.usable {
                info.tentative.push(address.ip);
            }
        }
        info
    }
}

/// What is to be done after a message, while a table is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    /// The next message is to be waited for.
    Wait,
    /// This listing is to be asked for.
    Ask(Listing),
    /// The table is whole.
    Whole,
    /// Something has changed while it was listed: all is to be read anew.
    Again,
    /// The kernel refuses, with this errno.
    Refused(i32),
}

/// A table while it is read: first the links, then the addresses.
///
/// What changes meanwhile is told between, in the same order as it happens, so that the table is
/// right when it is whole.
#[derive(Debug)]
pub(super) struct Reading {
    table: HostTable,
    listing: Listing,
    sequence: u32,
    interrupted: bool,
}

impl Reading {
    /// Begins; the links are to be asked for by a request of this number, and what follows by the
    /// next ones.
    pub(super) fn new(sequence: u32) -> Self {
        Self { table: HostTable::default(), listing: Listing::Links, sequence, interrupted: false }
    }

    /// What is being listed, and the number of the request for it.
    pub(super) fn listing(&self) -> (Listing, u32) {
        (self.listing, self.sequence)
    }

    /// Notes that messages were lost, so that all is to be read anew when this reading is over.
    pub(super) fn note_loss(&mut self) {
        self.interrupted = true;
    }

    /// The table, once it is whole.
    pub(super) fn into_table(self) -> HostTable {
        self.table
    }

    /// Takes a message in.
    pub(super) fn handle(&mut self, received: Received) -> Progress {
        let Received { sequence, interrupted, message } = received;
        let is_answer = sequence == self.sequence;
        self.interrupted |= is_answer && interrupted;
        match message {
            Message::Answer(errno) if is_answer && errno != 0 => Progress::Refused(errno),
            Message::Done if is_answer && self.interrupted => Progress::Again,
            Message::Done if is_answer && self.listing == Listing::Links => {
                self.listing = Listing::Addresses;
                self.sequence = self.sequence.wrapping_add(1);
                Progress::Ask(Listing::Addresses)
            }
            Message::Done if is_answer => Progress::Whole,
            message => {
                self.table.apply(message);
                Progress::Wait
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::super::message::{read, request};
    use super::*;

    /// What Linux 6.18 sent while the things were done that each line names, a message a line.
    const RECORDED: &str = include_str!("recorded.txt");

    /// What Linux 6.1 sent of a VLAN.
    const RECORDED_VLAN: &str = include_str!("recorded_vlan.txt");

    /// The recorded messages, each with what had been done.
    fn recorded(session: &'static str) -> impl Iterator<Item = (&'static str, Vec<u8>)> {
        session.lines().map(|line| {
            let (step, hex) = line.split_once(" | ").expect("a recorded line");
            let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex");
            (step, (0..hex.len()).step_by(2).map(byte).collect())
        })
    }

    /// An interface in short: name, whether up, whether running, its addresses, those tentative.
    fn shown(info: &InterfaceInfo) -> String {
        let list =
            |ips: &[IpAddr]| ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        let mark = |is: bool, text| if is { text } else { "" };
        let (up, running) = (mark(info.up, "U"), mark(info.running, "R"));
        let lower = info.lower.map(|lower| format!(" on {lower}")).unwrap_or_default();
        let tentative = mark(!info.tentative.is_empty(), " but ");
        let (addrs, not_yet) = (list(&info.addrs), list(&info.tentative));
        format!("{}{lower} {up}{running} [{addrs}]{tentative}{not_yet}", info.name)
    }

    /// The interfaces after each recorded step that changed them.
    fn play(session: &'static str) -> Vec<(&'static str, String)> {
        let mut table = HostTable::default();
        let mut seen: Vec<(&str, String)> = Vec::new();
        for (step, bytes) in recorded(session) {
            for received in read(&bytes).expect("a message of Linux") {
                let changed = table.apply(received.message);
                let all: Vec<_> = table.interfaces().iter().map(shown).collect();
                let all = all.join("; ");
                let is_new = seen.last().map_or("", |(_, before)| before) != all;
                assert!(changed || !is_new, "a change is told: {step}");
                if is_new {
                    seen.push((step, all));
                }
            }
        }
        seen
    }

    #[test]
    fn r60_a_recorded_vlan_is_on_top_of_its_interface() {
        let expected = [
            ("eth0 up", "eth0 UR []"),
            ("vlan", "eth0 UR []; eth0.7 on 2  []"),
            ("vlan up", "eth0 UR []; eth0.7 on 2 UR []"),
            ("its address", "eth0 UR []; eth0.7 on 2 UR [10.77.7.1]"),
            ("vlan gone", "eth0 UR []; eth0.7 on 2  [10.77.7.1]"),
            ("vlan gone", "eth0 UR []; eth0.7 on 2  []"),
            ("vlan gone", "eth0 UR []"),
        ];
        assert_eq!(play(RECORDED_VLAN), expected.map(|(step, all)| (step, all.to_owned())));
        let mut vlans = recorded(RECORDED_VLAN).flat_map(|(_, bytes)| interfaces_of(&bytes));
        let vlan = vlans.find(|info| info.name == "eth0.7").expect("was made");
        assert_eq!((vlan.lower, vlan.vlan), (Some(2), Some(7)));
    }

    #[test]
    fn a_recorded_session_gives_these_interfaces() {
        let ll = "fe80::5054:ff:fe77:1";
        let expected = [
            ("peer0 up", "peer0 U []".to_owned()),
            ("eth0 up", "peer0 U []; eth0 UR []".to_owned()),
            ("eth0 up", "peer0 UR []; eth0 UR []".to_owned()),
            ("wait for DAD", format!("peer0 UR []; eth0 UR [{ll}]")),
            ("v4", format!("peer0 UR []; eth0 UR [{ll} 10.77.0.1]")),
            // The same once more, with another length: not twice.
            ("v6", format!("peer0 UR []; eth0 UR [{ll} 10.77.0.1 fd00:77::1]")),
            ("macvlan", format!("peer0 UR []; eth0 UR [{ll} 10.77.0.1 fd00:77::1]; mv0 on 3  []")),
            (
                "its address",
                format!("peer0 UR []; eth0 UR [{ll} 10.77.0.1 fd00:77::1]; mv0 on 3  [10.78.0.1]"),
            ),
            // "v4 gone": the one of the other length stays.
            (
                "carrier gone",
                format!("peer0  []; eth0 UR [{ll} 10.77.0.1 fd00:77::1]; mv0 on 3  [10.78.0.1]"),
            ),
            (
                "carrier gone",
                format!("peer0  []; eth0 U [{ll} 10.77.0.1 fd00:77::1]; mv0 on 3  [10.78.0.1]"),
            ),
            (
                "down",
                format!("peer0  []; eth0  [{ll} 10.77.0.1 fd00:77::1]; mv0 on 3  [10.78.0.1]"),
            ),
            ("down", format!("peer0  []; eth0  [{ll} 10.77.0.1]; mv0 on 3  [10.78.0.1]")),
            ("down", "peer0  []; eth0  [10.77.0.1]; mv0 on 3  [10.78.0.1]".to_owned()),
            ("renamed", "peer0  []; eth9  [10.77.0.1]; mv0 on 3  [10.78.0.1]".to_owned()),
            ("gone", "peer0  []; eth9  []; mv0 on 3  [10.78.0.1]".to_owned()),
            ("gone", "peer0  []; eth9  []; mv0 on 3  []".to_owned()),
            ("gone", "peer0  []; eth9  []".to_owned()),
            ("gone", "peer0  []".to_owned()),
            ("gone", String::new()),
        ];
        assert_eq!(play(RECORDED), expected);
    }

    #[test]
    fn a_link_has_its_hardware_address_and_mtu() {
        let mut table = HostTable::default();
        let (_, bytes) = recorded(RECORDED).find(|(step, _)| *step == "macvlan").expect("is there");
        for received in read(&bytes).expect("a message of Linux") {
            table.apply(received.message);
        }
        let eth0 = table.interfaces().remove(0);
        assert_eq!((eth0.name.as_str(), eth0.ifindex, eth0.mtu), ("eth0", 3, 1500));
        assert_eq!(eth0.mac, Some([0x52, 0x54, 0, 0x77, 0, 1]));
        assert_eq!(eth0.lower, None, "IFLA_LINK of a veth is its other end");
    }

    /// An attribute, padded.
    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let len = u16::try_from(value.len() + 4).expect("short");
        let mut bytes = [len.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    /// A message of this type, number and flags.
    fn message(kind: u16, sequence: u32, flags: u16, body: &[u8]) -> Vec<u8> {
        let len = u32::try_from(body.len() + 16).expect("short").to_ne_bytes();
        let header = [kind.to_ne_bytes(), flags.to_ne_bytes()].concat();
        [&len[..], &header, &sequence.to_ne_bytes(), &[0; 4], body].concat()
    }

    /// `eth0.7`, VLAN 7 on the interface 3, as Linux describes it; `more` follows.
    fn vlan(more: &[u8]) -> Vec<u8> {
        let mut body = vec![0, 0, 1, 0, 9, 0, 0, 0];
        body.extend((1_u32 | 1 << 16).to_ne_bytes());
        body.extend([0; 4]);
        body.extend(attribute(3, b"eth0.7\0"));
        body.extend(attribute(4, &1500_u32.to_ne_bytes()));
        body.extend(attribute(1, &[0x52, 0x54, 0, 0x77, 0, 1]));
        body.extend(attribute(5, &3_u32.to_ne_bytes()));
        // Its protocol (802.1Q, in network order), its identifier, its flags.
        let data = [
            attribute(5, &0x8100_u16.to_be_bytes()),
            attribute(1, &7_u16.to_ne_bytes()),
            attribute(2, &[1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]),
        ];
        let info = [attribute(1, b"vlan\0"), attribute(2 | 0x8000, &data.concat())];
        body.extend(attribute(18 | 0x8000, &info.concat()));
        body.extend(more);
        message(libc::RTM_NEWLINK, 0, 0, &body)
    }

    fn interfaces_of(bytes: &[u8]) -> Vec<InterfaceInfo> {
        let mut table = HostTable::default();
        for received in read(bytes).expect("a message") {
            table.apply(received.message);
        }
        table.interfaces()
    }

    #[test]
    fn r60_a_vlan_names_the_interface_below_and_its_identifier() {
        let told = interfaces_of(&vlan(&[]));
        let [vlan_7] = told.as_slice() else { panic!("{told:?}") };
        assert_eq!((vlan_7.lower, vlan_7.vlan), (Some(3), Some(7)));
        assert!(vlan_7.up && vlan_7.running);
        // What it is put on is in another namespace (IFLA_LINK_NETNSID): 3 is nobody's index here.
        let told = interfaces_of(&vlan(&attribute(37, &0_u32.to_ne_bytes())));
        assert_eq!((told[0].lower, told[0].vlan), (None, Some(7)));
        // Attributes of a future kernel are passed over.
        assert_eq!(interfaces_of(&vlan(&attribute(999, &[1, 2, 3])))[0].vlan, Some(7));
    }

    #[test]
    fn a_port_that_leaves_its_bridge_is_not_gone() {
        let mut table = HostTable::default();
        let bridge_family = 7;
        let gone = |family| {
            message(
                libc::RTM_DELLINK,
                0,
                0,
                &[&[family, 0, 1, 0, 9, 0, 0, 0][..], &[0; 8]].concat(),
            )
        };
        for (bytes, left) in [(vlan(&[]), 1), (gone(bridge_family), 1), (gone(0), 0)] {
            for received in read(&bytes).expect("a message") {
                table.apply(received.message);
            }
            assert_eq!(table.interfaces().len(), left);
        }
    }

    #[test]
    fn addresses_say_whether_they_can_be_used() {
        let address = |flags: u32| {
            let mut body = vec![10, 64, 0, 0, 9, 0, 0, 0];
            body.extend(attribute(1, &[0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]));
            body.extend(attribute(8, &flags.to_ne_bytes()));
            [vlan(&[]), message(libc::RTM_NEWADDR, 0, 0, &body)].concat()
        };
        // Permanent; tentative; DAD failed; optimistic while tentative.
        for (flags, usable) in [(0x80, true), (0xc0, false), (0x88, false), (0x44, true)] {
            let told = interfaces_of(&address(flags));
            assert_eq!(told[0].addrs.len(), 1);
            assert_eq!(told[0].tentative.is_empty(), usable, "{flags:#x}");
        }
    }

    #[test]
    fn with_a_peer_the_own_address_counts() {
        let mut body = vec![2, 32, 0, 0, 9, 0, 0, 0];
        body.extend(attribute(1, &[10, 0, 0, 2]));
        body.extend(attribute(2, &[10, 0, 0, 1]));
        let told = interfaces_of(&[vlan(&[]), message(libc::RTM_NEWADDR, 0, 0, &body)].concat());
        assert_eq!(told[0].addrs, [IpAddr::from([10, 0, 0, 1])]);
    }

    /// What a reading that began with request 5 wants after each message.
    fn progress(messages: &[Vec<u8>]) -> Vec<Progress> {
        let mut reading = Reading::new(5);
        let bytes = messages.concat();
        let all = read(&bytes).expect("messages");
        all.into_iter().map(|received| reading.handle(received)).collect()
    }

    #[test]
    fn a_table_is_read_in_two_listings() {
        let done = |sequence, flags| message(3, sequence, flags, &[0; 4]);
        let ask = Progress::Ask(Listing::Addresses);
        let link = || vlan(&[]);
        assert_eq!(progress(&[link(), done(5, 0)]), [Progress::Wait, ask]);
        // The end of an earlier request is none of this one.
        let both = [done(4, 0), done(5, 0), link(), done(6, 0)];
        assert_eq!(progress(&both), [Progress::Wait, ask, Progress::Wait, Progress::Whole]);
        // NLM_F_DUMP_INTR.
        assert_eq!(progress(&[done(5, 0), done(6, 16)]), [ask, Progress::Again]);
        let refusal = message(2, 5, 0, &(-libc::EPERM).to_ne_bytes());
        assert_eq!(progress(&[refusal]), [Progress::Refused(libc::EPERM)]);
    }

    #[test]
    fn a_table_of_which_messages_were_lost_is_read_anew_once_the_listing_is_over() {
        let bytes = [vlan(&[]), message(3, 5, 0, &[0; 4])].concat();
        let mut messages = read(&bytes).expect("messages").into_iter();
        let mut reading = Reading::new(5);
        let mut next = || messages.next().expect("two messages");
        assert_eq!(reading.handle(next()), Progress::Wait);
        reading.note_loss();
        assert_eq!(reading.handle(next()), Progress::Again);
    }

    #[test]
    fn requests_are_whole() {
        let links = request(Listing::Links, 7);
        assert_eq!(links.len(), 32);
        assert_eq!(links[..16], message(libc::RTM_GETLINK, 7, 0x301, &[0; 16])[..16]);
        let addresses = request(Listing::Addresses, 8);
        assert_eq!(addresses, message(libc::RTM_GETADDR, 8, 0x301, &[0; 8]));
    }

    #[test]
    fn nonsense_is_refused_or_passed_over() {
        let whole = vlan(&[]);
        for cut in 1..whole.len() {
            assert!(read(&whole[..cut]).is_err(), "cut at {cut}");
        }
        // The length of an attribute beyond the end of the message.
        let mut bad = whole.clone();
        bad[32..34].copy_from_slice(&u16::MAX.to_ne_bytes());
        assert!(read(&bad).is_err());
        // Without an MTU it tells of something else, as wireless drivers do.
        let mut body = vec![0; 16];
        body.extend(attribute(3, b"wlan0\0"));
        assert_eq!(interfaces_of(&message(libc::RTM_NEWLINK, 0, 0, &body)), []);
        for kind in [libc::RTM_NEWLINK, libc::RTM_DELLINK, libc::RTM_NEWADDR, libc::RTM_DELADDR] {
            assert_eq!(read(&message(kind, 0, 0, &[0; 3])).expect("short"), []);
        }
    }
}
