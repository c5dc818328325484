//! Opens the memory around an exported block for other processes.

use crate::base::descriptor::Descriptor;
use crate::base::error::{Error, Result};
use crate::driver::sys::{CUipcMemHandle, CUmemAllocationHandleType};
use crate::gpu::device::Device;
use crate::memory::device::exported::Exported;
use std::ffi::c_int;

/// Descriptors of the memory's handles with their lengths; for `cuMemAlloc` memory its IPC handle.
pub type Opened = (Vec<Descriptor>, Vec<u64>, [u8; 64]);

/// Opens the memory around a block for other processes.
pub fn open_range(device: &Device, found: &Exported) -> Result<Opened> {
    let (mut files, mut sizes) = (Vec::new(), Vec::new());
    let _context = device.enter()?;
    if found.handles.is_empty() {
        let mut memory = CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: `memory` is writable, the address is the start of `cuMemAlloc` memory.
        unsafe { device.driver().cuIpcGetMemHandle(&mut memory, found.base) }?;
        return Ok((files, sizes, memory.reserved.map(|byte| byte as u8)));
    }
    let no_room = |_| Error::OutOfHostMemory("a block's descriptors");
    files.try_reserve_exact(found.handles.len()).map_err(no_room)?;
    sizes.try_reserve_exact(found.handles.len()).map_err(no_room)?;
    for (handle, bytes) in &found.handles {
        let mut file: c_int = -1;
        let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        // SAFETY: this kind of handle is written to `file`; the handle stays mapped.
        unsafe {
            let to = (&raw mut file).cast();
            device.driver().cuMemExportToShareableHandle(to, *handle, kind, 0)
        }?;
        files.push(Descriptor::take_and_close_on_exec(file));
        sizes.push(*bytes);
    }
    Ok((files, sizes, [0; 64]))
}
