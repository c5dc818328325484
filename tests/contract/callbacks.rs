//! Callbacks of the host: when they run, where, and what they may call.

use crate::Row;
use crate::bench::{Bench, PER_THREAD, cu, handle, host, properties};
use std::ffi::c_void;
use std::ptr::{self, null_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ThreadId;
use tcuda::driver::sys::*;

pub const ROWS: &[Row] = crate::rows!["callbacks":
    arguments, between_copies, in_the_order_of_the_stream, none_is_lost, of_a_destroyed_stream,
    of_a_thread_that_ended, on_another_thread, on_the_default_streams, events_behind_them,
    they_hold_their_stream_only, calls_inside, waits_inside, work_inside, after_a_wait,
];

fn arguments(bench: &Bench) {
    bench.start();
    let stream = bench.stream(1);
    cu!(bench, cuLaunchHostFunc(stream, None, null_mut()) => 1);
    cu!(bench, cuLaunchHostFunc(stream, Some(nothing), null_mut()) => 0);
    cu!(bench, cuStreamSynchronize(stream) => 0);
}

unsafe extern "C" fn nothing(_: *mut c_void) {}

/// Adds one to the byte at its argument.
unsafe extern "C" fn add_one(byte: *mut c_void) {
    let byte: *mut u8 = byte.cast();
    // SAFETY: the argument is a byte of pinned memory that nothing else uses meanwhile.
    let value = unsafe { byte.read_volatile() };
    // SAFETY: as above.
    unsafe { byte.write_volatile(value + 1) };
}

fn between_copies(bench: &Bench) {
    bench.start();
    let (stream, address, pinned) = (bench.stream(1), bench.warm(64), bench.pinned(64));
    let byte = pinned.as_mut_ptr();
    cu!(bench, cuMemsetD8Async(address, 40, 64, stream) => 0);
    for _ in 0..3 {
        cu!(bench, cuMemcpyAsync(host(pinned), address, 64, stream) => 0);
        cu!(bench, cuLaunchHostFunc(stream, Some(add_one), byte.cast()) => 0);
        cu!(bench, cuMemcpyAsync(address, host(pinned), 64, stream) => 0);
    }
    bench.is("bytes", bench.fetch(address, 2, stream), vec![43, 40]);
}

/// What callbacks leave behind, in order.
struct Entry<'a> {
    number: usize,
    seen: &'a Mutex<Vec<(usize, ThreadId)>>,
}

unsafe extern "C" fn note(entry: *mut c_void) {
    // SAFETY: the argument is an entry that outlives the stream's work.
    let entry = unsafe { &*entry.cast::<Entry>() };
    entry.seen.lock().unwrap().push((entry.number, std::thread::current().id()));
}

fn in_the_order_of_the_stream(bench: &Bench) {
    bench.start();
    let seen = Mutex::new(Vec::new());
    let entries: Vec<_> = (0..100).map(|number| Entry { number, seen: &seen }).collect();
    let stream = bench.stream(1);
    let gate = bench.hold(stream);
    for entry in &entries {
        let argument = ptr::from_ref(entry).cast_mut().cast();
        cu!(bench, cuLaunchHostFunc(stream, Some(note), argument) => 0);
    }
    bench.is("called early", seen.lock().unwrap().len(), 0);
    gate.open();
    cu!(bench, cuStreamSynchronize(stream) => 0);
    let numbers: Vec<usize> = seen.lock().unwrap().iter().map(|(number, _)| *number).collect();
    bench.is("in order", numbers == (0..100).collect::<Vec<_>>(), true);
}

fn none_is_lost(bench: &Bench) {
    bench.start();
    let streams = [bench.stream(0), bench.stream(1), handle(PER_THREAD), null_mut()];
    let counters: Vec<_> = (0..100).map(|index| bench.count(streams[index % 4], 0)).collect();
    cu!(bench, cuCtxSynchronize() => 0);
    bench.is("each once", counters.iter().all(|counter| counter.get() == 1), true);
}

