//! The twin of a model: the same with a bug planted, which must be found. Each runs in a process of its
//! own, because what a found bug leaves behind may not unwind.

use crate::base::sync::{Bug, with_bug};
use std::alloc::{GlobalAlloc, Layout, System};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

const CHILD: &str = "TCUDA_MODELS_TWIN";

/// The system's allocator, which frees nothing in a twin: what is used after it was dropped is still
/// there, so that loom tells what happened instead of a crash.
struct Keeping;

static KEEPS: AtomicBool = AtomicBool::new(false);

/// Keeps all memory from now on, to see what a model that crashes does.
pub fn keep_memory() {
    KEEPS.store(true, Ordering::Relaxed);
}

#[global_allocator]
static ALLOCATOR: Keeping = Keeping;

// SAFETY: the system's allocator, but for blocks that are never freed.
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

/// Runs `model` with a bug planted, on behalf of the test of this name; the output of its failure has
/// one of the texts `expected`.
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
