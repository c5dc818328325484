//! The operations of a random program, and how they are chosen and written down.

use super::hands::THREADS;
use proptest::prelude::*;
use std::fmt;

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;
/// The largest block of a small arena.
pub const SMALL_ARENA: u64 = 64 * KIB;
/// Places for handles of streams, and of events.
pub const SLOTS: usize = 6;
/// The most devices of a machine; a device is taken modulo those that there are.
pub const DEVICES: i32 = 3;

/// How one queue is made to come after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    WaitStream,
    Event,
    SyncStream,
    SyncDevice,
    /// For frees: tcuda_record_stream; elsewhere as `WaitStream`.
    RecordStream,
}

/// A stream that is not from the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Foreign {
    Blocking,
    NonBlocking,
    PerThread,
    Legacy,
}

/// A block, by its number modulo those that there are.
pub type Block = usize;
/// A place of a stream; `None`, and an empty place, are NULL.
pub type On = Option<usize>;

/// What is done; `caller`, the thread that does it, is beside it in [`Op`].
#[derive(Clone, Debug)]
pub enum Act {
    Malloc {
        device: i32,
        on: On,
        bytes: u64,
    },
    Free {
        block: Block,
        how: How,
    },
    FreeAgain {
        pick: usize,
    },
    FreeInside {
        block: Block,
        offset: u64,
    },
    FreeForeign {
        address: u64,
    },
    RecordStream {
        block: Block,
        on: On,
    },
    Fill {
        block: Block,
        on: On,
        byte: u8,
        how: How,
    },
    Copy {
        to: Block,
        from: Block,
        on: On,
        how: How,
    },
    Read {
        block: Block,
        on: On,
        how: How,
    },
    Write {
        block: Block,
        on: On,
        byte: u8,
        how: How,
    },
    CreateStream {
        slot: usize,
        device: i32,
        priority: i32,
    },
    WrapStream {
        slot: usize,
        device: i32,
        what: Foreign,
    },
    DestroyStream {
        slot: usize,
    },
    SetCurrent {
        on: On,
    },
    SetDevice {
        device: i32,
    },
    CreateEvent {
        slot: usize,
        timing: bool,
    },
    DestroyEvent {
        slot: usize,
    },
    Record {
        slot: usize,
        on: On,
    },
    Wait {
        slot: usize,
        on: On,
    },
    QueryEvent {
        slot: usize,
    },
    SyncEvent {
        slot: usize,
    },
    Elapsed {
        start: usize,
        end: usize,
    },
    WaitStream {
        on: On,
        other: On,
    },
    QueryStream {
        on: On,
    },
    SyncStream {
        on: On,
    },
    SyncDevice {
        device: i32,
    },
    EmptyCache,
    ResetPeak {
        device: i32,
    },
    ResetAccumulated {
        device: i32,
    },
    EnablePeer {
        device: i32,
        peer: i32,
    },
    /// The device is lost, and the library shut down.
    Lose {
        device: i32,
    },
    Restart,
}

/// What happens to the `nth` call of a driver function ("*": of any) meanwhile, and, if it is for
/// ever, to all later ones.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    pub call: &'static str,
    pub nth: u64,
    pub effect: &'static str,
    pub forever: bool,
}

/// The rules that are in force during an operation.
#[derive(Clone, Copy, Debug)]
pub struct Injected {
    pub first: Rule,
    pub second: Option<Rule>,
}

/// Rules as tcuda_backend_faults takes them.
pub fn text_of(rules: impl Iterator<Item = Rule>) -> String {
    let text = |Rule { call, nth, effect, forever }: Rule| {
        format!("{call}@{nth}={effect}{}", if forever { "!" } else { "" })
    };
    rules.map(text).collect::<Vec<_>>().join(",")
}

impl Injected {
    pub fn rules(&self) -> impl Iterator<Item = Rule> {
        std::iter::once(self.first).chain(self.second)
    }

