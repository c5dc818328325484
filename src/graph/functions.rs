//! Host functions in graphs: called at each launch, and freed once, when no graph has them any more and
//! the launches are over.
//!
//! The driver gets a number and no address: what it calls after an error, or for a host that launches
//! on its own, finds the function here or nothing.

use crate::base::error::{Error, Result};
use crate::base::lock::Mutex;
use crate::base::progress;
use crate::base::rank::{Rank, before_captured_function};
use crate::base::thread;
use crate::base::waiting;
use crate::driver::sys::CUstream;
use crate::ops::callback::Callback;
use crate::runtime::Runtime;
use crate::sanitizer::{self, Point};
use std::ffi::c_void;
use std::ptr::without_provenance_mut;

/// A host function of one or more graphs.
struct Captured {
    /// Never that of another, also after the library has ended and begun again.
    number: usize,
    callback: Callback,
    /// What is over when it runs, if anybody watches: at the last launch.
    before: Option<Point>,
    /// Lists that name it.
    holders: usize,
    /// Calls that launches will make.
    owed: usize,
    /// Calls that are under way.
    running: usize,
    /// It was given back, and leaves the table with others.
    is_gone: bool,
}

impl Captured {
    fn is_over(&self) -> bool {
        self.holders == 0 && self.owed == 0 && self.running == 0
    }
}

/// All that are in graphs.
struct Table {
    last: usize,
    /// In the order of their numbers.
    list: Vec<Captured>,
    /// How many of those are gone: at most half, so that one that goes costs the same however many there are.
    gone: usize,
}

static TABLE: Mutex<Table> = Mutex::new(Rank::LEAF, Table { last: 0, list: Vec::new(), gone: 0 });

impl Table {
    fn index(&self, number: usize) -> Option<usize> {
        let index = self.list.binary_search_by_key(&number, |captured| captured.number).ok()?;
        (!self.list[index].is_gone).then_some(index)
    }

    /// Takes one out.
    fn remove(&mut self, index: usize) {
        self.list[index].is_gone = true;
        self.gone += 1;
        if 2 * self.gone > self.list.len() {
            self.list.retain(|captured| !captured.is_gone);
            self.gone = 0;
        }
    }

    fn find(&mut self, number: usize) -> Option<&mut Captured> {
        let index = self.index(number)?;
        self.list.get_mut(index)
    }

    /// Changes one; gives it back where nothing needs it any more.
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

/// Functions that a capture, a template or an executable names; they are freed some time after it.
#[derive(Default)]
pub(super) struct Functions(Vec<usize>);

const NO_ROOM: Error = Error::OutOfHostMemory("the host functions of a graph");

impl Functions {
    /// Names one more, which is held once for it already.
    pub(super) fn push(&mut self, number: usize) -> Result<()> {
        self.0.try_reserve(1).map_err(|_| NO_ROOM)?;
        self.0.push(number);
        Ok(())
    }

    /// Names one less, which is gone.
    pub(super) fn forget(&mut self, number: usize) {
        self.0.retain(|known| *known != number);
    }

    /// The same, held twice.
    pub(super) fn share(&self) -> Result<Functions> {
        let mut numbers = Vec::new();
        numbers.try_reserve_exact(self.0.len()).map_err(|_| NO_ROOM)?;
        numbers.extend(&self.0);
        self.each(|captured| captured.holders += 1);
        Ok(Functions(numbers))
    }

    /// Each will be called once by a launch that is about to be made.
    #[inline]
    pub(super) fn owe(&self) {
        if !self.0.is_empty() {
            self.each(|captured| captured.owed += 1);
        }
    }

    /// The host knows that what `before` gives is over when one is called.
    #[cold]
    pub(super) fn come_after(&self, before: impl Fn() -> Option<Point>) {
        for number in &self.0 {
            // Made with no lock held.
            let before = before();
            if let Some(captured) = TABLE.lock().find(*number) {
                captured.before = before;
            }
        }
    }

    /// The driver has refused that launch. If it makes it after all, what is gone by then is not called.
    pub(super) fn disown(&self) {
        self.each(|captured| captured.owed = captured.owed.saturating_sub(1));
    }

    fn each(&self, change: impl Fn(&mut Captured)) {
        let mut table = TABLE.lock();
        self.0.iter().for_each(|number| table.find(*number).into_iter().for_each(&change));
    }
}

impl Drop for Functions {
    /// The last holder's may free what the host gave: no lock is held then.
    fn drop(&mut self) {
        for number in std::mem::take(&mut self.0) {
            let over = TABLE.lock().settle(number, |captured| {
                captured.holders = captured.holders.saturating_sub(1);
            });
            over.iter().for_each(Callback::finish);
        }
    }
}

/// Adds a function to what a capture of ours records; on failure the caller keeps it.
pub(crate) fn capture(
    runtime: &Runtime,
    stream: CUstream,
    capture: u64,
    callback: Callback,
) -> Result<()> {
    let number = list(callback)?;
    if let Err(error) = runtime.captures.take_function(capture, number) {
        forget(number);
        return Err(error);
    }
    let argument = without_provenance_mut(number);
    // SAFETY: `call` takes a number, of whatever.
    let added = unsafe { runtime.driver().cuLaunchHostFunc(stream, Some(call), argument) };
    match added {
        Err(error) if forget(number) => {
            runtime.captures.drop_function(capture, number);
            Err(error.into())
        }
        // The capture was given up meanwhile, and the function with it.
        _ => Ok(()),
    }
}

/// Lists a function, held by a capture; gives its number.
fn list(callback: Callback) -> Result<usize> {
    let mut table = TABLE.lock();
    table.list.try_reserve(1).map_err(|_| NO_ROOM)?;
    table.last += 1;
    let number = table.last;
    let before = None;
    table.list.push(Captured {
        number,
        callback,
        before,
        holders: 1,
        owed: 0,
        running: 0,
        is_gone: false,
    });
    Ok(number)
}

/// Takes a function off the list, for a caller who keeps it; false: it is the library's, or freed.
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
        (captured.callback.function, captured.callback.user_data, captured.before.clone())
    });
    let Some((function, user_data, before)) = found else { return };
    before_captured_function();
    sanitizer::reached(before);
    progress::told();
    let _in_callback = thread::InCallback::begin();
    let waiting = waiting::begin();
    // SAFETY: the host's own function with its own data, which stay while it runs.
    unsafe { function(user_data) };
    drop(waiting);
    let over = TABLE.lock().settle(number, |captured| {
        captured.running = captured.running.saturating_sub(1);
        captured.owed = captured.owed.saturating_sub(1);
    });
    over.iter().for_each(Callback::finish);
}

/// Frees what launches owe that will never run: the device is gone or idle.
pub(crate) fn abandon_all() {
    let mut table = TABLE.lock();
    table.gone = 0;
    let left = std::mem::take(&mut table.list);
    drop(table);
    let there = left.iter().filter(|captured| !captured.is_gone);
    there.for_each(|captured| captured.callback.finish());
}
