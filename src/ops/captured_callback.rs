//! Host functions in graphs. Each launch calls them. A function is freed once, when no graph has it
//! and its launches are complete.
//!
//! The driver gets a number instead of an address. After an error, or for a launch by the host
//! itself, it may call late; then the number finds the function or nothing.

use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::base::progress;
use crate::base::rank::{Rank, before_captured_function};
use crate::base::thread;
use crate::base::waiting;
use crate::driver::sys::CUstream;
use crate::gpu::gpus::Gpus;
use crate::ops::callback::Callback;
use crate::sanitizer::{self, Point};
use std::ffi::c_void;
use std::ptr::without_provenance_mut;

/// A host function of one or more graphs.
struct Captured {
    /// Unique, also across shutdowns.
    number: usize,
    callback: Callback,
    /// If the sanitizer is on: what is complete when the function runs, at the last launch.
    sync_point: Option<Point>,
    /// Number of lists that name it: [`Functions`], and that of its capture.
    holders: usize,
    /// Calls that launches have yet to make.
    expected_calls: usize,
    /// Calls that are running.
    running: usize,
    /// Removed, but its entry is still in the table.
    is_removed: bool,
}

impl Captured {
    fn is_over(&self) -> bool {
        self.holders == 0 && self.expected_calls == 0 && self.running == 0
    }
}

/// The functions of all graphs.
struct Table {
    last: usize,
    /// Sorted by number.
    list: Vec<Captured>,
    /// Removed entries in `list`: at most half of it, so that a removal takes amortised constant
    /// time.
    num_removed: usize,
}

static TABLE: Mutex<Table> =
    Mutex::new(Rank::LEAF, Table { last: 0, list: Vec::new(), num_removed: 0 });

impl Table {
    fn index(&self, number: usize) -> Option<usize> {
        let index = self.list.binary_search_by_key(&number, |captured| captured.number).ok()?;
        (!self.list[index].is_removed).then_some(index)
    }

    /// Marks an entry as removed; compacts the list if more than half is.
    fn remove(&mut self, index: usize) {
        self.list[index].is_removed = true;
        self.num_removed += 1;
        if 2 * self.num_removed > self.list.len() {
            self.list.retain(|captured| !captured.is_removed);
            self.num_removed = 0;
        }
    }

    fn find(&mut self, number: usize) -> Option<&mut Captured> {
        let index = self.index(number)?;
        self.list.get_mut(index)
    }

    /// Changes an entry. Removes and returns its callback if nothing needs it any more.
    fn settle(&mut self, number: usize, change: impl FnOnce(&mut Captured)) -> Option<Callback> {
        let index = self.index(number)?;
        let captured = &mut self.list[index];
        change(captured);
        if !captured.is_over() {
            return None;
        }
        let Callback { function, user_data, destroy } = captured.callback;
        self.remove(index);
        Some(Callback { function, user_data, destroy })
    }
}

/// The functions of a capture, a template or an executable. They are freed some time after its end.
#[derive(Default)]
pub(crate) struct Functions(Vec<usize>);

const NO_ROOM: Error = Error::OutOfHostMemory("the host functions of a graph");

impl Functions {
    /// The functions of a capture that has ended, by their numbers, which count it as a holder.
    pub(crate) fn of_capture(numbers: Vec<usize>) -> Functions {
        Functions(numbers)
    }

    /// A second list that holds the same functions.
    pub(crate) fn share(&self) -> Result<Functions> {
        let mut numbers = Vec::new();
        numbers.try_reserve_exact(self.0.len()).map_err(|_| NO_ROOM)?;
        numbers.extend(&self.0);
        self.each(|captured| captured.holders += 1);
        Ok(Functions(numbers))
    }

    /// Counts the calls of a launch that is about to be made.
    #[inline]
    pub(crate) fn expect_calls(&self) {
        if !self.0.is_empty() {
            self.each(|captured| captured.expected_calls += 1);
        }
    }

    /// Stores what is complete when the functions run: `sync_point` returns it.
    #[cold]
    pub(crate) fn set_sync_point(&self, sync_point: impl Fn() -> Option<Point>) {
        for number in &self.0 {
            // Called with no lock held.
            let sync_point = sync_point();
            if let Some(captured) = TABLE.lock().find(*number) {
                captured.sync_point = sync_point;
            }
        }
    }

