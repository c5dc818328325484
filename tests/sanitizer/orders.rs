//! The ways in which a host puts work on one stream before work on another.

use super::generate::Maker;
use super::oracle::Access;
use super::program::{How, Id, Mode, Span, Step};

/// At most so many events outside of captures.
const MOST_EVENTS: usize = 6;

/// An event to be recorded on a stream: a new one, or one of its device that is recorded anew.
fn event(maker: &mut Maker, stream: Id) -> Id {
    let is_captured = !maker.captured.is_empty();
    let device = maker.program.streams[stream].device;
    if !is_captured && maker.events.len() >= MOST_EVENTS {
        let own = maker.events.iter().filter(|(_, other)| *other == device);
        let own: Vec<Id> = own.map(|(event, _)| *event).collect();
        if let Some(event) = maker.random.pick(&own) {
            return event;
        }
    }
    maker.program.events += 1;
    let event = maker.program.events - 1;
    if is_captured {
        maker.capture_events.push(event);
    } else {
        maker.events.push((event, device));
    }
    event
}

pub fn wait_stream(maker: &mut Maker, stream: Id, other: Id) {
    if stream != other {
        maker.push(Step::WaitStream { stream, other }, true);
    }
}

fn record(maker: &mut Maker, stream: Id) -> Id {
    let event = event(maker, stream);
    maker.push(Step::Record { event, stream }, true);
    event
}

/// An event that was recorded behind an access.
fn covering(maker: &mut Maker, earlier: &Access) -> Option<Id> {
    let mut found: Vec<Id> = if maker.captured.is_empty() {
        maker.events.iter().map(|(event, _)| *event).collect()
    } else {
        maker.capture_events.clone()
    };
    found.retain(|event| maker.oracle.covers(*event, earlier));
    maker.random.pick(&found)
}

/// Makes what is queued on a stream from now on come after an access.
pub fn order(maker: &mut Maker, earlier: &Access, later: Id) {
    let from = earlier.stream;
    if !maker.captured.is_empty() {
        return order_in_capture(maker, earlier, later);
    }
    match maker.random.below(24) {
        0..=3 => {
            let event = record(maker, from);
            maker.push(Step::Wait { event, stream: later }, true);
        }
        4..=9 => match covering(maker, earlier) {
            Some(event) if maker.random.chance(80) => {
                maker.push(Step::Wait { event, stream: later }, true);
            }
            Some(event) => maker.push(Step::SyncEvent { event }, true),
            None => wait_stream(maker, later, from),
        },
        10..=12 => wait_stream(maker, later, from),
        13 => maker.push(Step::SyncStream { stream: from }, true),
        14 => {
            let event = record(maker, from);
            maker.push(Step::SyncEvent { event }, true);
        }
        15 => maker.push(Step::PollStream { stream: from }, true),
        16 => {
            let event = record(maker, from);
            maker.push(Step::PollEvent { event }, true);
        }
        17 => {
            let device = maker.program.streams[from].device;
            maker.push(Step::SyncDevice { device }, true);
        }
        18 | 19 => maker.push(Step::Callback { stream: from, awaited: true }, true),
        20 => fetch(maker, from),
        _ => chain(maker, from, later),
    }
}

/// Reads memory on a stream for the host, which waits for it.
fn fetch(maker: &mut Maker, stream: Id) {
    let device = maker.program.streams[stream].device;
    let blocks = maker.program.blocks.clone();
    let own = |block: &Id| blocks[*block].device == Some(device);
    let own: Vec<Id> = maker.live.iter().copied().filter(own).collect();
    let Some(block) = maker.random.pick(&own) else { return };
    let step = Step::Fetch { stream, span: Span::plain(block, 0, 64) };
    if maker.race_of(&step).is_none() {
        maker.users.entry(block).or_default().insert(stream);
        maker.push(step, true);
    }
}

/// By way of a third stream.
fn chain(maker: &mut Maker, from: Id, later: Id) {
    let between = |stream: &Id| *stream != from && *stream != later;
    let others: Vec<Id> = (0..maker.program.streams.len()).filter(between).collect();
    let Some(middle) = maker.random.pick(&others) else {
        return wait_stream(maker, later, from);
    };
    if maker.random.chance(50) {
        wait_stream(maker, middle, from);
    } else {
        let event = record(maker, from);
        maker.push(Step::Wait { event, stream: middle }, true);
    }
    if maker.random.chance(50) {
        wait_stream(maker, later, middle);
    } else {
        let event = record(maker, middle);
        maker.push(Step::Wait { event, stream: later }, true);
    }
}

fn order_in_capture(maker: &mut Maker, earlier: &Access, later: Id) {
    match covering(maker, earlier) {
        Some(event) if maker.random.chance(50) => {
            maker.push(Step::Wait { event, stream: later }, true);
        }
        _ if maker.random.chance(50) => {
            let event = record(maker, earlier.stream);
            maker.push(Step::Wait { event, stream: later }, true);
        }
        _ => wait_stream(maker, later, earlier.stream),
    }
}

/// What hosts do besides: events that are recorded early, or for nobody, functions that nobody
/// waits for, events that end.
pub fn sometimes(maker: &mut Maker) {
    let all: Vec<Id> = (0..maker.program.streams.len()).collect();
    let Some(stream) = maker.random.pick(&all) else { return };
    match maker.random.below(12) {
        0..=2 => {
            let last = maker.program.lines.iter().rev().find_map(|line| match &line.step {
                Step::Work { stream, .. } => Some(*stream),
                _ => None,
            });
            record(maker, last.unwrap_or(stream));
        }
        3 => {
            record(maker, stream);
        }
        4 => maker.push(Step::Callback { stream, awaited: false }, false),
        5 => {
            if let Some((event, _)) = maker.random.pick(&maker.events.clone()) {
                maker.push(Step::Renew { event }, false);
            }
        }
        6 => {
            // Readers beside each other.
            let block = maker.live.first().copied();
            let Some(block) = block else { return };
            let touches = vec![(Span::plain(block, 0, 512), Mode::Read)];
            maker.add(Step::Work { how: How::Own, stream, touches });
        }
        _ => {}
    }
}
