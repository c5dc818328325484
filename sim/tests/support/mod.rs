//! A machine for tests: buffers of the host at addresses of a device.

#![allow(dead_code, reason = "each test uses a part")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tcuda_sim::exec::{Kernel, Options, Shape};
use tcuda_sim::memory::fault::Fault;
use tcuda_sim::memory::{Machine, Window};
use tcuda_sim::program::Program;

/// The address of the first buffer; the others follow at multiples of [`STRIDE`].
pub const FIRST: u64 = 32 << 40;
const STRIDE: u64 = 1 << 32;

struct Buffer {
    words: UnsafeCell<Box<[u64]>>,
    bytes: usize,
}

// SAFETY: tests access a buffer only while no kernel runs.
unsafe impl Sync for Buffer {}

/// The machine.
#[derive(Default)]
pub struct Host {
    buffers: Vec<Buffer>,
    pub printed: Mutex<Vec<u8>>,
    pub errors: Mutex<Vec<u8>>,
    pub cancelled: AtomicBool,
    time: AtomicU64,
}

// SAFETY: windows are buffers, which live as long as the machine and are referenced only between
// kernels.
unsafe impl Machine for Host {
    fn window(&self, address: u64, _: bool) -> Option<Window> {
        let index = address.checked_sub(FIRST)? / STRIDE;
        let buffer = self.buffers.get(index as usize)?;
        let start = FIRST + index * STRIDE;
        let host = buffer.words.get().cast::<Box<[u64]>>();
        // SAFETY: no reference to the buffer exists while a kernel runs.
        let host = unsafe { (*host).as_mut_ptr() }.cast::<u8>();
        let end = start + buffer.bytes as u64;
        (address < end).then_some(Window { start, end, host })
    }

    fn print(&self, text: &[u8]) {
        self.printed.lock().unwrap().extend_from_slice(text);
    }

    fn print_error(&self, text: &[u8]) {
        self.errors.lock().unwrap().extend_from_slice(text);
    }

    fn allocate(&self, _: u64) -> u64 {
        0
    }

    fn free(&self, _: u64) -> bool {
        false
    }

    fn nanoseconds(&self) -> u64 {
        self.time.fetch_add(32, Ordering::Relaxed)
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

impl Host {
    /// Adds a buffer; returns its address.
    pub fn add(&mut self, bytes: &[u8]) -> u64 {
        let mut words = vec![0u64; bytes.len().div_ceil(8)].into_boxed_slice();
        for (word, chunk) in words.iter_mut().zip(bytes.chunks(8)) {
            let mut raw = [0; 8];
            raw[..chunk.len()].copy_from_slice(chunk);
            *word = u64::from_le_bytes(raw);
        }
        self.buffers.push(Buffer { words: UnsafeCell::new(words), bytes: bytes.len() });
        FIRST + (self.buffers.len() as u64 - 1) * STRIDE
    }

    /// The contents of a buffer.
    pub fn get(&mut self, address: u64) -> Vec<u8> {
        let buffer = &mut self.buffers[((address - FIRST) / STRIDE) as usize];
        let mut bytes: Vec<u8> =
            buffer.words.get_mut().iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.truncate(buffer.bytes);
        bytes
    }
}

/// A module whose variables have addresses.
pub struct Loaded {
    pub program: Arc<Program>,
    pub addresses: Vec<u64>,
}

/// Loads a module and its variables.
pub fn load(host: &mut Host, text: &str) -> Loaded {
    use tcuda_sim::ptx::tree::Space;
    let program = Arc::new(Program::load(text, 90).unwrap_or_else(|it| panic!("{it}")));
    let mut addresses = Vec::new();
    for variable in &program.variables {
        let mut bytes = variable.values.clone();
        bytes.resize(variable.bytes, 0);
        addresses.push(match variable.space {
            Space::Shared => 0,
            _ => host.add(&bytes),
        });
    }
    Loaded { program, addresses }
}

/// Runs a kernel.
pub fn run(
    host: &Host,
    loaded: &Loaded,
    name: &str,
    (grid, block): ([u32; 3], [u32; 3]),
    parameters: &[u8],
    options: &Options,
) -> Result<(), Fault> {
    let kernel = Kernel::find(&loaded.program, name).unwrap();
    let shape = Shape { grid, block, cluster: [1; 3], dynamic_shared: 0 };
    kernel.run(host, &loaded.addresses, shape, parameters, options)
}

/// Parameters of 8 bytes each.
pub fn words(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}
