//! Random programs without a race. The oracle sees each step before it is added; if the step would
//! race, the generator first adds calls that order it.

use super::captures;
use super::model::Model;
use super::oracle::{Access, Oracle};
use super::orders;
use super::program::{Block, How, Id, Kind, Line, Mode, Program, Span, Step, Stream};
use std::collections::{BTreeMap, BTreeSet};

/// SplitMix64, the generator of Steele, Lea and Flood.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        if from.is_empty() {
            None
        } else {
            from.get(self.below(from.len() as u64) as usize).cloned()
        }
    }
}

pub struct Generator {
    pub random: Random,
    pub program: Program,
    pub oracle: Oracle,
    /// Blocks that are allocated.
    pub live: Vec<Id>,
    /// Events that are not recorded in a capture, with their devices.
    pub events: Vec<(Id, i32)>,
    /// Streams and events of the active capture.
    pub captured: Vec<Id>,
    pub capture_events: Vec<Id>,
    /// Graphs that can be launched, with their device.
    pub graphs: Vec<(Id, i32)>,
    pub owners: BTreeMap<Id, Id>,
    pub users: BTreeMap<Id, BTreeSet<Id>>,
    model: Model,
    compiles: bool,
    has_threads: bool,
}

/// Limits the random fills, which are slow without optimisation.
const MAX_RANDOM: u64 = 2048;
/// Attempts to order one operation before it is dropped.
const TRIES: usize = 12;

/// Returns the program of a seed; the oracle finds no race in it.
pub fn clean(seed: u64, peers: bool) -> Program {
    let mut random = Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
    let devices = [1, 1, 2, 2, 3][random.below(5) as usize];
    let mut program = Program { devices, peers, ..Program::default() };
    let count = 2 + random.below(5);
    for number in 0..count {
        let anywhere = number >= 2 && random.chance(60);
        let device = if anywhere { random.below(devices as u64) as i32 } else { 0 };
        let kinds =
            [Kind::Pool, Kind::Pool, Kind::Pool, Kind::Blocking, Kind::NonBlocking, Kind::Legacy];
        let mut kind = kinds[random.below(6) as usize];
        let is_there = |wanted| {
            program
                .streams
                .iter()
                .any(|other: &Stream| other.kind == wanted && other.device == device)
        };
        if kind == Kind::Legacy && is_there(Kind::Legacy) {
            kind = if is_there(Kind::PerThread) { Kind::Blocking } else { Kind::PerThread };
        }
        program.streams.push(Stream { device, kind });
    }
    // Give every device a stream.
    for device in 0..devices {
        if !program
            .streams
            .iter()
            .any(|stream| stream.device == device && stream.kind != Kind::PerThread)
        {
            program.streams.push(Stream { device, kind: Kind::Pool });
        }
    }
    let oracle = Oracle::new(&program);
    let (compiles, has_threads) = (random.chance(30), random.chance(30));
    // Without NVRTC the programs have no kernels of their own.
    let compiles = compiles && std::env::var_os("TCUDA_NVRTC_PATH").is_some();
    let mut generator = Generator {
        random,
        program,
        oracle,
        live: Vec::new(),
        events: Vec::new(),
        captured: Vec::new(),
        capture_events: Vec::new(),
        graphs: Vec::new(),
        owners: BTreeMap::new(),
        users: BTreeMap::new(),
        model: Model::default(),
        compiles,
        has_threads,
    };
    generator.fill_in();
    generator.program
}

impl Generator {
    fn fill_in(&mut self) {
        for device in 0..self.program.devices {
            for _ in 0..1 + self.random.below(2) {
                self.allocate(device);
            }
        }
        self.allocate(0);
        if self.random.chance(60) {
            self.pin();
        }
        let captures = self.random.chance(40);
        for _ in 0..10 + self.random.below(10) {
            match self.random.below(20) {
                0 | 1 => self.reuse(),
                2 if self.random.chance(50) => self.reuse_pinned(),
                3 if self.program.devices > 1 => self.collective(),
                4 | 5 if captures && self.random.chance(60) => captures::capture(self),
                4..=6 if !self.graphs.is_empty() => captures::launch(self),
                _ => self.some_work(),
            }
            orders::extras(self);
        }
    }

