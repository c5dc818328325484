//! What a sequence is written with: calls with their expected statuses, values, and shorthands.

use std::ffi::c_void;
use std::fmt::Debug;
use std::io::Write;
use std::panic::Location;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tcuda::driver::sim;
use tcuda::driver::sys::*;
use tcuda::driver::{CudaResult, Driver, cuda};

pub const MIB: usize = 1 << 20;
/// The granularity of virtual memory.
pub const UNIT: usize = 2 * MIB;

/// `cu!(bench, cuMemAlloc(&mut address, 0) => 1)`: makes a call that is to give a CUresult, notes
/// both, and goes on; its value is what was given.
macro_rules! cu {
    ($bench:expr, $call:ident($($arg:expr),* $(,)?) => $expected:expr) => {{
        // SAFETY: the arguments are valid, or wrong in the way that the sequence is about.
        let outcome = unsafe { $bench.driver.$call($($arg),*) };
        $bench.call(
            &format!("{}:{}", file!(), line!()),
            stringify!($call($($arg),*)),
            $expected,
            outcome,
        )
    }};
}
pub(crate) use cu;

pub fn backend() -> String {
    std::env::var("TCUDA_BACKEND").unwrap_or_else(|_| String::from("sim"))
}

/// A driver, and notes of what it gave.
pub struct Bench {
    pub driver: Driver,
}

impl Bench {
    pub fn new() -> Bench {
        let driver = match &*backend() {
            "sim" => {
                let options = std::env::var("TCUDA_SIM");
                let options =
                    options.unwrap_or_else(|_| "devices=2,memory=4GiB,schedule=threads".into());
                sim::power_on(&options).unwrap()
            }
            "cuda" => Driver::new(None, cuda::table().unwrap()),
            other => panic!("TCUDA_BACKEND={other}: accepted are sim and cuda"),
        };
        Bench { driver }
    }

    /// Another bench over the driver that this process has started.
    pub fn again() -> Bench {
        let driver = match &*backend() {
            "sim" => sim::driver().unwrap(),
            _ => Driver::new(None, cuda::table().unwrap()),
        };
        Bench { driver }
    }

    fn note(&self, line: &str, what: &str, expected: &str, seen: &str) {
        let one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut out = std::io::stdout().lock();
        let line = line.rsplit('/').next().unwrap_or(line);
        let _ = writeln!(
            out,
            "step\t{line}\t{}\t{}\t{}",
            one_line(what),
            one_line(expected),
            one_line(seen)
        );
        let _ = out.flush();
    }

    /// Notes the outcome of a call; see [`cu`].
    pub fn call(&self, line: &str, what: &str, expected: i32, outcome: CudaResult) -> i32 {
        let seen = outcome.map_or_else(|error| error.code, |()| 0);
        self.note(line, what, &expected.to_string(), &seen.to_string());
        seen
    }

    /// Notes the status of a call that is not in the library's table.
    pub fn status(&self, line: &str, what: &str, expected: i32, seen: i32) -> i32 {
        self.note(line, what, &expected.to_string(), &seen.to_string());
        seen
    }

    /// Notes a value.
    #[track_caller]
    pub fn is<V: Debug>(&self, what: &str, seen: V, expected: V) {
        let at = Location::caller();
        let line = format!("{}:{}", at.file(), at.line());
        self.note(&line, what, &format!("{expected:?}"), &format!("{seen:?}"));
    }

    /// Ends the sequence as one that cannot be run here.
    pub fn skip(&self, why: &str) -> ! {
        println!("skipped\t{why}");
        std::process::exit(0);
    }

    /// Initialises the driver and makes the context of device 0 current.
    pub fn start(&self) -> CUcontext {
        cu!(self, cuInit(0) => 0);
        self.use_device(0)
    }

    pub fn use_device(&self, device: i32) -> CUcontext {
        let mut context = ptr::null_mut();
        cu!(self, cuDevicePrimaryCtxRetain(&mut context, device) => 0);
        cu!(self, cuCtxSetCurrent(context) => 0);
        context
    }

