//! Functions of elements and kernels. Few sources: compilers are slow.

use super::tensor::{View, may_be_wrong};
use crate::expect::{Expect, status};
use crate::input::Input;
use crate::outputs::Out;
use crate::status_of;
use crate::world::World;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::{null, null_mut};
use tcuda::ffi::jit::*;
use tcuda::ffi::kernel::*;
use tcuda::ffi::tensor::tcuda_tensor;

/// Where a compiler is wanted and there is none, or the types of the tensors do not suit the code.
const COMPILER: &[i32] =
    &[status::NO_LIBRARY, status::COMPILE_ERROR, status::OUT_OF_MEMORY, status::OUT_OF_HOST_MEMORY];

/// A text, or one that is none, or NULL.
fn text(i: &mut Input, e: &mut Expect, right: &[&'static CStr]) -> *const c_char {
    match i.below(16) {
        0 => {
            e.wrong(status::INVALID_ARGUMENT);
            null()
        }
        1 => {
            e.wrong(status::INVALID_ARGUMENT);
            c"template <typename T> T f(T x) { return x \xff; }".as_ptr()
        }
        _ => i.one_of(right).as_ptr(),
    }
}

fn made(w: &mut World, status: i32, e: &Expect, out: &Out<*mut tcuda_jit>) {
    if let Some(jit) = out.check(w.judge(status, e)) {
        w.jits.push(jit as usize);
        w.counted += 1;
    }
}

pub(super) fn create(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let codes = [
        c"template <typename T> T twice(T x) { return x + x; }",
        c"template <typename T> T f(T x, T y) { return x; }",
    ];
    let code = text(i, &mut e, &codes);
    let scalar = tcuda_scalar {
        name: c"alpha".as_ptr(),
        kind: i.one_of(&[0, 1, 2, 3]),
        integer: 1,
        real: 2.0,
        imaginary: 3.0,
    };
    let options = tcuda_jit_options {
        struct_size: size_of::<tcuda_jit_options>(),
        scalars: &scalar,
        num_scalars: usize::from(i.rarely(8)),
    };
    let options = if i.u8() < 128 { null() } else { &raw const options };
    let mut out = Out::<*mut tcuda_jit>::required(i, &mut e);
    let status = status_of!(tcuda_jit_create(code, options, out.ptr()));
    made(w, status, &e, &out);
}

pub(super) fn create_multi(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let code = text(i, &mut e, &[c"template <typename T> void g(T x, T &y, T &z) { y = z = x; }"]);
    let number = i.one_of(&[2, 2, 2, 1, 8, 0, 9, -1]);
    if !(1..=8).contains(&number) {
        e.wrong(status::INVALID_ARGUMENT);
    }
    let mut out = Out::<*mut tcuda_jit>::required(i, &mut e);
    let status = status_of!(tcuda_jit_create_multi(code, number, null(), out.ptr()));
    made(w, status, &e, &out);
}

pub(super) fn destroy(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let handle = w.handle_of(&w.jits, i, &mut e);
    if handle == 0 {
        e = Expect::default();
    }
    let status = status_of!(tcuda_jit_destroy(handle as *mut _));
    w.judge(status, &e);
    if let (true, Some(index)) =
        (status != status::INVALID_HANDLE, w.jits.iter().position(|jit| *jit == handle))
    {
        w.dead.push(w.jits.swap_remove(index));
        w.counted -= 1;
    }
}

pub(super) fn call(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let jit = w.handle_of(&w.jits, i, &mut e);
    let (input, output) = (View::choose(w, i), View::choose(w, i));
    // Often in place, which suits.
    let outputs = if i.u8() < 160 { [input.tensor; 2] } else { [output.tensor, input.tensor] };
    let (inputs, counts) = ([input.tensor; 2], [i.one_of(&[1, 1, 2, 0]), i.one_of(&[1, 1, 2, 9])]);
    let stream = w.stream(i, &mut e);
    if !e.wrong.is_empty() {
        // The tensors may be what is refused.
        let wrong = [status::INVALID_ARGUMENT, status::INVALID_POINTER, status::INVALID_DEVICE];
        wrong.iter().for_each(|status| e.wrong(*status));
    }
    may_be_wrong(&mut e);
    e.also(COMPILER);
    let outputs: *const tcuda_tensor = if counts[1] > 2 { null() } else { outputs.as_ptr() };
    let (inputs, none) = (inputs.as_ptr(), null());
    let status = status_of!(tcuda_jit_call(
        jit as *mut _,
        inputs,
        counts[0],
        none,
        0,
        outputs,
        counts[1],
        stream
    ));
    w.judge(status, &e);
    w.forget_contents();
}

pub(super) fn compile(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let source = c"extern \"C\" __global__ void nothing(int x, short y) {}";
    let name = i.one_of(&[c"nothing", c"nothing", c"nothing", c"absent"]);
    let source = if i.rarely(16) { null() } else { source.as_ptr() };
    if source.is_null() {
        e.wrong(status::INVALID_ARGUMENT);
    }
    e.also(COMPILER);
    // An image that nothing uses; it is linked all the same.
    let text = c".version 7.8\n.target sm_52\n.address_size 64\n";
    let image = tcuda_kernel_image {
        data: text.as_ptr().cast(),
        bytes: i.one_of(&[text.to_bytes().len(), text.to_bytes().len() + 1, 0]),
        name: null(),
        kind: i.one_of(&[TCUDA_IMAGE_PTX, TCUDA_IMAGE_PTX, 0, 7]),
    };
    let options = tcuda_kernel_options {
        struct_size: size_of::<tcuda_kernel_options>(),
        flags: null(),
        num_flags: 0,
        images: &image,
        num_images: 1,
        lto: 0,
    };
    let options = if i.rarely(4) { &raw const options } else { null() };
    if !options.is_null() && (image.bytes == 0 || image.kind != TCUDA_IMAGE_PTX) {
        e.wrong(status::INVALID_ARGUMENT);
    }
    if !options.is_null() {
        // Without a source the image has the kernel, which this one has not.
        e.also(&[status::INVALID_ARGUMENT]);
    }
    let mut out = Out::<*mut tcuda_kernel>::required(i, &mut e);
    let status = status_of!(tcuda_kernel_compile(source, name.as_ptr(), options, out.ptr()));
    if let Some(kernel) = out.check(w.judge(status, &e)) {
        w.kernels.push(kernel as usize);
        w.counted += 1;
    }
}

pub(super) fn kernel_destroy(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let handle = w.handle_of(&w.kernels, i, &mut e);
    if handle == 0 {
        e = Expect::default();
    }
    let status = status_of!(tcuda_kernel_destroy(handle as *mut _));
    w.judge(status, &e);
    if let (true, Some(index)) =
        (status != status::INVALID_HANDLE, w.kernels.iter().position(|known| *known == handle))
    {
        w.dead.push(w.kernels.swap_remove(index));
        w.counted -= 1;
    }
}

/// Options of a launch, right or wrong.
fn launch_options(i: &mut Input, e: &mut Expect) -> tcuda_launch_options {
    let mut options = tcuda_launch_options {
        struct_size: size_of::<tcuda_launch_options>(),
        grid: [i.below(3) as u32, 0, 1],
        block: [i.below(40) as u32, 1, 0],
        shared_bytes: i.one_of(&[0, 0, 16, u32::MAX]),
        accesses: null(),
        cluster: [0; 3],
        cooperative: 0,
        programmatic: 0,
        priority: 0,
        shared_carveout_percent: 0,
    };
    // More shared memory than there is.
    if options.shared_bytes == u32::MAX {
        e.wrong(status::INVALID_ARGUMENT);
    }
    if i.u8() >= 128 {
        return options;
    }
    options.cluster = [i.one_of(&[0, 1, 2, 2, 3, 16, u32::MAX]), i.one_of(&[0, 0, 1, 2]), 0];
    options.cooperative = i.one_of(&[0, 1, 1, 2, -1]);
    options.programmatic = i.one_of(&[0, 1, 1, 2]);
    options.priority = i.one_of(&[0, 0, -1, 1, i32::MIN]);
    options.shared_carveout_percent = i.one_of(&[0, 0, 50, 100, 101, -1]);
    let is_flag = |value: i32| (0..=1).contains(&value);
    if !is_flag(options.cooperative)
        || !is_flag(options.programmatic)
        || !(-16..=0).contains(&options.priority)
        || !(0..=100).contains(&options.shared_carveout_percent)
    {
        e.wrong(status::INVALID_ARGUMENT);
    }
    // Whether a cluster divides the grid and fits depends on the device, too.
    e.also(&[status::INVALID_ARGUMENT, status::NOT_SUPPORTED]);
    options
}

pub(super) fn launch(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let kernel = w.handle_of(&w.kernels, i, &mut e);
    let (mut x, mut y) = (1i32, 2i16);
    let args = [(&raw mut x).cast::<c_void>(), (&raw mut y).cast(), null_mut()];
    let count = i.one_of(&[2, 2, 2, 2, 0, 1, 3, 65]);
    if count != 2 {
        e.wrong(status::INVALID_ARGUMENT);
    }
    let options = launch_options(i, &mut e);
    e.also(&[status::CUDA_ERROR, status::COMPILE_ERROR, status::NO_LIBRARY]);
    let stream = w.stream(i, &mut e);
    let args = if count > 3 { null() } else { args.as_ptr() };
    let status = status_of!(tcuda_kernel_launch(kernel as *mut _, &options, args, count, stream));
    w.judge(status, &e);
}

pub(super) fn properties(w: &mut World, i: &mut Input) {
    let mut e = Expect::default();
    let kernel = w.handle_of(&w.kernels, i, &mut e);
    let options = if i.rarely(8) { None } else { Some(launch_options(i, &mut e)) };
    let options = options.as_ref().map_or(null(), std::ptr::from_ref);
    e.also(&[status::CUDA_ERROR, status::COMPILE_ERROR, status::NO_LIBRARY]);
    let stream = w.stream(i, &mut e);
    let size = i.one_of(&[size_of::<tcuda_kernel_info>(), 0, size_of::<usize>(), 64]);
    if size == 0 {
        e.wrong(status::INVALID_ARGUMENT);
    }
    // SAFETY: zeros are valid.
    let mut info: tcuda_kernel_info = unsafe { std::mem::zeroed() };
    info.struct_size = size;
    info.suggested_grid_blocks = 77;
    let status = status_of!(tcuda_kernel_properties(kernel as *mut _, options, stream, &mut info));
    let is_known = w.judge(status, &e);
    if !is_known || size < size_of::<tcuda_kernel_info>() {
        assert_eq!(info.suggested_grid_blocks, 77);
    }
    assert_eq!(info.struct_size, size);
}
