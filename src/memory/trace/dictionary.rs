//! A snapshot as the dictionary of `torch.cuda.memory._snapshot`, independent of the output format.

use super::ring::{Action, Event};
use super::snapshot::{BlockState, BlockView, EventRange, SegmentView, Snapshot};
use crate::base::error::Result;
use crate::base::frames::Frame;
use crate::base::frames::Stacks;
use crate::memory::config::pool_id::PoolId;
use crate::memory::config::settings::Settings;
use crate::memory::config::size::Class;
use std::fmt::{self, Write};

/// Receives the output, piece by piece.
pub type Sink<'a> = dyn FnMut(&[u8]) -> Result<()> + 'a;

/// A list or dictionary that may occur more than once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Shared {
    /// A frame, by its id.
    Frame(u32),
    /// A list of frames, by its id.
    Stack(u32),
}

/// An output format. Each key is followed by its value.
pub trait Notation {
    /// Writes an integer.
    fn integer(&mut self, value: i64) -> Result<()>;
    /// Writes a floating-point number.
    fn float(&mut self, value: f64) -> Result<()>;
    /// Writes a boolean.
    fn flag(&mut self, value: bool) -> Result<()>;
    /// Writes a text, which may be invalid UTF-8.
    fn text(&mut self, value: &[u8]) -> Result<()>;
    /// Writes the text of an event, which has an id, and may be invalid UTF-8.
    fn metadata(&mut self, id: u32, value: &[u8]) -> Result<()>;
    /// Writes a key, or one of a few fixed texts.
    fn word(&mut self, value: &'static str) -> Result<()>;
    /// Writes a key of a dictionary.
    fn key(&mut self, key: &'static str) -> Result<()>;
    /// Writes a pair of integers.
    fn pair(&mut self, first: i64, second: i64) -> Result<()>;
    /// Begins a list.
    fn begin_list(&mut self, shared: Option<Shared>) -> Result<()>;
    /// Ends a list.
    fn end_list(&mut self) -> Result<()>;
    /// Begins a dictionary.
    fn begin_dictionary(&mut self, shared: Option<Shared>) -> Result<()>;
    /// Ends a dictionary.
    fn end_dictionary(&mut self) -> Result<()>;
    /// Writes a reference to an object that was written before; false: the caller must write it.
    fn again(&mut self, shared: Shared) -> Result<bool>;
}

/// Writes a snapshot in a format.
pub fn write(snapshot: &Snapshot, to: &mut dyn Notation) -> Result<()> {
    to.begin_dictionary(None)?;
    to.key("segments")?;
    to.begin_list(None)?;
    for segment in &snapshot.segments {
        write_segment(snapshot, segment, to)?;
    }
    to.end_list()?;
    to.key("device_traces")?;
    to.begin_list(None)?;
    for range in &snapshot.devices {
        write_events(snapshot, range, to)?;
    }
    to.end_list()?;
    if snapshot.host.events > 0 {
        to.key("host_traces")?;
        write_events(snapshot, &snapshot.host, to)?;
    }
    to.key("allocator_settings")?;
    write_settings(&snapshot.settings, to)?;
    to.key("external_annotations")?;
    to.begin_list(None)?;
    to.end_list()?;
    to.end_dictionary()
}

fn integers(to: &mut dyn Notation, list: &[(&'static str, i64)]) -> Result<()> {
    for (key, value) in list {
        to.key(key)?;
        to.integer(*value)?;
    }
    Ok(())
}

fn write_segment(snapshot: &Snapshot, segment: &SegmentView, to: &mut dyn Notation) -> Result<()> {
    to.begin_dictionary(None)?;
    integers(
        to,
        &[
            ("device", segment.device.into()),
            ("address", segment.address as i64),
            ("total_size", segment.bytes as i64),
            ("allocated_size", segment.allocated as i64),
            ("active_size", segment.active as i64),
            ("requested_size", segment.requested as i64),
            ("stream", segment.stream as i64),
        ],
    )?;
    to.key("segment_type")?;
    to.word(if segment.class == Class::Small { "small" } else { "large" })?;
    to.key("segment_pool_id")?;
    write_pool(segment.pool, to)?;
    to.key("is_expandable")?;
    to.flag(segment.is_expandable)?;
    to.key("frames")?;
    write_stack(&snapshot.stacks, 0, to)?;
    to.key("blocks")?;
    to.begin_list(None)?;
    for block in &snapshot.blocks[segment.first_block..segment.first_block + segment.blocks] {
        write_block(snapshot, block, to)?;
    }
    to.end_list()?;
    to.end_dictionary()
}

fn write_block(snapshot: &Snapshot, block: &BlockView, to: &mut dyn Notation) -> Result<()> {
    to.begin_dictionary(None)?;
    integers(
        to,
        &[
            ("address", block.address as i64),
            ("size", block.bytes as i64),
            ("requested_size", block.requested as i64),
        ],
    )?;
    to.key("state")?;
    to.word(match block.state {
        BlockState::Inactive => "inactive",
        BlockState::ActiveAllocated => "active_allocated",
        BlockState::ActivePendingFree => "active_pending_free",
    })?;
    to.key("frames")?;
    write_stack(&snapshot.stacks, block.stack, to)?;
    to.end_dictionary()
}

fn write_pool(pool: PoolId, to: &mut dyn Notation) -> Result<()> {
    let (first, second) = pool.pair();
    to.pair(first as i64, second as i64)
}

fn write_events(snapshot: &Snapshot, range: &EventRange, to: &mut dyn Notation) -> Result<()> {
    to.begin_list(None)?;
    for event in snapshot.events_in(range) {
        write_event(snapshot, event, to)?;
    }
    to.end_list()
}

fn write_event(snapshot: &Snapshot, event: &Event, to: &mut dyn Notation) -> Result<()> {
    to.begin_dictionary(None)?;
    to.key("action")?;
    to.word(event.action.name())?;
    let is_oom = event.action == Action::OutOfMemory;
    integers(
        to,
        &[
            (if is_oom { "device_free" } else { "addr" }, event.address as i64),
            ("size", event.bytes as i64),
            ("stream", event.stream as i64),
            ("time_us", event.time_us),
        ],
    )?;
    let texts =
        [("compile_context", event.compilation, "N/A"), ("user_metadata", event.metadata, "")];
    for (key, id, without) in texts {
        to.key(key)?;
        match id {
            0 => to.word(without)?,
            id => to.metadata(id, snapshot.stacks.text(id).to_bytes())?,
        }
    }
    to.key("pool_id")?;
    write_pool(event.pool_id(), to)?;
    to.key("frames")?;
    write_stack(&snapshot.stacks, event.stack, to)?;
    to.end_dictionary()
}

/// Writes the frames of a stack.
pub fn write_stack(stacks: &Stacks, stack: u32, to: &mut dyn Notation) -> Result<()> {
    if to.again(Shared::Stack(stack))? {
        return Ok(());
    }
    to.begin_list(Some(Shared::Stack(stack)))?;
    for id in stacks.stack(stack) {
        if !to.again(Shared::Frame(id))? {
            write_frame(stacks, id, stacks.frame(id), to)?;
        }
    }
    to.end_list()
}

fn write_frame(stacks: &Stacks, id: u32, frame: Frame, to: &mut dyn Notation) -> Result<()> {
    to.begin_dictionary(Some(Shared::Frame(id)))?;
    to.key("name")?;
    to.text(stacks.name(frame))?;
    to.key("filename")?;
    to.text(stacks.filename(frame))?;
    to.key("line")?;
    to.integer(frame.line.into())?;
    to.end_dictionary()
}

/// A fixed buffer for the text of the settings; longer text is cut.
struct Buffer {
    bytes: [u8; 2048],
    len: usize,
}

impl fmt::Write for Buffer {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.get_mut(self.len..self.len + text.len()).ok_or(fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.len += text.len();
        Ok(())
    }
}

/// A size in bytes as PyTorch writes it; -1: unlimited.
fn limit(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(-1)
}

fn write_settings(settings: &Settings, to: &mut dyn Notation) -> Result<()> {
    let mut text = Buffer { bytes: [0; 2048], len: 0 };
    let _ = write!(text, "{settings}");
    to.begin_dictionary(None)?;
    to.key("PYTORCH_CUDA_ALLOC_CONF")?;
    to.text(&text.bytes[..text.len])?;
    to.key("max_split_size")?;
    to.integer(limit(settings.max_split_bytes))?;
    to.key("garbage_collection_threshold")?;
    to.float(settings.garbage_collection_threshold)?;
    for (key, value) in [
        ("expandable_segments", settings.expandable_segments),
        ("release_lock_on_cudamalloc", settings.release_lock_on_cudamalloc),
        ("pinned_use_cuda_host_register", settings.host.use_host_register),
        ("graph_capture_record_stream_reuse", settings.graph_capture_record_stream_reuse),
    ] {
        to.key(key)?;
        to.flag(value)?;
    }
    to.key("pinned_num_register_threads")?;
    to.integer(settings.host.register_threads.into())?;
    to.key("roundup_power2_divisions")?;
    to.begin_dictionary(None)?;
    let keys = [
        "1", "2", "4", "8", "16", "32", "64", "128", "256", "512", "1024", "2048", "4096", "8192",
        "16384", "32768",
    ];
    for (key, divisions) in keys.into_iter().zip(settings.roundup_power2_divisions) {
        to.key(key)?;
        to.integer(divisions as i64)?;
    }
    to.end_dictionary()?;
    to.end_dictionary()
}
