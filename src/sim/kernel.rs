//! Kernels: Rust functions registered under the names of device code, and kernels of the host's
//! compiler.

use super::address_space::{Accessor, Chunks};
use super::compiled::{self, Compiled, Shape};
use super::journal::Journal;
use super::memory::Memory;
use super::parameters;
use super::sync::lock;
use crate::driver::code;
use std::collections::BTreeMap;
use std::ffi::c_uint;
use std::ptr;
use std::sync::{Arc, Mutex, OnceLock};

pub(super) const MAX_THREADS_PER_BLOCK: usize = 1024;
/// Maximum dynamic shared memory of a block, by default and after opting in.
pub(super) const DEFAULT_SHARED_PER_BLOCK: usize = 49_152;
pub(super) const MAX_SHARED_PER_BLOCK: usize = 232_448;
pub(super) const MAX_BLOCK: [c_uint; 3] = [1024, 1024, 64];
pub(super) const MAX_GRID: [c_uint; 3] = [i32::MAX as c_uint, 65_535, 65_535];

/// The body of a kernel, called once for the whole grid. An error is the CUresult of its failure.
pub type KernelFn = fn(&Launch) -> Result<(), i32>;

/// A registered kernel.
#[derive(Clone, Copy)]
pub(super) struct Kernel {
    pub(super) parameters: &'static [usize],
    body: Body,
}

/// The implementation of a kernel.
#[derive(Clone, Copy)]
enum Body {
    /// A function of the library.
    Own(KernelFn),
    /// A kernel of an image from the host's compiler.
    Compiled(&'static Compiled),
}

impl Kernel {
    /// The kernel of an image.
    pub(super) fn compiled(compiled: &'static Compiled) -> Kernel {
        Kernel { parameters: compiled.parameters(), body: Body::Compiled(compiled) }
    }

    /// Offset of parameter `index` in a buffer, and its size.
    pub(super) fn parameter(&self, index: usize) -> Option<(usize, usize)> {
        let size = *self.parameters.get(index)?;
        Some((parameters::layout(self.parameters).0[index], size))
    }
}

fn registry() -> &'static Mutex<BTreeMap<&'static str, Kernel>> {
    static REGISTRY: OnceLock<Mutex<BTreeMap<&'static str, Kernel>>> = OnceLock::new();
    REGISTRY.get_or_init(Mutex::default)
}

/// Registers the body of a kernel; `params` are the sizes of its parameters in bytes. Modules
/// loaded later find it. Another registration under the same name replaces it.
pub fn register_kernel(name: &'static str, params: &'static [usize], run: KernelFn) {
    let _reserve = crate::base::reserve::hold();
    lock(registry()).insert(name, Kernel { parameters: params, body: Body::Own(run) });
}

pub(super) fn find(name: &str) -> Option<Kernel> {
    lock(registry()).get(name).copied()
}

/// A launch of a kernel: its grid, parameters and memory.
pub struct Launch {
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory of each block.
    pub shared_bytes: u32,
    kernel: Kernel,
    parameters: Vec<u8>,
    running: OnceLock<(Arc<Memory>, usize)>,
    /// Present if the kernel's writes are delayed.
    journal: Option<Arc<Journal>>,
}

impl Launch {
    /// A launch of a kernel with these values of its parameters.
    pub(super) fn new(kernel: Kernel, shape: Shape, parameters: Vec<u8>) -> Launch {
        let Shape { grid, block, shared_bytes } = shape;
        let running = OnceLock::new();
        Launch { grid, block, shared_bytes, kernel, parameters, running, journal: None }
    }

    /// The index of the device that runs the kernel.
    pub fn device(&self) -> usize {
        self.running.get().map_or(0, |running| running.1)
    }

    /// Threads in the whole grid.
    pub fn threads(&self) -> u64 {
        self.grid.iter().chain(&self.block).map(|count| u64::from(*count)).product()
    }

    /// The bytes of parameter `index`; empty if there is none.
    pub fn param(&self, index: usize) -> &[u8] {
        let Some(bytes) = self.kernel.parameters.get(index) else { return &[] };
        let start = parameters::layout(self.kernel.parameters).0[index];
        self.parameters.get(start..start + bytes).unwrap_or_default()
    }

    /// Parameter `index` as an integer, zero-extended; its first 8 bytes if it is larger.
    pub fn param_u64(&self, index: usize) -> u64 {
        let mut bytes = [0; 8];
        for (to, from) in bytes.iter_mut().zip(self.param(index)) {
            *to = *from;
        }
        u64::from_le_bytes(bytes)
    }

    /// The low half of [`param_u64`](Self::param_u64).
    pub fn param_u32(&self, index: usize) -> u32 {
        self.param_u64(index) as u32
    }

