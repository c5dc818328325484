//! Devices and contexts.

use super::*;
use std::collections::HashSet;

#[test]
fn devices_answer_like_an_h100() {
    let bench = Bench::new("devices=3,memory=3GiB,name=Test,multiprocessors=7");
    let mut device = 0;
    ok!(bench, cuDeviceGet(&mut device, 2));
    assert_eq!(cu!(bench, cuDeviceGet(&mut device, 3)), code::INVALID_DEVICE);
    assert_eq!(cu!(bench, cuDeviceGet(&mut device, -1)), code::INVALID_DEVICE);
    let mut bytes = 0;
    ok!(bench, cuDeviceTotalMem(&mut bytes, 1));
    assert_eq!(bytes, 3 << 30);
    let mut name = [1; 8];
    ok!(bench, cuDeviceGetName(name.as_mut_ptr(), 8, 0));
    assert_eq!(name[..5], [b'T' as i8, b'e' as i8, b's' as i8, b't' as i8, 0]);
    ok!(bench, cuDeviceGetName(name.as_mut_ptr(), 3, 0));
    assert_eq!(name[2], 0);
    let uuid = |device| {
        let mut uuid = CUuuid { bytes: [0; 16] };
        ok!(bench, cuDeviceGetUuid(&mut uuid, device));
        uuid
    };
    assert_ne!(uuid(0), uuid(1));
    use CUdevice_attribute::*;
    let attribute = |attribute| {
        let mut value = -7;
        ok!(bench, cuDeviceGetAttribute(&mut value, attribute, 0));
        value
    };
    assert_eq!(attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as u32), 7);
    assert_eq!(attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE as u32), 32);
    assert_eq!(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as u32), 9);
    assert_eq!(attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED as u32), 1);
    let mut value = 0;
    let call = cu!(bench, cuDeviceGetAttribute(&mut value, CU_DEVICE_ATTRIBUTE_MAX as u32, 0));
    assert_eq!(call, code::INVALID_VALUE);
}

#[test]
fn each_thread_has_a_stack_of_contexts() {
    let bench = Bench::new("devices=2");
    let first = bench.context;
    let mut second = ptr::null_mut();
    assert_eq!(cu!(bench, cuCtxPushCurrent(garbage())), code::INVALID_CONTEXT);
    ok!(bench, cuDevicePrimaryCtxRetain(&mut second, 1));
    ok!(bench, cuCtxPushCurrent(second));
    let mut device = 9;
    ok!(bench, cuCtxGetDevice(&mut device));
    assert_eq!(device, 1);
    let mut popped = ptr::null_mut();
    ok!(bench, cuCtxPopCurrent(&mut popped));
    assert_eq!(popped, second);
    ok!(bench, cuCtxGetCurrent(&mut popped));
    assert_eq!(popped, first);
    std::thread::scope(|scope| {
        struct View;
        scope.spawn(move || {
            let bench = View;
            let mut current = garbage();
            ok!(bench, cuCtxGetCurrent(&mut current));
            assert!(current.is_null());
            assert_eq!(cu!(bench, cuMemAlloc(&mut 0, 1)), code::INVALID_CONTEXT);
            assert_eq!(cu!(bench, cuStreamQuery(ptr::null_mut())), code::INVALID_CONTEXT);
            assert_eq!(cu!(bench, cuCtxPopCurrent(&mut current)), code::INVALID_CONTEXT);
            assert_eq!(cu!(bench, cuCtxGetDevice(&mut device)), code::INVALID_CONTEXT);
            // Virtual memory needs no context.
            ok!(bench, cuMemAddressReserve(&mut 0, GRANULARITY, 0, 0, 0));
        });
    });
    ok!(bench, cuCtxSetCurrent(ptr::null_mut()));
    assert_eq!(cu!(bench, cuCtxSynchronize()), code::INVALID_CONTEXT);
}

#[test]
fn releasing_a_context_destroys_what_is_in_it() {
    let bench = Bench::new("schedule=threads");
    let all = bench.free();
    let stream = bench.stream();
    let event = bench.event(0);
    let address = bench.allocate(1);
    ok!(bench, cuMemsetD8Async(address, 1, 1, stream));
    let (mut flags, mut active) = (1, 0);
    ok!(bench, cuDevicePrimaryCtxGetState(0, &mut flags, &mut active));
    assert_eq!((flags, active), (0, 1));
    ok!(bench, cuDevicePrimaryCtxRelease(0));
    ok!(bench, cuDevicePrimaryCtxGetState(0, &mut flags, &mut active));
    assert_eq!(active, 0);
    assert_eq!(cu!(bench, cuDevicePrimaryCtxRelease(0)), code::INVALID_CONTEXT);
    assert_eq!(cu!(bench, cuStreamQuery(stream)), code::CONTEXT_IS_DESTROYED);
    bench.use_device(0);
    assert_eq!(cu!(bench, cuStreamQuery(stream)), code::CONTEXT_IS_DESTROYED);
    assert_eq!(cu!(bench, cuEventQuery(event)), code::CONTEXT_IS_DESTROYED);
    assert!(bench.stream() != stream && bench.event(0) != event, "handles are not used again");
    assert_eq!(cu!(bench, cuStreamDestroy(garbage())), code::INVALID_HANDLE);
    assert_eq!(bench.free(), all);
    let address = bench.allocate(1);
    ok!(bench, cuDevicePrimaryCtxReset(0));
    assert_eq!(cu!(bench, cuMemFree(address)), code::CONTEXT_IS_DESTROYED);
    let live = live_objects();
    assert_eq!((live.contexts, live.streams, live.events, live.allocations), (1, 0, 0, 0));
    ok!(bench, cuDevicePrimaryCtxRelease(0));
}

