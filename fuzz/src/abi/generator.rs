//! Generators of random numbers.

use crate::expect::{Expect, status};
use crate::input::Input;
use crate::outputs::Out;
use crate::status_of;
use crate::world::{Mode, StreamEntry, World};
use tcuda::ffi::generator::*;

/// As many devices as any process can have.
const MOST_DEVICES: i32 = 64;

/// Would a seed of a device that does not exist be remembered, and fail the call that initialises?
fn is_remembered(w: &World) -> bool {
    w.mode == Mode::Threads || !w.is_initialized()
}

/// A device whose seed is set; none that fails another call, also on another machine.
fn device(w: &World, i: &mut Input, e: &mut Expect) -> i32 {
    let mut wrong = Expect::default();
    let device = w.device(i, &mut wrong);
    if is_remembered(w) && (0..MOST_DEVICES).contains(&device) {
        return device.min(0);
    }
    e.wrong = wrong.wrong;
    device
}

pub(super) fn manual_seed(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let device = device(w, i, &mut e);
    let seed = i.u64();
    let status = status_of!(tcuda_random_manual_seed(device, seed));
    if w.judge(status, &e) && w.mode == Mode::Strict && w.is_initialized() {
        let mut found = 0;
        assert_eq!(status_of!(tcuda_random_initial_seed(device, &mut found)), status::OK);
        assert_eq!(found, seed);
    }
}

pub(super) fn manual_seed_all(w: &mut World, i: &mut Input) {
    w.judge(status_of!(tcuda_random_manual_seed_all(i.u64())), &Expect::default());
}

pub(super) fn seed(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let device = device(w, i, &mut e);
    w.judge(status_of!(tcuda_random_seed(device)), &e);
}

pub(super) fn seed_all(w: &mut World, _: &mut Input) {
    w.judge(status_of!(tcuda_random_seed_all()), &Expect::default());
}

pub(super) fn initial_seed(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let device = w.device(i, &mut e);
    let mut out = Out::<u64>::required(i, &mut e);
    let status = status_of!(tcuda_random_initial_seed(device, out.ptr()));
    out.check(w.judge(status, &e));
}

/// A state of the host's, or NULL.
fn state(i: &mut Input, e: &mut Expect) -> Option<[u8; TCUDA_RANDOM_STATE_BYTES]> {
    if i.rarely(8) {
        e.wrong(status::INVALID_ARGUMENT);
        return None;
    }
    let mut state = [0; TCUDA_RANDOM_STATE_BYTES];
    for byte in &mut state {
        *byte = i.u8();
    }
    if i.u8() < 192 {
        state[8] &= !3;
    }
    if state[8] & 3 != 0 {
        e.wrong(status::INVALID_ARGUMENT);
    }
    Some(state)
}

pub(super) fn state_get(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let device = w.device(i, &mut e);
    let mut out = Out::<State>::required(i, &mut e);
    let status = status_of!(tcuda_random_state_get(device, out.ptr().cast()));
    if let Some(state) = out.check(w.judge(status, &e)) {
        assert_eq!(state.0[1] & 3, 0, "an offset that is no multiple of 4");
    }
}

pub(super) fn state_set(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let state = state(i, &mut e);
    let mut by_device = Expect::default();
    let device = device(w, i, &mut by_device);
    if e.wrong.is_empty() {
        e = by_device;
    }
    let ptr = state.as_ref().map_or(std::ptr::null(), |state| state.as_ptr());
    w.judge(status_of!(tcuda_random_state_set(device, ptr)), &e);
}

pub(super) fn state_get_all(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let capacity = i.below(4);
    let mut states = [0xC5u8; 4 * TCUDA_RANDOM_STATE_BYTES];
    let is_null = i.rarely(8);
    let ptr = if is_null { std::ptr::null_mut() } else { states.as_mut_ptr() };
    if is_null && capacity > 0 {
        e.wrong(status::INVALID_ARGUMENT);
    }
    let mut out = Out::<usize>::required(i, &mut e);
    let status = status_of!(tcuda_random_state_get_all(ptr, capacity, out.ptr()));
    let count = out.check(w.judge(status, &e));
    let written = count.unwrap_or(0).min(capacity) * TCUDA_RANDOM_STATE_BYTES;
    assert!(states[written..].iter().all(|byte| *byte == 0xC5), "written behind the states");
}

pub(super) fn state_set_all(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let most = if is_remembered(w) { 1 } else { 4 };
    let count = i.below(4).min(most);
    let states = [0u8; 4 * TCUDA_RANDOM_STATE_BYTES];
    if count as i32 > w.devices() && w.is_initialized() {
        e.wrong(status::INVALID_DEVICE);
    }
    let is_null = i.rarely(8);
    let ptr = if is_null { std::ptr::null() } else { states.as_ptr() };
    if is_null && count > 0 {
        e.wrong(status::INVALID_ARGUMENT);
    }
    w.judge(status_of!(tcuda_random_state_set_all(ptr, count)), &e);
}

