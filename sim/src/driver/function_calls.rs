//! The calls that describe functions and set their attributes.

use super::arguments::{enumerator, put, require};
use super::entry::entry;
use super::machine::Machine;
use super::module::Function;
use super::sync::{read, write};
use crate::base::code;
use crate::exec;
use cudarc::driver::sys::{CUfunction, CUfunctionLoadingState, CUmodule};
use std::ffi::{c_char, c_int, c_uint};
use std::ptr;

/// The function of a handle, for the current context.
fn find(machine: &Machine, function: CUfunction) -> Result<Function, i32> {
    // The kernel of a library is none here, as with the driver (580.159).
    let found = read(&machine.modules).functions.get(function.addr()).cloned();
    let found = found.ok_or(code::INVALID_HANDLE)?;
    machine.current()?;
    Ok(found)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuFuncGetAttribute(
    value: *mut c_int,
    attribute: c_uint,
    function: CUfunction,
) -> c_int {
    entry(|machine| {
        let known = find(machine, function)?;
        put!(
            value,
            known.settings.get(&machine.config, &known.kernel.exec, enumerator(attribute)?)?
        )
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuFuncSetAttribute(
    function: CUfunction,
    attribute: c_uint,
    value: c_int,
) -> c_int {
    entry(|machine| {
        let mut modules = write(&machine.modules);
        let known = modules.functions.get_mut(function.addr()).ok_or(code::INVALID_HANDLE)?;
        machine.current()?;
        known.settings.set(&machine.config, &known.kernel.exec, enumerator(attribute)?, value)
    })
}

/// Writes offset and size of a parameter; the size may be NULL.
pub(super) fn describe_parameter(
    kernel: &exec::Kernel,
    index: usize,
    offset: *mut usize,
    size: *mut usize,
) -> Result<(), i32> {
    let found = kernel.parameters().get(index).ok_or(code::INVALID_VALUE)?;
    require(!offset.is_null(), code::INVALID_VALUE)?;
    if !size.is_null() {
        put!(size, found.bytes)?;
    }
    put!(offset, found.offset)
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
        let handle = function.addr();
        let known = modules.functions.get(handle).map(|known| &known.kernel.exec);
        let kernel = || modules.kernels.get(handle).map(|kernel| &kernel.exec);
        let known = known.or_else(kernel).ok_or(code::INVALID_HANDLE)?;
        describe_parameter(known, index, offset, size)
    })
}

/// The name is valid while the function is.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuFuncGetName(
    name: *mut *const c_char,
    function: CUfunction,
) -> c_int {
    entry(|machine| {
        require(!name.is_null() && !function.is_null(), code::INVALID_VALUE)?;
        put!(name, find(machine, function)?.name.as_ptr())
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuFuncGetModule(
    module: *mut CUmodule,
    function: CUfunction,
) -> c_int {
    entry(|machine| {
        require(!module.is_null(), code::INVALID_VALUE)?;
        let known = find(machine, function)?;
        put!(module, ptr::without_provenance_mut(known.module))
    })
}

/// Checks a preference of caches. The devices have none, so it has no effect.
pub(super) fn check_cache(config: c_uint) -> Result<(), i32> {
    require(config <= 3, code::INVALID_VALUE)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuFuncSetCacheConfig(
    function: CUfunction,
    config: c_uint,
) -> c_int {
    entry(|machine| {
        find(machine, function)?;
        check_cache(config)
    })
}

/// The size of the banks of shared memory is fixed, so the configuration has no effect.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuFuncSetSharedMemConfig(
    function: CUfunction,
    config: c_uint,
) -> c_int {
    entry(|machine| {
        find(machine, function)?;
        require(config <= 2, code::INVALID_VALUE)
    })
}

/// A function is loaded with its module.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuFuncLoad(function: CUfunction) -> c_int {
    entry(|machine| find(machine, function).map(drop))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuFuncIsLoaded(
    state: *mut CUfunctionLoadingState,
    function: CUfunction,
) -> c_int {
    entry(|machine| {
        require(!state.is_null(), code::INVALID_VALUE)?;
        find(machine, function)?;
        put!(state, CUfunctionLoadingState::CU_FUNCTION_LOADING_STATE_LOADED)
    })
}
