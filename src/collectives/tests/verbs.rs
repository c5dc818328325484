//! Each operation: its tensors, the call, and the expected results.

use super::api::{self, Outcome, Stream};
use super::buffer::Place;
use super::case::{Case, Verb};
use super::reference::{self, Array, Kind, equal_parts, order_of_sum};
use super::run::{Facts, Omitted, World};
use super::switches;
use crate::ffi::tensor::tcuda_tensor;

/// Runs a case on a machine of its own; an error describes what was wrong.
pub fn run(case: &Case, omitted: Option<Omitted>) -> Outcome<Facts> {
    let _switches = switches::set(case.fallback_only, case.limits);
    let outcome = World::new(case, omitted).and_then(|mut world| {
        match case.verb {
            Verb::Broadcast | Verb::BroadcastInto => broadcast(&mut world),
            Verb::BroadcastCoalesced => broadcast_coalesced(&mut world),
            Verb::ReduceAdd | Verb::ReduceAddInto => reduce_add(&mut world),
            Verb::ReduceAddCoalesced => reduce_add_coalesced(&mut world),
            Verb::Scatter | Verb::ScatterInto => scatter(&mut world),
            Verb::Gather | Verb::GatherInto => gather(&mut world),
        }?;
        world.end()
    });
    crate::driver::inject::clear();
    let left = api::shutdown();
    let facts = outcome?;
    match left? {
        0 => switches::left_in_driver().map(|()| facts),
        count => Err(format!("{count} handles are alive")),
    }
}

fn numbers(list: &[Place]) -> Vec<i32> {
    list.iter().map(|place| place.number()).collect()
}

/// Checks that an output is an alias exactly if the input is already at the destination.
fn check_alias(world: &World, out: &tcuda_tensor, same: bool, what: &str) -> Outcome<()> {
    let is_empty = reference::numel(&world.case.shape) == 0;
    if is_empty || world.is_alias(out) == same {
        return Ok(());
    }
    Err(format!("{what} {}", if same { "is a copy" } else { "is no copy" }))
}

fn broadcast(world: &mut World) -> Outcome<()> {
    let case = world.case;
    let source = world.source(case.root, case.kind, &case.shape)?;
    let into = case.verb == Verb::BroadcastInto;
    if into {
        for place in &case.list {
            world.out(*place, case.kind, &case.shape, Stream::CURRENT)?;
        }
    }
    let (sources, outs) = (world.source_tensors(), world.out_tensors());
    if into {
        let call = || api::broadcast_into(&sources[0], &outs);
        return world.into(vec![source], &call, &|parts| vec![parts[0].clone(); outs.len()]);
    }
    let devices = numbers(&case.list);
    let made = world.call(|_| api::broadcast(&sources[0], &devices))?;
    for (index, (out, device)) in made.into_iter().zip(devices).enumerate() {
        let what = format!("out {index}");
        check_alias(world, &out, device == case.root.number(), &what)?;
        world.expect(what, out, source.clone(), Stream::CURRENT)?;
    }
    Ok(())
}

/// Kinds and shapes of several tensors.
fn several(world: &mut World) -> Vec<(Kind, Vec<i64>)> {
    let case = world.case;
    let other: Kind = if case.verb.adds() { (0, 32, 1) } else { (10, 8, 1) };
    let mut kinds = Vec::new();
    for _ in 0..case.tensors {
        let kind = if world.random.one_in(4) { other } else { case.kind };
        let mut shape = case.shape.clone();
        if !shape.is_empty() && world.random.one_in(2) {
            let dim = world.random.below(shape.len());
            shape[dim] = world.random.below(6) as i64;
        }
        kinds.push((kind, shape));
    }
    kinds
}

fn broadcast_coalesced(world: &mut World) -> Outcome<()> {
    let case = world.case;
    let mut expected = Vec::new();
    for (kind, shape) in several(world) {
        expected.push(world.source(case.root, kind, &shape)?);
    }
    let (sources, devices) = (world.source_tensors(), numbers(&case.list));
    let made = world.call(|_| api::broadcast_coalesced(&sources, &devices, case.buffer_bytes))?;
    for (index, out) in made.into_iter().enumerate() {
        let (device, tensor) = (index / expected.len(), index % expected.len());
        let what = format!("tensor {tensor} on device {}", devices[device]);
        if expected[tensor].bytes.is_empty() {
            // On any device.
        } else {
            let same = device == 0 || devices[device] == devices[0] && world.is_alias(&out);
            check_alias(world, &out, same, &what)?;
        }
        world.expect(what, out, expected[tensor].clone(), Stream::CURRENT)?;
    }
    Ok(())
}

fn sum(parts: &[Array], places: &[i32], destination: i32) -> Array {
    let order = order_of_sum(places, destination).unwrap_or((0..parts.len()).collect());
    Array::sum(&order.into_iter().map(|index| &parts[index]).collect::<Vec<_>>())
}

fn reduce_add(world: &mut World) -> Outcome<()> {
    let case = world.case;
    let mut parts = Vec::new();
    for place in &case.list {
        parts.push(world.source(*place, case.kind, &case.shape)?);
    }
    let into = case.verb == Verb::ReduceAddInto;
    let destination = case.root.number();
    if into {
        world.out(case.root, case.kind, &case.shape, Stream::CURRENT)?;
    }
    let (sources, outs) = (world.source_tensors(), world.out_tensors());
    if into {
        let (call, places) = (|| api::reduce_add_into(&sources, &outs[0]), numbers(&case.list));
        return world.into(parts, &call, &|parts| vec![sum(parts, &places, destination)]);
    }
    let expected = sum(&parts, &numbers(&case.list), destination);
    let made = world.call(|_| api::reduce_add(&sources, destination))?;
    check_alias(world, &made[0], sources.len() == 1, "the sum")?;
    world.expect("the sum".into(), made[0], expected, Stream::CURRENT)
}

