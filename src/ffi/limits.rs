//! Section "Memory" of the header: limits, observers and settings of the allocator.

use super::boundary::{boundary, flag, out, text, text_out};
use super::library::tcuda_destroy_fn;
use super::observer::{Registration, register, tcuda_observer};
use super::status::tcuda_status;
use super::user_data::UserData;
use crate::base::error::Error;
use crate::base::observers::next_number;
use crate::base::thread::try_box;
use crate::gpu::gpus;
use crate::memory::config::settings;
use crate::memory::device::backend;
use crate::memory::fallback::observers::{self, Observes, Rejection, Shortage};
use crate::runtime;
use std::ffi::{c_char, c_void};

/// Called before an allocation fails: it may free memory, of any device and stream, and returns
/// nonzero if it did: then the allocation is tried once more. Runs on the thread whose allocation
/// fails, without a lock, perhaps on several threads at once. It must not allocate device memory:
/// that gives TCUDA_STATUS_INVALID_STATE.
///
/// bytes is the size of the request to the driver, limit_bytes what the cache may reserve (the
/// device's memory where no fraction is set), free_bytes what the driver reports as free.
pub type tcuda_out_of_memory_fn = Option<
    unsafe extern "C" fn(
        user_data: *mut c_void,
        device: i32,
        bytes: usize,
        limit_bytes: usize,
        free_bytes: usize,
    ) -> i32,
>;

/// The host's function as an observer.
struct HostObserver {
    callback: unsafe extern "C" fn(*mut c_void, i32, usize, usize, usize) -> i32,
    user_data: UserData,
}

impl Observes<Shortage> for HostObserver {
    fn freed_memory(&self, shortage: &Shortage) -> bool {
        let Shortage { device, wanted, limit, free } = *shortage;
        let (wanted, limit, free) = (wanted as usize, limit as usize, free as usize);
        // SAFETY: the host's own function with its own data.
        let answer = unsafe { (self.callback)(self.user_data.ptr(), device, wanted, limit, free) };
        answer != 0
    }

    fn attached(&self) {
        self.user_data.take();
    }
}

/// Called when an allocation is refused because it exceeds the memory fraction, with
/// throw_on_cudamalloc_oom:True, without a call of the driver. Runs on the thread whose allocation
/// fails, without a lock, perhaps on several threads at once. It must not allocate device memory:
/// that gives TCUDA_STATUS_INVALID_STATE.
///
/// bytes is the size of the request to the driver, allocated_bytes those of allocated blocks,
/// total_bytes the device's memory.
pub type tcuda_rejection_fn = Option<
    unsafe extern "C" fn(
        user_data: *mut c_void,
        device: i32,
        bytes: usize,
        allocated_bytes: usize,
        total_bytes: usize,
    ),
>;

/// The host's function as an observer of rejections.
struct HostRejections {
    callback: unsafe extern "C" fn(*mut c_void, i32, usize, usize, usize),
    user_data: UserData,
}

impl Observes<Rejection> for HostRejections {
    fn freed_memory(&self, rejection: &Rejection) -> bool {
        let Rejection { device, wanted, allocated, total } = *rejection;
        let (wanted, allocated, total) = (wanted as usize, allocated as usize, total as usize);
        // SAFETY: the host's own function with its own data.
        unsafe { (self.callback)(self.user_data.ptr(), device, wanted, allocated, total) };
        false
    }

    fn attached(&self) {
        self.user_data.take();
    }
}

/// Share of a device's memory that the cache may reserve; 1 where none is set.
/// (torch.cuda.get_per_process_memory_fraction)
///
/// @param device         ordinal, or TCUDA_CURRENT_DEVICE
/// @param[out] fraction  as it was set
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_memory_fraction_get(
    device: i32,
    fraction: *mut f64,
) -> tcuda_status {
    boundary(|call| {
        let fraction = out(fraction, "fraction")?;
        fraction.set(call.gpus()?.device(device)?.memory().fraction());
        Ok(())
    })
}

/// Limits what the cache may reserve of a device to a share of its memory, rounded down to a byte.
/// The limit counts what tcuda_memory_reserved returns, including allocated blocks; not contexts,
/// kernels, or allocations of other libraries. Memory that is reserved beyond a lower limit stays
/// until it is given back, and the next allocation that needs more gives unused memory back first.
/// For a limit in bytes, divide it by the total that tcuda_memory_info gives.
/// (torch.cuda.set_per_process_memory_fraction)
///
/// @param device    ordinal, or TCUDA_CURRENT_DEVICE; it comes first, where torch has the fraction
/// @param fraction  0 to 1; 1: no limit
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn tcuda_memory_fraction_set(device: i32, fraction: f64) -> tcuda_status {
    boundary(|call| {
        if !(0.0..=1.0).contains(&fraction) {
            return Err(Error::Fraction(fraction));
        }
        call.gpus()?.device(device)?.memory().set_fraction(fraction)
    })
}

