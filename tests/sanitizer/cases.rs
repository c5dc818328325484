//! Small programs for the rules of PyTorch's sanitizer, and for the rules that it lacks. Each line
//! that races is listed.

use super::program::{Block, How, Id, Kind, Line, Mode, Program, Span, Step, Stream};

#[derive(Clone)]
pub struct Case {
    pub name: &'static str,
    pub program: Program,
    /// For each racing line, the number of earlier accesses with which it races.
    pub races: Vec<(usize, usize)>,
}

const BYTES: u64 = 1024;

fn all(block: Id) -> Span {
    Span::plain(block, 0, BYTES)
}

fn touch(stream: Id, block: Id, mode: Mode) -> Step {
    Step::Work { how: How::HostKernel, stream, touches: vec![(all(block), mode)] }
}

fn read(stream: Id, block: Id) -> Step {
    touch(stream, block, Mode::Read)
}

fn write(stream: Id, block: Id) -> Step {
    touch(stream, block, Mode::Write)
}

fn both(stream: Id, block: Id) -> Step {
    touch(stream, block, Mode::Both)
}

fn record(event: Id, stream: Id) -> Step {
    Step::Record { event, stream }
}

fn wait(event: Id, stream: Id) -> Step {
    Step::Wait { event, stream }
}

/// Four pooled, one legacy and one blocking stream, four events, two blocks of the first stream;
/// then the steps. The first step is line 2.
fn program(steps: Vec<Step>) -> Program {
    let kinds = [Kind::Pool, Kind::Pool, Kind::Pool, Kind::Pool, Kind::Legacy, Kind::Blocking];
    let streams = kinds.map(|kind| Stream { device: 0, kind }).to_vec();
    let blocks = vec![Block { device: Some(0), bytes: BYTES }; 3];
    let memory = [0, 1].map(|block| Step::Allocate { block, stream: 0 });
    let lines = memory.into_iter().chain(steps);
    let lines = lines.map(|step| Line { step, thread: 0, orders: false }).collect();
    Program { devices: 1, peers: true, streams, blocks, events: 4, graphs: 2, lines }
}

fn case(name: &'static str, steps: Vec<Step>, races: &[(usize, usize)]) -> Case {
    // The cases number the steps; two allocations precede them.
    let races = races.iter().map(|(line, count)| (line + 2, *count)).collect();
    Case { name, program: program(steps), races }
}

/// The cases of PyTorch's own tests.
fn by_pytorch() -> Vec<Case> {
    let recreated = |steps: Vec<Step>| {
        let first = vec![both(0, 0), record(0, 0)];
        case(
            "an event that is destroyed",
            [first, steps, vec![wait(0, 1), both(1, 0)]].concat(),
            &[(4, 1)],
        )
    };
    vec![
        case("one stream", vec![both(0, 0), both(0, 0)], &[]),
        case("readers", vec![read(0, 0), read(1, 0)], &[]),
        case("two blocks", vec![both(0, 0), both(1, 1)], &[]),
        case("two streams", vec![both(0, 0), both(1, 0)], &[(1, 1)]),
        case("an event between", vec![both(0, 0), record(0, 0), wait(0, 1), both(1, 0)], &[]),
        case(
            "reads are compared with the last write",
            vec![write(0, 0), record(0, 0), wait(0, 1), read(1, 0), read(2, 0)],
            &[(4, 1)],
        ),
        case(
            "branches",
            vec![
                both(0, 0),
                both(0, 1),
                record(0, 0),
                wait(0, 1),
                wait(0, 2),
                both(1, 0),
                both(2, 1),
            ],
            &[],
        ),
        case(
            "a chain of streams",
            vec![
                both(0, 0),
                record(0, 0),
                wait(0, 1),
                record(1, 1),
                wait(1, 2),
                record(2, 2),
                wait(2, 3),
                both(3, 0),
            ],
            &[],
        ),
        case(
            "what is queued after the record",
            vec![both(0, 0), record(0, 0), both(0, 0), wait(0, 1), both(1, 0)],
            &[(4, 1)],
        ),
        recreated(vec![Step::Recreate { event: 0 }]),
        case(
            "all reads are compared, and one was not waited for",
            vec![
                read(0, 0),
                read(1, 0),
                read(2, 0),
                record(0, 0),
                record(1, 1),
                wait(0, 3),
                wait(1, 3),
                write(3, 0),
            ],
            &[(7, 1)],
        ),
        case(
            "all reads were waited for",
            vec![
                read(0, 0),
                read(1, 0),
                read(2, 0),
                record(0, 0),
                record(1, 1),
                record(2, 2),
                wait(0, 3),
                wait(1, 3),
                wait(2, 3),
                write(3, 0),
            ],
            &[],
        ),
        case("several at once", vec![read(0, 0), read(1, 0), read(2, 0), write(3, 0)], &[(3, 3)]),
        case(
            "a wait adds to what is known",
            vec![
                both(0, 0),
                record(0, 0),
                both(1, 1),
                record(1, 1),
                wait(0, 1),
                record(2, 1),
                wait(1, 2),
                wait(2, 2),
                both(2, 0),
                both(2, 1),
            ],
            &[],
        ),
        case(
            "the last record of an event counts",
            vec![both(0, 0), record(0, 0), record(0, 1), wait(0, 2), both(2, 0)],
            &[(4, 1)],
        ),
        case(
            "several wait for one event",
            vec![both(0, 0), record(0, 0), wait(0, 1), both(1, 0), wait(0, 2), both(2, 0)],
            &[(5, 1)],
        ),
        case(
            "the device is waited for",
            vec![both(0, 0), both(1, 1), Step::SyncDevice { device: 0 }, both(2, 0), both(3, 1)],
            &[],
        ),
        case(
            "what is queued after the host waited",
            vec![both(0, 0), Step::SyncDevice { device: 0 }, both(0, 0), both(1, 0)],
            &[(3, 1)],
        ),
        case(
            "a stream is waited for",
            vec![both(0, 0), both(1, 1), Step::SyncStream { stream: 0 }, both(2, 0), both(3, 1)],
            &[(4, 1)],
        ),
        case(
            "an event is waited for",
            vec![
                both(0, 0),
                record(0, 0),
                both(0, 1),
                Step::SyncEvent { event: 0 },
                both(1, 0),
                both(2, 1),
            ],
            &[(5, 1)],
        ),
    ]
}

