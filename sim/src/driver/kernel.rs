//! Kernels of PTX: their modules' variables, their launches, and the memory that they reach.

use super::address_space::{Access, Accessor, Chunk, Purpose};
use super::condition::Conditions;
use super::hooks;
use super::journal::Journal;
use super::memory::Memory;
use super::partition::Partition;
use super::sync::lock;
use crate::base::code;
use crate::exec::heap::Heap;
use crate::exec::{self, Options, Shape};
use crate::memory::Window;
use crate::memory::fault::FaultKind;
use crate::memory::race::{Race, Summary};
use crate::program::{Program, Variable};
use crate::ptx::tree::Space;
use std::collections::BTreeMap;
use std::ffi::c_uint;
use std::ptr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Instant;

pub(super) const MAX_THREADS_PER_BLOCK: usize = 1024;
/// Maximum dynamic shared memory of a block, by default and after opting in.
pub(super) const DEFAULT_SHARED_PER_BLOCK: usize = 49_152;
pub(super) const MAX_BLOCK: [c_uint; 3] = [1024, 1024, 64];
/// The most blocks of a cluster that every device with clusters supports.
pub(super) const MAX_CLUSTER: c_uint = 8;
/// The most blocks of a cluster of a kernel that allows sizes which not every device supports.
pub(super) const MAX_NON_PORTABLE_CLUSTER: c_uint = 16;
pub(super) const MAX_GRID: [c_uint; 3] = [i32::MAX as c_uint, 65_535, 65_535];

/// Bytes of a page, whose contents before a delayed kernel are kept.
const PAGE: u64 = 4096;

/// Where a kernel finds the workspace of a cooperative launch; no other memory is near it.
const WORKSPACE: u64 = 0x0600_0000_0000_0000;
const WORKSPACE_BYTES: u64 = 8;

/// A kernel of a loaded module.
pub(super) struct Kernel {
    pub(super) exec: exec::Kernel,
    variables: Arc<Variables>,
}

/// The variables of a module in a device's memory.
pub(super) struct Variables {
    memory: Arc<Memory>,
    /// The address of each; 0 for shared memory.
    addresses: Vec<u64>,
    /// The mapped ranges.
    ranges: Vec<(usize, usize)>,
}

impl Drop for Variables {
    fn drop(&mut self) {
        for (start, bytes) in &self.ranges {
            let _ = self.memory.free_mapped(*start, *bytes);
        }
    }
}

impl Variables {
    /// Allocates the variables of a program and writes their first values.
    pub(super) fn new(
        memory: &Arc<Memory>,
        device: usize,
        program: &Program,
    ) -> Result<Arc<Variables>, i32> {
        let in_memory =
            |variable: &Variable| variable.space != Space::Shared && variable.place.is_none();
        let mut made = Variables {
            memory: Arc::clone(memory),
            addresses: program.variables.iter().map(|it| it.place.unwrap_or(0)).collect(),
            ranges: Vec::new(),
        };
        for is_managed in [false, true] {
            let is_here = |it: &&Variable| in_memory(it) && it.is_managed == is_managed;
            made.place(device, program, is_here, is_managed)?;
        }
        for (index, variable) in program.variables.iter().enumerate() {
            if in_memory(variable) && made.addresses[index] != 0 {
                let bytes = variable.initial_bytes(&made.addresses);
                made.write(device, made.addresses[index], &bytes)?;
            }
        }
        Ok(Arc::new(made))
    }

    /// Allocates memory for some of the variables.
    fn place(
        &mut self,
        device: usize,
        program: &Program,
        is_here: impl Fn(&&Variable) -> bool,
        is_managed: bool,
    ) -> Result<(), i32> {
        let mut end = 0usize;
        let mut offsets = Vec::new();
        for (index, variable) in program.variables.iter().enumerate().filter(|it| is_here(&it.1)) {
            let offset = end.next_multiple_of(variable.align.max(1));
            offsets.push((index, offset));
            end = offset + variable.bytes;
        }
        if end == 0 {
            return Ok(());
        }
        let start = match is_managed {
            true => self.memory.allocate_managed(device, end, Purpose::Module)?,
            false => {
                self.memory.allocate_for_modules(device, end, Purpose::Module, Access::Peers)?
            }
        };
        self.ranges.push((start, end.next_multiple_of(super::config::GRANULARITY)));
        for (index, offset) in offsets {
            self.addresses[index] = (start + offset) as u64;
        }
        Ok(())
    }

