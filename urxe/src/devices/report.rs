//! What one device says of itself, in the words of `ibv_devinfo(1)`. What nothing of RoCE has, or no
//! device here (reliable datagrams, raw packets, a subnet manager), is left out: there it is 0.

use std::fmt;

use bitflags::Flags;
use ibverbs_api::{
    AtomicCap, CongestionConfig, Context, Device, DeviceAttr, GidEntry, Limits, LinkKind,
    LinkOptions, Mtu, OpenOptions, PhysState, PortAttr, PortState,
};
use rxe_net::host::interfaces;
use serde_json::{Map, Value, json};

use super::DevicesError;

/// The column, in characters, where `ibv_devinfo` has the values of a device.
const DEVICE_COLUMN: usize = 40;
/// The column of the values of a port.
const PORT_COLUMN: usize = 48;
/// The width of a tab.
const TAB: usize = 8;

/// One value with its name.
#[derive(Debug)]
struct Field {
    name: &'static str,
    value: Value,
    /// How it reads, where that is not the value itself.
    text: Option<String>,
}

/// A device with its ports.
#[derive(Debug)]
pub(super) struct Report {
    name: String,
    fields: Vec<Field>,
    ports: Vec<Port>,
}

#[derive(Debug)]
struct Port {
    number: u8,
    fields: Vec<Field>,
    /// Each with the name of its interface.
    gids: Vec<(GidEntry, String)>,
    /// The index of the entry to take.
    chosen: Option<u32>,
}

impl Report {
    /// Opens the device and asks it.
    pub(super) fn of(device: &Device) -> Result<Self, DevicesError> {
        let failed = |source| DevicesError::Open { device: device.name().to_owned(), source };
        // Of the environment only the kind of link: nothing is sent, so no capture is wanted.
        let options = OpenOptions {
            link: LinkOptions { kind: LinkKind::from_env()?, ..LinkOptions::default() },
            shards: 1,
            limits: Limits::default(),
            congestion: CongestionConfig::default(),
            seed: None,
        };
        let context = device.open_with(options).map_err(failed)?;
        let attr = context.query_device();
        let ports = (1..=attr.phys_port_cnt).map(|number| Port::of(&context, number));
        Ok(Self {
            name: device.name().to_owned(),
            fields: device_fields(device, &attr),
            ports: ports.collect::<Result<_, _>>()?,
        })
    }

    /// All of it, numbers as numbers.
    pub(super) fn to_json(&self) -> Value {
        let mut object = to_object(&self.fields);
        object.insert("hca_id".to_owned(), json!(self.name));
        object.insert("ports".to_owned(), self.ports.iter().map(Port::to_json).collect());
        Value::Object(object)
    }
}

impl Port {
    fn of(context: &Context, number: u8) -> Result<Self, DevicesError> {
        let fields = port_fields(&context.query_port(number)?);
        let names: Vec<_> =
            interfaces()?.into_iter().map(|info| (info.ifindex, info.name)).collect();
        let named = |entry: GidEntry| {
            let found = names.iter().find(|(ifindex, _)| *ifindex == entry.ifindex);
            let name =
                found.map_or_else(|| format!("#{}", entry.ifindex), |(_, name)| name.clone());
            (entry, name)
        };
        let gids = context.query_gid_table()?.into_iter();
        let gids = gids.filter(|entry| entry.port_num == u32::from(number)).map(named).collect();
        let chosen = context.routable_gid(number)?.map(|entry| entry.gid_index);
        Ok(Self { number, fields, gids, chosen })
    }

    fn to_json(&self) -> Value {
        let mut object = to_object(&self.fields);
        object.insert("port".to_owned(), json!(self.number));
        let gids = self.gids.iter().map(|(entry, interface)| {
            json!({
                "index": entry.gid_index,
                "gid": entry.gid.to_string(),
                "type": entry.gid_type.to_string(),
                "interface": interface,
                "ifindex": entry.ifindex,
                "owned": entry.owned,
                "chosen": self.chosen == Some(entry.gid_index),
            })
        });
        object.insert("gids".to_owned(), gids.collect());
        Value::Object(object)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "hca_id:\t{}", self.name)?;
        write_fields(f, 1, DEVICE_COLUMN, &self.fields)?;
        for port in &self.ports {
            writeln!(f, "\t\tport:\t{}", port.number)?;
            write_fields(f, 3, PORT_COLUMN, &port.fields)?;
            for (entry, interface) in &port.gids {
                let GidEntry { gid, gid_index, gid_type, owned, .. } = entry;
                // One that is not owned is shown as Linux shows it, but nothing can be sent from it.
                let note = match (owned, port.chosen == Some(*gid_index)) {
                    (false, _) => " (not an address of this host)",
                    (true, true) => " (the one to take)",
                    (true, false) => "",
                };
                writeln!(f, "\t\t\tGID[{gid_index:3}]:\t\t{gid}, {gid_type}, {interface}{note}")?;
            }
        }
        Ok(())
    }
}

