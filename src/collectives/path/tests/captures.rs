//! Collectives in captures: of one stream, which the others join, and replayed with other inputs.

use super::*;
use crate::base::error::Error;
use crate::graph::Graph;

/// Every verb, captured on the stream of one device and replayed several times, on machines of any
/// schedule, by one kernel, by kernels on all devices and by engines.
#[test]
fn what_is_captured_can_be_replayed() {
    const BYTES: usize = 6_000;
    let schedules = ["immediate", "threads", "adversarial:1", "adversarial:2", "adversarial:3"];
    for (way, schedule) in ways().iter().flat_map(|way| schedules.map(|name| (way, name))) {
        on_machine(&format!("devices=3,memory=256MiB,schedule={schedule}"), |runtime| {
            let _limits = Limits::set(way);
            let streams = pooled(runtime);
            // Of each device: what is sent, and what comes: a copy, a sum, and all parts together.
            let block = |stream: &&Stream| malloc(runtime, stream, 5 * BYTES);
            let blocks: Vec<u64> = streams.iter().map(block).collect();
            let part = |device: usize, place: usize| Part {
                device: device as i32,
                address: blocks[device] + (place * BYTES) as u64,
            };
            let graph = Graph::new(false);
            graph.capture_begin(runtime, streams[1], None, 0).unwrap();
            let team = Team::new(runtime, &streams).unwrap();
            // Peers could not be enabled in a capture; here they never were.
            let dsts = [part(1, 1), part(2, 1)];
            let refused = broadcast(&team, BYTES as u64, part(0, 0), &dsts);
            assert!(matches!(refused, Err(Error::Capturing { .. })), "{refused:?}");
            graph.capture_abort(runtime).unwrap();
            for (device, peer) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
                runtime.devices[device].enable_peer(&runtime.devices[peer]).unwrap();
            }

            let graph = Graph::new(false);
            graph.capture_begin(runtime, streams[1], None, 0).unwrap();
            let team = Team::new(runtime, &streams).unwrap();
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
            graph.capture_end(runtime).unwrap();
            for seed in 0..4 {
                let sent: Vec<Vec<u8>> =
                    (0..3).map(|device| pattern(seed * 3 + device, BYTES)).collect();
                for (device, bytes) in sent.iter().enumerate() {
                    put(runtime, streams[device], part(device, 0).address, bytes);
                }
                graph.replay(runtime, None).unwrap();
                for stream in &streams {
                    stream.wait_stream(runtime, streams[1]).unwrap();
                }
                graph_is_done(runtime, &streams);
                let read = |device: usize, place: usize| {
                    get(runtime, streams[device], part(device, place).address, BYTES)
                };
                assert!(read(1, 1) == sent[0] && read(2, 1) == sent[0]);
                let added = (0..BYTES)
                    .map(|at| sent.iter().fold(0u8, |all, bytes| all.wrapping_add(bytes[at])));
                assert!(read(0, 2) == added.collect::<Vec<_>>());
                let joined = sent.iter().flat_map(|bytes| bytes[..2_000].to_vec());
                assert!(read(1, 2) == joined.collect::<Vec<_>>());
            }
            graph.reset(runtime);
            blocks.iter().for_each(|block| memory::free(runtime, *block).unwrap());
        });
    }
}

/// A replay runs on the current stream of its device, here the default one.
fn graph_is_done(runtime: &Runtime, streams: &[&Stream]) {
    runtime.devices[1].synchronize().unwrap();
    streams.iter().for_each(|stream| stream.synchronize(runtime).unwrap());
}
