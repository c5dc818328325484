//! Communicators, over what stands in for NCCL.

use crate::host::{Done, Failed, Memory, Stream, call, expect, fill, problem};
use std::path::Path;
use std::process::Command;
use std::ptr::{null, null_mut};
use std::sync::Once;
use tcuda::ffi::communicator::*;
use tcuda::ffi::tensor::*;

/// Compiles it, and names it to the library, which opens it once.
fn stand_in() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("faults_libnccl.so");
        let parts = ["fake_nccl.c", "fake_nccl_room.c", "fake_nccl_work.c", "fake_nccl_math.c"];
        let status = Command::new(std::env::var_os("CC").unwrap_or("cc".into()))
            .args(["-std=gnu11", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread"])
            .arg("-o")
            .arg(&path)
            .args(parts.map(|part| tests.join(part)))
            .status();
        assert!(status.is_ok_and(|status| status.success()), "a C compiler is needed");
        // SAFETY: only the library reads the environment meanwhile, on this thread.
        unsafe { std::env::set_var("TCUDA_NCCL_PATH", path) };
    });
}

const BYTES: usize = 3000;

/// A communicator that goes when it is dropped.
struct Communicator(*mut tcuda_communicator);

impl Drop for Communicator {
    fn drop(&mut self) {
        // A device that is lost has no end of its work; the handle goes all the same.
        let _ = call!(tcuda_communicator_destroy(self.0));
        if call!(tcuda_communicator_query(self.0)).is_ok() {
            problem("a destroyed communicator is well".to_string());
        }
    }
}

/// Runs calls as one group, which ends in any case.
fn grouped(body: impl FnOnce() -> Done) -> Done {
    call!(tcuda_communicator_group_begin())?;
    let outcome = body();
    let ended = call!(tcuda_communicator_group_end());
    if outcome.is_err() && ended.is_ok() {
        problem("a group with a failed call ended well".to_string());
    }
    outcome.and(ended)
}

fn tensor(memory: &Memory, device: i32, shape: &mut [i64]) -> tcuda_tensor {
    tcuda_tensor {
        data: memory.0,
        device: tcuda_tensor_device { device_type: TCUDA_DEVICE_CUDA, device_id: device },
        ndim: 1,
        dtype: tcuda_dtype { code: TCUDA_DTYPE_UINT, bits: 8, lanes: 1 },
        shape: shape.as_mut_ptr(),
        strides: null_mut(),
        byte_offset: 0,
    }
}

/// Two devices of one thread, and a group of one.
pub fn communicators() -> Done {
    stand_in();
    let streams = [Stream::new(0, 0)?, Stream::new(1, 0)?];
    let memory = [Memory::new(BYTES, 0, streams[0].0)?, Memory::new(BYTES, 1, streams[1].0)?];
    let mut made = [null_mut(); 2];
    call!(tcuda_communicator_init_all([0, 1].as_ptr(), 2, made.as_mut_ptr()))?;
    let ranks = made.map(Communicator);
    let outcome = together(&ranks, &memory, &streams);
    if outcome.is_err() {
        // One of them may wait for what the other has not queued.
        for rank in &ranks {
            let _ = call!(tcuda_communicator_abort(rank.0));
        }
    }
    drop(ranks);
    outcome?;
    let mut shape = [BYTES as i64];
    alone(&memory[0], &tensor(&memory[0], 0, &mut shape), &streams[0])
}

fn together(ranks: &[Communicator; 2], memory: &[Memory; 2], streams: &[Stream; 2]) -> Done {
    let mut shape = [BYTES as i64];
    let tensors = [0, 1].map(|rank| tensor(&memory[rank], rank as i32, &mut shape));
    for rank in 0..2 {
        fill(memory[rank].0, &[rank as u8 + 1], BYTES, streams[rank].0)?;
    }
    grouped(|| {
        for rank in 0..2 {
            let (own, x) = (ranks[rank].0, &raw const tensors[rank]);
            call!(tcuda_communicator_all_reduce(own, x, x, TCUDA_REDUCE_SUM, streams[rank].0))?;
        }
        Ok(())
    })?;
    for rank in 0..2 {
        expect(memory[rank].0, &[3], BYTES, streams[rank].0)?;
    }
    fill(memory[1].0, &[9], BYTES, streams[1].0)?;
    grouped(|| {
        for rank in 0..2 {
            let input = if rank == 1 { &raw const tensors[rank] } else { null() };
            let (own, out, on) = (ranks[rank].0, &raw const tensors[rank], streams[rank].0);
            call!(tcuda_communicator_broadcast(own, input, out, 1, on))?;
        }
        Ok(())
    })?;
    expect(memory[0].0, &[9], BYTES, streams[0].0)?;
    streams[1].synchronize()
}

fn alone(memory: &Memory, tensor: &tcuda_tensor, stream: &Stream) -> Result<(), Failed> {
    let mut id = tcuda_unique_id { bytes: [0; 128] };
    call!(tcuda_communicator_unique_id(&mut id))?;
    let mut made = null_mut();
    call!(tcuda_communicator_init_rank(&id, 1, 0, 0, &mut made))?;
    let own = Communicator(made);
    call!(tcuda_communicator_query(own.0))?;
    call!(tcuda_communicator_all_gather(own.0, tensor, tensor, stream.0))?;
    expect(memory.0, &[9], BYTES, stream.0)?;
    call!(tcuda_communicator_abort(own.0))?;
    drop(own);
    Ok(())
}
