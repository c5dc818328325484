//! Races as they are reported.

use std::fmt;

/// How races are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The memory that may be used to record accesses: 24 bytes for each word of 4 bytes that a
    /// kernel accesses, in pages of 4 KiB of the kernel's memory. Accesses beyond it are not
    /// checked, which the [`Summary`] says.
    pub bytes: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { bytes: 2 << 30 }
    }
}

/// What a thread does in a race.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A plain read.
    Read,
    /// A plain write.
    Write,
    /// An atomic, volatile or relaxed read.
    AtomicRead,
    /// An atomic operation, or a volatile or relaxed write.
    AtomicWrite,
}

/// An access of a race.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// What it does.
    pub action: Action,
    /// True for a copy that runs beside the thread that started it.
    pub is_copy: bool,
    /// The block in the grid.
    pub block: [u32; 3],
    /// The thread in the block.
    pub thread: [u32; 3],
    /// The line of the PTX text; 0 if unknown.
    pub line: u32,
    /// The line of the source and its file, where the PTX has them.
    pub source: Option<(String, u32)>,
}

/// A state space in which threads race.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Global memory.
    Global,
    /// Shared memory of a block.
    Shared,
}

/// Two accesses that nothing orders, of which at least one writes and at least one is not atomic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Race {
    /// The kernel.
    pub kernel: String,
    /// Where it is.
    pub space: Space,
    /// The first address that both access; in shared memory, from the start of the block's.
    pub address: u64,
    /// Bytes of the second access.
    pub bytes: u32,
    /// The variable of the module at the address, and the bytes from its start.
    pub variable: Option<(String, u64)>,
    /// The access that was executed first.
    pub first: Access,
    /// The access that was executed second.
    pub second: Access,
    /// True if the second access writes the value that the first one wrote.
    ///
    /// It is a race by the rules of PTX and reported as one, since the compiler may split or widen
    /// the writes. But programs often set flags in this way, and it is harmless on known GPUs. So
    /// it is marked and counted apart: a reader can leave it out.
    pub is_same_value: bool,
}

/// The races of a launch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The kernel.
    pub kernel: String,
    /// Accesses that race with an earlier one.
    pub races: u64,
    /// Writes that race with an earlier write of the same value.
    pub same_value: u64,
    /// Pairs of instructions that were reported.
    pub reported: u32,
    /// True if not all accesses were checked, since recording them needs more memory than
    /// [`Settings::bytes`], or the grid has 2^31 threads or more.
    pub is_incomplete: bool,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match (self.action, self.is_copy) {
            (Action::Read, false) => "reads",
            (Action::Write, false) => "writes",
            (Action::Read, true) => "reads by an asynchronous copy",
            (Action::Write, true) => "writes by an asynchronous copy",
            (Action::AtomicRead, _) => "reads atomically",
            (Action::AtomicWrite, _) => "writes atomically",
        };
        write!(f, "thread {:?} of block {:?} {what}", self.thread, self.block)?;
        match &self.source {
            Some((file, line)) => write!(f, " at {file}:{line} (line {} of the PTX)", self.line),
            None => write!(f, " at line {} of the PTX", self.line),
        }
    }
}

impl fmt::Display for Race {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Race { kernel, space, address, bytes, variable, first, second, .. } = self;
        let space = match space {
            Space::Global => "global",
            Space::Shared => "shared",
        };
        write!(f, "{kernel}: a race on {bytes} bytes of {space} memory at {address:#x}")?;
        if let Some((name, offset)) = variable {
            write!(f, " ({name} + {offset})")?;
        }
        write!(f, ": {first}, and {second}; no barrier and no fence orders them")?;
        if self.is_same_value {
            write!(f, ", but both write the same value")?;
        }
        write!(f, ".")
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary { kernel, races, same_value, reported, is_incomplete } = self;
        write!(
            f,
            "{kernel}: {races} accesses race with an earlier one, and {same_value} writes with one \
             of the same value; {reported} pairs of instructions are reported."
        )?;
        if *is_incomplete {
            write!(
                f,
                " Not all accesses were checked: to record them needs too much memory, or the grid \
                 has too many threads."
            )?;
        }
        Ok(())
    }
}
