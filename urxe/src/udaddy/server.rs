//! The side that is asked, and answers each message.

use ibverbs_api::{QKey, Qpn, WcFlags};
use rdma_cm::{CmId, EventChannel};

use super::PATIENCE;
use super::args::{Args, PORT};
use super::connect::serve_all;
use crate::cm::{CmError, Path, Told, wildcard};

/// Waits for clients, and sends back what they send.
pub(super) fn run(args: &Args) -> Result<String, CmError> {
    let events = EventChannel::new()?;
    let listener = CmId::create(&events, args.port_space());
    let address = wildcard(args.bind.as_deref(), PORT, args.format)?;
    listener.bind_addr(address)?;
    listener.listen(0)?;
    eprintln!("waiting at {address} for {} requests", args.connections);
    let (mut paths, answers) = serve_all(args, &events)?;
    let mut on_event = |told: &Told| answers.on_event(told);
    for path in &mut paths {
        path.node.receive_all(&events, &mut on_event, Some(PATIENCE))?;
        find_peer(path)?;
    }
    for path in &paths {
        if let Some(peer) = path.peer {
            path.node.send_back(peer)?;
        }
    }
    for path in &mut paths {
        path.node.complete_sends(&events, &mut on_event)?;
    }
    Ok(args.outcome())
}

/// Answers go to where the first message came from, to the queue pair that it names.
fn find_peer(path: &mut Path) -> Result<(), CmError> {
    let node = &path.node;
    let Some((completion, head)) = node.first()? else { return Ok(()) };
    if !completion.flags.contains(WcFlags::WITH_IMM) {
        return Err(CmError::NoSender);
    }
    let av = node.qp.context().address_from_header(node.id.port_num(), &head)?;
    let qkey = QKey::new(node.qp.query()?.qkey);
    path.set_peer(&av, Qpn::new(completion.imm & 0xff_ffff), qkey)
}
