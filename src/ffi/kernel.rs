//! Section "Jiterator and kernels" of the header: whole kernels.

use super::boundary::{Sized_, boundary, bytes, flag, out, struct_in, struct_out, terminated};
use super::handle::Table;
use super::status::tcuda_status;
use super::stream::{or_current, tcuda_stream};
use crate::base::error::{Error, Result};
use crate::driver::linker::{Input, Kind as ImageKind};
use crate::jit::kernel::Kernel;
use crate::jit::launch::Launch;
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
    /// Images with functions that the source uses (declared extern), or with the kernel itself; may
    /// be NULL if there are none. They are copied. (cuda.core: Linker)
    pub images: *const tcuda_kernel_image,
    /// Number of them; at most 256.
    pub num_images: usize,
    /// 1: link-time optimisation of source and images, by nvJitLink; an image of
    /// TCUDA_IMAGE_LTOIR implies it. Else 0. On the simulated machine all images are LTO IR then.
    pub lto: i32,
}

/// An image to link.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tcuda_kernel_image {
    /// Its bytes.
    pub data: *const c_void,
    /// Their number; of PTX with or without a NUL at the end.
    pub bytes: usize,
    /// Its name in messages; may be NULL.
    pub name: *const c_char,
    /// TCUDA_IMAGE_...
    pub kind: i32,
}

/// A text of PTX.
pub const TCUDA_IMAGE_PTX: i32 = 1;
/// Machine code.
pub const TCUDA_IMAGE_CUBIN: i32 = 2;
/// PTX and machine code for several architectures.
pub const TCUDA_IMAGE_FATBIN: i32 = 3;
/// A host's object file with relocatable device code.
pub const TCUDA_IMAGE_OBJECT: i32 = 4;
/// A host's archive of such files.
pub const TCUDA_IMAGE_LIBRARY: i32 = 5;
/// LTO IR, as of nvcc -dlto or nvrtcGetLTOIR.
pub const TCUDA_IMAGE_LTOIR: i32 = 6;

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
    /// Blocks of a cluster in x, y and z, which divide those of the grid; 0: 1, and all 0: no
    /// cluster, or the one that the code names. Compute capability 9.0; at most 8 blocks in all, or
    /// tcuda_kernel_info.max_cluster_blocks. (cuda.core: cluster)
    pub cluster: [u32; 3],
    /// 1: all blocks run at the same time, so that they can wait for each other; the grid has at
    /// most tcuda_kernel_info.max_cooperative_blocks. Else 0. (cuda.core: is_cooperative)
    pub cooperative: i32,
    /// 1: the kernel may begin before the kernel before it in the stream has ended; it uses that
    /// kernel's results only after griddepcontrol.wait (programmatic dependent launch). Else 0.
    /// Without effect below compute capability 9.0.
    pub programmatic: i32,
    /// In the range of tcuda_stream_priority_range, lower is more urgent; 0: the stream's.
    pub priority: i32,
    /// How much of a multiprocessor's first-level cache is shared memory if possible: 1 to 100; 0:
    /// as the driver chooses. CUDA 12.5.
    pub shared_carveout_percent: i32,
}

// SAFETY: repr(C), the size comes first, and it is plain data.
unsafe impl Sized_ for tcuda_launch_options {}

/// What a kernel needs, and how many of its blocks run at the same time.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tcuda_kernel_info {
    /// From TCUDA_INIT.
    pub struct_size: usize,
    /// Registers of a thread.
    pub registers: i32,
    /// Most threads of a block: by the registers, or as the code says (__launch_bounds__).
    pub max_threads_per_block: i32,
    /// Shared memory of a block that the code declares.
    pub static_shared_bytes: u64,
    /// Most dynamic shared memory of a block: tcuda_launch_options.shared_bytes.
    pub max_dynamic_shared_bytes: u64,
    /// Local memory of a thread.
    pub local_bytes: u64,
    /// Constant memory that the code declares.
    pub constant_bytes: u64,
    /// Architecture of the code's PTX; 90 is 9.0.
    pub ptx_version: i32,
    /// Architecture of the machine code; 90 is 9.0.
    pub binary_version: i32,
    /// Blocks of a cluster in x, y and z that the code names (__cluster_dims__); 0: none.
    pub required_cluster: [u32; 3],
    /// Blocks with the block and shared_bytes of the options that a multiprocessor runs at the same
    /// time; 0: they are too large.
    pub max_blocks_per_multiprocessor: u32,
    /// Such blocks that the multiprocessors of the stream run at the same time: the largest grid of
    /// a cooperative launch.
    pub max_cooperative_blocks: u64,
    /// Most such blocks of a cluster; 0: the device has no clusters.
    pub max_cluster_blocks: u32,
    /// Clusters of the options, or of the code, that the multiprocessors of the stream run at the
    /// same time; 0: there is no cluster, or it is too large.
    pub max_active_clusters: u32,
    /// Threads of a block with which most threads of the device run, with the shared_bytes of the
    /// options.
    pub suggested_block_threads: u32,
    /// Number of such blocks that the device runs at the same time.
    pub suggested_grid_blocks: u32,
}

