//! Generators in graphs. A captured kernel reads seed and offset from two words on the device. Each
//! launch of the graph writes them first.

use super::generator::{CapturedDraws, Generator, GeneratorState, Position};
use super::plan::Philox;
use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use crate::base::shared::Shared;
use crate::driver::sync_debug;
use crate::gpu::external_registry::HeldStream;
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::{self, Stream};
use crate::memory;
use crate::ops::copy;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of the two words: seed, then offset.
const WORDS_BYTES: u64 = 16;

/// The driver's ID of the capture that a stream belongs to. The query does not invalidate a
/// capture.
pub(super) fn capture_of(gpus: &Gpus, stream: &Stream) -> Result<Option<u64>> {
    let device = gpus.device(stream.device())?;
    if !device.has_context() {
        return Ok(None);
    }
    let _context = device.enter()?;
    stream::capture_of(gpus.driver(), stream.native())
}

impl GeneratorState {
    /// Reserves random words for a captured kernel.
    pub(super) fn take_captured(
        &self,
        gpus: &Gpus,
        id: u64,
        increment: u64,
        operation: &'static str,
    ) -> Result<Philox> {
        let unknown = Error::Capturing {
            operation,
            why: "the generator is not registered with the graph; register it before the capture \
                  begins, by tcuda_graph_register_generator",
        };
        let find = |draws_of_capture: &&CapturedDraws| draws_of_capture.id == id;
        let known = self.lock().captured_draws.iter().find(find).map(|draws| draws.words);
        let words = match known {
            Some(words) => words,
            None if gpus.captures().is_body(id) => {
                return Err(Error::NotSupported {
                    what: "random numbers in the body of a conditional node",
                    by: "graphs: draw them before the node",
                });
            }
            None => return Err(unknown),
        };
        // The first kernel of the capture; several threads may be first at once.
        let fresh = if words == 0 { self.allocate_words(gpus)? } else { 0 };
        let taken = self
            .lock()
            .captured_draws
            .iter_mut()
            .find(|draws_of_capture| draws_of_capture.id == id)
            .map(|draws_of_capture| {
                let is_first = draws_of_capture.words == 0;
                if is_first {
                    draws_of_capture.words = fresh;
                }
                let philox = Philox {
                    seed: 0,
                    offset: draws_of_capture.offset,
                    seed_ptr: draws_of_capture.words,
                    offset_ptr: draws_of_capture.words + WORDS_BYTES / 2,
                };
                draws_of_capture.offset = draws_of_capture.offset.wrapping_add(increment);
                (philox, is_first)
            });
        if fresh != 0 && !taken.is_some_and(|(_, is_first)| is_first) {
            memory::free(gpus, fresh)?;
        }
        taken.map(|(philox, _)| philox).ok_or(unknown)
    }

    /// Allocates on the default stream, which is not captured, so that the words are not in the
    /// graph's pool.
    fn allocate_words(&self, gpus: &Gpus) -> Result<u64> {
        let device = gpus.device(self.device)?;
        device.memory().allocate(gpus, device, device.streams.default(), WORDS_BYTES)
    }
}

/// State of the replays.
struct ReplayState {
    /// Address of the two words; 0: no capture has taken random numbers.
    words: u64,
    /// Streams on which the words were written and read, other than the default stream.
    streams: Vec<HeldStream>,
}

/// A generator that is registered with a graph.
pub struct Registration {
    state: Shared<GeneratorState>,
    /// Unique number of the registration.
    number: u64,
    gpus: *const Gpus,
    used: Mutex<ReplayState>,
}

// SAFETY: the GPUs are shared between threads and outlive all objects.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

impl Registration {
    pub(super) fn new(gpus: &Gpus, state: Shared<GeneratorState>) -> Result<Registration> {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        let used = Mutex::new(Rank::LEAF, ReplayState { words: 0, streams: Vec::new() });
        Ok(Registration { state, number, gpus, used })
    }

    /// Does it register this generator?
    pub fn is_of(&self, generator: &Generator) -> bool {
        generator.has(&self.state)
    }

    /// Prepares for a capture that is about to begin.
    pub fn capture_prologue(&self) -> Result<()> {
        let words = self.used.lock().words;
        let mut numbers = self.state.lock();
        let no_room = |_| Error::OutOfHostMemory("the generators of a capture");
        numbers.captured_draws.try_reserve(1).map_err(no_room)?;
        numbers.captured_draws.push(CapturedDraws { number: self.number, id: 0, words, offset: 0 });
        Ok(())
    }

    /// Stores the driver's ID of the capture that has begun.
    pub fn capture_begun(&self, id: u64) {
        let mut numbers = self.state.lock();
        if let Some(draws_of_capture) = numbers
            .captured_draws
            .iter_mut()
            .find(|draws_of_capture| draws_of_capture.number == self.number)
        {
            draws_of_capture.id = id;
        }
    }

    /// Ends the capture. Returns by how much each launch advances the generator.
    pub fn capture_epilogue(&self) -> u64 {
        let mut numbers = self.state.lock();
        let index = numbers
            .captured_draws
            .iter()
            .position(|draws_of_capture| draws_of_capture.number == self.number);
        let Some(draws_of_capture) = index.map(|index| numbers.captured_draws.swap_remove(index))
        else {
            return 0;
        };
        drop(numbers);
        self.used.lock().words = draws_of_capture.words;
        draws_of_capture.offset
    }

    /// Writes seed and offset before a launch on a stream, and advances the generator.
    pub fn replay_prologue(&self, gpus: &Gpus, increment: u64, stream: &Stream) -> Result<()> {
        let own = stream.on_this_thread(gpus)?;
        let device = gpus.device(self.state.device)?;
        let (words, is_new) = {
            let mut used = self.used.lock();
            let is_known = used.streams.iter().any(|known| known.is(own));
            let is_new = !is_known && !std::ptr::eq(own, device.streams.default());
            if is_new && used.words != 0 {
                let no_room = |_| Error::OutOfHostMemory("the streams of a graph");
                used.streams.try_reserve(1).map_err(no_room)?;
            }
            (used.words, is_new)
        };
        if words == 0 {
            return Ok(());
        }
        if is_new {
            // The words were allocated in the order of the default stream.
            stream.wait_stream(gpus, device.streams.default())?;
            let mut used = self.used.lock();
            let no_room = |_| Error::OutOfHostMemory("the streams of a graph");
            used.streams.try_reserve(1).map_err(no_room)?;
            used.streams.push(HeldStream::new(own));
        }
        let position = {
            let mut numbers = self.state.lock();
            let position = numbers.position;
            numbers.position.offset = position.offset.wrapping_add(increment);
            position
        };
        let Position { seed, offset } = position;
        let mut bytes = [0; WORDS_BYTES as usize];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        bytes[8..].copy_from_slice(&offset.to_le_bytes());
        copy::fill(gpus, words, &bytes, 1, stream)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.capture_epilogue();
        let mut used = self.used.lock();
        let (words, streams) = (used.words, std::mem::take(&mut used.streams));
        drop(used);
        if words == 0 {
            return;
        }
        for stream in streams {
            let stream = &*stream;
            let _required = sync_debug::required();
            // Without host memory to record the use, wait for the launch that may still read the
            // words.
            if memory::record_stream(words, stream).is_err()
                // SAFETY: objects are dropped before the GPUs.
                && stream.synchronize(unsafe { &*self.gpus }).is_err()
            {
                // The words are leaked until shutdown.
                return;
            }
        }
        // SAFETY: objects are dropped before the GPUs.
        let _ = memory::free(unsafe { &*self.gpus }, words);
    }
}
