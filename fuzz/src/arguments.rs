//! Arguments of calls: right ones most of the time, and what is wrong about the others.

use crate::expect::{Expect, status};
use crate::input::Input;
use crate::world::{Mode, World};
use std::ffi::c_void;
use tcuda::driver::sys::CUstream_st;
use tcuda::ffi::event::tcuda_event;
use tcuda::ffi::generator::tcuda_generator;
use tcuda::ffi::memory::tcuda_allocation;
use tcuda::ffi::stream::tcuda_stream;

impl World {
    pub fn some_bits(&self, input: &mut Input) -> usize {
        match input.below(8) {
            0 => 1,
            1 => usize::MAX,
            2 => std::ptr::from_ref(self).addr(),
            3 => input.u8().into(),
            _ => input.u64() as usize,
        }
    }

    /// A value that may be a live handle or anything else.
    pub(crate) fn handle(&self, input: &mut Input, live: &[usize], others: &[usize]) -> usize {
        let of = |input: &mut Input, handles: &[usize]| match handles.len() {
            0 => 0,
            count => handles[input.below(count)],
        };
        match input.u8() {
            0..=191 => of(input, live),
            192..=207 => 0,
            208..=227 => of(input, &self.dead),
            228..=239 => of(input, others),
            _ => self.some_bits(input),
        }
    }

    /// A stream; NULL is right.
    pub fn stream(&self, input: &mut Input, expect: &mut Expect) -> *mut tcuda_stream {
        let live: Vec<usize> = self.streams.iter().map(|stream| stream.handle).collect();
        let handle = self.handle(input, &live, &self.events);
        if handle != 0 && !live.contains(&handle) {
            expect.wrong(status::INVALID_HANDLE);
        }
        handle as *mut tcuda_stream
    }

    /// An event; NULL is wrong.
    pub fn event(&self, input: &mut Input, expect: &mut Expect) -> *mut tcuda_event {
        let others: Vec<usize> = self.streams.iter().map(|stream| stream.handle).collect();
        let handle = self.handle(input, &self.events, &others);
        if !self.events.contains(&handle) {
            expect.wrong(status::INVALID_HANDLE);
        }
        handle as *mut tcuda_event
    }

    /// An allocation; NULL is wrong.
    pub fn allocation(&self, input: &mut Input, expect: &mut Expect) -> *mut tcuda_allocation {
        let live: Vec<usize> =
            self.blocks.iter().map(|block| block.handle).filter(|handle| *handle != 0).collect();
        let handle = self.handle(input, &live, &self.events);
        if !live.contains(&handle) {
            expect.wrong(status::INVALID_HANDLE);
        }
        handle as *mut tcuda_allocation
    }

    /// A snapshot; NULL is wrong.
    pub fn snapshot(&self, input: &mut Input, expect: &mut Expect) -> usize {
        let live: Vec<usize> = self.snapshots.iter().map(|snapshot| snapshot.handle).collect();
        let handle = self.handle(input, &live, &self.events);
        if !live.contains(&handle) {
            expect.wrong(status::INVALID_HANDLE);
        }
        handle
    }

    /// An observer; NULL is right.
    pub fn observer(&self, input: &mut Input, expect: &mut Expect) -> usize {
        let handle = self.handle(input, &self.observers, &self.events);
        if handle != 0 && !self.observers.contains(&handle) {
            expect.wrong(status::INVALID_HANDLE);
        }
        handle
    }

    /// A graphed callable; NULL is wrong.
    pub fn callable(&self, input: &mut Input, expect: &mut Expect) -> usize {
        let handle = self.handle(input, &self.callables, &self.graphs);
        if !self.callables.contains(&handle) {
            expect.wrong(status::INVALID_HANDLE);
        }
        handle
    }

    /// A handle of one of these; NULL is wrong.
    pub fn handle_of(&self, live: &[usize], input: &mut Input, expect: &mut Expect) -> usize {
        let handle = self.handle(input, live, &self.pools);
        if !live.contains(&handle) {
            expect.wrong(status::INVALID_HANDLE);
        }
        handle
    }

    /// A graph; NULL is wrong.
    pub fn graph(&self, input: &mut Input, expect: &mut Expect) -> usize {
        let handle = self.handle(input, &self.graphs, &self.pools);
        if !self.graphs.contains(&handle) {
            expect.wrong(status::INVALID_HANDLE);
        }
        handle
    }

