//! The calls that load and unload modules, and find their functions and variables.

use super::arguments::{put, require};
use super::entry::entry;
use super::jit::{self, Options, Use, named};
use super::kernel::Variables;
use super::machine::Machine;
use super::sync::{read, write};
use crate::base::code;
use crate::program::Program;
use cudarc::driver::sys::{CUdeviceptr, CUfunction, CUjit_option, CUmodule, CUmoduleLoadingMode};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;

/// Adds a module of the current device.
fn add(machine: &Machine, module: *mut CUmodule, program: Arc<Program>) -> Result<(), i32> {
    let place = machine.current()?.place();
    let variables = Variables::new(&machine.memory, place.1, &program)?;
    machine.share_variables(&program);
    let handle = write(&machine.modules).insert(place, program, variables, None);
    put!(module, ptr::without_provenance_mut(handle))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuModuleLoadData(
    module: *mut CUmodule,
    image: *const c_void,
) -> c_int {
    entry(|machine| {
        machine.current()?;
        require(!module.is_null(), code::INVALID_VALUE)?;
        add(machine, module, jit::load(&machine.config, image, &Options::default())?)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuModuleLoadDataEx(
    module: *mut CUmodule,
    image: *const c_void,
    count: c_uint,
    options: *mut CUjit_option,
    values: *mut *mut c_void,
) -> c_int {
    entry(|machine| {
        machine.current()?;
        require(!module.is_null(), code::INVALID_VALUE)?;
        let options = Options::read(Use::Load, count, options, values)?;
        add(machine, module, jit::load(&machine.config, image, &options)?)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuModuleLoadFatBinary(
    module: *mut CUmodule,
    image: *const c_void,
) -> c_int {
    // SAFETY: the same promise.
    unsafe { cuModuleLoadData(module, image) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuModuleLoad(module: *mut CUmodule, path: *const c_char) -> c_int {
    entry(|machine| {
        machine.current()?;
        require(!module.is_null(), code::INVALID_VALUE)?;
        add(machine, module, jit::load_file(&machine.config, path, &Options::default())?)
    })
}

/// Unloads a module. A module of a library is unloaded with it.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuModuleUnload(module: CUmodule) -> c_int {
    entry(|machine| {
        machine.usable()?;
        machine.captures.refuse_unsafe()?;
        let mut modules = write(&machine.modules);
        let found = modules.modules.get(module.addr()).ok_or(code::INVALID_HANDLE)?;
        require(found.library.is_none(), code::NOT_PERMITTED)?;
        let removed = modules.remove(module.addr());
        drop(modules);
        drop(removed);
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
        require(!function.is_null(), code::INVALID_VALUE)?;
        let name = named(name)?;
        let found = name.to_str().ok().and_then(|name| module.functions.get(name));
        let handle = *found.ok_or(code::NOT_FOUND)?;
        put!(function, ptr::without_provenance_mut(handle))
    })
}

/// Writes address and size of a module's variable to the results that are not NULL.
pub(super) fn find_variable(
    machine: &Machine,
    module: usize,
    name: *const c_char,
    (address, bytes): (*mut CUdeviceptr, *mut usize),
) -> Result<(), i32> {
    let modules = read(&machine.modules);
    let module = modules.modules.get(module).ok_or(code::INVALID_HANDLE)?;
    require(!address.is_null() || !bytes.is_null(), code::INVALID_VALUE)?;
    let name = named(name)?.to_str().unwrap_or_default();
    require(!module.functions.contains_key(name), code::INVALID_VALUE)?;
    let (start, size) = module.variable(name).ok_or(code::NOT_FOUND)?;
    if !address.is_null() {
        put!(address, start)?;
    }
    if !bytes.is_null() {
        put!(bytes, size)?;
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuModuleGetGlobal_v2(
    address: *mut CUdeviceptr,
    bytes: *mut usize,
    module: CUmodule,
    name: *const c_char,
) -> c_int {
    entry(|machine| {
        machine.usable()?;
        find_variable(machine, module.addr(), name, (address, bytes))
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuModuleGetFunctionCount(
    count: *mut c_uint,
    module: CUmodule,
) -> c_int {
    entry(|machine| {
        machine.usable()?;
        let modules = read(&machine.modules);
        let module = modules.modules.get(module.addr()).ok_or(code::INVALID_HANDLE)?;
        put!(count, module.functions.len() as c_uint)
    })
}

/// Writes handles, up to the length of the host's array.
pub(super) fn put_handles<'a>(
    array: *mut *mut c_void,
    count: c_uint,
    handles: impl Iterator<Item = &'a usize>,
) -> Result<(), i32> {
    require(!array.is_null(), code::INVALID_VALUE)?;
    for (index, handle) in handles.take(count as usize).enumerate() {
        put!(array.wrapping_add(index), ptr::without_provenance_mut(*handle))?;
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuModuleEnumerateFunctions(
    functions: *mut CUfunction,
    count: c_uint,
    module: CUmodule,
) -> c_int {
    entry(|machine| {
        machine.usable()?;
        let modules = read(&machine.modules);
        let module = modules.modules.get(module.addr()).ok_or(code::INVALID_HANDLE)?;
        put_handles(functions.cast(), count, module.functions.values())
    })
}

/// The mode that the environment asks for. Libraries are loaded at their first use in a context,
/// and functions with their module, which both modes allow.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuModuleGetLoadingMode(mode: *mut CUmoduleLoadingMode) -> c_int {
    entry(|_| {
        let is_eager = std::env::var_os("CUDA_MODULE_LOADING").is_some_and(|it| it == "EAGER");
        put!(
            mode,
            match is_eager {
                true => CUmoduleLoadingMode::CU_MODULE_EAGER_LOADING,
                false => CUmoduleLoadingMode::CU_MODULE_LAZY_LOADING,
            }
        )
    })
}