    /// Appends a line. The model predicts the address that it allocates.
    pub fn push(&mut self, step: Step, orders: bool) {
        let address = self.model.step(&self.program, &step);
        let thread = self.thread_of(&step);
        self.program.lines.push(Line { step, thread, orders });
        self.oracle.grow(&self.program);
        self.oracle.step(&self.program, self.program.lines.len() - 1, address);
    }

    /// Returns the first race that `step` would cause.
    pub fn race_of(&self, step: &Step) -> Option<(Access, Access)> {
        let (mut program, mut oracle) = (self.program.clone(), self.oracle.clone());
        program.lines.push(Line { step: step.clone(), thread: 0, orders: false });
        let before = oracle.races.len();
        oracle.step(&program, program.lines.len() - 1, None);
        let race = oracle.races.get(before)?;
        Some((race.earlier.clone(), race.later.clone()))
    }

    /// Adds work, after the calls that order it. Returns false if no order was found.
    pub fn add(&mut self, step: Step) -> bool {
        for _ in 0..TRIES {
            let Some((earlier, later)) = self.race_of(&step) else {
                self.note_users(&step);
                self.push(step, false);
                return true;
            };
            orders::order(self, &earlier, later.stream);
        }
        false
    }

    fn note_users(&mut self, step: &Step) {
        let touches: Vec<(Id, Id)> = match step {
            Step::Work { stream, touches, .. } => {
                touches.iter().map(|touch| (touch.0.block, *stream)).collect()
            }
            Step::Collective { parts, .. } => {
                parts.iter().map(|part| (part.1.block, part.0)).collect()
            }
            Step::Fetch { stream, span } => vec![(span.block, *stream)],
            _ => Vec::new(),
        };
        for (block, stream) in touches {
            self.users.entry(block).or_default().insert(stream);
        }
    }

    /// Work on a thread's own default stream runs on that thread.
    fn thread_of(&mut self, step: &Step) -> usize {
        let streams: Vec<Id> = match step {
            Step::Work { stream, .. }
            | Step::Allocate { stream, .. }
            | Step::RecordStream { stream, .. }
            | Step::HostRecord { stream, .. }
            | Step::Fetch { stream, .. }
            | Step::Record { stream, .. }
            | Step::Wait { stream, .. }
            | Step::SyncStream { stream }
            | Step::PollStream { stream }
            | Step::Callback { stream, .. }
            | Step::Launch { stream, .. } => vec![*stream],
            Step::WaitStream { stream, other } => vec![*stream, *other],
            Step::Collective { parts, .. } => parts.iter().map(|part| part.0).collect(),
            _ => Vec::new(),
        };
        let is_own = |stream: &Id| self.program.streams[*stream].kind == Kind::PerThread;
        usize::from(streams.iter().any(is_own) || self.has_threads && self.random.chance(25))
    }

    pub fn leave(&mut self, block: Id) {
        self.live.retain(|other| *other != block);
    }

    pub fn new_block(&mut self, device: Option<i32>, bytes: u64) -> Id {
        self.program.blocks.push(Block { device, bytes });
        self.program.blocks.len() - 1
    }

    pub fn streams_of(&self, device: i32) -> Vec<Id> {
        let streams = self.program.streams.iter().enumerate();
        let own = streams.filter(|(_, stream)| stream.device == device);
        own.map(|(number, _)| number).collect()
    }

    /// Streams that may own memory: all but default streams of threads.
    fn owners_of(&self, device: i32) -> Vec<Id> {
        let mut streams = self.streams_of(device);
        streams.retain(|stream| self.program.streams[*stream].kind != Kind::PerThread);
        streams
    }

    fn allocate(&mut self, device: i32) {
        let bytes =
            [1024, 2048, 2048, 4096, 4096, 4096, 4096, 2 << 20][self.random.below(8) as usize];
        let Some(stream) = self.random.pick(&self.owners_of(device)) else { return };
        self.allocate_on(stream, bytes);
    }

    pub fn allocate_on(&mut self, stream: Id, bytes: u64) -> Id {
        let block = self.new_block(Some(self.program.streams[stream].device), bytes);
        self.push(Step::Allocate { block, stream }, false);
        self.owners.insert(block, stream);
        self.live.push(block);
        block
    }

    fn pin(&mut self) {
        let bytes = [1024, 4096][self.random.below(2) as usize];
        let block = self.new_block(None, bytes);
        self.push(Step::Pin { block }, false);
        self.live.push(block);
    }

