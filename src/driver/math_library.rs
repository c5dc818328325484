//! cuBLAS and cuSOLVER: the few calls that prepare a handle. Each is loaded at its first use, and
//! never unloaded.

use super::library::{Library, Spec};
pub use crate::base::error::math_library::{Failure, MathError};
use crate::base::once::Once;
use crate::base::rank::Rank;
use std::ffi::{CStr, c_int, c_void};

/// cublasContext, to which a cublasHandle_t points.
#[allow(non_camel_case_types, reason = "NVIDIA's own name")]
pub struct cublasContext {
    _private: [u8; 0],
}

/// cusolverDnContext, to which a cusolverDnHandle_t points.
#[allow(non_camel_case_types, reason = "NVIDIA's own name")]
pub struct cusolverDnContext {
    _private: [u8; 0],
}

type Handle = *mut c_void;

type Create = unsafe extern "C" fn(*mut Handle) -> c_int;
type Destroy = unsafe extern "C" fn(Handle) -> c_int;
type SetStream = unsafe extern "C" fn(Handle, *mut c_void) -> c_int;
type SetWorkspace = unsafe extern "C" fn(Handle, *mut c_void, usize) -> c_int;
type SetMode = unsafe extern "C" fn(Handle, c_int) -> c_int;
type Property = unsafe extern "C" fn(c_int, *mut c_int) -> c_int;

