//! The real driver: fills the table from libcuda.

use super::library::{Library, Spec};
use super::{Table, code, table};
pub use crate::base::error::CudaLoadError;
use std::ffi::{CStr, c_char, c_int, c_ulonglong, c_void};

/// The oldest supported driver, in the format of cuDriverGetVersion: 11.4, of the R470 branch,
/// which added virtual memory with CUDA graphs, stream-ordered pools and cuGetProcAddress.
pub const MINIMUM_VERSION: i32 = 11040;

static LIBRARY: Spec = Spec {
    title: "the CUDA driver",
    variable: c"TCUDA_CUDA_DRIVER_PATH",
    beside: None,
    // The versioned name is the driver's; toolkits use the other one for their stubs, too. The
    // paths find the driver where a search path leads to a stub, and where ld.so has no entry for
    // it.
    names: &[
        c"libcuda.so.1",
        c"libcuda.so",
        c"/usr/lib/wsl/lib/libcuda.so.1",
        c"/usr/lib/x86_64-linux-gnu/libcuda.so.1",
        c"/usr/lib/aarch64-linux-gnu/libcuda.so.1",
        c"/usr/lib64/libcuda.so.1",
        c"/run/opengl-driver/lib/libcuda.so.1",
    ],
    advice: "install an NVIDIA driver (in a container: start it with GPU access), or set \
             TCUDA_BACKEND=sim, which simulates a GPU",
};

/// Opens libcuda and fills the table from it. Calls that the driver lacks stay `None`.
///
/// The table is also filled from a toolkit's stub, if nothing better is found: its cuInit returns
/// an error that says so (`STUB_LIBRARY`). Nothing is initialised here.
pub fn table() -> Result<Table, CudaLoadError> {
    let library = Library::open_preferring(&LIBRARY, |library| {
        !matches!(version(library), Some(Err(code::STUB_LIBRARY)) | None)
    })?;
    if library.symbol(c"cuInit").is_null() {
        return Err(CudaLoadError::NotADriver);
    }
    let driver = match version(&library) {
        None => return Err(CudaLoadError::NotADriver),
        Some(Ok(found)) if found < MINIMUM_VERSION => {
            return Err(CudaLoadError::TooOld { found, needed: MINIMUM_VERSION });
        }
        Some(Ok(found)) => found,
        // A stub, or a driver that fails before it is initialised: its cuInit fails the same way.
        Some(Err(_)) => MINIMUM_VERSION,
    };
    let lookup = Lookup::of(&library);
    Ok(Table::fill(|name, symbol, level| {
        if let Some(level) = usable_level(name, symbol, level, driver) {
            let address = with_nul(name, |name| lookup.find(name, level));
            if !address.is_null() {
                return address;
            }
        }
        with_nul(symbol, |symbol| library.symbol(symbol))
    }))
}

/// The level at which this driver can be queried for `name`, if any.
///
/// A driver knows no levels above its own. Its own level is right for a name whose signature never
/// changed. For a name whose signature changed the driver would return the older function; only the
/// versioned symbol is certain to match the table.
fn usable_level(name: &str, symbol: &str, level: i32, driver: i32) -> Option<i32> {
    if level <= driver {
        Some(level)
    } else if level == table::LEVEL && name == symbol {
        Some(driver)
    } else {
        None
    }
}

/// The driver's version; `None` when it does not even have the call.
fn version(library: &Library) -> Option<Result<i32, i32>> {
    let address = library.symbol(c"cuDriverGetVersion");
    if address.is_null() {
        return None;
    }
    // SAFETY: the driver's symbol of this name has this signature.
    let get = unsafe {
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_int) -> c_int>(address)
    };
    let mut version = 0;
    // SAFETY: the call writes one int, and needs no initialised driver.
    match unsafe { get(&mut version) } {
        code::SUCCESS => Some(Ok(version)),
        code => Some(Err(code)),
    }
}

type GetProcAddressV2 =
    unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, c_ulonglong, *mut c_int) -> c_int;
type GetProcAddressV1 =
    unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, c_ulonglong) -> c_int;

/// The driver's lookup of its functions, by name and version, which also finds functions that it
/// does not export.
enum Lookup {
    /// Since 12.0.
    V2(GetProcAddressV2),
    /// Since 11.3, without the status.
    V1(GetProcAddressV1),
    Nothing,
}

impl Lookup {
    fn of(library: &Library) -> Lookup {
        let address = library.symbol(c"cuGetProcAddress_v2");
        if !address.is_null() {
            // SAFETY: the driver's symbol of this name has this signature.
            return Lookup::V2(unsafe {
                std::mem::transmute::<*mut c_void, GetProcAddressV2>(address)
            });
        }
        let address = library.symbol(c"cuGetProcAddress");
        if !address.is_null() {
            // SAFETY: the driver's symbol of this name has this signature.
            return Lookup::V1(unsafe {
                std::mem::transmute::<*mut c_void, GetProcAddressV1>(address)
            });
        }
        Lookup::Nothing
    }

    fn find(&self, name: &CStr, level: i32) -> *mut c_void {
        /// CU_GET_PROC_ADDRESS_DEFAULT: NULL streams mean the legacy stream.
        const FLAGS: c_ulonglong = 0;
        let mut address = std::ptr::null_mut();
        let mut status = 0;
        let code = match self {
            Lookup::V2(get) => {
                // SAFETY: `name` is NUL-terminated; the call writes one pointer and one status.
                unsafe { get(name.as_ptr(), &mut address, level, FLAGS, &mut status) }
            }
            Lookup::V1(get) => {
                // SAFETY: `name` is NUL-terminated; the call writes one pointer.
                unsafe { get(name.as_ptr(), &mut address, level, FLAGS) }
            }
            Lookup::Nothing => return std::ptr::null_mut(),
        };
        if code == code::SUCCESS { address } else { std::ptr::null_mut() }
    }
}

/// Size of the longest name of the table, including its NUL.
const NAME_ROOM: usize = 96;

/// Passes `name` on as a C string, without an allocation; NULL if it is too long.
pub(super) fn with_nul(name: &str, find: impl FnOnce(&CStr) -> *mut c_void) -> *mut c_void {
    let mut buffer = [0; NAME_ROOM];
    let Some(room) = buffer.get_mut(..name.len()) else { return std::ptr::null_mut() };
    room.copy_from_slice(name.as_bytes());
    // A name that fills the buffer has no NUL after it.
    match CStr::from_bytes_until_nul(&buffer) {
        Ok(name) => find(name),
        Err(_) => std::ptr::null_mut(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_fits() {
        Table::fill(|name, symbol, _| {
            assert!(name.len() < NAME_ROOM && symbol.len() < NAME_ROOM);
            std::ptr::null_mut()
        });
    }

    #[test]
    fn a_level_never_changes_a_signature() {
        // A new driver is queried at the level of the table,
        assert_eq!(usable_level("cuMemMap", "cuMemMap", table::LEVEL, 13000), Some(12090));
        assert_eq!(usable_level("cuX", "cuX_v2", 11030, 13000), Some(11030));
        // an old one at its own level, if the signature never changed,
        assert_eq!(usable_level("cuMemMap", "cuMemMap", table::LEVEL, 11080), Some(11080));
        // and otherwise only for the exact symbol.
        assert_eq!(usable_level("cuX", "cuX_v2", table::LEVEL, 11080), None);
        assert_eq!(usable_level("cuX", "cuX_v3", 12030, 12020), None);
    }
}
