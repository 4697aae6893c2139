//! What the two sides send each other: where to read from or write to.

/// Bytes of the message.
pub(super) const INFO_LEN: usize = 16;

/// An address in the sender's memory (`struct rping_rdma_info`; all in network byte order).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Info {
    pub(super) addr: u64,
    pub(super) rkey: u32,
    pub(super) size: u32,
}

impl Info {
    pub(super) fn read(bytes: &[u8; INFO_LEN]) -> Self {
        let [a0, a1, a2, a3, a4, a5, a6, a7, k0, k1, k2, k3, s0, s1, s2, s3] = *bytes;
        Self {
            addr: u64::from_be_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            rkey: u32::from_be_bytes([k0, k1, k2, k3]),
            size: u32::from_be_bytes([s0, s1, s2, s3]),
        }
    }

    pub(super) fn write(&self) -> [u8; INFO_LEN] {
        let mut bytes = [0; INFO_LEN];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        bytes[12..].copy_from_slice(&self.size.to_be_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_sixteen_bytes_in_network_order() {
        let info = Info { addr: 0x0102_0304_0506_0708, rkey: 0x090a_0b0c, size: 0x0d0e_0f10 };
        let bytes: Vec<u8> = (1..=16).collect();
        assert_eq!(info.write()[..], bytes[..]);
        assert_eq!(Info::read(&info.write()), info);
    }
}
