//! Modules and kernels.

use super::*;
use std::ffi::CStr;

/// `add_one` adds one to `count` 32-bit integers.
const IMAGE: &CStr = c"// A comment\n.version 7.8\n.target sm_52\n.address_size 64\n\
    .visible .entry add_one(.param .u64 data, .param .u32 count)\n\
    { .reg .pred %p; .reg .b32 %r<5>; .reg .b64 %a<3>; ld.param.u64 %a0, [data];\n\
    ld.param.u32 %r0, [count]; mov.u32 %r1, %tid.x; mov.u32 %r2, %ntid.x;\n\
    $again: setp.ge.u32 %p, %r1, %r0; @%p ret; mad.wide.u32 %a1, %r1, 4, %a0;\n\
    ld.global.u32 %r3, [%a1]; add.u32 %r3, %r3, 1; st.global.u32 [%a1], %r3;\n\
    add.u32 %r1, %r1, %r2; bra $again; }\n.entry faulty()\n{ trap; }";

fn load(bench: &Bench) -> CUmodule {
    let mut module = ptr::null_mut();
    ok!(bench, cuModuleLoadData(&mut module, IMAGE.as_ptr().cast()));
    module
}

fn function(bench: &Bench, module: CUmodule, name: &CStr) -> Result<CUfunction, i32> {
    let mut function = ptr::null_mut();
    match cu!(bench, cuModuleGetFunction(&mut function, module, name.as_ptr())) {
        0 => Ok(function),
        error => Err(error),
    }
}

fn launch(
    bench: &Bench,
    function: CUfunction,
    stream: CUstream,
    (grid, block): ([u32; 3], [u32; 3]),
    parameters: &mut [*mut c_void],
) -> i32 {
    let ([x, y, z], [a, b, c]) = (grid, block);
    let list = parameters.as_mut_ptr();
    cu!(bench, cuLaunchKernel(function, x, y, z, a, b, c, 0, stream, list, ptr::null_mut()))
}

const ONE: ([u32; 3], [u32; 3]) = ([1; 3], [32, 1, 1]);

#[test]
fn modules_know_the_kernels_of_their_image() {
    let bench = Bench::new("");
    let module = load(&bench);
    assert!(function(&bench, module, c"add_one").is_ok());
    assert_eq!(function(&bench, module, c"add_one"), function(&bench, module, c"add_one"));
    for name in [c"elsewhere", c"add"] {
        assert_eq!(function(&bench, module, name), Err(code::NOT_FOUND));
    }
    assert_eq!(function(&bench, garbage(), c"add_one"), Err(code::INVALID_HANDLE));
    let mut other = ptr::null_mut();
    for image in [c"\x7fELF", c"", c"// .version", c"version 7.8", c"\xff.version"] {
        let call = cu!(bench, cuModuleLoadData(&mut other, image.as_ptr().cast()));
        assert_eq!(call, code::INVALID_IMAGE);
    }
    let add_one = function(&bench, module, c"add_one").unwrap();
    let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK;
    let mut value = 0;
    ok!(bench, cuFuncGetAttribute(&mut value, attribute as u32, add_one));
    assert_eq!(value, 1024);
    for (threads, shared, blocks) in [(256, 0, 8), (1024, 0, 2), (33, 0, 32), (128, 49_152, 4)] {
        ok!(
            bench,
            cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut value, add_one, threads, shared)
        );
        assert_eq!(value, blocks);
    }
    ok!(bench, cuModuleUnload(module));
    assert_eq!(cu!(bench, cuModuleUnload(module)), code::INVALID_HANDLE);
    let call = cu!(bench, cuFuncGetAttribute(&mut value, attribute as u32, add_one));
    assert_eq!(call, code::INVALID_HANDLE);
}

