//! Generates the CUDA C++ source of the kernel around a function, for given types and memory
//! layout.

use super::kind::Kind;
use super::rows::rows_of_thread;
use super::source::Signature;
use crate::base::error::{Error, Result};
use crate::gpu::image::{StoredText, stored_text};
use std::fmt::{self, Write};

/// Threads per block.
pub const THREADS: u32 = 128;

/// Vectors of each operand that a thread has in flight in the flat layout.
pub const UNROLL: u32 = 2;

/// The most inputs, and the most outputs.
pub const MAX_TENSORS: usize = 8;

/// The most dimensions in a kernel's parameters, as in PyTorch.
pub const MAX_ORDERED_DIMS: usize = 25;

/// The most dimensions that a kernel handles without a loop.
pub const SHALLOW: usize = 2;

/// Bytes of a vector.
pub const VECTOR_BYTES: u64 = 16;

/// The type of an extra argument, as numbered in the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs, reason = "Python's own types")]
pub enum ScalarKind {
    Double,
    Int,
    Bool,
    Complex,
}

impl ScalarKind {
    fn text(self) -> &'static str {
        match self {
            ScalarKind::Double => "double",
            ScalarKind::Int => "long long",
            ScalarKind::Bool => "bool",
            ScalarKind::Complex => "std::complex<double>",
        }
    }

    /// Bytes of the kernel parameter.
    pub fn bytes(self) -> usize {
        match self {
            ScalarKind::Double | ScalarKind::Int => 8,
            ScalarKind::Bool => 1,
            ScalarKind::Complex => 16,
        }
    }
}

/// The memory layout of the operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Contiguous operands; inputs of `singles` are a single element.
    Flat {
        /// Elements per vector.
        width: u8,
        /// A bit for each input.
        singles: u8,
    },
    /// Rows of elements with arbitrary strides.
    Rows {
        /// Elements of a row per vector.
        width: u8,
        /// A bit for each input with stride 0 along a row; 0 if `width` is 1.
        repeated: u8,
        /// A bit for each input that is equal in all rows of a thread.
        once: u8,
        /// Are there more than [`SHALLOW`] dimensions?
        is_deep: bool,
    },
    /// Square tiles, in which `transposed` inputs are transposed.
    Tiled {
        /// A bit for each input.
        transposed: u8,
    },
}

/// The parameters for which a kernel is generated.
#[derive(Clone, Copy, Debug)]
pub struct Variant<'a> {
    /// Types of the inputs.
    pub inputs: &'a [Kind],
    /// Number of outputs, all of type `common`.
    pub outputs: usize,
    /// Type of the outputs.
    pub common: Kind,
    /// Types of the extra arguments.
    pub scalars: &'a [ScalarKind],
    /// The memory layout of the tensors.
    pub layout: Layout,
}

const BASE: StoredText = stored_text!("base.h");
const STD: StoredText = stored_text!("std.h");
const SHORT: StoredText = stored_text!("short.h");
const FLOAT8: StoredText = stored_text!("float8.h");
const COMPLEX: StoredText = stored_text!("complex.h");

/// A text that grows, and fails if there is no host memory.
#[derive(Default)]
pub struct TextBuffer(pub Vec<u8>);

impl Write for TextBuffer {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.try_reserve(text.len()).map_err(|_| fmt::Error)?;
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

impl TextBuffer {
    /// Appends a NUL, and returns the bytes.
    pub fn with_nul(mut self) -> Result<Vec<u8>> {
        self.write_str("\0").map_err(no_room)?;
        Ok(self.0)
    }
}

/// Appends a part of the prelude.
fn add(to: &mut TextBuffer, part: &StoredText) -> fmt::Result {
    to.write_str(&part.text().map_err(|_| fmt::Error)?)
}

pub(super) fn no_room(_: fmt::Error) -> Error {
    Error::OutOfHostMemory("the text of a kernel")
}

/// Formats each number below the first field with the function; the second field separates them.
pub(super) struct Each<F: Fn(&mut fmt::Formatter<'_>, usize) -> fmt::Result>(
    pub usize,
    pub &'static str,
    pub F,
);

impl<F: Fn(&mut fmt::Formatter<'_>, usize) -> fmt::Result> fmt::Display for Each<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for index in 0..self.0 {
            if index > 0 {
                f.write_str(self.1)?;
            }
            (self.2)(f, index)?;
        }
        Ok(())
    }
}

