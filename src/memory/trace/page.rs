//! A snapshot as one self-contained HTML page: the data in a few columns, and a script that draws
//! it.

use super::dictionary::Sink;
use super::json::{quoted, short};
use super::snapshot::{BlockState, EventRange, Snapshot};
use crate::base::error::Result;
use crate::gpu::image::{StoredText, stored_text};
use crate::memory::config::size::Class;

/// The page, with placeholders for the data and the script.
const PAGE: StoredText = stored_text!("snapshot.html");
const SCRIPT: StoredText = stored_text!("snapshot.js");

/// Writes the page.
pub fn page(snapshot: &Snapshot, sink: &mut Sink<'_>) -> Result<()> {
    let (page, script) = (PAGE.text()?, SCRIPT.text()?);
    let (before, rest) = page.split_once("@DATA@").unwrap_or((&page, ""));
    let (between, after) = rest.split_once("@SCRIPT@").unwrap_or((rest, ""));
    sink(before.as_bytes())?;
    data(snapshot, sink)?;
    sink(between.as_bytes())?;
    sink(script.as_bytes())?;
    sink(after.as_bytes())
}

fn data(snapshot: &Snapshot, sink: &mut Sink<'_>) -> Result<()> {
    sink(b"{\"devices\":[")?;
    list(sink, &snapshot.devices, |sink, range| write_range(snapshot, range, sink))?;
    sink(b"],\"host\":")?;
    write_range(snapshot, &snapshot.host, sink)?;
    sink(b",\"segments\":[")?;
    list(sink, &snapshot.segments, |sink, segment| {
        numbers(sink, [segment.device as u64, segment.address, segment.bytes])?;
        let is_small = segment.class == Class::Small;
        numbers(sink, [segment.stream as u64, is_small.into(), segment.first_block as u64])?;
        short(sink, format_args!("{}", segment.blocks))
    })?;
    sink(b"],\"blocks\":[")?;
    list(sink, &snapshot.blocks, |sink, block| {
        let state = match block.state {
            BlockState::Inactive => 0,
            BlockState::ActiveAllocated => 1,
            BlockState::ActivePendingFree => 2,
        };
        numbers(sink, [block.address, block.bytes, block.requested, state])?;
        short(sink, format_args!("{}", block.stack))
    })?;
    sink(b"],\"frames\":[")?;
    let stacks = &snapshot.stacks;
    for id in 1..=stacks.frame_count() as u32 {
        let frame = stacks.frame(id);
        sink(if id == 1 { b"[" } else { b",[" })?;
        quoted(sink, stacks.name(frame))?;
        sink(b",")?;
        quoted(sink, stacks.filename(frame))?;
        short(sink, format_args!(",{}]", frame.line))?;
    }
    sink(b"],\"stacks\":[")?;
    for id in 1..=stacks.count() as u32 {
        sink(if id == 1 { b"[" } else { b",[" })?;
        for (index, frame) in stacks.stack(id).enumerate() {
            short(sink, format_args!("{}{frame}", if index == 0 { "" } else { "," }))?;
        }
        sink(b"]")?;
    }
    sink(b"]}")
}

/// Writes all elements of a list, separated by commas.
fn list<T>(
    sink: &mut Sink<'_>,
    list: &[T],
    mut write: impl FnMut(&mut Sink<'_>, &T) -> Result<()>,
) -> Result<()> {
    for (index, element) in list.iter().enumerate() {
        if index > 0 {
            sink(b",")?;
        }
        write(sink, element)?;
    }
    Ok(())
}

fn numbers<const N: usize>(sink: &mut Sink<'_>, numbers: [u64; N]) -> Result<()> {
    numbers.iter().try_for_each(|number| short(sink, format_args!("{number},")))
}

fn write_range(snapshot: &Snapshot, range: &EventRange, sink: &mut Sink<'_>) -> Result<()> {
    let events = snapshot.events_in(range);
    short(sink, format_args!("{{\"dropped\":{}", range.dropped))?;
    short(sink, format_args!(",\"allocated_peak\":{}", range.allocated_peak))?;
    short(sink, format_args!(",\"reserved_peak\":{}", range.reserved_peak))?;
    sink(b",\"events\":[")?;
    list(sink, events, |sink, event| {
        numbers(sink, [event.action as u64, event.address, event.bytes, event.stream])?;
        short(sink, format_args!("{},{},{}", event.time_us, event.stack, event.metadata))
    })?;
    sink(b"]}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_ascii_and_self_contained() {
        let mut out = Vec::new();
        let mut sink = |bytes: &[u8]| {
            out.extend_from_slice(bytes);
            Ok(())
        };
        page(&Snapshot::default(), &mut sink).unwrap();
        assert!(out.is_ascii(), "a cut page would end inside a character");
        let text = String::from_utf8(out).unwrap();
        for mark in ["@DATA@", "@SCRIPT@", "http:", "https:", "import ", "src=", "href="] {
            assert!(!text.contains(mark), "{mark}");
        }
        assert_eq!(text.matches("</script>").count(), 2);
        assert!(text.ends_with("</html>\n") && text.contains("{\"devices\":[],"));
    }
}
