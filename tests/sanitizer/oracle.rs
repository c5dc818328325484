//! What a program orders, from first principles: every operation is a node, "comes after" an
//! edge, and two accesses are in order if a search along the edges leads from the later to the
//! earlier one. It has no clocks and no numbers of operations, and each access is a list of
//! bytes.

use super::program::{How, Id, Kind, Mode, Program, Step};
use std::collections::BTreeSet;

type Node = usize;

#[derive(Clone, Debug)]
pub struct Access {
    pub line: usize,
    pub how: Option<How>,
    pub stream: Id,
    pub mode: Mode,
    /// Addresses: beginnings and ends.
    pub runs: Vec<(u64, u64)>,
    node: Node,
    /// Allocations of its memory since then, each of which came after it: so does what comes
    /// after one.
    given: Vec<Node>,
    /// Which capture it is in; 0: none.
    world: usize,
}

/// Two accesses that nothing orders, and bytes that both touch.
#[derive(Clone, Debug)]
pub struct Race {
    pub earlier: Access,
    pub later: Access,
    pub bytes: Vec<(u64, u64)>,
}

/// Memory that was freed: who may have it next comes after these.
#[derive(Clone)]
struct Former {
    range: (u64, u64),
    after: Vec<Node>,
    world: usize,
    /// It is given out only when the host knows that these are over.
    is_over: bool,
}

#[derive(Clone)]
struct Capture {
    world: usize,
    /// The end of each stream that is in it.
    ends: Vec<Option<Node>>,
}

#[derive(Clone, Default)]
struct Graph {
    world: usize,
    launches: Vec<Node>,
}

