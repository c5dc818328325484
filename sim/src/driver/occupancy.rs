//! Occupancy: how many blocks of a function run on a multiprocessor at the same time.

use super::config::Config;
use super::kernel;
use super::module::Function;
use super::partition::Partition;
use std::ffi::c_int;

/// Blocks take multiples of these bytes of shared memory, and of these threads.
const SHARED_UNIT: usize = 128;
const WARP: usize = 32;

/// The most blocks of a multiprocessor.
pub(super) fn blocks(
    config: &Config,
    function: &Function,
    threads: usize,
    dynamic: usize,
) -> usize {
    let kernel = &function.kernel.exec;
    // The kernel's own limit of threads does not count, as with the driver (580.159).
    if dynamic > function.settings.most_shared(kernel) || threads > kernel::MAX_THREADS_PER_BLOCK {
        return 0;
    }
    let model = config.model;
    let most_threads = config.threads_per_multiprocessor.unsigned_abs() as usize;
    let by_threads = most_threads / threads.max(1).next_multiple_of(WARP);
    by_threads
        .min(model.shared_per_multiprocessor / taken(config, function, dynamic))
        .min(model.blocks_per_multiprocessor)
}

/// Bytes of shared memory that a block takes.
fn taken(config: &Config, function: &Function, dynamic: usize) -> usize {
    let bytes = function.kernel.exec.shared_bytes + dynamic + config.model.shared_reserved;
    bytes.max(1).next_multiple_of(SHARED_UNIT)
}

/// The most dynamic shared memory of each of so many blocks; `None` if they do not fit.
pub(super) fn most_shared(
    config: &Config,
    function: &Function,
    number: usize,
    threads: usize,
) -> Option<usize> {
    if number == 0 || blocks(config, function, threads, 0) < number {
        return None;
    }
    let model = config.model;
    let share = model.shared_per_multiprocessor / number / SHARED_UNIT * SHARED_UNIT;
    let kernel = &function.kernel.exec;
    let free = share.saturating_sub(kernel.shared_bytes + model.shared_reserved);
    Some(free.min(function.settings.most_shared(kernel)))
}

/// The blocks of the device or the green context, and the threads of a block, with which most
/// threads run: the largest blocks of those. `shared_of` tells the dynamic shared memory for a
/// number of threads.
pub(super) fn best(
    config: &Config,
    function: &Function,
    partition: Option<&Partition>,
    limit: usize,
    shared_of: impl Fn(usize) -> usize,
) -> (usize, usize) {
    let most = function.kernel.exec.most_threads().min(kernel::MAX_THREADS_PER_BLOCK);
    let most = if limit > 0 { most.min(limit) } else { most };
    let (mut threads, mut number) = (0, 0);
    for size in (1..=most.div_ceil(WARP)).rev().map(|warps| (warps * WARP).min(most)) {
        let found = blocks(config, function, size, shared_of(size));
        if found * size > number * threads {
            (threads, number) = (size, found);
        }
    }
    (number * multiprocessors(config, partition), threads)
}

/// The most clusters of so many blocks on the device, or in the green context.
pub(super) fn clusters(
    config: &Config,
    function: &Function,
    partition: Option<&Partition>,
    (threads, dynamic): (usize, usize),
    size: usize,
) -> usize {
    let all = blocks(config, function, threads, dynamic) * multiprocessors(config, partition);
    all / size.max(1)
}

/// Multiprocessors of the device, or of a green context.
fn multiprocessors(config: &Config, partition: Option<&Partition>) -> usize {
    let of_device = config.multiprocessors.unsigned_abs() as usize;
    partition.map_or(of_device, |partition| partition.numbers.len())
}

/// A number for the host.
pub(super) fn number(count: usize) -> c_int {
    c_int::try_from(count).unwrap_or(c_int::MAX)
}
