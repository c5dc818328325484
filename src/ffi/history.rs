//! Section "Memory" of the header: recording what the allocator does.

use super::boundary::{Sized_, boundary, optional_text, out, struct_in, text as text_in, text_out};
use super::library::tcuda_destroy_fn;
use super::status::tcuda_status;
use super::user_data::UserData;
use crate::base::error::{Error, Result};
use crate::base::frames::{Context, ContextHead, MAX_DEPTH, Named, Source};
use crate::base::text::Text;
use crate::base::thread::try_box;
use crate::gpu::gpus;
use crate::memory;
use crate::memory::trace::history::{self, DEFAULT_EVENTS, FramesFor, MOST_EVENTS, Recorder};
use crate::memory::trace::metadata;
use crate::memory::trace::ring::Action;
use crate::runtime::pointer_kind::{Kind, name_kind};
use std::ffi::{CStr, c_char, c_void};

/// What is recorded: TCUDA_HISTORY_...
pub type tcuda_history_mode = i32;
/// Nothing; what was recorded stays.
pub const TCUDA_HISTORY_OFF: tcuda_history_mode = 0;
/// Only the frames of live memory.
pub const TCUDA_HISTORY_STATE: tcuda_history_mode = 1;
/// Every event.
pub const TCUDA_HISTORY_ALL: tcuda_history_mode = 2;

/// Frames for every event, and for blocks.
pub const TCUDA_FRAMES_ALL: i32 = 0;
/// For allocations, of blocks and segments, and for blocks.
pub const TCUDA_FRAMES_ALLOC: i32 = 1;
/// For blocks only.
pub const TCUDA_FRAMES_STATE: i32 = 2;
/// No frames.
pub const TCUDA_FRAMES_NONE: i32 = 3;

/// Forget the events so far, with TCUDA_HISTORY_OFF as well.
pub const TCUDA_RECORD_CLEAR: u32 = 1;
/// Pinned memory too: blocks in their rounded sizes, and segments.
pub const TCUDA_RECORD_HOST: u32 = 2;
/// Not the memory of devices.
pub const TCUDA_RECORD_NO_DEVICE: u32 = 4;
/// Add the C frames below the host's.
pub const TCUDA_RECORD_NATIVE_FRAMES: u32 = 8;

/// A frame of a stack.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tcuda_frame {
    /// Function.
    pub name: *const c_char,
    /// File; may be NULL.
    pub filename: *const c_char,
    /// Line in it.
    pub line: i32,
}

/// Writes the caller's stack, innermost frame first, and returns its depth; frames beyond
/// `capacity` are left out. The texts are copied before it is called again. It is called on the
/// thread that allocates or frees, before the operation, with no lock held, and must not allocate
/// from tcuda.
pub type tcuda_frames_fn = Option<
    unsafe extern "C" fn(
        user_data: *mut c_void,
        frames: *mut tcuda_frame,
        capacity: usize,
    ) -> usize,
>;

/// How an object of the host that stands for a stack begins, for example one that a language
/// runtime makes and prints later. It counts its own references, on any thread. tcuda may hold
/// locks when it calls these functions: they must not call tcuda, which would be
/// TCUDA_STATUS_INVALID_STATE, nor wait for a thread that is in a call of tcuda.
/// (c10::GatheredContext)
#[repr(C)]
pub struct tcuda_frame_context {
    /// Adds a reference to the object; may be NULL.
    pub retain: Option<unsafe extern "C" fn(context: *mut c_void)>,
    /// Drops a reference to it; may be NULL.
    pub release: Option<unsafe extern "C" fn(context: *mut c_void)>,
}

/// Returns an object that stands for the caller's stack, with a reference for tcuda; NULL: none.
/// tcuda keeps it at least as long as an event, a live block or a snapshot has it: others are
/// dropped together when they take much memory, and by TCUDA_RECORD_CLEAR and TCUDA_HISTORY_OFF. It
/// is called when tcuda_frames_fn is, and under the same conditions.
pub type tcuda_frame_context_fn =
    Option<unsafe extern "C" fn(user_data: *mut c_void) -> *mut tcuda_frame_context>;

