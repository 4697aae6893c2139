//! Protection domains, and parent domains, which are protection domains too.

use std::sync::Arc;

use ibverbs_api::ProtectionDomain;

use crate::call::{Pointer, Positive, Refused, answer};
use crate::context::Context;
use crate::handles::{Held, Object, Shown, Users, live, next_number, object};
use crate::memory::get;
use crate::supplied::Allocators;
use crate::td::Td;
use crate::types::{ibv_context, ibv_parent_domain_init_attr, ibv_pd};

/// A protection domain.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Pd {
    c: Shown<ibv_pd>,
    /// Shared with those that are imports of it.
    users: Arc<Users>,
    pub(crate) facade: ProtectionDomain,
    pub(crate) context: Held<Context>,
    /// What a program imports it by.
    number: u32,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// Made by `ibv_alloc_pd`.
    Original,
    /// Another handle of one.
    Import,
    /// A parent domain, and what it stands for.
    Parent { _pd: Held<Pd>, _td: Option<Held<Td>>, allocators: Option<Allocators> },
}

object!(Pd, ibv_pd, "protection domain");

impl Pd {
    fn new(context: Held<Context>, facade: ProtectionDomain, number: u32, kind: Kind) -> Self {
        let c = Shown::new(ibv_pd { context: context.handle(), handle: number });
        Self { c, users: Arc::default(), facade, context, number, kind }
    }

    /// Whether both are handles of one domain.
    pub(crate) fn is_within(&self, other: &Self) -> bool {
        self.number == other.number
    }

    /// Whether it is a parent domain.
    pub(crate) fn is_parent(&self) -> bool {
        matches!(self.kind, Kind::Parent { .. })
    }

    /// The program's functions for the memory of what is made in it.
    pub(crate) fn allocators(&self) -> Option<Allocators> {
        match self.kind {
            Kind::Parent { allocators, .. } => allocators,
            _ => None,
        }
    }
}

/// `ibv_alloc_pd(3)`.
pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> Pointer<ibv_pd> {
    answer("ibv_alloc_pd", || {
        let held = Held::<Context>::get(context)?;
        let facade = held.facade()?.alloc_pd()?;
        let pd = Pd::new(held, facade, next_number(), Kind::Original);
        Ok(Pd::table().publish(Arc::new(pd)))
    })
}

/// `ibv_dealloc_pd(3)`: `EBUSY` while anything is made in it.
///
/// Deallocating an import deallocates the domain itself; whoever has other handles of it can only
/// let go of them, as the man page of `ibv_import_pd` demands.
pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> Positive {
    answer("ibv_dealloc_pd", || Pd::table().withdraw(pd).map(drop))
}

/// `IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS` and `IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT`.
const ALLOCATORS: u32 = 1;
const PD_CONTEXT: u32 = 1 << 1;

/// `ibv_alloc_parent_domain(3)`, which `verbs.h` calls by a pointer.
///
/// What is made in it has its memory from the program's allocators, as far as `supplied.rs` says. The
/// word of `pd_context` is theirs alone.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> Pointer<ibv_pd> {
    answer("ibv_alloc_parent_domain", || {
        // SAFETY: the program points to how it is to be.
        let attr = unsafe { get(attr) }?;
        if attr.comp_mask & !(ALLOCATORS | PD_CONTEXT) != 0 {
            return Err(Refused::invalid("comp_mask has unknown bits"));
        }
        let allocators = allocators(&attr)?;
        let held = Held::<Context>::get(context)?;
        let pd = Held::<Pd>::get(attr.pd)?;
        if !pd.context.is_same(&held) {
            return Err(Refused::invalid("the protection domain belongs to another context"));
        }
        let td = Held::<Td>::get_if_any(attr.td)?;
        let facade = pd.facade.alloc_parent(td.as_ref().map(|td| &td.facade))?;
        let number = pd.number;
        let parent = Pd::new(held, facade, number, Kind::Parent { _pd: pd, _td: td, allocators });
        Ok(Pd::table().publish(Arc::new(parent)))
    })
}

/// The program's allocators, if it gives some: both, since memory of the one goes to the other.
fn allocators(attr: &ibv_parent_domain_init_attr) -> Result<Option<Allocators>, Refused> {
    if attr.comp_mask & ALLOCATORS == 0 {
        return Ok(None);
    }
    let Some((alloc, free)) = attr.alloc.zip(attr.free) else {
        return Err(Refused::invalid("ALLOCATORS, but alloc or free is NULL"));
    };
    let has_context = attr.comp_mask & PD_CONTEXT != 0;
    let pd_context = if has_context { attr.pd_context } else { std::ptr::null_mut() };
    Ok(Some(Allocators { alloc, free, pd_context }))
}

/// `ibv_import_pd(3)`.
pub(crate) unsafe extern "C" fn ibv_import_pd(
    context: *mut ibv_context,
    pd_handle: u32,
) -> Pointer<ibv_pd> {
    answer("ibv_import_pd", || {
        let held = Held::<Context>::get(context)?;
        let is_it =
            |pd: &Pd| !pd.is_parent() && pd.number == pd_handle && pd.context.is_same(&held);
        let Some(known) = Pd::table().find(is_it) else {
            let why = format!("the context has no protection domain of handle {pd_handle}");
            return Err(Refused::new(libc::ENOENT, why));
        };
        let import = Pd::new(held, known.facade.clone(), pd_handle, Kind::Import);
        let import = Pd { users: known.users.clone(), ..import };
        Ok(Pd::table().publish(Arc::new(import)))
    })
}

/// `ibv_unimport_pd(3)`: the domain itself stays.
pub(crate) unsafe extern "C" fn ibv_unimport_pd(pd: *mut ibv_pd) {
    answer::<()>("ibv_unimport_pd", || {
        if !matches!(live::<Pd>(pd)?.kind, Kind::Import) {
            return Err(Refused::invalid("this protection domain was not imported"));
        }
        Pd::table().forget(pd).map(drop)
    })
}