fn of_a_destroyed_stream(bench: &Bench) {
    bench.start();
    let stream = bench.stream(1);
    let gate = bench.hold(stream);
    let counter = bench.count(stream, 0);
    cu!(bench, cuStreamDestroy(stream) => 0);
    bench.is("held", counter.get(), 0);
    gate.open();
    cu!(bench, cuCtxSynchronize() => 0);
    for _ in 0..2000 {
        if counter.get() == 1 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    bench.is("called", counter.get(), 1);
}

fn of_a_thread_that_ended(bench: &Bench) {
    let context = bench.start().addr();
    let stream = bench.stream(1);
    let gate = bench.hold(stream);
    let stream = stream.addr();
    let counter = std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            cu!(bench, cuCtxSetCurrent(handle(context)) => 0);
            bench.count(handle(stream), 0)
        });
        thread.join().unwrap()
    });
    gate.open();
    cu!(bench, cuStreamSynchronize(handle(stream)) => 0);
    bench.is("called", counter.get(), 1);
}

fn on_another_thread(bench: &Bench) {
    bench.start();
    let seen = Mutex::new(Vec::new());
    let entry = Entry { number: 0, seen: &seen };
    let argument = ptr::from_ref(&entry).cast_mut().cast();
    for stream in [bench.stream(1), null_mut(), handle(PER_THREAD)] {
        cu!(bench, cuLaunchHostFunc(stream, Some(note), argument) => 0);
        cu!(bench, cuStreamSynchronize(stream) => 0);
    }
    let ours = std::thread::current().id();
    let seen = seen.lock().unwrap();
    bench.is("on ours", seen.iter().filter(|(_, thread)| *thread == ours).count(), 0);
    bench.is("called", seen.len(), 3);
}

fn on_the_default_streams(bench: &Bench) {
    bench.start();
    for stream in [0, 1, 2] {
        let counter = bench.count(handle(stream), 0);
        cu!(bench, cuStreamSynchronize(handle(stream)) => 0);
        bench.is("called", counter.get(), 1);
    }
}

fn events_behind_them(bench: &Bench) {
    bench.start();
    let (stream, event) = (bench.stream(1), bench.event());
    let gate = bench.hold(stream);
    let counter = bench.count(stream, 0);
    cu!(bench, cuEventRecord(event, stream) => 0);
    cu!(bench, cuEventQuery(event) => 600);
    gate.open();
    cu!(bench, cuEventSynchronize(event) => 0);
    bench.is("called", counter.get(), 1);
}

fn after_a_wait(bench: &Bench) {
    bench.start();
    let (first, second, event) = (bench.stream(1), bench.stream(1), bench.event());
    let gate = bench.hold(first);
    cu!(bench, cuEventRecord(event, first) => 0);
    cu!(bench, cuStreamWaitEvent(second, event, 0) => 0);
    let counter = bench.count(second, 0);
    std::thread::sleep(std::time::Duration::from_millis(50));
    bench.is("called", counter.get(), 0);
    gate.open();
    cu!(bench, cuStreamSynchronize(second) => 0);
    bench.is("called", counter.get(), 1);
}

fn they_hold_their_stream_only(bench: &Bench) {
    bench.start();
    let (address, first, second) = (bench.warm(64), bench.stream(1), bench.stream(1));
    let gate = bench.hold(first);
    cu!(bench, cuMemsetD8Async(address, 1, 64, second) => 0);
    cu!(bench, cuStreamSynchronize(second) => 0);
    cu!(bench, cuStreamQuery(first) => 600);
    gate.open();
    cu!(bench, cuStreamSynchronize(first) => 0);
}

/// What a callback that makes calls is given.
struct Inside<'a> {
    bench: &'a Bench,
    context: CUcontext,
    stream: CUstream,
    function: CUfunction,
    address: u64,
    over: AtomicBool,
}

/// Runs a callback that makes calls; the stream that it is given is another one.
fn inside(bench: &Bench, callback: unsafe extern "C" fn(*mut c_void)) {
    let context = bench.start();
    let (stream, event, address) = (bench.stream(1), bench.event(), bench.warm(64));
    let function = bench.function(bench.module(), c"contract_nothing");
    bench.launch(function, stream, 0);
    cu!(bench, cuEventRecord(event, stream) => 0);
    cu!(bench, cuCtxSynchronize() => 0);
    let over = AtomicBool::new(false);
    let inside = Inside { bench, context, stream, function, address, over };
    let own = bench.stream(1);
    let argument = ptr::from_ref(&inside).cast_mut().cast();
    cu!(bench, cuLaunchHostFunc(own, Some(callback), argument) => 0);
    cu!(bench, cuStreamSynchronize(own) => 0);
    bench.is("called", inside.over.load(Ordering::SeqCst), true);
    cu!(bench, cuCtxSynchronize() => 0);
}

