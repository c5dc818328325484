//! Random programs: virtual memory compared with a model, invalid addresses that must not crash,
//! and streams that must follow the order of their events.

use super::*;

const G: usize = GRANULARITY;

/// A small random generator with a seed that a failure reports.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

/// What is mapped at a granule: the number of the mapping, its handle and the granule in that.
#[derive(Clone, Copy, PartialEq)]
struct Granule {
    mapping: usize,
    handle: usize,
    offset: usize,
    granted: bool,
}

/// The model of one reservation.
struct Model {
    granules: [Option<Granule>; SIZE],
}

const SIZE: usize = 24;
const HANDLES: usize = 6;

impl Model {
    /// True if the range consists of whole mappings.
    fn is_whole(&self, start: usize, count: usize) -> bool {
        let inside = &self.granules[start..start + count];
        let number =
            |at: usize| self.granules.get(at).copied().flatten().map(|found| found.mapping);
        inside.iter().all(Option::is_some)
            && (start == 0 || number(start - 1) != number(start))
            && number(start + count - 1) != number(start + count)
    }
}

#[test]
fn virtual_memory_behaves_as_its_model() {
    for seed in 0..60 {
        let random = &mut Random(seed);
        let bench = Bench::new("memory=64MiB");
        let stream = bench.stream();
        let base = bench.reserve(SIZE * G);
        let at = |granule: usize| base + (granule * G) as u64;
        let mut model = Model { granules: [None; SIZE] };
        let mut handles = [const { None::<(u64, usize)> }; HANDLES];
        // The first word of each granule of each handle.
        let mut words = [[0u32; 4]; HANDLES];
        for step in 0..150u32 {
            let (start, count) = (random.below(SIZE), 1 + random.below(4));
            let count = count.min(SIZE - start);
            let slot = random.below(HANDLES);
            match random.below(6) {
                0 => {
                    let mapped = model.granules.iter().flatten().any(|found| found.handle == slot);
                    match handles[slot] {
                        // A slot is reused when its last handle is no longer mapped.
                        None if !mapped => {
                            let size = 1 + random.below(4);
                            handles[slot] = Some((bench.create(0, size * G), size));
                            words[slot] = [0; 4];
                        }
                        Some((handle, _)) if random.below(4) == 0 => {
                            ok!(bench, cuMemRelease(handle));
                            handles[slot] = None;
                        }
                        _ => {}
                    }
                }
                1 | 2 => {
                    let Some((handle, size)) = handles[slot] else { continue };
                    // Only whole handles can be mapped; sometimes an invalid offset is tried.
                    let offset = usize::from(random.below(4) == 0);
                    let whole = size.min(SIZE - start);
                    let count = if random.below(4) == 0 { count } else { whole };
                    let fits = (offset, count) == (0, size)
                        && model.granules[start..start + count].iter().all(Option::is_none);
                    let call = cu!(bench, cuMemMap(at(start), count * G, offset * G, handle, 0));
                    assert_eq!(call == 0, fits, "map, seed {seed}, step {step}");
                    for index in 0..if fits { count } else { 0 } {
                        model.granules[start + index] = Some(Granule {
                            mapping: step as usize,
                            handle: slot,
                            offset: offset + index,
                            granted: false,
                        });
                    }
                }
                3 => {
                    // Gaps are allowed, parts of mappings are not.
                    let mapping = |index: usize| model.granules.get(index)?.map(|it| it.mapping);
                    let cuts = |edge: usize| {
                        edge > 0 && mapping(edge).is_some() && mapping(edge) == mapping(edge - 1)
                    };
                    let allowed = !cuts(start) && !cuts(start + count);
                    let call = cu!(bench, cuMemUnmap(at(start), count * G));
                    assert_eq!(call == 0, allowed, "unmap, seed {seed}, step {step}");
                    if allowed {
                        model.granules[start..start + count].fill(None);
                    }
                }
                4 => {
                    let whole = model.is_whole(start, count);
                    let call = bench.grant(at(start), count * G, 0);
                    assert_eq!(call == 0, whole, "access, seed {seed}, step {step}");
                    for found in model.granules[start..start + count].iter_mut().flatten() {
                        found.granted |= whole;
                    }
                }
                _ => {
                    let Some(found) = model.granules[start].filter(|found| found.granted) else {
                        continue;
                    };
                    let word = &mut words[found.handle][found.offset];
                    let mut bytes = [0; 4];
                    assert_eq!(bench.fetch(at(start), &mut bytes, stream), 0);
                    assert_eq!(u32::from_le_bytes(bytes), *word, "seed {seed}, step {step}");
                    *word = step;
                    ok!(bench, cuMemsetD32Async(at(start), step, 1, stream));
                }
            }
        }
        // Used memory is exactly that of live handles and mappings.
        let mut used: Vec<bool> = handles.iter().map(Option::is_some).collect();
        model.granules.iter().flatten().for_each(|found| used[found.handle] = true);
        if used.iter().all(|used| !used) {
            assert_eq!(bench.free(), 64 << 20);
        }
    }
}

