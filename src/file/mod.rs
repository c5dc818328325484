//! Transfers between files and device memory: torch.cuda.gds (`docs/files.md`).
//!
//! A file is read and written by cuFile (GPUDirect Storage, `buffers.rs` has its registered
//! memory), or through pinned memory by the system's calls (`staging.rs`). Both wait for the work
//! of a stream before, and return when the transfer is done. Begin with [`File::transfer`].

mod buffers;
mod open;
mod staging;

pub use buffers::not_registered;
pub use open::{CREATE, FLAGS, READ, STAGING, TRUNCATE, WRITE};

use crate::base::descriptor::Descriptor;
use crate::base::error::{Access, Error, Result};
use crate::base::file::BlockedSignals;
use crate::base::lock::Mutex;
use crate::base::once::Once;
use crate::base::rank::Rank;
use crate::base::shared::Shared;
use crate::base::text::Text;
use crate::base::waiting;
use crate::driver::cufile::{self, Cufile, Failure};
use crate::driver::sync_debug;
use crate::gpu::capture_mode::Relaxed;
use crate::gpu::device::{CURRENT, Device};
use crate::gpu::gpus::Gpus;
use crate::gpu::sanitizer_reports;
use crate::gpu::stream::Stream;
use crate::gpu::subsystem::{Kind as SubsystemKind, Subsystem};
use crate::memory;
use crate::ops::copy;
use crate::sanitizer::{self, Touch};
use buffers::Buffer;
use std::ffi::CStr;

/// The state of cuFile in an initialisation of the library.
pub struct Files {
    /// Did this library open cuFile's driver?
    is_driver_own: Once<bool>,
    buffers: Mutex<Vec<Buffer>>,
}

// SAFETY: no other type has this kind, and the runtime sets it before a call can use it.
unsafe impl Subsystem for Files {
    type Owner = Gpus;
    const KIND: SubsystemKind = SubsystemKind::Files;
}

impl Gpus {
    /// The state of cuFile.
    #[inline(always)]
    pub fn files(&self) -> &Files {
        self.subsystem()
    }
}

impl Files {
    pub(crate) fn new() -> Files {
        Files { is_driver_own: Once::new(Rank::ONCE), buffers: Mutex::new(Rank::LEAF, Vec::new()) }
    }

    /// cuFile, with its driver open.
    fn cufile(&self, gpus: &Gpus) -> Result<&'static Cufile> {
        let cufile = cufile::get(gpus.driver().is_simulated())?;
        let _relaxed = Relaxed::enter(gpus.driver());
        let _context = gpus.device(CURRENT)?.enter()?;
        self.is_driver_own.get_or_try_init(|| cufile.open_driver())?;
        Ok(cufile)
    }

    /// Ends all registrations, then closes cuFile's driver; no thread uses it any more.
    pub(crate) fn close(&self, gpus: &Gpus) {
        let Some(is_own) = self.is_driver_own.get() else { return };
        self.unregister_all(gpus);
        if let (true, Ok(cufile)) = (*is_own, cufile::get(gpus.driver().is_simulated())) {
            cufile.close_driver();
        }
    }
}

/// Which way a transfer goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the file into memory.
    Read,
    /// From memory into the file.
    Write,
}

impl Direction {
    fn call(self) -> &'static str {
        match self {
            Direction::Read => "tcuda_file_read",
            Direction::Write => "tcuda_file_write",
        }
    }

    fn access(self, at: u64) -> Access {
        match self {
            Direction::Read => Access::Read(at),
            Direction::Write => Access::Write(at),
        }
    }
}

/// Device memory and a place in a file.
#[derive(Clone, Copy)]
struct Extent {
    address: u64,
    bytes: u64,
    /// In the file.
    offset: u64,
}

/// A file of the host. A closed one stays open for the calls that use it.
pub struct File {
    opened: Mutex<Option<Shared<OpenFile>>>,
}

/// An open file, registered with cuFile unless it is staged.
struct OpenFile {
    descriptor: Descriptor,
    /// cuFile and its handle.
    registered: Option<(&'static Cufile, usize)>,
    path: Text,
    flags: u32,
    is_regular: bool,
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if let Some((cufile, handle)) = self.registered {
            cufile.deregister_handle(handle);
        }
    }
}

impl OpenFile {
    fn failed(&self, access: Access, code: i32) -> Error {
        Error::FileAccess { path: self.path, access, code }
    }
}

impl File {
    /// Opens a file, and registers it with cuFile unless the flags say that it is staged.
    pub fn open(gpus: &Gpus, path: &CStr, flags: u32) -> Result<File> {
        open::check(flags)?;
        waiting::refuse_in_callback()?;
        // First: without cuFile the file is neither created nor truncated.
        let cufile = match flags & STAGING {
            0 => Some(gpus.files().cufile(gpus)?),
            _ => None,
        };
        let (descriptor, is_regular) = open::open(path, flags)?;
        let path = open::shown(path);
        let mut file = OpenFile { descriptor, registered: None, path, flags, is_regular };
        if let Some(cufile) = cufile {
            let _relaxed = Relaxed::enter(gpus.driver());
            let _context = gpus.device(CURRENT)?.enter()?;
            let handle = cufile.register_handle(file.descriptor.number())?;
            file.registered = Some((cufile, handle));
        }
        if flags & TRUNCATE != 0 && is_regular {
            open::truncate(&file)?;
        }
        Ok(File { opened: Mutex::new(Rank::LEAF, Some(Shared::new(file, "a file")?)) })
    }

    fn opened(&self) -> Result<Shared<OpenFile>> {
        let opened = self.opened.lock();
        opened
            .as_ref()
            .map(Shared::share)
            .ok_or(Error::InvalidState("the file was closed meanwhile"))
    }

