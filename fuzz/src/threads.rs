//! The calls of `abi` by several threads at once, on shared and on own objects. Little can be said of
//! their answers: nothing crashes or hangs, outputs are written by calls that succeed, and the live
//! handles are counted right.

use crate::abi;
use crate::expect::status;
use crate::input::Input;
use crate::status_of;
use crate::world::{Mode, World};
use tcuda::ffi::device::tcuda_device_synchronize;

/// Threads beside the first.
const MOST: usize = 3;

/// Was a device lost? One thread may free what another one's copy is about to use.
fn is_any_lost(world: &World) -> bool {
    let mut devices = 0..world.devices();
    world.is_initialized()
        && devices.any(|device| status_of!(tcuda_device_synchronize(device)) == status::DEVICE_LOST)
}

/// One input: what is shared, then what each thread does with it.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let selected = input.u8().into();
    let others = 1 + input.below(MOST);
    let mut world = World::begin(Mode::Threads, selected);
    world.may_be_shut_down = input.rarely(64);
    let shared = usize::from(input.u8());
    abi::run(&mut world, &mut Input::new(input.take(shared)));
    let rest = input.rest();
    let part = rest.len().div_ceil(others + 1);
    let mut worlds: Vec<World> = (0..others).map(|_| world.of_another_thread()).collect();
    std::thread::scope(|scope| {
        for (index, world) in worlds.iter_mut().enumerate() {
            let own = Input::new(rest).skipping((index + 1) * part, part);
            scope.spawn(move || abi::run(world, &mut { own }));
        }
        abi::run(&mut world, &mut Input::new(rest).skipping(0, part));
    });
    let was_shut_down = world.was_shut_down || worlds.iter().any(|world| world.was_shut_down);
    let counted = world.counted + worlds.iter().map(|world| world.counted).sum::<isize>();
    world.lost |= was_shut_down || worlds.iter().any(|world| world.lost) || is_any_lost(&world);
    abi::finish(&mut world, (!was_shut_down).then_some(counted));
}
