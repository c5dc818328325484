//! Functions as they are executed: closures over rows of registers, and steps of control flow.

pub mod flow;
mod lower;

use crate::memory::fault::Fault;
use crate::memory::race::Order;
use crate::memory::{FUNCTION_WINDOW, Memory};
use crate::ptx::tree::Space;
use crate::ptx::{LoadError, LoadErrorKind, Result, parse};
use crate::registers::{self, Compute, Condition, Mask, Registers};
use std::collections::BTreeMap;

/// A closure that accesses memory and registers.
pub type Access = Box<
    dyn Fn(&mut Registers, Mask, &mut Memory<'_>) -> std::result::Result<(), Fault> + Send + Sync,
>;

/// A module that can be executed.
pub struct Program {
    /// The functions; those that are only declared have no code.
    pub functions: Vec<Function>,
    /// Variables outside of functions, and shared ones of all functions.
    pub variables: Vec<Variable>,
    /// The version of PTX, 7.8 as 78.
    pub version: u32,
    /// The target, 90 for sm_90.
    pub target: u32,
    /// Source files by number.
    pub files: BTreeMap<u32, String>,
}

impl Program {
    /// Bytes of the module's variables in constant memory, which all of its kernels share.
    pub fn constant_bytes(&self) -> usize {
        let constants = self.variables.iter().filter(|it| it.space == Space::Const);
        constants.fold(0, |end, it| end.next_multiple_of(it.align.max(1)) + it.bytes)
    }
}

/// A variable of a module.
#[derive(Clone, Debug)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Global, const or shared.
    pub space: Space,
    /// Bytes; 0 for shared memory whose size the launch determines.
    pub bytes: usize,
    /// Alignment in bytes.
    pub align: usize,
    /// True if other modules can name it.
    pub is_visible: bool,
    /// True if another module has to define it.
    pub is_external: bool,
    /// True if the host accesses it at the same address.
    pub is_managed: bool,
    /// Its address, if it is placed outside of the module.
    pub place: Option<u64>,
    /// The first bytes; the others are zero.
    pub values: Vec<u8>,
    /// Words that hold addresses: offset, symbol, bytes to add.
    pub addresses: Vec<(usize, Symbol, i64)>,
}

impl Variable {
    /// All bytes of the variable at the start, where the module's variables have these addresses.
    pub fn initial_bytes(&self, addresses: &[u64]) -> Vec<u8> {
        let mut bytes = self.values.clone();
        bytes.resize(self.bytes, 0);
        for (at, symbol, offset) in &self.addresses {
            let address = match symbol {
                Symbol::Variable(other) => addresses.get(*other as usize).copied().unwrap_or(0),
                Symbol::Function(function) => function_address(*function),
            };
            let word = address.wrapping_add(*offset as u64).to_le_bytes();
            if let Some(to) = bytes.get_mut(*at..*at + 8) {
                to.copy_from_slice(&word);
            }
        }
        bytes
    }
}

/// The address of a function of a program.
pub fn function_address(index: u32) -> u64 {
    FUNCTION_WINDOW | u64::from(index + 1) << 4
}

/// Something with an address that is known when a module is loaded or a kernel starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Symbol {
    /// A variable of the module.
    Variable(u32),
    /// A function.
    Function(u32),
}

/// A parameter of a kernel or function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Where it begins.
    pub offset: usize,
    /// Its size.
    pub bytes: usize,
}

/// A function.
#[derive(Default)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// True for a kernel.
    pub is_kernel: bool,
    /// False if it is only declared.
    pub is_defined: bool,
    /// Its instructions.
    pub code: Vec<Instruction>,
    /// Rows of registers of each kind.
    pub narrow: u32,
    /// See `narrow`.
    pub wide: u32,
    /// See `narrow`.
    pub masks: u32,
    /// Registers with a value at the start.
    pub presets: Vec<(Preset, Slot)>,
    /// Its parameters; those of a function lie in its local memory.
    pub parameters: Vec<Parameter>,
    /// Its result in local memory.
    pub result: Option<Parameter>,
    /// Bytes of local memory.
    pub frame: usize,
    /// Variables in shared memory that it uses.
    pub shared: Vec<u32>,
    /// Functions that it calls or whose address it takes.
    pub calls: Vec<u32>,
    /// True if it has atomic operations on memory that others share.
    pub has_atomics: bool,
    /// `.maxntid` and other limits, with their numbers.
    pub limits: BTreeMap<String, Vec<u32>>,
}

