//! What kernels compute: control flow, local memory, barriers and copies. The expected values
//! follow
//! from the PTX ISA.

#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::time::Duration;
use tcuda_sim::exec::{Options, Shape};
use tcuda_sim::host::HostMachine;
use tcuda_sim::ptx::LoadErrorKind;

/// The registers that all kernels here have, their thread's index and the address of its result.
const HEAD: &str = ".reg .pred %p<8>;\n.reg .b16 %h<8>;\n.reg .b32 %r<24>, %t, %n;\n\
    .reg .b64 %d<24>, %out;\nld.param.u64 %out, [out];\nmov.u32 %t, %tid.x;\n\
    mov.u32 %n, %ctaid.x;\nmov.u32 %r0, %ntid.x;\nmad.lo.u32 %n, %n, %r0, %t;\n\
    mad.wide.u32 %out, %n, 4, %out;\n";

fn module(declarations: &str, body: &str) -> String {
    format!(
        ".version 8.6\n.target sm_90\n.address_size 64\n{declarations}\n\
         .visible .entry k(.param .u64 out)\n{{\n{HEAD}{body}\nret;\n}}\n"
    )
}

/// Runs a kernel, in order and in two random orders, and returns the words of its threads.
fn run_shape(declarations: &str, body: &str, shape: Shape) -> Vec<u32> {
    let count: u32 = shape.grid.iter().chain(&shape.block).product();
    let mut results = [None, Some(1), Some(2)].map(|seed| {
        let mut host = HostMachine::default();
        let loaded = host.load(&module(declarations, body)).unwrap();
        let buffer = host.add(&vec![0xee; 4 * count as usize]);
        let options = Options { seed, time_limit: Duration::from_secs(60), ..Options::default() };
        host.run(&loaded, "k", shape, &buffer.to_le_bytes(), &options).unwrap().unwrap();
        let bytes = host.get(buffer);
        let words = bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap()));
        words.collect::<Vec<u32>>()
    });
    let first = std::mem::take(&mut results[0]);
    assert_eq!(results[1], first, "in a random order");
    assert_eq!(results[2], first, "in another random order");
    first
}

/// Runs a kernel with one block.
fn run(threads: u32, declarations: &str, body: &str) -> Vec<u32> {
    let shape = Shape { grid: [1; 3], block: [threads, 1, 1], cluster: [1; 3], dynamic_shared: 0 };
    run_shape(declarations, body, shape)
}

fn expect(found: &[u32], expected: impl Fn(u32) -> u32) {
    let expected: Vec<u32> = (0..found.len() as u32).map(expected).collect();
    assert_eq!(found, expected);
}

#[test]
fn lanes_return_from_a_function_at_different_places() {
    let function = ".func (.param .b32 r) steps(.param .b32 x) {\n.reg .pred %p;\n\
        .reg .b32 %x, %i;\nld.param.b32 %x, [x];\nmov.b32 %i, 0;\n\
        L: setp.ge.u32 %p, %i, %x;\nst.param.b32 [r], %i;\n@%p ret;\nadd.u32 %i, %i, 3;\nbra L;\n}";
    let body = "{ .param .b32 a; .param .b32 b;\nst.param.b32 [a], %t;\n\
        call (b), steps, (a);\nld.param.b32 %r1, [b];\n}\n\
        activemask.b32 %r2;\npopc.b32 %r2, %r2;\nshl.b32 %r2, %r2, 8;\nor.b32 %r1, %r1, %r2;\n\
        st.global.b32 [%out], %r1;";
    // All lanes are together again behind the call.
    expect(&run(64, function, body), |t| t.next_multiple_of(3) | 32 << 8);
}

#[test]
fn a_guard_of_a_call_keeps_lanes_out_of_the_function() {
    let function = ".func (.reg .b32 r) twice(.reg .b32 x) { add.u32 r, x, x; ret; }";
    let body = "setp.lt.u32 %p1, %t, 10;\nmov.b32 %r1, 7;\n@%p1 call (%r1), twice, (%t);\n\
        st.global.b32 [%out], %r1;";
    expect(&run(40, function, body), |t| if t < 10 { 2 * t } else { 7 });
    let constant = "call (%r1), twice, (21);\nst.global.b32 [%out], %r1;";
    expect(&run(2, function, constant), |_| 42);
}

