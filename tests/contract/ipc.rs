//! Sharing with other processes: descriptors of virtual memory, handles of memory and of events.
//! The other process is forked before the driver is started, and has a driver of its own.

use crate::Row;
use crate::bench::{Bench, UNIT, access, cu, handle, properties};
use std::io::{Read, Write};
use std::os::fd::FromRawFd;
use std::os::unix::net::UnixStream;
use std::ptr::null_mut;
use tcuda::driver::sim;
use tcuda::driver::sys::*;

pub const ROWS: &[Row] = crate::rows!["processes":
    descriptors_stand_for_memory, memory_outlives_its_handle, memory_by_handle, events_by_handle,
    memory_of_another_device,
];

pub const FILE: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
pub const NO_MEMORY: CUipcMemHandle = CUipcMemHandle { reserved: [0; 64] };
pub const NO_EVENT: CUipcEventHandle = CUipcEventHandle { reserved: [0; 64] };

/// Memory that can be exported, and a descriptor of it.
pub fn export(bench: &Bench) -> (u64, i32) {
    let properties = CUmemAllocationProp { requestedHandleTypes: FILE, ..properties(0) };
    let (mut created, mut file) = (0, -1);
    cu!(bench, cuMemCreate(&mut created, UNIT, &properties, 0) => 0);
    cu!(bench, cuMemExportToShareableHandle((&raw mut file).cast(), created, FILE, 0) => 0);
    (created, file)
}

fn map(bench: &Bench, created: u64) -> u64 {
    let address = bench.reserve(UNIT);
    cu!(bench, cuMemMap(address, UNIT, 0, created, 0) => 0);
    cu!(bench, cuMemSetAccess(address, UNIT, &access(0, 3), 1) => 0);
    address
}

fn descriptors_stand_for_memory(bench: &Bench) {
    bench.start();
    let (created, file) = export(bench);
    let mut imported = 0;
    cu!(bench, cuMemImportFromShareableHandle(&mut imported, handle(file as usize), FILE) => 0);
    bench.is("another handle", imported != created, true);
    let (first, second) = (map(bench, created), map(bench, imported));
    bench.store(first, &[1, 2, 3, 4], null_mut());
    bench.is("the same bytes", bench.fetch(second, 4, null_mut()), vec![1, 2, 3, 4]);
    // The descriptor is the host's: what was made of it stays.
    // SAFETY: the driver gave it.
    drop(unsafe { std::fs::File::from_raw_fd(file) });
    bench.store(second, &[5, 6, 7, 8], null_mut());
    bench.is("as before", bench.fetch(first, 4, null_mut()), vec![5, 6, 7, 8]);
}

fn memory_outlives_its_handle(bench: &Bench) {
    bench.start();
    let (created, file) = export(bench);
    let first = map(bench, created);
    bench.store(first, &[9; 16], null_mut());
    cu!(bench, cuMemUnmap(first, UNIT) => 0);
    cu!(bench, cuMemRelease(created) => 0);
    let mut imported = 0;
    cu!(bench, cuMemImportFromShareableHandle(&mut imported, handle(file as usize), FILE) => 0);
    let again = map(bench, imported);
    bench.is("still there", bench.fetch(again, 16, null_mut()), vec![9; 16]);
}

/// Forks a process with a driver of its own, which runs `partner` and ends; gives the line to it.
fn fork(partner: impl FnOnce(&Bench, &mut UnixStream)) -> UnixStream {
    let (ours, theirs) = UnixStream::pair().unwrap();
    // SAFETY: nothing is locked, and no thread but this one runs.
    if unsafe { libc::fork() } != 0 {
        return ours;
    }
    drop(ours);
    if crate::bench::backend() == "sim" {
        sim::power_off();
    }
    let mut line = theirs;
    partner(&Bench::new(), &mut line);
    // SAFETY: ends the process without waiting for what is left in the driver.
    unsafe { libc::_exit(0) }
}

fn read<const N: usize>(line: &mut UnixStream) -> [u8; N] {
    let mut bytes = [0; N];
    line.read_exact(&mut bytes).unwrap();
    bytes
}

fn bytes_of(handle: [std::ffi::c_char; 64]) -> [u8; 64] {
    handle.map(|byte| byte as u8)
}

fn of_bytes(bytes: [u8; 64]) -> [std::ffi::c_char; 64] {
    bytes.map(|byte| byte as std::ffi::c_char)
}

