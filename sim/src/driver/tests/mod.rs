//! The machine through its table, as the library uses it.

mod contexts;
mod events;
mod graphs;
mod green;
mod ipc;
mod kernels;
mod memory;
mod modules;
mod pools;
mod races;
mod random;
mod speed;
mod streams;
mod transfers;
mod turns;
mod values;
mod virtual_memory;

use super::config::GRANULARITY;
use super::sync::lock;
use super::{Hooks, LiveObjects, live_objects, power_off, power_on, test_lock};
use crate::base::code;
use cudarc::driver::sys::*;
use std::ffi::{c_char, c_void};
use std::ptr;
use std::sync::{Condvar, Mutex, MutexGuard};

/// The driver's calls by their names without versions.
#[allow(unused_imports, reason = "not every call is tested here")]
mod calls {
    pub(super) use crate::driver::capture_calls::{
        cuStreamBeginCapture_v2 as cuStreamBeginCapture, cuStreamEndCapture,
        cuStreamGetCaptureInfo_v2 as cuStreamGetCaptureInfo, cuStreamIsCapturing,
        cuThreadExchangeStreamCaptureMode,
    };
    pub(super) use crate::driver::context_calls::{
        cuCtxEnablePeerAccess, cuCtxGetCurrent, cuCtxGetDevice, cuCtxGetStreamPriorityRange,
        cuCtxPopCurrent_v2 as cuCtxPopCurrent, cuCtxPushCurrent_v2 as cuCtxPushCurrent,
        cuCtxSetCurrent, cuCtxSynchronize, cuDevicePrimaryCtxGetState,
        cuDevicePrimaryCtxRelease_v2 as cuDevicePrimaryCtxRelease,
        cuDevicePrimaryCtxReset_v2 as cuDevicePrimaryCtxReset, cuDevicePrimaryCtxRetain,
        cuProfilerStart, cuProfilerStop,
    };
    pub(super) use crate::driver::device_calls::{
        cuDeviceCanAccessPeer, cuDeviceGet, cuDeviceGetAttribute, cuDeviceGetCount,
        cuDeviceGetName, cuDeviceGetUuid_v2 as cuDeviceGetUuid,
        cuDeviceTotalMem_v2 as cuDeviceTotalMem, cuDriverGetVersion, cuInit,
    };
    pub(super) use crate::driver::edge_calls::cuGraphGetEdges;
    pub(super) use crate::driver::event_calls::{
        cuEventCreate, cuEventDestroy_v2 as cuEventDestroy, cuEventElapsedTime, cuEventQuery,
        cuEventRecord, cuEventRecordWithFlags, cuEventSynchronize,
    };
    pub(super) use crate::driver::exec_calls::{
        cuGraphExecDestroy, cuGraphInstantiateWithFlags, cuGraphLaunch,
    };
    pub(super) use crate::driver::fill_calls::{
        cuMemsetD8Async, cuMemsetD16Async, cuMemsetD32Async,
    };
    pub(super) use crate::driver::function_calls::{
        cuFuncGetAttribute, cuFuncGetParamInfo, cuFuncSetAttribute,
    };
    pub(super) use crate::driver::graph_calls::{
        cuGraphDebugDotPrint, cuGraphDestroy, cuGraphExecUpdate_v2 as cuGraphExecUpdate,
        cuGraphGetNodes, cuGraphNodeGetType,
    };
    pub(super) use crate::driver::green_calls::{
        cuCtxFromGreenCtx, cuGreenCtxCreate, cuGreenCtxDestroy, cuGreenCtxGetId,
        cuGreenCtxRecordEvent, cuGreenCtxStreamCreate,
    };
    pub(super) use crate::driver::ipc_calls::{
        cuIpcCloseMemHandle, cuIpcGetEventHandle, cuIpcGetMemHandle, cuIpcOpenEventHandle,
        cuIpcOpenMemHandle_v2 as cuIpcOpenMemHandle, cuMemExportToShareableHandle,
        cuMemImportFromShareableHandle,
    };
    pub(super) use crate::driver::launch_calls::cuLaunchKernel;
    pub(super) use crate::driver::library_calls::{
        cuKernelGetFunction, cuLibraryGetGlobal, cuLibraryGetKernel, cuLibraryGetModule,
        cuLibraryLoadData, cuLibraryUnload,
    };
    pub(super) use crate::driver::memory_calls::{
        cuMemAlloc_v2 as cuMemAlloc, cuMemFree_v2 as cuMemFree, cuMemFreeHost,
        cuMemGetInfo_v2 as cuMemGetInfo, cuMemHostAlloc, cuMemHostRegister_v2 as cuMemHostRegister,
        cuMemHostUnregister,
    };
    pub(super) use crate::driver::module_calls::{
        cuModuleGetFunction, cuModuleGetGlobal_v2 as cuModuleGetGlobal, cuModuleLoadData,
        cuModuleLoadDataEx, cuModuleUnload,
    };
    pub(super) use crate::driver::occupancy_calls::cuOccupancyMaxActiveBlocksPerMultiprocessor;
    pub(super) use crate::driver::own_context_calls::{
        cuCtxCreate_v2 as cuCtxCreate, cuCtxDestroy_v2 as cuCtxDestroy,
    };
    pub(super) use crate::driver::pointer_calls::cuPointerGetAttribute;
    pub(super) use crate::driver::pool_calls::{
        cuDeviceGetDefaultMemPool, cuMemAllocAsync, cuMemAllocFromPoolAsync, cuMemFreeAsync,
        cuMemPoolCreate, cuMemPoolDestroy, cuMemPoolGetAttribute, cuMemPoolSetAccess,
        cuMemPoolSetAttribute, cuMemPoolTrimTo,
    };
    pub(super) use crate::driver::resource_calls::{
        cuDevResourceGenerateDesc, cuDevSmResourceSplitByCount, cuDeviceGetDevResource,
        cuGreenCtxGetDevResource,
    };
    pub(super) use crate::driver::stream_calls::{
        cuLaunchHostFunc, cuStreamCreateWithPriority, cuStreamDestroy_v2 as cuStreamDestroy,
        cuStreamGetCtx, cuStreamGetFlags, cuStreamGetId, cuStreamGetPriority, cuStreamQuery,
        cuStreamSynchronize, cuStreamWaitEvent,
    };
    pub(super) use crate::driver::transfer_calls::{
        cuMemcpy2DAsync_v2 as cuMemcpy2DAsync, cuMemcpy3DPeerAsync, cuMemcpyAsync,
        cuMemcpyPeerAsync,
    };
    pub(super) use crate::driver::value_calls::{
        cuStreamWaitValue32_v2 as cuStreamWaitValue32,
        cuStreamWriteValue32_v2 as cuStreamWriteValue32,
    };
    pub(super) use crate::driver::virtual_memory_calls::{
        cuMemAddressFree, cuMemAddressReserve, cuMemCreate, cuMemGetAccess,
        cuMemGetAllocationGranularity, cuMemMap, cuMemRelease, cuMemSetAccess, cuMemUnmap,
    };
}