#[test]
fn recursion_goes_as_deep_as_each_lane_needs() {
    let function = ".func (.param .b32 r) sum(.param .b32 x) {\n.reg .pred %p;\n.reg .b32 %r<4>;\n\
        ld.param.b32 %r1, [x];\nsetp.eq.u32 %p, %r1, 0;\n@%p bra L;\n\
        { .param .b32 a; .param .b32 b;\nsub.u32 %r2, %r1, 1;\nst.param.b32 [a], %r2;\n\
        call (b), sum, (a);\nld.param.b32 %r3, [b];\n}\nadd.u32 %r1, %r1, %r3;\n\
        L: st.param.b32 [r], %r1;\nret;\n}";
    let body = "{ .param .b32 a; .param .b32 b;\nst.param.b32 [a], %t;\n\
        call (b), sum, (a);\nld.param.b32 %r1, [b];\n}\nst.global.b32 [%out], %r1;";
    expect(&run(48, function, body), |t| t * (t + 1) / 2);
}

#[test]
fn lanes_call_different_functions_through_addresses() {
    let function = |name: &str, what: &str| {
        format!(
            ".func (.param .b32 r) {name}(.param .b32 x) {{ .reg .b32 %x; ld.param.b32 %x, [x]; \
             {what}; st.param.b32 [r], %x; ret; }}\n"
        )
    };
    let functions = [
        function("f0", "add.u32 %x, %x, 100"),
        function("f1", "mul.lo.u32 %x, %x, 3"),
        function("f2", "not.b32 %x, %x"),
    ];
    let table = ".global .align 8 .u64 table[3] = {f0, f1, f2};";
    let body = "rem.u32 %r1, %t, 3;\nmov.u64 %d1, table;\nmad.wide.u32 %d1, %r1, 8, %d1;\n\
        ld.global.u64 %d2, [%d1];\n{ .param .b32 a; .param .b32 b;\nst.param.b32 [a], %t;\n\
        P: .callprototype (.param .b32 _) _ (.param .b32 _);\n\
        call (b), %d2, (a), P;\nld.param.b32 %r2, [b];\n}\nst.global.b32 [%out], %r2;";
    expect(&run(70, &(functions.concat() + table), body), |t| match t % 3 {
        0 => t + 100,
        1 => t * 3,
        _ => !t,
    });
}

#[test]
fn barriers_do_not_wait_for_threads_that_returned() {
    let declarations = ".shared .align 4 .b32 sh[128];";
    let body = "setp.gt.u32 %p1, %t, 40;\n@%p1 bra END;\nmov.u64 %d1, sh;\n\
        mad.wide.u32 %d2, %t, 4, %d1;\nmov.b32 %r1, 0;\n\
        LOOP: st.volatile.shared.b32 [%d2], %r1;\nbar.sync 0;\n\
        sub.u32 %r2, 40, %t;\nmad.wide.u32 %d3, %r2, 4, %d1;\n\
        ld.volatile.shared.b32 %r3, [%d3];\nbar.sync 0;\nadd.u32 %r1, %r3, %t;\n\
        add.u32 %r4, %r4, 1;\nsetp.lt.u32 %p2, %r4, 3;\n@%p2 bra LOOP;\nEND:\n\
        st.global.b32 [%out], %r1;";
    let body = format!("mov.b32 %r4, 0;\nmov.b32 %r1, 5;\n{body}");
    expect(&run(100, declarations, &body), |t| match t {
        // x(t) becomes x(40 - t) + t three times, from 0.
        0..=40 => t + (40 - t) + t,
        _ => 5,
    });
}

#[test]
fn a_counted_barrier_takes_a_part_of_a_warp_for_a_warp() {
    let declarations = ".shared .align 4 .b32 sh[128];";
    // 80 threads are three warps.
    let body = "mov.u64 %d1, sh;\nmad.wide.u32 %d2, %t, 4, %d1;\nst.shared.b32 [%d2], %t;\n\
        setp.lt.u32 %p1, %t, 32;\n@%p1 bra END;\nbar.sync 3, 64;\nsub.u32 %r2, 111, %t;\n\
        mad.wide.u32 %d3, %r2, 4, %d1;\nld.shared.b32 %r1, [%d3];\nEND:\n\
        st.global.b32 [%out], %r1;";
    let body = format!("mov.b32 %r1, 9;\n{body}");
    expect(&run(80, declarations, &body)[..], |t| match t {
        0..=31 => 9,
        _ if 111 - t < 80 => 111 - t,
        _ => 0,
    });
}

