//! nvJitLink: CUDA's linker of device code as a library, for link-time optimisation. Loaded at its
//! first use, never unloaded.

use super::compiler::{Failure, Log, NvrtcError};
use super::library::{Library, Spec};
use super::linker::Input;
use super::nvrtc::{Format, Short, driver_version};
use crate::base::once::Once;
use crate::base::rank::Rank;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt::Write;

static LIBRARY: Spec = Spec {
    title: "nvJitLink",
    variable: c"TCUDA_NVJITLINK_PATH",
    beside: None,
    names: &[
        c"libnvJitLink.so.13",
        c"libnvJitLink.so.12",
        c"libnvJitLink.so",
        c"/usr/local/cuda/lib64/libnvJitLink.so",
    ],
    advice: "get it (pip install nvidia-nvjitlink-cu12; nvidia-nvjitlink for a driver of CUDA 13) \
             and put its folder on the loader's path",
};

type Handle = *mut c_void;
type Version = unsafe extern "C" fn(*mut c_uint, *mut c_uint) -> c_int;
type Create = unsafe extern "C" fn(*mut Handle, u32, *const *const c_char) -> c_int;
type Destroy = unsafe extern "C" fn(*mut Handle) -> c_int;
type Add = unsafe extern "C" fn(Handle, c_int, *const c_void, usize, *const c_char) -> c_int;
type Complete = unsafe extern "C" fn(Handle) -> c_int;
type Size = unsafe extern "C" fn(Handle, *mut usize) -> c_int;
type Get = unsafe extern "C" fn(Handle, *mut c_char) -> c_int;

/// The loaded functions.
#[derive(Clone, Copy)]
struct Functions {
    create: Create,
    destroy: Destroy,
    add: Add,
    complete: Complete,
    log_size: Size,
    log: Get,
    ptx_size: Size,
    ptx: Get,
    cubin_size: Size,
    cubin: Get,
}

static FUNCTIONS: Once<Functions> = Once::new(Rank::ONCE);

fn check(call: &'static str, code: c_int) -> Result<(), Failure> {
    match code {
        0 => Ok(()),
        code => Err(Failure::LinkCall(NvrtcError { call, code })),
    }
}

macro_rules! function {
    ($library:expr, $type:ty, $name:literal) => {{
        const NAME: &CStr = $name;
        let address = $library.symbol(NAME);
        if address.is_null() {
            return Err(Failure::MissingInLinker(NAME.to_str().unwrap_or("a function")));
        }
        // SAFETY: nvJitLink's function of this name has this signature.
        unsafe { std::mem::transmute::<*mut c_void, $type>(address) }
    }};
}

/// The major version of a library.
fn major_of(library: &Library) -> Result<u32, Failure> {
    let get = function!(library, Version, c"nvJitLinkVersion");
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both are writable.
    check("nvJitLinkVersion", unsafe { get(&mut major, &mut minor) })?;
    Ok(major)
}

/// Loads nvJitLink, unless it is loaded.
pub fn find() -> Result<(), Failure> {
    functions().map(|_| ())
}

fn functions() -> Result<&'static Functions, Failure> {
    FUNCTIONS.get_or_try_init(|| {
        let driver = driver_version();
        let suits = |library: &Library| {
            driver == 0 || major_of(library).is_ok_and(|major| major <= driver / 1000)
        };
        let library = Library::open_preferring(&LIBRARY, suits)?;
        Ok(Functions {
            create: function!(library, Create, c"nvJitLinkCreate"),
            destroy: function!(library, Destroy, c"nvJitLinkDestroy"),
            add: function!(library, Add, c"nvJitLinkAddData"),
            complete: function!(library, Complete, c"nvJitLinkComplete"),
            log_size: function!(library, Size, c"nvJitLinkGetErrorLogSize"),
            log: function!(library, Get, c"nvJitLinkGetErrorLog"),
            ptx_size: function!(library, Size, c"nvJitLinkGetLinkedPtxSize"),
            ptx: function!(library, Get, c"nvJitLinkGetLinkedPtx"),
            cubin_size: function!(library, Size, c"nvJitLinkGetLinkedCubinSize"),
            cubin: function!(library, Get, c"nvJitLinkGetLinkedCubin"),
        })
    })
}

/// A link, destroyed when it is dropped.
struct Open<'a> {
    functions: &'a Functions,
    handle: Handle,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `create`, and not used again.
        let _ = unsafe { (self.functions.destroy)(&mut self.handle) };
    }
}

impl Open<'_> {
    fn bytes(&self, call: &'static str, size: Size, get: Get) -> Result<Vec<u8>, Failure> {
        let mut length = 0;
        // SAFETY: the link is alive; `length` is writable.
        check(call, unsafe { size(self.handle, &mut length) })?;
        let mut bytes = Vec::new();
        // One more: the end of PTX is not always counted.
        bytes.try_reserve_exact(length + 1).map_err(|_| Failure::OutOfHostMemory)?;
        bytes.resize(length + 1, 0);
        if length > 0 {
            // SAFETY: there is room for `length` bytes.
            check(call, unsafe { get(self.handle, bytes.as_mut_ptr().cast()) })?;
        }
        Ok(bytes)
    }

    /// A failed step: with what the library logged about it, if it did.
    fn step(&self, call: &'static str, code: c_int) -> Result<(), Failure> {
        let failed = check(call, code);
        if failed.is_ok() {
            return failed;
        }
        let functions = self.functions;
        let log = self.bytes("nvJitLinkGetErrorLog", functions.log_size, functions.log)?;
        let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
        let log = &log[..end];
        if log.trim_ascii().is_empty() { failed } else { Err(Failure::Link(Log::of(log))) }
    }
}

/// Links inputs, of which one may be LTO IR, for a compute capability: 90 is 9.0.
pub fn link(inputs: &[Input<'_>], capability: u32, format: Format) -> Result<Vec<u8>, Failure> {
    let functions = functions()?;
    let mut architecture = Short::new();
    let _ = write!(architecture, "-arch=sm_{capability}");
    let options = [architecture.as_ptr(), c"-lto".as_ptr(), c"-ptx".as_ptr()];
    let count = if format == Format::Ptx { 3 } else { 2 };
    let mut open = Open { functions, handle: std::ptr::null_mut() };
    // SAFETY: NUL-terminated texts, and as many as it says; `handle` is writable.
    let created = unsafe { (functions.create)(&mut open.handle, count, options.as_ptr()) };
    if created != 0 && open.handle.is_null() {
        std::mem::forget(open);
        return Err(check("nvJitLinkCreate", created).err().unwrap_or(Failure::OutOfHostMemory));
    }
    open.step("nvJitLinkCreate", created)?;
    for input in inputs {
        let (bytes, kind) = (input.bytes, input.kind.of_nvjitlink());
        // SAFETY: the link is alive, the bytes are as many, and the name ends with a NUL.
        let added = unsafe {
            let data = bytes.as_ptr().cast();
            (functions.add)(open.handle, kind, data, bytes.len(), input.name.as_ptr())
        };
        open.step("nvJitLinkAddData", added)?;
    }
    // SAFETY: the link is alive.
    let completed = unsafe { (functions.complete)(open.handle) };
    open.step("nvJitLinkComplete", completed)?;
    match format {
        Format::Ptx => open.bytes("nvJitLinkGetLinkedPtx", functions.ptx_size, functions.ptx),
        Format::MachineCode => {
            open.bytes("nvJitLinkGetLinkedCubin", functions.cubin_size, functions.cubin)
        }
    }
}
