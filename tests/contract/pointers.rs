//! What the driver tells of each kind of pointer.

use crate::Row;
use crate::bench::{Bench, UNIT, access, cu, host, host_pool_properties};
use std::ptr::null_mut;
use tcuda::driver::sys::*;

pub const ROWS: &[Row] = crate::rows!["pointers":
    of_cu_mem_alloc, of_a_large_allocation, of_mapped_memory, of_memory_without_access,
    of_reserved_addresses, of_pool_memory, of_host_pool_memory, of_pinned_memory,
    of_registered_memory,
    of_unknown_memory, of_freed_memory, bad_arguments, ids_of_buffers,
];

const ATTRIBUTES: &[CUpointer_attribute] = {
    use CUpointer_attribute::*;
    &[
        CU_POINTER_ATTRIBUTE_CONTEXT,
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
        CU_POINTER_ATTRIBUTE_HOST_POINTER,
        CU_POINTER_ATTRIBUTE_BUFFER_ID,
        CU_POINTER_ATTRIBUTE_IS_MANAGED,
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        CU_POINTER_ATTRIBUTE_RANGE_SIZE,
        CU_POINTER_ATTRIBUTE_MAPPED,
        CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
        CU_POINTER_ATTRIBUTE_ACCESS_FLAGS,
        CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
        CU_POINTER_ATTRIBUTE_MAPPING_SIZE,
        CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR,
    ]
};

/// Asks for every attribute: its status, and its value as what it says of the pointer.
fn check(bench: &Bench, pointer: u64, start: u64, expected: &[&str]) {
    check_of_pool(bench, pointer, start, bench.default_pool(), expected);
}

/// The same for memory of a pool.
fn check_of_pool(bench: &Bench, pointer: u64, start: u64, pool: CUmemoryPool, expected: &[&str]) {
    let mut context = null_mut();
    cu!(bench, cuCtxGetCurrent(&mut context) => 0);
    for (attribute, expected) in ATTRIBUTES.iter().zip(expected) {
        let mut value = 0u64;
        // SAFETY: no attribute is larger than its room.
        let outcome = unsafe {
            bench.driver.cuPointerGetAttribute((&raw mut value).cast(), *attribute, pointer)
        };
        let seen = match outcome {
            Err(error) => format!("error {}", error.code),
            Ok(()) => match value {
                0..1024 => value.to_string(),
                _ if value == pointer => "pointer".into(),
                _ if value == start => "start".into(),
                _ if value == context.addr() as u64 => "context".into(),
                _ if value == pool.addr() as u64 => "pool".into(),
                _ if *attribute == CUpointer_attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID => {
                    "id".into()
                }
                _ => value.to_string(),
            },
        };
        let seen = match attribute {
            CUpointer_attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID if !seen.contains('e') => {
                if value == 0 { "0" } else { "id" }.into()
            }
            _ => seen,
        };
        bench.is(&format!("{attribute:?}"), &*seen, *expected);
    }
}

fn of_cu_mem_alloc(bench: &Bench) {
    bench.start();
    let start = bench.allocate(5000);
    check(
        bench,
        start + 100,
        start,
        &[
            "context", "2", "pointer", "error 1", "id", "0", "0", "1", "start", "5000", "1", "0",
            "3", "0", "2097152", "start",
        ],
    );
}

fn of_a_large_allocation(bench: &Bench) {
    bench.start();
    let start = bench.allocate(3 * UNIT + 5);
    check(
        bench,
        start + 100,
        start,
        &[
            "context", "2", "pointer", "error 1", "id", "0", "0", "1", "start", "6291461", "1",
            "0", "3", "0", "8388608", "start",
        ],
    );
}

fn of_mapped_memory(bench: &Bench) {
    bench.start();
    let start = bench.reserve(4 * UNIT);
    let handle = bench.create(2 * UNIT);
    cu!(bench, cuMemMap(start, 2 * UNIT, 0, handle, 0) => 0);
    cu!(bench, cuMemSetAccess(start, 2 * UNIT, &access(0, 3), 1) => 0);
    check(
        bench,
        start + 100,
        start,
        &[
            "0", "2", "pointer", "error 1", "id", "0", "0", "0", "start", "8388608", "1", "0", "3",
            "0", "4194304", "start",
        ],
    );
}

