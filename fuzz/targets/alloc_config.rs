#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| tcuda_fuzz::alloc_config(data));