#[test]
fn a_barrier_with_a_reduction_sees_all_threads() {
    let body = "setp.ge.u32 %p1, %t, 50;\nbar.red.popc.u32 %r1, 0, %p1;\n\
        bar.red.and.pred %p2, 0, %p1;\nbar.red.or.pred %p3, 0, !%p1;\n\
        selp.b32 %r2, 256, 0, %p2;\nselp.b32 %r3, 512, 0, %p3;\nadd.u32 %r1, %r1, %r2;\n\
        add.u32 %r1, %r1, %r3;\nst.global.b32 [%out], %r1;";
    expect(&run(75, "", body), |_| 25 + 512);
}

#[test]
fn a_guard_of_a_barrier_keeps_warps_away_from_it() {
    let declarations = ".shared .align 4 .b32 sh[96];";
    let body = "mov.u64 %d1, sh;\nmad.wide.u32 %d2, %t, 4, %d1;\nst.shared.b32 [%d2], %t;\n\
        setp.ge.u32 %p1, %t, 32;\n@%p1 bar.sync 2, 64;\n@!%p1 bar.sync 3, 32;\n\
        mov.b32 %r1, 127;\n@!%p1 mov.b32 %r1, 31;\nsub.u32 %r1, %r1, %t;\n\
        mad.wide.u32 %d3, %r1, 4, %d1;\nld.shared.b32 %r2, [%d3];\n\
        bar.sync 0;\nst.global.b32 [%out], %r2;";
    expect(&run(96, declarations, body), |t| if t < 32 { 31 - t } else { 127 - t });
}

#[test]
fn a_lane_takes_a_lock_while_others_of_its_loop_diverge() {
    let declarations = ".global .align 4 .b32 lock;\n.global .align 4 .b32 count;";
    // The lanes that wait take two ways in each turn.
    let body = "mov.b32 %r3, 0;\nLOCK: add.u32 %r3, %r3, %t;\nand.b32 %r4, %r3, 1;\n\
        setp.eq.u32 %p2, %r4, 0;\n@%p2 bra EVEN;\nadd.u32 %r3, %r3, 2;\nEVEN:\n\
        atom.global.cas.b32 %r1, [lock], 0, 1;\nsetp.ne.u32 %p1, %r1, 0;\n@%p1 bra LOCK;\n\
        ld.volatile.global.b32 %r2, [count];\nadd.u32 %r2, %r2, 1;\n\
        st.volatile.global.b32 [count], %r2;\nmembar.gl;\nst.volatile.global.b32 [lock], 0;\n\
        bar.sync 0;\nld.volatile.global.b32 %r2, [count];\nst.global.b32 [%out], %r2;";
    expect(&run(64, declarations, body), |_| 64);
}

#[test]
fn lanes_of_a_warp_take_a_lock_one_after_the_other() {
    let declarations = ".global .align 4 .b32 lock;\n.global .align 4 .b32 count;";
    for wait in ["", "nanosleep.u32 20;"] {
        let body = format!(
            "LOCK: {wait} atom.global.acquire.gpu.cas.b32 %r1, [lock], 0, 1;\n\
             setp.ne.u32 %p1, %r1, 0;\n@%p1 bra LOCK;\nld.relaxed.gpu.global.b32 %r2, [count];\n\
             add.u32 %r2, %r2, 1;\nst.relaxed.gpu.global.b32 [count], %r2;\n\
             atom.global.release.gpu.exch.b32 %r1, [lock], 0;\nbar.sync 0;\n\
             ld.relaxed.gpu.global.b32 %r2, [count];\nst.global.b32 [%out], %r2;"
        );
        expect(&run(96, declarations, &body), |_| 96);
    }
}

