//! Listening.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use ibverbs_api::{Gid, ServiceRegistration};
use rxe_wire::mad::cm::ServiceId;

use super::state::ListeningAt;
use super::{CmId, Phase, State};
use crate::address::is_of_datagrams;
use crate::device::CmDevice;
use crate::engine::{ListenFor, ListenOn};
use crate::error::BindError;
use crate::manager::{BoundPort, all_devices};
use crate::ports::Sharing;

/// The greatest backlog, and what stands for none in particular (Linux: `max_backlog`).
const BACKLOG_MAX: usize = 1024;

impl CmId {
    /// Waits for requests (C: `rdma_listen`): at its address, or at all addresses of all devices if
    /// it is bound to none.
    ///
    /// [`EventType::ConnectRequest`](crate::EventType::ConnectRequest) comes of each request.
    /// `backlog` of them at most wait to be taken from the channel; 0 stands for 1,024. More are
    /// dropped, and their peers ask again.
    ///
    /// # Errors
    ///
    /// [`BindError`]: somebody listens there already, in this process or another.
    pub fn listen(&self, backlog: usize) -> Result<(), BindError> {
        let mut state = self.inner.state.lock();
        if state.phase == Phase::Idle {
            let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
            let port = BoundPort::take(self.inner.space, any, Sharing::default())?;
            state.local = Some(port.address());
            state.port = Some(port);
            state.phase = Phase::Bound;
        }
        let (Phase::Bound, Some(local)) = (state.phase, state.local) else {
            return Err(BindError::State(state.phase.name()));
        };
        let devices = match &state.device {
            Some(device) => vec![device.clone()],
            None => all_devices()?,
        };
        let backlog = if backlog == 0 { BACKLOG_MAX } else { backlog.min(BACKLOG_MAX) };
        let mut listening = Vec::new();
        for device in devices {
            match self.listen_at(&state, device, local, backlog) {
                Ok(at) => listening.push(at),
                Err(error) => {
                    // All or none.
                    state.listening = listening;
                    state.stop_listening();
                    return Err(error);
                }
            }
        }
        state.listening = listening;
        state.phase = Phase::Listening;
        Ok(())
    }

    fn listen_at(
        &self,
        state: &State,
        device: Arc<CmDevice>,
        local: SocketAddr,
        backlog: usize,
    ) -> Result<ListeningAt, BindError> {
        let service = ServiceId::ip(self.inner.space, local.port());
        let on = match local.ip() {
            ip if !ip.is_unspecified() => ListenOn::Address(Gid::from_ip(ip)),
            IpAddr::V4(_) => ListenOn::Ipv4,
            IpAddr::V6(_) if state.options.af_only => ListenOn::Ipv6,
            IpAddr::V6(_) => ListenOn::Any,
        };
        let services = register(&device, service, on)?;
        let takes = if is_of_datagrams(self.inner.space) {
            ListenFor::Lookups
        } else {
            ListenFor::AnyConnections
        };
        let inner = Arc::downgrade(&self.inner);
        let listener = device.with(|core, _| {
            let listener = core.engine.listen(service, on, takes, backlog)?;
            core.listeners.insert(listener, inner);
            Ok::<_, BindError>(listener)
        })?;
        Ok(ListeningAt { device, listener, _services: services })
    }
}

impl State {
    fn stop_listening(&mut self) {
        for at in self.listening.drain(..) {
            at.device.with(|core, _| {
                core.engine.stop_listening(at.listener);
                core.listeners.remove(&at.listener);
            });
        }
    }
}

/// Has requests come to this process, whichever of those on the addresses gets them. One that
/// serves all addresses is entered for each: so two do not serve one address without knowing.
fn register(
    device: &CmDevice,
    service: ServiceId,
    on: ListenOn,
) -> Result<Vec<ServiceRegistration>, BindError> {
    let is_served = |ip: &IpAddr| match on {
        ListenOn::Address(gid) => Gid::from_ip(*ip) == gid,
        ListenOn::Ipv4 => ip.is_ipv4(),
        ListenOn::Ipv6 => ip.is_ipv6(),
        ListenOn::Any => true,
    };
    let register = |ip| Ok(device.gsi().qp().register_service(service, Some(ip))?);
    device.addresses().filter(is_served).map(register).collect()
}
