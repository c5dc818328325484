//! Calls that tcuda does not use: the sequences about them find them in the driver by themselves.

use crate::bench::{Bench, backend};
use std::env;
use std::ffi::{CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::mem::transmute_copy;
use std::ptr;
use tcuda::driver::sim;
use tcuda::driver::sys::{
    CUcontext, CUdevResourceDesc, CUdevice, CUdeviceptr, CUevent, CUfunction, CUgreenCtx,
    CUjit_option, CUkernel, CUlibrary, CUlibraryOption, CUmemAccess_flags, CUmemLocation,
    CUmemoryPool, CUmodule, CUstream,
};

/// `CUdevResource`: the type is word 0; of multiprocessors their number is word 24, and the
/// smallest part and the multiple of parts follow.
pub type Resource = [c_uint; 36];
pub const NOTHING: Resource = [0; 36];
pub const COUNT: usize = 24;
/// The resource of multiprocessors.
pub const SM: c_uint = 1;

/// What the host wants of a group, `CU_DEV_SM_RESOURCE_GROUP_PARAMS`: the number, how many are
/// scheduled together, and others.
pub type Group = [c_uint; 16];

macro_rules! calls {
    ($($name:ident($($ty:ty),*);)*) => {
        /// The calls; `None` where the driver is older.
        #[allow(non_snake_case, reason = "CUDA's own names")]
        pub struct Calls {
            $(pub $name: Option<unsafe extern "C" fn($($ty),*) -> c_int>,)*
        }

        impl Calls {
            /// Those of the driver.
            pub fn find(bench: &Bench) -> Calls {
                let calls = Calls {
                    $($name: {
                        let found = symbol(stringify!($name));
                        // SAFETY: the driver's function of this name has this signature.
                        (!found.is_null()).then(|| unsafe { transmute_copy(&found) })
                    },)*
                };
                if calls.cuGreenCtxStreamCreate.is_none() {
                    bench.skip("the driver is older than CUDA 12.5");
                }
                calls
            }
        }
    };
}

calls! {
    cuDeviceGetDevResource(CUdevice, *mut Resource, c_uint);
    cuCtxGetDevResource(CUcontext, *mut Resource, c_uint);
    cuGreenCtxGetDevResource(CUgreenCtx, *mut Resource, c_uint);
    cuStreamGetDevResource(CUstream, *mut Resource, c_uint);
    cuDevSmResourceSplitByCount(
        *mut Resource, *mut c_uint, *const Resource, *mut Resource, c_uint, c_uint);
    cuDevSmResourceSplit(
        *mut Resource, c_uint, *const Resource, *mut Resource, c_uint, *mut Group);
    cuDevResourceGenerateDesc(*mut CUdevResourceDesc, *mut Resource, c_uint);
    cuGreenCtxCreate(*mut CUgreenCtx, CUdevResourceDesc, CUdevice, c_uint);
    cuGreenCtxDestroy(CUgreenCtx);
    cuCtxFromGreenCtx(*mut CUcontext, CUgreenCtx);
    cuGreenCtxGetId(CUgreenCtx, *mut c_ulonglong);
    cuGreenCtxStreamCreate(*mut CUstream, CUgreenCtx, c_uint, c_int);
    cuStreamGetGreenCtx(CUstream, *mut CUgreenCtx);
    cuStreamGetCtx_v2(CUstream, *mut CUcontext, *mut CUgreenCtx);
    cuGreenCtxRecordEvent(CUgreenCtx, CUevent);
    cuGreenCtxWaitEvent(CUgreenCtx, CUevent);
    cuCtxGetId(CUcontext, *mut c_ulonglong);
    cuLaunchCooperativeKernel(
        CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream,
        *mut *mut c_void);
    cuGetExportTable(*mut *const c_void, *const [u8; 16]);
    cuStreamGetDevice(CUstream, *mut CUdevice);
    cuModuleLoadDataEx(*mut CUmodule, *const c_void, c_uint, *mut CUjit_option, *mut *mut c_void);
    cuLibraryLoadData(
        *mut CUlibrary, *const c_void, *mut CUjit_option, *mut *mut c_void, c_uint,
        *mut CUlibraryOption, *mut *mut c_void, c_uint);
    cuLibraryGetKernel(*mut CUkernel, CUlibrary, *const c_char);
    cuKernelGetParamInfo(CUkernel, usize, *mut usize, *mut usize);
    cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, usize, CUstream);
    cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream);
    cuDeviceSetMemPool(CUdevice, CUmemoryPool);
    cuMemPoolGetAccess(*mut CUmemAccess_flags, CUmemoryPool, *mut CUmemLocation);
    cuMemHostGetDevicePointer_v2(*mut CUdeviceptr, *mut c_void, c_uint);
    cuMemHostGetFlags(*mut c_uint, *mut c_void);
    cuMemGetAddressRange_v2(*mut CUdeviceptr, *mut usize, CUdeviceptr);
}

