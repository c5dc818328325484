//! Non-contiguous bytes: runs at regular distances, in several dimensions. The common bytes of two
//! shapes are found without enumerating bytes.

use super::clock::{NO_MEMORY, push};
use super::{Bytes, Elements, MAX_DIMS, Touch};
use crate::base::error::Result;

/// A dimension: the number of its parts, and their distance in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Dim {
    count: u64,
    stride: u64,
    /// The extent of one part, from its first byte to its last.
    inner: u64,
}

/// Equal runs at regular distances. `dims` is sorted by decreasing stride.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Shape {
    base: u64,
    run: u64,
    dims: Vec<Dim>,
}

/// Equally long runs with one distance.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub(super) start: u64,
    pub(super) bytes: u64,
    pub(super) rows: u64,
    pub(super) pitch: u64,
}

/// The bytes of a touch.
pub(super) enum ByteSet<'a> {
    /// No bytes, or bytes that are not checked.
    Nothing,
    /// The bytes cannot be represented.
    Unknown,
    /// The bytes from one address up to another.
    Range(u64, u64),
    /// Rows with a pitch.
    Rows(Rows),
    /// A strided shape.
    Shaped(Shape),
    /// Disjoint ranges in increasing order.
    Runs(&'a [(u64, u64)]),
}

/// Steps after which the search for common bytes is abandoned. Only shapes of unrelated strides
/// take that many.
const MAX_STEPS: u32 = 1 << 20;
/// Addresses are below this bound, so that sums do not overflow, also in bits.
const END: u64 = 1 << 58;

/// The first common bytes, or `None` without common bytes. `Err`: the search was abandoned.
pub(super) type Common = std::result::Result<Option<(u64, u64)>, ()>;

fn overlap(first: (u64, u64), second: (u64, u64)) -> Option<(u64, u64)> {
    let (start, end) = (first.0.max(second.0), first.1.min(second.1));
    (start < end).then_some((start, end))
}

impl ByteSet<'_> {
    pub(super) fn of(touch: &Touch<'_>) -> Result<ByteSet<'static>> {
        match touch.bytes {
            Bytes::Rows { ptr, bytes, rows, pitch } => Ok(of_rows(ptr, bytes, rows, pitch)),
            Bytes::Elements(array) => of_elements(array),
        }
    }
}

fn plain(start: u64, bytes: u64) -> ByteSet<'static> {
    match start.checked_add(bytes) {
        _ if start == 0 || bytes == 0 => ByteSet::Nothing,
        Some(end) if end < END => ByteSet::Range(start, end),
        _ => ByteSet::Unknown,
    }
}

fn of_rows(start: u64, bytes: u64, rows: u64, pitch: u64) -> ByteSet<'static> {
    if rows == 1 {
        return plain(start, bytes);
    }
    if start == 0 || bytes == 0 || rows == 0 {
        return ByteSet::Nothing;
    }
    let extent = (rows - 1).checked_mul(pitch).and_then(|reach| reach.checked_add(bytes));
    let Some(extent) = extent else { return ByteSet::Unknown };
    if pitch <= bytes {
        return plain(start, extent);
    }
    if start.checked_add(extent).is_none_or(|end| end >= END) {
        return ByteSet::Unknown;
    }
    ByteSet::Rows(Rows { start, bytes, rows, pitch })
}

impl Rows {
    /// One past the last byte.
    pub(super) fn end(&self) -> u64 {
        self.start + (self.rows - 1) * self.pitch + self.bytes
    }

    /// The address of each row.
    pub(super) fn starts(&self) -> impl Iterator<Item = u64> {
        let Rows { start, pitch, .. } = *self;
        (0..self.rows).map(move |row| start + row * pitch)
    }

    pub(super) fn shape(&self) -> Result<Shape> {
        let mut dims = Vec::new();
        push(&mut dims, Dim { count: self.rows, stride: self.pitch, inner: self.bytes })?;
        Ok(Shape { base: self.start, run: self.bytes, dims })
    }
}

fn of_elements(array: &dyn Elements) -> Result<ByteSet<'static>> {
    if array.is_ignored() {
        return Ok(ByteSet::Nothing);
    }
    let Some((first, end)) = array.range() else { return Ok(ByteSet::Unknown) };
    if end >= END {
        return Ok(ByteSet::Unknown);
    }
    if array.is_compact() {
        return Ok(plain(first, end - first));
    }
    // Strides in bits, sorted in increasing order. Dimensions of size 1 or stride 0 add no bytes.
    let mut list = [(0, 0); MAX_DIMS];
    let mut len = 0;
    let (shape, strides) = array.dims();
    for (size, stride) in shape.iter().zip(strides) {
        if *size > 1 && *stride != 0 && len < MAX_DIMS {
            list[len] = (stride.unsigned_abs() * array.element_bits(), *size as u64);
            len += 1;
        }
    }
    list[..len].sort_unstable();
    let mut run = array.element_bits();
    let mut dims: Vec<Dim> = Vec::new();
    for (stride, count) in list[..len].iter().copied() {
        match dims.last_mut() {
            None if stride <= run => run += (count - 1) * stride,
            Some(last) if last.stride * last.count == stride => last.count *= count,
            _ => push(&mut dims, Dim { count, stride, inner: 0 })?,
        }
    }
    if dims.is_empty() {
        return Ok(plain(first, end - first));
    }
    if !run.is_multiple_of(8) || dims.iter().any(|dim| !dim.stride.is_multiple_of(8)) {
        // Elements of less than a byte that do not fill whole bytes.
        return Ok(ByteSet::Unknown);
    }
    let run = run / 8;
    let mut inner = run;
    for dim in &mut dims {
        dim.stride /= 8;
        dim.inner = inner;
        inner += (dim.count - 1) * dim.stride;
    }
    dims.reverse();
    Ok(ByteSet::Shaped(Shape { base: first, run, dims }))
}

