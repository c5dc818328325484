//! What a program has made so far: live and dead handles, blocks, callbacks, and what the library
//! must know about them.

use crate::abi::snapshot::SnapshotEntry;
use crate::expect::{Expect, Statuses, status};
use crate::pinned::Pinned;
use crate::shadow::Shadow;
use std::ffi::{CStr, CString, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use tcuda::ffi::device::tcuda_is_initialized;
use tcuda::ffi::library::*;
use tcuda::ffi::stream::tcuda_stream;

/// Makes a call and gives its status as a number.
#[macro_export]
macro_rules! status_of {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        #[allow(unused_unsafe, reason = "some functions take no pointers")]
        #[allow(clippy::macro_metavars_in_unsafe, reason = "the arguments are plain values")]
        // SAFETY: pointers are NULL or lead to memory of the size that the function gets;
        // handles and device addresses may be anything, which is what is tested.
        let status = unsafe { $function($($argument),*) } as i32;
        $crate::tell(format_args!("{} = {status}", stringify!($function)));
        status
    }};
}

/// How much is known about what a call must answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Everything: one thread, no injected failures.
    Strict,
    /// Driver calls fail at will: wrong arguments are refused all the same, and counts are exact.
    Faults,
    /// Other threads do the same to the same objects.
    Threads,
}

/// A live handle of a stream or a generator.
#[derive(Clone, Copy)]
pub struct StreamEntry {
    /// The handle.
    pub handle: usize,
    /// Is it to be destroyed?
    pub owned: bool,
}

/// Live device memory.
#[derive(Clone)]
pub struct Block {
    /// Its address; 0 if it has no bytes.
    pub ptr: usize,
    /// As it was asked for.
    pub bytes: usize,
    /// As they are counted.
    pub counted: usize,
    /// Its device.
    pub device: i32,
    /// The handle of its allocation; 0: it came from tcuda_malloc.
    pub handle: usize,
    /// What its first bytes hold.
    pub shadow: Shadow,
}

/// The options that a program can select; the first ones are right.
pub const OPTIONS: [&CStr; 12] = [
    c"devices=1,memory=64MiB",
    c"devices=2,memory=64MiB",
    c"devices=3,memory=64MiB,peers=pairs",
    c"devices=2,memory=64MiB,peers=none",
    c"devices=1,memory=64MiB,schedule=threads",
    c"devices=2,memory=64MiB,schedule=threads",
    c"devices=1,memory=64MiB,schedule=adversarial:0",
    c"devices=2,memory=64MiB,schedule=adversarial:18446744073709551615,late=3+1+17",
    c"devices=0",
    c"schedule=\xff",
    c"memory=",
    c"schedule=adversarial:",
];
/// So many of them are right.
pub const RIGHT_OPTIONS: usize = 8;

/// The first of those in which operations run as late as they may.
const FIRST_HOSTILE: usize = 6;

/// Devices of each of the right options.
const DEVICES: [i32; RIGHT_OPTIONS] = [1, 2, 3, 2, 1, 2, 1, 2];

/// Runs of host functions and of their destructors, and those that there must be.
#[derive(Default)]
pub struct Calls {
    /// Host functions that ran.
    pub ran: AtomicUsize,
    /// Destructors that ran.
    pub destroyed: AtomicUsize,
    /// Host functions that were accepted.
    pub added: AtomicUsize,
    /// Destructors that were accepted.
    pub owed: AtomicUsize,
}

/// Of the program that runs; there is one at a time.
pub static CALLS: Calls = Calls {
    ran: AtomicUsize::new(0),
    destroyed: AtomicUsize::new(0),
    added: AtomicUsize::new(0),
    owed: AtomicUsize::new(0),
};