#[test]
fn a_lane_waits_for_another_lane_that_wrote_memory() {
    let declarations = ".global .align 4 .b32 flag;";
    // The side that spins comes first or last.
    for condition in ["eq", "ne"] {
        let body = format!(
            "setp.{condition}.u32 %p1, %t, 17;\n@%p1 bra OTHER;\n\
             setp.eq.u32 %p2, %t, 17;\n@%p2 bra SET;\n\
             WAIT: ld.volatile.global.b32 %r1, [flag];\nsetp.eq.u32 %p3, %r1, 0;\n\
             @%p3 bra WAIT;\nbra END;\nSET: mov.b32 %r1, 3;\n\
             st.volatile.global.b32 [flag], %r1;\nbra END;\n\
             OTHER: setp.eq.u32 %p2, %t, 17;\n@%p2 bra SET;\nbra WAIT;\n\
             END: st.global.b32 [%out], %r1;"
        );
        expect(&run(32, declarations, &body), |_| 3);
    }
}

#[test]
fn blocks_wait_for_each_other() {
    let declarations = ".global .align 4 .b32 arrived;";
    let body = "setp.ne.u32 %p1, %t, 0;\n@%p1 bra HERE;\n\
        atom.global.add.u32 %r1, [arrived], 1;\n\
        WAIT: nanosleep.u32 100;\nld.acquire.gpu.global.b32 %r1, [arrived];\n\
        setp.lt.u32 %p2, %r1, 20;\n@%p2 bra WAIT;\nHERE: bar.sync 0;\n\
        ld.relaxed.gpu.global.b32 %r1, [arrived];\nst.global.b32 [%out], %r1;";
    let shape = Shape { grid: [20, 1, 1], block: [40, 1, 1], cluster: [1; 3], dynamic_shared: 0 };
    expect(&run_shape(declarations, body, shape), |_| 20);
}

#[test]
fn time_goes_on() {
    let body = "mov.u64 %d1, %globaltimer;\nmov.u64 %d2, %clock64;\nmov.u32 %r1, %clock;\n\
        nanosleep.u32 50;\nmov.u64 %d3, %globaltimer;\nmov.u64 %d4, %clock64;\n\
        mov.u32 %r2, %clock;\nsetp.gt.u64 %p1, %d3, %d1;\nsetp.gt.and.u64 %p1, %d4, %d2, %p1;\n\
        setp.gt.and.u32 %p1, %r2, %r1, %p1;\nselp.b32 %r1, 1, 0, %p1;\n\
        st.global.b32 [%out], %r1;";
    expect(&run(33, "", body), |_| 1);
}

#[test]
fn the_stack_grows_and_is_restored() {
    let body = "stacksave.u64 %d1;\nand.b32 %r1, %t, 7;\nadd.u32 %r1, %r1, 1;\n\
        mul.wide.u32 %d2, %r1, 4;\nalloca.u64 %d3, %d2, 16;\nalloca.u64 %d4, 8;\n\
        st.local.u32 [%d3], %t;\nst.local.u32 [%d4], %r1;\nstacksave.u64 %d5;\n\
        stackrestore.u64 %d1;\nstacksave.u64 %d6;\nsetp.eq.u64 %p1, %d1, %d6;\n\
        setp.ne.and.u64 %p1, %d5, %d6, %p1;\nand.b64 %d7, %d3, 15;\n\
        setp.eq.and.u64 %p1, %d7, 0, %p1;\nld.local.u32 %r2, [%d3];\nld.local.u32 %r3, [%d4];\n\
        add.u32 %r2, %r2, %r3;\nselp.b32 %r2, %r2, 0, %p1;\nst.global.b32 [%out], %r2;";
    expect(&run(64, "", body), |t| t + (t & 7) + 1);
}

#[test]
fn registers_have_128_bits() {
    let declarations = ".global .align 16 .b128 word;";
    let body = ".reg .b128 %q<4>;\nmov.b64 %d1, {%t, 5};\nmov.b64 %d2, {7, %t};\n\
        mov.b128 %q0, {%d1, %d2};\nmov.b128 %q1, %q0;\nmov.b128 {%r1, %r2, %r3, %r4}, %q1;\n\
        mov.b128 %q2, {%r4, %r3, %r2, %r1};\nmov.b128 {%d3, _}, %q2;\n\
        mov.b64 {%r5, %r6}, %d3;\n.local .align 16 .b8 lo[32];\nst.local.b128 [lo+16], %q2;\n\
        ld.local.b128 %q3, [lo+16];\nld.local.b32 %r7, [lo+24];\nmov.b128 {_, %d4}, %q3;\n\
        mov.b64 {%r8, %r9}, %d4;\nmad.lo.u32 %r5, %r5, 1000, %r6;\n\
        mad.lo.u32 %r7, %r7, 10, %r8;\nmad.lo.u32 %r5, %r7, 1000000, %r5;\n\
        add.u32 %r5, %r5, %r9;\natom.global.exch.b128 %q1, [word], %q0;\n\
        st.global.b32 [%out], %r5;";
    // The quarters are t, 7 and 5, t in reverse order.
    let expected = |t: u32| (5 * 10 + 5) * 1_000_000 + t * 1000 + 7 + t;
    expect(&run(20, declarations, body), expected);
}

