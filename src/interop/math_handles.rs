//! Handles of cuBLAS and cuSOLVER, one for each thread and device, as in PyTorch. When a thread
//! ends, other threads reuse its handles. Workspaces of cuBLAS, one for each handle and stream,
//! come from the library's cache.
//!
//! While a stream is captured by tcuda, the workspace is the capture's own, from the graph's
//! memory: work inside and outside the graph never shares a workspace.

use crate::base::environment;
use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::base::log::{self, Level};
use crate::base::rank::Rank;
use crate::base::text::Text;
use crate::base::thread::{self, try_box};
use crate::driver::math_library::{Kind, MathLibrary};
use crate::gpu::capture_mode::Relaxed;
use crate::gpu::device::Device;
use crate::gpu::external_registry::HeldStream;
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::Stream;
use crate::memory;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};

/// The workspace of a handle for one stream.
struct Space {
    stream: HeldStream,
    /// Id of the capture that it belongs to; 0: none.
    capture: u64,
    address: u64,
    bytes: u64,
}

/// A handle of cuBLAS or cuSOLVER.
struct Handle {
    library: &'static MathLibrary,
    device: i32,
    native: usize,
    /// The thread that uses it; 0: none.
    owner: usize,
    /// Only its owner accesses it.
    spaces: UnsafeCell<Vec<Space>>,
}

// SAFETY: the owner is changed under the lock, and only the owning thread uses the rest.
unsafe impl Send for Handle {}

/// All handles. They stay at their addresses until the library is shut down.
#[allow(clippy::vec_box, reason = "handles must not move when the list grows")]
static HANDLES: Mutex<Vec<Box<Handle>>> = Mutex::new(Rank::LEAF, Vec::new());
/// Was a handle ever created?
static IN_USE: AtomicBool = AtomicBool::new(false);

const MIB: u64 = 1 << 20;

/// This thread's handle of a library and device, set to its current stream.
pub fn handle(gpus: &Gpus, device: &Device, kind: &'static Kind) -> Result<usize> {
    let mut version = 0;
    // SAFETY: `version` is writable.
    unsafe { gpus.driver().cuDriverGetVersion(&mut version) }?;
    let library = kind.get(device.is_simulated(), version)?;
    let stream = device.streams.current();
    let _context = device.enter()?;
    let handle = own(gpus, device, library)?;
    // SAFETY: handles stay until shutdown, which waits for this call.
    let handle = unsafe { &*handle };
    let space = match library.takes_workspaces() {
        true => Some(handle.space(gpus, device, stream.on_this_thread(gpus)?)?),
        false => None,
    };
    library.use_on(handle.native, stream.native() as usize, space)?;
    Ok(handle.native)
}

/// This thread's handle, an unowned one, or a new one; the device's context is current.
fn own(gpus: &Gpus, device: &Device, library: &'static MathLibrary) -> Result<*const Handle> {
    let (me, ordinal) = (thread::address(), device.ordinal());
    let left = {
        let mut handles = HANDLES.lock();
        let of = |owner| {
            move |known: &Handle| {
                known.device == ordinal
                    && known.owner == owner
                    && std::ptr::eq(known.library, library)
            }
        };
        if let Some(index) = handles.iter().position(|known| of(me)(known)) {
            return Ok(&raw const *handles[index]);
        }
        handles.iter().position(|known| of(0)(known)).map(|index| {
            handles[index].owner = me;
            &raw const *handles[index]
        })
    };
    let Some(left) = left else { return make(gpus, device, library, me) };
    // SAFETY: as in `handle`.
    if let Err(failure) = library.reset_modes(unsafe { &*left }.native) {
        // It stays unowned.
        let mut handles = HANDLES.lock();
        if let Some(index) = handles.iter().position(|known| std::ptr::eq(&raw const **known, left))
        {
            handles[index].owner = 0;
        }
        return Err(failure.into());
    }
    Ok(left)
}

