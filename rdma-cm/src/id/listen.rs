//! Listening.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use ibverbs_api::{Gid, RegisterServiceError};
use rxe_wire::mad::cm::ServiceId;

use super::connect::transport;
use super::state::ListeningAt;
use super::{CmId, Phase, State};
use crate::address::is_of_datagrams;
use crate::device::CmDevice;
use crate::engine::{ListenFor, ListenOn};
use crate::error::BindError;
use crate::manager::{BoundPort, all_devices, note_wildcard};
use crate::ports::Sharing;
use crate::service::Service;

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
        state.backlog = backlog;
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
        if state.device.is_none() {
            note_wildcard(self.inner.number, Arc::downgrade(&self.inner));
        }
        Ok(())
    }

    /// Listens at devices and addresses that have come since, if it listens at all there are, and
    /// lets go of those that are gone.
    pub(crate) fn follow(&self) {
        let mut state = self.inner.state.lock();
        let (Phase::Listening, None, Some(local)) = (state.phase, &state.device, state.local)
        else {
            return;
        };
        state.let_go_of_lost();
        let devices = match all_devices() {
            Ok(devices) => devices,
            Err(error) => return tracing::warn!(target: "rxe::cm", %error, "devices not listed"),
        };
        for device in devices {
            let at = state.listening.iter_mut().find(|at| Arc::ptr_eq(&at.device, &device));
            let followed = match at {
                Some(at) => at.follow(),
                None => self
                    .listen_at(&state, device, local, state.backlog)
                    .map(|at| state.listening.push(at)),
            };
            if let Err(error) = followed {
                tracing::warn!(target: "rxe::cm", id = ?self, %error, "not listened at all");
            }
        }
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
            IpAddr::V6(_) if state.options.is_v6_alone() => ListenOn::Ipv6,
            IpAddr::V6(_) => ListenOn::Any,
        };
        let services: Result<_, _> = served(&device, on)
            .into_iter()
            .map(|ip| Service::register(&device, service, ip))
            .collect();
        let services = services.map_err(|error| match error {
            // As for those of one process: where all addresses are wanted, it is no single one that
            // is in use.
            BindError::Service(RegisterServiceError::Taken { .. })
                if local.ip().is_unspecified() =>
            {
                BindError::TakenForAll(local)
            }
            error => error,
        })?;
        let takes = if is_of_datagrams(self.inner.space) {
            ListenFor::Lookups
        } else if state.has_type {
            ListenFor::Connections(transport(state.qp_type))
        } else {
            ListenFor::AnyConnections
        };
        let inner = Arc::downgrade(&self.inner);
        let listener = device.with(|core, _| {
            let listener = core.engine.listen(service, on, takes, backlog)?;
            core.listeners.insert(listener, inner);
            Ok::<_, BindError>(listener)
        })?;
        Ok(ListeningAt { device, listener, service, on, services })
    }
}

impl State {
    fn stop_listening(&mut self) {
        self.listening.drain(..).for_each(ListeningAt::stop);
    }

    fn let_go_of_lost(&mut self) {
        let (lost, there) = self.listening.drain(..).partition(|at| at.device.is_lost());
        self.listening = there;
        let lost: Vec<ListeningAt> = lost;
        lost.into_iter().for_each(ListeningAt::stop);
    }
}

impl ListeningAt {
    /// Serves the addresses that the device has now.
    fn follow(&mut self) -> Result<(), BindError> {
        let addresses = served(&self.device, self.on);
        self.services.retain(|one| addresses.contains(&one.address()));
        for address in addresses {
            if self.services.iter().all(|one| one.address() != address) {
                self.services.push(Service::register(&self.device, self.service, address)?);
            }
        }
        Ok(())
    }

    fn stop(self) {
        self.device.with(|core, _| {
            core.engine.stop_listening(self.listener);
            core.listeners.remove(&self.listener);
        });
    }
}

/// The addresses of a device that a listener serves.
fn served(device: &CmDevice, on: ListenOn) -> Vec<IpAddr> {
    let mut addresses = device.addresses();
    addresses.retain(|ip| match on {
        ListenOn::Address(gid) => Gid::from_ip(*ip) == gid,
        ListenOn::Ipv4 => ip.is_ipv4(),
        ListenOn::Ipv6 => ip.is_ipv6(),
        ListenOn::Any => true,
    });
    addresses
}
