//! Errors as values. The message is formatted only when it is requested, so that an error needs no
//! allocation, also if host memory ran out.

pub mod compiler;
mod config;
pub mod cuda;
pub mod cufile;
mod details;
mod driver;
pub mod faults;
pub mod library;
pub mod math_library;
pub mod nccl;
pub mod nvml;
mod out_of_memory;
mod simulator;

pub use config::{ConfigError, Problem};
pub use details::{Access, OTHER_WAITS, OutOfMemory, Trait, Users, Wait, Which};
use details::{Extent, PlaceName, Present};
pub use driver::{CudaErrorText, CudaLoadError};
pub(crate) use driver::{forget_refused, note_refused};
pub(crate) use out_of_memory::TOO_LARGE;
pub use out_of_memory::{OutOfMemoryText, PoolOutOfMemoryText, Size};
pub use simulator::SimulatorError;

use crate::base::ordinal::CPU;
use crate::base::text::function_of;
use crate::base::text::{Count, Text};
use crate::base::thread;
use cuda::{CudaError, code};
use std::ffi::CStr;

/// The error in a forked child: PyTorch's sentence.
pub const FORKED: &CStr = c"Cannot re-initialize CUDA in forked subprocess. To use CUDA with \
    multiprocessing, you must use the 'spawn' start method";

