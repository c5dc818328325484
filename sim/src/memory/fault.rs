//! Why a kernel ends early.

use std::fmt;

/// The kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Global memory that the device cannot access.
    IllegalAddress,
    /// Shared memory outside of the block's.
    SharedRange,
    /// Local memory outside of the thread's.
    LocalRange,
    /// A generic address of shared or local memory where one of global memory is expected.
    AddressSpace,
    /// A write to constant memory or parameters.
    ReadOnly,
    /// An address that is no multiple of the access's size.
    Misaligned,
    /// `trap`.
    Trap,
    /// `brkpt`.
    Breakpoint,
    /// A failed assertion.
    Assert,
    /// A call of an address that is no function.
    IllegalCall,
    /// More local memory than a thread can have.
    StackOverflow,
    /// The threads wait for each other for ever, or the kernel runs too long.
    TimeLimit,
    /// The host has no memory for the kernel.
    OutOfMemory,
    /// A barrier or another instruction with operands that it does not take.
    IllegalInstruction,
}

/// Why a kernel ends early, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What happened.
    pub kind: FaultKind,
    /// The address of the access, if it was one.
    pub address: Option<u64>,
    /// The lane of the warp, if one is known.
    pub lane: Option<u32>,
    /// The kernel.
    pub kernel: String,
    /// The block in the grid.
    pub block: [u32; 3],
    /// The thread in the block.
    pub thread: [u32; 3],
    /// The line of the PTX text.
    pub line: u32,
    /// The line of the source and its file, where the PTX has them.
    pub source: Option<(String, u32)>,
}

impl Fault {
    /// A fault without an address.
    #[cold]
    pub fn new(kind: FaultKind) -> Fault {
        Fault {
            kind,
            address: None,
            lane: None,
            kernel: String::new(),
            block: [0; 3],
            thread: [0; 3],
            line: 0,
            source: None,
        }
    }

    /// A fault of an access.
    #[cold]
    pub fn at(kind: FaultKind, address: u64) -> Fault {
        Fault { address: Some(address), ..Fault::new(kind) }
    }

    /// The same, of this lane.
    #[cold]
    pub fn of_lane(mut self, lane: usize) -> Fault {
        self.lane.get_or_insert(lane as u32);
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            FaultKind::IllegalAddress => "accesses memory that the device cannot access",
            FaultKind::SharedRange => "accesses shared memory outside of its block's",
            FaultKind::LocalRange => "accesses local memory outside of its own",
            FaultKind::AddressSpace => "accesses shared or local memory as global memory",
            FaultKind::ReadOnly => "writes memory that is read-only",
            FaultKind::Misaligned => "accesses a misaligned address",
            FaultKind::Trap => "executes trap",
            FaultKind::Breakpoint => "executes brkpt",
            FaultKind::Assert => "fails an assertion",
            FaultKind::IllegalCall => "calls an address that is no function",
            FaultKind::StackOverflow => "needs more local memory than a thread can have",
            FaultKind::TimeLimit => "does not end within the time limit of kernels",
            FaultKind::OutOfMemory => "needs more memory than the host has",
            FaultKind::IllegalInstruction => "executes an instruction with illegal operands",
        };
        write!(f, "{}: thread {:?} of block {:?} {what}", self.kernel, self.thread, self.block)?;
        if let Some(address) = self.address {
            write!(f, ", address {address:#x}")?;
        }
        if let Some((file, line)) = &self.source {
            write!(f, ", {file}:{line}")?;
        }
        write!(f, " (line {} of the PTX)", self.line)
    }
}
