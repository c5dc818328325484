//! Reports: two accesses that nothing orders, and the calls that would order them.

use super::Mode;
use super::blocks::Blocks;
use super::check::Race;
use super::clock::push;
use super::domain::StreamInfo;
use super::store::{AccessDetails, EARLIER, UNCOVERED};
use super::text::{CText, TextBuffer, TextId, Texts, add_stack};
use crate::base::error::Result;
use crate::base::frames::Stacks;
use crate::base::text::Count;
use std::fmt;

/// Number of reports that are kept if the host sets no other.
pub const DEFAULT_MAX_REPORTS: usize = 1000;

/// One of the two accesses of a report. The texts are valid until the library is shut down.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// Address of the first byte.
    pub start: u64,
    /// Number of bytes up to the last one.
    pub bytes: u64,
    /// Name of the operation.
    pub label: CText,
    /// The host's frames, one per line.
    pub frames: CText,
    /// The stream's number in PyTorch.
    pub stream_id: i64,
    /// Sequence number of the operation.
    pub sequence: u64,
    /// Device of the stream.
    pub device: i32,
    /// Whether the access reads or writes.
    pub mode: Mode,
}

/// Two accesses that nothing orders.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// Address of the first byte that both access.
    pub start: u64,
    /// Number of contiguous bytes that both access.
    pub bytes: u64,
    /// The later access.
    pub current: Access,
    /// The earlier access.
    pub previous: Access,
    /// The allocation of the block; may be empty.
    pub allocation: CText,
    /// What would order the two accesses.
    pub missing: CText,
}

/// A report with the numbers of its texts.
#[derive(Clone, Copy)]
struct StoredReport {
    report: Report,
    texts: [TextId; 6],
}

/// The reports since the sanitizer was turned on.
pub(super) struct Reports {
    pub(super) most: usize,
    pub(super) count: usize,
    kept: Vec<StoredReport>,
    /// Reports that are not delivered yet, with the thread that found them.
    waiting: Vec<(usize, StoredReport)>,
}

impl Reports {
    pub(super) const fn new() -> Reports {
        Reports { most: DEFAULT_MAX_REPORTS, count: 0, kept: Vec::new(), waiting: Vec::new() }
    }

    /// Adds a report. Without host memory, or when `most` reports are kept, it only counts: texts
    /// stay until shutdown, and a race in a loop must not fill the host's memory.
    pub(super) fn add(&mut self, race: &Race, blocks: &Blocks, stacks: &Stacks, texts: &mut Texts) {
        self.count += 1;
        if self.kept.len() < self.most
            && let Ok(whole) = describe(race, blocks, stacks, texts)
            && push(&mut self.kept, whole).is_ok()
        {
            let _ = push(&mut self.waiting, (thread(), whole));
        }
    }

    /// Returns whether a report is pending for this thread.
    pub(super) fn is_waiting(&self) -> bool {
        if self.waiting.is_empty() {
            return false;
        }
        let own = thread();
        self.waiting.iter().any(|(thread, _)| *thread == own)
    }

    /// Removes the oldest report that is pending for this thread. Returns it with its text, which
    /// is empty unless `with_text`.
    pub(super) fn take(&mut self, texts: &Texts, with_text: bool) -> Option<(Report, TextBuffer)> {
        let own = thread();
        let place = self.waiting.iter().position(|(thread, _)| *thread == own)?;
        let (_, whole) = self.waiting.remove(place);
        let mut line = TextBuffer::default();
        if with_text {
            let _ = line.add(format_args!("{}", ReportText(&whole, texts)));
        }
        Some((whole.report, line))
    }

    pub(super) fn get(&self, index: usize) -> Option<Report> {
        self.kept.get(index).map(|whole| whole.report)
    }

    /// Formats a report.
    pub(super) fn text(&self, index: usize, texts: &Texts) -> Option<Result<TextBuffer>> {
        let whole = self.kept.get(index)?;
        let mut line = TextBuffer::default();
        let written = line.add(format_args!("{}", ReportText(whole, texts)));
        Some(written.map(|()| line))
    }

    /// Removes all reports and sets the number that are kept.
    pub(super) fn start_anew(&mut self, most: usize) {
        *self = Reports { most, ..Reports::new() };
    }
}

/// An identity of this thread, unique among the live ones.
fn thread() -> usize {
    std::ptr::from_ref(crate::base::thread::block()).addr()
}

/// A stream as the text of a report shows it.
struct StreamName(StreamInfo);

impl fmt::Display for StreamName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StreamInfo { id, device, .. } = self.0;
        match id {
            0 => f.write_str("the default stream")?,
            _ => write!(f, "stream {id}")?,
        }
        if device == 0 { Ok(()) } else { write!(f, " of device {device}") }
    }
}