    /// Address and bytes of the variable of a name in global or constant memory.
    pub(super) fn find(&self, program: &Program, name: &str) -> Option<(u64, usize)> {
        // Variables of functions come last.
        let mut places = program.variables.iter().zip(&self.addresses);
        let named = places.find(|(variable, at)| variable.name == name && **at != 0);
        named.map(|(variable, at)| (*at, variable.bytes))
    }

    /// Address and bytes of the variable that contains an address.
    pub(super) fn around(&self, program: &Program, address: u64) -> Option<(u64, usize)> {
        let mut places = program.variables.iter().zip(&self.addresses);
        let found = places.find(|(variable, at)| {
            **at != 0 && (**at..**at + variable.bytes as u64).contains(&address)
        });
        found.map(|(variable, at)| (*at, variable.bytes))
    }

    fn write(&self, device: usize, address: u64, bytes: &[u8]) -> Result<(), i32> {
        let accessor = Accessor { device, write: true, staged: false };
        let mut rest = bytes;
        if rest.is_empty() {
            return Ok(());
        }
        for chunk in self.memory.translate(address as usize, rest.len(), accessor)?.iter() {
            let (now, later) = rest.split_at(chunk.bytes.min(rest.len()));
            let to = ptr::with_exposed_provenance_mut::<u8>(chunk.address);
            // SAFETY: the range was checked; `now` is memory of our own.
            unsafe { ptr::copy_nonoverlapping(now.as_ptr(), to, now.len()) };
            rest = later;
        }
        Ok(())
    }
}

impl Kernel {
    /// The kernels of a program by name.
    pub(super) fn all(
        program: &Arc<Program>,
        variables: &Arc<Variables>,
    ) -> BTreeMap<String, Arc<Kernel>> {
        let all = exec::Kernel::all(program).map(|exec| {
            let name = exec.function().name.clone();
            (name, Arc::new(Kernel { exec, variables: Arc::clone(variables) }))
        });
        all.collect()
    }
}

impl exec::Kernel {
    /// The kernels of a program.
    pub(super) fn all(program: &Arc<Program>) -> impl Iterator<Item = exec::Kernel> {
        let is_kernel = |index: &usize| {
            let function = &program.functions[*index];
            function.is_kernel && function.is_defined
        };
        let all = (0..program.functions.len()).filter(is_kernel);
        all.map(|index| exec::Kernel::new(program, index as u32))
    }

    /// Offset and size of each parameter.
    pub(super) fn parameters(&self) -> &[crate::program::Parameter] {
        &self.function().parameters
    }

    /// Its function in the program.
    pub(super) fn function(&self) -> &crate::program::Function {
        &self.program().functions[self.index() as usize]
    }

    /// The largest number of threads of a block.
    pub(super) fn most_threads(&self) -> usize {
        let limits = &self.function().limits;
        let limit = limits.get(".maxntid").or(limits.get(".reqntid"));
        let product = limit.map(|sizes| sizes.iter().map(|size| *size as usize).product::<usize>());
        product.unwrap_or(MAX_THREADS_PER_BLOCK).min(MAX_THREADS_PER_BLOCK)
    }

    /// The blocks of a cluster in x, y and z, if the kernel requires a size.
    pub(super) fn required_cluster(&self) -> Option<[c_uint; 3]> {
        self.sizes(".reqnctapercluster")
    }

    /// True if a launch must determine the blocks of a cluster.
    pub(super) fn needs_cluster(&self) -> bool {
        self.function().limits.contains_key(".explicitcluster")
    }

    /// The threads of a block in x, y and z, if the kernel requires a size.
    pub(super) fn required_block(&self) -> Option<[c_uint; 3]> {
        self.sizes(".reqntid")
    }

    /// The number of a directive.
    pub(super) fn limit(&self, directive: &str) -> Option<c_uint> {
        self.function().limits.get(directive)?.first().copied()
    }

