//! The calls of `abi` by several threads at once, on shared and on own objects. Little can be said
//! of their answers: nothing crashes or hangs, outputs are written by calls that succeed, and the
//! live handles are counted right.

use crate::abi;
use crate::expect::status;
use crate::input::Input;
use crate::status_of;
use crate::world::{Mode, World};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tcuda::ffi::device::{tcuda_device_synchronize, tcuda_init};
use tcuda::ffi::event::{tcuda_event_create, tcuda_event_destroy};
use tcuda::ffi::graph::tcuda_graph_create;
use tcuda::ffi::library::tcuda_shutdown;
use tcuda::ffi::stream::tcuda_stream_create;

/// Threads beside the first.
const MOST: usize = 3;

/// Was a device lost? One thread may free what another one's copy is about to use.
fn is_any_lost(world: &World) -> bool {
    let mut devices = 0..world.devices();
    world.is_initialized()
        && devices.any(|device| status_of!(tcuda_device_synchronize(device)) == status::DEVICE_LOST)
}

/// What one more thread does meanwhile, again and again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Beside {
    /// There is none.
    Nothing,
    /// Shuts the library down.
    Shutdowns,
    /// Forks; each child calls the library.
    Forks,
}

/// Seconds after which a child of a fork hangs.
const LONGEST: u32 = 60;

/// Forks a child that makes some calls, with whatever status: it ends.
fn fork() {
    // SAFETY: the child makes calls of the library and of libc, and ends without destructors.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    if child == 0 {
        // SAFETY: takes no memory.
        unsafe { libc::alarm(LONGEST) };
        let mut event = std::ptr::null_mut();
        status_of!(tcuda_init());
        if status_of!(tcuda_event_create(0, &mut event)) == status::OK {
            status_of!(tcuda_event_destroy(event));
        }
        status_of!(tcuda_graph_create(0, &mut std::ptr::null_mut()));
        status_of!(tcuda_stream_create(0, 0, &mut std::ptr::null_mut()));
        status_of!(tcuda_shutdown(std::ptr::null_mut()));
        // SAFETY: ends this process.
        unsafe { libc::_exit(0) };
    }
    let mut how = 0;
    // SAFETY: `how` is writable; the child is ours.
    let ended = unsafe { libc::waitpid(child, &mut how, 0) };
    assert_eq!(ended, child);
    assert!(libc::WIFEXITED(how) && libc::WEXITSTATUS(how) == 0, "a child ended by {how:#x}");
}

/// Until the others are done; gives how often.
fn disturb(beside: Beside, is_over: &AtomicBool) -> usize {
    let mut times = 0;
    while beside != Beside::Nothing && !is_over.load(Ordering::Relaxed) {
        match beside {
            Beside::Forks => fork(),
            _ => {
                let status = status_of!(tcuda_shutdown(std::ptr::null_mut()));
                // Another thread may shut down, or select a backend, at the same time.
                let is_right = [status::OK, status::INVALID_STATE].contains(&status);
                assert!(is_right, "{status}: {}", crate::world::last_error());
            }
        }
        times += 1;
        std::thread::sleep(Duration::from_micros(50 << (times % 8)));
    }
    times
}

/// Says that the others are done, also where one panics.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One input: what is shared, then what each thread does with it.
pub fn run(data: &[u8], beside: Beside) {
    let mut input = Input::new(data);
    let selected = input.u8().into();
    let others = 1 + input.below(MOST);
    let mut world = World::begin(Mode::Threads, selected);
    world.may_be_shut_down = input.rarely(64) || beside == Beside::Shutdowns;
    let shared = usize::from(input.u8());
    abi::run(&mut world, &mut Input::new(input.take(shared)));
    let rest = input.rest();
    let part = rest.len().div_ceil(others + 1);
    let mut worlds: Vec<World> = (0..others).map(|_| world.of_another_thread()).collect();
    let is_over = AtomicBool::new(false);
    let disturbed = std::thread::scope(|scope| {
        let over = Over(&is_over);
        let disturbing = scope.spawn(|| disturb(beside, &is_over));
        let calling: Vec<_> = worlds
            .iter_mut()
            .enumerate()
            .map(|(index, world)| {
                let own = Input::new(rest).skipping((index + 1) * part, part);
                scope.spawn(move || abi::run(world, &mut { own }))
            })
            .collect();
        abi::run(&mut world, &mut Input::new(rest).skipping(0, part));
        let ended: Vec<_> = calling.into_iter().map(|thread| thread.join()).collect();
        drop(over);
        ended.into_iter().for_each(|end| end.unwrap_or_else(|why| std::panic::resume_unwind(why)));
        disturbing.join().unwrap_or_else(|why| std::panic::resume_unwind(why))
    });
    world.was_shut_down |= beside == Beside::Shutdowns && disturbed > 0;
    let was_shut_down = world.was_shut_down || worlds.iter().any(|world| world.was_shut_down);
    let counted = world.counted + worlds.iter().map(|world| world.counted).sum::<isize>();
    world.lost |= was_shut_down || worlds.iter().any(|world| world.lost) || is_any_lost(&world);
    abi::finish(&mut world, (!was_shut_down).then_some(counted));
}
