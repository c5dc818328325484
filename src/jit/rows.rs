//! The layout for operands that are not all contiguous: how threads divide the elements, and the
//! shape words from which the kernel computes addresses.
//!
//! A thread computes one vector of the fastest dimension in each of several rows. The rows of a
//! thread are as far apart as possible. So neighbouring threads of a warp access contiguous memory,
//! one index computation serves all rows, and inputs that are equal in all rows are read once.

use super::iterate::{Dim, Iteration};
use super::kind::Kind;
use super::text::{Layout, MAX_ORDERED_DIMS, SHALLOW, THREADS, VECTOR_BYTES};
use super::tile;

/// The most words of a kernel's shape.
pub const SHAPE: usize = words(MAX_ORDERED_DIMS, super::iterate::MAX_OPERANDS);

const fn words(dims: usize, operands: usize) -> usize {
    4 + dims * (3 + operands + 1) + operands
}

/// Rows per thread: more rows if each has few bytes, to keep enough loads in flight.
pub fn rows_of_thread(width: u8, kinds: impl Iterator<Item = Kind>) -> u32 {
    let largest = kinds.map(Kind::bytes).max().unwrap_or(1);
    if u64::from(width) * largest >= 8 { 4 } else { 8 }
}

/// The layout of operands that are not all contiguous.
pub fn layout(part: &Iteration, kinds: &[Kind], common: Kind) -> Layout {
    let [first, rest @ ..] = part.dims() else {
        return Layout::Rows { width: 1, repeated: 0, once: 0, is_deep: false };
    };
    let inputs = kinds.len();
    if let Some(tiled) = tile::layout(part, inputs) {
        return tiled;
    }
    let is_deep = part.dims().len() > SHALLOW;
    let once = |index: usize| rest.get(unrolled(rest)).is_some_and(|dim| dim.strides[index] == 0);
    let mask = |is_in: &dyn Fn(usize) -> bool| {
        (0..inputs).map(|index| u8::from(is_in(index)) << index).sum::<u8>()
    };
    let once = mask(&once);
    let repeated = mask(&|index| first.strides[index] == 0);
    let is_repeated = |index: usize| index < inputs && repeated >> index & 1 == 1;
    let read = kinds.iter().enumerate().filter(|(index, _)| !is_repeated(*index));
    let largest = read.map(|(_, kind)| kind.bytes()).chain([common.bytes()]).max().unwrap_or(1);
    let mut width = VECTOR_BYTES / largest;
    let is_whole = |width: u64, index: usize| {
        let bytes = part.element_bytes(index);
        let vector = width * bytes;
        first.strides[index] == bytes as i64
            && part.addresses[index].is_multiple_of(vector)
            && rest.iter().all(|dim| (dim.strides[index] as u64).is_multiple_of(vector))
    };
    while width > 1
        && !(first.size.is_multiple_of(width)
            && (0..part.operands()).all(|index| is_repeated(index) || is_whole(width, index)))
    {
        width /= 2;
    }
    // With single elements, repeated inputs are addressed like all others.
    let repeated = if width > 1 { repeated } else { 0 };
    Layout::Rows { width: width as u8, repeated, once, is_deep }
}

/// Index of the largest dimension after the first: its indices are the rows.
fn unrolled(rest: &[Dim]) -> usize {
    let sizes = rest.iter().enumerate();
    sizes.max_by_key(|(_, dim)| dim.size).map_or(0, |(index, _)| index)
}

/// Writes the shape words of a kernel. Returns the thread blocks of its grid, and the number of
/// words.
pub fn write(
    shape: &mut [u32; SHAPE],
    part: &Iteration,
    width: u8,
    is_deep: bool,
    rows_of_thread: u32,
) -> (u64, usize) {
    let (operands, most) = (part.operands(), if is_deep { MAX_ORDERED_DIMS } else { SHALLOW });
    let dims = part.dims();
    let place = dims.get(1..).filter(|rest| !rest.is_empty()).map_or(0, |rest| unrolled(rest) + 1);
    let rows = dims.get(place).map_or(1, |dim| dim.size) as u32;
    let groups = rows.div_ceil(rows_of_thread);
    let (head, lists) = shape.split_at_mut(4);
    let (sizes, lists) = lists.split_at_mut(3 * most);
    let (strides, steps) = lists.split_at_mut(most * (operands + 1));
    let mut threads = 1u64;
    for index in 0..dims.len().max(if is_deep { 0 } else { SHALLOW }) {
        let (mut size, mut own) = (1, None);
        if let Some(dim) = dims.get(index) {
            (size, own) = (dim.size as u32, Some(dim));
        }
        let in_vectors = if index == 0 { u32::from(width) } else { 1 };
        size = if index == place { groups } else { size / in_vectors };
        threads *= u64::from(size);
        let (magic, shift) = magic(size);
        (sizes[index], sizes[most + index], sizes[2 * most + index]) = (size, magic, shift);
        let to = &mut strides[index * (operands + 1)..(index + 1) * (operands + 1)];
        for (operand, to) in to.iter_mut().enumerate().take(operands) {
            // No overflow: a part needs at most 31 bits.
            *to = own.map_or(0, |dim| dim.strides[operand] as u32).wrapping_mul(in_vectors);
        }
        to[operands] = u32::from(index == place);
    }
    for (operand, to) in steps[..operands].iter_mut().enumerate() {
        let stride = dims.get(place).map_or(0, |dim| dim.strides[operand] as u32);
        *to = stride.wrapping_mul(groups);
    }
    // Below 2^31, like the number of elements.
    (head[0], head[1], head[2], head[3]) = (threads as u32, rows, groups, dims.len() as u32);
    (threads.div_ceil(u64::from(THREADS)), words(most, operands))
}

/// Multiplier and shift that replace a division of numbers below 2^31.
pub(super) fn magic(divisor: u32) -> (u32, u32) {
    let shift = divisor.max(1).next_power_of_two().trailing_zeros();
    let rest = (1u64 << shift) - u64::from(divisor);
    (((rest << 32) / u64::from(divisor) + 1) as u32, shift)
}

#[cfg(test)]
#[path = "rows_tests.rs"]
mod tests;
