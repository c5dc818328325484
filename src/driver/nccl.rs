//! NCCL: collectives of many processes and machines. Loaded at its first use, never unloaded.
//!
//! NCCL loads CUDA by itself and works on GPUs only, so that it is refused on the simulated
//! machine. There a stand-in library is accepted: it exports `tcuda_simulated_nccl`, and gets the
//! addresses of the simulated calls. On a GPU the stand-in is refused.

use super::library::{Library, Spec, Text};
use super::sim;
pub use crate::base::error::nccl::{Failure, NcclError};
use crate::base::error::nccl::{MINIMUM_VERSION, parts_of};
use crate::base::once::Once;
use crate::base::rank::Rank;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

static LIBRARY: Spec = Spec {
    title: "NCCL",
    variable: c"TCUDA_NCCL_PATH",
    beside: None,
    names: &[c"libnccl.so.2", c"libnccl.so"],
    advice: "install NVIDIA's NCCL, from its packages or with PyTorch's",
};

/// ncclResult_t numbers that the library handles.
pub mod code {
    #![allow(missing_docs, reason = "NCCL's own names, without their prefix")]
    pub const SUCCESS: i32 = 0;
    pub const REMOTE_ERROR: i32 = 6;
    pub const IN_PROGRESS: i32 = 7;
}

/// ncclDataType_t numbers.
pub mod data {
    #![allow(missing_docs, reason = "NCCL's own names, without their prefix")]
    pub const INT8: i32 = 0;
    pub const UINT8: i32 = 1;
    pub const INT32: i32 = 2;
    pub const UINT32: i32 = 3;
    pub const INT64: i32 = 4;
    pub const UINT64: i32 = 5;
    pub const FLOAT16: i32 = 6;
    pub const FLOAT32: i32 = 7;
    pub const FLOAT64: i32 = 8;
    pub const BFLOAT16: i32 = 9;
}

/// ncclUniqueId.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId(pub [u8; 128]);

/// ncclComm_t; may be NULL.
pub type Comm = *mut c_void;
/// cudaStream_t, the same as a CUstream.
pub type Stream = *mut c_void;
/// Memory of a device.
pub type Buffer = *mut c_void;

/// ncclConfig_t as in 2.14, which added it; newer versions use defaults for later fields.
#[repr(C)]
struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
}

impl Config {
    /// NCCL_COMM_BLOCKING overrides it.
    fn blocking() -> Config {
        Config { size: size_of::<Config>(), magic: 0xcafe_beef, version: 21400, blocking: 1 }
    }
}

type InitRankConfig = unsafe extern "C" fn(*mut Comm, c_int, UniqueId, c_int, *mut Config) -> c_int;

/// Passes the lookup of simulated calls to a stand-in; 0: success.
type SetSimulated =
    unsafe extern "C" fn(Option<unsafe extern "C" fn(*const c_char) -> *mut c_void>) -> c_int;

macro_rules! functions {
    ($($field:ident = $name:ident ($($type:ty),*);)*) => {
        /// The loaded functions, and the kind of the library.
        pub struct Functions {
            version: i32,
            simulated: Option<SetSimulated>,
            last_error: Option<unsafe extern "C" fn(Comm) -> *const c_char>,
            init_rank_config: Option<InitRankConfig>,
            $(
                #[doc = concat!("`", stringify!($name), "`")]
                pub $field: unsafe extern "C" fn($($type),*) -> c_int,
            )*
            error_string: unsafe extern "C" fn(c_int) -> *const c_char,
        }

        impl Functions {
            fn load(library: &Library, version: i32) -> Result<Functions, Failure> {
                Ok(Functions {
                    version,
                    simulated: optional!(library, c"tcuda_simulated_nccl", SetSimulated),
                    last_error: optional!(
                        library,
                        c"ncclGetLastError",
                        unsafe extern "C" fn(Comm) -> *const c_char
                    ),
                    init_rank_config: optional!(
                        library,
                        c"ncclCommInitRankConfig",
                        InitRankConfig
                    ),
                    $($field: required!(
                        library,
                        stringify!($name),
                        unsafe extern "C" fn($($type),*) -> c_int
                    ),)*
                    error_string: required!(
                        library,
                        "ncclGetErrorString",
                        unsafe extern "C" fn(c_int) -> *const c_char
                    ),
                })
            }
        }
    };
}

macro_rules! optional {
    ($library:expr, $name:literal, $type:ty) => {{
        let address = $library.symbol($name);
        if address.is_null() {
            None
        } else {
            // SAFETY: NCCL's function of this name has this signature.
            Some(unsafe { std::mem::transmute::<*mut c_void, $type>(address) })
        }
    }};
}

macro_rules! required {
    ($library:expr, $name:expr, $type:ty) => {{
        let address = symbol($library, concat!($name, "\0"));
        if address.is_null() {
            return Err(Failure::Missing($name));
        }
        // SAFETY: NCCL's function of this name has this signature.
        unsafe { std::mem::transmute::<*mut c_void, $type>(address) }
    }};
}

fn symbol(library: &Library, name: &str) -> *mut c_void {
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => library.symbol(name),
        Err(_) => std::ptr::null_mut(),
    }
}

