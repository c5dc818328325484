//! The log: a sink gets no line above its own level, and none after its end.

use loom::sync::Arc;
use std::fmt;
use tcuda_models::base::log::{self, Level, Listener, LogSink};
use tcuda_models::base::retired::Reclaimable;
use tcuda_models::base::sync::{Bug, UnsafeCell};
use tcuda_models::base::thread;
use tcuda_models::explore;
use tcuda_models::twin::fails;

/// A sink whose data is dropped with it.
struct Host {
    level: i32,
    data: Arc<UnsafeCell<bool>>,
}

// SAFETY: what the model checks.
unsafe impl Sync for Host {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Host {}

impl LogSink for Host {
    fn take(&self, level: Level, _line: fmt::Arguments<'_>) {
        assert!(level as i32 <= self.level, "a line of level {level:?} for {}", self.level);
        // SAFETY: it is not dropped while it is in use, which is what the model checks.
        assert!(self.data.with(|alive| unsafe { *alive }), "a line for a sink that is gone");
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // SAFETY: no thread uses it any more, which is what the model checks.
        self.data.with_mut(|alive| unsafe { *alive = false });
    }
}

fn listener(level: i32) -> Option<Box<Reclaimable<Listener>>> {
    let sink = Box::new(Host { level, data: Arc::new(UnsafeCell::new(true)) });
    Some(thread::reclaimable(Listener { level, sink }, "a listener").unwrap())
}

/// Like tcuda_set_log_callback.
fn replaces(level: i32) {
    let _inside = thread::enter();
    log::set_listener(listener(level));
    thread::collect();
}

fn writes(level: Level) {
    let _inside = thread::enter();
    log::write(level, format_args!("a line"));
}

/// One thread writes while others replace the sink.
fn replaced(levels: &'static [i32]) {
    let (few, many) = if levels.len() > 1 { (2, 3) } else { (4, 6) };
    explore(few, many, move || {
        thread::register();
        replaces(4);
        let others: Vec<_> = levels
            .iter()
            .map(|level| {
                loom::thread::spawn(move || {
                    thread::register();
                    replaces(*level);
                    thread::leave();
                })
            })
            .collect();
        writes(Level::Debug);
        writes(Level::Error);
        others.into_iter().for_each(|other| other.join().unwrap());
        // Level and sink are from the same call, whichever was last.
        writes(Level::Warning);
        thread::wait_for_others();
        thread::collect();
        log::set_listener(None);
        thread::collect();
        thread::leave();
    });
}

#[test]
fn a_sink_gets_its_own_lines_and_none_when_it_is_gone() {
    replaced(&[1]);
}

#[test]
fn of_two_that_replace_it_one_is_last() {
    replaced(&[1, 2]);
}

const FOUND: &[&str] = &["Causality violation", "a line for a sink that is gone"];

#[test]
fn a_sink_that_is_shown_without_release() {
    fails("a_sink_that_is_shown_without_release", Bug::NoRelease, FOUND, || replaced(&[1]));
}

#[test]
fn entering_without_a_fence() {
    fails("entering_without_a_fence", Bug::NoLightFence, FOUND, || replaced(&[1]));
}

#[test]
fn collecting_without_a_fence() {
    fails("collecting_without_a_fence", Bug::NoHeavyFence, FOUND, || replaced(&[1]));
}
