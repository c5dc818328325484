//! Modules: which registered kernels an image makes available.

use super::handles::Handles;
use super::kernel::{self, Kernel};
use super::{code, entry, put, read, require, write};
use crate::driver::sys::{CUfunction, CUfunction_attribute, CUmodule};
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

const THREADS_PER_MULTIPROCESSOR: usize = 2048;
const BLOCKS_PER_MULTIPROCESSOR: usize = 32;
const SHARED_PER_MULTIPROCESSOR: usize = 233_472;
/// What the driver itself takes of each block's shared memory.
const SHARED_RESERVED: usize = 1024;

/// A loaded image.
pub(super) struct Module {
    pub(super) device: usize,
    functions: BTreeMap<String, usize>,
}

/// A kernel of a module.
#[derive(Clone, Copy)]
pub(super) struct Function {
    pub(super) device: usize,
    pub(super) kernel: Kernel,
}

/// The modules and their functions.
pub(super) struct Modules {
    pub(super) modules: Handles<Module>,
    pub(super) functions: Handles<Function>,
}

impl Modules {
    /// Modules of a device.
    pub(super) fn count_of(&self, device: usize) -> usize {
        self.modules.iter().filter(|module| module.device == device).count()
    }

    /// Unloads the modules of the devices of which `gone` is true.
    pub(super) fn clear(&mut self, gone: impl Fn(usize) -> bool) {
        self.modules.extract(|module| !gone(module.device));
        self.functions.extract(|function| !gone(function.device));
    }
}

/// Removes what comes before the first directive: blanks and comments.
fn skip_comments(mut text: &str) -> &str {
    loop {
        text = text.trim_start();
        if let Some(rest) = text.strip_prefix("//") {
            text = rest.split_once('\n').map_or("", |(_, rest)| rest);
        } else if let Some(rest) = text.strip_prefix("/*") {
            text = rest.split_once("*/").map_or("", |(_, rest)| rest);
        } else {
            return text;
        }
    }
}

/// Names of the kernels of a PTX text.
fn entries(text: &str) -> impl Iterator<Item = &str> {
    text.split(".entry").skip(1).filter_map(|after| {
        let name = after.strip_prefix(char::is_whitespace)?.trim_start();
        let end = name.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '$'));
        Some(&name[..end.unwrap_or(name.len())])
    })
}

pub(super) unsafe extern "C" fn load(module: *mut CUmodule, image: *const c_void) -> c_int {
    entry(|machine| {
        let device = machine.current()?.device;
        require(!module.is_null() && !image.is_null(), code::INVALID_VALUE)?;
        // SAFETY: the caller gives a NUL-terminated text; a binary image ends at its first NUL here.
        let image = unsafe { CStr::from_ptr(image.cast()) };
        let text = image.to_str().map_err(|_| code::INVALID_IMAGE)?;
        require(skip_comments(text).starts_with(".version"), code::INVALID_IMAGE)?;
        let mut modules = write(&machine.modules);
        let mut functions = BTreeMap::new();
        for name in entries(text) {
            if let Some(kernel) = kernel::find(name) {
                let handle = modules.functions.insert(Function { device, kernel });
                functions.insert(String::from(name), handle);
            }
        }
        let handle = modules.modules.insert(Module { device, functions });
        put!(module, ptr::without_provenance_mut(handle))
    })
}

pub(super) unsafe extern "C" fn unload(module: CUmodule) -> c_int {
    entry(|machine| {
        machine.usable()?;
        let mut modules = write(&machine.modules);
        let removed = modules.modules.remove(module.addr()).ok_or(code::INVALID_HANDLE)?;
        for handle in removed.functions.values() {
            modules.functions.remove(*handle);
        }
        Ok(())
    })
}

pub(super) unsafe extern "C" fn get_function(
    function: *mut CUfunction,
    module: CUmodule,
    name: *const c_char,
) -> c_int {
    entry(|machine| {
        machine.usable()?;
        require(!function.is_null() && !name.is_null(), code::INVALID_VALUE)?;
        // SAFETY: the caller gives a NUL-terminated name.
        let name = unsafe { CStr::from_ptr(name) };
        let modules = read(&machine.modules);
        let module = modules.modules.get(module.addr()).ok_or(code::INVALID_HANDLE)?;
        let found = name.to_str().ok().and_then(|name| module.functions.get(name));
        let handle = *found.ok_or(code::NOT_FOUND)?;
        put!(function, ptr::without_provenance_mut(handle))
    })
}

pub(super) unsafe extern "C" fn get_attribute(
    value: *mut c_int,
    attribute: CUfunction_attribute,
    function: CUfunction,
) -> c_int {
    use CUfunction_attribute::*;
    entry(|machine| {
        machine.current()?;
        let modules = read(&machine.modules);
        modules.functions.get(function.addr()).ok_or(code::INVALID_HANDLE)?;
        let (major, minor) = machine.config.compute_capability;
        let number = match attribute {
            CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK => kernel::MAX_THREADS_PER_BLOCK as c_int,
            CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
            | CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES
            | CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES
            | CU_FUNC_ATTRIBUTE_CACHE_MODE_CA => 0,
            CU_FUNC_ATTRIBUTE_NUM_REGS => 32,
            CU_FUNC_ATTRIBUTE_PTX_VERSION => 52,
            CU_FUNC_ATTRIBUTE_BINARY_VERSION => major * 10 + minor,
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => {
                kernel::MAX_SHARED_PER_BLOCK as c_int
            }
            CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT => -1,
            _ => return Err(code::INVALID_VALUE),
        };
        put!(value, number)
    })
}

pub(super) unsafe extern "C" fn occupancy(
    blocks: *mut c_int,
    function: CUfunction,
    block_size: c_int,
    shared_bytes: usize,
) -> c_int {
    entry(|machine| {
        machine.current()?;
        let modules = read(&machine.modules);
        modules.functions.get(function.addr()).ok_or(code::INVALID_HANDLE)?;
        let threads = usize::try_from(block_size).map_err(|_| code::INVALID_VALUE)?;
        require(threads > 0, code::INVALID_VALUE)?;
        let by_threads = match threads {
            0..=kernel::MAX_THREADS_PER_BLOCK => {
                THREADS_PER_MULTIPROCESSOR / threads.next_multiple_of(32)
            }
            _ => 0,
        };
        let by_shared = match shared_bytes {
            0..=kernel::MAX_SHARED_PER_BLOCK => {
                SHARED_PER_MULTIPROCESSOR / (shared_bytes + SHARED_RESERVED)
            }
            _ => 0,
        };
        let number = by_threads.min(by_shared).min(BLOCKS_PER_MULTIPROCESSOR);
        put!(blocks, number as c_int)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ptx_is_recognised_and_its_entries_found() {
        assert!(skip_comments(" // a\n/* b\n */ .version 7.8\n").starts_with(".version"));
        assert_eq!(skip_comments("/* open"), "");
        let text = ".visible .entry add_one(\n.param .u64 p)\n{}\n.entry  second$2 ( ) .entryway x";
        assert_eq!(entries(text).collect::<Vec<_>>(), ["add_one", "second$2"]);
    }
}