    /// May both calls fail that bring the caller's context back: popping ours, and setting theirs?
    pub fn may_keep_context(&self) -> bool {
        let any = || self.rules().filter(|rule| rule.call == "*" || rule.call.starts_with("cuCtx"));
        any().count() > 1 || any().any(|rule| rule.forever)
    }

    pub fn text(&self) -> String {
        text_of(self.rules())
    }
}

#[derive(Clone, Debug)]
pub struct Op {
    pub caller: usize,
    pub act: Act,
    pub injected: Option<Injected>,
}

const CALLS: &[&str] = &[
    "*",
    "cuMemCreate",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuStreamWaitEvent",
    "cuStreamIsCapturing",
    "cuStreamSynchronize",
    "cuStreamQuery",
    "cuMemcpyAsync",
    "cuMemcpyPeerAsync",
    "cuMemsetD8Async",
    "cuCtxPushCurrent",
];

fn bytes() -> impl Strategy<Value = u64> {
    let around = |size: u64, by: u64| size - by..=size + by;
    prop_oneof![
        1 => Just(0),
        4 => 1..=2 * KIB,
        3 => around(512, 2),
        3 => 1..=MIB,
        3 => around(SMALL_ARENA, 520),
        3 => around(MIB, 520),
        2 => around(2 * MIB, 520),
        3 => MIB..=12 * MIB,
        2 => 12 * MIB..=80 * MIB,
        1 => Just(u64::MAX >> 1),
    ]
}

fn how() -> impl Strategy<Value = How> {
    prop_oneof![
        3 => Just(How::WaitStream),
        3 => Just(How::Event),
        1 => Just(How::SyncStream),
        1 => Just(How::SyncDevice),
        4 => Just(How::RecordStream),
    ]
}

fn on() -> impl Strategy<Value = On> {
    prop::option::weighted(0.8, 0..SLOTS)
}

fn foreign() -> impl Strategy<Value = Foreign> {
    prop::sample::select(vec![
        Foreign::Blocking,
        Foreign::NonBlocking,
        Foreign::PerThread,
        Foreign::PerThread,
        Foreign::Legacy,
    ])
}

fn memory() -> BoxedStrategy<Act> {
    let block = any::<usize>;
    prop_oneof![
        18 => (0..DEVICES, on(), bytes())
            .prop_map(|(device, on, bytes)| Act::Malloc { device, on, bytes }),
        14 => (block(), how()).prop_map(|(block, how)| Act::Free { block, how }),
        1 => block().prop_map(|pick| Act::FreeAgain { pick }),
        1 => (block(), 1u64..4096).prop_map(|(block, offset)| Act::FreeInside { block, offset }),
        1 => any::<u64>().prop_map(|address| Act::FreeForeign { address }),
        4 => (block(), on()).prop_map(|(block, on)| Act::RecordStream { block, on }),
        2 => Just(Act::EmptyCache),
        1 => (0..DEVICES).prop_map(|device| Act::ResetPeak { device }),
        1 => (0..DEVICES).prop_map(|device| Act::ResetAccumulated { device }),
    ]
    .boxed()
}

fn work() -> BoxedStrategy<Act> {
    let block = any::<usize>;
    prop_oneof![
        4 => (block(), on(), any::<u8>(), how())
            .prop_map(|(block, on, byte, how)| Act::Fill { block, on, byte, how }),
        8 => (block(), block(), on(), how())
            .prop_map(|(to, from, on, how)| Act::Copy { to, from, on, how }),
        3 => (block(), on(), how()).prop_map(|(block, on, how)| Act::Read { block, on, how }),
        2 => (block(), on(), any::<u8>(), how())
            .prop_map(|(block, on, byte, how)| Act::Write { block, on, byte, how }),
    ]
    .boxed()
}