    /// Frees a block, mostly after its uses on other streams are recorded or waited for, and reuses
    /// its memory.
    fn reuse(&mut self) {
        let own = |block: &Id| self.owners.contains_key(block);
        let Some(block) =
            self.random.pick(&self.live.iter().copied().filter(own).collect::<Vec<_>>())
        else {
            return;
        };
        let (owner, bytes) = (self.owners[&block], self.program.blocks[block].bytes);
        let users = self.users.remove(&block).unwrap_or_default();
        for stream in users.into_iter().filter(|user| *user != owner) {
            match self.random.below(10) {
                0..=5 => self.push(Step::RecordStream { block, stream }, true),
                6 | 7 => orders::wait_stream(self, owner, stream),
                _ => {}
            }
        }
        self.push(Step::Free { block }, false);
        self.leave(block);
        let next = self.allocate_on(owner, bytes);
        let how = if self.random.chance(50) { How::Fill } else { How::HostKernel };
        let touches = vec![(Span::plain(next, 0, bytes), Mode::Write)];
        if self.random.chance(60) {
            self.add(Step::Work { how, stream: owner, touches });
        } else if let Some(stream) =
            self.random.pick(&self.streams_of(self.program.streams[owner].device))
        {
            self.add(Step::Work { how, stream, touches });
        }
    }

    fn reuse_pinned(&mut self) {
        let pinned = |block: &Id| !self.owners.contains_key(block);
        let Some(block) =
            self.random.pick(&self.live.iter().copied().filter(pinned).collect::<Vec<_>>())
        else {
            return self.pin();
        };
        for stream in self.users.remove(&block).unwrap_or_default() {
            self.push(Step::HostRecord { block, stream }, true);
        }
        self.push(Step::Unpin { block }, false);
        self.leave(block);
        self.pin();
    }

    pub fn some_work(&mut self) {
        let Some(stream) = self.random.pick(&(0..self.program.streams.len()).collect::<Vec<_>>())
        else {
            return;
        };
        let device = self.program.streams[stream].device;
        if let Some(step) = self.work_on(stream, device) {
            self.add(step);
        }
    }

    /// A random operation on a stream, with memory of its device or a copy from or to elsewhere.
    pub fn work_on(&mut self, stream: Id, device: i32) -> Option<Step> {
        let is_captured = !self.captured.is_empty();
        let blocks = self.program.blocks.clone();
        let near = |block: &Id| blocks[*block].device == Some(device);
        let reached = |block: &Id| near(block) || !is_captured;
        let here: Vec<Id> = self.live.iter().copied().filter(near).collect();
        let all: Vec<Id> = self.live.iter().copied().filter(reached).collect();
        let work = |how, touches| Some(Step::Work { how, stream, touches });
        let to = self.random.pick(&here)?;
        match self.random.below(20) {
            0..=3 => work(How::Fill, vec![(self.range(to), Mode::Write)]),
            4..=8 => {
                let from = self.random.pick(&all)?;
                let (a, b) = if self.random.chance(50) { (to, from) } else { (from, to) };
                if a == b {
                    return None;
                }
                let source = self.range(a);
                let target = self.range_of(b, source.bytes)?;
                work(How::Copy, vec![(source, Mode::Read), (target, Mode::Write)])
            }
            9..=11 => {
                let from = self.random.pick(&all)?;
                let source = self.rows(from);
                let target = Span { block: to, ..self.rows(to) };
                let rows = source.rows.min(target.rows);
                let bytes = source.bytes.min(target.bytes);
                let cut = |span: Span| Span { rows, bytes, ..span };
                if from == to {
                    return None;
                }
                work(How::Copy2d, vec![(cut(source), Mode::Read), (cut(target), Mode::Write)])
            }
            12..=14 => {
                let span = if self.random.chance(60) { self.rows(to) } else { self.range(to) };
                let span = Span { bytes: span.bytes.min(MAX_RANDOM), ..span };
                work(How::Random, vec![(span, Mode::Write)])
            }
            15 if self.compiles => {
                let (one, other) = (self.random.pick(&here)?, self.random.pick(&here)?);
                let inputs = [self.range_of(one, 256)?, self.range_of(other, 256)?];
                let output = self.range_of(to, 256)?;
                if one == to || other == to {
                    return None;
                }
                let [a, b] = inputs.map(|span| (span, Mode::Read));
                work(How::Elements, vec![a, b, (output, Mode::Write)])
            }
            16 if self.compiles => {
                let other = self.random.pick(&here)?;
                let spans = [to, other].map(|block| {
                    let bytes = self.program.blocks[block].bytes;
                    let offset = self.random.below(4) * (bytes / 4);
                    Span::plain(block, offset, bytes - offset)
                });
                let modes = [self.mode(), self.mode()];
                work(How::Kernel, spans.into_iter().zip(modes).collect())
            }
            17 if !is_captured => {
                let span = self.range(to);
                Some(Step::Fetch { stream, span: Span { bytes: span.bytes.min(4096), ..span } })
            }
            _ => {
                let block = self.random.pick(&all)?;
                let mode = self.mode();
                work(How::HostKernel, vec![(self.range(block), mode)])
            }
        }
    }

