//! Decides from first principles what a program orders. Every operation is a node, "comes after" is
//! an edge. Two accesses are ordered if the later one reaches the earlier one along edges. Unlike
//! the sanitizer, the oracle has no clocks, and an access is a list of byte ranges.

use super::program::{How, Id, Kind, Mode, Program, Step};
use std::collections::BTreeSet;

type Node = usize;

#[derive(Clone, Debug)]
pub struct Access {
    pub line: usize,
    pub how: Option<How>,
    pub stream: Id,
    pub mode: Mode,
    /// Start and end addresses.
    pub runs: Vec<(u64, u64)>,
    node: Node,
    /// Later allocations of its memory that are ordered after it: what comes after one of them
    /// comes after this access.
    reallocated: Vec<Node>,
    /// The capture that it belongs to; 0: none.
    domain: usize,
}

/// Two accesses that nothing orders, and the bytes that both access.
#[derive(Clone, Debug)]
pub struct Race {
    pub earlier: Access,
    pub later: Access,
    pub bytes: Vec<(u64, u64)>,
}

/// Freed memory; its next allocation comes after the nodes `after`.
#[derive(Clone)]
struct FreedRange {
    range: (u64, u64),
    after: Vec<Node>,
    domain: usize,
    /// The memory is reused only after the host knows that `after` is complete.
    is_complete: bool,
}

#[derive(Clone)]
struct Capture {
    domain: usize,
    /// The last node of each stream in the capture.
    ends: Vec<Option<Node>>,
}

#[derive(Clone, Default)]
struct Graph {
    domain: usize,
    launches: Vec<Node>,
}

#[derive(Clone)]
pub struct Oracle {
    before: Vec<Vec<Node>>,
    ends: Vec<Option<Node>>,
    host: Node,
    /// For each event, the node of its last record and the capture of that node.
    events: Vec<Option<(Node, usize)>>,
    accesses: Vec<Access>,
    freed_ranges: Vec<FreedRange>,
    /// For each block, its address and the capture in which it was allocated.
    places: Vec<Option<(u64, usize)>>,
    owners: Vec<Option<Id>>,
    users: Vec<BTreeSet<Id>>,
    capture: Option<Capture>,
    graphs: Vec<Graph>,
    domains: usize,
    /// Host functions that no line waits for run at once; if false, they never run.
    pub sees_callbacks: bool,
    pub races: Vec<Race>,
}

pub fn common(one: &[(u64, u64)], other: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let pairs = one.iter().flat_map(|a| other.iter().map(move |b| (a.0.max(b.0), a.1.min(b.1))));
    pairs.filter(|(first, end)| first < end).collect()
}

pub fn subtract(runs: &[(u64, u64)], hole: (u64, u64)) -> Vec<(u64, u64)> {
    let parts =
        runs.iter().flat_map(|run| [(run.0, run.1.min(hole.0)), (run.0.max(hole.1), run.1)]);
    parts.filter(|(first, end)| first < end).collect()
}

impl Oracle {
    pub fn new(program: &Program) -> Oracle {
        Oracle {
            before: vec![Vec::new()],
            ends: vec![None; program.streams.len()],
            host: 0,
            events: vec![None; program.events],
            accesses: Vec::new(),
            freed_ranges: Vec::new(),
            places: vec![None; program.blocks.len()],
            owners: vec![None; program.blocks.len()],
            users: vec![BTreeSet::new(); program.blocks.len()],
            capture: None,
            graphs: vec![Graph::default(); program.graphs],
            domains: 0,
            sees_callbacks: true,
            races: Vec::new(),
        }
    }

    /// Makes room for the streams, blocks and events that were added to the program.
    pub fn grow(&mut self, program: &Program) {
        self.ends.resize(program.streams.len(), None);
        self.events.resize(program.events, None);
        self.places.resize(program.blocks.len(), None);
        self.owners.resize(program.blocks.len(), None);
        self.users.resize(program.blocks.len(), BTreeSet::new());
        self.graphs.resize(program.graphs, Graph::default());
    }

    fn node(&mut self, before: Vec<Node>) -> Node {
        self.before.push(before);
        self.before.len() - 1
    }

    /// Returns whether `later` is `earlier`, or comes after it.
    fn comes_after(&self, later: Node, earlier: Node) -> bool {
        let mut seen = vec![false; self.before.len()];
        let mut open = vec![later];
        while let Some(node) = open.pop() {
            if node == earlier {
                return true;
            }
            if !std::mem::replace(&mut seen[node], true) {
                open.extend(&self.before[node]);
            }
        }
        false
    }

