//! Calls that PyTorch refuses are refused, with the reason in the message. Nothing is queued or
//! allocated, and outputs are unchanged (`api.rs` checks outputs that the library would fill in).

use super::api::{self, Outcome, Stream};
use super::buffer::{Buffer, Layout, Place, Shape};
use super::random::Random;
use super::reference::Kind;
use crate::driver::Call;
use crate::driver::sim;
use crate::ffi::tensor::tcuda_tensor;
use std::cell::RefCell;
use std::fmt::Debug;
use std::panic::Location;

const FLOAT: Kind = (2, 32, 1);
const FLOAT8: Kind = (10, 8, 1);

/// Tensors of a test, each in its own memory.
struct Bench {
    buffers: Vec<Buffer>,
    random: Random,
    wrong: RefCell<Vec<String>>,
}

fn count(calls: &[Call]) -> u64 {
    let inside = crate::base::thread::enter().unwrap();
    let driver = crate::gpu::gpus::existing_driver(&inside).unwrap();
    calls.iter().map(|call| driver.count(Some(*call as usize))).sum()
}

/// Number of driver calls that queue work.
fn queued() -> u64 {
    use Call::*;
    count(&[
        cuMemcpyAsync,
        cuMemcpyPeerAsync,
        cuMemcpy2DAsync,
        cuMemcpy3DPeerAsync,
        cuLaunchKernel,
        cuMemsetD8Async,
        cuMemsetD32Async,
        cuEventRecord,
        cuStreamWaitEvent,
    ])
}

impl Bench {
    fn tensor(&mut self, place: Place, kind: Kind, shape: &[i64]) -> tcuda_tensor {
        let layout = Layout::choose(shape, Shape::Compact, &mut self.random);
        let made = Buffer::new(place, kind, layout, Stream::CURRENT, &mut self.random);
        self.buffers.push(made.unwrap());
        self.buffers.last_mut().unwrap().tensor()
    }

    fn on(&mut self, device: i32, shape: &[i64]) -> tcuda_tensor {
        self.tensor(Place::Device(device), FLOAT, shape)
    }

    /// Checks that the call fails with this status, and its message has all `words`. Checks that
    /// nothing was queued and nothing is left.
    #[track_caller]
    fn refuses<R: Debug>(&self, call: impl FnOnce() -> Outcome<R>, status: &str, words: &[&str]) {
        let line = Location::caller().line();
        let wrong = |what: String| self.wrong.borrow_mut().push(format!("line {line}: {what}"));
        let held: Vec<usize> = (0..3).map(|device| api::allocated(device).unwrap()).collect();
        let before = queued();
        let Err(text) = call() else { return wrong(format!("accepted, expected {status}")) };
        if !text.contains(&format!("gave {status}:")) {
            wrong(format!("{text}, expected {status}"));
        }
        for word in words.iter().filter(|word| !text.contains(**word)) {
            wrong(format!("{text:?} does not say {word:?}"));
        }
        if queued() != before {
            wrong(format!("work was queued: {text}"));
        }
        let after: Vec<usize> = (0..3).map(|device| api::allocated(device).unwrap()).collect();
        if after != held {
            wrong(format!("{held:?} became {after:?}: {text}"));
        }
    }
}