/// Writes fields as `ibv_devinfo` does: indented by tabs, and tabs up to the column of values.
fn write_fields(
    f: &mut fmt::Formatter<'_>,
    indent: usize,
    column: usize,
    fields: &[Field],
) -> fmt::Result {
    for Field { name, value, text } in fields {
        let end = indent * TAB + name.len() + 1;
        // A name may be longer than the column; one tab is between in any case.
        let tabs = column.saturating_sub(end).div_ceil(TAB).max(1);
        write!(f, "{:\t<indent$}{name}:{:\t<tabs$}", "", "")?;
        match (text, value) {
            (Some(text), _) | (None, Value::String(text)) => writeln!(f, "{text}")?,
            (None, value) => writeln!(f, "{value}")?,
        }
    }
    Ok(())
}

fn to_object(fields: &[Field]) -> Map<String, Value> {
    fields.iter().map(|field| (field.name.to_owned(), field.value.clone())).collect()
}

fn field(name: &'static str, value: impl Into<Value>) -> Field {
    Field { name, value: value.into(), text: None }
}

fn with_text(name: &'static str, value: impl Into<Value>, text: String) -> Field {
    Field { name, value: value.into(), text: Some(text) }
}

fn hex(name: &'static str, value: u64) -> Field {
    with_text(name, value, format!("{value:#x}"))
}

/// Flags: their number, and their names.
fn flags<F: Flags<Bits = u32>>(name: &'static str, flags: F) -> Field {
    let names: Vec<_> = flags.iter_names().map(|(name, _)| name).collect();
    with_text(name, flags.bits(), format!("{:#x} ({})", flags.bits(), names.join(" ")))
}

/// A GUID, as four groups of four digits in both forms.
fn guid(name: &'static str, guid: u64) -> Field {
    let groups = [48, 32, 16, 0].map(|shift: u32| format!("{:04x}", (guid >> shift) & 0xffff));
    field(name, groups.join(":"))
}

fn device_fields(device: &Device, attr: &DeviceAttr) -> Vec<Field> {
    let DeviceAttr { fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, .. } = attr;
    let atomics = match attr.atomic_cap {
        AtomicCap::None => "ATOMIC_NONE",
        AtomicCap::Device => "ATOMIC_HCA",
        AtomicCap::Global => "ATOMIC_GLOB",
    };
    let atomic_cap = attr.atomic_cap as u32;
    let names: Vec<_> = device.interfaces().map(|interface| interface.name.as_str()).collect();
    let mut fields = vec![
        with_text("transport", "InfiniBand", "InfiniBand (0)".to_owned()),
        field("interface", names.join("+").as_str()),
        field("fw_ver", fw_ver.as_str()),
        guid("node_guid", *node_guid),
        guid("sys_image_guid", *sys_image_guid),
        with_text("vendor_id", attr.vendor_id, format!("{:#06x}", attr.vendor_id)),
        field("vendor_part_id", attr.vendor_part_id),
        hex("hw_ver", attr.hw_ver.into()),
        field("phys_port_cnt", attr.phys_port_cnt),
        hex("max_mr_size", *max_mr_size),
        hex("page_size_cap", *page_size_cap),
        flags("device_cap_flags", attr.capabilities),
    ];
    fields.extend(limit_fields(&attr.limits));
    fields.extend([
        with_text("atomic_cap", atomic_cap, format!("{atomics} ({atomic_cap})")),
        field("max_pkeys", attr.max_pkeys),
        field("local_ca_ack_delay", attr.local_ca_ack_delay),
        field("num_comp_vectors", attr.num_comp_vectors),
        field("odp_implicit", attr.on_demand.implicit),
        flags("rc_odp_caps", attr.on_demand.rc),
        flags("uc_odp_caps", attr.on_demand.uc),
        flags("ud_odp_caps", attr.on_demand.ud),
        flags("xrc_odp_caps", attr.on_demand.xrc),
        hex("completion_timestamp_mask", attr.timestamp_mask),
        with_text("hca_core_clock", attr.clock_khz, format!("{} kHz", attr.clock_khz)),
        field("max_cq_count", attr.max_moderation_count),
        field("max_cq_period", attr.max_moderation_period_us),
    ]);
    fields
}

