//! `URXE_DEVICES`: which devices there are, in which order, and under which names.

use std::env;
use std::str::FromStr;

use thiserror::Error;

use crate::device::{Device, all_devices};
use crate::error::DeviceError;

/// The environment variable with a [`DeviceSelection`].
pub const DEVICES_VARIABLE: &str = "URXE_DEVICES";

/// The longest name of a device, in bytes (`IBV_SYSFS_NAME_MAX`, less the end of the text).
const NAME_LEN_MAX: usize = 63;

/// A choice among the devices of this host: `NAME[=INTERFACE[+INTERFACE]...],...`.
///
/// NAME alone is the name of a device (`rxe_eth0`) or of its interface (`eth0`). `NAME=INTERFACE`
/// gives the device of that interface another name, for programs that want to see `mlx5_0`;
/// `NAME=INTERFACE+INTERFACE` makes one device of two, with two ports ([`Device::joined`]). The
/// devices come in the order given, and many programs take the first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceSelection {
    wanted: Vec<Wanted>,
}

/// One device of a selection.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Wanted {
    /// A new name for it.
    name: Option<String>,
    /// The device or interface that is meant.
    of: String,
}

/// Why a selection of devices is no good.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum SelectionError {
    /// It is not of the form `NAME[=INTERFACE],...`.
    #[error(
        "{part:?} names no device: write NAME, INTERFACE, NAME=INTERFACE or \
         NAME=INTERFACE+INTERFACE, with commas between"
    )]
    Form {
        /// The part that is wrong.
        part: String,
    },
    /// A name that no device can have.
    #[error(
        "{name:?} can be no name of a device: take 1 to {NAME_LEN_MAX} letters, digits, and the \
         signs . _ -"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// Two devices would have one name.
    #[error("two devices would be called {name:?}: give one of them another name")]
    SameName {
        /// The name.
        name: String,
    },
    /// One interface is named twice.
    #[error("{device} is named twice: an interface is one device")]
    Twice {
        /// The device.
        device: String,
    },
    /// Too few ports for a device, or too many.
    #[error("a device of {ports} ports: it has 1 to {max}")]
    Ports {
        /// The number.
        ports: usize,
        /// The most that it can have.
        max: usize,
    },
    /// `URXE_DEVICES` is not UTF-8.
    #[error("the value is not UTF-8: device names are")]
    NotUnicode,
}

impl SelectionError {
    /// The errno for a caller in C: `EINVAL`.
    pub fn errno(&self) -> i32 {
        rxe_core::errno::EINVAL
    }
}

impl DeviceSelection {
    /// What `URXE_DEVICES` says; `None` when it is unset or empty: all devices, in their order.
    ///
    /// # Errors
    ///
    /// [`SelectionError`], which says what would be right.
    pub fn from_env() -> Result<Option<Self>, SelectionError> {
        match env::var(DEVICES_VARIABLE) {
            Err(env::VarError::NotPresent) => Ok(None),
            Err(env::VarError::NotUnicode(_)) => Err(SelectionError::NotUnicode),
            Ok(text) if text.is_empty() => Ok(None),
            Ok(text) => text.parse().map(Some),
        }
    }

    /// The devices meant, in their order, with their new names.
    ///
    /// # Errors
    ///
    /// [`DeviceError`]: one of them is not there, or two of them are one, or would have one name.
    pub fn devices(&self) -> Result<Vec<Device>, DeviceError> {
        self.select(&all_devices()?)
    }

    /// The devices meant, out of `all`, with their new names.
    fn select(&self, all: &[Device]) -> Result<Vec<Device>, DeviceError> {
        let mut chosen: Vec<Device> = Vec::with_capacity(self.wanted.len());
        for Wanted { name, of } in &self.wanted {
            let found = find(of, all)?;
            let is_taken = |found: &&Device| {
                let of_found = |other: &Device| other.interfaces().any(|i| i == found.interface());
                chosen.iter().any(of_found)
            };
            if let Some(twice) = found.iter().find(is_taken) {
                let device = twice.name().to_owned();
                return Err(SelectionError::Twice { device }.into());
            }
            let device = match (name, found.as_slice()) {
                (None, [found]) => found.clone(),
                (None, _) => return Err(SelectionError::Form { part: of.clone() }.into()),
                (Some(name), found) => Device::joined(name, found)?,
            };
            if chosen.iter().any(|other| other.name() == device.name()) {
                let name = device.name().to_owned();
                return Err(SelectionError::SameName { name }.into());
            }
            chosen.push(device);
        }
        Ok(chosen)
    }
}

