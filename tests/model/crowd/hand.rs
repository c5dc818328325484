//! One thread of a crowd: the blocks in its hand and what it does with them, as a careful program
//! would. A thread that uses a block on a stream first makes that stream wait for the last use,
//! wherever that was; a thread that frees it does so for the stream that it came from, or names the
//! other one.

use super::super::api::{self, Handle, OUT_OF_MEMORY, Outcome};
use super::super::books::{WINDOW, round_size};
use super::super::ops::{KIB, MIB, SMALL_ARENA};
use super::super::view::View;
use super::books::Tally;
use super::plan::{Choice, Flavour, Plan, Round};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// A block, which goes from hand to hand.
#[derive(Clone, Debug)]
pub struct Item {
    pub address: u64,
    pub device: usize,
    /// Number of its stream among those of its device.
    pub stream: usize,
    pub requested: u64,
    /// The stream of its last use, and whether `event` stands for the end of that.
    last: usize,
    is_marked: bool,
    event: Handle,
    /// What is in its window; nothing if that is not known.
    byte: Option<u8>,
    is_recorded: bool,
}

/// An owned block: its size, device and stream.
pub type Owned = BTreeMap<u64, (u64, usize, usize)>;

/// What the threads share.
pub struct Square {
    pub plan: Plan,
    /// By device: the default one, those that all use, and one of each thread.
    pub streams: Vec<Vec<Handle>>,
    /// Blocks on their way to a thread.
    pub mail: Vec<Mutex<Vec<Item>>>,
    pub owned: Mutex<Owned>,
    /// Blocks freed for other streams, with their sizes: they may be shown as waiting.
    pub left_waiting: Mutex<BTreeMap<u64, Vec<u64>>>,
    pub operations: AtomicU64,
    pub handed_over: AtomicU64,
}

pub struct Hand {
    pub number: usize,
    pub items: Vec<Item>,
    pub choice: Choice,
    pub tallies: Vec<Tally>,
    pub log: Vec<String>,
}

