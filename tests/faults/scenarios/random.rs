//! Random numbers, and the tensors that they fill.

use crate::host::{CURRENT, Done, Failed, Memory, Stream, call, problem};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use tcuda::ffi::generator::*;
use tcuda::ffi::random::*;
use tcuda::ffi::tensor::*;

/// A generator that goes when it is dropped.
struct Generator(*mut tcuda_generator);

impl Generator {
    fn new() -> Result<Generator, Failed> {
        let mut generator = null_mut();
        call!(tcuda_generator_create(0, &mut generator))?;
        Ok(Generator(generator))
    }
}

impl Drop for Generator {
    fn drop(&mut self) {
        if call!(tcuda_generator_destroy(self.0)).is_err() {
            problem("a generator could not be destroyed".to_string());
        }
    }
}

fn tensor(data: *mut c_void, (code, bits): (u8, u8), sizes: &mut [i64]) -> tcuda_tensor {
    tcuda_tensor {
        data,
        device: tcuda_tensor_device { device_type: TCUDA_DEVICE_CUDA, device_id: 0 },
        ndim: 1,
        dtype: tcuda_dtype { code, bits, lanes: 1 },
        shape: sizes.as_mut_ptr(),
        strides: null_mut(),
        byte_offset: 0,
    }
}

/// Seeds before and after the beginning, states, and a kernel of each of two images: a machine
/// takes a while to read them.
pub fn fills() -> Done {
    call!(tcuda_random_seed_all())?;
    call!(tcuda_random_manual_seed_all(7))?;
    call!(tcuda_random_manual_seed(0, 42))?;
    let mut state = [0u8; TCUDA_RANDOM_STATE_BYTES];
    let (mut seed, mut count) = (0, 0);
    call!(tcuda_random_initial_seed(0, &mut seed))?;
    if seed != 42 {
        problem(format!("the seed is {seed}"));
    }
    let stream = Stream::new(0, 0)?;
    let generator = Generator::new()?;
    let memory = Memory::new(1 << 16, 0, stream.0)?;
    let (mut size, float) = ([1000], (TCUDA_DTYPE_FLOAT, 32));
    let own = generator.0;
    let out = tensor(memory.0, float, &mut size);
    call!(tcuda_random_uniform(&out, 0.0, 1.0, own, stream.0))?;
    call!(tcuda_random_bernoulli(&out, 0.5, null_mut(), stream.0))?;
    call!(tcuda_random_bernoulli_tensor(&out, &out, null_mut(), stream.0))?;
    stream.synchronize()?;
    call!(tcuda_random_state_get(0, state.as_mut_ptr()))?;
    call!(tcuda_generator_state_set(own, state.as_ptr()))?;
    call!(tcuda_generator_state_get(own, state.as_mut_ptr()))?;
    call!(tcuda_random_state_set(0, state.as_ptr()))?;
    call!(tcuda_random_state_get_all(state.as_mut_ptr(), 1, &mut count))?;
    call!(tcuda_random_state_set_all(state.as_ptr(), 1))?;
    call!(tcuda_generator_offset_set(own, 8))?;
    call!(tcuda_generator_offset_get(own, &mut seed))?;
    call!(tcuda_generator_seed_set(own, 9))?;
    call!(tcuda_generator_seed_get(own, &mut seed))?;
    let mut borrowed = null_mut();
    call!(tcuda_generator_default(0, &mut borrowed))?;
    // SAFETY: plain data, for which zero is a value.
    let mut philox: tcuda_philox_state = unsafe { std::mem::zeroed() };
    call!(tcuda_generator_philox_state(borrowed, 4, &mut philox))?;
    call!(tcuda_random_seed(0))
}

/// DLPack's capsule.
#[repr(C)]
struct Managed {
    version: [u32; 2],
    manager: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
    flags: u64,
    tensor: tcuda_tensor,
}

static DELETED: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn delete(_: *mut Managed) {
    DELETED.fetch_add(1, Ordering::Relaxed);
}

/// Releases a tensor, again where the call could not begin.
fn release(tensor: &mut tcuda_tensor) -> Done {
    let first = call!(tcuda_tensor_release(tensor));
    if first.is_err() && !tensor.shape.is_null() {
        call!(tcuda_tensor_release(tensor))?;
    }
    first
}

/// Capsules in and out: each is ended once, on either side.
pub fn capsules() -> Done {
    let mut number = 0f32;
    let mut size = [1];
    let mut lent = tensor((&raw mut number).cast(), (TCUDA_DTYPE_FLOAT, 32), &mut size);
    lent.device.device_type = TCUDA_DEVICE_CPU;
    let (version, manager) = ([1, 0], null_mut());
    let mut managed = Managed { version, manager, deleter: Some(delete), flags: 0, tensor: lent };
    let before = DELETED.load(Ordering::Relaxed);
    // SAFETY: plain data, for which zero is a value.
    let mut taken: tcuda_tensor = unsafe { std::mem::zeroed() };
    let capsule = (&raw mut managed).cast();
    let done = call!(tcuda_tensor_from_dlpack(capsule, &mut taken));
    let is_taken = done.is_ok();
    let released = done.and_then(|()| release(&mut taken));
    let ends = DELETED.load(Ordering::Relaxed) - before;
    if ends != usize::from(is_taken) {
        problem(format!("a capsule was ended {ends} times"));
    }
    released?;
    let memory = Memory::new(4096, 0, CURRENT)?;
    let mut size = [1000];
    let mut own = tensor(memory.0, (TCUDA_DTYPE_FLOAT, 32), &mut size);
    let mut out = null_mut();
    call!(tcuda_tensor_to_dlpack(&mut own, &mut out))?;
    // The capsule has the block now.
    std::mem::forget(memory);
    let again = call!(tcuda_tensor_from_dlpack(out, &mut taken));
    let is_ours = again.is_err();
    let ended = again.and_then(|()| release(&mut taken));
    if is_ours {
        let managed = out.cast::<Managed>();
        // SAFETY: not taken, so that it is still ours.
        let deleter = unsafe { (*managed).deleter };
        // SAFETY: called once.
        deleter.into_iter().for_each(|deleter| unsafe { deleter(managed) });
    }
    ended
}