impl Shape {
    pub(super) fn try_clone(&self) -> Result<Shape> {
        let mut dims = Vec::new();
        dims.try_reserve_exact(self.dims.len()).map_err(|_| NO_MEMORY)?;
        dims.extend_from_slice(&self.dims);
        Ok(Shape { base: self.base, run: self.run, dims })
    }

    /// The address of the first byte, and one past the last.
    pub(super) fn range(&self) -> (u64, u64) {
        (self.base, self.base + extent(&self.dims, self.run))
    }

    /// Number of runs.
    pub(super) fn runs(&self) -> u64 {
        self.dims.iter().fold(1, |runs: u64, dim| runs.saturating_mul(dim.count))
    }

    /// Calls `body` with the start and end of each run.
    pub(super) fn each(&self, body: &mut dyn FnMut(u64, u64) -> Result<()>) -> Result<()> {
        each(self.base, &self.dims, self.run, body)
    }

    /// The first of its bytes inside `start..end`.
    pub(super) fn within(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        within(self.base, &self.dims, self.run, (start, end))
    }

    /// The first common bytes of two shapes inside `start..end`.
    pub(super) fn shared(&self, other: &Shape, start: u64, end: u64) -> Common {
        let Some(both) = overlap(self.range(), other.range()) else { return Ok(None) };
        let mut steps = MAX_STEPS;
        let lhs = (self.base, &self.dims[..], self.run);
        let rhs = (other.base, &other.dims[..], other.run);
        let found = shared(lhs, rhs, &mut steps)?;
        if found.is_none() || (start <= both.0 && end >= both.1) {
            return Ok(found);
        }
        // There are common bytes, but perhaps not inside `start..end`.
        let mut steps = MAX_STEPS;
        shared_within(lhs, other, (start, end), &mut steps)
    }
}

fn extent(dims: &[Dim], run: u64) -> u64 {
    dims.first().map_or(run, |dim| (dim.count - 1) * dim.stride + dim.inner)
}

fn each(
    base: u64,
    dims: &[Dim],
    run: u64,
    body: &mut dyn FnMut(u64, u64) -> Result<()>,
) -> Result<()> {
    let Some((dim, dims)) = dims.split_first() else { return body(base, base + run) };
    (0..dim.count).try_for_each(|index| each(base + index * dim.stride, dims, run, body))
}

/// The indices of the parts of a dimension that overlap a range.
fn parts(base: u64, dim: &Dim, (start, end): (u64, u64)) -> std::ops::Range<u64> {
    if base >= end {
        return 0..0;
    }
    let first = match (base + dim.inner).cmp(&start) {
        std::cmp::Ordering::Greater => 0,
        _ => (start - base - dim.inner) / dim.stride + 1,
    };
    let last = ((end - 1 - base) / dim.stride).min(dim.count - 1);
    first..last + 1
}

fn within(base: u64, dims: &[Dim], run: u64, range: (u64, u64)) -> Option<(u64, u64)> {
    let Some((dim, rest)) = dims.split_first() else {
        return overlap((base, base + run), range);
    };
    let mut parts = parts(base, dim, range);
    parts.find_map(|index| within(base + index * dim.stride, rest, run, range))
}

type Part<'a> = (u64, &'a [Dim], u64);

