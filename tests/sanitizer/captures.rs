//! Graphs of random programs: captured with forks, launched, and dropped.

use super::generate::Maker;
use super::orders;
use super::program::{How, Id, Kind, Mode, Span, Step};

/// Captures work of one device on one stream or several.
pub fn capture(maker: &mut Maker) {
    let device = maker.random.below(maker.program.devices as u64) as i32;
    let mut streams = maker.streams_of(device);
    streams.retain(|stream| maker.program.streams[*stream].kind == Kind::Pool);
    let Some(origin) = maker.random.pick(&streams) else { return };
    maker.program.graphs += 1;
    let graph = maker.program.graphs - 1;
    maker.push(Step::Begin { graph, stream: origin }, false);
    maker.captured = vec![origin];
    maker.capture_events.clear();
    for _ in 0..3 + maker.random.below(4) {
        let stream = maker.random.pick(&streams).unwrap_or(origin);
        if !maker.captured.contains(&stream) {
            fork(maker, stream);
        }
        if maker.random.chance(25) {
            scratch(maker, stream);
        } else if let Some(step) = maker.work_on(stream, device) {
            maker.add(step);
        }
    }
    let joined: Vec<Id> = maker.captured.iter().copied().filter(|s| *s != origin).collect();
    for other in joined {
        maker.push(Step::WaitStream { stream: origin, other }, false);
    }
    maker.push(Step::End { graph }, false);
    maker.captured.clear();
    maker.graphs.push((graph, device));
    launch(maker);
}

/// Takes a stream into the capture.
fn fork(maker: &mut Maker, stream: Id) {
    let Some(from) = maker.random.pick(&maker.captured.clone()) else { return };
    if maker.random.chance(50) {
        maker.push(Step::WaitStream { stream, other: from }, false);
    } else {
        maker.program.events += 1;
        let event = maker.program.events - 1;
        maker.push(Step::Record { event, stream: from }, false);
        maker.push(Step::Wait { event, stream }, false);
        maker.capture_events.push(event);
    }
    maker.captured.push(stream);
}

/// Memory that the graph alone uses, on one stream, and perhaps on another one.
fn scratch(maker: &mut Maker, stream: Id) {
    let bytes = 1024;
    let block = maker.allocate_on(stream, bytes);
    maker.live.retain(|other| *other != block);
    let touches = vec![(Span::plain(block, 0, bytes), Mode::Write)];
    maker.add(Step::Work { how: How::Fill, stream, touches });
    let other = maker.random.pick(&maker.captured.clone()).unwrap_or(stream);
    let touches = vec![(Span::plain(block, 0, bytes / 2), Mode::Read)];
    maker.add(Step::Work { how: How::Own, stream: other, touches });
    orders::wait_stream(maker, stream, other);
    maker.push(Step::Free { block }, false);
    maker.leave(block);
}

pub fn launch(maker: &mut Maker) {
    let Some((graph, device)) = maker.random.pick(&maker.graphs.clone()) else { return };
    let Some(stream) = maker.random.pick(&maker.streams_of(device)) else { return };
    maker.add(Step::Launch { graph, stream });
    if maker.random.chance(25) {
        maker.push(Step::Drop { graph }, false);
        maker.graphs.retain(|(other, _)| *other != graph);
    }
}