    /// Takes back [`Functions::expect_calls`] after a failed launch. If the driver makes the launch
    /// all the same, a function that is freed by then is not called.
    pub(crate) fn cancel_expected_calls(&self) {
        self.each(|captured| captured.expected_calls = captured.expected_calls.saturating_sub(1));
    }

    fn each(&self, change: impl Fn(&mut Captured)) {
        let mut table = TABLE.lock();
        self.0.iter().for_each(|number| table.find(*number).into_iter().for_each(&change));
    }
}

impl Drop for Functions {
    /// Dropping the last holder may call the host's `destroy`, with no lock held.
    fn drop(&mut self) {
        for number in std::mem::take(&mut self.0) {
            let over = TABLE.lock().settle(number, |captured| {
                captured.holders = captured.holders.saturating_sub(1);
            });
            over.iter().for_each(Callback::finish);
        }
    }
}

/// Adds a function to an active capture. On failure the caller keeps it.
pub(crate) fn capture(
    gpus: &Gpus,
    stream: CUstream,
    capture: u64,
    callback: Callback,
) -> Result<()> {
    let number = list(callback)?;
    if let Err(error) = gpus.captures().take_function(capture, number) {
        forget(number);
        return Err(error);
    }
    let argument = without_provenance_mut(number);
    // SAFETY: `call` takes any number.
    let added = unsafe { gpus.driver().cuLaunchHostFunc(stream, Some(call), argument) };
    match added {
        Err(error) if forget(number) => {
            gpus.captures().drop_function(capture, number);
            Err(error.into())
        }
        // The capture was ended meanwhile, and the function with it.
        _ => Ok(()),
    }
}

/// Adds a function to the table, held once by a capture. Returns its number.
fn list(callback: Callback) -> Result<usize> {
    let mut table = TABLE.lock();
    table.list.try_reserve(1).map_err(|_| NO_ROOM)?;
    table.last += 1;
    let number = table.last;
    let sync_point = None;
    table.list.push(Captured {
        number,
        callback,
        sync_point,
        holders: 1,
        expected_calls: 0,
        running: 0,
        is_removed: false,
    });
    Ok(number)
}

/// Removes a function that the caller keeps. False: it is running or already freed.
fn forget(number: usize) -> bool {
    let mut table = TABLE.lock();
    match table.index(number) {
        Some(index) if table.list[index].running == 0 => {
            table.remove(index);
            true
        }
        _ => false,
    }
}

unsafe extern "C" fn call(number: *mut c_void) {
    let number = number.addr();
    let found = TABLE.lock().find(number).map(|captured| {
        captured.running += 1;
        (captured.callback.function, captured.callback.user_data, captured.sync_point.clone())
    });
    let Some((function, user_data, sync_point)) = found else { return };
    before_captured_function();
    sanitizer::reached(sync_point);
    progress::notify();
    let _in_callback = thread::InCallback::begin();
    let waiting = waiting::begin();
    // SAFETY: the host's own function with its own data, both valid while it runs.
    unsafe { function(user_data) };
    drop(waiting);
    let over = TABLE.lock().settle(number, |captured| {
        captured.running = captured.running.saturating_sub(1);
        captured.expected_calls = captured.expected_calls.saturating_sub(1);
    });
    over.iter().for_each(Callback::finish);
}

/// The host's function that a node calls through this library. `None`: the node is not of this
/// library. `function` and `argument` are those that the driver has.
pub(crate) fn host_function(function: usize, argument: *mut c_void) -> Option<usize> {
    if function != call as *const () as usize {
        return None;
    }
    TABLE.lock().find(argument.addr()).map(|known| known.callback.function as usize)
}

/// Frees all functions. Pending calls will never run, because the device is idle or lost.
pub(crate) fn free_all() {
    let mut table = TABLE.lock();
    table.num_removed = 0;
    let left = std::mem::take(&mut table.list);
    drop(table);
    let there = left.iter().filter(|captured| !captured.is_removed);
    there.for_each(|captured| captured.callback.finish());
}
