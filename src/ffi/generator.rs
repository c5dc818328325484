//! Section "Random numbers" of the header: generators.

use super::boundary::{Call, Out, boundary, boundary_with_forked, bytes, out};
use super::handle::Table;
use super::status::tcuda_status;
use crate::base::error::{Error, Result};
use crate::gpu::device::CURRENT;
use crate::gpu::gpus;
use crate::random;
use crate::random::generator::{Generator, Position, STATE_BYTES};
use crate::random::pending::Target;
use std::sync::atomic::Ordering;

/// Seed and offset of a random stream, of one device. Each device has a default generator, which is
/// seeded by the system at its first use.
pub struct tcuda_generator {
    _private: [u8; 0],
}

/// Bytes of a state: seed, then offset, little-endian; what torch.cuda.get_rng_state gives.
pub const TCUDA_RANDOM_STATE_BYTES: usize = 16;

const _: () = assert!(TCUDA_RANDOM_STATE_BYTES == STATE_BYTES);

/// For a kernel of the host, by value: its seed is seed_ptr ? *seed_ptr : seed, its offset is
/// offset + (offset_ptr ? *offset_ptr : 0).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tcuda_philox_state {
    /// Seed, unless there is a seed_ptr.
    pub seed: u64,
    /// Offset of each thread in 32-bit words, from *offset_ptr on if there is one.
    pub offset: u64,
    /// Device memory, in a capture only: each replay writes the seed there.
    pub seed_ptr: *const u64,
    /// Device memory, in a capture only: each replay writes the offset there.
    pub offset_ptr: *const u64,
}

/// The object behind a generator's handle.
pub(super) enum GeneratorRef {
    Own(Generator),
    /// From tcuda_generator_default.
    Borrowed(*const Generator),
}

// SAFETY: generators are shared by all threads, and a device's outlives its handle.
unsafe impl Send for GeneratorRef {}
// SAFETY: as above.
unsafe impl Sync for GeneratorRef {}

impl GeneratorRef {
    pub(super) fn is_borrowed(&self) -> bool {
        matches!(self, GeneratorRef::Borrowed(_))
    }

    pub(super) fn generator(&self) -> &Generator {
        match self {
            GeneratorRef::Own(generator) => generator,
            // SAFETY: devices live until shutdown, which destroys the handles before.
            GeneratorRef::Borrowed(generator) => unsafe { &**generator },
        }
    }
}

pub(super) static GENERATORS: Table<GeneratorRef> = Table::new(9, "generator");

/// The generator of a handle; NULL: the default one of the current device.
pub(super) fn subject(handle: *mut tcuda_generator, call: &Call) -> Result<&Generator> {
    if handle.is_null() {
        return Ok(call.gpus()?.device(CURRENT)?.generator());
    }
    Ok(GENERATORS.get(handle as usize, "generator", call)?.generator())
}

/// Checks the destination of a state.
fn state_out(state: *mut u8, name: &'static str) -> Result<Out<[u8; STATE_BYTES]>> {
    out(state.cast(), name)
}

/// Reads a host's state.
fn state_in(state: *const u8, name: &'static str) -> Result<Position> {
    let mut copy = [0; STATE_BYTES];
    copy.copy_from_slice(bytes(state, STATE_BYTES, name)?);
    Position::of_bytes(&copy)
}

/// Seeds the default generator of a device. Before the library is initialised the seed is
/// remembered, and nothing is initialised. Seeds and states take effect then, in the order of their
/// calls, and for TCUDA_CURRENT_DEVICE on the device that is current then; the call that
/// initialises gives TCUDA_STATUS_INVALID_DEVICE, once, if one is for a device that does not exist.
/// In a capture only the present seed is accepted, and changes nothing. In the forked child of a
/// process that had initialised the library it is ignored, as in torch. (torch.cuda.manual_seed)
///
/// @param device  ordinal, or TCUDA_CURRENT_DEVICE
/// @param seed    any number
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn tcuda_random_manual_seed(device: i32, seed: u64) -> tcuda_status {
    let body = |call: &Call| {
        let target = Target::Device(device);
        random::manual_seed(call.inside(), target, seed, "tcuda_random_manual_seed")
    };
    boundary_with_forked(|| Ok(()), body)
}

