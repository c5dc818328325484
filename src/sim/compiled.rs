//! Kernels compiled by the host's C++ compiler: their images, and how they run.
//!
//! A launch passes device addresses, at which the host cannot read. So each parameter word that is
//! a device address is replaced by the address of the same byte in the memory's alias. If the alias
//! has the bytes in another order, a temporary mapping is used instead.

use super::address_space::Accessor;
use super::compiler::Scratch;
use super::memory::Memory;
use super::parameters;
use super::physical::errno;
use super::sync::{lock, read};
use crate::base::file::BlockedSignals;
use crate::driver::code;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::sync::Mutex;
use std::{fs, ptr, slice};

/// The object's description of its kernel; `kernel` of prelude/entry.h.
#[repr(C)]
pub(super) struct Compiled {
    name: *const c_char,
    sizes: *const usize,
    pointers: *const u8,
    number: usize,
    run: unsafe extern "C" fn(*const Call),
    fiber_bytes: usize,
}

// SAFETY: constants of an object that is never closed.
unsafe impl Sync for Compiled {}

/// The blocks and threads of a launch, and the dynamic shared memory of each block.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) grid: [u32; 3],
    pub(super) block: [u32; 3],
    pub(super) shared_bytes: u32,
}

/// The arguments of a launch; `launch` of prelude/grid.h.
#[repr(C)]
struct Call {
    grid: [u32; 3],
    block: [u32; 3],
    arguments: *const *mut c_void,
    shared: *mut c_void,
    stacks: *mut c_void,
    stack_bytes: usize,
}

/// Stack bytes of a thread that waits for others of its block.
const STACK: usize = 64 << 10;

