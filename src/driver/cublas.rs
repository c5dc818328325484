//! cuBLAS: the few calls that prepare a handle. Loaded at its first use, never unloaded.

use super::library::{Library, Spec};
pub use crate::base::error::cublas::{CublasError, Failure};
use crate::base::once::Once;
use crate::base::rank::Rank;
use std::ffi::{c_int, c_void};

/// cublasContext, to which a cublasHandle_t points.
#[allow(non_camel_case_types, reason = "NVIDIA's own name")]
pub struct cublasContext {
    _private: [u8; 0],
}

type Handle = *mut c_void;

static LIBRARY: Spec = Spec {
    title: "cuBLAS",
    variable: c"TCUDA_CUBLAS_PATH",
    beside: None,
    names: &[c"libcublas.so.13", c"libcublas.so.12", c"libcublas.so.11", c"libcublas.so"],
    advice: "install NVIDIA's cuBLAS",
};

type Create = unsafe extern "C" fn(*mut Handle) -> c_int;
type Destroy = unsafe extern "C" fn(Handle) -> c_int;
type SetStream = unsafe extern "C" fn(Handle, *mut c_void) -> c_int;
type SetWorkspace = unsafe extern "C" fn(Handle, *mut c_void, usize) -> c_int;
type SetMode = unsafe extern "C" fn(Handle, c_int) -> c_int;
type Property = unsafe extern "C" fn(c_int, *mut c_int) -> c_int;

/// The loaded functions.
pub struct Cublas {
    create: Create,
    destroy: Destroy,
    set_stream: SetStream,
    /// Since 11.2; without it cuBLAS allocates its own workspace.
    set_workspace: Option<SetWorkspace>,
    modes: [(&'static str, Option<SetMode>); 3],
    is_stand_in: bool,
}

static CUBLAS: Once<Cublas> = Once::new(Rank::ONCE);

fn check(call: &'static str, code: c_int) -> Result<(), Failure> {
    if code == 0 { Ok(()) } else { Err(Failure::Call(CublasError { call, code })) }
}

macro_rules! function {
    ($library:expr, $type:ty, $name:literal) => {{
        let address = $library.symbol($name);
        if address.is_null() {
            None
        } else {
            // SAFETY: cuBLAS's function of this name has this signature.
            Some(unsafe { std::mem::transmute::<*mut c_void, $type>(address) })
        }
    }};
}

/// Can a driver of this version run it? cuBLAS of a CUDA newer than the driver's fails at its first
/// call.
fn suits(library: &Library, driver_version: i32) -> bool {
    /// MAJOR_VERSION of libraryPropertyType.
    const MAJOR: c_int = 0;
    let Some(property) = function!(library, Property, c"cublasGetProperty") else { return false };
    let mut major = 0;
    // SAFETY: `major` is writable.
    let code = unsafe { property(MAJOR, &mut major) };
    code == 0 && major <= driver_version / 1000
}

/// cuBLAS, loaded now if it was not.
pub fn get(is_simulated: bool, driver_version: i32) -> Result<&'static Cublas, Failure> {
    if is_simulated && crate::base::environment::value(LIBRARY.variable).is_none() {
        return Err(Failure::NotSimulated);
    }
    let cublas = CUBLAS.get_or_try_init(|| {
        let library = Library::open_preferring(&LIBRARY, |found| suits(found, driver_version))?;
        Ok::<_, Failure>(Cublas {
            create: function!(library, Create, c"cublasCreate_v2")
                .ok_or(Failure::Missing("cublasCreate_v2"))?,
            destroy: function!(library, Destroy, c"cublasDestroy_v2")
                .ok_or(Failure::Missing("cublasDestroy_v2"))?,
            set_stream: function!(library, SetStream, c"cublasSetStream_v2")
                .ok_or(Failure::Missing("cublasSetStream_v2"))?,
            set_workspace: function!(library, SetWorkspace, c"cublasSetWorkspace_v2"),
            modes: [
                ("cublasSetMathMode", function!(library, SetMode, c"cublasSetMathMode")),
                ("cublasSetPointerMode", function!(library, SetMode, c"cublasSetPointerMode_v2")),
                ("cublasSetAtomicsMode", function!(library, SetMode, c"cublasSetAtomicsMode")),
            ],
            is_stand_in: !library.symbol(c"tcuda_cublas_stand_in").is_null(),
        })
    })?;
    if is_simulated && !cublas.is_stand_in {
        return Err(Failure::NotSimulated);
    }
    Ok(cublas)
}

impl Cublas {
    /// Creates a handle for the device of the current context.
    pub fn create(&self) -> Result<usize, Failure> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` is writable; a context is current.
        check("cublasCreate", unsafe { (self.create)(&mut handle) })?;
        Ok(handle as usize)
    }

    /// Destroys a handle; the device's context is current.
    pub fn destroy(&self, handle: usize) {
        // A failure could not be handled here.
        // SAFETY: made by `create`, and not used any more.
        let _ = unsafe { (self.destroy)(handle as Handle) };
    }

    /// Does cuBLAS accept workspaces?
    pub fn takes_workspaces(&self) -> bool {
        self.set_workspace.is_some()
    }

    /// Sets the stream of a handle (a CUstream) and its workspace, if there is one.
    pub fn use_on(
        &self,
        handle: usize,
        stream: usize,
        workspace: Option<(u64, u64)>,
    ) -> Result<(), Failure> {
        // SAFETY: a live handle and stream of one device.
        check("cublasSetStream", unsafe { (self.set_stream)(handle as Handle, stream as Handle) })?;
        if let (Some(set), Some((address, bytes))) = (self.set_workspace, workspace) {
            // After the stream: setting the stream resets the workspace.
            // SAFETY: memory of the stream's device that is kept for this handle and stream.
            let code = unsafe { set(handle as Handle, address as *mut c_void, bytes as usize) };
            check("cublasSetWorkspace", code)?;
        }
        Ok(())
    }

    /// Resets the modes of a handle to their defaults, whatever its last user set.
    pub fn reset_modes(&self, handle: usize) -> Result<(), Failure> {
        for (call, set) in self.modes {
            if let Some(set) = set {
                // SAFETY: a live handle; 0 is the default of each mode.
                check(call, unsafe { set(handle as Handle, 0) })?;
            }
        }
        Ok(())
    }
}