/// tcuda_random_manual_seed for all devices. (torch.cuda.manual_seed_all)
///
/// @param seed  any number
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn tcuda_random_manual_seed_all(seed: u64) -> tcuda_status {
    let body = |call: &Call| {
        let operation = "tcuda_random_manual_seed_all";
        random::manual_seed(call.inside(), Target::All, seed, operation)
    };
    boundary_with_forked(|| Ok(()), body)
}

/// Seeds the default generator of a device with a random number of the system, of 53 bits. Before
/// the library is initialised the seed is remembered, and in a forked child ignored, as by
/// tcuda_random_manual_seed. (torch.cuda.seed)
///
/// @param device  ordinal, or TCUDA_CURRENT_DEVICE
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn tcuda_random_seed(device: i32) -> tcuda_status {
    let body =
        |call: &Call| random::seed(call.inside(), Target::Device(device), "tcuda_random_seed");
    boundary_with_forked(|| Ok(()), body)
}

/// tcuda_random_seed for all devices, with one number for all. (torch.cuda.seed_all)
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn tcuda_random_seed_all() -> tcuda_status {
    let body = |call: &Call| random::seed(call.inside(), Target::All, "tcuda_random_seed_all");
    boundary_with_forked(|| Ok(()), body)
}

/// The present seed of a device's default generator. (torch.cuda.initial_seed)
///
/// @param device     ordinal, or TCUDA_CURRENT_DEVICE
/// @param[out] seed  the seed
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_random_initial_seed(device: i32, seed: *mut u64) -> tcuda_status {
    boundary(|call| {
        let seed = out(seed, "seed")?;
        seed.set(call.gpus()?.device(device)?.generator().seed());
        Ok(())
    })
}

/// The state of a device's default generator. (torch.cuda.get_rng_state)
///
/// @param device      ordinal, or TCUDA_CURRENT_DEVICE
/// @param[out] state  TCUDA_RANDOM_STATE_BYTES bytes
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_random_state_get(device: i32, state: *mut u8) -> tcuda_status {
    boundary(|call| {
        let state = state_out(state, "state")?;
        let gpus = call.gpus()?;
        let generator = gpus.device(device)?.generator();
        state.set(generator.get(gpus, "tcuda_random_state_get")?.bytes());
        Ok(())
    })
}

/// Sets the state of a device's default generator; before the library is initialised it is
/// remembered, as a seed is (tcuda_random_manual_seed). (torch.cuda.set_rng_state)
///
/// @param device  ordinal, or TCUDA_CURRENT_DEVICE
/// @param state   TCUDA_RANDOM_STATE_BYTES bytes; its offset is a multiple of 4
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_random_state_set(device: i32, state: *const u8) -> tcuda_status {
    boundary(|call| {
        let position = state_in(state, "state")?;
        random::set_state(call.inside(), device, position, "tcuda_random_state_set")
    })
}

/// The states of all devices, in their order. (torch.cuda.get_rng_state_all)
///
/// @param[out] states  room for `capacity` states; may be NULL if capacity is 0
/// @param capacity     room in states, in states
/// @param[out] count   number of devices; if more than `capacity`, states are missing
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_random_state_get_all(
    states: *mut u8,
    capacity: usize,
    count: *mut usize,
) -> tcuda_status {
    boundary(|call| {
        let count = out(count, "count")?;
        if states.is_null() && capacity > 0 {
            return Err(Error::Null { name: "states" });
        }
        let gpus = call.gpus()?;
        let mut found = [[0; STATE_BYTES]; crate::gpu::device::MAX_DEVICES];
        for (device, state) in gpus.devices.iter().zip(&mut found) {
            *state = device.generator().get(gpus, "tcuda_random_state_get_all")?.bytes();
        }
        for (index, state) in found.iter().enumerate().take(gpus.devices.len().min(capacity)) {
            state_out(states.wrapping_add(index * STATE_BYTES), "states")?.set(*state);
        }
        count.set(gpus.devices.len());
        Ok(())
    })
}

