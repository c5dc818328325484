//! Kernels that rely on barriers, or on an order of blocks and warps.

/// Threads of a block.
pub const THREADS: u32 = 128;
/// Blocks of a grid.
pub const BLOCKS: u32 = 4;

/// What all kernels begin with: `%t` the thread, `%b` the block, `%s` and `%o` the addresses of its
/// word in shared memory and in the output, `%v` a value, `%all` the output, `%n` a neighbour.
const HEAD: &str = ".reg .pred %p; .reg .b32 %t, %b, %s, %v, %x, %y, %n, %base; \
    .reg .b64 %o, %all, %w; .shared .align 4 .b8 room[1024]; \
    ld.param.u64 %all, [out]; mov.u32 %t, %tid.x; mov.u32 %b, %ctaid.x; mov.u32 %base, room; \
    mad.lo.u32 %s, %t, 4, %base; mad.lo.u32 %x, %b, 128, %t; mul.wide.u32 %w, %x, 4; \
    add.u64 %o, %all, %w; mad.lo.u32 %v, %t, 7, %b; add.u32 %v, %v, 3;";

/// Kernels with barriers, each of which is needed.
pub const WITH_BARRIERS: [(&str, &str); 7] = [
    (
        "reversed",
        "st.shared.u32 [%s], %v; BAR sub.u32 %n, 127, %t; mad.lo.u32 %n, %n, 4, %base; \
         ld.shared.u32 %x, [%n]; st.global.u32 [%o], %x;",
    ),
    (
        "summed as a tree",
        "st.shared.u32 [%s], %v; BAR setp.ge.u32 %p, %t, 64; @%p bra $one; \
         ld.shared.u32 %x, [%s+256]; ld.shared.u32 %y, [%s]; add.u32 %x, %x, %y; \
         st.shared.u32 [%s], %x; $one: BAR setp.ge.u32 %p, %t, 32; @%p bra $two; \
         ld.shared.u32 %x, [%s+128]; ld.shared.u32 %y, [%s]; add.u32 %x, %x, %y; \
         st.global.u32 [%o], %x; $two:",
    ),
    (
        "exchanged twice through the same words",
        "st.shared.u32 [%s], %v; BAR add.u32 %n, %t, 32; and.b32 %n, %n, 127; \
         mad.lo.u32 %n, %n, 4, %base; ld.shared.u32 %x, [%n]; BAR mul.lo.u32 %y, %x, 2; \
         st.shared.u32 [%s], %y; BAR add.u32 %n, %t, 64; and.b32 %n, %n, 127; \
         mad.lo.u32 %n, %n, 4, %base; ld.shared.u32 %y, [%n]; add.u32 %x, %x, %y; \
         st.global.u32 [%o], %x;",
    ),
    (
        "broadcast twice",
        "setp.ne.u32 %p, %t, 0; @%p bra $one; st.shared.u32 [%base], 5; $one: BAR \
         ld.shared.u32 %x, [%base]; BAR setp.ne.u32 %p, %t, 64; @%p bra $two; \
         st.shared.u32 [%base], 9; $two: BAR ld.shared.u32 %y, [%base]; \
         mad.lo.u32 %x, %x, 100, %y; st.global.u32 [%o], %x;",
    ),
    (
        "counted in a histogram",
        "st.shared.u32 [%s], 0; BAR and.b32 %n, %v, 15; mul.lo.u32 %n, %n, 8; \
         mad.lo.u32 %n, %n, 4, %base; red.shared.add.u32 [%n], 1; BAR \
         ld.shared.u32 %x, [%s]; st.global.u32 [%o], %x;",
    ),
    (
        "summed before each thread",
        "st.shared.u32 [%s+512], %v; st.shared.u32 [%s], %t; BAR ld.shared.u32 %x, [%s+384]; \
         ld.shared.u32 %y, [%s+512]; BAR add.u32 %y, %x, %y; st.shared.u32 [%s+512], %y; BAR \
         ld.shared.u32 %x, [%s+256]; BAR add.u32 %y, %x, %y; st.shared.u32 [%s+512], %y; BAR \
         sub.u32 %n, 127, %t; mad.lo.u32 %n, %n, 4, %base; ld.shared.u32 %x, [%n+512]; \
         st.global.u32 [%o], %x;",
    ),
    (
        "transposed",
        "st.shared.u32 [%s], %v; BAR and.b32 %x, %t, 3; shr.u32 %y, %t, 2; \
         mad.lo.u32 %n, %x, 32, %y; mad.lo.u32 %n, %n, 4, %base; ld.shared.u32 %x, [%n]; \
         st.global.u32 [%o], %x;",
    ),
];

/// Kernels that rely on the turn of a block or a warp.
pub const ORDERED: [(&str, &str); 6] = [
    (
        "each block continues the one before",
        "setp.eq.u32 %p, %b, 0; mov.u32 %x, 1; @%p bra $one; ld.global.u32 %x, [%o+-512]; \
         add.u32 %x, %x, 1; $one: st.global.u32 [%o], %x;",
    ),
    (
        "the first block prepares for the others",
        "setp.ne.u32 %p, %b, 0; @%p bra $one; st.global.u32 [%all], 7; bra $two; $one: \
         ld.global.u32 %x, [%all]; st.global.u32 [%o], %x; $two:",
    ),
    (
        "the last block adds what the others left",
        "setp.eq.u32 %p, %b, 3; @%p bra $one; st.global.u32 [%o], %v; bra $two; $one: \
         ld.global.u32 %x, [%o+-512]; ld.global.u32 %y, [%o+-1024]; add.u32 %x, %x, %y; \
         st.global.u32 [%o], %x; $two:",
    ),
    (
        "blocks append in their order",
        "setp.ne.u32 %p, %t, 0; @%p bra $one; atom.global.add.u32 %x, [%all+2048], 1; \
         mul.wide.u32 %w, %x, 4; add.u64 %w, %all, %w; st.global.u32 [%w], %b; $one:",
    ),
    (
        "a counter without atomic operations",
        "and.b32 %x, %t, 31; setp.ne.u32 %p, %x, 0; @%p bra $one; \
         ld.volatile.global.u32 %x, [%all]; add.u32 %x, %x, 1; \
         st.volatile.global.u32 [%all], %x; $one:",
    ),
    (
        "the last warp's word stays",
        "and.b32 %n, %t, 31; mul.wide.u32 %w, %n, 4; add.u64 %w, %all, %w; \
         st.global.u32 [%w], %v;",
    ),
];

/// A kernel without one of its barriers.
pub fn text(body: &str, without: Option<usize>) -> String {
    let mut parts = body.split("BAR ");
    let mut whole = parts.next().unwrap().to_owned();
    for (index, part) in parts.enumerate() {
        if without != Some(index) {
            whole.push_str("bar.sync 0; ");
        }
        whole.push_str(part);
    }
    format!(
        ".version 7.8\n.target sm_52\n.address_size 64\n.entry f(.param .u64 out) {{ {HEAD} \
         {whole} ret; }}"
    )
}
