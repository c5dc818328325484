//! Wrong arguments: modules and kernels.

use crate::Row;
use crate::bench::{Bench, cu, handle};
use crate::kernels::PTX;
use std::ptr::{null, null_mut};
use tcuda::driver::sys::*;

pub const ROWS: &[Row] = crate::rows!["arguments":
    cuModuleLoadData, cuModuleUnload, cuLinkCreate, cuLinkAddData, cuLinkComplete, cuLinkDestroy,
    cuModuleGetFunction, cuFuncGetAttribute, cuFuncSetAttribute,
    cuFuncGetName, cuKernelGetFunction, cuFuncGetParamInfo,
    cuOccupancyMaxActiveBlocksPerMultiprocessor, cuOccupancyMaxPotentialBlockSize,
    cuOccupancyMaxPotentialClusterSize, cuOccupancyMaxActiveClusters, cuLaunchKernel,
    cuLaunchKernelEx,
];

fn cuModuleLoadData(bench: &Bench) {
    let mut module = handle(77);
    cu!(bench, cuModuleLoadData(&mut module, PTX.as_ptr().cast()) => 3);
    bench.start();
    cu!(bench, cuModuleLoadData(&mut module, null()) => 1);
    bench.is("untouched", module.addr() == 77 || module.is_null(), true);
    cu!(bench, cuModuleLoadData(null_mut(), PTX.as_ptr().cast()) => 1);
    cu!(bench, cuModuleLoadData(null_mut(), null()) => 1);
}

fn cuModuleUnload(bench: &Bench) {
    cu!(bench, cuModuleUnload(null_mut()) => 3);
    bench.start();
    cu!(bench, cuModuleUnload(null_mut()) => 400);
}

/// A link without options.
fn link(bench: &Bench) -> CUlinkState {
    let mut state = null_mut();
    cu!(bench, cuLinkCreate(0, null_mut(), null_mut(), &mut state) => 0);
    state
}

/// Adds a text of PTX, which ends with a NUL.
fn add(bench: &Bench, state: CUlinkState, text: &std::ffi::CStr, expected: i32) {
    let bytes = text.to_bytes_with_nul();
    let data = bytes.as_ptr().cast_mut().cast();
    cu!(bench, cuLinkAddData(
        state, CUjitInputType::CU_JIT_INPUT_PTX, data, bytes.len(), c"text".as_ptr(), 0,
        null_mut(), null_mut()) => expected);
}

fn cuLinkCreate(bench: &Bench) {
    let mut state = handle(77);
    cu!(bench, cuLinkCreate(0, null_mut(), null_mut(), &mut state) => 3);
    bench.start();
    cu!(bench, cuLinkCreate(0, null_mut(), null_mut(), null_mut()) => 1);
    bench.is("untouched", state.addr() == 77 || state.is_null(), true);
    let state = link(bench);
    cu!(bench, cuLinkDestroy(state) => 0);
}

fn cuLinkAddData(bench: &Bench) {
    bench.start();
    let state = link(bench);
    cu!(bench, cuLinkAddData(
        state, CUjitInputType::CU_JIT_INPUT_PTX, null_mut(), 0, c"none".as_ptr(), 0, null_mut(),
        null_mut()) => 1);
    let text =
        c".version 7.8\n.target sm_52\n.address_size 64\n.visible .entry f() { frob.u32; }\n";
    add(bench, state, text, 218);
    cu!(bench, cuLinkDestroy(state) => 0);
    let state = link(bench);
    add(bench, state, PTX, 0);
    cu!(bench, cuLinkDestroy(state) => 0);
}

fn cuLinkComplete(bench: &Bench) {
    bench.start();
    let state = link(bench);
    add(bench, state, PTX, 0);
    let (mut image, mut size) = (null_mut(), 0);
    cu!(bench, cuLinkComplete(state, &mut image, &mut size) => 0);
    bench.is("an image", !image.is_null() && size > 0, true);
    let mut module = null_mut();
    cu!(bench, cuModuleLoadData(&mut module, image) => 0);
    cu!(bench, cuLinkDestroy(state) => 0);
    bench.function(module, c"contract_write");
}

/// Once, and not NULL: the driver does not check.
fn cuLinkDestroy(bench: &Bench) {
    bench.start();
    let state = link(bench);
    cu!(bench, cuLinkDestroy(state) => 0);
}

