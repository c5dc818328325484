//! Modules and libraries.

use super::*;
use crate::driver::jit::{self, Options, Use};
use std::collections::BTreeSet;
use std::ffi::CStr;

/// `read` copies a variable that is defined elsewhere.
const READER: &CStr = c".version 7.0\n.target sm_70\n.address_size 64\n\
    .extern .global .u32 outside;\n.extern .shared .b8 room[];\n\
    .visible .entry read(.param .u64 to)\n.maxntid 256, 1, 1\n\
    { .reg .b64 %a; .reg .b32 %r; ld.param.u64 %a, [to];\n\
    ld.global.u32 %r, [outside]; st.global.u32 [%a], %r; ret; }";

/// The options of a load from numbers, or addresses, of the host.
fn load(bench: &Bench, list: &[(u32, usize)]) -> Result<CUmodule, i32> {
    let mut options: Vec<u32> = list.iter().map(|(option, _)| *option).collect();
    let mut values: Vec<*mut c_void> =
        list.iter().map(|(_, value)| ptr::with_exposed_provenance_mut(*value)).collect();
    let (options, values) = (options.as_mut_ptr().cast(), values.as_mut_ptr());
    let mut module = ptr::null_mut();
    let (image, count) = (READER.as_ptr().cast(), list.len() as u32);
    match cu!(bench, cuModuleLoadDataEx(&mut module, image, count, options, values)) {
        0 => Ok(module),
        error => Err(error),
    }
}

fn function(bench: &Bench, module: CUmodule) -> CUfunction {
    let mut function = ptr::null_mut();
    ok!(bench, cuModuleGetFunction(&mut function, module, c"read".as_ptr()));
    function
}

#[test]
fn variables_of_other_modules_have_the_hosts_addresses() {
    let bench = Bench::new("");
    let (outside, to) = (bench.allocate(64), bench.allocate(64));
    ok!(bench, cuMemsetD32Async(outside, 77, 1, ptr::null_mut()));
    assert!(load(&bench, &[]).is_ok());
    let names = [c"outside".as_ptr(), c"outside".as_ptr()];
    let mut addresses = [outside, outside + 4];
    let names = names.as_ptr().expose_provenance();
    let place = addresses.as_mut_ptr().expose_provenance();
    assert_eq!(load(&bench, &[(17, names), (18, place), (19, 2)]), Err(code::INVALID_VALUE));
    assert_eq!(load(&bench, &[(17, names), (19, 1)]), Err(code::INVALID_VALUE));
    let module = load(&bench, &[(17, names), (18, place), (19, 1)]).unwrap();
    let (mut address, mut bytes) = (0, 0);
    let name = c"outside".as_ptr();
    ok!(bench, cuModuleGetGlobal(&mut address, &mut bytes, module, name));
    assert_eq!((address, bytes), (outside, 4));
    let (read, mut result) = (function(&bench, module), [0; 4]);
    let mut parameter = to;
    let mut list = [ptr::from_mut(&mut parameter).cast()];
    let (list, none) = (list.as_mut_ptr(), ptr::null_mut());
    ok!(bench, cuLaunchKernel(read, 1, 1, 1, 1, 1, 1, 0, none, list, ptr::null_mut()));
    assert_eq!(bench.fetch(to, &mut result, ptr::null_mut()), 0);
    assert_eq!(result, [77, 0, 0, 0]);
}

/// A just-in-time compiler such as Numba loads a module for each kernel, and unloads none.
#[test]
fn a_program_loads_thousands_of_modules() {
    let bench = Bench::new("");
    let image = c".version 7.0\n.target sm_70\n.address_size 64\n.visible .global .u32 own;\n";
    let mut places = BTreeSet::new();
    for _ in 0..2000 {
        let (mut module, mut address) = (ptr::null_mut(), 0);
        ok!(bench, cuModuleLoadData(&mut module, image.as_ptr().cast()));
        let none = ptr::null_mut();
        ok!(bench, cuModuleGetGlobal(&mut address, none, module, c"own".as_ptr()));
        places.insert(address);
    }
    assert_eq!(places.len(), 2000);
}

