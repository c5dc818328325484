//! The number of driver calls of a collective, and refused calls.

use super::*;
use crate::driver::NAMES;
use crate::gpu::gpus::Gpus;

/// Calls that make contexts current.
const CONTEXTS: [&str; 4] =
    ["cuCtxGetCurrent", "cuCtxPushCurrent", "cuCtxSetCurrent", "cuCtxPopCurrent"];

/// The driver calls that `body` makes, by name.
fn counted(gpus: &Gpus, body: impl FnOnce()) -> Vec<(&'static str, u64)> {
    let count = || (0..NAMES.len()).map(|call| gpus.driver().count(Some(call)));
    let before: Vec<u64> = count().collect();
    body();
    let made = count().zip(before).map(|(after, before)| after - before);
    NAMES.iter().copied().zip(made).filter(|(_, made)| *made > 0).collect()
}

/// Runs `body` with a pooled stream and a buffer for each device.
fn with_buffers(devices: usize, body: impl Fn(&Gpus, &[&Stream], &[Part])) {
    on_machine(&format!("devices={devices},memory=64MiB"), |gpus| {
        let streams = pooled(gpus);
        let parts = streams.iter().map(|stream| Part {
            device: stream.device(),
            address: allocate(gpus, stream, 4 << 20),
        });
        let parts: Vec<Part> = parts.collect();
        body(gpus, &streams, &parts);
        parts.iter().for_each(|part| memory::free(gpus, part.address).unwrap());
    });
}

/// Calls that `body` makes from its second run on: records, waits, launches and copies.
fn made(devices: usize, body: impl Fn(&Team, &[Part])) -> [u64; 4] {
    made_with(&[], devices, body)
}

/// The same with other limits.
fn made_with(
    limits: &[(&'static Limit, u64)],
    devices: usize,
    body: impl Fn(&Team, &[Part]),
) -> [u64; 4] {
    let made = std::cell::Cell::new([0; 4]);
    with_buffers(devices, |gpus, streams, parts| {
        let _limits = Limits::set(limits);
        let body = || body(&Team::new(gpus, streams).unwrap(), parts);
        body();
        let calls = counted(gpus, body);
        let of = |name| calls.iter().find(|call| call.0 == name).map_or(0, |call| call.1);
        let found =
            ["cuEventRecord", "cuStreamWaitEvent", "cuLaunchKernel", "cuMemcpyAsync"].map(of);
        // In addition, each stream is queried for a capture, and contexts are made current.
        let contexts = CONTEXTS.map(of);
        let others = of("cuStreamIsCapturing") + contexts.iter().sum::<u64>();
        assert_eq!(of("cuStreamIsCapturing"), devices as u64);
        assert!(contexts.iter().sum::<u64>() <= 2 + found[2] + found[3]);
        assert_eq!(
            calls.iter().map(|call| call.1).sum::<u64>(),
            found.iter().sum::<u64>() + others
        );
        made.set(found);
    });
    made.get()
}

fn broadcasts(bytes: u64) -> impl Fn(&Team, &[Part]) {
    move |team, parts| assert!(broadcast(team, bytes, parts[0], &parts[1..]).unwrap())
}

fn sums(bytes: u64) -> impl Fn(&Team, &[Part]) {
    move |team, parts| {
        let elements = bytes / 4;
        let item = Sum { number: Number::F32, elements, sources: parts, dst: parts[0] };
        assert!(sum(team, &[item]).unwrap());
    }
}

fn scatters(bytes: u64) -> impl Fn(&Team, &[Part]) {
    move |team, parts| {
        let rows = parts[1..].iter().map(|dst| Rows::flat(parts[0], *dst, bytes));
        assert!(copies(team, &rows.collect::<Vec<_>>()).unwrap());
    }
}

/// The minimum for a call that one of n devices does: n - 1 records and n - 1 waits before it, one
/// record and n - 1 waits after it.
#[test]
fn small_calls_make_the_fewest_driver_calls() {
    for devices in [2, 3, 4, 8] {
        let others = devices as u64 - 1;
        let by_kernel = [others + 1, 2 * others, 1, 0];
        let by_copy = [others + 1, 2 * others, 0, 1];
        let expected = if devices == 2 { by_copy } else { by_kernel };
        assert_eq!(made(devices, broadcasts(4096)), expected);
        assert_eq!(made(devices, sums(4096)), by_kernel);
        assert_eq!(made(devices, scatters(4096)), expected);
    }
}

/// All devices work for all. Before, workers wait through one of them. After, each waits for each,
/// or through one if there are many.
#[test]
fn larger_calls_are_joined_with_few_waits() {
    let limits =
        [(&SMALL_BROADCAST, 0), (&SMALL_SUM, 0), (&SMALL_COPIES, 0), (&LARGE_BROADCAST, 2 << 20)];
    for (devices, records, waits) in [(3, 2 + 1 + 2, 2 + 1 + 4), (4, 3 + 1 + 3, 3 + 2 + 9)] {
        let owners = devices as u64 - 1;
        assert_eq!(made_with(&limits, devices, broadcasts(1 << 20)), [records, waits, owners, 0]);
        assert_eq!(made_with(&limits, devices, sums(1 << 20)), [records, waits, owners, 0]);
    }
    // 7 owners: 7 + 1 + 6 + 1 records, 7 + 6 + 6 + 7 waits.
    assert_eq!(made_with(&limits, 8, sums(1 << 20)), [15, 26, 7, 0]);
    // The copying device waits for the hub, and the hub for it.
    for devices in [3, 4, 8] {
        let others = devices as u64 - 1;
        assert_eq!(
            made_with(&limits, devices, scatters(1 << 20)),
            [1 + others, 2 * others, 0, others]
        );
    }
    // Chunks of 2 MiB, each read by one device and written to the other, on two lanes per device.
    // Waits between lanes of one device are cheap.
    assert_eq!(
        made_with(&limits, 3, broadcasts(4 << 20)),
        [3 + 1 + 2 + 2 + 2, 3 + 1 + 2 + 2 + 6, 0, 4]
    );
}

/// On default streams one context is pushed, replaced for each further device, and popped at the
/// end. These streams are not queried for captures.
#[test]
fn default_streams_switch_one_pushed_context() {
    for devices in [2, 3, 4, 8] {
        on_machine(&format!("devices={devices},memory=64MiB"), |gpus| {
            let streams = chosen(gpus, |_| true);
            let part = |stream: &&Stream| Part {
                device: stream.device(),
                address: allocate(gpus, stream, 4096),
            };
            let parts: Vec<Part> = streams.iter().map(part).collect();
            let body = || sums(4096)(&Team::new(gpus, &streams).unwrap(), &parts);
            body();
            let calls = counted(gpus, body);
            let of = |name| calls.iter().find(|call| call.0 == name).map_or(0, |call| call.1);
            assert_eq!(CONTEXTS.map(of), [0, 1, 2 * devices - 2, 1]);
            // The work, its records and its waits.
            let all = calls.iter().map(|call| call.1).sum::<u64>();
            assert_eq!(all, 2 * devices + 1 + devices + 2 * (devices - 1));
            parts.iter().for_each(|part| memory::free(gpus, part.address).unwrap());
        });
    }
}