    /// The same bits, signed.
    pub fn param_i64(&self, index: usize) -> i64 {
        self.param_u64(index) as i64
    }

    /// The same bits, signed.
    pub fn param_i32(&self, index: usize) -> i32 {
        self.param_u32(index) as i32
    }

    /// Parameter `index` as a float.
    pub fn param_f32(&self, index: usize) -> f32 {
        f32::from_bits(self.param_u32(index))
    }

    /// Parameter `index` as a double.
    pub fn param_f64(&self, index: usize) -> f64 {
        f64::from_bits(self.param_u64(index))
    }

    /// Copies from device memory; `Err(700)` if the device cannot read it.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), i32> {
        let mut rest = bytes;
        for chunk in self.chunks(address, rest.len(), false)?.iter() {
            let (now, later) = rest.split_at_mut(chunk.bytes.min(rest.len()));
            let from = ptr::with_exposed_provenance::<u8>(chunk.address);
            // SAFETY: the range was checked; `now` is memory of the caller, not of a device.
            unsafe { ptr::copy_nonoverlapping(from, now.as_mut_ptr(), now.len()) };
            rest = later;
        }
        Ok(())
    }

    /// Copies to device memory; `Err(700)` if the device cannot write it.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), i32> {
        let mut rest = bytes;
        for chunk in self.chunks(address, rest.len(), true)?.iter() {
            let (now, later) = rest.split_at(chunk.bytes.min(rest.len()));
            let to = ptr::with_exposed_provenance_mut::<u8>(chunk.address);
            // SAFETY: the range was checked; `now` is memory of the caller, not of a device.
            unsafe { ptr::copy_nonoverlapping(now.as_ptr(), to, now.len()) };
            rest = later;
        }
        Ok(())
    }

    /// Passes device memory to `body` for reading, in pieces in address order; almost always one.
    /// The memory must not be written meanwhile, by this kernel or another.
    pub fn with_slice(
        &self,
        address: u64,
        bytes: usize,
        mut body: impl FnMut(&[u8]),
    ) -> Result<(), i32> {
        for chunk in self.chunks(address, bytes, false)?.iter() {
            let start = ptr::with_exposed_provenance::<u8>(chunk.address);
            // SAFETY: the range was checked and stays in the alias; see above for writers.
            body(unsafe { std::slice::from_raw_parts(start, chunk.bytes) });
        }
        Ok(())
    }

    /// Passes device memory to `body` for writing, in pieces in address order; almost always one.
    /// The memory must not be accessed in another way meanwhile.
    pub fn with_slice_mut(
        &self,
        address: u64,
        bytes: usize,
        mut body: impl FnMut(&mut [u8]),
    ) -> Result<(), i32> {
        for chunk in self.chunks(address, bytes, true)?.iter() {
            let start = ptr::with_exposed_provenance_mut::<u8>(chunk.address);
            // SAFETY: the range was checked and stays in the alias; see above for other users.
            body(unsafe { std::slice::from_raw_parts_mut(start, chunk.bytes) });
        }
        Ok(())
    }

    fn chunks(&self, address: u64, bytes: usize, write: bool) -> Result<Chunks, i32> {
        if bytes == 0 {
            return Ok(Chunks::default());
        }
        let (memory, device) = self.running.get().ok_or(code::ILLEGAL_ADDRESS)?;
        let accessor = Accessor { device: *device, write, staged: false };
        let chunks = memory.translate(address as usize, bytes, accessor)?;
        if let (true, Some(journal)) = (write, &self.journal) {
            chunks.iter().for_each(|chunk| journal.note(chunk));
        }
        Ok(chunks)
    }

    /// A copy for another launch of a graph.
    pub(super) fn for_next_launch(&self) -> Launch {
        let (running, parameters) = (OnceLock::new(), self.parameters.clone());
        Launch { running, parameters, journal: None, ..*self }
    }

    /// Starts a journal of the kernel's writes.
    pub(super) fn keep_journal(&mut self) -> Arc<Journal> {
        Arc::clone(self.journal.insert(Arc::default()))
    }

    /// Runs the kernel on a device.
    pub(super) fn run(&self, memory: &Arc<Memory>, device: usize) -> Result<(), i32> {
        let _ = self.running.set((Arc::clone(memory), device));
        match self.kernel.body {
            Body::Own(run) => run(self),
            Body::Compiled(it) => {
                let Launch { grid, block, shared_bytes, .. } = *self;
                let shape = Shape { grid, block, shared_bytes };
                compiled::run(it, shape, memory, device, &self.parameters)
            }
        }
    }
}
