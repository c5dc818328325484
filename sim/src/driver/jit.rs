//! Loads PTX with the options of the host, and reports the outcome as a status, in the log, and in
//! the buffers of the options.

use super::arguments::{peek, put, require};
use super::attributes;
use super::config::Config;
use super::hooks;
use super::image;
use crate::base::code;
use crate::exec;
use crate::program::Program;
use crate::ptx::{LoadError, LoadErrorKind};
use cudarc::driver::sys::CUjit_option;
use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr, c_char, c_uint, c_void};
use std::fmt::Write;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// A place for values of options; the host keeps it alive.
#[derive(Clone, Copy, Default)]
struct Slot(usize);

impl Slot {
    fn of(value: *mut *mut c_void) -> Slot {
        Slot(value.expose_provenance())
    }

    /// Writes a value, if the host gave a place for it.
    fn set<T>(self, value: T) -> Result<(), i32> {
        match self.0 {
            0 => Ok(()),
            address => put!(ptr::with_exposed_provenance_mut::<T>(address), value),
        }
    }
}

/// A log of the host.
#[derive(Default)]
struct Log {
    /// The address of its buffer, and the buffer's bytes.
    buffer: usize,
    room: usize,
    /// Where the number of bytes is returned.
    size: Slot,
    /// 1 more than the bytes of the text that was written last; 0: none was.
    written: AtomicUsize,
}

impl Log {
    /// Writes as much of a text as fits, and the number of its bytes. A text only grows: one of the
    /// same length is not written again. So hosts that do not keep their options while they link,
    /// such as cuda.core 1.1, are not overwritten without need.
    fn write(&self, text: &str) -> Result<(), i32> {
        if self.written.swap(text.len() + 1, Ordering::Relaxed) == text.len() + 1 {
            return Ok(());
        }
        let mut kept = 0;
        if self.buffer != 0 && self.room > 0 {
            kept = text.len().min(self.room - 1);
            let buffer = ptr::with_exposed_provenance_mut::<u8>(self.buffer);
            for (index, byte) in text.bytes().take(kept).chain([0]).enumerate() {
                put!(buffer.wrapping_add(index), byte)?;
            }
        }
        self.size.set(ptr::without_provenance_mut::<c_void>(kept))
    }
}

/// What the options are for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// Loading an image.
    Load,
    /// Linking several.
    Link,
    /// One image that is linked.
    Input,
}

/// The options of a call. Those that change neither results nor what the host can query are only
/// checked.
#[derive(Default)]
pub(super) struct Options {
    info: Log,
    error: Log,
    wall_time: Slot,
    is_verbose: bool,
    /// The compute capability to compile for, if it is not the device's.
    target: Option<u32>,
    most_registers: Option<u32>,
    most_threads: Option<u32>,
    /// The limits above replace those of the PTX.
    overrides: bool,
    /// Addresses of variables that the image does not define, by name.
    symbols: BTreeMap<String, u64>,
}

