//! A device with memory in zones of different rights, and the check that nothing else was touched.

use std::ops::Range;
use std::sync::Arc;

use gid_table::{Gid, GidTable, GidType, WantedGid};
use rxe_core::mem::{AccessFlags, DmaBuf, MrKeys};
use rxe_core::pd::PdId;
use rxe_core::qp::Mtu;
use rxe_core::wq::{RemoteAddr, Sge};
use rxe_core::{CompletionQueue, Device, DeviceConfig, Port, Seed, Shard};
use rxe_wire::LKey;

/// Bytes of the whole memory.
const SIZE: usize = 0x1_0000;
/// What the memory holds where nothing was granted, and what no peer may see.
pub(super) const SECRET: u8 = 0x5e;

/// A part of the memory with rights of its own; between zones lies memory without any.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Zone {
    /// A peer may write and do atomics.
    Writable,
    /// A peer may read; it holds zeros.
    Readable,
    /// Our own receives and READs may write.
    Local,
    /// Our own requests may send from it; it holds the secret.
    Source,
    /// As `Writable`, until it is deregistered.
    Revocable,
}

impl Zone {
    pub(super) const ALL: [Self; 5] =
        [Self::Writable, Self::Readable, Self::Local, Self::Source, Self::Revocable];

    pub(super) fn of(number: u8) -> Self {
        Self::ALL[usize::from(number) % Self::ALL.len()]
    }

    const fn range(self) -> Range<usize> {
        match self {
            Self::Writable => 0x1000..0x3000,
            Self::Readable => 0x4000..0x6000,
            Self::Local => 0x7000..0xa000,
            Self::Source => 0xb000..0xd000,
            Self::Revocable => 0xe000..0xf000,
        }
    }

    const fn access(self) -> AccessFlags {
        match self {
            Self::Writable | Self::Revocable => AccessFlags::REMOTE_CHANGES
                .union(AccessFlags::LOCAL_WRITE)
                .union(AccessFlags::FLUSH_GLOBAL),
            Self::Readable => AccessFlags::REMOTE_READ,
            Self::Local => AccessFlags::LOCAL_WRITE,
            Self::Source => AccessFlags::empty(),
        }
    }

    const fn may_change(self) -> bool {
        self.access().contains(AccessFlags::LOCAL_WRITE)
    }
}

/// A device with one shard, one completion queue, and the memory.
pub(super) struct Arena {
    pub(super) device: Arc<Device>,
    pub(super) shard: Shard,
    pub(super) cq: Arc<CompletionQueue>,
    pub(super) gid: Gid,
    pub(super) pd: PdId,
    buf: Arc<DmaBuf>,
    keys: [MrKeys; Zone::ALL.len()],
    /// What the revocable zone held when it was revoked.
    revoked: Option<Vec<u8>>,
}

impl Arena {
    /// Host number 1 or 2.
    pub(super) fn new(number: u8) -> Self {
        let gid = gid_of(number);
        let mut gids = GidTable::new(1, 4);
        let wanted = WantedGid { gid, gid_type: GidType::RoceV2, ifindex: 1, owned: true };
        gids.add(wanted).expect("there is room");
        let mut config = DeviceConfig::new(Seed::for_test(u64::from(number)));
        (config.limits.max_mr, config.limits.max_async_events) = (64, 64);
        let device = Device::new(config, vec![Port::new(gids, Mtu::M4096)]);
        let pd = device.alloc_pd().expect("the first one");
        let cq = device.create_cq(4096, None).expect("the first one");
        let shard = Shard::new(device.clone(), number);
        let buf = Arc::new(DmaBuf::zeroed(SIZE));
        buf.write_at(0, &[SECRET; SIZE]).expect("inside");
        let keys = Zone::ALL.map(|zone| {
            let range = zone.range();
            if zone != Zone::Source {
                buf.write_at(range.start, &vec![0; range.len()]).expect("inside");
            }
            let (len, iova) = (range.len() as u64, buf.addr() + range.start as u64);
            let memory = device.memory();
            let keys = memory.register(pd, buf.clone(), range.start, len, iova, zone.access());
            keys.expect("the zones are inside")
        });
        Self { device, shard, cq, gid, pd, buf, keys, revoked: None }
    }

    /// A piece of a zone as a local buffer; it may reach beyond its end.
    pub(super) fn sge(&self, zone: Zone, offset: u16, length: u32) -> Sge {
        let RemoteAddr { addr, rkey } = self.remote(zone, offset);
        Sge { addr, length, lkey: LKey::new(rkey.get()) }
    }

    /// A place in a zone, as a peer names it: one near its end, if the offset's first bit is set.
    pub(super) fn remote(&self, zone: Zone, offset: u16) -> RemoteAddr {
        let range = zone.range();
        let offset = usize::from(offset);
        let place = match offset & 0x8000 {
            0 => range.start + offset % range.len(),
            _ => range.end - offset % 512,
        };
        let addr = self.buf.addr() + place as u64;
        RemoteAddr { addr, rkey: self.keys[zone as usize].rkey }
    }

    /// Deregisters the revocable zone: from now on it must not change.
    pub(super) fn revoke(&mut self) {
        if self.device.memory().deregister(self.keys[Zone::Revocable as usize]).is_ok() {
            self.revoked = Some(self.bytes(Zone::Revocable.range()));
        }
    }

    /// Checks that nothing has changed but where that was granted.
    pub(super) fn check(&self) {
        let all = self.bytes(0..SIZE);
        let mut start = 0;
        for zone in Zone::ALL {
            let range = zone.range();
            let gap = &all[start..range.start];
            assert!(gap.iter().all(|&byte| byte == SECRET), "the memory before {zone:?} changed");
            let here = &all[range.clone()];
            let fill = if zone == Zone::Source { SECRET } else { 0 };
            let same = zone.may_change() || here.iter().all(|&byte| byte == fill);
            assert!(same, "{zone:?} changed");
            start = range.end;
        }
        assert!(all[start..].iter().all(|&byte| byte == SECRET), "the last of the memory changed");
        if let Some(revoked) = &self.revoked {
            let now = &all[Zone::Revocable.range()];
            assert!(now == revoked, "memory changed after it was deregistered");
        }
    }

    fn bytes(&self, range: Range<usize>) -> Vec<u8> {
        let mut bytes = vec![0; range.len()];
        self.buf.read_at(range.start, &mut bytes).expect("inside");
        bytes
    }
}

/// The address of host number 1 or 2.
pub(super) fn gid_of(number: u8) -> Gid {
    Gid::from_ip([10, 0, 0, number].into())
}
