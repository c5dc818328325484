//! Races are found in one run with the default order, and none in programs that have none.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "order/kernels.rs"]
mod kernels;

use kernels::{BLOCKS, ORDERED, THREADS, WITH_BARRIERS, text};
use tcuda_sim::exec::{Options, Shape};
use tcuda_sim::host::HostMachine;
use tcuda_sim::memory::race::{Action, Race, Settings, Space, Summary};

/// Bytes of the memory that kernels get.
const BYTES: usize = 1 << 16;

fn shape(blocks: u32, threads: u32, cluster: u32) -> Shape {
    let (grid, block) = ([blocks, 1, 1], [threads, 1, 1]);
    Shape { grid, block, cluster: [cluster, 1, 1], dynamic_shared: 0 }
}

/// Runs the kernel `f` of a module; returns its races, their numbers, and the memory.
fn run_with(
    text: &str,
    shape: Shape,
    settings: Settings,
    seed: Option<u64>,
) -> (Vec<Race>, Summary, Vec<u8>) {
    let mut host = HostMachine::default();
    let loaded = host.load(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let out = host.add(&vec![0; BYTES]);
    let time_limit = std::time::Duration::from_secs(20);
    let options = Options { races: Some(settings), seed, time_limit, ..Options::default() };
    let outcome = host.run(&loaded, "f", shape, &out.to_le_bytes(), &options).unwrap();
    outcome.unwrap_or_else(|fault| panic!("{fault}\n{text}"));
    let (races, mut summaries) = host.races();
    (races, summaries.pop().unwrap_or_default(), host.get(out))
}

fn run(text: &str, shape: Shape) -> (Vec<Race>, Summary) {
    let (races, summary, _) = run_with(text, shape, Settings::default(), None);
    (races, summary)
}

/// A kernel with `%t` the thread, `%b` the block, `%o` the memory of the launch, `%l` the lane,
/// `%s` the thread's word of the shared array `room`, which begins at `%base`.
fn kernel(body: &str) -> String {
    format!(
        ".version 8.0\n.target sm_90\n.address_size 64\n.global .align 8 .b32 counters[64];\n\
         .entry f(.param .u64 out) {{ .reg .pred %p<8>; .reg .b32 %t, %b, %l, %s, %base, %r<32>; \
         .reg .b64 %o, %d<16>; .shared .align 16 .b8 room[4096]; ld.param.u64 %o, [out]; \
         mov.u32 %t, %tid.x; mov.u32 %b, %ctaid.x; mov.u32 %l, %laneid; mov.u32 %base, room; \
         mad.lo.u32 %s, %t, 4, %base;\n{body}\nret; }}"
    )
}

fn assert_none(name: &str, body: &str, shape: Shape) {
    for seed in std::iter::once(None).chain((0..8).map(Some)) {
        let (races, summary, _) = run_with(&kernel(body), shape, Settings::default(), seed);
        let list: Vec<String> = races.iter().map(ToString::to_string).collect();
        assert!(races.is_empty(), "{name}, seed {seed:?}: {}\n{body}", list.join("\n"));
        assert_eq!(summary, Summary::default(), "{name}");
    }
}

/// The first race of a kernel that has some.
fn first_race(name: &str, body: &str, shape: Shape) -> Race {
    let (races, summary) = run(&kernel(body), shape);
    assert!(!races.is_empty(), "{name}: no race is found\n{body}");
    assert!(summary.races + summary.same_value > 0 && !summary.is_incomplete);
    races[0].clone()
}

#[test]
fn each_missing_barrier_is_a_race() {
    let mut planted = 0;
    for (name, body) in WITH_BARRIERS {
        let (races, _) = run(&text(body, None), shape(BLOCKS, THREADS, 1));
        assert_eq!(races, [], "{name}: nothing is missing");
        for index in 0..body.matches("BAR ").count() {
            planted += 1;
            let (races, summary) = run(&text(body, Some(index)), shape(BLOCKS, THREADS, 1));
            assert!(!races.is_empty() && summary.races > 0, "{name} without barrier {index}");
            assert!(races.iter().all(|race| race.space == Space::Shared), "{name}: {}", races[0]);
            let variable = races[0].variable.clone().unwrap();
            assert_eq!(variable.0, "room", "{name}");
        }
    }
    assert_eq!(planted, 17);
}

#[test]
fn relying_on_the_order_of_blocks_is_a_race_unless_it_is_atomic() {
    for (name, body) in ORDERED {
        let (races, _) = run(&text(body, None), shape(BLOCKS, THREADS, 1));
        // Atomic operations and volatile accesses race with none of their sort.
        let is_atomic = body.contains("atom.") || body.contains("volatile");
        assert_eq!(races.is_empty(), is_atomic, "{name}");
        assert!(races.iter().all(|race| race.space == Space::Global), "{name}");
    }
}

/// Waits until the volatile word at `%d0` is `$0`.
const AWAIT: &str = "LOOP: ld.volatile.global.u32 %r0, [%d0]; setp.ne.u32 %p0, %r0, VALUE; \
                     @%p0 nanosleep.u32 20; @%p0 bra LOOP;";

/// A barrier of all blocks in `counters[0]`, by the first thread of each block.
fn grid_barrier(arrive: &str, check: &str, blocks: u32, label: &str) -> String {
    format!(
        "bar.sync 0; setp.ne.u32 %p1, %t, 0; @%p1 bra $after{label}; mov.u64 %d1, counters; \
         {arrive} $loop{label}: {check} setp.ne.u32 %p0, %r0, {blocks}; @%p0 nanosleep.u32 20; \
         @%p0 bra $loop{label}; FENCE $after{label}: bar.sync 0;"
    )
}

/// Writes a word of the launch's memory, waits for all blocks, and reads that of the next block.
fn across_blocks(barrier: &str) -> String {
    format!(
        "mad.lo.u32 %r1, %b, 64, %t; mul.wide.u32 %d2, %r1, 4; add.u64 %d2, %o, %d2; \
         st.global.u32 [%d2], %t; {barrier} add.u32 %r2, %b, 1; and.b32 %r2, %r2, 3; \
         mad.lo.u32 %r1, %r2, 64, %t; mul.wide.u32 %d3, %r1, 4; add.u64 %d3, %o, %d3; \
         ld.global.u32 %r3, [%d3]; st.global.u32 [%d2+4096], %r3;"
    )
}

#[test]
fn barriers_of_the_grid_order_all_blocks() {
    let fences = "membar.gl; atom.global.add.u32 %r0, [%d1], 1;";
    let check = "ld.volatile.global.u32 %r0, [%d1];";
    let whole = grid_barrier(fences, check, 4, "a");
    assert_none("fences", &across_blocks(&whole.replace("FENCE", "membar.gl;")), shape(4, 64, 1));
    let released = grid_barrier(
        "red.release.gpu.global.add.u32 [%d1], 1;",
        "ld.acquire.gpu.global.u32 %r0, [%d1];",
        4,
        "a",
    );
    let released = released.replace("FENCE", "");
    assert_none("release and acquire", &across_blocks(&released), shape(4, 64, 1));
    // All threads have a fence before the barrier of the block, and all after it.
    let outer = format!(
        "fence.acq_rel.gpu; {} fence.acq_rel.gpu;",
        grid_barrier("red.relaxed.gpu.global.add.u32 [%d1], 1;", check, 4, "a")
    );
    assert_none("fences of all", &across_blocks(&outer.replace("FENCE", "")), shape(4, 64, 1));
    // Without a fence before the arrival nothing is released.
    let unfenced = grid_barrier("atom.global.add.u32 %r0, [%d1], 1;", check, 4, "a");
    let body = across_blocks(&unfenced.replace("FENCE", "membar.gl;"));
    let race = first_race("no fence", &body, shape(4, 64, 1));
    assert_eq!((race.space, race.first.block == race.second.block), (Space::Global, false));
    first_race("no barrier", &across_blocks(""), shape(4, 64, 1));
}

#[test]
fn flags_order_with_fences() {
    let body = |before: &str, after: &str| {
        let flag = "add.u64 %d0, %o, 1024; setp.ne.u32 %p1, %b, 0; @%p1 bra $reader; \
             st.global.u32 [%o], 42; BEFORE st.volatile.global.u32 [%d0], 1; bra $end; $reader: \
             LOOP AFTER ld.global.u32 %r1, [%o]; st.global.u32 [%o+8], %r1; $end:";
        let wait = AWAIT.replace("LOOP:", "$loop:").replace("bra LOOP", "bra $loop");
        let wait = wait.replace("VALUE", "1");
        flag.replace("LOOP", &wait).replace("BEFORE", before).replace("AFTER", after)
    };
    assert_none("fences", &body("membar.gl;", "membar.gl;"), shape(2, 1, 1));
    first_race("no release", &body("", "membar.gl;"), shape(2, 1, 1));
    first_race("no acquire", &body("membar.gl;", ""), shape(2, 1, 1));
    let plain = body("membar.gl;", "membar.gl;").replace("st.volatile", "st");
    let race = first_race("a plain flag", &plain, shape(2, 1, 1));
    assert_eq!((race.first.action, race.second.action), (Action::Write, Action::AtomicRead));
}

#[test]
fn correct_kernels_have_no_races() {
    let reduction = "st.shared.u32 [%s], %t; mov.u32 %r1, 64; $next: bar.sync 0; \
        setp.ge.u32 %p1, %t, %r1; @%p1 bra $skip; mad.lo.u32 %r2, %r1, 4, %s; \
        ld.shared.u32 %r3, [%r2]; ld.shared.u32 %r4, [%s]; add.u32 %r4, %r4, %r3; \
        st.shared.u32 [%s], %r4; $skip: shr.u32 %r1, %r1, 1; setp.ne.u32 %p2, %r1, 0; \
        @%p2 bra $next; setp.ne.u32 %p3, %t, 0; @%p3 bra $end; ld.shared.u32 %r4, [%s]; \
        mul.wide.u32 %d1, %b, 4; add.u64 %d1, %o, %d1; st.global.u32 [%d1], %r4; $end:";
    assert_none("a reduction", reduction, shape(5, 128, 1));
    let warps = "st.shared.u32 [%s], %t; bar.warp.sync -1; xor.b32 %r1, %t, 1; \
        mad.lo.u32 %r1, %r1, 4, %base; ld.shared.u32 %r2, [%r1]; bar.warp.sync -1; \
        st.shared.u32 [%s], %r2; bar.warp.sync -1; ld.shared.u32 %r3, [%r1];";
    assert_none("warps", warps, shape(2, 96, 1));
    let histogram = "shl.b32 %r1, %t, 2; and.b32 %r1, %r1, 63; add.u32 %r1, %r1, %base; \
        setp.ge.u32 %p1, %t, 16; @%p1 bra $a; st.shared.u32 [%r1], 0; $a: bar.sync 0; \
        red.shared.add.u32 [%r1], 1; bar.sync 0; @%p1 bra $end; ld.shared.u32 %r2, [%r1]; \
        mul.wide.u32 %d1, %t, 4; mov.u64 %d2, counters; add.u64 %d1, %d2, %d1; \
        red.global.add.u32 [%d1], %r2; $end:";
    assert_none("a histogram", histogram, shape(3, 128, 1));
    let bytes = "cvt.u64.u32 %d1, %t; add.u64 %d1, %o, %d1; st.global.u8 [%d1], %t; \
        add.u32 %r1, %base, %t; st.shared.u8 [%r1], %t; bar.sync 0; ld.shared.u8 %r2, [%r1+1]; \
        mul.wide.u32 %d2, %t, 2; add.u64 %d2, %o, %d2; st.global.u16 [%d2+512], %t;";
    assert_none("bytes", bytes, shape(1, 128, 1));
    let named = "setp.ge.u32 %p1, %t, 64; @%p1 bra $consumer; st.shared.u32 [%s], %t; \
        bar.arrive 1, 128; bra $end; $consumer: bar.sync 1, 128; ld.shared.u32 %r1, [%s+-256]; \
        $end:";
    assert_none("a producer and a consumer", named, shape(1, 128, 1));
    let cluster = "st.shared.u32 [%s], %b; barrier.cluster.arrive.release.aligned; \
        barrier.cluster.wait.acquire.aligned; and.b32 %r1, %b, 1; xor.b32 %r1, %r1, 1; \
        mapa.shared::cluster.u32 %r2, %s, %r1; ld.shared::cluster.u32 %r3, [%r2]; \
        barrier.cluster.arrive; barrier.cluster.wait; st.shared.u32 [%s], 7;";
    assert_none("a cluster", cluster, shape(4, 64, 2));
    let exits = "setp.ge.u32 %p1, %t, 64; st.shared.u32 [%s], %t; @%p1 bra $end; bar.sync 0; \
        ld.shared.u32 %r1, [%s+256]; $end:";
    assert_none("threads that exit", exits, shape(1, 128, 1));
    let reductions = "st.shared.u32 [%s], %t; setp.eq.u32 %p1, %t, 3; \
        barrier.cta.red.popc.u32 %r1, 0, %p1; xor.b32 %r2, %t, 64; mad.lo.u32 %r2, %r2, 4, %base; \
        ld.shared.u32 %r3, [%r2];";
    assert_none("a barrier with a predicate", reductions, shape(1, 128, 1));
}

/// A spin lock around a counter, with what comes before the release and after the acquisition.
fn lock(acquired: &str, releases: &str) -> String {
    let body = "mov.u64 %d1, counters; mov.u32 %r5, 0; $again: \
        atom.global.cas.b32 %r1, [%d1], 0, 1; setp.ne.u32 %p1, %r1, 0; @%p1 bra $rest; ACQUIRED \
        ld.global.u32 %r2, [%o]; add.u32 %r2, %r2, 1; st.global.u32 [%o], %r2; RELEASES \
        atom.global.exch.b32 %r3, [%d1], 0; mov.u32 %r5, 1; $rest: setp.eq.u32 %p2, %r5, 0; \
        @%p2 bra $again;";
    body.replace("ACQUIRED", acquired).replace("RELEASES", releases)
}

#[test]
fn locks_order_with_fences() {
    let body = lock("membar.gl;", "membar.gl;");
    assert_none("a lock", &body, shape(3, 64, 1));
    let (_, _, memory) = run_with(&kernel(&body), shape(3, 64, 1), Settings::default(), None);
    assert_eq!(memory[..4], 192u32.to_le_bytes());
    first_race("no release", &lock("membar.gl;", ""), shape(3, 64, 1));
    first_race("no acquire", &lock("", "membar.gl;"), shape(3, 64, 1));
    let ordered = lock("", "").replace("atom.global.cas", "atom.acquire.gpu.global.cas");
    let ordered = ordered.replace("atom.global.exch", "atom.release.gpu.global.exch");
    assert_none("a lock with orders", &ordered, shape(3, 64, 1));
}

/// A pipeline of two stages: one warp fills the stage, the other reads it.
const PIPELINE: &str = "setp.ne.u32 %p1, %t, 0; @%p1 bra $start; \
    mbarrier.init.shared.b64 [%base+1024], 32; mbarrier.init.shared.b64 [%base+1032], 32; \
    mbarrier.init.shared.b64 [%base+1040], 32; mbarrier.init.shared.b64 [%base+1048], 32; \
    $start: INIT mov.u32 %r1, 0; setp.ge.u32 %p2, %t, 32; @%p2 bra $consumer; \
    $produce: and.b32 %r2, %r1, 1; shr.u32 %r3, %r1, 1; and.b32 %r3, %r3, 1; xor.b32 %r3, %r3, 1; \
    mad.lo.u32 %r4, %r2, 8, %base; mad.lo.u32 %r5, %r2, 128, %s; \
    $free: FREE mbarrier.try_wait.parity.shared.b64 %p3, [%r4+1040], %r3; @!%p3 bra $free; \
    st.shared.u32 [%r5], %r1; FILL \
    add.u32 %r1, %r1, 1; setp.lt.u32 %p4, %r1, 8; @%p4 bra $produce; bra $end; \
    $consumer: and.b32 %r2, %r1, 1; shr.u32 %r3, %r1, 1; and.b32 %r3, %r3, 1; \
    mad.lo.u32 %r4, %r2, 8, %base; mad.lo.u32 %r5, %r2, 128, %s; \
    $full: mbarrier.try_wait.parity.shared.b64 %p3, [%r4+1024], %r3; @!%p3 bra $full; \
    xor.b32 %r6, %r5, 4; ld.shared.u32 %r7, [%r6+-128]; \
    mbarrier.arrive.shared.b64 %d1, [%r4+1040]; \
    add.u32 %r1, %r1, 1; setp.lt.u32 %p4, %r1, 8; @%p4 bra $consumer; $end:";
const FILL: &str = "mbarrier.arrive.shared.b64 %d1, [%r4+1024];";

#[test]
fn barrier_objects_order_a_pipeline() {
    let body = |init: &str, free: &str| {
        PIPELINE.replace("INIT", init).replace("FREE", free).replace("FILL", FILL)
    };
    assert_none("a pipeline", &body("bar.sync 0;", ""), shape(2, 64, 1));
    // One round without the wait for the full stage.
    let once =
        body("bar.sync 0;", "").replace("%r1, 8;", "%r1, 1;").replace("@!%p3 bra $full;", "");
    let race = first_race("no wait", &once, shape(2, 64, 1));
    assert_eq!(race.space, Space::Shared);
    first_race("no barrier after mbarrier.init", &body("", ""), shape(1, 64, 1));
}

#[test]
fn copies_race_until_they_are_waited_for() {
    let body = |wait: &str, barrier: &str| {
        format!(
            "mul.wide.u32 %d1, %t, 4; add.u64 %d1, %o, %d1; \
             cp.async.ca.shared.global [%s], [%d1], 4; cp.async.commit_group; \
             cp.async.ca.shared.global [%s+512], [%d1+512], 4; cp.async.commit_group; {wait} \
             {barrier} xor.b32 %r1, %t, 64; mad.lo.u32 %r1, %r1, 4, %base; \
             ld.shared.u32 %r2, [%r1];"
        )
    };
    let size = shape(2, 128, 1);
    assert_none("the first group", &body("cp.async.wait_group 1;", "bar.sync 0;"), size);
    assert_none("all groups", &body("cp.async.wait_all;", "bar.sync 0;"), size);
    let race = first_race("no wait", &body("", "bar.sync 0;"), size);
    assert!(race.first.is_copy && !race.second.is_copy);
    first_race("no barrier", &body("cp.async.wait_group 0;", ""), size);
    let second = body("cp.async.wait_group 1;", "bar.sync 0;").replace("[%r1];", "[%r1+512];");
    first_race("the second group", &second, size);
    // A thread's own copies.
    let own = "mul.wide.u32 %d1, %t, 4; add.u64 %d1, %o, %d1; \
        cp.async.ca.shared.global [%s], [%d1], 4; WAIT ld.shared.u32 %r1, [%s];";
    assert_none("an own copy", &own.replace("WAIT", "cp.async.wait_all;"), size);
    first_race("an own copy without a wait", &own.replace("WAIT", ""), size);
    // Copies that arrive at a barrier object.
    let object = "setp.ne.u32 %p1, %t, 0; @%p1 bra $start; \
        mbarrier.init.shared.b64 [%base+1024], 128; $start: bar.sync 0; \
        mul.wide.u32 %d1, %t, 4; add.u64 %d1, %o, %d1; cp.async.ca.shared.global [%s], [%d1], 4; \
        cp.async.mbarrier.arrive.noinc.shared.b64 [%base+1024]; \
        $full: mbarrier.try_wait.parity.shared.b64 %p3, [%base+1024], 0; @!%p3 bra $full; \
        xor.b32 %r1, %t, 64; mad.lo.u32 %r1, %r1, 4, %base; ld.shared.u32 %r2, [%r1];";
    assert_none("a barrier object", object, size);
}

#[test]
fn bulk_copies_race_until_their_barrier_object_completes() {
    let body = |wait: &str| {
        format!(
            "setp.ne.u32 %p1, %t, 0; @%p1 bra $start; mbarrier.init.shared.b64 [%base+1024], 1; \
             $start: bar.sync 0; @%p1 bra $wait; \
             mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base+1024], 256; \
             cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%base], [%o], 256, \
             [%base+1024]; $wait: {wait} ld.shared.u32 %r1, [%s];"
        )
    };
    let wait = "mbarrier.try_wait.parity.shared.b64 %p3, [%base+1024], 0; @!%p3 bra $wait;";
    assert_none("a bulk copy", &body(wait), shape(2, 64, 1));
    let race = first_race("no wait", &body("bar.sync 0;"), shape(2, 64, 1));
    assert!(race.first.is_copy);
}

#[test]
fn races_are_found() {
    // Two blocks write different values.
    let race = first_race("blocks", "st.global.u32 [%o], %b;", shape(2, 1, 1));
    assert_eq!((race.first.block, race.second.block), ([0; 3], [1, 0, 0]));
    assert_eq!((race.first.action, race.second.action), (Action::Write, Action::Write));
    assert!(!race.is_same_value && race.bytes == 4 && race.space == Space::Global);
    // A warp reads what another one writes.
    let body = "st.shared.u32 [%s], %t; sub.u32 %r1, 63, %t; mad.lo.u32 %r1, %r1, 4, %base; \
                ld.shared.u32 %r2, [%r1];";
    let race = first_race("warps", body, shape(1, 64, 1));
    assert_eq!((race.first.thread, race.second.thread), ([31, 0, 0], [32, 0, 0]));
    // A plain read of a counter.
    let body = "mov.u64 %d1, counters; red.global.add.u32 [%d1+8], 1; ld.global.u32 %r1, [%d1+8];";
    let race = first_race("a counter", body, shape(1, 32, 1));
    assert_eq!((race.first.action, race.second.action), (Action::AtomicWrite, Action::Read));
    assert_eq!(race.variable, Some(("counters".to_owned(), 8)));
    // Lanes of one warp, for which shfl is no barrier of memory.
    for between in ["", "shfl.sync.idx.b32 %r9, %t, 0, 31, -1;"] {
        let body = format!(
            "st.shared.u32 [%s], %t; {between} xor.b32 %r1, %t, 1; mad.lo.u32 %r1, %r1, 4, %base; \
             ld.shared.u32 %r2, [%r1];"
        );
        let race = first_race("lanes", &body, shape(1, 32, 1));
        assert_eq!((race.first.thread, race.second.thread), ([1, 0, 0], [0, 0, 0]));
    }
    // Words that overlap in part.
    let body = "setp.eq.u32 %p1, %t, 0; @%p1 bra $wide; st.shared.u16 [%base+6], 1; bra $end; \
                $wide: st.shared.u64 [%base], 5; $end:";
    let race = first_race("words", body, shape(1, 2, 1));
    assert_eq!(race.address, 6);
    // A block's shared memory, written by another one of the cluster.
    let body = "xor.b32 %r1, %b, 1; mapa.shared::cluster.u32 %r2, %s, %r1; \
                st.shared::cluster.u32 [%r2], 1; ld.shared.u32 %r3, [%s];";
    first_race("a cluster", body, shape(2, 32, 2));
    // A guess for a compare-and-swap is no race, another plain read is one.
    let body = "mov.u64 %d1, counters; ld.global.u32 %r1, [%d1]; $again: add.u32 %r2, %r1, 1; \
                atom.global.cas.b32 %r3, [%d1], %r1, %r2; setp.ne.u32 %p1, %r3, %r1; \
                mov.u32 %r1, %r3; @%p1 bra $again;";
    assert_none("a guess", body, shape(2, 64, 1));
    let body = body.replace("bra $again;", "bra $again; ld.global.u32 %r4, [%d1];");
    first_race("a plain read", &body, shape(2, 64, 1));
    // A fence is no barrier.
    let body = "st.shared.u32 [%s], %t; membar.cta; xor.b32 %r1, %t, 64; \
                mad.lo.u32 %r1, %r1, 4, %base; ld.shared.u32 %r2, [%r1];";
    first_race("a fence", body, shape(1, 128, 1));
}

#[test]
fn writes_of_the_same_value_are_counted_apart() {
    let (races, summary) = run(&kernel("st.global.u32 [%o], 7;"), shape(2, 64, 1));
    assert!(races.iter().all(|race| race.is_same_value) && !races.is_empty());
    assert_eq!((summary.races, summary.same_value), (0, 127));
    let (races, summary) = run(&kernel("st.global.u32 [%o], %l;"), shape(1, 32, 1));
    assert!(races.iter().all(|race| !race.is_same_value));
    assert_eq!((summary.races, summary.same_value), (31, 0));
}

#[test]
fn sixteen_pairs_are_reported_and_all_races_counted() {
    let body: String = (0..20).map(|at| format!("st.global.u32 [%o+{}], %b;\n", 4 * at)).collect();
    let (races, summary) = run(&kernel(&body), shape(3, 1, 1));
    assert_eq!((races.len(), summary.reported, summary.races), (16, 16, 40));
}

#[test]
fn a_report_names_both_lines() {
    let text = ".version 8.0\n.target sm_90\n.address_size 64\n.entry f(.param .u64 out) {\n\
        .reg .b32 %t;\n.reg .b64 %o;\nld.param.u64 %o, [out];\nmov.u32 %t, %tid.x;\n\
        .loc 1 12 3\nst.global.u32 [%o+16], %t;\n.loc 1 14 3\nld.global.u32 %t, [%o+16];\nret;\n}\n\
        .file 1 \"kernel.cu\"\n";
    let (races, summary) = run(text, shape(1, 2, 1));
    let printed: Vec<String> = races.iter().map(ToString::to_string).collect();
    let prefix = "f: a race on 4 bytes of global memory at 0x200000000010: thread ";
    assert_eq!(
        printed[0],
        format!(
            "{prefix}[0, 0, 0] of block [0, 0, 0] writes at kernel.cu:12 (line 10 of the PTX), and \
             thread [1, 0, 0] of block [0, 0, 0] writes at kernel.cu:12 (line 10 of the PTX); no \
             barrier and no fence orders them."
        )
    );
    assert!(printed[1].contains("reads at kernel.cu:14 (line 12 of the PTX)"), "{}", printed[1]);
    assert_eq!(summary.reported, 2);
}

#[test]
fn unchecked_accesses_are_reported() {
    let body = "mad.lo.u32 %r1, %b, 64, %t; mul.wide.u32 %d1, %r1, 64; add.u64 %d1, %o, %d1; \
                st.global.u32 [%d1], %t;";
    let settings = Settings { bytes: 30_000 };
    let (races, summary, _) = run_with(&kernel(body), shape(16, 64, 1), settings, None);
    assert!(races.is_empty() && summary.is_incomplete);
    assert!(summary.to_string().contains("Not all accesses were checked"));
    let (_, summary) = run(&kernel(body), shape(16, 64, 1));
    assert!(!summary.is_incomplete);
}

#[test]
fn the_compiled_programs_have_no_races() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|it| it != "ptx") {
            continue;
        }
        count += 1;
        let mut host = HostMachine::default();
        let loaded = host.load(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let values = (0..512u32).flat_map(|i| (i.wrapping_mul(0x9e37_79b9) ^ i << 7).to_le_bytes());
        let (out, input) = (host.add(&[0; 2048]), host.add(&values.collect::<Vec<u8>>()));
        let mut parameters = [out, input].map(u64::to_le_bytes).concat();
        parameters.extend_from_slice(&512u32.to_le_bytes());
        let shape = Shape { dynamic_shared: 1024, ..shape(4, 128, 1) };
        let options = Options { races: Some(Settings::default()), ..Options::default() };
        // Some end with a failed assertion or another fault.
        let _ = host.run(&loaded, "k", shape, &parameters, &options).unwrap();
        let (races, summaries) = host.races();
        let list: Vec<String> = races.iter().map(ToString::to_string).collect();
        // The blocks of one write the same values to the same words.
        let harmless =
            races.iter().all(|race| race.is_same_value) && path.ends_with("assertion.ptx");
        assert!(summaries.is_empty() || harmless, "{}: {}", path.display(), list.join("\n"));
    }
    assert!(count >= 13, "{count}");
}
