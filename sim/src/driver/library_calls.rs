//! The calls for libraries: images that are loaded once for all contexts.

use super::arguments::{enumerator, peek, put, require};
use super::entry::entry;
use super::function_calls::{check_cache, describe_parameter};
use super::image;
use super::jit::{self, Options, Use, named};
use super::machine::Machine;
use super::module::{Library, LibraryKernel, Modules};
use super::module_calls::{find_variable, put_handles};
use super::sync::{read, write};
use crate::base::code;
use crate::program::Program;
use cudarc::driver::sys::{
    CUdevice, CUdeviceptr, CUfunction, CUjit_option, CUkernel, CUlibrary, CUlibraryOption, CUmodule,
};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;

/// Checks the options of a library. They concern compiled code and data of the host's linker.
fn check(count: c_uint, options: *const CUlibraryOption) -> Result<(), i32> {
    require(count == 0 || !options.is_null(), code::INVALID_VALUE)?;
    for index in 0..count as usize {
        // Read as an integer, since a host may pass any value.
        let option = peek!(options.cast::<c_uint>().wrapping_add(index))?;
        require(option <= 1, code::INVALID_VALUE)?;
    }
    Ok(())
}

fn add(machine: &Machine, library: *mut CUlibrary, program: Arc<Program>) -> Result<(), i32> {
    machine.share_variables(&program);
    let handle = write(&machine.modules).insert_library(program);
    put!(library, ptr::without_provenance_mut(handle))
}

#[allow(clippy::too_many_arguments, reason = "CUDA's own signature")]
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuLibraryLoadData(
    library: *mut CUlibrary,
    image: *const c_void,
    options: *mut CUjit_option,
    values: *mut *mut c_void,
    count: c_uint,
    library_options: *mut CUlibraryOption,
    _library_values: *mut *mut c_void,
    library_count: c_uint,
) -> c_int {
    entry(|machine| {
        require(!library.is_null(), code::INVALID_VALUE)?;
        check(library_count, library_options)?;
        let options = Options::read(Use::Load, count, options, values)?;
        add(machine, library, jit::load(&machine.config, image::unwrapped(image)?, &options)?)
    })
}

