//! NVML, the driver's management library. Loaded at its first use, never unloaded.

use super::library::{Library, Spec};
use super::telemetry::{Memory, Rates};
pub use crate::base::error::nvml::{Failure, NvmlError};
use crate::base::error::nvml::{INSUFFICIENT_SIZE, NOT_FOUND, NOT_SUPPORTED};
use crate::base::once::Once;
use crate::base::rank::Rank;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt::{self, Write};

static LIBRARY: Spec = Spec {
    title: "NVML",
    variable: c"TCUDA_NVML_PATH",
    beside: None,
    names: &[c"libnvidia-ml.so.1", c"libnvidia-ml.so", c"/usr/lib/wsl/lib/libnvidia-ml.so.1"],
    advice: "install an NVIDIA driver with its management library",
};

pub(super) type Handle = *mut c_void;

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
    /// Its process id, in the driver's namespace.
    pub pid: u32,
    /// Its memory on the GPU; `None`: the driver does not report it.
    pub used_bytes: Option<u64>,
}

/// The loaded functions.
#[derive(Clone, Copy)]
pub(super) struct Functions {
    init: Init,
    by_uuid: ByUuid,
    index: Index,
    processes: Option<List>,
    by_pci: Option<ByUuid>,
    whole: Option<Whole>,
    pub(super) utilization: Option<Read<Rates>>,
    pub(super) memory: Option<Read<Memory>>,
    pub(super) temperature: Option<ReadOf>,
    pub(super) power: Option<Read<c_uint>>,
    pub(super) clock: Option<ReadOf>,
}

static FUNCTIONS: Once<Functions> = Once::new(Rank::ONCE);

pub(super) fn check(call: &'static str, code: c_int) -> Result<(), Failure> {
    match code {
        0 => Ok(()),
        NOT_SUPPORTED => Err(Failure::NotSupported(NvmlError { call, code })),
        _ => Err(Failure::Call(NvmlError { call, code })),
    }
}

/// The address of the first of these names that exists.
fn find(library: &Library, names: &[&'static CStr]) -> Result<*mut c_void, Failure> {
    let found = names.iter().map(|name| library.symbol(name)).find(|found| !found.is_null());
    let wanted = names.first().and_then(|name| name.to_str().ok()).unwrap_or("");
    found.ok_or(Failure::Missing(wanted))
}

macro_rules! function {
    ($library:expr, $type:ty, $($name:literal),+) => {
        find($library, &[$($name),+]).map(|address| {
            // SAFETY: NVML's function of this name has this signature.
            unsafe { std::mem::transmute::<*mut c_void, $type>(address) }
        })
    };
}

type Init = unsafe extern "C" fn() -> c_int;
type ByUuid = unsafe extern "C" fn(*const c_char, *mut Handle) -> c_int;
type Index = unsafe extern "C" fn(Handle, *mut c_uint) -> c_int;
type List = unsafe extern "C" fn(Handle, *mut c_uint, *mut Info) -> c_int;
type Whole = unsafe extern "C" fn(Handle, *mut Handle) -> c_int;
pub(super) type Read<T> = unsafe extern "C" fn(Handle, *mut T) -> c_int;
pub(super) type ReadOf = unsafe extern "C" fn(Handle, c_uint, *mut c_uint) -> c_int;

pub(super) fn functions() -> Result<&'static Functions, Failure> {
    FUNCTIONS.get_or_try_init(|| {
        let library = Library::open(&LIBRARY)?;
        let functions = Functions {
            init: function!(&library, Init, c"nvmlInit_v2")?,
            by_uuid: function!(&library, ByUuid, c"nvmlDeviceGetHandleByUUID")?,
            index: function!(&library, Index, c"nvmlDeviceGetIndex")?,
            // Both write the same structure.
            processes: function!(
                &library,
                List,
                c"nvmlDeviceGetComputeRunningProcesses_v3",
                c"nvmlDeviceGetComputeRunningProcesses_v2"
            )
            .ok(),
            by_pci: function!(&library, ByUuid, c"nvmlDeviceGetHandleByPciBusId_v2").ok(),
            whole: function!(&library, Whole, c"nvmlDeviceGetDeviceHandleFromMigDeviceHandle").ok(),
            utilization: function!(&library, Read<Rates>, c"nvmlDeviceGetUtilizationRates").ok(),
            memory: function!(&library, Read<Memory>, c"nvmlDeviceGetMemoryInfo").ok(),
            temperature: function!(&library, ReadOf, c"nvmlDeviceGetTemperature").ok(),
            power: function!(&library, Read<c_uint>, c"nvmlDeviceGetPowerUsage").ok(),
            clock: function!(&library, ReadOf, c"nvmlDeviceGetClockInfo").ok(),
        };
        // SAFETY: no preconditions; it counts its callers, and is never shut down.
        check("nvmlInit_v2", unsafe { (functions.init)() })?;
        Ok(functions)
    })
}

/// Identifies a device: by its UUID, or if NVML does not know that, by its PCI address.
#[derive(Clone, Copy)]
pub struct Place {
    /// UUID of the GPU, or of a part of one.
    pub uuid: [u8; 16],
    /// Domain, bus, device.
    pub pci: [i32; 3],
}

/// A text with "MIG-" and a UUID.
struct Name {
    bytes: [u8; 48],
    len: usize,
}

impl Name {
    fn of_uuid(prefix: &str, uuid: [u8; 16]) -> Name {
        let mut text = Name { bytes: [0; 48], len: 0 };
        let _ = text.write_str(prefix);
        for (index, byte) in uuid.iter().enumerate() {
            let dash = if matches!(index, 4 | 6 | 8 | 10) { "-" } else { "" };
            let _ = write!(text, "{dash}{byte:02x}");
        }
        text
    }