fn cuModuleGetFunction(bench: &Bench) {
    bench.start();
    let (module, mut function) = (bench.module(), handle(77));
    cu!(bench, cuModuleGetFunction(&mut function, null_mut(), c"contract_write".as_ptr()) => 400);
    cu!(bench, cuModuleGetFunction(&mut function, module, null()) => 1);
    cu!(bench, cuModuleGetFunction(&mut function, null_mut(), null()) => 400);
    cu!(bench, cuModuleGetFunction(null_mut(), module, c"contract_write".as_ptr()) => 1);
    cu!(bench, cuModuleGetFunction(&mut function, module, c"".as_ptr()) => 1);
    bench.is("untouched", function.addr() == 77 || function.is_null(), true);
}

fn cuFuncGetAttribute(bench: &Bench) {
    use CUfunction_attribute::*;
    bench.start();
    let (function, mut value) = (bench.function(bench.module(), c"contract_write"), 77);
    cu!(bench, cuFuncGetAttribute(null_mut(), CU_FUNC_ATTRIBUTE_NUM_REGS, function) => 1);
    cu!(bench, cuFuncGetAttribute(&mut value, CU_FUNC_ATTRIBUTE_MAX, function) => 1);
    cu!(bench, cuFuncGetAttribute(&mut value, CU_FUNC_ATTRIBUTE_NUM_REGS, null_mut()) => 400);
    bench.is("untouched", value, 77);
}

fn cuFuncGetName(bench: &Bench) {
    bench.start();
    let (function, mut name) = (bench.function(bench.module(), c"contract_write"), null());
    cu!(bench, cuFuncGetName(null_mut(), function) => 1);
    cu!(bench, cuFuncGetName(&mut name, null_mut()) => 1);
    bench.is("untouched", name.is_null(), true);
}

fn cuKernelGetFunction(bench: &Bench) {
    bench.start();
    let mut function = handle(77);
    cu!(bench, cuKernelGetFunction(&mut function, null_mut()) => 400);
    cu!(bench, cuKernelGetFunction(null_mut(), null_mut()) => 1);
    bench.is("untouched", function.addr(), 77);
}

fn cuFuncSetAttribute(bench: &Bench) {
    use CUfunction_attribute::*;
    bench.start();
    let function = bench.function(bench.module(), c"contract_write");
    let most = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    cu!(bench, cuFuncSetAttribute(null_mut(), most, 1024) => 400);
    cu!(bench, cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX, 1) => 1);
    cu!(bench, cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_NUM_REGS, 1) => 1);
    cu!(bench, cuFuncSetAttribute(function, most, -1) => 1);
    let mut value = 77;
    cu!(bench, cuFuncGetAttribute(&mut value, most, function) => 0);
    bench.is("untouched", value, 49_152);
}

/// As the manual says.
fn cuFuncGetParamInfo(bench: &Bench) {
    bench.start();
    let function = bench.function(bench.module(), c"contract_write");
    let (mut offset, mut size) = (77, 77);
    cu!(bench, cuFuncGetParamInfo(function, 64, &mut offset, &mut size) => 1);
    bench.is("untouched", (offset, size), (77, 77));
    cu!(bench, cuFuncGetParamInfo(function, 0, &mut offset, &mut size) => 0);
    bench.is("first", (offset, size), (0, 8));
}

fn cuOccupancyMaxActiveBlocksPerMultiprocessor(bench: &Bench) {
    bench.start();
    let (function, mut blocks) = (bench.function(bench.module(), c"contract_write"), 77);
    cu!(bench, cuOccupancyMaxActiveBlocksPerMultiprocessor(null_mut(), function, 32, 0) => 1);
    cu!(bench, cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, null_mut(), 32, 0) => 400);
    for size in [0, -1, i32::MIN] {
        cu!(bench, cuOccupancyMaxActiveBlocksPerMultiprocessor(
            &mut blocks, function, size, 0) => 1);
    }
    bench.is("untouched", blocks, 77);
    for size in [1025, i32::MAX] {
        cu!(bench, cuOccupancyMaxActiveBlocksPerMultiprocessor(
            &mut blocks, function, size, 0) => 0);
        bench.is("none", blocks, 0);
    }
}

