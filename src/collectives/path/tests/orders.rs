//! Results for each path, order of work, and alignment.

use super::*;
use crate::gpu::gpus::Gpus;

const SCHEDULES: [&str; 2] = ["immediate", "threads"];

/// Runs `body` on machines with this many devices, for each schedule and a few seeds.
fn machines(devices: usize, seeds: u64, body: impl Fn(&Gpus, u64)) {
    let seeds = (0..seeds).map(|seed| (format!("adversarial:{seed}"), seed + 10));
    let schedules = SCHEDULES.iter().zip(0..).map(|(name, seed)| (name.to_string(), seed));
    for (schedule, seed) in schedules.chain(seeds) {
        let options = format!("devices={devices},memory=256MiB,schedule={schedule}");
        on_machine(&options, |gpus| body(gpus, seed));
    }
}

/// An alignment that depends on the seed and the number of the buffer.
fn odd(seed: u64, index: usize) -> usize {
    match seed % 4 {
        0 => 0,
        1 => 16 * index,
        2 => 4 * index,
        _ => 7 * index % 16,
    }
}

fn broadcast_among(devices: usize, bytes: usize, seeds: u64) {
    for limits_of_path in paths() {
        machines(devices, seeds, |gpus, seed| {
            let _limits = Limits::set(&limits_of_path);
            let streams = streams(gpus);
            let root = seed as usize % devices;
            let buffers: Vec<Buffer> = (0..devices)
                .map(|device| {
                    let contents = pattern(device as u64, bytes);
                    Buffer::new(gpus, streams[device], odd(seed, device), &contents)
                })
                .collect();
            let others = (0..devices).filter(|device| *device != root);
            let mut dsts: Vec<Part> = others.map(|device| buffers[device].part()).collect();
            // For some seeds the root has a destination too.
            let near = Buffer::new(gpus, streams[root], 3, &vec![0x66; bytes]);
            if seed % 2 == 1 {
                dsts.insert(seed as usize / 2 % devices, near.part());
            }
            near.before();
            let done = call(&buffers, || {
                let team = Team::new(gpus, &streams)?;
                broadcast(&team, bytes as u64, buffers[root].part(), &dsts)
            });
            near.after();
            assert!(done);
            let wanted = pattern(root as u64, bytes);
            assert!(
                seed % 2 == 0 || near.seen() == wanted,
                "{limits_of_path:?}",
                limits_of_path = limits_of_path[0].1
            );
            for buffer in &buffers {
                assert!(
                    buffer.seen() == wanted,
                    "{limits_of_path:?}",
                    limits_of_path = limits_of_path[0].1
                );
            }
        });
    }
}

#[test]
fn all_devices_get_what_the_root_has() {
    for devices in [2, 3, 4] {
        broadcast_among(devices, 20_011, 6);
    }
    broadcast_among(4, 37, 4);
    broadcast_among(16, 9_000, 2);
}

