//! A table for developers: which memory do the traces of programs reserve and not need?
//!
//! ```sh
//! TCUDA_TRACES="$(echo data/traces/*.xz)" TCUDA_SIZES="1 0.43" TCUDA_PARTS=1 \
//!     cargo test --release --lib trace_excess -- --ignored --nocapture
//! ```
//!
//! A row for each trace and size factor: peak reserved over peak allocated after each pass
//! (`TCUDA_PASSES`); the same if every stream and size class had only its own peak; the driver
//! calls of each pass; and how often the first pass created handles, mapped them, and made memory
//! accessible. `TCUDA_PARTS` adds the state of each arena at the time of the largest reserved
//! memory, in hundredths of the peak of the allocated memory: in free whole handles, in other free
//! memory at the end, and in other free memory below.

use super::{Bench, MIB, on_machine};
use crate::driver::Call;
use crate::memory::arena::ArenaGuard;
use crate::memory::arena::block::{NONE, State};
use crate::memory::config::size::{Class, UNIT, round_size};
use crate::memory::stats::ledger::ALLOCATED_BYTES;
use std::collections::{BTreeMap, HashMap};
use std::process::Command;

/// An event of a trace.
#[derive(Clone, Copy)]
enum Event {
    /// Id, bytes and stream.
    Malloc(u64, u64, usize),
    Free(u64),
}

fn read(path: &str, size: f64) -> Vec<Event> {
    let unpack = "import lzma, sys; sys.stdout.buffer.write(lzma.open(sys.argv[1]).read())";
    let text = Command::new("python3").args(["-c", unpack, path]).output().unwrap().stdout;
    let text = String::from_utf8(text).unwrap();
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let event = |line: &str| {
        let mut fields = line.split(' ');
        let kind = fields.next().unwrap();
        let mut number = || fields.next().unwrap().parse::<u64>().unwrap();
        match kind {
            "a" => {
                let (id, bytes, stream) = (number(), number(), number());
                Event::Malloc(id, ((bytes as f64 * size) as u64).max(1), stream as usize)
            }
            _ => Event::Free(number()),
        }
    };
    lines.map(event).collect()
}

/// The memory of an arena, in bytes.
#[derive(Clone, Default)]
struct Parts {
    class: &'static str,
    mapped: u64,
    allocated: u64,
    pending: u64,
    /// Free: in whole handles, in others at the end, in others below.
    idle: u64,
    end: u64,
    below: u64,
    handles: usize,
    remapped: u64,
    views: usize,
}

/// The memory of an arena.
fn parts(state: &mut ArenaGuard<'_>) -> Parts {
    let arena = state.arena();
    let mut parts = Parts { mapped: state.segment.bytes(), ..Parts::default() };
    parts.class = if arena.class == Class::Small { "small" } else { "large" };
    let mut free = Vec::new();
    let starts = std::iter::once(state.first);
    let starts: Vec<u32> = starts.chain(state.segment.views.live().map(|a| a.block)).collect();
    for (round, first) in starts.into_iter().enumerate() {
        let mut id = first;
        while id != NONE {
            let block = &state.blocks[id];
            let bytes = block.bytes() as u64;
            match block.state {
                State::Allocated => parts.allocated += bytes,
                State::Pending => parts.pending += bytes,
                State::Lent => parts.remapped += bytes,
                State::Free | State::Quick | State::ForeignFree if round == 0 => {
                    match free.last_mut() {
                        Some((_, end)) if *end == block.start => *end = block.end(),
                        _ => free.push((block.start, block.end())),
                    }
                }
                State::Free | State::Quick | State::ForeignFree => parts.below += bytes,
                _ => (),
            }
            id = block.next;
        }
    }
    for (start, end) in &free {
        let inside = state.segment.mappings().iter();
        let inside = inside.filter(|m| m.start >= *start && m.end() <= *end && m.handle != 0);
        let idle: u64 = inside.clone().map(|m| u64::from(m.units) * UNIT).sum();
        let rest = u64::from(end - start) * UNIT - idle;
        parts.idle += idle;
        match *end == state.end() {
            true => parts.end += rest,
            false => parts.below += rest,
        }
    }
    parts.handles = state.segment.mappings().len();
    parts.views = state.segment.views.len();
    parts
}

/// A block of the trace that is live.
struct Live {
    address: u64,
    bytes: u64,
    owner: (usize, bool),
    /// The place of its pointer: remaining blocks are freed in this order, as in `peers`.
    slot: usize,
}

/// The measurements of a replay.
#[derive(Default)]
struct Seen {
    most: u64,
    allocated: u64,
    allocated_peak: u64,
    /// By stream and size class: currently allocated bytes, and their peak.
    owners: BTreeMap<(usize, bool), (u64, u64)>,
    /// The time of the largest reserved memory.
    when: String,
    table: Vec<Parts>,
}

impl Seen {
    fn add(&mut self, owner: (usize, bool), bytes: u64) {
        let own = self.owners.entry(owner).or_default();
        own.0 += bytes;
        own.1 = own.1.max(own.0);
        self.allocated += bytes;
        self.allocated_peak = self.allocated_peak.max(self.allocated);
    }

    fn remove(&mut self, live: &Live) {
        self.owners.get_mut(&live.owner).unwrap().0 -= live.bytes;
        self.allocated -= live.bytes;
    }
}

