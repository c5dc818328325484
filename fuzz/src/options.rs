//! Configuration strings: of the simulated machine, and of injected failures.

use crate::abi::FAILURE_CODES;
use crate::expect::status;
use crate::input::Input;
use crate::left;
use crate::outputs::Out;
use crate::status_of;
use crate::world::last_error;
use std::ffi::{CStr, CString};
use tcuda::driver::NAMES;
use tcuda::ffi::copy::*;
use tcuda::ffi::device::*;
use tcuda::ffi::event::*;
use tcuda::ffi::library::*;
use tcuda::ffi::memory::*;
use tcuda::ffi::stream::*;
use tcuda_sim::driver::Config;

/// A text as C would pass it.
pub(super) fn text_of(data: &[u8]) -> CString {
    let end = data.iter().position(|byte| *byte == 0).unwrap_or(data.len());
    CString::new(&data[..end]).unwrap_or_default()
}

/// `was_lost`: the driver may have refused what it was asked.
pub(super) fn shut_down(was_lost: bool) {
    let mut live = Out::<usize>::new();
    assert_eq!(status_of!(tcuda_shutdown(live.ptr())), status::OK, "{}", last_error());
    live.check(true);
    left::check(was_lost);
}

/// What is accepted makes a machine of that kind; what is not is refused with a sentence.
pub fn simulator(data: &[u8]) {
    let text = text_of(data);
    let selected = status_of!(tcuda_backend_select(c"sim".as_ptr(), text.as_ptr()));
    let parsed = text.to_str().ok().map(Config::parse);
    let config = match parsed {
        Some(Ok(config)) => config,
        Some(Err(error)) => {
            assert_eq!(selected, status::INVALID_ARGUMENT);
            assert_eq!(last_error(), error.to_string());
            return;
        }
        None => return assert_eq!(selected, status::INVALID_ARGUMENT),
    };
    assert_eq!(selected, status::OK, "{}", last_error());
    assert!((1..=16).contains(&config.devices));
    assert!(config.memory >= 2 << 20 && config.memory.is_multiple_of(2 << 20));
    // A machine that writes a file wherever the input says is not started.
    let writes = config.trace.as_ref().is_some_and(|path| path != "/dev/null");
    if text.is_empty() || writes {
        return;
    }
    assert_eq!(status_of!(tcuda_init()), status::OK, "{}", last_error());
    let mut count = 0;
    assert_eq!(status_of!(tcuda_device_count(&mut count)), status::OK);
    assert_eq!(count as usize, config.devices);
    let (mut free, mut total) = (0, 0);
    assert_eq!(status_of!(tcuda_memory_info(count - 1, &mut free, &mut total)), status::OK);
    assert_eq!(total, config.memory);
    let mut name = [0; 256];
    let named = status_of!(tcuda_device_name(0, name.as_mut_ptr(), 256, std::ptr::null_mut()));
    assert_eq!(named, status::OK);
    // SAFETY: NUL-terminated, since the call succeeded.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };
    assert_eq!(name.to_str(), Ok(&*config.name));
    work();
    shut_down(false);
}

/// The driver calls of a host that does a little of everything.
pub(super) fn work() {
    let (mut stream, mut event) = (std::ptr::null_mut(), std::ptr::null_mut());
    let mut ptr = std::ptr::null_mut();
    let made = status_of!(tcuda_stream_create(-1, 0, &mut stream)) == status::OK;
    let timed = status_of!(tcuda_event_create(1, &mut event)) == status::OK;
    let allocated = status_of!(tcuda_malloc(3 << 20, -1, stream, &mut ptr)) == status::OK;
    if allocated {
        let _ = status_of!(tcuda_fill(ptr, [1u8, 2, 3].as_ptr().cast(), 3, 1000, stream));
        let _ = status_of!(tcuda_free(ptr));
    }
    if timed {
        let _ = status_of!(tcuda_event_record(event, stream));
        let _ = status_of!(tcuda_event_synchronize(event));
        let _ = status_of!(tcuda_event_destroy(event));
    }
    let _ = status_of!(tcuda_stream_synchronize(stream));
    if made {
        let _ = status_of!(tcuda_stream_destroy(stream));
    }
    let _ = status_of!(tcuda_memory_empty_cache());
}

/// Rules of failures: a name, a number, a code, for ever or once. Any name and number is accepted
/// or refused with a sentence, the library survives what it does, and works again afterwards.
pub fn faults(data: &[u8]) {
    let mut input = Input::new(data);
    let options = c"devices=1,memory=64MiB";
    let selected = status_of!(tcuda_backend_select(c"sim".as_ptr(), options.as_ptr()));
    assert_eq!(selected, status::OK);
    for _ in 0..20 {
        if input.is_empty() {
            break;
        }
        let choice = input.u8();
        let name = match choice {
            0..=15 => None,
            16..=63 => {
                let length = input.u8();
                Some(text_of(input.take(length.into())))
            }
            _ => {
                let name = NAMES[usize::from(choice) % NAMES.len()];
                Some(CString::new(name).unwrap_or_default())
            }
        };
        let nth = match input.u8() {
            few @ 0..=239 => u64::from(few),
            _ => input.u64(),
        };
        let (code, forever) = match input.u8() {
            any @ 0..=15 => (input.u32() as i32, i32::from(any)),
            choice => {
                let index = usize::from(choice) % FAILURE_CODES.len();
                (FAILURE_CODES[index], i32::from(choice > 192))
            }
        };
        let pointer = name.as_ref().map_or(std::ptr::null(), |name| name.as_ptr());
        let known =
            name.as_ref().is_none_or(|name| name.to_str().is_ok_and(|name| NAMES.contains(&name)));
        let ruled = status_of!(tcuda_backend_inject(pointer, nth, code, forever));
        assert!(ruled == status::OK || ruled == status::INVALID_ARGUMENT, "{}", last_error());
        assert!(ruled != status::OK || (known && (0..=1).contains(&forever)));
        if choice.is_multiple_of(4) {
            work();
        }
    }
    work();
    shut_down(true);
    // Without rules, which went with the shutdown, everything works.
    let mut ptr = std::ptr::null_mut();
    let null = std::ptr::null_mut();
    assert_eq!(status_of!(tcuda_malloc(1000, 0, null, &mut ptr)), status::OK, "{}", last_error());
    assert_eq!(status_of!(tcuda_free(ptr)), status::OK, "{}", last_error());
    shut_down(false);
}