impl Hand {
    /// What a thread does in a round.
    pub fn run(&mut self, square: &Square, round: &Round) {
        for _ in 0..round.steps {
            self.step(square, round);
            square.operations.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn note(&mut self, text: impl FnOnce() -> String) {
        let text = text();
        self.log.push(format!("thread {}: {text}", self.number));
    }

    /// A failure is only right where calls were made to fail.
    fn expect<R>(&mut self, round: &Round, outcome: Outcome<R>) -> Option<R> {
        match outcome {
            Ok(result) => Some(result),
            Err(failure) => {
                self.note(|| format!("    {failure:?}"));
                assert!(!round.faults.is_empty(), "{failure:?}");
                None
            }
        }
    }

    fn step(&mut self, square: &Square, round: &Round) {
        match self.choice.below(100) {
            0..=31 if round.flavour != Flavour::Free => self.allocate(square, round),
            0..=51 if round.flavour != Flavour::Allocate => self.free(square, round),
            52..=65 => self.hand_over(square, round),
            66..=74 => self.take(square, round),
            75..=79 => self.fill(square, round),
            80..=85 => self.check(square, round),
            86..=89 => self.copy(square, round),
            90..=94 => self.record(square),
            95 => self.record_all(square),
            96 if round.flavour != Flavour::Allocate => {
                self.note(|| "empty the cache".to_owned());
                let outcome = api::empty_cache();
                self.expect(round, outcome);
            }
            97 | 98 => drop(View::take()),
            _ => {
                let device = self.choice.below(square.streams.len());
                let stream = self.stream(square, device);
                self.note(|| format!("wait for stream {stream} of device {device}"));
                let outcome = api::stream_synchronize(square.streams[device][stream]);
                self.expect(round, outcome);
            }
        }
    }

    /// One of the streams that this thread uses.
    fn stream(&mut self, square: &Square, device: usize) -> usize {
        let streams = square.streams[device].len();
        let own = streams - square.plan.threads + self.number;
        if self.choice.once_in(2) { own } else { self.choice.below(square.plan.shared + 1) }
    }

    fn pick(&mut self) -> Option<usize> {
        (!self.items.is_empty()).then(|| self.choice.below(self.items.len()))
    }

    fn bytes(&mut self, plan: &Plan) -> u64 {
        let Plan { sizes, largest, .. } = plan;
        if !sizes.is_empty() {
            return self.choice.of(sizes);
        }
        match self.choice.below(9) {
            0 | 1 => self.choice.between(1, 2 * KIB),
            2 => self.choice.between(510, 514),
            3 | 4 => self.choice.between(1, MIB),
            5 => self.choice.between(MIB - 520, MIB + 520),
            6 => self.choice.between(SMALL_ARENA - 520, SMALL_ARENA + 520),
            _ => self.choice.between(MIB, *largest),
        }
    }

    fn allocate(&mut self, square: &Square, round: &Round) {
        let device = self.choice.below(square.streams.len());
        let stream = self.stream(square, device);
        let requested = self.bytes(&square.plan);
        let is_small = round_size(requested) <= MIB;
        // A roomy machine stays so.
        let is_full = self.items.len() >= 40;
        if is_full || !square.plan.allows(round.flavour, self.number, is_small, device) {
            return;
        }
        let handle = square.streams[device][stream];
        self.note(|| format!("allocate {requested} on stream {stream} of device {device}"));
        match api::malloc(requested, device as i32, handle) {
            Ok(address) => {
                self.note(|| format!("    at {address:#x}"));
                self.own(square, round, (address, device, stream, requested));
            }
            Err(failure) if failure.status == OUT_OF_MEMORY => {
                self.note(|| "    out of memory".to_owned());
                let is_right = !square.plan.is_roomy || !round.faults.is_empty();
                assert!(is_right, "there is memory enough: {failure:?}");
                self.tallies[device].ooms += 1;
            }
            failed => drop(self.expect(round, failed)),
        }
    }

    /// A new block: it overlaps no other, and is filled in the order of its stream.
    fn own(
        &mut self,
        square: &Square,
        round: &Round,
        (address, device, stream, requested): (u64, usize, usize, u64),
    ) {
        assert_eq!(address % 512, 0);
        assert_eq!(api::device_of(address), device as i32);
        self.tallies[device].allocate(requested);
        {
            let mut owned = square.owned.lock().unwrap();
            let bytes = round_size(requested);
            if let Some((before, (size, ..))) = owned.range(..address + bytes).next_back() {
                let end = before + round_size(*size);
                assert!(end <= address, "{address:#x} is in the block at {before:#x}");
            }
            owned.insert(address, (requested, device, stream));
        }
        let event = api::event_create(0).unwrap();
        let (last, is_marked, byte, is_recorded) = (stream, false, None, false);
        let mut item =
            Item { address, device, stream, requested, last, is_marked, event, byte, is_recorded };
        self.fill_item(square, round, &mut item, stream);
        self.items.push(item);
    }

    /// Makes a stream come after the last use of a block.
    fn come_after(
        &mut self,
        square: &Square,
        round: &Round,
        item: &mut Item,
        stream: usize,
    ) -> bool {
        if item.last == stream {
            return true;
        }
        let streams = &square.streams[item.device];
        if !item.is_marked {
            let outcome = api::event_record(item.event, streams[item.last]);
            if self.expect(round, outcome).is_none() {
                return false;
            }
            item.is_marked = true;
        }
        let outcome = api::event_wait(item.event, streams[stream]);
        self.expect(round, outcome).is_some()
    }

    /// Work on a block: what it does is in the order of its other uses, also when it fails.
    fn work(
        &mut self,
        square: &Square,
        round: &Round,
        item: &mut Item,
        stream: usize,
        work: impl FnOnce(u64, usize, Handle) -> Outcome<()>,
    ) -> bool {
        if !self.come_after(square, round, item, stream) {
            return false;
        }
        let (at, count) = item.window();
        let outcome = work(at, count, square.streams[item.device][stream]);
        (item.last, item.is_marked) = (stream, false);
        self.expect(round, outcome).is_some()
    }

    fn fill_item(&mut self, square: &Square, round: &Round, item: &mut Item, stream: usize) {
        let byte = self.choice.next() as u8;
        let before = item.byte.take();
        let mut is_begun = false;
        let is_done = self.work(square, round, item, stream, |at, count, stream| {
            is_begun = true;
            api::fill(at, byte, count, stream)
        });
        item.byte = if is_done { Some(byte) } else { before.filter(|_| !is_begun) };
    }

    fn with_item(&mut self, body: impl FnOnce(&mut Hand, &mut Item)) {
        let Some(index) = self.pick() else { return };
        let mut item = self.items.swap_remove(index);
        body(self, &mut item);
        self.items.push(item);
    }

    fn fill(&mut self, square: &Square, round: &Round) {
        self.with_item(|hand, item| {
            let stream = hand.stream(square, item.device);
            hand.note(|| format!("fill {:#x} on stream {stream}", item.address));
            hand.fill_item(square, round, item, stream);
        });
    }

    /// The bytes are those of the last write.
    fn check(&mut self, square: &Square, round: &Round) {
        self.with_item(|hand, item| {
            let stream = hand.stream(square, item.device);
            hand.note(|| format!("read {:#x} on stream {stream}", item.address));
            let mut found = [0; WINDOW];
            let is_done = hand.work(square, round, item, stream, |at, count, stream| {
                api::copy(found.as_mut_ptr() as u64, at, count, stream)
            });
            let (address, count) = (item.address, item.window().1);
            if let Some(byte) = item.byte.filter(|_| is_done) {
                let wrong = found[..count].iter().position(|found| *found != byte);
                assert_eq!(
                    wrong.map(|at| (at, found[at])),
                    None,
                    "{address:#x}: not all {byte:#x}"
                );
            }
        });
    }

    /// From one block of a device to another.
    fn copy(&mut self, square: &Square, round: &Round) {
        self.with_item(|hand, to| {
            let Some(index) = hand.pick() else { return };
            let mut from = hand.items.swap_remove(index);
            let stream = hand.stream(square, to.device);
            let fits = from.window().1 == to.window().1 && from.device == to.device;
            if fits && hand.come_after(square, round, &mut from, stream) {
                hand.note(|| {
                    format!("copy {:#x} to {:#x} on stream {stream}", from.address, to.address)
                });
                let (source, byte) = (from.window().0, from.byte);
                let mut is_begun = false;
                let is_done = hand.work(square, round, to, stream, |at, count, stream| {
                    is_begun = true;
                    api::copy(at, source, count, stream)
                });
                if is_begun {
                    (from.last, from.is_marked) = (stream, false);
                    to.byte = byte.filter(|_| is_done);
                }
            }
            hand.items.push(from);
        });
    }

    fn record(&mut self, square: &Square) {
        self.with_item(|hand, item| {
            let device = hand.choice.below(square.streams.len());
            let stream = hand.stream(square, device);
            let address = item.address;
            hand.note(|| format!("record stream {stream} of device {device} for {address:#x}"));
            // It asks nothing of the driver.
            api::record_stream(address, square.streams[device][stream]).unwrap();
            item.is_recorded |= (device, stream) != (item.device, item.stream);
        });
    }

    /// All blocks in the hand are used on one stream: when they are freed, many wait together.
    fn record_all(&mut self, square: &Square) {
        let device = self.choice.below(square.streams.len());
        let stream = self.stream(square, device);
        self.note(|| format!("record stream {stream} of device {device} for all"));
        for item in &mut self.items {
            api::record_stream(item.address, square.streams[device][stream]).unwrap();
            item.is_recorded |= (device, stream) != (item.device, item.stream);
        }
    }

    fn hand_over(&mut self, square: &Square, round: &Round) {
        let to = self.choice.below(square.plan.threads);
        if matches!(round.flavour, Flavour::Split | Flavour::Devices) {
            return;
        }
        if let Some(index) = self.pick() {
            let item = self.items.swap_remove(index);
            self.note(|| format!("hand {:#x} to thread {to}", item.address));
            square.mail[to].lock().unwrap().push(item);
            square.handed_over.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn take(&mut self, square: &Square, round: &Round) {
        if matches!(round.flavour, Flavour::Split | Flavour::Devices) {
            return;
        }
        let item = square.mail[self.number].lock().unwrap().pop();
        if let Some(item) = item {
            self.note(|| format!("take {:#x}", item.address));
            self.items.push(item);
        }
    }

    fn free(&mut self, square: &Square, round: &Round) {
        let Some(index) = self.pick() else { return };
        let is_small = round_size(self.items[index].requested) <= MIB;
        let device = self.items[index].device;
        if square.plan.allows(round.flavour, self.number, is_small, device) {
            let item = self.items.swap_remove(index);
            self.let_go(square, round, item);
        }
    }

    /// Frees a block, whichever thread allocated it.
    pub fn let_go(&mut self, square: &Square, round: &Round, mut item: Item) {
        let Item { address, device, stream, requested, .. } = item;
        self.note(|| format!("free {address:#x}, last used on stream {}", item.last));
        if item.last != stream {
            let waits = self.choice.once_in(2);
            if !waits || !self.come_after(square, round, &mut item, stream) {
                api::record_stream(address, square.streams[device][item.last]).unwrap();
                item.is_recorded = true;
            }
        }
        if item.is_recorded {
            let mut left_waiting = square.left_waiting.lock().unwrap();
            left_waiting.entry(address).or_default().push(requested);
            self.tallies[device].left_waiting += 1;
        }
        square.owned.lock().unwrap().remove(&address).unwrap();
        // Before the free, so that the peaks of others are not too low.
        self.tallies[device].free(requested);
        api::free(address).unwrap();
        let destroyed = api::event_destroy(item.event);
        self.expect(round, destroyed);
    }
}

impl Item {
    /// The bytes that are followed: the first or the last ones.
    fn window(&self) -> (u64, usize) {
        let count = WINDOW.min(self.requested as usize);
        let offset =
            if (self.address / 512).is_multiple_of(2) { 0 } else { self.requested - count as u64 };
        (self.address + offset, count)
    }
}