#[test]
fn options_limit_kernels() {
    let bench = Bench::new("");
    let (names, addresses) = ([c"outside".as_ptr()], [bench.allocate(64)]);
    let symbols = [
        (17, names.as_ptr().expose_provenance()),
        (18, addresses.as_ptr().expose_provenance()),
        (19, 1),
    ];
    let most = |more: &[(u32, usize)]| {
        let module = load(&bench, &[&symbols[..], more].concat())?;
        let function = function(&bench, module);
        let mut values = [0; 2];
        let attributes = [
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS,
        ];
        for (value, attribute) in values.iter_mut().zip(attributes) {
            ok!(bench, cuFuncGetAttribute(value, attribute as u32, function));
        }
        Ok(values)
    };
    assert_eq!(most(&[]), Ok([256, 32]));
    assert_eq!(most(&[(0, 24)]), Ok([256, 24]));
    assert_eq!(most(&[(32, 64)]), Ok([256, 32]), "the PTX has a limit");
    assert_eq!(most(&[(32, 64), (33, 1)]), Ok([64, 32]));
    assert_eq!(most(&[(9, 80)]), Err(code::NO_BINARY_FOR_GPU));
    assert_eq!(most(&[(9, 90)]), Ok([256, 32]));
    assert_eq!(most(&[(9, 91)]), Err(code::INVALID_VALUE));
    assert_eq!(most(&[(9, 90), (1, 64)]), Err(code::INVALID_VALUE));
    assert_eq!(most(&[(9, 60)]), Err(code::INVALID_PTX), "older than the PTX");
    assert_eq!(most(&[(7, 5)]), Err(code::INVALID_VALUE));
    assert_eq!(most(&[(34, 0)]), Err(code::INVALID_VALUE));
    let (mut options, mut values) = ([3u32], [ptr::null_mut()]);
    let read = |purpose, options: &mut [u32; 1], values: &mut [*mut c_void; 1]| {
        let options = options.as_mut_ptr().cast();
        Options::read(purpose, 1, options, values.as_mut_ptr()).map(drop)
    };
    assert_eq!(read(Use::Input, &mut options, &mut values), Err(code::INVALID_VALUE));
    assert_eq!(read(Use::Link, &mut options, &mut values), Ok(()));
    options[0] = 10;
    assert_eq!(read(Use::Link, &mut options, &mut values), Err(code::INVALID_VALUE));
    assert_eq!(jit::named(ptr::null()), Err(code::INVALID_VALUE));
}

/// A library's kernel has a function in each context, and again after a context has ended.
#[test]
fn libraries_outlive_contexts() {
    const IMAGE: &CStr = c".version 7.0\n.target sm_70\n.address_size 64\n\
        .visible .global .u32 counter;\n.visible .entry count()\n\
        { .reg .b32 %r; atom.global.add.u32 %r, [counter], 1; ret; }";
    for schedule in SCHEDULES {
        let bench = Bench::new(&format!("devices=2,schedule={schedule}"));
        let (mut library, mut kernel) = (ptr::null_mut(), ptr::null_mut());
        let (none, image) = (ptr::null_mut(), IMAGE.as_ptr().cast());
        let no_values = ptr::null_mut();
        ok!(
            bench,
            cuLibraryLoadData(
                &mut library,
                image,
                none,
                no_values,
                0,
                ptr::null_mut(),
                ptr::null_mut(),
                0
            )
        );
        ok!(bench, cuLibraryGetKernel(&mut kernel, library, c"count".as_ptr()));
        let count = || {
            let (mut address, mut bytes, mut counter) = (0, 0, [0; 4]);
            let (function, stream) = (kernel.cast(), ptr::null_mut());
            let (list, extra) = (ptr::null_mut(), ptr::null_mut());
            ok!(bench, cuLaunchKernel(function, 3, 1, 1, 1, 1, 1, 0, stream, list, extra));
            let name = c"counter".as_ptr();
            ok!(bench, cuLibraryGetGlobal(&mut address, &mut bytes, library, name));
            assert_eq!(bench.fetch(address, &mut counter, ptr::null_mut()), 0);
            u32::from_le_bytes(counter)
        };
        assert_eq!((count(), count()), (3, 6));
        bench.use_device(1);
        assert_eq!(count(), 3);
        assert_eq!(live_objects().modules, 1, "the library");
        ok!(bench, cuDevicePrimaryCtxRelease(1));
        bench.use_device(1);
        assert_eq!(count(), 3, "a new context");
        ok!(bench, cuCtxSetCurrent(bench.context));
        assert_eq!(count(), 9);
        let mut module = ptr::null_mut();
        ok!(bench, cuLibraryGetModule(&mut module, library));
        assert_eq!(cu!(bench, cuModuleUnload(module)), code::NOT_PERMITTED);
        ok!(bench, cuLibraryUnload(library));
        assert_eq!(cu!(bench, cuLibraryUnload(library)), code::INVALID_HANDLE);
        let mut function = ptr::null_mut();
        assert_eq!(cu!(bench, cuKernelGetFunction(&mut function, kernel)), code::INVALID_HANDLE);
        assert_eq!(cu!(bench, cuModuleUnload(module)), code::INVALID_HANDLE);
        assert_eq!(live_objects().modules, 0);
    }
}
