//! Section "Devices" of the header.

use super::boundary::{
    Sized_, boundary, boundary_with_forked, out, out_list, struct_out, text_out,
};
use super::status::{status_of, tcuda_status};
use crate::base::error::{Error, Result};
use crate::base::text;
use crate::driver::math_library::{CUBLAS, CUSOLVER, cublasContext, cusolverDnContext};
use crate::driver::sync_debug;
use crate::driver::sys::CUdevice_attribute as Attribute;
use crate::gpu::device::{CURRENT, Device, MAX_DEVICES};
use crate::gpu::gpus;
use crate::gpu::stray_contexts;
use crate::interop::math_handles;
use crate::ops::{copy, kernels};
use crate::runtime;
use std::ffi::{c_char, c_void};

/// Hidden waits are allowed.
pub const TCUDA_SYNC_DEBUG_DEFAULT: i32 = 0;
/// A warning before the wait, through the log callback; to stderr if none was set.
pub const TCUDA_SYNC_DEBUG_WARN: i32 = 1;
/// TCUDA_STATUS_WOULD_SYNCHRONIZE, and no wait.
pub const TCUDA_SYNC_DEBUG_ERROR: i32 = 2;

/// Everything fixed about a device. Flags are 0 or 1.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tcuda_device_info {
    /// From TCUDA_INIT.
    pub struct_size: usize,
    /// Marketing name.
    pub name: [c_char; 256],
    /// The 16 bytes of "GPU-..." as nvidia-smi prints it.
    pub uuid: [u8; 16],
    /// Device memory.
    pub total_memory_bytes: u64,
    /// Level 2 cache.
    pub l2_cache_bytes: u64,
    /// Shared memory that a block gets by default.
    pub shared_memory_per_block_bytes: u64,
    /// Shared memory that a block can opt in to.
    pub shared_memory_per_block_optin_bytes: u64,
    /// Shared memory of a multiprocessor.
    pub shared_memory_per_multiprocessor_bytes: u64,
    /// Compute capability.
    pub major: i32,
    /// Compute capability, behind the dot.
    pub minor: i32,
    /// Multiprocessors.
    pub multi_processor_count: i32,
    /// Threads of a warp.
    pub warp_size: i32,
    /// Limit of a launch.
    pub max_threads_per_block: i32,
    /// Threads that are resident at a time.
    pub max_threads_per_multi_processor: i32,
    /// Limits of a launch.
    pub max_block_dim: [i32; 3],
    /// Limits of a launch.
    pub max_grid_dim: [i32; 3],
    /// 32-bit registers.
    pub regs_per_block: i32,
    /// 32-bit registers.
    pub regs_per_multiprocessor: i32,
    /// Peak clock of the multiprocessors.
    pub clock_rate_khz: i32,
    /// Peak clock of the memory.
    pub memory_clock_rate_khz: i32,
    /// Width of the memory's bus.
    pub memory_bus_width_bits: i32,
    /// Engines that copy while kernels run.
    pub copy_engine_count: i32,
    /// PCI address.
    pub pci_domain_id: i32,
    /// PCI address.
    pub pci_bus_id: i32,
    /// PCI address.
    pub pci_device_id: i32,
    /// Nearest NUMA node of the host; -1: unknown.
    pub numa_node: i32,
    /// Newest CUDA of the driver; 13000: CUDA 13.0.
    pub driver_version: i32,
    /// Shares the host's memory.
    pub is_integrated: i32,
    /// Is on a board with other GPUs.
    pub is_multi_gpu_board: i32,
    /// Is a MIG instance.
    pub is_mig: i32,
    /// Error correction is on.
    pub has_ecc: i32,
    /// Supports kernels whose blocks synchronise.
    pub has_cooperative_launch: i32,
    /// Other PCI devices can reach its memory.
    pub has_gpu_direct_rdma: i32,
    /// Memory can be shared over NVLink between machines.
    pub has_fabric_handles: i32,
    /// Supports memory that migrates.
    pub has_managed_memory: i32,
    /// The host can use managed memory while kernels run.
    pub has_concurrent_managed_access: i32,
    /// Supports cuMemMap.
    pub has_virtual_memory: i32,
    /// Supports cuMemAllocAsync.
    pub has_memory_pools: i32,
}

