//! Generators: seed and offset of a sequence of random numbers, and their behaviour in captures.
//!
//! The state is separate from the generator, because a graph may use the state after the generator
//! is gone. Each capture counts its own offset, so that eager work can use the same generator
//! meanwhile.

use super::capture::{Registration, capture_of};
use super::plan::Philox;
use crate::base::error::{Error, Result};
use crate::base::host_calls::random_bytes;
use crate::base::lock::{Held, Mutex};
use crate::base::rank::Rank;
use crate::base::shared::Shared;
use crate::gpu::device::Device;
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::Stream;
use crate::gpu::subsystem::{Kind as SubsystemKind, Subsystem};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// PyTorch's seed for a generator that the host makes.
pub const DEFAULT_SEED: u64 = 67_280_421_310_721;

/// Bytes of a serialised state: seed, then offset, little-endian.
pub const STATE_BYTES: usize = 16;

/// A position in a sequence of random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Selects the sequence.
    pub seed: u64,
    /// Words that were taken of each thread's subsequence; a multiple of 4.
    pub offset: u64,
}

impl Position {
    /// The start of the sequence of a seed.
    pub fn start(seed: u64) -> Position {
        Position { seed, offset: 0 }
    }

    /// Serialises it like PyTorch.
    pub fn bytes(self) -> [u8; STATE_BYTES] {
        let mut bytes = [0; STATE_BYTES];
        let (seed, offset) = bytes.split_at_mut(8);
        seed.copy_from_slice(&self.seed.to_le_bytes());
        offset.copy_from_slice(&self.offset.to_le_bytes());
        bytes
    }

    /// Deserialises it.
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

/// An active capture that takes numbers from a state.
pub(super) struct CapturedDraws {
    /// Number of the registration.
    pub number: u64,
    /// The driver's ID of the capture; 0: not begun.
    pub id: u64,
    /// Address of two words on the device; 0: not allocated yet.
    pub words: u64,
    /// Offset within the capture.
    pub offset: u64,
}

/// The mutable fields of a state.
pub(super) struct StateFields {
    pub position: Position,
    /// A default generator is seeded at its first use.
    is_seeded: bool,
    pub captured_draws: Vec<CapturedDraws>,
}

/// The state of one or more generators.
pub(super) struct GeneratorState {
    pub device: i32,
    numbers: Mutex<StateFields>,
}

impl GeneratorState {
    fn new(device: i32, seed: Option<u64>) -> GeneratorState {
        let position = Position::start(seed.unwrap_or(0));
        let numbers =
            StateFields { position, is_seeded: seed.is_some(), captured_draws: Vec::new() };
        GeneratorState { device, numbers: Mutex::new(Rank::LEAF, numbers) }
    }

    /// Locks the fields, and seeds a default generator at its first use.
    pub fn lock(&self) -> Held<'_, StateFields> {
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

/// A random number generator of a device.
pub struct Generator {
    state: Shared<GeneratorState>,
}

/// The default generator of a device.
pub struct DefaultGenerator {
    generator: Generator,
    /// Its borrowed handle in src/ffi; 0: none yet.
    pub handle: AtomicUsize,
}

// SAFETY: no other type has this kind, and the runtime sets it before a call can use it.
unsafe impl Subsystem for DefaultGenerator {
    type Owner = Device;
    const KIND: SubsystemKind = SubsystemKind::Generator;
}

impl Device {
    /// Its default generator.
    #[inline(always)]
    pub fn generator(&self) -> &Generator {
        self.default_generator().generator()
    }

    /// Its default generator with the borrowed handle.
    #[inline(always)]
    pub fn default_generator(&self) -> &DefaultGenerator {
        self.subsystem()
    }
}

impl DefaultGenerator {
    /// The default generator of a device: the system seeds it at its first use.
    pub(crate) fn new(device: i32) -> Result<DefaultGenerator> {
        let state = Shared::new(GeneratorState::new(device, None), "a generator")?;
        Ok(DefaultGenerator { generator: Generator { state }, handle: AtomicUsize::new(0) })
    }

    /// The generator.
    #[inline(always)]
    pub fn generator(&self) -> &Generator {
        &self.generator
    }
}

impl Generator {
    /// A new generator with PyTorch's default seed.
    pub fn new(device: i32) -> Result<Generator> {
        let state = GeneratorState::new(device, Some(DEFAULT_SEED));
        Ok(Generator { state: Shared::new(state, "a generator")? })
    }