/// Result of all functions of the core that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failure, with the offending value and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A pointer argument was NULL.
    #[error("{name} is NULL; pass a valid pointer")]
    Null {
        /// The parameter.
        name: &'static str,
    },
    /// An integer argument was outside its range.
    #[error("{name} is {value}; {allowed}")]
    OutOfRange {
        /// The parameter.
        name: &'static str,
        /// What was passed.
        value: i64,
        /// The range, as the end of a sentence: "use 0 or 1".
        allowed: &'static str,
    },
    /// A number was outside its range.
    #[error("{name} is {value}; {allowed}")]
    Number {
        /// The parameter.
        name: &'static str,
        /// What was passed.
        value: f64,
        /// The range, as the end of a sentence: "use 0 to 1".
        allowed: &'static str,
    },
    /// A text argument was invalid.
    #[error("{name} is \"{value}\"; {allowed}")]
    BadText {
        /// The parameter.
        name: &'static str,
        /// The argument, perhaps shortened.
        value: Text,
        /// What would be right, as the end of a sentence.
        allowed: &'static str,
    },
    /// No statistic has this key.
    #[error(
        "key is \"{key}\", which no statistic has; the nearest is \"{nearest}\", and \
         tcuda_memory_stat_keys lists all"
    )]
    UnknownKey {
        /// The argument, perhaps shortened.
        key: Text,
        /// The most similar key.
        nearest: Text,
    },
    /// Two arguments were inconsistent, or a text was not UTF-8.
    #[error("{0}")]
    Invalid(&'static str),
    /// Not a live handle of the required kind.
    #[error("{name} is {value:#x}, which is not a live {kind}: {why}")]
    InvalidHandle {
        /// The parameter.
        name: &'static str,
        /// What was passed.
        value: usize,
        /// The required kind: "stream".
        kind: &'static str,
        /// "it is NULL", "it was destroyed", ...
        why: &'static str,
    },
    /// Not an allocated block of the library.
    #[error("invalid device pointer: {ptr:#x} {why}")]
    InvalidPointer {
        /// What was passed.
        ptr: usize,
        /// "was not allocated by tcuda", "was freed already", ...
        why: &'static str,
    },
    /// A block is allocated where none may be.
    #[error("{ptr:#x}, a block of {bytes} bytes, {why}")]
    BlockInUse {
        /// Its address.
        ptr: usize,
        /// Its size, as requested.
        bytes: u64,
        /// What it prevents, and what to do.
        why: &'static str,
    },
    /// Not an allocated block of the library's pinned memory.
    #[error("invalid host pointer: {ptr:#x} {why}")]
    InvalidHostPointer {
        /// What was passed.
        ptr: usize,
        /// "was not allocated by tcuda", ...
        why: &'static str,
    },
    /// No such device.
    #[error("device {device} does not exist: {}", Present(*.count))]
    InvalidDevice {
        /// What was passed.
        device: i32,
        /// Number of devices.
        count: i32,
    },
    /// A device number above the maximum; how many devices there are is not known yet.
    #[error("device {0} does not exist; use 0 to {last}, or -1 for the current one",
        last = crate::base::ordinal::MAX_DEVICES - 1)]
    ImpossibleDevice(i32),
    /// A seed or state from before initialisation, for a device that does not exist.
    #[error(
        "device {device} got a seed or state before initialisation and does not exist: {count} \
        present; it is dropped now, and the next call initialises without it"
    )]
    SeededDevice {
        /// What was passed.
        device: i32,
        /// Number of devices.
        count: i32,
    },
    /// The right call at the wrong time.
    #[error("{0}")]
    InvalidState(&'static str),
    /// A device has a primary context that the host did not want.
    #[error(
        "device {chosen} is chosen, but device {stray} has a primary context already, which takes \
         memory there: choose the device before anything uses another one, or set \
         CUDA_VISIBLE_DEVICES"
    )]
    StrayContext {
        /// The device that the host chooses.
        chosen: i32,
        /// The device with the context.
        stray: i32,
    },
    /// A call that CUDA does not allow in a host function of a stream.
    #[error(
        "{} was called by a host function of a stream, where CUDA can be neither called nor \
         waited for; return from that function first, or make the call on another thread",
        if .0.is_empty() { "tcuda" } else { .0 }
    )]
    InCallback(&'static str),
    /// The host would wait for the device, and sync debug mode forbids it.
    #[error(
        "{} makes the host wait for the device, which sync debug mode 2 forbids; {}",
        .0.what, .0.instead
    )]
    WouldSynchronize(Wait),
    /// Not possible while a stream is captured.
    #[error("{operation} is not possible while the stream is captured: {why}")]
    Capturing {
        /// "tcuda_graph_replay"
        operation: &'static str,
        /// What to do instead.
        why: &'static str,
    },
    /// A host function returned failure.
    #[error("the function {name} failed with {code}")]
    Callback {
        /// "forward"
        name: &'static str,
        /// Its return value.
        code: i32,
    },
    /// Events of two devices met where one device is needed.
    #[error("Event device {event} does not match recording stream's device {stream}.")]
    EventDevice {
        /// Device of the event.
        event: i32,
        /// Device of the stream.
        stream: i32,
    },
    /// Two events of different devices, between which the time was to be measured.
    #[error(
        "start is of device {start} and end of device {end}; CUDA measures the time between \
         events of one device: record both on streams of one"
    )]
    ElapsedDevices {
        /// Device of the start event.
        start: i32,
        /// Device of the end event.
        end: i32,
    },
    /// An elementwise function was called with another number of arguments than it has parameters.
    #[error(
        "the function has {parameters} parameters, and got {inputs} inputs, {scalars} extra \
         arguments and {outputs} outputs for them; pass as many as it has"
    )]
    Parameters {
        /// Number of its parameters.
        parameters: usize,
        /// Number of inputs of the call.
        inputs: usize,
        /// Number of declared extra arguments.
        scalars: usize,
        /// Number of outputs that are parameters.
        outputs: usize,
    },
    /// A capture that cannot become a graph any more.
    #[error("{0}")]
    CaptureInvalidated(&'static str),
    /// A tensor names one device, and its memory is on another.
    #[error("the tensor names device {tensor}, and its memory is on device {memory}")]
    TensorDevice {
        /// The device that the tensor names.
        tensor: i32,
        /// The device of its memory.
        memory: i32,
    },
    /// A tensor or a stream of another device than the communicator's.
    #[error("{what} is of device {device}, and the communicator of device {own}")]
    CommunicatorDevice {
        /// "input", "output" or "stream"
        what: &'static str,
        /// Its device.
        device: i32,
        /// The communicator's.
        own: i32,
    },
    /// Two tensors whose numbers of elements are inconsistent.
    #[error("input has {}, and output {output}; {rule}", Count(*.input as usize, "element"))]
    Elements {
        /// Number of elements of the input.
        input: u64,
        /// Number of elements of the output.
        output: u64,
        /// The rule, as the end of a sentence.
        rule: &'static str,
    },
    /// A tensor says that it is in host memory, and its memory is on a device.
    #[error(
        "a tensor says that it is in memory of the host, and that memory is on device {memory}"
    )]
    HostTensor {
        /// The device of its memory.
        memory: i32,
    },
    /// Tensors that are inconsistent.
    #[error("{which} has {what} {got}, and {expected} was expected")]
    TensorMismatch {
        /// Which of the arguments.
        which: Which,
        /// The property that differs.
        what: Trait,
        /// The expected value.
        expected: Text<40>,
        /// The value of the argument.
        got: Text<40>,
    },
    /// The sizes of pieces do not add up to the whole.
    #[error("{name} are {sum} together along dim, and the tensor has {size} there")]
    Sizes {
        /// The parameter.
        name: &'static str,
        /// Their sum.
        sum: i64,
        /// The size of the whole.
        size: i64,
    },
    /// The stream of a piece is of another device than the piece.
    #[error(
        "streams[{index}] is of device {stream}, and that piece goes to {}; pass {}",
        PlaceName(*.piece),
        if *.piece == CPU { "NULL" } else { "a stream of that device, or NULL" }
    )]
    PieceDevice {
        /// Which of the pieces.
        index: usize,
        /// The stream's device.
        stream: i32,
        /// The device of the piece.
        piece: i32,
    },
    /// A tensor is on the wrong device.
    #[error("{which} is on {}, and {} was expected", PlaceName(*.place), PlaceName(*.expected))]
    Elsewhere {
        /// Which of the arguments.
        which: Which,
        /// Its device.
        place: i32,
        /// The expected device.
        expected: i32,
    },
    /// Timing of events that have not completed.
    #[error("{0}")]
    NotReady(&'static str),
    /// Device memory ran out after all reusable memory was reclaimed.
    #[error("{}", OutOfMemoryText(.0))]
    OutOfMemory(OutOfMemory),
    /// The driver's pool had no memory, or the limit of this process left no room.
    #[error("{}", PoolOutOfMemoryText(.0))]
    PoolOutOfMemory(OutOfMemory),
    /// The driver had no memory for something other than a block.
    #[error("{call} found no device memory; free some, or call tcuda_memory_empty_cache")]
    DriverOutOfMemory {
        /// The driver call.
        call: &'static str,
    },
    /// The limit of this process leaves no room for more.
    #[error("the memory fraction that tcuda may use is used up; free some, or raise it")]
    OverLimit,
    /// An invalid share of memory.
    #[error("invalid fraction:{0}. Please set within [0, 1].")]
    Fraction(f64),
    /// A text with settings of the allocator was invalid.
    #[error("{0}")]
    Config(ConfigError),
    /// Host memory ran out.
    #[error("no host memory for {0}")]
    OutOfHostMemory(&'static str),
    /// The driver has no addresses left for the memory of one more stream.
    #[error(
        "device addresses ran out: too many streams have memory of their own, or other libraries \
         reserved what there is"
    )]
    OutOfAddresses,
    /// No usable driver.
    #[error("{0}{hint}", hint = driver::simulator_hint())]
    NoDriver(CudaLoadError),
    /// A driver, but no device.
    #[error("{0}{hint}", hint = driver::simulator_hint())]
    NoDevice(&'static str),
    /// The driver lacks a call, or the device a feature.
    #[error("{what} is not supported by this {by}")]
    NotSupported {
        /// Call or feature.
        what: &'static str,
        /// "driver" or "device".
        by: &'static str,
    },
    /// A child of a process that had initialised.
    #[error("{}", FORKED.to_str().unwrap_or(""))]
    Forked,
    /// Another process has ended, or does not answer.
    #[error("{0}")]
    PeerGone(&'static str),
    /// A file could not be written.
    #[error("{path} cannot be written (errno {code}); {}", crate::base::file::advice(*.code))]
    File {
        /// What was passed, perhaps shortened.
        path: Text,
        /// The system's number.
        code: i32,
    },
    /// A file of the host could not be opened, read or written.
    #[error("{path} cannot be {} (errno {code}); {}", .access, crate::base::file::remedy(*.code))]
    FileAccess {
        /// What was passed, perhaps shortened.
        path: Text,
        /// What failed.
        access: Access,
        /// The system's number.
        code: i32,
    },
    /// A library of the host could not be opened.
    #[error("{path} cannot be opened: {reason}; name the path of a shared library")]
    Library {
        /// What was passed, perhaps shortened.
        path: Text,
        /// The system's message.
        reason: library::Text,
    },
    /// The options of the simulated machine were invalid.
    #[error("{0}")]
    Simulator(SimulatorError),
    /// A text with faults to inject was invalid.
    #[error("{0} (TCUDA_FAULTS, or the rules of tcuda_backend_faults)")]
    Faults(faults::RuleError),
    /// A driver call failed.
    #[error("{}", CudaErrorText(.0))]
    Cuda(CudaError),
    /// The driver's management library is missing, or failed.
    #[error("{0}")]
    Nvml(nvml::Failure),
    /// NCCL is missing, or failed.
    #[error("{0}")]
    Nccl(#[from] nccl::Failure),
    /// cuBLAS or cuSOLVER is missing, or failed.
    #[error("{0}")]
    MathLibrary(#[from] math_library::Failure),
    /// cuFile is missing, or failed.
    #[error("{0}")]
    Cufile(#[from] cufile::Failure),
    /// A kernel could not be compiled.
    #[error("{0}")]
    Compiler(compiler::Failure),
    /// An extra argument that a function does not have.
    #[error(
        "the function has no extra argument {name}; declare it in the options with which it is \
         created"
    )]
    Undeclared {
        /// What was passed, perhaps shortened.
        name: Text,
    },
    /// A list of the wrong length.
    #[error("{name} is {found}; the function has {expected}")]
    Count {
        /// The parameter.
        name: &'static str,
        /// What was passed.
        found: usize,
        /// The required length.
        expected: usize,
    },
    /// A cluster that does not divide the grid.
    #[error(
        "cluster is {}, which does not divide the grid of {}; in each of x, y and z the grid is a \
         multiple of the cluster", Extent(*.cluster), Extent(*.grid)
    )]
    Cluster {
        /// Blocks of the cluster in x, y and z.
        cluster: [u32; 3],
        /// Blocks of the grid.
        grid: [u32; 3],
    },
    /// Another cluster than the one that the kernel's code names.
    #[error(
        "cluster is {}, and the kernel's code has {} (__cluster_dims__); leave it 0",
        Extent(*.cluster), Extent(*.required)
    )]
    OtherCluster {
        /// What was passed.
        cluster: [u32; 3],
        /// What the code has.
        required: [u32; 3],
    },
    /// More blocks than fit.
    #[error("{name} has {}, and at most {most} {rule}", Count(*.blocks as usize, "block"))]
    Blocks {
        /// The parameter.
        name: &'static str,
        /// Number of its blocks.
        blocks: u64,
        /// How many fit.
        most: u64,
        /// Where they fit, and what to do, as the end of a sentence.
        rule: &'static str,
    },
    /// A fault of the library itself.
    #[error("internal error: {0}; please report it")]
    Internal(Text),
}

