//! Random sequences of everything that makes, changes and ends keys, against a model that is too
//! simple to be wrong.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use rxe_wire::{LKey, Qpn, RKey};

use super::{AccessFlags, DmaBuf, Holder, MemoryTable, MrKeys, MwBind, MwType};
use crate::config::Seed;
use crate::pd::PdId;
use crate::rng::SecretRng;

const LEN: u64 = 64;
const READ: AccessFlags = AccessFlags::REMOTE_READ;

/// Two queue pairs of one domain, and one of another.
const HOLDERS: [Holder; 3] = [
    Holder { pd: PdId(1), qpn: Qpn::new(0x01_0001) },
    Holder { pd: PdId(1), qpn: Qpn::new(0x01_0002) },
    Holder { pd: PdId(2), qpn: Qpn::new(0x01_0003) },
];

#[derive(Clone, Debug)]
enum Step {
    Register { holder: usize, windows: bool },
    AllocFast { holder: usize },
    AllocWindow { holder: usize, is_type_2: bool },
    Map { object: usize },
    MakeValid { object: usize, holder: usize, byte: u8 },
    Invalidate { object: usize, holder: usize, flip: u8 },
    Bind { window: usize, region: usize, holder: usize, byte: u8, length: u64 },
    Deregister { object: usize },
    Revoke { object: usize },
    Dealloc { object: usize },
    ForgetQp { holder: usize },
}

fn step() -> impl Strategy<Value = Step> {
    // Most that is tried should be right, or little would ever be bound.
    let object = || 0..16_usize;
    let holder = || prop_oneof![8 => Just(0_usize), 3 => Just(1), 1 => Just(2)];
    let flip = prop_oneof![4 => Just(0), 1 => any::<u8>()];
    // Empty, within, all, and one too many.
    let length = prop_oneof![1 => Just(0), 4 => Just(1), 4 => Just(LEN), 1 => Just(LEN + 1)];
    let (byte, flag) = (any::<u8>, any::<bool>);
    prop_oneof![
        1 => (holder(), flag()).prop_map(|(holder, windows)| Step::Register { holder, windows }),
        1 => holder().prop_map(|holder| Step::AllocFast { holder }),
        1 => (holder(), flag())
            .prop_map(|(holder, is_type_2)| Step::AllocWindow { holder, is_type_2 }),
        2 => object().prop_map(|object| Step::Map { object }),
        2 => (object(), holder(), byte())
            .prop_map(|(object, holder, byte)| Step::MakeValid { object, holder, byte }),
        3 => (object(), holder(), flip)
            .prop_map(|(object, holder, flip)| Step::Invalidate { object, holder, flip }),
        6 => (object(), object(), holder(), byte(), length).prop_map(
            |(window, region, holder, byte, length)| {
                Step::Bind { window, region, holder, byte, length }
            }
        ),
        2 => object().prop_map(|object| Step::Deregister { object }),
        1 => object().prop_map(|object| Step::Revoke { object }),
        1 => object().prop_map(|object| Step::Dealloc { object }),
        1 => holder().prop_map(|holder| Step::ForgetQp { holder }),
    ]
}

