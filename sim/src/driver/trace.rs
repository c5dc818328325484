//! The trace of an adversarial schedule: one JSON line for each operation, for scripts/ci/shrink.py
//! and for readers.
//!
//! A line is written when an operation is queued, overtaken, and finished; the last one counts. An
//! operation without "ran_after" has not run, since the host ended first.

use super::copy::{Copy, Place, Side};
use super::queue::{Action, Point};
use crate::base::signals::BlockedSignals;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write as _;

/// The trace file, and the numbers of operations by stream and position.
pub(super) struct Trace {
    file: File,
    numbers: BTreeMap<(u64, u64), u64>,
}

/// The description of an unfinished operation.
pub(super) struct Record {
    pub(super) number: u64,
    /// Rank of the host thread, in order of arrival.
    thread: u64,
    stream: u64,
    device: usize,
    kind: &'static str,
    reads: Option<Range>,
    writes: Option<Range>,
    waits: Vec<u64>,
    overtaken_by: Option<u64>,
    /// True if both operations access the same bytes and one writes them.
    conflicts: bool,
}

impl Trace {
    /// Appends to a file; the error is an errno.
    pub(super) fn open(path: &str) -> Result<Trace, i32> {
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = file.map_err(|error| error.raw_os_error().unwrap_or(0))?;
        Ok(Trace { file, numbers: BTreeMap::new() })
    }

    /// Notes that a thread queues an operation on the `order`th stream, at `point`.
    pub(super) fn submit(
        &mut self,
        number: u64,
        thread: u64,
        order: u64,
        point: &Point,
        waits: &[Point],
        action: &Action,
    ) -> Box<Record> {
        self.numbers.insert((point.stream.id, point.position), number);
        let number_of = |point: &Point| self.numbers.get(&(point.stream.id, point.position));
        let (kind, reads, writes) = describe(action);
        let record = Box::new(Record {
            number,
            thread,
            stream: order,
            device: point.stream.device,
            kind,
            reads,
            writes,
            waits: waits.iter().filter_map(number_of).copied().collect(),
            overtaken_by: None,
            conflicts: false,
        });
        self.write(&record, None);
        record
    }

    /// Notes that `other` runs before an operation that was queued earlier.
    pub(super) fn overtake(&mut self, record: &mut Record, other: &Record) {
        if record.is_overtaken_by(other) {
            self.write(record, None);
        }
    }

    /// Notes that an operation has finished after `submitted` were queued; `deviates` is true if it
    /// could have finished earlier.
    pub(super) fn finish(&mut self, record: &Record, submitted: u64, deviates: bool) {
        self.write(record, Some((submitted, deviates)));
    }

    fn write(&mut self, record: &Record, over: Option<(u64, bool)>) {
        let mut line = String::with_capacity(256);
        let _ = write!(
            line,
            "{{\"number\":{},\"thread\":{},\"stream\":{},\"device\":{},\"kind\":\"{}\"",
            record.number, record.thread, record.stream, record.device, record.kind
        );
        for (name, range) in [("reads", record.reads), ("writes", record.writes)] {
            let _ = match range {
                Some(Range { start, bytes, is_device: true }) => {
                    write!(line, ",\"{name}\":[\"{start:#x}\",{bytes}]")
                }
                // The system chooses host addresses, different in each run, so only the size is
                // written.
                Some(Range { bytes, .. }) => write!(line, ",\"{name}\":[\"host\",{bytes}]"),
                None => Ok(()),
            };
        }
        let _ = write!(line, ",\"waits\":{:?}", record.waits);
        if let Some(by) = record.overtaken_by {
            let _ = write!(line, ",\"overtaken_by\":{by},\"conflicts\":{}", record.conflicts);
        }
        if let Some((submitted, deviates)) = over {
            let _ = write!(line, ",\"ran_after\":{submitted},\"late\":{deviates}");
        }
        line.push_str("}\n");
        // Each line is written at once, since the host may crash. A full disk must not stop the
        // host.
        let _quiet = BlockedSignals::begin();
        let _ = self.file.write_all(line.as_bytes());
    }
}

impl Record {
    /// Records the first operation that overtakes this one, or preferably the first that accesses
    /// the same bytes.
    fn is_overtaken_by(&mut self, other: &Record) -> bool {
        let overlap = |a: Option<Range>, b: Option<Range>| match (a, b) {
            (Some(a), Some(b)) => a.start < b.start + b.bytes && b.start < a.start + a.bytes,
            _ => false,
        };
        let conflicts = overlap(self.writes, other.writes)
            || overlap(self.writes, other.reads)
            || overlap(self.reads, other.writes);
        let notes = self.overtaken_by.is_none() || (conflicts && !self.conflicts);
        if notes {
            (self.overtaken_by, self.conflicts) = (Some(other.number), conflicts);
        }
        notes
    }
}

/// Bytes of memory, from the first to the last.
#[derive(Clone, Copy)]
struct Range {
    start: usize,
    bytes: usize,
    is_device: bool,
}

/// Kind, bytes read and bytes written.
fn describe(action: &Action) -> (&'static str, Option<Range>, Option<Range>) {
    match action {
        Action::Nothing => ("wait", None, None),
        Action::Record(_) => ("record", None, None),
        Action::Value(_) => ("value", None, None),
        Action::Copy(copy) => ("copy", range(copy, &copy.source), range(copy, &copy.target)),
        Action::Fill(fill) => {
            let (start, bytes) = (fill.address, fill.extent().unwrap_or(0));
            ("fill", None, Some(Range { start, bytes, is_device: true }))
        }
        Action::HostFunction(_) | Action::Callback(_) => ("callback", None, None),
        Action::Kernel(_) | Action::Writes(_) => ("kernel", None, None),
        Action::Reset(_) | Action::Branch(_) => ("conditional", None, None),
    }
}

fn range(copy: &Copy, side: &Side) -> Option<Range> {
    let (start, is_device) = match side.place {
        Place::Device(address) => (address, true),
        Place::Host(address) => (address, false),
        Place::Staged(_) => return None,
    };
    Some(Range { start, bytes: copy.extent(side)?, is_device })
}