/// A library, with the names of its functions.
pub struct Kind {
    spec: Spec,
    property: &'static CStr,
    create: &'static CStr,
    destroy: &'static CStr,
    set_stream: &'static CStr,
    set_workspace: Option<&'static CStr>,
    /// What sets a mode of a handle, and the mode's default.
    modes: [Option<(&'static CStr, c_int)>; 3],
    /// The symbol of a stand-in, which needs no GPU.
    stand_in: &'static CStr,
    /// The CUDA release that a major version of it needs.
    release: fn(c_int) -> c_int,
    loaded: Once<MathLibrary>,
}

/// cuBLAS.
pub static CUBLAS: Kind = Kind {
    spec: Spec {
        title: "cuBLAS",
        variable: c"TCUDA_CUBLAS_PATH",
        beside: None,
        names: &[c"libcublas.so.13", c"libcublas.so.12", c"libcublas.so.11", c"libcublas.so"],
        advice: "install NVIDIA's cuBLAS",
    },
    property: c"cublasGetProperty",
    create: c"cublasCreate_v2",
    destroy: c"cublasDestroy_v2",
    set_stream: c"cublasSetStream_v2",
    // Since 11.2; without it cuBLAS allocates its own workspace.
    set_workspace: Some(c"cublasSetWorkspace_v2"),
    modes: [
        Some((c"cublasSetMathMode", 0)),
        Some((c"cublasSetPointerMode_v2", 0)),
        Some((c"cublasSetAtomicsMode", 0)),
    ],
    stand_in: c"tcuda_cublas_stand_in",
    release: |major| major,
    loaded: Once::new(Rank::ONCE),
};

/// cuSOLVER, dense.
pub static CUSOLVER: Kind = Kind {
    spec: Spec {
        title: "cuSOLVER",
        variable: c"TCUDA_CUSOLVER_PATH",
        beside: None,
        names: &[c"libcusolver.so.12", c"libcusolver.so.11", c"libcusolver.so"],
        advice: "install NVIDIA's cuSOLVER",
    },
    property: c"cusolverGetProperty",
    create: c"cusolverDnCreate",
    destroy: c"cusolverDnDestroy",
    set_stream: c"cusolverDnSetStream",
    set_workspace: None,
    modes: [Some((c"cusolverDnSetDeterministicMode", 1)), None, None],
    stand_in: c"tcuda_cusolver_stand_in",
    // 12 is of CUDA 13, 11 of CUDA 11 and 12.
    release: |major| if major >= 12 { major + 1 } else { major },
    loaded: Once::new(Rank::ONCE),
};

/// The loaded functions.
pub struct MathLibrary {
    kind: &'static Kind,
    create: Create,
    destroy: Destroy,
    set_stream: SetStream,
    set_workspace: Option<SetWorkspace>,
    modes: [Option<SetMode>; 3],
    is_stand_in: bool,
}

macro_rules! function {
    ($library:expr, $type:ty, $name:expr) => {{
        let address = $library.symbol($name);
        if address.is_null() {
            None
        } else {
            // SAFETY: the library's function of this name has this signature.
            Some(unsafe { std::mem::transmute::<*mut c_void, $type>(address) })
        }
    }};
}

impl Kind {
    /// Can a driver of this version run it? A library of a CUDA newer than the driver's fails at
    /// its first call.
    fn suits(&self, library: &Library, driver_version: i32) -> bool {
        /// MAJOR_VERSION of libraryPropertyType.
        const MAJOR: c_int = 0;
        let Some(property) = function!(library, Property, self.property) else { return false };
        let mut major = 0;
        // SAFETY: `major` is writable.
        let code = unsafe { property(MAJOR, &mut major) };
        code == 0 && (self.release)(major) <= driver_version / 1000
    }

    fn check(&'static self, call: &'static CStr, code: c_int) -> Result<(), Failure> {
        if code == 0 {
            return Ok(());
        }
        let call = call.to_str().unwrap_or_default();
        Err(Failure::Call(MathError { library: self.spec.title, call, code }))
    }

    /// The library, loaded now if it was not.
    pub fn get(
        &'static self,
        is_simulated: bool,
        driver_version: i32,
    ) -> Result<&'static MathLibrary, Failure> {
        let not_simulated = || Failure::NotSimulated(&self.spec, self.stand_in);
        if is_simulated && crate::base::environment::value(self.spec.variable).is_none() {
            return Err(not_simulated());
        }
        let library = self.loaded.get_or_try_init(|| {
            let good = |found: &Library| self.suits(found, driver_version);
            let library = Library::open_preferring(&self.spec, good)?;
            let missing = |name| Failure::Missing(&self.spec, name);
            Ok::<_, Failure>(MathLibrary {
                kind: self,
                create: function!(library, Create, self.create).ok_or(missing(self.create))?,
                destroy: function!(library, Destroy, self.destroy).ok_or(missing(self.destroy))?,
                set_stream: function!(library, SetStream, self.set_stream)
                    .ok_or(missing(self.set_stream))?,
                set_workspace: self
                    .set_workspace
                    .and_then(|name| function!(library, SetWorkspace, name)),
                modes: self
                    .modes
                    .map(|mode| mode.and_then(|(name, _)| function!(library, SetMode, name))),
                is_stand_in: !library.symbol(self.stand_in).is_null(),
            })
        })?;
        if is_simulated && !library.is_stand_in {
            return Err(not_simulated());
        }
        Ok(library)
    }
}

impl MathLibrary {
    /// Creates a handle for the device of the current context.
    pub fn create(&self) -> Result<usize, Failure> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` is writable; a context is current.
        let code = unsafe { (self.create)(&mut handle) };
        self.kind.check(self.kind.create, code)?;
        Ok(handle as usize)
    }

    /// Destroys a handle; the device's context is current.
    pub fn destroy(&self, handle: usize) {
        // A failure could not be handled here.
        // SAFETY: made by `create`, and not used any more.
        let _ = unsafe { (self.destroy)(handle as Handle) };
    }

    /// Does it accept workspaces?
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
        let code = unsafe { (self.set_stream)(handle as Handle, stream as Handle) };
        self.kind.check(self.kind.set_stream, code)?;
        if let (Some(set), Some((address, bytes))) = (self.set_workspace, workspace) {
            // After the stream: setting the stream resets the workspace.
            // SAFETY: memory of the stream's device that is kept for this handle and stream.
            let code = unsafe { set(handle as Handle, address as *mut c_void, bytes as usize) };
            self.kind.check(self.kind.set_workspace.unwrap_or_default(), code)?;
        }
        Ok(())
    }

    /// Resets the modes of a handle to their defaults, whatever its last user set.
    pub fn reset_modes(&self, handle: usize) -> Result<(), Failure> {
        for (set, mode) in self.modes.iter().zip(self.kind.modes) {
            if let (Some(set), Some((name, default))) = (set, mode) {
                // SAFETY: a live handle, and a mode that it has.
                let code = unsafe { set(handle as Handle, default) };
                self.kind.check(name, code)?;
            }
        }
        Ok(())
    }
}
