//! Generators in graphs: a capture leaves seed and offset open, as two words on the device that each
//! launch of the graph finds anew.

use super::generator::{Generator, Position, State, Taking};
use super::plan::Philox;
use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::base::rank::Rank;
use crate::base::shared::Shared;
use crate::gpu::external_registry::HeldStream;
use crate::gpu::stream::Stream;
use crate::gpu::sync_debug;
use crate::graph::active_captures;
use crate::memory;
use crate::ops::copy;
use crate::runtime::Runtime;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of the two words: seed, then offset.
const WORDS_BYTES: u64 = 16;

/// The number of the capture that a stream belongs to. The question harms no capture.
pub(super) fn capture_of(runtime: &Runtime, stream: &Stream) -> Result<Option<u64>> {
    let device = runtime.device(stream.device())?;
    if !device.has_context() {
        return Ok(None);
    }
    let _context = device.enter()?;
    active_captures::capture_of(runtime, stream.native())
}

impl State {
    /// Takes words for what a capture records.
    pub(super) fn take_captured(
        &self,
        runtime: &Runtime,
        id: u64,
        increment: u64,
        operation: &'static str,
    ) -> Result<Philox> {
        let unknown = Error::Capturing {
            operation,
            why: "the generator is not registered with the graph; register it before the capture \
                  begins, by tcuda_graph_register_generator",
        };
        let words = match self.lock().takings.iter().find(|taking| taking.id == id) {
            Some(taking) => taking.words,
            None => return Err(unknown),
        };
        // The first of the capture, or the first of several threads.
        let fresh = if words == 0 { self.allocate_words(runtime)? } else { 0 };
        let taken = self.lock().takings.iter_mut().find(|taking| taking.id == id).map(|taking| {
            let is_first = taking.words == 0;
            if is_first {
                taking.words = fresh;
            }
            let philox = Philox {
                seed: 0,
                offset: taking.offset,
                seed_ptr: taking.words,
                offset_ptr: taking.words + WORDS_BYTES / 2,
            };
            taking.offset = taking.offset.wrapping_add(increment);
            (philox, is_first)
        });
        if fresh != 0 && !taken.is_some_and(|(_, is_first)| is_first) {
            memory::free(runtime, fresh)?;
        }
        taken.map(|(philox, _)| philox).ok_or(unknown)
    }

    /// On the default stream, which is in no capture: the graph's pool is not for this.
    fn allocate_words(&self, runtime: &Runtime) -> Result<u64> {
        let device = runtime.device(self.device)?;
        device.memory.allocate(runtime, device, device.streams.default(), WORDS_BYTES)
    }
}

/// What replays have used.
struct Used {
    /// The words; 0: the captures so far took no numbers.
    words: u64,
    /// The streams on which the words were written and read, besides the default one.
    streams: Vec<HeldStream>,
}

/// A generator in one graph.
pub struct Registration {
    state: Shared<State>,
    /// Told from all others of the state.
    number: u64,
    runtime: *const Runtime,
    used: Mutex<Used>,
}

// SAFETY: the runtime is shared by all threads and ends after every object.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

impl Registration {
    pub(super) fn new(runtime: &Runtime, state: Shared<State>) -> Result<Registration> {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        let used = Mutex::new(Rank::LEAF, Used { words: 0, streams: Vec::new() });
        Ok(Registration { state, number, runtime, used })
    }

    /// Is it of this generator?
    pub fn is_of(&self, generator: &Generator) -> bool {
        generator.has(&self.state)
    }

    /// Before a capture begins.
    pub fn capture_prologue(&self) -> Result<()> {
        let words = self.used.lock().words;
        let mut numbers = self.state.lock();
        let no_room = |_| Error::OutOfHostMemory("the generators of a capture");
        numbers.takings.try_reserve(1).map_err(no_room)?;
        numbers.takings.push(Taking { number: self.number, id: 0, words, offset: 0 });
        Ok(())
    }

    /// It has begun, under the driver's number: work on its streams takes from the graph's numbers.
    pub fn capture_begun(&self, id: u64) {
        let mut numbers = self.state.lock();
        if let Some(taking) = numbers.takings.iter_mut().find(|taking| taking.number == self.number)
        {
            taking.id = id;
        }
    }

    /// It has ended; gives how far each launch moves the generator.
    pub fn capture_epilogue(&self) -> u64 {
        let mut numbers = self.state.lock();
        let index = numbers.takings.iter().position(|taking| taking.number == self.number);
        let Some(taking) = index.map(|index| numbers.takings.swap_remove(index)) else { return 0 };
        drop(numbers);
        self.used.lock().words = taking.words;
        taking.offset
    }

    /// Before a launch on a stream: it finds the generator's numbers, which move on.
    pub fn replay_prologue(
        &self,
        runtime: &Runtime,
        increment: u64,
        stream: &Stream,
    ) -> Result<()> {
        let own = stream.on_this_thread(runtime)?;
        let device = runtime.device(self.state.device)?;
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
            // The memory comes in the order of the default stream.
            stream.wait_stream(runtime, device.streams.default())?;
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
        copy::fill(runtime, words, &bytes, 1, stream)
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
            let _needed = sync_debug::needed();
            // Where there is no host memory to note it, the launch that may still read them is waited for.
            if memory::record_stream(words, stream).is_err()
                // SAFETY: objects end before the runtime.
                && stream.synchronize(unsafe { &*self.runtime }).is_err()
            {
                // They stay until shutdown.
                return;
            }
        }
        // SAFETY: objects end before the runtime.
        let _ = memory::free(unsafe { &*self.runtime }, words);
    }
}
