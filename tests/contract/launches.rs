//! Launches of kernels: shapes, parameters and streams.

use crate::Row;
use crate::bench::{Bench, LEGACY, PER_THREAD, cu, handle};
use crate::other_calls::{Calls, other};
use std::ffi::c_void;
use std::ptr::{self, null_mut};
use tcuda::driver::sys::*;

pub const ROWS: &[Row] = crate::rows!["launches":
    grids, blocks, shared_memory, largest_shapes, nothing_to_launch, no_parameters,
    needless_parameters, parameters_are_read_at_once, parameters_in_a_buffer,
    buffers_of_other_sizes, lists_that_are_wrong, both_kinds_of_parameters,
    on_the_default_streams, in_stream_order,
    behind_an_event, ordered_by_the_legacy_stream, they_do_not_wait, of_a_thread_without_a_context,
    cooperative, barrier_of_the_grid, captured_with_attributes,
];

fn shape(bench: &Bench, grid: [u32; 3], block: [u32; 3], shared: u32, expected: i32) {
    let function = bench.function(bench.module(), c"contract_nothing");
    let ([x, y, z], [a, b, c]) = (grid, block);
    // SAFETY: a kernel without parameters.
    let outcome = unsafe {
        bench.driver.cuLaunchKernel(
            function,
            x,
            y,
            z,
            a,
            b,
            c,
            shared,
            null_mut(),
            null_mut(),
            null_mut(),
        )
    };
    let seen = outcome.map_or_else(|error| error.code, |()| 0);
    bench.is(&format!("grid {grid:?}, block {block:?}, {shared} bytes"), seen, expected);
    cu!(bench, cuCtxSynchronize() => 0);
}

fn grids(bench: &Bench) {
    bench.start();
    for (grid, expected) in [
        ([0, 1, 1], 1),
        ([1, 0, 1], 1),
        ([1, 1, 0], 1),
        ([0, 0, 0], 1),
        ([1, 65_536, 1], 1),
        ([1, 1, 65_536], 1),
        ([1 << 31, 1, 1], 1),
        ([u32::MAX, 1, 1], 1),
        ([1, u32::MAX, 1], 1),
        ([1, 65_535, 1], 0),
        ([1, 1, 65_535], 0),
        ([65_536, 1, 1], 0),
        ([2, 3, 4], 0),
    ] {
        shape(bench, grid, [1; 3], 0, expected);
    }
}

fn blocks(bench: &Bench) {
    bench.start();
    for (block, expected) in [
        ([0, 1, 1], 1),
        ([1, 0, 1], 1),
        ([1, 1, 0], 1),
        ([1025, 1, 1], 1),
        ([1, 1025, 1], 1),
        ([1, 1, 65], 1),
        ([32, 33, 1], 1),
        ([1024, 1, 2], 1),
        ([u32::MAX, 1, 1], 1),
        ([1 << 16, 1 << 16, 1], 1),
        ([1024, 1, 1], 0),
        ([1, 1024, 1], 0),
        ([16, 1, 64], 0),
        ([4, 4, 64], 0),
        ([33, 1, 1], 0),
    ] {
        shape(bench, [1; 3], block, 0, expected);
    }
}

fn shared_memory(bench: &Bench) {
    bench.start();
    for (bytes, expected) in
        [(1, 0), (49_152, 0), (49_153, 1), (65_536, 1), (232_448, 1), (232_449, 1), (u32::MAX, 1)]
    {
        shape(bench, [1; 3], [32, 1, 1], bytes, expected);
    }
}

fn largest_shapes(bench: &Bench) {
    bench.start();
    shape(bench, [70_000, 1, 1], [1024, 1, 1], 0, 0);
    shape(bench, [16, 16, 16], [8, 8, 8], 1024, 0);
}

fn nothing_to_launch(bench: &Bench) {
    bench.start();
    bench.launch(null_mut(), null_mut(), 400);
    bench.launch(null_mut(), bench.stream(1), 400);
    cu!(bench, cuCtxSynchronize() => 0);
}

fn no_parameters(bench: &Bench) {
    bench.start();
    let writer = bench.writer();
    bench.launch(writer, null_mut(), 1);
    cu!(bench, cuCtxSynchronize() => 0);
}

fn needless_parameters(bench: &Bench) {
    bench.start();
    let function = bench.function(bench.module(), c"contract_nothing");
    let mut value = 0u64;
    let mut parameters = [ptr::from_mut(&mut value).cast()];
    cu!(bench, cuLaunchKernel(
        function, 1, 1, 1, 1, 1, 1, 0, null_mut(), parameters.as_mut_ptr(), null_mut()) => 0);
    cu!(bench, cuCtxSynchronize() => 0);
}