impl Options {
    /// Reads the options of a call.
    pub(super) fn read(
        purpose: Use,
        count: c_uint,
        options: *mut CUjit_option,
        values: *mut *mut c_void,
    ) -> Result<Options, i32> {
        let mut read = Options::default();
        require(count == 0 || (!options.is_null() && !values.is_null()), code::INVALID_VALUE)?;
        let mut has_threads = false;
        let (mut names, mut addresses) = (ptr::null(), ptr::null());
        let mut symbols = 0;
        // Of logs, times and targets there is one for all inputs of a link.
        let is_for_all = |option| matches!(option, 2..=6 | 8 | 9);
        for index in 0..count as usize {
            // Read as an integer, since a host may pass any value.
            let option = peek!(options.cast::<c_uint>().wrapping_add(index))?;
            let slot = values.wrapping_add(index);
            // Numbers are in the lower half of the value.
            let value = peek!(slot)?;
            let number = value.addr() as c_uint;
            let limit = Some(number).filter(|most| *most > 0);
            require(purpose != Use::Input || !is_for_all(option), code::INVALID_VALUE)?;
            // In the order of `CUjit_option`.
            match option {
                0 => read.most_registers = limit,
                1 => has_threads = true,
                2 => read.wall_time = Slot::of(slot),
                3 => read.info.buffer = value.expose_provenance(),
                4 => (read.info.room, read.info.size) = (number as usize, Slot::of(slot)),
                5 => read.error.buffer = value.expose_provenance(),
                6 => (read.error.room, read.error.size) = (number as usize, Slot::of(slot)),
                // The level of optimisation.
                7 => require(number <= 4, code::INVALID_VALUE)?,
                8 => read.target = None,
                9 => read.target = Some(target(number).ok_or(code::INVALID_VALUE)?),
                // What is preferred to code for this device, which a linker needs.
                10 => require(purpose == Use::Load && number <= 1, code::INVALID_VALUE)?,
                12 => read.is_verbose = number != 0,
                // The mode of caches.
                14 => require(number <= 2, code::INVALID_VALUE)?,
                // The result of a link keeps no addresses.
                17..=19 if purpose != Use::Load => return Err(code::NOT_SUPPORTED),
                17 => names = value.cast::<*const c_char>(),
                18 => addresses = value.cast::<*mut c_void>(),
                19 => symbols = number as usize,
                32 => read.most_threads = limit,
                33 => read.overrides = number != 0,
                // Debug information, other hints, and options of older intermediate code.
                11 | 13 | 15 | 16 | 20..=31 => (),
                _ => return Err(code::INVALID_VALUE),
            }
        }
        require(read.target.is_none() || !has_threads, code::INVALID_VALUE)?;
        for index in 0..symbols {
            let name = named(peek!(names.wrapping_add(index))?)?.to_string_lossy();
            let address = peek!(addresses.wrapping_add(index))?.addr() as u64;
            let other = read.symbols.insert(name.into_owned(), address);
            require(other.is_none_or(|other| other == address), code::INVALID_VALUE)?;
        }
        Ok(read)
    }

    /// The compute capability to compile for.
    pub(super) fn capability(&self, config: &Config) -> u32 {
        self.target.unwrap_or(config.capability())
    }

    /// Loads a text, with the host's limits of its kernels and addresses of other variables.
    pub(super) fn compile(&self, text: &str, config: &Config) -> Result<Arc<Program>, LoadError> {
        let mut program = Program::load(text, self.capability(config))?;
        for function in program.functions.iter_mut().filter(|function| function.is_kernel) {
            let limits = [(".maxnreg", self.most_registers), (".maxntid", self.most_threads)];
            for (directive, limit) in limits {
                let Some(limit) = limit else { continue };
                if self.overrides || !function.limits.contains_key(directive) {
                    function.limits.insert(directive.to_owned(), vec![limit]);
                }
            }
        }
        // Without an address the module gets a variable of its own: a GPU loads it, too (580.159).
        for variable in program.variables.iter_mut().filter(|variable| variable.is_external) {
            variable.place = self.symbols.get(&variable.name).copied();
        }
        Ok(Arc::new(program))
    }

    /// Writes the time since `start`, and both logs.
    pub(super) fn report(&self, start: Instant, info: &str, error: &str) -> Result<(), i32> {
        self.wall_time.set(start.elapsed().as_secs_f32() * 1000.0)?;
        self.info.write(info)?;
        self.error.write(error)
    }

    /// What a verbose log tells of a program.
    pub(super) fn describe(&self, program: &Arc<Program>, config: &Config) -> String {
        let mut text = String::new();
        let kernels = exec::Kernel::all(program).filter(|_| self.is_verbose);
        for kernel in kernels {
            // A String takes any text.
            let _ = writeln!(
                text,
                "ptxas info    : Compiling entry function '{}' for 'sm_{}'\n\
                 ptxas info    : Used {} registers, {} bytes smem",
                kernel.function().name,
                self.capability(config),
                attributes::registers(&kernel),
                kernel.shared_bytes,
            );
        }
        text
    }
}