/// Sets the states of devices 0 to count - 1; before the library is initialised they are
/// remembered. (torch.cuda.set_rng_state_all)
///
/// @param states  `count` states, one after the other; may be NULL if count is 0
/// @param count   at most the number of devices
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_random_state_set_all(
    states: *const u8,
    count: usize,
) -> tcuda_status {
    boundary(|call| {
        if count > crate::gpu::device::MAX_DEVICES {
            let allowed = "no process has so many devices";
            return Err(Error::OutOfRange { name: "count", value: count as i64, allowed });
        }
        let list = bytes(states, count * STATE_BYTES, "states")?;
        if let Some(gpus) = gpus::existing(call.inside()) {
            // Either all are set or none.
            (0..count as i32).try_for_each(|device| gpus.device(device).map(drop))?;
        }
        let states =
            || list.chunks_exact(STATE_BYTES).map(|state| state_in(state.as_ptr(), "states"));
        states().try_for_each(|state| state.map(drop))?;
        for (device, state) in states().enumerate() {
            let operation = "tcuda_random_state_set_all";
            random::set_state(call.inside(), device as i32, state?, operation)?;
        }
        Ok(())
    })
}

/// A generator with torch's default seed, 67280421310721. (torch.Generator)
///
/// @param device          ordinal, or TCUDA_CURRENT_DEVICE
/// @param[out] generator  the caller's, to be destroyed
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_generator_create(
    device: i32,
    generator: *mut *mut tcuda_generator,
) -> tcuda_status {
    boundary(|call| {
        let generator = out(generator, "generator")?;
        let made = Generator::new(call.gpus()?.device(device)?.ordinal())?;
        generator.set(GENERATORS.insert(GeneratorRef::Own(made))? as *mut tcuda_generator);
        Ok(())
    })
}

/// Destroys a generator; graphs that it is registered with keep what they need. A no-op on a
/// device's default one. (the end of a torch.Generator)
///
/// @param generator  may be NULL: no-op
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_generator_destroy(generator: *mut tcuda_generator) -> tcuda_status {
    boundary(|call| {
        if generator.is_null() {
            return Ok(());
        }
        match GENERATORS.get(generator as usize, "generator", call)?.is_borrowed() {
            true => Ok(()),
            false => GENERATORS.remove(generator as usize, "generator"),
        }
    })
}

/// The default generator of a device; borrowed. (torch.cuda.default_generators)
///
/// @param device          ordinal, or TCUDA_CURRENT_DEVICE
/// @param[out] generator  borrowed
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_generator_default(
    device: i32,
    generator: *mut *mut tcuda_generator,
) -> tcuda_status {
    boundary(|call| {
        let generator = out(generator, "generator")?;
        let default = call.gpus()?.device(device)?.default_generator();
        let known = default.handle.load(Ordering::Acquire);
        if known != 0 {
            generator.set(known as *mut tcuda_generator);
            return Ok(());
        }
        let new = GENERATORS.insert(GeneratorRef::Borrowed(default.generator()))?;
        let first = default.handle.compare_exchange(0, new, Ordering::AcqRel, Ordering::Acquire);
        let handle = match first {
            Ok(_) => new,
            Err(first) => {
                GENERATORS.remove(new, "generator")?;
                first
            }
        };
        generator.set(handle as *mut tcuda_generator);
        Ok(())
    })
}

/// The seed of a generator. (torch.Generator.initial_seed)
///
/// @param generator  NULL: the default one of the current device
/// @param[out] seed  the seed
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_generator_seed_get(
    generator: *mut tcuda_generator,
    seed: *mut u64,
) -> tcuda_status {
    boundary(|call| {
        let seed = out(seed, "seed")?;
        seed.set(subject(generator, call)?.seed());
        Ok(())
    })
}

