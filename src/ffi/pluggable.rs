//! Section "Memory" of the header: allocators of other libraries.

use super::boundary::{Sized_, boundary, out, struct_in, terminated};
use super::handle::Table;
use super::status::tcuda_status;
use crate::base::error::Error;
use crate::base::thread;
use crate::driver::sys::CUstream_st;
use crate::memory::backing::pluggable::{Hooks, Pluggable};
use crate::memory::device::backend;
use std::ffi::{c_char, c_void};

/// An allocator of another library.
pub struct tcuda_pluggable_allocator {
    _private: [u8; 0],
}

pub(super) static ALLOCATORS: Table<Pluggable> = Table::new(7, "pluggable allocator");

/// Returns bytes of memory of a device, for work queued on a stream (NULL: the default one); NULL:
/// it has none. Called on any thread, perhaps on several at once, with the device's context current
/// and no lock of tcuda held. May call tcuda; tcuda_malloc calls back here where the allocator is
/// the current one. Must not throw: a C++ exception that leaves it ends the process.
pub type tcuda_torch_malloc_fn = Option<
    unsafe extern "C" fn(bytes: isize, device: i32, cu_stream: *mut CUstream_st) -> *mut c_void,
>;

/// Takes memory back: called with what tcuda_torch_malloc_fn returned, and with its arguments.
pub type tcuda_torch_free_fn = Option<
    unsafe extern "C" fn(ptr: *mut c_void, bytes: isize, device: i32, cu_stream: *mut CUstream_st),
>;

/// Optional functions of an allocator, those that PyTorch's set_..._fn set; each may be NULL, and
/// is then not called. Functions that route to pools are absent: they take a C++ std::function.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tcuda_pluggable_hooks {
    /// From TCUDA_INIT.
    pub struct_size: usize,
    /// Called before the first allocation, with the number of devices.
    pub init: Option<unsafe extern "C" fn(device_count: i32)>,
    /// Called by tcuda_memory_empty_cache.
    pub reset: Option<unsafe extern "C" fn()>,
    /// Called by tcuda_memory_fraction_set.
    pub memory_fraction: Option<unsafe extern "C" fn(fraction: f64, device: i32)>,
    /// Returns the driver's allocation that holds a block, and its length in bytes.
    pub base_alloc:
        Option<unsafe extern "C" fn(ptr: *mut c_void, bytes: *mut usize) -> *mut c_void>,
    /// Called by tcuda_record_stream.
    pub record_stream: Option<unsafe extern "C" fn(ptr: *mut c_void, cu_stream: *mut CUstream_st)>,
}

// SAFETY: repr(C), plain data, struct_size first; NULL functions are None.
unsafe impl Sized_ for tcuda_pluggable_hooks {}

/// Opens a library made for torch's CUDAPluggableAllocator, as dlopen does with RTLD_NOW and
/// RTLD_LOCAL. It is closed when the allocator was destroyed, and all its memory has been returned
/// to it. (torch.cuda.CUDAPluggableAllocator)
///
/// @param path            as dlopen takes it; TCUDA_STATUS_NO_LIBRARY where it cannot be opened
/// @param alloc_symbol    a function of the form of tcuda_torch_malloc_fn
/// @param free_symbol     a function of the form of tcuda_torch_free_fn
/// @param[out] allocator  the caller's, to be destroyed
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_pluggable_allocator_load(
    path: *const c_char,
    alloc_symbol: *const c_char,
    free_symbol: *const c_char,
    allocator: *mut *mut tcuda_pluggable_allocator,
) -> tcuda_status {
    boundary(|_| {
        let path = terminated(path, "path")?;
        let malloc = terminated(alloc_symbol, "alloc_symbol")?;
        let free = terminated(free_symbol, "free_symbol")?;
        let allocator = out(allocator, "allocator")?;
        let handle = ALLOCATORS.insert(Pluggable::load(path, malloc, free)?)?;
        allocator.set(handle as *mut tcuda_pluggable_allocator);
        Ok(())
    })
}

