//! The table of one port, explained.

use std::fmt;

use ibverbs_api::{Context, Gid, GidEntry, GidType, PortState};
use rxe_net::host::interfaces;
use serde_json::{Value, json};

use super::GidsError;

/// What there is to say of one port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Report {
    device: String,
    port: u8,
    state: PortState,
    capacity: u32,
    rows: Vec<Row>,
}

/// One index of a table.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Row {
    Entry {
        entry: GidEntry,
        /// The name of its interface; its number where that is gone meanwhile.
        interface: String,
        chosen: bool,
    },
    /// Nothing, though there are entries behind.
    Hole { index: u32 },
}

impl Report {
    /// The tables of all ports of a device.
    pub(super) fn of_ports(context: &Context) -> Result<Vec<Self>, GidsError> {
        let ports = context.query_device().phys_port_cnt;
        (1..=ports).map(|port| Self::of(context, port)).collect()
    }

    fn of(context: &Context, port: u8) -> Result<Self, GidsError> {
        let attr = context.query_port(port)?;
        let names: Vec<(u32, String)> =
            interfaces()?.into_iter().map(|info| (info.ifindex, info.name)).collect();
        let name_of = |ifindex: u32| {
            let found = names.iter().find(|(known, _)| *known == ifindex);
            found.map_or_else(|| format!("#{ifindex}"), |(_, name)| name.clone())
        };
        let entries = context.query_gid_table()?;
        let entries = entries.into_iter().filter(|entry| entry.port_num == u32::from(port));
        let chosen = context.routable_gid(port)?.map(|entry| entry.gid_index);
        Ok(Self {
            device: context.device().name().to_owned(),
            port,
            state: attr.state,
            capacity: attr.gid_tbl_len,
            rows: rows(entries, chosen, name_of),
        })
    }

    /// Leaves out all but the entries of a GID, and of a type where one is given.
    pub(super) fn keep(&mut self, gid: Gid, gid_type: Option<GidType>) {
        self.rows.retain(|row| match row {
            Row::Entry { entry, .. } => {
                entry.gid == gid && gid_type.is_none_or(|wanted| entry.gid_type == wanted)
            }
            Row::Hole { .. } => false,
        });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// All of it. Holes are left out: they are the indices that are missing.
    pub(super) fn to_json(&self) -> Value {
        let entries = self.rows.iter().filter_map(|row| match row {
            Row::Entry { entry, interface, chosen } => Some(json!({
                "index": entry.gid_index,
                "gid": entry.gid.to_string(),
                "type": entry.gid_type.to_string(),
                "interface": interface,
                "ifindex": entry.ifindex,
                "owned": entry.owned,
                "chosen": chosen,
            })),
            Row::Hole { .. } => None,
        });
        json!({
            "device": self.device,
            "port": self.port,
            "state": state_name(self.state),
            "capacity": self.capacity,
            "gids": entries.collect::<Value>(),
        })
    }
}

/// The rows of a table up to its last entry.
fn rows(
    entries: impl Iterator<Item = GidEntry>,
    chosen: Option<u32>,
    name_of: impl Fn(u32) -> String,
) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut next = 0;
    for entry in entries {
        rows.extend((next..entry.gid_index).map(|index| Row::Hole { index }));
        next = entry.gid_index + 1;
        let chosen = chosen == Some(entry.gid_index);
        rows.push(Row::Entry { entry, interface: name_of(entry.ifindex), chosen });
    }
    rows
}

