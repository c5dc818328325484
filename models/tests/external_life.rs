//! External streams: a stream is not passed to the driver after its last handle is gone. A recorded
//! event then represents it.

use loom::sync::Arc;
use loom::thread;
use tcuda_models::base::sync::{Bug, UnsafeCell};
use tcuda_models::explore;
use tcuda_models::gpu::external_life::{EndState, ExternalStreamLife};
use tcuda_models::twin::fails;

/// The number of the event.
const EVENT: usize = 16;

struct Stream {
    external_life: ExternalStreamLife,
    /// True while the driver's stream exists.
    alive: UnsafeCell<bool>,
    /// True once the driver's event is recorded.
    recorded: UnsafeCell<bool>,
}

// SAFETY: what the model checks.
unsafe impl Sync for Stream {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Stream {}

impl Stream {
    fn new(handles: usize) -> Arc<Stream> {
        let external_life = ExternalStreamLife::new();
        (0..handles).for_each(|_| external_life.add_handle());
        let (alive, recorded) = (UnsafeCell::new(true), UnsafeCell::new(false));
        Arc::new(Stream { external_life, alive, recorded })
    }

    /// Like the owner: destroys the last handle, and then the stream.
    fn ends(&self) {
        self.drops();
        // SAFETY: no thread names it any more, which is what the model checks.
        self.alive.with_mut(|alive| unsafe { *alive = false });
    }

    /// Like the destruction of a handle.
    fn drops(&self) {
        if self.external_life.event() == 0 {
            // SAFETY: not published yet, and no other thread records it.
            self.recorded.with_mut(|recorded| unsafe { *recorded = true });
            self.external_life.replace_event(0, EVENT).unwrap();
        }
        self.external_life.drop_handle();
    }

    fn name(&self) {
        // SAFETY: it is not destroyed meanwhile, which is what the model checks.
        assert!(self.alive.with(|alive| unsafe { *alive }), "a stream that is gone");
    }

    /// Like the allocator with memory that was used on the stream.
    fn is_waited_for(&self) {
        match self.external_life.end_state() {
            EndState::Alive(_named) => self.name(),
            EndState::Gone(event) => {
                assert_eq!(event, Some(EVENT));
                // SAFETY: recorded before it was published, which is what the model checks.
                assert!(self.recorded.with(|recorded| unsafe { *recorded }));
            }
            EndState::Lost => panic!("an event was recorded"),
        }
    }
}

/// Some threads wait for the stream's work while its last handle is destroyed.
fn ends_beside(waiters: usize, wait: fn(&Stream)) {
    let (few, many) = if waiters > 1 { (3, 4) } else { (5, 8) };
    explore(few, many, move || {
        let stream = Stream::new(1);
        let others: Vec<_> = (0..waiters)
            .map(|_| {
                let stream = Arc::clone(&stream);
                thread::spawn(move || wait(&stream))
            })
            .collect();
        stream.ends();
        stream.is_waited_for();
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

/// One of two handles is destroyed while a third thread waits; the stream stays.
fn one_of_two_goes() {
    explore(4, 6, || {
        let stream = Stream::new(2);
        let (first, second) = (Arc::clone(&stream), Arc::clone(&stream));
        let waiter = thread::spawn(move || first.is_waited_for());
        let dropper = thread::spawn(move || second.drops());
        stream.name();
        waiter.join().unwrap();
        dropper.join().unwrap();
        stream.ends();
    });
}

/// The last handle is destroyed while a new one is created: the thread with a handle may name the
/// stream.
fn a_new_handle_comes() {
    explore(4, 6, || {
        let stream = Stream::new(1);
        let other = Arc::clone(&stream);
        let comer = thread::spawn(move || {
            other.external_life.add_handle();
            other.name();
            other.external_life.drop_handle();
        });
        stream.drops();
        comer.join().unwrap();
        stream.is_waited_for();
    });
}

#[test]
fn no_thread_names_a_stream_that_is_gone() {
    ends_beside(1, Stream::is_waited_for);
}

#[test]
fn no_thread_names_a_stream_that_is_gone_for_two() {
    ends_beside(2, Stream::is_waited_for);
}

#[test]
fn a_stream_stays_with_its_second_handle() {
    one_of_two_goes();
}

#[test]
fn a_new_handle_ends_the_record_of_the_end() {
    a_new_handle_comes();
}

const FOUND: &[&str] = &["Causality violation", "a stream that is gone"];

/// Checks that the stream may be named, and names it later.
fn names_it_later(stream: &Stream) {
    let is_alive = matches!(stream.external_life.end_state(), EndState::Alive(_));
    if is_alive {
        stream.name();
    }
}

#[test]
fn naming_it_after_asking() {
    fails("naming_it_after_asking", Bug::None, FOUND, || ends_beside(1, names_it_later));
}

#[test]
fn naming_without_release() {
    fails("naming_without_release", Bug::NoRelease, FOUND, || {
        ends_beside(1, Stream::is_waited_for);
    });
}

#[test]
fn going_without_acquire() {
    fails("going_without_acquire", Bug::NoAcquire, FOUND, || {
        ends_beside(1, Stream::is_waited_for);
    });
}
