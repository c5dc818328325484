//! The identity of streams, and access to memory between devices and streams.

use super::super::record_stream;
use super::{Bench, KIB, MIB, on_machine};
use crate::base::thread;
use crate::driver::sim;
use crate::driver::sys::{CUmemLocation, CUmemLocationType, CUstream};
use crate::driver::{Call, code, inject};
use crate::gpu::device::Device;
use crate::gpu::stream::Stream;
use crate::ops::callback::{self, Callback};
use crate::runtime;
use std::ffi::{c_ulonglong, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const NON_BLOCKING: u32 = 1;
const LEGACY: CUstream = 1 as CUstream;
const PER_THREAD: CUstream = 2 as CUstream;

/// A stream created by the host.
pub(super) fn native(bench: Bench) -> CUstream {
    let _context = bench.device.enter().unwrap();
    let mut native = std::ptr::null_mut();
    // SAFETY: `native` is writable.
    unsafe { bench.device.driver().cuStreamCreateWithPriority(&mut native, NON_BLOCKING, 0) }
        .unwrap();
    native
}

fn destroy(bench: Bench, native: CUstream) {
    let _context = bench.device.enter().unwrap();
    // SAFETY: made by `native`.
    unsafe { bench.device.driver().cuStreamDestroy(native) }.unwrap();
}

/// The effect of making a handle for it.
pub(super) fn wrap_native<'a>(bench: Bench<'a>, native: CUstream) -> &'a Stream {
    wrap(bench, native)
}

fn wrap<'a>(bench: Bench<'a>, native: CUstream) -> &'a Stream {
    let stream = bench.device.streams.external(bench.device, native).unwrap();
    stream.add_handle();
    stream
}

#[test]
fn an_external_stream_leaves_an_event_at_its_end() {
    on_machine("memory=1GiB", |bench| {
        let (own, handle) = (bench.stream(), native(bench));
        let foreign = wrap(bench, handle);
        let block = bench.malloc(own, 3 * MIB);
        let held = bench.malloc(own, 3 * MIB);
        let theirs = bench.malloc(foreign, 3 * MIB);
        record_stream(block, foreign).unwrap();
        record_stream(held, foreign).unwrap();
        bench.free(block);
        foreign.remove_handle(bench.gpus).unwrap();
        destroy(bench, handle);
        // Any use of the destroyed stream would now fail.
        bench.free(held);
        bench.free(theirs);
        for _ in 0..3 {
            bench.free(bench.malloc(own, 3 * MIB));
        }
        bench.empty_cache();
        bench.check();
        assert_eq!(bench.reserved(), 0);
    });
}

/// One thread empties the cache, which records an event on an external stream. Meanwhile the last
/// handle of the stream is closed on another thread, and the host destroys the stream.
#[test]
fn an_external_stream_ends_when_it_is_no_longer_named() {
    on_machine("memory=1GiB", |bench| {
        let (own, handle) = (bench.stream(), native(bench));
        let foreign = wrap(bench, handle);
        let block = bench.malloc(own, 3 * MIB);
        record_stream(block, foreign).unwrap();
        bench.free(block);
        // The call is counted first, and runs after the pause.
        inject::replace(&inject::parse("cuEventRecord@1=slow:200ms").unwrap());
        let records = bench.calls(Call::cuEventRecord);
        std::thread::scope(|scope| {
            let emptying = scope.spawn(|| {
                let _inside = thread::enter().unwrap();
                bench.memory().empty_cache(bench.gpus)
            });
            while bench.calls(Call::cuEventRecord) == records {
                std::thread::yield_now();
            }
            foreign.remove_handle(bench.gpus).unwrap();
            destroy(bench, handle);
            emptying.join().unwrap().unwrap();
        });
        bench.check();
        assert_eq!(bench.reserved(), 0);
    });
}

#[test]
fn a_recycled_handle_is_another_stream() {
    on_machine("memory=1GiB", |bench| {
        let first_handle = native(bench);
        let first = wrap(bench, first_handle);
        let block = bench.malloc(first, 1000);
        let serial = first.serial;
        first.remove_handle(bench.gpus).unwrap();
        destroy(bench, first_handle);
        let second_handle = native(bench);
        assert_eq!(first_handle, second_handle, "as CUDA does, the machine recycles handles");
        let second = wrap(bench, second_handle);
        assert_ne!(serial, second.serial);
        assert_ne!(bench.malloc(second, 2000), block + 1024, "nothing orders the two streams");
        bench.free(block);
    });
}

