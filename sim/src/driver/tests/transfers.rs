//! Copies and fills.

use super::*;

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| (index * 7 + index / 251) as u8).collect()
}

#[test]
fn pageable_memory_is_read_at_the_call_and_pinned_memory_later() {
    let bench = Bench::new("schedule=threads");
    let (stream, gate) = (bench.stream(), Gate::new());
    let device = bench.allocate(32);
    let mut pageable = [1u8; 16];
    let mut pinned = ptr::null_mut();
    ok!(bench, cuMemHostAlloc(&mut pinned, 16, 0));
    let pinned: *mut u8 = pinned.cast();
    gate.hold(&bench, stream);
    let host = pageable.as_mut_ptr().expose_provenance() as u64;
    ok!(bench, cuMemcpyAsync(device, host, 16, stream));
    ok!(bench, cuMemcpyAsync(device + 16, pinned.addr() as u64, 16, stream));
    pageable.fill(2);
    // SAFETY: 16 bytes that the blocked copy does not read yet.
    unsafe { pinned.write_bytes(3, 16) };
    gate.open();
    let mut found = [0; 32];
    assert_eq!(bench.fetch(device, &mut found, stream), 0);
    assert_eq!((found[0], found[31]), (1, 3));
    assert_eq!(pageable, [2; 16]);
}

#[test]
fn fills_have_three_widths_and_are_aligned() {
    let bench = Bench::new("");
    let (stream, device) = (bench.stream(), bench.allocate(64));
    ok!(bench, cuMemsetD8Async(device + 1, 0xaa, 3, stream));
    ok!(bench, cuMemsetD16Async(device + 4, 0x1234, 2, stream));
    ok!(bench, cuMemsetD32Async(device + 8, 0x0102_0304, 1, stream));
    assert_eq!(cu!(bench, cuMemsetD16Async(device + 1, 0, 1, stream)), code::INVALID_VALUE);
    assert_eq!(cu!(bench, cuMemsetD32Async(device + 2, 0, 1, stream)), code::INVALID_VALUE);
    assert_eq!(cu!(bench, cuMemsetD32Async(device, 0, 1 << 62, stream)), code::INVALID_VALUE);
    assert_eq!(cu!(bench, cuMemsetD8Async(0, 0, 1, stream)), code::INVALID_VALUE);
    assert_eq!(cu!(bench, cuMemsetD8Async(device, 0, 1, garbage())), code::INVALID_HANDLE);
    ok!(bench, cuMemsetD32Async(device, 0, 0, stream));
    let mut found = [0; 13];
    assert_eq!(bench.fetch(device, &mut found, stream), 0);
    assert_eq!(found, [0, 0xaa, 0xaa, 0xaa, 0x34, 0x12, 0x34, 0x12, 4, 3, 2, 1, 0]);
}

#[test]
fn copies_go_in_every_direction() {
    for schedule in SCHEDULES {
        let bench = Bench::new(&format!("devices=2,peers=none,schedule={schedule}"));
        let bytes = 3 * GRANULARITY + 12_345;
        let source = pattern(bytes);
        let (stream, first) = (bench.stream(), bench.allocate(bytes));
        let first_context = bench.context;
        assert_eq!(bench.store(first, &source, stream), 0);
        let second_context = bench.use_device(1);
        let (other, second) = (bench.stream(), bench.allocate(bytes));
        ok!(bench, cuMemcpyPeerAsync(second, second_context, first, first_context, bytes, other));
        let call = cu!(bench, cuMemcpyPeerAsync(second, garbage(), first, first_context, 1, other));
        assert_eq!(call, code::INVALID_CONTEXT);
        let mut found = vec![0; bytes];
        assert_eq!(bench.fetch(second, &mut found, other), 0);
        assert!(found == source);
        // Host to host, and nothing at all.
        let mut copy = vec![0u8; bytes];
        let to = copy.as_mut_ptr().expose_provenance() as u64;
        let from = source.as_ptr().expose_provenance() as u64;
        ok!(bench, cuMemcpyAsync(to, from, bytes, other));
        assert!(copy == source);
        ok!(bench, cuMemcpyAsync(0, 0, 0, other));
        assert_eq!(cu!(bench, cuMemcpyAsync(second, 0, 1, other)), code::INVALID_VALUE);
    }
}

