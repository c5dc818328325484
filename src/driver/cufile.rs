//! cuFile (GPUDirect Storage): transfers between files and device memory. It is loaded at its first
//! use, and never unloaded.

use super::library::{Library, Spec};
use crate::base::descriptor::errno;
pub use crate::base::error::cufile::{CufileError, Failure};
use crate::base::once::Once;
use crate::base::rank::Rank;
use crate::base::waiting;
use std::ffi::{CStr, c_int, c_long, c_void};

static SPEC: Spec = Spec {
    title: "cuFile",
    variable: c"TCUDA_CUFILE_PATH",
    beside: None,
    names: &[c"libcufile.so.0", c"libcufile.so"],
    advice: "install NVIDIA's cuFile (GPUDirect Storage), or open files with TCUDA_FILE_STAGING",
};

/// The symbol of a stand-in, which needs no GPU.
const STAND_IN: &CStr = c"tcuda_cufile_stand_in";

/// CUfileOpError: the driver was opened before, by another user of the library.
const ALREADY_OPEN: i32 = 5026;
/// CUfileOpError: the memory is not registered.
pub const NOT_REGISTERED: i32 = 5024;
/// CU_FILE_HANDLE_TYPE_OPAQUE_FD.
const DESCRIPTOR: c_int = 1;

/// CUfileError_t.
#[repr(C)]
#[derive(Clone, Copy)]
struct Status {
    code: c_int,
    cuda: c_int,
}

/// The union in CUfileDescr_t.
#[repr(C)]
union FileOf {
    number: c_int,
    pointer: *mut c_void,
}

/// CUfileDescr_t.
#[repr(C)]
struct Description {
    kind: c_int,
    file: FileOf,
    operations: *const c_void,
}

type Handle = *mut c_void;

type Plain = unsafe extern "C" fn() -> Status;
type Count = unsafe extern "C" fn() -> c_long;
type RegisterHandle = unsafe extern "C" fn(*mut Handle, *mut Description) -> Status;
type DeregisterHandle = unsafe extern "C" fn(Handle);
type RegisterBuffer = unsafe extern "C" fn(*const c_void, usize, c_int) -> Status;
type DeregisterBuffer = unsafe extern "C" fn(*const c_void) -> Status;
type Transfer =
    unsafe extern "C" fn(Handle, *mut c_void, usize, libc::off_t, libc::off_t) -> libc::ssize_t;

/// The loaded functions.
pub struct Cufile {
    open_driver: Plain,
    close_driver: Plain,
    count_uses: Option<Count>,
    register_handle: RegisterHandle,
    deregister_handle: DeregisterHandle,
    register_buffer: RegisterBuffer,
    deregister_buffer: DeregisterBuffer,
    read: Transfer,
    /// Its memory is constant, which no type of Rust says.
    write: Transfer,
    is_stand_in: bool,
}

static LOADED: Once<Cufile> = Once::new(Rank::ONCE);

macro_rules! function {
    ($library:expr, $type:ty, $name:expr) => {{
        let address = $library.symbol($name);
        if address.is_null() {
            Err(Failure::Missing(&SPEC, $name))
        } else {
            // SAFETY: the library's function of this name has this signature.
            Ok(unsafe { std::mem::transmute::<*mut c_void, $type>(address) })
        }
    }};
}

/// The library, loaded now if it was not.
pub fn get(is_simulated: bool) -> Result<&'static Cufile, Failure> {
    let not_simulated = || Failure::NotSimulated(&SPEC, STAND_IN);
    if is_simulated && crate::base::environment::value(SPEC.variable).is_none() {
        return Err(not_simulated());
    }
    let cufile = LOADED.get_or_try_init(|| {
        let library = Library::open(&SPEC)?;
        Ok::<_, Failure>(Cufile {
            open_driver: function!(library, Plain, c"cuFileDriverOpen")?,
            close_driver: function!(library, Plain, c"cuFileDriverClose_v2")
                .or_else(|_| function!(library, Plain, c"cuFileDriverClose"))?,
            count_uses: function!(library, Count, c"cuFileUseCount").ok(),
            register_handle: function!(library, RegisterHandle, c"cuFileHandleRegister")?,
            deregister_handle: function!(library, DeregisterHandle, c"cuFileHandleDeregister")?,
            register_buffer: function!(library, RegisterBuffer, c"cuFileBufRegister")?,
            deregister_buffer: function!(library, DeregisterBuffer, c"cuFileBufDeregister")?,
            read: function!(library, Transfer, c"cuFileRead")?,
            write: function!(library, Transfer, c"cuFileWrite")?,
            is_stand_in: !library.symbol(STAND_IN).is_null(),
        })
    })?;
    if is_simulated && !cufile.is_stand_in {
        return Err(not_simulated());
    }
    Ok(cufile)
}