    fn of_pci([domain, bus, device]: [i32; 3]) -> Name {
        let mut text = Name { bytes: [0; 48], len: 0 };
        let _ = write!(text, "{domain:08X}:{bus:02X}:{device:02X}.0");
        text
    }
}

impl fmt::Write for Name {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // The last byte stays 0.
        let room = self.bytes.get_mut(self.len..self.len + text.len()).ok_or(fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.len += text.len();
        Ok(())
    }
}

/// A device as NVML finds it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) handle: Handle,
    is_part: bool,
}

impl Functions {
    /// The device at a place: a GPU or a part of one.
    pub(super) fn device(&self, place: Place) -> Result<Found, Failure> {
        let query = |call, function: ByUuid, name: Name| {
            let mut handle = std::ptr::null_mut();
            // SAFETY: NUL-terminated; `handle` is writable.
            let code = unsafe { function(name.bytes.as_ptr().cast(), &mut handle) };
            check(call, code).map(|()| handle)
        };
        const BY_UUID: &str = "nvmlDeviceGetHandleByUUID";
        // The failure of a GPU is better than that of a second, unknown name.
        let mut first_failure = None;
        for (prefix, is_part) in [("GPU-", false), ("MIG-", true)] {
            match query(BY_UUID, self.by_uuid, Name::of_uuid(prefix, place.uuid)) {
                Ok(handle) => return Ok(Found { handle, is_part }),
                Err(failure) if failure.is_unknown() => (),
                Err(failure) => first_failure = first_failure.or(Some(failure)),
            }
        }
        let code = NOT_FOUND;
        let by_pci = match self.by_pci {
            Some(function) => {
                query("nvmlDeviceGetHandleByPciBusId", function, Name::of_pci(place.pci))
            }
            None => Err(Failure::Call(NvmlError { call: BY_UUID, code })),
        };
        match by_pci {
            Ok(handle) => Ok(Found { handle, is_part: false }),
            Err(failure) if failure.is_unknown() => Err(first_failure.unwrap_or(failure)),
            Err(failure) => Err(failure),
        }
    }

    /// The GPU that a device is, or is a part of: some values exist only for whole boards.
    pub(super) fn board(&self, found: Found) -> Result<Handle, Failure> {
        let (Some(whole), true) = (self.whole, found.is_part) else { return Ok(found.handle) };
        let mut handle = std::ptr::null_mut();
        // SAFETY: the handle is NVML's; `handle` is writable.
        let code = unsafe { whole(found.handle, &mut handle) };
        check("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", code)?;
        Ok(handle)
    }

    fn list(&self, handle: Handle) -> Result<Vec<Info>, Failure> {
        const CALL: &str = "nvmlDeviceGetComputeRunningProcesses";
        let processes = self.processes.ok_or(Failure::Missing(CALL))?;
        let mut room = 8;
        // Processes may start between two calls.
        for _ in 0..8 {
            let mut list = Vec::new();
            list.try_reserve_exact(room).map_err(|_| Failure::OutOfHostMemory)?;
            list.resize(room, Info::default());
            let mut count = room as c_uint;
            // SAFETY: there is room for `count` entries.
            let code = unsafe { processes(handle, &mut count, list.as_mut_ptr()) };
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

    fn processes(&self, place: Place, take: &mut dyn FnMut(Process)) -> Result<u32, Failure> {
        let handle = self.device(place)?.handle;
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

/// The processes that compute on a GPU, in NVML's order; returns NVML's index of the GPU.
pub fn processes(place: Place, take: &mut dyn FnMut(Process)) -> Result<u32, Failure> {
    functions()?.processes(place, take)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    static ASKED: AtomicU32 = AtomicU32::new(0);

    unsafe extern "C" fn init() -> c_int {
        0
    }

    /// Knows only one part of a GPU.
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

    /// Twenty processes, one of which starts between two calls.
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
            // SAFETY: there is room, by the contract of the call.
            let place = unsafe { list.add(pid as usize) };
            // SAFETY: as above.
            unsafe { place.write(info) };
        }
        0
    }

    fn one_part() -> Functions {
        Functions {
            init,
            by_uuid,
            index,
            processes: Some(twenty),
            by_pci: None,
            whole: None,
            utilization: None,
            memory: None,
            temperature: None,
            power: None,
            clock: None,
        }
    }

    #[test]
    fn places_have_the_names_of_nvml() {
        let name = Name::of_pci([0, 0xa1, 2]);
        assert_eq!(&name.bytes[..name.len], b"00000000:A1:02.0");
        let name = Name::of_uuid("GPU-", [0xab; 16]);
        assert_eq!(&name.bytes[..name.len], b"GPU-abababab-abab-abab-abab-abababababab");
    }

    #[test]
    fn a_list_grows_until_it_holds_all() {
        let functions = one_part();
        let mut uuid = std::array::from_fn(|index| index as u8);
        uuid[15] = 0xff;
        let mut found = Vec::new();
        let index = functions
            .processes(Place { uuid, pci: [0; 3] }, &mut |process| found.push(process))
            .unwrap();
        assert_eq!(index, 5);
        assert_eq!(found.len(), 20);
        assert_eq!(found[2], Process { pid: 2, used_bytes: Some(2 << 20) });
        assert_eq!(found[3], Process { pid: 3, used_bytes: None });
        assert_eq!(ASKED.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn a_device_that_nvml_does_not_know_is_an_error() {
        let nowhere = Place { uuid: [0; 16], pci: [0; 3] };
        let failure = one_part().processes(nowhere, &mut |_| ()).unwrap_err();
        let text = "nvmlDeviceGetHandleByUUID failed: NVML error 6: it does not know the GPU";
        assert_eq!(failure.to_string(), text);
    }
}
