//! Texts with settings of the allocator: any bytes. What is accepted is written as a text that
//! means the same, and the library works under it; what is refused is named, by all doors alike.

use crate::expect::status;
use crate::options::{shut_down, text_of, work};
use crate::status_of;
use crate::world::last_error;
use std::ffi::CString;
use tcuda::ffi::device::tcuda_init;
use tcuda::ffi::library::tcuda_backend_select;
use tcuda::ffi::limits::{tcuda_allocator_config_get, tcuda_allocator_config_set};

fn current() -> CString {
    let (mut text, mut needed) = (vec![0u8; 4096], 0);
    let buf = text.as_mut_ptr().cast();
    let told = status_of!(tcuda_allocator_config_get(buf, 4096, &mut needed));
    assert_eq!(told, status::OK, "{}", last_error());
    text.truncate(needed);
    CString::new(text).unwrap_or_default()
}

/// One input.
pub fn run(data: &[u8]) {
    let text = text_of(data);
    let options = c"devices=2,memory=64MiB";
    let selected = status_of!(tcuda_backend_select(c"sim".as_ptr(), options.as_ptr()));
    assert_eq!(selected, status::OK);
    let before = current();
    let told = status_of!(tcuda_allocator_config_set(text.as_ptr()));
    if told == status::OK {
        let after = current();
        assert_eq!(status_of!(tcuda_allocator_config_set(after.as_ptr())), status::OK);
        assert_eq!(current(), after, "{text:?}");
        work();
        assert_eq!(status_of!(tcuda_allocator_config_set(after.as_ptr())), status::OK);
        shut_down(false);
    } else {
        assert_eq!(told, status::INVALID_ARGUMENT, "{}", last_error());
        assert_eq!(current(), before, "a text that was refused changed something");
        refused_by_the_environment(&text);
    }
    assert_eq!(current(), before, "settings outlived the library");
}

/// The library reads the same text where it begins.
fn refused_by_the_environment(text: &CString) {
    use std::os::unix::ffi::OsStrExt;
    let sentence = last_error();
    let value = std::ffi::OsStr::from_bytes(text.as_bytes());
    // SAFETY: one input at a time, and no other thread reads the environment.
    unsafe { std::env::set_var("TCUDA_ALLOC_CONF", value) };
    let begun = status_of!(tcuda_init());
    // SAFETY: as above.
    unsafe { std::env::remove_var("TCUDA_ALLOC_CONF") };
    assert_eq!(begun, status::INVALID_ARGUMENT);
    let behind = |text: &str| text.split_once(": ").map(|(_, rest)| rest.to_string());
    if text.to_str().is_ok() {
        assert_eq!(behind(&last_error()), behind(&sentence));
    }
    shut_down(false);
}