/// A callback may make no calls. The driver refuses most; it lets those through that name a stream
/// or an event and need no context besides, which is no promise: they have no rows.
fn calls_inside(bench: &Bench) {
    inside(bench, calls);
}

unsafe extern "C" fn calls(argument: *mut c_void) {
    // SAFETY: the argument outlives the callback.
    let inside = unsafe { &*argument.cast::<Inside>() };
    let bench = inside.bench;
    let (mut number, mut bytes, mut context, mut address) = (0, 0, null_mut(), 0);
    let (mut stream, mut event, mut flags, mut active) = (null_mut(), null_mut(), 0, 0);
    cu!(bench, cuDeviceGetCount(&mut number) => 800);
    cu!(bench, cuDeviceGet(&mut number, 0) => 800);
    cu!(bench, cuDeviceTotalMem(&mut bytes, 0) => 800);
    let warp = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE;
    cu!(bench, cuDeviceGetAttribute(&mut number, warp as i32, 0) => 800);
    cu!(bench, cuDevicePrimaryCtxGetState(0, &mut flags, &mut active) => 800);
    cu!(bench, cuCtxGetCurrent(&mut context) => 800);
    cu!(bench, cuCtxGetDevice(&mut number) => 800);
    cu!(bench, cuCtxSetCurrent(inside.context) => 800);
    cu!(bench, cuCtxPushCurrent(inside.context) => 800);
    cu!(bench, cuCtxPopCurrent(&mut context) => 800);
    cu!(bench, cuCtxGetStreamPriorityRange(&mut number, &mut number) => 800);
    cu!(bench, cuStreamCreateWithPriority(&mut stream, 1, 0) => 800);
    cu!(bench, cuStreamQuery(null_mut()) => 800);
    cu!(bench, cuEventCreate(&mut event, 0) => 800);
    cu!(bench, cuMemGetInfo(&mut bytes, &mut bytes) => 800);
    cu!(bench, cuMemAlloc(&mut address, 16) => 800);
    cu!(bench, cuMemFree(0) => 800);
    cu!(bench, cuMemHostAlloc(&mut null_mut(), 16, 0) => 800);
    cu!(bench, cuMemAddressReserve(&mut address, 2 << 20, 0, 0, 0) => 800);
    cu!(bench, cuMemCreate(&mut address, 2 << 20, &properties(0), 0) => 800);
    let kind = CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    cu!(bench, cuPointerGetAttribute((&raw mut number).cast(), kind, inside.address) => 800);
    cu!(bench, cuDeviceGetDefaultMemPool(&mut null_mut(), 0) => 800);
    inside.over.store(true, Ordering::SeqCst);
}

fn work_inside(bench: &Bench) {
    inside(bench, work);
}

unsafe extern "C" fn work(argument: *mut c_void) {
    // SAFETY: the argument outlives the callback.
    let inside = unsafe { &*argument.cast::<Inside>() };
    let (bench, stream, address) = (inside.bench, inside.stream, inside.address);
    let mut block = 0;
    cu!(bench, cuMemcpyAsync(address, address + 32, 16, stream) => 800);
    bench.launch(inside.function, stream, 800);
    cu!(bench, cuMemAllocAsync(&mut block, 64, stream) => 800);
    inside.over.store(true, Ordering::SeqCst);
}

fn waits_inside(bench: &Bench) {
    inside(bench, waits);
}

unsafe extern "C" fn waits(argument: *mut c_void) {
    // SAFETY: the argument outlives the callback.
    let inside = unsafe { &*argument.cast::<Inside>() };
    let bench = inside.bench;
    cu!(bench, cuMemFree(inside.address) => 800);
    cu!(bench, cuCtxSynchronize() => 800);
    inside.over.store(true, Ordering::SeqCst);
}
