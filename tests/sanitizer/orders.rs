//! The ways in which a host orders work on one stream after work on another.

use super::generate::Generator;
use super::oracle::Access;
use super::program::{How, Id, Mode, Span, Step};

/// The most events outside of captures.
const MAX_EVENTS: usize = 6;

/// Returns an event to record on a stream: a new one, or an existing one of the device.
fn event(generator: &mut Generator, stream: Id) -> Id {
    let is_captured = !generator.captured.is_empty();
    let device = generator.program.streams[stream].device;
    if !is_captured && generator.events.len() >= MAX_EVENTS {
        let own = generator.events.iter().filter(|(_, other)| *other == device);
        let own: Vec<Id> = own.map(|(event, _)| *event).collect();
        if let Some(event) = generator.random.pick(&own) {
            return event;
        }
    }
    generator.program.events += 1;
    let event = generator.program.events - 1;
    if is_captured {
        generator.capture_events.push(event);
    } else {
        generator.events.push((event, device));
    }
    event
}

pub fn wait_stream(generator: &mut Generator, stream: Id, other: Id) {
    if stream != other {
        generator.push(Step::WaitStream { stream, other }, true);
    }
}

fn record(generator: &mut Generator, stream: Id) -> Id {
    let event = event(generator, stream);
    generator.push(Step::Record { event, stream }, true);
    event
}

/// Returns an event that was recorded after an access.
fn covering(generator: &mut Generator, earlier: &Access) -> Option<Id> {
    let mut found: Vec<Id> = if generator.captured.is_empty() {
        generator.events.iter().map(|(event, _)| *event).collect()
    } else {
        generator.capture_events.clone()
    };
    found.retain(|event| generator.oracle.covers(*event, earlier));
    generator.random.pick(&found)
}

/// Orders further work on stream `later` after an access.
pub fn order(generator: &mut Generator, earlier: &Access, later: Id) {
    let from = earlier.stream;
    if !generator.captured.is_empty() {
        return order_in_capture(generator, earlier, later);
    }
    match generator.random.below(24) {
        0..=3 => {
            let event = record(generator, from);
            generator.push(Step::Wait { event, stream: later }, true);
        }
        4..=9 => match covering(generator, earlier) {
            Some(event) if generator.random.chance(80) => {
                generator.push(Step::Wait { event, stream: later }, true);
            }
            Some(event) => generator.push(Step::SyncEvent { event }, true),
            None => wait_stream(generator, later, from),
        },
        10..=12 => wait_stream(generator, later, from),
        13 => generator.push(Step::SyncStream { stream: from }, true),
        14 => {
            let event = record(generator, from);
            generator.push(Step::SyncEvent { event }, true);
        }
        15 => generator.push(Step::PollStream { stream: from }, true),
        16 => {
            let event = record(generator, from);
            generator.push(Step::PollEvent { event }, true);
        }
        17 => {
            let device = generator.program.streams[from].device;
            generator.push(Step::SyncDevice { device }, true);
        }
        18 | 19 => generator.push(Step::Callback { stream: from, awaited: true }, true),
        20 => fetch(generator, from),
        _ => chain(generator, from, later),
    }
}

/// Copies memory to the host, which waits for the copy.
fn fetch(generator: &mut Generator, stream: Id) {
    let device = generator.program.streams[stream].device;
    let blocks = generator.program.blocks.clone();
    let own = |block: &Id| blocks[*block].device == Some(device);
    let own: Vec<Id> = generator.live.iter().copied().filter(own).collect();
    let Some(block) = generator.random.pick(&own) else { return };
    let step = Step::Fetch { stream, span: Span::plain(block, 0, 64) };
    if generator.race_of(&step).is_none() {
        generator.users.entry(block).or_default().insert(stream);
        generator.push(step, true);
    }
}

/// Orders two streams through a third one.
fn chain(generator: &mut Generator, from: Id, later: Id) {
    let between = |stream: &Id| *stream != from && *stream != later;
    let others: Vec<Id> = (0..generator.program.streams.len()).filter(between).collect();
    let Some(middle) = generator.random.pick(&others) else {
        return wait_stream(generator, later, from);
    };
    if generator.random.chance(50) {
        wait_stream(generator, middle, from);
    } else {
        let event = record(generator, from);
        generator.push(Step::Wait { event, stream: middle }, true);
    }
    if generator.random.chance(50) {
        wait_stream(generator, later, middle);
    } else {
        let event = record(generator, middle);
        generator.push(Step::Wait { event, stream: later }, true);
    }
}

fn order_in_capture(generator: &mut Generator, earlier: &Access, later: Id) {
    match covering(generator, earlier) {
        Some(event) if generator.random.chance(50) => {
            generator.push(Step::Wait { event, stream: later }, true);
        }
        _ if generator.random.chance(50) => {
            let event = record(generator, earlier.stream);
            generator.push(Step::Wait { event, stream: later }, true);
        }
        _ => wait_stream(generator, later, earlier.stream),
    }
}

/// Adds calls that are not needed: events without a waiter, host functions that no line waits for,
/// destroyed events, concurrent reads.
pub fn extras(generator: &mut Generator) {
    let all: Vec<Id> = (0..generator.program.streams.len()).collect();
    let Some(stream) = generator.random.pick(&all) else { return };
    match generator.random.below(12) {
        0..=2 => {
            let last = generator.program.lines.iter().rev().find_map(|line| match &line.step {
                Step::Work { stream, .. } => Some(*stream),
                _ => None,
            });
            record(generator, last.unwrap_or(stream));
        }
        3 => {
            record(generator, stream);
        }
        4 => generator.push(Step::Callback { stream, awaited: false }, false),
        5 => {
            if let Some((event, _)) = generator.random.pick(&generator.events.clone()) {
                generator.push(Step::Recreate { event }, false);
            }
        }
        6 => {
            // A concurrent read.
            let block = generator.live.first().copied();
            let Some(block) = block else { return };
            let touches = vec![(Span::plain(block, 0, 512), Mode::Read)];
            generator.add(Step::Work { how: How::HostKernel, stream, touches });
        }
        _ => {}
    }
}
