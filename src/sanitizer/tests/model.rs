//! What is ordered, by a graph of all actions, and which bytes each operation touches, one by one. A
//! race is two operations between which there is no path.

use super::super::world::{Kind, Who};
use std::collections::{BTreeMap, BTreeSet};

/// Nodes that come before a node.
type Before = BTreeSet<usize>;

/// An operation with its bytes.
pub(super) struct Operation {
    pub(super) node: usize,
    pub(super) sequence: u64,
    pub(super) world: u64,
    /// true: written.
    pub(super) bytes: BTreeMap<u64, bool>,
    /// For each byte, where it was given out after this: who comes after that comes after this.
    given: BTreeMap<u64, Vec<usize>>,
    /// Bytes where this was covered when they were freed last; false: it was not.
    freed: BTreeMap<u64, bool>,
    /// Bytes that nobody compares any more.
    forgotten: BTreeSet<u64>,
}

/// A block that is given out.
struct Block {
    bytes: Vec<u64>,
    owner: Option<Who>,
    users: Vec<Who>,
    world: u64,
}

/// Two operations, by their numbers.
pub(super) type Pair = (u64, u64);

#[derive(Default)]
pub(super) struct Model {
    before: Vec<Before>,
    /// The last node of each stream in each world.
    tails: BTreeMap<(u64, u64), usize>,
    streams: BTreeMap<u64, Who>,
    /// The last thing that the host knows.
    host: Option<usize>,
    events: BTreeMap<(u64, u64), usize>,
    pub(super) operations: Vec<Operation>,
    blocks: BTreeMap<u64, Block>,
    launches: BTreeMap<u64, usize>,
    sequence: u64,
}

impl Model {
    fn node(&mut self, after: impl IntoIterator<Item = usize>) -> usize {
        let mut before = Before::new();
        for node in after {
            before.extend(&self.before[node]);
            before.insert(node);
        }
        self.before.push(before);
        self.before.len() - 1
    }

    fn reaches(&self, first: usize, then: usize) -> bool {
        first == then || self.before[then].contains(&first)
    }

    fn tail(&self, world: u64, who: Who) -> Option<usize> {
        self.tails.get(&(world, who.key)).copied()
    }

    fn others(&self, who: Who, kind: Kind) -> Vec<usize> {
        let others = self.streams.values().filter(|other| other.kind == kind);
        others
            .filter(|other| other.device == who.device)
            .filter_map(|other| self.tail(0, *other))
            .collect()
    }

    /// What the driver orders before the stream's next action.
    fn implied(&self, world: u64, who: Who) -> Vec<usize> {
        match who.kind {
            _ if world != 0 => Vec::new(),
            Kind::Free => Vec::new(),
            Kind::Legacy => self.others(who, Kind::Blocking),
            Kind::Blocking => self.others(who, Kind::Legacy),
        }
    }

    /// An action on a stream, after some nodes besides.
    fn act(&mut self, world: u64, who: Who, after: Vec<usize>) -> usize {
        self.streams.insert(who.key, who);
        let mut all = after;
        all.extend(self.tail(world, who));
        all.extend(self.implied(world, who));
        if world == 0 {
            all.extend(self.host);
        }
        let node = self.node(all);
        self.tails.insert((world, who.key), node);
        node
    }

    /// An operation; gives the earlier ones with which it races.
    pub(super) fn operation(
        &mut self,
        world: u64,
        who: Who,
        bytes: BTreeMap<u64, bool>,
    ) -> BTreeSet<Pair> {
        self.sequence += 1;
        let node = self.act(world, who, Vec::new());
        self.add(world, node, bytes)
    }

    fn add(&mut self, world: u64, node: usize, bytes: BTreeMap<u64, bool>) -> BTreeSet<Pair> {
        let sequence = self.sequence;
        let mut races = BTreeSet::new();
        for earlier in self.operations.iter().filter(|earlier| earlier.world == world) {
            let meets = bytes.iter().any(|(byte, is_write)| {
                let theirs = earlier.bytes.get(byte);
                theirs.is_some_and(|writes| *writes || *is_write)
                    && !earlier.forgotten.contains(byte)
                    && !self.is_before(earlier, *byte, node)
            });
            if meets {
                races.insert((sequence, earlier.sequence));
            }
        }
        let (given, freed, forgotten) = Default::default();
        self.operations.push(Operation { node, sequence, world, bytes, given, freed, forgotten });
        races
    }

    fn is_before(&self, earlier: &Operation, byte: u64, node: usize) -> bool {
        let given = earlier.given.get(&byte).into_iter().flatten();
        self.reaches(earlier.node, node) || given.copied().any(|given| self.reaches(given, node))
    }

