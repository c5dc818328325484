//! The threads of a program: each call is made by one of them, one at a time, so that what a thread
//! carries (current device and streams, its own default stream) is tested and the order is known.

use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

pub const THREADS: usize = 3;

type Task = Box<dyn FnOnce() + Send>;

/// Thread 0 is the caller's own.
pub struct Hands {
    workers: Vec<(Sender<Task>, JoinHandle<()>)>,
}

impl Hands {
    pub fn new() -> Hands {
        let workers = (1..THREADS)
            .map(|_| {
                let (sender, tasks) = channel::<Task>();
                (sender, std::thread::spawn(move || tasks.iter().for_each(|task| task())))
            })
            .collect();
        Hands { workers }
    }

    /// Runs `task` on a thread and waits for it.
    pub fn on<R: Send + 'static>(
        &self,
        thread: usize,
        task: impl FnOnce() -> R + Send + 'static,
    ) -> R {
        let Some((worker, _)) = thread.checked_sub(1).and_then(|index| self.workers.get(index))
        else {
            return task();
        };
        let (sender, result) = channel();
        worker.send(Box::new(move || drop(sender.send(task())))).unwrap();
        result.recv().unwrap()
    }
}

impl Drop for Hands {
    fn drop(&mut self) {
        for (sender, worker) in self.workers.drain(..) {
            drop(sender);
            let _ = worker.join();
        }
    }
}