fn parameters_are_read_at_once(bench: &Bench) {
    bench.start();
    let (writer, stream, address) = (bench.writer(), bench.stream(1), bench.warm(64));
    let gate = bench.hold(stream);
    let (mut at, mut value) = (address, 5u32);
    let mut parameters: [*mut c_void; 2] =
        [ptr::from_mut(&mut at).cast(), ptr::from_mut(&mut value).cast()];
    cu!(bench, cuLaunchKernel(
        writer, 1, 1, 1, 1, 1, 1, 0, stream, parameters.as_mut_ptr(), null_mut()) => 0);
    // SAFETY: the variables are alive; the compiler must not see through this.
    unsafe { (&raw mut at).write_volatile(0) };
    // SAFETY: as above.
    unsafe { (&raw mut value).write_volatile(9) };
    parameters.fill(null_mut());
    gate.open();
    cu!(bench, cuStreamSynchronize(stream) => 0);
    bench.is("bytes", bench.fetch(address, 4, stream), vec![5, 0, 0, 0]);
}

/// CU_LAUNCH_PARAM_END, _BUFFER_POINTER and _BUFFER_SIZE.
const END: usize = 0;
const BUFFER: usize = 1;
const SIZE: usize = 2;

/// What the writer's two parameters look like in a buffer.
fn buffer(address: u64, value: u32) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&address.to_ne_bytes());
    bytes[8..12].copy_from_slice(&value.to_ne_bytes());
    bytes
}

/// Launches with a list of parameters, which is ended here.
#[track_caller]
fn with_list(bench: &Bench, what: &str, function: CUfunction, list: &[*mut c_void], expected: i32) {
    let mut list = list.to_vec();
    list.extend([handle(END); 3]);
    // SAFETY: the list is ended, and what it leads to is alive.
    let outcome = unsafe {
        bench.driver.cuLaunchKernel(
            function,
            1,
            1,
            1,
            1,
            1,
            1,
            0,
            null_mut(),
            null_mut(),
            list.as_mut_ptr(),
        )
    };
    bench.is(what, outcome.map_or_else(|error| error.code, |()| 0), expected);
}

fn parameters_in_a_buffer(bench: &Bench) {
    bench.start();
    let (writer, address) = (bench.writer(), bench.warm(64));
    let (mut bytes, mut size) = (buffer(address, 6), 12usize);
    let (bytes_at, size_at) = (bytes.as_mut_ptr().cast(), ptr::from_mut(&mut size).cast());
    let list = [handle(BUFFER), bytes_at, handle(SIZE), size_at];
    with_list(bench, "the buffer first", writer, &list, 0);
    bench.is("bytes", bench.fetch(address, 4, null_mut()), vec![6, 0, 0, 0]);
    let mut bytes = buffer(address + 4, 8);
    let list = [handle(SIZE), size_at, handle(BUFFER), bytes.as_mut_ptr().cast()];
    with_list(bench, "the size first", writer, &list, 0);
    bench.is("bytes", bench.fetch(address, 5, null_mut()), vec![6, 0, 0, 0, 8]);
}

fn buffers_of_other_sizes(bench: &Bench) {
    bench.start();
    let (writer, address) = (bench.writer(), bench.warm(64));
    let mut bytes = [0u8; 8192];
    bytes[..16].copy_from_slice(&buffer(address, 6));
    for (mut size, expected) in
        [(0usize, 1), (8, 0), (11, 0), (12, 0), (13, 701), (16, 701), (4096, 701), (8192, 701)]
    {
        let (bytes, length) = (bytes.as_mut_ptr().cast(), ptr::from_mut(&mut size).cast());
        let list = [handle(BUFFER), bytes, handle(SIZE), length];
        with_list(bench, &format!("{} bytes", size), writer, &list, expected);
    }
    cu!(bench, cuCtxSynchronize() => 0);
    let nothing = bench.function(bench.module(), c"contract_nothing");
    for (mut size, expected) in [(0usize, 0), (8, 701)] {
        let (bytes, length) = (bytes.as_mut_ptr().cast(), ptr::from_mut(&mut size).cast());
        let list = [handle(BUFFER), bytes, handle(SIZE), length];
        with_list(bench, &format!("{} bytes for none", size), nothing, &list, expected);
    }
    cu!(bench, cuCtxSynchronize() => 0);
}