/// Registers a function that is called before an allocation fails for want of device memory, after
/// all unused memory was given back. All such functions are called, the newest first; if one of
/// them returns that it freed memory, the allocation is tried once more. tcuda_shutdown removes all
/// of them. (+)
///
/// @param callback       not NULL
/// @param user_data      the caller's, passed to the callback; may be NULL
/// @param destroy        called with user_data once no thread is in the callback; may be NULL
/// @param[out] observer  the caller's, to be destroyed; may be NULL: registered until
/// tcuda_shutdown
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_memory_on_out_of_memory(
    callback: tcuda_out_of_memory_fn,
    user_data: *mut c_void,
    destroy: tcuda_destroy_fn,
    observer: *mut *mut tcuda_observer,
) -> tcuda_status {
    boundary(|call| {
        let callback = callback.ok_or(Error::Null { name: "callback" })?;
        // Initialise: a registration ends at shutdown.
        call.gpus()?;
        let user_data = UserData::new(user_data, destroy);
        let host = try_box(HostObserver { callback, user_data }, "an observer")?;
        let number = next_number();
        register(observer, Registration::OutOfMemory(number), || observers::attach(number, host))
    })
}

/// Registers a function that is called when an allocation is refused by the memory fraction, with
/// throw_on_cudamalloc_oom:True. Functions of tcuda_memory_on_out_of_memory are called before, and
/// may free memory; this one cannot change the outcome. All such functions are called, the newest
/// first. tcuda_shutdown removes all of them. (+: c10's attachOomRejectionObserver)
///
/// @param callback       not NULL
/// @param user_data      the caller's, passed to the callback; may be NULL
/// @param destroy        called with user_data once no thread is in the callback; may be NULL
/// @param[out] observer  the caller's, to be destroyed; may be NULL: registered until
/// tcuda_shutdown
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_memory_on_rejection(
    callback: tcuda_rejection_fn,
    user_data: *mut c_void,
    destroy: tcuda_destroy_fn,
    observer: *mut *mut tcuda_observer,
) -> tcuda_status {
    boundary(|call| {
        let callback = callback.ok_or(Error::Null { name: "callback" })?;
        // Initialise: a registration ends at shutdown.
        call.gpus()?;
        let user_data = UserData::new(user_data, destroy);
        let host = try_box(HostRejections { callback, user_data }, "an observer")?;
        let number = next_number();
        let attach = || observers::attach_to_rejections(number, host);
        register(observer, Registration::OutOfMemory(number), attach)
    })
}

/// The allocator's present settings, in the grammar of TCUDA_ALLOC_CONF: passing the text to
/// tcuda_allocator_config_set changes nothing. Before initialisation, the settings that
/// initialisation would use. (+)
///
/// @param[out] buf     may be NULL if len is 0; cut to `len` - 1 bytes and a NUL
/// @param len          room in buf, in bytes
/// @param[out] needed  length without the NUL; may be NULL
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_allocator_config_get(
    buf: *mut c_char,
    len: usize,
    needed: *mut usize,
) -> tcuda_status {
    boundary(|_| text_out(buf, len, needed)?.set(settings::current()?))
}

/// Changes the allocator's settings, also before initialisation. The text is what torch reads from
/// PYTORCH_CUDA_ALLOC_CONF, "max_split_size_mb:256,roundup_power2_divisions:[256:2,>:4]";
/// docs/configuration.md lists the keys and what each does here. As in torch, max_split_size_mb,
/// roundup_power2_divisions and garbage_collection_threshold go back to their defaults where the
/// text lacks them, and other keys keep their values. An invalid text changes nothing.
///
/// Without this call the environment's TCUDA_ALLOC_CONF counts, else PYTORCH_ALLOC_CONF, else
/// PYTORCH_CUDA_ALLOC_CONF, as read at initialisation; if that is invalid, the call that
/// initialises gives TCUDA_STATUS_INVALID_ARGUMENT. tcuda_shutdown forgets what was set here.
///
/// The key "backend" can change only before the first allocation, else TCUDA_STATUS_INVALID_STATE.
/// (torch.cuda.memory._set_allocator_settings)
///
/// @param config  the text; not NULL
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_allocator_config_set(config: *const c_char) -> tcuda_status {
    boundary(|call| runtime::configure(call.inside(), text(config, "config")?))
}

/// Where device memory comes from: "native", this library's cache; "cudaMallocAsync", the driver's
/// pools, by the key "backend" of tcuda_allocator_config_set; or "pluggable", another library, by
/// tcuda_allocator_set_current. (torch.cuda.get_allocator_backend)
#[unsafe(no_mangle)]
pub extern "C" fn tcuda_allocator_backend() -> *const c_char {
    // The name has no status: invalid settings have no effect, so that the default applies.
    backend::name(&settings::current().unwrap_or_default()).as_ptr()
}

/// Turns the cache of the native backend on or off, for allocations from now on. Without it each is
/// a cuMemAlloc of exactly the requested size, and each tcuda_free of such a block a cuMemFree,
/// which waits for the device. Earlier blocks are freed as they were allocated. With
/// TCUDA_NO_MEMORY_CACHING or PYTORCH_NO_CUDA_MEMORY_CACHING set to exactly 1 at initialisation it
/// is off, whatever is set here. tcuda_shutdown turns it on again.
/// (torch.cuda.caching_allocator_enable; torch.cuda.caching_allocator_disabled, with
/// tcuda_memory_caching_is_enabled)
///
/// @param enabled  1 or 0; other backends ignore it
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn tcuda_memory_caching_enable(enabled: i32) -> tcuda_status {
    boundary(|call| backend::enable_caching(call.inside(), flag(enabled, "enabled")?))
}

/// Does the native backend cache freed memory? (+)
///
/// @param[out] enabled  whether it does
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_memory_caching_is_enabled(enabled: *mut bool) -> tcuda_status {
    boundary(|call| {
        let is_initialised = gpus::existing(call.inside()).is_some();
        out(enabled, "enabled")?.set(backend::is_caching(is_initialised));
        Ok(())
    })
}