#[test]
fn all_devices_get_all_pieces() {
    for devices in [2, 3, 5] {
        for limits_of_path in paths() {
            machines(devices, 3, |gpus, seed| {
                let _limits = Limits::set(&limits_of_path);
                let streams = streams(gpus);
                let root = seed as usize % devices;
                let lengths: Vec<usize> =
                    (0..300).map(|at| (at * 37 + seed as usize) % 140).collect();
                let pieces: Vec<(Piece, Buffer)> = lengths
                    .iter()
                    .scan(0, |offset, length| {
                        let contents = pattern(*offset, *length);
                        let buffer = Buffer::new(gpus, streams[root], 0, &contents);
                        let (src, bytes) = (buffer.address, *length as u64);
                        let piece = Piece { src, offset: *offset, bytes };
                        *offset += bytes.next_multiple_of(64);
                        Some((piece, buffer))
                    })
                    .filter(|(piece, _)| piece.bytes > 0)
                    .collect();
                let last = pieces.last().unwrap().0;
                let bytes = (last.offset + last.bytes) as usize;
                let blocks: Vec<Buffer> = (0..devices)
                    .filter(|device| *device != root)
                    .map(|device| Buffer::new(gpus, streams[device], 0, &vec![0x55; bytes]))
                    .collect();
                let list: Vec<Piece> = pieces.iter().map(|(piece, _)| *piece).collect();
                let parts: Vec<Part> = blocks.iter().map(Buffer::part).collect();
                pieces.iter().for_each(|(_, buffer)| buffer.before());
                let done = call(&blocks, || {
                    let team = Team::new(gpus, &streams)?;
                    if seed % 3 == 0 {
                        return broadcast_many(&team, root as i32, &list, &parts, bytes as u64);
                    }
                    // As three blocks, one after the other.
                    let cuts = [0, list.len() / 5, list.len() / 2, list.len()];
                    let end = |cut: usize| list.get(cut).map_or(bytes as u64, |piece| piece.offset);
                    let made = cuts.windows(2).map(|cut| {
                        let start = end(cut[0]);
                        let moved =
                            |piece: &Piece| Piece { offset: piece.offset - start, ..*piece };
                        let pieces: Vec<Piece> = list[cut[0]..cut[1]].iter().map(moved).collect();
                        let at = |part: &Part| Part { address: part.address + start, ..*part };
                        (pieces, parts.iter().map(at).collect::<Vec<_>>(), end(cut[1]) - start)
                    });
                    let made: Vec<_> = made.collect();
                    let blocks = made.iter().map(|(pieces, parts, bytes)| Block {
                        pieces,
                        parts,
                        bytes: *bytes,
                    });
                    broadcast_blocks(&team, root as i32, &blocks.collect::<Vec<_>>())
                });
                pieces.iter().for_each(|(_, buffer)| buffer.after());
                assert!(done);
                for block in &blocks {
                    let seen = block.seen();
                    let mut wanted = vec![0x55; bytes];
                    for piece in &list {
                        let (at, length) = (piece.offset as usize, piece.bytes as usize);
                        wanted[at..at + length].copy_from_slice(&pattern(piece.offset, length));
                    }
                    assert!(seen == wanted);
                }
            });
        }
    }
}

/// Rows of a matrix on one device, and chunks of its columns on all devices.
fn columns_among(devices: usize, seeds: u64, gathers: bool, is_strided: bool) {
    let (rows, widths) = (23, [40, 64, 3, 100, 17]);
    let width: usize = (0..devices).map(|device| widths[device % 5]).sum();
    for limits_of_path in paths() {
        machines(devices, seeds, |gpus, seed| {
            let _limits = Limits::set(&limits_of_path);
            let streams = streams(gpus);
            let hub = seed as usize % devices;
            let whole = pattern(1, rows * width);
            let matrix = Buffer::new(gpus, streams[hub], odd(seed, 3), &whole);
            let chunks: Vec<Buffer> = (0..devices)
                .map(|device| {
                    let contents = pattern(device as u64 + 2, rows * widths[device % 5]);
                    Buffer::new(gpus, streams[device], odd(seed, device), &contents)
                })
                .collect();
            let mut left = 0;
            let parts = chunks.iter().enumerate().map(|(device, chunk)| {
                let mut inside = matrix.part();
                inside.address += left as u64;
                left += widths[device % 5];
                (inside, chunk.part(), widths[device % 5] as u64)
            });
            let parts: Vec<(Part, Part, u64)> = parts.collect();
            let copied: Vec<Rows> = parts
                .iter()
                .map(|(inside, chunk, own)| match gathers {
                    false => Rows {
                        src: *inside,
                        dst: *chunk,
                        width: *own,
                        rows: rows as u64,
                        src_pitch: width as u64,
                        dst_pitch: *own,
                    },
                    true => Rows {
                        src: *chunk,
                        dst: *inside,
                        width: *own,
                        rows: rows as u64,
                        src_pitch: *own,
                        dst_pitch: width as u64,
                    },
                })
                .collect();
            let dims: Vec<[Dim; 2]> = copied
                .iter()
                .map(|part| {
                    let pitches = (part.src_pitch as i64, part.dst_pitch as i64);
                    [(part.width, 1, 1), (part.rows, pitches.0, pitches.1)]
                })
                .collect();
            let pieces = copied.iter().zip(&dims);
            let pieces: Vec<Strided> = pieces
                .map(|(part, dims)| Strided { src: part.src, dst: part.dst, element: 1, dims })
                .collect();
            matrix.before();
            let done = call(&chunks, || {
                let team = Team::new(gpus, &streams)?;
                if is_strided { strided(&team, &pieces) } else { copies(&team, &copied) }
            });
            matrix.after();
            assert!(done);
            let (seen, mut left) = (matrix.seen(), 0);
            for (device, chunk) in chunks.iter().enumerate() {
                let own = widths[device % 5];
                let contents = pattern(device as u64 + 2, rows * own);
                let chunk = chunk.seen();
                for row in 0..rows {
                    let inside = row * width + left..row * width + left + own;
                    let outside = row * own..(row + 1) * own;
                    let wanted =
                        if gathers { &contents[outside.clone()] } else { &whole[inside.clone()] };
                    assert!(&seen[inside] == wanted && &chunk[outside] == wanted, "row {row}");
                }
                left += own;
            }
        });
    }
}

