//! Device memory, pinned memory, and pointer attributes.

use super::*;

const G: usize = GRANULARITY;

#[test]
fn memory_ends_at_the_limit() {
    let bench = Bench::new("devices=2,memory=16MiB");
    assert_eq!(bench.free(), 8 * G);
    let first = bench.allocate(1);
    assert_eq!(bench.free(), 7 * G);
    let mut address = 0;
    assert_eq!(cu!(bench, cuMemAlloc(&mut address, 8 * G)), code::OUT_OF_MEMORY);
    assert_eq!(cu!(bench, cuMemAlloc(&mut address, usize::MAX)), code::OUT_OF_MEMORY);
    assert_eq!(cu!(bench, cuMemAlloc(&mut address, 0)), code::INVALID_VALUE);
    assert_eq!(address, 0, "results are untouched on failure");
    let rest = bench.allocate(7 * G);
    assert_eq!(bench.free(), 0);
    assert_eq!(cu!(bench, cuMemFree(first + 1)), code::INVALID_VALUE);
    ok!(bench, cuMemFree(first));
    assert_eq!(cu!(bench, cuMemFree(first)), code::INVALID_VALUE);
    ok!(bench, cuMemFree(rest));
    ok!(bench, cuMemFree(0));
    assert_eq!(bench.free(), 8 * G);
    assert_eq!(cu!(bench, cuMemFree(0x1000)), code::INVALID_VALUE);
    let handle = bench.create(1, G);
    bench.use_device(1);
    assert_eq!(bench.free(), 7 * G);
    ok!(bench, cuMemRelease(handle));
}

#[test]
fn small_allocations_share_units() {
    let bench = Bench::new("devices=2,memory=64MiB");
    let all = bench.free();
    let mut state = 7u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % below
    };
    // For each address: the device and the requested size.
    let mut live = std::collections::BTreeMap::new();
    for _ in 0..2000 {
        if live.len() < 40 && random(2) == 0 {
            let (device, most) = (random(2), 1 << (1 + random(21)));
            let bytes = 1 + random(most);
            bench.use_device(device as i32);
            let address = bench.allocate(bytes);
            assert_eq!(address % 512, 0);
            let end = address + bytes as u64;
            if let Some((start, (_, other))) = live.range(..end).next_back() {
                assert!(start + *other as u64 <= address, "two allocations overlap");
            }
            ok!(bench, cuMemsetD8Async(address, 1, bytes, bench.stream()));
            let call = cu!(bench, cuMemsetD8Async(address, 1, bytes + 1, bench.stream()));
            assert_eq!(call, code::INVALID_VALUE);
            live.insert(address, (device, bytes));
        } else if let Some(address) = live.keys().nth(random(live.len().max(1))).copied() {
            live.remove(&address);
            ok!(bench, cuMemFree(address));
            assert_eq!(cu!(bench, cuMemFree(address)), code::INVALID_VALUE);
        }
        assert_eq!(live_objects().allocations, live.len());
    }
    // A reset context frees its memory.
    bench.use_device(1);
    ok!(bench, cuDevicePrimaryCtxReset(1));
    for address in live.iter().filter(|(_, (device, _))| *device == 0).map(|(at, _)| *at) {
        bench.use_device(0);
        ok!(bench, cuMemFree(address));
    }
    assert_eq!((bench.free(), live_objects().allocations), (all, 0));
    bench.use_device(1);
    assert_eq!(bench.free(), all);
}

