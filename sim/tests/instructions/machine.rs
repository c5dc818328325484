//! A machine with a few buffers of memory that runs one kernel.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tcuda_sim::exec::{Kernel, Options, Shape};
use tcuda_sim::memory::fault::FaultKind;
use tcuda_sim::memory::{Machine, Window};
use tcuda_sim::program::{Program, Symbol};
use tcuda_sim::ptx::tree::Space;

/// The first address of the memory.
const START: u64 = 0x7f_0000_0000;
/// Bytes for `malloc` in kernels.
const HEAP: usize = 8 << 20;
/// Every buffer begins at a multiple of this.
const ALIGN: usize = 256;

/// How a kernel ended.
pub struct Outcome {
    /// What the driver would return, 0 for success.
    pub status: u32,
    /// The fault, for people.
    pub fault: String,
    /// The text of `printf`.
    pub printed: String,
    /// The text for the standard error.
    pub errors: String,
}

/// The memory of a launch: buffers, variables and the heap.
struct Device {
    memory: *mut u128,
    bytes: usize,
    next: AtomicU64,
    printed: Mutex<Vec<u8>>,
    errors: Mutex<Vec<u8>>,
}

// SAFETY: the memory is used by kernels alone while they run, with atomic accesses where threads
// share it.
unsafe impl Sync for Device {}

// SAFETY: the memory stays allocated until the device is dropped, after the kernel's end, and no
// reference to it exists meanwhile.
unsafe impl Machine for Device {
    fn window(&self, address: u64, _write: bool) -> Option<Window> {
        let end = START + self.bytes as u64;
        let window = Window { start: START, end, host: self.memory.cast() };
        (START..end).contains(&address).then_some(window)
    }

    fn print(&self, text: &[u8]) {
        self.printed.lock().unwrap().extend_from_slice(text);
    }

    fn print_error(&self, text: &[u8]) {
        self.errors.lock().unwrap().extend_from_slice(text);
    }

    fn allocate(&self, bytes: u64) -> u64 {
        let size = bytes.max(1).next_multiple_of(16);
        let end = START + self.bytes as u64;
        let fits = |next: u64| (size <= end - next).then(|| next + size);
        self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).unwrap_or(0)
    }

    fn free(&self, _address: u64) -> bool {
        true
    }

    fn nanoseconds(&self) -> u64 {
        std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64
    }

    fn is_cancelled(&self) -> bool {
        false
    }
}

/// The status that the driver returns for a fault.
fn status_of(kind: FaultKind) -> u32 {
    match kind {
        FaultKind::IllegalAddress
        | FaultKind::SharedRange
        | FaultKind::LocalRange
        | FaultKind::ReadOnly
        | FaultKind::StackOverflow => 700,
        FaultKind::TimeLimit => 702,
        FaultKind::Assert => 710,
        FaultKind::IllegalInstruction => 715,
        FaultKind::Misaligned => 716,
        FaultKind::AddressSpace => 717,
        FaultKind::IllegalCall => 718,
        FaultKind::Trap | FaultKind::Breakpoint => 719,
        FaultKind::OutOfMemory => 2,
    }
}

/// Runs the kernel "k" of a module. Its parameters are the addresses of the buffers, which hold its
/// results afterwards, then the bytes of `values`.
pub fn run(
    ptx: &str,
    blocks: u32,
    threads: u32,
    dynamic_shared: u32,
    buffers: &mut [Vec<u8>],
    values: &[u8],
) -> Result<Outcome, String> {
    let program = Arc::new(Program::load(ptx, 90).map_err(|error| error.to_string())?);
    let kernel = Kernel::find(&program, "k").ok_or("the module has no kernel k")?;
    let mut bytes = 0;
    let mut place = |size: usize| {
        let offset = bytes;
        bytes = (bytes + size).next_multiple_of(ALIGN);
        offset
    };
    let offsets: Vec<usize> = buffers.iter().map(|buffer| place(buffer.len())).collect();
    let variables: Vec<usize> = program.variables.iter().map(|it| place(it.bytes)).collect();
    let heap = place(if ptx.contains("malloc") { HEAP } else { 0 });
    let addresses: Vec<u64> = variables.iter().map(|offset| START + *offset as u64).collect();

    let mut image = vec![0_u8; bytes];
    for (buffer, offset) in buffers.iter().zip(&offsets) {
        image[*offset..offset + buffer.len()].copy_from_slice(buffer);
    }
    for (variable, offset) in program.variables.iter().zip(&variables) {
        if variable.space == Space::Shared {
            continue;
        }
        image[*offset..offset + variable.values.len()].copy_from_slice(&variable.values);
        for &(at, symbol, addend) in &variable.addresses {
            let address = match symbol {
                Symbol::Variable(index) => addresses[index as usize],
                Symbol::Function(index) => {
                    tcuda_sim::memory::FUNCTION_WINDOW | u64::from(index + 1) << 4
                }
            };
            let word = address.wrapping_add_signed(addend).to_le_bytes();
            image[offset + at..offset + at + 8].copy_from_slice(&word);
        }
    }
    let mut memory: Vec<u128> = image
        .chunks(16)
        .map(|chunk| chunk.iter().rev().fold(0, |word, byte| word << 8 | u128::from(*byte)))
        .collect();
    let device = Device {
        memory: memory.as_mut_ptr(),
        bytes,
        next: AtomicU64::new(START + heap as u64),
        printed: Mutex::default(),
        errors: Mutex::default(),
    };
    let mut parameters = Vec::new();
    for offset in &offsets {
        parameters.extend_from_slice(&(START + *offset as u64).to_le_bytes());
    }
    parameters.extend_from_slice(values);
    let shape =
        Shape { grid: [blocks, 1, 1], block: [threads, 1, 1], cluster: [1, 1, 1], dynamic_shared };
    let options = Options { time_limit: Duration::from_secs(20), ..Options::default() };
    let result = kernel.run(&device, &addresses, shape, &parameters, &options);
    let text = |bytes: Mutex<Vec<u8>>| String::from_utf8(bytes.into_inner().unwrap()).unwrap();
    let (printed, errors) = (text(device.printed), text(device.errors));
    let image: Vec<u8> = memory.iter().flat_map(|word| word.to_le_bytes()).collect();
    for (buffer, offset) in buffers.iter_mut().zip(&offsets) {
        let size = buffer.len();
        buffer.copy_from_slice(&image[*offset..offset + size]);
    }
    let (status, fault) = match result {
        Ok(()) => (0, String::new()),
        Err(fault) => (status_of(fault.kind), fault.to_string()),
    };
    Ok(Outcome { status, fault, printed, errors })
}
