//! What each operation does, to the library and to the model.

use super::api::{self, DEVICE_LOST, INVALID_POINTER, OUT_OF_MEMORY, Outcome};
use super::books::{Held, Live, WINDOW};
use super::ops::{Act, How, MIB, On};
use super::order::Point;
use super::view::View;
use super::world::{Settled, World};
use std::collections::{BTreeMap, BTreeSet};

fn is_invalid_pointer<R: std::fmt::Debug>(outcome: Outcome<R>) {
    assert_eq!(outcome.unwrap_err().status, INVALID_POINTER);
}

impl World {
    pub fn on_machine(&self, device: i32) -> i32 {
        device % self.machine.devices
    }

    /// Does it; says which pending blocks may have become free.
    pub fn apply(&mut self, caller: usize, act: &Act) -> Settled {
        match *act {
            Act::Malloc { device, on, bytes } => return self.malloc(caller, device, on, bytes),
            Act::Free { block, how } => self.free(caller, block, how),
            Act::FreeAgain { pick } => {
                let address = self.freed.get(pick % self.freed.len().max(1)).copied();
                if let Some(address) = address.filter(|address| !self.live.contains_key(address)) {
                    self.is_refused(address);
                }
            }
            Act::FreeInside { block, offset } => {
                let inside = self.pick(block).map(|address| address + offset);
                if let Some(address) = inside.filter(|address| !self.live.contains_key(address)) {
                    self.is_refused(address);
                }
            }
            Act::FreeForeign { address } => {
                if address != 0 && !self.live.contains_key(&address) {
                    self.is_refused(address);
                }
            }
            Act::RecordStream { block, on } => {
                let Some(address) = self.pick(block) else { return Settled::Nothing };
                let held = self.live[&address].held;
                let target = self.target(on, held.device, caller);
                let handle = target.handle;
                let outcome = self.call(caller, move || api::record_stream(address, handle));
                if self.expect(outcome).is_some() && target.queue != held.queue {
                    self.live.get_mut(&address).unwrap().recorded.insert(target.queue);
                }
            }
            Act::Fill { block, on, byte, how } => self.fill(caller, block, on, byte, how),
            Act::Copy { to, from, on, how } => self.copy(caller, to, from, on, how),
            Act::Read { block, on, how } => self.read(caller, block, on, how),
            Act::Write { block, on, byte, how } => self.write(caller, block, on, byte, how),
            Act::CreateStream { slot, device, priority } => {
                self.destroy_stream(caller, slot);
                self.create_stream(caller, slot, device, priority);
            }
            Act::WrapStream { slot, device, what } => {
                self.destroy_stream(caller, slot);
                self.wrap_stream(caller, slot, device, what);
            }
            Act::DestroyStream { slot } => self.destroy_stream(caller, slot),
            Act::SetCurrent { on } => {
                let Some(slot) = on.and_then(|slot| self.slots[slot]) else {
                    return Settled::Nothing;
                };
                let outcome = self.call(caller, move || api::stream_set_current(slot.handle));
                if self.expect(outcome).is_some() {
                    self.current[caller][slot.device as usize] = slot.what;
                    self.device[caller] = slot.device;
                } else {
                    // It makes the device current first: both, or only that.
                    self.device[caller] = self.hands.on(caller, api::device_current);
                }
            }
            Act::SetDevice { device } => {
                let device = self.on_machine(device);
                let outcome = self.call(caller, move || api::device_set(device));
                if self.expect(outcome).is_some() {
                    self.device[caller] = device;
                }
            }
            Act::CreateEvent { .. }
            | Act::DestroyEvent { .. }
            | Act::Record { .. }
            | Act::Wait { .. }
            | Act::QueryEvent { .. }
            | Act::SyncEvent { .. }
            | Act::Elapsed { .. } => self.apply_event(caller, act),
            Act::WaitStream { on, other } => {
                let (to, from) = (
                    self.target(on, self.device[caller], caller),
                    self.target(other, self.device[caller], caller),
                );
                let outcome =
                    self.call(caller, move || api::stream_wait_stream(to.handle, from.handle));
                if self.expect(outcome).is_some() {
                    let (_, clock) = self.order.record(from.queue);
                    self.order.wait(to.queue, &clock);
                }
            }
            Act::QueryStream { on } => {
                let target = self.target(on, self.device[caller], caller);
                let outcome = self.call(caller, move || api::stream_query(target.handle));
                match self.expect(outcome) {
                    Some(true) => self.order.host_waits(target.queue),
                    Some(false) => assert!(!self.machine.is_immediate(), "work is left"),
                    None => (),
                }
            }
            Act::SyncStream { on } => {
                let target = self.target(on, self.device[caller], caller);
                let outcome = self.call(caller, move || api::stream_synchronize(target.handle));
                if self.expect(outcome).is_some() {
                    self.order.host_waits(target.queue);
                }
            }
            Act::SyncDevice { device } => {
                let device = self.on_machine(device);
                let outcome = self.call(caller, move || api::device_synchronize(device));
                if self.expect(outcome).is_some() {
                    self.order.host_waits_for_device(device);
                }
            }
            Act::EmptyCache => {
                let outcome = self.call(caller, api::empty_cache);
                return Settled::All { must: self.expect(outcome).is_some() };
            }
            Act::ResetPeak { device } => {
                let device = self.on_machine(device);
                api::reset_peak(device);
                self.stats[device as usize].reset_peak();
            }
            Act::ResetAccumulated { device } => {
                let device = self.on_machine(device);
                api::reset_accumulated(device);
                self.stats[device as usize].reset_accumulated();
            }
            Act::EnablePeer { device, peer } => {
                let (device, peer) = (self.on_machine(device), self.on_machine(peer));
                if api::can_access_peer(device, peer) {
                    let outcome = self.call(caller, move || api::enable_peer_access(device, peer));
                    self.expect(outcome);
                }
            }
            Act::Lose { device } => self.lose(caller, self.on_machine(device)),
            Act::Restart => {
                let handles = self.owned_handles();
                assert_eq!(api::shutdown(), handles, "live handles");
                self.has_recycled = false;
                self.begin();
            }
        }
        Settled::Nothing
    }