/// The compute capability of a `CUjit_target`. Variants of one have the same with an addition.
fn target(number: c_uint) -> Option<u32> {
    const ALL: [u32; 23] = [
        30, 32, 35, 37, 50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90, 100, 101, 103, 120,
        121,
    ];
    let capability = number & 0xffff;
    let is_known = ALL.contains(&capability);
    match number >> 16 {
        0 if is_known => Some(capability),
        1 if is_known && capability >= 90 => Some(capability),
        2 if is_known && capability >= 100 => Some(capability),
        _ => None,
    }
}

/// The text of an error in the form of CUDA's assembler.
pub(super) fn message(error: &LoadError) -> String {
    match (error.kind, error.line) {
        (LoadErrorKind::Version, line) => {
            format!("ptxas application ptx input, line {line}; fatal   : {}", error.message)
        }
        (LoadErrorKind::Unresolved, _) | (_, 0) => format!("ptxas fatal   : {}", error.message),
        (_, line) => format!(
            "ptxas application ptx input, line {line}; error   : {}\n\
             ptxas fatal   : Ptx assembly aborted due to errors",
            error.message
        ),
    }
}

/// The status of an image that cannot be loaded; the log says why.
pub(super) fn refuse(error: &LoadError) -> i32 {
    hooks::log_error(format_args!("an image cannot be loaded: {error}"));
    match error.kind {
        LoadErrorKind::NotPtx => code::INVALID_IMAGE,
        LoadErrorKind::Version => code::UNSUPPORTED_PTX_VERSION,
        LoadErrorKind::Unsupported => code::NOT_SUPPORTED,
        LoadErrorKind::Invalid | LoadErrorKind::Unresolved => code::INVALID_PTX,
    }
}

/// Loads a text for the devices.
fn load_text(
    config: &Config,
    text: Result<String, i32>,
    options: &Options,
) -> Result<Arc<Program>, i32> {
    let start = Instant::now();
    let text = match text {
        Ok(text) => text,
        Err(code) => {
            options.report(start, "", "")?;
            return Err(code);
        }
    };
    match options.compile(&text, config) {
        Ok(program) => {
            options.report(start, &options.describe(&program, config), "")?;
            // Code runs on its own compute capability and on later ones of the same generation.
            let (own, target) = (config.capability(), options.capability(config));
            require(target / 10 == own / 10 && target <= own, code::NO_BINARY_FOR_GPU)?;
            Ok(program)
        }
        Err(error) => {
            options.report(start, "", &message(&error))?;
            Err(refuse(&error))
        }
    }
}

/// Loads an image in the memory of the host.
pub(super) fn load(
    config: &Config,
    image: *const c_void,
    options: &Options,
) -> Result<Arc<Program>, i32> {
    load_text(config, image::read(image, options.capability(config)), options)
}

/// Loads the image of a file.
pub(super) fn load_file(
    config: &Config,
    path: *const c_char,
    options: &Options,
) -> Result<Arc<Program>, i32> {
    let text = read_file(path).and_then(|file| image::parse(&file, options.capability(config)));
    load_text(config, text, options)
}

/// The name that the host passed.
pub(super) fn named<'a>(name: *const c_char) -> Result<&'a CStr, i32> {
    require(!name.is_null(), code::INVALID_VALUE)?;
    // SAFETY: not NULL, and NUL-terminated by the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    require(!name.is_empty(), code::INVALID_VALUE)?;
    Ok(name)
}

/// The contents of a file that the host names.
pub(super) fn read_file(path: *const c_char) -> Result<Vec<u8>, i32> {
    let path = named(path)?;
    std::fs::read(OsStr::from_bytes(path.to_bytes())).map_err(|error| match error.kind() {
        ErrorKind::OutOfMemory => code::OUT_OF_MEMORY,
        _ => code::FILE_NOT_FOUND,
    })
}
