//! Runs a program on the library, with the sanitizer on or off.

use super::api::{self, Handle, Words};
use super::program::{How, Id, Kind, Mode, Program, Span, Step};
use super::watch::{self, Report};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tcuda::ffi::tensor::{TCUDA_DTYPE_FLOAT, TCUDA_DTYPE_INT};

/// Polls of a stream or event after which the test fails.
const MAX_POLLS: usize = 1_000_000;

pub struct Outcome {
    /// By line: the address of an allocation.
    pub addresses: Vec<Option<u64>>,
    pub reports: Vec<Report>,
    /// The library's number of each stream.
    pub ids: Vec<i64>,
}

type Task = Box<dyn FnOnce() + Send>;

/// The second host thread, which starts when it is needed.
struct Second(Option<(Sender<Task>, JoinHandle<()>)>);

impl Second {
    fn run(&mut self, task: impl FnOnce() -> Option<u64> + Send + 'static) -> Option<u64> {
        let (worker, _) = self.0.get_or_insert_with(|| {
            let (sender, tasks) = channel::<Task>();
            (sender, std::thread::spawn(move || tasks.iter().for_each(|task| task())))
        });
        let (sender, result) = channel();
        let answer = move || sender.send(task()).unwrap_or_default();
        worker.send(Box::new(answer)).unwrap();
        result.recv().expect("the second thread has failed")
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        if let Some((sender, worker)) = self.0.take() {
            drop(sender);
            let _ = worker.join();
        }
    }
}

struct Execution {
    program: Program,
    streams: Vec<Handle>,
    /// External streams, with their devices.
    natives: Vec<(i32, usize)>,
    events: Mutex<Vec<Handle>>,
    graphs: Mutex<Vec<Handle>>,
    places: Mutex<Vec<u64>>,
    jit: Option<Handle>,
    kernel: Option<Handle>,
    is_adversarial: bool,
}

/// Options of the running machine. It serves many programs, because each new one loads its kernels
/// again.
static MACHINE: Mutex<Option<String>> = Mutex::new(None);

fn power(program: &Program, schedule: &str) {
    let peers = if program.peers { "full" } else { "none" };
    let wanted = format!("devices=3,memory=256MiB,peers={peers},schedule={schedule}");
    let mut machine = lock(&MACHINE);
    if machine.as_ref() != Some(&wanted) {
        if machine.is_some() {
            api::shutdown();
        }
        api::select(&wanted);
        *machine = Some(wanted);
    }
}

pub fn power_off() {
    if lock(&MACHINE).take().is_some() {
        api::shutdown();
    }
}

/// Runs a program, and frees all that is left of it.
pub fn run(program: &Program, schedule: &str, watched: bool) -> Outcome {
    power(program, schedule);
    if watched {
        watch::begin();
    }
    let execution = Arc::new(Execution::new(program, schedule.starts_with("adversarial")));
    let ids = execution.streams.iter().map(|stream| api::stream_id(*stream)).collect();
    let mut second = Second(None);
    let mut addresses = Vec::new();
    for (number, line) in program.lines.iter().enumerate() {
        watch::line(number);
        addresses.push(match line.thread {
            0 => execution.step(number),
            _ => {
                let execution = Arc::clone(&execution);
                second.run(move || execution.step(number))
            }
        });
    }
    let reports = if watched { watch::end() } else { Vec::new() };
    drop(second);
    execution.end();
    Outcome { addresses, reports, ids }
}

fn poll(mut is_done: impl FnMut() -> bool) {
    let polls = (0..MAX_POLLS).take_while(|_| !is_done()).count();
    assert!(polls < MAX_POLLS, "it is never done");
}

