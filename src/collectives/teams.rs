//! Pieces that move between memories, and the teams that order them.

use super::check::{self, MemoryKind};
use super::members::{self, Members, wait_for};
use super::moves::Moves;
use super::team::{Devices, INLINE_CAPACITY, Team};
use crate::base::error::{Error, Result};
use crate::base::inline_vec::Few;
use crate::collectives::contiguous::ContiguousBytes;
use crate::collectives::sanitizer_events;
use crate::gpu::gpus::Gpus;
use crate::gpu::stream::Stream;
use crate::tensor::Tensor;

pub(super) const NO_ROOM: Error = Error::OutOfHostMemory("the pieces of a tensor");

/// A move of a piece of a tensor, and the team that orders it.
pub struct Piece {
    /// The source.
    pub src: (MemoryKind, Tensor),
    /// The destination.
    pub dst: (MemoryKind, Tensor),
    /// Index of the team.
    pub team: usize,
}

/// A move of contiguous bytes, and the team that orders it.
#[derive(Clone, Copy)]
pub struct Range {
    /// The source.
    pub src: ContiguousBytes,
    /// The destination.
    pub dst: (MemoryKind, u64),
    /// Index of the team.
    pub team: usize,
}

/// A list that needs no heap memory for one element, which is the usual case.
struct OneOrMore<T> {
    first: Option<T>,
    more: Vec<T>,
}

impl<T> OneOrMore<T> {
    const fn new() -> OneOrMore<T> {
        OneOrMore { first: None, more: Vec::new() }
    }

    fn push(&mut self, value: T) -> Result<()> {
        if self.first.is_none() {
            self.first = Some(value);
            return Ok(());
        }
        self.more.try_reserve(1).map_err(|_| NO_ROOM)?;
        self.more.push(value);
        Ok(())
    }

    fn iter(&self) -> impl Iterator<Item = &T> {
        self.first.iter().chain(&self.more)
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.first.iter_mut().chain(&mut self.more)
    }
}

/// The teams of a call. There are several if pieces use several streams of one device.
pub struct Teams<'a> {
    gpus: &'a Gpus,
    members: OneOrMore<Members<'a>>,
    teams: OneOrMore<Team<'a>>,
}

impl<'a> Teams<'a> {
    /// No teams.
    pub fn new(gpus: &'a Gpus) -> Teams<'a> {
        Teams { gpus, members: OneOrMore::new(), teams: OneOrMore::new() }
    }

    /// Index of the team for a piece from `src` to a device on stream `to`. It is the first team
    /// whose streams of these devices are the same, or a new one.
    pub fn join(&mut self, src: MemoryKind, to: Option<&'a Stream>) -> Result<usize> {
        let own = to.map(|stream| stream.device());
        let from = match src.device().filter(|device| Some(*device) != own) {
            Some(device) => Some(check::current(self.gpus, device)?),
            None => None,
        };
        let mut streams = [from, to].into_iter().flatten();
        let accepts = |members: &Members<'a>| {
            let mut streams = streams.clone();
            streams.all(|stream| members.accepts(stream))
        };
        let known = self.members.iter().position(accepts);
        let place = match known {
            Some(place) => place,
            None => {
                self.members.push(Members::new(self.gpus))?;
                self.members.more.len()
            }
        };
        match self.members.iter_mut().nth(place) {
            Some(members) => streams.try_for_each(|stream| members.add(stream))?,
            None => return Err(NO_ROOM),
        }
        Ok(place)
    }

    /// Makes the teams, after all pieces have joined.
    pub fn begin(&mut self) -> Result<()> {
        self.members.iter().try_for_each(|members| self.teams.push(members.team()?))
    }

    /// Queues all pieces.
    pub fn run(&self, pieces: &[Piece], operation: &'static str) -> Result<()> {
        for (index, team) in self.teams.iter().enumerate() {
            let mut moves = Moves::new();
            for piece in pieces.iter().filter(|piece| piece.team == index) {
                let ((from, src), (to, dst)) = (&piece.src, &piece.dst);
                members::record(team, *from, src)?;
                members::record(team, *to, dst)?;
                moves.add((*from, src), (*to, dst))?;
            }
            moves.run(team)?;
            sanitizer_events::report(team, operation, |events| {
                for piece in pieces.iter().filter(|piece| piece.team == index) {
                    let ((from, src), (to, dst)) = (&piece.src, &piece.dst);
                    events.moved((*from, src), (*to, dst));
                }
            });
        }
        Ok(())
    }

    /// Queues ranges. Their destinations are already recorded, or in blocks of the call.
    pub fn run_ranges(&self, ranges: &[Range], operation: &'static str) -> Result<()> {
        for (index, team) in self.teams.iter().enumerate() {
            let mut moves = Moves::new();
            let mut recorded = None;
            for Range { src, dst, .. } in ranges.iter().filter(|range| range.team == index) {
                // Pieces of one tensor are in one block.
                if recorded != Some((src.kind, src.data)) {
                    src.record(team)?;
                    recorded = Some((src.kind, src.data));
                }
                moves.add_range((src.kind, src.address), *dst, src.bytes)?;
            }
            moves.run(team)?;
            sanitizer_events::report(team, operation, |events| {
                let own = ranges.iter().filter(|range| range.team == index);
                own.for_each(|range| events.sent(&range.src, range.dst));
            });
        }
        Ok(())
    }

    /// Records that a team uses an output.
    pub fn record(&self, team: usize, output: &ContiguousBytes) -> Result<()> {
        self.teams.iter().nth(team).map_or(Ok(()), |team| output.record(team))
    }

    /// Waits for pieces that moved to host memory of the call. In a capture it does not wait,
    /// because a launch of the graph fills the memory.
    pub fn wait_for_host(&self, pieces: &[Piece]) -> Result<()> {
        let pieces = pieces.iter().map(|piece| (piece.src.0, piece.dst.0, piece.team));
        self.wait_for_all(pieces)
    }

    /// [`Teams::wait_for_host`] for ranges.
    pub fn wait_for_ranges(&self, ranges: &[Range]) -> Result<()> {
        self.wait_for_all(ranges.iter().map(|range| (range.src.kind, range.dst.0, range.team)))
    }

    fn wait_for_all(
        &self,
        moved: impl Iterator<Item = (MemoryKind, MemoryKind, usize)> + Clone,
    ) -> Result<()> {
        for (index, team) in self.teams.iter().enumerate() {
            let own = moved.clone().filter(|(_, to, by)| to.device().is_none() && *by == index);
            let devices: Devices = own.filter_map(|(from, ..)| from.device()).collect();
            wait_for(team, devices)?;
        }
        Ok(())
    }
}

/// An empty list with space for all pieces.
pub fn with_room(count: usize) -> Result<Vec<Piece>> {
    let mut list = Vec::new();
    list.try_reserve_exact(count).map_err(|_| NO_ROOM)?;
    Ok(list)
}

/// The ranges of a call.
pub type Ranges = Few<Range, INLINE_CAPACITY>;
