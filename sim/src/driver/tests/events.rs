//! Events: points in streams.

use super::*;

#[test]
fn misuse_has_its_codes() {
    let bench = Bench::new("devices=2");
    let stream = bench.stream();
    let mut event = ptr::null_mut();
    assert_eq!(cu!(bench, cuEventCreate(&mut event, 8)), code::INVALID_VALUE);
    assert_eq!(cu!(bench, cuEventCreate(&mut event, 4)), code::INVALID_VALUE);
    ok!(bench, cuEventCreate(&mut event, 6));
    ok!(bench, cuEventDestroy(event));
    assert_eq!(cu!(bench, cuEventDestroy(event)), code::INVALID_HANDLE);
    assert_eq!(cu!(bench, cuEventDestroy(ptr::null_mut())), code::INVALID_HANDLE);
    assert_eq!(cu!(bench, cuEventRecord(event, stream)), code::INVALID_HANDLE);
    assert_eq!(cu!(bench, cuEventQuery(garbage())), code::INVALID_HANDLE);
    assert_eq!(cu!(bench, cuEventQuery(stream.cast())), code::INVALID_HANDLE);

    // Never recorded: reached.
    let (start, end, untimed) = (bench.event(0), bench.event(1), bench.event(2));
    ok!(bench, cuEventQuery(start));
    ok!(bench, cuEventSynchronize(start));
    ok!(bench, cuStreamWaitEvent(stream, start, 0));
    assert_eq!(cu!(bench, cuStreamWaitEvent(stream, start, 1)), code::ILLEGAL_STATE);
    let elapsed = |start, end| {
        let mut milliseconds = -1.0;
        (cu!(bench, cuEventElapsedTime(&mut milliseconds, start, end)), milliseconds)
    };
    assert_eq!(elapsed(start, end).0, code::INVALID_HANDLE);
    for event in [start, untimed, end] {
        ok!(bench, cuEventRecord(event, stream));
    }
    assert_eq!(elapsed(start, untimed).0, code::INVALID_HANDLE);
    let (code, milliseconds) = elapsed(start, end);
    assert_eq!(code, 0);
    assert!((0.0..10_000.0).contains(&milliseconds));
    assert_eq!(cu!(bench, cuEventRecordWithFlags(end, stream, 1)), code::ILLEGAL_STATE);
    ok!(bench, cuEventRecordWithFlags(end, stream, 0));

    // Another device: recording is refused, waiting is not.
    bench.use_device(1);
    let other = bench.stream();
    assert_eq!(cu!(bench, cuEventRecord(start, other)), code::INVALID_HANDLE);
    ok!(bench, cuStreamWaitEvent(other, start, 0));
}

#[test]
fn an_event_is_reached_when_its_stream_gets_there() {
    let bench = Bench::new("schedule=threads");
    let (stream, gate) = (bench.stream(), Gate::new());
    let (start, end) = (bench.event(0), bench.event(0));
    ok!(bench, cuEventRecord(start, stream));
    ok!(bench, cuEventSynchronize(start));
    gate.hold(&bench, stream);
    ok!(bench, cuEventRecord(end, stream));
    assert_eq!(cu!(bench, cuEventQuery(end)), code::NOT_READY);
    assert_eq!(cu!(bench, cuStreamQuery(stream)), code::NOT_READY);
    let mut milliseconds = 0.0;
    let call = cu!(bench, cuEventElapsedTime(&mut milliseconds, start, end));
    assert_eq!(call, code::NOT_READY);
    // A new record moves the event.
    let free = bench.stream();
    ok!(bench, cuEventRecord(end, free));
    ok!(bench, cuEventSynchronize(end));
    gate.open();
    ok!(bench, cuStreamSynchronize(stream));
    ok!(bench, cuStreamQuery(stream));
}
