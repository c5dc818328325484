//! Memory that is shared with other processes, of which none comes (`c_tests/ipc*.c` have them).

use crate::host::{Done, Memory, Stream, call, fill, problem};
use std::ptr::null_mut;
use tcuda::ffi::event::*;
use tcuda::ffi::ipc::*;
use tcuda::ffi::status::tcuda_status;

/// A handle, withdrawn at its end.
struct Shared(tcuda_ipc_handle);

impl Shared {
    fn new(memory: &Memory, stream: &Stream) -> Result<Shared, crate::host::Failed> {
        let mut handle = tcuda_ipc_handle { bytes: [0; 512] };
        call!(tcuda_ipc_export(memory.0, stream.0, &mut handle))?;
        Ok(Shared(handle))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = call!(tcuda_ipc_withdraw(&self.0));
    }
}

pub fn exports() -> Done {
    let stream = Stream::new(0, 0)?;
    for bytes in [700, 90_000, 5 << 20] {
        let memory = Memory::new(bytes, 0, stream.0)?;
        fill(memory.0, &[7], bytes, stream.0)?;
        let first = Shared::new(&memory, &stream)?;
        let second = Shared::new(&memory, &stream)?;
        let mut none = null_mut();
        // SAFETY: the handle is whole, and this process's own.
        let own = unsafe { tcuda_ipc_import(&first.0, stream.0, &mut none, null_mut()) };
        if own == tcuda_status::Ok || !none.is_null() {
            problem("a process imports what it exported".into());
        }
        drop(first);
        drop(memory);
        drop(second);
        call!(tcuda_ipc_collect())?;
    }
    let mut event = null_mut();
    call!(tcuda_event_create(TCUDA_EVENT_INTERPROCESS, &mut event))?;
    let mut handle = tcuda_ipc_event_handle { bytes: [0; 64] };
    let given = call!(tcuda_event_ipc_handle(event, &mut handle));
    call!(tcuda_event_destroy(event))?;
    given
}
