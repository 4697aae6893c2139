//! The messages of connection management as JSON, with every field.

use rxe_wire::mad::cm::{
    Apr, CmMessage, CmaHeader, Drep, Dreq, Lap, Mra, Path, Rej, Rep, Req, Rtu, ServiceId, SidrRep,
    SidrReq,
};
use serde_json::{Value, json};

use super::json::{gid, hex, hex32, hex64};

/// The message, its kind in `message`.
pub(super) fn of_message(message: &CmMessage) -> Value {
    let (name, mut value) = match message {
        CmMessage::Req(req) => ("REQ", of_req(req)),
        CmMessage::Mra(mra) => ("MRA", of_mra(mra)),
        CmMessage::Rej(rej) => ("REJ", of_rej(rej)),
        CmMessage::Rep(rep) => ("REP", of_rep(rep)),
        CmMessage::Rtu(rtu) => ("RTU", of_rtu(rtu)),
        CmMessage::Dreq(dreq) => ("DREQ", of_dreq(dreq)),
        CmMessage::Drep(drep) => ("DREP", of_drep(drep)),
        CmMessage::SidrReq(sidr_req) => ("SIDR_REQ", of_sidr_req(sidr_req)),
        CmMessage::SidrRep(sidr_rep) => ("SIDR_REP", of_sidr_rep(sidr_rep)),
        CmMessage::Lap(lap) => ("LAP", of_lap(lap)),
        CmMessage::Apr(apr) => ("APR", of_apr(apr)),
    };
    if let Some(object) = value.as_object_mut() {
        object.insert("message".into(), name.into());
        if let Some(cma) = message.cma_header() {
            object.insert("ip_cm".into(), of_cma(&cma));
        }
    }
    value
}

fn of_cma(cma: &CmaHeader) -> Value {
    json!({
        "version": cma.version,
        "ip_version": cma.ip_version.get(),
        "source_port": cma.source_port,
        "source": cma.source_ip().map(|ip| ip.to_string()),
        "destination": cma.destination_ip().map(|ip| ip.to_string()),
    })
}

fn of_service(service_id: ServiceId) -> Value {
    json!({ "id": hex64(service_id.0), "text": service_id.to_string() })
}

fn of_path(path: &Path) -> Value {
    json!({
        "local_lid": path.local_lid,
        "remote_lid": path.remote_lid,
        "local_gid": gid(path.local_gid),
        "remote_gid": gid(path.remote_gid),
        "flow_label": path.flow_label.get(),
        "packet_rate": path.packet_rate.get(),
        "traffic_class": path.traffic_class,
        "hop_limit": path.hop_limit,
        "service_level": path.service_level.get(),
        "subnet_local": path.subnet_local,
        "local_ack_timeout": path.local_ack_timeout.get(),
        "reserved": hex(&path.reserved.0),
    })
}

fn of_req(req: &Req) -> Value {
    json!({
        "local_comm_id": hex32(req.local_comm_id.0),
        "vendor_id": req.vendor_id.get(),
        "service": of_service(req.service_id),
        "local_ca_guid": hex64(req.local_ca_guid.0),
        "local_qkey": hex32(req.local_qkey.get()),
        "local_qpn": req.local_qpn.get(),
        "responder_resources": req.responder_resources,
        "local_eecn": req.local_eecn.get(),
        "initiator_depth": req.initiator_depth,
        "remote_eecn": req.remote_eecn.get(),
        "remote_response_timeout": req.remote_response_timeout.get(),
        "transport_service": req.service.code(),
        "flow_control": req.flow_control,
        "starting_psn": req.starting_psn.get(),
        "local_response_timeout": req.local_response_timeout.get(),
        "retry_count": req.retry_count.get(),
        "pkey": req.pkey.get(),
        "path_mtu": req.path_mtu.0.get(),
        "path_mtu_bytes": req.path_mtu.bytes(),
        "rdc_exists": req.rdc_exists,
        "rnr_retry_count": req.rnr_retry_count.get(),
        "max_cm_retries": req.max_cm_retries.get(),
        "srq": req.srq,
        "extended_transport": req.extended_transport.get(),
        "primary_path": of_path(&req.primary_path),
        "alternate_path": of_path(&req.alternate_path),
        "private_data": hex(&req.private_data.0),
        "reserved": hex(&req.reserved.0),
    })
}