    fn sizes(&self, directive: &str) -> Option<[c_uint; 3]> {
        let sizes = self.function().limits.get(directive)?;
        Some(std::array::from_fn(|d| sizes.get(d).copied().unwrap_or(1)))
    }
}

/// A launch of a kernel: its grid, parameters and memory.
pub struct Launch {
    /// Blocks and threads, and bytes of dynamic shared memory.
    pub(super) shape: Shape,
    /// All blocks are resident at the same time.
    pub(super) is_cooperative: bool,
    pub(super) kernel: Arc<Kernel>,
    pub(super) parameters: Vec<u8>,
    /// The multiprocessors on which it runs; `None`: all.
    pub(super) partition: Option<Arc<Partition>>,
    /// A graph launches it, so that it may set conditions.
    is_of_graph: bool,
    /// Present if the kernel's writes are delayed.
    journal: Option<Arc<Journal>>,
}

impl Launch {
    /// A launch of a kernel with these values of its parameters.
    pub(super) fn new(kernel: Arc<Kernel>, shape: Shape, parameters: Vec<u8>) -> Launch {
        let (is_cooperative, is_of_graph) = (false, false);
        let (partition, journal) = (None, None);
        Launch { shape, is_cooperative, kernel, parameters, partition, is_of_graph, journal }
    }

    /// The same launch on these multiprocessors.
    pub(super) fn within(self, partition: Option<Arc<Partition>>) -> Launch {
        Launch { partition, ..self }
    }

    /// The same launch with all its blocks resident at the same time.
    pub(super) fn cooperative(self) -> Launch {
        Launch { is_cooperative: true, ..self }
    }

    /// A copy for another launch of a graph.
    pub(super) fn for_next_launch(&self) -> Launch {
        let (kernel, parameters) = (Arc::clone(&self.kernel), self.parameters.clone());
        let (shape, is_cooperative) = (self.shape, self.is_cooperative);
        let (partition, is_of_graph, journal) = (self.partition.clone(), true, None);
        Launch { shape, is_cooperative, kernel, parameters, partition, is_of_graph, journal }
    }

    /// Starts a journal of the kernel's writes. `None` if it has atomic operations: kernels of
    /// other streams may change the same words.
    pub(super) fn keep_journal(&mut self) -> Option<Arc<Journal>> {
        let program = self.kernel.exec.program();
        let functions = program.reachable(self.kernel.exec.index());
        let has_atomics =
            functions.iter().any(|index| program.functions[*index as usize].has_atomics);
        (!has_atomics).then(|| Arc::clone(self.journal.insert(Arc::default())))
    }

    /// Runs the kernel on a device.
    pub(super) fn run(&self, run: &Run<'_>) -> Result<(), i32> {
        let reach = Reach {
            memory: run.memory,
            conditions: self.is_of_graph.then_some(run.conditions),
            device: run.device,
            journal: self.journal.as_deref(),
            partition: self.partition.as_deref(),
            start: run.start,
            workspace: self.is_cooperative.then(|| AtomicU64::new(WORKSPACE_BYTES)),
        };
        let options = Options { cooperative: self.is_cooperative, ..run.options };
        let Launch { kernel, shape, parameters, .. } = self;
        let addresses = &kernel.variables.addresses;
        let outcome = kernel.exec.run(&reach, addresses, *shape, parameters, &options);
        let Err(fault) = outcome else { return Ok(()) };
        hooks::log_error(format_args!("a kernel failed: {fault}"));
        Err(match fault.kind {
            FaultKind::IllegalAddress
            | FaultKind::SharedRange
            | FaultKind::LocalRange
            | FaultKind::ReadOnly
            | FaultKind::StackOverflow => code::ILLEGAL_ADDRESS,
            FaultKind::AddressSpace => code::INVALID_ADDRESS_SPACE,
            FaultKind::Misaligned => code::MISALIGNED_ADDRESS,
            FaultKind::Trap | FaultKind::Breakpoint | FaultKind::OutOfMemory => code::LAUNCH_FAILED,
            FaultKind::Assert => code::ASSERT,
            FaultKind::IllegalCall => code::INVALID_PC,
            FaultKind::TimeLimit => code::LAUNCH_TIMEOUT,
            FaultKind::IllegalInstruction => code::ILLEGAL_INSTRUCTION,
        })
    }
}