#[test]
fn registers_of_vectors_are_their_elements() {
    let body = ".reg .v4 .b32 %v;\n.reg.v2.b32 %w<2>;\n.local .align 16 .b8 lo[16];\n\
        mov.b32 %v.x, %t;\nmov.b32 %v.y, 2;\nmov.b32 %v.b, 3;\nmov.b32 %v.w, 4;\n\
        st.local.v4.b32 [lo], %v;\nld.local.v2.b32 %w1, [lo+8];\nmad.lo.u32 %r1, %w1.x, 10, \
        %w1.y;\n\
        mov.b64 %d1, %w1;\nld.local.u32 %r2, [lo];\nmad.lo.u32 %r1, %r2, 100, %r1;\n\
        st.global.b32 [%out], %r1;";
    expect(&run(20, "", body), |t| 100 * t + 34);
}

#[test]
fn vectors_of_atomic_operations_read_before_they_write() {
    let body = "mov.f32 %r1, 0f3F800000;\nmov.f32 %r2, 0f40000000;\n\
        mad.wide.u32 %d1, %t, 8, room;\nst.global.v2.b32 [%d1], {0, %r1};\n\
        atom.global.v2.f32.add {%r2, %r1}, [%d1], {%r1, %r2};\n\
        ld.global.v2.b32 {%r3, %r4}, [%d1];\nshr.u32 %r5, %r3, 16;\nand.b32 %r6, %r4, -65536;\n\
        or.b32 %r5, %r5, %r6;\nst.global.b32 [%out], %r5;";
    // 0 + 1 and 1 + 2.
    let body = body.replace(
        "mad.wide.u32 %d1, %t, 8, room",
        "mov.u64 %d2, room;\nmad.wide.u32 %d1, %t, 8, %d2",
    );
    expect(&run(8, ".global .align 8 .b8 room[64];", &body), |_| 0x4040_3f80);
}

/// A barrier object at `sh`, 16 bytes before the memory for data.
const TRANSFER: &str = ".shared .align 16 .b8 sh[272];\n.global .align 16 .b8 room[256];";

#[test]
fn bulk_copies_complete_the_transactions_of_a_barrier() {
    let body = "mov.u64 %d1, room;\nmad.wide.u32 %d2, %t, 4, %d1;\nmul.lo.u32 %r1, %t, 3;\n\
        st.global.b32 [%d2], %r1;\nbar.sync 0;\nsetp.ne.u32 %p1, %t, 5;\n@%p1 bra WAIT;\n\
        mbarrier.init.shared::cta.b64 [sh], 1;\nfence.mbarrier_init.release.cluster;\n\
        fence.proxy.async.shared::cta;\n\
        mbarrier.arrive.expect_tx.shared::cta.b64 _, [sh], 128;\n\
        cp.async.bulk.prefetch.L2.global [room], 128;\n\
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [sh+16], [%d1], 128, \
        [sh];\n\
        WAIT: bar.sync 0;\n\
        L: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p2, [sh], 0;\n@!%p2 bra L;\n\
        mov.u64 %d3, sh;\nmad.wide.u32 %d3, %t, 4, %d3;\nld.shared.b32 %r2, [%d3+16];\n\
        st.global.b32 [%out], %r2;";
    expect(&run(32, TRANSFER, body), |t| 3 * t);
}

