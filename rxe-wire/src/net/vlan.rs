//! A VLAN tag, 802.1Q or 802.1ad.

use etherparse::{EtherType, SingleVlanHeader, SingleVlanHeaderSlice, VlanId, VlanPcp};

use super::{head, put};
use crate::error::{EmitError, Layer, ParseError};

/// A VLAN tag, 4 bytes: what follows the EtherType that announces it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Vlan {
    /// Priority code point, 3 bits.
    pub priority: u8,
    /// Drop eligible indicator.
    pub drop_eligible: bool,
    /// VLAN identifier, 12 bits.
    pub id: u16,
    /// What follows: another tag, or the network layer.
    pub ether_type: u16,
}

impl Vlan {
    /// Length in bytes.
    pub const LEN: usize = SingleVlanHeader::LEN;

    /// Reads it from the start of `bytes`.
    ///
    /// # Errors
    /// [`ParseError::Truncated`].
    pub fn read(bytes: &[u8]) -> Result<Self, ParseError> {
        let slice = SingleVlanHeaderSlice::from_slice(head(bytes, Layer::Vlan, Self::LEN)?)
            .map_err(|error| ParseError::Truncated {
                layer: Layer::Vlan,
                needed: error.required_len,
                have: error.len,
            })?;
        Ok(Self {
            priority: slice.priority_code_point().value(),
            drop_eligible: slice.drop_eligible_indicator(),
            id: slice.vlan_identifier().value(),
            ether_type: slice.ether_type().0,
        })
    }

    /// Writes it to the start of `buf`.
    ///
    /// # Errors
    /// [`EmitError::BufferTooShort`]; [`EmitError::FieldTooLarge`] when the priority or the
    /// identifier has more bits than its field.
    pub fn write(&self, buf: &mut [u8]) -> Result<(), EmitError> {
        let too_large = |field, value: u16| EmitError::FieldTooLarge {
            layer: Layer::Vlan,
            field,
            value: u32::from(value),
        };
        let header = SingleVlanHeader {
            pcp: VlanPcp::try_new(self.priority)
                .map_err(|_| too_large("priority", u16::from(self.priority)))?,
            drop_eligible_indicator: self.drop_eligible,
            vlan_id: VlanId::try_new(self.id).map_err(|_| too_large("identifier", self.id))?,
            ether_type: EtherType(self.ether_type),
        };
        put(&header.to_bytes(), buf)
    }
}