fn describe(
    race: &Race,
    blocks: &Blocks,
    stacks: &Stacks,
    texts: &mut Texts,
) -> Result<StoredReport> {
    let block = blocks.find(race.start);
    let mut place = TextBuffer::default();
    if let Some(((start, end), block)) = block {
        place.add(format_args!("{} at {start:#x}", Count((end - start) as usize, "byte")))?;
        match block.owner {
            Some(stream) => place.add(format_args!(", in the order of {}", StreamName(stream)))?,
            None => place.add(format_args!(" of pinned memory"))?,
        }
        if block.frames != 0 {
            place.add(format_args!("\n"))?;
            add_stack(&mut place, stacks, block.frames)?;
        }
    }
    let missing = missing(race, block.and_then(|(_, block)| block.owner), texts)?;
    let (current, of_current) = access(&race.current, stacks, texts)?;
    let (previous, of_previous) = access(&race.previous, stacks, texts)?;
    let (allocation, missing) = (texts.keep(&place.0)?, texts.keep(&missing.0)?);
    let report = Report {
        start: race.start,
        bytes: race.end - race.start,
        current,
        previous,
        allocation: texts.address(allocation),
        missing: texts.address(missing),
    };
    let ([label, frames], [before, frames_before]) = (of_current, of_previous);
    Ok(StoredReport { report, texts: [label, frames, before, frames_before, allocation, missing] })
}

/// Returns the sentence that says what would order the two accesses.
fn missing(race: &Race, owner: Option<StreamInfo>, texts: &Texts) -> Result<TextBuffer> {
    let mut line = TextBuffer::default();
    let (current, previous) = (&race.current, &race.previous);
    let (own, other) = (StreamName(current.stream), StreamName(previous.stream));
    let (label, before) = (texts.label(current.label), texts.label(previous.label));
    if race.flags & UNCOVERED != 0 {
        line.add(format_args!(
            "tcuda_record_stream({:#x}, {other}) was missing before the memory was freed, which \
             {before} (operation {}) still used there",
            race.start, previous.sequence
        ))?;
        return Ok(line);
    }
    let reallocated_to = race.reallocated_to.or(owner).filter(|stream| *stream != current.stream);
    if race.flags & EARLIER != 0
        && let Some(stream) = reallocated_to
    {
        line.add(format_args!(
            "{own} must wait for {0} after the allocation of this memory, which {before} \
             (operation {1}) used before it was freed: tcuda_event_record on {0} after the \
             allocation, and tcuda_event_wait on {own} before {label}",
            StreamName(stream),
            previous.sequence
        ))?;
        return Ok(line);
    }
    line.add(format_args!(
        "{own} must wait for {other} after {before} (operation {}): tcuda_event_record on {other} \
         after it, and tcuda_event_wait on {own} before {label}",
        previous.sequence
    ))?;
    Ok(line)
}

fn access(
    details: &AccessDetails,
    stacks: &Stacks,
    texts: &mut Texts,
) -> Result<(Access, [TextId; 2])> {
    let mut label = TextBuffer::default();
    label.add(format_args!("{}", texts.label(details.label)))?;
    let label = texts.keep(&label.0)?;
    let mut frames = TextBuffer::default();
    add_stack(&mut frames, stacks, details.frames)?;
    let frames = texts.keep(&frames.0)?;
    let access = Access {
        start: details.start,
        bytes: details.end - details.start,
        label: texts.address(label),
        frames: texts.address(frames),
        stream_id: details.stream.id,
        sequence: details.sequence,
        device: details.stream.device,
        mode: details.mode,
    };
    Ok((access, [label, frames]))
}

/// Formats a report as PyTorch does: both accesses with their stacks, and the allocation of the
/// memory.
struct ReportText<'a>(&'a StoredReport, &'a Texts);

impl fmt::Display for ReportText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ReportText(StoredReport { report, texts: kept }, texts) = self;
        let [label, frames, before, frames_before, allocation, missing] =
            kept.map(|text| texts.text(text));
        writeln!(f, "============================")?;
        writeln!(
            f,
            "tcuda found a possible data race on {} at {:#x}",
            Count(report.bytes as usize, "byte"),
            report.start
        )?;
        show(f, "Access", &report.current, label, frames)?;
        show(f, "Earlier access", &report.previous, before, frames_before)?;
        match allocation.is_empty() {
            true => writeln!(f, "Nothing is known of the allocation of this memory.")?,
            false => {
                writeln!(f, "The memory was allocated:")?;
                lines(f, allocation)?;
            }
        }
        write!(f, "Missing: {missing}")
    }
}

fn show(
    f: &mut fmt::Formatter<'_>,
    what: &str,
    access: &Access,
    label: &str,
    frames: &str,
) -> fmt::Result {
    let does = match access.mode {
        Mode::Read => "reading",
        Mode::Write => "writing",
        Mode::ReadWrite => "reading and writing",
    };
    writeln!(
        f,
        "{what} by stream {} of device {}, operation {}: {label}",
        access.stream_id, access.device, access.sequence
    )?;
    writeln!(f, "  {does} {} at {:#x}", Count(access.bytes as usize, "byte"), access.start)?;
    if frames.is_empty() {
        return Ok(());
    }
    writeln!(f, "  called from:")?;
    lines(f, frames)
}

fn lines(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    text.lines().try_for_each(|line| writeln!(f, "    {line}"))
}
