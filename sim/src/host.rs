//! A machine without a driver: its memory is buffers of the host. Tests and tools run kernels on
//! it.

use crate::exec::heap::Heap;
use crate::exec::{Kernel, Options, Shape};
use crate::memory::fault::Fault;
use crate::memory::race::{Race, Summary};
use crate::memory::{Machine, Window};
use crate::program::{Program, Variable};
use crate::ptx::LoadError;
use crate::ptx::tree::Space;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The address of the first buffer; the others follow at multiples of [`STRIDE`].
pub const FIRST: u64 = 32 << 40;
const STRIDE: u64 = 1 << 32;

struct Buffer {
    words: UnsafeCell<Box<[u64]>>,
    bytes: usize,
}

// SAFETY: kernels reach it through pointers; references exist only while none runs.
unsafe impl Sync for Buffer {}

/// A machine.
#[derive(Default)]
pub struct HostMachine {
    buffers: Vec<Buffer>,
    printed: Mutex<Vec<u8>>,
    errors: Mutex<Vec<u8>>,
    heap: Mutex<Heap>,
    time: AtomicU64,
    races: Mutex<Vec<Race>>,
    summaries: Mutex<Vec<Summary>>,
}

// SAFETY: windows are buffers, which live as long as the machine and are referenced only between
// kernels.
unsafe impl Machine for HostMachine {
    fn window(&self, address: u64, _: bool) -> Option<Window> {
        if Heap::contains(address) {
            return lock(&self.heap).window();
        }
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
        lock(&self.printed).extend_from_slice(text);
    }

    fn print_error(&self, text: &[u8]) {
        lock(&self.errors).extend_from_slice(text);
    }

    fn allocate(&self, bytes: u64) -> u64 {
        lock(&self.heap).allocate(bytes)
    }

    fn free(&self, address: u64) -> bool {
        lock(&self.heap).free(address)
    }

    fn nanoseconds(&self) -> u64 {
        self.time.fetch_add(32, Ordering::Relaxed)
    }

    fn is_cancelled(&self) -> bool {
        false
    }

    fn report_race(&self, race: &Race) {
        lock(&self.races).push(race.clone());
    }

    fn report_races(&self, summary: &Summary) {
        lock(&self.summaries).push(summary.clone());
    }
}

impl HostMachine {
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

    /// What kernels printed so far, and what failed assertions did.
    pub fn printed(&self) -> (Vec<u8>, Vec<u8>) {
        (lock(&self.printed).clone(), lock(&self.errors).clone())
    }

    /// The races that kernels reported so far, and the summaries of their launches.
    pub fn races(&self) -> (Vec<Race>, Vec<Summary>) {
        (lock(&self.races).clone(), lock(&self.summaries).clone())
    }

    /// Loads a module and its variables.
    pub fn load(&mut self, text: &str) -> Result<Loaded, LoadError> {
        Ok(self.link(Arc::new(Program::load(text, 90)?)))
    }

    /// Adds the variables of a program that is translated already.
    pub fn link(&mut self, program: Arc<Program>) -> Loaded {
        let place = |variable: &Variable| match variable.space {
            Space::Shared => 0,
            _ => self.add(&vec![0; variable.bytes]),
        };
        let addresses: Vec<u64> = program.variables.iter().map(place).collect();
        for (variable, address) in program.variables.iter().zip(&addresses) {
            if variable.space != Space::Shared {
                self.put(*address, &variable.initial_bytes(&addresses));
            }
        }
        Loaded { program, addresses }
    }

    /// Writes the start of a buffer.
    pub fn put(&mut self, address: u64, bytes: &[u8]) {
        let Some(buffer) = self.buffers.get_mut(((address - FIRST) / STRIDE) as usize) else {
            return;
        };
        let words = buffer.words.get_mut();
        for (word, chunk) in words.iter_mut().zip(bytes.chunks(8)) {
            let mut raw = word.to_le_bytes();
            raw[..chunk.len()].copy_from_slice(chunk);
            *word = u64::from_le_bytes(raw);
        }
    }

    /// Runs a kernel of a module; `None` if it has no kernel of this name.
    pub fn run(
        &self,
        loaded: &Loaded,
        name: &str,
        shape: Shape,
        parameters: &[u8],
        options: &Options,
    ) -> Option<Result<(), Fault>> {
        let kernel = Kernel::find(&loaded.program, name)?;
        Some(kernel.run(self, &loaded.addresses, shape, parameters, options))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A module whose variables have addresses.
pub struct Loaded {
    /// The program.
    pub program: Arc<Program>,
    /// The addresses of its variables.
    pub addresses: Vec<u64>,
}
