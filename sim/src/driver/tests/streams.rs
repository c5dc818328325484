//! Streams: identity, order, callbacks.

use super::*;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

fn id(bench: &Bench, stream: CUstream) -> u64 {
    let mut id = 0;
    ok!(bench, cuStreamGetId(stream, &mut id));
    id
}

#[test]
fn handles_are_recycled_but_ids_are_not() {
    let bench = Bench::new("");
    let (first, second) = (bench.stream(), bench.stream());
    let first_id = id(&bench, first);
    ok!(bench, cuStreamDestroy(first));
    assert_eq!(cu!(bench, cuStreamQuery(first)), code::INVALID_HANDLE);
    assert_eq!(cu!(bench, cuStreamDestroy(first)), code::INVALID_HANDLE);
    assert_eq!(cu!(bench, cuStreamDestroy(ptr::null_mut())), code::INVALID_HANDLE);
    let third = bench.stream();
    assert_eq!(third, first);
    assert_ne!(id(&bench, third), first_id);
    ok!(bench, cuStreamDestroy(second));
    ok!(bench, cuStreamDestroy(third));
    assert_eq!(bench.stream(), third, "the most recently freed comes first");

    let legacy: CUstream = ptr::without_provenance_mut(1);
    let per_thread: CUstream = ptr::without_provenance_mut(2);
    assert_eq!(id(&bench, legacy), id(&bench, ptr::null_mut()));
    assert_ne!(id(&bench, per_thread), id(&bench, legacy));
    assert_eq!(id(&bench, per_thread), id(&bench, per_thread));
}

#[test]
fn properties_of_a_stream() {
    let bench = Bench::new("devices=2");
    let mut stream = ptr::null_mut();
    assert_eq!(cu!(bench, cuStreamCreateWithPriority(&mut stream, 2, 0)), code::INVALID_VALUE);
    ok!(bench, cuStreamCreateWithPriority(&mut stream, 1, -100));
    let (mut priority, mut least, mut greatest) = (0, 9, 9);
    ok!(bench, cuStreamGetPriority(stream, &mut priority));
    ok!(bench, cuCtxGetStreamPriorityRange(&mut least, &mut greatest));
    assert_eq!((priority, least), (greatest, 0));
    let mut context = ptr::null_mut();
    bench.use_device(1);
    ok!(bench, cuStreamGetCtx(stream, &mut context));
    assert_eq!(context, bench.context);
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE;
    ok!(bench, cuStreamIsCapturing(stream, &mut status));
    assert_eq!(status, CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE);
    let none = ptr::null_mut();
    let info = cu!(
        bench,
        cuStreamGetCaptureInfo(stream, &mut status, none, none.cast(), none.cast(), none.cast())
    );
    assert_eq!(info, 0);
    let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    ok!(bench, cuThreadExchangeStreamCaptureMode(&mut mode));
    assert_eq!(mode, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL);
    ok!(bench, cuThreadExchangeStreamCaptureMode(&mut mode));
    assert_eq!(mode, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED);
}

/// The numbers that callbacks noted, in order.
static NOTES: Mutex<Vec<usize>> = Mutex::new(Vec::new());

unsafe extern "C" fn note(number: *mut c_void) {
    NOTES.lock().unwrap().push(number.addr());
}

fn note_on(bench: &Bench, stream: CUstream, number: usize) {
    let argument = ptr::without_provenance_mut(number);
    ok!(bench, cuLaunchHostFunc(stream, Some(note), argument));
}

#[test]
fn events_order_streams() {
    for schedule in SCHEDULES {
        let bench = Bench::new(&format!("schedule={schedule}"));
        NOTES.lock().unwrap().clear();
        let streams: Vec<_> = (0..4).map(|_| bench.stream()).collect();
        let event = bench.event(2);
        let gate = Gate::new();
        if schedule == "threads" {
            gate.hold(&bench, streams[0]);
        }
        for number in 0..400 {
            let stream = streams[number % 4];
            ok!(bench, cuStreamWaitEvent(stream, event, 0));
            note_on(&bench, stream, number);
            ok!(bench, cuEventRecord(event, stream));
        }
        // Work continues when its event and streams are destroyed.
        ok!(bench, cuEventDestroy(event));
        for stream in streams {
            ok!(bench, cuStreamDestroy(stream));
        }
        gate.open();
        ok!(bench, cuCtxSynchronize());
        assert_eq!(*NOTES.lock().unwrap(), (0..400).collect::<Vec<_>>());
    }
}