/// Makes a call and returns its CUresult.
macro_rules! cu {
    ($bench:expr, $call:ident($($arg:expr),* $(,)?)) => {{
        let _ = &$bench;
        // SAFETY: the arguments are valid, or wrong in the way that the test is about.
        unsafe { $crate::driver::tests::calls::$call($($arg),*) }
    }};
}
use cu;

/// Makes a call that must succeed.
macro_rules! ok {
    ($bench:expr, $call:ident($($arg:expr),* $(,)?)) => {
        assert_eq!(cu!($bench, $call($($arg),*)), 0, stringify!($call))
    };
}
use ok;

/// Schedules under which a correct program has the same results.
const SCHEDULES: [&str; 10] = [
    "immediate",
    "threads",
    "adversarial:0",
    "adversarial:1",
    "adversarial:2",
    "adversarial:3",
    "adversarial:4",
    "adversarial:5",
    "adversarial:6",
    "adversarial:7",
];

/// True if this process runs only the test `name`. Otherwise runs that test in a new process, since
/// the calls of other tests' threads would be part of the run.
fn is_alone(name: &str) -> bool {
    const ALONE: &str = "TCUDA_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let path = format!("{}::{name}", module_path!().trim_start_matches("tcuda_sim::"));
    let outcome = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &path, "--test-threads=1", "--nocapture"])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&outcome.stdout);
    assert!(said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&outcome.stderr));
    false
}