/// What to record; zeros are defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tcuda_history_options {
    /// From TCUDA_INIT.
    pub struct_size: usize,
    /// Number of newest events that are kept for each device; 0: 1048576; at most 268435456.
    pub max_entries: usize,
    /// TCUDA_FRAMES_...
    pub frames_for: i32,
    /// TCUDA_RECORD_...
    pub flags: u32,
    /// Events that are left out, by torch's names, "snapshot,segment_map"; may be NULL.
    pub skip_actions: *const c_char,
    /// Returns the host's frames; may be NULL.
    pub frames: tcuda_frames_fn,
    /// Passed to frames, context and destroy.
    pub user_data: *mut c_void,
    /// May be NULL.
    pub destroy: tcuda_destroy_fn,
    /// Returns an object that stands for the stack, besides its frames or in their place; may be
    /// NULL. Such objects are in no text of a snapshot: tcuda_memory_snapshot_event and
    /// tcuda_memory_snapshot_block give them back.
    pub context: tcuda_frame_context_fn,
}

/// The host's function as a source of frames.
struct HostSource {
    function: tcuda_frames_fn,
    context: tcuda_frame_context_fn,
    user_data: UserData,
}

/// The bytes of a host's text; none for NULL.
fn bytes_of<'a>(text: *const c_char) -> &'a [u8] {
    if text.is_null() {
        return &[];
    }
    // SAFETY: not NULL, and NUL-terminated by the host's promise.
    unsafe { CStr::from_ptr(text) }.to_bytes()
}

