//! Random cases: a machine, an operation and its tensors. The seed of a case determines all the
//! rest.

use super::buffer::Place;
use super::number;
use super::reference::Kind;
use proptest::prelude::*;
use proptest::sample::select;

/// An operation of the C interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Broadcast,
    BroadcastInto,
    BroadcastCoalesced,
    ReduceAdd,
    ReduceAddInto,
    ReduceAddCoalesced,
    Scatter,
    ScatterInto,
    Gather,
    GatherInto,
}

pub const VERBS: [Verb; 10] = [
    Verb::Broadcast,
    Verb::BroadcastInto,
    Verb::BroadcastCoalesced,
    Verb::ReduceAdd,
    Verb::ReduceAddInto,
    Verb::ReduceAddCoalesced,
    Verb::Scatter,
    Verb::ScatterInto,
    Verb::Gather,
    Verb::GatherInto,
];

impl Verb {
    pub fn adds(self) -> bool {
        matches!(self, Verb::ReduceAdd | Verb::ReduceAddInto | Verb::ReduceAddCoalesced)
    }

    pub fn is_coalesced(self) -> bool {
        matches!(self, Verb::BroadcastCoalesced | Verb::ReduceAddCoalesced)
    }

    pub fn writes_into(self) -> bool {
        use Verb::*;
        matches!(self, BroadcastInto | ReduceAddInto | ScatterInto | GatherInto)
    }

    pub fn has_dim(self) -> bool {
        matches!(self, Verb::Scatter | Verb::ScatterInto | Verb::Gather | Verb::GatherInto)
    }
}

/// A call and its environment.
#[derive(Clone, Debug)]
pub struct Case {
    pub verb: Verb,
    pub devices: i32,
    pub peers: &'static str,
    pub schedule: String,
    /// Use the fallback only.
    pub fallback_only: bool,
    /// Index of the set of limits.
    pub limits: usize,
    pub kind: Kind,
    pub shape: Vec<i64>,
    pub dim: usize,
    /// Place of the source, or destination of the inputs.
    pub root: Place,
    /// Places of the outputs, or of the inputs.
    pub list: Vec<Place>,
    /// Number of tensors, for coalesced operations.
    pub tensors: usize,
    pub buffer_bytes: usize,
    /// Are the current streams of the devices not the default ones?
    pub own_streams: bool,
    /// Does memory belong to streams other than the current ones?
    pub foreign: bool,
    /// May tensors have irregular strides?
    pub irregular: bool,
    /// Pieces of arbitrary sizes, and with streams.
    pub any_sizes: bool,
    pub with_streams: bool,
    /// Writes outputs of the caller in a capture; the replays are checked.
    pub captured: bool,
    pub seed: u64,
}

pub const KINDS: [Kind; 22] = [
    (2, 32, 1),
    (2, 16, 1),
    (4, 16, 1),
    (2, 64, 1),
    (5, 64, 1),
    (5, 32, 1),
    (5, 128, 1),
    (0, 8, 1),
    (0, 16, 1),
    (0, 32, 1),
    (0, 64, 1),
    (1, 8, 1),
    (1, 16, 1),
    (1, 32, 1),
    (1, 64, 1),
    (6, 8, 1),
    (10, 8, 1),
    (2, 32, 4),
    (0, 8, 3),
    (17, 4, 2),
    (3, 64, 3),
    (0, 16, 5),
];

fn shape() -> impl Strategy<Value = Vec<i64>> {
    let size = prop_oneof![
        1 => Just(0i64),
        8 => 1..6i64,
        2 => select(vec![8i64, 16, 17, 33]),
    ];
    prop_oneof![
        10 => prop::collection::vec(size, 0..5),
        3 => (1..4000i64).prop_map(|size| vec![size]),
        2 => (1..40i64, 1..120i64).prop_map(|(rows, width)| vec![rows, width]),
    ]
    .prop_filter("few elements", |shape| shape.iter().product::<i64>() <= 6000)
}

fn schedule() -> impl Strategy<Value = String> {
    prop_oneof![
        1 => Just("immediate".to_owned()),
        1 => Just("threads".to_owned()),
        6 => any::<u32>().prop_map(|seed| format!("adversarial:{seed}")),
    ]
}

/// Maps a number to a place, mostly to a device.
fn place(number: u32, devices: i32, hosts: bool) -> Place {
    match number % 16 {
        0 if hosts => Place::Pinned,
        1 if hosts => Place::Pageable,
        _ => Place::Device((number / 16) as i32 % devices),
    }
}

prop_compose! {
    fn machine()(
        devices in prop_oneof![2 => Just(1), 14 => 2..=4i32, 3 => 5..=8i32, 1 => 9..=16i32],
        peers in select(vec!["full", "full", "none", "pairs"]),
        schedule in schedule(),
        fallback_only in prop::bool::weighted(0.3),
        limits in 0..3usize,
    ) -> (i32, &'static str, String, bool, usize) {
        (devices, peers, schedule, fallback_only, limits)
    }
}

/// A call of one of these operations.
pub fn case(verbs: &'static [Verb]) -> impl Strategy<Value = Case> {
    let tensors =
        (select(KINDS.to_vec()), shape(), any::<u8>(), 1..20usize, select(vec![0, 1, 600, 2500]));
    let places =
        (any::<u32>(), prop::collection::vec(any::<u32>(), 1..9), any::<bool>(), any::<bool>());
    let rest = (any::<[bool; 6]>(), any::<u64>());
    (select(verbs), machine(), tensors, places, rest).prop_map(
        |(verb, machine, tensors, places, rest)| {
            let (devices, peers, schedule, fallback_only, limits) = machine;
            let (mut kind, mut shape, dim, mut count, buffer_bytes) = tensors;
            let (root, list, each, hosts) = places;
            let ([own_streams, foreign, irregular, any_sizes, with_streams, captured], seed) = rest;
            if verb.adds() && !number::has_sum(kind) {
                kind = KINDS[seed as usize % 16];
            }
            if verb.has_dim() && shape.is_empty() {
                shape.push(1);
            }
            if !verb.is_coalesced() {
                count = 1;
            }
            let mut root = place(root, devices, hosts);
            let mut list: Vec<Place> = match each {
                // Each device once, or arbitrary devices.
                true => (0..devices).map(Place::Device).collect(),
                false => list.into_iter().map(|number| place(number, devices, hosts)).collect(),
            };
            if verb.is_coalesced() {
                // On devices; those of a broadcast are all on the first.
                list.retain(|place| matches!(place, Place::Device(_)));
                if list.is_empty() {
                    list.push(Place::Device(0));
                }
                root = list[0];
            }
            let is_there = list.iter().any(|place| place.number() == root.number());
            if verb.adds() && !is_there {
                let index = seed as usize % list.len();
                list[index] = root;
            }
            let dim = usize::from(dim) % shape.len().max(1);
            // Excludes streams that cannot be captured, host memory, and copies that need contexts.
            let is_device = |place: &Place| matches!(place, Place::Device(_));
            let captured = captured
                && verb.writes_into()
                && own_streams
                && peers == "full"
                && list.iter().chain([&root]).all(is_device);
            let (foreign, with_streams) = (foreign && !captured, with_streams && !captured);
            Case {
                verb,
                devices,
                peers,
                schedule,
                fallback_only,
                limits,
                kind,
                shape,
                dim,
                root,
                list,
                tensors: count,
                buffer_bytes,
                own_streams,
                foreign,
                irregular,
                any_sizes,
                with_streams,
                captured,
                seed,
            }
        },
    )
}
