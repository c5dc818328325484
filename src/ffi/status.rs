//! Statuses, and the last error of each thread.

use crate::base::error::{self, Error, SimulatorError};
use crate::base::waiting::NoCalls;
use crate::base::{text, thread};
use crate::driver::compiler;
use crate::driver::nvml::Failure;
use crate::driver::{cufile, math_library, nccl};
use std::ffi::{CStr, c_char};
use std::sync::atomic::Ordering;

/// Outcome of a call. Numbers never change and are never reused.
///
/// 1 to 19 are about the call, 20 to 39 about what the machine or process lacks, 40 to 59 are
/// failures of another library or of the host (its code: tcuda_last_error_native), 60 to 69 are
/// about captures, 99 is a fault of the library.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum tcuda_status {
    /// Done.
    Ok = 0,
    /// Out of range, NULL, malformed, wrong struct_size.
    InvalidArgument = 1,
    /// NULL, stale, destroyed twice, of another kind.
    InvalidHandle = 2,
    /// Not allocated by the library, or already freed.
    InvalidPointer = 3,
    /// Ordinal not below tcuda_device_count().
    InvalidDevice = 4,
    /// Right call, wrong time: end without begin, too late.
    InvalidState = 5,
    /// Elapsed time of events that have not completed.
    NotReady = 6,
    /// Refused by sync debug mode 2.
    WouldSynchronize = 7,
    /// Device memory, after all reclaiming and retrying. (torch.cuda.OutOfMemoryError)
    OutOfMemory = 20,
    /// Host memory, pinned or not.
    OutOfHostMemory = 21,
    /// libcuda is absent or too old.
    NoDriver = 22,
    /// Driver without a usable GPU.
    NoDevice = 23,
    /// NVRTC, nvJitLink, NVML, NCCL, cuBLAS, cuFile or a plug-in is absent.
    NoLibrary = 24,
    /// Missing symbol or feature, named in the message.
    NotSupported = 25,
    /// Child of an initialised process: use spawn.
    Forked = 26,
    /// A path that cannot be read or written.
    FileError = 27,
    /// A driver call failed.
    CudaError = 40,
    /// A kernel crashed: its context is unusable for ever.
    DeviceLost = 41,
    /// NVRTC or nvJitLink failed.
    NvrtcError = 42,
    /// The caller's source; the message is the compiler's log.
    CompileError = 43,
    /// NVML failed.
    NvmlError = 44,
    /// NCCL failed.
    NcclError = 45,
    /// cuBLAS or cuSOLVER failed.
    CublasError = 46,
    /// A callback of the host returned failure.
    CallbackFailed = 47,
    /// The other process of an IPC handle or communicator died.
    PeerGone = 48,
    /// cuFile failed.
    CufileError = 49,
    /// Not legal while the stream captures.
    Capturing = 60,
    /// Invalidated by an illegal call: abort it.
    CaptureInvalidated = 61,
    /// A fault of the library.
    Internal = 99,
}