#[test]
fn the_legacy_stream_and_blocking_streams_wait_for_each_other() {
    let bench = Bench::new("schedule=threads");
    NOTES.lock().unwrap().clear();
    let (mut blocking, free, legacy) = (ptr::null_mut(), bench.stream(), ptr::null_mut());
    ok!(bench, cuStreamCreateWithPriority(&mut blocking, 0, 0));
    let gate = Gate::new();
    gate.hold(&bench, blocking);
    note_on(&bench, legacy, 1);
    note_on(&bench, blocking, 2);
    note_on(&bench, ptr::without_provenance_mut(2), 3);
    note_on(&bench, free, 0);
    ok!(bench, cuStreamSynchronize(free));
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(*NOTES.lock().unwrap(), [0]);
    gate.open();
    ok!(bench, cuCtxSynchronize());
    let notes = NOTES.lock().unwrap().clone();
    assert_eq!(notes[..2], [0, 1]);
    assert_eq!(notes.len(), 4);
}

#[test]
fn the_default_stream_of_a_thread_ends_with_it() {
    let bench = Bench::new("schedule=threads");
    let context = bench.context.addr();
    struct View;
    let address = bench.allocate(16);
    for _ in 0..20 {
        std::thread::scope(|scope| {
            let call = scope.spawn(move || {
                let bench = View;
                ok!(bench, cuCtxSetCurrent(ptr::without_provenance_mut(context)));
                let own = ptr::without_provenance_mut(2);
                ok!(bench, cuMemsetD8Async(address, 1, 16, own));
            });
            call.join().unwrap();
        });
    }
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while live_objects().workers > 0 && std::time::Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(live_objects().workers, 0);
}

static ANSWER: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" fn call_back_into_cuda(bench: *mut c_void) {
    // SAFETY: the argument is the test's machine, which outlives its streams.
    let bench = unsafe { &*bench.cast::<Bench>() };
    let answer = cu!(bench, cuStreamQuery(ptr::null_mut()));
    ANSWER.store(answer as u64, Ordering::SeqCst);
}

#[test]
fn callbacks_may_not_call_cuda() {
    for schedule in SCHEDULES {
        let bench = Bench::new(&format!("schedule={schedule}"));
        let stream = bench.stream();
        let argument = ptr::from_ref(&bench).cast_mut().cast();
        ok!(bench, cuLaunchHostFunc(stream, Some(call_back_into_cuda), argument));
        ok!(bench, cuStreamSynchronize(stream));
        assert_eq!(ANSWER.swap(0, Ordering::SeqCst), code::NOT_PERMITTED as u64);
        assert_eq!(cu!(bench, cuLaunchHostFunc(stream, None, argument)), code::INVALID_VALUE);
    }
}

#[test]
fn many_threads_share_streams_and_memory() {
    for schedule in SCHEDULES {
        let bench = Bench::new(&format!("schedule={schedule},memory=256MiB"));
        let shared = bench.stream();
        let context = bench.context;
        let (shared, context) = (shared.addr(), context.addr());
        struct View;
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                scope.spawn(move || {
                    let bench = View;
                    ok!(bench, cuCtxSetCurrent(ptr::without_provenance_mut(context)));
                    let shared = ptr::without_provenance_mut(shared);
                    for round in 0..100 {
                        let (mut own, mut event, mut memory) =
                            (ptr::null_mut(), ptr::null_mut(), 0);
                        ok!(bench, cuStreamCreateWithPriority(&mut own, round % 2, 0));
                        ok!(bench, cuEventCreate(&mut event, 2));
                        ok!(bench, cuMemAlloc(&mut memory, 4096));
                        ok!(bench, cuMemsetD8Async(memory, thread, 4096, own));
                        ok!(bench, cuEventRecord(event, own));
                        ok!(bench, cuStreamWaitEvent(shared, event, 0));
                        let mut found = [0u8; 4096];
                        let host = found.as_mut_ptr().expose_provenance() as u64;
                        ok!(bench, cuMemcpyAsync(host, memory, 4096, shared));
                        assert_eq!(found, [thread; 4096]);
                        ok!(bench, cuMemsetD8Async(memory, 0, 1, ptr::null_mut()));
                        ok!(bench, cuMemFree(memory));
                        ok!(bench, cuEventDestroy(event));
                        ok!(bench, cuStreamDestroy(own));
                    }
                });
            }
        });
        ok!(bench, cuCtxSynchronize());
    }
}