fn lists_that_are_wrong(bench: &Bench) {
    bench.start();
    let (writer, address) = (bench.writer(), bench.warm(64));
    let (mut bytes, mut size) = (buffer(address, 6), 12usize);
    let (bytes, size) = (bytes.as_mut_ptr().cast(), ptr::from_mut(&mut size).cast());
    with_list(bench, "an empty list", writer, &[], 1);
    with_list(bench, "no size", writer, &[handle(BUFFER), bytes], 1);
    with_list(bench, "no buffer", writer, &[handle(SIZE), size], 1);
    with_list(bench, "an unknown key", writer, &[handle(7), bytes, handle(SIZE), size], 1);
    let nothing = bench.function(bench.module(), c"contract_nothing");
    with_list(bench, "an empty list for no parameters", nothing, &[], 0);
    cu!(bench, cuCtxSynchronize() => 0);
}

fn both_kinds_of_parameters(bench: &Bench) {
    bench.start();
    let (writer, address) = (bench.writer(), bench.warm(64));
    let (mut bytes, mut size) = (buffer(address, 6), 12usize);
    let (mut at, mut value) = (address, 7u32);
    let mut parameters: [*mut c_void; 2] =
        [ptr::from_mut(&mut at).cast(), ptr::from_mut(&mut value).cast()];
    let mut list = [
        handle(BUFFER),
        bytes.as_mut_ptr().cast(),
        handle(SIZE),
        ptr::from_mut(&mut size).cast(),
        handle(END),
    ];
    cu!(bench, cuLaunchKernel(
        writer, 1, 1, 1, 1, 1, 1, 0, null_mut(), parameters.as_mut_ptr(), list.as_mut_ptr()) => 1);
    cu!(bench, cuCtxSynchronize() => 0);
}

fn on_the_default_streams(bench: &Bench) {
    bench.start();
    let (writer, address) = (bench.writer(), bench.warm(64));
    for fixed in [0, LEGACY, PER_THREAD] {
        bench.write(writer, address, fixed as u32 + 10, handle(fixed), 0);
        bench.is("bytes", bench.fetch(address, 1, handle(fixed)), vec![fixed as u8 + 10]);
    }
}

fn in_stream_order(bench: &Bench) {
    bench.start();
    let (writer, stream, address) = (bench.writer(), bench.stream(1), bench.warm(64));
    let copier = bench.function(bench.module(), c"contract_copy");
    for value in 1..20 {
        bench.write(writer, address, value, stream, 0);
        bench.copy_word(copier, address + 4 * u64::from(value % 8), address, stream);
    }
    cu!(bench, cuStreamSynchronize(stream) => 0);
    let seen = bench.fetch(address, 32, stream);
    let words: Vec<u8> = seen.iter().step_by(4).copied().collect();
    bench.is("words", words, vec![19, 17, 18, 19, 12, 13, 14, 15]);
}

fn behind_an_event(bench: &Bench) {
    bench.start();
    let (writer, address, event) = (bench.writer(), bench.warm(64), bench.event());
    let (a, b) = (bench.stream(1), bench.stream(1));
    let gate = bench.hold(a);
    bench.write(writer, address, 1, a, 0);
    cu!(bench, cuEventRecord(event, a) => 0);
    cu!(bench, cuStreamWaitEvent(b, event, 0) => 0);
    bench.write(writer, address, 2, b, 0);
    std::thread::sleep(std::time::Duration::from_millis(50));
    gate.open();
    cu!(bench, cuStreamSynchronize(b) => 0);
    bench.is("last", bench.fetch(address, 1, b), vec![2]);
}

fn ordered_by_the_legacy_stream(bench: &Bench) {
    bench.start();
    let (writer, address) = (bench.writer(), bench.warm(64));
    let (blocking, free) = (bench.stream(0), bench.stream(1));
    let gate = bench.hold(blocking);
    bench.write(writer, address, 1, blocking, 0);
    bench.write(writer, address, 2, null_mut(), 0);
    bench.write(writer, address + 4, 3, free, 0);
    cu!(bench, cuStreamSynchronize(free) => 0);
    cu!(bench, cuStreamQuery(blocking) => 600);
    gate.open();
    cu!(bench, cuStreamSynchronize(null_mut()) => 0);
    bench.is("bytes", bench.fetch(address, 8, free), vec![2, 0, 0, 0, 3, 0, 0, 0]);
}

