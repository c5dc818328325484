//! The layout for inputs that are transposed relative to the output. A thread block reads a square
//! tile along the rows of these inputs, and transposes it in shared memory. So reads and writes are
//! both coalesced.

use super::iterate::Iteration;
use super::rows::{SHAPE, magic};
use super::source::Signature;
use super::text::{Each, Layout, THREADS, TextBuffer, Variant, in_memory};
use std::fmt::{self, Write};

/// Side of a tile, in elements.
const SIDE: u32 = 32;
/// The most dimensions for which tiles are used.
const MAX: usize = 4;
/// Shorter sides would leave too much of a tile empty.
const LEAST: u64 = 16;
/// Shared memory per block that every device has.
const ROOM: u64 = 48 << 10;

const fn words(operands: usize) -> usize {
    // The head; sizes, and strides with two columns for the tile's position; strides inside the
    // tile.
    4 + MAX * (3 + operands + 2) + 2 * operands
}

/// The dimension in which an input is contiguous; `None`: none, or it is a single element.
fn dense_dim(part: &Iteration, index: usize) -> Option<usize> {
    let bytes = part.element_bytes(index) as i64;
    part.dims().iter().position(|dim| dim.strides[index] == bytes)
}

/// The second dimension of the tiles: the one in which the first transposed input is contiguous.
fn other_side(part: &Iteration, inputs: usize) -> Option<usize> {
    (0..inputs).find_map(|index| dense_dim(part, index).filter(|dim| *dim > 0))
}

/// The tiled layout, if tiles are worthwhile.
pub fn layout(part: &Iteration, inputs: usize) -> Option<Layout> {
    let other = other_side(part, inputs)?;
    let is_large = |dim: usize| part.dims().get(dim).is_some_and(|dim| dim.size >= LEAST);
    let outputs = inputs..part.operands();
    if part.dims().len() > MAX || !is_large(0) || !is_large(other) {
        return None;
    }
    let is_transposed = |index: &usize| {
        dense_dim(part, *index) == Some(other) && part.dims()[0].strides[*index] != 0
    };
    let transposed = (0..inputs).filter(is_transposed);
    let room: u64 = transposed.clone().map(|index| part.element_bytes(index)).sum();
    let transposed = transposed.map(|index| 1 << index).sum::<u8>();
    let is_dense = outputs.into_iter().all(|index| dense_dim(part, index) == Some(0));
    let fits = room * u64::from(SIDE * (SIDE + 1)) <= ROOM;
    (transposed != 0 && is_dense && fits).then_some(Layout::Tiled { transposed })
}

/// Writes the shape words. Returns the thread blocks of the grid, and the number of words.
pub fn write(shape: &mut [u32; SHAPE], part: &Iteration, inputs: usize) -> (u64, usize) {
    let (operands, dims) = (part.operands(), part.dims());
    let other = other_side(part, inputs).unwrap_or(0);
    let (head, lists) = shape.split_at_mut(4);
    let (sizes, lists) = lists.split_at_mut(3 * MAX);
    let (strides, inside) = lists.split_at_mut(MAX * (operands + 2));
    let mut blocks = 1u64;
    for (index, dim) in dims.iter().enumerate() {
        let is_side = index == 0 || index == other;
        let each = if is_side { SIDE } else { 1 };
        let size = (dim.size as u32).div_ceil(each);
        blocks *= u64::from(size);
        let (magic, shift) = magic(size);
        (sizes[index], sizes[MAX + index], sizes[2 * MAX + index]) = (size, magic, shift);
        let to = &mut strides[index * (operands + 2)..(index + 1) * (operands + 2)];
        for (to, stride) in to[..operands].iter_mut().zip(&dim.strides) {
            *to = (*stride as u32).wrapping_mul(each);
        }
        (to[operands], to[operands + 1]) = (u32::from(index == 0), u32::from(index == other));
    }
    let size = |dim: usize| dims.get(dim).map_or(1, |dim| dim.size as u32);
    for (side, dim) in [0, other].into_iter().enumerate() {
        let to = &mut inside[side * operands..(side + 1) * operands];
        for (index, to) in to.iter_mut().enumerate() {
            *to = dims.get(dim).map_or(0, |dim| dim.strides[index] as u32);
        }
    }
    (head[0], head[1], head[2], head[3]) = (size(0), size(other), dims.len() as u32, 0);
    (blocks, words(operands))
}

