//! SONAME, no unloading, the thread block in C (stable Rust has no initial-exec TLS), and the images of
//! the random kernels, compressed: a tenth of the library instead of half of it.

use std::path::Path;
use std::{env, fs, io};

/// As src/random/image.rs lists them.
const IMAGES: [&str; 8] = [
    "uniform",
    "normal",
    "log_normal",
    "exponential",
    "cauchy",
    "geometric",
    "integers",
    "bernoulli",
];

/// Writes each image with its NUL to OUT_DIR: its length as 8 bytes, then deflated.
fn compress() -> io::Result<()> {
    println!("cargo::rerun-if-changed=kernels");
    let out = env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?;
    for name in IMAGES {
        let mut text = fs::read(format!("kernels/random_{name}.ptx"))?;
        text.push(0);
        let mut stored = (text.len() as u64).to_le_bytes().to_vec();
        stored.extend(miniz_oxide::deflate::compress_to_vec(&text, 9));
        fs::write(Path::new(&out).join(format!("random_{name}")), stored)?;
    }
    Ok(())
}

fn main() -> io::Result<()> {
    compress()?;
    println!("cargo::rerun-if-changed=src/thread.c");
    cc::Build::new()
        .file("src/thread.c")
        .flag("-fvisibility=hidden")
        .std("c11")
        .compile("tcuda_thread");
    let (major, minor) = (env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"));
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libtcuda.so.{major}.{minor}");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    Ok(())
}