/// A machine that is on, with the context of device 0 current; powered off at the end of the test.
struct Bench {
    context: CUcontext,
    _lock: MutexGuard<'static, ()>,
}

impl Bench {
    fn new(options: &str) -> Bench {
        Bench::with_hooks(options, Hooks::default())
    }

    fn with_hooks(options: &str, hooks: Hooks) -> Bench {
        let lock = test_lock();
        power_on(options, hooks).unwrap();
        let mut bench = Bench { context: ptr::null_mut(), _lock: lock };
        // SAFETY: no pointers.
        assert_eq!(unsafe { super::device_calls::initialize(0) }, 0);
        bench.context = bench.use_device(0);
        bench
    }

    fn use_device(&self, device: i32) -> CUcontext {
        let mut context = ptr::null_mut();
        ok!(self, cuDevicePrimaryCtxRetain(&mut context, device));
        ok!(self, cuCtxSetCurrent(context));
        context
    }

    /// A non-blocking stream.
    fn stream(&self) -> CUstream {
        let mut stream = ptr::null_mut();
        ok!(self, cuStreamCreateWithPriority(&mut stream, 1, 0));
        stream
    }

    fn event(&self, flags: u32) -> CUevent {
        let mut event = ptr::null_mut();
        ok!(self, cuEventCreate(&mut event, flags));
        event
    }

    fn allocate(&self, bytes: usize) -> u64 {
        let mut address = 0;
        ok!(self, cuMemAlloc(&mut address, bytes));
        address
    }

    fn reserve(&self, bytes: usize) -> u64 {
        let mut address = 0;
        ok!(self, cuMemAddressReserve(&mut address, bytes, 0, 0, 0));
        address
    }

    fn create(&self, device: i32, bytes: usize) -> u64 {
        let mut handle = 0;
        ok!(self, cuMemCreate(&mut handle, bytes, &properties(device), 0));
        handle
    }

    fn grant(&self, address: u64, bytes: usize, device: i32) -> i32 {
        let access = CUmemAccessDesc {
            location: location(device),
            flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        cu!(self, cuMemSetAccess(address, bytes, &access, 1))
    }

    /// Free memory of the current device.
    fn free(&self) -> usize {
        let (mut free, mut total) = (0, 0);
        ok!(self, cuMemGetInfo(&mut free, &mut total));
        free
    }

    /// Reads device memory through a stream; returns the first error.
    fn fetch(&self, address: u64, bytes: &mut [u8], stream: CUstream) -> i32 {
        let host = bytes.as_mut_ptr().expose_provenance() as u64;
        match cu!(self, cuMemcpyAsync(host, address, bytes.len(), stream)) {
            0 => cu!(self, cuStreamSynchronize(stream)),
            error => error,
        }
    }

    fn store(&self, address: u64, bytes: &[u8], stream: CUstream) -> i32 {
        let host = bytes.as_ptr().expose_provenance() as u64;
        match cu!(self, cuMemcpyAsync(address, host, bytes.len(), stream)) {
            0 => cu!(self, cuStreamSynchronize(stream)),
            error => error,
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // Opens the gates that a failed test left closed.
        lock(&GATES).iter().for_each(|gate| gate.open());
        power_off();
        if !std::thread::panicking() {
            assert_eq!(live_objects(), LiveObjects::default());
        }
    }
}

fn location(device: i32) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}

fn properties(device: i32) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        location: location(device),
        win32HandleMetaData: ptr::null_mut(),
        allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 1,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

/// A handle that no call returned.
fn garbage<T>() -> *mut T {
    ptr::without_provenance_mut(0x0bad_0000_0040)
}

/// All gates.
static GATES: Mutex<Vec<&'static Gate>> = Mutex::new(Vec::new());

/// A gate at which a callback waits, to block a stream.
#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.changed.notify_all();
    }

    fn hold(&'static self, bench: &Bench, stream: CUstream) {
        let argument = ptr::from_ref(self).cast_mut().cast();
        ok!(bench, cuLaunchHostFunc(stream, Some(wait_at_gate), argument));
    }

    /// Never freed, since a stream may still wait when a test fails.
    fn new() -> &'static Gate {
        let gate = Box::leak(Box::default());
        lock(&GATES).push(gate);
        gate
    }
}

