//! Programs: a list of calls with streams, events and memory.

use std::fmt;

pub type Id = usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A stream of the library's pool.
    Pool,
    /// The device's legacy default stream.
    Legacy,
    /// The per-thread default stream of a host thread.
    PerThread,
    /// An external stream that is ordered with the legacy default stream.
    Blocking,
    /// An external stream that is not ordered with it.
    NonBlocking,
}

#[derive(Clone, Copy, Debug)]
pub struct Stream {
    pub device: i32,
    pub kind: Kind,
}

impl Stream {
    /// Returns whether the legacy default stream and this stream wait for each other.
    pub fn is_blocking(self) -> bool {
        matches!(self.kind, Kind::PerThread | Kind::Blocking)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// `None`: pinned host memory.
    pub device: Option<i32>,
    pub bytes: u64,
}

/// Bytes of a block: `rows` pieces, `pitch` bytes apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub block: Id,
    pub offset: u64,
    pub bytes: u64,
    pub rows: u64,
    pub pitch: u64,
}

impl Span {
    pub fn plain(block: Id, offset: u64, bytes: u64) -> Span {
        Span { block, offset, bytes, rows: 1, pitch: bytes }
    }

    /// Start and end offset of each piece.
    pub fn runs(self) -> impl Iterator<Item = (u64, u64)> {
        (0..self.rows).map(move |row| {
            let first = self.offset + row * self.pitch;
            (first, first + self.bytes)
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Read,
    Write,
    Both,
}

impl Mode {
    pub fn writes(self) -> bool {
        self != Mode::Read
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    Copy,
    Copy2d,
    Fill,
    Random,
    /// A jit function; its inputs, then its output.
    Elements,
    /// A kernel compiled by the library; the launch states how its arguments are accessed.
    Kernel,
    /// A kernel of the host, which reports its access with `tcuda_sanitizer_access`.
    HostKernel,
    Broadcast,
    Gather,
    Sum,
}

impl How {
    /// The label in reports.
    pub fn label(self) -> &'static str {
        match self {
            How::Copy => "tcuda_copy",
            How::Copy2d => "tcuda_copy_2d",
            How::Fill => "tcuda_fill",
            How::Random => "tcuda_random_uniform",
            How::Elements => "tcuda_jit_call",
            How::Kernel => "tcuda_kernel_launch",
            How::HostKernel => "own kernel",
            How::Broadcast => "tcuda_comm_broadcast_into",
            How::Gather => "tcuda_comm_gather_into",
            How::Sum => "tcuda_comm_reduce_add_into",
        }
    }
}

#[derive(Clone, Debug)]
pub enum Step {
    Allocate {
        block: Id,
        stream: Id,
    },
    Free {
        block: Id,
    },
    RecordStream {
        block: Id,
        stream: Id,
    },
    Pin {
        block: Id,
    },
    Unpin {
        block: Id,
    },
    HostRecord {
        block: Id,
        stream: Id,
    },
    /// Work on one stream.
    Work {
        how: How,
        stream: Id,
        touches: Vec<(Span, Mode)>,
    },
    /// One operation on several streams; each access names its stream.
    Collective {
        how: How,
        parts: Vec<(Id, Span, Mode)>,
    },
    /// A copy to pageable host memory; it returns when it is complete.
    Fetch {
        stream: Id,
        span: Span,
    },
    Record {
        event: Id,
        stream: Id,
    },
    Wait {
        event: Id,
        stream: Id,
    },
    WaitStream {
        stream: Id,
        other: Id,
    },
    /// Destroys the event and creates another.
    Recreate {
        event: Id,
    },
    SyncEvent {
        event: Id,
    },
    SyncStream {
        stream: Id,
    },
    SyncDevice {
        device: i32,
    },
    /// Polls until the event is complete.
    PollEvent {
        event: Id,
    },
    PollStream {
        stream: Id,
    },
    /// Queues a host function. `awaited`: the host then waits until it has begun, without a call of
    /// the library.
    Callback {
        stream: Id,
        awaited: bool,
    },
    Begin {
        graph: Id,
        stream: Id,
    },
    End {
        graph: Id,
    },
    Launch {
        graph: Id,
        stream: Id,
    },
    Drop {
        graph: Id,
    },
}

#[derive(Clone, Debug)]
pub struct Line {
    pub step: Step,
    /// The host thread that makes the call.
    pub thread: usize,
    /// The line only orders others, so that the racy twin may lack it.
    pub orders: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Program {
    pub devices: i32,
    pub peers: bool,
    pub streams: Vec<Stream>,
    pub blocks: Vec<Block>,
    pub events: usize,
    pub graphs: usize,
    pub lines: Vec<Line>,
}

impl Program {
    pub fn uses(&self, wanted: How) -> bool {
        self.lines.iter().any(|line| match &line.step {
            Step::Work { how, .. } | Step::Collective { how, .. } => *how == wanted,
            _ => false,
        })
    }

    /// Returns the program without one line.
    pub fn without(&self, line: usize) -> Program {
        let mut other = self.clone();
        other.lines.remove(line);
        other
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} devices, peers: {}", self.devices, self.peers)?;
        for (number, stream) in self.streams.iter().enumerate() {
            writeln!(f, "stream {number}: {:?} of device {}", stream.kind, stream.device)?;
        }
        for (number, block) in self.blocks.iter().enumerate() {
            match block.device {
                Some(device) => {
                    writeln!(f, "block {number}: {} bytes of device {device}", block.bytes)?;
                }
                None => writeln!(f, "block {number}: {} pinned bytes", block.bytes)?,
            }
        }
        for (number, line) in self.lines.iter().enumerate() {
            let marks = if line.orders { "  // order" } else { "" };
            writeln!(f, "{number:3} thread {}: {:?}{marks}", line.thread, line.step)?;
        }
        Ok(())
    }
}