fn half(stream: Id, block: Id, number: u64) -> Step {
    let span = Span::plain(block, number * BYTES / 2, BYTES / 2);
    Step::Work { how: How::Fill, stream, touches: vec![(span, Mode::Write)] }
}

fn columns(stream: Id, first: u64) -> Step {
    let span = Span { block: 0, offset: first, bytes: 32, rows: 8, pitch: 64 };
    Step::Work { how: How::Random, stream, touches: vec![(span, Mode::Write)] }
}

fn captured(inside: Vec<Step>) -> Vec<Step> {
    let (graph, stream) = (0, 0);
    [vec![Step::Begin { graph, stream }], inside, vec![Step::End { graph }]].concat()
}

fn launch(stream: Id) -> Step {
    Step::Launch { graph: 0, stream }
}

fn wait_stream(stream: Id, other: Id) -> Step {
    Step::WaitStream { stream, other }
}

/// Races that a sanitizer of whole tensors misses, or reports falsely.
fn beyond() -> Vec<Case> {
    let again = [Step::Free { block: 1 }, Step::Allocate { block: 2, stream: 0 }];
    let again = |steps: Vec<Step>, after: Vec<Step>| [steps, again.to_vec(), after].concat();
    let recorded = Step::RecordStream { block: 1, stream: 1 };
    vec![
        case("halves of a block", vec![half(0, 0, 0), half(1, 0, 1)], &[]),
        case("one half twice", vec![half(0, 0, 1), half(1, 0, 0), half(1, 0, 1)], &[(2, 1)]),
        case("columns beside each other", vec![columns(0, 0), columns(1, 32)], &[]),
        case("columns that meet", vec![columns(0, 0), columns(1, 16)], &[(1, 1)]),
        case(
            "a query that succeeds",
            vec![both(0, 0), Step::PollStream { stream: 0 }, both(1, 0)],
            &[],
        ),
        case(
            "a function that has begun",
            vec![both(0, 0), Step::Callback { stream: 0, awaited: true }, both(1, 0)],
            &[],
        ),
        case(
            "the default stream waits for blocking ones",
            vec![both(5, 0), both(4, 0), both(5, 0)],
            &[],
        ),
        case("and not for others", vec![both(0, 0), both(4, 0)], &[(1, 1)]),
        case("memory that was never used", again(vec![], vec![write(1, 2)]), &[]),
        case("memory that was used", again(vec![write(0, 1)], vec![write(1, 2)]), &[(3, 1)]),
        case("that is used again in order", again(vec![write(0, 1)], vec![write(0, 2)]), &[]),
        case(
            "used elsewhere, and not recorded",
            again(vec![write(1, 1)], vec![write(0, 2)]),
            &[(3, 1)],
        ),
        case(
            "used elsewhere, and complete",
            again(vec![write(1, 1), Step::SyncStream { stream: 1 }], vec![write(0, 2)]),
            &[],
        ),
        case(
            "used elsewhere, and recorded",
            again(vec![write(1, 1), recorded], vec![write(0, 2)]),
            &[],
        ),
        case(
            "branches of a capture",
            captured(vec![wait_stream(1, 0), both(0, 0), both(1, 0), wait_stream(0, 1)]),
            &[(3, 1)],
        ),
        case(
            "a graph after what it reads",
            [captured(vec![read(0, 0)]), vec![write(1, 0), wait_stream(2, 1), launch(2)]].concat(),
            &[],
        ),
        case(
            "a graph beside what it reads",
            [captured(vec![read(0, 0)]), vec![write(1, 0), launch(2)]].concat(),
            &[(4, 1)],
        ),
        case(
            "work beside a graph",
            [captured(vec![write(0, 0)]), vec![launch(2), read(1, 0)]].concat(),
            &[(4, 1)],
        ),
        case(
            "launches of one graph are in order",
            [captured(vec![write(0, 0)]), vec![launch(1), launch(2), launch(3)]].concat(),
            &[],
        ),
    ]
}

pub fn all_cases() -> Vec<Case> {
    [by_pytorch(), beyond()].concat()
}
