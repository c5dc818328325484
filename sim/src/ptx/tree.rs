//! The tree of a module. Names are slices of its text.

use super::types::Type;

/// A module.
#[derive(Debug, Default)]
pub struct Module<'a> {
    /// The version of PTX: 8.3 is (8, 3).
    pub version: (u32, u32),
    /// The target: 90 is sm_90.
    pub target: u32,
    /// Variables outside of functions.
    pub variables: Vec<Variable<'a>>,
    /// Functions and kernels; a function can be declared before it is defined.
    pub functions: Vec<Function<'a>>,
    /// The names of source files, by their number.
    pub files: Vec<(u32, &'a str)>,
    /// Other names of functions: `.alias`.
    pub aliases: Vec<(&'a str, &'a str)>,
}

/// A state space of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "PTX names them")]
pub enum Space {
    Generic,
    Global,
    Shared,
    Local,
    Const,
    Param,
}

/// How a name is visible to other modules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "PTX names them")]
pub enum Linkage {
    #[default]
    Internal,
    Visible,
    Weak,
    Extern,
}

/// A variable in memory, or a parameter.
#[derive(Clone, Debug)]
pub struct Variable<'a> {
    /// Its name.
    pub name: &'a str,
    /// Where it is.
    pub space: Space,
    /// The type of an element.
    pub of: Type,
    /// Number of elements; 0 for an array without a size.
    pub count: usize,
    /// Alignment in bytes.
    pub align: usize,
    /// How it is visible.
    pub linkage: Linkage,
    /// Its first elements; the others are zero.
    pub values: Vec<Operand<'a>>,
    /// The register of a parameter or result that is one: `.reg`.
    pub register: Option<u32>,
    /// The host accesses it at the same address: `.attribute(.managed)`.
    pub is_managed: bool,
}

impl Variable<'_> {
    /// Bytes of the variable.
    pub fn bytes(&self) -> usize {
        self.of.bytes().saturating_mul(self.count)
    }
}

/// A function or a kernel.
#[derive(Debug, Default)]
pub struct Function<'a> {
    /// Its name.
    pub name: &'a str,
    /// True for a kernel.
    pub is_kernel: bool,
    /// How it is visible.
    pub linkage: Linkage,
    /// The line of its name.
    pub line: u32,
    /// What it returns: none or one.
    pub results: Vec<Variable<'a>>,
    /// Its parameters.
    pub parameters: Vec<Variable<'a>>,
    /// Directives such as `.maxntid` with their numbers.
    pub directives: Vec<(&'a str, Vec<u32>)>,
    /// Its body; `None` if it is only declared.
    pub body: Option<Body<'a>>,
}

/// The body of a function. Names are resolved: a register is a number.
#[derive(Debug, Default)]
pub struct Body<'a> {
    /// Types of the registers.
    pub registers: Vec<Type>,
    /// Variables of the function; names of inner scopes are unique by their index here.
    pub variables: Vec<Variable<'a>>,
    /// The statements in order.
    pub statements: Vec<Statement<'a>>,
    /// Number of labels.
    pub labels: u32,
    /// Targets of indexed branches: the list's label, and the labels in it.
    pub targets: Vec<(u32, Vec<u32>)>,
    /// Prototypes of indirect calls: the label, and its results and parameters.
    pub prototypes: Vec<(u32, Vec<Variable<'a>>, Vec<Variable<'a>>)>,
}

/// A statement of a body.
#[derive(Debug)]
pub enum Statement<'a> {
    /// A label.
    Label(u32),
    /// A line of the source: file, line.
    Location(u32, u32),
    /// An instruction.
    Instruction(Instruction<'a>),
}

/// An instruction.
#[derive(Debug)]
pub struct Instruction<'a> {
    /// Its line in the text.
    pub line: u32,
    /// The predicate's register, and whether it is negated.
    pub guard: Option<(u32, bool)>,
    /// Its name with all modifiers.
    pub name: &'a str,
    /// Its operands.
    pub operands: Vec<Operand<'a>>,
}

/// An operand.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand<'a> {
    /// A register.
    Register(u32),
    /// One of the special registers, with its `%`.
    Special(&'a str),
    /// An integer.
    Integer(i128),
    /// The bits of a `float`.
    Single(u32),
    /// The bits of a `double`, or a decimal number.
    Double(u64),
    /// A variable of the function, and a number of bytes from its start.
    Local(u32, i64),
    /// A label of the function.
    Label(u32),
    /// Another name, and a number of bytes from its start.
    Symbol(&'a str, i64),
    /// The generic address of a variable outside of functions; only in initial values.
    GenericSymbol(&'a str, i64),
    /// `[base + offset]`; base is a register, a name or a number.
    Address(Box<Operand<'a>>, i64),
    /// `{a, b}`, a register of a vector, the parentheses of calls, and an address with more than
    /// one part, as that of a texture.
    Vector(Vec<Operand<'a>>),
    /// `p|q`.
    Pair(Box<Operand<'a>>, Box<Operand<'a>>),
    /// `!p`.
    Not(Box<Operand<'a>>),
    /// `-r`: a register with a sign, in `vmad`.
    Negated(Box<Operand<'a>>),
    /// `r.b0`: a register, and which part of it.
    Part(Box<Operand<'a>>, &'a str),
    /// `_`: the value is not wanted.
    Sink,
}