#[test]
fn pinned_memory_is_remembered() {
    let bench = Bench::new("");
    let mut host = ptr::null_mut();
    ok!(bench, cuMemHostAlloc(&mut host, 0, 0));
    assert_eq!(cu!(bench, cuMemHostAlloc(&mut host, 8, 64)), code::INVALID_VALUE);
    ok!(bench, cuMemHostAlloc(&mut host, 100, 3));
    assert_eq!(cu!(bench, cuMemHostUnregister(host)), code::INVALID_VALUE);
    assert_eq!(cu!(bench, cuMemFreeHost(host.wrapping_byte_add(1))), code::INVALID_VALUE);
    ok!(bench, cuMemFreeHost(host));
    assert_eq!(cu!(bench, cuMemFreeHost(host)), code::INVALID_VALUE);

    let mut own = vec![0u8; 1000];
    let start: *mut c_void = own.as_mut_ptr().cast();
    ok!(bench, cuMemHostRegister(start, 500, 0));
    let overlapping = cu!(bench, cuMemHostRegister(start.wrapping_byte_add(499), 10, 0));
    assert_eq!(overlapping, code::HOST_MEMORY_ALREADY_REGISTERED);
    ok!(bench, cuMemHostRegister(start.wrapping_byte_add(500), 500, 0));
    assert_eq!(cu!(bench, cuMemFreeHost(start)), code::INVALID_VALUE);
    // Devices write to it, across both registrations.
    ok!(bench, cuMemsetD8Async(start.expose_provenance() as u64, 9, 1000, bench.stream()));
    ok!(bench, cuCtxSynchronize());
    assert!(own.iter().all(|byte| *byte == 9));
    ok!(bench, cuMemHostUnregister(start));
    let call = cu!(bench, cuMemsetD8Async(start.addr() as u64, 9, 10, bench.stream()));
    assert_eq!(call, code::INVALID_VALUE);
}

/// Queries an attribute of a pointer.
fn ask<T: Default>(bench: &Bench, attribute: CUpointer_attribute, address: u64) -> Result<T, i32> {
    let mut data = T::default();
    let out = ptr::from_mut(&mut data).cast();
    match cu!(bench, cuPointerGetAttribute(out, attribute as u32, address)) {
        0 => Ok(data),
        error => Err(error),
    }
}

#[test]
fn pointers_have_attributes() {
    use CUpointer_attribute::*;
    let bench = Bench::new("devices=2");
    bench.use_device(1);
    let device = bench.allocate(G);
    let mut host = ptr::null_mut();
    ok!(bench, cuMemHostAlloc(&mut host, 100, 0));
    let host = host.addr() as u64;
    let local = 0;
    let pageable = ptr::from_ref(&local).addr() as u64;
    let kind = |address| ask::<u32>(&bench, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
    assert_eq!(kind(device + 5), Ok(2));
    assert_eq!(kind(host + 99), Ok(1));
    assert_eq!(kind(host + 100), Err(code::INVALID_VALUE));
    assert_eq!(kind(pageable), Err(code::INVALID_VALUE));
    assert_eq!(kind(0), Err(code::INVALID_VALUE));
    assert_eq!(ask(&bench, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, device), Ok(1i32));
    assert_eq!(ask(&bench, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, device + 9), Ok(device));
    assert_eq!(ask(&bench, CU_POINTER_ATTRIBUTE_RANGE_SIZE, device + 9), Ok(G));
    assert_eq!(ask(&bench, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, host + 9), Ok(host + 9));
    assert_eq!(ask(&bench, CU_POINTER_ATTRIBUTE_IS_MANAGED, device), Ok(0u32));
    let context = ask::<usize>(&bench, CU_POINTER_ATTRIBUTE_CONTEXT, device).unwrap();
    let mut current = ptr::null_mut();
    ok!(bench, cuCtxGetCurrent(&mut current));
    assert_eq!(context, current.addr());

    // Virtual memory: the reservation, and the mapping in it.
    let base = bench.reserve(4 * G);
    assert_eq!(kind(base), Err(code::INVALID_VALUE));
    assert_eq!(ask(&bench, CU_POINTER_ATTRIBUTE_MAPPED, base), Err::<u32, _>(code::INVALID_VALUE));
    let handle = bench.create(0, G);
    let middle = base + G as u64;
    ok!(bench, cuMemMap(middle, G, 0, handle, 0));
    assert_eq!(kind(middle), Ok(2));
    assert_eq!(ask(&bench, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, middle), Ok(0i32));
    assert_eq!(ask(&bench, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, middle), Ok(base));
    assert_eq!(ask(&bench, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, middle + 1), Ok(middle));
    assert_eq!(ask(&bench, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, middle), Ok(G));
    assert_eq!(ask(&bench, CU_POINTER_ATTRIBUTE_CONTEXT, middle), Ok(0usize));
    let first = ask::<u64>(&bench, CU_POINTER_ATTRIBUTE_BUFFER_ID, middle).unwrap();
    assert_ne!(Ok(first), ask::<u64>(&bench, CU_POINTER_ATTRIBUTE_BUFFER_ID, device));
    ok!(bench, cuMemFree(device));
    assert_eq!(kind(device), Err(code::INVALID_VALUE));
}
