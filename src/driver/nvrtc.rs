//! NVRTC: CUDA's compiler as a library. Loaded at its first use, never unloaded.

use super::Table;
use super::compiler::{Failure, Image, Linkage, Log, NvrtcError, Program};
use super::library::{Library, Spec};
use crate::base::once::Once;
use crate::base::rank::Rank;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt::Write;
use std::sync::atomic::{AtomicU32, Ordering};

static LIBRARY: Spec = Spec {
    title: "NVRTC",
    variable: c"TCUDA_NVRTC_PATH",
    beside: None,
    names: &[
        c"libnvrtc.so.13",
        c"libnvrtc.so.12",
        c"libnvrtc.so.11.2",
        c"libnvrtc.so",
        c"/usr/local/cuda/lib64/libnvrtc.so",
    ],
    advice: "get it (pip install nvidia-cuda-nvrtc-cu12; nvidia-cuda-nvrtc for a driver of CUDA \
             13) and put its folder on the loader's path",
};

type Handle = *mut c_void;

/// NVRTC's result for an invalid source.
const COMPILATION: c_int = 6;
const OUT_OF_MEMORY: c_int = 1;

/// Most targets that are considered.
const MOST_TARGETS: usize = 64;

/// The loaded functions.
#[derive(Clone, Copy)]
struct Functions {
    version: u32,
    targets: [c_int; MOST_TARGETS],
    create: Create,
    destroy: Destroy,
    compile: Compile,
    add_name: AddName,
    lowered_name: LoweredName,
    log_size: Size,
    log: Get,
    ptx_size: Size,
    ptx: Get,
    cubin_size: Size,
    cubin: Get,
    /// Since CUDA 12.0.
    lto_ir: Option<(Size, Get)>,
}