/// The status of an error.
pub(super) fn status_of(error: &Error) -> tcuda_status {
    use tcuda_status as S;
    match error {
        Error::Null { .. } | Error::OutOfRange { .. } | Error::BadText { .. } => S::InvalidArgument,
        Error::UnknownKey { .. } => S::InvalidArgument,
        Error::Number { .. } => S::InvalidArgument,
        Error::Invalid(_) | Error::EventDevice { .. } | Error::TensorDevice { .. } => {
            S::InvalidArgument
        }
        Error::CommunicatorDevice { .. } | Error::Elements { .. } => S::InvalidArgument,
        Error::ElapsedDevices { .. } | Error::Parameters { .. } => S::InvalidArgument,
        Error::HostTensor { .. } | Error::TensorMismatch { .. } => S::InvalidArgument,
        Error::Elsewhere { .. } => S::InvalidArgument,
        Error::Sizes { .. } | Error::PieceDevice { .. } => S::InvalidArgument,
        Error::Simulator(SimulatorError::Options(_)) | Error::Faults(_) => S::InvalidArgument,
        Error::Simulator(SimulatorError::NoResources(_)) => S::OutOfHostMemory,
        Error::Simulator(_) => S::NoLibrary,
        Error::Config(_) | Error::Fraction(_) => S::InvalidArgument,
        Error::InvalidHandle { .. } => S::InvalidHandle,
        Error::InvalidPointer { .. } | Error::InvalidHostPointer { .. } => S::InvalidPointer,
        Error::InvalidDevice { .. } | Error::ImpossibleDevice(_) => S::InvalidDevice,
        Error::SeededDevice { .. } => S::InvalidDevice,
        Error::InvalidState(_)
        | Error::InCallback(_)
        | Error::BlockInUse { .. }
        | Error::StrayContext { .. } => S::InvalidState,
        Error::Capturing { .. } => S::Capturing,
        Error::CaptureInvalidated(_) => S::CaptureInvalidated,
        Error::WouldSynchronize(_) => S::WouldSynchronize,
        Error::Callback { .. } => S::CallbackFailed,
        Error::NotReady(_) => S::NotReady,
        Error::OutOfMemory(_) | Error::DriverOutOfMemory { .. } => S::OutOfMemory,
        Error::OverLimit | Error::PoolOutOfMemory(_) => S::OutOfMemory,
        Error::OutOfHostMemory(_) | Error::OutOfAddresses => S::OutOfHostMemory,
        Error::NoDriver(_) => S::NoDriver,
        Error::NoDevice(_) => S::NoDevice,
        Error::NotSupported { .. } => S::NotSupported,
        Error::Library { .. } => S::NoLibrary,
        Error::Forked => S::Forked,
        Error::PeerGone(_) => S::PeerGone,
        Error::File { .. } | Error::FileAccess { .. } => S::FileError,
        Error::Nvml(Failure::Library(_)) => S::NoLibrary,
        Error::Nvml(Failure::Missing(_) | Failure::NotSupported(_)) => S::NotSupported,
        Error::Nvml(_) => S::NvmlError,
        Error::Nccl(nccl::Failure::Call(error)) if error.code == nccl::code::REMOTE_ERROR => {
            S::PeerGone
        }
        Error::Nccl(nccl::Failure::Call(_)) => S::NcclError,
        Error::Nccl(_) => S::NoLibrary,
        Error::MathLibrary(math_library::Failure::Library(_)) => S::NoLibrary,
        Error::MathLibrary(math_library::Failure::Call(_)) => S::CublasError,
        Error::MathLibrary(_) => S::NotSupported,
        Error::Cufile(cufile::Failure::Library(_)) => S::NoLibrary,
        Error::Cufile(failure) if failure.is_not_supported() => S::NotSupported,
        Error::Cufile(cufile::Failure::System(..)) => S::FileError,
        Error::Cufile(_) => S::CufileError,
        Error::Compiler(failure) => status_of_compiler(failure),
        Error::Undeclared { .. } | Error::Count { .. } => S::InvalidArgument,
        Error::Cluster { .. } | Error::OtherCluster { .. } | Error::Blocks { .. } => {
            S::InvalidArgument
        }
        Error::Cuda(error) if error.is_sticky() => S::DeviceLost,
        Error::Cuda(error) if error.code == 901 => S::CaptureInvalidated,
        Error::Cuda(error) if (900..910).contains(&error.code) => S::Capturing,
        Error::Cuda(_) => S::CudaError,
        Error::Internal(_) => S::Internal,
    }
}

fn status_of_compiler(failure: &compiler::Failure) -> tcuda_status {
    use compiler::Failure as F;
    use tcuda_status as S;
    match failure {
        F::Library(_) | F::Missing(_) => S::NoLibrary,
        F::Call(_) | F::LinkCall(_) => S::NvrtcError,
        F::NoLtoIr | F::MissingInLinker(_) => S::NoLibrary,
        F::Link(_) => S::CompileError,
        F::Target { .. } => S::NotSupported,
        F::Source(_) => S::CompileError,
        F::OutOfHostMemory => S::OutOfHostMemory,
    }
}

