//! Graphs of random programs: captured with forks, launched and destroyed.

use super::generate::Generator;
use super::orders;
use super::program::{How, Id, Kind, Mode, Span, Step};

/// Captures work of one device on one or several streams.
pub fn capture(generator: &mut Generator) {
    let device = generator.random.below(generator.program.devices as u64) as i32;
    let mut streams = generator.streams_of(device);
    streams.retain(|stream| generator.program.streams[*stream].kind == Kind::Pool);
    let Some(origin) = generator.random.pick(&streams) else { return };
    generator.program.graphs += 1;
    let graph = generator.program.graphs - 1;
    generator.push(Step::Begin { graph, stream: origin }, false);
    generator.captured = vec![origin];
    generator.capture_events.clear();
    for _ in 0..3 + generator.random.below(4) {
        let stream = generator.random.pick(&streams).unwrap_or(origin);
        if !generator.captured.contains(&stream) {
            fork(generator, stream);
        }
        if generator.random.chance(25) {
            scratch(generator, stream);
        } else if let Some(step) = generator.work_on(stream, device) {
            generator.add(step);
        }
    }
    let joined: Vec<Id> = generator.captured.iter().copied().filter(|s| *s != origin).collect();
    for other in joined {
        generator.push(Step::WaitStream { stream: origin, other }, false);
    }
    generator.push(Step::End { graph }, false);
    generator.captured.clear();
    generator.graphs.push((graph, device));
    launch(generator);
}

/// Adds a stream to the capture.
fn fork(generator: &mut Generator, stream: Id) {
    let Some(from) = generator.random.pick(&generator.captured.clone()) else { return };
    if generator.random.chance(50) {
        generator.push(Step::WaitStream { stream, other: from }, false);
    } else {
        generator.program.events += 1;
        let event = generator.program.events - 1;
        generator.push(Step::Record { event, stream: from }, false);
        generator.push(Step::Wait { event, stream }, false);
        generator.capture_events.push(event);
    }
    generator.captured.push(stream);
}

/// Allocates memory that only the graph uses, on one stream and perhaps on a second one.
fn scratch(generator: &mut Generator, stream: Id) {
    let bytes = 1024;
    let block = generator.allocate_on(stream, bytes);
    generator.live.retain(|other| *other != block);
    let touches = vec![(Span::plain(block, 0, bytes), Mode::Write)];
    generator.add(Step::Work { how: How::Fill, stream, touches });
    let other = generator.random.pick(&generator.captured.clone()).unwrap_or(stream);
    let touches = vec![(Span::plain(block, 0, bytes / 2), Mode::Read)];
    generator.add(Step::Work { how: How::HostKernel, stream: other, touches });
    orders::wait_stream(generator, stream, other);
    generator.push(Step::Free { block }, false);
    generator.leave(block);
}

pub fn launch(generator: &mut Generator) {
    let Some((graph, device)) = generator.random.pick(&generator.graphs.clone()) else { return };
    let Some(stream) = generator.random.pick(&generator.streams_of(device)) else { return };
    generator.add(Step::Launch { graph, stream });
    if generator.random.chance(25) {
        generator.push(Step::Drop { graph }, false);
        generator.graphs.retain(|(other, _)| *other != graph);
    }
}
