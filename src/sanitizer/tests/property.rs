//! Random programs that run on the sanitizer and on the model.

use super::super::clock::Stamp;
use super::super::domain::{Kind, StreamInfo};
use super::super::recording::Recorded;
use super::super::state::{Named, State};
use super::super::text::Label;
use super::super::{Bytes, Mode, Touch};
use super::model::{Model, Pair};
use std::collections::{BTreeMap, BTreeSet};

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % end
    }
}

const BASE: u64 = 4096;
/// The most bytes of a block. Each block lies in its own region of this size; the last region is in
/// no block.
const BLOCK: u64 = 48;
const BLOCKS: u64 = 4;

/// A program.
struct Run {
    random: Random,
    state: State,
    model: Model,
    streams: Vec<StreamInfo>,
    /// Start and size of each live block.
    live: [Option<(u64, u64)>; BLOCKS as usize],
    /// The number of the active capture, or 0.
    capture: u64,
    captures: u64,
    joined: Vec<usize>,
    recorded: Vec<(Recorded, BTreeMap<u64, bool>)>,
    points: Vec<(Stamp, usize)>,
    /// Races so far, by the model.
    races: BTreeSet<Pair>,
    /// After the first race, an access can replace an earlier one in a cell. From then on each
    /// report must be a race, but not each race is reported.
    has_raced: bool,
    seen: usize,
}

/// The accesses of an operation, for both.
struct TouchSet {
    touches: Vec<Touch<'static>>,
    bytes: BTreeMap<u64, bool>,
}

impl Run {
    fn new(seed: u64) -> Run {
        let mut random = Random(seed);
        random.below(2);
        let devices = 1 + random.below(2) as i32;
        let mut streams = Vec::new();
        for device in 0..devices {
            for (index, kind) in
                [Kind::NonBlocking, Kind::Legacy, Kind::Blocking, Kind::NonBlocking, Kind::Blocking]
                    .into_iter()
                    .enumerate()
                    .take(2 + random.below(4) as usize)
            {
                let key = device as u64 * 100 + index as u64 + 1;
                streams.push(StreamInfo { key, id: key as i64, device, kind });
            }
        }
        let mut state = State::new();
        state.is_on = true;
        state.main.recycle_at = [0, 3, 64][random.below(3) as usize];
        state.max_runs = [0, 3, 256][random.below(3) as usize];
        Run {
            random,
            state,
            model: Model::default(),
            streams,
            live: [None; BLOCKS as usize],
            capture: 0,
            captures: 0,
            joined: Vec::new(),
            recorded: Vec::new(),
            points: Vec::new(),
            races: BTreeSet::new(),
            has_raced: false,
            seen: 0,
        }
    }

    /// A stream on which something can be queued now, in the current domain.
    fn stream(&mut self) -> StreamInfo {
        if self.capture != 0 {
            let place = self.random.below(self.joined.len() as u64) as usize;
            return self.streams[self.joined[place]];
        }
        self.streams[self.random.below(self.streams.len() as u64) as usize]
    }

    /// A random address in live memory, and the bytes from there to the end of its block.
    fn place(&mut self) -> (u64, u64) {
        let region = self.random.below(BLOCKS + 1);
        let live = self.live.get(region as usize).copied().flatten();
        let (start, bytes) = live.unwrap_or((BASE + BLOCKS * BLOCK, BLOCK));
        let offset = self.random.below(bytes);
        (start + offset, bytes - offset)
    }

    fn random_touches(&mut self) -> TouchSet {
        let mut set = TouchSet { touches: Vec::new(), bytes: BTreeMap::new() };
        for _ in 0..1 + self.random.below(2) {
            let (ptr, room) = self.place();
            let mode = [Mode::Read, Mode::Write, Mode::ReadWrite][self.random.below(3) as usize];
            let bytes = 1 + self.random.below(room.min(12));
            let (mut rows, mut pitch) = (1, 0);
            if self.random.below(3) == 0 {
                pitch = bytes + self.random.below(6);
                rows = 1 + self.random.below((room - bytes) / pitch + 1);
            }
            set.touches.push(Touch { bytes: Bytes::Rows { ptr, bytes, rows, pitch }, mode });
            for row in 0..rows {
                for byte in ptr + row * pitch..ptr + row * pitch + bytes {
                    *set.bytes.entry(byte).or_default() |= mode != Mode::Read;
                }
            }
        }
        set
    }

