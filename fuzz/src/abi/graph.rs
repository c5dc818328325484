//! Graphs. A capture begins and ends within one step, so that no other step waits for a stream that
//! is captured; where several threads use the streams there is none.

use crate::expect::{Expect, status};
use crate::input::Input;
use crate::outputs::{Out, TextOut};
use crate::status_of;
use crate::world::{CALLS, Mode, World, captured_function, destructor};
use std::ffi::{CStr, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::Ordering;
use tcuda::driver::sys::{CUgraph_st, CUgraphExec_st};
use tcuda::ffi::graph::*;
use tcuda::ffi::graph_conditional::*;
use tcuda::ffi::graph_data::*;
use tcuda::ffi::graph_hooks::*;
use tcuda::ffi::library::tcuda_destroy_fn;
use tcuda::ffi::mem_pool::tcuda_mem_pool;
use tcuda::ffi::memory::{tcuda_free, tcuda_malloc};
use tcuda::ffi::observer::tcuda_observer;
use tcuda::ffi::stream::{tcuda_stream, tcuda_stream_add_callback};

pub(super) fn create(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let keep = w.flag(i, &mut e);
    let mut out = Out::<*mut tcuda_graph>::required(i, &mut e);
    let status = status_of!(tcuda_graph_create(keep, out.ptr()));
    if let Some(graph) = out.check(w.judge(status, &e)) {
        w.graphs.push(graph as usize);
        w.counted += 1;
    }
}

pub(super) fn destroy(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let handle = w.graph(i, &mut e);
    if handle == 0 {
        e = Expect::default();
    }
    let status = status_of!(tcuda_graph_destroy(handle as *mut _));
    w.judge(status, &e);
    if status == status::INVALID_HANDLE {
        return;
    }
    if let Some(index) = w.graphs.iter().position(|graph| *graph == handle) {
        w.dead.push(w.graphs.swap_remove(index));
        w.counted -= 1;
    }
}

/// What a graph may answer that is not as it should be.
const NOT_NOW: &[i32] = &[status::INVALID_STATE, status::CUDA_ERROR, status::INVALID_ARGUMENT];

pub(super) fn capture_begin(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let (graph, stream) = (w.graph(i, &mut e), w.stream(i, &mut e));
    let pool = if i.rarely(4) { w.pool(i, &mut Expect::default()) } else { 0 };
    if pool != 0 && !w.pools.contains(&pool) {
        e.wrong(status::INVALID_HANDLE);
    }
    let mode = i.one_of(&[0, 1, 2, 0, 1, 2, 3, -1]);
    if !(0..=2).contains(&mode) {
        e.wrong(status::INVALID_ARGUMENT);
    }
    if w.mode == Mode::Threads {
        return;
    }
    // Default streams, a graph that is captured, a backend without pools.
    e.also(NOT_NOW);
    e.also(&[status::NOT_SUPPORTED, status::OUT_OF_HOST_MEMORY]);
    let status = status_of!(tcuda_graph_capture_begin(
        graph as *mut _,
        stream,
        pool as *mut tcuda_mem_pool,
        mode
    ));
    if !w.judge(status, &e) {
        return;
    }
    let mut capturing = false;
    let asked = status_of!(tcuda_stream_is_capturing(stream, &mut capturing));
    assert!(asked != status::OK || capturing);
    if mode == 1 {
        add_function(w, stream);
        let begun = status_of!(tcuda_graph_annotation_push(stream, c"a".as_ptr()));
        if w.judge(begun, &Expect::default()) && i.rarely(2) {
            w.judge(status_of!(tcuda_graph_annotation_pop(stream)), &Expect::default());
        }
    }
    if mode == 2 {
        add_conditional_node(w, i, graph, stream);
    }
    let status = match i.rarely(3) {
        true => status_of!(tcuda_graph_capture_abort(graph as *mut _)),
        false => status_of!(tcuda_graph_capture_end(graph as *mut _)),
    };
    w.judge(status, &Expect::default());
    let asked = status_of!(tcuda_stream_is_capturing(stream, &mut capturing));
    assert!(asked != status::OK || !capturing || w.mode == Mode::Faults);
}

/// Adds a node whose predicate is in the graph's pool, perhaps without the end of its body.
fn add_conditional_node(w: &mut World, i: &mut Input, graph: usize, stream: *mut tcuda_stream) {
    let mut predicate = null_mut();
    if status_of!(tcuda_malloc(1, -1, stream, &mut predicate)) != status::OK {
        return;
    }
    let graph = graph as *mut tcuda_graph;
    let begin =
        |stream| status_of!(tcuda_graph_conditional_begin(graph, 0, predicate, stream, null_mut()));
    let begun = begin(stream);
    let mut e = Expect::default();
    e.also(NOT_NOW);
    w.judge(begun, &e);
    if begun == status::OK && !i.rarely(4) {
        let inner = if i.rarely(2) { begin(null_mut()) } else { status::INVALID_STATE };
        w.judge(inner, &e);
        w.judge(status_of!(tcuda_graph_conditional_set(graph, predicate, null_mut())), &e);
        if inner == status::OK {
            w.judge(status_of!(tcuda_graph_conditional_end(graph)), &e);
        }
        w.judge(status_of!(tcuda_graph_conditional_end(graph)), &e);
    }
    w.judge(status_of!(tcuda_free(predicate)), &Expect::default());
}

pub(super) fn begin(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let (graph, stream) = (w.graph(i, &mut e), w.stream(i, &mut e));
    let mode = i.one_of(&[0, 1, 2, 0, 1, 2, 3, -1]);
    if !(0..=2).contains(&mode) {
        e.wrong(status::INVALID_ARGUMENT);
    }
    let mut previous = Out::<*mut tcuda_stream>::required(i, &mut e);
    let mut device = Out::<i32>::required(i, &mut e);
    if w.mode == Mode::Threads {
        return;
    }
    e.also(NOT_NOW);
    e.also(&[status::NOT_SUPPORTED, status::OUT_OF_HOST_MEMORY]);
    let status = status_of!(tcuda_graph_begin(
        graph as *mut _,
        stream,
        null_mut(),
        mode,
        previous.ptr(),
        device.ptr()
    ));
    let ok = w.judge(status, &e);
    let (Some(previous), Some(device)) = (previous.check(ok), device.check(ok)) else { return };
    let ended = status_of!(tcuda_graph_end(graph as *mut _, previous, device));
    w.judge(ended, &Expect::default());
}

pub(super) fn end(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let graph = w.graph(i, &mut e);
    // Nothing is captured; the stream and the device stay what they are.
    e.wrong(status::INVALID_STATE);
    w.judge(status_of!(tcuda_graph_end(graph as *mut _, null_mut(), -1)), &e);
}

/// What a capture records; how often it runs is unknown.
fn add_function(w: &mut World, stream: *mut tcuda_stream) {
    let data = std::ptr::from_ref(&CALLS).cast_mut().cast::<c_void>();
    CALLS.owed.fetch_add(1, Ordering::Relaxed);
    let (function, destroy) = (Some(captured_function as _), Some(destructor as _));
    let status = status_of!(tcuda_stream_add_callback(stream, function, data, destroy));
    if !w.judge(status, &Expect::default()) {
        CALLS.owed.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(super) fn capture_end(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let graph = w.graph(i, &mut e);
    e.wrong(status::INVALID_STATE);
    w.judge(status_of!(tcuda_graph_capture_end(graph as *mut _)), &e);
}

pub(super) fn capture_abort(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let graph = w.graph(i, &mut e);
    e.also(NOT_NOW);
    w.judge(status_of!(tcuda_graph_capture_abort(graph as *mut _)), &e);
}

pub(super) fn instantiate(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let graph = w.graph(i, &mut e);
    e.also(NOT_NOW);
    w.judge(status_of!(tcuda_graph_instantiate(graph as *mut _)), &e);
}

pub(super) fn update(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let (graph, source) = (w.graph(i, &mut e), w.graph(i, &mut e));
    e.also(NOT_NOW);
    w.judge(status_of!(tcuda_graph_update(graph as *mut _, source as *mut _)), &e);
}

pub(super) fn replay(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let (graph, stream) = (w.graph(i, &mut e), w.stream(i, &mut e));
    e.also(NOT_NOW);
    w.judge(status_of!(tcuda_graph_replay(graph as *mut _, stream)), &e);
}

pub(super) fn reset(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let graph = w.graph(i, &mut e);
    w.judge(status_of!(tcuda_graph_reset(graph as *mut _)), &e);
}

pub(super) fn pool(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let graph = w.graph(i, &mut e);
    let mut out = Out::<*mut tcuda_mem_pool>::required(i, &mut e);
    e.also(NOT_NOW);
    e.also(&[status::NOT_SUPPORTED]);
    let status = status_of!(tcuda_graph_pool(graph as *mut _, out.ptr()));
    if let Some(pool) = out.check(w.judge(status, &e)) {
        w.pools.push(pool as usize);
        w.pools_of_graphs.push(pool as usize);
        w.counted += 1;
    }
}

pub(super) fn pool_handle(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let mut out = Out::<*mut tcuda_mem_pool>::required(i, &mut e);
    e.also(NOT_NOW);
    let status = status_of!(tcuda_graph_pool_handle(out.ptr()));
    if let Some(pool) = out.check(w.judge(status, &e)) {
        w.pools.push(pool as usize);
        w.counted += 1;
    }
}

pub(super) fn debug_dump(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let graph = w.graph(i, &mut e);
    // No path that can be written: this is called by the thousand.
    let path = if i.rarely(8) { None } else { Some(c"/nonexistent/graph.dot") };
    let path = match path {
        Some(path) => path.as_ptr(),
        None => {
            e.wrong(status::INVALID_ARGUMENT);
            std::ptr::null()
        }
    };
    e.also(NOT_NOW);
    e.wrong(status::FILE_ERROR);
    e.wrong(status::INVALID_STATE);
    w.judge(status_of!(tcuda_graph_debug_dump(graph as *mut _, path)), &e);
}

pub(super) fn native(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let graph = w.graph(i, &mut e);
    e.also(NOT_NOW);
    let (mut template, mut exec) = (null_mut(), null_mut());
    let status = status_of!(tcuda_graph_native(graph as *mut _, &mut template, &mut exec));
    if w.judge(status, &e) {
        assert!(w.mode == Mode::Threads || !template.is_null() || !exec.is_null());
        assert_eq!(
            status_of!(tcuda_graph_native(graph as *mut _, null_mut(), null_mut())) == status::OK,
            w.mode != Mode::Threads || w.graphs.contains(&graph)
        );
    }
}

pub(super) fn is_capturing(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let stream: *mut tcuda_stream = w.stream(i, &mut e);
    let mut capturing = Out::<u8>::required(i, &mut e);
    let status = status_of!(tcuda_stream_is_capturing(stream, capturing.ptr().cast()));
    let answer = capturing.check_bool(w.judge(status, &e));
    assert!(answer != Some(true) || w.mode != Mode::Strict);
}

pub(super) fn register_generator(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let (graph, generator) = (w.graph(i, &mut e), w.generator(i, &mut e));
    e.also(NOT_NOW);
    w.judge(status_of!(tcuda_graph_register_generator(graph as *mut _, generator)), &e);
}

pub(super) fn stream(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let device = w.device(i, &mut e);
    let mut out = Out::<*mut tcuda_stream>::required(i, &mut e);
    let status = status_of!(tcuda_graph_stream(device, out.ptr()));
    out.check(w.judge(status, &e));
}

unsafe extern "C" fn hook(
    _: *mut c_void,
    event: tcuda_graph_event,
    graph: *mut tcuda_graph,
    _: *mut CUgraph_st,
    _: *mut CUgraphExec_st,
) {
    assert!(event.is_power_of_two() && event <= TCUDA_GRAPH_DESTROYED);
    let (mut template, mut exec) = (null_mut(), null_mut());
    // The graph of a callable has no handle.
    let _ = status_of!(tcuda_graph_native(graph, &mut template, &mut exec));
}

pub(super) fn on_event(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let graph = if i.rarely(4) { 0 } else { w.graph(i, &mut e) };
    if graph == 0 {
        e = Expect::default();
    }
    let events = i.one_of(&[1, 2, 4, 8, 16, 32, 63, 9, 0, 64]);
    if !(1..=63).contains(&events) {
        e.wrong(status::INVALID_ARGUMENT);
    }
    let function: tcuda_graph_hook_fn = if i.rarely(8) { None } else { Some(hook) };
    if function.is_none() {
        e.wrong(status::INVALID_ARGUMENT);
    }
    let mut out = Out::<*mut tcuda_observer>::optional(i);
    let data = std::ptr::from_ref(&CALLS).cast_mut().cast();
    let status = status_of!(tcuda_graph_on_event(
        graph as *mut _,
        events,
        function,
        data,
        Some(destructor),
        out.ptr()
    ));
    let ok = w.judge(status, &e);
    if ok {
        CALLS.owed.fetch_add(1, Ordering::Relaxed);
    }
    if let Some(observer) = out.check(ok) {
        w.observers.push(observer as usize);
        w.counted += 1;
    }
}

pub(super) fn retain(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let graph = w.graph(i, &mut e);
    let synchronize = w.flag(i, &mut e);
    let destroy: tcuda_destroy_fn = if i.rarely(8) { None } else { Some(destructor) };
    if destroy.is_none() {
        e.wrong(status::INVALID_ARGUMENT);
    }
    let data = std::ptr::from_ref(&CALLS).cast_mut().cast();
    let status = status_of!(tcuda_graph_retain(graph as *mut _, data, destroy, synchronize));
    if w.judge(status, &e) {
        CALLS.owed.fetch_add(1, Ordering::Relaxed);
    }
}

pub(super) fn data_json(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let graph = w.graph(i, &mut e);
    let mut out = TextOut::new(i, &mut e);
    let (buf, len) = (out.buf(), out.len);
    e.also(NOT_NOW);
    let status = status_of!(tcuda_graph_data_json(graph as *mut _, buf, len, out.needed.ptr()));
    if let Some(json) = out.check(w.judge(status, &e)) {
        assert!(json.starts_with('{') && json.ends_with("]}"), "{json}");
    }
}

pub(super) fn data_dot(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let graph = w.graph(i, &mut e);
    let mut out = TextOut::new(i, &mut e);
    let (buf, len) = (out.buf(), out.len);
    e.also(NOT_NOW);
    let status = status_of!(tcuda_graph_data_dot(graph as *mut _, buf, len, out.needed.ptr()));
    if let Some(dot) = out.check(w.judge(status, &e)) {
        assert!(dot.starts_with("digraph") && dot.ends_with("}\n"), "{dot}");
    }
}

/// No stream is captured.
pub(super) fn annotation_push(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let stream = w.stream(i, &mut e);
    let text = match i.below(5) {
        0..=1 => c"name".as_ptr(),
        2 => c"".as_ptr(),
        3 => c"\xff".as_ptr(),
        _ => null(),
    };
    // SAFETY: one of those above.
    if text.is_null() || unsafe { CStr::from_ptr(text) }.to_str().is_err() {
        e.wrong(status::INVALID_ARGUMENT);
    }
    w.judge(status_of!(tcuda_graph_annotation_push(stream, text)), &e);
}

pub(super) fn annotation_pop(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let stream = w.stream(i, &mut e);
    w.judge(status_of!(tcuda_graph_annotation_pop(stream)), &e);
}

/// A predicate that is never read, since nothing is captured.
fn predicate(i: &mut Input, e: &mut Expect) -> *const c_void {
    static BYTE: u8 = 1;
    if i.rarely(8) {
        e.wrong(status::INVALID_ARGUMENT);
        return std::ptr::null();
    }
    std::ptr::from_ref(&BYTE).cast()
}

pub(super) fn conditional_begin(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let (graph, stream) = (w.graph(i, &mut e), w.stream(i, &mut e));
    let predicate = predicate(i, &mut e);
    let condition = i.one_of(&[0, 1, 0, 1, 2, -1]);
    if !(0..=1).contains(&condition) {
        e.wrong(status::INVALID_ARGUMENT);
    }
    e.also(NOT_NOW);
    let mut body = null_mut();
    let graph = graph as *mut tcuda_graph;
    let status =
        status_of!(tcuda_graph_conditional_begin(graph, condition, predicate, stream, &mut body));
    assert!(!w.judge(status, &e) && body.is_null());
}

pub(super) fn conditional_set(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let (graph, stream) = (w.graph(i, &mut e), w.stream(i, &mut e));
    let predicate = predicate(i, &mut e);
    e.also(NOT_NOW);
    let status = status_of!(tcuda_graph_conditional_set(graph as *mut _, predicate, stream));
    assert!(!w.judge(status, &e));
}

pub(super) fn conditional_end(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let graph = w.graph(i, &mut e);
    e.also(NOT_NOW);
    assert!(!w.judge(status_of!(tcuda_graph_conditional_end(graph as *mut _)), &e));
}

pub(super) fn capturing(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let stream = w.stream(i, &mut e);
    let mut graph = Out::<*mut tcuda_graph>::required(i, &mut e);
    let status = status_of!(tcuda_graph_capturing(stream, graph.ptr()));
    if let Some(graph) = graph.check(w.judge(status, &e)) {
        assert!(graph.is_null() || w.mode != Mode::Strict);
    }
}

pub(super) fn pools(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let graph = w.graph(i, &mut e);
    let mut pool = null_mut::<tcuda_mem_pool>();
    let capacity = i.below(2);
    let mut count = Out::<usize>::required(i, &mut e);
    e.also(NOT_NOW);
    let status = status_of!(tcuda_graph_pools(graph as *mut _, &mut pool, capacity, count.ptr()));
    let found = count.check(w.judge(status, &e));
    assert_eq!(!pool.is_null(), capacity > 0 && found.is_some_and(|count| count > 0));
    if !pool.is_null() {
        w.pools.push(pool as usize);
        w.pools_of_graphs.push(pool as usize);
        w.counted += 1;
    }
}