type Version = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
type Count = unsafe extern "C" fn(*mut c_int) -> c_int;
type Create = unsafe extern "C" fn(
    *mut Handle,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type Destroy = unsafe extern "C" fn(*mut Handle) -> c_int;
type Compile = unsafe extern "C" fn(Handle, c_int, *const *const c_char) -> c_int;
type AddName = unsafe extern "C" fn(Handle, *const c_char) -> c_int;
type LoweredName = unsafe extern "C" fn(Handle, *const c_char, *mut *const c_char) -> c_int;
type Size = unsafe extern "C" fn(Handle, *mut usize) -> c_int;
type Get = unsafe extern "C" fn(Handle, *mut c_char) -> c_int;

static FUNCTIONS: Once<Functions> = Once::new(Rank::ONCE);
/// The driver's version, in the format of cuDriverGetVersion; 0: unknown.
static DRIVER: AtomicU32 = AtomicU32::new(0);

fn check(call: &'static str, code: c_int) -> Result<(), Failure> {
    match code {
        0 => Ok(()),
        OUT_OF_MEMORY => Err(Failure::OutOfHostMemory),
        code => Err(Failure::Call(NvrtcError { call, code })),
    }
}

macro_rules! function {
    ($library:expr, $type:ty, $name:literal) => {{
        const NAME: &CStr = $name;
        let address = $library.symbol(NAME);
        if address.is_null() {
            return Err(Failure::Missing(NAME.to_str().unwrap_or("a function")));
        }
        // SAFETY: NVRTC's function of this name has this signature.
        unsafe { std::mem::transmute::<*mut c_void, $type>(address) }
    }};
}

/// The version of a library: 12090 is 12.9.
fn version_of(library: &Library) -> Result<u32, Failure> {
    let get = function!(library, Version, c"nvrtcVersion");
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both are writable.
    check("nvrtcVersion", unsafe { get(&mut major, &mut minor) })?;
    Ok(major.unsigned_abs() * 1000 + minor.unsigned_abs() * 10)
}

/// Sets the driver that will load the images: a driver older than NVRTC refuses its newest format.
pub fn set_driver_version(table: &Table) {
    let Some(get) = table.cuDriverGetVersion else { return };
    let mut version = 0;
    // SAFETY: `version` is writable.
    if unsafe { get(&mut version) } == 0 {
        DRIVER.store(version.unsigned_abs(), Ordering::Relaxed);
    }
}

/// The driver's version, as in `set_driver_version`; 0: unknown.
pub(super) fn driver_version() -> u32 {
    DRIVER.load(Ordering::Relaxed)
}

/// The functions for LTO IR, which older versions lack.
fn lto_ir(library: &Library) -> Result<Option<(Size, Get)>, Failure> {
    if library.symbol(c"nvrtcGetLTOIR").is_null() {
        return Ok(None);
    }
    let size = function!(library, Size, c"nvrtcGetLTOIRSize");
    Ok(Some((size, function!(library, Get, c"nvrtcGetLTOIR"))))
}

/// Loads NVRTC, unless it is loaded.
pub fn find() -> Result<(), Failure> {
    functions().map(|_| ())
}

/// The version that is loaded; 0: none yet.
pub fn known_version() -> u32 {
    FUNCTIONS.get().map_or(0, |functions| functions.version)
}

/// Loads the library of built-ins, which NVRTC loads by its name alone, from NVRTC's own directory:
/// no search path may lead there. If it is missing, NVRTC reports it.
fn open_builtins(library: &Library, version: u32) {
    let address = library.symbol(c"nvrtcVersion");
    // SAFETY: a structure of pointers.
    let mut place: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address will do; `place` is writable.
    let found = unsafe { libc::dladdr(address, &mut place) };
    if found == 0 || place.dli_fname.is_null() {
        return;
    }
    // SAFETY: NUL-terminated, and valid as long as the library is open: for ever.
    let path = unsafe { CStr::from_ptr(place.dli_fname) }.to_bytes();
    let Some(end) = path.iter().rposition(|byte| *byte == b'/') else { return };
    let Ok(folder) = std::str::from_utf8(&path[..end]) else { return };
    let mut name = Short::new();
    let (major, minor) = (version / 1000, version % 1000 / 10);
    if write!(name, "{folder}/libnvrtc-builtins.so.{major}.{minor}").is_ok() {
        let flags = libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE;
        // SAFETY: NUL-terminated; a part of NVRTC, and trusted like it.
        unsafe { libc::dlopen(name.as_ptr(), flags) };
    }
}

fn functions() -> Result<&'static Functions, Failure> {
    FUNCTIONS.get_or_try_init(|| {
        let driver = DRIVER.load(Ordering::Relaxed);
        let suits = |library: &Library| {
            driver == 0 || version_of(library).is_ok_and(|version| version / 1000 <= driver / 1000)
        };
        let library = Library::open_preferring(&LIBRARY, suits)?;
        open_builtins(&library, version_of(&library)?);
        let count = function!(library, Count, c"nvrtcGetNumSupportedArchs");
        let list = function!(library, Count, c"nvrtcGetSupportedArchs");
        let mut number = 0;
        // SAFETY: `number` is writable.
        check("nvrtcGetNumSupportedArchs", unsafe { count(&mut number) })?;
        let mut targets = [0; MOST_TARGETS];
        if number as usize <= MOST_TARGETS {
            // SAFETY: there is room for `number` targets.
            check("nvrtcGetSupportedArchs", unsafe { list(targets.as_mut_ptr()) })?;
        }
        Ok(Functions {
            version: version_of(&library)?,
            targets,
            create: function!(library, Create, c"nvrtcCreateProgram"),
            destroy: function!(library, Destroy, c"nvrtcDestroyProgram"),
            compile: function!(library, Compile, c"nvrtcCompileProgram"),
            add_name: function!(library, AddName, c"nvrtcAddNameExpression"),
            lowered_name: function!(library, LoweredName, c"nvrtcGetLoweredName"),
            log_size: function!(library, Size, c"nvrtcGetProgramLogSize"),
            log: function!(library, Get, c"nvrtcGetProgramLog"),
            ptx_size: function!(library, Size, c"nvrtcGetPTXSize"),
            ptx: function!(library, Get, c"nvrtcGetPTX"),
            cubin_size: function!(library, Size, c"nvrtcGetCUBINSize"),
            cubin: function!(library, Get, c"nvrtcGetCUBIN"),
            lto_ir: lto_ir(&library)?,
        })
    })
}

/// A program, destroyed when it is dropped.
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

impl Functions {
    /// The newest target that a device of `capability` can run.
    fn target(&self, capability: u32) -> Result<u32, Failure> {
        let known = self.targets.iter().map(|target| target.unsigned_abs());
        let best = known.filter(|target| (1..=capability).contains(target)).max();
        best.ok_or(Failure::Target { version: self.version, capability })
    }

    fn bytes(&self, program: &Open<'_>, size: Size, get: Get) -> Result<Vec<u8>, Failure> {
        let mut length = 0;
        // SAFETY: the program is alive; `length` is writable.
        check("nvrtcGet...Size", unsafe { size(program.handle, &mut length) })?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(length).map_err(|_| Failure::OutOfHostMemory)?;
        bytes.resize(length, 0);
        // SAFETY: there is room for `length` bytes.
        check("nvrtcGet...", unsafe { get(program.handle, bytes.as_mut_ptr().cast()) })?;
        Ok(bytes)
    }
}

/// Longest path.
const ROOM: usize = 1024;

/// A short NUL-terminated text, by value.
pub(super) struct Short {
    bytes: [u8; ROOM],
    len: usize,
}

impl Short {
    /// An empty text.
    pub(super) fn new() -> Short {
        Short { bytes: [0; ROOM], len: 0 }
    }

