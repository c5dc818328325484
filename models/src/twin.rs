//! The twin of a model: the same model with a planted bug, which must be found. Each twin runs in a
//! process of its own, since the state after a found bug may not unwind.

use crate::base::sync::{Bug, with_bug};
use std::alloc::{GlobalAlloc, Layout, System};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

const CHILD: &str = "TCUDA_MODELS_TWIN";

/// The system's allocator, which frees nothing in a twin. Dropped memory is still there, so loom
/// reports a use after a free instead of a crash.
struct Keeping;

static KEEPS: AtomicBool = AtomicBool::new(false);

/// Keeps all memory from now on, so that a model that crashes can be examined.
pub fn keep_memory() {
    KEEPS.store(true, Ordering::Relaxed);
}

#[global_allocator]
static ALLOCATOR: Keeping = Keeping;

// SAFETY: the system's allocator, except that blocks may never be freed.
unsafe impl GlobalAlloc for Keeping {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if !KEEPS.load(Ordering::Relaxed) {
            // SAFETY: the caller's promise.
            unsafe { System.dealloc(block, layout) };
        }
    }
}

/// Runs `model` with a planted bug, for the test of this name. The output of its failure must
/// contain one of the texts `expected`.
pub fn fails(test: &str, bug: Bug, expected: &[&str], model: impl FnOnce()) {
    if std::env::var(CHILD).is_ok_and(|child| child == test) {
        keep_memory();
        return with_bug(bug, model);
    }
    let program = std::env::current_exe().unwrap();
    let mut child = Command::new(program);
    let output = child.args([test, "--exact", "--nocapture"]).env(CHILD, test).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(!output.status.success(), "{test}: {bug:?} was not found\n{text}");
    assert!(expected.iter().any(|part| text.contains(part)), "{test}: found otherwise\n{text}");
}