pub(super) fn create(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let device = w.device(i, &mut e);
    let mut out = Out::<*mut tcuda_generator>::required(i, &mut e);
    let status = status_of!(tcuda_generator_create(device, out.ptr()));
    if let Some(generator) = out.check(w.judge(status, &e)) {
        w.generators.push(StreamEntry { handle: generator as usize, owned: true });
        w.counted += 1;
    }
}

pub(super) fn default(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let device = w.device(i, &mut e);
    let mut out = Out::<*mut tcuda_generator>::required(i, &mut e);
    let status = status_of!(tcuda_generator_default(device, out.ptr()));
    if let Some(generator) = out.check(w.judge(status, &e)) {
        let handle = generator as usize;
        if !w.generators.iter().any(|known| known.handle == handle) {
            w.generators.push(StreamEntry { handle, owned: false });
        }
    }
}

pub(super) fn destroy(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let generator = w.generator(i, &mut e);
    let status = status_of!(tcuda_generator_destroy(generator));
    w.judge(status, &e);
    let is_it = |known: &StreamEntry| known.handle == generator as usize && known.owned;
    if status == status::OK
        && let Some(index) = w.generators.iter().position(is_it)
    {
        w.dead.push(w.generators.swap_remove(index).handle);
        w.counted -= 1;
    }
}

pub(super) fn seed_get(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let generator = w.generator(i, &mut e);
    let mut out = Out::<u64>::required(i, &mut e);
    let status = status_of!(tcuda_generator_seed_get(generator, out.ptr()));
    out.check(w.judge(status, &e));
}

pub(super) fn seed_set(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let generator = w.generator(i, &mut e);
    let seed = i.u64();
    let status = status_of!(tcuda_generator_seed_set(generator, seed));
    if w.judge(status, &e) && w.mode == Mode::Strict {
        let mut found = (0, 0);
        assert_eq!(status_of!(tcuda_generator_seed_get(generator, &mut found.0)), status::OK);
        let told = status_of!(tcuda_generator_offset_get(generator, &mut found.1));
        assert!(told != status::OK || found == (seed, 0));
    }
}

pub(super) fn offset_get(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let generator = w.generator(i, &mut e);
    let mut out = Out::<u64>::required(i, &mut e);
    let status = status_of!(tcuda_generator_offset_get(generator, out.ptr()));
    if let Some(offset) = out.check(w.judge(status, &e)) {
        assert_eq!(offset & 3, 0);
    }
}

pub(super) fn offset_set(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let generator = w.generator(i, &mut e);
    let offset = i.one_of(&[0, 4, 1 << 40, u64::MAX - 3, 1, 2, u64::MAX]);
    if offset & 3 != 0 {
        e.wrong(status::INVALID_ARGUMENT);
    }
    w.judge(status_of!(tcuda_generator_offset_set(generator, offset)), &e);
}

pub(super) fn generator_state_get(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let generator = w.generator(i, &mut e);
    let mut out = Out::<State>::required(i, &mut e);
    let status = status_of!(tcuda_generator_state_get(generator, out.ptr().cast()));
    out.check(w.judge(status, &e));
}

pub(super) fn generator_state_set(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let state = state(i, &mut e);
    let mut by_handle = Expect::default();
    let generator = w.generator(i, &mut by_handle);
    if e.wrong.is_empty() {
        e = by_handle;
    }
    let ptr = state.as_ref().map_or(std::ptr::null(), |state| state.as_ptr());
    w.judge(status_of!(tcuda_generator_state_set(generator, ptr)), &e);
}

pub(super) fn philox_state(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let generator = w.generator(i, &mut e);
    let increment = i.one_of(&[0, 1, 4, 10, 1 << 33, u64::MAX]);
    if increment == u64::MAX {
        e.wrong(status::INVALID_ARGUMENT);
    }
    let is_null = i.rarely(8);
    let mut state = [u64::MAX; 4];
    let ptr = if is_null { std::ptr::null_mut() } else { state.as_mut_ptr().cast() };
    if is_null {
        e.wrong(status::INVALID_ARGUMENT);
    }
    let status = status_of!(tcuda_generator_philox_state(generator, increment, ptr));
    if w.judge(status, &e) {
        assert!(state[1] & 3 == 0 && state[2..] == [0, 0]);
    } else {
        assert_eq!(state, [u64::MAX; 4], "an output was written by a call that failed");
    }
}

/// Seed and offset.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct State([u64; 2]);

// SAFETY: integers without padding.
unsafe impl crate::outputs::Plain for State {}
