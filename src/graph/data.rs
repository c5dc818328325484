//! The nodes and edges of a template, as JSON and as DOT. One walk reads a node and writes it.

use super::annotations::Annotation;
use crate::base::error::{Error, Result};
use crate::driver::sys::{
    CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS, CUDA_MEM_ALLOC_NODE_PARAMS, CUDA_MEMCPY3D,
    CUDA_MEMSET_NODE_PARAMS, CUfunction, CUgraph, CUgraphEdgeData, CUgraphExec, CUgraphNode,
};
use crate::driver::{CudaError, CudaResult, Driver, code};
use crate::memory::trace::json::quoted;
use crate::ops::captured_callback;
use std::collections::TryReserveError;
use std::ffi::{CStr, c_char};
use std::fmt::{self, Write};
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};

const NO_ROOM: Error = Error::OutOfHostMemory("the data of a graph");

/// Levels of child graphs that are written.
const MAX_DEPTH: usize = 16;

/// Most parameters of a kernel that are listed.
const MAX_PARAMETERS: usize = 4096;

/// What the driver returns for a value that it does not tell.
const UNKNOWN: [i32; 5] = [
    CudaError::MISSING,
    code::INVALID_VALUE,
    code::INVALID_HANDLE,
    code::NOT_FOUND,
    code::NOT_SUPPORTED,
];

/// Names of the kinds, by CUDA's numbers.
const KINDS: [&str; 14] = [
    "kernel",
    "memcpy",
    "memset",
    "host",
    "child_graph",
    "empty",
    "wait_event",
    "event_record",
    "ext_semas_signal",
    "ext_semas_wait",
    "mem_alloc",
    "mem_free",
    "batch_mem_op",
    "conditional",
];

/// The language of the text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// An object with all that is known.
    Json,
    /// A graph with labels, in the DOT language.
    Dot,
}

/// Writes a template. Its context is current, and nothing changes it.
pub(super) fn write(
    driver: &Driver,
    graph: CUgraph,
    exec: CUgraphExec,
    annotations: &[Annotation],
    format: Format,
) -> Result<Vec<u8>> {
    let mut writer = Writer { driver, annotations, exec_id: None, text: Vec::new(), num_named: 0 };
    let written = match format {
        Format::Json => writer.json(graph, exec),
        Format::Dot => writer.dot(graph),
    };
    match written {
        Ok(()) => Ok(writer.text),
        Err(Failure::Memory) => Err(NO_ROOM),
        Err(Failure::Driver(error)) => Err(error.into()),
    }
}

/// Smaller than [`Error`], which each step would copy.
enum Failure {
    Memory,
    Driver(CudaError),
}

impl From<CudaError> for Failure {
    fn from(error: CudaError) -> Failure {
        Failure::Driver(error)
    }
}

impl From<TryReserveError> for Failure {
    fn from(_: TryReserveError) -> Failure {
        Failure::Memory
    }
}

impl From<fmt::Error> for Failure {
    fn from(_: fmt::Error) -> Failure {
        Failure::Memory
    }
}

type Done<T = ()> = std::result::Result<T, Failure>;

/// `CUgraphEdgeData`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct EdgeData {
    from_port: u8,
    to_port: u8,
    kind: u8,
    reserved: [u8; 5],
}

/// One end of a copy: half of a `CUDA_MEMCPY3D`, with the kind of memory as a number.
#[repr(C)]
struct Endpoint {
    place: [usize; 4],
    kind: u32,
    host: usize,
    device: u64,
    array: [usize; 4],
}

