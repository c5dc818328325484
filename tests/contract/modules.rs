//! Modules: what is loaded, what is refused, and what is in them.

use crate::Row;
use crate::bench::{Bench, cu};
use crate::other_calls::{Calls, other};
use std::ffi::CStr;
use std::ptr::{self, null_mut};
use tcuda::driver::sys::*;

pub const ROWS: &[Row] = crate::rows!["modules":
    load, a_text_that_is_none, an_empty_text, wrong_ptx, an_unknown_version, an_unknown_target,
    a_newer_target, directives_in_the_wrong_order, an_unresolved_function, a_truncated_binary,
    a_module_without_kernels, functions, functions_of_two_modules, unload, unload_does_not_wait,
    attributes_of_functions, constant_bytes_of_functions, shared_memory_of_a_block, occupancy,
    a_module_of_another_device, parameters_without_a_context, an_undefined_variable,
];

fn loads(bench: &Bench, image: &'static CStr, expected: i32) -> CUmodule {
    // Whatever the driver takes it for, it finds zeros behind it.
    let mut padded = image.to_bytes().to_vec();
    padded.resize(image.to_bytes().len() + 4096, 0);
    let mut module = crate::bench::handle(77);
    cu!(bench, cuModuleLoadData(&mut module, Vec::leak(padded).as_ptr().cast()) => expected);
    if expected != 0 {
        bench.is("untouched", module.addr() == 77 || module.is_null(), true);
    }
    module
}

fn load(bench: &Bench) {
    bench.start();
    let (a, b) = (bench.module(), bench.module());
    bench.is("two modules", a != b, true);
    cu!(bench, cuModuleUnload(a) => 0);
    cu!(bench, cuModuleUnload(b) => 0);
}

fn a_text_that_is_none(bench: &Bench) {
    bench.start();
    loads(bench, c"this is no image", 200);
}

fn an_empty_text(bench: &Bench) {
    bench.start();
    loads(bench, c"", 200);
}

fn wrong_ptx(bench: &Bench) {
    bench.start();
    loads(bench, c".version 7.8\n.target sm_52\n.address_size 64\nnonsense\n", 218);
    let text =
        c".version 7.8\n.target sm_52\n.address_size 64\n.visible .entry f() { frob.u32; }\n";
    loads(bench, text, 218);
    bench.module();
}

fn an_unknown_version(bench: &Bench) {
    bench.start();
    loads(bench, c".version 99.9\n.target sm_52\n.address_size 64\n", 222);
}

fn an_unknown_target(bench: &Bench) {
    bench.start();
    loads(bench, c".version 7.8\n.target sm_999\n.address_size 64\n", 218);
}

fn a_newer_target(bench: &Bench) {
    bench.start();
    let text =
        c".version 8.7\n.target sm_100\n.address_size 64\n.visible .entry f()\n{\n    ret;\n}\n";
    loads(bench, text, 218);
}

fn directives_in_the_wrong_order(bench: &Bench) {
    bench.start();
    loads(bench, c".target sm_52\n.version 7.8\n.address_size 64\n", 200);
    loads(bench, c".visible .entry f() { ret; }\n", 200);
}

fn an_unresolved_function(bench: &Bench) {
    bench.start();
    let text = c".version 7.8\n.target sm_52\n.address_size 64\n.extern .func elsewhere ();\n\
        .visible .entry f()\n{\n    call.uni elsewhere, ();\n    ret;\n}\n";
    loads(bench, text, 218);
}

fn a_truncated_binary(bench: &Bench) {
    bench.start();
    loads(bench, c"\x7fELF\x02\x01\x01\x33\x07", 200);
}

fn a_module_without_kernels(bench: &Bench) {
    bench.start();
    let module = loads(bench, c".version 7.8\n.target sm_52\n.address_size 64\n", 0);
    let mut function = null_mut();
    cu!(bench, cuModuleGetFunction(&mut function, module, c"f".as_ptr()) => 500);
    cu!(bench, cuModuleUnload(module) => 0);
    loads(bench, c"// A comment.\n.version 7.8\n.target sm_52\n.address_size 64\n", 0);
    loads(bench, c"/* A comment. */\n\n.version 7.8\n.target sm_52\n.address_size 64\n", 0);
}

fn functions(bench: &Bench) {
    bench.start();
    let module = bench.module();
    let mut function = crate::bench::handle(77);
    for name in [c"contract_writ", c"contract_write2", c"CONTRACT_WRITE", c" contract_write"] {
        cu!(bench, cuModuleGetFunction(&mut function, module, name.as_ptr()) => 500);
    }
    bench.is("untouched", function.addr() == 77 || function.is_null(), true);
    let (a, b) =
        (bench.function(module, c"contract_write"), bench.function(module, c"contract_copy"));
    bench.is("two functions", a != b, true);
    bench.is("one function", a == bench.function(module, c"contract_write"), true);
}

