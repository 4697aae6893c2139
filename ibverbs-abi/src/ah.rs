//! Addresses, and handles of them.

use std::sync::Arc;

use ibverbs_api::{AddressHandle, AddressVector, Gid};

use crate::call::{MinusOne, Pointer, Positive, Refused, answer, missing};
use crate::context::Context;
use crate::handles::{Held, Object, Shown, Users, live, object};
use crate::memory::{get, put};
use crate::pd::Pd;
use crate::types::{
    ibv_ah, ibv_ah_attr, ibv_context, ibv_gid, ibv_global_route, ibv_grh, ibv_pd, ibv_wc,
};

missing! {
    EOPNOTSUPP as MinusOne:
        ibv_resolve_eth_l2_from_gid;
}

/// The bits of a flow label, which is a field of IPv6 (RFC 8200, section 3).
const FLOW_LABEL: u32 = 0xf_ffff;

/// An address handle.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Ah {
    c: Shown<ibv_ah>,
    users: Users,
    pub(crate) facade: AddressHandle,
    pub(crate) pd: Held<Pd>,
}

object!(Ah, ibv_ah, "address handle");

/// An address as the program has it.
pub(crate) fn address_vector(attr: &ibv_ah_attr) -> Result<AddressVector, Refused> {
    // On RoCE the GID is the address: Linux refuses one without (`rdma_check_ah_attr`).
    if attr.is_global == 0 {
        return Err(Refused::invalid("is_global must be 1 on RoCE: the address is the GID in grh"));
    }
    let grh = &attr.grh;
    Ok(AddressVector {
        dgid: Gid::from_raw(grh.dgid.raw),
        sgid_index: grh.sgid_index.into(),
        // Drivers send the lower 20 bits, and UCX asks for all ones.
        flow_label: grh.flow_label & FLOW_LABEL,
        hop_limit: grh.hop_limit,
        traffic_class: grh.traffic_class,
        port_num: attr.port_num,
        sl: attr.sl,
    })
}

/// An address for the program.
pub(crate) fn ah_attr(av: &AddressVector) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: av.dgid.raw() },
            flow_label: av.flow_label,
            // The table has more entries than the program can name; a path is from one that it named.
            sgid_index: u8::try_from(av.sgid_index).unwrap_or(u8::MAX),
            hop_limit: av.hop_limit,
            traffic_class: av.traffic_class,
        },
        sl: av.sl,
        is_global: 1,
        port_num: av.port_num,
        ..ibv_ah_attr::zeroed()
    }
}

/// Makes an address handle in a domain.
fn create(
    pd: *mut ibv_pd,
    make: impl FnOnce(&Pd) -> Result<AddressHandle, Refused>,
) -> Result<*mut ibv_ah, Refused> {
    let held = Held::<Pd>::get(pd)?;
    let facade = make(&held)?;
    let c = Shown::new(ibv_ah { context: held.context.handle(), pd, handle: 0 });
    Ok(Ah::table().publish(Arc::new(Ah { c, users: Users::default(), facade, pd: held })))
}

/// `ibv_create_ah(3)`.
pub(crate) unsafe extern "C" fn ibv_create_ah(
    pd: *mut ibv_pd,
    attr: *mut ibv_ah_attr,
) -> Pointer<ibv_ah> {
    answer("ibv_create_ah", || {
        // SAFETY: the program points to an address.
        let av = address_vector(&unsafe { get(attr) }?)?;
        create(pd, |pd| Ok(pd.facade.create_ah(&av)?))
    })
}

/// `IBV_WC_GRH`: 40 bytes of headers are before the data.
const WC_GRH: u32 = 1;

/// The header of a datagram, whose completion says that there is one.
///
/// # Safety
///
/// The program points to the completion and, if that says so, to the header.
unsafe fn header(wc: *const ibv_wc, grh: *const ibv_grh) -> Result<[u8; 40], Refused> {
    // SAFETY: the caller's.
    if unsafe { get(wc) }?.wc_flags & WC_GRH == 0 {
        return Err(Refused::invalid("the completion says that no header came with the message"));
    }
    // SAFETY: the caller's; a header is 40 bytes.
    unsafe { get(grh.cast::<[u8; 40]>()) }
}

/// `ibv_create_ah_from_wc(3)`.
pub(crate) unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port_num: u8,
) -> Pointer<ibv_ah> {
    answer("ibv_create_ah_from_wc", || {
        // SAFETY: the program points to the completion and the header.
        let header = unsafe { header(wc, grh) }?;
        create(pd, |pd| Ok(pd.facade.create_ah_from_header(port_num, &header)?))
    })
}

/// `ibv_init_ah_from_wc(3)`.
pub(crate) unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port_num: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> MinusOne {
    answer("ibv_init_ah_from_wc", || {
        // SAFETY: the program points to the completion and the header.
        let header = unsafe { header(wc, grh) }?;
        let av = live::<Context>(context)?.facade()?.address_from_header(port_num, &header)?;
        // SAFETY: the program wants the address there.
        unsafe { put(attr, ah_attr(&av)) }
    })
}

/// `ibv_destroy_ah(3)`.
pub(crate) unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> Positive {
    answer("ibv_destroy_ah", || Ah::table().withdraw(ah).map(drop))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_label_has_20_bits_whatever_the_program_says() {
        let mut attr = ibv_ah_attr { is_global: 1, ..ibv_ah_attr::zeroed() };
        attr.grh.flow_label = u32::MAX;
        assert_eq!(address_vector(&attr).unwrap().flow_label, 0xf_ffff);
        attr.is_global = 0;
        assert!(address_vector(&attr).is_err());
    }
}
