//! Generators: the seed and offset of a random stream, and what a capture makes of them.
//!
//! The state is apart from the generator, because a graph that uses it goes on doing so when the
//! generator is gone. Each capture counts for itself: eager work on the same generator goes on beside it.

use super::capture::{Registration, capture_of};
use super::plan::Philox;
use crate::base::error::{Error, Result};
use crate::base::lock::{Held, Mutex};
use crate::base::rank::Rank;
use crate::base::shared::Shared;
use crate::gpu::stream::Stream;
use crate::runtime::Runtime;
use std::sync::atomic::{AtomicU64, Ordering};

/// The seed of a generator that a host makes: PyTorch's.
pub const DEFAULT_SEED: u64 = 67_280_421_310_721;

/// Bytes of a state as a host keeps it: seed, then offset, little-endian.
pub const STATE_BYTES: usize = 16;

/// Where a random stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Which stream it is.
    pub seed: u64,
    /// Words of each thread's stream that were taken; a multiple of 4.
    pub offset: u64,
}

impl Position {
    /// The beginning of a stream.
    pub fn start(seed: u64) -> Position {
        Position { seed, offset: 0 }
    }

    /// As PyTorch has it in a tensor.
    pub fn bytes(self) -> [u8; STATE_BYTES] {
        let mut bytes = [0; STATE_BYTES];
        let (seed, offset) = bytes.split_at_mut(8);
        seed.copy_from_slice(&self.seed.to_le_bytes());
        offset.copy_from_slice(&self.offset.to_le_bytes());
        bytes
    }

    /// The reverse.
    pub fn of_bytes(bytes: &[u8; STATE_BYTES]) -> Result<Position> {
        let word =
            |from: usize| u64::from_le_bytes(std::array::from_fn(|index| bytes[from + index]));
        Position { seed: word(0), offset: word(8) }.checked()
    }

    fn checked(self) -> Result<Position> {
        if self.offset.is_multiple_of(4) {
            return Ok(self);
        }
        Err(Error::OutOfRange {
            name: "offset",
            value: self.offset as i64,
            allowed: "numbers are drawn four words at a time: use a multiple of 4",
        })
    }
}

/// A capture that is under way and takes numbers of a state.
pub(super) struct Taking {
    /// The registration.
    pub number: u64,
    /// The driver's number of the capture; 0: it has not begun.
    pub id: u64,
    /// Two words on the device; 0: there are none yet.
    pub words: u64,
    /// How far the capture has got.
    pub offset: u64,
}

/// What is known of a random stream.
pub(super) struct Numbers {
    pub position: Position,
    /// A default generator has no seed before its first use.
    is_seeded: bool,
    pub takings: Vec<Taking>,
}

/// A random stream.
pub(super) struct State {
    pub device: i32,
    numbers: Mutex<Numbers>,
}

impl State {
    fn new(device: i32, seed: Option<u64>) -> State {
        let position = Position::start(seed.unwrap_or(0));
        let numbers = Numbers { position, is_seeded: seed.is_some(), takings: Vec::new() };
        State { device, numbers: Mutex::new(Rank::LEAF, numbers) }
    }

    /// Locks it; a default generator is seeded now if it was not.
    pub fn lock(&self) -> Held<'_, Numbers> {
        let mut numbers = self.numbers.lock();
        if !numbers.is_seeded {
            numbers.position = Position::start(entropy());
            numbers.is_seeded = true;
        }
        numbers
    }

    fn put(&self, position: Position) {
        let mut numbers = self.numbers.lock();
        numbers.position = position;
        numbers.is_seeded = true;
    }
}

/// A generator of random numbers, of one device.
pub struct Generator {
    state: Shared<State>,
}

impl Generator {
    /// A device's own: seeded by the system at its first use.
    pub(crate) fn of_device(device: i32) -> Result<Generator> {
        Ok(Generator { state: Shared::new(State::new(device, None), "a generator")? })
    }

    /// A new one with PyTorch's seed.
    pub fn new(device: i32) -> Result<Generator> {
        let state = State::new(device, Some(DEFAULT_SEED));
        Ok(Generator { state: Shared::new(state, "a generator")? })
    }

    /// Its device.
    pub fn device(&self) -> i32 {
        self.state.device
    }

    /// Another with a stream of its own, which goes on where this one is.
    pub fn clone_state(&self) -> Result<Generator> {
        let position = self.position();
        let copy = Generator::new(self.device())?;
        copy.state.put(position);
        Ok(copy)
    }