fn functions_of_two_modules(bench: &Bench) {
    bench.start();
    let (a, b) = (bench.module(), bench.module());
    let kept = bench.function(b, c"contract_write");
    bench.is("two functions", bench.function(a, c"contract_write") != kept, true);
    cu!(bench, cuModuleUnload(a) => 0);
    let address = bench.warm(64);
    bench.write(kept, address, 7, null_mut(), 0);
    bench.is("bytes", bench.fetch(address, 1, null_mut()), vec![7]);
}

fn unload(bench: &Bench) {
    bench.start();
    let module = bench.module();
    bench.function(module, c"contract_write");
    cu!(bench, cuModuleUnload(module) => 0);
    bench.module();
}

/// A kernel that runs keeps its module, or makes the call wait: either way it ends.
fn unload_does_not_wait(bench: &Bench) {
    bench.start();
    let (module, stream, address) = (bench.module(), bench.stream(1), bench.warm(64));
    let writer = bench.function(module, c"contract_write");
    bench.write(writer, address, 1, stream, 0);
    cu!(bench, cuStreamSynchronize(stream) => 0);
    bench.write(writer, address, 9, stream, 0);
    cu!(bench, cuModuleUnload(module) => 0);
    cu!(bench, cuStreamSynchronize(stream) => 0);
    bench.is("bytes", bench.fetch(address, 1, stream), vec![9]);
}

fn attributes_of_functions(bench: &Bench) {
    use CUfunction_attribute::*;
    bench.start();
    let function = bench.function(bench.module(), c"contract_nothing");
    for (attribute, expected) in [
        (CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024),
        (CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, 0),
        (CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES, 0),
        (CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, 0),
        (CU_FUNC_ATTRIBUTE_PTX_VERSION, 52),
        (CU_FUNC_ATTRIBUTE_BINARY_VERSION, 90),
        (CU_FUNC_ATTRIBUTE_CACHE_MODE_CA, 0),
        (CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 49_152),
        (CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, -1),
        (CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET, 0),
        (CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, 0),
        (CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT, 0),
        (CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH, 0),
        (CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 0),
        (CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE, 0),
    ] {
        let mut value = -77;
        cu!(bench, cuFuncGetAttribute(&mut value, attribute, function) => 0);
        bench.is(&format!("{attribute:?}"), value, expected);
    }
    let mut value = 0;
    cu!(bench, cuFuncGetAttribute(&mut value, CU_FUNC_ATTRIBUTE_NUM_REGS, function) => 0);
    bench.is("has registers", value > 0, true);
    cu!(bench, cuFuncGetAttribute(&mut value, CU_FUNC_ATTRIBUTE_MAX, function) => 1);
}

/// The constant memory of a module is that of each of its functions.
fn constant_bytes_of_functions(bench: &Bench) {
    const BYTES: CUfunction_attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES;
    bench.start();
    let text = c".version 7.8\n.target sm_52\n.address_size 64\n\
        .const .align 4 .b8 table[80] = {1, 2, 3};\n.const .align 8 .b8 other[16] = {4};\n\
        .visible .entry reads(.param .u64 to)\n{\n.reg .b64 %p;\n.reg .b32 %a, %b;\n\
        ld.param.u64 %p, [to];\nld.const.u32 %a, [table];\nld.const.u32 %b, [other];\n\
        add.u32 %a, %a, %b;\nst.global.u32 [%p], %a;\nret;\n}\n\
        .visible .entry reads_none()\n{\nret;\n}\n";
    let module = loads(bench, text, 0);
    for name in [c"reads", c"reads_none"] {
        let mut value = 0;
        cu!(bench, cuFuncGetAttribute(&mut value, BYTES, bench.function(module, name)) => 0);
        bench.is("bytes", value, 96);
    }
}

/// More shared memory than 48 KiB is given to a function that has the attribute for it.
fn shared_memory_of_a_block(bench: &Bench) {
    use CUfunction_attribute::*;
    const MOST: CUfunction_attribute = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    bench.start();
    let (function, stream) = (bench.function(bench.module(), c"contract_nothing"), bench.stream(1));
    let launch = |bytes: u32, expected: i32| {
        cu!(bench, cuLaunchKernel(
            function, 1, 1, 1, 32, 1, 1, bytes, stream, null_mut(), null_mut()) => expected);
    };
    launch(49_152, 0);
    launch(49_153, 1);
    cu!(bench, cuFuncSetAttribute(function, MOST, 65_536) => 0);
    let (mut value, mut blocks) = (0, 0);
    cu!(bench, cuFuncGetAttribute(&mut value, MOST, function) => 0);
    bench.is("set", value, 65_536);
    launch(65_536, 0);
    launch(65_537, 1);
    cu!(bench, cuOccupancyMaxActiveBlocksPerMultiprocessor(
        &mut blocks, function, 128, 65_536) => 0);
    bench.is("blocks", blocks, 3);
    cu!(bench, cuFuncSetAttribute(function, MOST, 232_448) => 0);
    launch(232_448, 0);
    cu!(bench, cuFuncSetAttribute(function, MOST, 232_449) => 1);
    cu!(bench, cuFuncSetAttribute(function, MOST, -1) => 1);
    launch(232_448, 0);
    launch(232_449, 1);
    cu!(bench, cuFuncSetAttribute(function, MOST, 0) => 0);
    launch(0, 0);
    cu!(bench, cuStreamSynchronize(stream) => 0);
}

