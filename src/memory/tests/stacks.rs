//! How long stacks are stored: while an event, a live block or the last call of a thread references
//! them.

use super::{Bench, on_machine};
use crate::base::frames::{Named, Source};
use crate::base::thread;
use crate::memory;
use crate::memory::device::backend;
use crate::memory::trace::history::{self, FramesFor, Recorder};
use crate::memory::trace::{metadata, stacks};
use std::sync::atomic::{AtomicI32, Ordering};

/// Returns a different frame at each call.
struct Places;

static LAST: AtomicI32 = AtomicI32::new(0);

impl Source for Places {
    fn capture(&self, take: &mut dyn FnMut(&mut dyn Iterator<Item = Named<'_>>)) {
        let line = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        take(&mut [Named { name: b"place", filename: b"model.py", line }].into_iter());
    }

    fn is_taken(&self) {}
}

fn recorder(most: usize) -> Option<Recorder> {
    Some(Recorder {
        events: true,
        most,
        frames_for: FramesFor::All,
        device: true,
        host: true,
        native: false,
        skip: 0,
        source: Some(Box::new(Places)),
    })
}

/// Allocates and frees blocks of each kind.
fn work(bench: &Bench<'_>, rounds: usize) {
    for _ in 0..rounds {
        bench.free(bench.malloc(bench.stream(), 1000));
        let pinned = bench.gpus.pinned().allocate(bench.gpus, 1000).unwrap();
        bench.gpus.pinned().free(bench.gpus, pinned).unwrap();
    }
}

#[test]
fn a_stack_is_removed_with_its_last_reference() {
    on_machine("memory=64MiB", |bench| {
        history::record(recorder(1000), true).unwrap();
        assert_eq!(stacks::count(), 0);
        // Four stacks a round, and a segment of each kind of memory.
        work(&bench, 10);
        history::record(None, false).unwrap();
        assert_eq!(stacks::count(), 40, "the ring names them");
        history::record(recorder(1000), true).unwrap();
        let cached = bench.malloc(bench.stream(), 1000);
        let inside = thread::enter().unwrap();
        backend::enable_caching(&inside, false).unwrap();
        let direct = bench.malloc(bench.stream(), 1000);
        backend::enable_caching(&inside, true).unwrap();
        let pinned = bench.gpus.pinned().allocate(bench.gpus, 1000).unwrap();
        work(&bench, 10);
        let named = |expected: usize| {
            history::record(None, true).unwrap();
            assert_eq!(stacks::named(), expected);
        };
        history::end_thread();
        named(3);
        bench.free(direct);
        named(2);
        bench.free(cached);
        named(1);
        bench.gpus.pinned().free(bench.gpus, pinned).unwrap();
        named(0);
        assert_eq!(stacks::count(), 0);
        bench.check();
    });
}

#[test]
fn an_ended_thread_references_no_stack() {
    on_machine("memory=64MiB", |bench| {
        history::record(recorder(4), true).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..20 {
                let working = scope.spawn(|| {
                    let _inside = thread::enter().unwrap();
                    work(&bench, 1);
                });
                working.join().unwrap();
            }
        });
        history::record(None, true).unwrap();
        assert_eq!(stacks::count(), 0);
    });
}

#[test]
fn a_text_is_removed_with_its_last_event() {
    on_machine("memory=64MiB", |bench| {
        let record = |clear| {
            let recorder = recorder(4).map(|recorder| Recorder { source: None, ..recorder });
            history::record(recorder, clear).unwrap();
        };
        record(true);
        let block = bench.malloc(bench.stream(), 1000);
        for text in 0..10 {
            memory::annotate(block, &format!("text {text}")).unwrap();
        }
        record(false);
        assert_eq!(stacks::named(), 4, "the ring has four");
        // A thread keeps its text, and events keep it after the thread.
        metadata::set("step").unwrap();
        bench.free(block);
        metadata::set("unused").unwrap();
        record(false);
        assert_eq!(stacks::named(), 3, "one of the thread, two annotations");
        metadata::end_thread();
        record(true);
        assert_eq!(stacks::named(), 0);
        history::record(None, true).unwrap();
    });
}