fn check(call: &'static str, status: Status) -> Result<(), Failure> {
    match status.code {
        0 => Ok(()),
        code => Err(Failure::Call(CufileError { call, code, cuda: status.cuda })),
    }
}

/// Part of a registered buffer, or of memory that is not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The start of the registered buffer, or of the memory.
    pub base: u64,
    /// Where the part begins, from there.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
}

impl Cufile {
    /// Opens its driver. False: it was open.
    pub fn open_driver(&self) -> Result<bool, Failure> {
        let _waiting = waiting::begin();
        // SAFETY: no arguments.
        let status = unsafe { (self.open_driver)() };
        match status.code {
            ALREADY_OPEN => Ok(false),
            _ => check("cuFileDriverOpen", status).map(|()| true),
        }
    }

    /// Closes its driver, unless others use it.
    pub fn close_driver(&self) {
        let _waiting = waiting::begin();
        // SAFETY: no arguments.
        if self.count_uses.is_some_and(|count| unsafe { count() } > 1) {
            return;
        }
        // A failure could not be handled here.
        // SAFETY: no arguments; no handle or buffer of this library is registered any more.
        let _ = unsafe { (self.close_driver)() };
    }

    /// Registers an open file.
    pub fn register_handle(&self, descriptor: c_int) -> Result<usize, Failure> {
        let _waiting = waiting::begin();
        let mut file = FileOf { pointer: std::ptr::null_mut() };
        file.number = descriptor;
        let mut description = Description { kind: DESCRIPTOR, file, operations: std::ptr::null() };
        let mut handle = std::ptr::null_mut();
        // SAFETY: both are writable; the descriptor is open.
        let status = unsafe { (self.register_handle)(&mut handle, &mut description) };
        check("cuFileHandleRegister", status).map(|()| handle as usize)
    }

    /// Ends the registration of a file.
    pub fn deregister_handle(&self, handle: usize) {
        let _waiting = waiting::begin();
        // SAFETY: from `register_handle`, and not used any more.
        unsafe { (self.deregister_handle)(handle as Handle) };
    }

    /// Registers device memory; a context of its device is current.
    pub fn register_buffer(&self, address: u64, bytes: u64) -> Result<(), Failure> {
        let _waiting = waiting::begin();
        // SAFETY: a range of device memory.
        let status = unsafe { (self.register_buffer)(address as *const c_void, bytes as usize, 0) };
        check("cuFileBufRegister", status)
    }

    /// Ends the registration of device memory.
    pub fn deregister_buffer(&self, address: u64) -> Result<(), Failure> {
        let _waiting = waiting::begin();
        // SAFETY: the library checks that the address is registered.
        let status = unsafe { (self.deregister_buffer)(address as *const c_void) };
        check("cuFileBufDeregister", status)
    }

    /// Reads from a file at an offset into memory; returns the number of bytes, 0 at the end of the
    /// file. A context of the memory's device is current.
    pub fn read(&self, handle: usize, place: Place, file_offset: u64) -> Result<u64, Failure> {
        transfer("cuFileRead", self.read, handle, place, file_offset)
    }

    /// Writes memory to a file at an offset; returns the number of bytes. A context of the memory's
    /// device is current.
    pub fn write(&self, handle: usize, place: Place, file_offset: u64) -> Result<u64, Failure> {
        transfer("cuFileWrite", self.write, handle, place, file_offset)
    }
}

fn transfer(
    call: &'static str,
    function: Transfer,
    handle: usize,
    place: Place,
    file_offset: u64,
) -> Result<u64, Failure> {
    let _waiting = waiting::begin();
    let (base, bytes) = (place.base as *mut c_void, place.bytes as usize);
    let (at, from_base) = (file_offset as libc::off_t, place.offset as libc::off_t);
    // SAFETY: a registered file, and a range of device memory.
    match unsafe { function(handle as Handle, base, bytes, at, from_base) } {
        -1 => Err(Failure::System(call, errno())),
        done if done < 0 => {
            let code = i32::try_from(done.unsigned_abs()).unwrap_or(i32::MAX);
            Err(Failure::Call(CufileError { call, code, cuda: 0 }))
        }
        done => Ok(done as u64),
    }
}
