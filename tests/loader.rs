//! The real loader against fake drivers: every case is a process of its own, since libraries stay
//! loaded and the environment is the process's.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::ffi::{CString, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};
use tcuda::driver::cuda::{self, CudaLoadError, MINIMUM_VERSION};
use tcuda::driver::library::LoadError;
use tcuda::driver::{CudaError, Driver, code};

const OVERRIDE: &str = "TCUDA_CUDA_DRIVER_PATH";
const CHILD: &str = "TCUDA_TEST_CHILD";

/// Compiles the fake driver with some of its parts left out, as `folder/file`.
fn fake(folder: &str, file: &str, options: &[&str]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("loader").join(folder);
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join(file);
    // Moved into place complete: tests that share it run at the same time.
    let thread = format!("{:?}", std::thread::current().id());
    let part = folder.join(format!("{file}.{}{thread}.part", std::process::id()));
    let status = Command::new(env::var_os("CC").unwrap_or("cc".into()))
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"])
        .args(["-fvisibility=hidden", "-Wl,-soname,libcuda.so.1", "-o"])
        .arg(&part)
        .args(options)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake_cuda.c"))
        .status()
        .expect("a C compiler");
    assert!(status.success());
    fs::rename(&part, &path).unwrap();
    path
}

/// Runs `body` in a child process that has only these of our variables. `test` is the calling test,
/// which is what the child runs, too.
fn isolated<const N: usize>(
    test: &str,
    environment: impl FnOnce() -> [(&'static str, OsString); N],
    body: impl FnOnce(),
) {
    if env::var(CHILD).is_ok_and(|child| child == test) {
        return body();
    }
    let mut child = Command::new(env::current_exe().unwrap());
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("TCUDA_") || name.starts_with("FAKE_CUDA_") {
            child.env_remove(&*name);
        }
    }
    let output = child
        .args([test, "--exact", "--nocapture"])
        .env(CHILD, test)
        .envs(environment())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{test}: {}\n{text}\n{errors}", output.status);
    assert!(text.contains("1 passed"), "{test} is not the name of the test:\n{text}");
}

fn driver() -> Driver {
    Driver::new(None, cuda::table().unwrap())
}

fn init(driver: &Driver) -> Result<(), CudaError> {
    // SAFETY: no pointers.
    unsafe { driver.cuInit(0) }
}

fn count(driver: &Driver) -> Result<i32, CudaError> {
    let mut count = -1;
    // SAFETY: writes one int.
    unsafe { driver.cuDeviceGetCount(&mut count) }.map(|()| count)
}

fn free_bytes(driver: &Driver) -> Result<usize, CudaError> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: writes two sizes.
    unsafe { driver.cuMemGetInfo(&mut free, &mut total) }.map(|()| free)
}

/// The generation of cuStreamGetCaptureInfo that was found.
fn capture_generation(driver: &Driver) -> Result<u64, CudaError> {
    let (mut status, mut id) = (0u32, 0);
    let (null, graph) = (std::ptr::null_mut(), std::ptr::null_mut());
    let (dependencies, length) = (std::ptr::null_mut(), std::ptr::null_mut());
    let status = (&raw mut status).cast();
    // SAFETY: the fake writes the id; every other pointer may be NULL.
    unsafe { driver.cuStreamGetCaptureInfo(null, status, &mut id, graph, dependencies, length) }
        .map(|()| id)
}

/// The edges of a graph, by the generation that has no data of them.
fn edges(driver: &Driver) -> Result<usize, CudaError> {
    let (null, mut number) = (std::ptr::null_mut(), 0);
    // SAFETY: the fake writes the number.
    unsafe { driver.cuGraphGetEdges(null, null.cast(), null.cast(), &mut number) }.map(|()| number)
}

fn synchronize(driver: &Driver) -> Result<(), CudaError> {
    // SAFETY: no pointers.
    unsafe { driver.cuCtxSynchronize() }
}

fn query(driver: &Driver) -> Result<(), CudaError> {
    // SAFETY: the NULL stream is a stream.
    unsafe { driver.cuStreamQuery(std::ptr::null_mut()) }
}

#[test]
fn a_driver_works() {
    let environment = || [(OVERRIDE, fake("full", "libcuda.so.1", &[]).into())];
    isolated("a_driver_works", environment, || {
        let driver = driver();
        init(&driver).unwrap();
        assert_eq!(count(&driver), Ok(1));
        assert_eq!(free_bytes(&driver), Ok(2), "the signature of the table");
        assert_eq!(capture_generation(&driver), Ok(2), "the level of the table, not the newest");
        assert_eq!(edges(&driver), Ok(1), "the level of the table, not the newest");
        assert_eq!(synchronize(&driver), Ok(()), "exported by the lookup alone");
        assert_eq!(query(&driver), Ok(()), "exported to dlsym alone");
    });
}

