//! Wrong arguments: sharing with other processes.

use crate::Row;
use crate::bench::{Bench, UNIT, cu, handle, properties};
use crate::ipc::{FILE, NO_EVENT, NO_MEMORY, export};
use std::ptr::null_mut;
use tcuda::driver::sys::*;

pub const ROWS: &[Row] = crate::rows!["arguments":
    cuIpcGetMemHandle, cuIpcOpenMemHandle, cuIpcCloseMemHandle, cuIpcGetEventHandle,
    cuIpcOpenEventHandle, cuMemExportToShareableHandle, cuMemImportFromShareableHandle,
];

fn cuIpcGetMemHandle(bench: &Bench) {
    let mut memory = NO_MEMORY;
    cu!(bench, cuIpcGetMemHandle(&mut memory, 0) => 1);
    cu!(bench, cuIpcGetMemHandle(&mut memory, 512) => 3);
    bench.start();
    let block = bench.allocate(UNIT);
    cu!(bench, cuIpcGetMemHandle(null_mut(), block) => 1);
    cu!(bench, cuIpcGetMemHandle(&mut memory, 0) => 1);
    cu!(bench, cuIpcGetMemHandle(&mut memory, bench.mapped(UNIT)) => 1);
    cu!(bench, cuIpcGetMemHandle(&mut memory, block) => 0);
}

fn cuIpcOpenMemHandle(bench: &Bench) {
    let mut address = 77;
    cu!(bench, cuIpcOpenMemHandle(&mut address, NO_MEMORY, 1) => 3);
    bench.start();
    let (block, mut memory) = (bench.allocate(UNIT), NO_MEMORY);
    cu!(bench, cuIpcGetMemHandle(&mut memory, block) => 0);
    cu!(bench, cuIpcOpenMemHandle(&mut address, NO_MEMORY, 1) => 1);
    cu!(bench, cuIpcOpenMemHandle(&mut address, memory, 0) => 1);
    cu!(bench, cuIpcOpenMemHandle(&mut address, memory, 2) => 1);
    // Its own process has it already.
    cu!(bench, cuIpcOpenMemHandle(&mut address, memory, 1) => 201);
    bench.is("untouched", address, 77);
}

fn cuIpcCloseMemHandle(bench: &Bench) {
    cu!(bench, cuIpcCloseMemHandle(0) => 3);
    bench.start();
    cu!(bench, cuIpcCloseMemHandle(0) => 1);
    cu!(bench, cuIpcCloseMemHandle(bench.allocate(UNIT)) => 1);
    cu!(bench, cuIpcCloseMemHandle(bench.mapped(UNIT)) => 1);
}

fn cuIpcGetEventHandle(bench: &Bench) {
    let (mut shared, mut event) = (NO_EVENT, handle(77));
    cu!(bench, cuIpcGetEventHandle(&mut shared, null_mut()) => 1);
    bench.start();
    cu!(bench, cuEventCreate(&mut event, 6) => 0);
    cu!(bench, cuIpcGetEventHandle(null_mut(), event) => 1);
    cu!(bench, cuIpcGetEventHandle(&mut shared, null_mut()) => 1);
    // One that was not made for it.
    cu!(bench, cuIpcGetEventHandle(&mut shared, bench.event()) => 400);
    cu!(bench, cuIpcGetEventHandle(&mut shared, event) => 0);
}

fn cuIpcOpenEventHandle(bench: &Bench) {
    let mut opened = handle(77);
    cu!(bench, cuIpcOpenEventHandle(&mut opened, NO_EVENT) => 3);
    bench.start();
    let (mut shared, mut event) = (NO_EVENT, null_mut());
    cu!(bench, cuEventCreate(&mut event, 6) => 0);
    cu!(bench, cuIpcGetEventHandle(&mut shared, event) => 0);
    cu!(bench, cuIpcOpenEventHandle(&mut opened, NO_EVENT) => 205);
    cu!(bench, cuIpcOpenEventHandle(&mut opened, shared) => 201);
    bench.is("untouched", opened.addr(), 77);
}

fn cuMemExportToShareableHandle(bench: &Bench) {
    let mut file = -77;
    let kind = FILE;
    cu!(bench, cuMemExportToShareableHandle((&raw mut file).cast(), 0, kind, 0) => 3);
    bench.start();
    let mut created = 0;
    let plain = bench.create(UNIT);
    cu!(bench, cuMemCreate(&mut created, UNIT, &shareable(), 0) => 0);
    cu!(bench, cuMemExportToShareableHandle(null_mut(), created, kind, 0) => 1);
    cu!(bench, cuMemExportToShareableHandle((&raw mut file).cast(), 0, kind, 0) => 1);
    cu!(bench, cuMemExportToShareableHandle((&raw mut file).cast(), created, kind, 1) => 1);
    // One that was not made for it.
    cu!(bench, cuMemExportToShareableHandle((&raw mut file).cast(), plain, kind, 0) => 1);
    let none = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;
    cu!(bench, cuMemExportToShareableHandle((&raw mut file).cast(), created, none, 0) => 1);
    bench.is("untouched", file, -77);
    cu!(bench, cuMemExportToShareableHandle((&raw mut file).cast(), created, kind, 0) => 0);
}

fn shareable() -> CUmemAllocationProp {
    CUmemAllocationProp { requestedHandleTypes: FILE, ..properties(0) }
}

fn cuMemImportFromShareableHandle(bench: &Bench) {
    let (mut imported, kind) = (77, FILE);
    cu!(bench, cuMemImportFromShareableHandle(&mut imported, handle(0), kind) => 3);
    bench.start();
    let (_, file) = export(bench);
    cu!(bench, cuMemImportFromShareableHandle(null_mut(), handle(file as usize), kind) => 1);
    let none = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;
    cu!(bench, cuMemImportFromShareableHandle(&mut imported, handle(file as usize), none) => 1);
    // No descriptor, and one of something else.
    cu!(bench, cuMemImportFromShareableHandle(&mut imported, handle(9999), kind) => 999);
    cu!(bench, cuMemImportFromShareableHandle(&mut imported, handle(0), kind) => 1);
    bench.is("untouched", imported, 77);
}
