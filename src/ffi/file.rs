//! Section "Files" of the header.

use super::boundary::{Call, boundary, out, terminated};
use super::handle::Table;
use super::status::tcuda_status;
use super::stream::{optional, tcuda_stream};
use crate::base::error::{Error, Result};
use crate::base::waiting;
use crate::driver::cufile;
use crate::file::{self, Direction, File};
use crate::runtime;
use std::ffi::{c_char, c_void};

/// A file that is read into device memory and written from it.
pub struct tcuda_file {
    _private: [u8; 0],
}

pub(super) static FILES: Table<File> = Table::new(14, "file");

/// How a file is opened: TCUDA_FILE_..., which can be combined. READ or WRITE is one of them.
pub type tcuda_file_flags = u32;
/// For tcuda_file_read.
pub const TCUDA_FILE_READ: u32 = 1;
/// For tcuda_file_write.
pub const TCUDA_FILE_WRITE: u32 = 2;
/// Created if there is none; needs WRITE.
pub const TCUDA_FILE_CREATE: u32 = 4;
/// Emptied; needs WRITE.
pub const TCUDA_FILE_TRUNCATE: u32 = 8;
/// Transferred through pinned memory by the system's own calls: without cuFile, on every machine.
pub const TCUDA_FILE_STAGING: u32 = 16;

// The layer below accepts the same flags.
const _: () = assert!(
    file::READ == TCUDA_FILE_READ
        && file::WRITE == TCUDA_FILE_WRITE
        && file::CREATE == TCUDA_FILE_CREATE
        && file::TRUNCATE == TCUDA_FILE_TRUNCATE
        && file::STAGING == TCUDA_FILE_STAGING
);

/// Can files be opened without TCUDA_FILE_STAGING? That takes NVIDIA's cuFile, of GPUDirect
/// Storage: the one that TCUDA_CUFILE_PATH names, else libcufile.so.0. False on the simulated
/// machine, where the variable may name a stand-in for tests. Does not initialise the library.
/// (torch.cuda.gds.is_available)
///
/// @param[out] supported  whether they can
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_file_is_supported(supported: *mut bool) -> tcuda_status {
    boundary(|call| {
        let supported = out(supported, "supported")?;
        let is_simulated = runtime::is_simulated(call.inside())?;
        supported.set(cufile::get(is_simulated).is_ok());
        Ok(())
    })
}

/// Opens a file and registers it with cuFile, with direct access (O_DIRECT) where its file system
/// has that. On failure a file that exists is as it was. TCUDA_STATUS_FILE_ERROR if the system
/// refuses it, or it is a directory, pipe or socket; TCUDA_STATUS_NO_LIBRARY without cuFile,
/// TCUDA_STATUS_NOT_SUPPORTED on the simulated machine, and where the platform or the file system
/// has no GPUDirect Storage: TCUDA_FILE_STAGING needs neither. (torch.cuda.gds.GdsFile,
/// torch.cuda.gds.GdsFile.register_handle)
///
/// @param path       any bytes, ending in a NUL
/// @param flags      TCUDA_FILE_...
/// @param[out] file  the caller's, to be closed
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_file_open(
    path: *const c_char,
    flags: tcuda_file_flags,
    file: *mut *mut tcuda_file,
) -> tcuda_status {
    boundary(|call| {
        let (path, file) = (terminated(path, "path")?, out(file, "file")?);
        let opened = File::open(call.gpus()?, path, flags)?;
        file.set(FILES.insert(opened)? as *mut tcuda_file);
        Ok(())
    })
}

/// Closes a file, and ends its registration. Calls of other threads that use it end first: the last
/// of them closes it. (torch.cuda.gds.GdsFile.deregister_handle)
///
/// @param file  may be NULL: no-op
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_file_close(file: *mut tcuda_file) -> tcuda_status {
    boundary(|call| {
        if file.is_null() {
            return Ok(());
        }
        waiting::refuse_in_callback()?;
        FILES.get(file as usize, "file", call)?.close();
        FILES.remove(file as usize, "file")
    })
}

/// Reads from a file into device memory. Waits for the work that `stream` holds, and returns when
/// the bytes are in memory: all streams may use them. Work of other streams with that memory must
/// be over. At the end of the file fewer bytes are read, beyond it none. Short transfers of the
/// system, and signals, do not end it. TCUDA_STATUS_FILE_ERROR if the system fails;
/// TCUDA_STATUS_CUFILE_ERROR if cuFile does; TCUDA_STATUS_CAPTURING on a captured stream;
/// TCUDA_STATUS_INVALID_POINTER for memory of the host. Parts of the memory may be written on
/// failure. (torch.cuda.gds.GdsFile.load_storage)
///
/// @param file             from tcuda_file_open
/// @param ptr              device memory, of any alignment; may be NULL if bytes is 0
/// @param bytes            not beyond the end of the block or allocation
/// @param file_offset      from the beginning of the file, of any alignment; not negative
/// @param stream           NULL: the current stream of ptr's device
/// @param[out] bytes_done  less than bytes only at the end of the file
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_file_read(
    file: *mut tcuda_file,
    ptr: *mut c_void,
    bytes: usize,
    file_offset: i64,
    stream: *mut tcuda_stream,
    bytes_done: *mut usize,
) -> tcuda_status {
    boundary(|call| {
        let range = (ptr as u64, bytes);
        transfer(call, file, Direction::Read, range, file_offset, stream, bytes_done)
    })
}