/// Everything that a program, or one thread of it, knows.
pub struct World {
    /// What can be expected.
    pub mode: Mode,
    /// Which of [`OPTIONS`] was selected; `None`: the backend "cuda".
    pub selected: Option<usize>,
    /// May a device have been lost?
    pub lost: bool,
    /// Live handles.
    pub streams: Vec<StreamEntry>,
    /// Live handles.
    pub events: Vec<usize>,
    /// Live generators, those of devices borrowed.
    pub generators: Vec<StreamEntry>,
    /// Live functions of elements.
    pub jits: Vec<usize>,
    /// Live kernels.
    pub kernels: Vec<usize>,
    /// Live memory.
    pub blocks: Vec<Block>,
    /// Live pinned memory, of this thread alone.
    pub pinned: Vec<Pinned>,
    /// Live snapshots.
    pub snapshots: Vec<SnapshotEntry>,
    /// Live observers.
    pub observers: Vec<usize>,
    /// Live graphed callables.
    pub callables: Vec<usize>,
    /// Live graphs.
    pub graphs: Vec<usize>,
    /// Open files, and their flags.
    pub files: Vec<(usize, u32)>,
    /// Live private pools.
    pub pools: Vec<usize>,
    /// Live partitions of multiprocessors.
    pub partitions: Vec<usize>,
    /// Live green contexts.
    pub greens: Vec<usize>,
    /// Live allocators of other libraries.
    pub allocators: Vec<usize>,
    /// Is the cache off?
    pub is_plain: bool,
    /// Was there a pool whose blocks are whole segments, however small?
    pub has_whole: bool,
    /// Where this thread is routed, the last one last: pools and devices.
    pub routes: Vec<(usize, i32)>,
    /// Handles of tcuda_graph_pool: each may be one more of a pool that has others.
    pub pools_of_graphs: Vec<usize>,
    /// Handles and addresses that were live once.
    pub dead: Vec<usize>,
    /// Native handles of streams and events.
    pub natives: Vec<usize>,
    /// Live handles that shutdown must count, as this thread sees it.
    pub counted: isize,
    /// May other threads shut down? Then no address is known to be device memory for the time of a
    /// copy, and what is not is taken for host memory.
    pub may_be_shut_down: bool,
    /// Faults that fired so far.
    pub fired: u64,
    /// Did a shutdown run in the middle?
    pub was_shut_down: bool,
    /// Host memory for copies.
    pub host: Box<[u8; HOST]>,
}

/// Bytes of host memory for copies.
pub const HOST: usize = 16 << 10;

impl World {
    /// An empty one, on some backend.
    pub fn new(mode: Mode, selected: usize) -> World {
        World {
            mode,
            selected: Some(selected),
            lost: false,
            streams: Vec::new(),
            events: Vec::new(),
            generators: Vec::new(),
            jits: Vec::new(),
            kernels: Vec::new(),
            blocks: Vec::new(),
            pinned: Vec::new(),
            snapshots: Vec::new(),
            observers: Vec::new(),
            callables: Vec::new(),
            graphs: Vec::new(),
            files: Vec::new(),
            pools: Vec::new(),
            partitions: Vec::new(),
            greens: Vec::new(),
            allocators: Vec::new(),
            is_plain: false,
            has_whole: false,
            routes: Vec::new(),
            pools_of_graphs: Vec::new(),
            dead: Vec::new(),
            natives: Vec::new(),
            counted: 0,
            may_be_shut_down: mode != Mode::Threads,
            fired: tcuda::driver::inject::fired(),
            was_shut_down: false,
            host: Box::new([0x5A; HOST]),
        }
    }

    /// What another thread knows when it begins: the same objects, none of which it has made.
    pub fn of_another_thread(&self) -> World {
        World {
            streams: self.streams.clone(),
            events: self.events.clone(),
            generators: self.generators.clone(),
            jits: self.jits.clone(),
            kernels: self.kernels.clone(),
            blocks: self.blocks.clone(),
            snapshots: self.snapshots.clone(),
            observers: self.observers.clone(),
            callables: self.callables.clone(),
            graphs: self.graphs.clone(),
            files: self.files.clone(),
            pools: self.pools.clone(),
            partitions: self.partitions.clone(),
            greens: self.greens.clone(),
            allocators: self.allocators.clone(),
            is_plain: self.is_plain,
            has_whole: self.has_whole,
            dead: self.dead.clone(),
            natives: self.natives.clone(),
            may_be_shut_down: self.may_be_shut_down,
            ..World::new(self.mode, self.selected.unwrap_or(0))
        }
    }

