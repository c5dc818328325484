//! A model of the order: a graph of all actions, and the bytes of each operation one by one. Two
//! operations race if no path connects them.

use super::super::domain::{Kind, StreamInfo};
use std::collections::{BTreeMap, BTreeSet};

/// The nodes before a node.
type Before = BTreeSet<usize>;

pub(super) struct Operation {
    pub(super) node: usize,
    pub(super) sequence: u64,
    pub(super) domain: u64,
    /// For each byte: whether it is written.
    pub(super) bytes: BTreeMap<u64, bool>,
    /// For each byte, the nodes of its allocations since: what comes after one comes after this
    /// operation.
    reallocated: BTreeMap<u64, Vec<usize>>,
    /// For each byte freed since: whether the allocator waits for this operation before it reuses
    /// the byte.
    freed: BTreeMap<u64, bool>,
    /// Bytes that are no longer compared.
    forgotten: BTreeSet<u64>,
}

/// An allocated block.
struct Block {
    bytes: Vec<u64>,
    owner: Option<StreamInfo>,
    users: Vec<StreamInfo>,
    domain: u64,
}

/// Two operations, by their sequence numbers.
pub(super) type Pair = (u64, u64);

#[derive(Default)]
pub(super) struct Model {
    before: Vec<Before>,
    /// The last node of each stream in each domain.
    tails: BTreeMap<(u64, u64), usize>,
    streams: BTreeMap<u64, StreamInfo>,
    /// The last node that the host knows to be complete.
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

    fn tail(&self, domain: u64, stream: StreamInfo) -> Option<usize> {
        self.tails.get(&(domain, stream.key)).copied()
    }

    fn others(&self, stream: StreamInfo, kind: Kind) -> Vec<usize> {
        let others = self.streams.values().filter(|other| other.kind == kind);
        others
            .filter(|other| other.device == stream.device)
            .filter_map(|other| self.tail(0, *other))
            .collect()
    }

    /// What the driver orders before the next action of a stream.
    fn implied(&self, domain: u64, stream: StreamInfo) -> Vec<usize> {
        match stream.kind {
            _ if domain != 0 => Vec::new(),
            Kind::NonBlocking => Vec::new(),
            Kind::Legacy => self.others(stream, Kind::Blocking),
            Kind::Blocking => self.others(stream, Kind::Legacy),
        }
    }

    /// Adds an action on a stream, also after the nodes `after`.
    fn act(&mut self, domain: u64, stream: StreamInfo, after: Vec<usize>) -> usize {
        self.streams.insert(stream.key, stream);
        let mut all = after;
        all.extend(self.tail(domain, stream));
        all.extend(self.implied(domain, stream));
        if domain == 0 {
            all.extend(self.host);
        }
        let node = self.node(all);
        self.tails.insert((domain, stream.key), node);
        node
    }

    /// Adds an operation; returns the earlier operations with which it races.
    pub(super) fn operation(
        &mut self,
        domain: u64,
        stream: StreamInfo,
        bytes: BTreeMap<u64, bool>,
    ) -> BTreeSet<Pair> {
        self.sequence += 1;
        let node = self.act(domain, stream, Vec::new());
        self.add(domain, node, bytes)
    }

    fn add(&mut self, domain: u64, node: usize, bytes: BTreeMap<u64, bool>) -> BTreeSet<Pair> {
        let sequence = self.sequence;
        let mut races = BTreeSet::new();
        for earlier in self.operations.iter().filter(|earlier| earlier.domain == domain) {
            let meets = bytes.iter().any(|(byte, is_write)| {
                let earlier_mode = earlier.bytes.get(byte);
                earlier_mode.is_some_and(|writes| *writes || *is_write)
                    && !earlier.forgotten.contains(byte)
                    && !self.is_before(earlier, *byte, node)
            });
            if meets {
                races.insert((sequence, earlier.sequence));
            }
        }
        let (reallocated, freed, forgotten) = Default::default();
        self.operations.push(Operation {
            node,
            sequence,
            domain,
            bytes,
            reallocated,
            freed,
            forgotten,
        });
        races
    }

    fn is_before(&self, earlier: &Operation, byte: u64, node: usize) -> bool {
        let reallocated = earlier.reallocated.get(&byte).into_iter().flatten();
        self.reaches(earlier.node, node)
            || reallocated.copied().any(|reallocated| self.reaches(reallocated, node))
    }

    pub(super) fn collective(
        &mut self,
        members: Vec<(StreamInfo, BTreeMap<u64, bool>)>,
    ) -> BTreeSet<Pair> {
        self.sequence += 1;
        let starts: Vec<usize> =
            members.iter().map(|(stream, _)| self.act(0, *stream, Vec::new())).collect();
        let all = self.node(starts);
        let mut races = BTreeSet::new();
        for (stream, bytes) in members {
            self.tails.insert((0, stream.key), all);
            races.extend(self.add(0, all, bytes));
        }
        races
    }

