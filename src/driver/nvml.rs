//! NVML: what the driver's management library says of a GPU. Opened at its first use, never closed.

use super::library::{Library, LoadError, Spec};
use crate::once::Once;
use crate::rank::Rank;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt::{self, Write};

static LIBRARY: Spec = Spec {
    title: "NVML",
    variable: c"TCUDA_NVML_PATH",
    names: &[c"libnvidia-ml.so.1", c"libnvidia-ml.so", c"/usr/lib/wsl/lib/libnvidia-ml.so.1"],
    advice: "install an NVIDIA driver with its management library",
};

/// NVML's answer to a list that is longer than the room for it.
const INSUFFICIENT_SIZE: c_int = 7;

type Handle = *mut c_void;

/// A process as NVML lists it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Info {
    pid: c_uint,
    used_bytes: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// A process on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number, in the namespace of the driver.
    pub pid: u32,
    /// Its memory there; none: the driver does not tell.
    pub used_bytes: Option<u64>,
}

/// A call of NVML that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvmlError {
    /// "nvmlInit_v2".
    pub call: &'static str,
    /// Its nvmlReturn_t.
    pub code: i32,
}

/// Why NVML has no answer.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// It is not there.
    #[error(transparent)]
    Library(#[from] LoadError),
    /// It lacks a function.
    #[error("NVML has no {0}: update the NVIDIA driver")]
    Missing(&'static str),
    /// A call failed.
    #[error("{} failed: NVML error {}", .0.call, .0.code)]
    Call(NvmlError),
    /// The list did not fit.
    #[error("no host memory for a list of processes")]
    OutOfHostMemory,
}

/// The functions in use.
#[derive(Clone, Copy)]
struct Functions {
    init: Init,
    by_uuid: ByUuid,
    index: Index,
    processes: List,
}

static FUNCTIONS: Once<Functions> = Once::new(Rank::ONCE);

fn check(call: &'static str, code: c_int) -> Result<(), Failure> {
    if code == 0 { Ok(()) } else { Err(Failure::Call(NvmlError { call, code })) }
}

/// The address of the first of these names.
fn find(library: &Library, names: &[&'static CStr]) -> Result<*mut c_void, Failure> {
    let found = names.iter().map(|name| library.symbol(name)).find(|found| !found.is_null());
    let wanted = names.first().and_then(|name| name.to_str().ok()).unwrap_or("");
    found.ok_or(Failure::Missing(wanted))
}

macro_rules! function {
    ($library:expr, $type:ty, $($name:literal),+) => {{
        let address = find($library, &[$($name),+])?;
        // SAFETY: NVML's function of this name has this signature.
        unsafe { std::mem::transmute::<*mut c_void, $type>(address) }
    }};
}

type Init = unsafe extern "C" fn() -> c_int;
type ByUuid = unsafe extern "C" fn(*const c_char, *mut Handle) -> c_int;
type Index = unsafe extern "C" fn(Handle, *mut c_uint) -> c_int;
type List = unsafe extern "C" fn(Handle, *mut c_uint, *mut Info) -> c_int;

fn functions() -> Result<&'static Functions, Failure> {
    FUNCTIONS.get_or_try_init(|| {
        let library = Library::open(&LIBRARY)?;
        let functions = Functions {
            init: function!(&library, Init, c"nvmlInit_v2"),
            by_uuid: function!(&library, ByUuid, c"nvmlDeviceGetHandleByUUID"),
            index: function!(&library, Index, c"nvmlDeviceGetIndex"),
            // Both write the same structure.
            processes: function!(
                &library,
                List,
                c"nvmlDeviceGetComputeRunningProcesses_v3",
                c"nvmlDeviceGetComputeRunningProcesses_v2"
            ),
        };
        // SAFETY: no preconditions; it counts its callers, and is never shut down.
        check("nvmlInit_v2", unsafe { (functions.init)() })?;
        Ok(functions)
    })
}

/// Room for "MIG-" and a UUID.
struct Uuid {
    bytes: [u8; 48],
    len: usize,
}

impl Uuid {
    fn new(prefix: &str, uuid: [u8; 16]) -> Uuid {
        let mut text = Uuid { bytes: [0; 48], len: 0 };
        let _ = text.write_str(prefix);
        for (index, byte) in uuid.iter().enumerate() {
            let dash = if matches!(index, 4 | 6 | 8 | 10) { "-" } else { "" };
            let _ = write!(text, "{dash}{byte:02x}");
        }
        text
    }
}

impl fmt::Write for Uuid {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // The last byte stays 0.
        let room = self.bytes.get_mut(self.len..self.len + text.len()).ok_or(fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.len += text.len();
        Ok(())
    }
}

impl Functions {
    /// The device of a UUID: a GPU or a part of one.
    fn device(&self, uuid: [u8; 16]) -> Result<Handle, Failure> {
        let mut outcome = Ok(());
        for prefix in ["GPU-", "MIG-"] {
            let mut handle = std::ptr::null_mut();
            let text = Uuid::new(prefix, uuid);
            // SAFETY: NUL-terminated; `handle` is writable.
            let code = unsafe { (self.by_uuid)(text.bytes.as_ptr().cast(), &mut handle) };
            outcome = check("nvmlDeviceGetHandleByUUID", code);
            if outcome.is_ok() {
                return Ok(handle);
            }
        }
        outcome.map(|()| std::ptr::null_mut())
    }

    fn list(&self, handle: Handle) -> Result<Vec<Info>, Failure> {
        const CALL: &str = "nvmlDeviceGetComputeRunningProcesses";
        let mut room = 8;
        // Processes may come between two calls.
        for _ in 0..8 {
            let mut list = Vec::new();
            list.try_reserve_exact(room).map_err(|_| Failure::OutOfHostMemory)?;
            list.resize(room, Info::default());
            let mut count = room as c_uint;
            // SAFETY: there is room for as many as `count` says.
            let code = unsafe { (self.processes)(handle, &mut count, list.as_mut_ptr()) };
            if code == INSUFFICIENT_SIZE {
                room = (count as usize).max(room) + 8;
                continue;
            }
            check(CALL, code)?;
            list.truncate(count as usize);
            return Ok(list);
        }
        Err(Failure::Call(NvmlError { call: CALL, code: INSUFFICIENT_SIZE }))
    }

    fn processes(&self, uuid: [u8; 16], take: &mut dyn FnMut(Process)) -> Result<u32, Failure> {
        let handle = self.device(uuid)?;
        let mut index = 0;
        // SAFETY: the handle is NVML's; `index` is writable.
        check("nvmlDeviceGetIndex", unsafe { (self.index)(handle, &mut index) })?;
        for info in self.list(handle)? {
            let used_bytes = Some(info.used_bytes).filter(|bytes| *bytes != u64::MAX);
            take(Process { pid: info.pid, used_bytes });
        }
        Ok(index)
    }
}

/// The processes that compute on a GPU, in NVML's order; gives NVML's number of the GPU.
pub fn processes(uuid: [u8; 16], take: &mut dyn FnMut(Process)) -> Result<u32, Failure> {
    functions()?.processes(uuid, take)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    static ASKED: AtomicU32 = AtomicU32::new(0);

    unsafe extern "C" fn init() -> c_int {
        0
    }

    /// Knows one part of a GPU.
    unsafe extern "C" fn by_uuid(uuid: *const c_char, handle: *mut Handle) -> c_int {
        // SAFETY: the caller passes a NUL-terminated text.
        let uuid = unsafe { CStr::from_ptr(uuid) };
        if uuid != c"MIG-00010203-0405-0607-0809-0a0b0c0d0eff" {
            return 6;
        }
        // SAFETY: writable by the contract of the call.
        unsafe { handle.write(std::ptr::without_provenance_mut(77)) };
        0
    }

    unsafe extern "C" fn index(handle: Handle, index: *mut c_uint) -> c_int {
        assert_eq!(handle.addr(), 77);
        // SAFETY: writable by the contract of the call.
        unsafe { index.write(5) };
        0
    }

    /// Twenty processes, one of which comes between two calls.
    unsafe extern "C" fn twenty(_: Handle, count: *mut c_uint, list: *mut Info) -> c_int {
        let asked = ASKED.fetch_add(1, Ordering::Relaxed);
        let there = if asked == 0 { 9 } else { 20 };
        // SAFETY: readable and writable by the contract of the call.
        let room = unsafe { count.replace(there) };
        if room < there {
            return INSUFFICIENT_SIZE;
        }
        for pid in 0..there {
            let used_bytes = if pid == 3 { u64::MAX } else { u64::from(pid) << 20 };
            let info = Info { pid, used_bytes, ..Info::default() };
            // SAFETY: there is room, as the caller said.
            let place = unsafe { list.add(pid as usize) };
            // SAFETY: as above.
            unsafe { place.write(info) };
        }
        0
    }

    #[test]
    fn a_list_grows_until_it_holds_all() {
        let functions = Functions { init, by_uuid, index, processes: twenty };
        let mut uuid = std::array::from_fn(|index| index as u8);
        uuid[15] = 0xff;
        let mut found = Vec::new();
        let index = functions.processes(uuid, &mut |process| found.push(process)).unwrap();
        assert_eq!(index, 5);
        assert_eq!(found.len(), 20);
        assert_eq!(found[2], Process { pid: 2, used_bytes: Some(2 << 20) });
        assert_eq!(found[3], Process { pid: 3, used_bytes: None });
        assert_eq!(ASKED.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn a_device_that_nvml_does_not_know_is_told() {
        let functions = Functions { init, by_uuid, index, processes: twenty };
        let failure = functions.processes([0; 16], &mut |_| ()).unwrap_err();
        assert_eq!(failure.to_string(), "nvmlDeviceGetHandleByUUID failed: NVML error 6");
    }
}