fn occupancy(bench: &Bench) {
    bench.start();
    let function = bench.function(bench.module(), c"contract_nothing");
    for (threads, shared, expected) in [
        (32, 0, 32),
        (33, 0, 32),
        (128, 0, 16),
        (256, 0, 8),
        (1024, 0, 2),
        (1024, 49_152, 2),
        (128, 49_152, 4),
        (128, 30_000, 7),
    ] {
        let mut blocks = -77;
        cu!(bench, cuOccupancyMaxActiveBlocksPerMultiprocessor(
            &mut blocks, function, threads, shared) => 0);
        bench.is(&format!("{threads} threads, {shared} bytes"), blocks, expected);
    }
    let mut blocks = -77;
    cu!(bench, cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, function, 0, 0) => 1);
    cu!(bench, cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, function, -1, 0) => 1);
    bench.is("untouched", blocks, -77);
    cu!(bench, cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, function, 2048, 0) => 0);
    bench.is("too many threads", blocks, 0);
    cu!(bench, cuOccupancyMaxActiveBlocksPerMultiprocessor(
        &mut blocks, function, 128, 49_153) => 0);
    bench.is("more than it may have", blocks, 0);
    cu!(bench, cuOccupancyMaxActiveBlocksPerMultiprocessor(
        &mut blocks, function, 128, 1 << 30) => 0);
    bench.is("more than there is", blocks, 0);
}

fn a_module_of_another_device(bench: &Bench) {
    let context = bench.start();
    bench.need_two_devices();
    let function = bench.function(bench.module(), c"contract_nothing");
    bench.use_device(1);
    let there = bench.stream(1);
    bench.launch(function, there, 400);
    bench.launch(function, null_mut(), 400);
    cu!(bench, cuCtxSetCurrent(context) => 0);
    bench.launch(function, there, 400);
    let here = bench.stream(1);
    bench.use_device(1);
    bench.launch(function, here, 0);
    cu!(bench, cuStreamSynchronize(here) => 0);
}

fn parameters_without_a_context(bench: &Bench) {
    bench.start();
    let (calls, mut library, mut kernel) = (Calls::find(bench), null_mut(), null_mut());
    other!(bench, calls, cuLibraryLoadData(
        &mut library, crate::kernels::PTX.as_ptr().cast(), null_mut(), null_mut(), 0, null_mut(),
        null_mut(), 0) => 0);
    let name = c"contract_write";
    other!(bench, calls, cuLibraryGetKernel(&mut kernel, library, name.as_ptr()) => 0);
    let (mut offset, mut bytes) = (77, 77);
    other!(bench, calls, cuKernelGetParamInfo(kernel, 1, &mut offset, &mut bytes) => 0);
    bench.is("second", (offset, bytes), (8, 4));
    other!(bench, calls, cuKernelGetParamInfo(kernel, 2, &mut offset, &mut bytes) => 1);
    cu!(bench, cuCtxSetCurrent(null_mut()) => 0);
    (offset, bytes) = (77, 77);
    for index in [1, 2] {
        other!(bench, calls, cuKernelGetParamInfo(kernel, index, &mut offset, &mut bytes) => 201);
    }
    bench.is("untouched", (offset, bytes), (77, 77));
    other!(bench, calls, cuKernelGetParamInfo(null_mut(), 1, &mut offset, &mut bytes) => 1);
}

/// The driver makes one.
fn an_undefined_variable(bench: &Bench) {
    bench.start();
    let text = c".version 7.8\n.target sm_52\n.address_size 64\n.extern .global .u32 g;\n\
        .visible .entry A(.param .u64 at) { .reg .u64 %a; ld.param.u64 %a, [at]; \
        .reg .u32 %v; ld.global.u32 %v, [g]; st.global.u32 [%a], %v; ret; }\n\
        .visible .entry B() { ret; }\n";
    let mut module = null_mut();
    cu!(bench, cuModuleLoadData(&mut module, text.as_ptr().cast()) => 0);
    let (stream, mut memory) = (bench.stream(1), bench.warm(64));
    let mut function = null_mut();
    for name in [c"B", c"A"] {
        if cu!(bench, cuModuleGetFunction(&mut function, module, name.as_ptr()) => 0) == 0 {
            let mut parameters = [ptr::from_mut(&mut memory).cast()];
            cu!(bench, cuLaunchKernel(
                function, 1, 1, 1, 1, 1, 1, 0, stream, parameters.as_mut_ptr(), null_mut()) => 0);
            cu!(bench, cuStreamSynchronize(stream) => 0);
        }
    }
}