    /// After a device is lost, every call that needs it says so and changes nothing; what needs no
    /// driver goes on, and shutting down gives everything back.
    fn lose(&mut self, caller: usize, device: i32) {
        self.armed = None;
        self.sync_all();
        let before = View::take();
        api::faults("*@1=lost");
        let is_lost = |outcome: Outcome<()>| {
            assert_eq!(outcome.unwrap_err().status, DEVICE_LOST);
        };
        is_lost(self.hands.on(caller, move || api::device_synchronize(device)));
        let default = api::stream_default(device);
        is_lost(self.hands.on(caller, move || api::stream_synchronize(default)));
        let event = api::event_create(0).unwrap();
        is_lost(self.hands.on(caller, move || api::event_record(event, default)));
        api::event_destroy(event).unwrap();
        // More than there is: nothing that is cached would do. That an arena's addresses are used
        // up is found out without the driver.
        let (bytes, address) = (self.machine.memory_mib * MIB + 1, self.pick(caller));
        let outcome = self.hands.on(caller, move || api::malloc(bytes, device, default));
        let status = outcome.unwrap_err().status;
        assert!(matches!(status, DEVICE_LOST | OUT_OF_MEMORY), "status {status}");
        let retries = api::statistics(device).num_alloc_retries;
        let stats = &mut self.stats[device as usize];
        if status == OUT_OF_MEMORY {
            (stats.ooms, stats.retries) = (stats.ooms + 1, stats.retries + 1);
        } else {
            // Where the addresses are used up, it is giving back what is cached that finds the
            // device lost: a retry by then.
            assert!(retries - stats.retries <= 1, "{retries} retries");
            stats.retries = retries;
        }
        let after = View::take();
        assert!(before.live().eq(after.live()), "a lost device changed live blocks");
        // What waited for streams of other devices could be found to be free.
        self.settle(&after, Settled::All { must: false });
        self.stats[device as usize].compare(device, &api::statistics(device));
        if let Some(address) = address {
            api::free(address).unwrap();
            is_invalid_pointer(api::free(address));
        }
        let handles = self.owned_handles();
        assert_eq!(api::shutdown(), handles, "live handles");
        self.has_recycled = false;
        self.begin();
    }

    fn is_refused(&mut self, address: u64) {
        is_invalid_pointer(api::free(address));
        is_invalid_pointer(api::record_stream(address, 0));
    }

    // ---- Memory ----

