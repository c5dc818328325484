//! Kernels that the user writes in CUDA C++.

use super::call::capability;
use super::launch::Launch;
use super::limits::Limits;
use super::plans::Plans;
use super::store::{Loaded, MAX_PARAMETERS};
use crate::base::error::{Error, Result};
use crate::base::text::Text;
use crate::driver::compiler::{Linkage, Program};
use crate::driver::linker::{Input, Kind as ImageKind};
use crate::gpu::device::Device;
use crate::gpu::gpus::Gpus;
use crate::gpu::sanitizer_reports;
use crate::gpu::stream::Stream;
use crate::memory;
use crate::sanitizer::{self, Mode, Touch};
use std::ffi::{CStr, c_void};

/// An image that a kernel is linked with.
struct OwnImage {
    kind: ImageKind,
    bytes: Vec<u8>,
    /// With a NUL.
    name: Vec<u8>,
}

/// A kernel that the user wrote.
pub struct Kernel {
    /// Each with a NUL.
    source: Vec<u8>,
    name: Vec<u8>,
    flags: Vec<Vec<u8>>,
    images: Vec<OwnImage>,
    linkage: Linkage,
    /// The compiled kernel for each device.
    plans: Plans<i32>,
}

fn copied(text: &CStr) -> Result<Vec<u8>> {
    bytes_of(text.to_bytes_with_nul())
}

/// A copy with room for one more byte.
fn bytes_of(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len() + 1).map_err(|_| Error::OutOfHostMemory("a kernel"))?;
    copy.extend_from_slice(bytes);
    Ok(copy)
}

/// The text as a C string; it was copied with its NUL.
fn text(bytes: &[u8]) -> &CStr {
    CStr::from_bytes_with_nul(bytes).unwrap_or(c"")
}