impl FromStr for DeviceSelection {
    type Err = SelectionError;

    fn from_str(text: &str) -> Result<Self, SelectionError> {
        Ok(Self { wanted: text.split(',').map(parse_wanted).collect::<Result<_, _>>()? })
    }
}

/// The device meant, or those that are to be one.
fn find(of: &str, all: &[Device]) -> Result<Vec<Device>, DeviceError> {
    let one = |of: &str| {
        let is_meant = |device: &&Device| device.name() == of || device.interface().name == *of;
        all.iter().find(is_meant).cloned()
    };
    // An interface may have a `+` in its own name.
    if let Some(found) = one(of) {
        return Ok(vec![found]);
    }
    of.split('+').map(|part| one(part).ok_or_else(|| missing(part, all))).collect()
}

fn missing(name: &str, all: &[Device]) -> DeviceError {
    let known = all.iter().map(|device| device.name().to_owned()).collect();
    DeviceError::NoSuchDevice { name: name.to_owned(), known }
}

fn parse_wanted(part: &str) -> Result<Wanted, SelectionError> {
    let (name, of) = match part.split_once('=') {
        Some((name, of)) => (Some(name), of),
        None => (None, part),
    };
    if of.is_empty() {
        return Err(SelectionError::Form { part: part.to_owned() });
    }
    // The name becomes a folder of the generated sysfs tree: nothing in it may lead elsewhere.
    if let Some(name) = name.filter(|name| !is_name(name)) {
        return Err(SelectionError::Name { name: name.to_owned() });
    }
    Ok(Wanted { name: name.map(str::to_owned), of: of.to_owned() })
}

/// Whether a device can have this name.
pub(crate) fn is_name(name: &str) -> bool {
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=NAME_LEN_MAX).contains(&name.len()) && name.bytes().all(is_fine) && !name.starts_with('.')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::test_device;

    fn names(selection: &str) -> Result<Vec<(String, String)>, String> {
        let all = [test_device("lo", 1), test_device("eth0", 2), test_device("eth1", 3)];
        let selection: DeviceSelection = selection.parse().map_err(|error| format!("{error}"))?;
        let chosen = selection.select(&all).map_err(|error| error.to_string())?;
        let name = |device: Device| {
            let interfaces: Vec<_> = device.interfaces().map(|i| i.name.clone()).collect();
            (device.name().to_owned(), interfaces.join("+"))
        };
        Ok(chosen.into_iter().map(name).collect())
    }

    #[test]
    fn devices_come_in_the_order_given_under_the_names_given() {
        let pair = |name: &str, of: &str| (name.to_owned(), of.to_owned());
        assert_eq!(names("rxe_eth1,lo"), Ok(vec![pair("rxe_eth1", "eth1"), pair("rxe_lo", "lo")]));
        assert_eq!(names("mlx5_0=eth0"), Ok(vec![pair("mlx5_0", "eth0")]));
        assert_eq!(names("a=rxe_lo,eth0"), Ok(vec![pair("a", "lo"), pair("rxe_eth0", "eth0")]));
        let dual = pair("dual", "eth1+eth0");
        assert_eq!(names("dual=eth1+rxe_eth0,lo"), Ok(vec![dual, pair("rxe_lo", "lo")]));
    }

    #[test]
    fn what_makes_no_sense_is_told() {
        for (selection, said) in [
            ("", "names no device"),
            ("lo,", "names no device"),
            ("wlan0", "\"wlan0\"; there are rxe_lo, rxe_eth0, rxe_eth1"),
            ("a=", "names no device"),
            ("=lo", "can be no name"),
            ("../x=lo", "can be no name"),
            ("..=lo", "can be no name"),
            ("lo,rxe_lo", "named twice"),
            ("a=lo,a=eth0", "would be called \"a\""),
            ("a=lo+lo", "named twice"),
            ("a=lo+eth0,eth0", "named twice"),
            ("a=lo+", "\"\"; there are"),
            ("a=lo+wlan0", "\"wlan0\"; there are"),
            ("lo+eth0", "names no device"),
        ] {
            let error = names(selection).expect_err(selection);
            assert!(error.contains(said), "{selection}: {error}");
        }
    }
}
