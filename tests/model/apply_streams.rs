//! What operations on streams and events do, to the library and to the model.

use super::api::{self, NOT_READY};
use super::hands::THREADS;
use super::ops::{Act, Foreign};
use super::order::Kind;
use super::world::{Event, Slot, What, World};

impl World {
    pub fn create_stream(&mut self, caller: usize, slot: usize, device: i32, priority: i32) {
        let device = self.on_machine(device);
        let outcome = self.call(caller, move || api::stream_create(device, priority));
        let Some(handle) = self.expect(outcome) else { return };
        let native = api::stream_native(handle);
        let known = self.pooled.get(&(device, native)).copied();
        let queue = known.unwrap_or_else(|| self.order.add(device, Kind::NonBlocking));
        self.pooled.insert((device, native), queue);
        self.name(queue, handle);
        self.slots[slot] = Some(Slot { handle, device, what: What::Queue(queue), native: None });
    }

    pub fn wrap_stream(&mut self, caller: usize, slot: usize, device: i32, what: Foreign) {
        let device = self.on_machine(device);
        let own = match what {
            Foreign::Blocking => Some(api::native::create(device, true)),
            Foreign::NonBlocking => Some(api::native::create(device, false)),
            Foreign::PerThread | Foreign::Legacy => None,
        };
        let native = own.unwrap_or(if what == Foreign::PerThread { 2 } else { 1 });
        let outcome = self.call(caller, move || api::stream_from_external(device, native));
        let Some(handle) = self.expect(outcome) else {
            if let Some(native) = own {
                api::native::destroy(device, native);
            }
            return;
        };
        let what = match what {
            Foreign::PerThread => What::PerThread,
            Foreign::Legacy => What::Queue(self.legacy[device as usize]),
            Foreign::Blocking | Foreign::NonBlocking => {
                let kind =
                    if what == Foreign::Blocking { Kind::Blocking } else { Kind::NonBlocking };
                let queue = self.order.add(device, kind);
                self.name(queue, handle);
                What::Queue(queue)
            }
        };
        self.slots[slot] = Some(Slot { handle, device, what, native: own });
    }

    pub fn destroy_stream(&mut self, caller: usize, slot: usize) {
        let Some(Slot { handle, device, what, native }) = self.slots[slot].take() else { return };
        if native.is_some() {
            // Its last handle: it must not be any thread's current stream any more.
            for thread in 0..THREADS {
                if self.current[thread][device as usize] == what {
                    let default = api::stream_default(device);
                    self.hands.on(thread, move || api::stream_set_current(default)).unwrap();
                    self.current[thread][device as usize] =
                        What::Queue(self.legacy[device as usize]);
                    self.device[thread] = device;
                }
            }
        }
        // The handle is gone, whatever the driver said on the way.
        let outcome = self.call(caller, move || api::stream_destroy(handle));
        self.expect(outcome);
        if let Some(native) = native {
            api::native::destroy(device, native);
            self.has_recycled = true;
            if let What::Queue(queue) = what {
                self.ended.insert(queue);
            }
        }
    }

    // ---- Events ----

    pub fn apply_event(&mut self, caller: usize, act: &Act) {
        match *act {
            Act::CreateEvent { slot, timing } => {
                self.destroy_event(caller, slot);
                let outcome = self.call(caller, move || api::event_create(u32::from(timing)));
                if let Some(handle) = self.expect(outcome) {
                    self.events[slot] = Some(Event { handle, timing, device: -1, recorded: None });
                }
            }
            Act::DestroyEvent { slot } => self.destroy_event(caller, slot),
            Act::Elapsed { start, end } => self.elapsed(caller, start, end),
            Act::Record { slot, on } => {
                let Some(event) = self.events[slot].clone() else { return };
                let target = self.target(on, self.device[caller], caller);
                let outcome =
                    self.call(caller, move || api::event_record(event.handle, target.handle));
                if event.device >= 0 && event.device != target.device {
                    assert!(outcome.is_err(), "an event of device {}", event.device);
                } else if self.expect(outcome).is_some() {
                    let recorded = Some(self.order.record(target.queue));
                    let device = target.device;
                    self.events[slot] = Some(Event { device, recorded, ..event });
                }
            }
            Act::Wait { slot, on } => {
                let Some(event) = self.events[slot].clone() else { return };
                let target = self.target(on, self.device[caller], caller);
                let outcome =
                    self.call(caller, move || api::event_wait(event.handle, target.handle));
                if self.expect(outcome).is_some()
                    && let Some((_, clock)) = event.recorded
                {
                    self.order.wait(target.queue, &clock);
                }
            }
            Act::QueryEvent { slot } => {
                let Some(event) = self.events[slot].clone() else { return };
                let outcome = self.call(caller, move || api::event_query(event.handle));
                let Some(done) = self.expect(outcome) else { return };
                match event.recorded {
                    None => assert!(done, "it was never recorded"),
                    Some((_, clock)) if done => self.order.host_learns(&clock),
                    Some((point, _)) => {
                        assert!(!self.machine.is_immediate() && !self.order.host_knows(point));
                    }
                }
            }
            Act::SyncEvent { slot } => {
                let Some(event) = self.events[slot].clone() else { return };
                let outcome = self.call(caller, move || api::event_synchronize(event.handle));
                if self.expect(outcome).is_some()
                    && let Some((_, clock)) = event.recorded
                {
                    self.order.host_learns(&clock);
                }
            }
            _ => (),
        }
        for event in self.events.iter().flatten() {
            assert_eq!(api::event_device(event.handle), event.device, "an event's device");
        }
    }

    fn destroy_event(&mut self, caller: usize, slot: usize) {
        if let Some(Event { handle, .. }) = self.events[slot].take() {
            self.call(caller, move || api::event_destroy(handle)).unwrap();
        }
    }

    fn elapsed(&mut self, caller: usize, start: usize, end: usize) {
        let (Some(start), Some(end)) = (self.events[start].clone(), self.events[end].clone())
        else {
            return;
        };
        let outcome = self.call(caller, move || api::event_elapsed_ms(start.handle, end.handle));
        let (Some((first, first_clock)), Some((last, last_clock))) = (start.recorded, end.recorded)
        else {
            assert!(outcome.is_err(), "not recorded");
            return;
        };
        if !start.timing || !end.timing {
            assert!(outcome.is_err(), "without timing");
            return;
        }
        let are_done = self.order.host_knows(first) && self.order.host_knows(last);
        match outcome {
            Ok(elapsed) => {
                assert!(!last_clock.has(first) || elapsed >= 0.0, "{elapsed} ms");
                self.order.host_learns(&first_clock);
                self.order.host_learns(&last_clock);
            }
            Err(failure) if failure.status == NOT_READY => {
                assert!(!are_done && !self.machine.is_immediate(), "both were reached");
            }
            Err(failure) => {
                let other_devices = start.device != end.device;
                assert!(other_devices || self.armed.is_some(), "{failure:?}");
            }
        }
    }
}