fn on_machine(body: impl FnOnce(&mut Bench)) {
    let _lock = sim::test_lock();
    let _switches = super::switches::set(false, 0);
    api::select("devices=3,memory=64MiB").unwrap();
    api::device_set(0).unwrap();
    let mut bench = Bench { buffers: Vec::new(), random: Random(1), wrong: RefCell::default() };
    body(&mut bench);
    bench.buffers.iter_mut().for_each(|buffer| buffer.free().unwrap());
    assert_eq!(api::shutdown(), Ok(0));
    super::switches::left_in_driver().unwrap();
    let wrong = bench.wrong.into_inner();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

const INVALID: &str = "InvalidArgument";

/// Drops the tensors of an outcome, which have no `Debug`.
fn none<R>(outcome: Outcome<R>) -> Outcome<()> {
    outcome.map(drop)
}

#[test]
fn broadcasts_refuse_other_shapes() {
    on_machine(|bench| {
        let src = bench.on(0, &[2, 3]);
        let (good, long) = (bench.on(1, &[2, 3]), bench.on(2, &[2, 4]));
        let text = &["[2, 3]", "[2, 4]"];
        bench.refuses(|| api::broadcast_into(&src, &[good, long]), INVALID, text);
        let flat = bench.on(1, &[6]);
        bench.refuses(|| api::broadcast_into(&src, &[flat]), INVALID, &["[6]"]);
        let other = bench.tensor(Place::Device(1), (0, 32, 1), &[2, 3]);
        bench.refuses(|| api::broadcast_into(&src, &[other]), INVALID, &[]);
        bench.refuses(|| none(api::broadcast(&src, &[0, 3])), "InvalidDevice", &["3"]);
        bench.refuses(|| none(api::broadcast(&src, &[-3])), "InvalidDevice", &["-3"]);
        let mut again = good;
        let mut zero = [0i64, 1];
        again.strides = zero.as_mut_ptr();
        bench.refuses(|| api::broadcast_into(&src, &[again]), INVALID, &[]);
        let mut nowhere = src;
        nowhere.data = 0x4000_0000_0000usize as *mut _;
        bench.refuses(|| none(api::broadcast(&nowhere, &[1])), "InvalidPointer", &[]);
        bench.refuses(|| api::broadcast_into(&src, &[good, nowhere]), "InvalidPointer", &[]);
        let mut behind = src;
        behind.byte_offset += 500;
        bench.refuses(|| none(api::broadcast(&behind, &[1])), INVALID, &[]);
        let mut elsewhere = src;
        elsewhere.device.device_id = 1;
        bench.refuses(|| none(api::broadcast(&elsewhere, &[2])), INVALID, &[]);
        let nibbles = bench.tensor(Place::Device(0), (17, 4, 2), &[3]);
        let mut half = nibbles;
        half.dtype.lanes = 1;
        bench.refuses(|| none(api::broadcast(&half, &[1])), INVALID, &[]);
    });
}

#[test]
fn coalesced_broadcasts_need_one_device() {
    on_machine(|bench| {
        let (a, b) = (bench.on(0, &[4]), bench.on(1, &[4]));
        bench.refuses(|| none(api::broadcast_coalesced(&[a, b], &[0, 1], 0)), INVALID, &["1"]);
        bench.refuses(|| none(api::broadcast_coalesced(&[a], &[], 0)), INVALID, &[]);
        bench.refuses(|| none(api::broadcast_coalesced(&[a], &[0, 5], 0)), "InvalidDevice", &["5"]);
    });
}

#[test]
fn sums_refuse_what_cannot_be_added() {
    on_machine(|bench| {
        let (a, b) = (bench.on(0, &[2, 3]), bench.on(1, &[2, 3]));
        let long = bench.on(1, &[2, 4]);
        bench.refuses(|| none(api::reduce_add(&[a, long], 0)), INVALID, &["[2, 3]", "[2, 4]"]);
        bench.refuses(|| none(api::reduce_add(&[], 0)), INVALID, &[]);
        bench.refuses(|| none(api::reduce_add(&[a, b], 9)), "InvalidDevice", &["9"]);
        let ints = bench.tensor(Place::Device(1), (0, 32, 1), &[2, 3]);
        bench.refuses(|| none(api::reduce_add(&[a, ints], 0)), INVALID, &[]);
        let irregular = bench.tensor(Place::Device(0), FLOAT8, &[4]);
        let too = bench.tensor(Place::Device(1), FLOAT8, &[4]);
        bench.refuses(|| none(api::reduce_add(&[irregular, too], 0)), INVALID, &[]);
        bench.refuses(|| api::reduce_add_into(&[a, b], &long), INVALID, &["[2, 3]", "[2, 4]"]);
        bench.refuses(|| api::reduce_add_into(&[a, b], &ints), INVALID, &[]);
        bench.refuses(|| api::reduce_add_into(&[], &a), INVALID, &[]);
        bench.refuses(
            || none(api::reduce_add_coalesced(&[a, long], 2, 0, 0)),
            INVALID,
            &["[2, 4]"],
        );
        // The second list has a tensor of the wrong shape.
        let list = [a, a, b, long];
        bench.refuses(|| none(api::reduce_add_coalesced(&list, 2, 0, 0)), INVALID, &["[2, 4]"]);
    });
}

#[test]
fn scatters_refuse_what_does_not_add_up() {
    on_machine(|bench| {
        let whole = bench.on(0, &[6, 4]);
        let scatter = |sizes: Option<&[i64]>, devices: &[i32], dim| {
            none(api::scatter(&whole, devices, sizes, dim, None))
        };
        bench.refuses(|| scatter(Some(&[3, 2]), &[0, 1], 0), INVALID, &["6", "5"]);
        bench.refuses(|| scatter(Some(&[3, 4]), &[0, 1], 0), INVALID, &["6", "7"]);
        bench.refuses(|| scatter(Some(&[8, -2]), &[0, 1], 0), INVALID, &["-2"]);
        bench.refuses(|| scatter(Some(&[i64::MAX, i64::MAX]), &[0, 1], 0), INVALID, &[]);
        bench.refuses(|| scatter(None, &[], 0), INVALID, &[]);
        bench.refuses(|| scatter(None, &[1], 2), INVALID, &["2"]);
        bench.refuses(|| scatter(None, &[1], -3), INVALID, &["-3"]);
        bench.refuses(|| scatter(None, &[1], i32::MIN), INVALID, &[]);
        bench.refuses(|| scatter(None, &[1, 7], 0), "InvalidDevice", &["7"]);
        let single = bench.on(0, &[]);
        bench.refuses(|| none(api::scatter(&single, &[1], None, 0, None)), INVALID, &[]);
        let stream = api::stream(2).unwrap();
        let streams = [Stream::CURRENT, stream];
        let wrong = || none(api::scatter(&whole, &[2, 1], None, 0, Some(&streams)));
        bench.refuses(wrong, INVALID, &["1", "2"]);
        let gone = [Stream(0x1234), Stream::CURRENT];
        let gone = || none(api::scatter(&whole, &[2, 1], None, 0, Some(&gone)));
        bench.refuses(gone, "InvalidHandle", &[]);
        let (a, b) = (bench.on(1, &[3, 4]), bench.on(2, &[2, 4]));
        bench.refuses(|| api::scatter_into(&whole, &[a, b], 0, None), INVALID, &["6", "5"]);
        let wide = bench.on(2, &[3, 5]);
        bench.refuses(|| api::scatter_into(&whole, &[a, wide], 0, None), INVALID, &["[3, 5]"]);
        bench.refuses(|| api::scatter_into(&whole, &[], 0, None), INVALID, &[]);
        let streams = [Stream::CURRENT, stream];
        let c = bench.on(1, &[3, 4]);
        let wrong = || api::scatter_into(&whole, &[a, c], 0, Some(&streams));
        bench.refuses(wrong, INVALID, &["1"]);
        api::destroy(stream).unwrap();
    });
}

#[test]
fn gathers_refuse_what_does_not_fit() {
    on_machine(|bench| {
        let (a, b) = (bench.on(0, &[2, 3]), bench.on(1, &[4, 3]));
        let gather = |list: &[tcuda_tensor], dim, to| none(api::gather(list, dim, to));
        bench.refuses(|| gather(&[a, b], 1, 0), INVALID, &["[2, 3]", "[4, 3]"]);
        bench.refuses(|| gather(&[], 0, 0), INVALID, &[]);
        bench.refuses(|| gather(&[a, b], 2, 0), INVALID, &["2"]);
        bench.refuses(|| gather(&[a, b], -3, 0), INVALID, &["-3"]);
        bench.refuses(|| gather(&[a, b], 0, 3), "InvalidDevice", &["3"]);
        let flat = bench.on(1, &[3]);
        bench.refuses(|| gather(&[a, flat], 0, 0), INVALID, &["[3]"]);
        let ints = bench.tensor(Place::Device(1), (0, 32, 1), &[2, 3]);
        bench.refuses(|| gather(&[a, ints], 0, 0), INVALID, &[]);
        let (short, right) = (bench.on(2, &[5, 3]), bench.on(2, &[6, 3]));
        bench.refuses(|| api::gather_into(&[a, b], 0, &short), INVALID, &["[6, 3]", "[5, 3]"]);
        bench.refuses(|| api::gather_into(&[a, b], 1, &right), INVALID, &[]);
        bench.refuses(|| api::gather_into(&[], 0, &right), INVALID, &[]);
        let mut zero = [0i64, 1];
        let mut repeats = right;
        repeats.strides = zero.as_mut_ptr();
        bench.refuses(|| api::gather_into(&[a, b], 0, &repeats), INVALID, &[]);
    });
}

#[test]
fn empty_calls_succeed() {
    on_machine(|bench| {
        let src = bench.on(0, &[2, 3]);
        assert_eq!(api::broadcast(&src, &[]).map(|outs| outs.len()), Ok(0));
        assert_eq!(api::broadcast_into(&src, &[]), Ok(()));
        assert_eq!(api::broadcast_coalesced(&[], &[0, 1], 0).map(|outs| outs.len()), Ok(0));
        assert_eq!(queued(), 0);
    });
}