    /// The text for C.
    pub(super) fn as_ptr(&self) -> *const c_char {
        self.bytes.as_ptr().cast()
    }
}

impl Write for Short {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let room = self.bytes.get_mut(self.len..self.len + text.len() + 1);
        let room = room.ok_or(std::fmt::Error)?;
        room[..text.len()].copy_from_slice(text.as_bytes());
        self.len += text.len();
        Ok(())
    }
}

fn is_of(flag: &CStr, names: &[&str]) -> bool {
    let flag = flag.to_str().unwrap_or("");
    names.iter().any(|name| flag.starts_with(name))
}

/// The format of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Always PTX.
    Ptx,
    /// Machine code if NVRTC has the device's own target, else PTX.
    MachineCode,
}

/// Compiles a program.
pub fn compile(program: &Program<'_>, format: Format) -> Result<Image, Failure> {
    // --minimal leaves out what elementwise functions rarely need (textures, functions of the
    // runtime), and saves an eighth of the time. Versions without the option refuse it at once.
    // Sources that need those parts are compiled again without it.
    if program.is_plain
        && let Ok(image) = compile_with(program, format, &[c"--minimal"])
    {
        return Ok(image);
    }
    compile_with(program, format, &[])
}

fn compile_with(
    program: &Program<'_>,
    format: Format,
    own: &[&'static CStr],
) -> Result<Image, Failure> {
    let functions = functions()?;
    let target = functions.target(program.capability)?;
    let is_machine_code = format == Format::MachineCode
        && target == program.capability
        && program.linkage != Linkage::Optimized;
    let mut architecture = Short::new();
    let kind = if is_machine_code { "sm" } else { "compute" };
    let _ = write!(architecture, "--gpu-architecture={kind}_{target}");
    let mut options: Vec<*const c_char> = Vec::new();
    let room = options.try_reserve_exact(program.flags.len() + own.len() + 4);
    room.map_err(|_| Failure::OutOfHostMemory)?;
    options.push(architecture.as_ptr());
    options.push(c"-default-device".as_ptr());
    match program.linkage {
        Linkage::Whole => (),
        Linkage::Linked => options.push(c"-rdc=true".as_ptr()),
        Linkage::Optimized => options.push(c"-dlto".as_ptr()),
    }
    if !program.flags.iter().any(|flag| is_of(flag, &["-std", "--std"])) {
        options.push(c"--std=c++17".as_ptr());
    }
    options.extend(program.flags.iter().chain(own).map(|flag| flag.as_ptr()));

    let mut open = Open { functions, handle: std::ptr::null_mut() };
    let (source, title) = (program.source.as_ptr(), program.title.as_ptr());
    let (none, no_names) = (std::ptr::null(), std::ptr::null());
    // SAFETY: NUL-terminated texts; `handle` is writable.
    let made = unsafe { (functions.create)(&mut open.handle, source, title, 0, none, no_names) };
    if made != 0 {
        // Nothing to destroy.
        std::mem::forget(open);
        return Err(check("nvrtcCreateProgram", made).err().unwrap_or(Failure::OutOfHostMemory));
    }
    if !program.is_plain {
        // SAFETY: the program is alive; the name ends with a NUL.
        let added = unsafe { (functions.add_name)(open.handle, program.entry.as_ptr()) };
        check("nvrtcAddNameExpression", added)?;
    }
    // SAFETY: the program is alive, and the list is as long as it says.
    let code =
        unsafe { (functions.compile)(open.handle, options.len() as c_int, options.as_ptr()) };
    if code == COMPILATION {
        let log = functions.bytes(&open, functions.log_size, functions.log)?;
        return Err(Failure::Source(Log::of(log.strip_suffix(b"\0").unwrap_or(&log))));
    }
    check("nvrtcCompileProgram", code)?;
    let (size, get) = match program.linkage {
        Linkage::Optimized => functions.lto_ir.ok_or(Failure::NoLtoIr)?,
        _ if is_machine_code => (functions.cubin_size, functions.cubin),
        _ => (functions.ptx_size, functions.ptx),
    };
    let bytes = functions.bytes(&open, size, get)?;
    let mut name = program.entry.as_ptr();
    if !program.is_plain {
        let expression = program.entry.as_ptr();
        // SAFETY: the program was compiled with this expression; `name` is writable.
        let asked = unsafe { (functions.lowered_name)(open.handle, expression, &mut name) };
        check("nvrtcGetLoweredName", asked)?;
    }
    // SAFETY: NUL-terminated, and valid as long as the program.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes_with_nul();
    let mut entry = Vec::new();
    entry.try_reserve_exact(name.len()).map_err(|_| Failure::OutOfHostMemory)?;
    entry.extend_from_slice(name);
    Ok(Image { bytes, entry, version: functions.version })
}