/// Writes device memory to a file, which grows if necessary. Waits for the work that `stream`
/// holds, and returns when the bytes are in the file, though the system may still have to write
/// them to a disk. Statuses are those of tcuda_file_read; TCUDA_STATUS_FILE_ERROR also on a full
/// disk: then a part may be written. (torch.cuda.gds.GdsFile.save_storage)
///
/// @param file             from tcuda_file_open
/// @param ptr              device memory, of any alignment; may be NULL if bytes is 0
/// @param bytes            not beyond the end of the block or allocation
/// @param file_offset      from the beginning of the file, of any alignment; not negative
/// @param stream           NULL: the current stream of ptr's device
/// @param[out] bytes_done  always bytes
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_file_write(
    file: *mut tcuda_file,
    ptr: *const c_void,
    bytes: usize,
    file_offset: i64,
    stream: *mut tcuda_stream,
    bytes_done: *mut usize,
) -> tcuda_status {
    boundary(|call| {
        let range = (ptr as u64, bytes);
        transfer(call, file, Direction::Write, range, file_offset, stream, bytes_done)
    })
}

fn transfer(
    call: &Call,
    file: *mut tcuda_file,
    direction: Direction,
    (address, bytes): (u64, usize),
    file_offset: i64,
    stream: *mut tcuda_stream,
    bytes_done: *mut usize,
) -> Result<()> {
    let bytes_done = out(bytes_done, "bytes_done")?;
    let file = FILES.get(file as usize, "file", call)?;
    let stream = optional(stream, call)?;
    if address == 0 && bytes > 0 {
        return Err(Error::Null { name: "ptr" });
    }
    let gpus = call.gpus()?;
    let range = (address, bytes as u64);
    bytes_done.set(file.transfer(gpus, direction, range, file_offset, stream)? as usize);
    Ok(())
}

/// Registers device memory with cuFile, so that its transfers need no copy through memory of the
/// host where the machine has GPUDirect Storage. Transfers of memory that is not registered have
/// the same results. The caller unregisters it before it frees it. tcuda_memory_empty_cache
/// unregisters what was freed, and tcuda_shutdown what is left. TCUDA_STATUS_INVALID_POINTER if a
/// part of it is registered; without cuFile statuses are those of tcuda_file_open.
/// (torch.cuda.gds.gds_register_buffer)
///
/// @param ptr    device memory
/// @param bytes  at least 1, and not beyond the end of the block or allocation
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_file_register_buffer(
    ptr: *mut c_void,
    bytes: usize,
) -> tcuda_status {
    boundary(|call| {
        if ptr.is_null() {
            return Err(Error::Null { name: "ptr" });
        }
        if bytes == 0 {
            return Err(Error::OutOfRange { name: "bytes", value: 0, allowed: "use 1 or more" });
        }
        let gpus = call.gpus()?;
        gpus.files().register(gpus, ptr as u64, bytes as u64)
    })
}

/// Ends the registration of device memory. (torch.cuda.gds.gds_deregister_buffer)
///
/// @param ptr  as it was given to tcuda_file_register_buffer; may be NULL: no-op
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcuda_file_unregister_buffer(ptr: *mut c_void) -> tcuda_status {
    boundary(|call| {
        if ptr.is_null() {
            return Ok(());
        }
        match crate::gpu::gpus::existing(call.inside()) {
            Some(gpus) => gpus.files().unregister(gpus, ptr as u64),
            None => Err(file::not_registered(ptr as u64)),
        }
    })
}

/// The file's descriptor and cuFile's handle (CUfileHandle_t), for calls of the system and of
/// cuFile itself. (+)
///
/// @param file                from tcuda_file_open
/// @param[out] descriptor     borrowed: valid until the file is closed; may be NULL
/// @param[out] cufile_handle  borrowed; NULL for a file with TCUDA_FILE_STAGING; may be NULL
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn tcuda_file_native(
    file: *mut tcuda_file,
    descriptor: *mut i32,
    cufile_handle: *mut *mut c_void,
) -> tcuda_status {
    boundary(|call| {
        let (number, handle) = FILES.get(file as usize, "file", call)?.native()?;
        if !descriptor.is_null() {
            out(descriptor, "descriptor")?.set(number);
        }
        if !cufile_handle.is_null() {
            out(cufile_handle, "cufile_handle")?.set(handle as *mut c_void);
        }
        Ok(())
    })
}