    fn is_after(&self, later: Node, earlier: &Access) -> bool {
        let mut ways = [earlier.node].into_iter().chain(earlier.reallocated.iter().copied());
        ways.any(|way| self.comes_after(later, way))
    }

    /// Returns whether an event was recorded after an access.
    pub fn covers(&self, event: Id, access: &Access) -> bool {
        self.events[event].is_some_and(|(node, _)| self.is_after(node, access))
    }

    fn is_captured(&self, stream: Id) -> bool {
        self.capture.as_ref().is_some_and(|capture| capture.ends[stream].is_some())
    }

    fn domain_of(&self, stream: Id) -> usize {
        if self.is_captured(stream) { self.domains } else { 0 }
    }

    /// Returns the nodes before the next operation of a stream.
    fn behind(&self, program: &Program, stream: Id) -> Vec<Node> {
        if let Some(end) = self.capture.as_ref().and_then(|capture| capture.ends[stream]) {
            return vec![end];
        }
        let own = program.streams[stream];
        let mut before: Vec<Node> = self.ends[stream].into_iter().collect();
        before.push(self.host);
        for (number, other) in program.streams.iter().enumerate() {
            let is_ordered = match own.kind {
                Kind::Legacy => other.is_blocking(),
                _ => own.is_blocking() && other.kind == Kind::Legacy,
            };
            if is_ordered && other.device == own.device {
                before.extend(self.ends[number]);
            }
        }
        before
    }

    /// Queues an operation on a stream.
    fn queue(&mut self, program: &Program, stream: Id, also: &[Node]) -> Node {
        let mut before = self.behind(program, stream);
        before.extend(also);
        let node = self.node(before);
        match &mut self.capture {
            Some(capture) if capture.ends[stream].is_some() => capture.ends[stream] = Some(node),
            _ => self.ends[stream] = Some(node),
        }
        node
    }

    /// Adds a node to a stream without queueing an operation: it is not ordered with the default
    /// stream.
    fn mark(&mut self, stream: Id) -> Node {
        if let Some(end) = self.capture.as_mut().and_then(|capture| capture.ends[stream].as_mut()) {
            self.before.push(vec![*end]);
            *end = self.before.len() - 1;
            return *end;
        }
        let before = self.ends[stream].into_iter().chain([self.host]).collect();
        let node = self.node(before);
        self.ends[stream] = Some(node);
        node
    }

    /// The host learns that these nodes are complete.
    fn learn(&mut self, complete: Vec<Node>) {
        let before = [vec![self.host], complete].concat();
        self.host = self.node(before);
    }

    /// The host has waited for a stream, or polled it until it was complete.
    fn stream_is_done(&mut self, program: &Program, stream: Id) {
        let mut complete: Vec<Node> = self.ends[stream].into_iter().collect();
        let own = program.streams[stream];
        for (number, other) in program.streams.iter().enumerate() {
            if own.kind == Kind::Legacy && other.is_blocking() && other.device == own.device {
                complete.extend(self.ends[number]);
            }
        }
        self.learn(complete);
    }

    fn range(&self, program: &Program, block: Id) -> Option<(u64, u64)> {
        let (first, _) = self.places[block]?;
        Some((first, first + program.blocks[block].bytes))
    }

    fn touch(&mut self, line: usize, how: Option<How>, stream: Id, node: Node, of: Touched) {
        let Some((first, _)) = self.places[of.0.block] else { return };
        let runs = of.0.runs().map(|(from, to)| (first + from, first + to)).collect();
        let domain = self.domain_of(stream);
        self.add_access(Access {
            line,
            how,
            stream,
            mode: of.1,
            runs,
            node,
            reallocated: Vec::new(),
            domain,
        });
    }

    fn add_access(&mut self, access: Access) {
        let mut found = Vec::new();
        for earlier in &self.accesses {
            let is_same = earlier.domain != access.domain || earlier.node == access.node;
            if is_same || !(earlier.mode.writes() || access.mode.writes()) {
                continue;
            }
            let bytes = common(&earlier.runs, &access.runs);
            if !bytes.is_empty() && !self.is_after(access.node, earlier) {
                found.push(Race { earlier: earlier.clone(), later: access.clone(), bytes });
            }
        }
        self.races.extend(found);
        self.accesses.push(access);
    }

