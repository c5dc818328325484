//! Reports: what two accesses that nothing orders were, and what would order them.

use super::Mode;
use super::blocks::Blocks;
use super::check::Found;
use super::clock::push;
use super::store::{EARLIER, Told, UNCOVERED};
use super::text::{Kept, Line, Texts, Words, add_stack};
use super::world::Who;
use crate::base::error::Result;
use crate::base::text::Count;
use crate::memory::trace::frames::Stacks;
use std::fmt;

/// Reports that are kept unless the host says otherwise.
pub const DEFAULT_MOST: usize = 1000;

/// One of two accesses; texts stay where they are until the library is shut down.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// The first byte.
    pub start: u64,
    /// From there to the last.
    pub bytes: u64,
    /// The operation.
    pub label: Words,
    /// The host's frames, a line each.
    pub frames: Words,
    /// PyTorch's number of the stream.
    pub stream_id: i64,
    /// The number of the operation.
    pub sequence: u64,
    /// The stream's device.
    pub device: i32,
    /// What it does.
    pub mode: Mode,
}

/// Two accesses that nothing orders.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// The first byte that both touch.
    pub start: u64,
    /// How many lie there.
    pub bytes: u64,
    /// The later one.
    pub current: Access,
    /// The earlier one.
    pub previous: Access,
    /// Where the block was allocated; may be empty.
    pub allocation: Words,
    /// What would order them.
    pub missing: Words,
}

/// A report with its texts.
#[derive(Clone, Copy)]
struct Whole {
    report: Report,
    texts: [Kept; 6],
}

/// Those of a run.
pub(super) struct Reports {
    pub(super) most: usize,
    pub(super) count: usize,
    kept: Vec<Whole>,
    /// Not handed over yet, with the thread that found them.
    waiting: Vec<(usize, Whole)>,
}

impl Reports {
    pub(super) const fn new() -> Reports {
        Reports { most: DEFAULT_MOST, count: 0, kept: Vec::new(), waiting: Vec::new() }
    }

    /// Makes a report. Without host memory, or beyond those that are kept, it only counts: texts stay
    /// until shutdown, and a race in a loop must not fill the host's memory with them.
    pub(super) fn add(
        &mut self,
        found: &Found,
        blocks: &Blocks,
        stacks: &Stacks,
        texts: &mut Texts,
    ) {
        self.count += 1;
        if self.kept.len() < self.most
            && let Ok(whole) = describe(found, blocks, stacks, texts)
            && push(&mut self.kept, whole).is_ok()
        {
            let _ = push(&mut self.waiting, (thread(), whole));
        }
    }

    /// Does one wait for this thread?
    pub(super) fn is_waiting(&self) -> bool {
        if self.waiting.is_empty() {
            return false;
        }
        let own = thread();
        self.waiting.iter().any(|(thread, _)| *thread == own)
    }

    /// The oldest that waits for this thread, and its text where that is wanted.
    pub(super) fn take(&mut self, texts: &Texts, is_text: bool) -> Option<(Report, Line)> {
        let own = thread();
        let place = self.waiting.iter().position(|(thread, _)| *thread == own)?;
        let (_, whole) = self.waiting.remove(place);
        let mut line = Line::default();
        if is_text {
            let _ = line.add(format_args!("{}", Shown(&whole, texts)));
        }
        Some((whole.report, line))
    }

    pub(super) fn get(&self, index: usize) -> Option<Report> {
        self.kept.get(index).map(|whole| whole.report)
    }

    /// The text of a report.
    pub(super) fn text(&self, index: usize, texts: &Texts) -> Option<Result<Line>> {
        let whole = self.kept.get(index)?;
        let mut line = Line::default();
        let written = line.add(format_args!("{}", Shown(whole, texts)));
        Some(written.map(|()| line))
    }

    /// None any more, and another number of those that are kept.
    pub(super) fn start_anew(&mut self, most: usize) {
        *self = Reports { most, ..Reports::new() };
    }
}

/// This thread, told from others that live.
fn thread() -> usize {
    std::ptr::from_ref(crate::base::thread::block()).addr()
}

/// A stream in a sentence.
struct Stream(Who);

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Who { id, device, .. } = self.0;
        match id {
            0 => f.write_str("the default stream")?,
            _ => write!(f, "stream {id}")?,
        }
        if device == 0 { Ok(()) } else { write!(f, " of device {device}") }
    }
}

fn describe(found: &Found, blocks: &Blocks, stacks: &Stacks, texts: &mut Texts) -> Result<Whole> {
    let block = blocks.find(found.start);
    let mut place = Line::default();
    if let Some(((start, end), block)) = block {
        place.add(format_args!("{} at {start:#x}", Count((end - start) as usize, "byte")))?;
        match block.owner {
            Some(who) => place.add(format_args!(", in the order of {}", Stream(who)))?,
            None => place.add(format_args!(" of pinned memory"))?,
        }
        if block.frames != 0 {
            place.add(format_args!("\n"))?;
            add_stack(&mut place, stacks, block.frames)?;
        }
    }
    let missing = missing(found, block.and_then(|(_, block)| block.owner), texts)?;
    let (current, of_current) = access(&found.current, stacks, texts)?;
    let (previous, of_previous) = access(&found.previous, stacks, texts)?;
    let (allocation, missing) = (texts.keep(&place.0)?, texts.keep(&missing.0)?);
    let report = Report {
        start: found.start,
        bytes: found.end - found.start,
        current,
        previous,
        allocation: texts.address(allocation),
        missing: texts.address(missing),
    };
    let ([label, frames], [before, frames_before]) = (of_current, of_previous);
    Ok(Whole { report, texts: [label, frames, before, frames_before, allocation, missing] })
}

/// The sentence that says what would order the two.
fn missing(found: &Found, owner: Option<Who>, texts: &Texts) -> Result<Line> {
    let mut line = Line::default();
    let (current, previous) = (&found.current, &found.previous);
    let (own, other) = (Stream(current.who), Stream(previous.who));
    let (label, before) = (texts.label(current.label), texts.label(previous.label));
    if found.flags & UNCOVERED != 0 {
        line.add(format_args!(
            "tcuda_record_stream({:#x}, {other}) was missing before the memory was freed, which \
             {before} (operation {}) still used there",
            found.start, previous.sequence
        ))?;
        return Ok(line);
    }
    let given = found.given.or(owner).filter(|who| *who != current.who);
    if found.flags & EARLIER != 0
        && let Some(who) = given
    {
        line.add(format_args!(
            "{own} must wait for {0} after the allocation of this memory, which {before} \
             (operation {1}) used before it was freed: tcuda_event_record on {0} after the \
             allocation, and tcuda_event_wait on {own} before {label}",
            Stream(who),
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

fn access(told: &Told, stacks: &Stacks, texts: &mut Texts) -> Result<(Access, [Kept; 2])> {
    let mut label = Line::default();
    label.add(format_args!("{}", texts.label(told.label)))?;
    let label = texts.keep(&label.0)?;
    let mut frames = Line::default();
    add_stack(&mut frames, stacks, told.frames)?;
    let frames = texts.keep(&frames.0)?;
    let access = Access {
        start: told.start,
        bytes: told.end - told.start,
        label: texts.address(label),
        frames: texts.address(frames),
        stream_id: told.who.id,
        sequence: told.sequence,
        device: told.who.device,
        mode: told.mode,
    };
    Ok((access, [label, frames]))
}

/// A report as PyTorch has it: both accesses with their stacks, and where the memory comes from.
struct Shown<'a>(&'a Whole, &'a Texts);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shown(Whole { report, texts: kept }, texts) = self;
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
