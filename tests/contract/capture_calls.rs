//! Every call while a stream is captured: which are "potentially unsafe", in which threads and
//! modes, and which the legacy stream refuses.

use crate::Row;
use crate::bench::{Bench, LEGACY, UNIT, access, cu, handle, pool_properties, properties};
use crate::capture::{GLOBAL, MODES, count};
use crate::other_calls::{Calls, other};
use std::ffi::c_void;
use std::ptr::{self, null_mut};
use std::sync::mpsc;
use tcuda::driver::sys::*;

pub const ROWS: &[Row] = crate::rows!["capture":
    calls_in_a_global_one, calls_in_a_local_one, calls_in_a_relaxed_one, calls_of_a_relaxed_thread,
    calls_of_a_local_thread, calls_beside_a_global_one, calls_beside_a_local_one,
    calls_beside_a_relaxed_one, calls_beside_a_global_one_of_a_local_thread,
    legacy_beside_a_blocking_stream, legacy_beside_a_free_stream, devices_of_streams,
    access_to_pools,
];

/// How a call gets on while something is captured.
#[derive(Clone, Copy, PartialEq)]
enum Class {
    Safe,
    /// 900, and the capture is broken, where the modes of capture and thread say so.
    Unsafe,
    /// The same in every mode.
    Conflict,
}
use Class::*;

type Call<'a> = (&'static str, Class, Box<dyn Fn() -> i32 + 'a>);

/// `call!(bench, cuMemAlloc(...))`: the CUresult, without a note.
macro_rules! call {
    ($bench:expr, $call:ident($($arg:expr),* $(,)?)) => {{
        // SAFETY: the arguments are valid.
        let outcome = unsafe { $bench.driver.$call($($arg),*) };
        outcome.map_or_else(|error| error.code, |()| 0)
    }};
}

