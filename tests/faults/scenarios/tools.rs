//! What stands beside the driver: a tool that reads NVTX, cuBLAS, and what tells of a device.

use super::graphs::{Graph, capture};
use crate::host::{CURRENT, Done, Memory, Stream, call, fill};
use std::ffi::CStr;
use std::path::Path;
use std::process::Command;
use std::ptr::null_mut;
use tcuda::ffi::device::*;
use tcuda::ffi::graph::tcuda_graph_replay;
use tcuda::ffi::library::tcuda_shutdown;
use tcuda::ffi::monitor::*;
use tcuda::ffi::nvtx::*;
use tcuda::ffi::stream::*;

/// Makes the C tests' listener and stand-in, and names them to the library; before any thread
/// begins.
pub fn prepare() {
    for (source, variable) in
        [("nvtx/listener.c", "NVTX_INJECTION64_PATH"), ("cublas/cublas.c", "TCUDA_CUBLAS_PATH")]
    {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("c_tests");
        let name = format!("faults_{}.so", source.replace(['/', '.'], "_"));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let status = Command::new(std::env::var_os("CC").unwrap_or("cc".into()))
            .args(["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-shared", "-fPIC", "-o"])
            .arg(&path)
            .arg(root.join(source))
            .arg("-lpthread")
            .status();
        assert!(status.is_ok_and(|status| status.success()), "a C compiler");
        // SAFETY: no other thread exists yet.
        unsafe { std::env::set_var(variable, path) };
    }
}

const NAME: &CStr = c"a range";

pub fn ranges() -> Done {
    let mut id = 0;
    let stream = Stream::new(0, 0)?;
    let memory = Memory::new(6000, 0, stream.0)?;
    call!(tcuda_nvtx_mark(NAME.as_ptr()))?;
    for _ in 0..3 {
        call!(tcuda_nvtx_device_range_start(NAME.as_ptr(), stream.0, &mut id))?;
        fill(memory.0, &[1], 6000, stream.0)?;
        call!(tcuda_nvtx_device_range_end(id, stream.0))?;
    }
    stream.synchronize()?;
    call!(tcuda_profiler_start())?;
    call!(tcuda_profiler_stop())
}

pub fn ranges_of_graphs() -> Done {
    let mut id = 0;
    let stream = Stream::new(0, 0)?;
    let memory = Memory::new(64, 0, stream.0)?;
    let graph = Graph::new(0)?;
    capture(&graph, &stream, null_mut(), || {
        call!(tcuda_nvtx_device_range_start(NAME.as_ptr(), stream.0, &mut id))?;
        fill(memory.0, &[1], 64, stream.0)?;
        call!(tcuda_nvtx_device_range_end(id, stream.0))
    })?;
    call!(tcuda_graph_replay(graph.0, stream.0))?;
    call!(tcuda_graph_replay(graph.0, stream.0))?;
    drop(graph);
    stream.synchronize()
}

pub fn telemetry() -> Done {
    let (mut value, mut celsius, mut bytes) = (0, 0, 0);
    for device in 0..2 {
        call!(tcuda_monitor_utilization(device, &mut value))?;
        call!(tcuda_monitor_memory_usage(device, &mut value))?;
        call!(tcuda_monitor_temperature_c(device, &mut celsius))?;
        call!(tcuda_monitor_power_draw_mw(device, &mut value))?;
        call!(tcuda_monitor_clock_rate_mhz(device, &mut value))?;
        call!(tcuda_monitor_memory_used(device, &mut bytes))?;
    }
    Ok(())
}

/// Workspaces stay until the library is shut down.
pub fn blas() -> Done {
    let used = use_blas();
    let ended = call!(tcuda_shutdown(null_mut()));
    used.and(ended)
}

fn use_blas() -> Done {
    let mut handle = null_mut();
    for device in 0..2 {
        call!(tcuda_blas_handle(device, &mut handle))?;
    }
    let stream = Stream::new(0, 0)?;
    call!(tcuda_stream_set_current(stream.0))?;
    let asked = call!(tcuda_blas_handle(0, &mut handle));
    let mut default = CURRENT;
    call!(tcuda_stream_default(0, &mut default))?;
    call!(tcuda_stream_set_current(default))?;
    asked?;
    // Of a thread that leaves it behind.
    std::thread::scope(|scope| {
        let elsewhere = scope.spawn(|| {
            let mut handle = null_mut();
            call!(tcuda_blas_handle(0, &mut handle))
        });
        elsewhere.join().unwrap_or(Ok(()))
    })
}
