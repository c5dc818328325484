//! A program under way: the library's side by handles, the model's side beside it, and how the two
//! are compared after every step.

use super::api::{self, Failure, Handle, Outcome};
use super::books::{Held, Live, Stats, WINDOW};
use super::hands::{Hands, THREADS};
use super::ops::{How, Injected, On, Op, SLOTS};
use super::order::{Kind, Order, Point};
use super::view::View;
use std::collections::{BTreeMap, BTreeSet};

/// The simulated machine of a program.
#[derive(Clone, Debug)]
pub struct Machine {
    pub devices: i32,
    pub memory_mib: u64,
    pub peers: &'static str,
    pub schedule: String,
    /// Does idle memory of one stream serve another?
    pub shares: bool,
}

impl Machine {
    pub fn options(&self) -> String {
        let Machine { devices, memory_mib, peers, schedule, .. } = self;
        format!("devices={devices},memory={memory_mib}MiB,peers={peers},schedule={schedule}")
    }

    /// Configures the library once there is a machine.
    pub fn configure(&self) {
        let text = if self.shares { "True" } else { "False" };
        api::configure(&format!("sharing_threshold:0,share_between_streams:{text}"));
    }

    pub fn is_immediate(&self) -> bool {
        self.schedule == "immediate"
    }
}

/// What a handle or a current stream stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Queue(usize),
    /// The default stream of whichever thread uses it.
    PerThread,
}

#[derive(Clone, Copy, Debug)]
pub struct Slot {
    pub handle: Handle,
    pub device: i32,
    pub what: What,
    /// A stream of the host's own, which goes with the handle.
    pub native: Option<usize>,
}

#[derive(Clone, Debug)]
pub struct Event {
    pub handle: Handle,
    pub timing: bool,
    pub device: i32,
    pub recorded: Option<(Point, super::order::Clock)>,
}

/// Which pending blocks a step may free, or must.
#[derive(Clone, Copy, Debug)]
pub enum Settled {
    Nothing,
    Arena { held: Held, must: bool },
    All { must: bool },
}

/// A stream argument: the handle to pass, and what it means for the calling thread.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    pub handle: Handle,
    pub device: i32,
    pub queue: usize,
}

pub struct World {
    pub machine: Machine,
    pub hands: Hands,
    pub order: Order,
    pub slots: [Option<Slot>; SLOTS],
    pub events: [Option<Event>; SLOTS],
    pub current: [Vec<What>; THREADS],
    pub device: [i32; THREADS],
    pub legacy: Vec<usize>,
    per_thread: Vec<[usize; THREADS]>,
    /// Queues of pooled streams, which come again, by device and native handle.
    pub pooled: BTreeMap<(i32, usize), usize>,
    /// Native handle and id of each queue.
    pub names: BTreeMap<usize, (usize, i64)>,
    pub live: BTreeMap<u64, Live>,
    pub pending: BTreeMap<u64, Held>,
    pub freed: Vec<u64>,
    pub stats: Vec<Stats>,
    /// Lowest address that an arena ever had, by its queue and class: its base.
    pub bases: BTreeMap<(usize, bool), u64>,
    /// What this step allocated, and the thread that did it.
    pub made: Option<(u64, Held, usize)>,
    pub armed: Option<Injected>,
    /// A failure may have kept the driver from taking memory back.
    pub has_lost: bool,
    /// Native handles may have come back for another stream.
    pub has_recycled: bool,
    /// Queues whose stream is gone: their memory serves others at any allocation.
    pub ended: BTreeSet<usize>,
    pub log: Vec<String>,
}

impl World {
    pub fn new(machine: Machine) -> World {
        api::select(&machine.options()).unwrap();
        let mut world = World {
            machine,
            hands: Hands::new(),
            order: Order::default(),
            slots: [None; SLOTS],
            events: [const { None }; SLOTS],
            current: [const { Vec::new() }; THREADS],
            device: [0; THREADS],
            legacy: Vec::new(),
            per_thread: Vec::new(),
            pooled: BTreeMap::new(),
            names: BTreeMap::new(),
            live: BTreeMap::new(),
            pending: BTreeMap::new(),
            freed: Vec::new(),
            stats: Vec::new(),
            bases: BTreeMap::new(),
            made: None,
            armed: None,
            has_lost: false,
            has_recycled: false,
            ended: BTreeSet::new(),
            log: Vec::new(),
        };
        world.begin();
        world
    }