    /// Another name of the same stream: what one takes, the other does not get.
    pub fn share_state(&self) -> Generator {
        Generator { state: self.state.share() }
    }

    /// Has a graph use it; no driver call is made.
    pub fn register(&self, runtime: &Runtime) -> Result<Registration> {
        Registration::new(runtime, self.state.share())
    }

    /// Does a registration move this very stream on?
    pub(super) fn has(&self, state: &Shared<State>) -> bool {
        self.state.is(state)
    }

    /// Where it is, whatever is captured.
    pub(crate) fn position(&self) -> Position {
        self.state.lock().position
    }

    /// Puts it somewhere, whatever is captured.
    pub(crate) fn put(&self, position: Position) {
        self.state.put(position);
    }

    /// Its seed.
    pub fn seed(&self) -> u64 {
        self.position().seed
    }

    /// The position, for a host. `operation`: what it calls.
    pub fn get(&self, runtime: &Runtime, operation: &'static str) -> Result<Position> {
        self.require_not_captured(runtime, operation)?;
        Ok(self.position())
    }

    /// Puts it somewhere, for a host.
    pub fn set(
        &self,
        runtime: &Runtime,
        position: Position,
        operation: &'static str,
    ) -> Result<()> {
        let position = position.checked()?;
        self.require_not_captured(runtime, operation)?;
        self.put(position);
        Ok(())
    }

    /// The same for the offset alone.
    pub fn set_offset(
        &self,
        runtime: &Runtime,
        offset: u64,
        operation: &'static str,
    ) -> Result<()> {
        let checked = Position { seed: 0, offset }.checked()?;
        self.require_not_captured(runtime, operation)?;
        self.state.lock().position.offset = checked.offset;
        Ok(())
    }

    /// To the beginning of a stream. In a capture that is only possible where it changes nothing else:
    /// the seed must be the present one, and the offset stays.
    pub fn set_seed(&self, runtime: &Runtime, seed: u64, operation: &'static str) -> Result<()> {
        if let Err(error) = self.require_not_captured(runtime, operation) {
            return if seed == self.seed() { Ok(()) } else { Err(error) };
        }
        self.put(Position::start(seed));
        Ok(())
    }

    fn require_not_captured(&self, runtime: &Runtime, operation: &'static str) -> Result<()> {
        let device = runtime.device(self.device())?;
        // Without a context nothing of the device is captured, and none is made to find that out.
        if device.has_context() && device.streams.current().is_capturing(runtime)? {
            return Err(Error::Capturing {
                operation,
                why: "the graph would not do it again; do it before the capture or between replays",
            });
        }
        Ok(())
    }

    /// Takes `increment` words of each thread's stream, rounded up to 4, for work on a stream: in a
    /// capture as the graph will have them. `operation`: what the host calls.
    pub fn take(
        &self,
        runtime: &Runtime,
        stream: &Stream,
        increment: u64,
        operation: &'static str,
    ) -> Result<Philox> {
        let Some(increment) = increment.checked_next_multiple_of(4) else {
            return Err(Error::OutOfRange {
                name: "increment",
                value: increment as i64,
                allowed: "a stream of random numbers has 2^64 words at most",
            });
        };
        if let Some(id) = capture_of(runtime, stream)? {
            return self.state.take_captured(runtime, id, increment, operation);
        }
        let mut numbers = self.state.lock();
        let Position { seed, offset } = numbers.position;
        numbers.position.offset = offset.wrapping_add(increment);
        Ok(Philox { seed, offset, ..Philox::default() })
    }
}

/// A number that nobody knows beforehand, of 53 bits: PyTorch keeps to what a double can hold.
pub fn entropy() -> u64 {
    const BITS: u32 = 53;
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut bytes = [0; 8];
    // SAFETY: the buffer has so many bytes.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    let mut number = u64::from_ne_bytes(bytes);
    if got != bytes.len() as isize {
        // Refused by a sandbox, or too early: no two calls of no two processes, all the same.
        let now = std::time::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_nanos() as u64);
        // SAFETY: takes nothing.
        let process = unsafe { libc::getpid() } as u64;
        number = mixed(now ^ process << 32 ^ COUNT.fetch_add(1, Ordering::Relaxed) << 52);
    }
    number & ((1 << BITS) - 1)
}

/// Every bit of the input in every bit of the output.
fn mixed(mut number: u64) -> u64 {
    for factor in [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb] {
        number = (number ^ number >> 30).wrapping_mul(factor);
    }
    number ^ number >> 31
}

#[cfg(test)]
#[path = "generator_tests.rs"]
mod tests;