/// The type of an input in memory. Any byte except 0 is true, so that booleans are bytes.
pub(super) fn in_memory(kind: Kind) -> &'static str {
    if kind == Kind::Bool { "unsigned char" } else { kind.stored() }
}

impl Variant<'_> {
    /// The kernel's name, with a NUL.
    pub fn name(&self, signature: &Signature<'_>) -> Result<Vec<u8>> {
        let mut text = TextBuffer::default();
        let name = signature.name;
        let written = match self.layout {
            Layout::Flat { width, .. } => write!(text, "{name}_vectorized{width}_kernel"),
            Layout::Rows { width: 1, .. } => write!(text, "{name}_kernel"),
            Layout::Rows { width, .. } => write!(text, "{name}_rows{width}_kernel"),
            Layout::Tiled { .. } => write!(text, "{name}_turned_kernel"),
        };
        written.map_err(no_room)?;
        text.with_nul()
    }

    /// The complete source, with a NUL.
    pub fn text(&self, code: &str, signature: &Signature<'_>) -> Result<Vec<u8>> {
        let mut text = TextBuffer::default();
        self.write(&mut text, code, signature).map_err(no_room)?;
        text.with_nul()
    }

    fn write(&self, to: &mut TextBuffer, code: &str, signature: &Signature<'_>) -> fmt::Result {
        let kinds = || self.inputs.iter().copied().chain([self.common]);
        add(to, &BASE)?;
        let is_complex =
            kinds().any(Kind::is_complex) || self.scalars.contains(&ScalarKind::Complex);
        // Each part of the prelude takes time to compile, so that unneeded parts are omitted.
        if is_complex || code.contains("std") {
            add(to, &STD)?;
        }
        if kinds().any(Kind::is_short_float) {
            add(to, &SHORT)?;
        }
        if kinds().any(Kind::is_float8) {
            add(to, &FLOAT8)?;
        }
        if is_complex {
            add(to, &COMPLEX)?;
        }
        write!(to, "#line 1 \"code\"\n{code}\n#line 1 \"tcuda\"\n")?;
        self.write_apply(to, signature)?;
        // Kernels are in the namespace, where its names hide the user's.
        match self.layout {
            Layout::Flat { width, singles } => self.write_flat(to, signature, width, singles),
            Layout::Rows { width, repeated, once, is_deep } => {
                let dims = if is_deep { MAX_ORDERED_DIMS } else { SHALLOW };
                self.write_rows(to, signature, width, [repeated, once], dims)
            }
            Layout::Tiled { transposed } => self.write_tiled(to, signature, transposed),
        }
    }

    pub(super) fn scalars(&self) -> impl fmt::Display {
        Each(self.scalars.len(), "", |f, i| write!(f, ", {} s{i}", self.scalars[i].text()))
    }

    /// The parameters of the kernel: the count, and pointers to the operands.
    pub(super) fn operands(&self) -> impl fmt::Display {
        Each(1, "", |f, _| {
            f.write_str("const uint64_t count")?;
            for (i, kind) in self.inputs.iter().enumerate() {
                write!(f, ", const {} *i{i}", in_memory(*kind))?;
            }
            (0..self.outputs).try_for_each(|i| write!(f, ", {} *o{i}", self.common.stored()))
        })
    }

    /// Writes the function call, with casts around it.
    fn write_apply(&self, to: &mut TextBuffer, signature: &Signature<'_>) -> fmt::Result {
        let (common, computed) = (self.common.stored(), self.common.computed());
        let (inputs, outputs) = (self.inputs.len(), self.outputs);
        writeln!(to, "namespace tcuda {{")?;
        let parameters = Each(inputs, "", |f, i| write!(f, "{} x{i}, ", in_memory(self.inputs[i])));
        let references = Each(outputs, ", ", |f, i| write!(f, "{common} &y{i}"));
        let scalars = self.scalars();
        writeln!(to, "TCUDA_INLINE void apply({parameters}{references}{scalars}) {{")?;
        let arguments = Each(inputs, ", ", |f, i| {
            let kind = self.inputs[i];
            match (kind == self.common && kind != Kind::Bool, common == computed) {
                (true, true) => write!(f, "x{i}"),
                (true, false) => write!(f, "to<{computed}>(x{i})"),
                (false, true) => write!(f, "to<{common}>(x{i})"),
                (false, false) => write!(f, "to<{computed}>(to<{common}>(x{i}))"),
            }
        });
        let extra = Each(self.scalars.len(), "", |f, i| write!(f, ", s{i}"));
        let name = signature.name;
        if signature.by_reference {
            let declared = Each(outputs, ", ", |f, i| write!(f, "r{i}"));
            let passed = Each(outputs, "", |f, i| write!(f, ", r{i}"));
            writeln!(to, "{computed} {declared};")?;
            writeln!(to, "::{name}<{computed}>({arguments}{extra}{passed});")?;
            let stored = Each(outputs, " ", |f, i| write!(f, "y{i} = to<{common}>(r{i});"));
            writeln!(to, "{stored}\n}}\n}}")
        } else {
            writeln!(to, "y0 = to<{common}>(::{name}<{computed}>({arguments}{extra}));\n}}\n}}")
        }
    }

    fn write_flat(
        &self,
        to: &mut TextBuffer,
        signature: &Signature<'_>,
        width: u8,
        singles: u8,
    ) -> fmt::Result {
        let (inputs, outputs) = (self.inputs.len(), self.outputs);
        let is_single = |i: usize| singles >> i & 1 == 1;
        let kind = |i: usize| in_memory(self.inputs[i]);
        let common = self.common.stored();
        let name = signature.name;
        let (operands, scalars) = (self.operands(), self.scalars());
        let extra = Each(self.scalars.len(), "", |f, i| write!(f, ", s{i}"));
        let declared = Each(inputs, "\n", |f, i| match is_single(i) {
            true => write!(f, "const {} x{i} = *i{i};", kind(i)),
            false => write!(f, "vector<{}, V> x{i}[U];", kind(i)),
        });
        let loaded = Each(inputs, "\n", |f, i| match is_single(i) {
            true => Ok(()),
            false => {
                write!(f, "x{i}[u] = *reinterpret_cast<const vector<{}, V> *>(i{i} + at);", kind(i))
            }
        });
        let of_vectors = Each(inputs, "", |f, i| match is_single(i) {
            true => write!(f, "x{i}, "),
            false => write!(f, "x{i}[u].at[v], "),
        });
        let of_elements = Each(inputs, "", |f, i| match is_single(i) {
            true => write!(f, "*i{i}, "),
            false => write!(f, "i{i}[at], "),
        });
        let vectors = Each(outputs, " ", |f, i| write!(f, "vector<{common}, V> y{i};"));
        let into_vectors = Each(outputs, ", ", |f, i| write!(f, "y{i}.at[v]"));
        let stored = Each(outputs, "\n", |f, i| {
            write!(f, "*reinterpret_cast<vector<{common}, V> *>(o{i} + at) = y{i};")
        });
        let into_elements = Each(outputs, ", ", |f, i| write!(f, "o{i}[at]"));
        write!(
            to,
            r#"namespace tcuda {{
extern "C" __global__ void __launch_bounds__({THREADS})
{name}_vectorized{width}_kernel({operands}{scalars}) {{
enum {{ V = {width}, U = {UNROLL}, THREADS = {THREADS} }};
const uint64_t first = uint64_t(blockIdx.x) * (THREADS * U * V);
if (count - first >= THREADS * U * V) {{
{declared}
#pragma unroll
for (int u = 0; u < U; ++u) {{
const uint64_t at = first + (u * THREADS + threadIdx.x) * V;
{loaded}
}}
#pragma unroll
for (int u = 0; u < U; ++u) {{
const uint64_t at = first + (u * THREADS + threadIdx.x) * V;
{vectors}
#pragma unroll
for (int v = 0; v < V; ++v) apply({of_vectors}{into_vectors}{extra});
{stored}
}}
}} else {{
#pragma unroll 1
for (uint64_t at = first + threadIdx.x; at < count; at += THREADS)
apply({of_elements}{into_elements}{extra});
}}
}}
}}
using tcuda::{name}_vectorized{width}_kernel;
"#
        )
    }

    fn write_rows(
        &self,
        to: &mut TextBuffer,
        signature: &Signature<'_>,
        width: u8,
        [repeated, once]: [u8; 2],
        dims: usize,
    ) -> fmt::Result {
        let (inputs, outputs) = (self.inputs.len(), self.outputs);
        let number = inputs + outputs;
        let unroll = rows_of_thread(width, self.inputs.iter().copied().chain([self.common]));
        let kind = |i: usize| in_memory(self.inputs[i]);
        let (is_repeated, is_once) = (|i: usize| repeated >> i & 1 == 1, |i| once >> i & 1 == 1);
        let common = self.common.stored();
        let name = signature.name;
        let (operands, scalars) = (self.operands(), self.scalars());
        let extra = Each(self.scalars.len(), "", |f, i| write!(f, ", s{i}"));
        let whole = |f: &mut fmt::Formatter<'_>, i: usize| match is_repeated(i) {
            true => f.write_str(kind(i)),
            false => write!(f, "vector<{}, V>", kind(i)),
        };
        let read = |f: &mut fmt::Formatter<'_>, i: usize, in_row: bool| {
            f.write_str("*reinterpret_cast<const ")?;
            whole(f, i)?;
            write!(f, " *>(reinterpret_cast<const char *>(i{i}) + (o[{i}]")?;
            if in_row { write!(f, " + row * q.step[{i}]));") } else { f.write_str("));") }
        };
        let declared = Each(inputs, "\n", |f, i| {
            if is_once(i) {
                f.write_str("const ")?;
            }
            whole(f, i)?;
            if !is_once(i) {
                return write!(f, " x{i}[U];");
            }
            write!(f, " x{i} = ")?;
            read(f, i, false)
        });
        let loaded = Each(inputs, "\n", |f, i| {
            if is_once(i) {
                return Ok(());
            }
            write!(f, "x{i}[u] = ")?;
            read(f, i, true)
        });
        let values = Each(inputs, "", |f, i| {
            let row = if is_once(i) { "" } else { "[u]" };
            let element = if is_repeated(i) { "" } else { ".at[v]" };
            write!(f, "x{i}{row}{element}, ")
        });
        let vectors = Each(outputs, " ", |f, i| write!(f, "vector<{common}, V> y{i};"));
        let results = Each(outputs, ", ", |f, i| write!(f, "y{i}.at[v]"));
        let stored = Each(outputs, "\n", |f, i| {
            let k = inputs + i;
            write!(f, "*reinterpret_cast<vector<{common}, V> *>(reinterpret_cast<char *>(o{i})")?;
            write!(f, " + (o[{k}] + u * q.step[{k}])) = y{i};")
        });
        let suffix = Each(1, "", |f, _| match width {
            1 => Ok(()),
            _ => write!(f, "_rows{width}"),
        });
        // With two dimensions the last one needs no modulo: there is one division, and no loop.
        let place = if dims == SHALLOW {
            "const uint32_t whole = (__umulhi(at, q.magic[0]) + at) >> q.shift[0];\n\
             const uint32_t index = at - whole * q.size[0];\n\
             #pragma unroll\n\
             for (int k = 0; k <= N; ++k) o[k] = index * q.stride[0][k] + whole * q.stride[1][k];"
        } else {
            "#pragma unroll\n\
             for (int k = 0; k <= N; ++k) o[k] = 0;\n\
             for (uint32_t d = 0; d < q.dims; ++d) {\n\
             const uint32_t whole = (__umulhi(at, q.magic[d]) + at) >> q.shift[d];\n\
             const uint32_t index = at - whole * q.size[d];\n\
             at = whole;\n\
             #pragma unroll\n\
             for (int k = 0; k <= N; ++k) o[k] += index * q.stride[d][k];\n\
             }"
        };
        write!(
            to,
            r#"namespace tcuda {{
enum {{ N = {number}, U = {unroll}, V = {width}, THREADS = {THREADS}, MOST = {dims} }};
struct shape {{
uint32_t threads, rows, groups, dims, size[MOST], magic[MOST], shift[MOST], stride[MOST][N + 1];
uint32_t step[N];
}};
extern "C" __global__ void __launch_bounds__({THREADS})
{name}{suffix}_kernel({operands}, const shape q{scalars}) {{
uint32_t at = blockIdx.x * THREADS + threadIdx.x, o[N + 1];
if (at >= q.threads) return;
{place}
{declared}
#pragma unroll
for (int u = 0; u < U; ++u) {{
/* Where there is no such row, the first one once more: no load waits for a branch. */
const uint32_t row = o[N] + u * q.groups < q.rows ? u : 0;
{loaded}
}}
#pragma unroll
for (int u = 0; u < U; ++u) {{
{vectors}
#pragma unroll
for (int v = 0; v < V; ++v) apply({values}{results}{extra});
if (o[N] + u * q.groups < q.rows) {{
{stored}
}}
}}
}}
}}
using tcuda::{name}{suffix}_kernel;
"#
        )
    }
}

#[cfg(test)]
#[path = "text_tests.rs"]
mod tests;