/// Allocates memory, and waits until the other process has used it by its handle.
fn lend(bench: &Bench, line: &mut UnixStream) -> u64 {
    let (block, mut memory) = (bench.allocate(3 * UNIT), NO_MEMORY);
    bench.store(block, &[1, 2, 3, 4], null_mut());
    cu!(bench, cuIpcGetMemHandle(&mut memory, block) => 0);
    line.write_all(&bytes_of(memory.reserved)).unwrap();
    read::<1>(line);
    block
}

fn memory_by_handle(bench: &Bench) {
    let mut line = fork(|bench, line| {
        bench.start();
        let memory = CUipcMemHandle { reserved: of_bytes(read(line)) };
        let mut address = 0;
        cu!(bench, cuIpcOpenMemHandle(&mut address, memory, 1) => 0);
        bench.is("its bytes", bench.fetch(address, 4, null_mut()), vec![1, 2, 3, 4]);
        bench.store(address, &[5, 6, 7, 8], null_mut());
        cu!(bench, cuMemFree(address) => 1);
        cu!(bench, cuIpcCloseMemHandle(address) => 0);
        line.write_all(&[1]).unwrap();
    });
    bench.start();
    let block = lend(bench, &mut line);
    bench.is("what the other wrote", bench.fetch(block, 4, null_mut()), vec![5, 6, 7, 8]);
    cu!(bench, cuMemFree(block) => 0);
}

/// A context of another device opens it, which gives its device access to this memory.
fn memory_of_another_device(bench: &Bench) {
    let mut line = fork(|bench, line| {
        bench.start();
        let mut count = 0;
        cu!(bench, cuDeviceGetCount(&mut count) => 0);
        let memory = CUipcMemHandle { reserved: of_bytes(read(line)) };
        if count > 1 {
            let mut address = 0;
            bench.use_device(1);
            let stream = bench.stream(1);
            cu!(bench, cuIpcOpenMemHandle(&mut address, memory, 1) => 0);
            bench.is("its bytes", bench.fetch(address, 4, stream), vec![1, 2, 3, 4]);
            cu!(bench, cuMemsetD8Async(address, 7, 4, stream) => 0);
            cu!(bench, cuStreamSynchronize(stream) => 0);
            let mut device = 77;
            let ordinal = CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
            cu!(bench, cuPointerGetAttribute((&raw mut device).cast(), ordinal, address) => 0);
            bench.is("its device", device, 1);
            cu!(bench, cuIpcCloseMemHandle(address) => 0);
        }
        line.write_all(&[1]).unwrap();
    });
    bench.start();
    let block = lend(bench, &mut line);
    bench.need_two_devices();
    bench.is("what the other wrote", bench.fetch(block, 4, null_mut()), vec![7; 4]);
    cu!(bench, cuMemFree(block) => 0);
}

fn events_by_handle(bench: &Bench) {
    let mut line = fork(|bench, line| {
        bench.start();
        bench.warm(64);
        let shared = CUipcEventHandle { reserved: of_bytes(read(line)) };
        let (mut event, stream) = (null_mut(), bench.stream(1));
        cu!(bench, cuIpcOpenEventHandle(&mut event, shared) => 0);
        cu!(bench, cuEventQuery(event) => 600);
        cu!(bench, cuStreamWaitEvent(stream, event, 0) => 0);
        cu!(bench, cuStreamQuery(stream) => 600);
        line.write_all(&[1]).unwrap();
        cu!(bench, cuStreamSynchronize(stream) => 0);
        cu!(bench, cuEventQuery(event) => 0);
        // Both may record it.
        cu!(bench, cuEventRecord(event, stream) => 0);
        cu!(bench, cuEventSynchronize(event) => 0);
        cu!(bench, cuEventDestroy(event) => 0);
        line.write_all(&[1]).unwrap();
    });
    bench.start();
    bench.warm(64);
    let (mut event, mut shared, stream) = (null_mut(), NO_EVENT, bench.stream(1));
    cu!(bench, cuEventCreate(&mut event, 6) => 0);
    cu!(bench, cuIpcGetEventHandle(&mut shared, event) => 0);
    let gate = bench.hold(stream);
    cu!(bench, cuEventRecord(event, stream) => 0);
    line.write_all(&bytes_of(shared.reserved)).unwrap();
    read::<1>(&mut line);
    gate.open();
    read::<1>(&mut line);
    cu!(bench, cuEventQuery(event) => 0);
    cu!(bench, cuEventDestroy(event) => 0);
}
