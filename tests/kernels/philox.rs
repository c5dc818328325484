//! Philox 4x32-10, as in cuRAND: a function of a key, a subsequence, and a counter.

const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
/// Added to the key after each round.
const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
const ROUNDS: usize = 10;

/// Philox block number `block` of `subsequence`, for the key `seed`.
pub fn block(seed: u64, subsequence: u64, block: u64) -> [u32; 4] {
    let mut key = [seed as u32, (seed >> 32) as u32];
    let mut c =
        [block as u32, (block >> 32) as u32, subsequence as u32, (subsequence >> 32) as u32];
    for _ in 0..ROUNDS {
        let p = u64::from(MULTIPLIERS[0]) * u64::from(c[0]);
        let q = u64::from(MULTIPLIERS[1]) * u64::from(c[2]);
        c = [
            (q >> 32) as u32 ^ c[1] ^ key[0],
            q as u32,
            (p >> 32) as u32 ^ c[3] ^ key[1],
            p as u32,
        ];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    c
}

#[test]
fn philox_matches_known_answers() {
    let at_offset = |seed, subsequence, offset: u64| block(seed, subsequence, offset / 4);
    let answers: [(u64, u64, u64, [u32; 4]); 7] = [
        (0, 0, 0, [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
        (0, 1, 0, [0x8445_15e1, 0xf08d_6eaa, 0x0f19_c053, 0x83f8_75f0]),
        (0, 0, 4, [0xf8e4_cca4, 0x5cb2_00db, 0xb1a5_74eb, 0x097e_ff67]),
        (42, 0, 0, [0x9cea_f053, 0x77f5_493b, 0x12bf_50ad, 0x5742_b3d7]),
        (42, 5, 8, [0x3695_fa92, 0xf838_528a, 0xf171_847b, 0xb1fa_02ce]),
        (67_280_421_310_721, 0, 0, [0x64a3_e0f6, 0xd72e_25ab, 0x0be1_367b, 0x53ec_cf2d]),
        (
            0x1234_5678_9abc_def0,
            0x1_0000_0001,
            1 << 36,
            [0xbd5c_d993, 0x4434_b1a1, 0x4ca9_2fbb, 0x1264_4410],
        ),
    ];
    for (seed, stream, offset, words) in answers {
        assert_eq!(at_offset(seed, stream, offset), words, "{seed} {stream} {offset}");
    }
}