#[test]
fn columns_are_scattered_and_gathered() {
    for devices in [1, 2, 4] {
        columns_among(devices, 4, false, false);
        columns_among(devices, 4, true, false);
    }
    columns_among(9, 2, false, false);
    columns_among(9, 2, true, false);
}

#[test]
fn elements_are_scattered_and_gathered() {
    for devices in [1, 2, 4] {
        columns_among(devices, 4, false, true);
        columns_among(devices, 4, true, true);
    }
}

/// Small integers whose sums depend on the order: for floating types one number is so large that
/// later ones are rounded off.
fn numbers(number: Number, seed: u64, count: usize) -> Vec<u8> {
    let bytes = pattern(seed, 8 * count);
    let value = |at: usize| i64::from(bytes[8 * at] as i8) - i64::from(bytes[8 * at + 1] & 1);
    let float = |at: usize| match bytes[8 * at + 2] % 4 {
        0 => value(at) as f64 * 4096.0,
        1 => value(at) as f64 / 4096.0,
        _ => value(at) as f64,
    };
    use crate::random::number::{bfloat_of, half_of};
    (0..count)
        .flat_map(|at| match number {
            Number::Bool => vec![bytes[8 * at] & 1],
            Number::F16 => half_of(float(at) as f32 / 16.0).to_le_bytes().to_vec(),
            Number::BF16 => bfloat_of(float(at) as f32).to_le_bytes().to_vec(),
            Number::F32 => ((float(at) * 1e5) as f32 / 3.0).to_le_bytes().to_vec(),
            Number::F64 => (float(at) * 1e12 / 3.0).to_le_bytes().to_vec(),
            _ => value(at).to_le_bytes()[..number.bytes() as usize].to_vec(),
        })
        .collect()
}