fn streams() -> BoxedStrategy<Act> {
    let (slot, device) = (|| 0..SLOTS, || 0..DEVICES);
    prop_oneof![
        4 => (slot(), device(), -3..=0)
            .prop_map(|(slot, device, priority)| Act::CreateStream { slot, device, priority }),
        4 => (slot(), device(), foreign())
            .prop_map(|(slot, device, what)| Act::WrapStream { slot, device, what }),
        2 => slot().prop_map(|slot| Act::DestroyStream { slot }),
        3 => on().prop_map(|on| Act::SetCurrent { on }),
        1 => device().prop_map(|device| Act::SetDevice { device }),
        3 => (on(), on()).prop_map(|(on, other)| Act::WaitStream { on, other }),
        1 => on().prop_map(|on| Act::QueryStream { on }),
        1 => on().prop_map(|on| Act::SyncStream { on }),
        1 => device().prop_map(|device| Act::SyncDevice { device }),
        1 => (device(), device())
            .prop_map(|(device, peer)| Act::EnablePeer { device, peer }),
    ]
    .boxed()
}

fn events() -> BoxedStrategy<Act> {
    let slot = || 0..SLOTS;
    prop_oneof![
        3 => (slot(), any::<bool>()).prop_map(|(slot, timing)| Act::CreateEvent { slot, timing }),
        1 => slot().prop_map(|slot| Act::DestroyEvent { slot }),
        5 => (slot(), on()).prop_map(|(slot, on)| Act::Record { slot, on }),
        4 => (slot(), on()).prop_map(|(slot, on)| Act::Wait { slot, on }),
        2 => slot().prop_map(|slot| Act::QueryEvent { slot }),
        1 => slot().prop_map(|slot| Act::SyncEvent { slot }),
        2 => (slot(), slot()).prop_map(|(start, end)| Act::Elapsed { start, end }),
    ]
    .boxed()
}

pub fn op() -> impl Strategy<Value = Op> {
    let act = prop_oneof![
        45 => memory(),
        20 => work(),
        18 => streams(),
        14 => events(),
        1 => prop_oneof![
            Just(Act::Restart),
            (0..DEVICES).prop_map(|device| Act::Lose { device }),
        ],
    ];
    let effect = prop::sample::select(vec!["1", "2", "2", "999", "slow:20us"]);
    let rule = (prop::sample::select(CALLS), 1u64..6, effect, prop::bool::weighted(0.2))
        .prop_map(|(call, nth, effect, forever)| Rule { call, nth, effect, forever });
    let injected = (rule.clone(), prop::option::weighted(0.3, rule))
        .prop_map(|(first, second)| Injected { first, second });
    (0..THREADS, act, prop::option::weighted(0.12, injected))
        .prop_map(|(caller, act, injected)| Op { caller, act, injected })
}

/// A program. Some have blocks of a few sizes only, and allocate and free in waves, so that what is
/// freed fits again and all quantities come near their peaks together, on whichever stream.
pub fn program() -> impl Strategy<Value = Vec<Op>> {
    let sizes = prop_oneof![Just(Vec::new()), prop::collection::vec(1..=3 * MIB, 1..3)];
    (prop::collection::vec(op(), 1..160), sizes, 4usize..16).prop_map(|(mut ops, sizes, wave)| {
        if sizes.is_empty() {
            return ops;
        }
        for (number, op) in ops.iter_mut().enumerate() {
            let rises = number / wave % 2 == 0;
            match &mut op.act {
                Act::Malloc { bytes, .. } if rises && (1..=80 * MIB).contains(bytes) => {
                    *bytes = sizes[*bytes as usize % sizes.len()];
                }
                Act::Malloc { bytes, .. } if !rises => {
                    op.act = Act::Free { block: *bytes as usize, how: How::WaitStream };
                }
                Act::Free { block, .. } if rises => {
                    let (device, on) = (*block as i32 & 1, Some(*block / 2 % SLOTS));
                    let bytes = sizes[*block % sizes.len()];
                    op.act = Act::Malloc { device, on, bytes };
                }
                _ => (),
            }
        }
        ops
    })
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "thread {}: {:?}", self.caller, self.act)?;
        if let Some(injected) = self.injected {
            write!(f, ", with the faults {}", injected.text())?;
        }
        Ok(())
    }
}