fn reduce_add_coalesced(world: &mut World) -> Outcome<()> {
    let case = world.case;
    let kinds = several(world);
    let mut parts = Vec::new();
    for place in &case.list {
        for (kind, shape) in &kinds {
            parts.push(world.source(*place, *kind, shape)?);
        }
    }
    let (sources, places) = (world.source_tensors(), numbers(&case.list));
    let (devices, destination, bytes) = (case.list.len(), case.root.number(), case.buffer_bytes);
    let made = world.call(|_| api::reduce_add_coalesced(&sources, devices, destination, bytes))?;
    for (index, out) in made.into_iter().enumerate() {
        let own: Vec<Array> = parts.iter().skip(index).step_by(kinds.len()).cloned().collect();
        world.expect(
            format!("sum {index}"),
            out,
            sum(&own, &places, destination),
            Stream::CURRENT,
        )?;
    }
    Ok(())
}

/// Random sizes with this sum; some are 0.
fn any_sizes(world: &mut World, size: i64, count: usize) -> Vec<i64> {
    let mut left = size;
    let mut sizes = Vec::new();
    for _ in 1..count {
        sizes.push(world.random.below(left as usize + 1) as i64);
        left -= sizes[sizes.len() - 1];
    }
    sizes.push(left);
    sizes
}

fn scatter(world: &mut World) -> Outcome<()> {
    let case = world.case;
    let source = world.source(case.root, case.kind, &case.shape)?;
    let (size, count, dim) = (case.shape[case.dim], case.list.len(), case.dim);
    let into = case.verb == Verb::ScatterInto;
    let given = case.any_sizes.then(|| any_sizes(world, size, count));
    let mut sizes = given.clone().unwrap_or(equal_parts(size, count));
    if into {
        sizes.resize(count, 0);
    }
    let mut streams = vec![Stream::CURRENT; count];
    if case.with_streams {
        for (stream, place) in streams.iter_mut().zip(&case.list) {
            if let Place::Device(device) = place
                && world.random.below(3) > 0
            {
                *stream = world.stream(*device)?;
                // On the source's own device the host orders the two streams.
                if case.root == *place {
                    api::wait_stream(*stream, world.current(*device))?;
                }
            }
        }
    }
    let cut = |source: &Array| {
        let mut start = 0;
        let mut parts = Vec::new();
        for length in &sizes {
            parts.push(source.narrow(dim, start, *length));
            start += length;
        }
        parts
    };
    let parts = cut(&source);
    if into {
        for ((place, stream), part) in case.list.iter().zip(&streams).zip(&parts) {
            world.out(*place, case.kind, &part.shape, *stream)?;
        }
    }
    let (sources, outs) = (world.source_tensors(), world.out_tensors());
    let negative = world.random.one_in(3);
    let signed = if negative { dim as i32 - case.shape.len() as i32 } else { dim as i32 };
    let list = case.with_streams.then_some(&streams[..]);
    if into {
        let call = || api::scatter_into(&sources[0], &outs, signed, list);
        world.into(vec![source], &call, &|parts| cut(&parts[0]))?;
    } else {
        let devices = numbers(&case.list);
        let made =
            world.call(|_| api::scatter(&sources[0], &devices, given.as_deref(), signed, list))?;
        expect_chunks(world, made, parts, &streams)?;
    }
    for (stream, place) in streams.iter().zip(&case.list) {
        if let Place::Device(device) = place
            && *stream != Stream::CURRENT
        {
            api::wait_stream(world.current(*device), *stream)?;
        }
    }
    Ok(())
}

fn expect_chunks(
    world: &mut World,
    made: Vec<tcuda_tensor>,
    parts: Vec<Array>,
    streams: &[Stream],
) -> Outcome<()> {
    let count = parts.len();
    for (index, part) in parts.into_iter().enumerate() {
        let what = format!("chunk {index}");
        let is_own = world.case.list[index].number() == world.case.root.number();
        if !part.bytes.is_empty() {
            check_alias(world, &made[index], is_own, &what)?;
        }
        // An alias is read on the stream on which it was written: the current one.
        let stream = if is_own { Stream::CURRENT } else { streams[index] };
        world.expect(what, made[index], part, stream)?;
    }
    for out in &made[count..] {
        if !out.shape.is_null() || !out.data.is_null() {
            return Err("an out beyond the last chunk is not zero".into());
        }
    }
    Ok(())
}

fn gather(world: &mut World) -> Outcome<()> {
    let case = world.case;
    let mut parts = Vec::new();
    for place in &case.list {
        let mut shape = case.shape.clone();
        if case.any_sizes && world.random.one_in(2) {
            shape[case.dim] = world.random.below(6) as i64;
        }
        parts.push(world.source(*place, case.kind, &shape)?);
    }
    let expected = Array::join(&parts, case.dim);
    let into = case.verb == Verb::GatherInto;
    if into {
        world.out(case.root, case.kind, &expected.shape, Stream::CURRENT)?;
    }
    let (sources, outs) = (world.source_tensors(), world.out_tensors());
    let negative = world.random.one_in(3);
    let dim = if negative { case.dim as i32 - case.shape.len() as i32 } else { case.dim as i32 };
    if into {
        let call = || api::gather_into(&sources, dim, &outs[0]);
        return world.into(parts, &call, &|parts| vec![Array::join(parts, case.dim)]);
    }
    let made = world.call(|_| api::gather(&sources, dim, case.root.number()))?;
    world.expect("the whole".into(), made[0], expected, Stream::CURRENT)
}