    fn malloc(&mut self, caller: usize, device: i32, on: On, bytes: u64) -> Settled {
        let target = self.target(on, self.on_machine(device), caller);
        let held = Held { device: target.device, queue: target.queue, requested: bytes };
        // A stream names its device as well.
        let device = if target.handle != 0 && bytes.is_multiple_of(2) { -1 } else { target.device };
        let outcome = self.call(caller, move || api::malloc(bytes, device, target.handle));
        if bytes == 0 {
            assert_eq!(self.expect(outcome).unwrap_or(0), 0);
            return Settled::Nothing;
        }
        let retries = api::statistics(held.device).num_alloc_retries;
        let has_retried = retries != self.stats[held.device as usize].retries;
        let out_of_memory = outcome.as_ref().is_err_and(|failure| failure.status == OUT_OF_MEMORY);
        if !out_of_memory {
            let address = self.expect(outcome);
            let must = address.is_some() && self.machine.is_immediate() && self.armed.is_none();
            self.made = address.map(|address| (address, held, caller));
            self.stats[held.device as usize].retries = retries;
            return if has_retried {
                Settled::All { must: false }
            } else {
                Settled::Arena { held, must }
            };
        }
        let stats = &mut self.stats[held.device as usize];
        stats.retries = retries;
        // Other calls than those for memory may have been made to say so.
        let is_counted = api::statistics(held.device).num_ooms != stats.ooms;
        assert!(is_counted || self.armed.is_some(), "out of memory, but not counted");
        stats.ooms += u64::from(is_counted);
        if self.armed.is_none() {
            let view = View::take();
            self.may_be_out_of_memory(&view, &held);
        }
        if has_retried {
            Settled::All { must: false }
        } else if is_counted {
            Settled::Nothing
        } else {
            // It looked at what waits before a call failed.
            Settled::Arena { held, must: false }
        }
    }

    /// Takes note of a block that was made in this step, and fills it.
    pub fn finish_step(&mut self, view: &View) {
        let Some((address, held, caller)) = self.made.take() else { return };
        self.note(&format!("at {address:#x} of queue {}", held.queue));
        assert_eq!(address % 512, 0);
        assert_eq!(api::device_of(address), held.device);
        self.stats[held.device as usize].hold(&held, 1);
        self.stats[held.device as usize].activate(&held, 1);
        let shown = view.blocks.range(..=address).next_back().map(|found| *found.0);
        let base = view.segments.iter().map(|segment| segment.ptr as u64);
        let base = base.filter(|start| *start <= address).max().or(shown).unwrap_or(address);
        self.learn_base(base, &held);
        let window = held.requested.min(WINDOW as u64);
        let offset = if address / 512 % 2 == 0 { 0 } else { held.requested - window };
        let live = Live {
            held,
            recorded: BTreeSet::new(),
            uses: BTreeMap::new(),
            written: None,
            reads: Vec::new(),
            offset,
            bytes: None,
        };
        assert!(self.live.insert(address, live).is_none(), "given out twice");
        self.freed.retain(|known| *known != address);
        // In the order of its own stream, as the allocating thread may.
        self.armed = None;
        let index = self.live.keys().position(|known| *known == address).unwrap();
        self.fill_on(caller, index, held.queue, (address / 512) as u8 ^ held.requested as u8);
    }

    /// The model's side of a free.
    pub fn forget(&mut self, address: u64) {
        let block = self.live.remove(&address).unwrap();
        let stats = &mut self.stats[block.held.device as usize];
        stats.hold(&block.held, -1);
        self.freed.push(address);
        if block.recorded.is_empty() {
            stats.activate(&block.held, -1);
        } else {
            self.pending.insert(address, block.held);
        }
    }

    fn free(&mut self, caller: usize, block: usize, how: How) {
        let Some(address) = self.pick(block) else { return };
        let block = self.live[&address].clone();
        for (queue, point) in block.uses {
            if queue == block.held.queue || block.recorded.contains(&queue) {
                continue;
            }
            if how == How::RecordStream
                && !self.order.next(block.held.queue).has(point)
                && let Some((handle, thread)) = self.handle_of(queue, caller)
            {
                self.note(&format!("queue {queue} is recorded, thread {thread}"));
                self.hands.on(thread, move || api::record_stream(address, handle)).unwrap();
                self.live.get_mut(&address).unwrap().recorded.insert(queue);
            } else {
                self.come_after(block.held.queue, point, how, caller);
            }
        }
        let outcome = self.call(caller, move || api::free(address));
        // It asks nothing of the driver.
        outcome.unwrap();
        self.forget(address);
    }

    // ---- Work ----