// SAFETY: repr(C), the size comes first, and it is plain data.
unsafe impl Sized_ for tcuda_kernel_info {}

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

/// Reads a list of the host's images.
fn images<'a>(list: *const tcuda_kernel_image, count: usize) -> Result<Vec<Input<'a>>> {
    let mut images = Vec::new();
    if count == 0 {
        return Ok(images);
    }
    if list.is_null() {
        return Err(Error::Null { name: "images" });
    }
    if count > MOST_FLAGS {
        return Err(Error::OutOfRange {
            name: "num_images",
            value: i64::try_from(count).unwrap_or(i64::MAX),
            allowed: "use at most 256",
        });
    }
    images.try_reserve_exact(count).map_err(|_| Error::OutOfHostMemory("images of a kernel"))?;
    for index in 0..count {
        // SAFETY: not NULL, and as long as the caller says.
        let image = unsafe { list.wrapping_add(index).read_unaligned() };
        if image.bytes == 0 {
            return Err(Error::OutOfRange {
                name: "images[i].bytes",
                value: 0,
                allowed: "an image is not empty",
            });
        }
        images.push(Input {
            kind: image_kind(image.kind)?,
            bytes: bytes(image.data.cast(), image.bytes, "images[i].data")?,
            name: if image.name.is_null() {
                c"image"
            } else {
                terminated(image.name, "images[i].name")?
            },
        });
    }
    Ok(images)
}

fn image_kind(kind: i32) -> Result<ImageKind> {
    Ok(match kind {
        TCUDA_IMAGE_PTX => ImageKind::Ptx,
        TCUDA_IMAGE_CUBIN => ImageKind::Cubin,
        TCUDA_IMAGE_FATBIN => ImageKind::FatBinary,
        TCUDA_IMAGE_OBJECT => ImageKind::Object,
        TCUDA_IMAGE_LIBRARY => ImageKind::Library,
        TCUDA_IMAGE_LTOIR => ImageKind::LtoIr,
        _ => {
            return Err(Error::OutOfRange {
                name: "images[i].kind",
                value: kind.into(),
                allowed: "use TCUDA_IMAGE_...",
            });
        }
    })
}

/// Compiles a kernel for the current device with NVRTC, or loads it from disk; for other devices
/// that is done at its first launch there. Headers are read each time: an edited one gives another
/// kernel. TCUDA_STATUS_COMPILE_ERROR where the source is wrong: tcuda_last_error has the
/// compiler's messages, with lines of the source; where images do not link, the linker's.
/// TCUDA_STATUS_NO_LIBRARY without NVRTC, and for LTO without nvJitLink (CUDA 12.0, the path in
/// TCUDA_NVJITLINK_PATH if that is set). (torch.cuda._compile_kernel)
///
/// @param source       CUDA C++; functions without a specifier are device functions; may be NULL if
///                     an image has the kernel, under `name`
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
        let name = terminated(name, "name")?;
        let defaults = tcuda_kernel_options {
            struct_size: size_of::<tcuda_kernel_options>(),
            flags: std::ptr::null(),
            num_flags: 0,
            images: std::ptr::null(),
            num_images: 0,
            lto: 0,
        };
        let options = match options.is_null() {
            true => defaults,
            false => struct_in(options, defaults, "options")?,
        };
        let source = match source.is_null() && options.num_images > 0 {
            true => c"",
            false => terminated(source, "source")?,
        };
        let flags = flags(options.flags, options.num_flags)?;
        let images = images(options.images, options.num_images)?;
        let is_optimized = flag(options.lto, "lto")?;
        let device = call.gpus()?.device(crate::gpu::device::CURRENT)?;
        let made = Kernel::new(device, source, name, &flags, &images, is_optimized)?;
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