/// Replays a trace for some passes, prints a row, and returns the driver calls of each pass.
fn replay(bench: Bench, events: &[Event], passes: usize, name: &str) -> Vec<u64> {
    let (memory, mut seen) = (bench.memory(), Seen::default());
    let mut streams = vec![bench.device.streams.default()];
    let (mut ratios, mut calls, mut mapping) = (Vec::new(), Vec::new(), [0; 3]);
    for pass in 0..passes {
        let mut live: HashMap<u64, Live> = HashMap::new();
        let (mut slots, mut vacant) = (0, Vec::new());
        let before = bench.all_calls();
        for (at, event) in events.iter().enumerate() {
            let (id, bytes, stream) = match *event {
                Event::Malloc(id, bytes, stream) => (id, bytes, stream),
                Event::Free(id) => {
                    let block = live.remove(&id).unwrap();
                    bench.free(block.address);
                    seen.remove(&block);
                    vacant.push(block.slot);
                    continue;
                }
            };
            while streams.len() <= stream {
                streams.push(bench.stream());
            }
            let address = bench.malloc(streams[stream], bytes);
            let bytes = round_size(bytes);
            let owner = (stream, bytes <= MIB);
            let slot = vacant.pop().unwrap_or_else(|| {
                slots += 1;
                slots - 1
            });
            live.insert(id, Live { address, bytes, owner, slot });
            seen.add(owner, bytes);
            let reserved = memory.virtual_memory.limit.claimed();
            if reserved > seen.most {
                seen.most = reserved;
                seen.when = format!("pass {pass}, event {at}, {bytes} bytes");
                seen.table.clear();
                let _ = memory.each_arena(|state| {
                    seen.table.push(parts(state));
                    Ok(())
                });
            }
        }
        calls.push(bench.all_calls() - before);
        if pass == 0 {
            use Call::{cuMemCreate, cuMemMap, cuMemSetAccess};
            mapping = [cuMemCreate, cuMemMap, cuMemSetAccess].map(|call| bench.calls(call));
        }
        ratios.push(format!("{:.4}", seen.most as f64 / seen.allocated_peak as f64));
        let mut rest: Vec<Live> = live.into_values().collect();
        rest.sort_by_key(|block| block.slot);
        for block in rest {
            bench.free(block.address);
            seen.remove(&block);
        }
    }
    bench.check();
    let counters = memory.statistics().counters;
    assert_eq!(counters[ALLOCATED_BYTES][0].peak as u64, seen.allocated_peak);
    let all = seen.allocated_peak as f64;
    let floor = seen.owners.values().map(|own| own.1).sum::<u64>() as f64 / all;
    let ratios = ratios.join(" ");
    println!("{name:26} {ratios} floor {floor:.4} calls {calls:?} mapping {mapping:?}");
    if std::env::var("TCUDA_PARTS").is_ok() {
        println!("    {}", seen.when);
        let per = |bytes: u64| bytes as f64 / all * 100.0;
        for (index, p) in seen.table.iter().enumerate() {
            println!(
                "    {index} {} mapped {:8.3} allocated {:8.3} pending {:6.3} remapped {:6.3}, \
                 free: handles {:6.3} end {:6.3} below {:6.3}; {} handles, {} views",
                p.class,
                per(p.mapped),
                per(p.allocated),
                per(p.pending),
                per(p.remapped),
                per(p.idle),
                per(p.end),
                per(p.below),
                p.handles,
                p.views
            );
        }
        for ((stream, is_small), (_, peak)) in &seen.owners {
            let class = if *is_small { "small" } else { "large" };
            println!("    stream {stream} {class} at most {:8.3}", per(*peak));
        }
    }
    calls
}

/// A repeated program makes no driver calls, neither with its own sizes nor with scaled sizes.
#[test]
fn a_recorded_program_that_is_repeated_makes_no_driver_call() {
    let (programs, sizes): (&[_], &[_]) = match cfg!(debug_assertions) {
        true => (&["resnet50_train", "vit_streams"], &[1.0, 0.43]),
        false => (
            &[
                "bert_dynamic",
                "detection",
                "gpt2_train",
                "graph_network",
                "resnet50_train",
                "vit_streams",
            ],
            &[1.0, 0.25, 0.35, 0.43, 0.5, 0.7, 1.7, 3.0],
        ),
    };
    for (program, size) in
        programs.iter().flat_map(|name| sizes.iter().map(move |size| (name, *size)))
    {
        let path = format!("{}/data/traces/{program}.trace.xz", env!("CARGO_MANIFEST_DIR"));
        let events = read(&path, size);
        assert!(events.len() > 10_000, "{path}");
        on_machine("memory=141GiB", |bench| {
            let calls = replay(bench, &events, 3, program);
            assert_eq!(calls[1..], [0, 0], "{program} x{size}");
        });
    }
}

#[test]
#[ignore = "a tool, see above"]
fn excess() {
    let variable = |name: &str, default: &str| std::env::var(name).unwrap_or(default.into());
    let passes = variable("TCUDA_PASSES", "3").parse().unwrap();
    for path in variable("TCUDA_TRACES", "").split_whitespace() {
        for size in variable("TCUDA_SIZES", "1").split_whitespace() {
            let events = read(path, size.parse().unwrap());
            let name = path.rsplit('/').next().unwrap().split('.').next().unwrap();
            on_machine("memory=141GiB", |bench| {
                replay(bench, &events, passes, &format!("{name} x{size}"));
            });
        }
    }
}