impl Compiled {
    /// The kernel's name.
    pub(super) fn name(&'static self) -> &'static str {
        // SAFETY: a NUL-terminated constant of the object.
        unsafe { CStr::from_ptr(self.name) }.to_str().unwrap_or("")
    }

    /// Sizes of its parameters.
    pub(super) fn parameters(&'static self) -> &'static [usize] {
        // SAFETY: constants of the object's, as many as it says.
        unsafe { slice::from_raw_parts(self.sizes, self.number) }
    }
}

impl Compiled {
    /// One byte for each parameter: 1 if it is a pointer, 2 if it may contain pointers.
    fn pointers(&'static self) -> &'static [u8] {
        // SAFETY: constants of the object's, as many as it says.
        unsafe { slice::from_raw_parts(self.pointers, self.number) }
    }
}

/// Open objects by length and hash of their bytes: an image is opened once. They stay open until
/// the process ends, so there is one for each compiled source.
static OPEN: Mutex<BTreeMap<(usize, u64), &'static Compiled>> = Mutex::new(BTreeMap::new());

/// Constants of the ELF header.
const MAGIC: &[u8] = b"\x7fELF\x02\x01";
#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;
#[cfg(not(target_arch = "x86_64"))]
const MACHINE: u16 = 183;
const HEADER: usize = 64;

/// Returns the bytes of an image that is a shared object of this host.
///
/// # Safety
/// The image is a NUL-terminated text, or an ELF file as a whole.
pub(super) unsafe fn bytes_of<'a>(image: *const c_void) -> Option<&'a [u8]> {
    let byte = |at: usize| {
        // SAFETY: no NUL was read before, or the bytes read are the header of a longer file.
        unsafe { image.cast::<u8>().wrapping_add(at).read() }
    };
    if !MAGIC.iter().enumerate().all(|(at, expected)| byte(at) == *expected) {
        return None;
    }
    let number = |at: usize, bytes: usize| {
        (0..bytes).rev().fold(0usize, |number, place| number << 8 | usize::from(byte(at + place)))
    };
    let (machine, sections) = (number(18, 2), number(40, 8));
    let (size, count) = (number(58, 2), number(60, 2));
    if machine != usize::from(MACHINE) || sections < HEADER || count == 0 {
        return None;
    }
    let length = sections.checked_add(size * count)?;
    // SAFETY: linkers write the section table last, so the file ends with it.
    Some(unsafe { slice::from_raw_parts(image.cast::<u8>(), length) })
}

/// The FNV-1a hash.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// Opens an image; an image that is open already is returned.
pub(super) fn open(bytes: &[u8]) -> Result<&'static Compiled, i32> {
    let key = (bytes.len(), hash(bytes));
    let mut open = lock(&OPEN);
    if let Some(found) = open.get(&key) {
        return Ok(found);
    }
    let scratch = Scratch::new().map_err(|_| code::OPERATING_SYSTEM)?;
    let path = scratch.file("kernel.so");
    let quiet = BlockedSignals::begin();
    fs::write(&path, bytes).map_err(|_| code::OPERATING_SYSTEM)?;
    drop(quiet);
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| code::OPERATING_SYSTEM)?;
    let flags = libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE;
    // SAFETY: `path` is NUL-terminated; the host's own compiler made the object.
    let handle = unsafe { libc::dlopen(path.as_ptr(), flags) };
    if handle.is_null() {
        return Err(code::INVALID_IMAGE);
    }
    // SAFETY: the handle is never closed and the name is NUL-terminated.
    let found = unsafe { libc::dlsym(handle, c"tcuda_kernel".as_ptr()) };
    if found.is_null() {
        return Err(code::INVALID_IMAGE);
    }
    // SAFETY: the symbol has this layout and is never unmapped.
    let found: &'static Compiled = unsafe { &*found.cast::<Compiled>() };
    open.insert(key, found);
    Ok(found)
}

/// A temporary mapping that lives while a kernel runs.
struct View {
    start: usize,
    bytes: usize,
}

impl Drop for View {
    fn drop(&mut self) {
        let start = ptr::with_exposed_provenance_mut(self.start);
        // SAFETY: mapped by `view`; the kernel that reads it has finished.
        let _ = unsafe { libc::munmap(start, self.bytes) };
    }
}

/// Translates a device address to a host address. Other words stay unchanged, except pointers that
/// lead nowhere, which are errors.
fn host_address(
    memory: &Memory,
    device: usize,
    (word, is_pointer): (u64, bool),
    views: &mut BTreeMap<usize, View>,
) -> Result<u64, i32> {
    let address = word as usize;
    let is_device = read(&memory.space).contains(address);
    if word == 0 || !(is_device || is_pointer) {
        return Ok(word);
    }
    let accessor = Accessor { device, write: false, staged: false };
    let locate = |at: usize| memory.translate(at, 1, accessor).map(|_| at);
    // The end address of an array is valid as well.
    let inside =
        locate(address).or_else(|failure| locate(address.wrapping_sub(1)).map_err(|_| failure))?;
    if !is_device {
        // Pinned memory has the same address on host and device.
        return Ok(word);
    }
    let space = read(&memory.space);
    // The mapped memory around the address, and whether the alias has it in the same order.
    let (mut start, mut end) = (inside, inside + 1);
    let mut pieces = Vec::new();
    start = space.mapping(start).ok_or(code::ILLEGAL_ADDRESS)?.0;
    while let Some((before, _)) = space.mapping(start.wrapping_sub(1)) {
        start = before;
    }
    let mut at = start;
    while let Some((first, mapping)) = space.mapping(at) {
        let inner = at - first;
        let (host, contiguous) = mapping.allocation.locate(mapping.offset + inner);
        let bytes = contiguous.min(mapping.bytes - inner);
        if bytes == 0 {
            break;
        }
        pieces.push((at, host, bytes, mapping.allocation.file()));
        at += bytes;
        end = at;
    }
    let shift = |piece: &(usize, usize, usize, (libc::c_int, usize))| piece.1.wrapping_sub(piece.0);
    let first = pieces.first().map(shift).ok_or(code::ILLEGAL_ADDRESS)?;
    if pieces.iter().all(|piece| shift(piece) == first) {
        return Ok(address.wrapping_add(first) as u64);
    }
    if let Some(view) = views.get(&start) {
        return Ok((view.start + (address - start)) as u64);
    }
    // SAFETY: new addresses, chosen by the system.
    let room = unsafe {
        libc::mmap(
            ptr::null_mut(),
            end - start,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if room == libc::MAP_FAILED {
        return Err(if errno() == libc::ENOMEM {
            code::OUT_OF_MEMORY
        } else {
            code::OPERATING_SYSTEM
        });
    }
    let view = View { start: room.expose_provenance(), bytes: end - start };
    for (at, host, bytes, (file, alias)) in &pieces {
        let to = ptr::with_exposed_provenance_mut(view.start + (at - start));
        let shared = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let offset = (host - alias) as libc::off_t;
        // SAFETY: inside the range reserved above, from a file of the machine.
        let mapped = unsafe { libc::mmap(to, *bytes, access, shared, *file, offset) };
        if mapped == libc::MAP_FAILED {
            return Err(code::OUT_OF_MEMORY);
        }
    }
    let found = (view.start + (address - start)) as u64;
    views.insert(start, view);
    Ok(found)
}

/// Runs a kernel for its whole grid.
pub(super) fn run(
    compiled: &'static Compiled,
    shape: Shape,
    memory: &Memory,
    device: usize,
    values: &[u8],
) -> Result<(), i32> {
    let sizes = compiled.parameters();
    let (starts, _) = parameters::layout(sizes);
    // Each parameter is aligned for any type.
    let words = sizes.iter().map(|size| size.div_ceil(16).max(1));
    let mut room = vec![0u128; words.clone().sum::<usize>()];
    let mut views = BTreeMap::new();
    let mut arguments = Vec::with_capacity(sizes.len());
    let mut at = 0;
    let pointers = compiled.pointers();
    for (((start, size), words), pointers) in starts.iter().zip(sizes).zip(words).zip(pointers) {
        let mut bytes = vec![0u8; words * 16];
        let value = values.get(*start..start + size).ok_or(code::INVALID_VALUE)?;
        bytes[..*size].copy_from_slice(value);
        // A parameter without room for a pointer may look like an address by chance, so it is
        // skipped.
        let searched = if *pointers == 0 { 0 } else { size / 8 * 8 };
        for word in bytes[..searched].chunks_exact_mut(8) {
            let mut raw = [0; 8];
            raw.copy_from_slice(word);
            let found = (u64::from_ne_bytes(raw), *pointers == 1);
            let host = host_address(memory, device, found, &mut views)?;
            word.copy_from_slice(&host.to_ne_bytes());
        }
        for (to, from) in room[at..at + words].iter_mut().zip(bytes.chunks_exact(16)) {
            let mut raw = [0; 16];
            raw.copy_from_slice(from);
            *to = u128::from_ne_bytes(raw);
        }
        arguments.push(ptr::from_mut(&mut room[at]).cast::<c_void>());
        at += words;
    }
    let threads: usize = shape.block.iter().map(|count| *count as usize).product();
    let mut shared = vec![0u128; shape.shared_bytes as usize / 16 + 1];
    let fibers = match compiled.fiber_bytes {
        0 => 0,
        bytes => threads * (STACK + bytes),
    };
    let mut stacks = vec![0u128; fibers / 16 + 1];
    let call = Call {
        grid: shape.grid,
        block: shape.block,
        arguments: arguments.as_ptr(),
        shared: shared.as_mut_ptr().cast(),
        stacks: stacks.as_mut_ptr().cast(),
        stack_bytes: STACK,
    };
    // SAFETY: the object's own function, with parameters of the sizes it declares. As on a GPU, the
    // kernel's author is responsible for its memory accesses.
    unsafe { (compiled.run)(&call) };
    Ok(())
}