    /// Allocates a block at address `first`.
    fn allocate(&mut self, program: &Program, block: Id, first: u64, stream: Option<Id>) {
        let domain = stream.map_or(0, |stream| self.domain_of(stream));
        let range = (first, first + program.blocks[block].bytes);
        let (freed_ranges, kept) = std::mem::take(&mut self.freed_ranges)
            .into_iter()
            .partition::<Vec<_>, _>(|freed| !common(&[freed.range], &[range]).is_empty());
        self.freed_ranges = kept;
        let reallocated = stream.map(|stream| self.mark(stream));
        for freed in &freed_ranges {
            let is_ordered = freed.domain == domain && !freed.is_complete;
            self.order_reallocation(freed, range, reallocated.filter(|_| is_ordered));
            // The rest of the freed memory stays available.
            for part in subtract(&[freed.range], range) {
                self.freed_ranges.push(FreedRange { range: part, ..freed.clone() });
            }
        }
        self.places[block] = Some((first, domain));
        self.owners[block] = stream;
        self.users[block].clear();
    }

    /// Orders the accesses to freed memory before its next allocation. If the memory is reused in
    /// the order of a stream, work after the allocation comes after them. Otherwise they are
    /// complete and are removed. Accesses to other memory do not change.
    fn order_reallocation(
        &mut self,
        freed: &FreedRange,
        range: (u64, u64),
        reallocated: Option<Node>,
    ) {
        let part = common(&[freed.range], &[range]);
        let mut accesses = std::mem::take(&mut self.accesses);
        let mut moved = Vec::new();
        for access in &mut accesses {
            if !freed.after.iter().any(|after| self.is_after(*after, access)) {
                continue;
            }
            let runs = common(&access.runs, &part);
            for hole in &runs {
                access.runs = subtract(&access.runs, *hole);
            }
            if let Some(node) = reallocated.filter(|_| !runs.is_empty()) {
                let reallocated = [&access.reallocated[..], &[node]].concat();
                moved.push(Access { runs, reallocated, ..access.clone() });
            }
        }
        accesses.extend(moved);
        self.accesses = accesses;
    }

    fn free(&mut self, program: &Program, block: Id) {
        let Some(range) = self.range(program, block) else { return };
        let domain = self.places[block].map_or(0, |place| place.1);
        let streams: Vec<Id> =
            self.owners[block].into_iter().chain(self.users[block].iter().copied()).collect();
        let ends = streams.iter().filter_map(|stream| match &self.capture {
            Some(capture) if capture.ends[*stream].is_some() => capture.ends[*stream],
            _ => self.ends[*stream],
        });
        let after = [ends.collect(), vec![self.host]].concat();
        let is_complete = self.owners[block].is_none();
        self.freed_ranges.push(FreedRange { range, after, domain, is_complete });
        self.places[block] = None;
    }