/// Finds common bytes. With equal strides only pairs of parts that overlap are compared.
fn shared(first: Part<'_>, second: Part<'_>, steps: &mut u32) -> Common {
    *steps = steps.checked_sub(1).ok_or(())?;
    let range = |part: Part<'_>| (part.0, part.0 + extent(part.1, part.2));
    let (lhs, rhs) = (range(first), range(second));
    let Some(both) = overlap(lhs, rhs) else { return Ok(None) };
    match (first.1.split_first(), second.1.split_first()) {
        (None, None) => Ok(Some(both)),
        (None, Some(_)) => Ok(within(second.0, second.1, second.2, lhs)),
        (Some(_), None) => Ok(within(first.0, first.1, first.2, rhs)),
        (Some((dim, rest)), Some((other, others))) if dim.stride == other.stride => {
            // For a difference k of the two indices, only the first pair is compared;
            // the others are the same, shifted.
            let (dim_count, other_count) = (dim.count as i64, other.count as i64);
            let stride = dim.stride as i64;
            let distance = second.0 as i64 - first.0 as i64;
            // distance + k * stride < dim.inner, and > -other.inner
            let most = (dim.inner as i64 - 1 - distance).div_euclid(stride);
            let least = -(other.inner as i64 - 1 + distance).div_euclid(stride);
            for step in least.max(1 - dim_count)..=most.min(other_count - 1) {
                let (index, rhs) = ((-step).max(0) as u64, step.max(0) as u64);
                let first = (first.0 + index * dim.stride, rest, first.2);
                let second = (second.0 + rhs * other.stride, others, second.2);
                if let Some(found) = shared(first, second, steps)? {
                    return Ok(Some(found));
                }
            }
            Ok(None)
        }
        (Some((dim, _)), Some((other, _))) => {
            let (outer, inner) =
                if dim.stride > other.stride { (first, second) } else { (second, first) };
            let Some((dim, rest)) = outer.1.split_first() else { return Ok(None) };
            for index in parts(outer.0, dim, range(inner)) {
                let part = (outer.0 + index * dim.stride, rest, outer.2);
                if let Some(found) = shared(part, inner, steps)? {
                    return Ok(Some(found));
                }
            }
            Ok(None)
        }
    }
}

fn shared_within(lhs: Part<'_>, other: &Shape, range: (u64, u64), steps: &mut u32) -> Common {
    *steps = steps.checked_sub(1).ok_or(())?;
    let all = (lhs.0, lhs.0 + extent(lhs.1, lhs.2));
    let Some(both) = overlap(all, range) else { return Ok(None) };
    let Some(rhs) = other.within(both.0, both.1) else { return Ok(None) };
    let Some((dim, rest)) = lhs.1.split_first() else { return Ok(Some(rhs)) };
    for index in parts(lhs.0, dim, range) {
        let part = (lhs.0 + index * dim.stride, rest, lhs.2);
        if let Some(found) = shared_within(part, other, range, steps)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
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

    fn random(random: &mut Random) -> Shape {
        let mut dims = Vec::new();
        let run = 1 + random.below(6);
        let mut inner = run;
        let mut stride = run;
        for _ in 0..1 + random.below(3) {
            // Sometimes the parts of a dimension overlap.
            stride = match random.below(4) {
                0 => stride + random.below(5),
                _ => [8, 12, 40, 41, 200][random.below(5) as usize],
            };
            let count = 2 + random.below(5);
            dims.push(Dim { count, stride, inner });
            inner += (count - 1) * stride;
        }
        dims.reverse();
        Shape { base: 100 + random.below(300), run, dims }
    }

    fn bytes(shape: &Shape) -> Vec<bool> {
        let mut bytes = vec![false; 8192];
        let mut runs = 0;
        shape
            .each(&mut |start, end| {
                runs += 1;
                bytes[start as usize..end as usize].fill(true);
                Ok(())
            })
            .unwrap();
        assert_eq!(runs, shape.runs());
        bytes
    }

    #[test]
    fn what_two_shapes_share_is_what_lists_of_bytes_share() {
        let mut generator = Random(1);
        let mut shares = 0;
        for round in 0..5_000 {
            let (first, second) = (random(&mut generator), random(&mut generator));
            let (lhs, rhs) = (bytes(&first), bytes(&second));
            let (start, end) = match round % 2 {
                0 => (0, 8000),
                _ => {
                    let start = 100 + generator.below(900);
                    (start, start + 1 + generator.below(60))
                }
            };
            let range = start as usize..end as usize;
            let expected = range.clone().any(|byte| lhs[byte] && rhs[byte]);
            let found = first.shared(&second, start, end).unwrap();
            assert_eq!(found.is_some(), expected, "{first:?} {second:?} {range:?}");
            if let Some((start, end)) = found {
                let both = (start as usize..end as usize).all(|byte| lhs[byte] && rhs[byte]);
                assert!(both && range.contains(&(start as usize)), "{first:?} {second:?}");
                shares += 1;
            }
            let inside = first.within(start, end).is_some();
            assert_eq!(inside, range.clone().any(|byte| lhs[byte]));
        }
        assert!((1_000..4_000).contains(&shares), "{shares}");
    }

    #[test]
    fn columns_of_a_large_matrix_are_compared_in_few_steps() {
        let column = |base| {
            let dims = vec![
                Dim { count: 1 << 13, stride: 1 << 15, inner: 4095 * 8 + 4 },
                Dim { count: 1 << 12, stride: 8, inner: 4 },
            ];
            Shape { base, run: 4, dims }
        };
        let mut steps = 100;
        let (even, odd) = (column(4096), column(4100));
        let part = |shape: &Shape| (shape.base, shape.run);
        let (lhs, rhs) = (part(&even), part(&odd));
        let found = shared((lhs.0, &even.dims, lhs.1), (rhs.0, &odd.dims, rhs.1), &mut steps);
        assert_eq!(found, Ok(None));
        assert_eq!(
            even.shared(&column(4096 + (1 << 20)), 0, 1 << 40),
            Ok(Some((4096 + (1 << 20), 4100 + (1 << 20))))
        );
    }
}