#[test]
fn fixed_handles_mean_the_default_streams() {
    on_machine("memory=1GiB", |bench| {
        assert!(std::ptr::eq(wrap(bench, LEGACY), bench.device.streams.default()));
        assert!(std::ptr::eq(wrap(bench, std::ptr::null_mut()), bench.device.streams.default()));
        let here = bench.malloc(wrap(bench, PER_THREAD), 1000);
        let there = std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let _inside = thread::enter().unwrap();
                bench.malloc(wrap(bench, PER_THREAD), 1000)
            });
            other.join().unwrap()
        });
        let distance = here.abs_diff(there);
        assert!(distance >= 1 << 30, "two threads share an arena: {here:#x} and {there:#x}");
    });
}

/// Does the device have access to this address?
pub(super) fn may_use(owner: &Device, device: &Device, address: u64) -> bool {
    let kind = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    let location = CUmemLocation { type_: kind, id: device.ordinal() };
    let mut access: c_ulonglong = 0;
    // SAFETY: `access` is writable, the location whole.
    unsafe { owner.driver().cuMemGetAccess(&mut access, &location, address) }.unwrap();
    access == 3
}

#[test]
fn peers_have_access_to_earlier_and_later_mappings() {
    on_machine("devices=3,memory=1GiB", |bench| {
        let [user, owner, other] = &bench.gpus.devices[..] else { panic!("three devices") };
        let on_owner = Bench { device: owner, ..bench };
        let stream = on_owner.stream();
        let old = on_owner.malloc(stream, 3 * MIB);
        assert!(!may_use(owner, user, old));
        user.enable_peer(owner).unwrap();
        let new = on_owner.malloc(stream, 90 * MIB);
        for block in [old, new] {
            assert!(may_use(owner, user, block));
            assert!(!may_use(owner, other, block));
        }
    });
}

#[test]
fn contexts_outlive_their_events_on_other_devices() {
    on_machine("devices=2,memory=1GiB", |bench| {
        let [first, second] = &bench.gpus.devices[..] else { panic!("two devices") };
        let on_second = Bench { device: second, ..bench };
        let (other, own) = (bench.stream(), on_second.stream());
        // A block of the second device waits for a stream of the first, with an event of the first.
        let block = on_second.malloc(own, 3 * MIB);
        record_stream(block, other).unwrap();
        on_second.free(block);
        inject::set(inject::index_of("cuStreamQuery"), 1, code::NOT_READY, true);
        on_second.malloc(own, 3 * MIB);
        inject::clear();
        let before = sim::live_objects();
        assert!(before.events > 0);
        for device in [first, second] {
            runtime::close_device(device);
            assert_eq!(sim::live_objects().contexts, before.contexts);
        }
        let left = sim::live_objects();
        assert_eq!((left.events, left.streams, left.mappings, left.handles), (0, 0, 0, 0));
    });
}

#[test]
fn a_context_that_cannot_be_released_is_popped() {
    on_machine("devices=2", |bench| {
        bench.gpus.set_current_device(0).unwrap();
        let other = &bench.gpus.devices[1];
        assert!(inject::set(Some(Call::cuCtxPopCurrent as usize), 1, code::UNKNOWN, false));
        drop(other.enter().unwrap());
        assert_eq!(bench.gpus.current_device().unwrap(), 0);
    });
}

/// Becomes true after the present work of a stream and a slow operation after it.
fn end_of(bench: Bench, stream: &Stream) -> Arc<AtomicBool> {
    let done = Arc::new(AtomicBool::new(false));
    let user_data = Arc::into_raw(Arc::clone(&done)).cast_mut().cast();
    let callback = Callback { function: finish_late, user_data, destroy: Some(drop_flag) };
    callback::add(bench.gpus, stream, callback).unwrap();
    done
}

/// A blocking stream is ordered after the default stream. Therefore the end of its memory must be
/// too, even if the stream was destroyed.
#[test]
fn memory_of_a_destroyed_stream_stays_while_the_default_stream_may_use_it() {
    on_machine("schedule=threads,memory=1GiB", |bench| {
        let handle = native(bench);
        let foreign = wrap(bench, handle);
        let block = bench.malloc(foreign, 3 * MIB);
        foreign.remove_handle(bench.gpus).unwrap();
        destroy(bench, handle);
        let done = end_of(bench, bench.device.streams.default());
        bench.free(block);
        bench.empty_cache();
        assert!(done.load(Ordering::Acquire), "unmapped while the default stream was at work");
        assert_eq!(bench.reserved(), 0);
    });
}