#[test]
fn kernels_run_in_stream_order_with_the_parameters_of_their_launch() {
    for schedule in SCHEDULES {
        let bench = Bench::new(&format!("devices=2,schedule={schedule}"));
        let add_one = function(&bench, load(&bench), c"add_one").unwrap();
        let stream = bench.stream();
        let mut memory = bench.allocate(400);
        let address = memory;
        let mut count = 100u32;
        ok!(bench, cuMemsetD32Async(address, 5, 100, stream));
        let mut run = |shape| {
            let mut parameters =
                [ptr::from_mut(&mut memory).cast(), ptr::from_mut(&mut count).cast()];
            launch(&bench, add_one, stream, shape, &mut parameters)
        };
        assert_eq!(run(ONE), 0);
        assert_eq!(run(ONE), 0);
        for shape in [
            ([0, 1, 1], [1; 3]),
            ([1; 3], [1025, 1, 1]),
            ([1; 3], [32, 33, 1]),
            ([1; 3], [1, 1, 65]),
            ([1; 3], [1, 0, 1]),
            ([1, 65_536, 1], [1; 3]),
        ] {
            assert_eq!(run(shape), code::INVALID_VALUE);
        }
        (memory, count) = (0, 0);
        let mut found = [0; 400];
        assert_eq!(bench.fetch(address, &mut found, stream), 0);
        assert!(found.chunks_exact(4).all(|word| word == [7, 0, 0, 0]));
        let nothing = &mut [ptr::null_mut(), ptr::null_mut()];
        assert_eq!(launch(&bench, add_one, stream, ONE, nothing), code::INVALID_VALUE);
        assert_eq!(launch(&bench, garbage(), stream, ONE, nothing), code::INVALID_HANDLE);
        bench.use_device(1);
        assert_eq!(launch(&bench, add_one, bench.stream(), ONE, nothing), code::INVALID_HANDLE);
        assert_eq!((memory, count), (0, 0));
    }
}

#[test]
fn a_kernel_that_faults_fails_its_context() {
    for (name, mut memory, expected) in
        [(c"add_one", 0x1234u64, code::ILLEGAL_ADDRESS), (c"faulty", 0, code::LAUNCH_FAILED)]
    {
        let bench = Bench::new("schedule=threads");
        let function = function(&bench, load(&bench), name).unwrap();
        let mut count = 4u32;
        let mut parameters = [ptr::from_mut(&mut memory).cast(), ptr::from_mut(&mut count).cast()];
        let stream = bench.stream();
        assert_eq!(launch(&bench, function, stream, ONE, &mut parameters), 0);
        assert_eq!(cu!(bench, cuStreamSynchronize(stream)), expected);
        assert_eq!(cu!(bench, cuCtxSynchronize()), expected);
    }
}

