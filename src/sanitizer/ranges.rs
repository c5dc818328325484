//! Ranges of addresses that do not overlap, each with a number: sorted, in chunks.

use super::clock::NO_MEMORY;
use crate::error::Result;

/// A range, and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) value: u32,
}

/// The most of a chunk.
const MOST: usize = 64;

/// None is empty.
struct Chunk(Vec<Entry>);

impl Chunk {
    fn first(&self) -> u64 {
        self.0[0].start
    }
}

/// The ranges.
pub(super) struct Ranges {
    chunks: Vec<Chunk>,
    len: usize,
    /// The room of a chunk that is gone, for the next one.
    spare: Vec<Entry>,
}

impl Ranges {
    pub(super) const fn new() -> Ranges {
        Ranges { chunks: Vec::new(), len: 0, spare: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The chunk in which a range that begins at an address would be.
    fn chunk_of(&self, address: u64) -> usize {
        self.chunks.partition_point(|chunk| chunk.first() <= address).saturating_sub(1)
    }

    /// The first range that ends behind an address: its chunk and its place there.
    fn first_behind(&self, address: u64) -> (usize, usize) {
        let chunk = self.chunk_of(address);
        let Some(entries) = self.chunks.get(chunk) else { return (chunk, 0) };
        (chunk, entries.0.partition_point(|entry| entry.end <= address))
    }

    /// The range around an address.
    pub(super) fn find(&self, address: u64) -> Option<Entry> {
        let (chunk, place) = self.first_behind(address);
        let entry = self.chunks.get(chunk)?.0.get(place)?;
        (entry.start <= address).then_some(*entry)
    }

    /// The place and the number of just this range.
    pub(super) fn exact(&self, start: u64, end: u64) -> Option<((usize, usize), u32)> {
        let (chunk, place) = self.first_behind(start);
        let entry = self.chunks.get(chunk)?.0.get(place)?;
        ((entry.start, entry.end) == (start, end)).then_some(((chunk, place), entry.value))
    }

    /// Another number for the range of a place.
    pub(super) fn set(&mut self, (chunk, place): (usize, usize), value: u32) {
        self.chunks[chunk].0[place].value = value;
    }

    /// Is there nothing from an address up to another?
    pub(super) fn is_free(&self, start: u64, end: u64) -> bool {
        let (chunk, place) = self.first_behind(start);
        let Some(entries) = self.chunks.get(chunk) else { return true };
        let next = self.chunks.get(chunk + 1).map(Chunk::first);
        let first = entries.0.get(place).map(|entry| entry.start).or(next);
        first.is_none_or(|first| first >= end)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.chunks.iter().flat_map(|chunk| chunk.0.iter())
    }

    /// Puts what overlaps `start..end` at the end of a list, whole.
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

    /// Replaces what is in `start..end` by other ranges there, in order. What reaches out of it
    /// stays there.
    pub(super) fn replace(&mut self, start: u64, end: u64, new: &[Entry]) -> Result<()> {
        let (first, place) = self.first_behind(start);
        if self.chunks.is_empty() {
            self.chunks.try_reserve(1).map_err(|_| NO_MEMORY)?;
            self.chunks.push(Chunk(std::mem::take(&mut self.spare)));
        }
        // One for one, nearly always.
        if let ([new], Some(entry)) = (new, self.chunks[first].0.get_mut(place))
            && (entry.start, entry.end) == (start, end)
            && (new.start, new.end) == (start, end)
        {
            entry.value = new.value;
            return Ok(());
        }
        let (mut head, mut tail) = (None, None);
        // What goes: to the end of the first chunk, and the beginnings of those behind.
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

    /// A chunk that is empty goes, one that is too long is cut.
    fn tidy(&mut self, index: usize) -> Result<()> {
        let len = self.chunks[index].0.len();
        if len == 0 {
            self.spare = self.chunks.remove(index).0;
        } else if len > MOST {
            let half = MOST / 2;
            let more = len.div_ceil(half) - 1;
            self.chunks.try_reserve(more).map_err(|_| NO_MEMORY)?;
            for cut in (1..=more).rev() {
                let mut part = Vec::new();
                part.try_reserve_exact(MOST + 2).map_err(|_| NO_MEMORY)?;
                part.extend(self.chunks[index].0.drain(cut * half..));
                self.chunks.insert(index + 1, Chunk(part));
            }
        }
        Ok(())
    }

    /// Gives each range another number, or takes it out.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&mut Entry) -> bool) {
        for chunk in &mut self.chunks {
            chunk.0.retain_mut(&mut keep);
        }
        self.chunks.retain(|chunk| !chunk.0.is_empty());
        self.len = self.chunks.iter().map(|chunk| chunk.0.len()).sum();
    }

    /// Takes a range out that begins there.
    pub(super) fn remove(&mut self, start: u64) -> Option<Entry> {
        let entry = self.find(start).filter(|entry| entry.start == start)?;
        let (chunk, place) = self.first_behind(start);
        self.chunks[chunk].0.remove(place);
        self.len -= 1;
        if self.chunks[chunk].0.is_empty() {
            self.spare = self.chunks.remove(chunk).0;
        }
        Some(entry)
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

    /// The numbers of all bytes.
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
                assert_eq!(ranges.is_free(start, end), is_free);
                ranges.replace(start, end, &new).unwrap();
                bytes[start as usize..end as usize].fill(0);
                for entry in &new {
                    bytes[entry.start as usize..entry.end as usize].fill(value);
                }
                assert_eq!(bytes_of(&ranges), bytes, "seed {seed}");
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