    fn named(&self) -> Named {
        Named { label: Label::Library("test"), frames: 0 }
    }

    /// Runs one action.
    fn step(&mut self) {
        let stream = self.stream();
        let (capture, named) = (self.capture, self.named());
        let choice = self.random.below(if capture == 0 { 24 } else { 12 });
        let event = self.random.below(3);
        if std::env::var_os("TCUDA_MODEL_VERBOSE").is_some() {
            println!(
                "{choice} stream {} {:?} event {event} capture {capture}",
                stream.key, stream.kind
            );
        }
        let (state, model) = (&mut self.state, &mut self.model);
        let races = match choice {
            0..=5 => {
                let set = self.random_touches();
                self.state.operation(capture, stream, named, &set.touches).unwrap();
                self.model.operation(capture, stream, set.bytes)
            }
            6 | 7 => {
                state.event_recorded(capture, event, stream).unwrap();
                model.record(capture, event, stream);
                BTreeSet::new()
            }
            8 | 9 => {
                state.event_waited(capture, event, stream).unwrap();
                model.wait(capture, event, stream);
                BTreeSet::new()
            }
            10 => {
                let other = self.stream();
                if other == stream {
                    return;
                }
                self.state.stream_waits(capture, stream, other).unwrap();
                self.model.stream_waits(capture, stream, other);
                BTreeSet::new()
            }
            11 if capture != 0 => return self.captured(),
            11 => return self.begin(),
            12..=14 => return self.wait_of_host(stream, event),
            15..=19 => return self.block(),
            20 => return self.collective(),
            21 => {
                state.waits_for_everything(0, stream).unwrap();
                model.waits_for_everything(stream);
                BTreeSet::new()
            }
            _ => return self.launch(stream),
        };
        self.compare(&races);
    }

    /// Checks the reports against the races of the model.
    fn compare(&mut self, races: &BTreeSet<Pair>) {
        let count = self.state.reports.count;
        let known = self.seen..count;
        self.races.extend(races);
        for index in known.clone() {
            let report = self.state.reports.get(index).expect("a report that is not kept");
            let pair = (report.current.sequence, report.previous.sequence);
            assert!(self.races.contains(&pair), "{pair:?} is ordered: {report:?}");
            assert!(report.bytes > 0 && report.start >= BASE);
        }
        self.seen = count;
        if !self.has_raced {
            assert_eq!(known.is_empty(), races.is_empty(), "{races:?}: {known:?}");
        }
        self.has_raced |= !races.is_empty();
    }

    fn wait_of_host(&mut self, stream: StreamInfo, event: u64) {
        let (state, model) = (&mut self.state, &mut self.model);
        let point = match self.random.below(5) {
            0 => {
                let stamp = state.point_of_stream(stream).unwrap();
                stamp.map(|stamp| (stamp, model.point_of_stream(stream)))
            }
            1 => {
                let stamp = state.point_of_event(event);
                let node = model.point_of_event(event);
                assert_eq!(stamp.is_some(), node.is_some());
                stamp.zip(node)
            }
            2 => {
                let device = Some(stream.device);
                Some((state.point_of_all(device).unwrap(), model.point_of_all(device)))
            }
            _ => None,
        };
        if let Some(point) = point {
            self.points.push(point);
        }
        // Some points are reached at once, some later.
        if self.random.below(2) == 0
            && let Some((stamp, node)) = self.points.pop()
        {
            self.state.reached(&stamp).unwrap();
            self.model.reached(node);
        }
    }