impl Variant<'_> {
    /// Writes the kernel that transposes tiles.
    pub(super) fn write_tiled(
        &self,
        to: &mut TextBuffer,
        signature: &Signature<'_>,
        transposed: u8,
    ) -> fmt::Result {
        let (inputs, outputs) = (self.inputs.len(), self.outputs);
        let number = inputs + outputs;
        let is_transposed = |i: usize| transposed >> i & 1 == 1;
        let kind = |i: usize| in_memory(self.inputs[i]);
        let common = self.common.stored();
        let name = signature.name;
        let (operands, scalars) = (self.operands(), self.scalars());
        let extra = Each(self.scalars.len(), "", |f, i| write!(f, ", s{i}"));
        // Shared memory cannot have types with constructors.
        let squares = Each(inputs, "", |f, i| match is_transposed(i) {
            true => {
                let bytes = self.inputs[i].bytes();
                writeln!(f, "__shared__ raw<{bytes}> t{i}[SIDE][SIDE + 1];")
            }
            false => Ok(()),
        });
        let filled = Each(inputs, "", |f, i| match is_transposed(i) {
            true => {
                let bytes = self.inputs[i].bytes();
                write!(f, "t{i}[slow][quick] = *reinterpret_cast<const raw<{bytes}> *>(")?;
                write!(f, "reinterpret_cast<const char *>(i{i}) + (o[{i}] + ")?;
                writeln!(f, "least(slow, last_x) * q.x[{i}] + least(quick, last_y) * q.y[{i}]));")
            }
            false => Ok(()),
        });
        let declared = Each(inputs, "", |f, i| write!(f, "{} x{i}[U]; ", kind(i)));
        let loaded = Each(inputs, "", |f, i| {
            if is_transposed(i) {
                return Ok(());
            }
            write!(f, "x{i}[u] = *reinterpret_cast<const {} *>(", kind(i))?;
            write!(f, "reinterpret_cast<const char *>(i{i}) + (o[{i}] + ")?;
            writeln!(f, "least(quick, last_x) * q.x[{i}] + least(slow, last_y) * q.y[{i}]));")
        });
        let turned_back = Each(inputs, "", |f, i| match is_transposed(i) {
            true => {
                writeln!(f, "x{i}[u] = *reinterpret_cast<const {} *>(&t{i}[quick][slow]);", kind(i))
            }
            false => Ok(()),
        });
        let values = Each(inputs, "", |f, i| write!(f, "x{i}[u], "));
        let results = Each(outputs, ", ", |f, i| {
            let k = inputs + i;
            write!(f, "*reinterpret_cast<{common} *>(reinterpret_cast<char *>(o{i})")?;
            write!(f, " + (o[{k}] + quick * q.x[{k}] + slow * q.y[{k}]))")
        });
        write!(
            to,
            r#"namespace tcuda {{
enum {{ N = {number}, SIDE = {SIDE}, THREADS = {THREADS} }};
enum {{ U = SIDE * SIDE / THREADS, MOST = {MAX} }};
struct shape {{
uint32_t width, height, dims, unused, size[MOST], magic[MOST], shift[MOST], stride[MOST][N + 2];
uint32_t x[N], y[N];
}};
template <int N> struct alignas(N) raw {{ unsigned char at[N]; }};
TCUDA_INLINE uint32_t least(uint32_t a, uint32_t b) {{ return a < b ? a : b; }}
extern "C" __global__ void __launch_bounds__({THREADS})
{name}_turned_kernel({operands}, const shape q{scalars}) {{
{squares}{declared}
uint32_t at = blockIdx.x, o[N + 2];
#pragma unroll
for (int k = 0; k < N + 2; ++k) o[k] = 0;
for (uint32_t d = 0; d < q.dims; ++d) {{
const uint32_t whole = (__umulhi(at, q.magic[d]) + at) >> q.shift[d];
const uint32_t index = at - whole * q.size[d];
at = whole;
#pragma unroll
for (int k = 0; k < N + 2; ++k) o[k] += index * q.stride[d][k];
}}
/* At the edges, the last ones once more: no load waits for a branch. */
const uint32_t last_x = q.width - 1 - o[N] * SIDE, last_y = q.height - 1 - o[N + 1] * SIDE;
const uint32_t quick = threadIdx.x % SIDE;
#pragma unroll
for (int u = 0; u < U; ++u) {{
const uint32_t slow = threadIdx.x / SIDE + u * (THREADS / SIDE);
{filled}{loaded}}}
__syncthreads();
#pragma unroll
for (int u = 0; u < U; ++u) {{
const uint32_t slow = threadIdx.x / SIDE + u * (THREADS / SIDE);
{turned_back}if (quick <= last_x && slow <= last_y) apply({values}{results}{extra});
}}
}}
}}
using tcuda::{name}_turned_kernel;
"#
        )
    }
}