fn of_rep(rep: &Rep) -> Value {
    json!({
        "local_comm_id": hex32(rep.local_comm_id.0),
        "remote_comm_id": hex32(rep.remote_comm_id.0),
        "local_qkey": hex32(rep.local_qkey.get()),
        "local_qpn": rep.local_qpn.get(),
        "local_eecn": rep.local_eecn.get(),
        "starting_psn": rep.starting_psn.get(),
        "vendor_id": rep.vendor_id.get(),
        "responder_resources": rep.responder_resources,
        "initiator_depth": rep.initiator_depth,
        "target_ack_delay": rep.target_ack_delay.get(),
        "failover_accepted": rep.failover_accepted.get(),
        "flow_control": rep.flow_control,
        "rnr_retry_count": rep.rnr_retry_count.get(),
        "srq": rep.srq,
        "local_ca_guid": hex64(rep.local_ca_guid.0),
        "private_data": hex(&rep.private_data.0),
        "reserved": rep.reserved.get(),
    })
}

fn of_rtu(rtu: &Rtu) -> Value {
    json!({
        "local_comm_id": hex32(rtu.local_comm_id.0),
        "remote_comm_id": hex32(rtu.remote_comm_id.0),
        "private_data": hex(&rtu.private_data.0),
    })
}

fn of_mra(mra: &Mra) -> Value {
    json!({
        "local_comm_id": hex32(mra.local_comm_id.0),
        "remote_comm_id": hex32(mra.remote_comm_id.0),
        "of": mra.message.to_string(),
        "service_timeout": mra.service_timeout.get(),
        "private_data": hex(&mra.private_data.0),
        "reserved": hex(&mra.reserved.0),
    })
}

fn of_rej(rej: &Rej) -> Value {
    json!({
        "local_comm_id": hex32(rej.local_comm_id.0),
        "remote_comm_id": hex32(rej.remote_comm_id.0),
        "of": rej.message.to_string(),
        "reason": rej.reason.0,
        "reason_text": rej.reason.text(),
        "info_length": rej.info_len.get(),
        "info": hex(&rej.info.0),
        "private_data": hex(&rej.private_data.0),
        "reserved": hex(&rej.reserved.0),
    })
}

fn of_dreq(dreq: &Dreq) -> Value {
    json!({
        "local_comm_id": hex32(dreq.local_comm_id.0),
        "remote_comm_id": hex32(dreq.remote_comm_id.0),
        "remote_qpn": dreq.remote_qpn.get(),
        "private_data": hex(&dreq.private_data.0),
        "reserved": hex(&dreq.reserved.0),
    })
}

fn of_drep(drep: &Drep) -> Value {
    json!({
        "local_comm_id": hex32(drep.local_comm_id.0),
        "remote_comm_id": hex32(drep.remote_comm_id.0),
        "private_data": hex(&drep.private_data.0),
    })
}

fn of_lap(lap: &Lap) -> Value {
    json!({
        "local_comm_id": hex32(lap.local_comm_id.0),
        "remote_comm_id": hex32(lap.remote_comm_id.0),
        "remote_qpn": lap.remote_qpn.get(),
        "remote_response_timeout": lap.remote_response_timeout.get(),
        "alternate_path": of_path(&lap.alternate_path),
        "private_data": hex(&lap.private_data.0),
        "reserved": hex(&lap.reserved.0),
    })
}

fn of_apr(apr: &Apr) -> Value {
    json!({
        "local_comm_id": hex32(apr.local_comm_id.0),
        "remote_comm_id": hex32(apr.remote_comm_id.0),
        "status": apr.status.0,
        "status_text": apr.status.text(),
        "info_length": apr.info_len,
        "info": hex(&apr.info.0),
        "private_data": hex(&apr.private_data.0),
        "reserved": hex(&apr.reserved.0),
    })
}

fn of_sidr_req(sidr_req: &SidrReq) -> Value {
    json!({
        "request_id": hex32(sidr_req.request_id.0),
        "pkey": sidr_req.pkey.get(),
        "service": of_service(sidr_req.service_id),
        "private_data": hex(&sidr_req.private_data.0),
        "reserved": hex(&sidr_req.reserved.0),
    })
}

fn of_sidr_rep(sidr_rep: &SidrRep) -> Value {
    json!({
        "request_id": hex32(sidr_rep.request_id.0),
        "status": sidr_rep.status.0,
        "status_text": sidr_rep.status.text(),
        "qpn": sidr_rep.qpn.get(),
        "service": of_service(sidr_rep.service_id),
        "qkey": hex32(sidr_rep.qkey.get()),
        "vendor_id": sidr_rep.vendor_id.get(),
        "info_length": sidr_rep.info_len,
        "info": hex(&sidr_rep.info.0),
        "private_data": hex(&sidr_rep.private_data.0),
    })
}