/// `CUDA_MEMCPY3D`.
#[repr(C)]
struct CopyParameters {
    src: Endpoint,
    dst: Endpoint,
    extent: [usize; 3],
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS`.
#[repr(C)]
struct AllocationParameters {
    pool: [u64; 11],
    access: [usize; 2],
    bytes: usize,
    ptr: u64,
}

const _: () = assert!(size_of::<EdgeData>() == size_of::<CUgraphEdgeData>());
const _: () = assert!(size_of::<CopyParameters>() == size_of::<CUDA_MEMCPY3D>());
const _: () = assert!(size_of::<AllocationParameters>() == size_of::<CUDA_MEM_ALLOC_NODE_PARAMS>());

impl Endpoint {
    /// The address; 0: an array.
    fn address(&self) -> u64 {
        match self.kind {
            // CU_MEMORYTYPE_HOST, _DEVICE, _UNIFIED.
            1 => self.host as u64,
            2 | 4 => self.device,
            _ => 0,
        }
    }
}

/// What a node is. The names are the driver's and the loader's.
struct Node {
    kind: i32,
    /// In profilers: the graph's ID in the upper half, the node's in the lower.
    tools_id: Option<u64>,
    kernel: Option<Kernel>,
    event: usize,
    host_function: usize,
    /// Of the host's function.
    symbol: *const c_char,
    /// What it does to memory, if the driver tells.
    memory: Option<Memory>,
    /// A child graph, or NULL.
    child: CUgraph,
}

struct Kernel {
    function: CUfunction,
    name: *const c_char,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
}

struct Memory {
    ptr: u64,
    src: u64,
    value: u32,
    element_bytes: u32,
    bytes: usize,
}

/// What a call of the driver may write: numbers and pointers, for which any bytes are right.
///
/// # Safety
/// All bits zero are a value.
unsafe trait Answer {}

// SAFETY: a number.
unsafe impl Answer for u32 {}
// SAFETY: a number.
unsafe impl Answer for u64 {}
// SAFETY: a pointer.
unsafe impl<T> Answer for *mut T {}
// SAFETY: a pointer.
unsafe impl<T> Answer for *const T {}
// SAFETY: pointers, of which one is optional.
unsafe impl Answer for CUDA_HOST_NODE_PARAMS {}
// SAFETY: numbers and pointers.
unsafe impl Answer for CUDA_KERNEL_NODE_PARAMS {}
// SAFETY: numbers.
unsafe impl Answer for CUDA_MEMSET_NODE_PARAMS {}
// SAFETY: numbers.
unsafe impl Answer for CopyParameters {}
// SAFETY: numbers.
unsafe impl Answer for AllocationParameters {}

/// What a call of the driver writes. `None`: the driver does not tell, as it is too old for the
/// call, or for this kind of node.
fn read<T: Answer>(read: impl FnOnce(*mut T) -> CudaResult) -> Result<Option<T>, CudaError> {
    let mut value = MaybeUninit::<T>::zeroed();
    match read(value.as_mut_ptr()) {
        // SAFETY: zeros are a value, and the driver has written another.
        Ok(()) => Ok(Some(unsafe { value.assume_init() })),
        Err(error) if UNKNOWN.contains(&error.code) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Node {
    fn read(driver: &Driver, node: CUgraphNode) -> Result<Node, CudaError> {
        let mut kind = 0;
        // SAFETY: the driver writes an enum of this size, read as an integer.
        unsafe { driver.cuGraphNodeGetType(node, std::ptr::from_mut(&mut kind).cast()) }?;
        let mut found = Node {
            kind,
            // SAFETY: the node is alive, and the number is writable.
            tools_id: read(|id| unsafe { driver.cuGraphNodeGetToolsId(node, id) })?,
            kernel: None,
            event: 0,
            host_function: 0,
            symbol: null(),
            memory: None,
            child: null_mut(),
        };
        match found.name() {
            Some("kernel") => found.kernel = Kernel::read(driver, node)?,
            Some("host") => found.read_host_function(driver, node)?,
            Some("child_graph") => {
                // SAFETY: the node is alive.
                unsafe { driver.cuGraphChildGraphNodeGetGraph(node, &mut found.child) }?;
            }
            // A wait without its event would be misread: a failure is one of the whole.
            Some(name @ ("wait_event" | "event_record")) => {
                let mut event = null_mut();
                if name == "wait_event" {
                    // SAFETY: the node is alive.
                    unsafe { driver.cuGraphEventWaitNodeGetEvent(node, &mut event) }?;
                } else {
                    // SAFETY: as above.
                    unsafe { driver.cuGraphEventRecordNodeGetEvent(node, &mut event) }?;
                }
                found.event = event as usize;
            }
            Some(name) => found.memory = Memory::read(driver, node, name)?,
            None => (),
        }
        Ok(found)
    }

    fn name(&self) -> Option<&'static str> {
        KINDS.get(self.kind as usize).copied()
    }

    /// Of a node that this library queued, the function is that of its caller.
    fn read_host_function(&mut self, driver: &Driver, node: CUgraphNode) -> CudaResult {
        // SAFETY: the node is alive, and the parameters are writable.
        let params = read(|params| unsafe { driver.cuGraphHostNodeGetParams(node, params) });
        let Some(params) = params? else { return Ok(()) };
        let given = params.fn_.map_or(0, |function| function as usize);
        let own = captured_callback::host_function(given, params.userData);
        self.host_function = own.unwrap_or(given);
        let mut symbol = MaybeUninit::<libc::Dl_info>::zeroed();
        let address = self.host_function as *const std::ffi::c_void;
        // SAFETY: any address may be asked for; the result is writable.
        unsafe { libc::dladdr(address, symbol.as_mut_ptr()) };
        // SAFETY: pointers, which were zeroed and perhaps written.
        self.symbol = unsafe { symbol.assume_init() }.dli_sname;
        Ok(())
    }
}

impl Kernel {
    fn read(driver: &Driver, node: CUgraphNode) -> Result<Option<Kernel>, CudaError> {
        // SAFETY: the node is alive, and the parameters are writable.
        let params = read(|params| unsafe { driver.cuGraphKernelNodeGetParams(node, params) });
        let Some(params) = params? else { return Ok(None) };
        let mut function = params.func;
        if function.is_null() && !params.kern.is_null() {
            // SAFETY: the kernel of the node is loaded, and the pointer is writable.
            let known = read(|known| unsafe { driver.cuKernelGetFunction(known, params.kern) });
            function = known?.unwrap_or(function);
        }
        let mut name = None;
        if !function.is_null() {
            // SAFETY: the kernel of the node is loaded, and the pointer is writable.
            name = read(|name| unsafe { driver.cuFuncGetName(name, function) })?;
        }
        Ok(Some(Kernel {
            function,
            name: name.unwrap_or(null()),
            grid: [params.gridDimX, params.gridDimY, params.gridDimZ],
            block: [params.blockDimX, params.blockDimY, params.blockDimZ],
            shared: params.sharedMemBytes,
        }))
    }
}

impl Memory {
    fn read(driver: &Driver, node: CUgraphNode, kind: &str) -> Result<Option<Memory>, CudaError> {
        let none = Memory { ptr: 0, src: 0, value: 0, element_bytes: 0, bytes: 0 };
        Ok(match kind {
            "memcpy" => {
                let found = read(|params: *mut CopyParameters| {
                    // SAFETY: the node is alive; the parameters have this layout.
                    unsafe { driver.cuGraphMemcpyNodeGetParams(node, params.cast()) }
                });
                found?.map(|copy| Memory {
                    ptr: copy.dst.address(),
                    src: copy.src.address(),
                    bytes: copy.extent.iter().product(),
                    ..none
                })
            }
            "memset" => {
                let found = read(|params: *mut CUDA_MEMSET_NODE_PARAMS| {
                    // SAFETY: the node is alive, and the parameters are writable.
                    unsafe { driver.cuGraphMemsetNodeGetParams(node, params) }
                });
                found?.map(|fill| Memory {
                    ptr: fill.dst,
                    value: fill.value,
                    element_bytes: fill.elementSize,
                    bytes: fill.elementSize as usize * fill.width * fill.height,
                    ..none
                })
            }
            "mem_alloc" => {
                let found = read(|params: *mut AllocationParameters| {
                    // SAFETY: the node is alive; the parameters have this layout.
                    unsafe { driver.cuGraphMemAllocNodeGetParams(node, params.cast()) }
                });
                found?.map(|found| Memory { ptr: found.ptr, bytes: found.bytes, ..none })
            }
            "mem_free" => {
                // SAFETY: the node is alive, and the address is writable.
                let found = read(|ptr| unsafe { driver.cuGraphMemFreeNodeGetParams(node, ptr) });
                found?.map(|ptr| Memory { ptr, ..none })
            }
            _ => None,
        })
    }
}

/// A list of `count` elements.
fn filled<T: Copy>(count: usize, value: T) -> Done<Vec<T>> {
    let mut list = Vec::new();
    list.try_reserve_exact(count)?;
    list.resize(count, value);
    Ok(list)
}

/// The nodes and edges of a graph, or of a child graph.
struct Body {
    nodes: Vec<usize>,
    /// Indices of the nodes at both ends of each edge, in the driver's order.
    from: Vec<u32>,
    to: Vec<u32>,
    data: Vec<EdgeData>,
}

impl Body {
    fn read(driver: &Driver, graph: CUgraph) -> Done<Body> {
        let mut count = super::num_nodes(driver, graph)?;
        let mut nodes = filled(count, 0usize)?;
        if count > 0 {
            let list = nodes.as_mut_ptr().cast::<CUgraphNode>();
            // SAFETY: the graph is alive, and the list has `count` elements.
            unsafe { driver.cuGraphGetNodes(graph, list, &mut count) }?;
            nodes.truncate(count);
        }
        query_edges(driver, graph, &mut count, null_mut(), null_mut(), null_mut())?;
        let (mut starts, mut ends) = (filled(count, 0usize)?, filled(count, 0usize)?);
        let mut all = filled(count, EdgeData::default())?;
        if count > 0 {
            let (starts, ends) = (starts.as_mut_ptr().cast(), ends.as_mut_ptr().cast());
            query_edges(driver, graph, &mut count, starts, ends, all.as_mut_ptr().cast())?;
        }
        let mut sorted = filled(nodes.len(), 0usize)?;
        sorted.copy_from_slice(&nodes);
        sorted.sort_unstable();
        let mut index_of = filled(nodes.len(), 0u32)?;
        for (index, node) in nodes.iter().enumerate() {
            if let Ok(place) = sorted.binary_search(node) {
                index_of[place] = index as u32;
            }
        }
        let find = |node: &usize| sorted.binary_search(node).ok().map(|place| index_of[place]);
        let (mut from, mut to, mut data) = (Vec::new(), Vec::new(), Vec::new());
        from.try_reserve_exact(count)?;
        to.try_reserve_exact(count)?;
        data.try_reserve_exact(count)?;
        for ((start, end), edge) in starts.iter().zip(&ends).zip(all).take(count) {
            // Of nodes that the host has added since, no edge is shown.
            if let (Some(start), Some(end)) = (find(start), find(end)) {
                from.push(start);
                to.push(end);
                data.push(edge);
            }
        }
        Ok(Body { nodes, from, to, data })
    }
}

/// The edges of each node, grouped by counting.
struct Grouped {
    /// Where the edges of a node begin in `edges`; one more.
    begins: Vec<u32>,
    /// Indices of edges.
    edges: Vec<u32>,
}

impl Grouped {
    /// Groups edges by the index of a node.
    fn new(ends: &[u32], num_nodes: usize) -> Done<Grouped> {
        let mut begins = filled(num_nodes + 2, 0u32)?;
        let mut edges = filled(ends.len(), 0u32)?;
        for end in ends {
            begins[*end as usize + 2] += 1;
        }
        for index in 2..begins.len() {
            begins[index] += begins[index - 1];
        }
        for (edge, end) in ends.iter().enumerate() {
            let next = &mut begins[*end as usize + 1];
            edges[*next as usize] = edge as u32;
            *next += 1;
        }
        Ok(Grouped { begins, edges })
    }

    fn of(&self, node: usize) -> &[u32] {
        &self.edges[self.begins[node] as usize..self.begins[node + 1] as usize]
    }
}

/// The lists have `count` elements, or are NULL.
fn query_edges(
    driver: &Driver,
    graph: CUgraph,
    count: &mut usize,
    from: *mut CUgraphNode,
    to: *mut CUgraphNode,
    data: *mut CUgraphEdgeData,
) -> CudaResult {
    // SAFETY: the graph is alive, and the lists are as long as `count` tells.
    match unsafe { driver.cuGraphGetEdges_v2(graph, from, to, data, count) } {
        // Drivers before CUDA 12.3 have no data of edges.
        // SAFETY: as above.
        Err(error) if error.code == CudaError::MISSING => unsafe {
            driver.cuGraphGetEdges(graph, from, to, count)
        },
        found => found,
    }
}

/// Writes the text.
struct Writer<'a> {
    driver: &'a Driver,
    annotations: &'a [Annotation],
    /// The driver's ID of the executable.
    exec_id: Option<u32>,
    text: Vec<u8>,
    /// Number of nodes that have a name in DOT.
    num_named: usize,
}

impl Write for Writer<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.text.try_reserve(text.len()).map_err(|_| fmt::Error)?;
        self.text.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

impl Writer<'_> {
    fn json(&mut self, graph: CUgraph, exec: CUgraphExec) -> Done {
        if !exec.is_null() {
            // SAFETY: the executable is alive, and the number is writable.
            self.exec_id = read(|id| unsafe { self.driver.cuGraphExecGetId(exec, id) })?;
        }
        self.write_str("{\"exec_graph_id\": ")?;
        self.number(self.exec_id.map(u64::from))?;
        self.write_str(", ")?;
        self.json_body(graph, 0)?;
        Ok(self.write_str("}")?)
    }

    fn json_body(&mut self, graph: CUgraph, depth: usize) -> Done {
        let body = Body::read(self.driver, graph)?;
        let before = Grouped::new(&body.to, body.nodes.len())?;
        let after = Grouped::new(&body.from, body.nodes.len())?;
        self.write_str("\"nodes\": [")?;
        for (index, handle) in body.nodes.iter().enumerate() {
            let node = Node::read(self.driver, *handle as CUgraphNode)?;
            write!(self, "{}{{\"index\": {index}", comma(index))?;
            self.json_node(&node, depth)?;
            self.write_str(", \"dependencies\": [")?;
            for (place, edge) in before.of(index).iter().enumerate() {
                write!(self, "{}{}", comma(place), body.from[*edge as usize])?;
            }
            self.write_str("], \"dependents\": [")?;
            for (place, edge) in after.of(index).iter().enumerate() {
                write!(self, "{}{}", comma(place), body.to[*edge as usize])?;
            }
            self.write_str("], \"annotations\": [")?;
            let mut count = 0;
            for annotation in self.annotations {
                if annotation.nodes.binary_search(handle).is_ok() {
                    self.write_str(comma(count))?;
                    self.quoted(&annotation.text)?;
                    count += 1;
                }
            }
            self.write_str("]")?;
            if !node.child.is_null() && depth < MAX_DEPTH {
                self.write_str(", \"child\": {")?;
                self.json_body(node.child, depth + 1)?;
                self.write_str("}")?;
            }
            self.write_str("}")?;
        }
        self.write_str("], \"edges\": [")?;
        for (index, EdgeData { from_port, to_port, kind, .. }) in body.data.iter().enumerate() {
            write!(
                self,
                "{}{{\"from\": {}, \"to\": {}, \"from_port\": {from_port}, \
                 \"to_port\": {to_port}, \"type\": {kind}}}",
                comma(index),
                body.from[index],
                body.to[index]
            )?;
        }
        Ok(self.write_str("]")?)
    }

    /// Writes the values of a node, but for its place in the graph.
    fn json_node(&mut self, node: &Node, depth: usize) -> Done {
        self.write_str(", \"node_type\": \"")?;
        self.kind(node)?;
        // Profilers show the executable's nodes, which have the same lower halves; those of child
        // graphs it numbers anew.
        let graph_id = node.tools_id.map(|id| match self.exec_id {
            Some(exec) if depth == 0 => u64::from(exec),
            _ => id >> 32,
        });
        let node_id = node.tools_id.map(|id| id & 0xffff_ffff);
        self.write_str("\", \"tools_id\": ")?;
        self.number(graph_id.zip(node_id).map(|(graph, node)| graph << 32 | node))?;
        self.write_str(", \"graph_id\": ")?;
        self.number(graph_id)?;
        self.write_str(", \"node_id\": ")?;
        self.number(node_id)?;
        self.write_str(", \"kernel_name\": ")?;
        match &node.kernel {
            None => self.write_str(
                "null, \"grid_dim\": null, \"block_dim\": null, \"shared_mem_bytes\": null, \
                 \"parameters\": null",
            )?,
            Some(Kernel { function, name, grid, block, shared }) => {
                self.name(*name)?;
                write!(self, ", \"grid_dim\": {grid:?}, \"block_dim\": {block:?}")?;
                write!(self, ", \"shared_mem_bytes\": {shared}, \"parameters\": ")?;
                self.parameters(*function)?;
            }
        }
        let Node { event, host_function, .. } = node;
        write!(self, ", \"event_ptr\": {event}, \"host_fn_addr\": {host_function}")?;
        self.write_str(", \"host_fn_name\": ")?;
        self.name(node.symbol)?;
        self.write_str(", \"memory\": ")?;
        let Some(Memory { ptr, src, value, element_bytes, bytes }) = &node.memory else {
            return Ok(self.write_str("null")?);
        };
        match node.name() {
            Some("memcpy") => {
                write!(self, "{{\"dst\": {ptr}, \"src\": {src}, \"bytes\": {bytes}}}")
            }
            Some("memset") => write!(
                self,
                "{{\"dst\": {ptr}, \"value\": {value}, \"element_bytes\": {element_bytes}, \
                 \"bytes\": {bytes}}}"
            ),
            Some("mem_alloc") => write!(self, "{{\"ptr\": {ptr}, \"bytes\": {bytes}}}"),
            _ => write!(self, "{{\"ptr\": {ptr}}}"),
        }?;
        Ok(())
    }

    /// Writes offset and size of each parameter of a kernel.
    fn parameters(&mut self, function: CUfunction) -> Done {
        let before = self.text.len();
        self.write_str("[")?;
        for index in 0..MAX_PARAMETERS {
            let (mut offset, mut bytes) = (0, 0);
            // SAFETY: the kernel is loaded; both are writable.
            let found =
                unsafe { self.driver.cuFuncGetParamInfo(function, index, &mut offset, &mut bytes) };
            match found {
                Ok(()) => {
                    let comma = comma(index);
                    write!(self, "{comma}{{\"offset\": {offset}, \"bytes\": {bytes}}}")?;
                }
                // The end of the list.
                Err(error) if error.code == code::INVALID_VALUE => break,
                Err(error) if UNKNOWN.contains(&error.code) => {
                    self.text.truncate(before);
                    return Ok(self.write_str("null")?);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.write_str("]")?)
    }

    fn dot(&mut self, graph: CUgraph) -> Done {
        self.write_str("digraph graph_1 {\n")?;
        self.dot_body(graph, 0)?;
        Ok(self.write_str("}\n")?)
    }

    fn dot_body(&mut self, graph: CUgraph, depth: usize) -> Done {
        let body = Body::read(self.driver, graph)?;
        let first = self.num_named;
        self.num_named += body.nodes.len();
        for (index, handle) in body.nodes.iter().enumerate() {
            let node = Node::read(self.driver, *handle as CUgraphNode)?;
            write!(self, "n{} [label=\"", first + index)?;
            self.dot_label(&node)?;
            for annotation in self.annotations {
                if annotation.nodes.binary_search(handle).is_ok() {
                    self.write_str("\\n")?;
                    self.entities(&annotation.text)?;
                }
            }
            self.write_str("\"];\n")?;
            if !node.child.is_null() && depth < MAX_DEPTH {
                writeln!(self, "subgraph cluster_{} {{", first + index)?;
                self.dot_body(node.child, depth + 1)?;
                self.write_str("}\n")?;
            }
        }
        for (index, data) in body.data.iter().enumerate() {
            let (from, to) = (body.from[index] as usize, body.to[index] as usize);
            write!(self, "n{} -> n{}", first + from, first + to)?;
            self.write_str(if data.kind == 0 { ";\n" } else { " [style=dashed];\n" })?;
        }
        Ok(())
    }

    /// Writes the label of a node, but for its annotations.
    fn dot_label(&mut self, node: &Node) -> Done {
        self.kind(node)?;
        if let Some(Kernel { name, grid, block, shared, .. }) = &node.kernel {
            self.dot_name(*name)?;
            write!(self, "\\n{grid:?} x {block:?} + {shared} B")?;
        }
        if let Some(Memory { bytes, .. }) = node.memory {
            write!(self, "\\n{bytes} B")?;
        }
        if node.event != 0 {
            write!(self, "\\n{:#x}", node.event)?;
        }
        self.dot_name(node.symbol)
    }

    fn kind(&mut self, node: &Node) -> fmt::Result {
        match node.name() {
            Some(name) => self.write_str(name),
            None => write!(self, "{}", node.kind),
        }
    }

    fn number(&mut self, value: Option<u64>) -> fmt::Result {
        match value {
            Some(value) => write!(self, "{value}"),
            None => self.write_str("null"),
        }
    }

    /// Writes a name, or null.
    fn name(&mut self, name: *const c_char) -> Done {
        match bytes_of(name) {
            Some(name) => self.quoted(name),
            None => Ok(self.write_str("null")?),
        }
    }

    fn quoted(&mut self, text: &[u8]) -> Done {
        let mut sink = |bytes: &[u8]| {
            self.text.try_reserve(bytes.len()).map_err(|_| NO_ROOM)?;
            self.text.extend_from_slice(bytes);
            Ok(())
        };
        quoted(&mut sink, text).map_err(|_| Failure::Memory)
    }

    /// Writes a name as a line of a label, if there is one.
    fn dot_name(&mut self, name: *const c_char) -> Done {
        match bytes_of(name) {
            Some(name) => {
                self.write_str("\\n")?;
                self.entities(name)
            }
            None => Ok(()),
        }
    }

    /// Writes a text as part of a label: characters of DOT's own, and those beyond ASCII, as
    /// entities.
    fn entities(&mut self, text: &[u8]) -> Done {
        for piece in text.utf8_chunks() {
            let replaced = if piece.invalid().is_empty() { "" } else { "\u{fffd}" };
            for character in piece.valid().chars().chain(replaced.chars()) {
                match character {
                    ' '..='~' if !matches!(character, '"' | '\\' | '&' | '<' | '>') => {
                        self.write_char(character)?;
                    }
                    _ => write!(self, "&#{};", character as u32)?,
                }
            }
        }
        Ok(())
    }
}

/// What precedes an element of a list.
fn comma(index: usize) -> &'static str {
    if index == 0 { "" } else { ", " }
}

/// A name that the driver or the loader owns.
fn bytes_of<'a>(name: *const c_char) -> Option<&'a [u8]> {
    if name.is_null() {
        return None;
    }
    // SAFETY: it ends with a NUL, and its owner is loaded while the graph is.
    Some(unsafe { CStr::from_ptr(name) }.to_bytes())
}