/// The name of a status.
pub(super) fn name_of(status: i32) -> &'static CStr {
    match status {
        0 => c"TCUDA_STATUS_OK",
        1 => c"TCUDA_STATUS_INVALID_ARGUMENT",
        2 => c"TCUDA_STATUS_INVALID_HANDLE",
        3 => c"TCUDA_STATUS_INVALID_POINTER",
        4 => c"TCUDA_STATUS_INVALID_DEVICE",
        5 => c"TCUDA_STATUS_INVALID_STATE",
        6 => c"TCUDA_STATUS_NOT_READY",
        7 => c"TCUDA_STATUS_WOULD_SYNCHRONIZE",
        20 => c"TCUDA_STATUS_OUT_OF_MEMORY",
        21 => c"TCUDA_STATUS_OUT_OF_HOST_MEMORY",
        22 => c"TCUDA_STATUS_NO_DRIVER",
        23 => c"TCUDA_STATUS_NO_DEVICE",
        24 => c"TCUDA_STATUS_NO_LIBRARY",
        25 => c"TCUDA_STATUS_NOT_SUPPORTED",
        26 => c"TCUDA_STATUS_FORKED",
        27 => c"TCUDA_STATUS_FILE_ERROR",
        40 => c"TCUDA_STATUS_CUDA_ERROR",
        41 => c"TCUDA_STATUS_DEVICE_LOST",
        42 => c"TCUDA_STATUS_NVRTC_ERROR",
        43 => c"TCUDA_STATUS_COMPILE_ERROR",
        44 => c"TCUDA_STATUS_NVML_ERROR",
        45 => c"TCUDA_STATUS_NCCL_ERROR",
        46 => c"TCUDA_STATUS_CUBLAS_ERROR",
        47 => c"TCUDA_STATUS_CALLBACK_FAILED",
        48 => c"TCUDA_STATUS_PEER_GONE",
        49 => c"TCUDA_STATUS_CUFILE_ERROR",
        60 => c"TCUDA_STATUS_CAPTURING",
        61 => c"TCUDA_STATUS_CAPTURE_INVALIDATED",
        99 => c"TCUDA_STATUS_INTERNAL",
        _ => c"unknown",
    }
}

/// Size of a message, including the NUL.
pub(super) const MESSAGE: usize = 2048;

/// Makes an error this thread's last one.
pub(super) fn record(error: &Error) {
    let block = thread::block();
    block.native.store(error.native() as u32, Ordering::Relaxed);
    let mut message = block.message.load(Ordering::Relaxed);
    if message.is_null() || message == thread::NO_ROOM || message == thread::FORKED {
        if thread::has_left() {
            // The thread has ended its use of the library: the memory would never be freed.
            return;
        }
        // A thread that cannot enter would not free it either. The thread may be new to the
        // library.
        let constant = match thread::enter().err() {
            None => None,
            Some(Error::Forked) => Some(thread::FORKED),
            Some(_) => Some(thread::NO_ROOM),
        };
        let is_foreign = thread::is_unregistered() && !NoCalls::is_active();
        if let Some(constant) = constant.filter(|_| is_foreign) {
            block.message.store(constant, Ordering::Relaxed);
            return;
        }
        // SAFETY: allocates memory, which the thread's exit frees.
        message = unsafe { libc::malloc(MESSAGE) };
        let noted = if message.is_null() { thread::NO_ROOM } else { message };
        block.message.store(noted, Ordering::Relaxed);
    }
    if message.is_null() {
        return;
    }
    // SAFETY: of this size, and this thread's own.
    unsafe { libc::memset(message, 0, MESSAGE) };
    // SAFETY: as above, and now initialised.
    let bytes = unsafe { std::slice::from_raw_parts_mut(message.cast::<u8>(), MESSAGE) };
    text::write(bytes, format_args!("{error}"));
}

/// This thread's last message; "" if there is none.
pub(super) fn last_message() -> *const c_char {
    let message = thread::block().message.load(Ordering::Relaxed);
    match message.is_null() {
        false if message == thread::NO_ROOM => {
            c"the host is out of memory, also for a sentence about what failed; free some and try \
              again"
                .as_ptr()
        }
        false if message == thread::FORKED => error::FORKED.as_ptr(),
        false => message.cast::<c_char>().cast_const(),
        true if thread::has_left() => thread::ENDING.as_ptr(),
        true => c"".as_ptr(),
    }
}

/// The native code of this thread's last failure.
pub(super) fn last_native() -> i32 {
    thread::block().native.load(Ordering::Relaxed) as i32
}
