//! The queues of the simulated machine: operations of a stream run one at a time and once each. A
//! thread that waits for one sees its writes, and every sleeping host thread or worker is woken.

use loom::sync::Arc;
use loom::thread::{self, JoinHandle};
use std::sync::Mutex;
use tcuda_models::base::sync::{Bug, UnsafeCell};
use tcuda_models::explore;
use tcuda_models::sim::{Place, Queue};
use tcuda_models::twin::fails;

/// A stream, and the memory that its operations write.
struct World {
    queue: Queue,
    /// Number of operations that ran.
    count: UnsafeCell<u64>,
    workers: Mutex<Vec<JoinHandle<()>>>,
}

// SAFETY: what the model checks.
unsafe impl Sync for World {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for World {}

impl World {
    fn new() -> Arc<World> {
        let workers = Mutex::new(Vec::new());
        Arc::new(World { queue: Queue::new(), count: UnsafeCell::new(0), workers })
    }

    fn add(&self) {
        // SAFETY: one operation of a stream at a time, which is what the model checks.
        self.count.with_mut(|count| unsafe { *count += 1 });
    }

    fn count(&self) -> u64 {
        // SAFETY: the awaited operations have finished, which is what the model checks.
        self.count.with(|count| unsafe { *count })
    }

    fn runs(&self, waits: &[Place]) {
        self.queue.runs(waits, || self.add());
    }

    /// Queues an operation for a worker, which is started if there is none.
    fn pushes(world: &Arc<World>, waits: &[Place]) -> Place {
        world.queue.push(waits, || {
            let other = Arc::clone(world);
            let worker = thread::spawn(move || other.queue.works(|_| other.add()));
            world.workers.lock().unwrap().push(worker);
        })
    }

    /// Ends the workers; queued operations still run.
    fn closes(&self) {
        self.queue.close();
        let workers = std::mem::take(&mut *self.workers.lock().unwrap());
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    }
}

/// Two threads run operations of one stream themselves.
fn two_run() {
    explore(3, 5, || {
        let world = World::new();
        let other = Arc::clone(&world);
        let runner = thread::spawn(move || {
            other.runs(&[]);
            other.runs(&[]);
        });
        world.runs(&[]);
        runner.join().unwrap();
        assert_eq!(world.count(), 3);
        assert!(world.queue.is_idle());
    });
}

/// One thread runs an operation, another waits for all queued operations.
fn one_waits() {
    explore(4, 6, || {
        let world = World::new();
        let other = Arc::clone(&world);
        let runner = thread::spawn(move || {
            other.runs(&[]);
            other.runs(&[]);
        });
        let tail = world.queue.tail();
        tail.wait();
        assert!(tail.is_reached());
        runner.join().unwrap();
        world.queue.tail().wait();
        assert_eq!(world.count(), 2);
    });
}

/// The host queues for a worker, waits for the first and then for the last.
fn a_worker_runs() {
    explore(3, 4, || {
        let world = World::new();
        let first = World::pushes(&world, &[]);
        let last = World::pushes(&world, &[]);
        first.wait();
        last.wait();
        assert_eq!(world.count(), 2);
        World::pushes(&world, &[]).wait();
        world.closes();
        assert_eq!(world.count(), 3);
    });
}

/// Two host threads queue for one worker; each waits for its own operation.
fn two_push() {
    explore(2, 3, || {
        let world = World::new();
        let other = Arc::clone(&world);
        let pusher = thread::spawn(move || {
            let own = World::pushes(&other, &[]);
            own.wait();
            assert!(own.is_reached());
        });
        World::pushes(&world, &[]).wait();
        pusher.join().unwrap();
        assert_eq!(world.count(), 2, "each ran once");
        world.closes();
    });
}

/// A queue is closed and used again while its worker ends.
fn closed_and_used() {
    explore(3, 4, || {
        let world = World::new();
        World::pushes(&world, &[]);
        world.queue.close();
        World::pushes(&world, &[]).wait();
        assert_eq!(world.count(), 2);
        world.closes();
    });
}

/// An operation of one stream waits for one of another.
fn across_streams() {
    explore(2, 3, || {
        let (world, next) = (World::new(), Queue::new());
        let first = World::pushes(&world, &[]);
        let (queue, other) = (next.clone(), Arc::clone(&world));
        let mut worker = None;
        let second = next.push(&[first], || {
            worker = Some(thread::spawn(move || queue.works(|_| assert_eq!(other.count(), 1))));
        });
        second.wait();
        next.close();
        worker.unwrap().join().unwrap();
        world.closes();
    });
}

#[test]
fn operations_of_a_stream_take_turns() {
    two_run();
}

#[test]
fn a_waiting_thread_is_woken() {
    one_waits();
}

#[test]
fn a_worker_is_woken_and_wakes() {
    a_worker_runs();
}

#[test]
fn two_threads_share_a_worker() {
    two_push();
}

#[test]
fn a_closed_queue_can_be_used_again() {
    closed_and_used();
}

#[test]
fn an_operation_waits_for_another_stream() {
    across_streams();
}

const FOUND: &[&str] = &["Causality violation", "left == right"];
const ASLEEP: &[&str] = &["deadlock"];

#[test]
fn taking_turns_without_waking() {
    fails("taking_turns_without_waking", Bug::NoWake, ASLEEP, two_run);
}

#[test]
fn working_without_waking() {
    fails("working_without_waking", Bug::NoWake, ASLEEP, a_worker_runs);
}

#[test]
fn completing_without_release() {
    fails("completing_without_release", Bug::NoRelease, FOUND, two_push);
}

#[test]
fn waiting_without_acquire() {
    fails("waiting_without_acquire", Bug::NoAcquire, FOUND, across_streams);
}

/// Runs an operation without waiting for the previous one.
fn runs_out_of_turn() {
    explore(3, 5, || {
        let world = World::new();
        let other = Arc::clone(&world);
        let runner = thread::spawn(move || other.runs(&[]));
        world.add();
        runner.join().unwrap();
    });
}

#[test]
fn running_out_of_turn() {
    fails("running_out_of_turn", Bug::None, FOUND, runs_out_of_turn);
}