/// A register's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Slot {
    /// A row of up to 32 bits.
    Narrow(u32),
    /// A row of 64 bits.
    Wide(u32),
    /// Two rows of 64 bits, that of the lower halves first: 128 bits.
    Pair(u32),
    /// A predicate.
    Mask(u32),
}

impl Slot {
    /// Bytes of one lane; 0 for a predicate.
    pub fn bytes(self) -> usize {
        match self {
            Slot::Narrow(_) => 4,
            Slot::Wide(_) => 8,
            Slot::Pair(_) => 16,
            Slot::Mask(_) => 0,
        }
    }
}

/// What a register holds when a function starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Preset {
    /// A constant.
    Bits(u64),
    /// An address in the symbol's own space, and bytes to add.
    Symbol(Symbol, i64),
    /// An address in the function's local memory.
    Frame(i64),
    /// A parameter of a kernel: offset, bytes, and whether it is extended by its sign.
    Parameter(u32, u8, bool),
    /// A special register.
    Special(Special),
}

/// A special register that does not change while a thread runs. The number is the dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "PTX names them")]
pub enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    LaneId,
    WarpId,
    NwarpId,
    SmId,
    NsmId,
    GridId,
    LanemaskEq,
    LanemaskLe,
    LanemaskLt,
    LanemaskGe,
    LanemaskGt,
    ClusterId(u8),
    NclusterId(u8),
    ClusterCtaid(u8),
    ClusterNctaid(u8),
    ClusterCtarank,
    ClusterNctarank,
    IsExplicitCluster,
    DynamicShared,
    TotalShared,
    /// %envreg1 and %envreg2: the upper and the lower half of the address.
    GridWorkspace(u8),
}

/// An instruction.
pub struct Instruction {
    /// The lanes that execute it; all if `None`.
    pub guard: Option<Condition>,
    /// What it does.
    pub action: Action,
    /// Its line in the PTX text.
    pub line: u32,
    /// File and line of the source, 0 if unknown.
    pub source: (u32, u32),
    /// The order of its accesses to memory.
    pub order: Order,
}

/// What an instruction does.
pub enum Action {
    /// Computes registers.
    Compute(Compute),
    /// Accesses memory.
    Access(Access),
    /// Computes registers from those of several lanes, which wait for each other: the row of their
    /// masks.
    Collective(u32, Compute),
    /// Waits for the lanes of a row of masks.
    WarpBarrier(u32),
    /// Goes to an instruction; lanes that do not meet the others at `join`.
    Branch {
        /// The target.
        target: u32,
        /// Where both sides meet, or [`flow::NEVER`].
        join: u32,
    },
    /// Goes to one of several instructions.
    Indexed {
        /// The row of indices.
        index: u32,
        /// The targets.
        targets: Vec<u32>,
        /// Where all meet.
        join: u32,
    },
    /// The lanes that a branch separated meet here.
    Join,
    /// Calls a function.
    Call(Box<Call>),
    /// Changes the function's local memory.
    Stack(Stack),
    /// Returns from the function, or ends the thread.
    Return,
    /// Ends the thread.
    Exit,
    /// Waits for the threads of the block.
    Barrier(Barrier),
    /// Waits for the threads of the cluster.
    ClusterBarrier {
        /// The thread arrives.
        arrives: bool,
        /// The thread waits for the others.
        waits: bool,
    },
    /// Lets others run.
    Yield,
    /// Ends the kernel with a fault.
    Trap(crate::memory::fault::FaultKind),
}

/// A change of the end of a function's local memory.
#[derive(Clone, Copy, Debug)]
pub enum Stack {
    /// `alloca`: moves the end.
    Allocate {
        /// The row for the address.
        to: u32,
        /// The row of the numbers of bytes.
        bytes: u32,
        /// The alignment of the address.
        align: usize,
    },
    /// `stacksave`: the row for the end.
    Save(u32),
    /// `stackrestore`: the row of an end before.
    Restore(u32),
}