unsafe extern "C" fn wait_at_gate(gate: *mut c_void) {
    // SAFETY: the argument is a gate that is never freed.
    let gate = unsafe { &*gate.cast::<Gate>() };
    let mut open = gate.open.lock().unwrap();
    while !*open {
        open = gate.changed.wait(open).unwrap();
    }
}

#[test]
fn calls_need_power_and_init() {
    let _lock = test_lock();
    power_on("", Hooks::default()).unwrap();
    assert!(power_on("", Hooks::default()).is_err());
    let (mut number, mut context) = (0, ptr::null_mut());
    ok!((), cuDriverGetVersion(&mut number));
    assert_eq!(number, 12090);
    assert_eq!(cu!((), cuDeviceGetCount(&mut number)), code::NOT_INITIALIZED);
    assert_eq!(cu!((), cuCtxGetCurrent(&mut context)), code::NOT_INITIALIZED);
    // SAFETY: no pointers.
    assert_eq!(unsafe { super::device_calls::initialize(1) }, code::INVALID_VALUE);
    // SAFETY: no pointers.
    assert_eq!(unsafe { super::device_calls::initialize(0) }, 0);
    ok!((), cuDeviceGetCount(&mut number));
    assert_eq!(number, 1);
    power_off();
    assert_eq!(cu!((), cuDeviceGetCount(&mut number)), code::DEINITIALIZED);
    power_off();
}

#[test]
fn power_off_frees_everything_and_the_machine_goes_on_again() {
    for round in 0..3 {
        let bench = Bench::new("devices=2,schedule=threads");
        assert_eq!(live_objects(), LiveObjects { contexts: 1, ..LiveObjects::default() });
        let stream = bench.stream();
        let event = bench.event(0);
        let address = bench.allocate(5);
        let virtual_address = bench.reserve(4 * GRANULARITY);
        let handle = bench.create(1, GRANULARITY);
        ok!(bench, cuMemMap(virtual_address, GRANULARITY, 0, handle, 0));
        let mut host = ptr::null_mut();
        ok!(bench, cuMemHostAlloc(&mut host, 100, 0));
        let mut module = ptr::null_mut();
        ok!(bench, cuModuleLoadData(&mut module, c".version 7.8\n.target sm_52\n".as_ptr().cast()));
        ok!(bench, cuMemsetD8Async(address, 1, 5, stream));
        ok!(bench, cuEventRecord(event, stream));
        let expected = LiveObjects {
            contexts: 1,
            streams: 1,
            events: 1,
            allocations: 1,
            pool_blocks: 0,
            handles: 1,
            mappings: 1,
            reservations: 1,
            pools: 0,
            modules: 1,
            graphs: 0,
            host_allocations: 1,
            workers: 1,
        };
        assert_eq!(live_objects(), expected, "round {round}");
    }
}