/// The expected sum, computed naively.
fn added(number: Number, sources: &[Vec<u8>]) -> Vec<u8> {
    use crate::random::number::{bfloat_of, half_of, of_bfloat, of_half};
    let mut sums = sources[0].clone();
    let size = number.bytes() as usize;
    for source in &sources[1..] {
        for (sum, next) in sums.chunks_exact_mut(size).zip(source.chunks_exact(size)) {
            macro_rules! by {
                ($kind:ty, $add:expr) => {{
                    let a = <$kind>::from_le_bytes(sum.try_into().unwrap());
                    let b = <$kind>::from_le_bytes(next.try_into().unwrap());
                    sum.copy_from_slice(&$add(a, b).to_le_bytes());
                }};
            }
            match number {
                Number::Bool => sum[0] |= next[0],
                Number::Int8 => by!(i8, i8::wrapping_add),
                Number::Int16 => by!(i16, i16::wrapping_add),
                Number::Int32 => by!(i32, i32::wrapping_add),
                Number::Int64 => by!(i64, i64::wrapping_add),
                Number::F16 => by!(u16, |a, b| half_of(of_half(a) + of_half(b))),
                Number::BF16 => by!(u16, |a, b| bfloat_of(of_bfloat(a) + of_bfloat(b))),
                Number::F32 => by!(f32, |a, b| a + b),
                Number::F64 => by!(f64, |a, b| a + b),
            }
        }
    }
    sums
}

fn sums_among(devices: usize, number: Number, counts: &[usize], seeds: u64) {
    for limits_of_path in paths() {
        machines(devices, seeds, |gpus, seed| {
            let _limits = Limits::set(&limits_of_path);
            let streams = streams(gpus);
            let root = seed as usize % devices;
            // The root's source is the first. In every other case the sum replaces it.
            let order: Vec<usize> =
                [root].into_iter().chain((0..devices).filter(|device| *device != root)).collect();
            let mut buffers = Vec::new();
            for (item, count) in counts.iter().enumerate() {
                for device in &order {
                    let contents = numbers(number, (item * 97 + device) as u64, *count);
                    let odd = odd(seed, *device) / 8 * 8 + if seed % 5 == 3 { 1 } else { 0 };
                    buffers.push(Buffer::new(gpus, streams[*device], odd, &contents));
                }
            }
            let results: Vec<Buffer> = counts
                .iter()
                .map(|count| {
                    let garbage = vec![0x77; count * number.bytes() as usize];
                    Buffer::new(gpus, streams[root], odd(seed, 2) / 8 * 8, &garbage)
                })
                .collect();
            let sources: Vec<Part> = buffers.iter().map(Buffer::part).collect();
            let items = counts.iter().enumerate().map(|(item, count)| {
                let sources = &sources[item * devices..(item + 1) * devices];
                let dst = if item % 2 == 1 { sources[0] } else { results[item].part() };
                Sum { number, elements: *count as u64, sources, dst }
            });
            let items: Vec<Sum> = items.collect();
            results.iter().for_each(Buffer::before);
            let done = call(&buffers, || {
                let team = Team::new(gpus, &streams)?;
                sum(&team, &items)
            });
            results.iter().for_each(Buffer::after);
            assert!(done);
            for (item, count) in counts.iter().enumerate() {
                let sources: Vec<Vec<u8>> = order
                    .iter()
                    .map(|device| numbers(number, (item * 97 + device) as u64, *count))
                    .collect();
                let wanted = added(number, &sources);
                let own = &buffers[item * devices..(item + 1) * devices];
                let seen = if item % 2 == 1 { own[0].seen() } else { results[item].seen() };
                assert!(seen == wanted, "item {item} of {number:?}, seed {seed}");
                for (buffer, wanted) in own.iter().zip(&sources).skip(1) {
                    assert!(buffer.seen() == *wanted);
                }
            }
        });
    }
}

#[test]
fn sums_are_those_of_one_device() {
    for number in Number::ALL {
        sums_among(4, number, &[3_000, 1, 801], 1);
    }
}

#[test]
fn sums_of_any_number_of_devices() {
    for devices in [1, 2, 3, 5] {
        sums_among(devices, Number::F32, &[2_500, 333], 4);
    }
    sums_among(16, Number::F16, &[5_000], 2);
}

#[test]
fn sums_of_many_tensors() {
    let counts: Vec<usize> = (0..150).map(|at| (at * 53) % 211).collect();
    sums_among(3, Number::BF16, &counts, 1);
}
