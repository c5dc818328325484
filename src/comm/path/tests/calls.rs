//! How many calls of the driver a collective takes, and what is refused.

use super::*;
use crate::driver::NAMES;

/// Calls of the driver by name that `body` makes.
fn counted(runtime: &Runtime, body: impl FnOnce()) -> Vec<(&'static str, u64)> {
    let count = || (0..NAMES.len()).map(|call| runtime.driver().count(Some(call)));
    let before: Vec<u64> = count().collect();
    body();
    let made = count().zip(before).map(|(after, before)| after - before);
    NAMES.iter().copied().zip(made).filter(|(_, made)| *made > 0).collect()
}

/// Pooled streams, or default ones, of all devices; and a buffer on each.
fn with_buffers(devices: usize, are_default: bool, body: impl Fn(&Runtime, &[&Stream], &[Part])) {
    let options = format!("devices={devices},memory=64MiB");
    on_machine(&options, |runtime| {
        let stream = |device: &'_ crate::device::Device| -> *const Stream {
            match are_default {
                true => device.streams.default(),
                false => device.streams.next(device, 0).unwrap(),
            }
        };
        // SAFETY: streams live as long as the runtime.
        let streams = runtime.devices.iter().map(|device| unsafe { &*stream(device) });
        let streams: Vec<&Stream> = streams.collect();
        let parts = streams.iter().map(|stream| Part {
            device: stream.device(),
            address: malloc(runtime, stream, 4 << 20),
        });
        let parts: Vec<Part> = parts.collect();
        body(runtime, &streams, &parts);
        parts.iter().for_each(|part| memory::free(runtime, part.address).unwrap());
    });
}

#[test]
fn print() {
    for are_default in [false, true] {
        with_buffers(4, are_default, |runtime, streams, parts| {
            for bytes in [4096, 1 << 20] {
                for _ in 0..2 {
                    let made = counted(runtime, || {
                        let team = Team::new(runtime, streams).unwrap();
                        assert!(broadcast(&team, bytes, parts[0], &parts[1..]).unwrap());
                    });
                    println!("{are_default} broadcast {bytes} {made:?}");
                }
                let made = counted(runtime, || {
                    let team = Team::new(runtime, streams).unwrap();
                    let item = Sum {
                        number: Number::F32,
                        elements: bytes / 4,
                        sources: parts,
                        dst: parts[0],
                    };
                    assert!(sum(&team, &[item]).unwrap());
                });
                println!("{are_default} sum {bytes} {made:?}");
            }
        });
    }
}
