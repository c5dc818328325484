use super::*;
use crate::base::thread;
use crate::driver::sim;
use crate::gpu::device::CURRENT;
use crate::gpu::gpus;
use crate::gpu::gpus::Gpus;
use crate::memory;
use crate::ops::copy;
use crate::random::pending::Target;
use crate::random::{manual_seed, seed, set_state};
use crate::runtime;

fn on_machine<R>(options: &str, body: impl FnOnce(&Gpus) -> R) -> R {
    let _lock = sim::test_lock();
    let inside = thread::enter().unwrap();
    runtime::select_backend(&inside, "sim", options).unwrap();
    let result = body(runtime::get(&inside).unwrap());
    runtime::shutdown(&inside, |_| 0).unwrap();
    result
}

#[test]
fn states_are_as_pytorchs() {
    let position = Position { seed: 0x0123_4567_89ab_cdef, offset: 0x1c };
    let bytes = position.bytes();
    assert_eq!(bytes[..8], [0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01]);
    assert_eq!(bytes[8..], [0x1c, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(Position::of_bytes(&bytes).unwrap(), position);
    assert!(Position::of_bytes(&Position { seed: 1, offset: 2 }.bytes()).is_err());
}

#[test]
fn entropy_differs_between_calls() {
    let numbers: std::collections::HashSet<u64> = (0..1000).map(|_| entropy()).collect();
    assert_eq!(numbers.len(), 1000);
    assert!(numbers.iter().all(|number| number >> 53 == 0));
    assert!(numbers.iter().any(|number| number >> 45 != 0));
    assert_ne!(mixed(1), mixed(2));
}

#[test]
fn increments_are_rounded_up() {
    on_machine("memory=64MiB", |gpus| {
        let stream = gpus.devices[0].streams.default();
        let generator = Generator::new(0).unwrap();
        assert_eq!(generator.position(), Position::start(DEFAULT_SEED));
        for (increment, before) in [(1, 0), (4, 4), (5, 8), (0, 16), (10, 16), (4, 28)] {
            let taken = generator.take(gpus, stream, increment, "a test").unwrap();
            let expected = Philox { seed: DEFAULT_SEED, offset: before, ..Philox::default() };
            assert_eq!(taken, expected);
        }
        assert!(generator.take(gpus, stream, u64::MAX - 2, "a test").is_err());
        let copy = generator.clone_state().unwrap();
        let same = generator.share_state();
        assert_eq!(copy.position().offset, 32);
        generator.take(gpus, stream, 4, "a test").unwrap();
        assert_eq!((copy.position().offset, same.position().offset), (32, 36));
    });
}

#[test]
fn changes_are_applied_at_initialisation() {
    let _lock = sim::test_lock();
    let inside = thread::enter().unwrap();
    runtime::select_backend(&inside, "sim", "devices=3,memory=64MiB").unwrap();
    let all = Target::All;
    let state = |offset| Position { seed: 9, offset };
    // In the order of the calls: the last change of a device takes effect.
    manual_seed(&inside, all, 1, "a test").unwrap();
    set_state(&inside, 1, state(8), "a test").unwrap();
    manual_seed(&inside, all, 3, "a test").unwrap();
    manual_seed(&inside, Target::Device(CURRENT), 4, "a test").unwrap();
    manual_seed(&inside, Target::Device(1), 2, "a test").unwrap();
    set_state(&inside, 1, state(4), "a test").unwrap();
    manual_seed(&inside, Target::Device(17), 5, "a test").unwrap();
    for device in [-2, 64, i32::MAX, i32::MIN] {
        assert!(manual_seed(&inside, Target::Device(device), 5, "a test").is_err());
    }
    assert!(gpus::existing(&inside).is_none());
    // Device 17 does not exist: an error, once.
    assert!(matches!(runtime::get(&inside), Err(Error::SeededDevice { device: 17, count: 3 })));
    let gpus = runtime::get(&inside).unwrap();
    let seeds = || gpus.devices.iter().map(|device| device.generator().seed()).collect::<Vec<_>>();
    assert_eq!(seeds(), [4, 9, 3]);
    assert_eq!(gpus.devices[1].generator().position(), state(4));
    runtime::shutdown(&inside, |_| 0).unwrap();
    // States, and random seeds, in order.
    seed(&inside, all, "a test").unwrap();
    set_state(&inside, 2, state(4), "a test").unwrap();
    set_state(&inside, 2, state(8), "a test").unwrap();
    let gpus = runtime::get(&inside).unwrap();
    let positions: Vec<_> =
        gpus.devices.iter().map(|device| device.generator().position()).collect();
    assert_eq!(positions[2], state(8));
    assert!(positions[0] == positions[1] && positions[0].offset == 0);
    runtime::shutdown(&inside, |_| 0).unwrap();
    // Nothing is left of the changes, and each device has a seed of its own.
    let gpus = runtime::get(&inside).unwrap();
    let fresh: Vec<_> = gpus.devices.iter().map(|device| device.generator().seed()).collect();
    assert!(
        fresh[0] != fresh[1]
            && fresh[1] != fresh[2]
            && !positions.iter().any(|p| p.seed == fresh[0])
    );
    runtime::shutdown(&inside, |_| 0).unwrap();
}

#[test]
fn a_graph_has_its_own_offset() {
    on_machine("memory=64MiB", |gpus| {
        let device = &gpus.devices[0];
        let stream = device.streams.next(device, 0).unwrap();
        let generator = Generator::new(0).unwrap();
        generator.put(Position { seed: 7, offset: 40 });
        let registration = generator.register(gpus).unwrap();
        assert!(registration.is_of(&generator) && !registration.is_of(device.generator()));
        let allocated = || {
            device.memory().statistics().counters[memory::stats::ledger::ALLOCATED_BYTES][0].current
        };
        let mut ends = Vec::new();
        for _ in 0..2 {
            registration.capture_prologue().unwrap();
            registration.capture_begun(5);
            let first = generator.state.take_captured(gpus, 5, 4, "a test").unwrap();
            let second = generator.state.take_captured(gpus, 5, 12, "a test").unwrap();
            assert_eq!((first.offset, second.offset, first.seed), (0, 4, 0));
            assert!(first.seed_ptr != 0 && first.offset_ptr == first.seed_ptr + 8);
            assert_eq!(second.seed_ptr, first.seed_ptr);
            // The capture has another ID.
            let refused = generator.state.take_captured(gpus, 6, 4, "a test");
            assert!(matches!(refused, Err(Error::Capturing { operation: "a test", .. })));
            ends.push((registration.capture_epilogue(), first.seed_ptr));
        }
        assert_eq!(ends[0].0, 16);
        assert_eq!(ends[0], ends[1], "the same words for the next capture");
        assert_eq!(allocated(), 512);
        // Launches write seed and offset, and advance the generator.
        for offset in [40u64, 56] {
            registration.replay_prologue(gpus, 16, stream).unwrap();
            stream.synchronize(gpus).unwrap();
            let mut words = [0u64; 2];
            let to = words.as_mut_ptr() as u64;
            copy::copy(gpus, to, ends[0].1, 16, stream).unwrap();
            stream.synchronize(gpus).unwrap();
            assert_eq!(words, [7, offset]);
        }
        assert_eq!(generator.position().offset, 72);
        drop(generator);
        drop(registration);
        assert_eq!(allocated(), 0);
        assert!(memory::find(ends[0].1).is_err());
        // Without random numbers no memory is allocated.
        let registration = device.generator().register(gpus).unwrap();
        registration.capture_prologue().unwrap();
        assert_eq!(registration.capture_epilogue(), 0);
        registration.replay_prologue(gpus, 0, stream).unwrap();
        assert_eq!(registration.capture_epilogue(), 0);
    });
}
