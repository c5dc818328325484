//! Section "Jiterator and kernels" of the header: whole kernels.

use super::boundary::{Sized_, boundary, out, struct_in, terminated};
use super::handle::Table;
use super::status::tcuda_status;
use super::stream::{or_current, tcuda_stream};
use crate::base::error::{Error, Result};
use crate::jit::kernel::{Geometry, Kernel};
use crate::jit::store::MAX_PARAMETERS;
use std::ffi::{CStr, c_char, c_void};

/// A kernel in CUDA C++.
pub struct tcuda_kernel {
    _private: [u8; 0],
}

/// Options of the compilation of a kernel.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tcuda_kernel_options {
    /// From TCUDA_INIT.
    pub struct_size: usize,
    /// Options of NVRTC, "-I...", "-D..."; may be NULL if there are none. The architecture is the
    /// device's, and the language is C++17 unless an option names another.
    pub flags: *const *const c_char,
    /// Number of them; at most 256.
    pub num_flags: usize,
}

// SAFETY: repr(C), the size comes first, and it is plain data.
unsafe impl Sized_ for tcuda_kernel_options {}

/// Options of a launch.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tcuda_launch_options {
    /// From TCUDA_INIT.
    pub struct_size: usize,
    /// Blocks in x, y and z; 0: 1.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z; 0: 1.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory of each block. Together with the shared memory that the
    /// kernel declares, at most tcuda_device_info.shared_memory_per_block_optin_bytes of the
    /// device, 227 KiB on an H100.
    pub shared_bytes: u32,
    /// TCUDA_ACCESS_... of each argument, for tools that record accesses; may be NULL.
    pub accesses: *const i32,
}

// SAFETY: repr(C), the size comes first, and it is plain data.
unsafe impl Sized_ for tcuda_launch_options {}

/// How a kernel accesses the memory that an argument points to: not at all, or it is no pointer.
pub const TCUDA_ACCESS_NONE: i32 = 0;
/// Reads.
pub const TCUDA_ACCESS_READ: i32 = 1;
/// Writes.
pub const TCUDA_ACCESS_WRITE: i32 = 2;
/// Both.
pub const TCUDA_ACCESS_READ_WRITE: i32 = 3;

pub(super) static KERNELS: Table<Kernel> = Table::new(13, "kernel");

/// More flags are taken for a mistake.
const MOST_FLAGS: usize = 256;

/// Reads a list of the host's texts.
fn flags<'a>(list: *const *const c_char, count: usize) -> Result<Vec<&'a CStr>> {
    let mut flags = Vec::new();
    if count == 0 {
        return Ok(flags);
    }
    if list.is_null() {
        return Err(Error::Null { name: "flags" });
    }
    if count > MOST_FLAGS {
        return Err(Error::OutOfRange {
            name: "num_flags",
            value: i64::try_from(count).unwrap_or(i64::MAX),
            allowed: "use at most 256",
        });
    }
    flags.try_reserve_exact(count).map_err(|_| Error::OutOfHostMemory("the flags of a kernel"))?;
    for index in 0..count {
        // SAFETY: not NULL, and as long as the caller says.
        let flag = unsafe { list.wrapping_add(index).read_unaligned() };
        flags.push(terminated(flag, "flags[i]")?);
    }
    Ok(flags)
}

