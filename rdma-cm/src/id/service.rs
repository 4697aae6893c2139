//! Names: of services, and of hosts; and events that a program writes itself.

use std::sync::Arc;
use std::thread::Builder;

use rxe_wire::mad::cm::ServiceId;

use super::{CmId, Phase};
use crate::addrinfo::{AddrHints, AddrInfo, addr_info};
use crate::error::{IdError, ResolveError};
use crate::event_type::EventType;

/// A service that a subnet administrator knows (C: `struct rdma_ucm_ib_service`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum IbService {
    /// By its number (`RDMA_USER_CM_IB_SERVICE_FLAG_ID`).
    Id(ServiceId),
    /// By its name, of at most 64 bytes (`RDMA_USER_CM_IB_SERVICE_FLAG_NAME`).
    Name(String),
}

impl CmId {
    /// Asks the subnet administrator for the record of a service (C: `rdma_resolve_ib_service`). On
    /// RoCE there is none to be asked, and Linux says so likewise.
    ///
    /// # Errors
    ///
    /// [`ResolveError::State`] when no address is resolved, [`ResolveError::NoAdministrator`]
    /// (`EOPNOTSUPP`) otherwise.
    pub fn resolve_ib_service(&self, service: &IbService) -> Result<(), ResolveError> {
        let state = self.inner.state.lock();
        if state.phase != Phase::AddrResolved {
            return Err(ResolveError::State(state.phase.name()));
        }
        Err(ResolveError::NoAdministrator(service.clone()))
    }

    /// Looks up the addresses of a node and a service, as [`addr_info`] does, without waiting for
    /// the resolver (C: `rdma_resolve_addrinfo`). Destroying the identifier ends it.
    ///
    /// [`EventType::AddrinfoResolved`] comes, then [`Self::query_addrinfo`] has them; or
    /// [`EventType::AddrinfoError`] with the reason as a negative errno.
    ///
    /// # Errors
    ///
    /// [`IdError::State`] when it has an address already, [`IdError::Os`] where no thread is to be
    /// had.
    pub fn resolve_addrinfo(
        &self,
        node: Option<&str>,
        service: Option<&str>,
        hints: &AddrHints,
    ) -> Result<(), IdError> {
        let state = self.inner.state.lock();
        if state.phase != Phase::Idle {
            return Err(state.wrong());
        }
        let (node, service) = (node.map(str::to_owned), service.map(str::to_owned));
        let (hints, id) = (*hints, Arc::downgrade(&self.inner));
        let look_up = move || {
            let found = addr_info(node.as_deref(), service.as_deref(), &hints);
            let Some(inner) = id.upgrade() else { return };
            let id = Self { inner };
            let mut state = id.inner.state.lock();
            if state.phase == Phase::Destroyed {
                return;
            }
            let news = match found {
                Ok(found) => {
                    state.found = found;
                    id.event(EventType::AddrinfoResolved)
                }
                Err(error) => {
                    tracing::debug!(target: "rxe::cm", ?id, %error, "no addresses");
                    id.event(EventType::AddrinfoError).with_status(-error.errno())
                }
            };
            id.push(&state, news);
        };
        Builder::new().name("cm names".to_owned()).spawn(look_up).map_err(IdError::Os)?;
        Ok(())
    }

    /// What [`Self::resolve_addrinfo`] has found last (C: `rdma_query_addrinfo`).
    pub fn query_addrinfo(&self) -> Vec<AddrInfo> {
        self.inner.state.lock().found.clone()
    }

    /// Writes an event of the program's own into its channel (C: `rdma_write_cm_event`):
    /// [`EventType::User`], or [`EventType::Internal`], which a library over this one may use for
    /// itself. Whoever waits for an event is woken by it.
    ///
    /// # Errors
    ///
    /// [`IdError::EventType`] for any other type, [`IdError::State`] when it is destroyed.
    pub fn write_event(&self, event: EventType, status: i32, arg: u64) -> Result<(), IdError> {
        if !matches!(event, EventType::User | EventType::Internal) {
            return Err(IdError::EventType(event));
        }
        let state = self.inner.state.lock();
        if state.phase == Phase::Destroyed {
            return Err(state.wrong());
        }
        let param = crate::event::EventParam::Arg(arg);
        self.push(&state, self.event(event).with_status(status).with_param(param));
        Ok(())
    }
}