/// Seeds a generator; its offset becomes 0. While this thread's current stream of the generator's
/// device is captured, only the present seed is accepted, and changes nothing.
/// (torch.Generator.manual_seed)
///
/// @param generator  NULL: the default one of the current device
/// @param seed       any number
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_generator_seed_set(
    generator: *mut tcuda_generator,
    seed: u64,
) -> tcuda_status {
    boundary(|call| {
        subject(generator, call)?.set_seed(call.gpus()?, seed, "tcuda_generator_seed_set")
    })
}

/// Number of 32-bit words that were drawn from each thread's stream of numbers. This and the
/// functions that follow return TCUDA_STATUS_CAPTURING while this thread's current stream of the
/// generator's device is captured. (torch.Generator.get_offset)
///
/// @param generator    NULL: the default one of the current device
/// @param[out] offset  a multiple of 4
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_generator_offset_get(
    generator: *mut tcuda_generator,
    offset: *mut u64,
) -> tcuda_status {
    boundary(|call| {
        let offset = out(offset, "offset")?;
        let generator = subject(generator, call)?;
        offset.set(generator.get(call.gpus()?, "tcuda_generator_offset_get")?.offset);
        Ok(())
    })
}

/// Sets the offset. (torch.Generator.set_offset)
///
/// @param generator  NULL: the default one of the current device
/// @param offset     in 32-bit words; a multiple of 4
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_generator_offset_set(
    generator: *mut tcuda_generator,
    offset: u64,
) -> tcuda_status {
    boundary(|call| {
        let operation = "tcuda_generator_offset_set";
        subject(generator, call)?.set_offset(call.gpus()?, offset, operation)
    })
}

/// Seed and offset. (torch.Generator.get_state)
///
/// @param generator   NULL: the default one of the current device
/// @param[out] state  TCUDA_RANDOM_STATE_BYTES bytes
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_generator_state_get(
    generator: *mut tcuda_generator,
    state: *mut u8,
) -> tcuda_status {
    boundary(|call| {
        let state = state_out(state, "state")?;
        let generator = subject(generator, call)?;
        state.set(generator.get(call.gpus()?, "tcuda_generator_state_get")?.bytes());
        Ok(())
    })
}

/// Sets seed and offset. (torch.Generator.set_state)
///
/// @param generator  NULL: the default one of the current device
/// @param state      TCUDA_RANDOM_STATE_BYTES bytes; its offset is a multiple of 4
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_generator_state_set(
    generator: *mut tcuda_generator,
    state: *const u8,
) -> tcuda_status {
    boundary(|call| {
        let position = state_in(state, "state")?;
        subject(generator, call)?.set(call.gpus()?, position, "tcuda_generator_state_set")
    })
}

/// Draws random numbers for a kernel of the host, which is to run on this thread's current stream
/// of the generator's device. While that stream is captured the numbers belong to the graph, whose
/// replays draw new ones: the generator must be registered with it, or TCUDA_STATUS_CAPTURING.
/// (+, as philox_cuda_state of PyTorch's C++)
///
/// @param generator   NULL: the default one of the current device
/// @param increment   32-bit words that each thread draws; rounded up to a multiple of 4
/// @param[out] state  pass it to the kernel by value
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_generator_philox_state(
    generator: *mut tcuda_generator,
    increment: u64,
    state: *mut tcuda_philox_state,
) -> tcuda_status {
    boundary(|call| {
        let state = out(state, "state")?;
        let (generator, gpus) = (subject(generator, call)?, call.gpus()?);
        let stream = gpus.device(generator.device())?.streams.current();
        let operation = "tcuda_generator_philox_state";
        let taken = generator.take(gpus, stream, increment, operation)?;
        state.set(tcuda_philox_state {
            seed: taken.seed,
            offset: taken.offset,
            seed_ptr: taken.seed_ptr as *const u64,
            offset_ptr: taken.offset_ptr as *const u64,
        });
        Ok(())
    })
}