#[test]
fn peer_access_follows_the_topology() {
    let bench = Bench::new("devices=3,peers=pairs,memory=64MiB");
    let mut possible = 9;
    ok!(bench, cuDeviceCanAccessPeer(&mut possible, 0, 1));
    assert_eq!(possible, 1);
    ok!(bench, cuDeviceCanAccessPeer(&mut possible, 1, 2));
    assert_eq!(possible, 0);
    let on_first = bench.allocate(16);
    let first = bench.context;
    let third = bench.use_device(2);
    let call = cu!(bench, cuCtxEnablePeerAccess(first, 0));
    assert_eq!(call, code::PEER_ACCESS_UNSUPPORTED);
    bench.use_device(1);
    assert_eq!(cu!(bench, cuCtxEnablePeerAccess(third, 0)), code::PEER_ACCESS_UNSUPPORTED);
    assert_eq!(cu!(bench, cuCtxEnablePeerAccess(first, 1)), code::INVALID_VALUE);
    ok!(bench, cuCtxEnablePeerAccess(first, 0));
    assert_eq!(cu!(bench, cuCtxEnablePeerAccess(first, 0)), code::PEER_ACCESS_ALREADY_ENABLED);
    ok!(bench, cuMemsetD8Async(on_first, 3, 16, bench.stream()));
    ok!(bench, cuCtxSynchronize());
    // Copies need no peer access; other operations do.
    bench.use_device(2);
    let on_third = bench.allocate(16);
    let stream = bench.stream();
    ok!(bench, cuMemcpyPeerAsync(on_third, third, on_first, first, 16, stream));
    let mut found = [0; 16];
    assert_eq!(bench.fetch(on_third, &mut found, stream), 0);
    assert_eq!(found, [3; 16]);
    assert_eq!(cu!(bench, cuMemsetD8Async(on_first, 3, 16, stream)), code::INVALID_VALUE);
    ok!(bench, cuStreamSynchronize(stream));
}

#[test]
fn contexts_beside_the_primary_one_own_their_objects() {
    let bench = Bench::new("schedule=threads");
    let (before, kept) = (live_objects(), bench.stream());
    let mut handles = Vec::new();
    for _ in 0..200 {
        let mut own = ptr::null_mut();
        ok!(bench, cuCtxCreate(&mut own, 0, 0));
        assert!(!handles.contains(&own), "a handle never means another context");
        let (stream, device) = (bench.stream(), bench.allocate(100));
        ok!(bench, cuMemsetD8Async(device, 1, 100, stream));
        let live = live_objects();
        assert_eq!(live.contexts, before.contexts + 1);
        assert_eq!((live.streams, live.allocations), (before.streams + 2, before.allocations + 1));
        ok!(bench, cuCtxDestroy(own));
        assert_eq!(cu!(bench, cuCtxSetCurrent(own)), code::INVALID_CONTEXT);
        assert_eq!(cu!(bench, cuStreamQuery(stream)), code::CONTEXT_IS_DESTROYED);
        handles.push(own);
    }
    ok!(bench, cuStreamQuery(kept));
    ok!(bench, cuStreamDestroy(kept));
    assert_eq!(LiveObjects { workers: 0, ..live_objects() }, LiveObjects { workers: 0, ..before });
}

#[test]
fn records_of_destroyed_contexts_are_used_again() {
    let bench = Bench::new("devices=2");
    let mut handles = Vec::new();
    for round in 0..3000 {
        let mut own = ptr::null_mut();
        ok!(bench, cuCtxCreate(&mut own, 0, round % 2));
        let mut device = -1;
        ok!(bench, cuCtxGetDevice(&mut device));
        assert_eq!(device, round % 2);
        let stream = bench.stream();
        ok!(bench, cuStreamSynchronize(ptr::null_mut()));
        ok!(bench, cuCtxDestroy(own));
        assert_eq!(cu!(bench, cuStreamQuery(stream)), code::CONTEXT_IS_DESTROYED);
        handles.push(own);
    }
    // A handle comes back after 1,023 others.
    let distinct = |handles: &[CUcontext]| handles.iter().collect::<HashSet<_>>().len();
    assert_eq!(distinct(&handles[handles.len() - 1024..]), 1024);
    assert_eq!(distinct(&handles), 1024);
}