/// Reads the options of a launch, which may be NULL.
fn launch_options(options: *const tcuda_launch_options) -> Result<(Launch, *const i32)> {
    let defaults = tcuda_launch_options {
        struct_size: size_of::<tcuda_launch_options>(),
        grid: [0; 3],
        block: [0; 3],
        shared_bytes: 0,
        accesses: std::ptr::null(),
        cluster: [0; 3],
        cooperative: 0,
        programmatic: 0,
        priority: 0,
        shared_carveout_percent: 0,
    };
    let options = match options.is_null() {
        true => defaults,
        false => struct_in(options, defaults, "options")?,
    };
    let launch = Launch {
        grid: options.grid,
        block: options.block,
        shared_bytes: options.shared_bytes,
        cluster: options.cluster,
        is_cooperative: flag(options.cooperative, "cooperative")?,
        is_programmatic: flag(options.programmatic, "programmatic")?,
        priority: options.priority,
        shared_carveout: options.shared_carveout_percent,
    };
    Ok((launch, options.accesses))
}

/// Queues a kernel. TCUDA_STATUS_CUDA_ERROR for a grid or blocks larger than the device supports;
/// TCUDA_STATUS_INVALID_ARGUMENT for a cluster that is too large or does not divide the grid, and
/// for a cooperative launch whose blocks do not all fit; TCUDA_STATUS_NOT_SUPPORTED for a cluster
/// below compute capability 9.0. If the kernel accesses invalid memory, calls give
/// TCUDA_STATUS_DEVICE_LOST from then on. (a call of a kernel of torch.cuda._compile_kernel)
///
/// @param kernel    from tcuda_kernel_compile
/// @param options   may be NULL: one thread
/// @param args      args[i] points to the i-th argument, which is read before the call returns; may
///                  be NULL if num_args is 0
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
        let (launch, access_list) = launch_options(options)?;
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
        let is_told = !access_list.is_null();
        for (index, to) in accesses[..num_args].iter_mut().enumerate().filter(|_| is_told) {
            // SAFETY: not NULL, and one for each argument by the caller's promise.
            *to = unsafe { access_list.wrapping_add(index).read_unaligned() };
        }
        let stream = or_current(stream, call)?;
        let accesses = is_told.then_some(&accesses[..num_args]);
        kernel.launch(call.gpus()?, &launch, &room[..num_args], accesses, stream)
    })
}

/// What a kernel needs of the stream's device, and how many blocks of a launch run there at the
/// same time. Queues nothing, also while the stream is captured; compiles the kernel if it has not
/// been on this device. Fails as tcuda_kernel_launch where the options are wrong. (+)
///
/// @param kernel        from tcuda_kernel_compile
/// @param options       of the launch, whose grid and accesses are not read; may be NULL: one
///                      thread
/// @param stream        NULL is the current stream; one of a green context has its multiprocessors
/// @param[in,out] info  start from TCUDA_INIT(tcuda_kernel_info)
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_kernel_properties(
    kernel: *mut tcuda_kernel,
    options: *const tcuda_launch_options,
    stream: *mut tcuda_stream,
    info: *mut tcuda_kernel_info,
) -> tcuda_status {
    boundary(|call| {
        let kernel = KERNELS.get(kernel as usize, "kernel", call)?;
        let info = struct_out(info, "info")?;
        let (launch, _) = launch_options(options)?;
        let stream = or_current(stream, call)?;
        let limits = kernel.limits(call.gpus()?, &launch, stream)?;
        let number = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        let bytes = |bytes: i32| u64::from(bytes.unsigned_abs());
        info.set(&tcuda_kernel_info {
            struct_size: size_of::<tcuda_kernel_info>(),
            registers: limits.registers,
            max_threads_per_block: limits.max_threads_per_block,
            static_shared_bytes: bytes(limits.static_shared_bytes),
            max_dynamic_shared_bytes: bytes(limits.max_dynamic_shared_bytes),
            local_bytes: bytes(limits.local_bytes),
            constant_bytes: bytes(limits.constant_bytes),
            ptx_version: limits.ptx_version,
            binary_version: limits.binary_version,
            required_cluster: limits.required_cluster,
            max_blocks_per_multiprocessor: limits.max_blocks_per_multiprocessor.unsigned_abs(),
            max_cooperative_blocks: limits.max_cooperative_blocks,
            max_cluster_blocks: number(limits.max_cluster_blocks),
            max_active_clusters: number(limits.max_active_clusters),
            suggested_block_threads: limits.suggested_block.unsigned_abs(),
            suggested_grid_blocks: limits.suggested_grid.unsigned_abs(),
        });
        Ok(())
    })
}
