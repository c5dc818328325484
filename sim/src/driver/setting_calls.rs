//! The calls for the settings of contexts.

use super::arguments::{put, require};
use super::entry::entry;
use super::green::Scope;
use super::machine::Machine;
use super::settings::{HEAP, check_flags};
use super::sync::lock;
use crate::base::code;
use crate::exec::heap::Heap;
use cudarc::driver::sys::CUcontext;
use std::ffi::{c_int, c_uint, c_ulonglong};
use std::sync::Mutex;
use std::sync::atomic::Ordering;

/// The version of the interface of contexts, 3.2.
const INTERFACE: c_uint = 3020;
/// `CU_FUNC_CACHE_PREFER_EQUAL`, the last.
const LAST_CACHE: c_uint = 3;
/// `CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE`, which devices always have, and the last.
const FOUR_BYTES: c_uint = 1;
const LAST_BANKS: c_uint = 2;

/// The context of a handle; NULL means the current one.
fn named(machine: &Machine, context: CUcontext) -> Result<Scope<'_>, i32> {
    if context.is_null() {
        return machine.current_scope();
    }
    require(machine.context(context)?.is_active(), code::CONTEXT_IS_DESTROYED)?;
    let scope = machine.known_scope(context)?;
    scope.check()?;
    Ok(scope)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuCtxGetApiVersion(
    context: CUcontext,
    version: *mut c_uint,
) -> c_int {
    entry(|machine| {
        named(machine, context)?;
        put!(version, INTERFACE)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuCtxGetId(context: CUcontext, id: *mut c_ulonglong) -> c_int {
    entry(|machine| {
        let scope = named(machine, context)?;
        let of_context = || scope.context.id.load(Ordering::Relaxed);
        put!(id, scope.green_id().unwrap_or_else(of_context))
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuCtxGetFlags(flags: *mut c_uint) -> c_int {
    entry(|machine| {
        let context = machine.current()?;
        put!(flags, lock(&context.settings).flags)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuCtxSetFlags(flags: c_uint) -> c_int {
    entry(|machine| {
        let context = machine.current()?;
        check_flags(flags)?;
        lock(&context.settings).flags = flags;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuCtxGetLimit(value: *mut usize, limit: c_uint) -> c_int {
    entry(|machine| {
        let context = machine.current()?;
        require(!value.is_null(), code::INVALID_VALUE)?;
        let limit = lock(&context.settings).limit(limit, machine.config.compute_capability)?;
        put!(value, limit)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuCtxSetLimit(limit: c_uint, value: usize) -> c_int {
    entry(|machine| {
        let context = machine.current()?;
        let mut settings = lock(&context.settings);
        let mut new = *settings;
        if new.set_limit(limit, value, machine.config.compute_capability)? == HEAP {
            let room = machine.memory.physical[context.device].bytes();
            require(value <= room, code::INVALID_VALUE)?;
            // It cannot change once a kernel has used it.
            let heap: &Mutex<Heap> =
                machine.memory.heaps[context.device].get_or_init(Mutex::default);
            require(lock(heap).resize(value), code::INVALID_VALUE)?;
        }
        *settings = new;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuCtxGetCacheConfig(config: *mut c_uint) -> c_int {
    entry(|machine| {
        let context = machine.current()?;
        put!(config, lock(&context.settings).cache)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuCtxSetCacheConfig(config: c_uint) -> c_int {
    entry(|machine| {
        let context = machine.current()?;
        require(config <= LAST_CACHE, code::INVALID_VALUE)?;
        lock(&context.settings).cache = config;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuCtxGetSharedMemConfig(config: *mut c_uint) -> c_int {
    entry(|machine| {
        machine.current()?;
        put!(config, FOUR_BYTES)
    })
}

/// The width of banks is fixed.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuCtxSetSharedMemConfig(config: c_uint) -> c_int {
    entry(|machine| {
        machine.current()?;
        require(config <= LAST_BANKS, code::INVALID_VALUE)
    })
}

/// There is no cache to reset.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuCtxResetPersistingL2Cache() -> c_int {
    entry(|machine| machine.current().map(drop))
}