#[derive(Clone)]
pub struct Oracle {
    before: Vec<Vec<Node>>,
    ends: Vec<Option<Node>>,
    host: Node,
    /// What each event was last recorded behind, and in which capture.
    events: Vec<Option<(Node, usize)>>,
    accesses: Vec<Access>,
    formers: Vec<Former>,
    /// The address of each block, and the capture that it was allocated in.
    places: Vec<Option<(u64, usize)>>,
    owners: Vec<Option<Id>>,
    users: Vec<BTreeSet<Id>>,
    capture: Option<Capture>,
    graphs: Vec<Graph>,
    worlds: usize,
    /// Are functions of the host's that nobody waits for heard of at once, or never?
    pub hears: bool,
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
            formers: Vec::new(),
            places: vec![None; program.blocks.len()],
            owners: vec![None; program.blocks.len()],
            users: vec![BTreeSet::new(); program.blocks.len()],
            capture: None,
            graphs: vec![Graph::default(); program.graphs],
            worlds: 0,
            hears: true,
            races: Vec::new(),
        }
    }

    /// Room for what the program has come to have.
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

    /// Does `later` come after `earlier`, or is it the same?
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
        let mut ways = [earlier.node].into_iter().chain(earlier.given.iter().copied());
        ways.any(|way| self.comes_after(later, way))
    }

    /// Was an event recorded behind an access?
    pub fn covers(&self, event: Id, access: &Access) -> bool {
        self.events[event].is_some_and(|(node, _)| self.is_after(node, access))
    }

    fn is_captured(&self, stream: Id) -> bool {
        self.capture.as_ref().is_some_and(|capture| capture.ends[stream].is_some())
    }

    fn world_of(&self, stream: Id) -> usize {
        if self.is_captured(stream) { self.worlds } else { 0 }
    }

    /// What comes next on a stream comes after these.
    fn behind(&self, program: &Program, stream: Id) -> Vec<Node> {
        if let Some(end) = self.capture.as_ref().and_then(|capture| capture.ends[stream]) {
            return vec![end];
        }
        let own = program.streams[stream];
        let mut before: Vec<Node> = self.ends[stream].into_iter().collect();
        before.push(self.host);
        for (number, other) in program.streams.iter().enumerate() {
            let meets = match own.kind {
                Kind::Legacy => other.is_blocking(),
                _ => own.is_blocking() && other.kind == Kind::Legacy,
            };
            if meets && other.device == own.device {
                before.extend(self.ends[number]);
            }
        }
        before
    }

    /// Something is queued on a stream.
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

    /// A place in a stream where nothing is queued: it brings no order with the default stream.
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

    /// The host learns that these are over.
    fn learn(&mut self, over: Vec<Node>) {
        let before = [vec![self.host], over].concat();
        self.host = self.node(before);
    }

    /// The host has waited for a stream, or asked until it was done.
    fn stream_is_done(&mut self, program: &Program, stream: Id) {
        let mut over: Vec<Node> = self.ends[stream].into_iter().collect();
        let own = program.streams[stream];
        for (number, other) in program.streams.iter().enumerate() {
            if own.kind == Kind::Legacy && other.is_blocking() && other.device == own.device {
                over.extend(self.ends[number]);
            }
        }
        self.learn(over);
    }

    fn range(&self, program: &Program, block: Id) -> Option<(u64, u64)> {
        let (first, _) = self.places[block]?;
        Some((first, first + program.blocks[block].bytes))
    }

    fn touch(&mut self, line: usize, how: Option<How>, stream: Id, node: Node, of: Touched) {
        let Some((first, _)) = self.places[of.0.block] else { return };
        let runs = of.0.runs().map(|(from, to)| (first + from, first + to)).collect();
        let world = self.world_of(stream);
        self.enter(Access { line, how, stream, mode: of.1, runs, node, given: Vec::new(), world });
    }

    fn enter(&mut self, access: Access) {
        let mut found = Vec::new();
        for earlier in &self.accesses {
            let is_same = earlier.world != access.world || earlier.node == access.node;
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

    /// A block is given out at an address.
    fn give(&mut self, program: &Program, block: Id, first: u64, stream: Option<Id>) {
        let world = stream.map_or(0, |stream| self.world_of(stream));
        let range = (first, first + program.blocks[block].bytes);
        let (formers, kept) = std::mem::take(&mut self.formers)
            .into_iter()
            .partition::<Vec<_>, _>(|former| !common(&[former.range], &[range]).is_empty());
        self.formers = kept;
        let given = stream.map(|stream| self.mark(stream));
        for former in &formers {
            let is_ordered = former.world == world && !former.is_over;
            self.hand_over(former, range, given.filter(|_| is_ordered));
            // What is left of it waits for its next user.
            for part in subtract(&[former.range], range) {
                self.formers.push(Former { range: part, ..former.clone() });
            }
        }
        self.places[block] = Some((first, world));
        self.owners[block] = stream;
        self.users[block].clear();
    }

    /// What came before `former` was freed comes before what comes after the allocation where the
    /// memory is given out in the order of a stream; where it is given out in no order, it is
    /// over altogether. It says nothing of other memory.
    fn hand_over(&mut self, former: &Former, range: (u64, u64), given: Option<Node>) {
        let part = common(&[former.range], &[range]);
        let mut accesses = std::mem::take(&mut self.accesses);
        let mut moved = Vec::new();
        for access in &mut accesses {
            if !former.after.iter().any(|after| self.is_after(*after, access)) {
                continue;
            }
            let runs = common(&access.runs, &part);
            for hole in &runs {
                access.runs = subtract(&access.runs, *hole);
            }
            if let Some(node) = given.filter(|_| !runs.is_empty()) {
                let given = [&access.given[..], &[node]].concat();
                moved.push(Access { runs, given, ..access.clone() });
            }
        }
        accesses.extend(moved);
        self.accesses = accesses;
    }

    fn take(&mut self, program: &Program, block: Id) {
        let Some(range) = self.range(program, block) else { return };
        let world = self.places[block].map_or(0, |place| place.1);
        let streams: Vec<Id> =
            self.owners[block].into_iter().chain(self.users[block].iter().copied()).collect();
        let ends = streams.iter().filter_map(|stream| match &self.capture {
            Some(capture) if capture.ends[*stream].is_some() => capture.ends[*stream],
            _ => self.ends[*stream],
        });
        let after = [ends.collect(), vec![self.host]].concat();
        let is_over = self.owners[block].is_none();
        self.formers.push(Former { range, after, world, is_over });
        self.places[block] = None;
    }

    /// One line was done; `address` is where an allocation came to lie.
    pub fn step(&mut self, program: &Program, line: usize, address: Option<u64>) {
        let step = &program.lines[line].step;
        match step {
            Step::Allocate { block, stream } => {
                self.give(program, *block, address.unwrap_or(0), Some(*stream));
            }
            Step::Pin { block } => self.give(program, *block, address.unwrap_or(0), None),
            Step::Free { block } | Step::Unpin { block } => self.take(program, *block),
            Step::RecordStream { block, stream } | Step::HostRecord { block, stream } => {
                self.users[*block].insert(*stream);
            }
            Step::Work { how, stream, touches } => {
                let node = self.queue(program, *stream, &[]);
                for (span, mode) in touches {
                    if program.blocks[span.block].device.is_none() && *how != How::Own {
                        self.users[span.block].insert(*stream);
                    }
                    self.touch(line, Some(*how), *stream, node, (*span, *mode));
                }
            }
            Step::Meet { how, parts } => {
                let mut before = Vec::new();
                parts.iter().for_each(|part| before.extend(self.behind(program, part.0)));
                let node = self.node(before);
                for (stream, span, mode) in parts {
                    self.ends[*stream] = Some(node);
                    // A collective records its streams itself.
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
                self.events[*event] = Some((node, self.world_of(*stream)));
            }
            Step::Wait { event, stream } => self.wait(program, self.events[*event], *stream),
            Step::WaitStream { stream, other } => {
                let node = self.queue(program, *other, &[]);
                self.wait(program, Some((node, self.world_of(*other))), *stream);
            }
            Step::Renew { event } => self.events[*event] = None,
            Step::SyncEvent { event } | Step::PollEvent { event } => {
                self.learn(self.events[*event].into_iter().map(|(node, _)| node).collect());
            }
            Step::SyncStream { stream } | Step::PollStream { stream } => {
                self.stream_is_done(program, *stream);
            }
            Step::SyncDevice { device } => {
                let streams = program.streams.iter().enumerate();
                let own = streams.filter(|(_, stream)| stream.device == *device);
                let over = own.filter_map(|(number, _)| self.ends[number]).collect();
                self.learn(over);
            }
            Step::Callback { stream, awaited } => {
                let node = self.queue(program, *stream, &[]);
                if *awaited || self.hears {
                    self.learn(vec![node]);
                }
            }
            Step::Begin { graph, stream } => {
                self.worlds += 1;
                self.graphs[*graph] = Graph { world: self.worlds, launches: Vec::new() };
                let mut ends = vec![None; self.ends.len()];
                ends[*stream] = Some(self.node(Vec::new()));
                self.capture = Some(Capture { world: self.worlds, ends });
            }
            Step::End { .. } => self.capture = None,
            Step::Launch { graph, stream } => self.launch(program, line, *graph, *stream),
            Step::Drop { graph } => self.drop_graph(program, *graph),
        }
    }

    fn wait(&mut self, program: &Program, event: Option<(Node, usize)>, stream: Id) {
        let Some((node, world)) = event else { return };
        if world != 0 {
            // What waits for a captured event is captured.
            let empty = self.node(Vec::new());
            if let Some(capture) = self.capture.as_mut().filter(|capture| capture.world == world) {
                capture.ends[stream].get_or_insert(empty);
            }
        }
        self.queue(program, stream, &[node]);
    }

    /// One operation with all that the graph touches; after the last launch of the same graph.
    fn launch(&mut self, program: &Program, line: usize, graph: Id, stream: Id) {
        let last: Vec<Node> = self.graphs[graph].launches.last().copied().into_iter().collect();
        let node = self.queue(program, stream, &last);
        self.graphs[graph].launches.push(node);
        let world = self.graphs[graph].world;
        let own = self.accesses.iter().filter(|access| access.world == world);
        for access in own.cloned().collect::<Vec<_>>() {
            self.enter(Access { line, stream, node, given: Vec::new(), world: 0, ..access });
        }
    }

    /// Its memory is another's only after its last launch.
    fn drop_graph(&mut self, program: &Program, graph: Id) {
        let Graph { world, launches } = std::mem::take(&mut self.graphs[graph]);
        let placed = (0..self.places.len())
            .filter(|block| self.places[*block].is_some_and(|place| place.1 == world));
        let live: Vec<_> = placed.filter_map(|block| self.range(program, block)).collect();
        let freed = self.formers.iter().filter(|former| former.world == world);
        let ranges: Vec<_> = freed.map(|former| former.range).chain(live).collect();
        self.formers.retain(|former| former.world != world);
        for range in ranges {
            let after = launches.clone();
            self.formers.push(Former { range, after, world, is_over: true });
        }
    }
}

type Touched = (super::program::Span, Mode);

/// All that a program races for, with the addresses that its allocations had.
pub fn judge(program: &Program, addresses: &[Option<u64>], hears: bool) -> Vec<Race> {
    let mut oracle = Oracle::new(program);
    oracle.hears = hears;
    for (line, address) in addresses.iter().enumerate() {
        oracle.step(program, line, *address);
    }
    oracle.races
}
