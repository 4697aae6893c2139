//! Addresses of an identifier: its own, the peer's, and the way between them.

use std::net::{IpAddr, SocketAddr};

use ibverbs_api::Gid;
use rand_core::{OsRng, TryRngCore};
use rxe_core::errno::ENODEV;

use super::{CmId, Phase, State};
use crate::engine::CmPath;
use crate::error::{BindError, ResolveError};
use crate::event_type::EventType;
use crate::manager::{BoundPort, device_of};
use crate::ports::Sharing;
use crate::route::route_to;

impl CmId {
    /// Binds it to an address of this host, or to all, and to a port; of port 0, to one that nobody
    /// has (C: `rdma_bind_addr`). One address gives it the device.
    ///
    /// # Errors
    ///
    /// [`BindError`]: the port is taken, or no device has the address.
    pub fn bind_addr(&self, address: SocketAddr) -> Result<(), BindError> {
        let mut state = self.inner.state.lock();
        self.bind(&mut state, address)
    }

    fn bind(&self, state: &mut State, address: SocketAddr) -> Result<(), BindError> {
        if state.phase != Phase::Idle {
            return Err(BindError::State(state.phase.name()));
        }
        let device = match address.ip() {
            ip if ip.is_unspecified() => None,
            ip => Some(device_of(ip)?),
        };
        self.take_port(state, address)?;
        if let Some(device) = device
            && !self.has_device(state, &device)
        {
            (state.device, state.port, state.local) = (None, None, None);
            return Err(BindError::NoDevice(address.ip()));
        }
        state.phase = Phase::Bound;
        Ok(())
    }

    fn take_port(&self, state: &mut State, address: SocketAddr) -> Result<(), BindError> {
        let sharing = Sharing { reuse: state.options.reuse, only_v6: state.options.is_v6_alone() };
        let port = BoundPort::take(self.inner.space, address, sharing)?;
        state.local = Some(port.address());
        state.port = Some(port);
        Ok(())
    }

    /// Finds the device and the source address for a destination (C: `rdma_resolve_addr`). The
    /// host's routes decide, unless the identifier is bound or `source` given; a destination of
    /// `0.0.0.0` or `::` is this host.
    ///
    /// [`EventType::AddrResolved`] comes, or [`EventType::AddrError`] with the reason as a negative
    /// errno: no device has the source.
    ///
    /// # Errors
    ///
    /// [`ResolveError`] when the source cannot be bound, the identifier is past that, or the host
    /// has no route, which is known at once.
    pub fn resolve_addr(
        &self,
        source: Option<SocketAddr>,
        destination: SocketAddr,
    ) -> Result<(), ResolveError> {
        let mut state = self.inner.state.lock();
        if let (Phase::Idle, Some(source)) = (state.phase, source) {
            self.bind(&mut state, source)?;
        }
        if !matches!(state.phase, Phase::Idle | Phase::Bound) {
            return Err(ResolveError::State(state.phase.name()));
        }
        if let Some(local) = state.local
            && local.is_ipv4() != destination.is_ipv4()
        {
            let (from, to) = (local.ip(), destination.ip());
            return Err(ResolveError::Families { from, to });
        }
        let source = route_to(state.local, destination)
            .map_err(|error| ResolveError::NoRoute { to: destination.ip(), error })?;
        let event = match self.resolve(&mut state, source, destination) {
            Ok(()) => {
                state.phase = Phase::AddrResolved;
                self.event(EventType::AddrResolved)
            }
            Err(errno) => self.event(EventType::AddrError).with_status(-errno),
        };
        self.push(&state, event);
        Ok(())
    }

    /// Does it; the error is an errno.
    fn resolve(
        &self,
        state: &mut State,
        source: IpAddr,
        destination: SocketAddr,
    ) -> Result<(), i32> {
        let device = device_of(source).map_err(|error| match error {
            BindError::NoDevice(_) => ENODEV,
            error => error.errno(),
        })?;
        let mut destination = destination;
        if destination.ip().is_unspecified() {
            destination.set_ip(source);
        }
        match (&state.port, state.local) {
            (Some(_), Some(local)) => state.local = Some(SocketAddr::new(source, local.port())),
            _ => {
                self.take_port(state, SocketAddr::new(source, 0)).map_err(|error| error.errno())?
            }
        }
        state.remote = Some(destination);
        state.path = Some(CmPath {
            traffic_class: state.options.tos,
            // So connections have source ports of their own on the way.
            flow_label: OsRng.try_next_u32().unwrap_or_default() & 0xf_ffff,
            ..CmPath::new(gid(source), gid(destination.ip()))
        });
        if self.has_device(state, &device) { Ok(()) } else { Err(ENODEV) }
    }

    /// Finds the way to the destination (C: `rdma_resolve_route`). On RoCE all of it is known at
    /// once: there is no subnet administrator to be asked.
    ///
    /// [`EventType::RouteResolved`] comes; [`EventType::RouteError`] with the reason as a negative
    /// errno, where the device has lost the address since.
    ///
    /// # Errors
    ///
    /// [`ResolveError::State`] when the address is not resolved, or the route is.
    pub fn resolve_route(&self) -> Result<(), ResolveError> {
        let mut state = self.inner.state.lock();
        if state.phase != Phase::AddrResolved {
            return Err(ResolveError::State(state.phase.name()));
        }
        // Set since the address was resolved, it counts.
        let tos = state.options.tos;
        if let Some(path) = &mut state.path {
            path.traffic_class = tos;
        }
        let way = state.device.as_ref().zip(state.path);
        if way.and_then(|(device, path)| device.gsi().address_vector(&path)).is_none() {
            self.push(&state, self.event(EventType::RouteError).with_status(-ENODEV));
            return Ok(());
        }
        state.phase = Phase::RouteResolved;
        self.push(&state, self.event(EventType::RouteResolved));
        Ok(())
    }
}

fn gid(ip: IpAddr) -> Gid {
    Gid::from_ip(ip)
}