    /// The generator's device.
    pub fn device(&self) -> i32 {
        self.state.device
    }

    /// A copy that continues from the same position with a state of its own.
    pub fn clone_state(&self) -> Result<Generator> {
        let position = self.position();
        let copy = Generator::new(self.device())?;
        copy.state.put(position);
        Ok(copy)
    }

    /// Another generator with the same state.
    pub fn share_state(&self) -> Generator {
        Generator { state: self.state.share() }
    }

    /// Registers it with a graph. Makes no driver call.
    pub fn register(&self, gpus: &Gpus) -> Result<Registration> {
        Registration::new(gpus, self.state.share())
    }

    /// Does the generator have this state?
    pub(super) fn has(&self, state: &Shared<GeneratorState>) -> bool {
        self.state.is(state)
    }

    /// The position, without a check for captures.
    pub(crate) fn position(&self) -> Position {
        self.state.lock().position
    }

    /// Sets the position, without a check for captures.
    pub(crate) fn put(&self, position: Position) {
        self.state.put(position);
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.position().seed
    }

    /// The position, for the host. `operation`: name of the public function.
    pub fn get(&self, gpus: &Gpus, operation: &'static str) -> Result<Position> {
        self.require_not_captured(gpus, operation)?;
        Ok(self.position())
    }

    /// Sets the position, for the host.
    pub fn set(&self, gpus: &Gpus, position: Position, operation: &'static str) -> Result<()> {
        let position = position.checked()?;
        self.require_not_captured(gpus, operation)?;
        self.put(position);
        Ok(())
    }

    /// Sets the offset, for the host.
    pub fn set_offset(&self, gpus: &Gpus, offset: u64, operation: &'static str) -> Result<()> {
        let checked = Position { seed: 0, offset }.checked()?;
        self.require_not_captured(gpus, operation)?;
        self.state.lock().position.offset = checked.offset;
        Ok(())
    }

    /// Sets the seed, and the offset to 0. In a capture only the present seed is accepted, and the
    /// offset is unchanged.
    pub fn set_seed(&self, gpus: &Gpus, seed: u64, operation: &'static str) -> Result<()> {
        if let Err(error) = self.require_not_captured(gpus, operation) {
            return if seed == self.seed() { Ok(()) } else { Err(error) };
        }
        self.put(Position::start(seed));
        Ok(())
    }

    fn require_not_captured(&self, gpus: &Gpus, operation: &'static str) -> Result<()> {
        let device = gpus.device(self.device())?;
        // Without a context no stream is captured. The check must not create a context.
        if device.has_context() && device.streams.current().is_capturing(gpus)? {
            return Err(Error::Capturing {
                operation,
                why: "the graph would not do it again; do it before the capture or between replays",
            });
        }
        Ok(())
    }

    /// Takes `increment` words of each thread's subsequence, rounded up to 4, for work on a stream.
    /// In a capture the result refers to the graph's words. `operation`: name of the public
    /// function.
    pub fn take(
        &self,
        gpus: &Gpus,
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
        if let Some(id) = capture_of(gpus, stream)? {
            return self.state.take_captured(gpus, id, increment, operation);
        }
        let mut numbers = self.state.lock();
        let Position { seed, offset } = numbers.position;
        numbers.position.offset = offset.wrapping_add(increment);
        Ok(Philox { seed, offset, ..Philox::default() })
    }
}

/// An unpredictable number of 53 bits: PyTorch limits seeds to what a double can represent.
pub fn entropy() -> u64 {
    const BITS: u32 = 53;
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut bytes = [0; 8];
    let is_random = random_bytes(&mut bytes);
    let mut number = u64::from_ne_bytes(bytes);
    if !is_random {
        // `getrandom` failed (a sandbox, or early boot). The number is unique per process and call.
        let now = std::time::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_nanos() as u64);
        // SAFETY: no preconditions.
        let process = unsafe { libc::getpid() } as u64;
        number = mixed(now ^ process << 32 ^ COUNT.fetch_add(1, Ordering::Relaxed) << 52);
    }
    number & ((1 << BITS) - 1)
}

/// Mixes the bits: each output bit depends on every input bit.
fn mixed(mut number: u64) -> u64 {
    for factor in [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb] {
        number = (number ^ number >> 30).wrapping_mul(factor);
    }
    number ^ number >> 31
}

#[cfg(test)]
#[path = "generator_tests.rs"]
mod tests;