#[cold]
fn make(
    gpus: &Gpus,
    device: &Device,
    library: &'static MathLibrary,
    owner: usize,
) -> Result<*const Handle> {
    const NO_ROOM: &str = "a handle of cuBLAS or cuSOLVER";
    let spaces = UnsafeCell::new(Vec::new());
    let mut handle =
        try_box(Handle { library, device: device.ordinal(), native: 0, owner, spaces }, NO_ROOM)?;
    // It allocates, which must not invalidate a capture that is under way.
    let _relaxed = Relaxed::enter(gpus.driver());
    handle.native = match library.create() {
        // It cannot use memory that the cache holds.
        Err(failure) if failure.is_out_of_memory() => {
            memory::empty_cache(gpus)?;
            library.create()?
        }
        other => other?,
    };
    let (native, address) = (handle.native, &raw const *handle);
    let mut handles = HANDLES.lock();
    if handles.try_reserve(1).is_err() {
        drop(handles);
        library.destroy(native);
        return Err(Error::OutOfHostMemory(NO_ROOM));
    }
    handles.push(handle);
    IN_USE.store(true, Ordering::Release);
    Ok(address)
}

impl Handle {
    /// The workspace of the handle for a stream, allocated now if there is none: address and bytes.
    fn space(&self, gpus: &Gpus, device: &Device, stream: &Stream) -> Result<(u64, u64)> {
        let capture = match gpus.has_captures() {
            true => gpus.captures().number_of(gpus, stream)?.unwrap_or(0),
            false => 0,
        };
        self.give_back(gpus, stream, capture);
        let known = |space: &&Space| space.stream.is(stream) && space.capture == capture;
        // SAFETY: this thread owns the handle, and makes no other call meanwhile.
        if let Some(space) = unsafe { &*self.spaces.get() }.iter().find(known) {
            return Ok((space.address, space.bytes));
        }
        let bytes = wanted_bytes(device)?;
        // SAFETY: as above.
        let room = unsafe { &mut *self.spaces.get() }.try_reserve(1);
        room.map_err(|_| Error::OutOfHostMemory("a workspace of cuBLAS"))?;
        // Observers may run, and call for the handle themselves.
        let address = device.memory().allocate(gpus, device, stream, bytes)?;
        let space = Space { stream: HeldStream::new(stream), capture, address, bytes };
        // SAFETY: as above.
        let spaces = unsafe { &mut *self.spaces.get() };
        if spaces.try_reserve(1).is_err() {
            free(gpus, address);
            return Err(Error::OutOfHostMemory("a workspace of cuBLAS"));
        }
        spaces.push(space);
        Ok((address, bytes))
    }

    /// Frees workspaces of captures of a stream that are over, and of external streams that are
    /// gone: later streams are new objects, so that these would never be used again.
    fn give_back(&self, gpus: &Gpus, stream: &Stream, capture: u64) {
        let is_over = |space: &Space| {
            if space.stream.is(stream) {
                return space.capture != 0 && space.capture != capture;
            }
            space.stream.is_gone() || space.stream.is_over()
        };
        loop {
            let over = {
                // SAFETY: this thread owns the handle, and makes no other call meanwhile.
                let spaces = unsafe { &mut *self.spaces.get() };
                let index = spaces.iter().position(is_over);
                index.map(|index| spaces.swap_remove(index))
            };
            let Some(space) = over else { return };
            free(gpus, space.address);
        }
    }
}

/// Frees a workspace, unless it has no bytes.
fn free(gpus: &Gpus, address: u64) {
    if address != 0 {
        // It was allocated, and a failure could not be handled here.
        let _ = memory::free(gpus, address);
    }
}

/// The thread of an address ends: its handles become unowned.
pub(crate) fn leave(thread: usize) {
    // A forked child has none, and perhaps a lock that would never be released.
    if IN_USE.load(Ordering::Acquire) && !thread::is_forked() {
        let mut handles = HANDLES.lock();
        let own = handles.iter_mut().filter(|handle| handle.owner == thread);
        own.for_each(|handle| handle.owner = 0);
    }
}