/// tcuda_pluggable_allocator_load with two functions of this process.
/// (torch.cuda.CUDAPluggableAllocator)
///
/// @param alloc_fn        not NULL
/// @param free_fn         not NULL
/// @param[out] allocator  the caller's, to be destroyed
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_pluggable_allocator_create(
    alloc_fn: tcuda_torch_malloc_fn,
    free_fn: tcuda_torch_free_fn,
    allocator: *mut *mut tcuda_pluggable_allocator,
) -> tcuda_status {
    boundary(|_| {
        let malloc = alloc_fn.ok_or(Error::Null { name: "alloc_fn" })?;
        let free = free_fn.ok_or(Error::Null { name: "free_fn" })?;
        let allocator = out(allocator, "allocator")?;
        let handle = ALLOCATORS.insert(Pluggable::new(malloc, free)?)?;
        allocator.set(handle as *mut tcuda_pluggable_allocator);
        Ok(())
    })
}

/// Destroys an allocator. Blocks and pools made with it keep it, and are freed by it.
/// (the end of a torch.cuda.CUDAPluggableAllocator)
///
/// @param allocator  may be NULL: no-op
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_pluggable_allocator_destroy(
    allocator: *mut tcuda_pluggable_allocator,
) -> tcuda_status {
    boundary(|_| {
        if allocator.is_null() {
            return Ok(());
        }
        ALLOCATORS.remove(allocator as usize, "allocator")?;
        thread::collect();
        Ok(())
    })
}

/// Sets the optional functions; functions that are NULL now are removed.
/// (the set_..._fn of torch.cuda.CUDAPluggableAllocator)
///
/// @param allocator  not in use yet, or TCUDA_STATUS_INVALID_STATE
/// @param hooks      start from TCUDA_INIT(tcuda_pluggable_hooks)
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_pluggable_allocator_set_hooks(
    allocator: *mut tcuda_pluggable_allocator,
    hooks: *const tcuda_pluggable_hooks,
) -> tcuda_status {
    boundary(|call| {
        let allocator = ALLOCATORS.get(allocator as usize, "allocator", call)?;
        let none = tcuda_pluggable_hooks {
            struct_size: size_of::<tcuda_pluggable_hooks>(),
            init: None,
            reset: None,
            memory_fraction: None,
            base_alloc: None,
            record_stream: None,
        };
        let hooks = struct_in(hooks, none, "hooks")?;
        allocator.set_hooks(Hooks {
            init: hooks.init,
            reset: hooks.reset,
            memory_fraction: hooks.memory_fraction,
            base_alloc: hooks.base_alloc,
            record_stream: hooks.record_stream,
        })
    })
}

/// From now on all device memory comes from an allocator of another library: each tcuda_malloc is a
/// call of its allocating function, and each tcuda_free a call of its freeing function, with the
/// same arguments. Nothing is rounded or cached in between. Statistics, snapshots, history, the
/// memory fraction and out-of-memory observers still work; private pools are
/// TCUDA_STATUS_NOT_SUPPORTED. If the allocator returns NULL it is called once more after
/// hooks.reset, if that is set, and after the observers; then the failure is
/// TCUDA_STATUS_OUT_OF_MEMORY. tcuda_shutdown gives its memory back to it and returns to the
/// library's own allocator. Initialises the library. (torch.cuda.memory.change_current_allocator)
///
/// @param allocator  may be NULL: the library's own. After the first allocation it is too late:
///                   TCUDA_STATUS_INVALID_STATE
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_allocator_set_current(
    allocator: *mut tcuda_pluggable_allocator,
) -> tcuda_status {
    boundary(|call| {
        let chosen = match allocator.is_null() {
            true => None,
            false => Some((ALLOCATORS.get(allocator as usize, "allocator", call)?, call.gpus()?)),
        };
        backend::choose(call.inside(), chosen)
    })
}
