//! A sorted map of disjoint address ranges to numbers, stored in chunks.

use super::clock::NO_MEMORY;
use crate::base::error::Result;
use std::cell::Cell;

/// A range, and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) value: u32,
}

/// The most entries of a chunk.
const MAX: usize = 64;

/// The place of an entry: index of its chunk, and index in the chunk.
pub(super) type Place = (usize, usize);

/// The contents of a range of addresses.
pub(super) enum Inside {
    /// No entry.
    Nothing,
    /// Exactly one entry, which lies inside completely.
    One(Place, Entry),
    /// Several entries, or parts of entries.
    More,
}

/// A chunk; never empty.
struct Chunk(Vec<Entry>);

impl Chunk {
    fn first(&self) -> u64 {
        self.0[0].start
    }
}

/// The map.
pub(super) struct Ranges {
    chunks: Vec<Chunk>,
    len: usize,
    /// The buffer of a removed chunk, for the next new one.
    spare: Vec<Entry>,
    /// The last place found: the next search often ends there, or one entry further.
    last: Cell<Place>,
}

impl Ranges {
    pub(super) const fn new() -> Ranges {
        Ranges { chunks: Vec::new(), len: 0, spare: Vec::new(), last: Cell::new((0, 0)) }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The chunk in which an entry that starts at `address` belongs.
    fn chunk_of(&self, address: u64) -> usize {
        self.chunks.partition_point(|chunk| chunk.first() <= address).saturating_sub(1)
    }

    /// The first entry whose end is > `address`.
    #[inline]
    fn first_behind(&self, address: u64) -> Place {
        let (chunk, place) = self.last.get();
        if let Some(Chunk(entries)) = self.chunks.get(chunk)
            && let Some(entry) = entries.get(place)
        {
            let place = place + usize::from(entry.end <= address);
            let is_behind = entries.get(place).is_some_and(|entry| entry.end > address);
            let is_first = match place {
                0 => chunk == 0 || entry.start <= address,
                _ => entries[place - 1].end <= address,
            };
            if is_behind && is_first {
                self.last.set((chunk, place));
                return (chunk, place);
            }
        }
        self.search(address)
    }

    #[inline(never)]
    fn search(&self, address: u64) -> Place {
        let chunk = self.chunk_of(address);
        let Some(entries) = self.chunks.get(chunk) else { return (chunk, 0) };
        let place = entries.0.partition_point(|entry| entry.end <= address);
        self.last.set((chunk, place));
        (chunk, place)
    }

    /// The start of the entry after `place`.
    fn begins_behind(&self, (chunk, place): Place) -> Option<u64> {
        let next = self.chunks[chunk].0.get(place + 1).map(|entry| entry.start);
        next.or_else(|| self.chunks.get(chunk + 1).map(Chunk::first))
    }

    /// The entry that contains `address`.
    pub(super) fn find(&self, address: u64) -> Option<Entry> {
        let (chunk, place) = self.first_behind(address);
        let entry = self.chunks.get(chunk)?.0.get(place)?;
        (entry.start <= address).then_some(*entry)
    }

    /// The number of the entry at `place`, if its range is exactly `start..end`.
    #[inline]
    pub(super) fn at(&self, (chunk, place): Place, start: u64, end: u64) -> Option<u32> {
        let entry = self.chunks.get(chunk)?.0.get(place)?;
        ((entry.start, entry.end) == (start, end)).then_some(entry.value)
    }

    /// Converts a place past the end of its chunk to the place in the next chunk.
    pub(super) fn carry(&self, (chunk, place): Place) -> Place {
        match self.chunks.get(chunk).map(|chunk| chunk.0.len()) {
            Some(len) if place >= len => (chunk + 1, place - len),
            _ => (chunk, place),
        }
    }

    /// Changes the number of the entry at `place` to `new`, if its range is exactly `start..end`
    /// and its number is `old`.
    #[inline]
    pub(super) fn replace_at(
        &mut self,
        (chunk, place): Place,
        (start, end): (u64, u64),
        old: u32,
        new: u32,
    ) -> bool {
        let entry = self.chunks.get_mut(chunk).and_then(|chunk| chunk.0.get_mut(place));
        let Some(entry) = entry.filter(|entry| **entry == (Entry { start, end, value: old }))
        else {
            return false;
        };
        entry.value = new;
        true
    }

    /// Returns what `start..end` contains.
    #[inline]
    pub(super) fn inside(&self, start: u64, end: u64) -> Inside {
        let (chunk, place) = self.first_behind(start);
        let Some(Chunk(entries)) = self.chunks.get(chunk) else { return Inside::Nothing };
        let Some(entry) = entries.get(place) else {
            // The address is after the last entry of the chunk.
            let next = self.chunks.get(chunk + 1).map(Chunk::first);
            return if next.is_none_or(|next| next >= end) {
                Inside::Nothing
            } else {
                Inside::More
            };
        };
        if entry.start >= end {
            return Inside::Nothing;
        }
        let is_alone = entry.start >= start
            && entry.end <= end
            && self.begins_behind((chunk, place)).is_none_or(|next| next >= end);
        if is_alone { Inside::One((chunk, place), *entry) } else { Inside::More }
    }

    /// Changes the number of the entry at `place`.
    #[inline]
    pub(super) fn set(&mut self, (chunk, place): Place, value: u32) {
        self.chunks[chunk].0[place].value = value;
    }

    /// Replaces the entry at `place`. The new range overlaps no other entry.
    #[inline]
    pub(super) fn put(&mut self, (chunk, place): Place, entry: Entry) {
        self.chunks[chunk].0[place] = entry;
    }

    /// If exactly one entry overlaps `start..end`, sets its range to `start..end` and returns its
    /// number.
    #[inline]
    pub(super) fn take_over(&mut self, start: u64, end: u64) -> Option<u32> {
        let (chunk, place) = self.first_behind(start);
        let entry = *self.chunks.get(chunk)?.0.get(place)?;
        let is_alone = self.begins_behind((chunk, place)).is_none_or(|next| next >= end);
        if entry.start >= end || !is_alone {
            return None;
        }
        self.put((chunk, place), Entry { start, end, ..entry });
        Some(entry.value)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.chunks.iter().flat_map(|chunk| chunk.0.iter())
    }

    /// Appends all entries that overlap `start..end` to `found`, uncut.
    pub(super) fn overlapping(&self, start: u64, end: u64, found: &mut Vec<Entry>) -> Result<()> {
        let (first, mut place) = self.first_behind(start);
        for chunk in self.chunks.get(first..).unwrap_or(&[]) {
            let entries = &chunk.0[place.min(chunk.0.len())..];
            let count = entries.partition_point(|entry| entry.start < end);
            found.try_reserve(count).map_err(|_| NO_MEMORY)?;
            found.extend_from_slice(&entries[..count]);
            if count < entries.len() {
                break;
            }
            place = 0;
        }
        Ok(())
    }

    /// Replaces the contents of `start..end` by `new`, which is sorted. The parts of entries
    /// outside of `start..end` stay.
    pub(super) fn replace(&mut self, start: u64, end: u64, new: &[Entry]) -> Result<()> {
        let (first, place) = self.first_behind(start);
        if self.chunks.is_empty() {
            self.chunks.try_reserve(1).map_err(|_| NO_MEMORY)?;
            self.chunks.push(Chunk(std::mem::take(&mut self.spare)));
        }
        // Fast path of the usual case: the same range gets another number.
        if let ([new], Some(entry)) = (new, self.chunks[first].0.get_mut(place))
            && (entry.start, entry.end) == (start, end)
            && (new.start, new.end) == (start, end)
        {
            entry.value = new.value;
            return Ok(());
        }
        let (mut head, mut tail) = (None, None);
        // Find the end of what is removed: chunk `last`, entries before `until`.
        let mut last = first;
        let mut until = place;
        loop {
            let entries = &self.chunks[last].0;
            until += entries[until..].partition_point(|entry| entry.start < end);
            if until < entries.len() || last + 1 == self.chunks.len() {
                break;
            }
            if self.chunks[last + 1].first() >= end {
                break;
            }
            last += 1;
            until = 0;
        }
        if let Some(entry) = self.chunks[first].0.get(place)
            && entry.start < start
            && entry.end > start
        {
            head = Some(Entry { end: start, ..*entry });
        }
        if let Some(entry) = until.checked_sub(1).and_then(|place| self.chunks[last].0.get(place))
            && entry.end > end
            && entry.start < end
        {
            tail = Some(Entry { start: end, ..*entry });
        }
        let room = new.len() + 2;
        if first == last {
            let entries = &mut self.chunks[first].0;
            entries.try_reserve(room).map_err(|_| NO_MEMORY)?;
            self.len -= until - place;
            let all = head.into_iter().chain(new.iter().copied()).chain(tail);
            entries.splice(place..until, all);
        } else {
            self.len -= self.chunks[first].0.len() - place + until;
            self.len -=
                self.chunks[first + 1..last].iter().map(|chunk| chunk.0.len()).sum::<usize>();
            self.chunks[last].0.drain(..until);
            let is_last_empty = self.chunks[last].0.is_empty();
            self.chunks.drain(first + 1..last + usize::from(is_last_empty));
            let entries = &mut self.chunks[first].0;
            entries.truncate(place);
            entries.try_reserve(room).map_err(|_| NO_MEMORY)?;
            entries.extend(head.into_iter().chain(new.iter().copied()).chain(tail));
        }
        self.len += usize::from(head.is_some()) + new.len() + usize::from(tail.is_some());
        self.tidy(first)
    }

    /// Removes an empty chunk; splits a chunk that is too long.
    fn tidy(&mut self, index: usize) -> Result<()> {
        let len = self.chunks[index].0.len();
        if len == 0 {
            self.spare = self.chunks.remove(index).0;
        } else if len > MAX {
            let half = MAX / 2;
            let more = len.div_ceil(half) - 1;
            self.chunks.try_reserve(more).map_err(|_| NO_MEMORY)?;
            for cut in (1..=more).rev() {
                let mut part = Vec::new();
                part.try_reserve_exact(MAX + 2).map_err(|_| NO_MEMORY)?;
                part.extend(self.chunks[index].0.drain(cut * half..));
                self.chunks.insert(index + 1, Chunk(part));
            }
        }
        Ok(())
    }

    /// Calls `keep` for each entry, which may change its number; removes the entries for which it
    /// returns false.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&mut Entry) -> bool) {
        for chunk in &mut self.chunks {
            chunk.0.retain_mut(&mut keep);
        }
        self.chunks.retain(|chunk| !chunk.0.is_empty());
        self.len = self.chunks.iter().map(|chunk| chunk.0.len()).sum();
    }

