//! Pinned memory under random programs. Whatever the schedule, bytes that queued work reads or
//! writes do not change until the work is complete, and the counters are exact.

use super::{Bench, KIB, MIB, on_machine};
use crate::gpu::stream::Stream;
use crate::memory::config::host_settings::HostSettings;
use crate::ops::copy;
use proptest::prelude::*;

const STREAMS: usize = 3;

/// Numbers that choose a block are taken modulo the number of candidates.
#[derive(Clone, Debug)]
enum Op {
    Malloc {
        bytes: u64,
    },
    Free {
        pick: usize,
    },
    /// A copy to device memory by the library, which records the use.
    Copy {
        pick: usize,
        stream: usize,
    },
    /// A copy by the driver; the host records the use at some address inside the block.
    Recorded {
        pick: usize,
        stream: usize,
    },
    Synchronize {
        stream: usize,
    },
    EmptyCache,
    Settings {
        once: bool,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let bytes = prop_oneof![
        6 => 1..=300u64,
        3 => 1..=64 * KIB,
        2 => 60 * KIB..=300 * KIB,
        1 => MIB..=5 * MIB,
    ];
    prop_oneof![
        10 => bytes.prop_map(|bytes| Op::Malloc { bytes }),
        8 => any::<usize>().prop_map(|pick| Op::Free { pick }),
        6 => (any::<usize>(), 0..STREAMS).prop_map(|(pick, stream)| Op::Copy { pick, stream }),
        3 => (any::<usize>(), 0..STREAMS).prop_map(|(pick, stream)| Op::Recorded { pick, stream }),
        1 => (0..STREAMS).prop_map(|stream| Op::Synchronize { stream }),
        1 => Just(Op::EmptyCache),
        1 => any::<bool>().prop_map(|once| Op::Settings { once }),
    ]
}

struct Block {
    address: usize,
    bytes: u64,
    byte: u8,
}

/// The number of bytes of a copy.
const MOST: u64 = 256;

struct World<'a> {
    bench: Bench<'a>,
    streams: Vec<&'a Stream>,
    blocks: Vec<Block>,
    /// Device memory, and the bytes that a copy must have written there.
    copies: Vec<(u64, u64, u8)>,
    next: u8,
    /// The largest numbers of active blocks and bytes after an operation. Only the last step of an
    /// allocation adds to them.
    peaks: [i64; 2],
}

impl World<'_> {
    fn fill(block: &Block) {
        // SAFETY: the block is allocated.
        unsafe {
            std::ptr::write_bytes(block.address as *mut u8, block.byte, block.bytes as usize);
        }
    }

    fn apply(&mut self, op: &Op) {
        let gpus = self.bench.gpus;
        let count = self.blocks.len();
        match *op {
            Op::Malloc { bytes } => {
                let address = self.bench.pin(bytes);
                self.next = self.next.wrapping_add(1);
                let block = Block { address, bytes, byte: self.next };
                for other in &self.blocks {
                    let apart = other.address + other.bytes as usize <= address
                        || address + bytes as usize <= other.address;
                    assert!(apart, "two blocks overlap");
                }
                // A host writes to new memory at once.
                Self::fill(&block);
                self.blocks.push(block);
            }
            Op::Free { pick } if count > 0 => {
                let block = self.blocks.swap_remove(pick % count);
                self.bench.unpin(block.address);
            }
            Op::Copy { pick, stream } | Op::Recorded { pick, stream } if count > 0 => {
                let Block { address, bytes, byte } = self.blocks[pick % count];
                let (stream, bytes) = (self.streams[stream], bytes.min(MOST));
                let device = self.bench.malloc(stream, bytes);
                self.copies.push((device, bytes, byte));
                if matches!(op, Op::Copy { .. }) {
                    copy::copy(gpus, device, address as u64, bytes, stream).unwrap();
                } else {
                    let _context = self.bench.device.enter().unwrap();
                    // SAFETY: both ranges are alive.
                    unsafe {
                        gpus.driver().cuMemcpyAsync(
                            device,
                            address as u64,
                            bytes as usize,
                            stream.native(),
                        )
                    }
                    .unwrap();
                    self.bench.use_on(address + bytes as usize - 1, stream);
                }
            }
            Op::Synchronize { stream } => self.streams[stream].synchronize(gpus).unwrap(),
            Op::EmptyCache => gpus.pinned().empty_cache(gpus).unwrap(),
            Op::Settings { once } => {
                let most = if once { 100_000 } else { u64::MAX };
                let default = HostSettings::DEFAULT;
                self.bench.set(HostSettings { max_cached_bytes: most, ..default });
            }
            _ => (),
        }
        self.bench.check_host();
        let stats = self.bench.host();
        let active = [stats.active_requests.current, stats.active_bytes.current];
        assert!(active[0] >= self.blocks.len() as i64, "{active:?} of {}", self.blocks.len());
        self.peaks = [self.peaks[0].max(active[0]), self.peaks[1].max(active[1])];
        assert_eq!([stats.active_requests.peak, stats.active_bytes.peak], self.peaks);
    }

    fn finish(mut self) {
        let gpus = self.bench.gpus;
        for stream in &self.streams {
            stream.synchronize(gpus).unwrap();
        }
        let target = [0u8; MOST as usize];
        for (device, bytes, byte) in self.copies.drain(..) {
            let to = target.as_ptr() as u64;
            copy::copy(gpus, to, device, bytes, self.streams[0]).unwrap();
            self.streams[0].synchronize(gpus).unwrap();
            // SAFETY: written by the copy, which the compiler does not see.
            let found = unsafe { target.as_ptr().cast::<[u8; MOST as usize]>().read_volatile() };
            let right = found[..bytes as usize].iter().all(|found| *found == byte);
            assert!(right, "{:?} instead of {byte}: reused too early", &found[..8]);
            self.bench.free(device);
        }
        for block in self.blocks.drain(..) {
            self.bench.unpin(block.address);
        }
        // All work is complete: every freed block is free, and is given back.
        self.bench.gpus.pinned().empty_cache(gpus).unwrap();
        assert_eq!(self.bench.host().active_requests.current, 0);
        assert_eq!(self.bench.host().allocated_bytes.current, 0);
        self.bench.check_host();
    }
}

fn run(options: &str, ops: &[Op]) {
    on_machine(options, |bench| {
        let streams = (0..STREAMS).map(|_| bench.stream()).collect();
        let (blocks, copies) = (Vec::new(), Vec::new());
        let mut world = World { bench, streams, blocks, copies, next: 0, peaks: [0; 2] };
        for op in ops {
            world.apply(op);
        }
        world.finish();
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_reused_early(seed in 0u32..1000, ops in prop::collection::vec(op(), 1..150)) {
        run(&format!("memory=1GiB,schedule=adversarial:{seed}"), &ops);
    }

    #[test]
    fn everything_is_counted_at_once(ops in prop::collection::vec(op(), 1..150)) {
        run("memory=1GiB", &ops);
    }
}