    /// A generator; NULL is a default one.
    pub fn generator(&self, input: &mut Input, expect: &mut Expect) -> *mut tcuda_generator {
        let live: Vec<usize> = self.generators.iter().map(|known| known.handle).collect();
        let handle = self.handle(input, &live, &self.events);
        if handle != 0 && !live.contains(&handle) {
            expect.wrong(status::INVALID_HANDLE);
        }
        handle as *mut tcuda_generator
    }

    /// A private pool; NULL is wrong.
    pub fn pool(&self, input: &mut Input, expect: &mut Expect) -> usize {
        let handle = self.handle(input, &self.pools, &self.events);
        if !self.pools.contains(&handle) {
            expect.wrong(status::INVALID_HANDLE);
        }
        handle
    }

    /// A partition of multiprocessors; NULL is wrong.
    pub fn partition(&self, input: &mut Input, expect: &mut Expect) -> usize {
        let handle = self.handle(input, &self.partitions, &self.greens);
        if !self.partitions.contains(&handle) {
            expect.wrong(status::INVALID_HANDLE);
        }
        handle
    }

    /// A green context; NULL is wrong.
    pub fn green(&self, input: &mut Input, expect: &mut Expect) -> usize {
        let handle = self.handle(input, &self.greens, &self.partitions);
        if !self.greens.contains(&handle) {
            expect.wrong(status::INVALID_HANDLE);
        }
        handle
    }

    /// An allocator of another library; NULL is wrong.
    pub fn allocator(&self, input: &mut Input, expect: &mut Expect) -> usize {
        let handle = self.handle(input, &self.allocators, &self.pools);
        if !self.allocators.contains(&handle) {
            expect.wrong(status::INVALID_HANDLE);
        }
        handle
    }

    /// The address of live pinned memory, or something else: wrong unless it is NULL.
    pub fn pinned_address(&self, input: &mut Input, expect: &mut Expect) -> *mut c_void {
        let live: Vec<usize> = self.pinned.iter().map(|block| block.ptr).collect();
        let others: Vec<usize> = self.blocks.iter().map(|block| block.ptr).collect();
        let mut address = self.handle(input, &live, &others);
        if input.rarely(16) {
            let by = input.one_of(&[1, 64, 4096, 1 << 20]);
            // The next block may be another thread's, and live.
            address = address.wrapping_add(if self.mode == Mode::Threads { 1 } else { by });
        }
        if address != 0 && !live.contains(&address) {
            // A lost device may have kept a block that was freed.
            match self.lost {
                true => expect.also(&[status::INVALID_POINTER]),
                false => expect.wrong(status::INVALID_POINTER),
            }
        }
        address as *mut c_void
    }

    /// The address of a live block, or something else: wrong unless it is NULL.
    pub fn address(&self, input: &mut Input, expect: &mut Expect) -> *mut c_void {
        let live: Vec<usize> = self.blocks.iter().map(|block| block.ptr).collect();
        let others: Vec<usize> = self.pinned.iter().map(|block| block.ptr).collect();
        let mut address = self.handle(input, &live, &others);
        if input.rarely(16) {
            address = address.wrapping_add(input.one_of(&[1, 256, 512, 4096, 1 << 20, 1 << 32]));
        }
        if address != 0 && !live.contains(&address) {
            // A lost device may have kept a block that was freed.
            match self.lost {
                true => expect.also(&[status::INVALID_POINTER]),
                false => expect.wrong(status::INVALID_POINTER),
            }
        }
        address as *mut c_void
    }

    /// A device: the current one is right.
    pub fn device(&self, input: &mut Input, expect: &mut Expect) -> i32 {
        let device = match input.u8() {
            0..=127 => -1,
            128..=223 => input.below(4) as i32,
            224..=231 => -2,
            232..=239 => i32::MIN,
            240..=247 => i32::MAX,
            _ => input.u32() as i32,
        };
        if device != -1 && !(0..self.devices()).contains(&device) {
            expect.wrong(status::INVALID_DEVICE);
        }
        device
    }

    /// A flag: 0 or 1 are right.
    pub fn flag(&self, input: &mut Input, expect: &mut Expect) -> i32 {
        let flag = input.one_of(&[0, 1, 0, 1, 0, 1, 2, -1, i32::MAX, i32::MIN]);
        if !(0..=1).contains(&flag) {
            expect.wrong(status::INVALID_ARGUMENT);
        }
        flag
    }

    /// A native stream; 0, 1 and 2 are CUDA's default ones.
    pub fn native(&self, input: &mut Input) -> *mut CUstream_st {
        let native = match input.u8() {
            0..=63 => input.below(3),
            64..=223 if !self.natives.is_empty() => self.natives[input.below(self.natives.len())],
            _ => self.some_bits(input),
        };
        native as *mut CUstream_st
    }
}