/// Where a kernel runs.
pub(super) struct Run<'a> {
    pub(super) memory: &'a Memory,
    pub(super) conditions: &'a Conditions,
    pub(super) device: usize,
    /// With the number of the launch since the machine was powered on: a seed repeats a run.
    pub(super) options: Options,
    /// When the machine was powered on.
    pub(super) start: Instant,
}

/// The machine as a kernel sees it.
struct Reach<'a> {
    memory: &'a Memory,
    /// Those that it may set; `None`: none.
    conditions: Option<&'a Conditions>,
    device: usize,
    journal: Option<&'a Journal>,
    partition: Option<&'a Partition>,
    start: Instant,
    /// That of a cooperative launch: its size, and a barrier at which no block has arrived.
    workspace: Option<AtomicU64>,
}

impl Reach<'_> {
    fn heap(&self) -> &Mutex<Heap> {
        self.memory.heaps[self.device].get_or_init(Mutex::default)
    }
}

// SAFETY: windows are in the aliases of devices' memory and in pinned memory, which stay mapped
// while kernels run, and of which no references exist, or are the workspace, an atomic.
unsafe impl crate::memory::Machine for Reach<'_> {
    fn window(&self, address: u64, write: bool) -> Option<Window> {
        if Heap::contains(address) {
            let window = lock(self.heap()).window();
            return window.filter(|window| address < window.end);
        }
        if address.wrapping_sub(WORKSPACE) < WORKSPACE_BYTES {
            let host = self.workspace.as_ref()?.as_ptr().cast();
            return Some(Window { start: WORKSPACE, end: WORKSPACE + WORKSPACE_BYTES, host });
        }
        let accessor = Accessor { device: self.device, write, staged: false };
        let window = self.memory.window(address as usize, accessor)?;
        let (true, Some(journal)) = (write, self.journal) else { return Some(window) };
        // One page at a time, so that what is kept is what is written.
        let start = (address & !(PAGE - 1)).max(window.start);
        let end = ((address & !(PAGE - 1)) + PAGE).min(window.end);
        let host = window.host.wrapping_add((start - window.start) as usize);
        journal.note(Chunk { address: host.addr(), bytes: (end - start) as usize });
        Some(Window { start, end, host })
    }

    fn print(&self, text: &[u8]) {
        put(text, false);
    }

    fn print_error(&self, text: &[u8]) {
        put(text, true);
    }

    fn allocate(&self, bytes: u64) -> u64 {
        lock(self.heap()).allocate(bytes)
    }

    fn free(&self, address: u64) -> bool {
        lock(self.heap()).free(address)
    }

    fn set_condition(&self, handle: u64, value: u32) -> bool {
        self.conditions.is_some_and(|conditions| conditions.set(handle, value))
    }

    fn nanoseconds(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn is_cancelled(&self) -> bool {
        false
    }

    fn multiprocessor(&self, block: u32) -> Option<u32> {
        let numbers = &self.partition?.numbers;
        numbers.get(block as usize % numbers.len().max(1)).copied()
    }

    fn grid_workspace(&self) -> u64 {
        if self.workspace.is_some() { WORKSPACE } else { 0 }
    }

    fn report_race(&self, race: &Race) {
        hooks::log_error(format_args!("{race}"));
    }

    fn report_races(&self, summary: &Summary) {
        hooks::log_error(format_args!("{summary}"));
    }
}

unsafe extern "C" {
    static stdout: *mut libc::FILE;
    static stderr: *mut libc::FILE;
}

/// Writes text of a kernel through C's streams, so that it is in order with the host's.
fn put(text: &[u8], is_error: bool) {
    let stream = match is_error {
        // SAFETY: the C library set it before the host started.
        true => unsafe { stderr },
        // SAFETY: as above.
        false => unsafe { stdout },
    };
    // SAFETY: the stream is C's own, and the text has this length.
    let _ = unsafe { libc::fwrite(text.as_ptr().cast(), 1, text.len(), stream) };
    // SAFETY: the stream is C's own.
    let _ = unsafe { libc::fflush(stream) };
}
