//! The kernels of the sequences, as PTX.

use crate::bench::{Bench, cu};
use std::ffi::{CStr, c_void};
use std::ptr;
use tcuda::driver::sys::*;

/// For compute_52, as the library's own kernels: it loads on every driver that we know.
pub const PTX: &CStr = c".version 7.8
.target sm_52
.address_size 64
.visible .entry contract_write(.param .u64 at, .param .u32 value)
{
    .reg .u64 %at;
    .reg .u32 %value;
    ld.param.u64 %at, [at];
    ld.param.u32 %value, [value];
    st.global.u32 [%at], %value;
    ret;
}
.visible .entry contract_copy(.param .u64 to, .param .u64 from)
{
    .reg .u64 %to, %from;
    .reg .u32 %value;
    ld.param.u64 %to, [to];
    ld.param.u64 %from, [from];
    ld.global.u32 %value, [%from];
    st.global.u32 [%to], %value;
    ret;
}
.visible .entry contract_spin(.param .u64 nanoseconds)
{
    .reg .u64 %limit, %start, %now;
    .reg .pred %p;
    ld.param.u64 %limit, [nanoseconds];
    mov.u64 %start, %globaltimer;
AGAIN:
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %start;
    setp.lt.u64 %p, %now, %limit;
    @%p bra AGAIN;
    ret;
}
.visible .entry contract_trap()
{
    trap;
    ret;
}
.visible .entry contract_nothing()
{
    ret;
}
";

/// Blocks of one thread, which meet at a barrier of the whole grid, as `grid.sync()` of CUDA's
/// headers does; apart, since it needs a newer device.
pub const MEETING: &CStr = c".version 7.8
.target sm_70
.address_size 64
.visible .entry contract_meet(.param .u64 words)
{
    .reg .u64 %words, %workspace;
    .reg .u32 %high, %low, %block, %blocks, %value, %old, %now;
    .reg .pred %p;
    ld.param.u64 %words, [words];
    mov.u32 %block, %ctaid.x;
    mov.u32 %blocks, %nctaid.x;
    atom.global.add.u32 %value, [%words], 1;
    mov.u32 %high, %envreg1;
    mov.u32 %low, %envreg2;
    mov.b64 %workspace, {%low, %high};
    setp.eq.u32 %p, %block, 0;
    sub.u32 %value, 0x80000001, %blocks;
    selp.u32 %value, %value, 1, %p;
    atom.add.release.gpu.u32 %old, [%workspace+4], %value;
AGAIN:
    ld.acquire.gpu.u32 %now, [%workspace+4];
    xor.b32 %now, %now, %old;
    setp.ge.s32 %p, %now, 0;
    @%p bra AGAIN;
    ld.global.u32 %value, [%words];
    mul.wide.u32 %workspace, %block, 4;
    add.u64 %words, %words, %workspace;
    st.global.u32 [%words+4], %value;
    ret;
}
";

/// One that fails an assertion; apart, since it needs a function of the driver.
pub const ASSERTION: &CStr = c".version 7.8
.target sm_52
.address_size 64
.extern .func __assertfail
(
    .param .b64 message, .param .b64 file, .param .b32 line, .param .b64 function,
    .param .b64 size
);
.global .align 1 .b8 contract_text[9] = {99, 111, 110, 116, 114, 97, 99, 116, 0};
.visible .entry contract_assertion()
{
    .reg .b64 %text, %size;
    .reg .b32 %line;
    mov.u64 %text, contract_text;
    cvta.global.u64 %text, %text;
    mov.u64 %size, 1;
    mov.u32 %line, 1;
    {
        .param .b64 message;
        .param .b64 file;
        .param .b32 line;
        .param .b64 function;
        .param .b64 size;
        st.param.b64 [message], %text;
        st.param.b64 [file], %text;
        st.param.b32 [line], %line;
        st.param.b64 [function], %text;
        st.param.b64 [size], %size;
        call.uni __assertfail, (message, file, line, function, size);
    }
    ret;
}
";

impl Bench {
    pub fn module(&self) -> CUmodule {
        let mut module = ptr::null_mut();
        cu!(self, cuModuleLoadData(&mut module, PTX.as_ptr().cast()) => 0);
        module
    }

    pub fn function(&self, module: CUmodule, name: &CStr) -> CUfunction {
        let mut function = ptr::null_mut();
        cu!(self, cuModuleGetFunction(&mut function, module, name.as_ptr()) => 0);
        function
    }

    /// The kernel that writes a word, with its code loaded.
    pub fn writer(&self) -> CUfunction {
        let writer = self.function(self.module(), c"contract_write");
        let scratch = self.allocate(4);
        self.write(writer, scratch, 0, ptr::null_mut(), 0);
        cu!(self, cuCtxSynchronize() => 0);
        writer
    }

    /// Launches the kernel that writes a word.
    #[track_caller]
    pub fn write(&self, writer: CUfunction, at: u64, value: u32, stream: CUstream, expected: i32) {
        let (mut at, mut value) = (at, value);
        let mut parameters: [*mut c_void; 2] =
            [ptr::from_mut(&mut at).cast(), ptr::from_mut(&mut value).cast()];
        cu!(self, cuLaunchKernel(
            writer, 1, 1, 1, 1, 1, 1, 0, stream, parameters.as_mut_ptr(), ptr::null_mut(),
        ) => expected);
    }

    /// Launches the kernel that copies a word.
    #[track_caller]
    pub fn copy_word(&self, copier: CUfunction, to: u64, from: u64, stream: CUstream) {
        let (mut to, mut from) = (to, from);
        let mut parameters: [*mut c_void; 2] =
            [ptr::from_mut(&mut to).cast(), ptr::from_mut(&mut from).cast()];
        cu!(self, cuLaunchKernel(
            copier, 1, 1, 1, 1, 1, 1, 0, stream, parameters.as_mut_ptr(), ptr::null_mut(),
        ) => 0);
    }

    pub fn launch_of_no_thread(&self, writer: CUfunction, stream: CUstream) {
        let (mut at, mut value) = (0u64, 0u32);
        let mut parameters: [*mut c_void; 2] =
            [ptr::from_mut(&mut at).cast(), ptr::from_mut(&mut value).cast()];
        cu!(self, cuLaunchKernel(
            writer, 0, 1, 1, 1, 1, 1, 0, stream, parameters.as_mut_ptr(), ptr::null_mut(),
        ) => 1);
    }

    /// Launches a kernel without parameters.
    pub fn launch(&self, function: CUfunction, stream: CUstream, expected: i32) {
        cu!(self, cuLaunchKernel(
            function, 1, 1, 1, 1, 1, 1, 0, stream, ptr::null_mut(), ptr::null_mut(),
        ) => expected);
    }
}
