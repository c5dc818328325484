//! The calls that load modules, describe their functions and launch them.

use super::arguments::{put, require};
use super::entry::entry;
use super::hooks;
use super::kernel::{self, Kernel, Launch, Variables};
use super::module::{Function, Module};
use super::parameters;
use super::queue::Action;
use super::sync::{read, write};
use crate::base::code;
use crate::exec::Shape;
use crate::program::Program;
use crate::ptx::{LoadError, LoadErrorKind};
use cudarc::driver::sys::{CUfunction, CUfunction_attribute, CUmodule, CUstream};
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;

const BLOCKS_PER_MULTIPROCESSOR: usize = 32;
const SHARED_PER_MULTIPROCESSOR: usize = 233_472;
/// Bytes of each block's shared memory that the driver reserves.
const SHARED_RESERVED: usize = 1024;

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuModuleLoadData(
    module: *mut CUmodule,
    image: *const c_void,
) -> c_int {
    entry(|machine| {
        let context = machine.current()?;
        require(!module.is_null() && !image.is_null(), code::INVALID_VALUE)?;
        // SAFETY: the caller passes a NUL-terminated text; a binary image ends at its first NUL
        // here.
        let image = unsafe { CStr::from_ptr(image.cast()) };
        let text = image.to_str().map_err(|_| code::INVALID_IMAGE)?;
        let (major, minor) = machine.config.compute_capability;
        let program = Program::load(text, (major * 10 + minor).unsigned_abs());
        let program = Arc::new(program.map_err(|error| refuse(&error))?);
        let variables = Variables::new(&machine.memory, context.device, &program)?;
        let mut modules = write(&machine.modules);
        let (owner, mut functions) = (context.number, BTreeMap::new());
        for (name, kernel) in Kernel::all(&program, &variables) {
            functions.insert(name, modules.functions.insert(Function::new(owner, kernel)));
        }
        let handle = modules.modules.insert(Module { owner, functions });
        put!(module, ptr::without_provenance_mut(handle))
    })
}

