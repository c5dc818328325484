//! All paths on the simulated machine: results are equal bit for bit in every order of the work.

use super::limits::{
    LARGE_BROADCAST, Limit, MAX_CHUNK, MIN_CHUNK, SMALL_BROADCAST, SMALL_COPIES, SMALL_SUM,
    WIDE_ROW,
};
use super::*;
use crate::base::thread;
use crate::driver::sim;
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::Stream;
use crate::memory;
use crate::ops::copy;
use crate::runtime;

mod calls;
mod captures;
mod orders;
mod sweep;

/// Sets limits for a test, and restores them when dropped.
struct Limits(Vec<(&'static Limit, u64)>);

impl Limits {
    fn set(limits: &[(&'static Limit, u64)]) -> Limits {
        Limits(limits.iter().map(|(limit, value)| (*limit, limit.set(*value))).collect())
    }
}

impl Drop for Limits {
    fn drop(&mut self) {
        for (limit, value) in self.0.drain(..).rev() {
            limit.set(value);
        }
    }
}

fn on_machine<R>(options: &str, body: impl FnOnce(&Gpus) -> R) -> R {
    let _lock = sim::test_lock();
    let inside = thread::enter().unwrap();
    runtime::select_backend(&inside, "sim", options).unwrap();
    let result = body(runtime::get(&inside).unwrap());
    assert_eq!(runtime::shutdown(&inside, |_| 0).unwrap(), 0);
    result
}

/// Default streams for even devices, pooled streams for odd ones.
fn streams(gpus: &Gpus) -> Vec<&Stream> {
    let stream = |device: &crate::gpu::device::Device| device.ordinal() % 2 == 0;
    chosen(gpus, stream)
}

/// Pooled streams of all devices.
fn pooled(gpus: &Gpus) -> Vec<&Stream> {
    chosen(gpus, |_| false)
}

fn chosen(gpus: &Gpus, is_default: impl Fn(&crate::gpu::device::Device) -> bool) -> Vec<&Stream> {
    let mut streams = Vec::new();
    for device in &gpus.devices {
        streams.push(match is_default(device) {
            true => device.streams.default(),
            false => device.streams.next(device, 0).unwrap(),
        });
    }
    streams
}

/// Bytes that differ from those of every other seed.
fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (state >> 48) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

fn allocate(gpus: &Gpus, stream: &Stream, bytes: usize) -> u64 {
    let device = gpus.device(stream.device()).unwrap();
    device.memory().allocate(gpus, device, stream, bytes as u64).unwrap()
}

fn put(gpus: &Gpus, stream: &Stream, address: u64, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    copy::copy(gpus, address, bytes.as_ptr() as u64, bytes.len() as u64, stream).unwrap();
    stream.synchronize(gpus).unwrap();
}

fn get(gpus: &Gpus, stream: &Stream, address: u64, bytes: usize) -> Vec<u8> {
    let mut out = vec![0; bytes];
    if bytes == 0 {
        return out;
    }
    copy::copy(gpus, out.as_mut_ptr() as u64, address, bytes as u64, stream).unwrap();
    stream.synchronize(gpus).unwrap();
    out
}

/// Memory of a call, with work before and after the call on its stream. Its contents arrive late.
/// Right after the call other work copies the contents away and overwrites them.
struct Buffer<'a> {
    gpus: &'a Gpus,
    stream: &'a Stream,
    address: u64,
    bytes: usize,
    /// Contents before the call, then contents after the call.
    twin: u64,
}

impl<'a> Buffer<'a> {
    fn new(gpus: &'a Gpus, stream: &'a Stream, odd: usize, contents: &[u8]) -> Buffer<'a> {
        let bytes = contents.len();
        let address = allocate(gpus, stream, bytes + odd + 64) + odd as u64;
        let twin = allocate(gpus, stream, bytes.max(1));
        put(gpus, stream, address, &vec![0xee; bytes]);
        put(gpus, stream, twin, contents);
        Buffer { gpus, stream, address, bytes, twin }
    }

    fn part(&self) -> Part {
        Part { device: self.stream.device(), address: self.address }
    }

    fn copy(&self, dst: u64, src: u64) {
        if self.bytes == 0 {
            return;
        }
        copy::copy(self.gpus, dst, src, self.bytes as u64, self.stream).unwrap();
    }

    /// Queues the work before the call.
    fn before(&self) {
        self.copy(self.address, self.twin);
    }

    /// Queues the work after the call: copies the contents away, and overwrites them.
    fn after(&self) {
        self.copy(self.twin, self.address);
        copy::fill(self.gpus, self.address, &[0xdd], self.bytes as u64, self.stream).unwrap();
    }

    /// The contents right after the call.
    fn seen(&self) -> Vec<u8> {
        get(self.gpus, self.stream, self.twin, self.bytes)
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        memory::free(self.gpus, self.twin).unwrap();
        let start = self.address / 512 * 512;
        memory::free(self.gpus, start).unwrap();
    }
}

/// Makes a call, between the work before and after it on all streams.
fn call(buffers: &[Buffer], body: impl FnOnce() -> Result<bool>) -> bool {
    buffers.iter().for_each(Buffer::before);
    let done = body().unwrap();
    buffers.iter().for_each(Buffer::after);
    done
}

/// Limits for these paths: one kernel; a kernel on each device; copy engines with many chunks.
fn paths() -> [Vec<(&'static Limit, u64)>; 3] {
    let with = |small, large| {
        let small = [&SMALL_BROADCAST, &SMALL_SUM, &SMALL_COPIES].map(|limit| (limit, small));
        let chunks = [(&MIN_CHUNK, 512), (&MAX_CHUNK, 2048), (&WIDE_ROW, 64)];
        let all = small.into_iter().chain([(&LARGE_BROADCAST, large)]).chain(chunks);
        all.collect::<Vec<_>>()
    };
    [with(u64::MAX, u64::MAX), with(0, u64::MAX), with(0, 1)]
}