/// A barrier of a block.
#[derive(Clone, Copy, Debug)]
pub struct Barrier {
    /// The row of its number.
    pub number: u32,
    /// The row of the number of threads; `None`: all of the block.
    pub threads: Option<u32>,
    /// False if the thread only arrives.
    pub waits: bool,
    /// A predicate that is combined over all threads.
    pub reduction: Option<(Reduction, Condition)>,
}

/// How a barrier combines predicates, and where the result goes.
#[derive(Clone, Copy, Debug)]
pub enum Reduction {
    /// The number of true ones, in a row.
    Count(u32),
    /// All, in a predicate.
    All(u32),
    /// Any, in a predicate.
    Any(u32),
}

/// A call.
pub struct Call {
    /// What is called.
    pub callee: Callee,
    /// Arguments in the caller's local memory: offset and bytes.
    pub arguments: Vec<Parameter>,
    /// Where the result goes.
    pub result: Option<Parameter>,
}

/// What a call calls.
#[derive(Clone, Copy, Debug)]
pub enum Callee {
    /// A function of the module.
    Function(u32),
    /// The functions at a row of addresses.
    Indirect(u32),
    /// A function of the driver.
    Builtin(Builtin),
}

/// Functions that the driver provides to kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "C names them")]
pub enum Builtin {
    Vprintf,
    Malloc,
    Free,
    AssertFail,
    SetConditional,
}

impl Builtin {
    /// The function of a name.
    pub fn named(name: &str) -> Option<Builtin> {
        Some(match name {
            "vprintf" => Builtin::Vprintf,
            "malloc" => Builtin::Malloc,
            "free" => Builtin::Free,
            "__assertfail" | "__assert_fail" => Builtin::AssertFail,
            "cudaGraphSetConditional" => Builtin::SetConditional,
            _ => return None,
        })
    }
}

impl Program {
    /// Reads a module for a device of this compute capability, such as 90.
    pub fn load(text: &str, capability: u32) -> Result<Program> {
        let tree = parse::module(text)?;
        if tree.target > capability {
            return Err(LoadError::invalid(
                2,
                format!("sm_{} is newer than this device, which is sm_{capability}", tree.target),
            ));
        }
        lower::program(&tree)
    }

    /// The kernel of a name.
    pub fn kernel(&self, name: &str) -> Option<u32> {
        let is_it = |function: &Function| {
            function.is_kernel && function.is_defined && function.name == name
        };
        self.functions.iter().position(is_it).map(|index| index as u32)
    }

    /// All functions that a function can reach, itself included.
    pub fn reachable(&self, from: u32) -> Vec<u32> {
        let mut list = vec![from];
        let mut at = 0;
        while let Some(index) = list.get(at) {
            for called in &self.functions[*index as usize].calls {
                if !list.contains(called) {
                    list.push(*called);
                }
            }
            at += 1;
        }
        list
    }

    /// Where the shared variables of a kernel begin, by variable, and how many bytes they have
    /// together. Those whose size the launch determines begin behind the others.
    pub fn shared_layout(&self, kernel: u32) -> (BTreeMap<u32, usize>, usize) {
        let mut used: Vec<u32> = self
            .reachable(kernel)
            .iter()
            .flat_map(|function| self.functions[*function as usize].shared.iter().copied())
            .collect();
        used.sort_unstable();
        used.dedup();
        let of = |index: &u32| &self.variables[*index as usize];
        let (fixed, open): (Vec<u32>, Vec<u32>) = used.into_iter().partition(|it| of(it).bytes > 0);
        let (mut layout, mut end) = (BTreeMap::new(), 0usize);
        for index in fixed {
            let start = end.next_multiple_of(of(&index).align.max(1));
            layout.insert(index, start);
            end = start + of(&index).bytes;
        }
        let open_align = open.iter().map(|index| of(index).align).max().unwrap_or(1);
        let start = end.next_multiple_of(open_align.max(1));
        for index in open {
            layout.insert(index, start);
        }
        (layout, start)
    }
}

/// A function that is called but defined nowhere.
fn unresolved(line: u32, name: &str) -> LoadError {
    let message = format!("Unresolved extern function '{name}'");
    LoadError { kind: LoadErrorKind::Unresolved, line, message }
}
