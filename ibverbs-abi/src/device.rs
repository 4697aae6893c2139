//! Devices, as a program finds them.

use std::collections::BTreeSet;
use std::ffi::{c_char, c_int};
use std::ptr;
use std::sync::Arc;

use ibverbs_api::DeviceError;

use crate::call::{Count, Guid, Pointer, Refused, answer};
use crate::fork::Kept;
use crate::handles::{Object, Shown, Users, live, object};
use crate::memory::copy_text;
use crate::types::ibv_device;

/// `IBV_NODE_CA`.
const NODE_CA: c_int = 1;
/// `IBV_TRANSPORT_IB`: RoCE is the same transport.
const TRANSPORT_IB: c_int = 0;

/// What drivers of rdma-core keep behind a device. Vendors' libraries look there whether the device
/// is one of theirs: it must be theirs to read, and hold nothing of theirs.
#[repr(C)]
#[derive(Clone, Copy)]
struct Block {
    device: ibv_device,
    driver: [u64; 6],
}

const _: () = assert!(size_of::<Block>() == 712);

/// A device that the program may open. It stays until the program ends: one for each name that there
/// ever was, so that a pointer to it is good also after `ibv_free_device_list`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Device {
    c: Shown<Block>,
    users: Users,
    name: String,
    index: c_int,
}

object!(Device, ibv_device, "device", survives_fork);

impl Device {
    fn new(name: &str, index: c_int) -> Self {
        let mut block = Block { device: ibv_device::zeroed(), driver: [0; 6] };
        let device = &mut block.device;
        (device.node_type, device.transport_type) = (NODE_CA, TRANSPORT_IB);
        let uverbs = format!("uverbs{index}");
        copy_text(&mut device.name, name);
        copy_text(&mut device.dev_name, &uverbs);
        copy_text(&mut device.dev_path, &format!("/sys/class/infiniband_verbs/{uverbs}"));
        copy_text(&mut device.ibdev_path, &format!("/sys/class/infiniband/{name}"));
        Self { c: Shown::new(block), users: Users::default(), name: name.to_owned(), index }
    }

    /// The device as the host is now: its addresses may have changed since it was listed.
    pub(crate) fn facade(&self) -> Result<ibverbs_api::Device, DeviceError> {
        ibverbs_api::Device::by_name(&self.name)
    }
}

/// Lists that the program has not freed yet, by address.
static LISTS: Kept<BTreeSet<usize>> = Kept::new(BTreeSet::new());

/// The devices that there are now, in the order of the host's interfaces.
pub(crate) fn all() -> Result<Vec<*mut ibv_device>, Refused> {
    let found = ibverbs_api::devices()?;
    // One at a time: of one name there is one device.
    let _lists = LISTS.lock();
    let mut devices = Vec::with_capacity(found.len());
    for device in found {
        let known = Device::table().find(|known| known.name == device.name());
        devices.push(match known {
            Some(known) => known.handle(),
            None => {
                let index = Device::table().len() as c_int;
                Device::table().publish(Arc::new(Device::new(device.name(), index)))
            }
        });
    }
    Ok(devices)
}

/// `ibv_get_device_list(3)`.
pub(crate) unsafe extern "C" fn ibv_get_device_list(
    num_devices: *mut c_int,
) -> Pointer<*mut ibv_device> {
    answer("ibv_get_device_list", || {
        if !num_devices.is_null() {
            // SAFETY: the program wants the number there.
            unsafe { num_devices.write(0) };
        }
        let devices = all()?;
        // The C library's memory, zeroed: the list ends with NULL.
        // SAFETY: a call without conditions.
        let list = unsafe { libc::calloc(devices.len() + 1, size_of::<*mut ibv_device>()) };
        let list = list.cast::<*mut ibv_device>();
        if list.is_null() {
            return Err(Refused::new(libc::ENOMEM, "no memory for the list of devices"));
        }
        // SAFETY: it has room for one more than there are.
        unsafe { list.copy_from_nonoverlapping(devices.as_ptr(), devices.len()) };
        LISTS.lock().insert(list.addr());
        if !num_devices.is_null() {
            // SAFETY: as above.
            unsafe { num_devices.write(devices.len() as c_int) };
        }
        Ok(list)
    })
}

/// `ibv_free_device_list(3)`.
pub(crate) unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    answer::<()>("ibv_free_device_list", || {
        if !LISTS.lock().remove(&list.addr()) {
            return Err(Refused::invalid("this is no list of devices, or it has been freed"));
        }
        // SAFETY: it comes from `calloc`, and has not been freed, or it would not be among them.
        unsafe { libc::free(list.cast()) };
        Ok(())
    })
}

/// `ibv_get_device_name(3)`.
pub(crate) unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    match live::<Device>(device) {
        // SAFETY: the device is there, and its name never changes.
        Ok(_) => unsafe { (&raw const (*device).name).cast() },
        Err(_) => ptr::null(),
    }
}

/// `ibv_get_device_guid(3)`: in network order; 0 when the device is gone.
pub(crate) unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> Guid {
    answer("ibv_get_device_guid", || Ok(live::<Device>(device)?.facade()?.guid().to_be()))
}

/// `ibv_get_device_index(3)`.
pub(crate) unsafe extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> Count {
    answer("ibv_get_device_index", || Ok(live::<Device>(device)?.index))
}