/// Calls with all that they need, made before the capture. None concerns the stream that is
/// captured.
fn calls(bench: &Bench) -> Vec<Call<'_>> {
    let (other, idle) = (bench.stream(1).addr(), bench.stream(1).addr());
    let stream = move || handle::<CUstream_st>(other);
    let (recorded, old, fresh) = (bench.event(), bench.event(), bench.event());
    cu!(bench, cuEventRecord(recorded, stream()) => 0);
    cu!(bench, cuStreamSynchronize(stream()) => 0);
    let (to_free, memory) = (bench.allocate(64), bench.allocate(4096));
    let own = bench.pinned(4096).as_mut_ptr();
    let other_own = bench.pinned(4096).as_mut_ptr();
    let host: &'static mut [u8] = Box::leak(vec![0; 3 * 4096].into_boxed_slice());
    let page = host.as_mut_ptr().wrapping_add(host.as_ptr().align_offset(4096));
    let second = Box::leak(vec![0u8; 3 * 4096].into_boxed_slice());
    let registered = second.as_mut_ptr().wrapping_add(second.as_ptr().align_offset(4096));
    cu!(bench, cuMemHostRegister(registered.cast(), 4096, 0) => 0);
    let (spare, range) = (bench.reserve(UNIT), bench.reserve(UNIT));
    let (released, mapped) = (bench.create(UNIT), bench.create(UNIT));
    let whole = bench.mapped(UNIT);
    let writer = bench.writer();
    let module = bench.module();
    let mut pool = null_mut();
    cu!(bench, cuMemPoolCreate(&mut pool, &pool_properties(0)) => 0);
    let mut pooled = 0;
    cu!(bench, cuMemAllocAsync(&mut pooled, 64, stream()) => 0);
    cu!(bench, cuStreamSynchronize(stream()) => 0);
    let mut graphs = [null_mut(); 2];
    for graph in &mut graphs {
        cu!(bench, cuStreamBeginCapture(stream(), MODES[2]) => 0);
        cu!(bench, cuStreamEndCapture(stream(), graph) => 0);
    }
    let mut execs = [null_mut(); 2];
    for exec in &mut execs {
        cu!(bench, cuGraphInstantiateWithFlags(exec, graphs[0], 0) => 0);
    }
    macro_rules! list {
        ($($class:ident $call:ident($($arg:expr),* $(,)?);)*) => {
            vec![$((stringify!($call), $class, Box::new(move || {
                #[allow(unused_mut, unused_variables, reason = "outputs of some")]
                let (mut number, mut size, mut object) = (0u64, 0usize, null_mut::<c_void>());
                call!(bench, $call($($arg),*))
            }) as Box<dyn Fn() -> i32 + '_>)),*]
        };
    }
    let out = |slot: usize| -> *mut c_void {
        Box::leak(Box::new([0u64; 8])).as_mut_ptr().wrapping_add(slot).cast()
    };
    list! {
        Unsafe cuMemAlloc(out(0).cast(), 64);
        Unsafe cuMemFree(to_free);
        Unsafe cuMemHostAlloc(out(0).cast(), 64, 0);
        Unsafe cuMemFreeHost(own.cast());
        Unsafe cuMemHostRegister(page.cast(), 4096, 0);
        Unsafe cuMemHostUnregister(registered.cast());
        Safe cuMemGetInfo(out(0).cast(), out(1).cast());
        Safe cuPointerGetAttribute(
            out(0), CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, memory);
        Safe cuStreamCreateWithPriority(out(0).cast(), 1, 0);
        Safe cuStreamDestroy(handle(idle));
        Unsafe cuStreamQuery(stream());
        Unsafe cuStreamSynchronize(stream());
        Safe cuStreamGetId(stream(), out(0).cast());
        Safe cuStreamGetPriority(stream(), out(0).cast());
        Safe cuStreamGetCtx(stream(), out(0).cast());
        Safe cuStreamIsCapturing(stream(), out(0).cast());
        Safe cuEventCreate(out(0).cast(), 0);
        Safe cuEventDestroy(old);
        Unsafe cuEventQuery(recorded);
        Unsafe cuEventSynchronize(recorded);
        Unsafe cuEventQuery(fresh);
        Unsafe cuEventSynchronize(fresh);
        Safe cuEventElapsedTime(out(0).cast(), recorded, recorded);
        Safe cuEventRecord(recorded, stream());
        Safe cuStreamWaitEvent(stream(), recorded, 0);
        Safe cuMemsetD8Async(memory, 1, 64, stream());
        Safe cuMemcpyAsync(memory, memory + 1024, 64, stream());
        Safe cuMemcpyAsync(other_own.expose_provenance() as u64, memory, 64, stream());
        Safe cuMemcpyAsync(memory, page.expose_provenance() as u64, 64, stream());
        Safe cuMemcpyAsync(page.expose_provenance() as u64, memory, 64, stream());
        Safe cuLaunchHostFunc(stream(), Some(count), null_mut());
        Unsafe cuMemAllocAsync(out(0).cast(), 64, stream());
        Unsafe cuMemFreeAsync(pooled, stream());
        Safe cuMemGetAllocationGranularity(
            out(0).cast(), &properties(0),
            CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM);
        Safe cuMemAddressReserve(out(0).cast(), UNIT, 0, 0, 0);
        Safe cuMemAddressFree(spare, UNIT);
        Safe cuMemCreate(out(0).cast(), UNIT, &properties(0), 0);
        Safe cuMemRelease(released);
        Safe cuMemGetAllocationPropertiesFromHandle(out(0).cast(), mapped);
        Safe cuMemMap(range, UNIT, 0, mapped, 0);
        Safe cuMemSetAccess(whole, UNIT, &access(0, 3), 1);
        Safe cuMemGetAccess(out(0).cast(), &crate::bench::location(0), whole);
        Safe cuMemUnmap(whole, UNIT);
        Safe cuDeviceGetDefaultMemPool(out(0).cast(), 0);
        Unsafe cuMemPoolCreate(out(0).cast(), &pool_properties(0));
        Unsafe cuMemPoolSetAttribute(
            pool, CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, out(0));
        Unsafe cuMemPoolGetAttribute(
            pool, CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, out(0));
        Unsafe cuMemPoolSetAccess(pool, &access(0, 3), 1);
        Unsafe cuMemPoolTrimTo(pool, 0);
        Unsafe cuMemPoolDestroy(pool);
        Safe cuModuleLoadData(out(0).cast(), crate::kernels::PTX.as_ptr().cast());
        Safe cuModuleGetFunction(out(0).cast(), module, c"contract_nothing".as_ptr());
        Unsafe cuModuleUnload(module);
        Safe cuFuncGetAttribute(
            out(0).cast(), CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS, writer);
        Safe cuFuncSetAttribute(
            writer, CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1024);
        Safe cuOccupancyMaxActiveBlocksPerMultiprocessor(out(0).cast(), writer, 64, 0);
        Safe cuCtxGetCurrent(out(0).cast());
        Safe cuCtxGetDevice(out(0).cast());
        Safe cuCtxGetStreamPriorityRange(out(0).cast(), out(1).cast());
        Safe cuDevicePrimaryCtxGetState(0, out(0).cast(), out(1).cast());
        Safe cuDevicePrimaryCtxRetain(out(0).cast(), 0);
        Safe cuDevicePrimaryCtxRelease(0);
        Safe cuDeviceGetAttribute(
            out(0).cast(), CUdevice_attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE as i32, 0);
        Unsafe cuGraphInstantiateWithFlags(out(0).cast(), graphs[0], 0);
        Safe cuGraphLaunch(execs[0], stream());
        Unsafe cuGraphExecDestroy(execs[1]);
        Safe cuGraphDestroy(graphs[1]);
        Conflict cuCtxSynchronize();
    }
}

/// Whose capture it is, and in what mode, while the calls are made.
struct Situation {
    mode: CUstreamCaptureMode,
    /// Of the calling thread.
    own_mode: i32,
    /// The capture is another thread's.
    beside: bool,
}

/// Does everything it is sent, in order.
struct Worker<'scope> {
    orders: mpsc::Sender<Box<dyn FnOnce() + Send + 'scope>>,
    done: mpsc::Receiver<()>,
}

impl Worker<'_> {
    fn new<'scope, 'env>(scope: &'scope std::thread::Scope<'scope, 'env>) -> Worker<'env> {
        let (orders, received) = mpsc::channel::<Box<dyn FnOnce() + Send + 'env>>();
        let (finished, done) = mpsc::channel();
        scope.spawn(move || {
            while let Ok(order) = received.recv() {
                order();
                let _ = finished.send(());
            }
        });
        Worker { orders, done }
    }
}

impl<'env> Worker<'env> {
    fn run(&self, order: impl FnOnce() + Send + 'env) {
        self.orders.send(Box::new(order)).unwrap();
        self.done.recv().unwrap();
    }
}

fn each_call(bench: &Bench, situation: &Situation, prohibited: bool) {
    let context = bench.start().addr();
    let stream = bench.stream(1).addr();
    let (mode, beside) = (situation.mode, situation.beside);
    let calls = calls(bench);
    std::thread::scope(|scope| {
        let worker = Worker::new(scope);
        let here_or_there = |order: Box<dyn FnOnce() + Send>| match beside {
            true => worker.run(order),
            false => order(),
        };
        let bench: &'static Bench = Box::leak(Box::new(Bench::again()));
        if beside {
            worker.run(move || {
                cu!(bench, cuCtxSetCurrent(handle(context)) => 0);
            });
        }
        let mut own_mode = situation.own_mode;
        cu!(bench, cuThreadExchangeStreamCaptureMode((&raw mut own_mode).cast()) => 0);
        for (name, class, call) in &calls {
            here_or_there(Box::new(move || {
                cu!(bench, cuStreamBeginCapture(handle(stream), mode) => 0);
            }));
            let code = call();
            let mut status = 99;
            cu!(bench, cuStreamIsCapturing(handle(stream), (&raw mut status).cast()) => 0);
            let refused = *class == Conflict || (prohibited && *class == Unsafe);
            bench.is(name, (code, status), if refused { (900, 2) } else { (0, 1) });
            let expected = if refused { 901 } else { 0 };
            here_or_there(Box::new(move || {
                let mut graph = null_mut();
                cu!(bench, cuStreamEndCapture(handle(stream), &mut graph) => expected);
            }));
        }
    });
}

fn calls_in_a_global_one(bench: &Bench) {
    each_call(bench, &Situation { mode: GLOBAL, own_mode: 0, beside: false }, true);
}

fn calls_in_a_local_one(bench: &Bench) {
    each_call(bench, &Situation { mode: MODES[1], own_mode: 0, beside: false }, true);
}

fn calls_in_a_relaxed_one(bench: &Bench) {
    each_call(bench, &Situation { mode: MODES[2], own_mode: 0, beside: false }, false);
}

fn calls_of_a_relaxed_thread(bench: &Bench) {
    each_call(bench, &Situation { mode: GLOBAL, own_mode: 2, beside: false }, false);
}

fn calls_of_a_local_thread(bench: &Bench) {
    each_call(bench, &Situation { mode: GLOBAL, own_mode: 1, beside: false }, true);
}

fn calls_beside_a_global_one(bench: &Bench) {
    each_call(bench, &Situation { mode: GLOBAL, own_mode: 0, beside: true }, true);
}

fn calls_beside_a_local_one(bench: &Bench) {
    each_call(bench, &Situation { mode: MODES[1], own_mode: 0, beside: true }, false);
}

fn calls_beside_a_relaxed_one(bench: &Bench) {
    each_call(bench, &Situation { mode: MODES[2], own_mode: 0, beside: true }, false);
}

fn calls_beside_a_global_one_of_a_local_thread(bench: &Bench) {
    each_call(bench, &Situation { mode: GLOBAL, own_mode: 1, beside: true }, false);
}

type NamedCall<'a> = (&'static str, Box<dyn Fn() -> i32 + 'a>);

/// Calls on the legacy stream.
fn legacy_calls(bench: &Bench, number: usize) -> Vec<NamedCall<'_>> {
    let stream = handle::<CUstream_st>(number).addr();
    let (memory, event, writer) = (bench.allocate(4096), bench.event(), bench.writer());
    cu!(bench, cuEventRecord(event, null_mut()) => 0);
    cu!(bench, cuCtxSynchronize() => 0);
    let target: &'static mut u64 = Box::leak(Box::new(0));
    let target = ptr::from_mut(target);
    macro_rules! list {
        ($($call:ident($($arg:expr),* $(,)?);)*) => {
            vec![$((stringify!($call), Box::new(move || {
                call!(bench, $call($($arg),*))
            }) as Box<dyn Fn() -> i32 + '_>)),*]
        };
    }
    list! {
        cuMemsetD8Async(memory, 1, 64, handle(stream));
        cuMemcpyAsync(memory, memory + 1024, 64, handle(stream));
        cuStreamQuery(handle(stream));
        cuStreamSynchronize(handle(stream));
        cuEventRecord(event, handle(stream));
        cuStreamWaitEvent(handle(stream), event, 0);
        cuLaunchHostFunc(handle(stream), Some(count), null_mut());
        cuStreamIsCapturing(handle(stream), target.cast());
        cuStreamGetCaptureInfo(
            handle(stream), target.cast(), null_mut(), null_mut(), null_mut(), null_mut());
        cuStreamGetId(handle(stream), target.cast());
        cuStreamGetPriority(handle(stream), target.cast());
        cuStreamGetCtx(handle(stream), target.cast());
        cuMemAllocAsync(target.cast(), 64, handle(stream));
        cuFuncGetAttribute(target.cast(), CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS, writer);
        cuStreamBeginCapture(handle(stream), GLOBAL);
        cuStreamEndCapture(handle(stream), target.cast());
    }
}

fn legacy(bench: &Bench, flags: u32, expect: impl Fn(&str, CUstreamCaptureMode) -> (i32, i32)) {
    bench.start();
    bench.warm(64);
    for number in [0, LEGACY] {
        for mode in MODES {
            let stream = bench.stream(flags);
            for (name, call) in legacy_calls(bench, number) {
                // Of an earlier call.
                cu!(bench, cuCtxSynchronize() => 0);
                cu!(bench, cuStreamBeginCapture(stream, mode) => 0);
                let code = call();
                bench.is(name, (code, bench.capture_status(stream)), expect(name, mode));
                // SAFETY: the stream is captured; whether that went well is not the question.
                let _ = unsafe { bench.driver.cuStreamEndCapture(stream, &mut null_mut()) };
            }
        }
    }
}

fn legacy_beside_a_blocking_stream(bench: &Bench) {
    legacy(bench, 0, |name, _| match name {
        "cuFuncGetAttribute" => (0, 1),
        "cuStreamIsCapturing" | "cuStreamGetCaptureInfo" => (906, 1),
        _ => (906, 2),
    });
}

fn legacy_beside_a_free_stream(bench: &Bench) {
    legacy(bench, 1, |name, mode| match name {
        "cuStreamQuery" | "cuStreamSynchronize" | "cuMemAllocAsync" if mode != MODES[2] => (900, 2),
        "cuStreamBeginCapture" => (900, 1),
        "cuStreamEndCapture" => (401, 1),
        _ => (0, 1),
    });
}

/// Even the device of the captured stream is refused, in each mode.
fn devices_of_streams(bench: &Bench) {
    bench.start();
    let (calls, stream, other) = (Calls::find(bench), bench.stream(1), bench.stream(1));
    for mode in MODES {
        for (of, seen) in [(stream, (900, 2)), (other, (0, 1))] {
            let mut device = 77;
            cu!(bench, cuStreamBeginCapture(stream, mode) => 0);
            other!(bench, calls, cuStreamGetDevice(of, &mut device) => seen.0);
            bench.is("status", bench.capture_status(stream), seen.1);
            let end = if seen.0 == 0 { 0 } else { 901 };
            cu!(bench, cuStreamEndCapture(stream, &mut null_mut()) => end);
        }
    }
}

fn access_to_pools(bench: &Bench) {
    bench.start();
    let (calls, stream, pool) = (Calls::find(bench), bench.stream(1), bench.default_pool());
    for (mode, is_refused) in MODES.into_iter().zip([true, true, false]) {
        let mut flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE;
        let mut at = crate::bench::location(0);
        cu!(bench, cuStreamBeginCapture(stream, mode) => 0);
        other!(bench, calls, cuMemPoolGetAccess(
            &mut flags, pool, &mut at) => if is_refused { 900 } else { 0 });
        let status = if is_refused { 2 } else { 1 };
        bench.is("status", bench.capture_status(stream), status);
        let end = if is_refused { 901 } else { 0 };
        cu!(bench, cuStreamEndCapture(stream, &mut null_mut()) => end);
    }
}