    /// Allocates, uses or frees a block. A block always has the same owner; the last is pinned
    /// memory.
    fn block(&mut self) {
        let index = self.random.below(BLOCKS);
        let owner = (index + 1 < BLOCKS).then(|| self.streams[index as usize % self.streams.len()]);
        let region = BASE + index * BLOCK;
        let Some((start, bytes)) = self.live[index as usize] else {
            // The whole region, or a random part.
            let (mut start, mut bytes) = (region, BLOCK);
            if self.random.below(2) == 0 {
                let offset = self.random.below(BLOCK);
                (start, bytes) = (region + offset, 1 + self.random.below(BLOCK - offset));
            }
            self.state.allocated(0, (start, bytes), owner, 0).unwrap();
            self.model.allocated(0, (start..start + bytes).collect(), owner);
            self.live[index as usize] = Some((start, bytes));
            return;
        };
        if self.random.below(2) == 0 {
            let stream = self.stream();
            self.state.used_on(start + self.random.below(bytes), stream.key).unwrap();
            if owner != Some(stream) {
                self.model.used(start, stream);
            }
        } else {
            self.state.freed(start).unwrap();
            self.model.freed(start);
            self.live[index as usize] = None;
        }
    }

    fn collective(&mut self) {
        let mut members: Vec<(StreamInfo, TouchSet)> = Vec::new();
        for stream in self.streams.clone() {
            if self.random.below(2) == 0 && stream.kind == Kind::NonBlocking {
                let set = self.random_touches();
                members.push((stream, set));
            }
        }
        let list: Vec<_> =
            members.iter().map(|(stream, set)| (0, *stream, &set.touches[..])).collect();
        self.state.collective(self.named(), &list).unwrap();
        let members = members.into_iter().map(|(stream, set)| (stream, set.bytes)).collect();
        let races = self.model.collective(members);
        self.compare(&races);
    }

    fn begin(&mut self) {
        let free = self.streams.iter().position(|stream| stream.kind != Kind::Legacy);
        let Some(origin) = free.filter(|_| self.captures < 3) else { return };
        self.captures += 1;
        self.capture = self.captures;
        self.joined = vec![origin];
    }

    /// Adds a stream to the capture, or ends the capture.
    fn captured(&mut self) {
        let (capture, origin) = (self.capture, self.streams[self.joined[0]]);
        let other = self.random.below(self.streams.len() as u64) as usize;
        let is_new = !self.joined.contains(&other) && self.streams[other].kind != Kind::Legacy;
        if self.random.below(3) > 0 {
            if is_new {
                self.joined.push(other);
                let stream = self.streams[other];
                self.state.stream_waits(capture, stream, origin).unwrap();
                self.model.stream_waits(capture, stream, origin);
            }
            return;
        }
        let recorded = self.state.capture_ended(capture).unwrap();
        let bytes = self.model.end(capture);
        assert_eq!(recorded.is_none(), bytes.is_empty() && recorded.is_none());
        if let Some(recorded) = recorded {
            self.recorded.push((recorded, bytes));
        }
        self.capture = 0;
    }

    fn launch(&mut self, stream: StreamInfo) {
        if self.recorded.is_empty() {
            return;
        }
        let index = self.random.below(self.recorded.len() as u64) as usize;
        let (recorded, bytes) = &self.recorded[index];
        // Memory that is freed is not accessed.
        let is_there = |byte: &u64| {
            let Some(live) = self.live.get(((byte - BASE) / BLOCK) as usize) else { return true };
            live.is_some_and(|(start, bytes)| (start..start + bytes).contains(byte))
        };
        if !bytes.keys().all(is_there) {
            return;
        }
        self.state.launched(0, stream, index as u64, 0, Some(recorded)).unwrap();
        let races = self.model.launched(stream, index as u64, bytes.clone());
        self.compare(&races);
    }
}

/// Runs a program; returns whether it had a race.
fn run(seed: u64, steps: usize) -> bool {
    let mut run = Run::new(seed);
    for _ in 0..steps {
        run.step();
        run.state.check();
    }
    run.has_raced
}

#[test]
fn the_first_race_is_found_and_only_races_are() {
    let only = std::env::var("TCUDA_MODEL_SEED").ok().and_then(|seed| seed.parse().ok());
    let count = std::env::var("PROPTEST_CASES").ok().and_then(|count| count.parse().ok());
    let seeds = only.map_or(0..count.unwrap_or(300), |seed: u64| seed..seed + 1);
    let mut races = 0;
    for seed in seeds.clone() {
        let outcome = std::panic::catch_unwind(|| run(seed, 50 + seed as usize % 100));
        races += usize::from(outcome.unwrap_or_else(|_| panic!("seed {seed}")));
    }
    assert!(only.is_some() || races * 3 > seeds.count(), "{races} races");
}