fn cuOccupancyMaxPotentialBlockSize(bench: &Bench) {
    bench.start();
    let function = bench.function(bench.module(), c"contract_write");
    let (mut grid, mut block) = (77, 77);
    cu!(bench, cuOccupancyMaxPotentialBlockSize(
        &mut grid, &mut block, null_mut(), None, 0, 0) => 400);
    cu!(bench, cuOccupancyMaxPotentialBlockSize(
        null_mut(), &mut block, function, None, 0, 0) => 1);
    cu!(bench, cuOccupancyMaxPotentialBlockSize(
        &mut grid, null_mut(), function, None, 0, 0) => 1);
    bench.is("untouched", (grid, block), (77, 77));
    cu!(bench, cuOccupancyMaxPotentialBlockSize(
        &mut grid, &mut block, function, None, 0, 100) => 0);
    bench.is("within the limit", (1..=100).contains(&block), true);
}

/// 32 threads in each of two blocks, on the legacy stream.
fn two_blocks() -> CUlaunchConfig {
    CUlaunchConfig {
        gridDimX: 2,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 32,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        hStream: null_mut(),
        attrs: null_mut(),
        numAttrs: 0,
    }
}

fn cuOccupancyMaxPotentialClusterSize(bench: &Bench) {
    bench.start();
    let function = bench.function(bench.module(), c"contract_write");
    let (mut size, config) = (77, two_blocks());
    cu!(bench, cuOccupancyMaxPotentialClusterSize(null_mut(), function, &config) => 1);
    cu!(bench, cuOccupancyMaxPotentialClusterSize(&mut size, null_mut(), &config) => 1);
    cu!(bench, cuOccupancyMaxPotentialClusterSize(&mut size, function, null()) => 1);
    bench.is("untouched", size, 77);
    cu!(bench, cuOccupancyMaxPotentialClusterSize(&mut size, function, &config) => 0);
    bench.is("the portable size", size, 8);
}

fn cuOccupancyMaxActiveClusters(bench: &Bench) {
    bench.start();
    let function = bench.function(bench.module(), c"contract_write");
    let (mut clusters, config) = (77, two_blocks());
    cu!(bench, cuOccupancyMaxActiveClusters(null_mut(), function, &config) => 1);
    cu!(bench, cuOccupancyMaxActiveClusters(&mut clusters, null_mut(), &config) => 1);
    cu!(bench, cuOccupancyMaxActiveClusters(&mut clusters, function, null()) => 1);
    bench.is("untouched", clusters, 77);
    // No attribute names a cluster.
    cu!(bench, cuOccupancyMaxActiveClusters(&mut clusters, function, &config) => 0);
    bench.is("none", clusters, 0);
}

fn cuLaunchKernelEx(bench: &Bench) {
    let mut config = two_blocks();
    cu!(bench, cuLaunchKernelEx(&config, null_mut(), null_mut(), null_mut()) => 3);
    bench.start();
    let (function, stream) = (bench.function(bench.module(), c"contract_nothing"), bench.stream(1));
    cu!(bench, cuLaunchKernelEx(null(), function, null_mut(), null_mut()) => 1);
    config.hStream = stream;
    cu!(bench, cuLaunchKernelEx(&config, null_mut(), null_mut(), null_mut()) => 400);
    for grid in [0, u32::MAX] {
        config.gridDimX = grid;
        cu!(bench, cuLaunchKernelEx(&config, function, null_mut(), null_mut()) => 1);
    }
    config.gridDimX = 2;
    cu!(bench, cuLaunchKernelEx(&config, function, null_mut(), null_mut()) => 0);
    cu!(bench, cuStreamSynchronize(stream) => 0);
}

fn cuLaunchKernel(bench: &Bench) {
    cu!(bench, cuLaunchKernel(
        null_mut(), 1, 1, 1, 1, 1, 1, 0, null_mut(), null_mut(), null_mut()) => 3);
    bench.start();
    let (function, stream) = (bench.function(bench.module(), c"contract_nothing"), bench.stream(1));
    bench.launch(null_mut(), stream, 400);
    for (x, y, z) in [(0, 1, 1), (1, 0, 1), (1, 1, 0), (u32::MAX, 1, 1), (1, 65_536, 1)] {
        cu!(bench, cuLaunchKernel(
            function, x, y, z, 1, 1, 1, 0, stream, null_mut(), null_mut()) => 1);
        cu!(bench, cuLaunchKernel(
            null_mut(), x, y, z, 1, 1, 1, 0, stream, null_mut(), null_mut()) => 400);
    }
    cu!(bench, cuCtxSetCurrent(null_mut()) => 0);
    bench.launch(function, null_mut(), 201);
    bench.launch(null_mut(), null_mut(), 201);
}