// SAFETY: repr(C), plain data, struct_size first.
unsafe impl Sized_ for tcuda_device_info {}

fn info_of(device: &Device, driver_version: i32) -> Result<tcuda_device_info> {
    use Attribute::*;
    let properties = device.properties()?;
    let (major, minor) = device.capability()?;
    let get = |attribute| device.attribute_or(attribute, 0);
    let size = |attribute| get(attribute).map(|value| value.max(0) as u64);
    Ok(tcuda_device_info {
        struct_size: size_of::<tcuda_device_info>(),
        name: properties.name,
        uuid: properties.uuid,
        total_memory_bytes: properties.total_memory_bytes,
        l2_cache_bytes: size(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?,
        shared_memory_per_block_bytes: size(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK)?,
        shared_memory_per_block_optin_bytes: size(
            CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        )?,
        shared_memory_per_multiprocessor_bytes: size(
            CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
        )?,
        major,
        minor,
        multi_processor_count: get(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        warp_size: get(CU_DEVICE_ATTRIBUTE_WARP_SIZE)?,
        max_threads_per_block: get(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        max_threads_per_multi_processor: get(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?,
        max_block_dim: [
            get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X)?,
            get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y)?,
            get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z)?,
        ],
        max_grid_dim: [
            get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X)?,
            get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y)?,
            get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z)?,
        ],
        regs_per_block: get(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK)?,
        regs_per_multiprocessor: get(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR)?,
        clock_rate_khz: get(CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?,
        memory_clock_rate_khz: get(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?,
        memory_bus_width_bits: get(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?,
        copy_engine_count: get(CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT)?,
        pci_domain_id: get(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?,
        pci_bus_id: get(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?,
        pci_device_id: get(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?,
        numa_node: device.attribute_or(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, -1)?,
        driver_version,
        is_integrated: get(CU_DEVICE_ATTRIBUTE_INTEGRATED)?,
        is_multi_gpu_board: get(CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD)?,
        is_mig: i32::from(name_has_mig(&properties.name)),
        has_ecc: get(CU_DEVICE_ATTRIBUTE_ECC_ENABLED)?,
        has_cooperative_launch: get(CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH)?,
        has_gpu_direct_rdma: get(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED)?,
        has_fabric_handles: get(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED)?,
        has_managed_memory: get(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY)?,
        has_concurrent_managed_access: get(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS)?,
        has_virtual_memory: get(CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED)?,
        has_memory_pools: get(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)?,
    })
}

/// The driver marks MIG instances only in the name: "NVIDIA H100 80GB HBM3 MIG 1g.10gb".
fn name_has_mig(name: &[c_char]) -> bool {
    text::text_of(name).contains(" MIG ")
}

/// Initialises now; otherwise the first call that needs it does. (torch.cuda.init)
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn tcuda_init() -> tcuda_status {
    boundary(|call| call.gpus().map(|_| ()))
}

/// Is the library initialised, and this not a forked child of the process that did it?
/// (torch.cuda.is_initialized)
///
/// @param[out] initialized  whether it is
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_is_initialized(initialized: *mut bool) -> tcuda_status {
    let write = |is: bool| out(initialized, "initialized").map(|out| out.set(is));
    boundary_with_forked(|| write(false), |call| write(gpus::existing(call.inside()).is_some()))
}

/// Cannot the backend start that was asked for? That is no lack of a GPU.
fn is_misconfigured(error: &Error) -> bool {
    matches!(status_of(error), tcuda_status::InvalidArgument | tcuda_status::NoLibrary)
}

/// Is there a usable GPU, or a simulated one? False without a driver, and in the forked child of a
/// process that had initialised the library. A backend that was asked for and cannot start, or a
/// wrong value of TCUDA_BACKEND or TCUDA_SIM, is a status. Never creates a context.
/// (torch.cuda.is_available)
///
/// @param[out] available  whether there is one
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_is_available(available: *mut bool) -> tcuda_status {
    let write = |is: bool| out(available, "available").map(|out| out.set(is));
    boundary_with_forked(
        || write(false),
        |call| match runtime::device_count(call.inside()) {
            Err(error) if is_misconfigured(&error) => Err(error),
            count => write(count.is_ok_and(|count| count > 0)),
        },
    )
}

/// Devices visible to this process, CUDA_VISIBLE_DEVICES respected; 0 without a driver. Starts the
/// driver, but does not initialise the library. TCUDA_STATUS_FORKED in the forked child of a
/// process that had started the driver, where torch gives 0. (torch.cuda.device_count)
///
/// @param[out] count  0 or more
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_device_count(count: *mut i32) -> tcuda_status {
    boundary(|call| {
        let count = out(count, "count")?;
        count.set(runtime::device_count(call.inside())?);
        Ok(())
    })
}

/// This thread's current device: that of its current CUDA context when that is a primary one, else
/// the one that the thread set, 0 at first. TCUDA_STATUS_NO_DRIVER without a driver.
/// (torch.cuda.current_device)
///
/// @param[out] device  its ordinal
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_device_current(device: *mut i32) -> tcuda_status {
    boundary(|call| {
        let device = out(device, "device")?;
        device.set(call.gpus()?.current_device()?);
        Ok(())
    })
}

/// Makes a device current for this thread, here and in the CUDA driver.
/// TCUDA_STATUS_INVALID_STATE if tcuda_context_check_mode_set wants that, and nothing changes.
/// (torch.cuda.set_device)
///
/// @param device  ordinal below tcuda_device_count(); negative: no-op, also without a driver
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn tcuda_device_set(device: i32) -> tcuda_status {
    boundary(|call| {
        if device < 0 {
            return Ok(());
        }
        let gpus = call.gpus()?;
        gpus.check_primary_contexts(device)?;
        gpus.set_current_device(device)
    })
}

/// The devices on which this process has a primary context, whichever library created it.
/// Initialises the library, and creates no context. (torch.cuda._primary_context_devices)
///
/// @param[out] devices   ordinals, the first `capacity` of them; may be NULL when `capacity` is 0
/// @param      capacity  length of the list
/// @param[out] count     number of such devices
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_device_primary_contexts(
    devices: *mut i32,
    capacity: usize,
    count: *mut usize,
) -> tcuda_status {
    boundary(|call| {
        let count = out(count, "count")?;
        let devices = out_list(devices, capacity, "devices")?;
        let gpus = call.gpus()?;
        // All are asked first, once: a failure leaves the list alone, and so does another thread.
        let (mut found, mut len) = ([0; MAX_DEVICES], 0);
        for device in gpus.with_primary_context() {
            found[len] = device?.ordinal();
            len += 1;
        }
        devices.set(found.into_iter().take(len));
        count.set(len);
        Ok(())
    })
}

/// What tcuda_device_set does, where it chooses a device that tcuda does not use yet, if another
/// device has a primary context in this process: TCUDA_CONTEXT_CHECK_...
pub type tcuda_context_check_mode = i32;
/// Nothing.
pub const TCUDA_CONTEXT_CHECK_DEFAULT: i32 = 0;
/// It logs a warning.
pub const TCUDA_CONTEXT_CHECK_WARN: i32 = 1;
/// It fails with TCUDA_STATUS_INVALID_STATE, and changes nothing.
pub const TCUDA_CONTEXT_CHECK_ERROR: i32 = 2;

// The layers below have the same numbers.
const _: () = assert!(
    TCUDA_CONTEXT_CHECK_DEFAULT == stray_contexts::DEFAULT
        && TCUDA_CONTEXT_CHECK_WARN == stray_contexts::WARN
        && TCUDA_CONTEXT_CHECK_ERROR == stray_contexts::ERROR
);

/// The mode that tcuda_context_check_mode_set set; without it that of TCUDA_CHECK_STRAY_CONTEXT in
/// the environment, or TORCH_CUDA_CHECK_STRAY_CONTEXT: "warn", "error", or anything else for
/// TCUDA_CONTEXT_CHECK_DEFAULT. (torch.cuda: TORCH_CUDA_CHECK_STRAY_CONTEXT)
///
/// @param[out] mode  TCUDA_CONTEXT_CHECK_...
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_context_check_mode_get(
    mode: *mut tcuda_context_check_mode,
) -> tcuda_status {
    boundary(|_| {
        let mode = out(mode, "mode")?;
        mode.set(stray_contexts::mode()?);
        Ok(())
    })
}

/// Sets the mode of the whole process, until tcuda_shutdown.
/// (torch.cuda: TORCH_CUDA_CHECK_STRAY_CONTEXT)
///
/// @param mode  TCUDA_CONTEXT_CHECK_...
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn tcuda_context_check_mode_set(mode: tcuda_context_check_mode) -> tcuda_status {
    boundary(|_| stray_contexts::set_mode(mode))
}

/// tcuda_device_set that also returns the device that was current before; undo it with
/// tcuda_device_set(previous). (torch.cuda.device)
///
/// @param device         ordinal below tcuda_device_count(); negative: no-op, also without a driver
/// @param[out] previous  ordinal; -1 if `device` is negative and there is no device
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_device_exchange(device: i32, previous: *mut i32) -> tcuda_status {
    boundary(|call| {
        let previous = out(previous, "previous")?;
        if device < 0 {
            let gpus = call.gpus_if_any()?;
            previous.set(gpus.map_or(Ok(CURRENT), |gpus| gpus.current_device())?);
            return Ok(());
        }
        let gpus = call.gpus()?;
        let current = gpus.current_device()?;
        gpus.set_current_device(device)?;
        previous.set(current);
        Ok(())
    })
}

/// The device that an address belongs to; -1 when it is not device memory, as none is without a
/// driver. (torch.cuda.device_of)
///
/// @param ptr          any address, also inside a block; may be NULL: -1
/// @param[out] device  its ordinal, or -1
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_device_of(ptr: *const c_void, device: *mut i32) -> tcuda_status {
    boundary(|call| {
        let device = out(device, "device")?;
        let found = match ptr.is_null() {
            true => None,
            false => match call.gpus_if_any()? {
                Some(gpus) => copy::device_of(gpus, ptr as u64)?,
                None => None,
            },
        };
        device.set(found.unwrap_or(-1));
        Ok(())
    })
}

/// Name of a device, "NVIDIA H200". (torch.cuda.get_device_name)
///
/// @param device       ordinal, or TCUDA_CURRENT_DEVICE (-1); INVALID_DEVICE for other negative
///                     ones
/// @param[out] buf     may be NULL if len is 0; cut to `len` - 1 bytes and a NUL
/// @param len          room in buf, in bytes
/// @param[out] needed  length without the NUL; may be NULL
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_device_name(
    device: i32,
    buf: *mut c_char,
    len: usize,
    needed: *mut usize,
) -> tcuda_status {
    boundary(|call| {
        let out = text_out(buf, len, needed)?;
        let properties = call.gpus()?.device(device)?.properties()?;
        out.set(text::text_of(&properties.name))
    })
}

/// Compute capability of a device, 9 and 0. (torch.cuda.get_device_capability;
/// torch.cuda.is_bf16_supported and torch.cuda.is_tf32_supported: 8.0 and above)
///
/// @param device      ordinal, or TCUDA_CURRENT_DEVICE (-1); INVALID_DEVICE for other negative ones
/// @param[out] major  9 of 9.0
/// @param[out] minor  0 of 9.0
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_device_capability(
    device: i32,
    major: *mut i32,
    minor: *mut i32,
) -> tcuda_status {
    boundary(|call| {
        let (major, minor) = (out(major, "major")?, out(minor, "minor")?);
        let capability = call.gpus()?.device(device)?.capability()?;
        major.set(capability.0);
        minor.set(capability.1);
        Ok(())
    })
}

/// Everything about a device. (torch.cuda.get_device_properties)
///
/// @param device         ordinal, or TCUDA_CURRENT_DEVICE
/// @param[in,out] info  start from TCUDA_INIT(tcuda_device_info)
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_device_properties(
    device: i32,
    info: *mut tcuda_device_info,
) -> tcuda_status {
    boundary(|call| {
        let info = struct_out(info, "info")?;
        let gpus = call.gpus()?;
        let mut version = 0;
        // SAFETY: `version` is writable.
        unsafe { gpus.driver().cuDriverGetVersion(&mut version) }?;
        info.set(&info_of(gpus.device(device)?, version)?);
        Ok(())
    })
}

/// Can `device` map the memory of `peer`? A device is not its own peer.
/// (torch.cuda.can_device_access_peer)
///
/// @param device, peer   ordinals, or TCUDA_CURRENT_DEVICE
/// @param[out] possible  whether it can
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_device_can_access_peer(
    device: i32,
    peer: i32,
    possible: *mut bool,
) -> tcuda_status {
    boundary(|call| {
        let possible = out(possible, "possible")?;
        let gpus = call.gpus()?;
        possible.set(gpus.device(device)?.can_access(gpus.device(peer)?)?);
        Ok(())
    })
}

/// Lets kernels of `device` use the memory of `peer`, including all present and future memory of
/// the cache; again: no-op. TCUDA_STATUS_NOT_SUPPORTED where the machine cannot. (+)
///
/// @param device, peer  ordinals, or TCUDA_CURRENT_DEVICE
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn tcuda_device_enable_peer_access(device: i32, peer: i32) -> tcuda_status {
    boundary(|call| {
        let gpus = call.gpus()?;
        gpus.device(device)?.enable_peer(gpus.device(peer)?)
    })
}

/// Waits for all work of a device. (torch.cuda.synchronize)
///
/// @param device  ordinal, or TCUDA_CURRENT_DEVICE
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn tcuda_device_synchronize(device: i32) -> tcuda_status {
    boundary(|call| call.gpus()?.device(device)?.synchronize_for_host())
}

/// What happens when a call makes the host wait for the device in an unobvious place.
/// (torch.cuda.get_sync_debug_mode)
///
/// @param[out] mode  TCUDA_SYNC_DEBUG_...
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_sync_debug_mode_get(mode: *mut i32) -> tcuda_status {
    boundary(|_| {
        out(mode, "mode")?.set(sync_debug::mode());
        Ok(())
    })
}

/// Sets the sync debug mode of the whole process, until tcuda_shutdown. The mode applies to hidden
/// waits for a device: tcuda_stream_synchronize and copies from and to pageable memory always, as
/// in PyTorch; collective calls whose result is in memory of the host; tcuda_mem_pool_sleep and
/// _wake; and memory that is given back while streams use it, as by tcuda_memory_empty_cache. A
/// refused call gives TCUDA_STATUS_WOULD_SYNCHRONIZE; one that destroys something waits
/// nevertheless, and is logged. Calls that are documented to wait, such as tcuda_device_synchronize
/// and tcuda_event_synchronize, are exempt. The first call that turns the mode on logs a warning
/// that lists the exempt waits. (torch.cuda.set_sync_debug_mode)
///
/// @param mode  TCUDA_SYNC_DEBUG_...
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn tcuda_sync_debug_mode_set(mode: i32) -> tcuda_status {
    boundary(|_| sync_debug::set(mode))
}

/// Architectures of the kernels built in, "compute_52", with blanks between them where there are
/// more. (torch.cuda.get_arch_list)
///
/// @param[out] buf     may be NULL if len is 0; cut to `len` - 1 bytes and a NUL
/// @param len          room in buf, in bytes
/// @param[out] needed  length without the NUL; may be NULL
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_arch_list(
    buf: *mut c_char,
    len: usize,
    needed: *mut usize,
) -> tcuda_status {
    boundary(|_| text_out(buf, len, needed)?.set(kernels::ARCHITECTURES))
}

/// The same as compiler flags, in torch.cuda.get_gencode_flags' form.
/// (torch.cuda.get_gencode_flags)
///
/// @param[out] buf     may be NULL if len is 0; cut to `len` - 1 bytes and a NUL
/// @param len          room in buf, in bytes
/// @param[out] needed  length without the NUL; may be NULL
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_gencode_flags(
    buf: *mut c_char,
    len: usize,
    needed: *mut usize,
) -> tcuda_status {
    boundary(|_| text_out(buf, len, needed)?.set(kernels::GencodeFlags(kernels::ARCHITECTURES)))
}

/// A cublasHandle_t of this thread and device, set to the thread's current stream of the device.
/// Its workspace is memory of the cache: for each handle and stream the size in
/// CUBLAS_WORKSPACE_CONFIG, else 32 MiB from Hopper on and 8320 KiB before. The thread gets the
/// same handle each time; call this again after a change of the stream, and in a capture, which
/// gets memory of its graph. When the thread ends, other threads reuse the handle, until
/// tcuda_shutdown destroys it. The workspace of an external stream is freed some time after its
/// last handle (tcuda_stream_destroy): queue no cuBLAS work there after that.
/// TCUDA_STATUS_NO_LIBRARY without cuBLAS; TCUDA_STATUS_NOT_SUPPORTED on the simulated machine,
/// where TCUDA_CUBLAS_PATH may name a stand-in for tests. (torch.cuda.current_blas_handle)
///
/// @param device              ordinal, or TCUDA_CURRENT_DEVICE
/// @param[out] cublas_handle  borrowed
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_blas_handle(
    device: i32,
    cublas_handle: *mut *mut cublasContext,
) -> tcuda_status {
    boundary(|call| {
        let cublas_handle = out(cublas_handle, "cublas_handle")?;
        let gpus = call.gpus()?;
        let handle = math_handles::handle(gpus, gpus.device(device)?, &CUBLAS)?;
        cublas_handle.set(handle as *mut cublasContext);
        Ok(())
    })
}

/// A cusolverDnHandle_t of this thread and device, set to the thread's current stream of the
/// device: tcuda_blas_handle for cuSOLVER, which takes its workspaces as arguments.
/// TCUDA_STATUS_NO_LIBRARY without cuSOLVER; TCUDA_STATUS_NOT_SUPPORTED on the simulated machine,
/// where TCUDA_CUSOLVER_PATH may name a stand-in for tests. (torch.cuda.current_solver_handle)
///
/// @param device                ordinal, or TCUDA_CURRENT_DEVICE
/// @param[out] cusolver_handle  borrowed
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_solver_handle(
    device: i32,
    cusolver_handle: *mut *mut cusolverDnContext,
) -> tcuda_status {
    boundary(|call| {
        let cusolver_handle = out(cusolver_handle, "cusolver_handle")?;
        let gpus = call.gpus()?;
        let handle = math_handles::handle(gpus, gpus.device(device)?, &CUSOLVER)?;
        cusolver_handle.set(handle as *mut cusolverDnContext);
        Ok(())
    })
}
