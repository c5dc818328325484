//! Functions of elements and kernels. Where the cache is cold, a run takes as long as a compiler.

use crate::host::{Done, Failed, Memory, Stream, call, problem};
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use tcuda::ffi::jit::*;
use tcuda::ffi::kernel::*;
use tcuda::ffi::tensor::*;

struct Function(*mut tcuda_jit);

impl Function {
    fn new() -> Result<Function, Failed> {
        let mut jit = null_mut();
        let code = c"template <typename T> T f(T x, T y, T by) { return x + by * y; }";
        let scalar = tcuda_scalar {
            name: c"by".as_ptr(),
            kind: TCUDA_SCALAR_DOUBLE,
            integer: 0,
            real: 2.0,
            imaginary: 0.0,
        };
        let options = tcuda_jit_options {
            struct_size: size_of::<tcuda_jit_options>(),
            scalars: &scalar,
            num_scalars: 1,
        };
        call!(tcuda_jit_create(code.as_ptr(), &options, &mut jit))?;
        Ok(Function(jit))
    }
}

impl Drop for Function {
    fn drop(&mut self) {
        if call!(tcuda_jit_destroy(self.0)).is_err() {
            problem("a function could not be destroyed".to_string());
        }
    }
}

struct Kernel(*mut tcuda_kernel);

impl Kernel {
    fn new() -> Result<Kernel, Failed> {
        let mut kernel = null_mut();
        let source = c"template <typename T> __global__ void put(T *to, T value) { *to = value; }";
        let name = c"put<float>".as_ptr();
        call!(tcuda_kernel_compile(source.as_ptr(), name, null(), &mut kernel))?;
        Ok(Kernel(kernel))
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        if call!(tcuda_kernel_destroy(self.0)).is_err() {
            problem("a kernel could not be destroyed".to_string());
        }
    }
}

/// A device function that images and sources share.
const TRIPLE: &std::ffi::CStr = c".version 7.8
.target sm_52
.address_size 64
.visible .func (.param .b32 result) triple(.param .b32 x)
{
    .reg .b32 %a;
    ld.param.b32 %a, [x];
    mul.lo.s32 %a, %a, 3;
    st.param.b32 [result], %a;
    ret;
}
";

/// A kernel of a source that is linked with an image, and with link-time optimisation where there
/// is nvJitLink.
pub fn linked() -> Done {
    if std::env::var_os("TCUDA_NVRTC_PATH").is_none() {
        return Ok(());
    }
    let stream = Stream::new(0, 0)?;
    let memory = Memory::new(1 << 12, 0, stream.0)?;
    let image = tcuda_kernel_image {
        data: TRIPLE.as_ptr().cast(),
        bytes: TRIPLE.to_bytes().len(),
        name: null(),
        kind: TCUDA_IMAGE_PTX,
    };
    let mut options = tcuda_kernel_options {
        struct_size: size_of::<tcuda_kernel_options>(),
        flags: null(),
        num_flags: 0,
        images: &image,
        num_images: 1,
        lto: 0,
    };
    launch_of(
        c"extern \"C\" __device__ int triple(int);
          extern \"C\" __global__ void put(int *to, int x) { *to = triple(x); }",
        &options,
        &memory,
        &stream,
    )?;
    if std::env::var_os("TCUDA_NVJITLINK_PATH").is_some() {
        options.num_images = 0;
        options.lto = 1;
        let source = c"extern \"C\" __global__ void put(int *to, int x) { *to = x; }";
        launch_of(source, &options, &memory, &stream)?;
    }
    stream.synchronize()
}

/// Compiles a kernel that takes an address and a number, and launches it.
fn launch_of(
    source: &std::ffi::CStr,
    options: &tcuda_kernel_options,
    memory: &Memory,
    stream: &Stream,
) -> Done {
    let mut kernel = null_mut();
    let name = c"put".as_ptr();
    call!(tcuda_kernel_compile(source.as_ptr(), name, options, &mut kernel))?;
    let kernel = Kernel(kernel);
    let (mut to, mut value) = (memory.0, 1i32);
    let args = [(&raw mut to).cast::<c_void>(), (&raw mut value).cast()];
    call!(tcuda_kernel_launch(kernel.0, null(), args.as_ptr(), 2, stream.0))
}

/// A cooperative launch of 16 blocks with all options.
fn together(cluster: [u32; 3]) -> tcuda_launch_options {
    tcuda_launch_options {
        struct_size: size_of::<tcuda_launch_options>(),
        grid: [16, 1, 1],
        block: [32, 1, 1],
        shared_bytes: 64 << 10,
        accesses: null(),
        cluster,
        cooperative: 1,
        programmatic: 1,
        priority: -1,
        shared_carveout_percent: 50,
    }
}

/// The limits of a kernel; a failure leaves the struct as it was.
fn limits(kernel: &Kernel, stream: &Stream) -> Done {
    // SAFETY: zeros are valid.
    let mut info: tcuda_kernel_info = unsafe { std::mem::zeroed() };
    info.struct_size = size_of::<tcuda_kernel_info>();
    info.registers = -1;
    let options = together([2, 1, 1]);
    let outcome = call!(tcuda_kernel_properties(kernel.0, &options, stream.0, &mut info));
    if (info.registers == -1) != outcome.is_err() || outcome.is_err() && info.binary_version != 0 {
        problem("the limits of a kernel were written by a failed call, or not at all".to_string());
    }
    outcome
}

/// A function that is called twice, and a kernel. Without NVRTC there is nothing to run.
pub fn functions() -> Done {
    if std::env::var_os("TCUDA_NVRTC_PATH").is_none() {
        return Ok(());
    }
    let function = Function::new()?;
    let stream = Stream::new(0, 0)?;
    let memory = Memory::new(1 << 12, 0, stream.0)?;
    let mut size = [100];
    let tensor = tcuda_tensor {
        data: memory.0,
        device: tcuda_tensor_device { device_type: TCUDA_DEVICE_CUDA, device_id: 0 },
        ndim: 1,
        dtype: tcuda_dtype { code: TCUDA_DTYPE_FLOAT, bits: 32, lanes: 1 },
        shape: size.as_mut_ptr(),
        strides: null_mut(),
        byte_offset: 0,
    };
    let inputs = [tensor; 2];
    for _ in 0..2 {
        call!(tcuda_jit_call(function.0, inputs.as_ptr(), 2, null(), 0, &tensor, 1, stream.0))?;
    }
    let kernel = Kernel::new()?;
    let (mut to, mut value) = (memory.0, 1f32);
    let args = [(&raw mut to).cast::<c_void>(), (&raw mut value).cast()];
    call!(tcuda_kernel_launch(kernel.0, null(), args.as_ptr(), 2, stream.0))?;
    limits(&kernel, &stream)?;
    for cluster in [[0; 3], [2, 1, 1], [16, 1, 1]] {
        let options = together(cluster);
        call!(tcuda_kernel_launch(kernel.0, &options, args.as_ptr(), 2, stream.0))?;
    }
    stream.synchronize()
}