/// The name of C, without what all have in front.
fn state_name(state: PortState) -> &'static str {
    match state {
        PortState::Down => "PORT_DOWN",
        PortState::Active => "PORT_ACTIVE",
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, port, state, capacity, rows } = self;
        let used = rows.iter().filter(|row| matches!(row, Row::Entry { .. })).count();
        writeln!(f, "{device} port {port}: {}, {used} of {capacity} entries", state_name(*state))?;
        writeln!(f, "  index  type        interface        GID")?;
        let mut has_choice = false;
        for row in rows {
            match row {
                Row::Hole { index } => {
                    writeln!(
                        f,
                        "  {index:5}  (hole: an address was removed; the next one takes it)"
                    )?;
                }
                Row::Entry { entry, interface, chosen } => {
                    has_choice |= chosen;
                    let GidEntry { gid, gid_index, gid_type, .. } = entry;
                    let mark = if *chosen { '*' } else { ' ' };
                    // Padded as text: what formats itself need not care for widths.
                    let (kind, gid) = (gid_type.to_string(), gid.to_string());
                    write!(f, "{mark} {gid_index:5}  {kind:<10}  {interface:<15}  {gid}")?;
                    write!(f, "{}", note(entry, *chosen))?;
                    writeln!(f)?;
                }
            }
        }
        if !has_choice && !rows.is_empty() {
            writeln!(f, "  None can be sent from: give the interface an address (ip addr add).")?;
        }
        Ok(())
    }
}

/// What there is to say of an entry: why it is chosen, or why it does not serve.
fn note(entry: &GidEntry, chosen: bool) -> String {
    match (entry.owned, chosen) {
        (false, _) => "  not (yet) an address of this host: nothing can be sent from it".to_owned(),
        (true, true) => format!("  the one to take: {}, {}", entry.gid_type, entry.gid.scope()),
        (true, false) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(gid_index: u32, gid: &str, owned: bool) -> GidEntry {
        let (port_num, gid_type, ifindex) = (1, GidType::RoceV2, 2);
        GidEntry { gid: gid.parse().expect("a GID"), gid_index, port_num, gid_type, ifindex, owned }
    }

    fn report(entries: &[GidEntry], chosen: Option<u32>) -> Report {
        Report {
            device: "rxe_eth0".to_owned(),
            port: 1,
            state: PortState::Active,
            capacity: 1024,
            rows: rows(entries.iter().copied(), chosen, |ifindex| format!("eth{ifindex}")),
        }
    }

    #[test]
    fn a_table_is_explained() {
        let entries = [
            entry(0, "fe80::5054:ff:fe77:1", false),
            entry(1, "10.77.0.1", true),
            entry(3, "fd00::1", true),
        ];
        let report = report(&entries, Some(1));
        insta::assert_snapshot!(report.to_string(), @r"
        rxe_eth0 port 1: PORT_ACTIVE, 3 of 1024 entries
          index  type        interface        GID
              0  RoCE v2     eth2             fe80::5054:ff:fe77:1  not (yet) an address of this host: nothing can be sent from it
        *     1  RoCE v2     eth2             ::ffff:10.77.0.1  the one to take: RoCE v2, a global IPv4 address
              2  (hole: an address was removed; the next one takes it)
              3  RoCE v2     eth2             fd00::1
        ");
        let json = report.to_json();
        assert_eq!(json["gids"].as_array().map(Vec::len), Some(3));
        assert_eq!(json["gids"][1]["chosen"], true);
        assert_eq!(json["gids"][2]["index"], 3);
    }

    #[test]
    fn what_can_be_done_is_said_where_nothing_works() {
        let text = report(&[entry(0, "fe80::1", false)], None).to_string();
        assert!(text.contains("ip addr add"), "{text}");
    }

    #[test]
    fn an_address_is_found_in_its_type() {
        let find = |gid: &str, gid_type| {
            let mut report =
                report(&[entry(0, "10.0.0.1", true), entry(2, "10.0.0.2", true)], Some(0));
            report.keep(gid.parse().expect("a GID"), gid_type);
            report.rows.len()
        };
        assert_eq!(find("10.0.0.2", None), 1);
        assert_eq!(find("10.0.0.2", Some(GidType::RoceV2)), 1);
        assert_eq!(find("10.0.0.2", Some(GidType::RoceV1)), 0);
        assert_eq!(find("10.0.0.3", None), 0);
    }
}