    pub(super) fn collective(
        &mut self,
        members: Vec<(Who, BTreeMap<u64, bool>)>,
    ) -> BTreeSet<Pair> {
        self.sequence += 1;
        let starts: Vec<usize> =
            members.iter().map(|(who, _)| self.act(0, *who, Vec::new())).collect();
        let all = self.node(starts);
        let mut races = BTreeSet::new();
        for (who, bytes) in members {
            self.tails.insert((0, who.key), all);
            races.extend(self.add(0, all, bytes));
        }
        races
    }

    pub(super) fn record(&mut self, world: u64, event: u64, who: Who) {
        let node = self.act(world, who, Vec::new());
        self.events.insert((world, event), node);
        if world != 0 {
            self.events.remove(&(0, event));
        }
    }

    pub(super) fn wait(&mut self, world: u64, event: u64, who: Who) {
        let after = self.events.get(&(world, event)).copied();
        self.act(world, who, after.into_iter().collect());
    }

    pub(super) fn stream_waits(&mut self, world: u64, who: Who, other: Who) {
        let node = self.act(world, other, Vec::new());
        self.act(world, who, vec![node]);
    }

    pub(super) fn waits_for_everything(&mut self, who: Who) {
        let all = self.point_of_all(None);
        self.act(0, who, vec![all]);
    }

    pub(super) fn point_of_stream(&mut self, who: Who) -> usize {
        let mut all: Vec<usize> = self.tail(0, who).into_iter().collect();
        if who.kind == Kind::Legacy {
            all.extend(self.implied(0, who));
        }
        self.node(all)
    }

    pub(super) fn point_of_event(&mut self, event: u64) -> Option<usize> {
        self.events.get(&(0, event)).copied()
    }

    pub(super) fn point_of_all(&mut self, device: Option<i32>) -> usize {
        let streams: Vec<Who> = self.streams.values().copied().collect();
        let streams =
            streams.into_iter().filter(|who| device.is_none_or(|device| device == who.device));
        let all: Vec<usize> = streams.filter_map(|who| self.tail(0, who)).collect();
        self.node(all)
    }

    pub(super) fn reached(&mut self, point: usize) {
        self.host = Some(self.node(self.host.into_iter().chain([point])));
    }

    pub(super) fn allocated(&mut self, world: u64, bytes: Vec<u64>, owner: Option<Who>) {
        let start = bytes[0];
        let node = match owner {
            // No action of the driver's: only a point of the stream's.
            Some(who) => {
                self.streams.insert(who.key, who);
                let tail = self.tail(world, who);
                let node = self.node(tail.into_iter().chain(self.host.filter(|_| world == 0)));
                self.tails.insert((world, who.key), node);
                Some(node)
            }
            None => None,
        };
        for operation in self.operations.iter_mut().filter(|earlier| earlier.world == world) {
            for byte in &bytes {
                match (operation.freed.remove(byte), node) {
                    (Some(true), Some(node)) => {
                        operation.given.entry(*byte).or_default().push(node);
                    }
                    (Some(false), _) => (),
                    _ => drop(operation.forgotten.insert(*byte)),
                }
            }
        }
        self.blocks.insert(start, Block { bytes, owner, users: Vec::new(), world });
    }

    pub(super) fn used(&mut self, start: u64, who: Who) {
        if let Some(block) = self.blocks.get_mut(&start) {
            block.users.push(who);
        }
    }

    pub(super) fn freed(&mut self, start: u64) {
        let Some(block) = self.blocks.remove(&start) else { return };
        let holders = block.owner.iter().chain(&block.users);
        let points: Vec<usize> = holders.filter_map(|who| self.tail(block.world, *who)).collect();
        let reach = |node: usize| points.iter().any(|point| self.reaches(node, *point));
        let mut covers = Vec::new();
        for (index, operation) in self.operations.iter().enumerate() {
            for byte in block.bytes.iter().filter(|_| operation.world == block.world) {
                let given = operation.given.get(byte).into_iter().flatten();
                let is_covered = reach(operation.node) || given.copied().any(reach);
                covers.push((index, *byte, is_covered));
            }
        }
        for (index, byte, is_covered) in covers {
            self.operations[index].freed.insert(byte, is_covered);
        }
    }

    /// What a capture did, all together; it is over.
    pub(super) fn end(&mut self, world: u64) -> BTreeMap<u64, bool> {
        let mut all = BTreeMap::new();
        for operation in self.operations.iter().filter(|operation| operation.world == world) {
            for (byte, is_write) in &operation.bytes {
                *all.entry(*byte).or_default() |= is_write;
            }
        }
        self.operations.retain(|operation| operation.world != world);
        self.tails.retain(|(of, _), _| *of != world);
        self.events.retain(|(of, _), _| *of != world);
        all
    }

    pub(super) fn launched(
        &mut self,
        who: Who,
        executable: u64,
        bytes: BTreeMap<u64, bool>,
    ) -> BTreeSet<Pair> {
        self.sequence += 1;
        let after = self.launches.get(&executable).copied();
        let node = self.act(0, who, after.into_iter().collect());
        self.launches.insert(executable, node);
        self.add(0, node, bytes)
    }
}