/// What there is at the beginning, so that steps find something to work on.
const PRELUDE: [Step; 6] = [
    Step::Register { holder: 0, windows: true },
    Step::AllocFast { holder: 0 },
    Step::AllocWindow { holder: 0, is_type_2: false },
    Step::AllocWindow { holder: 0, is_type_2: true },
    Step::Map { object: 1 },
    Step::MakeValid { object: 1, holder: 0, byte: 7 },
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Plain { windows: bool },
    Fast { is_mapped: bool, is_valid: bool },
    Window { is_type_2: bool, bound: Option<Bound> },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Bound {
    region: usize,
    holder: usize,
    length: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Object {
    kind: Kind,
    pd: PdId,
    key: u32,
    is_alive: bool,
}

struct Model {
    table: MemoryTable,
    buf: Arc<DmaBuf>,
    objects: Vec<Object>,
    keys: BTreeSet<u32>,
}

impl Model {
    fn new() -> Self {
        let table = MemoryTable::new(1000, SecretRng::new(Seed::for_test(3)));
        let buf = Arc::new(DmaBuf::zeroed(LEN as usize));
        Self { table, buf, objects: Vec::new(), keys: BTreeSet::new() }
    }

    /// Every region has addresses of its own.
    fn addr(object: usize) -> u64 {
        0x1000 * (object as u64 + 1)
    }

    fn add(&mut self, kind: Kind, holder: usize, key: u32) {
        let pd = HOLDERS[holder].pd;
        self.objects.push(Object { kind, pd, key, is_alive: true });
    }

    fn live(&self, object: usize) -> Option<Object> {
        self.objects.get(object).copied().filter(|object| object.is_alive)
    }

    /// Finds an object for a step: mostly one of the right kind, sometimes any at all.
    fn pick(&self, number: usize, is_right: impl Fn(Kind) -> bool) -> usize {
        if number.is_multiple_of(8) {
            return number / 8;
        }
        let all = self.objects.iter().enumerate();
        let right: Vec<usize> = all
            .filter(|(_, object)| object.is_alive && is_right(object.kind))
            .map(|(index, _)| index)
            .collect();
        if right.is_empty() { number } else { right[number % right.len()] }
    }

    fn windows_of(&self, region: usize) -> Vec<usize> {
        let is_bound = |object: &Object| matches!(object.kind, Kind::Window { bound: Some(bound), .. } if bound.region == region);
        let all = self.objects.iter().enumerate();
        all.filter(|(_, object)| object.is_alive && is_bound(object)).map(|(i, _)| i).collect()
    }

    fn unbind(&mut self, window: usize) {
        if let Kind::Window { bound, .. } = &mut self.objects[window].kind {
            *bound = None;
        }
    }

    fn run(&mut self, step: Step) {
        let is_window = |kind| matches!(kind, Kind::Window { .. });
        let is_fast = |kind| matches!(kind, Kind::Fast { .. });
        match step {
            Step::Register { holder, windows } => self.register(holder, windows),
            Step::AllocFast { holder } => {
                let keys = self.table.alloc_mr(HOLDERS[holder].pd, 1).unwrap();
                let kind = Kind::Fast { is_mapped: false, is_valid: false };
                self.add(kind, holder, keys.rkey.get());
            }
            Step::AllocWindow { holder, is_type_2 } => {
                let mw_type = if is_type_2 { MwType::Type2 } else { MwType::Type1 };
                let rkey = self.table.alloc_mw(HOLDERS[holder].pd, mw_type).unwrap();
                self.add(Kind::Window { is_type_2, bound: None }, holder, rkey.get());
            }
            Step::Map { object } => self.map(self.pick(object, is_fast)),
            Step::MakeValid { object, holder, byte } => {
                self.make_valid(self.pick(object, is_fast), holder, byte);
            }
            Step::Invalidate { object, holder, flip } => {
                let object = self.pick(object, |kind| is_window(kind) || is_fast(kind));
                self.invalidate(object, holder, flip);
            }
            Step::Bind { window, region, holder, byte, length } => {
                let window = self.pick(window, is_window);
                let region = self.pick(region, |kind| !is_window(kind));
                self.bind(window, region, holder, byte, length);
            }
            Step::Deregister { object } => {
                self.deregister(self.pick(object, |kind| !is_window(kind)), false);
            }
            Step::Revoke { object } => {
                self.deregister(self.pick(object, |kind| !is_window(kind)), true);
            }
            Step::Dealloc { object } => self.dealloc(self.pick(object, is_window)),
            Step::ForgetQp { holder } => {
                self.table.forget_qp(HOLDERS[holder].qpn);
                for window in 0..self.objects.len() {
                    if let Kind::Window { is_type_2: true, bound: Some(bound) } =
                        self.objects[window].kind
                        && bound.holder == holder
                    {
                        self.unbind(window);
                    }
                }
            }
        }
    }

    fn register(&mut self, holder: usize, windows: bool) {
        let access = if windows { READ | AccessFlags::MW_BIND } else { READ };
        let (pd, iova) = (HOLDERS[holder].pd, Self::addr(self.objects.len()));
        let keys = self.table.register(pd, self.buf.clone(), 0, LEN, iova, access).unwrap();
        self.add(Kind::Plain { windows }, holder, keys.rkey.get());
    }

    fn map(&mut self, object: usize) {
        let Some(Object { kind, key, .. }) = self.live(object) else { return };
        let done = self.table.map_mr(keys(key), self.buf.clone(), 0, LEN, Self::addr(object));
        let may = matches!(kind, Kind::Fast { is_valid: false, .. });
        assert_eq!(done.is_ok(), may, "{done:?}");
        if may {
            self.objects[object].kind = Kind::Fast { is_mapped: true, is_valid: false };
        }
    }

    fn make_valid(&mut self, object: usize, holder: usize, byte: u8) {
        let Some(Object { kind, key, pd, .. }) = self.live(object) else { return };
        let (holder, key) = (HOLDERS[holder], key & !0xff | u32::from(byte));
        let done = self.table.register_fast(holder, key, READ | AccessFlags::MW_BIND);
        let is_ready = kind == Kind::Fast { is_mapped: true, is_valid: false };
        assert_eq!(done.is_ok(), is_ready && pd == holder.pd, "{done:?}");
        if done.is_ok() {
            let kind = Kind::Fast { is_mapped: true, is_valid: true };
            self.objects[object] = Object { kind, key, ..self.objects[object] };
        }
    }

    fn invalidate(&mut self, object: usize, holder: usize, flip: u8) {
        let Some(Object { kind, key, pd, .. }) = self.live(object) else { return };
        let done = self.table.invalidate(HOLDERS[holder], key ^ u32::from(flip));
        let may = flip == 0
            && pd == HOLDERS[holder].pd
            && match kind {
                Kind::Plain { .. } => false,
                Kind::Fast { .. } => self.windows_of(object).is_empty(),
                Kind::Window { is_type_2, bound } => {
                    is_type_2 && bound.is_none_or(|bound| bound.holder == holder)
                }
            };
        assert_eq!(done.is_ok(), may, "{done:?}");
        match (&mut self.objects[object].kind, may) {
            (Kind::Fast { is_valid, .. }, true) => *is_valid = false,
            (Kind::Window { .. }, true) => self.unbind(object),
            _ => {}
        }
    }

    fn bind(&mut self, window: usize, region: usize, holder: usize, byte: u8, length: u64) {
        let (Some(w), Some(r)) = (self.live(window), self.live(region)) else { return };
        let rkey = w.key & !0xff | u32::from(byte);
        let (lkey, addr, access) = (LKey::new(r.key), Self::addr(region), READ);
        let bind = MwBind { lkey, addr, length, access };
        let pd = HOLDERS[holder].pd;
        let done = self.table.bind(HOLDERS[holder], RKey::new(w.key), RKey::new(rkey), &bind);
        let Kind::Window { is_type_2, bound } = w.kind else {
            assert!(done.is_err());
            return;
        };
        let is_bindable = r.pd == pd
            && length <= LEN
            && match r.kind {
                Kind::Plain { windows } => windows,
                Kind::Fast { is_valid, .. } => is_valid,
                Kind::Window { .. } => false,
            };
        let may = w.pd == pd
            && if is_type_2 {
                bound.is_none() && length > 0 && is_bindable
            } else {
                length == 0 || is_bindable
            };
        assert_eq!(done.is_ok(), may, "{done:?}");
        if may {
            let bound = (length > 0).then_some(Bound { region, holder, length });
            let kind = Kind::Window { is_type_2, bound };
            self.objects[window] = Object { kind, key: rkey, ..w };
        }
    }

    fn deregister(&mut self, object: usize, with_windows: bool) {
        let Some(Object { kind, key, .. }) = self.live(object) else { return };
        let windows = self.windows_of(object);
        let done = if with_windows {
            self.table.revoke(keys(key))
        } else {
            self.table.deregister(keys(key))
        };
        let is_region = !matches!(kind, Kind::Window { .. });
        assert_eq!(done.is_ok(), is_region && (with_windows || windows.is_empty()), "{done:?}");
        if done.is_ok() {
            self.objects[object].is_alive = false;
            windows.into_iter().for_each(|window| self.unbind(window));
        }
    }

    fn dealloc(&mut self, object: usize) {
        let Some(Object { kind, key, .. }) = self.live(object) else { return };
        let done = self.table.dealloc_mw(RKey::new(key));
        assert_eq!(done.is_ok(), matches!(kind, Kind::Window { .. }), "{done:?}");
        if done.is_ok() {
            self.objects[object].is_alive = false;
        }
    }

    /// Where a key gives access to whom: the first address and the length.
    fn granted(&self, key: u32, holder: usize) -> Option<(u64, u64)> {
        let object = self.objects.iter().position(|object| object.is_alive && object.key == key)?;
        let Object { kind, pd, .. } = self.objects[object];
        if pd != HOLDERS[holder].pd {
            return None;
        }
        match kind {
            Kind::Plain { .. } | Kind::Fast { is_valid: true, .. } => {
                Some((Self::addr(object), LEN))
            }
            Kind::Window { is_type_2, bound: Some(bound) }
                if !is_type_2 || bound.holder == holder =>
            {
                Some((Self::addr(bound.region), bound.length))
            }
            Kind::Fast { is_valid: false, .. } | Kind::Window { .. } => None,
        }
    }

    /// Tries every key that there ever was, for everybody, at the edges of every region.
    fn check(&mut self) {
        self.keys.extend(self.objects.iter().map(|object| object.key));
        for &key in &self.keys {
            for (index, &holder) in HOLDERS.iter().enumerate() {
                let granted = self.granted(key, index);
                for region in 0..self.objects.len() {
                    let first = Self::addr(region);
                    for addr in [first - 1, first, first + LEN - 1, first + LEN] {
                        let expected =
                            granted.is_some_and(|(start, len)| addr >= start && addr < start + len);
                        let access = self.table.access_for(holder, key, addr, 1, READ);
                        assert_eq!(access.is_ok(), expected, "{key:x} at {addr:x}: {access:?}");
                    }
                }
            }
        }
    }
}

fn keys(key: u32) -> MrKeys {
    MrKeys { lkey: LKey::new(key), rkey: RKey::new(key) }
}

proptest! {
    #[test]
    fn keys_give_exactly_what_they_should(steps in vec(step(), 1..100)) {
        let mut model = Model::new();
        for step in PRELUDE.into_iter().chain(steps) {
            model.run(step);
            model.check();
        }
    }
}