#[allow(clippy::too_many_arguments, reason = "CUDA's own signature")]
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuLibraryLoadFromFile(
    library: *mut CUlibrary,
    path: *const c_char,
    options: *mut CUjit_option,
    values: *mut *mut c_void,
    count: c_uint,
    library_options: *mut CUlibraryOption,
    _library_values: *mut *mut c_void,
    library_count: c_uint,
) -> c_int {
    entry(|machine| {
        require(!library.is_null(), code::INVALID_VALUE)?;
        check(library_count, library_options)?;
        let options = Options::read(Use::Load, count, options, values)?;
        add(machine, library, jit::load_file(&machine.config, path, &options)?)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuLibraryUnload(library: CUlibrary) -> c_int {
    entry(|machine| {
        machine.captures.refuse_unsafe()?;
        let removed = write(&machine.modules).remove_library(library.addr());
        removed.map(drop).ok_or(code::INVALID_HANDLE)
    })
}

/// Runs with the library of a handle.
fn with_library<R>(
    machine: &Machine,
    library: CUlibrary,
    body: impl FnOnce(&Library) -> Result<R, i32>,
) -> Result<R, i32> {
    body(read(&machine.modules).libraries.get(library.addr()).ok_or(code::INVALID_HANDLE)?)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuLibraryGetKernel(
    kernel: *mut CUkernel,
    library: CUlibrary,
    name: *const c_char,
) -> c_int {
    entry(|machine| {
        with_library(machine, library, |library| {
            require(!kernel.is_null(), code::INVALID_VALUE)?;
            let name = named(name)?.to_str().map_err(|_| code::NOT_FOUND)?;
            let handle = *library.kernels.get(name).ok_or(code::NOT_FOUND)?;
            put!(kernel, ptr::without_provenance_mut(handle))
        })
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuLibraryGetKernelCount(
    count: *mut c_uint,
    library: CUlibrary,
) -> c_int {
    entry(|machine| {
        with_library(machine, library, |library| put!(count, library.kernels.len() as c_uint))
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuLibraryEnumerateKernels(
    kernels: *mut CUkernel,
    count: c_uint,
    library: CUlibrary,
) -> c_int {
    entry(|machine| {
        with_library(machine, library, |library| {
            put_handles(kernels.cast(), count, library.kernels.values())
        })
    })
}

/// The handle of the library's module in the current context.
fn module(machine: &Machine, library: CUlibrary) -> Result<usize, i32> {
    with_library(machine, library, |_| Ok(()))?;
    let place = machine.current()?.place();
    write(&machine.modules).module_of(&machine.memory, library.addr(), place)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuLibraryGetModule(
    result: *mut CUmodule,
    library: CUlibrary,
) -> c_int {
    entry(|machine| {
        require(!result.is_null(), code::INVALID_VALUE)?;
        put!(result, ptr::without_provenance_mut(module(machine, library)?))
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuLibraryGetGlobal(
    address: *mut CUdeviceptr,
    bytes: *mut usize,
    library: CUlibrary,
    name: *const c_char,
) -> c_int {
    entry(|machine| {
        let module = module(machine, library)?;
        find_variable(machine, module, name, (address, bytes))
    })
}

/// The managed variable of a name in the current context.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuLibraryGetManaged(
    address: *mut CUdeviceptr,
    bytes: *mut usize,
    library: CUlibrary,
    name: *const c_char,
) -> c_int {
    entry(|machine| {
        with_library(machine, library, |_| {
            require(!address.is_null() || !bytes.is_null(), code::INVALID_VALUE)?;
            named(name).map(drop)
        })?;
        let (module, mut start) = (module(machine, library)?, 0);
        find_variable(machine, module, name, (&mut start, ptr::null_mut()))?;
        let is_managed = read(&machine.memory.space).managed.contains(start as usize);
        require(is_managed, code::NOT_FOUND)?;
        find_variable(machine, module, name, (address, bytes))
    })
}

/// No library has unified functions, since the devices do not.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuLibraryGetUnifiedFunction(
    function: *mut *mut c_void,
    library: CUlibrary,
    symbol: *const c_char,
) -> c_int {
    entry(|machine| {
        with_library(machine, library, |library| {
            require(!function.is_null(), code::INVALID_VALUE)?;
            let name = named(symbol)?.to_str().unwrap_or_default();
            // Kernels are not unified functions, and PTX declares none of these.
            require(!library.kernels.contains_key(name), code::INVALID_VALUE)?;
            Err(code::NOT_FOUND)
        })
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuKernelGetFunction(
    result: *mut CUfunction,
    kernel: CUkernel,
) -> c_int {
    entry(|machine| {
        require(!result.is_null(), code::INVALID_VALUE)?;
        known(&read(&machine.modules), kernel)?;
        let place = machine.current()?.place();
        let handle = write(&machine.modules).function_of(&machine.memory, kernel.addr(), place)?;
        put!(result, ptr::without_provenance_mut(handle))
    })
}

/// The library's kernel of a handle.
fn known(modules: &Modules, kernel: CUkernel) -> Result<&LibraryKernel, i32> {
    modules.kernels.get(kernel.addr()).ok_or(code::INVALID_HANDLE)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuKernelGetLibrary(
    library: *mut CUlibrary,
    kernel: CUkernel,
) -> c_int {
    entry(|machine| {
        let handle = known(&read(&machine.modules), kernel)?.library;
        put!(library, ptr::without_provenance_mut(handle))
    })
}

/// The name is valid while the library is.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuKernelGetName(
    name: *mut *const c_char,
    kernel: CUkernel,
) -> c_int {
    entry(|machine| {
        require(!name.is_null() && !kernel.is_null(), code::INVALID_VALUE)?;
        put!(name, known(&read(&machine.modules), kernel)?.name.as_ptr())
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuKernelGetParamInfo(
    kernel: CUkernel,
    index: usize,
    offset: *mut usize,
    size: *mut usize,
) -> c_int {
    entry(|machine| {
        require(!kernel.is_null(), code::INVALID_VALUE)?;
        machine.current()?;
        let modules = read(&machine.modules);
        describe_parameter(&known(&modules, kernel)?.exec, index, offset, size)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuKernelGetAttribute(
    value: *mut c_int,
    attribute: c_uint,
    kernel: CUkernel,
    device: CUdevice,
) -> c_int {
    entry(|machine| {
        let modules = read(&machine.modules);
        let known = known(&modules, kernel)?;
        let device = machine.device(device)?.context.device;
        let settings = known.settings.get(&device).copied().unwrap_or_default();
        put!(value, settings.get(&machine.config, &known.exec, enumerator(attribute)?)?)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuKernelSetAttribute(
    attribute: c_uint,
    value: c_int,
    kernel: CUkernel,
    device: CUdevice,
) -> c_int {
    entry(|machine| {
        let mut modules = write(&machine.modules);
        let known = modules.kernels.get_mut(kernel.addr()).ok_or(code::INVALID_HANDLE)?;
        let device = machine.device(device)?.context.device;
        known.settings.entry(device).or_default().set(
            &machine.config,
            &known.exec,
            enumerator(attribute)?,
            value,
        )
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuKernelSetCacheConfig(
    kernel: CUkernel,
    config: c_uint,
    device: CUdevice,
) -> c_int {
    entry(|machine| {
        known(&read(&machine.modules), kernel)?;
        machine.device(device)?;
        check_cache(config)
    })
}
