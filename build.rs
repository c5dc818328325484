//! SONAME, no unloading, the thread block in C (stable Rust has no initial-exec TLS), the images of the
//! random kernels, compressed: a tenth of the library instead of half of it, and what all are built for.

use std::collections::BTreeSet;
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

/// What the kernels are built for, of the images themselves: "sm_80" of x.sm_80.cubin, "compute_52" of
/// PTX with that target; in PyTorch's order.
fn architectures() -> io::Result<()> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir("kernels")? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let architecture = if name.ends_with(".cubin") {
            name.split('.').find(|part| part.starts_with("sm_")).map(str::to_owned)
        } else if name.ends_with(".ptx") {
            let text = fs::read_to_string(&path)?;
            let target = text.lines().find_map(|line| line.strip_prefix(".target sm_"));
            target.and_then(|rest| rest.split([',', ' ']).next()).map(|of| format!("compute_{of}"))
        } else {
            continue;
        };
        let unknown = || io::Error::other(format!("{name}: for which architecture?"));
        let architecture = architecture.ok_or_else(unknown)?;
        let digits = |c: char| !c.is_ascii_digit();
        let number: u32 = architecture.trim_matches(digits).parse().unwrap_or(0);
        found.insert((architecture.starts_with("compute_"), number, architecture));
    }
    let list: Vec<String> = found.into_iter().map(|(_, _, architecture)| architecture).collect();
    let out = env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?;
    fs::write(Path::new(&out).join("architectures"), list.join(" "))
}

fn main() -> io::Result<()> {
    compress()?;
    architectures()?;
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
