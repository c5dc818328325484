//! Moving elements between memories: all that a verb has to move, by the fast ways where these can, else
//! one after the other.

use super::check::Home;
use super::form::{Elements, Form};
use super::path::{Part, Rows, Strided};
use super::plain;
use super::team::Team;
use super::ways;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Elements that go from one memory to another.
#[derive(Clone, Copy)]
pub struct Move {
    /// Where they are.
    pub src: Home,
    /// Where they go.
    pub dst: Home,
    /// Which, in what order.
    pub form: Form,
}

impl Move {
    /// The devices, where both sides are on one.
    fn devices(&self) -> Option<(i32, i32)> {
        Some((self.src.device()?, self.dst.device()?))
    }

    /// As a rectangle.
    fn rows(&self) -> Option<Rows> {
        let ((from, to), form) = (self.devices()?, &self.form);
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

/// Moves of a call.
#[derive(Default)]
pub struct Moves {
    list: Vec<Move>,
}

const NO_ROOM: Error = Error::OutOfHostMemory("what a collective moves");

impl Moves {
    /// None yet, with host memory for so many.
    pub fn with_room(moves: usize) -> Result<Moves> {
        let mut list = Vec::new();
        list.try_reserve_exact(moves).map_err(|_| NO_ROOM)?;
        Ok(Moves { list })
    }

    /// The elements of one view go to those of another, of the same shape and type; nothing where both
    /// are the same.
    pub fn add(&mut self, (from, src): (Home, &Tensor), (to, dst): (Home, &Tensor)) -> Result<()> {
        match Form::of(src, dst)? {
            Some(form) if from == to && form.stays() => Ok(()),
            Some(form) => self.add_form(from, to, form),
            None => Ok(()),
        }
    }

    /// The same in another form.
    pub fn add_form(&mut self, src: Home, dst: Home, form: Form) -> Result<()> {
        self.list.try_reserve(1).map_err(|_| NO_ROOM)?;
        self.list.push(Move { src, dst, form });
        Ok(())
    }

    /// Is there nothing to move?
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Queues all of it. What is in pageable memory of the host is read or written when this returns.
    pub fn run(&self, team: &Team) -> Result<()> {
        let (mut rows, mut strided): (Vec<Rows>, Vec<(Part, Part, Elements)>) = Default::default();
        rows.try_reserve_exact(self.list.len()).map_err(|_| NO_ROOM)?;
        for moved in &self.list {
            let Some((from, to)) = moved.devices() else { continue };
            if let Some(rectangle) = moved.rows() {
                rows.push(rectangle);
            } else if let Some(elements) = moved.form.elements() {
                strided.try_reserve(1).map_err(|_| NO_ROOM)?;
                let src = Part { device: from, address: moved.form.src };
                strided.push((src, Part { device: to, address: moved.form.dst }, elements));
            }
        }
        let rows_are_done = rows.is_empty() || ways::copies(team, &rows)?;
        let strided_are_done = strided.is_empty() || run_strided(team, &strided)?;
        for moved in &self.list {
            let is_done = match moved.devices() {
                None => false,
                Some(_) if moved.form.rows().is_some() => rows_are_done,
                Some(_) => strided_are_done && moved.form.elements().is_some(),
            };
            if !is_done {
                plain::run(team, moved)?;
            }
        }
        Ok(())
    }
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
    ways::strided(team, &pieces)
}