#[test]
fn bulk_reductions_change_global_memory() {
    let body = "mov.u64 %d1, room;\nmad.wide.u32 %d2, %t, 4, %d1;\nst.global.b32 [%d2], 1000;\n\
        mov.u64 %d3, sh;\nmad.wide.u32 %d3, %t, 4, %d3;\nst.shared.b32 [%d3+16], %t;\n\
        fence.proxy.async;\nbar.sync 0;\nsetp.ne.u32 %p1, %t, 0;\n@%p1 bra WAIT;\n\
        cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%d1], [sh+16], 128;\n\
        cp.reduce.async.bulk.global.shared::cta.bulk_group.max.s32 [room+64], [sh+16], 64;\n\
        cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;\n\
        cp.async.bulk.wait_group 0;\nWAIT: bar.sync 0;\nld.volatile.global.b32 %r1, [%d2];\n\
        st.global.b32 [%out], %r1;";
    expect(&run(32, TRANSFER, body), |t| 1000 + t);
}

#[test]
fn stores_and_reductions_signal_a_barrier_of_another_block() {
    let shape = Shape { grid: [4, 1, 1], block: [32, 1, 1], cluster: [4, 1, 1], dynamic_shared: 0 };
    // The first lane of each block writes to the next block of the cluster.
    let body = "setp.ne.u32 %p1, %t, 0;\n@%p1 bra READY;\n\
        mbarrier.init.shared::cta.b64 [sh], 1;\nst.shared.b32 [sh+24], 40;\n\
        mbarrier.arrive.expect_tx.shared::cta.b64 _, [sh], 12;\nREADY:\n\
        barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n\
        mov.u32 %r1, %cluster_ctarank;\nadd.u32 %r2, %r1, 1;\nand.b32 %r2, %r2, 3;\n\
        mov.u64 %d1, sh;\ncvt.u32.u64 %r3, %d1;\nmapa.shared::cluster.u32 %r4, %r3, %r2;\n\
        @%p1 bra WAIT;\nmul.lo.u32 %r5, %r1, 100;\n\
        st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%r4+16], {%r5, 7}, [%r4];\n\
        red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.inc.u32 [%r4+24], \
        99, [%r4];\n\
        WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [sh], 0;\n@!%p2 bra WAIT;\n\
        ld.shared.v2.b32 {%r6, %r7}, [sh+16];\nld.shared.b32 %r8, [sh+24];\n\
        add.u32 %r6, %r6, %r7;\nmad.lo.u32 %r6, %r8, 1000, %r6;\nst.global.b32 [%out], %r6;";
    expect(&run_shape(TRANSFER, body, shape), |t| {
        let before = (t / 32 + 3) % 4;
        41_000 + 100 * before + 7
    });
}

#[test]
fn a_bulk_copy_goes_to_several_blocks_of_a_cluster() {
    let shape = Shape { grid: [4, 1, 1], block: [32, 1, 1], cluster: [4, 1, 1], dynamic_shared: 0 };
    let body = "mov.u64 %d1, room;\nmad.wide.u32 %d2, %t, 4, %d1;\nadd.u32 %r1, %t, 11;\n\
        st.global.b32 [%d2], %r1;\nmov.u32 %r2, %cluster_ctarank;\nsetp.ne.u32 %p1, %t, 0;\n\
        @%p1 bra READY;\nmbarrier.init.shared::cta.b64 [sh], 1;\n\
        mbarrier.arrive.expect_tx.shared::cta.b64 _, [sh], 128;\nREADY:\n\
        barrier.cluster.arrive;\nbarrier.cluster.wait;\nsetp.eq.u32 %p3, %r2, 3;\n\
        selp.u32 %r4, 1, 0, %p1;\nsetp.ne.u32 %p4, %r2, 2;\nor.pred %p4, %p4, %p1;\n\
        @%p4 bra WAIT;\nmov.b16 %h1, 7;\n\
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster \
        [sh+16], [room], 128, [sh], %h1;\n\
        WAIT: mov.b32 %r5, 0;\n@%p3 bra END;\n\
        L: mbarrier.try_wait.parity.shared::cta.b64 %p2, [sh], 0;\n@!%p2 bra L;\n\
        mov.u64 %d3, sh;\nmad.wide.u32 %d3, %t, 4, %d3;\nld.shared.b32 %r5, [%d3+16];\n\
        END: st.global.b32 [%out], %r5;";
    expect(&run_shape(TRANSFER, body, shape), |t| if t < 96 { t % 32 + 11 } else { 0 });
}