/// Compiles a kernel for the current device with NVRTC, or loads it from disk; for other devices
/// that is done at its first launch there. Headers are read each time: an edited one gives another
/// kernel. TCUDA_STATUS_COMPILE_ERROR where the source is wrong: tcuda_last_error has the
/// compiler's messages, with lines of the source. TCUDA_STATUS_NO_LIBRARY without NVRTC.
/// (torch.cuda._compile_kernel)
///
/// @param source       CUDA C++; functions without a specifier are device functions
/// @param name         a kernel, "add", or an instance of a template, "scale<float>"; ASCII,
/// without
///                     quotes and newlines
/// @param options      may be NULL
/// @param[out] kernel  the caller's, to be destroyed
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_kernel_compile(
    source: *const c_char,
    name: *const c_char,
    options: *const tcuda_kernel_options,
    kernel: *mut *mut tcuda_kernel,
) -> tcuda_status {
    boundary(|call| {
        let kernel = out(kernel, "kernel")?;
        let source = terminated(source, "source")?;
        let name = terminated(name, "name")?;
        let defaults = tcuda_kernel_options {
            struct_size: size_of::<tcuda_kernel_options>(),
            flags: std::ptr::null(),
            num_flags: 0,
        };
        let options = match options.is_null() {
            true => defaults,
            false => struct_in(options, defaults, "options")?,
        };
        let flags = flags(options.flags, options.num_flags)?;
        let device = call.gpus()?.device(crate::gpu::device::CURRENT)?;
        let made = Kernel::new(device, source, name, &flags)?;
        kernel.set(KERNELS.insert(made)? as *mut tcuda_kernel);
        Ok(())
    })
}

/// Destroys a kernel; its work that is under way continues. Compiled code stays until
/// tcuda_shutdown, for graphs, and for a kernel of the same source. (+)
///
/// @param kernel  may be NULL: no-op
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_kernel_destroy(kernel: *mut tcuda_kernel) -> tcuda_status {
    boundary(|_| {
        if kernel.is_null() {
            return Ok(());
        }
        KERNELS.remove(kernel as usize, "kernel")
    })
}

/// Queues a kernel. TCUDA_STATUS_CUDA_ERROR for a grid or blocks larger than the device supports.
/// If the kernel accesses invalid memory, calls give TCUDA_STATUS_DEVICE_LOST from then on.
/// (a call of a kernel of torch.cuda._compile_kernel)
///
/// @param options   may be NULL: one thread
/// @param args      args[i] points to the i-th argument, which is read before the call returns; may
///                  be NULL if there are none
/// @param num_args  as many as the kernel has parameters, at most 64; else
///                  TCUDA_STATUS_INVALID_ARGUMENT, where the driver can report it (CUDA 12.4)
/// @param stream    NULL is the current stream
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_kernel_launch(
    kernel: *mut tcuda_kernel,
    options: *const tcuda_launch_options,
    args: *const *mut c_void,
    num_args: usize,
    stream: *mut tcuda_stream,
) -> tcuda_status {
    boundary(|call| {
        let kernel = KERNELS.get(kernel as usize, "kernel", call)?;
        let defaults = tcuda_launch_options {
            struct_size: size_of::<tcuda_launch_options>(),
            grid: [0; 3],
            block: [0; 3],
            shared_bytes: 0,
            accesses: std::ptr::null(),
        };
        let options = match options.is_null() {
            true => defaults,
            false => struct_in(options, defaults, "options")?,
        };
        if num_args > 0 && args.is_null() {
            return Err(Error::Null { name: "args" });
        }
        if num_args > MAX_PARAMETERS {
            return Err(Error::OutOfRange {
                name: "num_args",
                value: i64::try_from(num_args).unwrap_or(i64::MAX),
                allowed: "a kernel has at most 64 arguments here; pass a struct",
            });
        }
        let mut room = [std::ptr::null_mut(); MAX_PARAMETERS];
        for (index, to) in room[..num_args].iter_mut().enumerate() {
            // SAFETY: not NULL, and as long as the caller says.
            *to = unsafe { args.wrapping_add(index).read_unaligned() };
        }
        let mut accesses = [0; MAX_PARAMETERS];
        let is_told = !options.accesses.is_null();
        for (index, to) in accesses[..num_args].iter_mut().enumerate().filter(|_| is_told) {
            // SAFETY: not NULL, and one for each argument by the caller's promise.
            *to = unsafe { options.accesses.wrapping_add(index).read_unaligned() };
        }
        let stream = or_current(stream, call)?;
        let tcuda_launch_options { grid, block, shared_bytes, .. } = options;
        let geometry = Geometry { grid, block, shared_bytes };
        let accesses = is_told.then_some(&accesses[..num_args]);
        kernel.launch(call.gpus()?, &geometry, &room[..num_args], accesses, stream)
    })
}