#[test]
fn no_device_address_crashes_the_host() {
    for seed in 0..300 {
        let random = &mut Random(seed);
        let schedule = SCHEDULES[seed as usize % SCHEDULES.len()];
        let bench = Bench::new(&format!("devices=2,memory=64MiB,schedule={schedule}"));
        let stream = bench.stream();
        let base = bench.reserve(8 * G);
        let handle = bench.create(random.below(2) as i32, 2 * G);
        ok!(bench, cuMemMap(base + 2 * G as u64, 2 * G, 0, handle, 0));
        if random.below(2) == 0 {
            assert_eq!(bench.grant(base + 2 * G as u64, 2 * G, 0), 0);
        }
        let memory = bench.allocate(3 * G);
        let mut host = vec![0u8; 1 << 16];
        let host = host.as_mut_ptr().expose_provenance() as u64;
        let mut failed = false;
        for _ in 0..20 {
            let mut address = || match random.below(4) {
                0 => memory + random.below(4 * G) as u64,
                1 => base + random.below(1 << 40) as u64,
                _ => base + random.below(8 * G) as u64,
            };
            let (first, second) = (address(), address());
            let bytes = match random.below(3) {
                0 => random.below(1 << 16),
                1 => 1 + random.below(4 * G),
                _ => 1 << (20 + random.below(24)),
            };
            let call = match random.below(4) {
                0 => cu!(bench, cuMemsetD8Async(first, 1, bytes, stream)),
                1 => cu!(bench, cuMemcpyAsync(first, host, bytes.min(1 << 16), stream)),
                2 => cu!(bench, cuMemcpyAsync(host, first, bytes.min(1 << 16), stream)),
                _ => cu!(bench, cuMemcpyAsync(first, second, bytes, stream)),
            };
            let known = matches!(call, 0 | code::INVALID_VALUE | code::ILLEGAL_ADDRESS);
            assert!(known, "{call}, seed {seed}");
            let now = cu!(bench, cuStreamSynchronize(stream));
            assert!(matches!(now, 0 | code::ILLEGAL_ADDRESS), "{now}, seed {seed}");
            assert!(!failed || now != 0, "sticky, seed {seed}");
            // A refused call has no side effects.
            assert!(failed || call != code::INVALID_VALUE || now == 0, "seed {seed}");
            failed = now != 0;
        }
    }
}

#[test]
fn events_make_streams_as_good_as_one() {
    const CELLS: usize = 16;
    const STREAMS: usize = 5;
    for seed in 0..20 {
        let mut results = Vec::new();
        for schedule in SCHEDULES {
            let random = &mut Random(seed);
            let bench = Bench::new(&format!("schedule={schedule}"));
            let mut streams = vec![ptr::null_mut(), ptr::without_provenance_mut(2)];
            for flags in 0..STREAMS as u32 - 2 {
                let mut stream = ptr::null_mut();
                ok!(bench, cuStreamCreateWithPriority(&mut stream, flags % 2, 0));
                streams.push(stream);
            }
            let memory = bench.allocate(CELLS * 64);
            let cell = |index: usize| memory + (index * 64) as u64;
            ok!(bench, cuMemsetD8Async(memory, 0, CELLS * 64, ptr::null_mut()));
            ok!(bench, cuCtxSynchronize());
            // The last use of each cell; the next use waits for it.
            let last: Vec<CUevent> = (0..CELLS).map(|_| bench.event(2)).collect();
            for step in 0..500u32 {
                let stream = streams[random.below(STREAMS)];
                let (from, to) = (random.below(CELLS), random.below(CELLS));
                ok!(bench, cuStreamWaitEvent(stream, last[from], 0));
                ok!(bench, cuStreamWaitEvent(stream, last[to], 0));
                match random.below(2) {
                    0 => ok!(bench, cuMemcpyAsync(cell(to), cell(from), 64, stream)),
                    _ => ok!(bench, cuMemsetD32Async(cell(to), step, 16, stream)),
                }
                ok!(bench, cuEventRecord(last[from], stream));
                ok!(bench, cuEventRecord(last[to], stream));
            }
            ok!(bench, cuCtxSynchronize());
            let mut found = vec![0; CELLS * 64];
            assert_eq!(bench.fetch(memory, &mut found, streams[2]), 0);
            results.push(found);
        }
        assert!(results[0] == results[1], "seed {seed}");
    }
}