    /// Selects a backend for a new program; the library is shut down.
    pub fn begin(mode: Mode, selected: usize) -> World {
        for count in [&CALLS.ran, &CALLS.destroyed, &CALLS.added, &CALLS.owed] {
            count.store(0, Ordering::Relaxed);
        }
        let (selected, seed) = (selected % RIGHT_OPTIONS, selected / RIGHT_OPTIONS);
        let devices = DEVICES[selected];
        // Each schedule that is hostile has seeds of its own.
        let hostile = format!("devices={devices},memory=64MiB,schedule=adversarial:{seed}");
        let hostile = CString::new(hostile).unwrap_or_default();
        let options = if selected < FIRST_HOSTILE { OPTIONS[selected] } else { &hostile };
        let chosen = status_of!(tcuda_backend_select(c"sim".as_ptr(), options.as_ptr()));
        assert_eq!(chosen, status::OK);
        World::new(mode, selected)
    }

    /// Devices of the selected machine.
    pub fn devices(&self) -> i32 {
        self.selected.map_or(0, |selected| DEVICES[selected])
    }

    /// Does everything run at once, on the calling thread?
    pub fn is_immediate(&self) -> bool {
        self.selected.is_some_and(|selected| selected < 4) && self.mode == Mode::Strict
    }

    /// Is the library initialised?
    pub fn is_initialized(&self) -> bool {
        let mut answer = false;
        let asked = status_of!(tcuda_is_initialized(&mut answer));
        asked == status::OK && answer
    }

    /// Judges the answer of a call; true if it succeeded.
    #[track_caller]
    pub fn judge(&self, status: i32, expect: &Expect) -> bool {
        assert_ne!(status, status::INTERNAL, "{}", last_error());
        if status != status::OK {
            // SAFETY: a NUL-terminated text of this thread.
            let message = unsafe { CStr::from_ptr(tcuda_last_error()) };
            let message = message.to_str().expect("a message that is not UTF-8");
            assert!(message.len() > 10, "status {status} with the message {message:?}");
        }
        if self.mode == Mode::Threads {
            return status == status::OK;
        }
        if !expect.wrong.is_empty() {
            assert_ne!(status, status::OK, "wrong arguments were accepted");
        }
        if self.mode == Mode::Strict {
            let mut may = Statuses::default();
            if self.selected.is_none() {
                may.add(status::NO_DRIVER);
            }
            if self.lost {
                may.add(status::DEVICE_LOST);
                may.add(status::CUDA_ERROR);
            }
            let right = if expect.wrong.is_empty() {
                status == status::OK || expect.also.has(status)
            } else {
                expect.wrong.has(status)
            };
            assert!(right || may.has(status), "status {status}: {}", last_error());
        }
        status == status::OK
    }

    // ---- What calls have made ----

    /// A snapshot that was taken, of which no more is known.
    pub fn add_snapshot(&mut self, handle: usize) {
        self.snapshots.push(SnapshotEntry { handle, counts: None });
        self.counted += 1;
    }

    /// A stream handle came out.
    pub fn add_stream(&mut self, handle: *mut tcuda_stream, owned: bool) {
        let handle = handle as usize;
        assert_ne!(handle, 0, "a stream handle of NULL");
        let known = self.streams.iter().find(|stream| stream.handle == handle);
        if self.mode != Mode::Threads {
            assert!(known.is_none_or(|stream| !owned && !stream.owned), "a handle came out twice");
        }
        if known.is_none() {
            self.streams.push(StreamEntry { handle, owned });
        }
        self.counted += isize::from(owned);
    }

    /// A block came out.
    pub fn add_block(&mut self, ptr: *mut c_void, bytes: usize, device: i32, handle: usize) {
        let ptr = ptr as usize;
        assert_eq!(ptr == 0, bytes == 0, "{bytes} bytes at {ptr:#x}");
        assert_eq!(ptr % 512, 0, "{ptr:#x} is not aligned");
        if self.mode != Mode::Threads {
            let clash = self
                .blocks
                .iter()
                .find(|block| ptr < block.ptr + block.bytes && block.ptr < ptr + bytes);
            assert!(clash.is_none(), "{bytes} bytes at {ptr:#x} overlap a live block");
        }
        self.counted += isize::from(handle != 0);
        if ptr != 0 || handle != 0 {
            let counted = if self.is_plain { bytes } else { bytes.next_multiple_of(512) };
            let shadow = Shadow::default();
            self.blocks.push(Block { ptr, bytes, counted, device, handle, shadow });
        }
    }