/// Destroys all handles; they are no longer in use, and the devices have settled.
pub(crate) fn close(gpus: &Gpus) {
    let handles = std::mem::take(&mut *HANDLES.lock());
    for handle in handles {
        let Ok(device) = gpus.device(handle.device) else { continue };
        // Also of a lost device: the handle's host memory is freed.
        let _context = device.enter();
        handle.library.destroy(handle.native);
        for space in handle.spaces.into_inner() {
            free(gpus, space.address);
        }
    }
}

/// Size of a workspace: from CUBLAS_WORKSPACE_CONFIG, else PyTorch's default.
fn wanted_bytes(device: &Device) -> Result<u64> {
    let (major, _) = device.capability()?;
    let text = environment::text(c"CUBLAS_WORKSPACE_CONFIG")?;
    if text.is_empty() {
        return Ok(default_bytes(major));
    }
    match parse(text) {
        Some(Some(bytes)) => Ok(bytes),
        Some(None) => Err(Error::BadText {
            name: "CUBLAS_WORKSPACE_CONFIG",
            value: Text::new(text),
            allowed: "so much memory there is not",
        }),
        None => {
            let bytes = default_bytes(major);
            log::write(
                Level::Warning,
                format_args!(
                    "CUBLAS_WORKSPACE_CONFIG is \"{text}\", which has no \":KiB:COUNT\": a \
                     workspace of cuBLAS has {bytes} bytes"
                ),
            );
            Ok(bytes)
        }
    }
}

/// 32 MiB from Hopper on, the size of ":4096:2:16:8" before.
fn default_bytes(major: i32) -> u64 {
    if major >= 9 { 32 * MIB } else { 2 * (4096 << 10) + 8 * (16 << 10) }
}

/// The sum of all ":KiB:COUNT" in a text. `None`: there is none; `Some(None)`: it is not a number
/// of bytes.
fn parse(text: &str) -> Option<Option<u64>> {
    let mut rest = text.as_bytes();
    let mut sum = None;
    while let Some(start) = rest.iter().position(|byte| *byte == b':') {
        rest = &rest[start + 1..];
        let Some((size, after)) = number(rest) else { continue };
        let Some((count, after)) = after.strip_prefix(b":").and_then(number) else { continue };
        rest = after;
        let bytes = || size?.checked_mul(1 << 10)?.checked_mul(count?);
        sum = Some(sum.unwrap_or(Some(0)).and_then(|sum: u64| sum.checked_add(bytes()?)));
    }
    sum
}

/// The number at the beginning of a text, and the rest; an inner `None`: it is too large.
fn number(text: &[u8]) -> Option<(Option<u64>, &[u8])> {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let (digits, after) = text.split_at_checked(end).filter(|(digits, _)| !digits.is_empty())?;
    let add = |value: u64, digit: &u8| value.checked_mul(10)?.checked_add(u64::from(digit - b'0'));
    Some((digits.iter().try_fold(0, add), after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_pytorchs() {
        assert_eq!(parse(":4096:2:16:8"), Some(Some(8_519_680)));
        assert_eq!(parse(":4096:8"), Some(Some(32 * MIB)));
        assert_eq!(parse("what :1:2 is:x:3:4 said"), Some(Some(2048 + 3 * 4 * 1024)));
        assert_eq!(parse(":1::2:3"), Some(Some(6 << 10)));
        assert_eq!(parse(":0:0"), Some(Some(0)));
        assert_eq!(parse(""), None);
        assert_eq!(parse("4096"), None);
        assert_eq!(parse(":4096"), None);
        assert_eq!(parse(":99999999999999999999:1"), Some(None));
        assert_eq!(parse(":18014398509481984:1"), Some(None));
        assert_eq!(default_bytes(8), 8_519_680);
        assert_eq!(default_bytes(9), 33_554_432);
    }
}