fn limit_fields(limits: &Limits) -> Vec<Field> {
    // All of them, so that a new one is shown too.
    let Limits {
        max_qp,
        max_qp_wr,
        max_sge,
        max_inline_data,
        max_cq,
        max_cqe,
        max_mr,
        max_srq,
        max_srq_wr,
        max_srq_sge,
        max_ah,
        max_mcast_grp,
        max_mcast_qp_attach,
        max_xrcd,
        max_dm_size,
        max_pd,
        max_qp_rd_atom,
        max_qp_init_rd_atom,
        max_async_events: _,
    } = *limits;
    let product = |one: u32, other: u32| u64::from(one) * u64::from(other);
    vec![
        field("max_qp", max_qp),
        field("max_qp_wr", max_qp_wr),
        field("max_sge", max_sge),
        field("max_sge_rd", max_sge),
        field("max_inline_data", max_inline_data),
        field("max_cq", max_cq),
        field("max_cqe", max_cqe),
        field("max_mr", max_mr),
        field("max_mw", max_mr),
        field("max_pd", max_pd),
        field("max_qp_rd_atom", max_qp_rd_atom),
        field("max_qp_init_rd_atom", max_qp_init_rd_atom),
        field("max_res_rd_atom", product(max_qp_rd_atom.into(), max_qp)),
        field("max_mcast_grp", max_mcast_grp),
        field("max_mcast_qp_attach", max_mcast_qp_attach),
        field("max_total_mcast_qp_attach", product(max_mcast_grp, max_mcast_qp_attach)),
        field("max_ah", max_ah),
        field("max_srq", max_srq),
        field("max_srq_wr", max_srq_wr),
        field("max_srq_sge", max_srq_sge),
        field("max_xrcd", max_xrcd),
        field("max_dm_size", max_dm_size),
    ]
}

fn port_fields(attr: &PortAttr) -> Vec<Field> {
    let state = match attr.state {
        PortState::Down => "PORT_DOWN",
        PortState::Active => "PORT_ACTIVE",
    };
    let phys = match attr.phys_state {
        PhysState::Polling => "POLLING",
        PhysState::LinkUp => "LINK_UP",
    };
    let lanes = attr.active_width.lanes();
    let speed = f64::from(attr.active_speed.tenths()) / 10.0;
    // The number in brackets is that of `enum ibv_mtu`.
    let mtu =
        |name, mtu: Mtu| with_text(name, mtu.bytes(), format!("{} ({})", mtu.bytes(), mtu as u32));
    vec![
        with_text("state", state, format!("{state} ({})", attr.state as u32)),
        mtu("max_mtu", attr.max_mtu),
        mtu("active_mtu", attr.active_mtu),
        field("port_lid", attr.lid),
        field("link_layer", format!("{:?}", attr.link_layer)),
        hex("max_msg_sz", attr.max_msg_sz.into()),
        field("pkey_tbl_len", attr.pkey_tbl_len),
        field("gid_tbl_len", attr.gid_tbl_len),
        flags("port_cap_flags", attr.capabilities),
        field("max_vl_num", attr.max_vl_num),
        with_text("active_width", lanes, format!("{lanes}X ({})", attr.active_width as u8)),
        with_text("active_speed", speed, format!("{speed:.1} Gbps ({})", attr.active_speed as u8)),
        with_text("phys_state", phys, format!("{phys} ({})", attr.phys_state as u8)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stand_in_the_column_of_ibv_devinfo() {
        let report = Report {
            name: "rxe_lo".to_owned(),
            fields: vec![field("fw_ver", "1"), field("max_mcast_qp_attach", 8)],
            ports: vec![Port {
                number: 1,
                fields: vec![with_text("state", "PORT_ACTIVE", "PORT_ACTIVE (4)".to_owned())],
                gids: Vec::new(),
                chosen: None,
            }],
        };
        let text = "hca_id:\trxe_lo\n\tfw_ver:\t\t\t\t1\n\tmax_mcast_qp_attach:\t\t8\n\t\tport:\t1\n\
                    \t\t\tstate:\t\t\tPORT_ACTIVE (4)\n";
        assert_eq!(report.to_string(), text);
        let json = report.to_json();
        assert_eq!(json["max_mcast_qp_attach"], 8);
        assert_eq!(json["ports"][0]["state"], "PORT_ACTIVE");
    }

    #[test]
    fn a_guid_is_in_groups() {
        assert_eq!(guid("g", 0x5054_00ff_fe77_0001).value, "5054:00ff:fe77:0001");
    }
}