    fn mode(&mut self) -> Mode {
        [Mode::Read, Mode::Read, Mode::Write, Mode::Both][self.random.below(4) as usize]
    }

    /// A whole block, half or a quarter of it, or any part.
    fn range(&mut self, block: Id) -> Span {
        let all = self.program.blocks[block].bytes;
        let part = all / [1, 2, 2, 4][self.random.below(4) as usize];
        let offset = self.random.below(all / part) * part;
        if self.random.chance(80) {
            return Span::plain(block, offset, part);
        }
        let offset = self.random.below(all / 8) * 4;
        Span::plain(block, offset, 4 + self.random.below((all - offset) / 4) * 4)
    }

    fn range_of(&mut self, block: Id, bytes: u64) -> Option<Span> {
        let all = self.program.blocks[block].bytes;
        let room = all.checked_sub(bytes)?;
        Some(Span::plain(block, self.random.below(room / 4 + 1) * 4, bytes))
    }

    /// A column of rows that are 64 bytes apart. Two columns may interleave without common bytes.
    fn rows(&mut self, block: Id) -> Span {
        let most = (self.program.blocks[block].bytes / 64).min(16);
        let rows = 2 + self.random.below(most / 2);
        let first = self.random.below(most - rows + 1);
        let bytes = [16, 32][self.random.below(2) as usize];
        let column = self.random.below((64 - bytes) / 16 + 1) * 16;
        Span { block, offset: first * 64 + column, bytes, rows, pitch: 64 }
    }

    /// Adds a collective on the current streams of at least two devices.
    fn collective(&mut self) {
        let mut devices: Vec<i32> = (0..self.program.devices).collect();
        let rotation = self.random.below(devices.len() as u64) as usize;
        devices.rotate_left(rotation);
        devices.truncate(2 + self.random.below(2) as usize);
        let mut members = Vec::new();
        for device in &devices {
            let blocks = self.program.blocks.clone();
            let own = |block: &Id| blocks[*block].device == Some(*device);
            let own: Vec<Id> = self.live.iter().copied().filter(own).collect();
            let Some(stream) = self.random.pick(&self.owners_of(*device)) else { return };
            let Some(block) = self.random.pick(&own) else { return };
            let Some(span) = self.range_of(block, 256) else { return };
            members.push((stream, span, own));
        }
        let root = members[0].clone();
        let others: Vec<Id> = root.2.iter().copied().filter(|b| *b != root.1.block).collect();
        let read = |part: &(Id, Span, Vec<Id>)| (part.0, part.1, Mode::Read);
        let (how, parts) = match self.random.below(3) {
            0 => {
                let write = |part: &(Id, Span, Vec<Id>)| (part.0, part.1, Mode::Write);
                let outs = members[1..].iter().map(write);
                (How::Broadcast, [read(&root)].into_iter().chain(outs).collect::<Vec<_>>())
            }
            number => {
                let Some(block) = self.random.pick(&others) else { return };
                let joins = number == 1;
                let bytes = if joins { 256 * members.len() as u64 } else { 256 };
                let Some(out) = self.range_of(block, bytes) else { return };
                let how = if joins { How::Gather } else { How::Sum };
                let out = (root.0, out, Mode::Write);
                (how, members.iter().map(read).chain([out]).collect())
            }
        };
        self.add(Step::Collective { how, parts });
    }
}