unsafe extern "C" fn raise(flag: *mut c_void) {
    // SAFETY: the flag that `callback` has leaked.
    let flag = unsafe { &*flag.cast::<AtomicBool>() };
    flag.store(true, Ordering::Release);
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Execution {
    fn new(program: &Program, is_adversarial: bool) -> Execution {
        let mut natives = Vec::new();
        let mut own = |device, is_blocking| {
            natives.push((device, api::native(device, is_blocking)));
            api::stream_external(device, natives[natives.len() - 1].1)
        };
        let streams = program.streams.iter().map(|stream| match stream.kind {
            Kind::Pool => api::stream_create(stream.device),
            Kind::Legacy => api::stream_default(stream.device),
            Kind::PerThread => api::stream_external(stream.device, 2),
            Kind::Blocking => own(stream.device, true),
            Kind::NonBlocking => own(stream.device, false),
        });
        Execution {
            streams: streams.collect(),
            natives,
            events: Mutex::new((0..program.events).map(|_| api::event_create()).collect()),
            graphs: Mutex::new((0..program.graphs).map(|_| api::graph_create()).collect()),
            places: Mutex::new(vec![0; program.blocks.len()]),
            jit: program.uses(How::Elements).then(api::jit_create),
            kernel: program.uses(How::Kernel).then(api::kernel_compile),
            program: program.clone(),
            is_adversarial,
        }
    }

    /// Waits for all work and destroys everything. Memory goes back to the driver, so that the next
    /// program starts with an empty cache.
    fn end(&self) {
        (0..3).for_each(api::device_synchronize);
        for (place, block) in lock(&self.places).iter().zip(&self.program.blocks) {
            match (*place, block.device) {
                (0, _) => {}
                (address, Some(_)) => api::free(address),
                (address, None) => api::host_free(address),
            }
        }
        lock(&self.graphs).iter().filter(|graph| **graph != 0).for_each(|g| api::graph_destroy(*g));
        lock(&self.events).iter().for_each(|event| api::event_destroy(*event));
        self.jit.into_iter().for_each(api::jit_destroy);
        self.kernel.into_iter().for_each(api::kernel_destroy);
        self.streams.iter().for_each(|stream| api::stream_destroy(*stream));
        self.natives.iter().for_each(|(device, native)| api::native_destroy(*device, *native));
        api::empty_cache();
    }

    fn address(&self, span: Span) -> u64 {
        lock(&self.places)[span.block] + span.offset
    }

    fn words(&self, span: Span, dtype: u8) -> Words {
        Words {
            address: self.address(span),
            device: self.program.blocks[span.block].device.unwrap_or(0),
            dtype,
            shape: [span.rows as i64, (span.bytes / 4) as i64],
            strides: [(span.pitch / 4) as i64, 1],
        }
    }

    fn event(&self, event: Id) -> Handle {
        lock(&self.events)[event]
    }

    fn graph(&self, graph: Id) -> Handle {
        lock(&self.graphs)[graph]
    }

    fn place(&self, block: Id, address: u64) -> Option<u64> {
        lock(&self.places)[block] = address;
        Some(address)
    }

    fn leave(&self, block: Id) -> u64 {
        std::mem::take(&mut lock(&self.places)[block])
    }

    /// Makes the call of a line; returns the address of an allocation.
    fn step(&self, line: usize) -> Option<u64> {
        let stream_of = |stream: &Id| self.streams[*stream];
        match &self.program.lines[line].step {
            Step::Allocate { block, stream } => {
                let wanted = self.program.blocks[*block];
                let device = wanted.device.unwrap();
                let address = api::malloc(wanted.bytes, device, stream_of(stream));
                return self.place(*block, address);
            }
            Step::Pin { block } => {
                let address = api::host_malloc(self.program.blocks[*block].bytes);
                return self.place(*block, address);
            }
            Step::Free { block } => api::free(self.leave(*block)),
            Step::Unpin { block } => api::host_free(self.leave(*block)),
            Step::RecordStream { block, stream } => {
                api::record_stream(lock(&self.places)[*block], stream_of(stream));
            }
            Step::HostRecord { block, stream } => {
                api::host_record(lock(&self.places)[*block], stream_of(stream));
            }
            Step::Work { how, stream, touches } => self.work(*how, stream_of(stream), touches),
            Step::Collective { how, parts } => self.collective(*how, parts),
            Step::Fetch { stream, span } => {
                let mut buffer = vec![0u8; span.bytes as usize];
                let to = buffer.as_mut_ptr() as u64;
                api::copy(to, self.address(*span), span.bytes, stream_of(stream));
            }
            Step::Record { event, stream } => {
                api::event_record(self.event(*event), stream_of(stream));
            }
            Step::Wait { event, stream } => api::event_wait(self.event(*event), stream_of(stream)),
            Step::WaitStream { stream, other } => {
                api::stream_wait_stream(stream_of(stream), stream_of(other));
            }
            Step::Recreate { event } => {
                let mut events = lock(&self.events);
                api::event_destroy(events[*event]);
                events[*event] = api::event_create();
            }
            Step::SyncEvent { event } => api::event_synchronize(self.event(*event)),
            Step::SyncStream { stream } => api::stream_synchronize(stream_of(stream)),
            Step::SyncDevice { device } => api::device_synchronize(*device),
            Step::PollEvent { event } => poll(|| api::event_query(self.event(*event))),
            Step::PollStream { stream } => poll(|| api::stream_query(stream_of(stream))),
            Step::Callback { stream, awaited } => self.callback(stream_of(stream), *awaited),
            Step::Begin { graph, stream } => {
                api::capture_begin(self.graph(*graph), stream_of(stream));
            }
            Step::End { graph } => api::capture_end(self.graph(*graph)),
            Step::Launch { graph, stream } => {
                api::graph_replay(self.graph(*graph), stream_of(stream));
            }
            Step::Drop { graph } => {
                api::graph_destroy(std::mem::take(&mut lock(&self.graphs)[*graph]));
            }
        }
        None
    }

    fn work(&self, how: How, stream: Handle, touches: &[(Span, Mode)]) {
        let spans: Vec<Span> = touches.iter().map(|touch| touch.0).collect();
        let words = |span: &Span| self.words(*span, TCUDA_DTYPE_FLOAT);
        match (how, &spans[..]) {
            (How::Copy, [from, to]) => {
                api::copy(self.address(*to), self.address(*from), to.bytes, stream);
            }
            (How::Copy2d, [from, to]) => {
                let rows = |span: Span| (self.address(span), span.pitch);
                api::copy_2d(rows(*to), rows(*from), to.bytes, to.rows, stream);
            }
            (How::Fill, [to]) => api::fill(self.address(*to), to.bytes, stream),
            (How::Random, [to]) => api::uniform(words(to), stream),
            (How::Elements, [inputs @ .., output]) => {
                let mut inputs: Vec<_> = inputs.iter().map(words).collect();
                api::jit_call(self.jit.unwrap(), &mut inputs, words(output), stream);
            }
            (How::Kernel, [one, other]) => {
                let addresses = [self.address(*one), self.address(*other)];
                let accesses = [number(touches[0].1), number(touches[1].1)];
                api::kernel_launch(self.kernel.unwrap(), addresses, accesses, stream);
            }
            (How::HostKernel, [span]) => {
                let mode = number(touches[0].1);
                watch::access(stream, self.address(*span), span.bytes, mode, how.label());
            }
            _ => panic!("{how:?} of {} ranges", spans.len()),
        }
    }

    fn collective(&self, how: How, parts: &[(Id, Span, Mode)]) {
        let mut streams: Vec<Handle> = parts.iter().map(|part| self.streams[part.0]).collect();
        streams.sort_unstable();
        streams.dedup();
        let words = |part: &(Id, Span, Mode)| self.words(part.1, TCUDA_DTYPE_INT);
        api::with_current(&streams, || match (how, parts) {
            (How::Broadcast, [from, to @ ..]) => {
                let mut to: Vec<_> = to.iter().map(words).collect();
                api::broadcast(words(from), &mut to);
            }
            (How::Gather, [from @ .., to]) => {
                let mut from: Vec<_> = from.iter().map(words).collect();
                api::gather(&mut from, words(to));
            }
            (How::Sum, [from @ .., to]) => {
                let mut from: Vec<_> = from.iter().map(words).collect();
                api::sum(&mut from, words(to));
            }
            _ => panic!("{how:?} of {} ranges", parts.len()),
        });
    }

    /// Queues a host function; waits until it runs if `awaited`. The wait uses no call that the
    /// sanitizer records, except on the adversarial schedule, where only calls make progress.
    fn callback(&self, stream: Handle, awaited: bool) {
        let flag: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
        let user_data = std::ptr::from_ref(flag).cast_mut().cast();
        api::add_callback(stream, Some(raise), user_data);
        if !awaited {
            return;
        }
        let is_raised = || flag.load(Ordering::Acquire);
        while !(is_raised() || self.is_adversarial && api::stream_query(stream)) {
            std::thread::sleep(Duration::from_micros(20));
        }
    }
}

fn number(mode: Mode) -> i32 {
    match mode {
        Mode::Read => 1,
        Mode::Write => 2,
        Mode::Both => 3,
    }
}