    /// Runs one line; `address` is the result of an allocation.
    pub fn step(&mut self, program: &Program, line: usize, address: Option<u64>) {
        let step = &program.lines[line].step;
        match step {
            Step::Allocate { block, stream } => {
                self.allocate(program, *block, address.unwrap_or(0), Some(*stream));
            }
            Step::Pin { block } => self.allocate(program, *block, address.unwrap_or(0), None),
            Step::Free { block } | Step::Unpin { block } => self.free(program, *block),
            Step::RecordStream { block, stream } | Step::HostRecord { block, stream } => {
                self.users[*block].insert(*stream);
            }
            Step::Work { how, stream, touches } => {
                let node = self.queue(program, *stream, &[]);
                for (span, mode) in touches {
                    if program.blocks[span.block].device.is_none() && *how != How::HostKernel {
                        self.users[span.block].insert(*stream);
                    }
                    self.touch(line, Some(*how), *stream, node, (*span, *mode));
                }
            }
            Step::Collective { how, parts } => {
                let mut before = Vec::new();
                parts.iter().for_each(|part| before.extend(self.behind(program, part.0)));
                let node = self.node(before);
                for (stream, span, mode) in parts {
                    self.ends[*stream] = Some(node);
                    // A collective records the uses of its streams itself.
                    self.users[span.block].insert(*stream);
                    self.touch(line, Some(*how), *stream, node, (*span, *mode));
                }
            }
            Step::Fetch { stream, span } => {
                let node = self.queue(program, *stream, &[]);
                self.touch(line, Some(How::Copy), *stream, node, (*span, Mode::Read));
                self.learn(vec![node]);
            }
            Step::Record { event, stream } => {
                let node = self.queue(program, *stream, &[]);
                self.events[*event] = Some((node, self.domain_of(*stream)));
            }
            Step::Wait { event, stream } => self.wait(program, self.events[*event], *stream),
            Step::WaitStream { stream, other } => {
                let node = self.queue(program, *other, &[]);
                self.wait(program, Some((node, self.domain_of(*other))), *stream);
            }
            Step::Recreate { event } => self.events[*event] = None,
            Step::SyncEvent { event } | Step::PollEvent { event } => {
                self.learn(self.events[*event].into_iter().map(|(node, _)| node).collect());
            }
            Step::SyncStream { stream } | Step::PollStream { stream } => {
                self.stream_is_done(program, *stream);
            }
            Step::SyncDevice { device } => {
                let streams = program.streams.iter().enumerate();
                let own = streams.filter(|(_, stream)| stream.device == *device);
                let complete = own.filter_map(|(number, _)| self.ends[number]).collect();
                self.learn(complete);
            }
            Step::Callback { stream, awaited } => {
                let node = self.queue(program, *stream, &[]);
                if *awaited || self.sees_callbacks {
                    self.learn(vec![node]);
                }
            }
            Step::Begin { graph, stream } => {
                self.domains += 1;
                self.graphs[*graph] = Graph { domain: self.domains, launches: Vec::new() };
                let mut ends = vec![None; self.ends.len()];
                ends[*stream] = Some(self.node(Vec::new()));
                self.capture = Some(Capture { domain: self.domains, ends });
            }
            Step::End { .. } => self.capture = None,
            Step::Launch { graph, stream } => self.launch(program, line, *graph, *stream),
            Step::Drop { graph } => self.drop_graph(program, *graph),
        }
    }

    fn wait(&mut self, program: &Program, event: Option<(Node, usize)>, stream: Id) {
        let Some((node, domain)) = event else { return };
        if domain != 0 {
            // A stream that waits for a captured event joins the capture.
            let empty = self.node(Vec::new());
            if let Some(capture) = self.capture.as_mut().filter(|capture| capture.domain == domain)
            {
                capture.ends[stream].get_or_insert(empty);
            }
        }
        self.queue(program, stream, &[node]);
    }

    /// Adds a launch: one operation with all accesses of the graph, after the previous launch of
    /// the same graph.
    fn launch(&mut self, program: &Program, line: usize, graph: Id, stream: Id) {
        let last: Vec<Node> = self.graphs[graph].launches.last().copied().into_iter().collect();
        let node = self.queue(program, stream, &last);
        self.graphs[graph].launches.push(node);
        let domain = self.graphs[graph].domain;
        let own = self.accesses.iter().filter(|access| access.domain == domain);
        for access in own.cloned().collect::<Vec<_>>() {
            self.add_access(Access {
                line,
                stream,
                node,
                reallocated: Vec::new(),
                domain: 0,
                ..access
            });
        }
    }

    /// The memory of a destroyed graph is reused only after its last launch.
    fn drop_graph(&mut self, program: &Program, graph: Id) {
        let Graph { domain, launches } = std::mem::take(&mut self.graphs[graph]);
        let placed = (0..self.places.len())
            .filter(|block| self.places[*block].is_some_and(|place| place.1 == domain));
        let live: Vec<_> = placed.filter_map(|block| self.range(program, block)).collect();
        let freed = self.freed_ranges.iter().filter(|freed| freed.domain == domain);
        let ranges: Vec<_> = freed.map(|freed| freed.range).chain(live).collect();
        self.freed_ranges.retain(|freed| freed.domain != domain);
        for range in ranges {
            let after = launches.clone();
            self.freed_ranges.push(FreedRange { range, after, domain, is_complete: true });
        }
    }
}

type Touched = (super::program::Span, Mode);

/// Returns all races of a program whose allocations have these addresses.
pub fn judge(program: &Program, addresses: &[Option<u64>], sees_callbacks: bool) -> Vec<Race> {
    let mut oracle = Oracle::new(program);
    oracle.sees_callbacks = sees_callbacks;
    for (line, address) in addresses.iter().enumerate() {
        oracle.step(program, line, *address);
    }
    oracle.races
}