#[test]
fn rectangles_and_boxes() {
    for schedule in SCHEDULES {
        let bench = Bench::new(&format!("schedule={schedule}"));
        let (stream, device) = (bench.stream(), bench.allocate(4096));
        let source = pattern(40 * 10);
        // SAFETY: integers and pointers, for which zero is valid; the enumerations are set below.
        let mut copy: CUDA_MEMCPY2D = unsafe {
            std::mem::transmute::<[u64; size_of::<CUDA_MEMCPY2D>() / 8], CUDA_MEMCPY2D>({
                let mut words = [0; size_of::<CUDA_MEMCPY2D>() / 8];
                (words[2], words[9]) = (1, 1);
                words
            })
        };
        copy.srcMemoryType = CUmemorytype::CU_MEMORYTYPE_HOST;
        copy.srcHost = source.as_ptr().cast();
        (copy.srcXInBytes, copy.srcY, copy.srcPitch) = (3, 2, 40);
        copy.dstMemoryType = CUmemorytype::CU_MEMORYTYPE_DEVICE;
        copy.dstDevice = device;
        (copy.dstXInBytes, copy.dstY, copy.dstPitch) = (1, 1, 64);
        (copy.WidthInBytes, copy.Height) = (20, 5);
        ok!(bench, cuMemsetD8Async(device, 0, 4096, stream));
        ok!(bench, cuMemcpy2DAsync(&copy, stream));
        let mut found = [0; 64 * 6];
        assert_eq!(bench.fetch(device, &mut found, stream), 0);
        for row in 0..5 {
            let from = &source[(row + 2) * 40 + 3..][..20];
            assert_eq!(&found[(row + 1) * 64 + 1..][..20], from);
            assert_eq!(found[(row + 1) * 64], 0);
        }
        copy.dstPitch = 20;
        assert_eq!(cu!(bench, cuMemcpy2DAsync(&copy, stream)), code::INVALID_VALUE);
        copy.dstMemoryType = CUmemorytype::CU_MEMORYTYPE_ARRAY;
        assert_eq!(cu!(bench, cuMemcpy2DAsync(&copy, stream)), code::INVALID_VALUE);
        assert_eq!(cu!(bench, cuMemcpy2DAsync(ptr::null(), stream)), code::INVALID_VALUE);

        // 3 planes of 4 rows of 8 bytes, out of planes of 64 x 5 and into tight ones.
        let target = bench.allocate(4096);
        let cube = CUDA_MEMCPY3D_PEER {
            srcXInBytes: 1,
            srcY: 1,
            srcZ: 0,
            srcLOD: 0,
            srcMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
            srcHost: ptr::null(),
            srcDevice: device,
            srcArray: ptr::null_mut(),
            srcContext: bench.context,
            srcPitch: 64,
            srcHeight: 5,
            dstXInBytes: 0,
            dstY: 0,
            dstZ: 0,
            dstLOD: 0,
            dstMemoryType: CUmemorytype::CU_MEMORYTYPE_UNIFIED,
            dstHost: ptr::null_mut(),
            dstDevice: target,
            dstArray: ptr::null_mut(),
            dstContext: bench.context,
            dstPitch: 8,
            dstHeight: 4,
            WidthInBytes: 8,
            Height: 4,
            Depth: 3,
        };
        let whole = pattern(64 * 5 * 3);
        assert_eq!(bench.store(device, &whole, stream), 0);
        ok!(bench, cuMemcpy3DPeerAsync(&cube, stream));
        let mut found = [0; 96];
        assert_eq!(bench.fetch(target, &mut found, stream), 0);
        for (index, row) in found.chunks_exact(8).enumerate() {
            let from = (index / 4) * 320 + (index % 4 + 1) * 64 + 1;
            assert_eq!(row, &whole[from..from + 8]);
        }
    }
}
