//! Random numbers that equal PyTorch's bit for bit.

pub mod capture;
pub mod check;
pub mod fill;
pub mod generator;
pub mod image;
pub mod loaded;
pub mod number;
pub mod pending;
pub mod plan;
mod recipe;

use crate::base::error::Result;
use crate::base::thread::Inside;
use crate::gpu::gpus::{self, Gpus};
use generator::{Position, entropy};
use pending::{Change, Target};

/// Changes the position of generators; before initialisation the change is stored. `operation`:
/// name of the public function.
fn change(inside: &Inside, change: Change, operation: &'static str) -> Result<()> {
    let later = || pending::remember(change);
    let Some(gpus) = gpus::existing_or(inside, later)? else { return Ok(()) };
    match change.target {
        Target::Device(device) => put(gpus, device, change, operation),
        Target::All => (0..gpus.devices.len() as i32)
            .try_for_each(|device| put(gpus, device, change, operation)),
    }
}

fn put(gpus: &Gpus, device: i32, change: Change, operation: &'static str) -> Result<()> {
    let generator = gpus.device(device)?.generator();
    match change.is_seed {
        true => generator.set_seed(gpus, change.position.seed, operation),
        false => generator.set(gpus, change.position, operation),
    }
}

/// Seeds generators with a number from the host.
pub fn manual_seed(
    inside: &Inside,
    target: Target,
    seed: u64,
    operation: &'static str,
) -> Result<()> {
    change(inside, Change { target, is_seed: true, position: Position::start(seed) }, operation)
}

/// Seeds generators with one random number from the system.
pub fn seed(inside: &Inside, target: Target, operation: &'static str) -> Result<()> {
    let position = Position::start(entropy());
    change(inside, Change { target, is_seed: false, position }, operation)
}

/// Sets the position of a device's generator.
pub fn set_state(
    inside: &Inside,
    device: i32,
    position: Position,
    operation: &'static str,
) -> Result<()> {
    let target = Target::Device(device);
    change(inside, Change { target, is_seed: false, position }, operation)
}