#[test]
fn a_kernel_may_require_clusters_and_blocks() {
    let bench = Bench::new("");
    // Each block writes its rank in the cluster, plus 16 times the size of the cluster.
    let image = c".version 8.0\n.target sm_90\n.address_size 64\n\
        .visible .entry ranks(.param .u64 data)\n.explicitcluster\n\
        .reqnctapercluster 2, 1, 1\n{ .reg .b32 %r<5>; .reg .b64 %a<3>;\n\
        ld.param.u64 %a0, [data]; mov.u32 %r0, %ctaid.x; mov.u32 %r1, %cluster_ctarank;\n\
        mov.u32 %r2, %cluster_nctarank; mad.lo.u32 %r1, %r2, 16, %r1;\n\
        mad.wide.u32 %a1, %r0, 4, %a0; st.global.u32 [%a1], %r1; ret; }\n\
        .visible .entry large()\n.explicitcluster\n.reqnctapercluster 16, 1, 1\n{ ret; }\n\
        .visible .entry exact()\n.reqntid 64\n{ ret; }";
    let mut module = ptr::null_mut();
    ok!(bench, cuModuleLoadData(&mut module, image.as_ptr().cast()));
    let ranks = function(&bench, module, c"ranks").unwrap();
    let mut value = 0;
    for (attribute, expected) in [
        (CUfunction_attribute::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, 2),
        (CUfunction_attribute::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH, 1),
    ] {
        ok!(bench, cuFuncGetAttribute(&mut value, attribute as u32, ranks));
        assert_eq!(value, expected);
    }
    let mut data = bench.allocate(16);
    let address = data;
    let mut list = [ptr::from_mut(&mut data).cast()];
    let stream = bench.stream();
    // What an H100 returns (580.159).
    for (grid, expected) in [(3, code::INVALID_CLUSTER_SIZE), (4, code::SUCCESS)] {
        let shape = ([grid, 1, 1], [1, 1, 1]);
        assert_eq!(launch(&bench, ranks, stream, shape, &mut list), expected);
    }
    let mut found = [0; 16];
    assert_eq!(bench.fetch(address, &mut found, stream), 0);
    assert!(found.chunks_exact(8).all(|words| words == [32, 0, 0, 0, 33, 0, 0, 0]));
    let large = function(&bench, module, c"large").unwrap();
    let shape = ([16, 1, 1], [1, 1, 1]);
    assert_eq!(launch(&bench, large, stream, shape, &mut []), code::INVALID_CLUSTER_SIZE);
    let exact = function(&bench, module, c"exact").unwrap();
    for (threads, expected) in [(32, code::INVALID_VALUE), (64, code::SUCCESS)] {
        let shape = ([4, 1, 1], [threads, 1, 1]);
        assert_eq!(launch(&bench, exact, stream, shape, &mut []), expected);
    }
}

/// Lines of the log.
static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

unsafe extern "C" fn keep_line(line: *const c_char) {
    // SAFETY: the log passes a NUL-terminated text.
    let line = unsafe { CStr::from_ptr(line) };
    LINES.lock().unwrap().push(line.to_str().unwrap().to_owned());
}

#[test]
fn races_are_reported_where_they_are_asked_for() {
    // Each thread of the block writes its number to the same word.
    let image = c".version 7.8\n.target sm_52\n.address_size 64\n\
        .visible .entry write(.param .u64 data)\n\
        { .reg .b32 %r; .reg .b64 %a; ld.param.u64 %a, [data]; mov.u32 %r, %tid.x;\n\
        st.global.u32 [%a], %r; ret; }";
    for (options, reported) in [("races=report", true), ("", false)] {
        LINES.lock().unwrap().clear();
        let hooks = Hooks { log: Some(keep_line), ..Hooks::default() };
        let bench = Bench::with_hooks(options, hooks);
        let mut module = ptr::null_mut();
        ok!(bench, cuModuleLoadData(&mut module, image.as_ptr().cast()));
        let write = function(&bench, module, c"write").unwrap();
        let mut data = bench.allocate(4);
        let stream = bench.stream();
        let list = &mut [(&raw mut data).cast()];
        assert_eq!(launch(&bench, write, stream, ONE, list), 0);
        ok!(bench, cuStreamSynchronize(stream));
        let lines = LINES.lock().unwrap().clone();
        assert_eq!(lines.iter().any(|line| line.contains("write")), reported, "{lines:?}");
    }
}

#[test]
fn an_endless_loop_ends_at_the_limit() {
    let image = c".version 7.8\n.target sm_52\n.address_size 64\n\
        .visible .entry spin()\n{ $again: bra $again; }";
    let bench = Bench::new("kernel_time=1");
    let mut module = ptr::null_mut();
    ok!(bench, cuModuleLoadData(&mut module, image.as_ptr().cast()));
    let spin = function(&bench, module, c"spin").unwrap();
    let stream = bench.stream();
    let began = std::time::Instant::now();
    launch(&bench, spin, stream, ONE, &mut []);
    assert_eq!(cu!(bench, cuStreamSynchronize(stream)), code::LAUNCH_TIMEOUT);
    let took = began.elapsed().as_secs();
    assert!((1..30).contains(&took), "{took}");
}
