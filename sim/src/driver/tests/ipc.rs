//! Sharing within one process; `tests/contract/ipc.rs` and `c_tests/ipc*.c` use two.

use super::*;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const FILE: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

fn free_bytes(bench: &Bench) -> usize {
    let (mut free, mut total) = (0, 0);
    ok!(bench, cuMemGetInfo(&mut free, &mut total));
    free
}

fn created(bench: &Bench) -> u64 {
    let mut created = 0;
    let properties = CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: FILE,
        location: CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: 0 },
        win32HandleMetaData: ptr::null_mut(),
        allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    };
    ok!(bench, cuMemCreate(&mut created, GRANULARITY, &properties, 0));
    created
}

fn exported(bench: &Bench, handle: u64) -> OwnedFd {
    let mut file = -1;
    ok!(bench, cuMemExportToShareableHandle((&raw mut file).cast(), handle, FILE, 0));
    // SAFETY: the call created the descriptor for the caller.
    unsafe { OwnedFd::from_raw_fd(file) }
}

/// Memory is free again when no handle, mapping or descriptor of any process refers to it.
#[test]
fn descriptors_keep_memory() {
    let bench = Bench::new("schedule=immediate");
    let all = free_bytes(&bench);
    let handle = created(&bench);
    let file = exported(&bench, handle);
    let second = exported(&bench, handle);
    ok!(bench, cuMemRelease(handle));
    assert_eq!(free_bytes(&bench), all - GRANULARITY);
    drop(file);
    assert_eq!(free_bytes(&bench), all - GRANULARITY);
    let mut imported = 0;
    let shareable = ptr::without_provenance_mut::<c_void>(second.as_raw_fd() as usize);
    ok!(bench, cuMemImportFromShareableHandle(&mut imported, shareable, FILE));
    drop(second);
    assert_eq!(free_bytes(&bench), all - GRANULARITY, "what was imported keeps it too");
    ok!(bench, cuMemRelease(imported));
    assert_eq!(free_bytes(&bench), all);
    // Another allocation uses the slot now.
    let again = created(&bench);
    drop(exported(&bench, again));
    ok!(bench, cuMemRelease(again));
    assert_eq!(free_bytes(&bench), all);
}

#[test]
fn handles_that_were_changed_are_refused() {
    let bench = Bench::new("schedule=immediate");
    let (mut block, mut event) = (0, ptr::null_mut());
    ok!(bench, cuMemAlloc(&mut block, 5000));
    ok!(bench, cuEventCreate(&mut event, 6));
    let mut memory = CUipcMemHandle { reserved: [0; 64] };
    let mut shared = CUipcEventHandle { reserved: [0; 64] };
    ok!(bench, cuIpcGetMemHandle(&mut memory, block));
    ok!(bench, cuIpcGetEventHandle(&mut shared, event));
    for byte in 0..64 {
        for bit in 0..8 {
            let (mut address, mut opened) = (7, ptr::null_mut());
            let (mut changed, mut other) = (memory, shared);
            changed.reserved[byte] ^= 1i8.rotate_left(bit) as c_char;
            other.reserved[byte] ^= 1i8.rotate_left(bit) as c_char;
            assert_ne!(cu!(bench, cuIpcOpenMemHandle(&mut address, changed, 1)), 0);
            assert_ne!(cu!(bench, cuIpcOpenEventHandle(&mut opened, other)), 0);
            assert!(address == 7 && opened.is_null());
        }
    }
    ok!(bench, cuMemFree(block));
    ok!(bench, cuEventDestroy(event));
}
