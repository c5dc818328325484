//! Moves of elements between memories. They use the fast paths where possible, and otherwise the
//! fallback, one after the other.

use super::check::MemoryKind;
use super::path::{Part, Rows, Strided};
use super::team::{INLINE_ROWS, Team};
use crate::base::error::{Error, Result};
use crate::base::inline_vec::Few;
use crate::collectives::fallback;
use crate::collectives::layout::{Elements, Form};
use crate::collectives::{dispatch, sanitizer_events};
use crate::tensor::Tensor;

/// Elements that move from one memory to another.
pub struct Move {
    /// The memory that they are read from.
    pub src: MemoryKind,
    /// The memory that they are written to.
    pub dst: MemoryKind,
    /// Their addresses and order.
    pub form: Form,
}

impl Move {
    /// Source and destination device, if both sides are on devices.
    fn devices(&self) -> Option<(i32, i32)> {
        Some((self.src.device()?, self.dst.device()?))
    }

    /// The move as rows of bytes, if it has that form.
    fn rows(src: MemoryKind, dst: MemoryKind, form: &Form) -> Option<Rows> {
        let (from, to) = (src.device()?, dst.device()?);
        let (rows, src_pitch, dst_pitch) = form.rows()?;
        Some(Rows {
            src: Part { device: from, address: form.src },
            dst: Part { device: to, address: form.dst },
            width: form.width,
            rows,
            src_pitch,
            dst_pitch,
        })
    }
}

/// The moves of a call.
pub struct Moves {
    /// Rows of bytes between devices.
    rows: Few<Rows, INLINE_ROWS>,
    /// All other moves.
    list: Vec<Move>,
}

const NO_ROOM: Error = Error::OutOfHostMemory("what a collective moves");

impl Moves {
    /// No moves. Inlined, so that the list is not copied on the stack.
    #[inline(always)]
    pub const fn new() -> Moves {
        Moves { rows: Few::new(), list: Vec::new() }
    }

    /// Adds a move of all elements of one view to another of the same shape and type. Adds nothing
    /// if they are the same memory. Not inlined: forms take stack.
    #[inline(never)]
    pub fn add(
        &mut self,
        (from, src): (MemoryKind, &Tensor),
        (to, dst): (MemoryKind, &Tensor),
    ) -> Result<()> {
        match Form::of(src, dst)? {
            Some(form) if from == to && form.is_identity() => Ok(()),
            Some(form) => self.add_form(from, to, form),
            None => Ok(()),
        }
    }

    /// Adds a move in this form.
    pub fn add_form(&mut self, src: MemoryKind, dst: MemoryKind, form: Form) -> Result<()> {
        if let Some(rows) = Move::rows(src, dst, &form) {
            return self.rows.push(rows);
        }
        self.list.try_reserve(1).map_err(|_| NO_ROOM)?;
        self.list.push(Move { src, dst, form });
        Ok(())
    }

    /// Adds a move of contiguous bytes. Adds nothing if they are the same memory.
    pub fn add_range(
        &mut self,
        (from, src): (MemoryKind, u64),
        (to, dst): (MemoryKind, u64),
        bytes: u64,
    ) -> Result<()> {
        match (from, to) {
            _ if bytes == 0 || (from, src) == (to, dst) => Ok(()),
            (MemoryKind::Device(from), MemoryKind::Device(to)) => {
                let src = Part { device: from, address: src };
                self.rows.push(Rows::flat(src, Part { device: to, address: dst }, bytes))
            }
            _ => self.add_form(from, to, Form::range(src, dst, bytes)),
        }
    }

    /// Are there no moves?
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.list.is_empty()
    }

    /// The moves between devices that a kernel for strided elements can do.
    #[inline(never)]
    fn strided(&self) -> Result<Vec<(Part, Part, Elements)>> {
        let mut strided = Vec::new();
        for moved in &self.list {
            let Some((from, to)) = moved.devices() else { continue };
            if let Some(elements) = moved.form.elements()? {
                strided.try_reserve(1).map_err(|_| NO_ROOM)?;
                let src = Part { device: from, address: moved.form.src };
                strided.push((src, Part { device: to, address: moved.form.dst }, elements));
            }
        }
        Ok(strided)
    }

    /// Queues all moves. For pageable host memory the copy is complete on return.
    pub fn run(&self, team: &Team) -> Result<()> {
        if !self.rows.is_empty() && !dispatch::copies(team, &self.rows)? {
            self.rows.iter().try_for_each(|rows| run_rows(team, rows))?;
        }
        if self.list.is_empty() {
            return Ok(());
        }
        let strided = self.strided()?;
        let strided_are_done = strided.is_empty() || run_strided(team, &strided)?;
        for moved in &self.list {
            let is_strided = moved.devices().is_some() && moved.form.elements()?.is_some();
            if !(is_strided && strided_are_done) {
                fallback::run(team, moved)?;
            }
        }
        Ok(())
    }
}

/// Queues a copy of one tensor.
#[inline(never)]
pub fn run_one(
    team: &Team,
    src: (MemoryKind, &Tensor),
    dst: (MemoryKind, &Tensor),
    operation: &'static str,
) -> Result<()> {
    let mut moves = Moves::new();
    moves.add(src, dst)?;
    moves.run(team)?;
    sanitizer_events::report(team, operation, |events| events.moved(src, dst));
    Ok(())
}

#[inline(never)]
fn run_rows(team: &Team, rows: &Rows) -> Result<()> {
    let (src, dst) = (MemoryKind::Device(rows.src.device), MemoryKind::Device(rows.dst.device));
    fallback::run(team, &Move { src, dst, form: Form::of_rows(rows)? })
}

fn run_strided(team: &Team, list: &[(Part, Part, Elements)]) -> Result<bool> {
    let mut pieces = Vec::new();
    pieces.try_reserve_exact(list.len()).map_err(|_| NO_ROOM)?;
    pieces.extend(list.iter().map(|(src, dst, elements)| Strided {
        src: *src,
        dst: *dst,
        element: elements.element,
        dims: elements.dims(),
    }));
    dispatch::strided(team, &pieces)
}