#[test]
fn a_missing_call_is_an_error_with_its_name() {
    let environment = || [(OVERRIDE, fake("full", "libcuda.so.1", &[]).into())];
    isolated("a_missing_call_is_an_error_with_its_name", environment, || {
        // SAFETY: the call does not exist.
        let result = unsafe { driver().cuMemMap(0, 0, 0, 0, 0) };
        assert_eq!(result, Err(CudaError::missing("cuMemMap")));
    });
}

#[test]
fn a_driver_before_12_has_the_lookup_without_status() {
    let environment = || {
        let path = fake("v1", "libcuda.so.1", &["-DWITHOUT_LOOKUP_V2"]);
        [(OVERRIDE, path.into()), ("FAKE_CUDA_VERSION", "11080".into())]
    };
    isolated("a_driver_before_12_has_the_lookup_without_status", environment, || {
        let driver = driver();
        init(&driver).unwrap();
        assert_eq!(synchronize(&driver), Ok(()), "asked at the driver's own level");
        assert_eq!(free_bytes(&driver), Ok(2));
        assert_eq!(capture_generation(&driver), Ok(2));
    });
}

#[test]
fn a_driver_without_lookup_is_searched_by_dlsym() {
    let environment = || {
        let options = &["-DWITHOUT_LOOKUP_V2", "-DWITHOUT_LOOKUP"];
        let path = fake("no_lookup", "libcuda.so.1", options);
        [(OVERRIDE, path.into()), ("FAKE_CUDA_VERSION", "11040".into())]
    };
    isolated("a_driver_without_lookup_is_searched_by_dlsym", environment, || {
        let driver = driver();
        init(&driver).unwrap();
        assert_eq!(count(&driver), Ok(1));
        assert_eq!(free_bytes(&driver), Ok(2));
        assert_eq!(capture_generation(&driver), Ok(2));
        assert_eq!(synchronize(&driver), Err(CudaError::missing("cuCtxSynchronize")));
    });
}

#[test]
fn an_old_driver_is_refused_with_both_versions() {
    let environment = || {
        let path = fake("full", "libcuda.so.1", &[]);
        [(OVERRIDE, path.into()), ("FAKE_CUDA_VERSION", "10020".into())]
    };
    isolated("an_old_driver_is_refused_with_both_versions", environment, || {
        let error = cuda::table().err().unwrap();
        let CudaLoadError::TooOld { found: 10020, needed: MINIMUM_VERSION } = error else {
            panic!("{error}")
        };
        let text = error.to_string();
        assert!(text.contains("CUDA 10.2") && text.contains("CUDA 11.4"), "{text}");
    });
}

#[test]
fn an_unknown_status_stays_a_number() {
    let environment = || {
        let path = fake("full", "libcuda.so.1", &[]);
        [(OVERRIDE, path.into()), ("FAKE_CUDA_COUNT", "9984".into())]
    };
    isolated("an_unknown_status_stays_a_number", environment, || {
        let expected = CudaError { call: "cuDeviceGetCount", code: 9984 };
        assert_eq!(count(&driver()), Err(expected));
    });
}

#[test]
fn init_may_fail() {
    for expected in [code::NO_DEVICE, code::STUB_LIBRARY, code::UNKNOWN] {
        let environment = || {
            let path = fake("full", "libcuda.so.1", &[]);
            [(OVERRIDE, path.into()), ("FAKE_CUDA_INIT", expected.to_string().into())]
        };
        isolated("init_may_fail", environment, || {
            let expected = env::var("FAKE_CUDA_INIT").unwrap().parse().unwrap();
            assert_eq!(init(&driver()), Err(CudaError { call: "cuInit", code: expected }));
        });
    }
}

#[test]
fn a_stub_explains_itself() {
    let environment = || [(OVERRIDE, fake("stub", "libcuda.so.1", &["-DSTUB"]).into())];
    isolated("a_stub_explains_itself", environment, || {
        let expected = CudaError { call: "cuInit", code: code::STUB_LIBRARY };
        assert_eq!(init(&driver()), Err(expected));
    });
}

#[test]
fn a_driver_is_preferred_to_a_stub() {
    let environment = || {
        let stub = fake("stub_first", "libcuda.so.1", &["-DSTUB"]);
        fake("stub_first", "libcuda.so", &[]);
        [("LD_LIBRARY_PATH", stub.parent().unwrap().into())]
    };
    isolated("a_driver_is_preferred_to_a_stub", environment, || {
        init(&driver()).unwrap();
    });
}