/// Every driver call fails while the handle is closed. The remaining work of the stream is unknown,
/// and the stream is not named again, because its owner may destroy it.
#[test]
fn a_stream_of_unknown_end_holds_its_memory_until_the_device_is_done() {
    on_machine("schedule=threads,memory=1GiB", |bench| {
        let (own, handle) = (bench.stream(), native(bench));
        let foreign = wrap(bench, handle);
        let (theirs, used) = (bench.malloc(foreign, 3 * MIB), bench.malloc(own, MIB));
        record_stream(used, foreign).unwrap();
        let done = end_of(bench, foreign);
        assert!(inject::set(None, 1, code::UNKNOWN, true));
        assert!(foreign.remove_handle(bench.gpus).is_err());
        inject::clear();
        destroy(bench, handle);
        bench.free(theirs);
        bench.free(used);
        assert_ne!(bench.malloc(own, MIB), used, "reused while the stream was at work");
        bench.empty_cache();
        assert!(done.load(Ordering::Acquire), "unmapped while the stream was at work");
        assert_eq!(bench.malloc(own, MIB), used);
        bench.check();
    });
}

/// The stream ends while it has work, and the recording of its last event fails.
#[test]
fn a_stream_that_ends_without_an_event_is_waited_for() {
    for call in [Call::cuEventRecord, Call::cuEventCreate, Call::cuStreamIsCapturing] {
        on_machine("schedule=threads,memory=1GiB", |bench| {
            let (own, handle) = (bench.stream(), native(bench));
            let foreign = wrap(bench, handle);
            // Small, so that it does not share the other stream's memory.
            let block = bench.malloc(own, 64 * KIB);
            let theirs = bench.malloc(foreign, 3 * MIB);
            record_stream(block, foreign).unwrap();
            let done = end_of(bench, foreign);
            assert!(inject::set(Some(call as usize), 1, code::UNKNOWN, false));
            foreign.remove_handle(bench.gpus).unwrap();
            inject::clear();
            destroy(bench, handle);
            bench.free(block);
            while bench.malloc(own, 64 * KIB) != block {}
            assert!(done.load(Ordering::Acquire), "reused while the stream was at work");
            let reserved = bench.reserved();
            bench.free(theirs);
            bench.empty_cache();
            assert_eq!(bench.reserved(), reserved - 4 * MIB, "it is no longer in use");
        });
    }
}

/// All queries fail while the stream ends. Its memory is free after a wait for its context. The
/// event of an earlier end of the same stream does not count any more.
#[test]
fn a_stream_whose_end_is_unknown_ends_with_its_context() {
    for went_before in [false, true] {
        on_machine("schedule=threads,memory=1GiB", |bench| {
            let (own, handle) = (bench.stream(), native(bench));
            let foreign = wrap(bench, handle);
            if went_before {
                foreign.remove_handle(bench.gpus).unwrap();
                assert!(std::ptr::eq(foreign, wrap(bench, handle)));
            }
            let block = bench.malloc(own, MIB);
            record_stream(block, foreign).unwrap();
            let done = end_of(bench, foreign);
            assert!(inject::set(None, 1, code::UNKNOWN, true));
            foreign.remove_handle(bench.gpus).unwrap_err();
            inject::clear();
            destroy(bench, handle);
            bench.free(block);
            let other = bench.malloc(own, MIB);
            assert_ne!(other, block, "reused although the stream may be at work");
            bench.free(other);
            bench.empty_cache();
            assert!(done.load(Ordering::Acquire), "unmapped while the stream was at work");
            assert_eq!(sim::live_objects().mappings, 0);
            runtime::close_device(bench.device);
            assert_eq!(sim::live_objects().events, 0);
        });
    }
}

unsafe extern "C" fn finish_late(done: *mut c_void) {
    std::thread::sleep(std::time::Duration::from_millis(50));
    // SAFETY: of `end_of`, until `drop_flag`.
    unsafe { &*done.cast::<AtomicBool>() }.store(true, Ordering::Release);
}

unsafe extern "C" fn drop_flag(done: *mut c_void) {
    // SAFETY: from Arc::into_raw in `end_of`.
    drop(unsafe { Arc::from_raw(done.cast::<AtomicBool>()) });
}