    pub(super) fn record(&mut self, domain: u64, event: u64, stream: StreamInfo) {
        let node = self.act(domain, stream, Vec::new());
        self.events.insert((domain, event), node);
        if domain != 0 {
            self.events.remove(&(0, event));
        }
    }

    pub(super) fn wait(&mut self, domain: u64, event: u64, stream: StreamInfo) {
        let after = self.events.get(&(domain, event)).copied();
        self.act(domain, stream, after.into_iter().collect());
    }

    pub(super) fn stream_waits(&mut self, domain: u64, stream: StreamInfo, other: StreamInfo) {
        let node = self.act(domain, other, Vec::new());
        self.act(domain, stream, vec![node]);
    }

    pub(super) fn waits_for_everything(&mut self, stream: StreamInfo) {
        let all = self.point_of_all(None);
        self.act(0, stream, vec![all]);
    }

    pub(super) fn point_of_stream(&mut self, stream: StreamInfo) -> usize {
        let mut all: Vec<usize> = self.tail(0, stream).into_iter().collect();
        if stream.kind == Kind::Legacy {
            all.extend(self.implied(0, stream));
        }
        self.node(all)
    }

    pub(super) fn point_of_event(&mut self, event: u64) -> Option<usize> {
        self.events.get(&(0, event)).copied()
    }

    pub(super) fn point_of_all(&mut self, device: Option<i32>) -> usize {
        let streams: Vec<StreamInfo> = self.streams.values().copied().collect();
        let streams = streams
            .into_iter()
            .filter(|stream| device.is_none_or(|device| device == stream.device));
        let all: Vec<usize> = streams.filter_map(|stream| self.tail(0, stream)).collect();
        self.node(all)
    }

    pub(super) fn reached(&mut self, point: usize) {
        self.host = Some(self.node(self.host.into_iter().chain([point])));
    }

    pub(super) fn allocated(&mut self, domain: u64, bytes: Vec<u64>, owner: Option<StreamInfo>) {
        let start = bytes[0];
        let node = match owner {
            // The driver does nothing here; the node is only a point on the stream.
            Some(stream) => {
                self.streams.insert(stream.key, stream);
                let tail = self.tail(domain, stream);
                let node = self.node(tail.into_iter().chain(self.host.filter(|_| domain == 0)));
                self.tails.insert((domain, stream.key), node);
                Some(node)
            }
            None => None,
        };
        for operation in self.operations.iter_mut().filter(|earlier| earlier.domain == domain) {
            for byte in &bytes {
                match (operation.freed.remove(byte), node) {
                    (Some(true), Some(node)) => {
                        operation.reallocated.entry(*byte).or_default().push(node);
                    }
                    (Some(false), _) => (),
                    _ => drop(operation.forgotten.insert(*byte)),
                }
            }
        }
        self.blocks.insert(start, Block { bytes, owner, users: Vec::new(), domain });
    }

    pub(super) fn used(&mut self, start: u64, stream: StreamInfo) {
        if let Some(block) = self.blocks.get_mut(&start) {
            block.users.push(stream);
        }
    }

    pub(super) fn freed(&mut self, start: u64) {
        let Some(block) = self.blocks.remove(&start) else { return };
        let holders = block.owner.iter().chain(&block.users);
        let points: Vec<usize> =
            holders.filter_map(|stream| self.tail(block.domain, *stream)).collect();
        let reach = |node: usize| points.iter().any(|point| self.reaches(node, *point));
        let mut covers = Vec::new();
        for (index, operation) in self.operations.iter().enumerate() {
            for byte in block.bytes.iter().filter(|_| operation.domain == block.domain) {
                let reallocated = operation.reallocated.get(byte).into_iter().flatten();
                let is_covered = reach(operation.node) || reallocated.copied().any(reach);
                covers.push((index, *byte, is_covered));
            }
        }
        for (index, byte, is_covered) in covers {
            self.operations[index].freed.insert(byte, is_covered);
        }
    }

    /// Ends a capture; returns all bytes that it accessed.
    pub(super) fn end(&mut self, domain: u64) -> BTreeMap<u64, bool> {
        let mut all = BTreeMap::new();
        for operation in self.operations.iter().filter(|operation| operation.domain == domain) {
            for (byte, is_write) in &operation.bytes {
                *all.entry(*byte).or_default() |= is_write;
            }
        }
        self.operations.retain(|operation| operation.domain != domain);
        self.tails.retain(|(of, _), _| *of != domain);
        self.events.retain(|(of, _), _| *of != domain);
        all
    }

    pub(super) fn launched(
        &mut self,
        stream: StreamInfo,
        executable: u64,
        bytes: BTreeMap<u64, bool>,
    ) -> BTreeSet<Pair> {
        self.sequence += 1;
        let after = self.launches.get(&executable).copied();
        let node = self.act(0, stream, after.into_iter().collect());
        self.launches.insert(executable, node);
        self.add(0, node, bytes)
    }
}
