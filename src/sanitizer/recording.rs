//! The operations of a capture, for the launches of its graph: each launch is one operation with
//! all their accesses.

use super::Mode;
use super::clock::{Table, insert, push};
use super::domain::Domain;
use super::shape::{ByteSet, Shape};
use super::store::{Access, Store};
use super::text::{Label, TextBuffer, Texts};
use crate::base::error::Result;

/// One access of a captured operation, with the bytes that no later access replaced.
pub(super) struct Operation {
    pub(super) label: Label,
    pub(super) mode: Mode,
    runs: Vec<(u64, u64)>,
    shape: Option<Shape>,
}

impl Operation {
    pub(super) fn bytes(&self) -> Result<ByteSet<'_>> {
        match &self.shape {
            Some(shape) => Ok(ByteSet::Shaped(shape.try_clone()?)),
            None => Ok(ByteSet::Runs(&self.runs)),
        }
    }
}

/// All accesses of a capture.
#[derive(Default)]
pub(super) struct Recorded {
    pub(super) operations: Vec<Operation>,
    /// Events that a launch waits for when it begins, and events that it records when it ends.
    pub(super) awaited: Vec<u64>,
    pub(super) recorded: Vec<u64>,
}

impl Recorded {
    /// Takes the accesses of a capture that has ended.
    pub(super) fn of(domain: &mut Domain, store: &Store, texts: &mut Texts) -> Result<Recorded> {
        let mut recorded = Recorded {
            operations: Vec::new(),
            awaited: std::mem::take(&mut domain.awaited),
            recorded: std::mem::take(&mut domain.recorded),
        };
        let mut places = Table::default();
        for entry in domain.ranges.iter() {
            let cell = store.cell(entry.value);
            // A write includes the reads of the same bytes.
            if let Some(access) = cell.write.as_ref().or(cell.reads.first()) {
                let place = recorded.place(access, &mut places, store, texts)?;
                let runs = &mut recorded.operations[place].runs;
                match runs.last_mut() {
                    Some(last) if last.1 == entry.start => last.1 = entry.end,
                    _ => push(runs, (entry.start, entry.end))?,
                }
            }
            for access in &cell.partial {
                recorded.place(access, &mut places, store, texts)?;
            }
        }
        Ok(recorded)
    }

    /// Returns the index of the operation of an access; adds it if it is missing.
    fn place(
        &mut self,
        access: &Access,
        places: &mut Table<usize>,
        store: &Store,
        texts: &mut Texts,
    ) -> Result<usize> {
        if let Some(place) = places.get(&u64::from(access.touched)) {
            return Ok(*place);
        }
        let touched = store.touched(access.touched);
        let mut name = TextBuffer::default();
        name.add(format_args!("tcuda_graph_replay: {}", texts.label(touched.details.label)))?;
        let label = Label::Host(texts.keep(&name.0)?);
        let (mode, runs) = (touched.details.mode, Vec::new());
        let shape = touched.shape.as_ref().map(|shape| shape.try_clone()).transpose()?;
        push(&mut self.operations, Operation { label, mode, runs, shape })?;
        insert(places, u64::from(access.touched), self.operations.len() - 1)?;
        Ok(self.operations.len() - 1)
    }
}