#[test]
fn the_versioned_name_goes_first() {
    let environment = || {
        let good = fake("versioned", "libcuda.so.1", &[]);
        fake("versioned", "libcuda.so", &["-DWITHOUT_LOOKUP_V2", "-DWITHOUT_LOOKUP"]);
        [("LD_LIBRARY_PATH", good.parent().unwrap().into())]
    };
    isolated("the_versioned_name_goes_first", environment, || {
        assert_eq!(synchronize(&driver()), Ok(()));
    });
}

#[test]
fn a_loaded_driver_is_shared_and_kept() {
    let environment = || {
        // A search finds a driver under the first name; the host has loaded another by the second.
        let other = fake("other", "libcuda.so.1", &[]);
        let path = fake("hosts", "libcuda.so", &["-Wl,-soname,libcuda.so"]);
        [("LD_LIBRARY_PATH", other.parent().unwrap().into()), ("TCUDA_TEST_PRELOAD", path.into())]
    };
    isolated("a_loaded_driver_is_shared_and_kept", environment, || {
        let path = CString::new(env::var("TCUDA_TEST_PRELOAD").unwrap()).unwrap();
        // SAFETY: a library of ours.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null());
        // SAFETY: the handle is open.
        let theirs = unsafe { libc::dlsym(handle, c"cuStreamQuery".as_ptr()) };
        let table = cuda::table().unwrap();
        assert_eq!(table.cuStreamQuery.unwrap() as *mut std::ffi::c_void, theirs);
        let driver = Driver::new(None, table);
        // A host may close once too often.
        for _ in 0..2 {
            // SAFETY: opened twice, by the host and by us.
            unsafe { libc::dlclose(handle) };
        }
        query(&driver).unwrap();
    });
}

#[test]
fn a_missing_file_is_named() {
    let environment = || [(OVERRIDE, "/nowhere/libcuda.so.1".into())];
    isolated("a_missing_file_is_named", environment, || {
        let error = cuda::table().err().unwrap();
        assert!(matches!(error, CudaLoadError::NoLibrary(LoadError::Override { .. })));
        let text = error.to_string();
        for part in [OVERRIDE, "/nowhere/libcuda.so.1", "No such file", "unset the variable"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    });
}

#[test]
fn a_file_that_is_no_library_is_named() {
    let environment = || {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no_elf");
        fs::write(&path, "not a library\n".repeat(100)).unwrap();
        [(OVERRIDE, path.into())]
    };
    isolated("a_file_that_is_no_library_is_named", environment, || {
        let text = cuda::table().err().unwrap().to_string();
        for part in [OVERRIDE, "no_elf", "invalid ELF header"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    });
}

#[test]
fn a_long_path_is_cut() {
    let environment = || [(OVERRIDE, format!("/{}/\u{e4}", "x".repeat(100_000)).into())];
    isolated("a_long_path_is_cut", environment, || {
        let text = cuda::table().err().unwrap().to_string();
        assert!(text.len() < 1500, "{}", text.len());
    });
}

#[test]
fn another_library_is_no_driver() {
    let environment = || [(OVERRIDE, "libc.so.6".into())];
    isolated("another_library_is_no_driver", environment, || {
        assert!(matches!(cuda::table(), Err(CudaLoadError::NotADriver)));
    });
}

#[test]
fn an_empty_override_is_none() {
    let environment = || {
        let path = fake("full", "libcuda.so.1", &[]);
        [(OVERRIDE, "".into()), ("LD_LIBRARY_PATH", path.parent().unwrap().into())]
    };
    isolated("an_empty_override_is_none", environment, || {
        assert_eq!(count(&driver()), Ok(1));
    });
}

#[test]
fn without_a_driver_the_error_says_what_to_do() {
    isolated(
        "without_a_driver_the_error_says_what_to_do",
        || [],
        || match cuda::table() {
            Ok(_) => println!("skipped: this machine has a driver"),
            Err(error) => {
                assert!(matches!(error, CudaLoadError::NoLibrary(LoadError::NotFound { .. })));
                let text = error.to_string();
                for part in ["libcuda.so.1", "No such file", "install an NVIDIA driver", OVERRIDE] {
                    assert!(text.contains(part), "{part}: {text}");
                }
                println!("{text}");
            }
        },
    );
}

#[test]
fn a_broken_driver_is_told_from_an_absent_one() {
    let environment = || {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("loader/broken");
        fs::create_dir_all(&folder).unwrap();
        // Only the second name exists, and it does not load.
        fs::write(folder.join("libcuda.so"), "not a library\n".repeat(100)).unwrap();
        [("LD_LIBRARY_PATH", folder.into())]
    };
    isolated("a_broken_driver_is_told_from_an_absent_one", environment, || match cuda::table() {
        Ok(_) => println!("skipped: this machine has a driver"),
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains("invalid ELF header"), "{text}");
        }
    });
}