functions! {
    get_unique_id = ncclGetUniqueId(*mut UniqueId);
    init_rank = ncclCommInitRank(*mut Comm, c_int, UniqueId, c_int);
    init_all = ncclCommInitAll(*mut Comm, c_int, *const c_int);
    destroy = ncclCommDestroy(Comm);
    abort = ncclCommAbort(Comm);
    async_error = ncclCommGetAsyncError(Comm, *mut c_int);
    group_start = ncclGroupStart();
    group_end = ncclGroupEnd();
    all_reduce = ncclAllReduce(Buffer, Buffer, usize, c_int, c_int, Comm, Stream);
    broadcast = ncclBroadcast(Buffer, Buffer, usize, c_int, c_int, Comm, Stream);
    reduce = ncclReduce(Buffer, Buffer, usize, c_int, c_int, c_int, Comm, Stream);
    all_gather = ncclAllGather(Buffer, Buffer, usize, c_int, Comm, Stream);
    reduce_scatter = ncclReduceScatter(Buffer, Buffer, usize, c_int, c_int, Comm, Stream);
    send = ncclSend(Buffer, usize, c_int, c_int, Comm, Stream);
    recv = ncclRecv(Buffer, usize, c_int, c_int, Comm, Stream);
}

static FUNCTIONS: Once<Functions> = Once::new(Rank::ONCE);

/// NCCL, loaded now if it was not.
fn loaded() -> Result<&'static Functions, Failure> {
    FUNCTIONS.get_or_try_init(|| {
        let library = Library::open(&LIBRARY)?;
        let get = required!(&library, "ncclGetVersion", unsafe extern "C" fn(*mut c_int) -> c_int);
        let mut version = 0;
        // SAFETY: the call writes one int.
        if unsafe { get(&mut version) } != code::SUCCESS {
            return Err(Failure::Missing("ncclGetVersion that works"));
        }
        if version < MINIMUM_VERSION {
            return Err(Failure::TooOld(version));
        }
        Functions::load(&library, version)
    })
}

/// Major, minor and patch of the installed NCCL, on any machine.
pub fn version() -> Result<(i32, i32, i32), Failure> {
    Ok(parts_of(loaded()?.version))
}

/// NCCL for the simulated machine, or for GPUs.
pub fn functions(simulated: Option<&sim::Interface>) -> Result<&'static Functions, Failure> {
    let functions = loaded()?;
    match (simulated, functions.simulated) {
        (None, None) => Ok(functions),
        (None, Some(_)) => Err(Failure::Simulated),
        (Some(_), None) => Err(Failure::OnSimulatedMachine),
        (Some(backend), Some(set_simulated)) => {
            // SAFETY: the exported name guarantees the signature; callable on any thread, at any
            // time.
            match unsafe { set_simulated(Some(backend.function)) } {
                0 => Ok(functions),
                _ => Err(Failure::OnSimulatedMachine),
            }
        }
    }
}

impl Functions {
    /// Joins a group. Only the call with a configuration respects NCCL_COMM_BLOCKING=0; the older
    /// one waits for the other ranks in any case.
    ///
    /// # Safety
    ///
    /// `comm` is writable, and the device's context is current.
    pub unsafe fn join(&self, comm: *mut Comm, ranks: c_int, id: UniqueId, rank: c_int) -> c_int {
        match self.init_rank_config {
            // SAFETY: as the caller promises; NCCL reads the configuration during the call.
            Some(call) => unsafe { call(comm, ranks, id, rank, &mut Config::blocking()) },
            // SAFETY: as the caller promises.
            None => unsafe { (self.init_rank)(comm, ranks, id, rank) },
        }
    }

    /// The failure of a status; [`code::IN_PROGRESS`] is none.
    pub fn check(&self, call: &'static str, code: i32) -> Result<(), Failure> {
        if matches!(code, code::SUCCESS | code::IN_PROGRESS) {
            Ok(())
        } else {
            self.fail(call, code)
        }
    }

    #[cold]
    fn fail(&self, call: &'static str, code: i32) -> Result<(), Failure> {
        // SAFETY: takes any number.
        let meaning = unsafe { (self.error_string)(code) };
        let meaning = match meaning.is_null() {
            true => "unknown result code",
            // SAFETY: a constant of a library that is never unloaded.
            false => unsafe { CStr::from_ptr(meaning) }.to_str().unwrap_or("unknown result code"),
        };
        let details = match self.last_error {
            None => Text::default(),
            // SAFETY: NULL means any communicator.
            Some(last_error) => text_at(unsafe { last_error(std::ptr::null_mut()) }),
        };
        Err(Failure::Call(NcclError { call, code, meaning, details }))
    }
}

fn text_at(text: *const c_char) -> Text {
    if text.is_null() {
        return Text::default();
    }
    // SAFETY: not NULL, and NUL-terminated; NCCL keeps it, and it is copied at once.
    Text::of(unsafe { CStr::from_ptr(text) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_the_parts_of_nccl() {
        assert_eq!(parts_of(2708), (2, 7, 8));
        assert_eq!(parts_of(21003), (2, 10, 3));
        assert_eq!(parts_of(22703), (2, 27, 3));
        assert_eq!(crate::base::error::nccl::Version(MINIMUM_VERSION).to_string(), "2.10");
    }
}
