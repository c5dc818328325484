//! Collectives in captures that begin on one stream, which the others join; replayed with other
//! inputs.

use super::*;
use crate::base::error::Error;
use crate::gpu::gpus::Gpus;
use crate::graph::Graph;

/// Captures each operation on the stream of one device and replays it several times, on machines of
/// each schedule, with one kernel, with kernels on all devices, and with copy engines.
#[test]
fn captured_collectives_can_be_replayed() {
    const BYTES: usize = 6_000;
    let schedules = ["immediate", "threads", "adversarial:1", "adversarial:2", "adversarial:3"];
    for (limits_of_path, schedule) in
        paths().iter().flat_map(|limits_of_path| schedules.map(|name| (limits_of_path, name)))
    {
        on_machine(&format!("devices=3,memory=256MiB,schedule={schedule}"), |gpus| {
            let _limits = Limits::set(limits_of_path);
            let streams = pooled(gpus);
            // For each device: the input, and the outputs: a copy, a sum, and all parts
            // concatenated.
            let block = |stream: &&Stream| allocate(gpus, stream, 5 * BYTES);
            let blocks: Vec<u64> = streams.iter().map(block).collect();
            let part = |device: usize, place: usize| Part {
                device: device as i32,
                address: blocks[device] + (place * BYTES) as u64,
            };
            let graph = Graph::new(false);
            graph.capture_begin(gpus, streams[1], None, 0).unwrap();
            let team = Team::new(gpus, &streams).unwrap();
            // Peer access cannot be enabled in a capture, and was not enabled before.
            let dsts = [part(1, 1), part(2, 1)];
            let refused = broadcast(&team, BYTES as u64, part(0, 0), &dsts);
            assert!(matches!(refused, Err(Error::Capturing { .. })), "{refused:?}");
            graph.capture_abort(gpus).unwrap();
            for (device, peer) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
                gpus.devices[device].enable_peer(&gpus.devices[peer]).unwrap();
            }

            let graph = Graph::new(false);
            graph.capture_begin(gpus, streams[1], None, 0).unwrap();
            let team = Team::new(gpus, &streams).unwrap();
            assert!(broadcast(&team, BYTES as u64, part(0, 0), &dsts).unwrap());
            let sources = [part(0, 0), part(1, 0), part(2, 0)];
            let elements = BYTES as u64;
            let item = Sum { number: Number::Int8, elements, sources: &sources, dst: part(0, 2) };
            assert!(sum(&team, &[item]).unwrap());
            let gathered = (0..3).map(|device| {
                let mut dst = part(1, 2);
                dst.address += device as u64 * 2_000;
                Rows::flat(part(device, 0), dst, 2_000)
            });
            assert!(copies(&team, &gathered.collect::<Vec<_>>()).unwrap());
            graph.capture_end(gpus).unwrap();
            for seed in 0..4 {
                let sent: Vec<Vec<u8>> =
                    (0..3).map(|device| pattern(seed * 3 + device, BYTES)).collect();
                for (device, bytes) in sent.iter().enumerate() {
                    put(gpus, streams[device], part(device, 0).address, bytes);
                }
                graph.replay(gpus, None).unwrap();
                for stream in &streams {
                    stream.wait_stream(gpus, streams[1]).unwrap();
                }
                graph_is_done(gpus, &streams);
                let read = |device: usize, place: usize| {
                    get(gpus, streams[device], part(device, place).address, BYTES)
                };
                assert!(read(1, 1) == sent[0] && read(2, 1) == sent[0]);
                let added = (0..BYTES)
                    .map(|at| sent.iter().fold(0u8, |all, bytes| all.wrapping_add(bytes[at])));
                assert!(read(0, 2) == added.collect::<Vec<_>>());
                let joined = sent.iter().flat_map(|bytes| bytes[..2_000].to_vec());
                assert!(read(1, 2) == joined.collect::<Vec<_>>());
            }
            graph.reset(gpus);
            blocks.iter().for_each(|block| memory::free(gpus, *block).unwrap());
        });
    }
}

/// The replay runs on the current stream of its device, here the default stream.
fn graph_is_done(gpus: &Gpus, streams: &[&Stream]) {
    gpus.devices[1].synchronize().unwrap();
    streams.iter().for_each(|stream| stream.synchronize(gpus).unwrap());
}