impl From<CudaError> for Error {
    // Not inlined, so that calls that succeed use no stack for it.
    #[cold]
    #[inline(never)]
    fn from(error: CudaError) -> Error {
        match error.code {
            CudaError::MISSING => Error::NotSupported { what: error.call, by: "driver" },
            CudaError::WOULD_WAIT => Error::WouldSynchronize(OTHER_WAITS),
            code::OUT_OF_MEMORY => Error::DriverOutOfMemory { call: error.call },
            _ => Error::Cuda(error),
        }
    }
}

impl From<nvml::Failure> for Error {
    fn from(failure: nvml::Failure) -> Error {
        match failure {
            nvml::Failure::OutOfHostMemory => Error::OutOfHostMemory("a list of processes"),
            failure => Error::Nvml(failure),
        }
    }
}

impl From<compiler::Failure> for Error {
    fn from(failure: compiler::Failure) -> Error {
        match failure {
            compiler::Failure::OutOfHostMemory => Error::OutOfHostMemory("a kernel"),
            failure => Error::Compiler(failure),
        }
    }
}

impl Error {
    /// Adds the name of the failed function, if the message contains it. `body` returns the name of
    /// a type in that function.
    #[cold]
    pub(crate) fn of_function(self, body: fn() -> &'static str) -> Error {
        match self {
            Error::InCallback("") => Error::InCallback(function_of(body())),
            // The driver itself refused the call.
            Error::Cuda(error) if error.code == code::NOT_PERMITTED && thread::is_in_callback() => {
                Error::InCallback(function_of(body()))
            }
            error => error,
        }
    }

    /// The native code: a CUresult, another library's number, or 0.
    pub fn native(&self) -> i32 {
        match self {
            Error::Cuda(error) => error.code,
            Error::InCallback(_) => code::NOT_PERMITTED,
            Error::Callback { code, .. } => *code,
            Error::Nccl(nccl::Failure::Call(error)) => error.code,
            Error::Nvml(nvml::Failure::Call(error) | nvml::Failure::NotSupported(error)) => {
                error.code
            }
            Error::MathLibrary(math_library::Failure::Call(error)) => error.code,
            Error::Compiler(
                compiler::Failure::Call(error) | compiler::Failure::LinkCall(error),
            ) => error.code,
            Error::Cufile(cufile::Failure::Call(error)) => error.code,
            Error::Cufile(cufile::Failure::System(_, code)) => *code,
            Error::File { code, .. } | Error::FileAccess { code, .. } => *code,
            Error::DriverOutOfMemory { .. }
            | Error::OutOfMemory(_)
            | Error::PoolOutOfMemory(_)
            | Error::OverLimit
            | Error::OutOfAddresses => code::OUT_OF_MEMORY,
            _ => 0,
        }
    }
}