/// A function of the driver; NULL if there is none.
fn symbol(name: &str) -> *mut c_void {
    let name = CString::new(name).unwrap();
    if backend() == "sim" {
        // SAFETY: NUL-terminated.
        return unsafe { (sim::interface().unwrap().function)(name.as_ptr()) };
    }
    let path = env::var("TCUDA_CUDA_DRIVER_PATH").unwrap_or_else(|_| "libcuda.so.1".into());
    let path = CString::new(path).unwrap();
    // SAFETY: NUL-terminated; the driver is open already.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    // SAFETY: an open library, or NULL for all, and a NUL-terminated name.
    unsafe { libc::dlsym(library, name.as_ptr().cast::<c_char>()) }
}

/// `other!(bench, calls, cuGreenCtxDestroy(green) => 0)`: as [`cu`](crate::bench::cu), with one of
/// the calls here. A sequence for which the driver is too old is skipped.
macro_rules! other {
    ($bench:expr, $calls:expr, $call:ident($($arg:expr),* $(,)?) => $expected:expr) => {{
        let Some(call) = $calls.$call else { $bench.skip("the driver lacks a call") };
        // SAFETY: the arguments are valid, or wrong in the way that the sequence is about.
        let seen = unsafe { call($($arg),*) };
        let line = format!("{}:{}", file!(), line!());
        $bench.status(&line, stringify!($call($($arg),*)), $expected, seen)
    }};
}
pub(crate) use other;

impl Calls {
    /// All multiprocessors of device 0.
    pub fn whole(&self, bench: &Bench) -> Resource {
        let mut whole = NOTHING;
        other!(bench, self, cuDeviceGetDevResource(0, &mut whole, SM) => 0);
        whole
    }

    /// Two groups of 16 multiprocessors, and what is left.
    pub fn parts(&self, bench: &Bench) -> ([Resource; 2], Resource) {
        let (mut parts, mut rest, mut number) = ([NOTHING; 2], NOTHING, 2);
        let whole = self.whole(bench);
        other!(bench, self, cuDevSmResourceSplitByCount(
            parts.as_mut_ptr(), &mut number, &whole, &mut rest, 0, 16) => 0);
        bench.is("two groups", number, 2);
        (parts, rest)
    }

    /// A green context.
    pub fn green(&self, bench: &Bench, resource: &Resource) -> CUgreenCtx {
        let (mut description, mut green) = (ptr::null_mut(), ptr::null_mut());
        let mut resource = *resource;
        other!(bench, self, cuDevResourceGenerateDesc(&mut description, &mut resource, 1) => 0);
        other!(bench, self, cuGreenCtxCreate(&mut green, description, 0, 1) => 0);
        green
    }

    /// Two green contexts of 16 multiprocessors each.
    pub fn greens(&self, bench: &Bench) -> [CUgreenCtx; 2] {
        self.parts(bench).0.map(|part| self.green(bench, &part))
    }

    /// The context of a green context.
    pub fn context(&self, bench: &Bench, green: CUgreenCtx) -> CUcontext {
        let mut context = ptr::null_mut();
        other!(bench, self, cuCtxFromGreenCtx(&mut context, green) => 0);
        context
    }

    /// A stream of a green context.
    pub fn stream(&self, bench: &Bench, green: CUgreenCtx) -> CUstream {
        let mut stream = ptr::null_mut();
        other!(bench, self, cuGreenCtxStreamCreate(&mut stream, green, 1, 0) => 0);
        stream
    }

    /// The green context of a stream.
    pub fn of(&self, bench: &Bench, stream: CUstream) -> CUgreenCtx {
        let mut green = ptr::null_mut();
        other!(bench, self, cuStreamGetGreenCtx(stream, &mut green) => 0);
        green
    }
}