/// The status of an image that cannot be loaded; the log says why.
fn refuse(error: &LoadError) -> i32 {
    hooks::log_error(format_args!("an image cannot be loaded: {error}"));
    match error.kind {
        LoadErrorKind::NotPtx => code::INVALID_IMAGE,
        LoadErrorKind::Version => code::UNSUPPORTED_PTX_VERSION,
        LoadErrorKind::Unsupported => code::NOT_SUPPORTED,
        LoadErrorKind::Invalid | LoadErrorKind::Unresolved => code::INVALID_PTX,
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuModuleUnload(module: CUmodule) -> c_int {
    entry(|machine| {
        machine.usable()?;
        machine.captures.refuse_unsafe()?;
        let mut modules = write(&machine.modules);
        let removed = modules.modules.remove(module.addr()).ok_or(code::INVALID_HANDLE)?;
        for handle in removed.functions.values() {
            modules.functions.remove(*handle);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuModuleGetFunction(
    function: *mut CUfunction,
    module: CUmodule,
    name: *const c_char,
) -> c_int {
    entry(|machine| {
        machine.usable()?;
        let modules = read(&machine.modules);
        let module = modules.modules.get(module.addr()).ok_or(code::INVALID_HANDLE)?;
        require(!function.is_null() && !name.is_null(), code::INVALID_VALUE)?;
        // SAFETY: the caller passes a NUL-terminated name.
        let name = unsafe { CStr::from_ptr(name) };
        require(!name.is_empty(), code::INVALID_VALUE)?;
        let found = name.to_str().ok().and_then(|name| module.functions.get(name));
        let handle = *found.ok_or(code::NOT_FOUND)?;
        put!(function, ptr::without_provenance_mut(handle))
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuFuncGetAttribute(
    value: *mut c_int,
    attribute: CUfunction_attribute,
    function: CUfunction,
) -> c_int {
    use CUfunction_attribute::*;
    entry(|machine| {
        let modules = read(&machine.modules);
        let known = modules.functions.get(function.addr()).ok_or(code::INVALID_HANDLE)?;
        machine.current()?;
        let (major, minor) = machine.config.compute_capability;
        let cluster = known.kernel.required_cluster();
        let clusters = |d: usize| cluster.map_or(0, |sizes| sizes[d] as c_int);
        let number = match attribute {
            CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK => known.kernel.most_threads() as c_int,
            CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES => known.kernel.exec.shared_bytes as c_int,
            CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES => known.kernel.function().frame as c_int,
            CU_FUNC_ATTRIBUTE_PTX_VERSION => known.kernel.exec.program().target as c_int,
            CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH => clusters(0),
            CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT => clusters(1),
            CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH => clusters(2),
            CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES
            | CU_FUNC_ATTRIBUTE_CACHE_MODE_CA
            | CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET
            | CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            | CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE => 0,
            CU_FUNC_ATTRIBUTE_NUM_REGS => 32,
            CU_FUNC_ATTRIBUTE_BINARY_VERSION => major * 10 + minor,
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => known.most_shared as c_int,
            CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT => -1,
            _ => return Err(code::INVALID_VALUE),
        };
        put!(value, number)
    })
}

/// The library sets only this function attribute.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuFuncSetAttribute(
    function: CUfunction,
    attribute: CUfunction_attribute,
    value: c_int,
) -> c_int {
    entry(|machine| {
        let mut modules = write(&machine.modules);
        let known = modules.functions.get_mut(function.addr()).ok_or(code::INVALID_HANDLE)?;
        machine.current()?;
        let is_shared =
            attribute == CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let most = usize::try_from(value).ok().filter(|most| *most <= kernel::MAX_SHARED_PER_BLOCK);
        known.most_shared = most.filter(|_| is_shared).ok_or(code::INVALID_VALUE)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    blocks: *mut c_int,
    function: CUfunction,
    block_size: c_int,
    shared_bytes: usize,
) -> c_int {
    entry(|machine| {
        machine.current()?;
        let modules = read(&machine.modules);
        let known = modules.functions.get(function.addr()).ok_or(code::INVALID_HANDLE)?;
        let threads = usize::try_from(block_size).map_err(|_| code::INVALID_VALUE)?;
        require(threads > 0, code::INVALID_VALUE)?;
        let by_threads = match threads {
            0..=kernel::MAX_THREADS_PER_BLOCK => {
                let most = machine.config.threads_per_multiprocessor.unsigned_abs() as usize;
                most / threads.next_multiple_of(32)
            }
            _ => 0,
        };
        let by_shared = match shared_bytes {
            bytes if bytes > known.most_shared => 0,
            bytes => SHARED_PER_MULTIPROCESSOR / (bytes + SHARED_RESERVED),
        };
        let number = by_threads.min(by_shared).min(BLOCKS_PER_MULTIPROCESSOR);
        put!(blocks, number as c_int)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuFuncGetParamInfo(
    function: CUfunction,
    index: usize,
    offset: *mut usize,
    size: *mut usize,
) -> c_int {
    entry(|machine| {
        let modules = read(&machine.modules);
        let found = modules.functions.get(function.addr()).ok_or(code::INVALID_HANDLE)?;
        let found = found.kernel.parameters().get(index).ok_or(code::INVALID_VALUE)?;
        if !size.is_null() {
            put!(size, found.bytes)?;
        }
        put!(offset, found.offset)
    })
}

#[allow(clippy::too_many_arguments, reason = "CUDA's own signature")]
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuLaunchKernel(
    function: CUfunction,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream: CUstream,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> c_int {
    let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
    entry(|machine| {
        let stream = machine.stream(stream)?;
        machine.usable()?;
        let prepare = || {
            let function = read(&machine.modules).functions.get(function.addr()).cloned();
            let kernel = function.filter(|found| found.owner == stream.context);
            let Function { kernel, most_shared, .. } = kernel.ok_or(code::INVALID_HANDLE)?;
            check_shape(grid, block)?;
            require(shared_bytes as usize <= most_shared, code::INVALID_VALUE)?;
            let threads: usize = block.iter().map(|size| *size as usize).product();
            require(threads <= kernel.most_threads(), code::INVALID_VALUE)?;
            let parameters = parameters::read(kernel.parameters(), parameters, extra)?;
            require(kernel.required_block().is_none_or(|of| of == block), code::INVALID_VALUE)?;
            let cluster = kernel.required_cluster().unwrap_or([1; 3]);
            check_cluster(cluster, grid)?;
            let shape = Shape { grid, block, cluster, dynamic_shared: shared_bytes };
            Ok(Launch::new(kernel, shape, parameters))
        };
        // An invalid launch invalidates the capture (580.159).
        let launch = prepare().inspect_err(|_: &i32| machine.captures.invalidate(&stream))?;
        let action = Action::Kernel(Box::new(launch));
        machine.submit(&stream, Vec::new(), action).map(drop)
    })
}

/// Checks that the grid consists of clusters of a size that the device has (580.159).
fn check_cluster(cluster: [c_uint; 3], grid: [c_uint; 3]) -> Result<(), i32> {
    let is_whole = |d: usize| cluster[d] > 0 && grid[d].is_multiple_of(cluster[d]);
    let blocks = cluster.iter().fold(1, |product: c_uint, size| product.saturating_mul(*size));
    require((0..3).all(is_whole) && blocks <= kernel::MAX_CLUSTER, code::INVALID_CLUSTER_SIZE)
}

/// Checks grid and block against the device limits.
fn check_shape(grid: [c_uint; 3], block: [c_uint; 3]) -> Result<(), i32> {
    let within = |sizes: [c_uint; 3], limits: [c_uint; 3]| {
        sizes.iter().zip(limits).all(|(size, limit)| (1..=limit).contains(size))
    };
    require(
        within(grid, kernel::MAX_GRID) && within(block, kernel::MAX_BLOCK),
        code::INVALID_VALUE,
    )?;
    let threads = block.iter().map(|size| *size as usize).product::<usize>();
    require(threads <= kernel::MAX_THREADS_PER_BLOCK, code::INVALID_VALUE)
}