    /// Removes the entry that starts at `start`.
    pub(super) fn remove(&mut self, start: u64) -> Option<Entry> {
        let entry = self.find(start).filter(|entry| entry.start == start)?;
        self.remove_at(self.first_behind(start));
        Some(entry)
    }

    /// Removes the entry at `place`.
    pub(super) fn remove_at(&mut self, (chunk, place): Place) {
        self.chunks[chunk].0.remove(place);
        self.len -= 1;
        if self.chunks[chunk].0.is_empty() {
            self.spare = self.chunks.remove(chunk).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Random(u64);

    impl Random {
        fn below(&mut self, end: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (self.0 >> 33) % end
        }
    }

    /// The number of each byte; 0: none.
    fn bytes_of(ranges: &Ranges) -> Vec<u32> {
        let mut bytes = vec![0; 4096];
        let mut last = 0;
        for entry in ranges.iter() {
            assert!(entry.start >= last && entry.end > entry.start, "{entry:?}");
            last = entry.end;
            bytes[entry.start as usize..entry.end as usize].fill(entry.value);
        }
        assert_eq!(ranges.iter().count(), ranges.len());
        bytes
    }

    #[test]
    fn replacing_agrees_with_a_list_of_bytes() {
        for seed in 0..200 {
            let mut random = Random(seed);
            let (mut ranges, mut bytes) = (Ranges::new(), vec![0; 4096]);
            for value in 1..200 {
                let start = random.below(4000);
                let most = if random.below(4) == 0 { 4096 - start } else { 40 };
                let end = start + 1 + random.below(most.min(4096 - start));
                let middle = start + random.below(end - start);
                let new: Vec<Entry> = match random.below(3) {
                    0 => vec![Entry { start, end, value }],
                    1 => vec![Entry { start: middle, end, value }],
                    _ => (start..end)
                        .step_by(3)
                        .map(|start| Entry { start, end: start + 1, value })
                        .collect(),
                };
                let mut inside = Vec::new();
                ranges.overlapping(start, end, &mut inside).unwrap();
                let mut known = vec![0; 4096];
                for entry in &inside {
                    known[entry.start as usize..entry.end as usize].fill(entry.value);
                }
                assert_eq!(
                    known[start as usize..end as usize],
                    bytes[start as usize..end as usize]
                );
                let is_free = bytes[start as usize..end as usize].iter().all(|byte| *byte == 0);
                match ranges.inside(start, end) {
                    Inside::Nothing => assert!(is_free),
                    Inside::One(place, entry) => {
                        assert!(inside == [entry] && entry.start >= start && entry.end <= end);
                        assert_eq!(ranges.at(place, entry.start, entry.end), Some(entry.value));
                    }
                    // Also the answer when the only entry lies in the next chunk.
                    Inside::More => assert!(!is_free),
                }
                ranges.replace(start, end, &new).unwrap();
                bytes[start as usize..end as usize].fill(0);
                for entry in &new {
                    bytes[entry.start as usize..entry.end as usize].fill(value);
                }
                assert_eq!(bytes_of(&ranges), bytes, "seed {seed}");
                let start = random.below(4000);
                let end = start + 1 + random.below(60);
                inside.clear();
                ranges.overlapping(start, end, &mut inside).unwrap();
                match (ranges.take_over(start, end), &inside[..]) {
                    (Some(value), [entry]) => {
                        assert_eq!(value, entry.value);
                        bytes[entry.start as usize..entry.end as usize].fill(0);
                        bytes[start as usize..end as usize].fill(value);
                        assert_eq!(bytes_of(&ranges), bytes, "seed {seed}");
                    }
                    (Some(_), _) => panic!("{inside:?}"),
                    // `take_over` does not look into the next chunk.
                    (None, inside) => assert!(inside.len() != 1 || inside[0].start > start),
                }
                let some = random.below(4096);
                let found = ranges.find(some).map_or(0, |entry| entry.value);
                assert_eq!(found, bytes[some as usize]);
            }
        }
    }

    #[test]
    fn single_ranges_are_taken_out() {
        let mut ranges = Ranges::new();
        for start in 0..500 {
            let start = start * 10;
            ranges.replace(start, start + 5, &[Entry { start, end: start + 5, value: 1 }]).unwrap();
        }
        assert!(ranges.remove(3).is_none());
        for start in 0..500 {
            assert_eq!(ranges.remove(start * 10).map(|entry| entry.end), Some(start * 10 + 5));
        }
        assert_eq!((ranges.len(), ranges.find(0)), (0, None));
    }
}