impl Kernel {
    /// Compiles a kernel for a device. For other devices the first launch does so.
    pub fn new(
        device: &Device,
        source: &CStr,
        name: &CStr,
        flags: &[&CStr],
        images: &[Input<'_>],
        is_optimized: bool,
    ) -> Result<Kernel> {
        let bytes = name.to_bytes();
        if bytes.is_empty() || !bytes.is_ascii() || bytes.contains(&b'"') || bytes.contains(&b'\n')
        {
            return Err(Error::BadText {
                name: "name",
                value: Text::new(name.to_str().unwrap_or("")),
                allowed: "it must be the name of a kernel, \"add\", or an instance of a template, \
                          \"scale<float>\"",
            });
        }
        let mut list = Vec::new();
        let room = list.try_reserve_exact(flags.len());
        room.map_err(|_| Error::OutOfHostMemory("a kernel"))?;
        for flag in flags {
            list.push(copied(flag)?);
        }
        let mut own = Vec::new();
        let room = own.try_reserve_exact(images.len());
        room.map_err(|_| Error::OutOfHostMemory("a kernel"))?;
        for image in images {
            let mut bytes = bytes_of(image.bytes)?;
            if image.kind == ImageKind::Ptx && bytes.last() != Some(&0) {
                bytes.push(0);
            }
            own.push(OwnImage { kind: image.kind, bytes, name: copied(image.name)? });
        }
        let has_lto_ir = images.iter().any(|image| image.kind == ImageKind::LtoIr);
        let kernel = Kernel {
            images: own,
            linkage: match images.is_empty() {
                _ if is_optimized || has_lto_ir => Linkage::Optimized,
                true => Linkage::Whole,
                false => Linkage::Linked,
            },
            source: copied(source)?,
            name: copied(name)?,
            flags: list,
            plans: Plans::new(),
        };
        kernel.prepare(device)?;
        Ok(kernel)
    }

    /// Compiles it for a device, or reads it from disk.
    #[cold]
    fn prepare(&self, device: &Device) -> Result<()> {
        let mut flags: Vec<&CStr> = Vec::new();
        let room = flags.try_reserve_exact(self.flags.len());
        room.map_err(|_| Error::OutOfHostMemory("a kernel"))?;
        flags.extend(self.flags.iter().map(|flag| text(flag)));
        let mut images = Vec::new();
        let room = images.try_reserve_exact(self.images.len());
        room.map_err(|_| Error::OutOfHostMemory("a kernel"))?;
        images.extend(self.images.iter().map(|image| Input {
            kind: image.kind,
            bytes: &image.bytes,
            name: text(&image.name),
        }));
        let program = Program {
            linkage: self.linkage,
            images: &images,
            source: text(&self.source),
            title: c"source",
            entry: text(&self.name),
            is_plain: false,
            flags: &flags,
            capability: capability(device)?,
        };
        let entry = device.compiled().find(device, &program)?;
        self.plans.add(device.ordinal(), entry)
    }

    /// The kernel as it is loaded on a device, which compiles it if necessary.
    #[inline]
    fn loaded(&self, device: &Device) -> Result<&Loaded> {
        if self.plans.find(&device.ordinal()).is_none() {
            self.prepare(device)?;
        }
        let entry = self.plans.find(&device.ordinal());
        let missing = || Error::Internal(Text::new("a kernel that was made and is not there"));
        entry.and_then(|entry| entry.get()).ok_or_else(missing)
    }

    /// Queues a launch. `arguments` are pointers to argument values, which are read before the
    /// return.
    pub fn launch(
        &self,
        gpus: &Gpus,
        launch: &Launch,
        arguments: &[*mut c_void],
        accesses: Option<&[i32]>,
        stream: &Stream,
    ) -> Result<()> {
        let device = gpus.device(stream.device())?;
        let loaded = self.loaded(device)?;
        if let Some(expected) = loaded.parameters.filter(|expected| *expected != arguments.len()) {
            return Err(Error::Count { name: "num_args", found: arguments.len(), expected });
        }
        if arguments.iter().any(|argument| argument.is_null()) {
            return Err(Error::Null { name: "args[i]" });
        }
        check_accesses(accesses)?;
        let mut room = [std::ptr::null_mut(); MAX_PARAMETERS];
        let Some(parameters) = room.get_mut(..arguments.len()) else {
            return Err(Error::OutOfRange {
                name: "num_args",
                value: arguments.len() as i64,
                allowed: "a kernel has at most 64 arguments here; pass a struct",
            });
        };
        parameters.copy_from_slice(arguments);
        loaded.allow_shared(device, launch.shared_bytes)?;
        let _context = device.enter()?;
        launch.queue(device, loaded, parameters, stream)?;
        if sanitizer::is_on() {
            report(gpus, stream, arguments, accesses.unwrap_or(&[]));
        }
        Ok(())
    }

    /// Its limits, and those of a launch. Queues nothing, also while the stream is captured.
    pub fn limits(&self, gpus: &Gpus, launch: &Launch, stream: &Stream) -> Result<Limits> {
        let device = gpus.device(stream.device())?;
        let loaded = self.loaded(device)?;
        loaded.allow_shared(device, launch.shared_bytes)?;
        let _context = device.enter()?;
        Limits::of(device, loaded, launch, stream)
    }
}

/// Reports a launch to the sanitizer. A pointer argument counts as an access to the rest of its
/// block.
#[cold]
fn report(gpus: &Gpus, stream: &Stream, arguments: &[*mut c_void], accesses: &[i32]) {
    let mut touches = [Touch::read(0, 0); MAX_PARAMETERS];
    for ((touch, argument), access) in touches.iter_mut().zip(arguments).zip(accesses) {
        let mode = match *access {
            1 => Mode::Read,
            2 => Mode::Write,
            3 => Mode::ReadWrite,
            _ => continue,
        };
        // SAFETY: the caller guarantees that the argument is an address, of any alignment.
        let address = unsafe { argument.cast::<u64>().read_unaligned() };
        *touch = Touch::rows(address, rest_of_block(address), 1, 0, mode);
    }
    sanitizer_reports::operation(gpus, stream, "tcuda_kernel_launch", &touches);
}

/// Bytes from an address to the end of its block, even if the block was allocated before the
/// sanitizer was on. 0: the address is in no block.
fn rest_of_block(address: u64) -> u64 {
    match sanitizer::rest_of_block(address) {
        0 => {
            let extent = memory::extent(address).ok().flatten();
            extent.map_or(0, |(start, bytes)| (start + bytes).saturating_sub(address))
        }
        bytes => bytes,
    }
}

/// Checks the access modes that the caller passed.
fn check_accesses(accesses: Option<&[i32]>) -> Result<()> {
    let wrong = accesses.unwrap_or(&[]).iter().find(|access| !(0..=3).contains(*access));
    match wrong {
        None => Ok(()),
        Some(access) => Err(Error::OutOfRange {
            name: "accesses[i]",
            value: (*access).into(),
            allowed: "use TCUDA_ACCESS_...",
        }),
    }
}