    /// A block went, by its address or by its handle.
    pub fn remove_block(&mut self, is_it: impl Fn(&Block) -> bool) {
        if let Some(index) = self.blocks.iter().position(is_it) {
            let block = self.blocks.swap_remove(index);
            self.dead.extend([block.ptr, block.handle].iter().filter(|dead| **dead != 0));
            self.counted -= isize::from(block.handle != 0);
        }
    }

    /// All handles and addresses are dead: the library was shut down.
    pub fn forget_all(&mut self) {
        self.dead.extend(self.streams.drain(..).map(|stream| stream.handle));
        self.dead.append(&mut self.events);
        self.dead.extend(self.generators.drain(..).map(|generator| generator.handle));
        self.dead.append(&mut self.observers);
        self.dead.append(&mut self.jits);
        self.dead.append(&mut self.kernels);
        for block in self.blocks.drain(..) {
            self.dead.extend([block.ptr, block.handle].iter().filter(|dead| **dead != 0));
        }
        self.dead.extend(self.pinned.drain(..).map(|block| block.ptr));
        self.dead.extend(self.snapshots.drain(..).map(|snapshot| snapshot.handle));
        self.dead.append(&mut self.callables);
        self.dead.append(&mut self.graphs);
        self.dead.extend(self.files.drain(..).map(|file| file.0));
        self.dead.append(&mut self.pools);
        self.dead.append(&mut self.partitions);
        self.dead.append(&mut self.greens);
        self.dead.append(&mut self.allocators);
        (self.is_plain, self.has_whole) = (false, false);
        self.routes.clear();
        // A native handle of one machine may name another object of the next.
        self.natives.clear();
        self.counted = 0;
        self.lost = false;
    }

    /// Nothing is known about the contents of any block any more.
    pub fn forget_contents(&mut self) {
        self.blocks.iter_mut().for_each(|block| block.shadow.forget());
    }
}

/// This thread's last sentence.
pub fn last_error() -> String {
    // SAFETY: a NUL-terminated text of this thread.
    unsafe { CStr::from_ptr(tcuda_last_error()) }.to_string_lossy().into_owned()
}

/// A host's function cannot shut down what calls it.
fn is_turned_away() {
    let status = status_of!(tcuda_shutdown(std::ptr::null_mut()));
    assert!([status::INVALID_STATE, status::OUT_OF_HOST_MEMORY].contains(&status), "{status}");
}

/// Counts a run of a host function.
///
/// # Safety
/// For the library alone.
pub unsafe extern "C" fn host_function(user_data: *mut c_void) {
    assert_eq!(user_data.cast_const(), std::ptr::from_ref(&CALLS).cast());
    is_turned_away();
    CALLS.ran.fetch_add(1, Ordering::Relaxed);
}

/// The same for one in a graph, which is not counted.
///
/// # Safety
/// For the library alone.
pub unsafe extern "C" fn captured_function(user_data: *mut c_void) {
    assert_eq!(user_data.cast_const(), std::ptr::from_ref(&CALLS).cast());
    is_turned_away();
}

/// Counts a run of a destructor.
///
/// # Safety
/// For the library alone.
pub unsafe extern "C" fn destructor(user_data: *mut c_void) {
    assert_eq!(user_data.cast_const(), std::ptr::from_ref(&CALLS).cast());
    is_turned_away();
    CALLS.destroyed.fetch_add(1, Ordering::Relaxed);
}

/// Takes a line of log.
///
/// # Safety
/// For the library alone.
pub unsafe extern "C" fn log_line(
    user_data: *mut c_void,
    level: tcuda_log_level,
    message: *const std::ffi::c_char,
) {
    assert_eq!(user_data.cast_const(), std::ptr::from_ref(&CALLS).cast());
    assert!((TCUDA_LOG_ERROR..=TCUDA_LOG_DEBUG).contains(&level));
    // SAFETY: a NUL-terminated text for the time of this call.
    let message = unsafe { CStr::from_ptr(message) };
    assert!(message.to_str().is_ok_and(|line| !line.is_empty() && !line.contains('\n')));
}