/// Calls a host function for its frames, and passes them on.
pub(super) fn capture_by(
    function: tcuda_frames_fn,
    user_data: *mut c_void,
    take: &mut dyn FnMut(&mut dyn Iterator<Item = Named<'_>>),
) {
    let none = tcuda_frame { name: std::ptr::null(), filename: std::ptr::null(), line: 0 };
    let mut frames = [none; MAX_DEPTH];
    let depth = match function {
        // SAFETY: the host's own function with its own data, and room for so many frames.
        Some(function) => unsafe { function(user_data, frames.as_mut_ptr(), MAX_DEPTH) },
        None => 0,
    };
    take(&mut frames[..depth.min(MAX_DEPTH)].iter().map(|frame| Named {
        name: bytes_of(frame.name),
        filename: bytes_of(frame.filename),
        line: frame.line,
    }));
}

impl Source for HostSource {
    fn capture(&self, take: &mut dyn FnMut(&mut dyn Iterator<Item = Named<'_>>)) {
        capture_by(self.function, self.user_data.ptr(), take);
    }

    fn context(&self) -> Option<Context> {
        let context = self.context?;
        // SAFETY: the host's own function with its own data.
        let object = unsafe { context(self.user_data.ptr()) };
        Context::adopt(object.cast())
    }

    fn is_taken(&self) {
        self.user_data.take();
    }
}

const _: () = assert!(size_of::<tcuda_frame_context>() == size_of::<ContextHead>());

// SAFETY: repr(C), plain data, struct_size first; a NULL function is None.
unsafe impl Sized_ for tcuda_history_options {}

/// The options with defaults applied; fields that the host's struct lacks are zero.
fn read(options: *const tcuda_history_options) -> Result<tcuda_history_options> {
    let none = tcuda_history_options {
        struct_size: size_of::<tcuda_history_options>(),
        max_entries: 0,
        frames_for: TCUDA_FRAMES_ALL,
        flags: 0,
        skip_actions: std::ptr::null(),
        frames: None,
        user_data: std::ptr::null_mut(),
        destroy: None,
        context: None,
    };
    if options.is_null() { Ok(none) } else { struct_in(options, none, "options") }
}

/// Starts, changes or stops recording what the allocators do, for all devices, present and future;
/// each call sets all options. While it is off, an operation costs a load and a branch more.
/// Snapshots taken with_history contain the newest events. An event for which there is no host
/// memory is left out; no allocation fails for it. A stack is stored while an event or a live block
/// refers to it: host memory is bounded by max_entries events and the live blocks. tcuda_shutdown
/// stops recording and forgets all of it. (torch.cuda.memory._record_memory_history)
///
/// @param mode     TCUDA_HISTORY_OFF: stop; _STATE: frames of live memory; _ALL: every event
/// @param options  may be NULL: all zero
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_memory_record_history(
    mode: tcuda_history_mode,
    options: *const tcuda_history_options,
) -> tcuda_status {
    boundary(|_| {
        if !(TCUDA_HISTORY_OFF..=TCUDA_HISTORY_ALL).contains(&mode) {
            return Err(Error::OutOfRange {
                name: "mode",
                value: mode.into(),
                allowed: "use TCUDA_HISTORY_OFF to TCUDA_HISTORY_ALL",
            });
        }
        let options = read(options)?;
        let known = TCUDA_RECORD_CLEAR
            | TCUDA_RECORD_HOST
            | TCUDA_RECORD_NO_DEVICE
            | TCUDA_RECORD_NATIVE_FRAMES;
        if options.flags & !known != 0 {
            return Err(Error::OutOfRange {
                name: "flags",
                value: options.flags.into(),
                allowed: "use a sum of TCUDA_RECORD_...",
            });
        }
        let frames_for = match options.frames_for {
            TCUDA_FRAMES_ALL => FramesFor::All,
            TCUDA_FRAMES_ALLOC => FramesFor::Alloc,
            TCUDA_FRAMES_STATE => FramesFor::State,
            TCUDA_FRAMES_NONE => FramesFor::None,
            other => {
                return Err(Error::OutOfRange {
                    name: "frames_for",
                    value: other.into(),
                    allowed: "use TCUDA_FRAMES_ALL to TCUDA_FRAMES_NONE",
                });
            }
        };
        let skip = optional_text(options.skip_actions, "skip_actions")?.unwrap_or("");
        let skip = Action::parse_set(skip).map_err(|name| Error::BadText {
            name: "an action of skip_actions",
            value: Text::new(name),
            allowed: "use names of torch's trace entries: \"alloc\", \"free_requested\", \"oom\"",
        })?;
        let clear = options.flags & TCUDA_RECORD_CLEAR != 0;
        let source = HostSource {
            function: options.frames,
            context: options.context,
            user_data: UserData::new(options.user_data, options.destroy),
        };
        if mode == TCUDA_HISTORY_OFF {
            history::record(None, clear)?;
            // Nothing keeps its data, so that it is destroyed now.
            source.is_taken();
            return Ok(());
        }
        let has_function = source.function.is_some() || source.context.is_some();
        let has_source = has_function || source.user_data.has_destroy();
        let source: Option<Box<dyn Source>> =
            if has_source { Some(try_box(source, "the recording")?) } else { None };
        let recorder = Recorder {
            events: mode == TCUDA_HISTORY_ALL,
            most: match options.max_entries {
                0 => DEFAULT_EVENTS,
                most => most.min(MOST_EVENTS),
            },
            frames_for,
            device: options.flags & TCUDA_RECORD_NO_DEVICE == 0,
            host: options.flags & TCUDA_RECORD_HOST != 0,
            native: options.flags & TCUDA_RECORD_NATIVE_FRAMES != 0,
            skip,
            source,
        };
        history::record(Some(recorder), clear)
    })
}

/// The frames with which a live block was allocated, innermost first, as JSON (ASCII): a list of
/// {"name", "filename", "line"}, empty if none were recorded. TCUDA_STATUS_INVALID_POINTER for what
/// is no live block. As a snapshot it copies all recorded stacks: not for each allocation.
/// (torch.cuda.memory._allocation_traceback)
///
/// @param ptr          what tcuda_malloc gave; not NULL
/// @param[out] buf     may be NULL if len is 0; cut to `len` - 1 bytes and a NUL
/// @param len          room in buf, in bytes
/// @param[out] needed  length without the NUL; may be NULL
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_memory_frames_of(
    ptr: *const c_void,
    buf: *mut c_char,
    len: usize,
    needed: *mut usize,
) -> tcuda_status {
    boundary(|call| {
        let out = text_out(buf, len, needed)?;
        if ptr.is_null() {
            return Err(Error::Null { name: "ptr" });
        }
        let Some(gpus) = gpus::existing(call.inside()) else {
            return Err(memory::unknown_pointer(ptr as u64));
        };
        out.fill(|sink| memory::write_frames(ptr as u64, sink))
            .map_err(|error| name_kind(gpus, Kind::Device, error))
    })
}

/// The object that stands for the stack with which a live block was allocated.
/// TCUDA_STATUS_INVALID_POINTER for what is no live block. Copies nothing: it may be called for
/// each allocation. (+: c10's getContextForPointer)
///
/// @param ptr           what tcuda_malloc gave; not NULL
/// @param[out] context  with a reference that is the caller's; NULL: none was recorded
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_memory_context_of(
    ptr: *const c_void,
    context: *mut *mut tcuda_frame_context,
) -> tcuda_status {
    boundary(|call| {
        let context = out(context, "context")?;
        if ptr.is_null() {
            return Err(Error::Null { name: "ptr" });
        }
        let Some(gpus) = gpus::existing(call.inside()) else {
            return Err(memory::unknown_pointer(ptr as u64));
        };
        let found =
            memory::context_of(ptr as u64).map_err(|error| name_kind(gpus, Kind::Device, error))?;
        context.set(found.map_or(std::ptr::null_mut(), |found| found.into_raw().cast()));
        Ok(())
    })
}

/// Sets the text that the calling thread's events carry in snapshots, under "user_metadata", for
/// example the step of a program; device memory only. Without a recording it has no effect. Each
/// thread has a text of its own, which it keeps until it ends. As in PyTorch, blocks of a snapshot
/// do not show it. (torch.cuda.memory._set_memory_metadata)
///
/// @param text  copied; UTF-8; may be NULL: as "", no text
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_memory_metadata_set(text: *const c_char) -> tcuda_status {
    boundary(|_| metadata::set(optional_text(text, "text")?.unwrap_or("")))
}

/// The text that the calling thread set, or "".
/// (torch.cuda.memory._get_memory_metadata)
///
/// @param[out] buf     may be NULL if len is 0; cut to `len` - 1 bytes and a NUL
/// @param len          room in buf, in bytes
/// @param[out] needed  length without the NUL; may be NULL
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_memory_metadata_get(
    buf: *mut c_char,
    len: usize,
    needed: *mut usize,
) -> tcuda_status {
    boundary(|_| {
        let out = text_out(buf, len, needed)?;
        metadata::get(|text| out.set(text))
    })
}

/// Begins a context of compilation of the calling thread: its events carry the text in snapshots,
/// under "compile_context", until the matching tcuda_memory_compile_context_pop. Contexts nest: the
/// innermost counts. Each thread has contexts of its own. (+: c10's pushCompileContext)
///
/// @param text  copied; UTF-8; not NULL
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_memory_compile_context_push(text: *const c_char) -> tcuda_status {
    boundary(|_| metadata::push_compilation(text_in(text, "text")?))
}

/// Ends the calling thread's innermost context of compilation; TCUDA_STATUS_INVALID_STATE where it
/// has none. (+: c10's popCompileContext)
#[unsafe(no_mangle)]
#[must_use]
pub extern "C" fn tcuda_memory_compile_context_pop() -> tcuda_status {
    boundary(|_| metadata::pop_compilation())
}

/// Adds an event "annotate" to the recording, which carries a text about a live block, with the
/// block's address and requested size. The texts of a block accumulate, and that of
/// tcuda_memory_metadata_set stays as it is. Without a recording it has no effect.
/// TCUDA_STATUS_INVALID_POINTER for what is no live block.
/// (torch.cuda.memory._annotate_tensor)
///
/// @param ptr   what tcuda_malloc gave; not NULL
/// @param text  copied; UTF-8; not NULL
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_memory_annotate(
    ptr: *const c_void,
    text: *const c_char,
) -> tcuda_status {
    boundary(|call| {
        let text = text_in(text, "text")?;
        if ptr.is_null() {
            return Err(Error::Null { name: "ptr" });
        }
        let Some(gpus) = gpus::existing(call.inside()) else {
            return Err(memory::unknown_pointer(ptr as u64));
        };
        memory::annotate(ptr as u64, text).map_err(|error| name_kind(gpus, Kind::Device, error))
    })
}