#[test]
fn matrices_are_moved_between_memory_and_lanes() {
    let declarations = ".shared .align 16 .b8 sh[512];\n.shared .align 16 .b8 other[512];";
    // Element e of the memory is e. Lane l has the address of row l, in reverse order.
    let body = "mov.u64 %d1, sh;\nmad.wide.u32 %d2, %t, 16, %d1;\nshl.b32 %r1, %t, 3;\n\
        mad.lo.u32 %r1, %r1, 65537, 65536;\nadd.u32 %r2, %r1, 0x20002;\n\
        add.u32 %r3, %r1, 0x40004;\nadd.u32 %r4, %r1, 0x60006;\n\
        st.shared.v4.b32 [%d2], {%r1, %r2, %r3, %r4};\nbar.sync 0;\nsub.u32 %r5, 31, %t;\n\
        mad.wide.u32 %d3, %r5, 16, %d1;\n\
        ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1, %r2, %r3, %r4}, [%d3];\n\
        ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%r6}, [%d2];\n\
        movmatrix.sync.aligned.m8n8.trans.b16 %r7, %r6;\n\
        mov.u64 %d4, other;\nmad.wide.u32 %d5, %t, 16, %d4;\n\
        stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%d5], {%r6, %r2};\nbar.sync 0;\n\
        mad.wide.u32 %d6, %t, 4, %d4;\nld.shared.b32 %r8, [%d6];\n";
    let run =
        |register: &str| run(32, declarations, &format!("{body}st.global.b32 [%out], {register};"));
    let pair = |low: u32, high: u32| high << 16 | low;
    // Register i has the rows of lanes 8 i to 8 i + 7.
    for (i, register) in ["%r1", "%r2", "%r3", "%r4"].into_iter().enumerate() {
        expect(&run(register), |l| {
            let row = 31 - (8 * i as u32 + l / 4);
            pair(8 * row + 2 * (l % 4), 8 * row + 2 * (l % 4) + 1)
        });
    }
    expect(&run("%r6"), |l| pair(8 * (2 * (l % 4)) + l / 4, 8 * (2 * (l % 4) + 1) + l / 4));
    // The matrix that was transposed twice.
    let original = |l: u32| pair(8 * (l / 4) + 2 * (l % 4), 8 * (l / 4) + 2 * (l % 4) + 1);
    expect(&run("%r7"), original);
    expect(&run("%r8"), original);
}

#[test]
fn a_tensor_filled_with_a_special_nan_gives_zero() {
    let body = "mov.b32 %r1, 0xffff3c00;\nmov.b32 %r2, 0x40004000;\n\
        fma.rn.oob.f16x2 %r3, %r1, %r2, %r2;\nst.global.b32 [%out], %r3;";
    // 1 * 2 + 2 = 4, and zero for the NaN.
    expect(&run(1, "", body), |_| 0x0000_4400);
}

#[test]
fn what_is_not_executed_is_named() {
    for (instruction, kind, part) in [
        (
            "tex.2d.v4.f32.s32 {%r1,%r2,%r3,%r4}, [%d1, {%r5, %r6}];",
            LoadErrorKind::Unsupported,
            "tex.2d",
        ),
        ("sust.b.2d.b32.trap [%d1, {%r1, %r2}], {%r3};", LoadErrorKind::Unsupported, "sust.b"),
        ("suld.b.1d.b32.trap %r1, [%d1, {%r2}];", LoadErrorKind::Unsupported, "suld.b"),
        (
            "cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], \
            [%d1, {%r2}], [%r3];",
            LoadErrorKind::Unsupported,
            "cp.async.bulk.tensor",
        ),
        ("fence.proxy.unknown;", LoadErrorKind::Unsupported, "unknown"),
        ("membar.warp;", LoadErrorKind::Unsupported, "warp"),
        ("createpolicy.fractional.L3::evict_last.b64 %d1, 1.0;", LoadErrorKind::Unsupported, "L3"),
        ("ld.global.L1::evict_never.b32 %r1, [%d1];", LoadErrorKind::Unsupported, "evict_never"),
        ("add.rn.u32 %r1, %r2, %r3;", LoadErrorKind::Unsupported, "rn"),
        ("frob.b32 %r1, %r2;", LoadErrorKind::Invalid, "frob"),
    ] {
        let mut host = HostMachine::default();
        let error = host.load(&module("", instruction)).err().unwrap();
        assert_eq!(error.kind, kind, "{instruction}: {error}");
        assert!(error.message.contains(part), "{instruction}: {error}");
    }
}