    /// A fresh library.
    pub fn begin(&mut self) {
        let devices = self.machine.devices;
        self.machine.configure();
        self.order = Order::default();
        self.slots = [None; SLOTS];
        self.events = [const { None }; SLOTS];
        let order = &mut self.order;
        self.legacy = (0..devices).map(|device| order.add(device, Kind::Legacy)).collect();
        self.per_thread = (0..devices)
            .map(|device| [(); THREADS].map(|()| order.add(device, Kind::Blocking)))
            .collect();
        self.names = self.legacy.iter().map(|queue| (*queue, (0, 0))).collect();
        for queue in self.per_thread.as_flattened() {
            self.names.insert(*queue, (2, 2));
        }
        self.pooled.clear();
        self.live.clear();
        self.pending.clear();
        self.freed.clear();
        self.bases.clear();
        self.stats = (0..devices).map(|_| Stats::default()).collect();
        self.has_lost = false;
        self.has_recycled = false;
        self.ended.clear();
        for caller in 0..THREADS {
            self.current[caller] = self.legacy.iter().map(|queue| What::Queue(*queue)).collect();
            self.device[caller] = 0;
            self.hands.on(caller, || api::device_set(0)).unwrap();
        }
    }

    /// Makes the call under test, with the failure that goes with it.
    pub fn call<R: Send + 'static>(
        &mut self,
        caller: usize,
        call: impl FnOnce() -> Outcome<R> + Send + 'static,
    ) -> Outcome<R> {
        if let Some(injected) = self.armed {
            api::faults(&injected.text());
        }
        let outcome = self.hands.on(caller, call);
        if self.armed.is_some() {
            api::faults("");
        }
        match &outcome {
            Ok(_) => self.note("ok"),
            Err(Failure { status, text }) => self.note(&format!("status {status}: {text}")),
        }
        outcome
    }

    pub fn note(&mut self, text: &str) {
        self.log.push(format!("    {text}"));
    }

    /// A failure is only right where one was injected.
    pub fn expect<R>(&self, outcome: Outcome<R>) -> Option<R> {
        match outcome {
            Ok(result) => Some(result),
            Err(_) if self.armed.is_some() => None,
            Err(Failure { status, text }) => panic!("status {status}: {text}"),
        }
    }

    // ---- Streams ----

    pub fn queue_of(&self, what: What, device: i32, caller: usize) -> usize {
        match what {
            What::Queue(queue) => queue,
            What::PerThread => self.per_thread[device as usize][caller],
        }
    }

    /// The stream of an argument. `device` is whose current one NULL means.
    pub fn target(&self, on: On, device: i32, caller: usize) -> Target {
        match on.and_then(|slot| self.slots[slot]) {
            Some(Slot { handle, device, what, .. }) => {
                Target { handle, device, queue: self.queue_of(what, device, caller) }
            }
            None => {
                let queue = self.queue_of(self.current[caller][device as usize], device, caller);
                Target { handle: 0, device, queue }
            }
        }
    }

    /// Says what a new queue is called by the library.
    pub fn name(&mut self, queue: usize, handle: Handle) {
        self.names.insert(queue, (api::stream_native(handle), api::stream_id(handle)));
    }

    /// A handle for a queue, and the thread on which it means it.
    pub fn handle_of(&self, queue: usize, caller: usize) -> Option<(Handle, usize)> {
        if let Some(device) = self.legacy.iter().position(|legacy| *legacy == queue) {
            return Some((api::stream_default(device as i32), caller));
        }
        for slot in self.slots.iter().flatten() {
            match slot.what {
                What::Queue(known) if known == queue => return Some((slot.handle, caller)),
                What::PerThread => {
                    let threads = self.per_thread[slot.device as usize];
                    if let Some(thread) = threads.iter().position(|known| *known == queue) {
                        return Some((slot.handle, thread));
                    }
                }
                What::Queue(_) => (),
            }
        }
        None
    }

    pub fn sync_device(&mut self, device: i32) {
        api::device_synchronize(device).unwrap();
        self.order.host_waits_for_device(device);
    }

    pub fn sync_all(&mut self) {
        (0..self.machine.devices).for_each(|device| self.sync_device(device));
    }

    /// Makes the next operation of a queue come after a point, as `how` says, or by waiting for the
    /// device where the handles for it are gone.
    pub fn come_after(&mut self, queue: usize, point: Point, how: How, caller: usize) {
        if self.order.next(queue).has(point) {
            return;
        }
        let other = point.queue;
        let handles = (self.handle_of(queue, caller), self.handle_of(other, caller));
        match (how, handles) {
            (How::WaitStream | How::RecordStream, (Some((to, at)), Some((from, there))))
                if at == there || at == caller || there == caller =>
            {
                // Both are called on one thread, on which each must mean its queue.
                let thread = if there == caller { at } else { there };
                if at != there && self.is_per_thread(queue) && self.is_per_thread(other) {
                    return self.come_after(queue, point, How::Event, caller);
                }
                self.note(&format!("queue {queue} waits for queue {other}, thread {thread}"));
                self.hands.on(thread, move || api::stream_wait_stream(to, from)).unwrap();
                let (_, clock) = self.order.record(other);
                self.order.wait(queue, &clock);
            }
            (How::Event, (Some((to, at)), Some((from, there)))) => {
                self.note(&format!("queue {queue} waits for an event of queue {other}"));
                let event = api::event_create(0).unwrap();
                self.hands.on(there, move || api::event_record(event, from)).unwrap();
                self.hands.on(at, move || api::event_wait(event, to)).unwrap();
                api::event_destroy(event).unwrap();
                let (_, clock) = self.order.record(other);
                self.order.wait(queue, &clock);
            }
            (How::SyncStream, (_, Some((from, there)))) => {
                self.note(&format!("the host waits for queue {other}"));
                self.hands.on(there, move || api::stream_synchronize(from)).unwrap();
                self.order.host_waits(other);
            }
            _ => {
                let device = self.order.device(other);
                self.note(&format!("the host waits for device {device}"));
                self.sync_device(device);
            }
        }
    }

    pub fn is_per_thread(&self, queue: usize) -> bool {
        self.per_thread.as_flattened().contains(&queue)
    }

    // ---- Blocks ----

    pub fn pick(&self, pick: usize) -> Option<u64> {
        self.live.keys().copied().nth(pick % self.live.len().max(1))
    }

    /// A queue is about to read or write a block: after its last write and, for a write, after the
    /// reads as well.
    pub fn before_use(
        &mut self,
        address: u64,
        queue: usize,
        writes: bool,
        how: How,
        caller: usize,
    ) {
        let block = &self.live[&address];
        let mut points: Vec<Point> = block.written.into_iter().collect();
        if writes {
            points.extend(&block.reads);
        }
        for point in points {
            self.come_after(queue, point, how, caller);
        }
    }

    pub fn used(&mut self, address: u64, point: Point, writes: bool) {
        let Some(block) = self.live.get_mut(&address) else { return };
        block.uses.insert(point.queue, point);
        if writes {
            block.written = Some(point);
            block.reads.clear();
        } else {
            block.reads.push(point);
        }
    }

    /// What the device has in a block, once everything is done.
    pub fn contents(&self, address: u64) -> Vec<u8> {
        let block = &self.live[&address];
        let mut bytes = vec![0; WINDOW.min(block.held.requested as usize)];
        let device = api::device_of(address);
        api::copy(
            bytes.as_mut_ptr() as u64,
            address + block.offset,
            bytes.len(),
            api::stream_default(device),
        )
        .unwrap();
        api::stream_synchronize(api::stream_default(device)).unwrap();
        bytes
    }

    pub fn run(&mut self, op: &Op, number: usize) {
        self.log.push(format!("{number:3}. {op}"));
        self.armed = op.injected;
        let rules = op.injected.iter().flat_map(Injected::rules);
        self.has_lost |= rules.into_iter().any(|rule| matches!(rule.call, "*" | "cuMemUnmap"));
        let settled = self.apply(op.caller, &op.act);
        if op.injected.is_some_and(|injected| injected.may_keep_context()) {
            let device = self.device[op.caller];
            self.hands.on(op.caller, move || api::device_set(device)).unwrap();
        }
        let view = View::take();
        self.settle(&view, settled);
        self.finish_step(&view);
        self.compare(&view);
    }

    /// Frees everything and stops.
    pub fn end(&mut self) {
        self.log.push("end: everything is compared and freed".to_owned());
        self.armed = None;
        self.sync_all();
        for address in self.live.keys().copied().collect::<Vec<_>>() {
            if let Some(bytes) = &self.live[&address].bytes {
                assert_eq!(&self.contents(address), bytes, "contents of {address:#x}");
            }
        }
        for address in self.live.keys().copied().collect::<Vec<_>>() {
            api::free(address).unwrap();
            self.forget(address);
        }
        api::empty_cache().unwrap();
        let view = View::take();
        self.settle(&view, Settled::All { must: true });
        self.compare(&view);
        assert!(view.segments.is_empty(), "memory is left in the cache");
        let handles = self.owned_handles();
        assert_eq!(api::shutdown(), handles, "live handles");
    }

    pub fn owned_handles(&self) -> usize {
        self.slots.iter().flatten().count() + self.events.iter().flatten().count()
    }
}