    /// Fills a new block in the order of its own stream, by whatever handle there is for it.
    fn fill_on(&mut self, caller: usize, block: usize, queue: usize, byte: u8) {
        let address = self.pick(block).unwrap();
        let Some((handle, thread)) = self.handle_of(queue, caller) else { return };
        self.fill_with(thread, address, (handle, queue), byte);
    }

    fn fill(&mut self, caller: usize, block: usize, on: On, byte: u8, how: How) {
        let Some(address) = self.pick(block) else { return };
        let target = self.target(on, self.live[&address].held.device, caller);
        self.before_use(address, target.queue, true, how, caller);
        self.fill_with(caller, address, (target.handle, target.queue), byte);
    }

    fn fill_with(
        &mut self,
        caller: usize,
        address: u64,
        (handle, queue): (usize, usize),
        byte: u8,
    ) {
        let block = &self.live[&address];
        let (at, count) = (address + block.offset, WINDOW.min(block.held.requested as usize));
        let outcome = self.call(caller, move || api::fill(at, byte, count, handle));
        self.wrote(address, queue, outcome, vec![byte; count], None);
    }

    /// After a write: its new contents, or, if it failed, the old ones or the new ones.
    fn wrote(
        &mut self,
        address: u64,
        queue: usize,
        outcome: Outcome<()>,
        bytes: Vec<u8>,
        read: Option<u64>,
    ) {
        if self.expect(outcome).is_some() {
            let point: Point = self.order.work(queue);
            self.used(address, point, true);
            if let Some(read) = read {
                self.used(read, point, false);
            }
            self.live.get_mut(&address).unwrap().bytes = Some(bytes);
            return;
        }
        self.sync_all();
        let found = self.contents(address);
        let block = self.live.get_mut(&address).unwrap();
        let is_old = block.bytes.as_ref().is_none_or(|old| *old == found);
        assert!(is_old || found == bytes, "a failed write left half of it");
        block.bytes = Some(found);
    }

    fn copy(&mut self, caller: usize, to: usize, from: usize, on: On, how: How) {
        let (Some(to), Some(from)) = (self.pick(to), self.pick(from)) else { return };
        let Some(mut bytes) = self.live[&from].bytes.clone() else { return };
        let Some(mut result) = self.live[&to].bytes.clone() else { return };
        if to == from {
            return;
        }
        let target = self.target(on, self.live[&to].held.device, caller);
        self.before_use(from, target.queue, false, how, caller);
        self.before_use(to, target.queue, true, how, caller);
        let count = bytes.len().min(result.len());
        bytes.truncate(count);
        result[..count].copy_from_slice(&bytes);
        let (dst, src) = (to + self.live[&to].offset, from + self.live[&from].offset);
        let outcome = self.call(caller, move || api::copy(dst, src, count, target.handle));
        self.wrote(to, target.queue, outcome, result, Some(from));
    }

    fn read(&mut self, caller: usize, block: usize, on: On, how: How) {
        let Some(address) = self.pick(block) else { return };
        let Some(bytes) = self.live[&address].bytes.clone() else { return };
        let target = self.target(on, self.live[&address].held.device, caller);
        self.before_use(address, target.queue, false, how, caller);
        let (src, count) = (address + self.live[&address].offset, bytes.len());
        // Pageable memory makes it wait: the bytes are there when the call returns.
        let outcome = self.call(caller, move || {
            let mut found = vec![0u8; count];
            api::copy(found.as_mut_ptr() as u64, src, count, target.handle).map(|()| found)
        });
        if let Some(found) = self.expect(outcome) {
            assert_eq!(found, bytes, "contents of {address:#x}");
            self.order.work(target.queue);
            self.order.host_waits(target.queue);
        } else {
            self.sync_all();
        }
    }

    fn write(&mut self, caller: usize, block: usize, on: On, byte: u8, how: How) {
        let Some(address) = self.pick(block) else { return };
        let target = self.target(on, self.live[&address].held.device, caller);
        self.before_use(address, target.queue, true, how, caller);
        let block = &self.live[&address];
        let (dst, count) = (address + block.offset, WINDOW.min(block.held.requested as usize));
        let bytes: Vec<u8> = (0..count).map(|index| byte.wrapping_add(index as u8)).collect();
        let source = bytes.clone();
        // Pageable memory may be changed as soon as the call returns.
        let outcome = self.call(caller, move || {
            let mut source = source;
            let copied = api::copy(dst, source.as_ptr() as u64, source.len(), target.handle);
            source.fill(0xee);
            copied
        });
        self.wrote(address, target.queue, outcome, bytes, None);
    }
}