    /// Closes the file, or lets the last call that uses it do so.
    pub fn close(&self) {
        let opened = self.opened.lock().take();
        drop(opened);
    }

    /// Its descriptor and its CUfileHandle_t, 0 if it is staged.
    pub fn native(&self) -> Result<(i32, usize)> {
        let file = self.opened()?;
        Ok((file.descriptor.number(), file.registered.map_or(0, |(_, handle)| handle)))
    }

    /// Transfers bytes between an offset of the file and device memory, after the work of the
    /// stream. Returns when the transfer is done: the number of bytes, which is less at the end of
    /// a file that is read.
    pub fn transfer(
        &self,
        gpus: &Gpus,
        direction: Direction,
        (address, bytes): (u64, u64),
        offset: i64,
        stream: Option<&Stream>,
    ) -> Result<u64> {
        let file = self.opened()?;
        let extent = Extent { address, bytes, offset: checked(&file, direction, bytes, offset)? };
        if bytes == 0 {
            return Ok(0);
        }
        waiting::refuse_in_callback()?;
        let device = device_of(gpus, address, bytes)?;
        let stream = match stream {
            Some(stream) => stream,
            None => device.streams.current(),
        };
        let stream = stream.on_this_thread(gpus)?;
        if stream.is_capturing(gpus)? {
            return Err(Error::Capturing {
                operation: direction.call(),
                why: "a graph has no transfers of files; make them before the capture, or after it",
            });
        }
        let _documented = sync_debug::check_documented(sync_debug::FILE_TRANSFER)?;
        let _relaxed = Relaxed::enter(gpus.driver());
        let touch = match direction {
            Direction::Read => Touch::write(address, bytes),
            Direction::Write => Touch::read(address, bytes),
        };
        sanitizer_reports::operation(gpus, stream, direction.call(), &[touch]);
        let point = sanitizer_reports::point_of_stream(gpus, stream);
        // At the limit of a file's size a write is an error, not the end of the process.
        let _quiet = (direction == Direction::Write).then(BlockedSignals::begin);
        let done = match file.registered {
            Some((cufile, handle)) => {
                stream.synchronize(gpus)?;
                let _context = device.enter()?;
                by_cufile(gpus, &file, (cufile, handle), direction, extent)
            }
            None => match direction {
                Direction::Read => staging::read(gpus, &file, extent, stream),
                Direction::Write => staging::write(gpus, &file, extent, stream),
            },
        }?;
        sanitizer::reached(point);
        Ok(done)
    }
}

/// Checks how a file was opened, and the place in it; returns the offset.
fn checked(file: &OpenFile, direction: Direction, bytes: u64, offset: i64) -> Result<u64> {
    let (needed, missing) = match direction {
        Direction::Read => (READ, "the file was opened without TCUDA_FILE_READ"),
        Direction::Write => (WRITE, "the file was opened without TCUDA_FILE_WRITE"),
    };
    if file.flags & needed == 0 {
        return Err(Error::Invalid(missing));
    }
    let Ok(start) = u64::try_from(offset) else {
        return Err(Error::OutOfRange {
            name: "file_offset",
            value: offset,
            allowed: "use 0 or more: it is counted from the beginning of the file",
        });
    };
    match start.checked_add(bytes) {
        Some(end) if i64::try_from(end).is_ok() => Ok(start),
        _ => Err(Error::OutOfRange {
            name: "bytes",
            value: bytes as i64,
            allowed: "from file_offset on that is beyond the end of the largest file",
        }),
    }
}

/// The device of a range of device memory.
fn device_of(gpus: &Gpus, address: u64, bytes: u64) -> Result<&Device> {
    let outside = || Error::OutOfRange {
        name: "bytes",
        value: bytes as i64,
        allowed: "the memory that contains ptr ends before",
    };
    let end = address.checked_add(bytes).ok_or_else(outside)?;
    memory::require_awake(address)?;
    let block = memory::extent(address)?;
    let Some(device) = copy::device_of(gpus, address)? else {
        return Err(Error::InvalidPointer {
            ptr: address as usize,
            why: "is not memory of a device; memory of the host is read and written by the \
                  system's own calls",
        });
    };
    match block {
        Some((start, length)) if end - start > length => return Err(outside()),
        Some(_) => (),
        None => {
            // Memory of the host's own may consist of several mappings.
            let mut at = address;
            while at < end {
                at = copy::range_of(gpus, at)?.ok_or_else(outside)?.1;
            }
        }
    }
    gpus.device(device)
}

/// Transfers by cuFile, piece by piece; the device's context is current.
fn by_cufile(
    gpus: &Gpus,
    file: &OpenFile,
    (cufile, handle): (&Cufile, usize),
    direction: Direction,
    extent: Extent,
) -> Result<u64> {
    let bytes = match direction {
        // cuFile is not called beyond the end of a file.
        Direction::Read if file.is_regular => {
            extent.bytes.min(open::size(file)?.saturating_sub(extent.offset))
        }
        _ => extent.bytes,
    };
    let mut done = 0;
    while done < bytes {
        let place = gpus.files().place_of(gpus, extent.address + done, bytes - done)?;
        let at = extent.offset + done;
        let moved = match direction {
            Direction::Read => cufile.read(handle, place, at),
            Direction::Write => cufile.write(handle, place, at),
        };
        match moved {
            Ok(0) if direction == Direction::Read => break,
            Ok(0) => return Err(file.failed(direction.access(at), libc::EIO)),
            Ok(moved) => done += moved.min(place.bytes),
            Err(Failure::System(_, libc::EINTR)) => (),
            Err(Failure::System(_, code)) => return Err(file.failed(direction.access(at), code)),
            Err(failure) => return Err(failure.into()),
        }
    }
    Ok(done)
}