fn they_do_not_wait(bench: &Bench) {
    bench.start();
    let (writer, address, stream) = (bench.writer(), bench.warm(64), bench.stream(1));
    let gate = bench.hold(stream);
    bench.waits("cuLaunchKernel", gate, false, || {
        bench.write(writer, address, 1, stream, 0);
    });
    gate.open();
    cu!(bench, cuStreamSynchronize(stream) => 0);
}

fn of_a_thread_without_a_context(bench: &Bench) {
    bench.start();
    let (writer, address, stream) = (bench.writer(), bench.warm(64), bench.stream(1));
    let (writer, stream) = (writer.addr(), stream.addr());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            bench.write(handle(writer), address, 4, handle(stream), 0);
            bench.write(handle(writer), address, 4, null_mut(), 201);
            cu!(bench, cuStreamSynchronize(handle(stream)) => 0);
        });
    });
    bench.is("bytes", bench.fetch(address, 1, handle(stream)), vec![4]);
}

/// A launch with one attribute whose value is a number.
fn with_attribute(
    bench: &Bench,
    id: CUlaunchAttributeID,
    value: i32,
    function: CUfunction,
    blocks: u32,
    stream: CUstream,
    expected: i32,
) {
    let mut attribute =
        CUlaunchAttribute { id, pad: [0; 4], value: CUlaunchAttributeValue_union { pad: [0; 64] } };
    attribute.value.priority = value;
    let config = CUlaunchConfig {
        gridDimX: blocks,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 1024,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        hStream: stream,
        attrs: &mut attribute,
        numAttrs: 1,
    };
    cu!(bench, cuLaunchKernelEx(&config, function, null_mut(), null_mut()) => expected);
}

/// As in c_tests/simulator/driver_launch.c.
fn cooperative(bench: &Bench) {
    use CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as MULTIPROCESSORS;
    use CUlaunchAttributeID::*;
    bench.start();
    let (function, stream) = (bench.function(bench.module(), c"contract_nothing"), bench.stream(1));
    let (mut blocks, mut multiprocessors) = (0, 0);
    cu!(bench, cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, function, 1024, 0) => 0);
    cu!(bench, cuDeviceGetAttribute(&mut multiprocessors, MULTIPROCESSORS as i32, 0) => 0);
    let most = (blocks * multiprocessors).unsigned_abs();
    for (value, blocks, expected) in [(1, most, 0), (1, most + 1, 720), (0, most + 1, 0)] {
        with_attribute(
            bench,
            CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
            value,
            function,
            blocks,
            stream,
            expected,
        );
    }
    cu!(bench, cuStreamSynchronize(stream) => 0);
}

/// What CUDA's headers make of `grid.sync()`.
fn barrier_of_the_grid(bench: &Bench) {
    bench.start();
    let (calls, stream, mut words) = (Calls::find(bench), bench.stream(1), bench.warm(64));
    let mut module = null_mut();
    cu!(bench, cuModuleLoadData(&mut module, crate::kernels::MEETING.as_ptr().cast()) => 0);
    let function = bench.function(module, c"contract_meet");
    let mut parameters = [ptr::from_mut(&mut words).cast()];
    for round in ["first", "second"] {
        cu!(bench, cuMemsetD8Async(words, 0, 20, stream) => 0);
        other!(bench, calls, cuLaunchCooperativeKernel(
            function, 4, 1, 1, 1, 1, 1, 0, stream, parameters.as_mut_ptr()) => 0);
        bench.is(round, bench.fetch(words, 20, stream), [4, 0, 0, 0].repeat(5));
    }
}

/// Attributes of launches that are recorded.
fn captured_with_attributes(bench: &Bench) {
    use CUlaunchAttributeID::*;
    bench.start();
    let (function, stream) = (bench.function(bench.module(), c"contract_nothing"), bench.stream(1));
    let mut graph = null_mut();
    cu!(bench, cuStreamBeginCapture(
        stream, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL) => 0);
    for (id, value) in [
        (CU_LAUNCH_ATTRIBUTE_COOPERATIVE, 1),
        (CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, 1),
        (CU_LAUNCH_ATTRIBUTE_PRIORITY, -1),
        (CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 50),
    ] {
        with_attribute(bench, id, value, function, 2, stream, 0);
    }
    cu!(bench, cuStreamEndCapture(stream, &mut graph) => 0);
    let mut count = 0;
    cu!(bench, cuGraphGetNodes(graph, null_mut(), &mut count) => 0);
    bench.is("nodes", count, 4);
    cu!(bench, cuGraphDestroy(graph) => 0);
}