fn of_memory_without_access(bench: &Bench) {
    bench.start();
    let start = bench.reserve(4 * UNIT);
    let handle = bench.create(2 * UNIT);
    cu!(bench, cuMemMap(start, 2 * UNIT, 0, handle, 0) => 0);
    check(
        bench,
        start + 100,
        start,
        &[
            "0", "2", "error 1", "error 1", "id", "0", "0", "0", "start", "8388608", "1", "0", "0",
            "0", "4194304", "start",
        ],
    );
}

fn of_reserved_addresses(bench: &Bench) {
    bench.start();
    let start = bench.reserve(4 * UNIT);
    check(
        bench,
        start + 100,
        start,
        &[
            "error 1", "error 1", "error 1", "error 1", "error 1", "error 1", "error 1", "error 1",
            "error 1", "error 1", "error 1", "error 1", "error 1", "error 1", "error 1", "error 1",
        ],
    );
}

fn of_pool_memory(bench: &Bench) {
    bench.start();
    let mut start = 0;
    cu!(bench, cuMemAllocAsync(&mut start, 5000, null_mut()) => 0);
    check(
        bench,
        start + 100,
        start,
        &[
            "0", "2", "pointer", "error 1", "id", "0", "0", "0", "start", "5000", "1", "0", "3",
            "pool", "33554432", "start",
        ],
    );
}

fn of_host_pool_memory(bench: &Bench) {
    bench.start();
    for kind in [
        CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST,
        CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA,
    ] {
        let (mut pool, mut start) = (null_mut(), 0);
        cu!(bench, cuMemPoolCreate(&mut pool, &host_pool_properties(kind, 0)) => 0);
        cu!(bench, cuMemAllocFromPoolAsync(&mut start, 5000, pool, null_mut()) => 0);
        let mut expected = [
            "0", "1", "error 1", "pointer", "id", "0", "0", "0", "0", "5000", "1", "0", "3",
            "pool", "33554432", "start",
        ];
        check_of_pool(bench, start + 100, start, pool, &expected);
        cu!(bench, cuMemPoolSetAccess(pool, &access(0, 3), 1) => 0);
        expected[2] = "pointer";
        check_of_pool(bench, start + 100, start, pool, &expected);
    }
}

fn of_pinned_memory(bench: &Bench) {
    bench.start();
    let start = host(bench.pinned(5000));
    check(
        bench,
        start + 100,
        start,
        &[
            "context", "1", "pointer", "pointer", "id", "0", "0", "0", "start", "5000", "1", "0",
            "3", "0",
        ],
    );
}

fn of_registered_memory(bench: &Bench) {
    bench.start();
    let memory = Vec::leak(vec![0u8; 8192]);
    cu!(bench, cuMemHostRegister(memory.as_mut_ptr().cast(), 5000, 0) => 0);
    check(
        bench,
        host(memory) + 100,
        host(memory),
        &[
            "context", "1", "pointer", "pointer", "id", "0", "0", "0", "start", "5000", "1", "0",
            "3", "0",
        ],
    );
}

fn of_unknown_memory(bench: &Bench) {
    bench.start();
    let local = [0u8; 8];
    check(bench, host(&local), host(&local), &["error 1"; 16]);
}

fn of_freed_memory(bench: &Bench) {
    bench.start();
    let start = bench.allocate(4 * UNIT);
    cu!(bench, cuMemFree(start) => 0);
    check(bench, start, start, &["error 1"; 16]);
}

fn bad_arguments(bench: &Bench) {
    bench.start();
    let start = bench.allocate(64);
    let mut value = 0u64;
    let kind = CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    cu!(bench, cuPointerGetAttribute(null_mut(), kind, start) => 1);
    cu!(bench, cuPointerGetAttribute((&raw mut value).cast(), kind, 0) => 1);
    cu!(bench, cuPointerGetAttribute((&raw mut value).cast(), kind, start) => 0);
}

fn ids_of_buffers(bench: &Bench) {
    bench.start();
    let id = |address: u64| {
        let mut id = 0u64;
        let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID;
        cu!(bench, cuPointerGetAttribute((&raw mut id).cast(), attribute, address) => 0);
        id
    };
    let (a, b) = (bench.allocate(4 * UNIT), bench.allocate(64));
    let first = id(a);
    bench.is("differs", first != id(b), true);
    bench.is("the same inside", first == id(a + 5), true);
    cu!(bench, cuMemFree(a) => 0);
    bench.is("not recycled", id(bench.allocate(4 * UNIT)) != first, true);
}