    /// Skips the sequence on a machine with one device.
    pub fn need_two_devices(&self) {
        let mut count = 0;
        cu!(self, cuDeviceGetCount(&mut count) => 0);
        if count < 2 {
            self.skip("one device");
        }
    }

    /// A stream; flag 1 makes it independent of the legacy one.
    pub fn stream(&self, flags: u32) -> CUstream {
        let mut stream = ptr::null_mut();
        cu!(self, cuStreamCreateWithPriority(&mut stream, flags, 0) => 0);
        stream
    }

    pub fn event(&self) -> CUevent {
        let mut event = ptr::null_mut();
        cu!(self, cuEventCreate(&mut event, 0) => 0);
        event
    }

    pub fn allocate(&self, bytes: usize) -> u64 {
        let mut address = 0;
        cu!(self, cuMemAlloc(&mut address, bytes) => 0);
        address
    }

    /// Pinned memory of the host, all zero.
    pub fn pinned(&self, bytes: usize) -> &'static mut [u8] {
        let mut address = ptr::null_mut();
        if cu!(self, cuMemHostAlloc(&mut address, bytes, 0) => 0) != 0 {
            return Box::leak(vec![0; bytes].into_boxed_slice());
        }
        // SAFETY: fresh memory of this size, which no sequence uses after it was freed.
        let slice = unsafe { std::slice::from_raw_parts_mut(address.cast::<u8>(), bytes) };
        slice.fill(0);
        slice
    }

    pub fn reserve(&self, bytes: usize) -> u64 {
        let mut address = 0;
        cu!(self, cuMemAddressReserve(&mut address, bytes, 0, 0, 0) => 0);
        address
    }

    pub fn create(&self, bytes: usize) -> u64 {
        let mut handle = 0;
        cu!(self, cuMemCreate(&mut handle, bytes, &properties(0), 0) => 0);
        handle
    }

    /// Virtual memory of one handle, with access.
    pub fn mapped(&self, bytes: usize) -> u64 {
        let address = self.reserve(bytes);
        let handle = self.create(bytes);
        cu!(self, cuMemMap(address, bytes, 0, handle, 0) => 0);
        cu!(self, cuMemSetAccess(address, bytes, &access(0, 3), 1) => 0);
        cu!(self, cuMemRelease(handle) => 0);
        address
    }

    /// The default pool of device 0.
    pub fn default_pool(&self) -> CUmemoryPool {
        let mut pool = ptr::null_mut();
        cu!(self, cuDeviceGetDefaultMemPool(&mut pool, 0) => 0);
        pool
    }

    /// Free memory of the current device.
    pub fn free_memory(&self) -> usize {
        let (mut free, mut total) = (0, 0);
        cu!(self, cuMemGetInfo(&mut free, &mut total) => 0);
        free
    }

    /// Bytes of device memory, read on a stream that is synchronised.
    pub fn fetch(&self, address: u64, bytes: usize, stream: CUstream) -> Vec<u8> {
        let mut buffer = vec![0xcc; bytes];
        let host = buffer.as_mut_ptr().expose_provenance() as u64;
        cu!(self, cuMemcpyAsync(host, address, bytes, stream) => 0);
        cu!(self, cuStreamSynchronize(stream) => 0);
        buffer
    }

    pub fn store(&self, address: u64, bytes: &[u8], stream: CUstream) {
        let host = bytes.as_ptr().expose_provenance() as u64;
        cu!(self, cuMemcpyAsync(address, host, bytes.len(), stream) => 0);
        cu!(self, cuStreamSynchronize(stream) => 0);
    }

    /// A callback on `stream` that returns when the gate is opened. Whatever the driver loads at
    /// first use was used before: it would wait for the device.
    pub fn hold(&self, stream: CUstream) -> &'static Gate {
        let gate: &Gate = Box::leak(Box::default());
        let argument = ptr::from_ref(gate).cast_mut().cast();
        cu!(self, cuLaunchHostFunc(stream, Some(wait_at_gate), argument) => 0);
        gate
    }

    /// A callback on `stream` that is counted.
    pub fn count(&self, stream: CUstream, expected: i32) -> &'static Counter {
        let counter: &Counter = Box::leak(Box::default());
        let argument = ptr::from_ref(counter).cast_mut().cast();
        cu!(self, cuLaunchHostFunc(stream, Some(count_call), argument) => expected);
        counter
    }

    /// Memory for a test of order; every kind of fill has been used once.
    pub fn warm(&self, bytes: usize) -> u64 {
        let address = self.allocate(bytes);
        let stream = self.stream(1);
        cu!(self, cuMemsetD8Async(address, 0, bytes, stream) => 0);
        cu!(self, cuMemsetD16Async(address, 0, bytes / 2, stream) => 0);
        cu!(self, cuMemsetD32Async(address, 0, bytes / 4, stream) => 0);
        cu!(self, cuCtxSynchronize() => 0);
        address
    }

    /// Does a call wait for the gate? A helper opens it after a while, when the call should long
    /// have returned if it does not wait.
    #[track_caller]
    pub fn waits(&self, what: &str, gate: &'static Gate, expected: bool, call: impl FnOnce()) {
        let opened = AtomicBool::new(false);
        let returned = AtomicBool::new(false);
        let waited = std::thread::scope(|scope| {
            scope.spawn(|| {
                let start = Instant::now();
                while start.elapsed() < Duration::from_millis(700)
                    && !returned.load(Ordering::SeqCst)
                {
                    std::thread::sleep(Duration::from_millis(2));
                }
                if !returned.load(Ordering::SeqCst) {
                    opened.store(true, Ordering::SeqCst);
                    gate.open();
                }
            });
            call();
            returned.store(true, Ordering::SeqCst);
            opened.load(Ordering::SeqCst)
        });
        self.is(&format!("{what} waits"), waited, expected);
    }
}

/// A gate that a callback waits at, to hold a stream back.
#[derive(Default)]
pub struct Gate {
    open: AtomicBool,
}

impl Gate {
    pub fn open(&self) {
        self.open.store(true, Ordering::SeqCst);
    }
}

/// How often a callback was called.
#[derive(Default)]
pub struct Counter(AtomicUsize);

impl Counter {
    pub fn get(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

unsafe extern "C" fn count_call(counter: *mut c_void) {
    // SAFETY: the argument is a counter that lives for ever.
    let counter = unsafe { &*counter.cast::<Counter>() };
    counter.0.fetch_add(1, Ordering::SeqCst);
}

unsafe extern "C" fn wait_at_gate(gate: *mut c_void) {
    // SAFETY: the argument is a gate that lives for ever.
    let gate = unsafe { &*gate.cast::<Gate>() };
    let start = Instant::now();
    // A sequence that never opens it is wrong; the driver is not to hang with it.
    while !gate.open.load(Ordering::SeqCst) && start.elapsed() < Duration::from_secs(8) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub fn location(device: i32) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}

pub fn access(device: i32, protection: u32) -> CUmemAccessDesc {
    let flags = match protection {
        0 => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE,
        1 => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ,
        _ => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    CUmemAccessDesc { location: location(device), flags }
}

pub fn properties(device: i32) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location: location(device),
        win32HandleMetaData: ptr::null_mut(),
        allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

pub fn pool_properties(device: i32) -> CUmemPoolProps {
    CUmemPoolProps {
        allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        handleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location: location(device),
        win32SecurityAttributes: ptr::null_mut(),
        maxSize: 0,
        usage: 0,
        reserved: [0; 54],
    }
}

/// A pool of memory of the host, or at another location.
pub fn host_pool_properties(kind: CUmemLocationType, id: i32) -> CUmemPoolProps {
    CUmemPoolProps { location: CUmemLocation { type_: kind, id }, ..pool_properties(0) }
}

/// The address of memory of the host, as a device address.
pub fn host<T>(memory: &[T]) -> u64 {
    memory.as_ptr().expose_provenance() as u64
}

pub fn handle<T>(number: usize) -> *mut T {
    ptr::without_provenance_mut(number)
}

pub const LEGACY: usize = 1;
pub const PER_THREAD: usize = 2;
